//! Manifests: every reference, and searching for it.

use super::file;
use icechunkfs::format::manifest::Manifest;

pub(crate) fn run(payload: &[u8]) {
    if let Ok(manifest) = Manifest::decode(&file::around(2, payload), 1 << 24) {
        look_through(&manifest);
    }
}

/// Reads every reference, and searches for each of them.
pub(super) fn look_through(manifest: &Manifest) {
    for node in manifest.node_ids().take(100).collect::<Vec<_>>() {
        let Ok(Some(refs)) = manifest.array(node) else { continue };
        for at in 0..refs.len().min(1000) {
            let coords: Vec<u32> = refs.coords(at).iter().collect();
            let found = refs.find(&coords).expect("what is listed is found");
            assert!(found <= at && refs.coords(found).iter().eq(coords.iter().copied()));
            let _ = (refs.length(at), refs.payload(at));
        }
    }
}
