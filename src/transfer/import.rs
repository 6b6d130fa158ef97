//! A directory of Zarr files as one commit.
//!
//! The files are laid over the branch's newest snapshot ([`super::scan`]); what that would commit is found out by the rules by which
//! a mount commits, and committed by the same engine: all of it or nothing, applied to what others commit meanwhile if nobody
//! touched the same things. Chunk files are read and stored from where they are, and never become objects themselves, for they
//! are the user's.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use serde_json::{Map, Value};

use super::destination::MARKER;
use super::{Counters, LeftOut, blocking, known, scan};
use crate::commit::changes::{ChangeSet, ChunkChange};
use crate::commit::conflicts::Conflict;
use crate::commit::engine::{Engine, OnConflict, Options, Outcome, Request};
use crate::commit::progress::Progress;
use crate::error::{Context, Error, Result};
use crate::format::snapshot::Snapshot;
use crate::reader::Reader;
use crate::reader::memory::Budget;
use crate::repo::Repository;
use crate::repo::create;
use crate::repo::refs::RefSpec;
use crate::repo::update::Clock;
use crate::scratch::record::Time;
use crate::session::changes::walk::{NewIds, detect_changes_in};
use crate::session::changes::{DetectedChanges, Violation};
use crate::storage::Storage;
use crate::tree::Tree;
use crate::tree::nodes::NodeTable;
use crate::working::Base;

/// Paths of one kind that a report lists; the rest is counted.
const LISTED: usize = 1000;

/// Where files are imported to.
#[derive(Debug)]
pub enum Target {
    /// A branch of a repository.
    Branch(Repository, String),
    /// A place where nothing is yet, and where a repository is created.
    Empty(Arc<dyn Storage>),
}

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The group that the directory is; empty for the root.
    pub path: String,
    /// The commit's message.
    pub message: String,
    /// The commit's metadata.
    pub metadata: Map<String, Value>,
    /// What to do about chunks that others have changed too.
    pub on_conflict: OnConflict,
    /// Remove what the directory does not have.
    pub delete: bool,
    /// Store chunks without looking whether they are there.
    pub whole: bool,
    /// Only count.
    pub dry_run: bool,
    /// Threads that look at files, and batches that are compared at a time.
    pub jobs: usize,
}

/// What came of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The new snapshot; none if there was nothing to commit.
    pub snapshot: Option<String>,
    /// Whether the repository was created.
    pub created_repository: bool,
    /// Commits of others that it was applied to, oldest first.
    pub rebased_over: Vec<String>,
    /// Groups and arrays that are new.
    pub nodes_created: usize,
    /// Groups and arrays with another `zarr.json`.
    pub nodes_updated: usize,
    /// Groups and arrays that are gone.
    pub nodes_deleted: usize,
    /// Chunks that were stored.
    pub chunks_written: usize,
    /// Bytes of those.
    pub bytes_written: u64,
    /// Chunks that are gone.
    pub chunks_deleted: usize,
    /// Chunks that were there already.
    pub chunks_unchanged: usize,
    /// Files that Zarr has no place for.
    pub untracked: Vec<String>,
    /// How many those are.
    pub untracked_count: u64,
    /// What keeps it from being committed.
    pub faults: Vec<LeftOut>,
    /// How many those are.
    pub faults_count: u64,
    /// What others have changed too. Nothing was committed then.
    pub conflicts: Vec<Conflict>,
    /// Whether nothing was done, only counted.
    pub dry_run: bool,
}

