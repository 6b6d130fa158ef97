//! Repositories of any generation: their refs, the snapshot that a ref points to, and history.
//!
//! Version 2 keeps all of this in the one object `repo`. Version 1 ([`v1`]) has a small file per
//! ref and a parent id in each snapshot file. Releases before 0.2 ([`alpha`]) had numbered ref
//! files and other file formats. The floors above see no difference. Opening a repository and
//! resolving a ref costs one request in version 2, and one failed request more in version 1; alphas
//! are recognized by a listing of the refs folder.

mod allowed;
mod alpha;
pub mod change_refs;
pub mod clock;
pub mod clone_refs;
pub mod collect;
pub mod config;
pub mod create;
pub mod expire;
pub mod flags;
pub mod history;
pub mod identity;
pub mod import_ref;
pub mod migrate;
pub mod needs;
pub mod operations;
pub mod progress;
pub mod properties;
mod prune;
mod ref_files;
pub mod refs;
pub mod revision;
#[cfg(test)]
mod testing;
pub mod undo;
pub mod update;
pub mod v1;
pub mod verify;
pub mod watch;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{Either, ready, select};
use tracing::info;

use self::allowed::AllowedVirtuals;
use self::collect::mark::{LogPosition, may_have_run_since};
use self::ref_files::Layout;
use self::refs::DEFAULT_BRANCH;
use self::update::RepoFile;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::draft::SnapshotDraft;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::repo_state::RepoState;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_store::recognize;
use icechunkfs_store::storage::{Contact, Storage, Version, decoded};

/// Maximum size of the stored `repo` object, in bytes. The object is compressed, and its own limit
/// of a million tables is far below.
const MAX_REPO_FILE: u64 = 1 << 30;
/// Maximum size of a snapshot, stored and decoded, in bytes: the format's own limit.
pub const MAX_SNAPSHOT: u64 = MAX_FILE;

/// An open repository, in its state at the moment of opening.
#[derive(Debug)]
pub struct Repository {
    storage: Arc<dyn Storage>,
    generation: Generation,
    /// Files that were read on opening, beside `generation`.
    read: Read,
    allowed: Arc<AllowedVirtuals>,
}

/// Files that the opening of a repository read. A commit begins with them instead of reading them
/// again.
#[derive(Debug, Default)]
enum Read {
    #[default]
    Nothing,
    /// The stored form of [`Generation::V2`].
    Repo(Bytes, Version),
    /// The configuration of a repository of version 1, which may still be on its way.
    Config(v1::ConfigRead),
    /// A branch of version 1, and the configuration if it was read.
    Branch(v1::BranchFile, Option<Box<RepoConfig>>),
}

/// Order of the requests that find out the generation.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// `repo` first, and alone if there is one.
    InTurn,
    /// `repo` and a branch of version 1 at the same time.
    AtOnce,
}

#[derive(Debug)]
enum Generation {
    Alpha(Layout),
    /// Holds the target of `main`, which is read on opening, because a version 1 repository is
    /// recognized by it.
    V1(Option<ObjectId>),
    V2(Arc<RepoInfo>),
}

impl Generation {
    /// Returns the layout of the files of refs; none from version 2 on, where `repo` has them.
    fn layout(&self) -> Option<Layout> {
        match self {
            Generation::Alpha(layout) => Some(*layout),
            Generation::V1(_) => Some(Layout::V1),
            Generation::V2(_) => None,
        }
    }
}

impl Repository {
    /// Opens the repository of any generation at `storage`.
    ///
    /// Fails with [`ErrorKind::NotARepository`] if there is none, and with
    /// [`ErrorKind::Unsupported`] for a generation that this program does not read.
    pub async fn open(storage: Arc<dyn Storage>) -> Result<Self> {
        open_in(storage, Order::InTurn).await
    }

    /// Opens a repository for the first time, otherwise like [`Repository::open`]: one of version 1
    /// takes a round trip less, and one of version 2 a request more. That is saved if a disk cache
    /// has seen `repo`.
    pub async fn open_unknown(storage: Arc<dyn Storage>) -> Result<Self> {
        let seen = match storage.capabilities().disk_cache.clone() {
            Some(cache) => cache.run_blocking(|cache| cache.document("repo", MAX_REPO_FILE)?.bytes).await.is_some(),
            None => false,
        };
        open_in(storage, if seen { Order::InTurn } else { Order::AtOnce }).await
    }

    fn new(storage: Arc<dyn Storage>, generation: Generation) -> Self {
        Repository { storage, generation, read: Read::Nothing, allowed: Arc::default() }
    }

