//! Manifests of releases before 0.2, in every wrapping: every reference, and searching for it.

use super::file;
use icechunkfs::format::manifest::Manifest;

pub(crate) fn run(file: &[u8]) {
    for file in [file, &file::around(2, file)] {
        let Ok(manifest) = Manifest::decode(file, 1 << 24) else { continue };
        for node in manifest.arrays().take(100).collect::<Vec<_>>() {
            let Ok(Some(refs)) = manifest.array(node) else { continue };
            for at in 0..refs.len().min(1000) {
                let coords: Vec<u32> = refs.coords(at).iter().collect();
                let found = refs.find(&coords).expect("what is listed is found");
                assert!(found <= at && refs.coords(found).iter().eq(coords.iter().copied()));
                let _ = (refs.length(at), refs.payload(at));
            }
        }
    }
}
