//! `icechunkfs merge`: brings the changes of a branch, tag or snapshot into a branch.

use std::collections::HashMap;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};

use super::replace_commits::listed_conflicts;
use super::repo_args::RepoArgs;
use super::{open, print_json, print_result, progress, ref_commands, replace_commits};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::shell;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::merge::{self, MergeOptions, Merged, Plan};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::change_refs::{RefKind, no_deletion_of_main};
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};

#[derive(Debug, Args)]
pub(crate) struct MergeArgs {
    /// The source of the changes: a branch, a tag, an id, or an earlier commit such as trial~2.
    #[arg(index = 2, value_name = "SOURCE")]
    source: String,
    /// The branch that gets the changes.
    #[arg(long, value_name = "BRANCH", default_value = DEFAULT_BRANCH)]
    into: String,
    /// The commit message [default: Merge SOURCE].
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Take one side in conflicts of chunks and of members of zarr.json: ours is BRANCH, theirs is
    /// SOURCE [default: refuse].
    #[arg(long, value_name = "WHOSE")]
    on_conflict: Option<Whose>,
    /// Compare both with this branch, tag or snapshot, which both were made from, instead of the
    /// newest known common ancestor. For histories with lost parts.
    #[arg(long, value_name = "REF")]
    ancestor: Option<String>,
    /// Make one commit for each commit of SOURCE, with its message and metadata. BRANCH gets all of
    /// them or none.
    #[arg(long, conflicts_with_all = ["message", "dry_run"])]
    keep_commits: bool,
    /// Delete the branch SOURCE once its changes are in BRANCH.
    #[arg(long)]
    delete_source: bool,
    /// Only show what the merge would do, and its conflicts.
    #[arg(long, conflicts_with = "delete_source")]
    dry_run: bool,
    /// Print {"branch", "snapshot", "made", "source", "base", "commits", "deletes", "nodes",
    /// "chunks", "conflicts", "deleted"}: the new snapshot (null if there is none), all new ids
    /// (oldest first), the merged and the common snapshot, the merged commits (newest first), what
    /// is deleted in BRANCH ({"path", "chunks"}, null for a whole node), counts of changes, the
    /// conflicts as in `status --json`, and whether SOURCE was deleted.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Number of deletions listed as text; the rest is counted.
const LISTED_DELETIONS: usize = 20;

/// Side whose chunks win a conflict, as in git: ours are those of the branch that gets the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Whose {
    Ours,
    Theirs,
}

impl Whose {
    /// Returns the treatment of conflicts by the engine, for which ours are the changes that are
    /// committed.
    pub(super) fn treatment(side: Option<Whose>) -> OnConflict {
        match side {
            None => OnConflict::Fail,
            Some(Whose::Ours) => OnConflict::Theirs,
            Some(Whose::Theirs) => OnConflict::Ours,
        }
    }
}

/// Snapshot that is merged, and its names.
struct Source {
    id: ObjectId,
    /// Name for people, such as ``branch `dev` ``.
    name: String,
    branch: Option<String>,
}

