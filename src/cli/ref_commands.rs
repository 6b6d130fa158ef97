//! Listing, creating and deleting refs, for `icechunkfs branch` and `icechunkfs tag`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use serde::Serialize;
use tracing::warn;

use super::confirm::ConfirmArgs;
use super::{open, print, print_json, writable};
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::format::repo_info::SnapshotInfo;
use crate::printable;
use crate::repo::Repository;
use crate::repo::change_refs::RefKind;
use crate::repo::refs::DEFAULT_BRANCH;
use crate::scratch::pending;
use crate::storage::settings::Settings;
use crate::times::{format_time, system_clock};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Show the time and message of each commit. In repositories of version 1 this reads the snapshots.
    #[arg(short, long)]
    pub(super) long: bool,
    /// Print a list of {"name", "snapshot"}; with --long also "written_at" and "message".
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) store: Settings,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The new name.
    name: String,
    /// The target: a branch, a tag, a snapshot id, or one of these and ~N for N commits before it.
    #[arg(long, value_name = "REF", default_value = DEFAULT_BRANCH)]
    at: String,
    /// Print {"name", "snapshot"}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: Settings,
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// The name to delete.
    name: String,
    /// Delete only if it points to this snapshot [default: the one that it points to when the command starts].
    #[arg(long, value_name = "ID")]
    expect: Option<String>,
    /// Print {"name", "snapshot"}: the snapshot that it pointed to.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    store: Settings,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    snapshot: ObjectId,
    #[serde(skip_serializing_if = "Option::is_none")]
    written_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Returns the snapshot that `name` points to. Fails if that is not `expect`.
pub(super) async fn target(
    repository: &Repository,
    kind: RefKind,
    name: &str,
    expect: Option<&str>,
) -> Result<ObjectId> {
    let expect: Option<ObjectId> = expect.map(|id| id.parse().map_err(|e: Error| e.context("--expect"))).transpose()?;
    let found = repository.resolve(&kind.named(name)).await?;
    match expect {
        Some(expected) if expected != found => Err(Error::new(
            ErrorKind::Stale,
            format!("{kind} `{name}` points to {found}, not to {expected}: nothing was done"),
        )),
        _ => Ok(found),
    }
}

/// Describes a commit as text. A damaged commit must not prevent changes of its ref.
pub(super) async fn describe_commit(repository: &Repository, id: ObjectId) -> String {
    match commit(repository, id).await {
        Ok(Some(commit)) => {
            let message = commit.message.lines().next().unwrap_or_default().trim();
            format!("{id} ({}, \"{}\")", format_time(commit.flushed_at), printable::line(message))
        }
        Ok(None) => id.to_string(),
        Err(error) => format!("{id} (which cannot be read: {error})"),
    }
}

async fn commit(repository: &Repository, id: ObjectId) -> Result<Option<SnapshotInfo>> {
    Ok(repository.history(id, 1).await?.pop())
}

/// Describes the commits that are lost if a ref to `tip` is removed and all refs then point to `others`; none if nothing is lost.
pub(super) fn lost_commits(
    repository: &Repository,
    tip: ObjectId,
    others: impl IntoIterator<Item = ObjectId>,
) -> Result<Option<String>> {
    Ok(match repository.commits_beyond(tip, others)? {
        Some(0) => None,
        Some(1) => Some(
            "One commit is then on no branch or tag any more: only its id leads to it, until garbage is collected."
                .to_owned(),
        ),
        Some(count) => Some(format!(
            "{count} commits are then on no branch or tag any more: only their ids lead to them, until garbage is collected."
        )),
        None => Some(
            "Commits that are on no other branch or tag can then only be found by their ids, until garbage is collected."
                .to_owned(),
        ),
    })
}

/// Describes the use of branch `name` on this machine: its mount, its uncommitted changes. None if there are none.
pub(super) fn mounted(repository: &Repository, name: &str) -> Option<String> {
    let location = writable::scratch_location(repository);
    let waiting = pending::look(&location, name)?;
    let place = printable::bytes(waiting.path.as_os_str().as_bytes());
    match (waiting.holder, waiting.has_changes) {
        (Some(holder), true) => {
            Some(format!("It is in use on this machine ({holder}), with changes that are not committed."))
        }
        (Some(holder), false) => Some(format!("It is in use on this machine ({holder}).")),
        (None, true) => Some(format!("Its uncommitted changes stay in {place}.")),
        (None, false) => None,
    }
}

