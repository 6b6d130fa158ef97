//! The library: what other programs may rely on. Everything else of this crate can change in any
//! release.
//!
//! [`open`] and [`mounts`] are shared with the command line.

mod mount;
pub mod mounts;
pub mod open;
mod session;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use tokio::runtime::{Handle, Runtime};

pub use self::mount::{Mount, Mounted};
pub use self::session::{Entry, Session};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::times::timestamp;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::repo::{self, refs::Refs};
use icechunkfs_store::storage::settings::Settings;

/// An open repository.
///
/// Functions block the calling thread; the requests run on threads that belong to the repository.
/// Call them from a thread that may block: within an asynchronous task they panic, as every nested
/// runtime does.
#[derive(Clone, Debug)]
pub struct Repository(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    repository: repo::Repository,
    handle: Handle,
    /// Set until the drop.
    runtime: Option<Runtime>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The other way to end a runtime waits, which an asynchronous task may not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A commit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Id.
    pub id: ObjectId,
    /// Commit that this one follows; none for the first one of a repository.
    pub parent: Option<ObjectId>,
    /// Time of the commit.
    pub time: Timestamp,
    /// Commit message.
    pub message: String,
    /// Metadata of the commit.
    pub metadata: Map<String, Value>,
}

impl Snapshot {
    fn new(info: SnapshotInfo, metadata: Map<String, Value>) -> Result<Self> {
        let message = info.message().to_owned();
        let SnapshotInfo { id, parent, flushed_at, .. } = info;
        let time = timestamp(flushed_at);
        let time = time.ok_or_else(|| Error::corrupt(format!("commit {id} has the impossible time {flushed_at}")))?;
        Ok(Snapshot { id, parent, time, message, metadata })
    }
}

impl Repository {
    /// Opens the repository at `location`: a path or a URL (`s3://`, `gs://`, `az://`, `https://`
    /// and others).
    ///
    /// Refs and history are those of this moment: open the repository again to see later commits.
    /// Virtual chunks, whose bytes are outside the repository, cannot be read through it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotARepository`](crate::ErrorKind::NotARepository) if there is none;
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) and others if the store does not answer.
    pub fn open(location: &str, settings: &Settings) -> Result<Self> {
        let runtime = open::runtime()?;
        let repository = runtime.block_on(open::repository(location, settings))?;
        Ok(Repository(Arc::new(Inner { repository, handle: runtime.handle().clone(), runtime: Some(runtime) })))
    }

    /// Returns all branches and tags.
    pub fn refs(&self) -> Result<Refs> {
        self.0.handle.block_on(self.0.repository.refs())
    }

    /// Returns the snapshot that `revision` names and its ancestors, newest first.
    ///
    /// A revision is the name of a branch or tag, the id of a snapshot, one of these as
    /// `branch/NAME`, `tag/NAME` or `snapshot/ID`, or `REVISION~N` for the commit N before it.
    pub fn log(&self, revision: &str) -> Result<Vec<Snapshot>> {
        self.history(revision, usize::MAX)
    }

    /// Returns the snapshot that `revision` names, as for [`Repository::log`].
    pub fn snapshot(&self, revision: &str) -> Result<Snapshot> {
        let newest = self.history(revision, 1)?.pop();
        newest.ok_or_else(|| Error::corrupt(format!("`{revision}` has no history")))
    }

    /// Opens the files of the snapshot that `revision` names, as for [`Repository::log`], for
    /// reading.
    pub fn session(&self, revision: &str) -> Result<Session> {
        Session::open(Arc::clone(&self.0), revision)
    }

    fn history(&self, revision: &str, limit: usize) -> Result<Vec<Snapshot>> {
        let mut snapshots = Vec::new();
        let mut meter = Meter::new("the history, with its messages and metadata,");
        let repository = &self.0.repository;
        self.0.handle.block_on(async {
            let tip = repository.resolve_revision(revision).await?.id;
            let visit = |info: SnapshotInfo| {
                let metadata = info.metadata()?;
                meter.count_items::<Snapshot>(1)?;
                meter.count(info.message().len() as u64 + metadata.reserved())?;
                snapshots.push(Snapshot::new(info, metadata.into_inner())?);
                Ok(snapshots.len() < limit)
            };
            repository.try_walk(tip, visit).await
        })?;
        Ok(snapshots)
    }
}
