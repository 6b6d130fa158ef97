//! Revert in a mount: what some commits changed becomes as it was before them, as an uncommitted
//! change.
//!
//! The result is installed like that of a restore, if the changes that are detected in it are those
//! of the plan ([`icechunkfs_repo::merge::revert`]).

use serde_json::{Value, json};

use super::Session;
use super::commit::refuse_open;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::{printable, shell, size};
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_repo::compare::changes::dropped_chunks;
use icechunkfs_repo::merge::revert::{self, RevertPlan, nothing_left};
use icechunkfs_repo::merge::ways_out::{Step, Way, headline, since, ways_out};
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
                let message = refusal(&planned, dry_run, &self.mountpoint());
                self.conflicts.found_by_revert(planned.conflicts);
                return Err(Error::new(ErrorKind::Stale, message));
            }
            // Those of an earlier attempt.
            self.conflicts.clear();
            let RevertPlan { reverted, changes, .. } = planned;
            let dropped = dropped_chunks(&self.reader, base.tree.snapshot(), &changes).await?;
            let mut changes = changes.into_inner();
            for (array, chunks) in dropped.into_inner() {
                changes.chunks.entry(array).or_default().extend(chunks);
            }
            let root = || "/".to_owned();
            let target = Target { node: root(), source: root(), scope: Scope::Subtree };
            let plan = Plan { target, changes, notes: Notes::default() };
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

/// Returns why nothing is taken back, and the commands that lead on.
fn refusal(plan: &RevertPlan, dry_run: bool, mountpoint: &str) -> String {
    /// Conflicts that are named.
    const NAMED: usize = 3;
    let named: Vec<String> = plan.conflicts.iter().take(NAMED).map(since).collect();
    let more = if plan.conflicts.len() > NAMED { "; .icechunk/conflicts lists all" } else { "" };
    let mut text = format!("{}: {}{more}", headline(plan, dry_run), named.join("; "));
    for Way { does, besides, steps } in ways_out(plan) {
        let besides: Vec<String> =
            besides.iter().map(|commit| format!("{} \"{}\"", commit.id, printable::line(&commit.title()))).collect();
        let besides = if besides.is_empty() { String::new() } else { format!(" ({})", besides.join(", ")) };
        // Only the last result is left to be looked at.
        let last = steps.len().saturating_sub(1);
        let commands = steps.iter().enumerate().map(|(at, step)| command(plan, step, mountpoint, at < last));
        let published = if last > 0 { ", with a commit to the branch for each but the last" } else { "" };
        text += &format!(". To {does}{besides}{published}: `{}`", commands.collect::<Vec<_>>().join(" && "));
    }
    text
}

/// Returns the command that makes `step` in the mount, with a commit if `is_committed`.
fn command(plan: &RevertPlan, step: &Step, mountpoint: &str, is_committed: bool) -> String {
    let place = shell::quote(mountpoint);
    match step {
        Step::Revert(commits, side) => {
            let ids: Vec<String> = commits.iter().map(|commit| commit.id.to_string()).collect();
            let mut command = format!("icechunkfs revert {place} {}", ids.join(" "));
            if let Some(side) = side {
                command += &format!(" --on-conflict={side}");
            }
            if let (true, [commit]) = (is_committed, commits.as_slice()) {
                let message = shell::quote(&format!("Revert \"{}\"", commit.title()));
                command += &format!(" && icechunkfs commit {place} -m {message}");
            }
            command
        }
        Step::Remove(path) => {
            let message = shell::quote(&format!("Remove {}", printable::line(path)));
            let commit =
                if is_committed { format!(" && icechunkfs commit {place} -m {message}") } else { String::new() };
            format!("rm -r {}{commit}", shell::quote(&format!("{mountpoint}{path}")))
        }
        Step::Restore(path) => format!("icechunkfs restore {place} {} --from={}", shell::quote(path), plan.before),
        Step::List(path) => format!("icechunkfs log {place} {}", shell::quote(path)),
    }
}
