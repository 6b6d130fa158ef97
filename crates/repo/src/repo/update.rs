//! Updates of `repo`, the one mutable object of a version 2 repository (format notes 1.7).
//!
//! An update reads `repo`, changes the value, copies the old file to `overwritten/`, and replaces
//! `repo` if it is still the one that was read. After a lost race the update starts again from the
//! winner's state, under a new name for the copy; the unused copy stays, as those of the reference
//! implementation do.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::repo_state::{DEFAULT_UPDATES_PER_FILE, Operation, RepoState, Status};
use icechunkfs_store::storage::decoded::{self, Decoded};
use icechunkfs_store::storage::{Condition, Storage, Version};

use super::MAX_REPO_FILE;
use super::clock::ChangeTime;

/// Attempts, each but the first after a lost race: the reference implementation's number.
pub const TRIES: u32 = 100;
/// Attempts without a pause between them.
const AT_ONCE: u32 = 5;
/// First pause; doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// 3000-01-01T00:00:00Z in milliseconds: copies are named by the time left until then, so that the
/// newest is listed first.
const YEAR_3000: u64 = 32_503_680_000_000;

/// Applies `change` to `repo` in `storage` and returns the written state. `change` returns the
/// operation to record, or fails and changes nothing; it is called again after each lost race.
///
/// Fails with [`ErrorKind::ReadOnly`] for a repository whose status is read-only, with
/// [`ErrorKind::Contended`] if every attempt lost its race, and with [`ErrorKind::Io`] if this
/// machine's clock is wrong.
pub async fn update(
    storage: &dyn Storage,
    clock: Clock,
    change: impl FnMut(&mut RepoState) -> Result<Operation>,
) -> Result<RepoState> {
    let written = Update::new(storage, clock, UpdateOptions::default()).run(change, || Ok(())).await?;
    Ok(written.state)
}

/// Updates like [`update()`], unless `change` returns none: then nothing is written, and none is
/// returned.
pub(super) async fn update_if(
    storage: &dyn Storage,
    clock: Clock,
    options: UpdateOptions,
    mut change: impl FnMut(&mut RepoState) -> Result<Option<Operation>>,
) -> Result<Option<RepoState>> {
    let change = |state: &mut RepoState| Ok(change(state)?.into_iter().collect());
    update_all_if(storage, clock, options, change).await
}

/// Updates like [`update_if()`], by a change that is several operations, oldest first: all are
/// written at once, or none.
pub(super) async fn update_all_if(
    storage: &dyn Storage,
    clock: Clock,
    options: UpdateOptions,
    mut change: impl FnMut(&mut RepoState) -> Result<Vec<Operation>>,
) -> Result<Option<RepoState>> {
    let mut is_same = false;
    let change = |state: &mut RepoState| {
        let operations = change(state)?;
        is_same = operations.is_empty();
        if is_same { Err(Error::invalid("nothing to change")) } else { Ok(operations) }
    };
    match Update::new(storage, clock, options).run_all(change, || Ok(())).await {
        Err(_) if is_same => Ok(None),
        updated => Ok(Some(updated?.state)),
    }
}

/// Options of an update.
#[derive(Clone, Copy, Debug)]
pub struct UpdateOptions {
    /// True if the caller has compared the clock with the store's ([`ChangeTime::check`]).
    pub clock_is_checked: bool,
    /// True if the operations log names the copy of the old file. Nothing can come to depend on a
    /// copy that is not named.
    pub names_copy: bool,
    /// Attempts, each but the first after a lost race.
    pub tries: u32,
    /// True for a change of the status, which alone is possible while the repository is read-only.
    pub is_of_status: bool,
}

impl Default for UpdateOptions {
    fn default() -> Self {
        UpdateOptions { clock_is_checked: false, names_copy: true, tries: TRIES, is_of_status: false }
    }
}

/// State of `repo` that was read, and the name of its copy below `overwritten/` once it is stored.
#[derive(Debug)]
pub struct RepoFile {
    pub(super) info: Arc<RepoInfo>,
    pub(super) bytes: Bytes,
    /// The version that a replacement compares.
    pub(super) version: Version,
    copy: Option<String>,
}

impl RepoFile {
    /// Reads `repo`.
    pub async fn read(storage: &dyn Storage) -> Result<Self> {
        let found = decoded::changing(storage, "repo", MAX_REPO_FILE, RepoInfo::decode).await;
        RepoFile::of(found.context(|| storage.location().to_owned())?)
    }

    /// Returns the state that was read as `found`.
    pub(super) fn of(found: Decoded<RepoInfo>) -> Result<Self> {
        let Decoded { value: info, bytes, version } = found;
        let version = version.ok_or_else(|| Error::new(ErrorKind::Io, "repo: read without its version"))?;
        Ok(RepoFile::new(Arc::new(info), bytes, version))
    }

    pub(super) fn new(info: Arc<RepoInfo>, bytes: Bytes, version: Version) -> Self {
        RepoFile { info, bytes, version, copy: None }
    }

    /// Returns true if the repository lists snapshot `id`.
    pub fn has(&self, id: ObjectId) -> bool {
        self.info.position(id).is_some()
    }

