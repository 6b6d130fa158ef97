//! Restore in a mount: a path becomes what another snapshot has there, as an uncommitted change.
//!
//! The tree below the path is put back on the base, as by a discard, and then changed to what the
//! plan ([`icechunkfs_repo::restore`]) says. The result is a candidate: it is installed only if the
//! changes that are detected in it are, below the path, those of the plan, and elsewhere those that
//! were there before.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::Session;
use super::changes::DetectedChanges;
use super::rebase;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::replace::TreeGuard;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::ChangeSet;
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_repo::repo::MAX_SNAPSHOT;
use icechunkfs_repo::restore::{self, Plan, Target};

impl Session {
    /// Restores what is at and below `path` from the snapshot that `from` names. Returns the result
    /// as text and as JSON. With `dry_run` nothing is changed.
    ///
    /// Errors: those of [`restore::plan`]; [`ErrorKind::Busy`] if a file there is open for writing;
    /// [`ErrorKind::Stale`] if uncommitted moves or untracked files are in the way.
    pub async fn restore(&self, path: &str, from: &str, dry_run: bool) -> Result<(String, Value)> {
        let _turn = self.take_turn().await;
        self.resolve_pending().await?;
        let path = self.repository_path(path).await?;
        let repository = self.repository().await?;
        let source = restore::resolve_source(&repository, from, &self.working.upper().origin().branch).await?.id;
        let source = repository.snapshot(source, MAX_SNAPSHOT).await?;
        let (plan, invalidations) = {
            let guard = self.working.upper().quiesce().await;
            self.wait_for_closes().await;
            let (frozen, detected) = self.detect_changes().await?;
            let base = self.working.upper().base();
            let mut plan = restore::plan(&self.reader, base.tree.snapshot(), &source, &path, &detected.changes).await?;
            leave_out_parents(&mut plan, self.shown_part().root());
            restore::check_chunks(&self.reader, base.tree.snapshot(), &source, &plan, &detected.changes).await?;
            restore::check_objects(&repository, base.tree.snapshot(), source.id(), &plan).await?;
            if let Some(open) = frozen.open_for_writing.iter().find(|other| is_below(other, &path)) {
                return Err(Error::new(ErrorKind::Busy, format!("{open} is open for writing: close it first")));
            }
            refuse_moves_across(&detected, &path)?;
            let is_there: HashSet<String> = detected.changes.created.iter().map(|node| node.path.clone()).collect();
            let invalidations = self.install_plan(&guard, &path, &plan, detected, dry_run).await?;
            // A group above the path that is there, though not committed, stays as it is.
            plan.notes.parents.retain(|path| !is_there.contains(path));
            (plan, invalidations)
        };
        self.invalidate(invalidations).await?;
        let report = plan.report(&path, source.id(), &self.working.upper().origin().branch, None, &[]);
        let shown = printable::line(&path);
        let counts = plan.counts();
        let text = match (dry_run, plan.changes.is_empty()) {
            (true, _) => {
                format!("{shown} can be restored from {}: {counts} differ from the base snapshot\n", source.id())
            }
            (false, true) => format!("{shown} is as in {}: nothing to commit there\n", source.id()),
            (false, false) => {
                let text = format!("restored {shown} from {}: {counts} to commit", source.id());
                self.warn_if_unflushed(text) + "\n"
            }
        };
        Ok((text + &plan.remarks(), report))
    }

    /// Makes what is at and below `path` what `plan` says, which was made for the base and the
    /// changes `detected`. With `dry_run` nothing is changed. Returns what the kernel must forget.
    ///
    /// Errors: [`ErrorKind::Stale`] if untracked files are in the way, or if the changes in the
    /// result would be others than those of the plan and the former ones elsewhere.
    pub(super) async fn install_plan(
        &self,
        guard: &TreeGuard<'_>,
        path: &str,
        plan: &Plan,
        mut detected: DetectedChanges,
        dry_run: bool,
    ) -> Result<Vec<Invalidation>> {
        let moves = self.working.moves();
        if moves.preserve(guard, &detected.untracked_entries(), &[]).await? {
            detected = self.detect_changes().await?.1;
        }
        let candidate = moves.plan_restore(guard, path, &detected.untracked_entries(), plan).await?;
        let base = self.working.upper().base();
        let check = Check { plan, base: base.tree.snapshot(), before: &detected };
        let invalidations =
            rebase::install_restored(&self.working, guard, candidate, &self.new_ids, dry_run, &check).await?;
        if !dry_run {
            self.new_ids.lock().clear();
            self.working.uploads().forget_uploads();
        }
        Ok(invalidations)
    }
}

/// Leaves out the groups above the path that are not at or below `root`, the root of the mount.
fn leave_out_parents(plan: &mut Plan, root: &str) {
    let parents = std::mem::take(&mut plan.notes.parents);
    let (inside, outside): (Vec<String>, Vec<String>) = parents.into_iter().partition(|path| is_below(path, root));
    plan.notes.parents = inside;
    plan.changes.created.retain(|node| !outside.contains(&node.path));
}

