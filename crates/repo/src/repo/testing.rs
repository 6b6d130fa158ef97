//! Repositories in memory, for unit tests.
#![allow(clippy::unwrap_used)]

use super::Repository;
use icechunkfs_store::storage::{Condition, empty_storage};

/// Opens a repository of version 2 whose only object is `repo`, with `file` as its content.
pub(crate) async fn open(file: Vec<u8>) -> Repository {
    let storage = empty_storage("memory");
    storage.put("repo", file.into(), Condition::Always).await.unwrap();
    Repository::open(storage).await.unwrap()
}
