//! Named points of what changes a repository in several steps, at which a test can make it fail or end the process.
//!
//! `ICECHUNKFS_FAULT=commit.snapshot=abort` ends the process at that point as `kill -9` would; `=eio` and `=enospc` make
//! it fail there, once. The points of a commit are [`COMMIT`], those of a migration [`MIGRATION`] and [`MIGRATION_ELSEWHERE`], those of a
//! collection of garbage [`COLLECTION`]: before each stage its name, after it `NAME.done`. The variable is read once, and is a testing aid only.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, ErrorKind, Result};

/// The points of a commit, in the order in which it passes them; some are passed again when it has to be rebased.
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
    // Version 2 only: `repo` has been copied and not yet replaced.
    "commit.backup.done",
    // The commit is there: it can be killed here, but not fail.
    "commit.publish.done",
];
/// The points of a migration in place.
pub const MIGRATION: [&str; 5] = [
    "migrate.repo",
    // From here on it is of version 2.
    "migrate.repo.done",
    "migrate.main.done",
    "migrate.refs.done",
    "migrate.done",
];
/// The points of a migration to another place; some are passed many times.
pub const MIGRATION_ELSEWHERE: [&str; 8] = [
    "migrate.to.begun",
    "migrate.to.chunk.done",
    "migrate.to.manifest.done",
    "migrate.to.log.done",
    "migrate.to.snapshot.done",
    "migrate.to.repo",
    // From here on there is a repository.
    "migrate.to.repo.done",
    "migrate.to.done",
];
/// The points of a collection of garbage; the first two are of version 2 only.
pub const COLLECTION: [&str; 6] = [
    "gc.backup.done",
    // From here on the commits that go are not listed any more.
    "gc.repo.done",
    "gc.snapshots.done",
    "gc.logs.done",
    "gc.manifests.done",
    "gc.chunks.done",
];
/// A point behind the commit: everybody sees it, and the working tree that it was made from is not on it yet.
pub const COMMITTED: &str = "commit.done";

struct Fault {
    point: String,
    action: String,
    passed: AtomicBool,
}

/// Is at `point`: does what the environment asks for there, which is nothing outside of tests.
pub(crate) fn reach(point: &str) -> Result<()> {
    let listed: [&[&str]; 5] = [&COMMIT, &MIGRATION, &MIGRATION_ELSEWHERE, &COLLECTION, &[COMMITTED]];
    debug_assert!(listed.iter().any(|points| points.contains(&point)), "{point} is not listed");
    static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
    let fault = FAULT.get_or_init(|| {
        let setting = std::env::var("ICECHUNKFS_FAULT").ok()?;
        let (point, action) = setting.split_once('=')?;
        Some(Fault { point: point.to_owned(), action: action.to_owned(), passed: AtomicBool::new(false) })
    });
    match fault {
        Some(fault) if fault.point == point && !fault.passed.swap(true, Ordering::Relaxed) => match fault
            .action
            .as_str()
        {
            "abort" => std::process::abort(),
            "enospc" => Err(Error::new(ErrorKind::NoSpace, format!("{point}: no space, as ICECHUNKFS_FAULT wants it"))),
            _ => Err(Error::new(ErrorKind::Io, format!("{point}: fails, as ICECHUNKFS_FAULT wants it"))),
        },
        _ => Ok(()),
    }
}