/// Merges the source into the branch.
pub(crate) fn run(arguments: &MergeArgs) -> Result<()> {
    let metadata = replace_commits::metadata(&arguments.metadata)?;
    replace_commits::check_not_reserved(metadata.keys())?;
    open::run(async {
        let repository = arguments.repo.open().await?;
        let source = source(&repository, &arguments.source).await?;
        if source.branch.as_deref() == Some(&arguments.into) {
            return Err(Error::invalid(format!(
                "branch `{}` cannot be merged into itself: name another --into",
                arguments.into
            )));
        }
        let to_delete = if arguments.delete_source { Some(deletable(&repository, &source)?) } else { None };
        let ancestor = match &arguments.ancestor {
            Some(word) => Some(repository.resolve_revision(word).await?.id),
            None => None,
        };
        let options = MergeOptions {
            source: source.id,
            ancestor,
            source_name: source.name.clone(),
            into: arguments.into.clone(),
            keep_commits: arguments.keep_commits,
            message: arguments.message.clone().unwrap_or_else(|| format!("Merge {}", source.name)),
            metadata,
            on_conflict: Whose::treatment(arguments.on_conflict),
        };
        let storage = Arc::clone(repository.storage());
        let (reader, engine) = open::engine(&repository)?;
        let bar = progress::begin("comparing and merging");
        let outcome = if arguments.dry_run {
            merge::plan(&repository, &reader, &engine, &options).await.map(Merged::nothing)
        } else {
            repository.check_changes_allowed().await?;
            merge::merge(repository, &reader, &engine, &options).await
        };
        drop(bar);
        let merged = outcome.context(|| storage.location().to_owned())?;
        let conflicts = &merged.plan.conflicts;
        if !conflicts.is_empty() {
            if arguments.json {
                print_json(&report(arguments, &source, &merged, false))?;
            }
            return Err(Error::multi_line(ErrorKind::Stale, &refusal(&merged, &source.name, &arguments.into)));
        }
        let mut is_deleted = false;
        if let Some(branch) = to_delete {
            // The branch is left alone if it has moved: what came since is not merged.
            let repository = Repository::open(storage).await?;
            if !merge::is_safe_to_delete(&repository, &reader, &engine, &merged, source.id, &arguments.into).await? {
                return Err(not_in(&arguments.into, &branch, &arguments.repo.location));
            }
            let deletion = repository.delete_ref(RefKind::Branch, &branch, source.id, system_clock).await;
            deletion.map_err(|e| e.context(format!("branch `{branch}` was merged, but not deleted")))?;
            is_deleted = true;
        }
        print_result(arguments.json, &report(arguments, &source, &merged, is_deleted), || {
            describe(arguments, &source, &merged, is_deleted)
        })
    })
}

async fn source(repository: &Repository, word: &str) -> Result<Source> {
    let found = repository.resolve_revision(word).await?;
    let (name, branch) = match found.spec {
        RefSpec::Branch(name) => (format!("branch `{name}`"), Some(name)),
        RefSpec::Tag(name) => (format!("tag `{name}`"), None),
        _ => (format!("snapshot {}", found.id), None),
    };
    Ok(Source { id: found.id, name, branch })
}

/// Returns the branch that is merged, if it may be deleted afterwards.
fn deletable(repository: &Repository, source: &Source) -> Result<String> {
    let Some(branch) = &source.branch else {
        return Err(Error::invalid(format!("--delete-source: {} is not a branch", source.name)));
    };
    if branch == DEFAULT_BRANCH {
        return Err(no_deletion_of_main());
    }
    match ref_commands::mounted(repository, branch) {
        None => Ok(branch.clone()),
        Some(use_of_it) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "branch `{branch}` cannot be deleted: {use_of_it} Merge without --delete-source, or unmount it first"
            ),
        )),
    }
}

/// Returns the error for a branch that is not deleted, since `into` does not show what it changed.
fn not_in(into: &str, branch: &str, repo: &str) -> Error {
    let [into_shown, shown] = [into, branch].map(printable::line);
    let command = format!("icechunkfs branch {} delete {}", shell::quote(repo), shell::quote(branch));
    Error::new(
        ErrorKind::Busy,
        format!(
            "branch `{shown}` was merged, but not deleted: branch `{into_shown}` does not have all its changes. They \
             were taken back or resolved otherwise there, or the record of a merge is false. If they are not needed: \
             {command}"
        ),
    )
}

fn refusal(merged: &Merged, source: &str, into: &str) -> String {
    let conflicts = &merged.plan.conflicts;
    let of_commit = merged.refused.map(|commit| format!("commit {commit} of ")).unwrap_or_default();
    let text = format!(
        "{of_commit}{0} and branch `{1}` changed the same things ({2}): nothing was merged. `--on-conflict ours` takes the \
         chunks and members of zarr.json of {1}, `theirs` those of {0}; other conflicts are settled by a commit on one of them\n",
        printable::line(source),
        printable::line(into),
        size::counted(conflicts.len() as u64, "conflict")
    );
    text + &listed_conflicts(conflicts)
}

