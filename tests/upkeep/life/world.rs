//! One repository in which two implementations alternate, and the state that both must see after
//! each step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use icechunk::RepositoryConfig;
use icechunk::format::SnapshotId;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::repository::VersionInfo;
use icechunkfs::commit::changes::ChunkChange;
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, Request};
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::config_edit;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::snapshot::{NodeData, Snapshot};
use icechunkfs::repo::change_refs::RefKind;
use icechunkfs::repo::collect::{self, Uncommitted, UncommittedFinder};
use icechunkfs::repo::expire;
use icechunkfs::repo::refs::Refs;
use icechunkfs::repo::verify::{self, VerifyOptions};
use icechunkfs::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs::times::{format_time, system_clock};
use icechunkfs::zarr::Coords;

use crate::common::lab::{self, Lab, Model, ancestry, collect_by_reference, create, keys_at, reopen, session_on};
use crate::common::random::Random;

/// The implementation whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    Ours,
    Reference,
}

pub struct World {
    place: tempfile::TempDir,
    pub lab: Lab,
    pub random: Random,
    is_v2: bool,
    /// The content of each commit that is still reachable.
    models: BTreeMap<ObjectId, Model>,
    /// Time of each commit.
    times: BTreeMap<ObjectId, u64>,
    /// Names of tags, deleted ones too: they cannot be used again.
    tags: usize,
    branches: usize,
}

/// Prints the steps that led to a failure.
pub struct FailureReport<'a>(pub u64, pub &'a std::sync::Mutex<Vec<String>>);

impl Drop for FailureReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.1.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            eprintln!("seed {} (ICECHUNKFS_LIFE_SEED={} repeats it):\n  {}", self.0, self.0, log.join("\n  "));
        }
    }
}

fn ours(id: &SnapshotId) -> ObjectId {
    id.to_string().parse().unwrap()
}

fn time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

/// Returns that nothing is uncommitted.
pub fn nothing_uncommitted() -> UncommittedFinder {
    Arc::new(|| Box::pin(async { Ok(Uncommitted::default()) }))
}

impl World {
    pub async fn new(seed: u64, version: SpecVersionBin) -> World {
        let place = tempfile::Builder::new().prefix("life").tempdir_in(fast_place()).unwrap();
        create(place.path(), version, RepositoryConfig::default()).await;
        // Packs of a few chunks each.
        let options =
            EngineOptions { pack_below: 900, pack_size: 1500, inline_threshold: Some(100), ..EngineOptions::default() };
        let lab = Lab::with(place.path(), options);
        let mut world = World {
            place,
            lab,
            random: Random::new(seed),
            is_v2: version == SpecVersionBin::V2,
            models: BTreeMap::new(),
            times: BTreeMap::new(),
            tags: 0,
            branches: 0,
        };
        let tip = world.lab.tip().await;
        world.remember(&tip, Model::default());
        // The reference moves nothing into a place without a group.
        let mut first = Model::default();
        first.group("/");
        first.group("/g");
        let id = world.lab.commit_first(&first).await;
        let snapshot = world.snapshot(id).await;
        world.remember(&snapshot, first);
        world
    }

    pub fn place(&self) -> &std::path::Path {
        self.place.path()
    }

