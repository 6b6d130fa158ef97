//! The end of a commit: the tree moves to what the branch has now.

use std::sync::Arc;

use super::super::committed::Committed;
use super::super::invalidation::base_invalidations;
use super::super::rebase;
use super::super::recovery::tree_at;
use super::Commit;
use super::prepare::Prepared;
use super::run::Publication;
use crate::overlay::invalidation::Invalidation;
use crate::overlay::rebase::Others;
use icechunkfs_base::error::Result;
use icechunkfs_base::failpoints;
use icechunkfs_repo::commit::progress::Stage;
use icechunkfs_repo::commit::rebase::commits_since;

impl Commit<'_> {
    /// Shows what is published. Returns what is to be reported, and what the kernel must forget.
    pub(super) async fn show(
        &self,
        prepared: &Prepared,
        publication: Publication,
    ) -> Result<(Committed, Vec<Invalidation>)> {
        let session = self.session;
        self.progress.enter(Stage::Showing);
        // Nothing may change until the tree is rebased onto the snapshot.
        if publication.new.is_some() {
            session.working.upper().set_undecided(&self.guard);
        }
        session.conflicts.clear();
        let is_published = publication.new.is_some();
        let shown = async {
            failpoints::pass(failpoints::COMMITTED)?;
            self.follow(prepared, publication).await
        };
        let shown = shown.await.map_err(|error| {
            if is_published {
                error.context("the commit is published, but the mount cannot show it yet; commit again to retry")
            } else {
                error
            }
        })?;
        session.close_commit(&self.guard);
        Ok(shown)
    }

    async fn follow(&self, prepared: &Prepared, publication: Publication) -> Result<(Committed, Vec<Invalidation>)> {
        let session = self.session;
        let base = &prepared.base;
        let detected = &prepared.detected;
        let Publication { new, given_up } = publication;
        let snapshot = new.as_ref().map(|(snapshot, _)| *snapshot);
        let written = match snapshot {
            Some(snapshot) => session.engine.take_written(snapshot).await,
            None => None,
        };
        let (repository, written) = match written {
            Some((repository, written)) => (repository, Some(Arc::new(written))),
            None => (session.repository().await?, None),
        };
        let (new_base, rebased_over) = match new {
            Some(published) => published,
            None => {
                let branch = &session.working.upper().origin().branch;
                let commits = commits_since(&repository, branch, base.id()).await?;
                (commits.last().map_or(base.id(), |tip| tip.id), commits.iter().map(|commit| commit.id).collect())
            }
        };
        let tree = match written {
            Some(written) => session.working.moves().tree_of(written, Arc::clone(&session.reader)),
            None => tree_at(&repository, &session.working, &session.reader, new_base).await,
        };
        let tree = tree?;
        let others = match rebased_over.as_slice() {
            [] => Others::Absent,
            _ => Others::Merged { given_up: &given_up },
        };
        let moved = &detected.changes.moved;
        let mut invalidations = base_invalidations(&repository, &base.tree, &tree, &rebased_over, moved).await;
        let followed =
            rebase::follow_commit(&session.working, &self.guard, &tree, detected, others, &session.new_ids).await?;
        invalidations.extend(followed);
        let committed = Committed {
            snapshot,
            rebased_over,
            nodes: detected.changes.node_count(),
            deleted: detected.changes.deleted.len(),
            is_empty: !detected.changes.deleted.is_empty() && tree.snapshot().node_count() == 0,
            chunks: detected.changes.chunk_count(),
            ..Committed::default()
        };
        Ok((committed, invalidations))
    }
}
