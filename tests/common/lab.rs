//! A repository, the commit engine, and a model of a working tree.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use icechunk::config::{ManifestSplitCondition, ManifestSplitDim, ManifestSplitDimCondition, ManifestSplittingConfig};
use icechunk::format::ByteRange;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::repository::VersionInfo;
use icechunk::{RepositoryConfig, Store};
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, ChunkFile, DeletedNode, WrittenNode};
use icechunkfs::commit::engine::{CommitOutcome, Engine, EngineOptions, Request};
use icechunkfs::commit::progress::CommitProgress;
use icechunkfs::format::ids::{NodeId, ObjectId};
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::format::transaction_log::Move;
use icechunkfs::reader::Reader;
use icechunkfs::reader::memory::Budget;
use icechunkfs::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs::storage::{self, Storage};
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;
use tokio::sync::RwLock;

pub const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

pub fn array_json(shape: &[u32], chunks: &[u32], attributes: &str) -> String {
    serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "attributes": {"note": attributes},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}],
        "dimension_names": (0..shape.len()).map(|n| format!("dim{n}")).collect::<Vec<_>>(),
    })
    .to_string()
}

/// A group or array of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub id: NodeId,
    pub path: String,
    pub zarr_json: String,
    /// Chunks per dimension; None for a group.
    pub grid: Option<Vec<u32>>,
    pub chunks: BTreeMap<Vec<u32>, Vec<u8>>,
}

/// The content of a working tree, by the ids of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub nodes: BTreeMap<NodeId, Node>,
}

impl Model {
    pub fn group(&mut self, path: &str) -> NodeId {
        self.add(path, GROUP.to_owned(), None)
    }

    /// Adds an array of chunks of one element.
    pub fn array(&mut self, path: &str, grid: &[u32]) -> NodeId {
        self.add(path, array_json(grid, &vec![1; grid.len()], ""), Some(grid.to_vec()))
    }

    fn add(&mut self, path: &str, zarr_json: String, grid: Option<Vec<u32>>) -> NodeId {
        let id = NodeId::random().unwrap();
        assert!(self.at(path).is_none(), "{path} exists");
        self.nodes.insert(id, Node { id, path: path.to_owned(), zarr_json, grid, chunks: BTreeMap::new() });
        id
    }

    pub fn at(&self, path: &str) -> Option<NodeId> {
        self.nodes.values().find(|node| node.path == path).map(|node| node.id)
    }

    pub fn get(&mut self, path: &str) -> &mut Node {
        let id = self.at(path).unwrap_or_else(|| panic!("no {path}"));
        self.nodes.get_mut(&id).unwrap()
    }

    pub fn chunk(&mut self, path: &str, coords: &[u32], bytes: impl Into<Vec<u8>>) {
        let node = self.get(path);
        assert!(node.grid.as_ref().is_some_and(|grid| grid.iter().zip(coords).all(|(n, c)| c < n)), "{coords:?}");
        node.chunks.insert(coords.to_vec(), bytes.into());
    }

    /// Gives an array another shape; chunks outside are removed.
    pub fn resize(&mut self, path: &str, grid: &[u32]) {
        let node = self.get(path);
        node.zarr_json = array_json(grid, &vec![1; grid.len()], "resized");
        node.grid = Some(grid.to_vec());
        node.chunks.retain(|coords, _| coords.iter().zip(grid).all(|(c, n)| c < n));
    }

    pub fn delete(&mut self, path: &str) {
        self.nodes.retain(|_, node| !is_at_or_below(&node.path, path));
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        for node in self.nodes.values_mut().filter(|node| is_at_or_below(&node.path, from)) {
            node.path = format!("{to}{}", &node.path[from.len()..]);
        }
    }

    /// Returns Zarr keys and bytes.
    pub fn keys(&self) -> BTreeMap<String, Vec<u8>> {
        let mut keys = BTreeMap::new();
        for node in self.nodes.values() {
            let prefix = node.path.trim_start_matches('/');
            let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
            keys.insert(format!("{prefix}zarr.json"), node.zarr_json.clone().into_bytes());
            for (coords, bytes) in &node.chunks {
                let coords: String = coords.iter().map(|c| format!("/{c}")).collect();
                keys.insert(format!("{prefix}c{coords}"), bytes.clone());
            }
        }
        keys
    }

