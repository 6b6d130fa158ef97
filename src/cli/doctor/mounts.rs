//! Checks of other icechunkfs mounts: those that are dead or hang.

use std::time::Duration;

use super::finding::Finding;
use crate::error::Result;
use crate::fuse::health::{self, Health};
use crate::fuse::mount_table;
use crate::shell;

/// Deadline of each mount.
const REPLY: Duration = Duration::from_secs(2);
/// Mounts that are asked at a time.
const AT_ONCE: usize = 32;
const CHECK: &str = "stale mounts";

/// Checks all mounts that this process can see.
pub(super) fn check() -> Result<Vec<Finding>> {
    let mounts = mount_table::own_mounts()?;
    let mut found = Vec::new();
    for batch in mounts.chunks(AT_ONCE) {
        let checked: Vec<Health> = std::thread::scope(|scope| {
            let threads: Vec<_> = batch.iter().map(|mount| scope.spawn(|| health::check(mount, REPLY))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Health::Unknown)).collect()
        });
        for (mount, health) in batch.iter().zip(checked) {
            let place = mount.mountpoint.display();
            let quoted = shell::quote(&mount.mountpoint.to_string_lossy());
            match health {
                Health::Dead => {
                    let text = format!("{place} is dead: its daemon has ended without an unmount");
                    found.push(Finding::fail(
                        CHECK,
                        text,
                        format!("Run `icechunkfs unmount {quoted}`, or mount there again"),
                    ));
                }
                Health::Hanging => {
                    let text = format!("{place} does not answer: its daemon is stopped or overloaded");
                    found.push(Finding::fail(
                        CHECK,
                        text,
                        format!("Resume it, or run `icechunkfs unmount --force {quoted}`"),
                    ));
                }
                Health::Alive | Health::Private | Health::Covered | Health::Unknown => {}
            }
        }
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, format!("none of {}", mounts.len())));
    }
    Ok(found)
}
