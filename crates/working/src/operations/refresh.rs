//! Discard of uncommitted changes, and refresh: rebase onto the tip of the branch.

use std::sync::Arc;

use super::Session;
use super::changes::DetectedChanges;
use super::commit::refuse_open;
use super::identity;
use super::invalidation::{base_invalidations, invalidations_between};
use super::paths::{is_known, lost_root_message};
use super::rebase::{self, Rebased};
use super::recovery::{find_landed, landed_message};
use super::resolve::refusal;
use crate::overlay::Base;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::stages::Stages;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::rebase::Comparison;
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_repo::repo::{MAX_SNAPSHOT, Repository};

impl Session {
    /// Discards the uncommitted changes at and below `path`, or all of them, whatever the mount
    /// shows, if it is empty. Untracked files stay.
    ///
    /// Errors: [`ErrorKind::NotFound`] if neither the snapshot nor a change has the path,
    /// [`ErrorKind::InvalidInput`] if the mount does not show it.
    pub async fn discard(&self, path: &str) -> Result<String> {
        let _turn = self.take_turn().await;
        self.resolve_pending().await?;
        let is_all = path.is_empty();
        let path = if is_all { "/".to_owned() } else { self.repository_path(path).await? };
        let is_nothing;
        let invalidations = {
            let guard = self.working.upper().quiesce().await;
            self.wait_for_closes().await;
            let (frozen, detected) = self.detect_changes().await?;
            is_nothing = detected.changes.is_empty() && detected.violations.is_empty();
            if !is_all {
                if !is_known(&frozen, &self.working.upper().base().tree, &path).await? {
                    let path = printable::line(&path);
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("{path}: no such name, now or in the snapshot: `status` shows what can be discarded"),
                    ));
                }
                self.shown_part().check_moves(&detected, &path)?;
            }
            if let Some(open) = frozen.open_for_writing.iter().find(|other| is_below(other, &path)) {
                return Err(Error::new(ErrorKind::Busy, format!("{open} is open for writing: close it first")));
            }
            self.working.moves().preserve(&guard, &detected.untracked_entries(), &[]).await?;
            let invalidations = rebase::discard(&self.working, &guard, &path, &detected, &self.new_ids).await?;
            self.new_ids.lock().clear();
            // Moved nodes may return to other paths than those by which conflicts name them.
            if detected.changes.moved.is_empty() {
                self.conflicts.discarded(&path, &self.working.upper().base().tree);
            } else {
                self.conflicts.clear();
            }
            self.working.uploads().forget_uploads();
            invalidations
        };
        self.invalidate(invalidations).await?;
        let path = printable::line(&path);
        let report =
            if is_nothing { format!("no changes below {path}") } else { format!("discarded changes below {path}") };
        Ok(self.warn_if_unflushed(report))
    }

    /// Rebases the tree onto the tip of the branch; uncommitted changes stay.
    ///
    /// Fails with [`ErrorKind::Stale`] if remote changes conflict with them, or the branch was
    /// reset or amended. A mount without changes follows such a branch.
    pub async fn refresh(&self) -> Result<String> {
        let _turn = self.take_turn().await;
        let was_offline = self.go_online().await?;
        let refreshed = self.refresh_online().await;
        if let (Err(error), true) = (&refreshed, was_offline) {
            self.go_offline_after(error);
        }
        refreshed
    }

    /// Compares the changes `detected` on top of `base` with the commits since. Returns none if
    /// there is none.
    ///
    /// Errors: [`ErrorKind::Stale`] if they cannot be carried over.
    async fn compared_with_tip(&self, base: &Base, detected: &DetectedChanges) -> Result<Option<Comparison>> {
        let branch = &self.working.upper().origin().branch;
        let settlements = self.settlements(detected);
        let compared = self.engine.check(base.tree.snapshot(), branch, &detected.changes, &settlements).await;
        let compared = match compared {
            // Without changes there is nothing that the commits of another history could conflict
            // with: the mount follows the branch to wherever it was reset.
            Err(error) if error.kind() == ErrorKind::Stale && detected.changes.is_empty() => {
                Some(self.elsewhere(branch, error).await?)
            }
            compared => compared?,
        };
        let Some(compared) = compared else { return Ok(None) };
        if !compared.conflicts.is_empty() {
            let error = refusal(&compared.conflicts, "nothing was changed", &self.mountpoint());
            self.conflicts.found(compared.conflicts);
            return Err(error);
        }
        if !compared.giving_way.is_empty() {
            let message = "some chunks are settled in favor of concurrent commits, which only a commit applies: \
                           commit, or discard them; nothing was changed";
            return Err(Error::new(ErrorKind::Stale, message));
        }
        Ok(Some(compared))
    }

    async fn refresh_online(&self) -> Result<String> {
        self.resolve_pending().await?;
        let stages = Stages::begin("waiting for open files");
        let (report, invalidations) = {
            let guard = self.working.upper().quiesce().await;
            self.wait_for_closes().await;
            stages.enter("finding changes");
            let (frozen, detected) = self.detect_changes().await?;
            // A half-written chunk would mix the bytes of two bases.
            refuse_open(&frozen)?;
            stages.enter("comparing with other commits");
            let base = self.working.upper().base();
            let branch = self.working.upper().origin().branch.clone();
            let repository = self.repository().await?;
            self.refuse_landed(&repository, &base, detected.changes.is_empty()).await?;
            let Some(compared) = self.compared_with_tip(&base, &detected).await? else {
                return Ok(format!("{branch} has no newer commit than {}", base.id()));
            };
            let mut detected = if self
                .working
                .moves()
                .preserve(&guard, &detected.untracked_entries(), &detected.foreign_places())
                .await?
            {
                self.detect_changes().await?.1
            } else {
                detected
            };
            stages.enter("showing the new snapshot");
            let tree = self.working.moves().tree_of(compared.tip, Arc::clone(&self.reader))?;
            let mut invalidations = match compared.commits.as_slice() {
                [] => invalidations_between(&self.reader, &base.tree, &tree).await?,
                commits => base_invalidations(&repository, &base.tree, &tree, commits, &[]).await,
            };
            match rebase::rebase_uncommitted(
                &self.working,
                &guard,
                &tree,
                &mut detected,
                compared.merged,
                &self.new_ids,
            )
            .await?
            {
                Rebased::Done(more) => invalidations.extend(more),
                Rebased::Collisions(collisions) => {
                    let conflicts = rebase::as_conflicts(collisions, tree.snapshot());
                    let message = untracked_in_the_way(&conflicts);
                    self.conflicts.found(conflicts);
                    return Err(Error::new(ErrorKind::Stale, message));
                }
            }
            self.conflicts.clear();
            let to = tree.snapshot().id();
            let report = match compared.commits.len() {
                0 => format!("moved to {to}, to which {branch} was reset"),
                1 => format!("moved over one commit to {to}"),
                count => format!("moved over {count} commits to {to}"),
            };
            (report, invalidations)
        };
        self.invalidate(invalidations).await?;
        let report = self.warn_if_unflushed(report);
        Ok(match self.lost_root().await? {
            Some(root) => format!("{report}; warning: {}", lost_root_message(&root)),
            None => report,
        })
    }

    /// Returns the comparison of no changes with the tip of the branch, which was reset or amended.
    /// Fails with `error` if there is no such branch any more.
    async fn elsewhere(&self, branch: &str, error: Error) -> Result<Comparison> {
        // As it is now: what was opened before may be older than the error.
        let repository = self.repository().await?;
        let origin = self.working.upper().origin();
        identity::compare(
            &repository,
            origin,
            &identity::origin_of(&repository, branch).await?,
            self.working.upper().scratch().path(),
        )
        .await?;
        let tip = repository.branch_tip(branch).await?.ok_or(error)?;
        Ok(Comparison::elsewhere(Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await?)))
    }

    /// Adds a warning to the report of an operation that has moved the tree, if the new journal
    /// could not be flushed. It is no failure: the mount and the next one show the new state, and
    /// after a power cut both journals have all of their bytes.
    pub(super) fn warn_if_unflushed(&self, report: String) -> String {
        if !self.working.upper().durable().needs_rewrite() {
            return report;
        }
        let report = report.trim_end();
        format!(
            "{report}; warning: the scratch directory could not be flushed, and a power cut may undo this: check its disk"
        )
    }

    /// Fails if a commit of this mount that seemed to fail is on the branch after all: it contains
    /// part of the changes, and only the next commit can separate them.
    async fn refuse_landed(&self, repository: &Repository, base: &Base, is_clean: bool) -> Result<()> {
        match find_landed(repository, &self.working, base.id()).await {
            // The branch was reset, and there are no changes that a landed commit could have.
            Err(error) if error.kind() == ErrorKind::Stale && is_clean => Ok(()),
            Err(error) => Err(error),
            Ok(None) => Ok(()),
            Ok(Some(landed)) => Err(Error::new(ErrorKind::Stale, format!("{}, then refresh", landed_message(landed)))),
        }
    }
}

fn untracked_in_the_way(conflicts: &[Conflict]) -> String {
    let named: Vec<&str> = conflicts.iter().map(|conflict| conflict.path.as_str()).take(5).collect();
    format!(
        "untracked names that remote commits have ({}: {}): move them away, then refresh; nothing was changed",
        conflicts.len(),
        named.join(", ")
    )
}
