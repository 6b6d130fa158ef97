//! The commit engine: turns a change set into a published snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::Either;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tracing::debug;

use super::attempts::CommitWork;
use super::changes::{ChangeSet, ChunkFile};
use super::hierarchy::effective;
use super::manifests::ManifestWriter;
use super::progress::CommitProgress;
use super::rebase::{self, Comparison};
use super::replace_record::RESERVED_ITEMS;
pub use super::request::{CommitHost, CommitOutcome, EngineOptions, OnConflict, Request, Rewrite, Sizes};
use super::settlements::Settlements;
use super::splitting::{self, Splitting};
use super::times::RenewedTimes;
use super::upload::{self, StoredChunks};
use crate::reader::Reader;
use crate::repo::Repository;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::MemoryLimit;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::config::RepoConfig;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_info::RepoInfo;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_store::storage::Storage;

/// Metadata item that is reserved for notes of Icechunk implementations.
pub const RESERVED: &str = "__icechunk";

/// Makes commits in one repository.
#[derive(Debug)]
pub struct Engine {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) reader: Arc<Reader>,
    pub(super) clock: Clock,
    pub(super) options: EngineOptions,
    pub(super) memory: MemoryLimit,
    /// Inline threshold in bytes, determined when first needed.
    pub(super) inline: OnceCell<u64>,
    /// Version of the repository when it was last opened.
    pub(super) last_version: Mutex<Option<SpecVersion>>,
    /// The last published commit.
    pub(super) written: Mutex<Option<WrittenCommit>>,
}

/// Published commit, as it was written.
#[derive(Debug)]
pub(super) struct WrittenCommit {
    pub(super) id: ObjectId,
    pub(super) branch: String,
    /// The file `repo`; none in version 1.
    pub(super) repo: Option<Bytes>,
    pub(super) snapshot: Snapshot,
}

impl Engine {
    /// Returns an engine for the repository in `storage`, which `reader` reads too.
    pub fn new(storage: Arc<dyn Storage>, reader: Arc<Reader>, clock: Clock, options: EngineOptions) -> Self {
        let memory = MemoryLimit::new(options.memory);
        Engine {
            storage,
            reader,
            clock,
            options,
            memory,
            inline: OnceCell::new(),
            last_version: Mutex::default(),
            written: Mutex::default(),
        }
    }

    /// Returns true if a chunk of `length` bytes is never stored as a separate object.
    pub fn is_packed(&self, length: u64) -> bool {
        length < self.options.pack_below
    }

    /// Returns the size from which a chunk is stored as a separate object, in bytes.
    pub async fn separate_object_threshold(&self) -> Result<u64> {
        let inline = self.inline.get_or_try_init(|| async {
            let repository = Repository::open(Arc::clone(&self.storage)).await?;
            Ok::<_, Error>(self.options.sizes(&repository.config().await?).inline)
        });
        Ok(self.options.pack_below.max(inline.await? + 1))
    }

    /// Stores `file` as a separate object before the commit that will refer to it (eager upload).
    pub async fn upload_eagerly(&self, file: ChunkFile) -> Result<ChunkPayload> {
        let _permit = self.memory.take(file.length).await;
        let renewed = RenewedTimes::default();
        let stored = upload::single(&self.storage, file, &renewed).await?;
        renewed.keep();
        Ok(stored)
    }

    /// Commits `changes`, made for snapshot `base`, to a branch.
    ///
    /// The caller has validated the changes; a change that would make a broken snapshot is an error
    /// all the same. After a failure nothing is visible, and the same changes can be committed
    /// again.
    ///
    /// Errors: [`ErrorKind::Stale`] if the branch was deleted or reset, [`ErrorKind::ReadOnly`] if
    /// the repository is set read-only, [`ErrorKind::Io`] if this machine's clock is wrong.
    pub async fn commit(
        &self,
        base: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: &Request,
        progress: &CommitProgress,
    ) -> Result<CommitOutcome> {
        let renewed = RenewedTimes::default();
        let outcome = self.run(base, changes, request, &renewed, progress).await;
        if let Some(host) = &request.host {
            renewed.take_unflushed().iter().for_each(|name| host.on_flush_failure(name));
        }
        if matches!(outcome, Ok(CommitOutcome::Committed { .. })) {
            renewed.keep();
        }
        outcome.map_err(|error| if progress.is_refused() { error } else { self.explained(error) })
    }

    /// Returns `error` in words that say what to do, where those of the system would not.
    fn explained(&self, error: Error) -> Error {
        match self.storage.local_path() {
            Some(_) if error.kind() == ErrorKind::NoSpace => {
                debug!("{error}");
                let place = self.storage.location();
                let message = format!("the disk of {place} is full: nothing was committed, and the changes are kept");
                Error::new(ErrorKind::NoSpace, message)
            }
            _ => error,
        }
    }