    /// Returns the repository whose `repo` was just read from `storage`, or written to it.
    pub(crate) fn of_file(storage: Arc<dyn Storage>, file: RepoFile) -> Self {
        let RepoFile { info, bytes, version, .. } = file;
        // One that cannot be read is reported where it is needed.
        if let Ok(config) = info.config() {
            storage.capabilities().apply(&config);
        }
        Repository { read: Read::Repo(bytes, version), ..Repository::new(storage, Generation::V2(info)) }
    }

    /// Opens a repository that was of version 1 when it was last seen, with its configuration and
    /// the tip of `branch`, in one round trip. Opens it as any other if it has changed, or if the
    /// branch does not exist.
    pub(crate) async fn open_at_branch(storage: Arc<dyn Storage>, branch: &str) -> Result<Self> {
        let repo = storage.get("repo", MAX_REPO_FILE);
        let (repo, branch, config) = tokio::join!(repo, v1::read_branch(&*storage, branch), v1::config(&*storage));
        match (repo, branch, config) {
            (Err(error), Ok(branch), Ok(config)) if error.kind() == ErrorKind::NotFound => {
                let config = Some(Box::new(config.unwrap_or_default()));
                Ok(Repository { read: Read::Branch(branch, config), ..Repository::new(storage, Generation::V1(None)) })
            }
            // Whatever is wrong with it is said there.
            _ => Self::open(storage).await,
        }
    }

    /// Returns the repository of version 1 whose branch `name` was just pointed to `tip`.
    pub(crate) fn of_written_branch(storage: Arc<dyn Storage>, name: &str, tip: ObjectId) -> Self {
        Self::of_branch(storage, v1::BranchFile { name: name.to_owned(), tip, version: None })
    }

    /// Returns the repository of version 1 with a branch that was just read.
    fn of_branch(storage: Arc<dyn Storage>, branch: v1::BranchFile) -> Self {
        Repository { read: Read::Branch(branch, None), ..Repository::new(storage, Generation::V1(None)) }
    }

    /// Returns the branch of a repository of version 1 that was read on opening.
    pub(crate) fn branch_file(&self) -> Option<&v1::BranchFile> {
        match &self.read {
            Read::Branch(branch, _) => Some(branch),
            _ => None,
        }
    }

    /// Returns the repository in the state that this program has just written to `storage` as
    /// `repo`.
    pub(crate) fn of_written(storage: Arc<dyn Storage>, repo: RepoInfo) -> Self {
        Repository::new(storage, Generation::V2(Arc::new(repo)))
    }

    /// Returns `repo` as it was read when the repository was opened; none before version 2.
    pub fn repo_file(&self) -> Option<RepoFile> {
        match (&self.generation, &self.read) {
            (Generation::V2(info), Read::Repo(bytes, version)) => {
                Some(RepoFile::new(Arc::clone(info), bytes.clone(), version.clone()))
            }
            _ => None,
        }
    }

    /// Returns the storage that holds the repository.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Returns the format version of the repository; its files may individually be older. An alpha
    /// counts as version 1.
    pub fn version(&self) -> SpecVersion {
        match self.generation {
            Generation::Alpha(_) | Generation::V1(_) => SpecVersion::V1,
            Generation::V2(_) => SpecVersion::V2,
        }
    }

    /// Returns true if a release before 0.2 wrote the repository. An alpha can be read and migrated
    /// elsewhere, but not written.
    pub fn is_alpha(&self) -> bool {
        matches!(self.generation, Generation::Alpha(_))
    }

    /// Returns the stored configuration, or the default one if none is stored.
    pub async fn config(&self) -> Result<RepoConfig> {
        let config = match &self.generation {
            Generation::Alpha(_) | Generation::V1(_) => match &self.read {
                Read::Branch(_, Some(config)) => config.as_ref().clone(),
                Read::Config(config) => config.get(&*self.storage).await?,
                _ => v1::config(&*self.storage).await?.unwrap_or_default(),
            },
            Generation::V2(info) => info.config()?,
        };
        self.storage.capabilities().apply(&config);
        Ok(config)
    }