    /// Returns the times of commits, oldest first.
    pub fn times(&self) -> Vec<u64> {
        self.times.values().copied().collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn remember(&mut self, snapshot: &Snapshot, mut model: Model) {
        model.take_ids(snapshot);
        self.times.insert(snapshot.id(), snapshot.flushed_at());
        self.models.insert(snapshot.id(), model);
    }

    async fn repository(&self) -> Repository {
        self.lab.repository().await
    }

    async fn snapshot(&self, id: ObjectId) -> Arc<Snapshot> {
        Arc::new(self.repository().await.snapshot(id, MAX_SNAPSHOT).await.unwrap())
    }

    fn any_branch(&mut self, refs: &Refs) -> String {
        let names: Vec<&String> = refs.branches.keys().collect();
        (*self.random.pick(&names)).clone()
    }

    /// Does one step. Returns false if it had no effect.
    pub async fn step(&mut self, actor: Actor, log: &std::sync::Mutex<Vec<String>>) -> bool {
        let refs = self.repository().await.refs().await.unwrap();
        let say = |what: String| log.lock().unwrap().push(format!("{actor:?}: {what}"));
        match self.random.below(24) {
            0..=8 => self.commit(actor, &refs, false, say).await,
            9 | 10 if self.is_v2 => self.commit(actor, &refs, true, say).await,
            11 | 12 => self.create_ref(actor, &refs, RefKind::Branch, say).await,
            13 => self.create_ref(actor, &refs, RefKind::Tag, say).await,
            14 => self.delete_ref(actor, &refs, RefKind::Branch, say).await,
            15 => self.delete_ref(actor, &refs, RefKind::Tag, say).await,
            16 | 17 => self.reset(actor, &refs, say).await,
            18 if self.is_v2 => self.rename(actor, &refs, say).await,
            19 | 20 => self.expire(actor, say).await,
            21 | 22 => self.collect(actor, say).await,
            23 if self.is_v2 => self.configure(actor, say).await,
            _ => false,
        }
    }

    /// Makes a commit, or replaces the newest one, on some branch.
    async fn commit(&mut self, actor: Actor, refs: &Refs, amend: bool, say: impl Fn(String)) -> bool {
        let branch = self.any_branch(refs);
        let tip = refs.branches[&branch];
        // The first commit cannot be amended, nor can the reference amend one that has moved
        // something.
        let history = self.repository().await.history(tip, 2).await.unwrap();
        if amend && (history.len() < 2 || history[0].message() == "moved") {
            return false;
        }
        let before = self.models[&tip].clone();
        let mut after = before.clone();
        let what = self.change(&before, &mut after);
        if after == before {
            return false;
        }
        say(format!("{} to {branch} (at {tip}): {}", if amend { "amend" } else { "commit" }, what.join(", ")));
        let new = match actor {
            Actor::Ours => self.commit_ours(&branch, tip, &before, &mut after, amend).await,
            Actor::Reference => self.commit_theirs(&branch, &before, &after, amend).await,
        };
        let snapshot = self.snapshot(new).await;
        self.remember(&snapshot, after);
        true
    }

    fn change(&mut self, before: &Model, model: &mut Model) -> Vec<String> {
        let mut what = Vec::new();
        for _ in 0..=self.random.below(3) {
            let arrays: Vec<String> =
                model.nodes.values().filter(|node| node.grid.is_some()).map(|node| node.path.clone()).collect();
            let paths = ["/a", "/b", "/g/a", "/g/b-c", "/g/b"];
            match self.random.below(8) {
                0 if arrays.len() > 1 => {
                    let path = self.random.pick(&arrays).clone();
                    model.delete(&path);
                    what.push(format!("delete {path}"));
                }
                1 | 2 => {
                    let path = *self.random.pick(&paths);
                    // The reference cannot create an array of another rank in the commit that
                    // deletes it.
                    if model.at(path).is_none() && before.at(path).is_none() {
                        let grid: Vec<u32> = (0..=self.random.below(2)).map(|_| 4).collect();
                        model.array(path, &grid);
                        what.push(format!("create {path}"));
                    }
                }
                3 if !arrays.is_empty() => {
                    let path = self.random.pick(&arrays).clone();
                    let node = model.get(&path);
                    if let Some(coords) = node.chunks.keys().next().cloned() {
                        node.chunks.remove(&coords);
                        what.push(format!("delete {path} {coords:?}"));
                    }
                }
                _ if !arrays.is_empty() => {
                    let path = self.random.pick(&arrays).clone();
                    let rank = model.get(&path).grid.as_ref().unwrap().len();
                    for _ in 0..=self.random.below(3) {
                        let coords: Vec<u32> = (0..rank).map(|_| self.random.below(4) as u32).collect();
                        // Inline, packed, and separate objects.
                        let length = *self.random.pick(&[20, 300, 700, 1200]);
                        let bytes: Vec<u8> = (0..length).map(|_| self.random.below(256) as u8).collect();
                        what.push(format!("{path} {coords:?} ({length})"));
                        model.chunk(&path, &coords, bytes);
                    }
                }
                _ => {}
            }
        }
        what
    }

    async fn commit_ours(
        &mut self,
        branch: &str,
        tip: ObjectId,
        before: &Model,
        after: &mut Model,
        amend: bool,
    ) -> ObjectId {
        let base = self.snapshot(tip).await;
        let mut changes = after.changes_since(before, &self.lab.scratch);
        if self.random.below(2) == 0 {
            self.copy_by_reference(&base, after, &mut changes).await;
        }
        let request = Request { branch: branch.into(), message: "ours".into(), amend, ..Request::default() };
        match self.lab.commit_as(&base, &changes, request).await.unwrap() {
            CommitOutcome::Committed { snapshot, .. } => snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// Makes one chunk of some array a reference to the object of another.
    async fn copy_by_reference(
        &mut self,
        base: &Arc<Snapshot>,
        after: &mut Model,
        changes: &mut icechunkfs::commit::changes::ChangeSet,
    ) {
        let infos: BTreeMap<ObjectId, _> = base.manifests().into_iter().map(|info| (info.id, info)).collect();
        for node in base.nodes() {
            let NodeData::Array(array) = &node.data else { continue };
            if !after.nodes.contains_key(&node.id) {
                continue;
            }
            for reference in array.manifests() {
                let manifest = self.lab.reader.manifest(infos[&reference.id]).await.unwrap();
                let Some(refs) = manifest.array(node.id).unwrap() else { continue };
                for at in 0..refs.len() {
                    let from: Vec<u32> = refs.coords(at).iter().collect();
                    let payload = refs.payload(at).unwrap();
                    if !matches!(payload, ChunkPayload::Native { .. }) || self.random.below(3) > 0 {
                        continue;
                    }
                    let Some(bytes) = self.models[&base.id()].nodes[&node.id].chunks.get(&from).cloned() else {
                        continue;
                    };
                    let to = vec![3; from.len()];
                    let stored: ChunkPayload = payload.into();
                    let chunks = changes.chunks.entry(node.id).or_default();
                    chunks.insert(Coords::from_slice(&to), ChunkChange::Stored(stored));
                    after.nodes.get_mut(&node.id).unwrap().chunks.insert(to, bytes);
                    return;
                }
            }
        }
    }

    async fn commit_theirs(&mut self, branch: &str, before: &Model, after: &Model, amend: bool) -> ObjectId {
        let (session, store) = session_on(&reopen(self.place.path()).await, branch).await;
        let old = before.keys();
        let new = after.keys();
        let gone: Vec<&String> = old.keys().filter(|key| !new.contains_key(*key)).collect();
        // Documents first: deleting a node deletes its chunks, and without a node nothing can be
        // set.
        for is_document in [true, false] {
            for key in gone.iter().filter(|key| key.ends_with("zarr.json") == is_document) {
                store.delete(key).await.unwrap();
            }
        }
        for is_document in [true, false] {
            for (key, bytes) in new.iter().filter(|(key, _)| key.ends_with("zarr.json") == is_document) {
                if old.get(key) != Some(bytes) {
                    store.set(key, Bytes::from(bytes.clone())).await.unwrap();
                }
            }
        }
        let mut session = session.write().await;
        let commit = session.commit("theirs");
        let id = if amend { commit.amend().execute().await } else { commit.execute().await };
        ours(&id.unwrap())
    }

    async fn create_ref(&mut self, actor: Actor, refs: &Refs, kind: RefKind, say: impl Fn(String)) -> bool {
        let targets = self.reachable(refs).await;
        let target = *self.random.pick(&targets);
        let name = match kind {
            RefKind::Branch if refs.branches.len() > 5 => return false,
            RefKind::Branch => {
                self.branches += 1;
                format!("branch{}", self.branches)
            }
            RefKind::Tag => {
                self.tags += 1;
                format!("tag{}", self.tags)
            }
        };
        say(format!("create {kind} {name} at {target}"));
        match (actor, kind) {
            (Actor::Ours, _) => {
                self.repository().await.create_ref(kind, &name, target, system_clock).await.unwrap();
            }
            (Actor::Reference, RefKind::Branch) => {
                reopen(self.place.path()).await.create_branch(&name, &lab::reference_id(target)).await.unwrap();
            }
            (Actor::Reference, RefKind::Tag) => {
                reopen(self.place.path()).await.create_tag(&name, &lab::reference_id(target)).await.unwrap();
            }
        }
        true
    }

    /// Returns commits in the histories of refs; in version 2 sometimes others too, which are only
    /// listed.
    async fn reachable(&mut self, refs: &Refs) -> Vec<ObjectId> {
        let repository = self.repository().await;
        let mut all = BTreeSet::new();
        for tip in refs.branches.values().chain(refs.tags.values()) {
            all.extend(repository.history(*tip, usize::MAX).await.unwrap().into_iter().map(|commit| commit.id));
        }
        if self.is_v2 {
            for id in self.models.keys() {
                let spec = icechunkfs::repo::refs::RefSpec::Snapshot(*id);
                if !all.contains(id) && repository.resolve(&spec).await.is_ok() {
                    all.insert(*id);
                }
            }
        }
        all.into_iter().collect()
    }

    async fn delete_ref(&mut self, actor: Actor, refs: &Refs, kind: RefKind, say: impl Fn(String)) -> bool {
        let names = if kind == RefKind::Tag { &refs.tags } else { &refs.branches };
        let names: Vec<(&String, &ObjectId)> = names.iter().filter(|(name, _)| *name != "main").collect();
        if names.is_empty() {
            return false;
        }
        let (name, target) = *self.random.pick(&names);
        say(format!("delete {kind} {name} (at {target})"));
        match (actor, kind) {
            (Actor::Ours, _) => {
                self.repository().await.delete_ref(kind, name, *target, system_clock).await.unwrap();
            }
            (Actor::Reference, RefKind::Branch) => reopen(self.place.path()).await.delete_branch(name).await.unwrap(),
            (Actor::Reference, RefKind::Tag) => reopen(self.place.path()).await.delete_tag(name).await.unwrap(),
        }
        true
    }

    async fn reset(&mut self, actor: Actor, refs: &Refs, say: impl Fn(String)) -> bool {
        let branch = self.any_branch(refs);
        let targets = self.reachable(refs).await;
        let from = refs.branches[&branch];
        let to = *self.random.pick(&targets);
        if from == to {
            return false;
        }
        say(format!("reset {branch} from {from} to {to}"));
        match actor {
            Actor::Ours => self.repository().await.reset_branch(&branch, to, from, system_clock).await.unwrap(),
            Actor::Reference => {
                reopen(self.place.path()).await.reset_branch(&branch, &lab::reference_id(to), None).await.unwrap();
            }
        }
        true
    }

    /// Moves an array, which the reference does in separate sessions.
    async fn rename(&mut self, actor: Actor, refs: &Refs, say: impl Fn(String)) -> bool {
        let branch = self.any_branch(refs);
        let tip = refs.branches[&branch];
        let before = self.models[&tip].clone();
        let from = self.random.pick(&["/a", "/b"]);
        let to = self.random.pick(&["/moved", "/a", "/b-b"]);
        if before.at("/").is_none() || before.at(from).is_none() || before.at(to).is_some() {
            return false;
        }
        say(format!("move {from} to {to} on {branch} (at {tip})"));
        let mut after = before.clone();
        after.rename(from, to);
        let new = match actor {
            Actor::Ours => {
                let base = self.snapshot(tip).await;
                let changes = after.changes_since(&before, &self.lab.scratch);
                let request = Request { branch, message: "moved".into(), ..Request::default() };
                match self.lab.commit_as(&base, &changes, request).await.unwrap() {
                    CommitOutcome::Committed { snapshot, .. } => snapshot,
                    other => panic!("{other:?}"),
                }
            }
            Actor::Reference => {
                let mut session = reopen(self.place.path()).await.rearrange_session(&branch).await.unwrap();
                let path = |path: &str| icechunk::format::Path::try_from(path).unwrap();
                session.move_node(path(from), path(to)).await.unwrap();
                ours(&session.commit("moved").execute().await.unwrap())
            }
        };
        let snapshot = self.snapshot(new).await;
        self.remember(&snapshot, after);
        true
    }

    async fn expire(&mut self, actor: Actor, say: impl Fn(String)) -> bool {
        let times: Vec<u64> = self.times.values().copied().collect();
        let older_than = if self.random.below(3) == 0 { system_clock() } else { *self.random.pick(&times) };
        let tags = self.random.below(3) == 0;
        let branches = self.random.below(3) == 0;
        say(format!("expire before {} (tags {tags}, branches {branches})", format_time(older_than)));
        match actor {
            Actor::Ours => {
                let wanted =
                    expire::ExpireOptions { older_than, delete_tags: tags, delete_branches: branches, dry_run: false };
                expire::expire(&self.repository().await, wanted, system_clock).await.unwrap();
            }
            Actor::Reference => expire_by_reference(self.place.path(), older_than, tags, branches).await,
        }
        true
    }

    async fn collect(&mut self, actor: Actor, say: impl Fn(String)) -> bool {
        let times: Vec<u64> = self.times.values().copied().collect();
        let older_than = if self.random.below(3) > 0 { system_clock() } else { *self.random.pick(&times) };
        say(format!("collect before {}", format_time(older_than)));
        match actor {
            Actor::Ours => {
                let wanted = collect::GcOptions { older_than, dry_run: false };
                let progress = icechunkfs::repo::progress::Progress::default();
                let repository = self.repository().await;
                collect::collect(&repository, wanted, system_clock, &nothing_uncommitted(), &progress).await.unwrap();
            }
            Actor::Reference => drop(collect_by_reference(self.place.path(), older_than).await),
        }
        true
    }

    /// Writes the configuration into the repository.
    async fn configure(&mut self, actor: Actor, say: impl Fn(String)) -> bool {
        let threshold = self.random.below(200) as u16;
        say(format!("configure: inline up to {threshold}"));
        if actor == Actor::Ours {
            let set = |config: &icechunkfs::format::config::RepoConfig| {
                config_edit::set(config.members(), "inline_chunk_threshold_bytes", &threshold.to_string())
            };
            self.repository().await.change_config(system_clock, set).await.unwrap();
            return true;
        }
        let storage = icechunk::new_local_filesystem_storage(self.place.path()).await.unwrap();
        let config = RepositoryConfig { inline_chunk_threshold_bytes: Some(threshold), ..RepositoryConfig::default() };
        let repository = icechunk::Repository::open(storage).config(config).execute().await.unwrap();
        repository.save_config().await.unwrap();
        true
    }

    /// Checks that both see the same refs and histories, and that some or all refs show their
    /// committed content.
    pub async fn compare(&mut self, thoroughly: bool) {
        let repository = self.repository().await;
        let reference = reopen(self.place.path()).await;
        let refs = repository.refs().await.unwrap();
        assert_eq!(refs.branches.keys().cloned().collect::<BTreeSet<_>>(), reference.list_branches().await.unwrap());
        assert_eq!(refs.tags.keys().cloned().collect::<BTreeSet<_>>(), reference.list_tags().await.unwrap());
        let all: Vec<(VersionInfo, String, ObjectId)> = refs
            .branches
            .iter()
            .map(|(name, id)| (VersionInfo::BranchTipRef(name.clone()), name.clone(), *id))
            .chain(refs.tags.iter().map(|(name, id)| (VersionInfo::TagRef(name.clone()), name.clone(), *id)))
            .collect();
        let shown = self.random.below(all.len());
        for (at, (version, name, tip)) in all.iter().enumerate() {
            let infos = ancestry(&reference, version).await;
            let told: Vec<ObjectId> = infos.iter().map(|info| ours(&info.id)).collect();
            let history = repository.history(*tip, usize::MAX).await.unwrap();
            assert_eq!(history.iter().map(|commit| commit.id).collect::<Vec<_>>(), told, "the history of {name}");
            if thoroughly || at == shown {
                let expected = self.models[tip].keys();
                assert!(keys_at(&reference, version).await == expected, "the reference shows something else at {name}");
                assert!(self.keys(*tip).await == expected, "we show something else at {name}");
            }
        }
    }

    /// Returns our keys at a snapshot.
    async fn keys(&self, id: ObjectId) -> BTreeMap<String, Vec<u8>> {
        let snapshot = self.snapshot(id).await;
        let infos: BTreeMap<ObjectId, _> = snapshot.manifests().into_iter().map(|info| (info.id, info)).collect();
        let mut keys = BTreeMap::new();
        for node in snapshot.nodes() {
            let prefix = node.path.trim_start_matches('/');
            let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
            keys.insert(format!("{prefix}zarr.json"), node.zarr_json.to_vec());
            let NodeData::Array(array) = &node.data else { continue };
            for reference in array.manifests() {
                let manifest = self.lab.reader.manifest(infos[&reference.id]).await.unwrap();
                let Some(refs) = manifest.array(node.id).unwrap() else { continue };
                for at in 0..refs.len() {
                    let coords: String = refs.coords(at).iter().map(|c| format!("/{c}")).collect();
                    let bytes = match refs.payload(at).unwrap() {
                        ChunkPayload::Inline(bytes) => bytes.to_vec(),
                        ChunkPayload::Native { chunk, offset, length } => {
                            let key = format!("chunks/{chunk}");
                            self.lab.storage.get_range(&key, offset, length).await.unwrap().to_vec()
                        }
                        ChunkPayload::Virtual { .. } => unreachable!("nobody makes such"),
                    };
                    keys.insert(format!("{prefix}c{coords}"), bytes);
                }
            }
        }
        keys
    }

    pub async fn verify(&self) {
        check(&self.lab).await;
    }
}

/// Checks a repository with `verify`.
pub async fn check(lab: &Lab) {
    let wanted = VerifyOptions { chunks: true, ..VerifyOptions::default() };
    let report = verify::verify(&lab.storage, wanted, system_clock(), &Default::default()).await.unwrap();
    assert!(report.errors + report.warnings == 0, "{:#?}", report.findings);
}

pub async fn expire_by_reference(place: &std::path::Path, older_than: u64, tags: bool, branches: bool) {
    use icechunk::ops::expiration::{ExpiredRefAction, expire};
    let action = |delete| if delete { ExpiredRefAction::Delete } else { ExpiredRefAction::Ignore };
    let repository = reopen(place).await;
    let assets = Arc::clone(repository.asset_manager());
    expire(assets, time(older_than).into(), action(branches), action(tags), None, 1000).await.unwrap();
}

/// Returns a place in memory, where there is one.
pub fn fast_place() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    let can_write = rustix::fs::access(&memory, rustix::fs::Access::WRITE_OK).is_ok();
    if can_write { memory } else { std::env::temp_dir() }
}