fn report(arguments: &MergeArgs, source: &Source, merged: &Merged, is_deleted: bool) -> Value {
    let Plan { base, commits, changes, conflicts, .. } = &merged.plan;
    json!({
        "branch": arguments.into,
        "snapshot": merged.snapshot,
        "made": merged.made,
        "source": source.id,
        "base": base,
        "commits": commits.iter().map(|commit| commit.id).collect::<Vec<_>>(),
        "deletes": deletions(&merged.plan),
        "nodes": changes.node_count(),
        "chunks": changes.chunk_count(),
        "conflicts": conflicts,
        "deleted": is_deleted,
    })
}

/// Deletion that a merge makes in the branch.
#[derive(Debug, Serialize)]
struct Deletion {
    path: String,
    /// Number of chunks; none if the whole node is deleted.
    chunks: Option<usize>,
}

/// Returns what `plan` deletes, by path: of a deleted group, the group itself.
fn deletions(plan: &Plan) -> Vec<Deletion> {
    let Plan { changes, tip, .. } = plan;
    let paths: HashMap<NodeId, &str> = tip.nodes().map(|node| (node.id, node.path)).collect();
    let mut nodes: Vec<&str> = changes.deleted.iter().map(|node| node.path.as_str()).collect();
    nodes.sort_unstable();
    let mut found: Vec<Deletion> = Vec::new();
    for path in nodes {
        let is_below = found.last().is_some_and(|last| {
            path.strip_prefix(last.path.as_str()).is_some_and(|rest| rest.starts_with('/') || last.path == "/")
        });
        if !is_below {
            found.push(Deletion { path: path.to_owned(), chunks: None });
        }
    }
    let mut chunks: Vec<Deletion> = changes
        .chunks
        .iter()
        .map(|(node, chunks)| Deletion {
            path: paths.get(node).copied().unwrap_or_default().to_owned(),
            chunks: Some(chunks.values().filter(|change| change.stored().is_none()).count()),
        })
        .filter(|deletion| deletion.chunks != Some(0))
        .collect();
    chunks.sort_by(|a, b| a.path.cmp(&b.path));
    found.extend(chunks);
    found
}

/// Formats deletions as lines; of many, the first ones.
fn listed_deletions(deletions: &[Deletion]) -> String {
    let line = |deletion: &Deletion| {
        let path = printable::line(&deletion.path);
        match deletion.chunks {
            None => format!("deletes {path}\n"),
            Some(1) => format!("deletes 1 chunk of {path}\n"),
            Some(count) => format!("deletes {count} chunks of {path}\n"),
        }
    };
    let mut text: String = deletions.iter().take(LISTED_DELETIONS).map(line).collect();
    if deletions.len() > LISTED_DELETIONS {
        text += &format!("and {} more deletions (--json lists all)\n", deletions.len() - LISTED_DELETIONS);
    }
    text
}

fn describe(arguments: &MergeArgs, source: &Source, merged: &Merged, is_deleted: bool) -> String {
    let Plan { commits, changes, .. } = &merged.plan;
    let name = printable::line(&source.name);
    let into = printable::line(&arguments.into);
    let counts = changes.counted();
    let counted = |commits: usize| size::counted(commits as u64, "commit");
    let mut text = listed_deletions(&deletions(&merged.plan));
    text += &match merged.snapshot {
        Some(snapshot) => {
            let of_them =
                if arguments.keep_commits { format!(" as {}", counted(merged.made.len())) } else { String::new() };
            format!("merged {} of {name} into {into}{of_them}: snapshot {snapshot}: {counts}\n", counted(commits.len()))
        }
        None if commits.is_empty() => format!("branch `{into}` has all changes of {name} already\n"),
        None => format!("{} of {name} can be merged into {into}: {counts}\n", counted(commits.len())),
    };
    if is_deleted {
        text += &format!("deleted {name}\n");
    }
    text
}
