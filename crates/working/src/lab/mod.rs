//! Mounts without FUSE, for unit tests: sessions over real repositories in directories, below a
//! model of the kernel that keeps everything as long as it may ([`kernel`]).
//!
//! The right bytes of each file are kept apart, as POSIX and the promise of a refresh have them
//! ([`mount`]): a name shows the newest file, and a program that has opened a file reads that file
//! to the end.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

pub(crate) mod kernel;
pub(crate) mod mount;
pub(crate) mod programs;

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Map;
use tempfile::TempDir;

use crate::operations::{RecoveryOptions, Session, open};
use icechunkfs_base::times::system_clock;
use icechunkfs_repo::commit::engine::{Engine, EngineOptions};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::reader::memory::Budget;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::create::create;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_store::storage::{Storage, open_directory};
use icechunkfs_tree::mount_facts::{Access, MountFacts};

/// Memory of each session, in bytes.
const MEMORY: u64 = 64 << 20;

/// Repository in a directory, with room for scratch directories.
pub(crate) struct Lab {
    directory: TempDir,
}

impl Lab {
    /// Creates a repository that has a root group.
    pub(crate) async fn new() -> Self {
        Self::create(true).await
    }

    /// Creates a repository whose only snapshot is the first one.
    pub(crate) async fn without_commits() -> Self {
        Self::create(false).await
    }

    async fn create(zarr_group: bool) -> Self {
        let lab = Lab { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(lab.repository()).unwrap();
        create(&*lab.storage(), zarr_group, system_clock).await.unwrap();
        lab
    }

    fn repository(&self) -> PathBuf {
        self.directory.path().join("repository")
    }

    fn storage(&self) -> Arc<dyn Storage> {
        open_directory(&self.repository()).unwrap()
    }

    /// Opens the repository.
    pub(crate) async fn open(&self) -> Repository {
        Repository::open(self.storage()).await.unwrap()
    }

    /// Opens a session of branch `main`, with the uncommitted changes of the last one with this
    /// `name`.
    pub(crate) async fn session(&self, name: &str) -> Session {
        let repository = self.open().await;
        let storage = Arc::clone(repository.storage());
        let scratch = self.directory.path().join(name);
        let place = self.repository();
        let opening = RecoveryOptions {
            branch: "main",
            scratch: &scratch,
            mountpoint: &self.directory.path().join("mountpoint"),
            local: Some(&place),
            discard: false,
            limit: MEMORY,
        };
        let reader = |fixed| Ok(Reader::new(Arc::clone(&storage), Budget::new(MEMORY, fixed)?));
        let (working, reader, _) = open(&repository, &opening, reader).await.unwrap();
        let engine = Engine::new(Arc::clone(&storage), Arc::clone(&reader), system_clock, EngineOptions::default());
        let facts = MountFacts {
            repository: place.display().to_string(),
            spec: RefSpec::Branch("main".to_owned()),
            access: Access::Write,
            mountpoint: opening.mountpoint.to_owned(),
            spec_version: 2,
            properties: None,
            scratch: Some(scratch.clone()),
            options: Map::new(),
        };
        Session::new(working, storage, reader, engine, Arc::new(facts))
    }
}
