//! Locks of single files: one task at a time copies up or completes the bytes of a file.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::scratch::record::EntryId;

/// Locks of the files that are being copied up or completed.
#[derive(Debug, Default)]
pub(super) struct FileLocks {
    turns: Mutex<HashMap<EntryId, Arc<tokio::sync::Mutex<()>>>>,
}

/// Proof that no other task copies up or completes a file while this exists.
#[derive(Debug)]
pub(super) struct FileLock {
    id: EntryId,
    _turn: OwnedMutexGuard<()>,
}

impl FileLocks {
    /// Waits until no other task copies up or completes file `id`, and keeps other tasks out.
    pub(super) async fn lock(&self, id: EntryId) -> FileLock {
        let turn = {
            let mut turns = self.turns.lock();
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(id).or_default())
        };
        FileLock { id, _turn: turn.lock_owned().await }
    }
}

impl FileLock {
    /// Returns the locked file.
    pub(super) fn id(&self) -> EntryId {
        self.id
    }
}
