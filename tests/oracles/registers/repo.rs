//! One repository, as the product and the reference implementation change and read it.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, ChunkFile, DeletedNode, WrittenNode};
use icechunkfs::commit::engine::{Engine, EngineOptions};
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::ids::{NodeId, ObjectId};
use icechunkfs::format::snapshot::{NodeData, Snapshot};
use icechunkfs::format::transaction_log::Move;
use icechunkfs::reader::Reader;
use icechunkfs::reader::memory::Budget;
use icechunkfs::repo::refs::Refs;
use icechunkfs::repo::verify::{self, VerifyOptions};
use icechunkfs::repo::{self, MAX_SNAPSHOT, Repository};
use icechunkfs::storage::{self, Storage};
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;

use super::model::{Content, Part, is_group, paths};
use crate::common::{Files, lab, place};

/// A repository in a directory or store of its own.
pub struct Repo {
    pub place: PathBuf,
    pub storage: Arc<dyn Storage>,
    pub reader: Arc<Reader>,
    pub engine: Engine,
    /// Branches with the commits at which they must be.
    pub tips: BTreeMap<String, ObjectId>,
    pub is_v1: bool,
    directory: tempfile::TempDir,
    scratch: Arc<OwnedFd>,
    next: u64,
}

/// Returns a place in memory, where there is one.
fn fast_place() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    let can_write = rustix::fs::access(&memory, rustix::fs::Access::WRITE_OK).is_ok();
    if can_write { memory } else { std::env::temp_dir() }
}

impl Repo {
    /// Opens a place with nothing in it.
    pub async fn empty() -> Repo {
        let directory = tempfile::Builder::new().prefix("registers").tempdir_in(fast_place()).unwrap();
        let place = place::place(directory.path());
        let storage = storage::open_new(place.to_str().unwrap(), &Default::default()).await.unwrap();
        let reader = Arc::new(Reader::new(Arc::clone(&storage), Budget::new(64 << 20, 0).unwrap()));
        let options = EngineOptions::default();
        let engine = Engine::new(Arc::clone(&storage), Arc::clone(&reader), system_clock, options);
        let scratch = directory.path().join("scratch");
        std::fs::create_dir(&scratch).unwrap();
        let scratch = Arc::new(OwnedFd::from(File::open(scratch).unwrap()));
        Repo { place, storage, reader, engine, tips: BTreeMap::new(), is_v1: false, directory, scratch, next: 0 }
    }

    /// Creates a repository; the reference implementation makes those of version 1, only in
    /// directories.
    pub async fn new(is_v1: bool) -> Repo {
        let mut repo = Repo::empty().await;
        if is_v1 && place::is_local() {
            lab::create(&repo.place, SpecVersionBin::V1, RepositoryConfig::default()).await;
            repo.is_v1 = true;
        } else {
            repo::create::create(&*repo.storage, false, system_clock).await.unwrap();
        }
        repo
    }

    pub async fn open(&self) -> Repository {
        Repository::open(Arc::clone(&self.storage)).await.unwrap()
    }

    pub fn name(&self) -> &str {
        self.place.to_str().unwrap()
    }

    /// Returns the branches.
    pub async fn branches(&self) -> BTreeMap<String, ObjectId> {
        let Refs { branches, .. } = self.open().await.refs().await.unwrap();
        branches
    }

    pub async fn snapshot(&self, id: ObjectId) -> Arc<Snapshot> {
        let file = self.storage.get(&format!("snapshots/{id}"), MAX_SNAPSHOT).await.unwrap();
        Arc::new(Snapshot::decode(&file, MAX_SNAPSHOT).unwrap())
    }

    /// Returns the commits of a branch, newest first.
    pub async fn history(&self, branch: &str) -> Vec<ObjectId> {
        let history = self.open().await.history(self.tips[branch], usize::MAX).await.unwrap();
        history.into_iter().map(|commit| commit.id).collect()
    }

    /// Returns what a snapshot has, as its files say.
    pub async fn read(&self, id: ObjectId) -> Result<Content, String> {
        let snapshot = self.snapshot(id).await;
        let infos = snapshot.manifest_infos();
        let mut content = Content::new();
        for node in snapshot.nodes() {
            content.insert((node.id, Part::Path), node.path.as_bytes().to_vec());
            content.insert((node.id, Part::Document), node.zarr_json.to_vec());
            let NodeData::Array(array) = &node.data else { continue };
            for listed in array.manifests() {
                let manifest = self.reader.manifest(infos[&listed.id]).await.map_err(|e| format!("{e}"))?;
                let Some(refs) = manifest.array(node.id).unwrap() else { continue };
                for at in 0..refs.len() {
                    let bytes = match refs.payload(at).unwrap() {
                        ChunkPayload::Inline(bytes) => bytes.to_vec(),
                        ChunkPayload::Native { chunk, offset, length } => {
                            let found = self.storage.get_range(&format!("chunks/{chunk}"), offset, length).await;
                            found.map_err(|e| format!("a chunk of {}: {e}", node.path))?.to_vec()
                        }
                        ChunkPayload::Virtual { .. } => return Err("a virtual chunk".to_owned()),
                    };
                    content.insert((node.id, Part::Chunk(refs.coords(at).get(0))), bytes);
                }
            }
        }
        Ok(content)
    }

