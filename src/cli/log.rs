//! `icechunkfs log`: the commits that led to a snapshot.

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Map, Value};

use super::args::LogArgs;
use super::{open, print, print_json};
use crate::error::Result;
use crate::format::repo_info::SnapshotInfo;
use crate::repo::history::format_time;

#[derive(Serialize)]
struct Commit {
    id: String,
    parent_id: Option<String>,
    message: String,
    written_at: String,
    metadata: Map<String, Value>,
}

impl From<SnapshotInfo> for Commit {
    fn from(info: SnapshotInfo) -> Self {
        Commit {
            id: info.id.to_string(),
            parent_id: info.parent.map(|id| id.to_string()),
            message: info.message,
            written_at: format_time(info.flushed_at),
            metadata: info.metadata,
        }
    }
}

/// Prints the history, newest first.
pub fn run(arguments: &LogArgs) -> Result<()> {
    let spec = arguments.reference.spec()?;
    let history = open::runtime()?.block_on(async {
        let repository = open::repository(&arguments.repo, &arguments.store).await?;
        let tip = repository.resolve(&spec).await?;
        repository.history(tip, arguments.count.unwrap_or(usize::MAX)).await
    })?;
    let commits: Vec<Commit> = history.into_iter().map(Commit::from).collect();
    if arguments.json {
        return print_json(&commits);
    }
    let mut text = String::new();
    for commit in &commits {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "snapshot {}\n    date  {}", commit.id, commit.written_at);
        for (name, value) in &commit.metadata {
            let _ = writeln!(text, "    {name}: {value}");
        }
        text.push('\n');
        for line in commit.message.lines() {
            let _ = writeln!(text, "    {line}");
        }
        text.push('\n');
    }
    print(text.as_bytes())
}
