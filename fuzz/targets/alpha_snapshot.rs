//! Snapshots of releases before 0.2, in every wrapping: read and made one of today's.
#![no_main]
use icechunkfs::format::alpha::attributes::AttributesFile;
use icechunkfs::format::alpha::snapshot::AlphaSnapshot;
use icechunkfs::format::snapshot::Snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    for file in [file, &icechunkfs_fuzz_file(1, file)] {
        let Ok(mut snapshot) = AlphaSnapshot::decode(file, 1 << 24) else { continue };
        let attributes = AttributesFile::decode(b"[{}, {}]", 100).expect("two places");
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
});

include!("file.rs");
