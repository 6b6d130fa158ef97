//! Garbage collection in version 2, where one write of `repo` divides before from after.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::copies::{self, Copies};
use super::finished;
use super::plan::{Applied, Plan};
use super::sweep::Listed;
use super::{Collected, Count, GcOptions, Keep, Progress, UncommittedFinder};
use crate::repo::migrate::old_refs::{Migrated, OldRefs};
use crate::repo::update::{self, Update, UpdateOptions};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_base::stages::Stages;
use icechunkfs_base::times::Clock;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::{Operation, RepoState};
use icechunkfs_store::storage::Storage;

/// Attempts, each but the first because a commit to remove became needed.
const TRIES: u32 = 20;

pub(super) async fn collect(
    storage: &Arc<dyn Storage>,
    options: GcOptions,
    clock: Clock,
    uncommitted: &UncommittedFinder,
    progress: &Progress,
) -> Result<Collected> {
    for _ in 0..TRIES {
        if let Some(collected) = attempt(storage, options, clock, uncommitted, progress).await? {
            return Ok(collected);
        }
    }
    Err(Error::new(
        ErrorKind::Contended,
        format!(
            "{}: concurrent changes restored commits that were to be removed, {TRIES} times: nothing was removed",
            storage.location()
        ),
    ))
}

/// Returns none if the collection has to start again.
async fn attempt(
    storage: &Arc<dyn Storage>,
    options: GcOptions,
    clock: Clock,
    uncommitted: &UncommittedFinder,
    progress: &Progress,
) -> Result<Option<Collected>> {
    let stages = Stages::begin("looking for uncommitted work");
    let state = update::read_state(&**storage).await?;
    let work = uncommitted().await?;
    stages.enter("listing objects");
    let mut listed = Listed::get(storage).await?;
    let plan = Plan::of(&state, &work.snapshots, &listed.snapshot_times(), options.older_than);
    let mut after = state.clone();
    plan.apply(&mut after)?;
    check_old_refs(storage, &state, &plan).await?;
    let mut keep = Keep::new(&work, logs(&after));
    stages.enter("finding reachable objects");
    // Uncommitted changes may be based on an expired commit whose file still exists.
    keep.needed.add(storage, plan.kept().chain(listed.existing(&work.snapshots)), progress).await?;
    let mut garbage = listed.garbage(&keep, options.older_than);
    let copies = Copies::find(storage, &state, options.older_than).await?;
    let old = copies.expected();
    let is_idle = garbage.is_empty() && plan.dropped.is_empty() && old.len() < copies::MIN_REMOVABLE;
    if options.dry_run || is_idle {
        let old = if is_idle { Count::default() } else { copies.count(&old) };
        return Ok(Some(Collected { commits: plan.dropped, copies: old, ..garbage.count(&listed, &keep) }));
    }
    stages.enter("updating the repository");
    copies.write(storage).await?;
    // None until a state is at hand: what fails before that is no conflict.
    let mut applied = None;
    let change = |state: &mut RepoState| match applied.insert(plan.apply(state)?) {
        Applied::Done(_) => {
            copies.shorten(state);
            Ok(Operation::GcRan)
        }
        Applied::Conflict => Err(Error::new(ErrorKind::Stale, "a commit that should be removed is still needed")),
    };
    let backed_up = || failpoints::pass("gc.backup.done");
    let options = UpdateOptions { names_copy: false, ..UpdateOptions::default() };
    let written = match Update::new(&**storage, clock, options).run(change, backed_up).await {
        Ok(written) => written.state,
        Err(_) if applied == Some(Applied::Conflict) => return Ok(None),
        Err(error) => return Err(error),
    };
    failpoints::pass("gc.repo.done")?;
    stages.enter("removing objects");
    // Nothing published from here on can need a removed object, but a commit published just before
    // can.
    if let Some(Applied::Done(new)) = applied {
        keep.needed.add(storage, new, progress).await?;
    }
    keep.logs.extend(logs(&written));
    garbage.retain_unneeded(&keep);
    let old = copies.garbage(storage, &written).await?;
    let collected = Collected { commits: plan.dropped, copies: copies.count(&old), ..garbage.count(&listed, &keep) };
    garbage.remove(storage, progress).await?;
    copies::remove(storage, &old).await?;
    if let Some(entry) = written.updates.first() {
        finished::record(storage, entry.updated_at).await;
    }
    Ok(Some(collected))
}

/// Fails if a ref of version 1 leads to a commit that `plan` does not keep, unless version 2 has
/// moved or deleted that ref: a program of version 1 has made it during the migration or since, and
/// the objects that it needs would look like garbage.
async fn check_old_refs(storage: &Arc<dyn Storage>, state: &RepoState, plan: &Plan) -> Result<()> {
    let migrated = Migrated::new(state);
    let old = OldRefs::read(&**storage).await?;
    let Some(unfinished) = old.refs.iter().find(|old| !plan.keeps(old.target) && !migrated.has(old)) else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "{}, a ref of version 1, leads to {}, which version 2 does not keep: nothing was removed. `icechunkfs migrate` \
         finishes the migration, or tells what to do about the ref",
        unfinished.key, unfinished.target
    )))
}

/// Returns the logs that commits keep of removed ancestors.
pub(super) fn logs(state: &RepoState) -> BTreeSet<ObjectId> {
    state.snapshots.values().flat_map(|record| &record.pruned_ancestor_tx_logs).copied().collect()
}
