//! Verification of a repository: every rule of the format that can be checked from outside, and the
//! existence of every object.
//!
//! Snapshots are checked first, some at a time, and yield the arrays that refer to each manifest.
//! Then each manifest is read once, however many snapshots share it, compared with every array that
//! refers to it, and dropped. Memory use is that of a few files, plus a few words for each manifest
//! and, if chunks are checked, for each chunk object.
//!
//! Everything is read from the store itself, past any cache. Other programs may write meanwhile:
//! chunk objects that they add are not reported missing, since chunks are listed after the files
//! that refer to them were found; if they remove objects (a garbage collection), the check starts
//! again.

mod chunks;
mod log;
mod manifest;
mod nodes;
mod orphans;
mod refs_v1;
mod repo_file;
pub mod report;
mod required;
mod snapshot;
mod virtuals;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::chunks::ChunkCheck;
use self::nodes::Uses;
use self::repo_file::Commits;
use self::report::{Findings, Report, Subject};
use self::required::Required;
use self::virtuals::VirtualObjects;
use super::progress::Progress;
use super::{MAX_REPO_FILE, Repository, v1};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::together::try_for_each;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::envelope::{FileType, Header, SpecVersion};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_store::storage::decoded::{self, Decoded};
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_store::storage::{ObjectInfo, Storage};

/// Snapshots, or manifests, checked at a time.
const AT_ONCE: usize = 8;
/// Stored size of the manifests checked at a time, in MiB; a larger one is checked alone.
const MANIFESTS_MIB: u32 = 128;
/// Attempts, each but the first because the repository changed during a check that found errors.
const TRIES: u32 = 3;
/// Chunks of one snapshot that are requested one by one; more are looked up in a listing of all.
const MAX_SINGLE_REQUESTS: u64 = 4096;

/// Options of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyOptions {
    /// Snapshot to check with everything it needs; none for the whole repository.
    pub snapshot: Option<ObjectId>,
    /// True if chunk objects are checked too.
    pub chunks: bool,
    /// Virtual chunks that may be read; checked too if `chunks` is true.
    pub virtuals: Option<Arc<VirtualChunks>>,
}

/// State that all parts of a check share.
#[derive(Debug)]
struct Context {
    storage: Arc<dyn Storage>,
    findings: Findings,
    /// Microseconds since 1970-01-01 UTC.
    now: u64,
    /// Version of the repository; its files may be older.
    version: SpecVersion,
    /// True if everything is checked, so that an object not needed in the check is needed by
    /// nothing.
    is_whole: bool,
    progress: Arc<Progress>,
}

impl Context {
    fn object<'a>(&'a self, key: &'a str) -> Subject<'a> {
        self.findings.object(key)
    }
}

type Listed = BTreeMap<String, ObjectInfo>;

/// Commits with the parents that their files name.
type ParentsInFiles = BTreeMap<ObjectId, SnapshotInfo<()>>;

/// Checks the repository in `storage` at time `now` (microseconds since 1970-01-01 UTC).
///
/// Fails if the repository cannot be reached. Faults in its bytes are in the report.
pub async fn verify(
    storage: &Arc<dyn Storage>,
    options: VerifyOptions,
    now: u64,
    progress: &Arc<Progress>,
) -> Result<Report> {
    let mut tries = 0;
    loop {
        tries += 1;
        progress.restart();
        let (report, seen) = check(storage, &options, now, progress).await?;
        // A garbage collection writes `repo` first.
        if report.errors == 0 || tries == TRIES || entry_point(storage).await? == seen {
            return Ok(report);
        }
        tracing::info!("the repository was changed while it was checked: checking again");
    }
}

