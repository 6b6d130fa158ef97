//! Commands of `icechunkfs commit` and similar, as JSON through the control file
//! `.icechunk/request`, and their answers.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CommitOptions, Session};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::zarr::three_way::Side;
use icechunkfs_repo::commit::engine::OnConflict;

/// Command of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Commit of all uncommitted changes.
    Commit(CommitOptions),
    /// Discard of uncommitted changes.
    Discard {
        /// Path of the repository at and below which to discard, or an absolute one in the mount;
        /// everything if empty.
        path: String,
    },
    /// Restore of a path from another snapshot, as an uncommitted change.
    Restore {
        /// Path of the repository at and below which to restore, or an absolute one in the mount;
        /// the root of the mount if empty.
        path: String,
        /// Branch, tag, snapshot or time to restore from.
        from: String,
        /// True to change nothing.
        dry_run: bool,
    },
    /// Revert of commits, as an uncommitted change.
    Revert {
        /// Branches, tags or snapshots, perhaps with `~N`, which name the commits.
        commits: Vec<String>,
        /// Treatment of chunks that were changed again since.
        on_conflict: OnConflict,
        /// True to change nothing.
        dry_run: bool,
    },
    /// Settlement of conflicts that the last commit or refresh found.
    Resolve {
        /// Paths of the repository at and below which to settle, or absolute ones in the mount.
        paths: Vec<String>,
        /// True if the changes of the mount win, false if the concurrent commits do.
        ours: bool,
    },
    /// Rebase onto the tip of the branch.
    Refresh,
    /// Count of the uncommitted changes, and the state of the branch.
    Status,
    /// Count of the uncommitted changes, without a look at the branch.
    LocalStatus,
    /// List of the uncommitted changes, node by node.
    Diff,
}

/// Answer to a command whose result is an `R`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer<R = Value> {
    /// True if the command succeeded.
    pub ok: bool,
    /// Result as text.
    #[serde(rename = "said")]
    pub text: String,
    /// Result for programs; none if the command failed.
    pub result: Option<R>,
    /// Errno of a failure; 0 otherwise.
    pub errno: i32,
    /// Conflicts that made the command fail.
    #[serde(default)]
    pub conflicts: Value,
}

impl Session {
    /// Executes the command in `bytes`. Returns the answer, and true if it is the outcome of an
    /// attempt to change something.
    pub async fn request(&self, bytes: &[u8]) -> (Answer, bool) {
        let command: Command = match serde_json::from_slice(bytes) {
            Ok(command) => command,
            Err(why) => return (self.failure(&Error::invalid(format!("the command is not understood: {why}"))), true),
        };
        let is_change = !matches!(command, Command::Status | Command::LocalStatus | Command::Diff);
        match self.execute(command).await {
            Ok((text, result)) => {
                (Answer { ok: true, text, result: Some(result), errno: 0, conflicts: Value::Null }, is_change)
            }
            Err(error) => (self.failure(&error), true),
        }
    }

    fn failure(&self, error: &Error) -> Answer {
        let conflicts = match error.kind() {
            ErrorKind::Stale => self.conflicts.to_json(),
            _ => Value::Null,
        };
        Answer { ok: false, text: error.to_string(), result: None, errno: error.errno(), conflicts }
    }

    async fn execute(&self, command: Command) -> Result<(String, Value)> {
        match command {
            Command::Commit(options) => {
                let committed = self.commit(options).await?;
                Ok((committed.to_string(), value(&committed)?))
            }
            Command::Discard { path } => {
                let text = self.discard(&path).await?;
                Ok((text.clone(), serde_json::json!({ "discarded": text })))
            }
            Command::Restore { path, from, dry_run } => self.restore(&path, &from, dry_run).await,
            Command::Revert { commits, on_conflict, dry_run } => self.revert(&commits, on_conflict, dry_run).await,
            Command::Resolve { paths, ours } => {
                self.resolve(&paths, if ours { Side::Ours } else { Side::Theirs }).await
            }
            Command::Refresh => {
                let text = self.refresh().await?;
                Ok((text, serde_json::json!({ "base": self.working.upper().base().id() })))
            }
            Command::Status => {
                let status = self.status().await?;
                Ok((status.to_text(), value(&status)?))
            }
            Command::LocalStatus => {
                let status = self.local_status().await?;
                Ok((status.to_text(), value(&status)?))
            }
            Command::Diff => {
                let diff = self.diff().await?;
                Ok((diff.to_text(), value(&diff)?))
            }
        }
    }
}

fn value(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::with_source(ErrorKind::Io, "writing JSON", e))
}
