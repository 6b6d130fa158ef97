//! Imports a directory of Zarr files, or NetCDF or HDF5 files, as one commit.
//!
//! The files are laid over the branch's tip ([`super::scan`]). The change set is detected by the
//! rules of a mount and committed by the same engine: completely or not at all, and rebased over
//! concurrent commits that did not touch the same things. Chunk files are read from where they are
//! and are never linked into the repository, because they belong to the user.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::containers::MissingContainers;
use super::destination::is_marker;
use super::order::Appending;
use super::planned::{LeftOut, Opener};
use super::references::References;
use super::repositories::refuse_repository;
use super::scan::Scanned;
use super::series::{self, Appended};
use super::sources::{ImportSource, SourceName};
use super::virtual_refs::{VirtualPlaces, VirtualRules};
use super::{Counters, MAX_LISTED, SkippedPath, known, planned, scan, version_2};
use crate::operations::changes::{DetectedChanges, NewIds, Violation, nodes};
use crate::overlay::Base;
use crate::scratch::record::Time;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, Result};
use icechunkfs_base::printable;
use icechunkfs_base::size::counted;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::config::Container;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_ingest::apart::Reader as Apart;
use icechunkfs_repo::commit::changes::ChangeSet;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::engine::{CommitOutcome, Engine, EngineOptions, OnConflict, Request};
use icechunkfs_repo::commit::progress::CommitProgress;
use icechunkfs_repo::commit::request::CommitHost;
use icechunkfs_repo::commit::warnings::{Warning, warnings_of};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::reader::memory::Budget;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository, create};
use icechunkfs_store::recognize::{self, Kind};
use icechunkfs_store::storage::Storage;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::permissions::Permissions;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeTable;

/// Destination of an import.
#[derive(Debug)]
pub enum ImportTarget {
    /// Branch of a repository.
    Branch(Repository, String),
    /// Empty place, where a repository is created.
    Empty(Arc<dyn Storage>),
}

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Group to import into; empty for the root.
    pub path: String,
    /// Commit message.
    pub message: String,
    /// Commit metadata.
    pub metadata: Map<String, Value>,
    /// Treatment of chunks that concurrent commits have changed too.
    pub on_conflict: OnConflict,
    /// Delete what the directory does not have.
    pub delete: bool,
    /// Store chunks without comparing them with those of the branch.
    pub whole: bool,
    /// Only count changes.
    pub dry_run: bool,
    /// Threads that list files, and batches that are compared at the same time.
    pub jobs: usize,
    /// Append files along a dimension; none to put one in the place of what is there.
    pub appending: Option<Appending>,
    /// Rules for virtual chunks in the files; none to copy all chunks.
    pub virtual_rules: Option<VirtualRules>,
}