    /// Compares `changes`, made for `base`, with the newer commits of `branch`. Returns `None` if
    /// there are none.
    pub async fn check(
        &self,
        base: &Snapshot,
        branch: &str,
        changes: &ChangeSet,
        settlements: &Settlements,
    ) -> Result<Option<Comparison>> {
        let repository = Repository::open(Arc::clone(&self.storage)).await?;
        let changes = effective(base, changes);
        let (commits, mut ahead) = rebase::commits_to_compare(&repository, branch, base.id()).await?;
        rebase::compare(&repository, &self.reader, base, &commits, &mut ahead, &changes, settlements).await
    }

    /// Opens the repository for a commit to `branch`, in one round trip if its version is as it was
    /// last time.
    pub(super) async fn open(&self, branch: &str) -> Result<Repository> {
        let storage = Arc::clone(&self.storage);
        let repository = match *self.last_version.lock() {
            Some(SpecVersion::V1) => Either::Left(Repository::open_at_branch(storage, branch)),
            _ => Either::Right(Repository::open(storage)),
        };
        let repository = repository.await?;
        if !repository.is_alpha() {
            *self.last_version.lock() = Some(repository.version());
        }
        Ok(repository)
    }

    async fn run(
        &self,
        base: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: &Request,
        renewed: &RenewedTimes,
        progress: &CommitProgress,
    ) -> Result<CommitOutcome> {
        if request.is_nothing_for(changes) {
            return Ok(CommitOutcome::Nothing);
        }
        // Those who wait already go first. Looking for them takes no time of its own here.
        let (repository, must_line_up) = tokio::join!(self.open(&request.branch), self.is_line_used(true));
        let repository = repository?;
        let Some((mut work, config)) = self.begin(&repository, base, changes, request, progress).await? else {
            return Ok(CommitOutcome::Nothing);
        };
        let mut line = None;
        let outcome = self.attempts(&mut work, repository, &config, renewed, must_line_up, &mut line).await;
        if let Some(line) = line {
            line.leave(&*self.storage).await;
        }
        outcome
    }

    /// Begins to commit `changes` in `repository`: checks what can be known beforehand. None if
    /// there is nothing to commit.
    pub(super) async fn begin<'a>(
        &self,
        repository: &Repository,
        base: &Arc<Snapshot>,
        changes: &ChangeSet,
        request: &'a Request,
        progress: &'a CommitProgress,
    ) -> Result<Option<(CommitWork<'a>, RepoConfig)>> {
        repository.check_writable()?;
        let version = repository.version();
        if request.amend && version == SpecVersion::V1 {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a repository of version 1 cannot amend commits: commit without --amend, or migrate it to version 2",
            ));
        }
        // A record of a merge that never was would let a later one leave out the commits that it
        // names.
        if let Some(name) = RESERVED_ITEMS.into_iter().find(|name| request.metadata.contains_key(*name)) {
            return Err(Error::invalid(format!("metadata `{name}` is reserved: choose another name")));
        }
        let changes = effective(base, changes);
        if request.is_nothing_for(&changes) {
            return Ok(None);
        }
        let config = repository.config().await?;
        let rules = request.rewrite.as_ref().and_then(|rewrite| rewrite.splitting.as_ref());
        let rules = rules.or(splitting::rules(&config));
        let splitting = rules.map(Splitting::of).transpose()?.unwrap_or_default();
        let storage = Arc::clone(&self.storage);
        let reader = Arc::clone(&self.reader);
        let work = CommitWork {
            request,
            progress,
            version,
            compression: config.compression(),
            base: Arc::clone(base),
            new_ids: BTreeMap::new(),
            changes,
            chunks: StoredChunks::new(),
            manifests: ManifestWriter::new(storage, reader, version, config.compression(), splitting),
            rewrite: request.rewrite.as_ref().map(|_| rules.cloned().unwrap_or_else(splitting::no_splitting)),
            rebased_over: Vec::new(),
            stored_since: request.known_objects.as_ref().and_then(|known| known.mark).or(repository.log_position()),
            known_objects: request.known_objects.as_ref().map(|known| known.chunks.clone()).unwrap_or_default(),
            must_store: true,
            has_landed: false,
            stored: None,
        };
        Ok(Some((work, config)))
    }

    /// Returns repository and snapshot of commit `id`, if it is the last one that this engine
    /// published, without reading them back.
    pub async fn take_written(&self, id: ObjectId) -> Option<(Repository, Snapshot)> {
        let WrittenCommit { branch, repo, snapshot, .. } = self.written.lock().take().filter(|last| last.id == id)?;
        let decode = move || repo.map(|repo| RepoInfo::decode(&repo)).transpose();
        let repo = blocking(decode).await.ok()?;
        let storage = Arc::clone(&self.storage);
        let repository = match repo {
            Some(repo) => Repository::of_written(storage, repo),
            None => Repository::of_written_branch(storage, &branch, id),
        };
        Some((repository, snapshot))
    }
}
