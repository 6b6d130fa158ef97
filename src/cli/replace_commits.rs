//! Common functions of the commands that replace commits.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::printable;
use crate::repo::Repository;
use crate::times::format_time;

/// Number of refs listed as text; the rest is counted.
const LISTED: usize = 10;

/// Parses the items `KEY=VALUE` of `--metadata`: VALUE is JSON, otherwise text.
pub(super) fn metadata(items: &[String]) -> Result<Map<String, Value>> {
    let mut metadata = Map::new();
    for item in items {
        let (key, value) =
            item.split_once('=').ok_or_else(|| Error::invalid(format!("--metadata {item}: it is KEY=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        metadata.insert(key.to_owned(), value);
    }
    Ok(metadata)
}

/// Returns the tip of a branch, which must exist.
pub(super) async fn tip(repository: &Repository, branch: &str) -> Result<ObjectId> {
    repository.resolve(&crate::repo::refs::RefSpec::Branch(branch.to_owned())).await
}

/// Returns the other refs that still point to one of `commits`, such as `tag v1`.
pub(super) async fn others(repository: &Repository, branch: &str, commits: &[SnapshotInfo]) -> Result<Vec<String>> {
    let ids: HashSet<ObjectId> = commits.iter().map(|commit| commit.id).collect();
    let refs = repository.refs().await?;
    let branches = refs.branches.iter().filter(|(name, id)| name.as_str() != branch && ids.contains(id));
    let tags = refs.tags.iter().filter(|(_, id)| ids.contains(id));
    let named = branches.map(|(name, _)| format!("branch {name}"));
    Ok(named.chain(tags.map(|(name, _)| format!("tag {name}"))).collect())
}

/// Formats the refs that still point to replaced commits as a line; empty if there are none.
pub(super) fn kept(others: &[String]) -> String {
    match others.len() {
        0 => String::new(),
        count => {
            let more = if count > LISTED { format!(" and {} more", count - LISTED) } else { String::new() };
            let some: Vec<String> = others.iter().take(LISTED).map(|other| printable::line(other)).collect();
            format!("Kept as they are: {}{more}.\n", some.join(", "))
        }
    }
}

pub(super) fn line(commit: &SnapshotInfo) -> String {
    let first = commit.message.lines().next().unwrap_or_default();
    format!("{}  {}  {}", commit.id, format_time(commit.flushed_at), printable::line(first))
}