/// Result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImportResult {
    /// New snapshot; none if nothing was committed.
    pub snapshot: Option<String>,
    /// Number of commits.
    pub commits: usize,
    /// True if the repository was created.
    pub created_repository: bool,
    /// Concurrent commits that the changes were rebased over, oldest first.
    pub rebased_over: Vec<String>,
    /// Number of created groups and arrays.
    pub nodes_created: usize,
    /// Number of groups and arrays with another `zarr.json`.
    pub nodes_updated: usize,
    /// Number of deleted groups and arrays.
    pub nodes_deleted: usize,
    /// Number of stored chunks.
    pub chunks_written: usize,
    /// Total size of the stored chunks, in bytes.
    pub bytes_written: u64,
    /// Number of chunks that stay in their files.
    pub chunks_virtual: usize,
    /// Total size of these, in bytes.
    pub bytes_virtual: u64,
    /// Prefixes that have to be allowed where these are read.
    pub allow_virtual: Vec<String>,
    /// Number of deleted chunks.
    pub chunks_deleted: usize,
    /// Number of chunks that the branch has already.
    pub chunks_unchanged: usize,
    /// Untracked files: those that Zarr has no place for.
    pub untracked: Vec<String>,
    /// Number of untracked files.
    pub untracked_count: u64,
    /// Files that were not appended, as the branch has them.
    pub skipped: Vec<String>,
    /// Number of these.
    pub skipped_count: u64,
    /// Parts of a file of another format that are left out, or are not as they were there.
    pub left_out: Vec<SkippedPath>,
    /// Number of these.
    pub left_out_count: u64,
    /// Arrays that some programs cannot read as they are stored.
    pub warnings: Vec<Warning>,
    /// Number of warnings.
    pub warnings_count: u64,
    /// Violations, which prevent the commit.
    #[serde(rename = "faults")]
    pub violations: Vec<SkippedPath>,
    /// Number of violations.
    #[serde(rename = "faults_count")]
    pub violations_count: u64,
    /// Conflicts with concurrent commits. Nothing was committed if there are any.
    pub conflicts: Vec<Conflict>,
    /// True if changes were only counted.
    pub dry_run: bool,
    /// Why the import failed, in its report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ImportResult {
    /// Returns the report of an import that failed because of `error`.
    #[must_use]
    pub fn failed(self, error: &Error) -> Self {
        ImportResult { error: Some(error.to_string()), ..self }
    }

    /// Lists what is left out of files, and the files that the branch has.
    fn list_of_files(&mut self, left_out: LeftOut, skipped: &[ImportSource]) {
        self.skipped_count = skipped.len() as u64;
        self.skipped = skipped.iter().take(MAX_LISTED).map(ToString::to_string).collect();
        self.left_out_count = left_out.count;
        self.left_out = left_out.list;
    }

    /// Lists what is not committed, with the paths that `relative` returns for those of the tree.
    fn list_left_out(
        &mut self,
        scanned: &Scanned,
        detected: &DetectedChanges,
        clashes: Vec<SkippedPath>,
        relative: impl Fn(&str) -> String,
    ) {
        let violations = detected.violations.iter();
        self.violations = violations
            .map(|Violation { path, why }| SkippedPath { path: relative(path), why: why.clone() })
            .chain(clashes)
            .collect();
        self.violations_count = self.violations.len() as u64;
        self.violations.truncate(MAX_LISTED);
        self.untracked = detected.untracked_paths().iter().map(|path| relative(path)).collect();
        self.untracked.extend(scanned.others.iter().cloned());
        self.untracked.sort();
        self.untracked_count = self.untracked.len() as u64;
        self.untracked.truncate(MAX_LISTED);
    }
}

/// Means by which a directory is imported.
#[derive(Clone, Copy)]
pub struct ImportMeans<'a> {
    /// Limits of the commit.
    pub engine: EngineOptions,
    /// Returns the budget for reading the repository, as a function of the bytes that its snapshot
    /// takes.
    pub memory: &'a dyn Fn(u64) -> Result<Budget>,
    /// Time of the commit.
    pub clock: Clock,
    /// Reader of files whose formats are not read in this process.
    pub apart: &'a Apart,
    /// Objects that are named, and the options of the user for their stores. The repository's own
    /// virtual chunks are not among them: who names an object allows no reference to it.
    pub named: &'a Permissions,
    /// Settings of the user for all stores.
    pub settings: &'a Settings,
}

