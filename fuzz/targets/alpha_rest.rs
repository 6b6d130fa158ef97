//! Attributes files and refs of releases before 0.2.

use icechunkfs::format::alpha::{attributes::AttributesFile, reference};

pub(crate) fn run(file: &[u8]) {
    if let Ok(attributes) = AttributesFile::decode(file, 1 << 24) {
        let _ = (attributes.at(0), attributes.at(u64::MAX));
    }
    let _ = reference::parse(file);
}
