//! Status of the working tree: its uncommitted changes, counted.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::Session;
use super::changes::Violation;
use super::recovery::find_landed;
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::commit::membership::ungrouped_by;
use icechunkfs_repo::commit::warnings::Warning;
use icechunkfs_repo::repo::history::is_ancestor;
use icechunkfs_repo::repo::refs::RefSpec;

/// Longest wait for the store. A person who asks for the status looks at the changes first.
const BRANCH_WAIT: Duration = Duration::from_secs(1);

/// Uncommitted changes, and the state of the branch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Location of the repository.
    pub repository: String,
    /// Branch.
    pub branch: String,
    /// Snapshot that the working tree is based on.
    pub base: ObjectId,
    /// Tip of the branch, if it could be read.
    pub tip: Option<ObjectId>,
    /// True if the branch tip is not the base.
    pub branch_moved: bool,
    /// True if the base is no longer in the branch's history: the changes cannot be committed to
    /// the branch.
    pub branch_reset: bool,
    /// True if the branch no longer exists.
    pub branch_gone: bool,
    /// Reason that the branch could not be read: a damaged repository, or a store that does not
    /// answer.
    #[serde(default)]
    pub branch_unreadable: Option<String>,
    /// True if the reason is that the store did not answer in time: what is not known of the branch
    /// may be as it was.
    #[serde(default)]
    pub is_branch_slow: bool,
    /// True if the store is not asked: nothing is said of the branch.
    #[serde(default)]
    pub is_offline: bool,
    /// Path of the mount's root (`--root`) if other commits moved, deleted or made it anew: the
    /// mount does not show what is there now.
    #[serde(default)]
    pub lost_root: Option<String>,
    /// True if there is nothing to commit.
    pub clean: bool,
    /// Paths of new nodes.
    pub added: Vec<String>,
    /// Paths of nodes with a changed `zarr.json`.
    pub changed: Vec<String>,
    /// Paths of deleted nodes.
    pub deleted: Vec<String>,
    /// Nodes that were moved.
    pub moved: Vec<Moved>,
    /// Arrays with changed chunks.
    pub arrays: Vec<ArrayStatus>,
    /// Chunks written, over all arrays.
    pub chunks_written: usize,
    /// Chunks deleted, over all arrays.
    pub chunks_deleted: usize,
    /// Bytes of new chunks and documents.
    pub bytes: u64,
    /// Chunks that are uploaded already: the commit only names them.
    pub uploaded_chunks: usize,
    /// Bytes of the uploaded chunks.
    pub uploaded_bytes: u64,
    /// Files open for writing, for which a commit is refused.
    pub open_for_writing: Vec<String>,
    /// Untracked files.
    pub untracked: Vec<UntrackedFile>,
    /// Nodes created or moved here whose parent directory has no `zarr.json`: for Zarr they are
    /// members of no group.
    pub ungrouped: Vec<String>,
    /// Arrays that some programs cannot read as they are stored.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// Commit of this mount that seemed to fail but is on the branch: the next one follows it.
    pub landed: Option<ObjectId>,
    /// Violations, for which a commit is refused.
    #[serde(rename = "faults")]
    pub violations: Vec<Violation>,
    /// Scratch directory that holds the changes.
    pub scratch: String,
    /// Number of conflicts with concurrent commits that the last commit or refresh found and that
    /// are not settled.
    #[serde(default)]
    pub conflicts: usize,
    /// Mountpoint. Empty in a daemon of an older version.
    #[serde(default)]
    pub mountpoint: String,
    /// True if everything below the root was deleted, and nothing written since.
    #[serde(default)]
    pub is_emptied: bool,
}

/// File that a commit leaves out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UntrackedFile {
    /// Path of the file.
    pub path: String,
    /// Reason, if the file may have been meant to be committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Move of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Moved {
    /// Path before the move.
    pub from: String,
    /// Path now.
    pub to: String,
}

/// Changed chunks of one array.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Path of the array.
    pub path: String,
    /// Chunks written, copies of other chunks included.
    pub written: usize,
    /// Chunks deleted.
    pub deleted: usize,
}