/// Imports what `names` stand for: one directory or file, or files that are appended one after
/// another.
///
/// Nothing is committed if there are violations or conflicts: the result lists them.
pub async fn import(
    names: &[SourceName],
    target: ImportTarget,
    options: &ImportOptions,
    means: ImportMeans<'_>,
    counters: &Arc<Counters>,
    progress: &CommitProgress,
) -> Result<ImportResult> {
    let options = &ImportOptions { path: checked_path(&options.path)?, ..options.clone() };
    let Prepared { tree, places, missing, laid_out } = prepare(names, &target, options, means, counters).await?;
    let LaidOut { scanned, left_out, host, skipped, .. } = laid_out;
    let reader = Arc::clone(tree.reader());
    let mut out = ImportResult { dry_run: options.dry_run, ..ImportResult::default() };
    out.list_of_files(left_out, &skipped);
    let (mut detected, clashes) = detect_changes(&scanned, &tree, options).await?;
    let relative = |path: &str| below(&options.path, path);
    out.list_left_out(&scanned, &detected, clashes, relative);
    if out.violations_count > 0 {
        return Ok(out);
    }
    if !options.whole {
        out.chunks_unchanged = known::remove_unchanged(&tree, &mut detected.changes, options.jobs, counters).await?;
    }
    tally(&mut out, &detected.changes);
    if let Some(places) = places.as_ref().filter(|_| out.chunks_virtual > 0) {
        out.allow_virtual = places.prefixes();
    }
    let snapshot = Arc::clone(tree.snapshot());
    let find = move || {
        let warnings = warnings_of(&snapshot, &detected.changes);
        Ok((detected, warnings))
    };
    let (mut detected, mut warnings) = blocking(find).await?;
    out.warnings_count = warnings.len() as u64;
    warnings.truncate(MAX_LISTED);
    out.warnings = warnings.into_iter().map(|one| Warning { path: relative(&one.path), ..one }).collect();
    if options.dry_run || detected.changes.is_empty() {
        return Ok(out);
    }
    let (repository, branch, base) = repository_of(target, &tree, means.clock, &mut out).await?;
    // A new repository stays: others may have begun to use it.
    let place = repository.storage().location().to_owned();
    let stays = || format!("{place} was created and is still empty; the import into it failed");
    if out.chunks_virtual > 0 {
        let added = missing.add(&repository, means.clock).await;
        if out.created_repository { added.context(stays) } else { added }?;
    }
    let changes = std::mem::take(&mut detected.changes);
    drop((scanned, tree, detected));
    let engine = Engine::new(Arc::clone(repository.storage()), reader, means.clock, means.engine);
    let message = if options.message.is_empty() { default_message(names) } else { options.message.clone() };
    let metadata = options.metadata.clone();
    let settlements = options.on_conflict.into();
    let request = Request { branch, message, metadata, settlements, host, ..Request::default() };
    let committed = Box::pin(engine.commit(&base, &changes, &request, progress)).await;
    let committed = if out.created_repository { committed.context(stays) } else { committed };
    match committed? {
        CommitOutcome::Nothing => {}
        CommitOutcome::Conflicts(conflicts) => out.conflicts = conflicts,
        CommitOutcome::Committed { snapshot, rebased_over, .. } => {
            out.snapshot = Some(snapshot.to_string());
            out.commits = 1;
            out.rebased_over = rebased_over.iter().map(ToString::to_string).collect();
        }
    }
    Ok(out)
}

/// Sources, laid out over what the branch has.
pub(super) struct Prepared {
    tree: Arc<Tree>,
    /// Places of files with virtual chunks; none if all are copied.
    places: Option<Arc<VirtualPlaces>>,
    missing: MissingContainers,
    pub(super) laid_out: LaidOut,
}

pub(super) async fn prepare(
    names: &[SourceName],
    target: &ImportTarget,
    options: &ImportOptions,
    means: ImportMeans<'_>,
    counters: &Arc<Counters>,
) -> Result<Prepared> {
    let is_elsewhere = names.iter().any(|name| name.allowed().is_some());
    let Began { tree, containers } = Began::at(target, &means, is_elsewhere || options.virtual_rules.is_some()).await?;
    let named = Arc::new(VirtualChunks::new(means.named.clone(), containers.clone(), means.settings));
    let sources = ImportSource::of(names, &named).await?;
    let references = References::of(&sources, means.apart).await?;
    let (places, missing) = match options.virtual_rules {
        Some(how) => {
            let files = references.as_ref().map_or(&sources, |references| &references.files);
            if references.is_none() {
                check_formats(&sources).await?;
            }
            let (places, missing) = virtual_places(files, containers, how, &named).await?;
            let missing = MissingContainers::of(missing, how.set_container, Some(&*named)).await?;
            (Some(Arc::new(places)), missing)
        }
        None => (None, MissingContainers::default()),
    };
    let apart = means.apart.clone();
    let opener = Opener { apart, places: places.clone(), virtuals: named, runtime: Handle::current() };
    let found = SourceMeans { target, tree: &tree, opener: &opener, counters };
    let laid_out = lay_out(sources, references, options, found).await?;
    Ok(Prepared { tree, places, missing, laid_out })
}

/// Returns the path of a group or an array without needless slashes.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] if none can have it: a document in
/// its place would be gone.
pub(super) fn checked_path(path: &str) -> Result<String> {
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    match names.iter().find_map(|name| Some((name, planned::refused_name(name)?))) {
        Some((name, why)) => {
            let name = printable::line(name);
            Err(Error::invalid(format!("--path: no group or array can be called {name}: {why}")))
        }
        None => Ok(names.join("/")),
    }
}

