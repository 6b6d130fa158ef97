//! Checks of other icechunkfs mounts: those that are dead or hang.

use super::finding::Finding;
use crate::fuse::health::Health;
use crate::fuse::mount_table;
use crate::fuse::survey::{Surveyed, survey};
use icechunkfs_base::error::Result;
use icechunkfs_base::shell;

const CHECK: &str = "stale mounts";

/// Checks all mounts that this process can see.
pub(super) fn check() -> Result<Vec<Finding>> {
    let mounts = mount_table::own_mounts()?;
    let mut found = Vec::new();
    let surveyed = survey(&mounts, |_| Vec::new());
    for (mount, Surveyed { health, .. }) in mounts.iter().zip(surveyed) {
        let place = mount.mountpoint.display();
        let quoted = shell::quote(&mount.mountpoint.to_string_lossy());
        let (text, remedy) = match health {
            Health::Dead => (
                format!("{place} is dead: its daemon has ended without an unmount"),
                format!("Run `icechunkfs unmount {quoted}`, or mount there again"),
            ),
            Health::Hanging => (
                format!("{place} does not answer: its daemon is stopped or overloaded"),
                format!("Resume it, or run `icechunkfs unmount --force {quoted}`"),
            ),
            // One that was unmounted meanwhile needs nothing.
            Health::Unknown if mount_table::find(&mount.mountpoint)?.is_some_and(|now| now.device == mount.device) => {
                let text = format!("{place} could not be asked");
                let remedy = format!("Look at it with `ls {quoted}`, and run `icechunkfs doctor` again");
                found.push(Finding::warn(CHECK, text, remedy));
                continue;
            }
            Health::Alive | Health::Private | Health::Covered | Health::Unknown => continue,
        };
        found.push(Finding::fail(CHECK, text, remedy));
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, format!("none of {}", mounts.len())));
    }
    Ok(found)
}
