//! Listing, creating and deleting refs, for `icechunkfs branch` and `icechunkfs tag`.

use std::os::unix::ffi::OsStrExt;

use clap::Args;
use serde::{Serialize, Serializer};
use tracing::warn;

use super::confirm::ConfirmArgs;
use super::output::print_json_list;
use super::{open, print, print_result, table, uncommitted};
use crate::library::mounts;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::times::{format_time, system_clock};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::change_refs::RefKind;
use icechunkfs_repo::repo::history::commits_beyond;
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_working::scratch::pending;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Show the time and message of each commit. This reads the snapshots in repositories of
    /// version 1.
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
    /// The target: a branch, a tag, an id, or an earlier commit such as main~2.
    #[arg(long, alias = "from", value_name = "REF", default_value = DEFAULT_BRANCH)]
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
    #[command(flatten)]
    change: RefChangeArgs,
}

/// Arguments of commands that take a ref off its target.
#[derive(Debug, Args)]
pub(crate) struct RefChangeArgs {
    /// Refuse if it does not point to this snapshot [default: its target when the command starts].
    #[arg(long, value_name = "ID")]
    expect: Option<String>,
    /// Print {"name", "snapshot"}, the last one of a deleted ref; after a reset also "previous".
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) confirm: ConfirmArgs,
    #[command(flatten)]
    store: Settings,
}

impl RefChangeArgs {
    /// Opens the repository. Returns the snapshot that `name` points to, too; fails if that is not
    /// the expected one.
    pub(super) async fn open(&self, repo: &str, kind: RefKind, name: &str) -> Result<(Repository, ObjectId)> {
        let repository = open::repository(repo, &self.store).await?;
        let expect: Option<ObjectId> =
            self.expect.as_ref().map(|id| id.parse().map_err(|e: Error| e.context("--expect"))).transpose()?;
        let found = match repository.resolve(&kind.named(name)).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(of_other_kind(&repository, kind, name).await.unwrap_or(error));
            }
            found => found?,
        };
        match expect {
            Some(expected) if expected != found => Err(Error::new(
                ErrorKind::Stale,
                format!("{kind} `{name}` points to {found}, not to {expected}: nothing was done"),
            )),
            _ => Ok((repository, found)),
        }
    }
}

/// Returns the error for a `name` that is one of the other kind; none if it is not.
async fn of_other_kind(repository: &Repository, kind: RefKind, name: &str) -> Option<Error> {
    let refs = repository.refs().await.ok()?;
    let what = match kind {
        RefKind::Tag if refs.branches.contains_key(name) => "a branch, not a tag",
        RefKind::Branch if refs.tags.contains_key(name) => "a tag, not a branch, and tags never change",
        _ => return None,
    };
    let place = repository.storage().location();
    Some(Error::new(ErrorKind::NotFound, format!("there is no {kind} `{name}` in {place}: it is {what}")))
}

/// Ref as it is printed.
struct Listed {
    name: String,
    snapshot: ObjectId,
    commit: Option<SnapshotInfo>,
}

impl Serialize for Listed {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            name: &'a str,
            snapshot: ObjectId,
            #[serde(skip_serializing_if = "Option::is_none")]
            written_at: Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            message: Option<&'a str>,
        }
        let Listed { name, snapshot, commit } = self;
        let written_at = commit.as_ref().map(|commit| format_time(commit.flushed_at));
        let message = commit.as_ref().map(SnapshotInfo::message);
        Row { name, snapshot: *snapshot, written_at, message }.serialize(serializer)
    }
}

/// Describes a commit as text. A damaged commit must not prevent changes of its ref.
pub(super) async fn describe_commit(repository: &Repository, id: ObjectId) -> String {
    match repository.commit(id).await {
        Ok(commit) => {
            format!("{id} ({}, \"{}\")", format_time(commit.flushed_at), printable::line(commit.title().trim()))
        }
        Err(error) => format!("{id} (which cannot be read: {error})"),
    }
}

/// Describes the commits that are lost if a ref to `tip` is removed and all refs then point to
/// `others`; none if nothing is lost.
pub(super) fn lost_commits(
    repository: &Repository,
    tip: ObjectId,
    others: impl IntoIterator<Item = ObjectId>,
) -> Result<Option<String>> {
    let lost = match commits_beyond(repository, tip, others)? {
        Some(0) => return Ok(None),
        Some(1) => "One commit is then on no branch or tag any more: only its id leads to it".to_owned(),
        Some(count) => format!("{count} commits are then on no branch or tag any more: only their ids lead to them"),
        None => "Commits that are on no other branch or tag can then only be found by their ids".to_owned(),
    };
    Ok(Some(lost + ", until garbage is collected."))
}

