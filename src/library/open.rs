//! Opens repositories and trees, and prepares commits, within limits of memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::fuse::open_mount::OpenMount;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory;
use icechunkfs_base::times::system_clock;
use icechunkfs_base::{printable, shell, trust};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_repo::commit::engine::{Engine, EngineOptions};
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::reader::memory::Budget;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_repo::repo::revision::is_abbreviation;
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_store::recognize::{self, Kind};
use icechunkfs_store::storage::location::{Location, StorePlace};
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_store::storage::{self, Storage};
use icechunkfs_tree::mount_facts::MountInfo;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeTable;
use icechunkfs_tree::tree::numbering::Numbering;

/// Worker threads for requests that had to wait. The threads never block, so that few are enough.
const THREADS: std::ops::RangeInclusive<usize> = 2..=8;
/// Threads that block on local disks.
const WAITING_THREADS: usize = 32;

/// Maximum bytes of chunks on their way to a store, and the divisor of the user's memory limit for
/// them.
const MOST_UPLOADS: u64 = 32 << 20;
const UPLOADS_SHARE: u64 = 8;

/// Memory of a commit, in snapshots: its base, the tip, the one that it writes, and the rest that
/// it reads.
const SNAPSHOTS: u64 = 4;

/// Creates the threads on which all asynchronous code runs.
pub fn runtime() -> Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(*THREADS.start(), *THREADS.end()))
        .max_blocking_threads(WAITING_THREADS)
        .thread_name(crate::PROGRAM)
        .enable_all()
        .build()
        .map_err(|e| Error::io("starting threads", e))
}

/// Longest wait at the end of a command for threads that block, such as those that write to a
/// cache.
const ENDING: Duration = Duration::from_secs(2);

/// Creates the threads of a command, and runs `work` on them.
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    run_on(|runtime| runtime.block_on(work))
}

/// Creates the threads of a command for `work`. Its end does not wait for a file system that never
/// answers.
pub fn run_on<T>(work: impl FnOnce(&Runtime) -> Result<T>) -> Result<T> {
    let runtime = runtime()?;
    let done = work(&runtime);
    runtime.shutdown_timeout(ENDING);
    done
}

/// Opens the repository that `repo` names: a path, a URL, or a path in a mount of this user, whose
/// repository it then is.
pub async fn repository(repo: &str, settings: &Settings) -> Result<Repository> {
    let error = match at(repo, settings).await {
        Err(error) if may_be_something_else(&error) => error,
        opened => return opened,
    };
    let Ok(Location { place: StorePlace::Local(path), shown }) = Location::parse(repo) else { return Err(error) };
    match mounted_repository(&path)? {
        Some(mounted) => at(&mounted, settings).await,
        None => Err(explained(error, repo, &path, &shown)),
    }
}

/// Opens the store of the repository that `repo` names, as [`repository`] does. The repository may
/// be damaged, and there may be none.
pub async fn store(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    let opened = storage::open(repo, settings).await;
    let Ok(Location { place: StorePlace::Local(path), .. }) = Location::parse(repo) else { return opened };
    let is_something_else = match &opened {
        Ok(storage) => Repository::open(Arc::clone(storage)).await.is_err_and(|error| may_be_something_else(&error)),
        Err(error) => may_be_something_else(error),
    };
    match if is_something_else { info_of_mount(&path) } else { None } {
        Some(mount) => storage::open(&mount.repository, settings).await,
        None => opened,
    }
}

/// Opens the place `repo` for a new repository, as [`storage::open_new`] does.
///
/// Errors: [`ErrorKind::InvalidInput`] if it is in a mount, whose files are those of a repository.
pub async fn new_place(repo: &str, settings: &Settings) -> Result<Arc<dyn Storage>> {
    check_new_place(repo)?;
    storage::open_new(repo, settings).await
}

/// Fails if a new repository at `repo` would be in a mount or inside another repository.
pub fn check_new_place(repo: &str) -> Result<()> {
    let Location { place: StorePlace::Local(path), shown } = Location::parse(repo)? else { return Ok(()) };
    // Where a file system of another user is on the way, the place is refused anyway.
    let Ok(place) = trust::place_of(&path) else { return Ok(()) };
    match mount_around(&place) {
        None => recognize::refuse_inside(shown, &place, ErrorKind::AlreadyExists),
        Some(mount) => Err(Error::invalid(format!(
            "{shown} is inside the mount {}: name a directory elsewhere",
            mount.mount().mountpoint.display()
        ))),
    }
}

