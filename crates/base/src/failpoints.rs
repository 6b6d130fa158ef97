//! Fail points: named points in multi-step changes of a repository at which a test injects a
//! failure or ends the process.
//!
//! `ICECHUNKFS_FAULT=commit.snapshot=abort` ends the process at that point as `kill -9` would;
//! `=eio` and `=enospc` make the operation fail there, once, and `=stall` delays it. Each list
//! below has the points of one operation: the name of a stage before it, `NAME.done` after it. The
//! variable is read once and is a testing aid only.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// Fail points of a commit, in order; some are passed again when the commit is rebased.
pub const COMMIT: [&str; 11] = [
    "commit.chunks",
    "commit.chunks.done",
    "commit.manifests",
    "commit.manifests.done",
    "commit.log",
    "commit.log.done",
    "commit.snapshot",
    "commit.snapshot.done",
    "commit.publish",
    // Version 2 only: `repo` is copied and not yet replaced.
    "commit.backup.done",
    // The commit is visible: the process can be killed here, but the commit cannot fail.
    "commit.publish.done",
];
/// Fail points of a migration in place.
pub const MIGRATION: [&str; 5] = [
    "migrate.repo",
    // From here on the repository has version 2.
    "migrate.repo.done",
    "migrate.main.done",
    "migrate.refs.done",
    "migrate.done",
];
/// Fail points of a migration to another location; some are passed many times.
pub const MIGRATION_ELSEWHERE: [&str; 8] = [
    "migrate.to.begun",
    "migrate.to.chunk.done",
    "migrate.to.manifest.done",
    "migrate.to.log.done",
    "migrate.to.snapshot.done",
    "migrate.to.repo",
    // From here on the new repository exists.
    "migrate.to.repo.done",
    "migrate.to.done",
];
/// Fail points of a garbage collection; the first two are of version 2 only.
pub const COLLECTION: [&str; 6] = [
    "gc.backup.done",
    // From here on the collected commits are no longer listed.
    "gc.repo.done",
    "gc.snapshots.done",
    "gc.logs.done",
    "gc.manifests.done",
    "gc.chunks.done",
];
/// Fail point after a commit: the commit is visible, and the working tree is not yet rebased onto
/// it.
pub const COMMITTED: &str = "commit.done";

/// Delay at a point that stalls: long enough for a test to act meanwhile.
const STALL: Duration = Duration::from_secs(3);

struct FailPoint {
    point: String,
    action: String,
    passed: AtomicBool,
}

/// Passes `point`: fails or aborts if the environment asks for it, and does nothing outside of
/// tests.
pub fn pass(point: &str) -> Result<()> {
    let listed: [&[&str]; 5] = [&COMMIT, &MIGRATION, &MIGRATION_ELSEWHERE, &COLLECTION, &[COMMITTED]];
    debug_assert!(listed.iter().any(|points| points.contains(&point)), "{point} is not listed");
    static CONFIGURED: OnceLock<Option<FailPoint>> = OnceLock::new();
    let fault = CONFIGURED.get_or_init(|| {
        let setting = std::env::var("ICECHUNKFS_FAULT").ok()?;
        let (point, action) = setting.split_once('=')?;
        Some(FailPoint { point: point.to_owned(), action: action.to_owned(), passed: AtomicBool::new(false) })
    });
    match fault {
        Some(fault) if fault.point == point && !fault.passed.swap(true, Ordering::Relaxed) => match fault
            .action
            .as_str()
        {
            "abort" => std::process::abort(),
            "stall" => {
                // Other work of this thread goes on.
                tokio::task::block_in_place(|| std::thread::sleep(STALL));
                Ok(())
            }
            "enospc" => Err(Error::new(ErrorKind::NoSpace, format!("{point}: no space, as ICECHUNKFS_FAULT wants it"))),
            _ => Err(Error::new(ErrorKind::Io, format!("{point}: fails, as ICECHUNKFS_FAULT wants it"))),
        },
        _ => Ok(()),
    }
}
