//! Garbage collection in version 2, where one write of `repo` divides before from after.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::copies::{self, Copies};
use super::plan::{Applied, Plan};
use super::reach::ReachableObjects;
use super::sweep::Listed;
use super::{Collected, Count, GcOptions, Keep, Progress, UncommittedFinder};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::failpoints;
use crate::format::ids::ObjectId;
use crate::format::repo_info::RepoInfo;
use crate::format::repo_state::{Operation, RepoState};
use crate::repo::MAX_REPO_FILE;
use crate::repo::update::{self, Clock};
use crate::storage::{Storage, decoded};

/// Attempts, each but the first because a commit to remove became needed.
const TRIES: u32 = 20;

pub(super) async fn collect(
    storage: &Arc<dyn Storage>,
    wanted: GcOptions,
    clock: Clock,
    uncommitted: &UncommittedFinder,
    progress: &Progress,
) -> Result<Collected> {
    for _ in 0..TRIES {
        if let Some(collected) = attempt(storage, wanted, clock, uncommitted, progress).await? {
            return Ok(collected);
        }
    }
    Err(Error::new(
        ErrorKind::Contended,
        format!(
            "{}: others brought back commits that should go, {TRIES} times: nothing was removed",
            storage.location()
        ),
    ))
}

/// Returns none if the collection has to start again.
async fn attempt(
    storage: &Arc<dyn Storage>,
    wanted: GcOptions,
    clock: Clock,
    uncommitted: &UncommittedFinder,
    progress: &Progress,
) -> Result<Option<Collected>> {
    let found = decoded::changing(&**storage, "repo", MAX_REPO_FILE, RepoInfo::decode).await;
    let state = RepoState::from_info(&found.context(|| storage.location().to_owned())?.value)?;
    let work = uncommitted().await?;
    let mut listed = Listed::get(storage).await?;
    let plan = Plan::of(&state, &work.snapshots, &listed.snapshot_times(), wanted.older_than);
    let mut after = state.clone();
    plan.carry_out(&mut after)?;
    let mut found = Keep { needed: ReachableObjects::default(), logs: logs(&after) };
    for chunk in &work.chunks {
        found.needed.chunks.add(*chunk, 0, 0);
    }
    // Uncommitted changes may be based on an expired commit whose file still exists.
    let based = work.snapshots.iter().filter(|id| listed.snapshots.contains_key(id)).copied();
    found.needed.add(storage, plan.kept().chain(based), progress).await?;
    let mut garbage = listed.garbage(&found, wanted.older_than);
    let copies = Copies::find(storage, &state, wanted.older_than).await?;
    let old = copies.expected();
    let is_idle = garbage.is_empty() && plan.dropped.is_empty() && !Copies::is_worthwhile(&old);
    if wanted.dry_run || is_idle {
        let old = if is_idle { Count::default() } else { copies.count(&old) };
        return Ok(Some(Collected { commits: plan.dropped, copies: old, ..garbage.count(&listed, &found) }));
    }
    copies.write(storage).await?;
    let mut carried = Applied::Not;
    let change = |state: &mut RepoState| {
        carried = plan.carry_out(state)?;
        match carried {
            Applied::Out(_) => {
                copies.shorten(state);
                Ok(Operation::GcRan)
            }
            Applied::Not => Err(Error::new(ErrorKind::Stale, "something hangs on a commit that should go")),
        }
    };
    let backed_up = || failpoints::pass("gc.backup.done");
    let written = match update::update_without_backup_path(&**storage, clock, change, backed_up).await {
        Ok(written) => written,
        Err(_) if carried == Applied::Not => return Ok(None),
        Err(error) => return Err(error),
    };
    failpoints::pass("gc.repo.done")?;
    // Nothing published from here on can need a removed object, but a commit published just before can.
    if let Applied::Out(new) = carried {
        found.needed.add(storage, new, progress).await?;
    }
    found.logs.extend(logs(&written));
    garbage.spare(&found);
    let old = copies.garbage(storage, &written).await?;
    let collected = Collected { commits: plan.dropped, copies: copies.count(&old), ..garbage.count(&listed, &found) };
    garbage.remove(storage, progress).await?;
    copies::remove(storage, &old).await?;
    Ok(Some(collected))
}

/// Returns the logs that commits keep of removed ancestors.
fn logs(state: &RepoState) -> BTreeSet<ObjectId> {
    state.snapshots.values().flat_map(|record| &record.pruned_ancestor_tx_logs).copied().collect()
}