/// Opens the mount of this user that `place`, which need not exist, would be in.
fn mount_around(place: &Path) -> Option<OpenMount> {
    place.ancestors().find(|one| one.symlink_metadata().is_ok()).and_then(OpenMount::containing)
}

/// Returns what the mount of this user says of itself that the path `repo` is in, or would be.
pub fn info_of_mount_around(repo: &str) -> Option<MountInfo> {
    let Ok(Location { place: StorePlace::Local(path), .. }) = Location::parse(repo) else { return None };
    mount_around(&trust::place_of(&path).ok()?)?.info().ok()
}

async fn at(repo: &str, settings: &Settings) -> Result<Repository> {
    Repository::open_unknown(storage::open(repo, settings).await?).await
}

fn may_be_something_else(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::NotARepository)
}

/// Returns the location of the repository whose mount `path` is in; none if it is in no mount of
/// this user, or not there: the text of a path proves nothing.
///
/// Errors: [`ErrorKind::InvalidInput`] if the mount shows something else than branch `main`, on
/// which commands act unless they are told another one.
fn mounted_repository(path: &Path) -> Result<Option<String>> {
    let Some(MountInfo { repository, kind, reference, branch, .. }) = info_of_mount(path) else { return Ok(None) };
    if kind == "branch" && branch.as_deref() == Some(DEFAULT_BRANCH) {
        return Ok(Some(repository));
    }
    let [repository, reference] = [repository, reference].map(|text| printable::line(&text));
    let path = path.display();
    Err(Error::invalid(format!(
        "{path} is in a mount of {kind} {reference}: name the repository itself, {repository}, and the branch, tag or snapshot that you mean"
    )))
}

/// Returns what the mount of this user that has the existing `path` says of itself. The daemon of
/// another user could name any repository.
fn info_of_mount(path: &Path) -> Option<MountInfo> {
    OpenMount::containing(path)?.info().ok()
}

/// Returns `error` with what is at `path`, if that is known, or what the user may have meant.
fn explained(error: Error, repo: &str, path: &Path, shown: &str) -> Error {
    let kind = error.kind();
    let shown = printable::line(shown);
    let place = trust::place_of(path).ok();
    if let Some(outer) = place.as_deref().and_then(Path::parent).and_then(recognize::repository_around) {
        return Error::new(kind, format!("{shown} is inside the repository {}: name that", outer.display()));
    }
    if let Some(found) = recognize::at(path).filter(|found| *found != Kind::Repository) {
        return Error::new(kind, format!("{shown} {}", found.instead_of_repository(&shell::quote(repo))));
    }
    if let Some((place, rest)) = repo.rsplit_once([':', '@']).filter(|_| !path.exists())
        && recognize::at(Path::new(place)) == Some(Kind::Repository)
    {
        let [place, rest] = [place, rest].map(shell::quote);
        let message = format!(
            "{shown}: no such directory; {place} is a repository: write {place}, and --branch {rest} or --tag {rest} where the command has it"
        );
        return Error::new(kind, message);
    }
    match Location::url_meant_by(repo).filter(|_| !path.exists()) {
        Some(meant) => {
            Error::new(kind, format!("{shown}: no such directory: did you mean {}?", printable::line(&meant)))
        }
        None => error,
    }
}

/// Returns what was `found` at the path that `word` names. If that is nothing, and a branch or a
/// tag has this name, the error says what to write.
pub async fn or_ref<T>(repository: &Repository, word: &str, found: Result<T>) -> Result<T> {
    let error = match found {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        found => return found,
    };
    let Ok(refs) = repository.refs().await else { return Err(error) };
    let word = word.trim_matches('/');
    let kind = match word {
        word if refs.branches.contains_key(word) => "branch",
        word if refs.tags.contains_key(word) => "tag",
        // In version 1 each commit would be read.
        word if repository.version() == SpecVersion::V2 && is_abbreviation(word) => {
            let found = repository.resolve_revision(&format!("snapshot/{word}")).await;
            return Err(match found {
                Ok(_) => Error::new(ErrorKind::NotFound, format!("{error}; a snapshot is named by --snapshot {word}")),
                Err(_) => error,
            });
        }
        _ => return Err(error),
    };
    let name = shell::quote(word);
    Err(Error::new(ErrorKind::NotFound, format!("{error}; there is a {kind} of that name: --{kind} {name}")))
}