/// Returns the bytes of `repo`, which distinguish one state of a version 2 repository from another.
async fn entry_point(storage: &Arc<dyn Storage>) -> Result<Option<Bytes>> {
    match storage.get("repo", MAX_REPO_FILE).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_object_fault(error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn check(
    storage: &Arc<dyn Storage>,
    options: &VerifyOptions,
    now: u64,
    progress: &Arc<Progress>,
) -> Result<(Report, Option<Bytes>)> {
    let (storage, opened) = match Repository::open(Arc::clone(storage)).await {
        Ok(repository) => (Arc::clone(repository.storage()), Ok(repository)),
        Err(error) if is_object_fault(error.kind()) && error.kind() != ErrorKind::NotFound => {
            (Arc::clone(storage), Err(error))
        }
        Err(error) => return Err(error),
    };
    let seen = entry_point(&storage).await?;
    let version = if seen.is_some() { SpecVersion::V2 } else { SpecVersion::V1 };
    let findings = Findings::default();
    let is_whole = options.snapshot.is_none();
    let progress = Arc::clone(progress);
    let context = Arc::new(Context { storage, findings, now, version, is_whole, progress });
    match (version, opened) {
        (_, Ok(repository)) if repository.is_alpha() => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{} is of an Icechunk release before 0.2, and not all rules of its format are known: `icechunkfs \
                     migrate` reads all of it, and its result can be verified",
                    context.storage.location()
                ),
            ));
        }
        (SpecVersion::V1, Err(error)) if error.kind() == ErrorKind::Unsupported => return Err(error),
        (SpecVersion::V2, Err(error)) => context.object("repo").error("repo", error.to_string()),
        _ => check_files(&context, options).await?,
    }
    let context = Arc::try_unwrap(context).map_err(|_| Error::new(ErrorKind::Io, "a part of the check continues"))?;
    Ok((context.findings.into_report(), seen))
}

async fn check_files(context: &Arc<Context>, options: &VerifyOptions) -> Result<()> {
    let listings = if context.is_whole { Some(Listings::get(context).await?) } else { None };
    let (info, commits) = match context.version {
        SpecVersion::V2 => Some(entry(context, listings.as_ref()).await?).unzip(),
        SpecVersion::V1 => (None, None),
    };
    let mut tips: BTreeSet<ObjectId> = options.snapshot.into_iter().collect();
    match (&commits, context.is_whole) {
        (Some(commits), true) => tips.extend(commits.keys()),
        (None, true) => tips = refs_v1::check(context).await?,
        (_, false) => {}
    }
    let (snapshots, uses) = check_snapshots(context, tips, commits.as_ref()).await?;
    if let Some(commits) = &commits {
        check_pruned(context, commits, options.snapshot).await?;
    }
    let containers = Arc::new(containers(context, info.as_deref()).await);
    let references = uses.values().map(|used| used.chunk_refs()).sum::<u64>();
    let presence = match options.chunks {
        true if !context.is_whole && references <= MAX_SINGLE_REQUESTS => ChunkCheck::OneByOne(Required::default()),
        true => ChunkCheck::list(context).await?,
        false => ChunkCheck::Unknown,
    };
    let presence = Arc::new(presence);
    let virtuals = options.virtuals.clone().filter(|_| options.chunks);
    let objects = Arc::new(VirtualObjects::new(virtuals));
    let targets = manifest::Targets { presence: Arc::clone(&presence), objects: Arc::clone(&objects), containers };
    check_manifests(context, &uses, &targets, listings.as_ref()).await?;
    presence.request_all(context).await?;
    objects.request_all(context).await?;
    context.findings.count(|checked| {
        (checked.chunk_objects, checked.virtual_objects) = (presence.found(), objects.required.found());
        checked.virtual_chunks_not_checked = if options.chunks { objects.not_checked() } else { 0 };
    });
    if let Some(listings) = &listings {
        orphans::note(context, listings, &snapshots, &uses, &presence, info.as_deref().zip(commits.as_ref()));
    }
    Ok(())
}

/// Listings of all objects except chunks.
#[derive(Debug)]
struct Listings {
    snapshots: Listed,
    logs: Listed,
    manifests: Listed,
    overwritten: Listed,
}

impl Listings {
    async fn get(context: &Context) -> Result<Self> {
        Ok(Listings {
            snapshots: list(context, "snapshots/").await?,
            logs: list(context, "transactions/").await?,
            manifests: list(context, "manifests/").await?,
            overwritten: list(context, "overwritten/").await?,
        })
    }
}

async fn list(context: &Context, prefix: &str) -> Result<Listed> {
    let found = context.storage.list(prefix).await?;
    Ok(found.into_iter().map(|object| (object.key.clone(), object)).collect())
}

/// Reads and checks `repo`.
async fn entry(context: &Arc<Context>, listings: Option<&Listings>) -> Result<(Arc<RepoInfo>, Commits)> {
    let read = read(context, "repo", MAX_REPO_FILE, RepoInfo::decode).await?;
    check_envelope(context, "repo", &read.bytes, FileType::RepoInfo, read.value.has_identifier());
    let info = Arc::new(read.value);
    let shared = Arc::clone(context);
    let looked_at = Arc::clone(&info);
    let commits = blocking(move || repo_file::check(&shared, &looked_at)).await?;
    repo_file::check_operations(context, &info, listings.map(|listings| &listings.overwritten)).await?;
    Ok((info, commits))
}

