//! Waits of readers for each other.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use super::Reader;
use super::memory::Budget;
use icechunkfs_format::format::snapshot::ManifestInfo;
use icechunkfs_format::format::testing::{self, id};
use icechunkfs_store::storage::{Condition, empty_storage};

/// Those who have reserved memory wait for permits to read, and a manifest's load waits for memory.
/// Neither may keep the other from going on.
#[tokio::test]
async fn a_manifest_is_loaded_while_others_wait_to_read() {
    let storage = empty_storage("memory");
    let file = testing::manifest(id(1), &[]);
    let info = ManifestInfo { id: id(1), size: file.len() as u64, chunk_refs: 0 };
    storage.put(&format!("manifests/{}", id(1)), file.into(), Condition::Always).await.unwrap();
    let reader = Arc::new(Reader::new(storage, Budget::new(64 << 20, 0).unwrap()));
    let all = u32::try_from(reader.reads.available_permits()).unwrap();
    let _reading = reader.reads.acquire_many(all).await.unwrap();
    let loaded = tokio::time::timeout(Duration::from_secs(20), reader.manifest(info)).await;
    assert_eq!(loaded.unwrap().unwrap().id(), id(1), "it does not wait for those that read");
}
