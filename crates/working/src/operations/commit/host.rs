//! The mount, as far as the engine asks it during a commit.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;

use super::super::{DetectedChanges, Session, rebase};
use crate::overlay::WorkingTree;
use crate::scratch::record::{DataFileId, EntryId, Name};
use icechunkfs_base::error::Result;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_repo::commit::conflict::Conflict;
use icechunkfs_repo::commit::request::CommitHost;
use icechunkfs_repo::reader::Reader;

/// Working tree whose changes are committed.
pub(super) struct WorkingHost {
    working: Arc<WorkingTree>,
    reader: Arc<Reader>,
    untracked: HashSet<(EntryId, Name)>,
    untracked_paths: HashSet<String>,
}

impl WorkingHost {
    pub(super) fn new(session: &Session, detected: &DetectedChanges) -> Self {
        WorkingHost {
            working: Arc::clone(&session.working),
            reader: Arc::clone(&session.reader),
            untracked: detected.untracked_entries(),
            untracked_paths: detected.untracked_paths().into_iter().collect(),
        }
    }
}

#[async_trait]
impl CommitHost for WorkingHost {
    fn on_publish(&self, snapshot: ObjectId) -> Result<()> {
        self.working.upper().about_to_publish(snapshot)
    }

    fn on_flush_failure(&self, file: &str) {
        if let Some(data) = DataFileId::from_file_name(file) {
            self.working.upper().durable().mark_flush_failed(data);
        }
    }

    async fn conflicts_with(&self, tip: &Arc<Snapshot>, has_landed: bool) -> Result<Vec<Conflict>> {
        let tree = self.working.moves().tree_of(Arc::clone(tip), Arc::clone(&self.reader))?;
        let mut collisions = self.working.moves().collisions(&tree, &self.untracked).await?;
        // A landed commit of this mount contains the names created here: only untracked names can
        // collide with it.
        collisions.retain(|collision| !has_landed || self.untracked_paths.contains(&collision.path));
        Ok(rebase::as_conflicts(collisions, tip))
    }
}