fn default_message(names: &[SourceName]) -> String {
    match names {
        [one] => format!("Import of {one}"),
        [first, others @ ..] => format!("Import of {first} and {}", counted(others.len() as u64, "other file")),
        [] => "Import".to_owned(),
    }
}

/// Says what is in the directory `source`, which has no Zarr document of version 3, and what to do
/// with it.
fn other_content(source: &Path) -> String {
    /// Entries that are looked at.
    const LOOKED_AT: usize = 1000;
    if recognize::at(source) == Some(Kind::Repository) {
        return "it is a repository: `icechunkfs clone` copies it".to_owned();
    }
    let Ok(entries) = std::fs::read_dir(source) else { return "it cannot be listed".to_owned() };
    let paths: Vec<PathBuf> = entries.flatten().take(LOOKED_AT).map(|entry| entry.path()).collect();
    let file = paths.iter().find_map(|path| Some((path, recognize::at(path).filter(|kind| kind.is_file())?)));
    match file {
        Some((path, kind)) => {
            let name = printable::line(&path.file_name().unwrap_or_default().to_string_lossy());
            let next = match kind {
                Kind::NetCdf | Kind::Hdf5 => "name the files to import, not the directory",
                _ => "open it with xarray, and write it into a mount of a repository",
            };
            format!("it has no zarr.json, .zarray or .zgroup; {name} is {}: {next}", kind.name())
        }
        None if paths.is_empty() => "it is empty".to_owned(),
        None => "neither it nor its directories have a zarr.json, .zarray or .zgroup".to_owned(),
    }
}

/// Repository as it is before the import.
struct Began {
    tree: Arc<Tree>,
    /// Its containers of virtual chunks.
    containers: Vec<Container>,
}

impl Began {
    /// Reads what the branch has; the containers only if that `needs_containers`: a configuration
    /// that cannot be read keeps nothing else from being imported.
    async fn at(target: &ImportTarget, means: &ImportMeans<'_>, needs_containers: bool) -> Result<Self> {
        match target {
            ImportTarget::Branch(repository, branch) => {
                repository.check_writable()?;
                let tip = repository.resolve(&RefSpec::Branch(branch.clone())).await?;
                let snapshot = repository.snapshot(tip, MAX_SNAPSHOT).await?;
                let mut containers = Vec::new();
                if needs_containers {
                    containers = repository.config().await?.virtual_containers();
                }
                let tree = tree(snapshot, repository.storage(), repository.virtuals().await, means.memory)?;
                Ok(Began { tree, containers })
            }
            ImportTarget::Empty(storage) => {
                let snapshot = create::initial(means.clock)?;
                let tree = tree(snapshot, storage, Arc::new(VirtualChunks::default()), means.memory)?;
                Ok(Began { tree, containers: Vec::new() })
            }
        }
    }
}

/// Returns the directories of `sources`, which virtual chunks will be in, and those in none of
/// `containers`, each with one that is a source's.
async fn virtual_places(
    sources: &[ImportSource],
    containers: Vec<Container>,
    how: VirtualRules,
    virtuals: &Arc<VirtualChunks>,
) -> Result<(VirtualPlaces, Vec<(Address, Address)>)> {
    let files = sources.to_vec();
    let virtuals = Arc::clone(virtuals);
    blocking(move || VirtualPlaces::of(&files, &containers, how.copy_below, &virtuals)).await
}

/// Fails unless all files of this machine are of a format whose chunks can be virtual.
async fn check_formats(sources: &[ImportSource]) -> Result<()> {
    let files = sources.to_vec();
    let check = move || {
        // The kind of an object is known once it is open.
        let is_other = |path: &&Path| !matches!(recognize::at(path), Some(Kind::NetCdf | Kind::Hdf5));
        match files.iter().filter_map(ImportSource::local).find(is_other) {
            Some(file) => Err(Error::invalid(format!(
                "{} is neither a NetCDF nor an HDF5 file, and only chunks of those can be virtual: name files, such as DIRECTORY/*.nc",
                file.display()
            ))),
            None => Ok(()),
        }
    };
    blocking(check).await
}

