//! Repositories in memory, for unit tests.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use super::Repository;
use crate::storage::{Condition, Storage, object::ObjectStorage};

/// Opens a repository of version 2 whose only object is `repo`, with `file` as its content.
pub(crate) async fn open(file: Vec<u8>) -> Repository {
    let store = Arc::new(object_store::memory::InMemory::new());
    let storage = ObjectStorage::new(store, "memory".into(), Duration::from_secs(1));
    storage.put("repo", file.into(), Condition::Always).await.unwrap();
    Repository::open(Arc::new(storage)).await.unwrap()
}
