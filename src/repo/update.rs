//! Changing `repo`: the one mutable object of a version 2 repository (format notes 1.7).
//!
//! Read it, change the value, copy the old file to `overwritten/`, replace it if it is still the one that was read. Whoever
//! loses the race begins anew with what the winner wrote, under a new name for the copy; a copy that was made in vain stays,
//! as the reference's do.

use std::time::Duration;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::format::config::RepoConfig;
use crate::format::ids::ObjectId;
use crate::format::repo_info::{Availability, RepoInfo};
use crate::format::repo_state::{DEFAULT_UPDATES_PER_FILE, Operation, RepoState};
use crate::storage::{Condition, Storage};

use super::MAX_REPO_FILE;

/// Tells the time in microseconds since 1970-01-01 UTC. Handed in, so that tests can.
pub type Clock = fn() -> u64;

/// How often a lost race is run again; the reference's number.
const TRIES: u32 = 100;
/// Races that are run again at once, before there are pauses.
const AT_ONCE: u32 = 5;
/// First pause; doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// 3000-01-01T00:00:00Z in milliseconds: copies are named by the time left until then, so that the newest is listed first.
const YEAR_3000: u64 = 32_503_680_000_000;

/// The machine's clock.
pub fn system_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Applies `change` to `repo` in `storage` and returns what was written. `change` says what it did, or fails and changes
/// nothing; it is called again for every race that was lost.
///
/// Errors: [`ErrorKind::PermissionDenied`] for a repository whose status is read-only, [`ErrorKind::Conflict`] if others were
/// faster in every try or this machine's clock is behind.
pub async fn update(
    storage: &dyn Storage,
    clock: Clock,
    mut change: impl FnMut(&mut RepoState) -> Result<Operation>,
) -> Result<RepoState> {
    let mut pause = FIRST_PAUSE;
    for attempt in 0..TRIES {
        if attempt >= AT_ONCE {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        let (file, version) = storage.get_versioned("repo", MAX_REPO_FILE).await?;
        let info = RepoInfo::decode(&file).context(|| format!("{}: repo", storage.location()))?;
        let mut state = RepoState::from_info(&info)?;
        if state.availability() == Availability::ReadOnly {
            let reason = state.status.reason.as_deref().unwrap_or("no reason is given");
            let message = format!("{} is set read-only: {reason}", storage.location());
            return Err(Error::new(ErrorKind::PermissionDenied, message));
        }
        let operation = change(&mut state)?;
        let now = clock();
        let backup = backup_name(now)?;
        state.record(operation, now, &backup, updates_per_file(state.config.as_deref()))?;
        let new = state.encode()?;
        storage.put(&format!("overwritten/{backup}"), file, Condition::Always).await?;
        match storage.put("repo", new.into(), Condition::Unchanged(version)).await {
            Ok(()) => return Ok(state),
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::new(
        ErrorKind::Conflict,
        format!("{}: others changed the repository first, {TRIES} times", storage.location()),
    ))
}

fn backup_name(now: u64) -> Result<String> {
    Ok(format!("repo.{:014}.{}", YEAR_3000.saturating_sub(now / 1000), ObjectId::random()?))
}

fn updates_per_file(config: Option<&[u8]>) -> usize {
    let config = config.and_then(|bytes| RepoConfig::from_flexbuffer(bytes).ok());
    let stored = config.and_then(|config| config.members().get("num_updates_per_repo_info_file")?.as_u64());
    stored.and_then(|n| usize::try_from(n).ok()).unwrap_or(DEFAULT_UPDATES_PER_FILE)
}
