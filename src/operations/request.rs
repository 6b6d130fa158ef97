//! Commands of `icechunkfs commit` and similar, as JSON through the control file `.icechunk/request`, and their answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CommitOptions, Session};
use crate::commit::engine::OnConflict;
use crate::error::{Error, ErrorKind, Result};

/// Command of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Commit of all uncommitted changes.
    Commit {
        /// Commit message; the default one if empty.
        message: String,
        /// Metadata of the commit.
        #[serde(default)]
        metadata: Map<String, Value>,
        /// True if the commit replaces the branch tip.
        #[serde(default)]
        amend: bool,
        /// One of `fail`, `ours`, `theirs`, or nothing for `fail`.
        #[serde(default)]
        on_conflict: Option<String>,
    },
    /// Discard of uncommitted changes.
    Discard {
        /// Path at and below which to discard; everything if empty.
        path: String,
    },
    /// Rebase onto the tip of the branch.
    Refresh,
    /// Count of the uncommitted changes.
    Status,
    /// List of the uncommitted changes, node by node.
    Diff,
}

/// Answer to a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// True if the command succeeded.
    pub ok: bool,
    /// Result as text.
    pub said: String,
    /// Result for programs.
    pub result: Value,
    /// Errno of a failure; 0 otherwise.
    pub errno: i32,
    /// Conflicts that made the command fail.
    #[serde(default)]
    pub conflicts: Value,
}

/// Returns the text of an answer and its success, to be kept as the outcome of the last command; none if the command only read.
pub fn said(answer: &str) -> Option<(String, bool)> {
    let answer: Answer = serde_json::from_str(answer).ok()?;
    let command = ["snapshot", "discarded", "base"].iter().any(|member| answer.result.get(member).is_some());
    // A status has a `base` too, but also a `scratch`.
    let command = command && answer.result.get("scratch").is_none();
    (command || !answer.ok).then_some((answer.said, answer.ok))
}

impl Session {
    /// Carries out a command and returns its answer as JSON.
    pub async fn request(&self, bytes: &[u8]) -> String {
        let done = match serde_json::from_slice(bytes) {
            Ok(command) => self.carry_out(command).await,
            Err(why) => Err(Error::invalid(format!("the command is not understood: {why}"))),
        };
        let answer = match done {
            Ok((said, result)) => Answer { ok: true, said, result, errno: 0, conflicts: Value::Null },
            Err(error) => {
                let stale = error.errno() == libc::ESTALE;
                let conflicts = stale.then(|| serde_json::to_value(&*self.conflicts.lock()).unwrap_or_default());
                Answer {
                    ok: false,
                    said: error.to_string(),
                    result: Value::Null,
                    errno: error.errno(),
                    conflicts: conflicts.unwrap_or_default(),
                }
            }
        };
        serde_json::to_string(&answer).unwrap_or_default()
    }

    async fn carry_out(&self, command: Command) -> Result<(String, Value)> {
        match command {
            Command::Commit { message, metadata, amend, on_conflict } => {
                let on_conflict = match on_conflict.as_deref() {
                    None | Some("fail") => OnConflict::Fail,
                    Some("ours") => OnConflict::Ours,
                    Some("theirs") => OnConflict::Theirs,
                    Some(other) => return Err(Error::invalid(format!("--on-conflict {other}: ours or theirs it is"))),
                };
                let committed = self.commit(CommitOptions { message, metadata, amend, on_conflict }).await?;
                Ok((committed.to_string(), value(&committed)?))
            }
            Command::Discard { path } => {
                let said = self.discard(&path).await?;
                Ok((said.clone(), serde_json::json!({ "discarded": said })))
            }
            Command::Refresh => {
                let said = self.refresh().await?;
                let base = self.working.base().id().to_string();
                Ok((said, serde_json::json!({ "base": base })))
            }
            Command::Status => {
                let status = self.status().await?;
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