/// Sources, laid out over the branch.
pub(super) struct LaidOut {
    scanned: Scanned,
    left_out: LeftOut,
    /// To be asked when they are committed.
    host: Option<Arc<dyn CommitHost>>,
    /// Files that the branch has.
    pub(super) skipped: Vec<ImportSource>,
    /// Those that are appended, in their order.
    pub(super) order: Vec<ImportSource>,
}

async fn lay_out(
    sources: Vec<ImportSource>,
    references: Option<Arc<References>>,
    options: &ImportOptions,
    means: SourceMeans<'_>,
) -> Result<LaidOut> {
    if let Some(references) = references {
        check_group(means.tree, options)?;
        let (scanned, left_out) = references.lay_out(means.opener, options.jobs).await?;
        return Ok(LaidOut { scanned, left_out, host: None, skipped: Vec::new(), order: Vec::new() });
    }
    match (&options.appending, sources.as_slice()) {
        (Some(how), _) => {
            let Appended { scanned, host, left_out, skipped, order } =
                series::lay_out(means.tree, &options.path, sources, how, means.opener, options.jobs).await?;
            Ok(LaidOut { scanned, left_out, host: Some(host), skipped, order })
        }
        (None, [source]) => {
            let (scanned, left_out) = scan_source(source, options, means).await?;
            Ok(LaidOut { scanned, left_out, host: None, skipped: Vec::new(), order: Vec::new() })
        }
        (None, _) => Err(Error::invalid("several files need a dimension along which they are appended")),
    }
}

/// Means by which sources are looked at.
#[derive(Clone, Copy)]
struct SourceMeans<'a> {
    target: &'a ImportTarget,
    tree: &'a Arc<Tree>,
    opener: &'a Opener,
    counters: &'a Arc<Counters>,
}

/// Returns the files of `source`, a Zarr tree, or what a NetCDF or HDF5 file becomes, with what of
/// it is left out.
async fn scan_source(
    source: &ImportSource,
    options: &ImportOptions,
    means: SourceMeans<'_>,
) -> Result<(Scanned, LeftOut)> {
    let SourceMeans { target, tree, opener, counters } = means;
    let local = source.local().map(Path::to_owned);
    let kind = match local.clone() {
        Some(path) => blocking(move || Ok(recognize::at(&path))).await?,
        None => None,
    };
    let directory = local.filter(|_| !matches!(kind, Some(Kind::NetCdf | Kind::Hdf5)));
    let Some(source) = directory.as_deref() else {
        check_group(tree, options)?;
        let file = source.clone();
        let opener = opener.clone();
        return blocking(move || opener.plan(&file)).await;
    };
    let root = Arc::new(open(source, target)?);
    let count = Arc::clone(counters);
    let jobs = options.jobs;
    let of_version_2 = kind == Some(Kind::Zarr2);
    let scan = move || {
        let scanned = scan::scan(root, jobs, &count)?;
        if of_version_2 { version_2::converted(&scanned) } else { Ok((scanned, LeftOut::default())) }
    };
    let (scanned, left_out) = blocking(scan).await.context(|| source.display())?;
    if scanned.has_file(is_marker) {
        return Err(Error::invalid(format!(
            "{}: an export into it was not finished: finish it first",
            source.display()
        )));
    }
    if let (Some(one), false) = (left_out.list.first(), scanned.any_document()) {
        let reason = printable::line(&format!("{}: {}", one.path, one.why));
        return Err(Error::invalid(format!("{}: nothing to import: {reason}", source.display())));
    }
    if !scanned.any_document() {
        let found = source.to_owned();
        let what = blocking(move || Ok(other_content(&found))).await?;
        return Err(Error::invalid(format!("{}: nothing to import: {what}", source.display())));
    }
    Ok((scanned, left_out))
}

/// Fails if the branch has an array where a group is imported.
fn check_group(tree: &Tree, options: &ImportOptions) -> Result<()> {
    let place = planned::node_at(tree, &options.path);
    if options.delete || place.is_none_or(|node| tree.table().array(node).is_none()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "/{}: the branch has an array here, and a group cannot take its place: import to another --path",
        options.path
    )))
}