    /// Copies the file to `overwritten/`, as each update does before it replaces the file. An
    /// update that begins with this state then has one round trip less; if it never comes, the copy
    /// stays unused, as it does after a lost race.
    pub async fn copy(&mut self, storage: &dyn Storage, clock: Clock) -> Result<()> {
        let name = backup_name("repo", clock())?;
        storage.put(&format!("overwritten/{name}"), self.bytes.clone(), Condition::Always).await?;
        self.copy = Some(name);
        Ok(())
    }
}

/// Outcome of an update.
#[derive(Debug)]
pub struct Updated {
    /// State of the repository as it was written.
    pub state: RepoState,
    /// The written bytes.
    pub bytes: Bytes,
}

/// Update of `repo`.
#[derive(Debug)]
pub struct Update<'a> {
    storage: &'a dyn Storage,
    clock: Clock,
    options: UpdateOptions,
    known: Option<RepoFile>,
}

impl<'a> Update<'a> {
    /// Prepares an update.
    pub fn new(storage: &'a dyn Storage, clock: Clock, options: UpdateOptions) -> Self {
        Update { storage, clock, options, known: None }
    }

    /// Lets the first attempt begin with a state that was read before, instead of reading it. The
    /// replacement compares its version.
    #[must_use]
    pub fn beginning_with(self, known: Option<RepoFile>) -> Self {
        Update { known, ..self }
    }

    /// Returns the last state that an attempt read and did not replace.
    pub fn into_last_read(self) -> Option<RepoFile> {
        self.known
    }

    /// Updates like [`update()`]. Calls `backed_up` between the copy of the old file and the
    /// attempt to replace it.
    pub async fn run(
        &mut self,
        mut change: impl FnMut(&mut RepoState) -> Result<Operation>,
        backed_up: impl Fn() -> Result<()>,
    ) -> Result<Updated> {
        self.run_all(|state| Ok(vec![change(state)?]), backed_up).await
    }

    /// Updates like [`Update::run`], by a change that is several operations, oldest first.
    async fn run_all(
        &mut self,
        mut change: impl FnMut(&mut RepoState) -> Result<Vec<Operation>>,
        backed_up: impl Fn() -> Result<()>,
    ) -> Result<Updated> {
        let Update { storage, clock, options, known } = self;
        let mut pause = FIRST_PAUSE;
        for attempt in 0..options.tries {
            if attempt >= AT_ONCE {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_PAUSE);
            }
            let read = match known.take() {
                Some(read) => read,
                None => RepoFile::read(*storage).await?,
            };
            let RepoFile { info, bytes, version, copy } = known.insert(read);
            let mut state = RepoState::from_info(info)?;
            if state.status.is_read_only() && !options.is_of_status {
                return Err(read_only(storage.location(), &state.status));
            }
            let operations = change(&mut state)?;
            let count = operations.len();
            let moment = ChangeTime::after(*clock, state.updates.first().map_or(0, |newest| newest.updated_at)).await;
            let (backup, is_copied) = match copy.take() {
                Some(backup) => (backup, true),
                None => (backup_name("repo", moment.time)?, false),
            };
            state.record(operations, moment.time, &backup, updates_per_file(state.config.as_deref()))?;
            if let Some(previous) = state.updates.get_mut(count).filter(|_| !options.names_copy) {
                previous.backup_path = None;
            }
            let new = Bytes::from(state.encode()?);
            let copy = format!("overwritten/{backup}");
            if !is_copied {
                storage.put(&copy, bytes.clone(), Condition::Always).await?;
            }
            if !options.clock_is_checked || moment.is_ahead_of_clock() {
                moment.check(*storage, &copy).await?;
            }
            backed_up()?;
            let condition = Condition::Unchanged(version.clone());
            *known = None;
            match storage.put("repo", new.clone(), condition).await {
                Ok(()) => return Ok(Updated { state, bytes: new }),
                Err(error) if error.kind() == ErrorKind::Contended => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "{}: concurrent changes of the repository came first {} times",
                self.storage.location(),
                self.options.tries
            ),
        ))
    }
}

/// Reads `repo` from the store itself.
pub(super) async fn read_state(storage: &dyn Storage) -> Result<RepoState> {
    RepoState::from_info(&RepoFile::read(storage).await?.info)
}

/// Returns the error for a repository that takes no writes.
pub(super) fn read_only(location: &str, status: &Status) -> Error {
    let reason = status.reason.as_deref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let name = status.name().replace('_', "-");
    let next = "`icechunkfs config REPO status online` allows changes again";
    Error::new(ErrorKind::ReadOnly, format!("{location} is set {name}{reason}; {next}"))
}

/// Returns the name, below `overwritten/`, of a copy of `file` made at `now` (microseconds since
/// 1970-01-01 UTC).
pub(super) fn backup_name(file: &str, now: u64) -> Result<String> {
    Ok(format!("{file}.{:014}.{}", YEAR_3000.saturating_sub(now / 1000), ObjectId::random()?))
}

/// Returns the number of operations that `repo` holds before its log is cut.
pub(super) fn updates_per_file(config: Option<&[u8]>) -> usize {
    let config = config.and_then(|bytes| RepoConfig::from_flexbuffer(bytes).ok());
    let stored = config.and_then(|config| config.members().get("num_updates_per_repo_info_file")?.as_u64());
    stored.and_then(|n| usize::try_from(n).ok()).unwrap_or(DEFAULT_UPDATES_PER_FILE)
}