/// Refuses uncommitted moves into or out of `path`: the restore would undo one half of them.
fn refuse_moves_across(detected: &DetectedChanges, path: &str) -> Result<()> {
    let crosses = detected.changes.moved.iter().find(|moved| is_below(&moved.from, path) != is_below(&moved.to, path));
    match crosses {
        None => Ok(()),
        Some(moved) => Err(Error::new(
            ErrorKind::Stale,
            format!(
                "the move of {} to {} is not committed: commit or discard it, then restore {path}",
                moved.from, moved.to
            ),
        )),
    }
}

/// Conditions that a candidate must meet before it is installed.
pub(super) struct Check<'a> {
    plan: &'a Plan,
    base: &'a Snapshot,
    before: &'a DetectedChanges,
}

/// Changes by what they change, with a description: those that a restore replaces, and all others.
#[derive(Default)]
struct Split {
    inside: BTreeMap<Item, String>,
    outside: BTreeMap<Item, String>,
}

/// Thing that a commit would change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Deleted(String),
    Created(String),
    Updated(String),
    Moved(String),
    Chunk(String, Coords),
}

impl Split {
    fn of(changes: &ChangeSet, base: &Snapshot, target: &Target) -> Self {
        let mut split = Split::default();
        let mut paths: HashMap<NodeId, String> = base.nodes().map(|node| (node.id, node.path.to_owned())).collect();
        paths.extend(changes.moved.iter().map(|moved| (moved.node, moved.to.clone())));
        paths.extend(changes.created.iter().map(|node| (node.id, node.path.clone())));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let nodes = changes.deleted.iter().map(|node| (Item::Deleted(node.path.clone()), String::new(), &node.path));
        let nodes = nodes.chain(
            changes.created.iter().map(|node| (Item::Created(node.path.clone()), text(&node.zarr_json), &node.path)),
        );
        let nodes = nodes.chain(
            changes.updated.iter().map(|node| (Item::Updated(node.path.clone()), text(&node.zarr_json), &node.path)),
        );
        let nodes = nodes
            .chain(changes.moved.iter().map(|moved| (Item::Moved(moved.from.clone()), moved.to.clone(), &moved.to)));
        for (item, how, path) in nodes {
            split.side(target.has_document(path)).insert(item, how);
        }
        for (id, chunks) in &changes.chunks {
            let path = paths.get(id).cloned().unwrap_or_else(|| id.to_string());
            for (coords, change) in chunks {
                let item = Item::Chunk(path.clone(), coords.clone());
                split.side(target.has_chunk(&path, coords)).insert(item, rebase::description(change));
            }
        }
        split
    }

    fn side(&mut self, is_inside: bool) -> &mut BTreeMap<Item, String> {
        if is_inside { &mut self.inside } else { &mut self.outside }
    }
}

impl Check<'_> {
    /// Fails if the changes in a candidate, `after`, are not those of the plan below the path and
    /// the former ones elsewhere.
    pub(super) fn accept(&self, after: &DetectedChanges) -> Result<()> {
        let target = &self.plan.target;
        let before = Split::of(&self.before.changes, self.base, target);
        let planned = Split::of(&self.plan.changes, self.base, target);
        let after_changes = Split::of(&after.changes, self.base, target);
        let mut elsewhere = before.outside;
        // Groups above the path that the plan adds; one that is there, though not committed, stays
        // as it is.
        for (item, how) in planned.outside {
            elsewhere.entry(item).or_insert(how);
        }
        same(&planned.inside, &after_changes.inside)?;
        same(&elsewhere, &after_changes.outside)?;
        let known: HashSet<&str> = self.before.violations.iter().map(|violation| violation.path.as_str()).collect();
        if let Some(violation) = after.violations.iter().find(|violation| !known.contains(violation.path.as_str())) {
            return Err(in_the_way(&violation.path, &violation.why));
        }
        Ok(())
    }
}

/// Fails if the changes that were found are not the expected ones.
fn same(expected: &BTreeMap<Item, String>, found: &BTreeMap<Item, String>) -> Result<()> {
    let different = expected.iter().find(|(item, how)| found.get(*item) != Some(*how));
    let different = different.or_else(|| found.iter().find(|(item, _)| !expected.contains_key(*item)));
    match different {
        None => Ok(()),
        Some((item, _)) => {
            let wanted = expected.get(item);
            let is = found.get(item);
            tracing::error!("nothing was restored, since the result would differ: {item:?}: {wanted:?}, not {is:?}");
            Err(Error::new(
                ErrorKind::Stale,
                format!(
                    "nothing was restored: the uncommitted changes in this mount cannot be kept beside it ({item:?}); commit or discard them \
                     first"
                ),
            ))
        }
    }
}

/// Returns the error for a name where a restore removes or creates something.
fn in_the_way(path: &str, why: &str) -> Error {
    let path = printable::line(path);
    Error::new(ErrorKind::Stale, format!("nothing was restored: a name is in the way ({path}): {why}"))
}
