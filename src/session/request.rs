//! Commands of `icechunkfs commit` and its kin, as JSON through `.icechunk/request`, and their answers.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{CommitOptions, Session};
use crate::commit::engine::OnConflict;
use crate::error::{Error, ErrorKind, Result};

/// What is asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Commit all that differs.
    Commit {
        /// The message; empty for the default one.
        message: String,
        /// The commit's metadata.
        #[serde(default)]
        metadata: Map<String, Value>,
        /// Whether to replace the newest commit.
        #[serde(default)]
        amend: bool,
        /// `ours`, `theirs`, or nothing.
        #[serde(default)]
        on_conflict: Option<String>,
    },
    /// Give up what differs.
    Discard {
        /// Where; everywhere if it is empty.
        path: String,
    },
    /// Move to the branch's newest commit.
    Refresh,
    /// What differs, counted.
    Status,
    /// What differs, node by node.
    Diff,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it was done.
    pub ok: bool,
    /// In words.
    pub said: String,
    /// For programs.
    pub result: Value,
    /// The errno, if it was not done.
    pub errno: i32,
    /// What it collided with.
    #[serde(default)]
    pub conflicts: Value,
}

/// What an answer says that is worth remembering as the last command's outcome, and whether it was done. None for one that
/// only looked.
pub fn said(answer: &str) -> Option<(String, bool)> {
    let answer: Answer = serde_json::from_str(answer).ok()?;
    let command = ["snapshot", "discarded", "base"].iter().any(|member| answer.result.get(member).is_some());
    // A status has a base too, and much else.
    let command = command && answer.result.get("scratch").is_none();
    (command || !answer.ok).then_some((answer.said, answer.ok))
}

impl Session {
    /// Carries out a command and returns its answer.
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
                Ok((status.in_words(), value(&status)?))
            }
            Command::Diff => {
                let diff = self.diff().await?;
                Ok((diff.in_words(), value(&diff)?))
            }
        }
    }
}

fn value(value: &impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::with_source(ErrorKind::Io, "writing JSON", e))
}