pub(super) async fn list(repo: &str, kind: RefKind, arguments: &ListArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let mut listed = Vec::new();
    let refs = repository.refs().await?;
    for (name, id) in if kind == RefKind::Branch { refs.branches } else { refs.tags } {
        let commit = match arguments.long {
            true => commit(&repository, id).await.unwrap_or_else(|error| {
                warn!("{kind} `{name}`: {error}");
                None
            }),
            false => None,
        };
        listed.push(Listed {
            name,
            snapshot: id,
            written_at: commit.as_ref().map(|commit| format_time(commit.flushed_at)),
            message: commit.map(|commit| commit.message),
        });
    }
    if arguments.json {
        return print_json(&listed);
    }
    let names: Vec<String> = listed.iter().map(|one| printable::line(&one.name)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let mut text = String::new();
    for (one, name) in listed.iter().zip(&names) {
        // Writing into a string cannot fail.
        let _ = match (&one.written_at, &one.message) {
            (Some(time), Some(message)) => {
                let message = printable::line(message.lines().next().unwrap_or_default());
                writeln!(text, "{}  {name:<width$}  {time}  {message}", one.snapshot)
            }
            _ => writeln!(text, "{}  {name}", one.snapshot),
        };
    }
    print(&text)
}

pub(super) async fn create(repo: &str, kind: RefKind, arguments: &CreateArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let target = repository.resolve_revision(&arguments.at).await?.id;
    let name = &arguments.name;
    repository.create_ref(kind, name, target, system_clock).await?;
    print_ref(arguments.json, name, target, || format!("{kind} `{name}` points to {target}"))
}

/// Deletes a ref of `kind`; `more` is an additional warning for this kind.
pub(super) async fn delete(repo: &str, kind: RefKind, arguments: &DeleteArgs, more: &str) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let name = &arguments.name;
    if kind == RefKind::Branch && name == DEFAULT_BRANCH {
        return Err(crate::repo::change_refs::no_deletion_of_main());
    }
    let target = target(&repository, kind, name, arguments.expect.as_deref()).await?;
    let described = describe_commit(&repository, target).await;
    let mut question = format!("{kind} `{}`, which points to {described}, will be deleted.", printable::line(name));
    let all = repository.refs().await?;
    let others = |refs: &BTreeMap<String, ObjectId>, own: RefKind| -> Vec<ObjectId> {
        refs.iter().filter(|(other, _)| own != kind || *other != name).map(|(_, id)| *id).collect()
    };
    let others = [others(&all.branches, RefKind::Branch), others(&all.tags, RefKind::Tag)].concat();
    let mounted = (kind == RefKind::Branch).then(|| mounted(&repository, name)).flatten();
    for line in [lost_commits(&repository, target, others)?, Some(more.to_owned()).filter(|more| !more.is_empty())] {
        line.iter().for_each(|line| question += &format!("\n{line}"));
    }
    ask(arguments.confirm, question, mounted)?;
    repository.delete_ref(kind, name, target, system_clock).await?;
    print_ref(arguments.json, name, target, || format!("deleted {kind} `{name}`, which pointed to {target}"))
}

/// Asks `question`. Logs `mounted` even if it does not ask: the user may not know of the mount.
pub(super) fn ask(confirm: ConfirmArgs, mut question: String, mounted: Option<String>) -> Result<()> {
    if let Some(mounted) = mounted {
        if confirm.yes {
            warn!("{mounted}");
        }
        question += &format!("\n{mounted}");
    }
    confirm.confirm(&question)
}

fn print_ref(json: bool, name: &str, target: ObjectId, text: impl FnOnce() -> String) -> Result<()> {
    if json {
        return print_json(&serde_json::json!({"name": name, "snapshot": target}));
    }
    print(&format!("{}\n", printable::line(&text())))
}