/// Returns the repository, which is created if there is none, its branch, and the base of a commit
/// of changes of `tree`.
async fn repository_of(
    target: ImportTarget,
    tree: &Tree,
    clock: Clock,
    out: &mut ImportResult,
) -> Result<(Repository, String, Arc<Snapshot>)> {
    let (repository, branch) = match target {
        ImportTarget::Branch(repository, branch) => (repository, branch),
        ImportTarget::Empty(storage) => {
            create::create(&*storage, false, clock).await?;
            out.created_repository = true;
            (Repository::open(storage).await?, DEFAULT_BRANCH.to_owned())
        }
    };
    repository.check_store(&branch).await?;
    // A new repository has a first snapshot, which is the base.
    let base = if out.created_repository {
        Arc::new(repository.snapshot(ObjectId::INITIAL, MAX_SNAPSHOT).await?)
    } else {
        Arc::clone(tree.snapshot())
    };
    Ok((repository, branch, base))
}

/// Opens the directory. Fails if it lies in the repository's directory or contains it.
fn open(source: &Path, target: &ImportTarget) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(source, flags, Mode::empty()).map_err(|e| Error::io(source.display(), e.into()))?;
    let storage = match target {
        ImportTarget::Branch(repository, _) => repository.storage(),
        ImportTarget::Empty(storage) => storage,
    };
    refuse_repository(source, storage.local_path().as_deref(), |path| {
        real(path).map_err(|e| Error::io(path.display(), e))
    })?;
    Ok(root)
}

/// Resolves symbolic links in the part of `path` that exists.
fn real(path: &Path) -> std::io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut missing = Vec::new();
    let mut existing = absolute.as_path();
    loop {
        match (std::fs::canonicalize(existing), existing.parent(), existing.file_name()) {
            (Ok(real), _, _) => return Ok(missing.into_iter().rev().fold(real, |path, name| path.join(name))),
            (Err(_), Some(parent), Some(name)) => {
                missing.push(name);
                existing = parent;
            }
            (Err(error), _, _) => return Err(error),
        }
    }
}

fn tree(
    snapshot: Snapshot,
    storage: &Arc<dyn Storage>,
    virtuals: Arc<VirtualChunks>,
    memory: &dyn Fn(u64) -> Result<Budget>,
) -> Result<Arc<Tree>> {
    let table = NodeTable::build(&snapshot)?;
    let budget = memory(snapshot.size() as u64 + table.size())?;
    let reader = Arc::new(Reader::new(Arc::clone(storage), budget).with_virtuals(virtuals));
    Ok(Arc::new(Tree::new(snapshot, table, reader)))
}

/// Detects the changes of the files relative to `tree`, and the files that cannot be where they
/// are.
async fn detect_changes(
    scanned: &scan::Scanned,
    tree: &Arc<Tree>,
    options: &ImportOptions,
) -> Result<(DetectedChanges, Vec<SkippedPath>)> {
    let (frozen, clashes) = scanned.lay_over(tree, &options.path, options.delete).await?;
    let base = Arc::new(Base { tree: Arc::clone(tree), time: Time::default(), uid: 0, gid: 0 });
    let detected = nodes::detect_changes(base, scanned, &frozen, &NewIds::default()).await?;
    Ok((detected, clashes))
}

/// Returns the absolute repository path `path` relative to the group `top`.
fn below(top: &str, path: &str) -> String {
    let path = path.trim_start_matches('/');
    let rest = path.strip_prefix(top.trim_matches('/')).unwrap_or(path).trim_start_matches('/');
    if rest.is_empty() { ".".to_owned() } else { rest.to_owned() }
}

fn tally(out: &mut ImportResult, changes: &ChangeSet) {
    out.nodes_created = changes.created.len();
    out.nodes_updated = changes.updated.len();
    out.nodes_deleted = changes.deleted.len();
    for change in changes.chunk_changes() {
        match (change.length(), change.stored()) {
            (None, _) => out.chunks_deleted += 1,
            (Some(length), Some(ChunkPayload::Virtual { .. })) => {
                out.chunks_virtual += 1;
                out.bytes_virtual = out.bytes_virtual.saturating_add(length);
            }
            (Some(length), _) => {
                out.chunks_written += 1;
                out.bytes_written = out.bytes_written.saturating_add(length);
            }
        }
    }
}
