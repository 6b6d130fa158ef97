//! `icechunkfs list`: all icechunkfs mounts of this machine, and their health.
//!
//! Each mount is asked by a process of its own, and all of them have one deadline, so that dead and
//! hanging ones delay nothing else. [`describe`] finds out what a mount shows.

mod describe;

use clap::Args;

use self::describe::{ListedMount, describe_all};
use super::{print_result, table};
use crate::fuse::health::Health;
use crate::fuse::mount_table;
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;

/// Digits of a snapshot id in a line for people.
const SHOWN_ID: usize = 8;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print a list of {"mountpoint", "repository", "kind" (branch, tag, snapshot or as_of), "ref",
    /// "snapshot", "read_only", "owner" (a user ID), "pid", "health" (alive, hanging, dead,
    /// private, covered or unknown), "uncommitted" ({"nodes", "chunks", "bytes", "untracked",
    /// "faults"})}. A
    /// member is null if it is not known, "uncommitted" also if the mount is read-only.
    #[arg(long)]
    json: bool,
}

/// Lists the mounts that this process can see.
pub(crate) fn run(arguments: &ListArgs) -> Result<()> {
    let mounts = describe_all(&mount_table::own_mounts()?)?;
    print_result(arguments.json, &mounts, || text(&mounts))
}

fn text(mounts: &[ListedMount]) -> String {
    if mounts.is_empty() {
        return String::new();
    }
    let header = ["MOUNTPOINT", "REPOSITORY", "REF", "SNAPSHOT", "UNCOMMITTED", "PID", "HEALTH"].map(str::to_owned);
    let rows: Vec<Vec<String>> = std::iter::once(header.to_vec()).chain(mounts.iter().map(row)).collect();
    table::lines(&rows, 0..0).into_iter().map(|line| line + "\n").collect()
}

fn row(mount: &ListedMount) -> Vec<String> {
    let unknown = || "?".to_owned();
    let reference = match (&mount.kind, &mount.reference) {
        (Some(kind), Some(name)) if kind == "snapshot" => format!("{kind} {}", shortened(name)),
        (Some(kind), Some(name)) => format!("{kind} {name}"),
        _ => unknown(),
    };
    let uncommitted = match &mount.uncommitted {
        _ if mount.read_only => "read-only".to_owned(),
        None => unknown(),
        Some(changes) => changes.to_string(),
    };
    let cells = [
        mount.mountpoint.clone(),
        mount.repository.clone(),
        reference,
        mount.snapshot.as_deref().map_or_else(unknown, shortened),
        uncommitted,
        mount.pid.map_or_else(unknown, |pid| pid.to_string()),
        health(mount.health).to_owned(),
    ];
    cells.iter().map(|cell| printable::line(cell)).collect()
}

fn shortened(id: &str) -> String {
    id.chars().take(SHOWN_ID).collect()
}

fn health(health: Health) -> &'static str {
    match health {
        Health::Alive => "alive",
        Health::Hanging => "hanging: its daemon is stopped or overloaded",
        Health::Dead => "dead: unmount it (transport endpoint is not connected)",
        Health::Private => "private: only its owner may ask it",
        Health::Covered => "covered by another mount",
        Health::Unknown => "unknown",
    }
}
