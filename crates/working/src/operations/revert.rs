//! Revert in a mount: what some commits changed becomes as it was before them, as an uncommitted
//! change.
//!
//! The result is installed like that of a restore, if the changes that are detected in it are those
//! of the plan ([`icechunkfs_repo::merge::revert`]).

use serde_json::{Value, json};

use super::Session;
use super::commit::refuse_open;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::{printable, size};
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::merge::revert::{self, RevertPlan, nothing_left};
use icechunkfs_repo::restore::{Notes, Plan, Scope, Target};

impl Session {
    /// Takes back the commits that the revisions `commits` name. Returns the result as text and as
    /// JSON. With `dry_run` nothing is changed.
    ///
    /// Errors: those of [`revert::plan_on`]; [`ErrorKind::Stale`] if there are uncommitted changes,
    /// conflicts with later commits, or untracked files in the way; [`ErrorKind::Busy`] if a file
    /// is open for writing.
    pub async fn revert(&self, commits: &[String], on_conflict: OnConflict, dry_run: bool) -> Result<(String, Value)> {
        let _turn = self.take_turn().await;
        self.resolve_pending().await?;
        let repository = self.repository().await?;
        let mut ids = Vec::new();
        for word in commits {
            ids.push(repository.resolve_revision(word).await?.id);
        }
        let (reverted, plan, invalidations) = {
            let guard = self.working.upper().quiesce().await;
            self.wait_for_closes().await;
            let (frozen, detected) = self.detect_changes().await?;
            refuse_open(&frozen)?;
            if !detected.changes.is_empty() {
                let message = "the mount has uncommitted changes: commit or discard them, then take the commits back";
                return Err(Error::new(ErrorKind::Stale, message));
            }
            let base = self.working.upper().base();
            let planned = revert::plan_on(&repository, &self.reader, base.tree.snapshot(), &ids, on_conflict).await?;
            if !planned.conflicts.is_empty() {
                let count = size::counted(planned.conflicts.len() as u64, "conflict");
                let ids: Vec<String> = planned.obstacles.iter().map(|commit| commit.id.to_string()).collect();
                let first = match ids.as_slice() {
                    [] => "the later commits that `icechunkfs log MOUNT PATH` lists".to_owned(),
                    ids => ids.join(", then "),
                };
                let others = ways_out(&planned);
                self.conflicts.found_by_revert(planned.conflicts);
                let message = format!(
                    "later commits changed the same things ({count}, in .icechunk/conflicts): nothing was taken back. Take \
                     back and commit first {first}. {others}"
                );
                return Err(Error::new(ErrorKind::Stale, message));
            }
            let RevertPlan { reverted, changes, .. } = planned;
            let root = || "/".to_owned();
            let target = Target { node: root(), source: root(), scope: Scope::Subtree };
            let plan = Plan { target, changes: changes.into_inner(), notes: Notes::default() };
            let invalidations = self.install_plan(&guard, &root(), &plan, detected, dry_run).await?;
            (reverted, plan, invalidations)
        };
        self.invalidate(invalidations).await?;
        let ids: Vec<_> = reverted.iter().map(|commit| commit.id).collect();
        let [nodes, chunks] = [plan.changes.node_count(), plan.changes.chunk_count()];
        let counts = plan.counts();
        let commits = size::counted(ids.len() as u64, "commit");
        let text = match (dry_run, plan.changes.is_empty()) {
            (_, true) => format!("nothing to take back: {}", nothing_left(on_conflict == OnConflict::Theirs)),
            (true, false) => format!("{commits} can be taken back: {counts}"),
            (false, false) => self.warn_if_unflushed(format!("took back {commits}: {counts} to commit")),
        };
        Ok((text + "\n", json!({"reverted": ids, "nodes": nodes, "chunks": chunks, "snapshot": null})))
    }
}

/// Returns what else can be done about the conflicts, as sentences.
fn ways_out(plan: &RevertPlan) -> String {
    if let Some(conflict) = plan.undecidable() {
        let path = printable::line(&conflict.path);
        return format!("Or change {path} here as you want it, and commit: --on-conflict does not decide that");
    }
    let ways = plan.decisions();
    let ways: Vec<_> =
        ways.iter().map(|(side, does)| format!("repeat this with --on-conflict={side} to {does}")).collect();
    format!("Or {}", ways.join(". Or "))
}
