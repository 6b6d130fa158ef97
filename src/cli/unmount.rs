//! `icechunkfs unmount`: removes a mount, even if its daemon has died.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::{control_client, note};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::daemon_mark::Daemon;
use crate::fuse::mount_table::{self, FILE_SYSTEM_TYPE};
use crate::fuse::probe::{self, Probe};
use crate::fuse::unmount::{self, UnmountMode};
use crate::operations::status::Status;

/// Deadline for the daemon to count uncommitted changes: a second for a million files, and slow storage.
const PATIENCE: Duration = Duration::from_secs(60);
/// Deadline for the daemon to end after its mount is gone. A flush takes a slow disk some seconds.
const ENDING: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct UnmountArgs {
    /// The mountpoint.
    mountpoint: PathBuf,
    /// Refuse if there are uncommitted changes. Otherwise they stay in the scratch directory, for the next mount.
    #[arg(long)]
    require_clean: bool,
    /// Detach the mount now, without asking its daemon, which may hang. Programs keep their open files, and the daemon ends
    /// with the last of them. Uncommitted changes stay in the scratch directory.
    #[arg(long, conflicts_with = "require_clean")]
    force: bool,
}

/// Unmounts the mountpoint if icechunkfs is mounted there.
pub(crate) fn run(arguments: &UnmountArgs) -> Result<()> {
    if arguments.force {
        return unmount::unmount(&mount_table::require_mount(&arguments.mountpoint)?, UnmountMode::Detach);
    }
    let mountpoint = mount_table::absolute(&arguments.mountpoint)?;
    let place = mountpoint.display();
    match mount_table::find(&mountpoint)? {
        None => Err(Error::new(ErrorKind::NotFound, format!("nothing is mounted at {place}"))),
        Some(mount) if mount.fs_type != FILE_SYSTEM_TYPE => Err(Error::invalid(format!(
            "{place} is a mount of type {}, not of icechunkfs: use umount for it",
            mount.fs_type
        ))),
        Some(_) if unmount::remove_dead(&mountpoint)? => Ok(()),
        Some(mount) => {
            let (has_changes, left) = left_behind(&mountpoint)?;
            let daemon = Daemon::of(&mount);
            if has_changes && arguments.require_clean {
                return Err(Error::new(ErrorKind::Busy, format!("{place} has uncommitted changes: {left}")));
            }
            unmount::unmount(&mountpoint, UnmountMode::Polite)?;
            if let Some(daemon) = daemon
                && !daemon.wait(ENDING)
            {
                note(&format!(
                    "process {} has not ended: it still writes changes to the disk, or the mount is also in another namespace",
                    daemon.pid()
                ));
            }
            match (has_changes, left.is_empty()) {
                (true, _) => note(&format!("uncommitted changes: {left}; the next mount resumes them")),
                (false, false) => note(&format!("not committed: {left}; they stay for the next mount")),
                (false, true) => {}
            }
            Ok(())
        }
    }
}

/// Returns true if an unmount leaves uncommitted changes in the scratch directory, and describes what it leaves; empty if that is
/// nothing, or unknown. Fails with [`ErrorKind::Timeout`] if the daemon does not answer in time.
fn left_behind(mountpoint: &Path) -> Result<(bool, String)> {
    let request = control_client::control_directory(mountpoint).join("request");
    let ask = |question: &[u8]| Ok(probe::probe(mountpoint, &request, Probe::Reply(question), PATIENCE)?.ok());
    let Some(status) = control_client::local_status(ask)? else { return Ok((false, String::new())) };
    let Status { scratch, bytes, chunks_written, chunks_deleted, .. } = &status;
    let untracked = match status.untracked.len() {
        0 => String::new(),
        1 => ", 1 untracked file".to_owned(),
        files => format!(", {files} untracked files"),
    };
    if status.clean {
        let untracked = untracked.strip_prefix(", ").map(|untracked| format!("{untracked}, in {scratch}"));
        return Ok((false, untracked.unwrap_or_default()));
    }
    let nodes = status.added.len() + status.changed.len() + status.deleted.len() + status.moved.len();
    let chunks = chunks_written + chunks_deleted;
    Ok((true, format!("{nodes} nodes, {chunks} chunks ({bytes} bytes){untracked}, in {scratch}")))
}