/// Imports the directory `source`.
///
/// `memory` is the bound for what is read of the repository, as a function of the bytes that its snapshot takes; `clock` says when
/// the commit is made. What cannot be committed is in the result and nothing is committed then; so are conflicts.
pub async fn import(
    source: &Path,
    target: Target,
    options: &ImportOptions,
    engine_options: Options,
    memory: &dyn Fn(u64) -> Result<Budget>,
    clock: Clock,
    (counters, progress): (&Arc<Counters>, &Progress),
) -> Result<Imported> {
    let root = Arc::new(open(source, &target)?);
    let (jobs, count) = (options.jobs, Arc::clone(counters));
    let scanned = blocking(move || scan::scan(root, jobs, &count)).await.context(|| source.display())?;
    if scanned.has(MARKER) {
        return Err(Error::invalid(format!(
            "{}: an export into it was not finished: finish it first",
            source.display()
        )));
    }
    if !scanned.any_document() {
        return Err(Error::invalid(format!(
            "{}: there is no zarr.json in it, and so nothing to import (version 2 of Zarr has .zarray and .zgroup: convert it to \
             version 3 before)",
            source.display()
        )));
    }
    let (storage, snapshot) = match &target {
        Target::Branch(repository, branch) => {
            repository.check_writable()?;
            let tip = repository.resolve(&RefSpec::Branch(branch.clone())).await?;
            let snapshot = repository.snapshot(tip, crate::repo::MAX_SNAPSHOT).await?;
            (Arc::clone(repository.storage()), snapshot)
        }
        Target::Empty(storage) => (Arc::clone(storage), create::initial(clock)?),
    };
    let tree = tree(snapshot, &storage, memory)?;
    let reader = Arc::clone(tree.reader());
    let mut out = Imported { dry_run: options.dry_run, ..Imported::default() };
    let (mut detected, clashes) = detect_changes(&scanned, &tree, options).await?;
    let relative = |path: &str| below(&options.path, path);
    let faults =
        detected.violations.iter().map(|Violation { path, why }| LeftOut { path: relative(path), why: why.clone() });
    let mut faults: Vec<LeftOut> = faults.collect();
    faults.extend(clashes);
    let mut untracked: Vec<String> = detected.untracked.iter().map(|file| relative(&file.path)).collect();
    untracked.extend(scanned.others.iter().cloned());
    untracked.sort();
    (out.untracked_count, out.faults_count) = (untracked.len() as u64, faults.len() as u64);
    untracked.truncate(LISTED);
    faults.truncate(LISTED);
    (out.untracked, out.faults) = (untracked, faults);
    if out.faults_count > 0 {
        return Ok(out);
    }
    if !options.whole {
        let unchanged = known::leave_out(&tree, &mut detected.changes, options.jobs, counters).await?;
        out.chunks_unchanged = unchanged.0;
    }
    tally(&mut out, &detected.changes);
    if options.dry_run || detected.changes.is_empty() {
        return Ok(out);
    }
    let (repository, branch) = match target {
        Target::Branch(repository, branch) => (repository, branch),
        Target::Empty(storage) => {
            create::create(&*storage, false, clock).await?;
            out.created_repository = true;
            (Repository::open(storage).await?, crate::repo::refs::DEFAULT_BRANCH.to_owned())
        }
    };
    repository.check_store(&branch).await?;
    // Of a new repository, the one that it has.
    let base = match out.created_repository {
        true => {
            let tip = repository.resolve(&RefSpec::Branch(branch.clone())).await?;
            Arc::new(repository.snapshot(tip, crate::repo::MAX_SNAPSHOT).await?)
        }
        false => Arc::clone(tree.snapshot()),
    };
    let changes = std::mem::take(&mut detected.changes);
    drop((scanned, tree, detected));
    let engine = Engine::new(Arc::clone(repository.storage()), reader, clock, engine_options);
    let message = match options.message.is_empty() {
        true => format!("Import of {}", source.display()),
        false => options.message.clone(),
    };
    let (metadata, on_conflict) = (options.metadata.clone(), options.on_conflict);
    let request = Request { branch, message, metadata, on_conflict, ..Request::default() };
    match Box::pin(engine.commit(&base, &changes, &request, progress)).await? {
        Outcome::Nothing => {}
        Outcome::Conflicts(conflicts) => out.conflicts = conflicts,
        Outcome::Committed { snapshot, rebased_over } => {
            out.snapshot = Some(snapshot.to_string());
            out.rebased_over = rebased_over.iter().map(ToString::to_string).collect();
        }
    }
    Ok(out)
}

/// Opens the directory, which must have nothing to do with the repository's.
fn open(source: &Path, target: &Target) -> Result<OwnedFd> {
    let failed = |e: std::io::Error| Error::io(source.display(), e);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(source, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let storage = match target {
        Target::Branch(repository, _) => repository.storage(),
        Target::Empty(storage) => storage,
    };
    let real = std::fs::canonicalize(source).map_err(failed)?;
    if let Some(repository) = storage.local_path()
        && (real.starts_with(&repository) || repository.starts_with(&real))
    {
        return Err(Error::invalid(format!(
            "{}: the repository is there or above: name another directory",
            source.display()
        )));
    }
    Ok(root)
}

fn tree(snapshot: Snapshot, storage: &Arc<dyn Storage>, memory: &dyn Fn(u64) -> Result<Budget>) -> Result<Arc<Tree>> {
    let table = NodeTable::build(&snapshot)?;
    let budget = memory(snapshot.size() as u64 + table.size())?;
    let reader = Arc::new(Reader::new(Arc::clone(storage), budget));
    Ok(Arc::new(Tree::new(snapshot, table, reader)))
}

/// What the files would commit over `tree`, and those that cannot stand where they are.
async fn detect_changes(
    scanned: &scan::Scanned,
    tree: &Arc<Tree>,
    options: &ImportOptions,
) -> Result<(DetectedChanges, Vec<LeftOut>)> {
    let (frozen, clashes) = scanned.over(tree, &options.path, options.delete).await?;
    let base = Arc::new(Base { tree: Arc::clone(tree), time: Time::default(), uid: 0, gid: 0 });
    let detected = detect_changes_in(base, scanned, &frozen, &NewIds::default()).await?;
    Ok((detected, clashes))
}

/// `path`, an absolute one in the repository, relative to the group `top`.
fn below(top: &str, path: &str) -> String {
    let path = path.trim_start_matches('/');
    let rest = path.strip_prefix(top.trim_matches('/')).unwrap_or(path).trim_start_matches('/');
    if rest.is_empty() { ".".to_owned() } else { rest.to_owned() }
}

/// Counts what would be committed.
fn tally(out: &mut Imported, changes: &ChangeSet) {
    out.nodes_created = changes.created.len();
    out.nodes_updated = changes.updated.len();
    out.nodes_deleted = changes.deleted.len();
    for change in changes.chunks.values().flat_map(|chunks| chunks.values()) {
        match change {
            ChunkChange::Delete => out.chunks_deleted += 1,
            ChunkChange::File(file) => {
                out.chunks_written += 1;
                out.bytes_written = out.bytes_written.saturating_add(file.length);
            }
            ChunkChange::Stored(payload) => {
                out.chunks_written += 1;
                out.bytes_written = out.bytes_written.saturating_add(payload.length());
            }
        }
    }
}
