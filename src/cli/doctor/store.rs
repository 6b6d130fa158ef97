//! Checks of a store: its clock, the credentials, and what they allow.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::finding::Finding;
use crate::cli::open;
use crate::library::mounts;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::refs::DEFAULT_BRANCH;
use icechunkfs_store::storage::settings::Settings;
use icechunkfs_store::storage::{self, Condition, Storage, Version};
use icechunkfs_working::scratch::directory;

/// Time limit of one operation unless the user sets another.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Difference between clocks, in seconds, from which stores refuse requests, and from which times
/// of commits mislead.
const REFUSED_SKEW: u64 = 15 * 60;
const NOTED_SKEW: u64 = 60;
/// Size limit of the temporary object.
const MAX_OBJECT: u64 = 1024;

/// Checks the store of `repo`. Returns the repository's default scratch directory, too, if the
/// repository could be opened.
pub(super) fn check(repo: &str, settings: &Settings, write: bool) -> (Vec<Finding>, Option<PathBuf>) {
    let mut found = vec![credentials(repo, settings)];
    let mut settings = settings.clone();
    settings.timeout.get_or_insert(TIMEOUT);
    // The guarantee of a single writer would hide that the store does not compare.
    settings.unsafe_single_writer = false;
    let opened = open::run(examine(repo, &settings, write));
    match opened {
        Ok((of_store, scratch)) => {
            found.extend(of_store);
            (found, scratch)
        }
        Err(error) => {
            found.push(Finding::fail("store", error.to_string(), "Check the URL and the settings of the store"));
            (found, None)
        }
    }
}

fn credentials(repo: &str, settings: &Settings) -> Finding {
    const CHECK: &str = "credentials";
    match storage::credential_source(repo, settings) {
        Ok(None) => Finding::ok(CHECK, "not needed: the repository is on this machine"),
        Ok(Some(source)) => Finding::ok(CHECK, format!("from {source}")),
        Err(error) => Finding::fail(CHECK, error.to_string(), "Correct them"),
    }
}

async fn examine(repo: &str, settings: &Settings, write: bool) -> Result<(Vec<Finding>, Option<PathBuf>)> {
    let storage = storage::open(repo, settings).await?;
    let opened = Repository::open(Arc::clone(&storage)).await;
    let listed = match &opened {
        // A store that does not answer has cost one time limit already.
        Err(error) if error.kind() == ErrorKind::Timeout => Err(error.clone()),
        _ => storage.any_key(&[]).await,
    };
    let mut found = clock(&storage).into_iter().collect::<Vec<_>>();
    found.push(read(&opened));
    found.push(list(&listed, opened.is_ok()));
    found.push(match write {
        true if listed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout) => Finding::fail(
            "write",
            "not checked: the store does not answer",
            "Check the network, the endpoint and --timeout",
        ),
        true => write_conditionally(&storage).await,
        false => Finding::ok("write", "not checked: --write checks it with a temporary object"),
    });
    let scratch = opened
        .ok()
        .and_then(|repository| directory::default_path(&mounts::scratch_location(&repository), DEFAULT_BRANCH).ok());
    Ok((found, scratch))
}

fn clock(storage: &Arc<dyn Storage>) -> Option<Finding> {
    const CHECK: &str = "clock";
    let ahead = storage.capabilities().clock.ahead()?;
    let skew = ahead.unsigned_abs();
    let direction = if ahead > 0 { "behind" } else { "ahead of" };
    let text = format!("this machine's clock is {} {direction} the store's", span(skew));
    const REMEDY: &str = "Set it: `timedatectl set-ntp true`";
    Some(match skew {
        REFUSED_SKEW.. => Finding::fail(CHECK, format!("{text}; stores refuse requests from 15 minutes on"), REMEDY),
        NOTED_SKEW.. => Finding::warn(CHECK, format!("{text}; times of commits will mislead"), REMEDY),
        _ => Finding::ok(CHECK, "as the store's"),
    })
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} minutes", seconds / 60),
        _ => format!("{} hours", seconds / 3600),
    }
}

