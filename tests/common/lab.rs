//! A repository, the commit engine, and a model of a working tree.

use std::collections::BTreeMap;
use std::fs::File;
use std::num::{NonZeroU16, NonZeroUsize};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::TryStreamExt;
use icechunk::config::{
    ManifestConfig, ManifestSplitCondition, ManifestSplitDim, ManifestSplitDimCondition, ManifestSplittingConfig,
};
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::snapshot::SnapshotInfo;
use icechunk::format::{ByteRange, SnapshotId};
use icechunk::ops::expiration::{ExpiredRefAction, expire};
use icechunk::ops::gc::{GCConfig, GCSummary, garbage_collect};
use icechunk::repository::VersionInfo;
use icechunk::session::Session;
use icechunk::{RepositoryConfig, Store};
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, ChunkFile, DeletedNode, WrittenNode};
use icechunkfs::commit::engine::{CommitHost, CommitOutcome, Engine, EngineOptions, Request};
use icechunkfs::commit::progress::CommitProgress;
use icechunkfs::error::Result;
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

use crate::common::Files;
use crate::common::random::Random;

pub const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

pub fn array_json(shape: &[u32], chunks: &[u32], attributes: &str) -> String {
    serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "attributes": {"note": attributes},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}, {"name": "zstd"}],
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
    pub fn keys(&self) -> Files {
        let mut keys = Files::new();
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
                        let from = old.path.clone();
                        let to = node.path.clone();
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

    pub async fn commit(&self, base: &Arc<Snapshot>, changes: &ChangeSet) -> Result<CommitOutcome> {
        self.commit_as(base, changes, request("a commit")).await
    }

    pub async fn commit_as(
        &self,
        base: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: Request,
    ) -> Result<CommitOutcome> {
        self.engine.commit(base, changes, &request, &CommitProgress::default()).await
    }

    /// Commits a first model.
    #[track_caller]
    pub fn commit_first<'a>(&'a self, model: &'a Model) -> impl Future<Output = ObjectId> + 'a {
        static EMPTY: Model = Model { nodes: BTreeMap::new() };
        self.commit_model(&EMPTY, model)
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

/// Program that does something before each attempt to publish.
struct BeforePublishing<F>(F);

impl<F: Fn(ObjectId) -> Result<()> + Send + Sync> CommitHost for BeforePublishing<F> {
    fn on_publish(&self, snapshot: ObjectId) -> Result<()> {
        (self.0)(snapshot)
    }
}

/// Returns a request whose program does `what` before each attempt to publish.
pub fn request_with(message: &str, what: impl Fn(ObjectId) -> Result<()> + Send + Sync + 'static) -> Request {
    Request { host: Some(Arc::new(BeforePublishing(what))), ..request(message) }
}

/// Creates an empty repository of a version, with the reference, and opens it with the engine.
pub async fn new_lab(version: SpecVersionBin) -> (tempfile::TempDir, Lab) {
    let place = tempfile::tempdir().unwrap();
    create(place.path(), version, RepositoryConfig::default()).await;
    let lab = Lab::open(place.path());
    (place, lab)
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

/// Returns an id as the reference has it.
pub fn reference_id(id: ObjectId) -> SnapshotId {
    SnapshotId::from(id.0)
}

/// Returns the branch or tag of this name.
pub fn ref_version(kind: &str, name: &str) -> VersionInfo {
    if kind == "branch" { VersionInfo::BranchTipRef(name.to_owned()) } else { VersionInfo::TagRef(name.to_owned()) }
}

pub fn main_branch() -> VersionInfo {
    VersionInfo::BranchTipRef("main".into())
}

/// Returns the commits of a branch, a tag or a snapshot, newest first, read by the reference.
pub async fn ancestry(repository: &icechunk::Repository, version: &VersionInfo) -> Vec<SnapshotInfo> {
    repository.ancestry(version).await.unwrap().try_collect().await.unwrap()
}

/// Lets the reference expire all commits of `main` before the one at position `at` of its history.
pub async fn expire_before(place: &Path, at: usize) {
    let repository = reopen(place).await;
    let time = ancestry(&repository, &main_branch()).await[at].flushed_at;
    let assets = Arc::clone(repository.asset_manager());
    let keep = ExpiredRefAction::Ignore;
    expire(assets, time, keep, keep, None, 1000).await.unwrap();
}

/// Lets the reference collect what is garbage, and older than this time in microseconds.
pub async fn collect_by_reference(place: &Path, older_than: u64) -> GCSummary {
    let one = NonZeroU16::MIN;
    let much = NonZeroUsize::new(1 << 20).unwrap();
    let time = (SystemTime::UNIX_EPOCH + Duration::from_micros(older_than)).into();
    let config = GCConfig::clean_all(time, time, None, one, much, much, one, one, one, None, false);
    garbage_collect(Arc::clone(reopen(place).await.asset_manager()), &config, None, 1000).await.unwrap()
}

/// Returns all keys and bytes of branch `main`, read by the reference.
pub async fn reference_keys(path: &Path) -> Files {
    keys_at(&reopen(path).await, &main_branch()).await
}

pub async fn keys_at(repository: &icechunk::Repository, version: &VersionInfo) -> Files {
    let store = store_at(repository, version).await;
    let mut keys = Files::new();
    for name in names_in(&store).await {
        let bytes = store.get(&name, &ByteRange::ALL).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        // The reference lists a chunk once for each manifest that has it.
        keys.insert(name, bytes.to_vec());
    }
    keys
}

/// Opens a version for reading with the reference.
pub async fn store_at(repository: &icechunk::Repository, version: &VersionInfo) -> Store {
    let session = repository.readonly_session(version).await.unwrap();
    Store::from_session(Arc::new(RwLock::new(session))).await
}

pub async fn names_in(store: &Store) -> Vec<String> {
    store.list().await.unwrap().try_collect().await.unwrap()
}

/// Returns the messages of `main`, newest first, read by the reference.
pub async fn history(path: &Path) -> Vec<String> {
    ancestry(&reopen(path).await, &main_branch()).await.into_iter().map(|info| info.message).collect()
}

/// Opens a session of the reference for writing to a branch, and its store.
pub async fn session_on(repository: &icechunk::Repository, branch: &str) -> (Arc<RwLock<Session>>, Store) {
    let session = Arc::new(RwLock::new(repository.writable_session(branch).await.unwrap()));
    let store = Store::from_session(Arc::clone(&session)).await;
    (session, store)
}

/// Makes a commit with the reference.
pub async fn set(place: &Path, pairs: &[(&str, &[u8])], message: &str) -> SnapshotId {
    let (session, store) = session_on(&reopen(place).await, "main").await;
    for (key, bytes) in pairs {
        store.set(key, Bytes::copy_from_slice(bytes)).await.unwrap();
    }
    session.write().await.commit(message).execute().await.unwrap()
}

/// Lets the reference commit the whole model: documents first, since an array must be there before
/// its chunks.
pub async fn set_model(place: &Path, model: &Model) -> SnapshotId {
    let keys = model.keys();
    let (documents, chunks): (Vec<_>, Vec<_>) = keys.iter().partition(|(key, _)| key.ends_with("zarr.json"));
    let all = documents.into_iter().chain(chunks);
    let pairs: Vec<_> = all.map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    set(place, &pairs, "theirs").await
}

/// Returns a random configuration: for inline chunks, and for splitting manifests.
pub fn random_config(random: &mut Random) -> RepositoryConfig {
    let inline_chunk_threshold_bytes = Some(*random.pick(&[0, 16, 512]));
    RepositoryConfig { inline_chunk_threshold_bytes, ..split_config(splitting(random)) }
}

pub fn split_config(splitting: Option<ManifestSplittingConfig>) -> RepositoryConfig {
    let manifest = Some(ManifestConfig { splitting, ..ManifestConfig::default() });
    RepositoryConfig { manifest, ..RepositoryConfig::default() }
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