/// Checks the snapshots `tips`, and in version 1 their ancestors, with their logs. Returns their
/// ids, and the uses of each manifest.
async fn check_snapshots(
    context: &Arc<Context>,
    tips: BTreeSet<ObjectId>,
    commits: Option<&Commits>,
) -> Result<(HashSet<ObjectId>, Uses)> {
    let uses = Mutex::new(Uses::new());
    // Commits with the parents that version 1 files name.
    let found: Mutex<ParentsInFiles> = Mutex::default();
    let mut seen: HashSet<ObjectId> = HashSet::new();
    let mut next = tips;
    while !next.is_empty() {
        seen.extend(&next);
        context.progress.expect(next.len());
        let mut parents: Vec<Option<ObjectId>> = Vec::new();
        let take = |parent| {
            parents.push(parent);
            Ok(())
        };
        let check = |id| check_snapshot(context, id, commits, &uses, &found);
        try_for_each(std::mem::take(&mut next), AT_ONCE, check, take).await?;
        if commits.is_none() && context.is_whole {
            next.extend(parents.into_iter().flatten().filter(|id| !seen.contains(id)));
        }
    }
    if commits.is_none() {
        let found = found.into_inner();
        repo_file::check_cycles(context.object("repo"), &found);
        for commit in found.values() {
            if let Some(parent) = commit.parent.and_then(|parent| found.get(&parent))
                && commit.flushed_at <= parent.flushed_at
            {
                let key = format!("snapshots/{}", commit.id);
                context.object(&key).warning("times-rise", format!("it is not younger than its parent {}", parent.id));
            }
        }
    }
    Ok((seen, uses.into_inner()))
}

/// Checks one snapshot and its log; returns the parent that the snapshot file names.
///
/// A check that fails with [`ErrorKind::OutOfMemory`] can be repeated: `found` has the snapshots
/// that were checked before their logs were.
async fn check_snapshot(
    context: &Arc<Context>,
    id: ObjectId,
    commits: Option<&Commits>,
    uses: &Mutex<Uses>,
    found: &Mutex<ParentsInFiles>,
) -> Result<Option<ObjectId>> {
    let key = format!("snapshots/{id}");
    let limit = super::MAX_SNAPSHOT;
    let read = read(context, &key, limit, move |file| Snapshot::decode(file, limit)).await;
    let Decoded { value: snapshot, bytes: file, .. } = match read {
        Ok(read) => read,
        Err(error) => {
            report_fault(context, "snapshot", &key, &error, "to restore it, copy this file from a clone or a backup")?;
            context.progress.step(1);
            return Ok(None);
        }
    };
    let snapshot = Arc::new(snapshot);
    let parent = snapshot.parent_id();
    // After an expiration the log is relative to a removed commit.
    let record = commits.and_then(|commits| commits.get(&id));
    let before = record.filter(|record| record.pruned_ancestor_tx_logs.is_empty()).and_then(|record| record.parent);
    let shared = Arc::clone(context);
    let looked_at = Arc::clone(&snapshot);
    let record = record.cloned();
    let is_root = record.as_ref().map_or(parent.is_none(), |record| record.parent.is_none());
    let is_checked = found.lock().contains_key(&id);
    if !is_checked {
        let own = blocking(move || snapshot::check(&shared, id, &looked_at, &file, record.as_ref())).await?;
        uses.lock().merge(own)?;
        context.findings.count(|checked| checked.snapshots += 1);
        context.progress.step(1);
        let flushed_at = snapshot.flushed_at();
        let pruned_ancestor_tx_logs = Vec::new();
        found.lock().insert(id, SnapshotInfo { id, parent, flushed_at, pruned_ancestor_tx_logs, text: () });
    }
    // Version 1 writes no log for the initial snapshot.
    let may_lack_log = is_root && snapshot.version() == SpecVersion::V1;
    log::check(context, id, Some(log::LogContext { snapshot, before }), !may_lack_log).await?;
    Ok(parent)
}

/// Checks that the logs of expired commits exist if other commits need them.
async fn check_pruned(context: &Arc<Context>, commits: &Commits, only: Option<ObjectId>) -> Result<()> {
    let commits_checked = commits.values().filter(|commit| only.is_none_or(|only| commit.id == only));
    let logs: BTreeSet<&ObjectId> = commits_checked.flat_map(|commit| &commit.pruned_ancestor_tx_logs).collect();
    // A commit that is still listed is checked by itself.
    for log in logs.into_iter().filter(|log| only.is_some() || !commits.contains_key(log)) {
        log::check(context, *log, None, true).await?;
    }
    Ok(())
}

