//! Revert in a mount: what some commits changed becomes as it was before them, as an uncommitted
//! change.
//!
//! The result is installed like that of a restore, if the changes that are detected in it are those
//! of the plan ([`icechunkfs_repo::merge::revert`]).

use serde_json::{Value, json};

use super::Session;
use super::rebase;
use super::restore::Check;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::merge::revert::{self, RevertPlan};
use icechunkfs_repo::restore::{Notes, Plan, Scope, Target};

/// Conflicts that a message lists; `.icechunk/conflicts` has all.
const LISTED: usize = 20;

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
            let (frozen, mut detected) = self.detect_changes().await?;
            super::commit::refuse_open(&frozen)?;
            if !detected.changes.is_empty() {
                let message = "the mount has uncommitted changes: commit or discard them, then take the commits back";
                return Err(Error::new(ErrorKind::Stale, message));
            }
            let base = self.working.upper().base();
            let planned = revert::plan_on(&repository, &self.reader, base.tree.snapshot(), &ids, on_conflict).await?;
            if !planned.conflicts.is_empty() {
                return Err(self.refuse_conflicts(planned));
            }
            let RevertPlan { reverted, changes, .. } = planned;
            let root = || "/".to_owned();
            let target = Target { node: root(), source: root(), scope: Scope::Subtree };
            let plan = Plan { target, changes: changes.into_inner(), notes: Notes::default() };
            if self.working.moves().preserve(&guard, &detected.untracked_entries(), &[]).await? {
                detected = self.detect_changes().await?.1;
            }
            let candidate =
                self.working.moves().plan_restore(&guard, &root(), &detected.untracked_entries(), &plan).await?;
            let check = Check::new(&plan, base.tree.snapshot(), &detected);
            let invalidations =
                rebase::install_restored(&self.working, &guard, candidate, &self.new_ids, dry_run, &check).await?;
            if !dry_run {
                self.new_ids.lock().clear();
                self.working.uploads().forget_uploads();
            }
            (reverted, plan, invalidations)
        };
        self.invalidate(invalidations).await?;
        let ids: Vec<_> = reverted.iter().map(|commit| commit.id).collect();
        let [nodes, chunks] = [plan.changes.node_count(), plan.changes.chunk_count()];
        let counts = plan.counts();
        let text = match (dry_run, plan.changes.is_empty()) {
            (_, true) => "nothing is left of what they changed".to_owned(),
            (true, false) => format!("{} commits can be taken back: {counts}", ids.len()),
            (false, false) => self.warn_if_unflushed(format!("took back {} commits: {counts} to commit", ids.len())),
        };
        Ok((text + "\n", json!({"reverted": ids, "nodes": nodes, "chunks": chunks, "snapshot": null})))
    }

    fn refuse_conflicts(&self, plan: RevertPlan) -> Error {
        let lines = plan.conflicts.iter().take(LISTED).map(|conflict| format!("  {conflict}\n"));
        let error = revert::refusal(&plan, &lines.collect::<String>());
        *self.conflicts.lock() = plan.conflicts;
        error
    }
}