/// Memory limits of the user.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryLimits {
    /// Maximum bytes to prefetch for one reader.
    pub ahead: Option<u64>,
}

impl MemoryLimits {
    /// Returns the maximum bytes of a snapshot. Checks the user's memory limit before anything is
    /// read within it.
    pub fn max_snapshot_size(&self) -> Result<u64> {
        let limit = memory::explicit_bound();
        if let Some(total) = limit {
            Budget::new(total, 0)?;
        }
        Ok(limit.unwrap_or(MAX_SNAPSHOT))
    }

    /// Returns the maximum bytes of chunks on their way to a store.
    pub fn uploads(&self) -> u64 {
        memory::explicit_bound().map_or(MOST_UPLOADS, |total| (total / UPLOADS_SHARE).min(MOST_UPLOADS))
    }

    /// Returns the budget of a mount of which `fixed` bytes are in use already.
    pub fn budget(&self, fixed: u64) -> Result<Budget> {
        // The default makes room for a large snapshot; the user's limit does not.
        let total = memory::explicit_bound().unwrap_or_else(|| {
            memory::raise_default_bound(SNAPSHOTS * fixed);
            memory::default_memory().max(2 * fixed)
        });
        Ok(Budget::new(total, fixed)?.with_prefetch_limit(self.ahead))
    }
}

/// Returns a reader of `repository` and an engine for commits to it, within the limits of the user.
pub fn engine(repository: &Repository) -> Result<(Arc<Reader>, Engine)> {
    let limits = MemoryLimits::default();
    let storage = repository.storage();
    let reader = Arc::new(Reader::new(Arc::clone(storage), limits.budget(0)?));
    let options = EngineOptions { memory: limits.uploads(), ..EngineOptions::default() };
    let engine = Engine::new(Arc::clone(storage), Arc::clone(&reader), system_clock, options);
    Ok((reader, engine))
}

/// Opens the tree of the snapshot that `spec` selects, within `limits`.
pub async fn tree(repository: &Repository, spec: &RefSpec, limits: MemoryLimits) -> Result<Arc<Tree>> {
    tree_after(repository, spec, limits, &mut Numbering::default(), "").await
}

/// Opens the tree like [`tree`], with inode numbers of `numbering`, and with node `root` as its
/// root (empty for the whole tree).
pub async fn tree_after(
    repository: &Repository,
    spec: &RefSpec,
    limits: MemoryLimits,
    numbering: &mut Numbering,
    root: &str,
) -> Result<Arc<Tree>> {
    let limit = limits.max_snapshot_size()?;
    let id = repository.resolve(spec).await?;
    let snapshot = repository.snapshot(id, limit).await.context(|| repository.storage().location().to_owned())?;
    let table = NodeTable::build_below(&snapshot, numbering, root)?;
    if !root.is_empty() && table.len() == 1 && !table.is_stored(0) {
        return Err(no_root(repository, spec, root));
    }
    let fixed = snapshot.size() as u64 + table.size();
    let reader = Reader::new(Arc::clone(repository.storage()), limits.budget(fixed)?);
    let reader = reader.with_virtuals(repository.virtuals().await);
    Ok(Arc::new(Tree::new(snapshot, table, Arc::new(reader))))
}

/// Returns the error for a root of a mount that does not exist.
pub fn no_root(repository: &Repository, spec: &RefSpec, root: &str) -> Error {
    let location = repository.storage().location();
    Error::new(
        ErrorKind::NotFound,
        format!("{spec} of {location} has no group `{root}`: `icechunkfs ls --recursive` lists what there is"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_command_ends_beside_a_thread_that_blocks() {
        let (release, blocked) = mpsc::channel::<()>();
        let begin = std::time::Instant::now();
        let given_up = run(async {
            tokio::task::spawn_blocking(move || blocked.recv());
            Err::<(), _>(Error::invalid("gave up"))
        });
        assert!(given_up.is_err());
        // The thread blocks until here.
        release.send(()).unwrap();
        assert!(begin.elapsed() < ENDING * 10);
        // Short work is waited for.
        let written = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let writing = Arc::clone(&written);
        run(async {
            tokio::task::spawn_blocking(move || {
                std::thread::sleep(Duration::from_millis(20));
                writing.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            Ok(())
        })
        .unwrap();
        assert!(written.load(std::sync::atomic::Ordering::Relaxed));
    }
}