/// Returns the names and URL prefixes of the containers of virtual chunks.
async fn containers(context: &Context, info: Option<&RepoInfo>) -> Vec<(String, String)> {
    let config = match info {
        // A damaged configuration is reported with the other content of `repo`.
        Some(info) => info.config().unwrap_or_default(),
        None => v1::config(&*context.storage).await.map(Option::unwrap_or_default).unwrap_or_else(|error| {
            context.object("config.yaml").error("config", format!("the configuration cannot be read: {error}"));
            RepoConfig::default()
        }),
    };
    config.virtual_containers().into_iter().map(|container| (container.name, container.url_prefix)).collect()
}

async fn check_manifests(
    context: &Arc<Context>,
    uses: &Uses,
    targets: &manifest::Targets,
    listings: Option<&Listings>,
) -> Result<()> {
    context.progress.expect(uses.len());
    let memory = Semaphore::new(MANIFESTS_MIB as usize);
    let memory = &memory;
    let ids: Vec<ObjectId> = uses.keys().copied().collect();
    let check = |id| async move {
        let Some(used) = uses.get(&id) else { return Ok(()) };
        let listed = listings.and_then(|listings| listings.manifests.get(&format!("manifests/{id}")));
        let size = listed.map_or_else(|| used.size(), |object| object.size);
        let mib = u32::try_from(size >> 20).unwrap_or(u32::MAX).saturating_add(1).min(MANIFESTS_MIB);
        // The semaphore is never closed; without a permit the check would only use more memory.
        let _permit = memory.acquire_many(mib).await.ok();
        manifest::check(context, id, used, targets).await?;
        context.progress.step(1);
        Ok(())
    };
    try_for_each(ids, AT_ONCE, check, Ok).await
}

/// Fetches and decodes document `key` from the store itself.
async fn read<T: Send + 'static>(
    context: &Context,
    key: &str,
    limit: u64,
    decode: impl Fn(&[u8]) -> Result<T> + Clone + Send + 'static,
) -> Result<Decoded<T>> {
    decoded::changing(&*context.storage, key, limit, decode).await
}

/// Returns true if a failure is a fault of the object and not of the access to it. An object that
/// does not fit into memory has not been looked at: it may be without a fault.
fn is_object_fault(kind: ErrorKind) -> bool {
    use ErrorKind::{InvalidInput, NotARepository, Offline, OutOfMemory, Timeout};
    !matches!(kind, Timeout | Offline | NotARepository | InvalidInput | OutOfMemory)
}

/// Reports that `key` cannot be read, or returns the error if the object is not at fault.
/// `more` is told besides.
fn report_fault(context: &Context, rule: &'static str, key: &str, error: &Error, more: &str) -> Result<()> {
    let with_more = |text: &str| if more.is_empty() { text.to_owned() } else { format!("{text}; {more}") };
    match error.kind() {
        ErrorKind::NotFound => context.object(key).error(rule, with_more("it is missing")),
        kind if is_object_fault(kind) => {
            let text = error.to_string();
            let text = text.strip_prefix(key).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(&text);
            context.object(key).error(rule, with_more(text));
        }
        _ => return Err(error.clone()),
    }
    Ok(())
}

fn check_envelope(context: &Context, key: &str, file: &[u8], file_type: FileType, has_identifier: bool) {
    let Ok((header, _)) = Header::parse(file) else { return };
    let object = context.object(key);
    if !header.compressed {
        object.warning("compression", "its payload is not compressed: other clients cannot read it");
    }
    if !has_identifier {
        object.warning("identifier", "its payload does not begin as Icechunk's do (`Ichk`)");
    }
    let is_newer = header.version > context.version;
    if is_newer || (file_type == FileType::RepoInfo && header.version != SpecVersion::V2) {
        let file = header.version.number();
        let repository = context.version.number();
        object.warning("version", format!("a file of version {file} in a repository of version {repository}"));
    }
}

/// Returns the first value that occurs a second time.
fn first_twice<T: std::hash::Hash + Eq + Copy>(all: impl Iterator<Item = T>) -> Option<T> {
    let mut seen = HashSet::new();
    all.into_iter().find(|one| !seen.insert(*one))
}
