//! Manifests of releases before 0.2, in every wrapping: every reference, and searching for it.

use super::{file, manifest};
use icechunkfs::format::manifest::Manifest;

pub(crate) fn run(file: &[u8]) {
    for file in [file, &file::around(2, file)] {
        if let Ok(manifest) = Manifest::decode(file, 1 << 24) {
            manifest::look_through(&manifest);
        }
    }
}