    /// Returns what the reference implementation reads at a branch.
    pub async fn read_by_the_reference(&self, branch: &str) -> Files {
        lab::keys_at(&place::reference(&self.place).await, &lab::ref_version("branch", branch)).await
    }

    /// Fails if the files of the repository are not as they must be.
    pub async fn verify(&self) -> Result<(), String> {
        let options = VerifyOptions { chunks: true, ..VerifyOptions::default() };
        let report = verify::verify(&self.storage, options, system_clock(), &Default::default()).await;
        let report = report.map_err(|e| format!("verify: {e}"))?;
        if report.errors == 0 { Ok(()) } else { Err(format!("verify: {:?}", report.findings)) }
    }

    fn file(&mut self, bytes: &[u8]) -> ChunkFile {
        self.next += 1;
        let name = self.next.to_string();
        std::fs::write(self.directory.path().join("scratch").join(&name), bytes).unwrap();
        ChunkFile { directory: Arc::clone(&self.scratch), name, length: bytes.len() as u64, can_link: true }
    }

    /// Returns the changes that lead from one content to another.
    pub fn changes(&mut self, from: &Content, to: &Content) -> ChangeSet {
        let before = paths(from);
        let after = paths(to);
        let is_array = |content: &Content, id: NodeId| !is_group(&content[&(id, Part::Document)]);
        let mut out = ChangeSet::default();
        for (path, id) in &before {
            if !to.contains_key(&(*id, Part::Path)) {
                out.deleted.push(DeletedNode { id: *id, path: path.clone(), is_array: is_array(from, *id) });
            }
        }
        for (path, id) in &after {
            let document = &to[&(*id, Part::Document)];
            let id = *id;
            let is_array = is_array(to, id);
            let written = WrittenNode { id, path: path.clone(), zarr_json: Bytes::from(document.clone()), is_array };
            match from.get(&(id, Part::Path)) {
                None => out.created.push(written),
                Some(old) => {
                    if from[&(id, Part::Document)] != *document {
                        out.updated.push(written);
                    }
                    if old != path.as_bytes() {
                        let from = String::from_utf8(old.clone()).unwrap();
                        out.moved.push(Move { from, to: path.clone(), node: id, is_array });
                    }
                }
            }
            let mut chunks = BTreeMap::new();
            for at in 0..super::CHUNKS {
                let key = (id, Part::Chunk(at));
                let change = match (from.get(&key), to.get(&key)) {
                    (old, new) if old == new => continue,
                    (_, None) => ChunkChange::Delete,
                    (_, Some(bytes)) => ChunkChange::File(self.file(bytes)),
                };
                chunks.insert(Coords::from_slice(&[at]), change);
            }
            if !chunks.is_empty() {
                out.chunks.insert(id, chunks);
            }
        }
        out
    }

    /// Lets the reference implementation make a commit, or replace the newest one. Returns false if
    /// that moved nodes, which it does not replace.
    pub async fn commit_by_the_reference(&self, branch: &str, from: &Content, to: &Content, amend: bool) -> bool {
        let repository = place::reference(&self.place).await;
        let (session, store) = lab::session_on(&repository, branch).await;
        let from = by_path(from);
        let to = by_path(to);
        let is_document = |key: &&String| key.ends_with("zarr.json");
        let gone: Vec<&String> = from.keys().rev().filter(|key| !to.contains_key(*key)).collect();
        let (documents, chunks): (Vec<&String>, Vec<&String>) = gone.into_iter().partition(is_document);
        for key in chunks.into_iter().chain(documents) {
            store.delete(key).await.unwrap();
        }
        let new: Vec<&String> = to.keys().filter(|key| from.get(*key) != to.get(*key)).collect();
        let (documents, chunks): (Vec<&String>, Vec<&String>) = new.into_iter().partition(is_document);
        for key in documents.into_iter().chain(chunks) {
            store.set(key, to[key].clone().into()).await.unwrap();
        }
        let mut session = session.write().await;
        let commit = session.commit("by the reference");
        let commit = if amend { commit.amend() } else { commit };
        match commit.execute().await {
            Ok(_) => true,
            Err(error) if amend && format!("{error:?}").contains("RearrangeSessionOnly") => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Forgets what was read: another program has changed the repository.
    pub fn forget(&mut self) {
        self.reader = Arc::new(Reader::new(Arc::clone(&self.storage), Budget::new(64 << 20, 0).unwrap()));
        let options = EngineOptions::default();
        self.engine = Engine::new(Arc::clone(&self.storage), Arc::clone(&self.reader), system_clock, options);
    }

    pub fn state_directory(&self) -> &Path {
        self.directory.path()
    }
}

/// Returns Zarr keys and bytes.
pub fn by_path(content: &Content) -> Files {
    let names: HashSet<(String, NodeId)> = paths(content).into_iter().collect();
    let mut files = Files::new();
    for (path, id) in names {
        let prefix = path.trim_start_matches('/');
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        files.insert(format!("{prefix}zarr.json"), content[&(id, Part::Document)].clone());
        for at in 0..super::CHUNKS {
            if let Some(bytes) = content.get(&(id, Part::Chunk(at))) {
                files.insert(format!("{prefix}c/{at}"), bytes.clone());
            }
        }
    }
    files
}