    /// Returns the change set from `base` to this model, with new chunks as files in `scratch`.
    pub fn changes_since(&self, base: &Model, scratch: &Scratch) -> ChangeSet {
        let mut out = ChangeSet::default();
        for node in base.nodes.values().filter(|node| !self.nodes.contains_key(&node.id)) {
            out.deleted.push(DeletedNode { id: node.id, path: node.path.clone(), is_array: node.grid.is_some() });
        }
        for node in self.nodes.values() {
            let is_array = node.grid.is_some();
            let written = || WrittenNode {
                id: node.id,
                path: node.path.clone(),
                zarr_json: Bytes::from(node.zarr_json.clone()),
                is_array,
            };
            let old = base.nodes.get(&node.id);
            match old {
                None => out.created.push(written()),
                Some(old) => {
                    if old.zarr_json != node.zarr_json {
                        out.updated.push(written());
                    }
                    if old.path != node.path {
                        let (from, to) = (old.path.clone(), node.path.clone());
                        out.moved.push(Move { from, to, node: node.id, is_array });
                    }
                }
            }
            let before = old.map(|old| old.chunks.clone()).unwrap_or_default();
            let mut changed = BTreeMap::new();
            for (coords, bytes) in node.chunks.iter().filter(|(coords, bytes)| before.get(*coords) != Some(bytes)) {
                changed.insert(Coords::from_slice(coords), ChunkChange::File(scratch.file(bytes)));
            }
            let grid = node.grid.clone().unwrap_or_default();
            let in_grid = |coords: &[u32]| coords.iter().zip(&grid).all(|(c, n)| c < n);
            for coords in before.keys().filter(|coords| !node.chunks.contains_key(*coords) && in_grid(coords)) {
                changed.insert(Coords::from_slice(coords), ChunkChange::Delete);
            }
            if !changed.is_empty() {
                out.chunks.insert(node.id, changed);
            }
        }
        out
    }

    /// Takes the ids of `snapshot`: nodes that a commit to version 1 moved have new ids.
    pub fn take_ids(&mut self, snapshot: &Snapshot) {
        let ids: BTreeMap<String, NodeId> = snapshot.nodes().map(|node| (node.path.to_owned(), node.id)).collect();
        let nodes = std::mem::take(&mut self.nodes);
        for (_, mut node) in nodes {
            node.id = ids[&node.path];
            self.nodes.insert(node.id, node);
        }
    }
}

pub fn is_at_or_below(path: &str, above: &str) -> bool {
    path == above || above == "/" || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// A directory of chunk files.
#[derive(Debug)]
pub struct Scratch {
    pub directory: tempfile::TempDir,
    descriptor: Arc<OwnedFd>,
    next: std::sync::atomic::AtomicU64,
}

impl Scratch {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let descriptor = Arc::new(OwnedFd::from(File::open(directory.path()).unwrap()));
        Scratch { directory, descriptor, next: Default::default() }
    }

    pub fn file(&self, bytes: &[u8]) -> ChunkFile {
        let name = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string();
        std::fs::write(self.directory.path().join(&name), bytes).unwrap();
        ChunkFile { directory: Arc::clone(&self.descriptor), name, length: bytes.len() as u64, can_link: true }
    }
}

/// The engine on a repository.
pub struct Lab {
    pub storage: Arc<dyn Storage>,
    pub reader: Arc<Reader>,
    pub engine: Engine,
    pub scratch: Scratch,
}

impl Lab {
    pub fn open(path: &Path) -> Lab {
        Lab::with(path, EngineOptions::default())
    }

    pub fn with(path: &Path, options: EngineOptions) -> Lab {
        Lab::over(storage::open_directory(path).unwrap(), options)
    }

    pub fn over(storage: Arc<dyn Storage>, options: EngineOptions) -> Lab {
        let budget = Budget::new(512 << 20, 0).unwrap();
        let reader = Arc::new(Reader::new(Arc::clone(&storage), budget));
        let engine = Engine::new(Arc::clone(&storage), Arc::clone(&reader), system_clock, options);
        Lab { storage, reader, engine, scratch: Scratch::new() }
    }

    pub async fn repository(&self) -> Repository {
        Repository::open(Arc::clone(&self.storage)).await.unwrap()
    }

