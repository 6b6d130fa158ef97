//! Snapshots of releases before 0.2, in every wrapping: read and converted.

use super::file;
use icechunkfs::format::alpha::attributes::AttributesFile;
use icechunkfs::format::alpha::snapshot::AlphaSnapshot;
use icechunkfs::format::snapshot::Snapshot;

pub(crate) fn run(file: &[u8]) {
    for file in [file, &file::around(1, file)] {
        let Ok(mut snapshot) = AlphaSnapshot::decode(file, 1 << 24) else { continue };
        let attributes = AttributesFile::decode(b"[{}, {}]", 1 << 20).expect("two places");
        for id in snapshot.attribute_files() {
            let _ = snapshot.set_attributes(id, &attributes);
        }
        let Ok(draft) = snapshot.into_draft() else { continue };
        let Ok(snapshot) = Snapshot::from_draft(&draft) else { continue };
        assert_eq!(snapshot.node_count(), draft.nodes.len());
        for node in snapshot.nodes() {
            assert!(serde_json::from_slice::<serde_json::Value>(node.zarr_json).is_ok());
        }
        let _ = snapshot.metadata();
    }
}