    /// Fails with [`ErrorKind::ReadOnly`] if the repository is set read-only or is an alpha.
    pub fn check_writable(&self) -> Result<()> {
        match &self.generation {
            Generation::Alpha(_) => Err(alpha::read_only(self.storage.location())),
            Generation::V2(info) if info.status().is_read_only() => {
                Err(update::read_only(self.storage.location(), &info.status()))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the store supports the conditional requests that commits to `branch` rely on,
    /// and that this user may write there.
    ///
    /// Fails with [`ErrorKind::Unsupported`] if the store ignores conditions, with
    /// [`ErrorKind::PermissionDenied`] if it takes no writes.
    pub async fn check_store(&self, branch: &str) -> Result<()> {
        // The first commit's log is small and never changes. Where it is missing (expired history,
        // version 1), the tip's snapshot serves.
        let log = format!("transactions/{}", ObjectId::INITIAL);
        let mut checked = self.storage.check_conditions(&log, MAX_SNAPSHOT).await;
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let Some(tip) = self.branch_tip(branch).await? else { return Ok(()) };
            checked = self.storage.check_conditions(&format!("snapshots/{tip}"), MAX_SNAPSHOT).await;
        }
        checked.context(|| self.storage.location().to_owned())
    }

    /// Returns the reason that `branch` accepts no commits; none if it does.
    pub async fn read_only_reason(&self, branch: &str) -> Result<Option<String>> {
        if let Err(error) = self.check_writable() {
            return Ok(Some(error.to_string()));
        }
        if let Some(why) = self.storage.read_only() {
            return Ok(Some(why.to_owned()));
        }
        if let Some(local) = self.storage.local_files() {
            let why = "its directory may not be written to by this user";
            return Ok(local.is_read_only().then(|| why.to_owned()));
        }
        match self.check_store(branch).await {
            Ok(()) => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                Ok(Some(error.to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the content of `repo`; none before version 2.
    pub fn state(&self) -> Result<Option<RepoState>> {
        match &self.generation {
            Generation::V2(info) => RepoState::from_info(info).map(Some),
            Generation::Alpha(_) | Generation::V1(_) => Ok(None),
        }
    }

    /// Returns the point that the operations log has reached, to detect later collections of
    /// garbage; none before version 2.
    pub fn log_position(&self) -> Option<LogPosition> {
        match &self.generation {
            Generation::Alpha(_) | Generation::V1(_) => None,
            Generation::V2(info) => Some(LogPosition::of(info)),
        }
    }

    /// Returns true if garbage may have been collected at or after `time` (microseconds since
    /// 1970-01-01 UTC). Always false before version 2, which records no collections.
    pub fn may_have_been_collected_since(&self, time: u64) -> bool {
        match &self.generation {
            Generation::Alpha(_) | Generation::V1(_) => false,
            Generation::V2(info) => may_have_run_since(info, time),
        }
    }

    /// Returns the tip of branch `name`; none if there is no such branch.
    pub async fn branch_tip(&self, name: &str) -> Result<Option<ObjectId>> {
        if let Read::Branch(branch, _) = &self.read
            && branch.name == name
        {
            return Ok(Some(branch.tip));
        }
        match &self.generation {
            Generation::V1(Some(main)) if name == DEFAULT_BRANCH => Ok(Some(*main)),
            Generation::V1(_) => Layout::V1.branch(&*self.storage, name).await,
            Generation::Alpha(layout) => layout.branch(&*self.storage, name).await,
            Generation::V2(info) => info.branch(name).transpose(),
        }
    }

    /// Reads snapshot `id`, using at most `limit` bytes of memory ([`MAX_SNAPSHOT`] allows the
    /// format's maximum).
    pub async fn snapshot(&self, id: ObjectId, limit: u64) -> Result<Snapshot> {
        // Every repository has the same id for its first snapshot: where a repository is created
        // anew, that key gets another file. Other snapshots count as immutable.
        self.snapshot_in(id, limit, id == ObjectId::INITIAL).await
    }

    /// Reads snapshot `id` like [`Repository::snapshot`]; if `is_latest`, never from a cache.
    async fn snapshot_in(&self, id: ObjectId, limit: u64, is_latest: bool) -> Result<Snapshot> {
        let key = format!("snapshots/{id}");
        let missing = |error: Error| {
            error.not_found_as_damage(format!(
                "snapshot {id} is missing from the repository: `icechunkfs verify REPO` lists what is missing; to \
                 restore it, copy {key} from a clone or a backup"
            ))
        };
        if let Generation::Alpha(layout) = self.generation {
            let snapshot = match alpha::read(&*self.storage, id, limit).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let first = alpha::first_without_file(&*self.storage, layout, id).await?;
                    let first = first.ok_or_else(|| missing(error))?;
                    let draft = SnapshotDraft::new(first.id, first.flushed_at, first.message());
                    return Snapshot::from_draft(&SnapshotDraft { version: SpecVersion::V1, ..draft }).context(|| key);
                }
                snapshot => snapshot?,
            };
            let translated = tokio::task::spawn_blocking(move || Snapshot::translated(&snapshot.into_draft()?)).await;
            return translated.map_err(|e| Error::with_source(ErrorKind::Io, key.clone(), e))?.context(|| key);
        }
        let decode = move |file: &[u8]| Snapshot::decode(file, limit);
        let decoded = if is_latest {
            decoded::changing(&*self.storage, &key, limit, decode).await
        } else {
            decoded::fixed(&*self.storage, &key, limit, decode).await
        };
        let snapshot = decoded.map_err(missing)?.value;
        if snapshot.id() != id {
            return Err(Error::corrupt(format!("{key}: the file states that it is snapshot {}", snapshot.id())));
        }
        Ok(snapshot)
    }
}

/// Opens the repository at `storage`, which may be one whose keys begin with a slash.
async fn open_in(storage: Arc<dyn Storage>, order: Order) -> Result<Repository> {
    let with_slash = storage.capabilities().with_slash.clone();
    let none = match open_at(storage, order).await {
        Err(error) if error.kind() == ErrorKind::NotARepository => error,
        other => return other,
    };
    // Old releases wrote keys with a leading slash at the root of a bucket.
    let Some(storage) = with_slash else { return Err(none) };
    match open_at(storage, order).await {
        Ok(repository) => {
            info!("{}: the keys of its objects begin with a slash", repository.storage.location());
            Ok(repository)
        }
        Err(error) if error.kind() == ErrorKind::NotARepository => Err(none),
        Err(error) => Err(error),
    }
}

async fn open_at(storage: Arc<dyn Storage>, order: Order) -> Result<Repository> {
    let own = Arc::clone(&storage);
    let main = async move { Layout::V1.branch(&*own, DEFAULT_BRANCH).await }.boxed();
    let repo = decoded::changing(&*storage, "repo", MAX_REPO_FILE, RepoInfo::decode).boxed();
    let (repo, main) = match order {
        Order::InTurn => (repo.await, main),
        Order::AtOnce => match select(repo, main).await {
            Either::Left(answered) => answered,
            Either::Right((main, repo)) => (repo.await, ready(main).boxed()),
        },
    };
    match repo {
        Ok(found) => Ok(Repository::of_file(storage, RepoFile::of(found)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => open_older(storage, main).await,
        Err(error) => {
            let has_states = storage.local_path().is_some_and(|path| path.join("overwritten").is_dir());
            let error = error.context(storage.location());
            Err(match error.kind() {
                ErrorKind::Corrupt if has_states => Error::corrupt(format!("{error}; {EARLIER_STATES}")),
                _ => error,
            })
        }
    }
}

/// Opens a repository that has no object `repo`; `main` reads that branch of version 1.
async fn open_older(
    storage: Arc<dyn Storage>,
    main: impl Future<Output = Result<Option<ObjectId>>>,
) -> Result<Repository> {
    // Nearly all that opens a repository needs the configuration, too, but not first.
    let config = v1::ConfigRead::begin(&storage);
    if let Some(main) = main.await? {
        let read = Read::Config(config);
        return Ok(Repository { read, ..Repository::new(storage, Generation::V1(Some(main))) });
    }
    // Without a version 1 branch `main`, the listing of refs decides.
    let objects = match storage.list("refs/").await {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Err(no_repository(&*storage)),
        listed => listed.context(|| storage.location().to_owned())?,
    };
    if let Some((layout, storage)) = alpha::detect(&storage, &objects).await? {
        info!("{}: a repository of an Icechunk release before 0.2", storage.location());
        return Ok(Repository::new(storage, Generation::Alpha(layout)));
    }
    if objects.iter().any(|object| object.key.ends_with("/ref.json")) {
        return Ok(Repository::new(storage, Generation::V1(None)));
    }
    Err(no_repository(&*storage))
}

/// Fails with [`ErrorKind::ReadOnly`] if `storage` takes no writes.
fn check_storage_writable(storage: &dyn Storage) -> Result<()> {
    match storage.read_only() {
        Some(why) => Err(Error::new(ErrorKind::ReadOnly, format!("{}: {why}", storage.location()))),
        None if storage.capabilities().contact() == Contact::Offline => {
            Err(Error::new(ErrorKind::ReadOnly, format!("{}: nothing can be written offline", storage.location())))
        }
        None => Ok(()),
    }
}

/// Returns the error for a place that has no repository, as far as its server lists what it has:
/// many web servers do not.
fn no_repository(storage: &dyn Storage) -> Error {
    let place = storage.location();
    let has = |folder: &str| storage.local_path().is_some_and(|path| path.join(folder).is_dir());
    let message = if has("snapshots") && has("overwritten") {
        format!("{place} has the folders of a repository, but no `repo`: {EARLIER_STATES}")
    } else if let Some(below) = storage.local_path().and_then(|path| recognize::repository_in(&path)) {
        let below = below.display();
        format!("{place} holds no Icechunk repository, but {below} is a repository: name that")
    } else {
        format!("{place} holds no Icechunk repository: it has neither a file `repo` nor the refs of one")
    };
    Error::new(ErrorKind::NotARepository, message)
}

/// Remedy for a `repo` that is lost or damaged.
const EARLIER_STATES: &str = "`overwritten/repo.*` are its states before each change, the newest first by name: save a \
    damaged `repo`, and copy the newest state to `repo`. The last change is then missing: do not collect garbage \
    before `icechunkfs ops` and `icechunkfs verify` show what you expect";