    pub async fn tip(&self) -> Arc<Snapshot> {
        let repository = self.repository().await;
        let tip = repository.branch_tip("main").await.unwrap().unwrap();
        Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await.unwrap())
    }

    pub async fn commit(&self, base: &Arc<Snapshot>, changes: &ChangeSet) -> icechunkfs::error::Result<CommitOutcome> {
        self.commit_as(base, changes, request("a commit")).await
    }

    pub async fn commit_as(
        &self,
        base: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: Request,
    ) -> icechunkfs::error::Result<CommitOutcome> {
        self.engine.commit(base, changes, &request, &CommitProgress::default()).await
    }

    /// Commits the changes from `before` to `after` and returns the new snapshot.
    #[track_caller]
    pub fn commit_model<'a>(&'a self, before: &'a Model, after: &'a Model) -> impl Future<Output = ObjectId> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let base = self.tip().await;
            let changes = after.changes_since(before, &self.scratch);
            match self.commit(&base, &changes).await {
                Ok(CommitOutcome::Committed { snapshot, .. }) => snapshot,
                other => panic!("{caller}: {other:?}"),
            }
        }
    }
}

pub fn request(message: &str) -> Request {
    Request { branch: "main".into(), message: message.into(), ..Request::default() }
}

/// Creates a repository with the reference.
pub async fn create(path: &Path, version: SpecVersionBin, config: RepositoryConfig) -> icechunk::Repository {
    let storage = icechunk::new_local_filesystem_storage(path).await.unwrap();
    icechunk::Repository::create(storage).config(config).spec_version(version).execute().await.unwrap()
}

/// Opens the repository with the reference, without its caches.
pub async fn reopen(path: &Path) -> icechunk::Repository {
    let storage = icechunk::new_local_filesystem_storage(path).await.unwrap();
    icechunk::Repository::open(storage).execute().await.unwrap()
}

/// Returns all keys and bytes of branch `main`, read by the reference.
pub async fn reference_keys(path: &Path) -> BTreeMap<String, Vec<u8>> {
    keys_at(&reopen(path).await, &VersionInfo::BranchTipRef("main".into())).await
}

pub async fn keys_at(repository: &icechunk::Repository, version: &VersionInfo) -> BTreeMap<String, Vec<u8>> {
    let session = repository.readonly_session(version).await.unwrap();
    let store = Store::from_session(Arc::new(RwLock::new(session))).await;
    let names: Vec<String> = store.list().await.unwrap().try_collect().await.unwrap();
    let mut keys = BTreeMap::new();
    for name in names {
        let bytes = store.get(&name, &ByteRange::ALL).await.unwrap();
        keys.insert(name, bytes.to_vec());
    }
    keys
}

/// Returns the messages of `main`, newest first, read by the reference.
pub async fn history(path: &Path) -> Vec<String> {
    let repository = reopen(path).await;
    let history = repository.ancestry(&VersionInfo::BranchTipRef("main".into())).await.unwrap();
    history.map_ok(|info| info.message).try_collect().await.unwrap()
}

/// A small generator of numbers, the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Makes a commit with the reference.
pub async fn set(place: &Path, pairs: &[(&str, &[u8])], message: &str) -> icechunk::format::SnapshotId {
    let session = Arc::new(RwLock::new(reopen(place).await.writable_session("main").await.unwrap()));
    let store = Store::from_session(Arc::clone(&session)).await;
    for (key, bytes) in pairs {
        store.set(key, Bytes::copy_from_slice(bytes)).await.unwrap();
    }
    session.write().await.commit(message).execute().await.unwrap()
}

/// Returns rules for splitting manifests, or none.
pub fn splitting(random: &mut Random) -> Option<ManifestSplittingConfig> {
    match random.below(3) {
        0 => None,
        1 => Some(ManifestSplittingConfig::with_size(2)),
        _ => Some(ManifestSplittingConfig {
            split_sizes: Some(vec![
                (
                    ManifestSplitCondition::PathMatches { regex: "a".into() },
                    vec![ManifestSplitDim { condition: ManifestSplitDimCondition::Axis(1), num_chunks: 1 }],
                ),
                (
                    ManifestSplitCondition::AnyArray,
                    vec![ManifestSplitDim {
                        condition: ManifestSplitDimCondition::DimensionName("[02]$".into()),
                        num_chunks: 3,
                    }],
                ),
            ]),
        }),
    }
}