/// Describes the use of branch `name` on this machine: its mount, its uncommitted changes. None if
/// there are none.
pub(super) fn mounted(repository: &Repository, name: &str) -> Option<String> {
    let storage = repository.storage();
    let is_same = |location: &str| storage.is_named(location);
    // Scratch directories of a local repository are named after its real path, however it is
    // spelled.
    let is_same: Option<&dyn Fn(&str) -> bool> = storage.local_path().is_none().then_some(&is_same);
    let waiting = pending::look(&mounts::scratch_location(repository), name, is_same);
    let in_use = waiting.iter().find_map(|work| {
        let changes = if work.has_work { ", with changes that are not committed" } else { "" };
        Some(format!("The branch is in use on this machine ({}){changes}.", work.holder.as_ref()?))
    });
    // A mount may have its scratch directory elsewhere.
    let mounted = in_use.or_else(|| {
        let mount = uncommitted::mount_of_branch(&**storage, name).ok().flatten()?;
        let place = printable::bytes(mount.mountpoint.as_os_str().as_bytes());
        Some(format!("The branch is mounted at {place}, perhaps with changes that are not committed."))
    });
    let unmounted = waiting.iter().filter(|work| work.holder.is_none() && work.has_work);
    let stay = unmounted.map(|work| {
        let place = printable::bytes(work.path.as_os_str().as_bytes());
        format!("Its uncommitted changes stay in {place}.")
    });
    let said: Vec<String> = mounted.into_iter().chain(stay).collect();
    (!said.is_empty()).then(|| said.join(" "))
}

pub(super) async fn list(repo: &str, kind: RefKind, arguments: &ListArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let refs = repository.refs().await?;
    let refs = if kind == RefKind::Branch { &refs.branches } else { &refs.tags };
    let commit = async |name: &str, id: ObjectId| {
        if arguments.long {
            repository.commit(id).await.map(Some).unwrap_or_else(|error| {
                warn!("{kind} `{name}`: {error}");
                None
            })
        } else {
            None
        }
    };
    if arguments.json {
        return print_json_list(async |print| {
            for (name, id) in refs {
                print(&Listed { name: name.clone(), snapshot: *id, commit: commit(name, *id).await })?;
            }
            Ok(())
        })
        .await;
    }
    let mut rows = Vec::new();
    for (name, id) in refs {
        let mut cells = vec![id.to_string(), printable::line(name)];
        if let Some(commit) = commit(name, *id).await {
            cells.push(format!("{}  {}", format_time(commit.flushed_at), printable::line(&commit.title())));
        }
        rows.push(cells);
    }
    print(&table::lines(&rows, 0..0).into_iter().map(|line| line + "\n").collect::<String>())
}

pub(super) async fn create(repo: &str, kind: RefKind, arguments: &CreateArgs) -> Result<()> {
    let repository = open::repository(repo, &arguments.store).await?;
    let target = repository.resolve_revision(&arguments.at).await?.id;
    let name = &arguments.name;
    repository.create_ref(kind, name, target, system_clock).await?;
    print_ref(arguments.json, name, None, target, &format!("{kind} `{name}` points to {target}"))
}

pub(super) async fn delete(repo: &str, kind: RefKind, DeleteArgs { name, change }: &DeleteArgs) -> Result<()> {
    if kind == RefKind::Branch && name == DEFAULT_BRANCH {
        return Err(icechunkfs_repo::repo::change_refs::no_deletion_of_main());
    }
    let (repository, target) = change.open(repo, kind, name).await?;
    let mut refs = repository.refs().await?;
    let (mounted, reserved) = match kind {
        RefKind::Branch => (refs.branches.remove(name).and_then(|_| mounted(&repository, name)), None),
        RefKind::Tag => {
            refs.tags.remove(name);
            (None, Some("The name of a deleted tag cannot be used again.".to_owned()))
        }
    };
    let described = describe_commit(&repository, target).await;
    let question = format!("{kind} `{}`, which points to {described}, will be deleted.", printable::line(name));
    let lost = lost_commits(&repository, target, refs.branches.into_values().chain(refs.tags.into_values()))?;
    ask(change.confirm, [Some(question), lost, reserved], mounted)?;
    repository.delete_ref(kind, name, target, system_clock).await?;
    print_ref(change.json, name, None, target, &format!("deleted {kind} `{name}`, which pointed to {target}"))
}

/// Asks a question of several lines. Logs `mounted` even if it does not ask: the user may not know
/// of the mount.
pub(super) fn ask<const N: usize>(
    confirm: ConfirmArgs,
    lines: [Option<String>; N],
    mounted: Option<String>,
) -> Result<()> {
    if let Some(mounted) = mounted.as_ref().filter(|_| confirm.yes) {
        warn!("{mounted}");
    }
    confirm.confirm(&lines.into_iter().flatten().chain(mounted).collect::<Vec<_>>().join("\n"))
}

/// Prints the new state of a ref, as JSON or `text`.
pub(super) fn print_ref(
    json: bool,
    name: &str,
    previous: Option<ObjectId>,
    snapshot: ObjectId,
    text: &str,
) -> Result<()> {
    #[derive(Serialize)]
    struct ChangedRef<'a> {
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        previous: Option<ObjectId>,
        snapshot: ObjectId,
    }
    print_result(json, &ChangedRef { name, previous, snapshot }, || printable::line(text) + "\n")
}
