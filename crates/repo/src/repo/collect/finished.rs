//! Records of collections that have removed all their garbage.
//!
//! The operations log tells when a collection began to remove, and nothing in it tells when that
//! ended. A collection therefore stores a small object when it has removed everything: what still
//! exists then, it will not remove. Nothing depends on these objects. A collection without one, as
//! of another program or one that was killed, counts as unfinished for [`MAX_COLLECTION_TIME`].

use std::sync::Arc;

use bytes::Bytes;
use tracing::warn;

use super::mark::{MAX_COLLECTION_TIME, begun_since};
use crate::repo::{Generation, Repository};
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_store::storage::{Condition, Storage};

const FOLDER: &str = "collected/";

fn key(begun: u64) -> String {
    format!("{FOLDER}{begun:020}")
}

/// Records that the collection that the log has at time `begun` will remove nothing more, and
/// removes old records.
pub(super) async fn record(storage: &Arc<dyn Storage>, begun: u64) {
    if let Err(error) = try_record(storage, begun).await {
        warn!("{error}: for a day, this collection counts as one that may still remove objects");
    }
}

async fn try_record(storage: &Arc<dyn Storage>, begun: u64) -> Result<()> {
    storage.put(&key(begun), Bytes::from_static(b"finished\n"), Condition::Always).await?;
    let is_old = |key: &String| {
        let time = key.strip_prefix(FOLDER).and_then(|name| name.parse::<u64>().ok());
        time.is_some_and(|time| time < begun.saturating_sub(MAX_COLLECTION_TIME))
    };
    let all = storage.list(FOLDER).await?;
    let old: Vec<String> = all.into_iter().map(|object| object.key).filter(is_old).collect();
    if old.is_empty() { Ok(()) } else { storage.delete(&old).await }
}

/// Collection of garbage that may still remove objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnfinishedCollection {
    /// One that began at this time, in microseconds since 1970-01-01 UTC.
    Begun(u64),
    /// One that may have been: the log does not reach back far enough.
    Possible,
}

/// Returns the newest collection of garbage that may still remove objects at time `now`
/// (microseconds since 1970-01-01 UTC). None before version 2, which records no collections.
pub async fn unfinished_collection(repository: &Repository, now: u64) -> Result<Option<UnfinishedCollection>> {
    let (begun, is_cut) = match &repository.generation {
        Generation::Alpha(_) | Generation::V1(_) => return Ok(None),
        Generation::V2(info) => begun_since(info, now.saturating_sub(MAX_COLLECTION_TIME)),
    };
    for begun in begun {
        match repository.storage.size(&key(begun)).await {
            Ok(_) => {}
            // A store whose objects one may not list hides in this way that there is none.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                return Ok(Some(UnfinishedCollection::Begun(begun)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(is_cut.then_some(UnfinishedCollection::Possible))
}