impl Session {
    /// Returns the status of the working tree and of the branch.
    pub async fn status(&self) -> Result<Status> {
        let mut status = self.local_status().await?;
        // An unreadable branch must not hide the local changes, nor keep them waiting.
        // Boxed: the compiler cannot prove that futures this deep are `Send`.
        let asked: BoxFuture<'_, Result<()>> = Box::pin(self.add_branch(&mut status));
        match tokio::time::timeout(BRANCH_WAIT, asked).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => status.branch_unreadable = Some(error.to_string()),
            Err(_) => {
                let message = format!("the store did not answer within {} s", BRANCH_WAIT.as_secs());
                (status.branch_unreadable, status.is_branch_slow) = (Some(message), true);
            }
        }
        Ok(status)
    }

    /// Adds the state of the branch to `status`.
    async fn add_branch(&self, status: &mut Status) -> Result<()> {
        if status.is_offline {
            return Ok(());
        }
        let repository = self.repository().await?;
        let tip = match repository.resolve(&RefSpec::Branch(status.branch.clone())).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                status.branch_gone = true;
                return Ok(());
            }
            tip => tip?,
        };
        status.tip = Some(tip);
        status.branch_moved = tip != status.base;
        status.branch_reset = status.branch_moved && !is_ancestor(&repository, status.base, tip).await?;
        // Nothing of this mount landed on a branch that was reset.
        status.landed = find_landed(&repository, &self.working, status.base).await.unwrap_or_default();
        Ok(())
    }

    /// Returns the status of the working tree; says nothing about the branch, which may be far away
    /// or have a long history.
    pub async fn local_status(&self) -> Result<Status> {
        let (frozen, detected) = self.detect_changes().await?;
        let (detected, warnings) = self.find_warnings(detected).await?;
        let base = self.working.upper().base();
        let origin = self.working.upper().origin();
        let arrays = self.changed_arrays(&detected).into_iter().map(|array| {
            let [written, deleted] = [array.written.len(), array.deleted.len()];
            ArrayStatus { path: array.path, written, deleted }
        });
        let arrays: Vec<ArrayStatus> = arrays.collect();
        let (uploaded_chunks, uploaded_bytes) = self.uploader.uploaded(&detected.changes)?;
        let ungrouped = ungrouped_by(base.tree.snapshot(), None, &detected.changes);
        let untracked = detected.untracked_files().into_iter();
        let untracked = untracked.map(|(path, why)| UntrackedFile { path, why }).collect();
        let changes = detected.changes;
        let is_emptied = !changes.deleted.is_empty()
            && changes.deleted.len() == base.tree.snapshot().nodes().count()
            && changes.created.is_empty()
            && changes.moved.is_empty();
        Ok(Status {
            ungrouped,
            warnings,
            repository: origin.repository.clone(),
            branch: origin.branch.clone(),
            base: base.id(),
            branch_moved: false,
            branch_reset: false,
            branch_gone: false,
            branch_unreadable: None,
            is_branch_slow: false,
            is_offline: self.is_offline(),
            tip: None,
            lost_root: self.lost_root().await?,
            clean: changes.is_empty() && detected.violations.is_empty(),
            added: sorted(changes.created.into_iter().map(|node| node.path)),
            changed: sorted(changes.updated.into_iter().map(|node| node.path)),
            deleted: sorted(changes.deleted.into_iter().map(|node| node.path)),
            moved: changes.moved.into_iter().map(|moved| Moved { from: moved.from, to: moved.to }).collect(),
            chunks_written: arrays.iter().map(|array| array.written).sum(),
            chunks_deleted: arrays.iter().map(|array| array.deleted).sum(),
            arrays,
            bytes: detected.bytes,
            uploaded_chunks,
            uploaded_bytes,
            open_for_writing: frozen.open_for_writing,
            untracked,
            landed: None,
            conflicts: self.conflicts.count(),
            violations: detected.violations,
            scratch: self.working.upper().scratch().path().to_string_lossy().into_owned(),
            mountpoint: self.mountpoint(),
            is_emptied,
        })
    }
}

fn sorted(paths: impl Iterator<Item = String>) -> Vec<String> {
    let mut paths: Vec<String> = paths.collect();
    paths.sort();
    paths
}
