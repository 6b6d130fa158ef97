//! `icechunkfs unmount`: removes a mount, even if its daemon has died.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{control_client, note};
use crate::fuse::daemon_mark::Daemon;
use crate::fuse::mountpoint::Mountpoint;
use crate::fuse::open_mount::{Deadline, OpenMount};
use crate::fuse::unmount::{self, UnmountMode};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::shell;
use icechunkfs_base::size;
use icechunkfs_base::trust;
use icechunkfs_repo::commit::changes::counted;
use icechunkfs_working::operations::status::Status;

/// Deadline for the daemon to count uncommitted changes: a second for a million files, and slow
/// storage.
const PATIENCE: Duration = Duration::from_secs(60);
/// Deadline for the daemon to end after its mount is gone. A flush takes a slow disk some seconds.
const ENDING: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct UnmountArgs {
    /// The mountpoint.
    mountpoint: PathBuf,
    /// Refuse if there are uncommitted changes. Otherwise they stay in the scratch directory for
    /// the next mount.
    #[arg(long)]
    require_clean: bool,
    /// Detach the mount now, without asking its daemon. Programs keep their open files, and the
    /// daemon ends with the last of them. Uncommitted changes stay in the scratch directory.
    #[arg(long, short_aliases = ['f', 'l'], conflicts_with = "require_clean")]
    force: bool,
}

/// Unmounts the mountpoint if icechunkfs is mounted there.
pub(crate) fn run(arguments: &UnmountArgs) -> Result<()> {
    let mountpoint = Mountpoint::find(&arguments.mountpoint)?;
    let mount = OpenMount::at(&mountpoint)?;
    if arguments.force {
        return unmount::unmount(&mountpoint, mount, UnmountMode::Detach);
    }
    if !mount.mount().is_own() {
        return of_other_user(&mountpoint, mount, arguments.require_clean);
    }
    if mount.has_ended()? {
        return unmount::unmount(&mountpoint, mount, UnmountMode::Detach);
    }
    let left = left_behind(&mount)?;
    let daemon = Daemon::of(mount.mount());
    if arguments.require_clean
        && let Some(LeftBehind { has_changes: true, what, scratch, .. }) = &left
    {
        let place = mountpoint.path().display();
        return Err(Error::new(ErrorKind::Busy, format!("{place} has uncommitted changes: {what}, in {scratch}")));
    }
    unmount::unmount(&mountpoint, mount, UnmountMode::Polite)?;
    if let Some(daemon) = daemon
        && !daemon.wait(ENDING)
    {
        note(&format!(
            "process {} has not ended: it still writes changes to the disk, or the mount is also in another namespace",
            daemon.pid()
        ));
    }
    if let Some(left) = left {
        note(&left.to_string());
    }
    Ok(())
}

/// Unmounts the mount of another user, whose daemon is not asked anything.
fn of_other_user(mountpoint: &Mountpoint, mount: OpenMount, require_clean: bool) -> Result<()> {
    if require_clean {
        mount.require_own().map_err(|e| e.context("it is not known whether there are uncommitted changes"))?;
    }
    let owner = mount.mount().owner.map_or_else(|| "unknown".to_owned(), trust::name_of);
    unmount::unmount(mountpoint, mount, UnmountMode::Polite)?;
    note(&format!(
        "the mount was of user {owner}, whose daemon was not asked: uncommitted changes stay in its scratch directory"
    ));
    Ok(())
}

/// Remainder of an unmounted working tree in its scratch directory.
struct LeftBehind {
    /// True if there are changes; otherwise there are untracked files only.
    has_changes: bool,
    /// Counts.
    what: String,
    scratch: String,
    /// True if only this mount uses the scratch directory by itself.
    is_ephemeral: bool,
    /// True if the user named the scratch directory, which other mounts then have to do, too.
    is_named: bool,
    /// True if the directory goes with the mount.
    is_job: bool,
}

impl fmt::Display for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeftBehind { has_changes, what, scratch, is_ephemeral, is_named, is_job } = self;
        if *is_job {
            return write!(f, "discarded with the mount of a job: {what}");
        }
        f.write_str(if *has_changes { "uncommitted changes: " } else { "not committed: " })?;
        write!(f, "{what}, in {scratch}; ")?;
        let quoted = shell::quote(scratch);
        if *is_ephemeral {
            return write!(
                f,
                "only a mount with `--scratch {quoted}` shows them again; otherwise remove the directory"
            );
        }
        f.write_str(if *has_changes { "the next mount resumes them" } else { "they stay for the next mount" })?;
        if *is_named { write!(f, "; make it with `--scratch {quoted}`") } else { Ok(()) }
    }
}

/// Returns what an unmount leaves in the scratch directory; none if that is nothing, or unknown.
///
/// Errors: [`ErrorKind::Timeout`] if the daemon does not answer in time.
fn left_behind(mount: &OpenMount) -> Result<Option<LeftBehind>> {
    let deadline = Deadline::after(PATIENCE);
    let ask = |question: &[u8]| Ok(mount.ask(question, deadline)?.ok());
    let Some(status) = control_client::local_status(ask)? else { return Ok(None) };
    let Status { scratch, bytes, chunks_written, chunks_deleted, clean, .. } = status;
    let untracked = status.untracked.len() as u64;
    let untracked = (untracked > 0).then(|| size::counted(untracked, "untracked file"));
    let nodes = status.added.len() + status.changed.len() + status.deleted.len() + status.moved.len();
    let chunks = chunks_written + chunks_deleted;
    let changes = (nodes + chunks > 0).then(|| format!("{} ({})", counted(nodes, chunks), size::text(bytes)));
    let faults = status.violations.len();
    let faults = (faults > 0).then(|| format!("{faults} that cannot be committed"));
    let what: Vec<String> = changes.into_iter().chain(faults).chain(untracked).collect();
    if what.is_empty() {
        return Ok(None);
    }
    // A daemon of another release may say other things about itself.
    let info = mount.read("info.json", deadline)?.unwrap_or_default();
    let info: Value = serde_json::from_slice(&info).unwrap_or_default();
    let has = |option: &str| info.pointer(option) == Some(&Value::Bool(true));
    Ok(Some(LeftBehind {
        has_changes: !clean,
        what: what.join(", "),
        scratch,
        is_ephemeral: has("/options/ephemeral"),
        is_named: has("/options/named_scratch"),
        is_job: has("/options/job"),
    }))
}
