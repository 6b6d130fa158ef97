//! Common functions of the commands that replace commits.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::confirm::ConfirmArgs;
use super::{print_result, ref_commands};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::printable;
use icechunkfs_base::times::format_time;
use icechunkfs_base::times::system_clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::engine::RESERVED;
use icechunkfs_repo::commit::replace_record::RESERVED_ITEMS;
use icechunkfs_repo::commit::squash::{self, SquashOptions};
use icechunkfs_repo::repo::Repository;

/// Number of refs listed as text; the rest is counted.
const LISTED: usize = 10;
/// Number of conflicts listed as text; the rest is counted.
const LISTED_CONFLICTS: usize = 20;

/// Parses the items `KEY=VALUE` of `--metadata`: VALUE is JSON, otherwise text.
pub(super) fn metadata(items: &[String]) -> Result<Map<String, Value>> {
    let mut metadata = Map::new();
    for item in items {
        let (key, value) =
            item.split_once('=').ok_or_else(|| Error::invalid(format!("--metadata {item}: expected KEY=VALUE")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
        metadata.insert(key.to_owned(), value);
    }
    Ok(metadata)
}

/// Returns the tip of a branch, which must exist.
pub(super) async fn tip(repository: &Repository, branch: &str) -> Result<ObjectId> {
    repository.resolve(&icechunkfs_repo::repo::refs::RefSpec::Branch(branch.to_owned())).await
}

/// Returns the metadata items that the commit that replaces `commit` keeps: all but the notes and
/// records of implementations, which it gets anew.
pub(super) fn kept_metadata(commit: &SnapshotInfo) -> Result<Metered<Map<String, Value>>> {
    let mut kept = commit.metadata()?;
    kept.retain(|name, _| !RESERVED_ITEMS.contains(&name.as_str()));
    Ok(kept)
}

/// Returns the metadata items that an amended `commit` keeps: all but the records, which it gets
/// again. Its note stays, since it has the same tree.
pub(super) fn amended_metadata(commit: &SnapshotInfo) -> Result<Metered<Map<String, Value>>> {
    let mut kept = commit.metadata()?;
    kept.retain(|name, _| name == RESERVED || !RESERVED_ITEMS.contains(&name.as_str()));
    Ok(kept)
}

/// Fails if one of the metadata items `names` is reserved.
pub(super) fn check_not_reserved<'a>(mut names: impl Iterator<Item = &'a String>) -> Result<()> {
    match names.find(|name| RESERVED_ITEMS.contains(&name.as_str())) {
        Some(name) => Err(Error::invalid(format!("metadata `{name}` is reserved: choose another name"))),
        None => Ok(()),
    }
}

/// Confirms that `commits`, which `question` names, may be replaced. Returns the other refs that
/// still point to one of them.
pub(super) async fn confirm(
    repository: &Repository,
    branch: &str,
    commits: &[SnapshotInfo],
    question: &str,
    confirm: ConfirmArgs,
) -> Result<Vec<String>> {
    let kept = other_refs(repository, branch, commits).await?;
    let question = format!("{question}\n{}", kept_refs_line(&kept)).trim_end().to_owned();
    ref_commands::ask(confirm, [Some(question)], ref_commands::mounted(repository, branch))?;
    Ok(kept)
}

/// Replaces commits by one, after `question`, and prints the outcome; `replaced` describes the
/// commits.
pub(super) async fn replace(
    repository: &Repository,
    options: &SquashOptions<'_>,
    question: &str,
    replaced: &str,
    confirm: ConfirmArgs,
    json: bool,
) -> Result<()> {
    let SquashOptions { branch, commits, .. } = options;
    let kept = self::confirm(repository, branch, commits, question, confirm).await?;
    let id = squash::squash(repository, system_clock, options).await?;
    let parent = commits.last().and_then(|oldest| oldest.parent);
    let ids: Vec<ObjectId> = commits.iter().map(|commit| commit.id).collect();
    let value = json!({"branch": branch, "snapshot": id, "replaced": ids, "parent": parent, "kept": kept});
    print_result(json, &value, || {
        format!("branch {}: replaced {replaced} by {id}\n{}", printable::line(branch), kept_refs_line(&kept))
    })
}

/// Returns the other refs that still point to one of `commits`, such as `tag v1`.
async fn other_refs(repository: &Repository, branch: &str, commits: &[SnapshotInfo]) -> Result<Vec<String>> {
    let ids: HashSet<ObjectId> = commits.iter().map(|commit| commit.id).collect();
    let refs = repository.refs().await?;
    let branches = refs.branches.iter().filter(|(name, id)| name.as_str() != branch && ids.contains(id));
    let tags = refs.tags.iter().filter(|(_, id)| ids.contains(id));
    let named = branches.map(|(name, _)| format!("branch {name}"));
    Ok(named.chain(tags.map(|(name, _)| format!("tag {name}"))).collect())
}

/// Formats the refs that still point to replaced commits as a line; empty if there are none.
fn kept_refs_line(others: &[String]) -> String {
    let some: Vec<String> = others.iter().take(LISTED).map(|other| printable::line(other)).collect();
    match others.len().saturating_sub(LISTED) {
        0 if some.is_empty() => String::new(),
        0 => format!("Kept as they are: {}.\n", some.join(", ")),
        more => format!("Kept as they are: {} and {more} more.\n", some.join(", ")),
    }
}

/// Returns the question before `commit` is replaced.
pub(super) fn question(branch: &str, commit: &SnapshotInfo) -> String {
    format!(
        "Branch {} moves to a new commit that replaces\n  {}\nMounts and programs based on that commit must be \
         restarted.",
        printable::line(branch),
        commit_line(commit)
    )
}

pub(super) fn commit_line(commit: &SnapshotInfo) -> String {
    format!("{}  {}  {}", commit.id, format_time(commit.flushed_at), printable::line(&commit.title()))
}

/// Formats `conflicts` as lines; of many, the first ones.
pub(super) fn listed_conflicts(conflicts: &[Conflict]) -> String {
    let mut text: String = conflicts.iter().take(LISTED_CONFLICTS).map(|conflict| format!("  {conflict}\n")).collect();
    if conflicts.len() > LISTED_CONFLICTS {
        text += &format!("  and {} more (--json lists all)\n", conflicts.len() - LISTED_CONFLICTS);
    }
    text
}
