//! A repository of any released generation: which refs it has, which snapshot one of them means, and its history.
//!
//! Version 2 answers from the one object `repo`; version 1 ([`v1`]) has a small file per ref and a parent id in each snapshot
//! file. The floors above see no difference. Opening and resolving a ref costs one request for version 2, and a failed one
//! more for version 1.

pub mod change_refs;
pub mod create;
pub mod find;
pub mod history;
pub mod migrate;
pub mod operations;
pub mod refs;
pub mod update;
pub mod v1;
pub mod verify;
pub mod watch;

use std::sync::Arc;

use tracing::info;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::config::RepoConfig;
use crate::format::envelope::SpecVersion;
use crate::format::ids::ObjectId;
use crate::format::repo_info::{Availability, RepoInfo};
use crate::format::snapshot::Snapshot;
use crate::storage::{Storage, decoded};

/// Bytes that the stored `repo` object may have. It is compressed, and its own limit of a million tables is far below.
const MAX_REPO_FILE: u64 = 1 << 30;
/// Bytes that a stored snapshot may have, and expand to: the format's own limit.
pub const MAX_SNAPSHOT: u64 = 1 << 31;

/// An open repository, as it was at the moment of opening.
#[derive(Debug)]
pub struct Repository {
    storage: Arc<dyn Storage>,
    generation: Generation,
}

#[derive(Debug)]
enum Generation {
    V1(v1::Layout),
    V2(RepoInfo),
}

impl Repository {
    /// Opens the repository at `storage`, of whatever generation it is.
    ///
    /// Errors: [`ErrorKind::NotARepository`] if there is none, [`ErrorKind::Unsupported`] for a generation that this
    /// program does not read.
    pub async fn open(storage: Arc<dyn Storage>) -> Result<Self> {
        let with_slash = storage.with_slash();
        let none = match Self::open_here(storage).await {
            Err(error) if error.kind() == ErrorKind::NotARepository => error,
            other => return other,
        };
        // Old releases wrote so at the root of a bucket.
        let Some(storage) = with_slash else { return Err(none) };
        match Self::open_here(storage).await {
            Ok(repository) => {
                info!("{}: the keys of its objects begin with a slash", repository.storage.location());
                Ok(repository)
            }
            Err(error) if error.kind() == ErrorKind::NotARepository => Err(none),
            Err(error) => Err(error),
        }
    }

    async fn open_here(storage: Arc<dyn Storage>) -> Result<Self> {
        let found = decoded::changing(&*storage, "repo", MAX_REPO_FILE, RepoInfo::decode).await;
        let generation = match found {
            Ok(found) => Generation::V2(found.value),
            Err(error) if error.kind() == ErrorKind::NotFound => Generation::V1(v1::Layout::detect(&*storage).await?),
            Err(error) => return Err(error.context(storage.location())),
        };
        Ok(Repository { storage, generation })
    }

    /// Where the repository lies.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The version of the repository. Its files may be older one by one.
    pub fn version(&self) -> SpecVersion {
        match self.generation {
            Generation::V1(_) => SpecVersion::V1,
            Generation::V2(_) => SpecVersion::V2,
        }
    }

    /// The configuration that is stored in the repository; the default one if there is none.
    pub async fn config(&self) -> Result<RepoConfig> {
        match &self.generation {
            Generation::V1(_) => Ok(v1::config(&*self.storage).await?.unwrap_or_default()),
            Generation::V2(info) => info.config(),
        }
    }

    /// An error of kind [`ErrorKind::ReadOnly`] if the repository is set read-only.
    pub fn check_writable(&self) -> Result<()> {
        match &self.generation {
            Generation::V2(info) if info.availability() == Availability::ReadOnly => {
                Err(update::read_only(self.storage.location(), info.availability_reason()))
            }
            _ => Ok(()),
        }
    }

    /// Finds out whether the store keeps what commits to `branch` rely on, and whether this user may write there.
    ///
    /// Errors: [`ErrorKind::Unsupported`] if it cannot compare before it writes, [`ErrorKind::PermissionDenied`] if it takes
    /// no writes.
    pub async fn check_store(&self, branch: &str) -> Result<()> {
        // Something small that never changes: the first commit's log, where history was not expired.
        let log = format!("transactions/{}", ObjectId::INITIAL);
        let mut checked = self.storage.check_conditions(&log, MAX_SNAPSHOT).await;
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            let Some(tip) = self.branch_tip(branch).await? else { return Ok(()) };
            checked = self.storage.check_conditions(&format!("snapshots/{tip}"), MAX_SNAPSHOT).await;
        }
        checked.context(|| self.storage.location().to_owned())
    }

    /// The commit that branch `name` points to; none if there is no such branch.
    pub async fn branch_tip(&self, name: &str) -> Result<Option<ObjectId>> {
        match &self.generation {
            Generation::V1(layout) => layout.branch(&*self.storage, name).await,
            Generation::V2(info) => info.branch(name).transpose(),
        }
    }

    /// Reads snapshot `id`, which may take `limit` bytes of memory ([`MAX_SNAPSHOT`] for as many as the format allows).
    pub async fn snapshot(&self, id: ObjectId, limit: u64) -> Result<Snapshot> {
        let key = format!("snapshots/{id}");
        let missing = |error: Error| error.absence_is_damage(format!("snapshot {id} is missing from the repository"));
        let decode = move |file: &[u8]| Snapshot::decode(file, limit);
        // Every repository has the first one under the same id: as others it never changes, but where a repository was made
        // anew it is another one.
        let decoded = match id {
            ObjectId::INITIAL => decoded::changing(&*self.storage, &key, limit, decode).await,
            _ => decoded::fixed(&*self.storage, &key, limit, decode).await,
        };
        let snapshot = decoded.map_err(missing)?.value;
        if snapshot.id() != id {
            return Err(Error::corrupt(format!("{key}: the file says that it is snapshot {}", snapshot.id())));
        }
        Ok(snapshot)
    }
}