fn read(opened: &Result<Repository>) -> Finding {
    const CHECK: &str = "read";
    match opened {
        Ok(repository) => Finding::ok(CHECK, format!("a repository of version {}", repository.version().number())),
        Err(error) => Finding::fail(CHECK, error.to_string(), remedy(error)),
    }
}

fn list(listed: &Result<Option<String>>, is_readable: bool) -> Finding {
    const CHECK: &str = "list";
    const USES: &str = "mounts of version 2 work without it; gc, verify, stats and version 1 need it";
    match listed {
        Ok(_) => Finding::ok(CHECK, "allowed"),
        Err(error) if error.kind() == ErrorKind::Unsupported => Finding::ok(CHECK, format!("not offered: {USES}")),
        Err(error) if is_readable => Finding::warn(CHECK, format!("{error}; {USES}"), remedy(error)),
        Err(error) => Finding::fail(CHECK, error.to_string(), remedy(error)),
    }
}

/// Returns what to do about an error of the store.
fn remedy(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "Use other credentials, or let the store allow it to these",
        ErrorKind::Timeout => "Check the network, the endpoint and --timeout",
        ErrorKind::NotARepository | ErrorKind::NotFound => {
            "Correct the location; `icechunkfs init` creates a repository"
        }
        _ => "Check the URL and the settings of the store",
    }
}

async fn write_conditionally(storage: &Arc<dyn Storage>) -> Finding {
    const CHECK: &str = "write";
    if let Some(why) = storage.read_only() {
        return Finding::warn(
            CHECK,
            format!("not possible: {why}"),
            "Name the repository by the URL of an object store to write to it",
        );
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let key = format!("icechunkfs-doctor-{}-{}", std::process::id(), now.as_nanos());
    let outcome = try_conditions(storage, &key).await;
    // An object that was not made is no failure.
    let removed = match storage.delete(std::slice::from_ref(&key)).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    match (outcome, removed) {
        (Ok(true), Ok(())) => Finding::ok(CHECK, "conditional writes work; the temporary object is removed"),
        (Ok(true), Err(error)) => {
            let text = format!("conditional writes work, but the temporary object {key} stays: {error}");
            Finding::warn(CHECK, text, "Let the store allow deletion, which gc needs, and delete the object")
        }
        (Ok(false), _) => {
            let text =
                "the store does not compare before it writes: two programs that commit at once could lose a commit";
            Finding::fail(CHECK, text, "Mount read-only, or with --unsafe-single-writer if there is no other writer")
        }
        (Err(error), _) if error.kind() == ErrorKind::Unsupported => Finding::fail(
            CHECK,
            error.to_string(),
            "Mount read-only, or with --unsafe-single-writer if there is no other writer",
        ),
        (Err(error), _) => Finding::fail(CHECK, error.to_string(), remedy(&error)),
    }
}

/// Returns true if the store compares before it writes object `key`, which does not exist.
async fn try_conditions(storage: &Arc<dyn Storage>, key: &str) -> Result<bool> {
    let put = |text: &'static str, condition| storage.put(key, Bytes::from_static(text.as_bytes()), condition);
    let is_refused = |outcome: Result<()>| match outcome {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == ErrorKind::Contended => Ok(true),
        Err(error) => Err(error),
    };
    put("icechunkfs doctor: 1", Condition::Absent).await?;
    if !is_refused(put("icechunkfs doctor: 2", Condition::Absent).await)? {
        return Ok(false);
    }
    let (_, version) = storage.get_versioned(key, MAX_OBJECT).await?;
    put("icechunkfs doctor: 3", Condition::Unchanged(version.clone())).await?;
    // The version has changed meanwhile.
    let is_refused = is_refused(put("icechunkfs doctor: 4", Condition::Unchanged(version)).await)?;
    Ok(is_refused && !storage.get_versioned(key, MAX_OBJECT).await?.1.eq(&Version::default()))
}
