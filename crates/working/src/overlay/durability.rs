//! The order in which changes of a working tree reach the disk ([`crate::scratch::durable`]).

use std::sync::Arc;

use super::locked::records;
use super::upper::Upper;
use crate::scratch::data::FLUSH_FAILED;
#[cfg(doc)]
use crate::scratch::durable::Durable;
use crate::scratch::record::{Body, DataFileId, Record, Source};
use crate::scratch::{compaction, salvage};
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::Result;

impl Upper {
    /// Unlinks retired data files at once if the disk is nearly full.
    pub(super) async fn unlink_if_nearly_full(&self) {
        if std::mem::take(&mut self.lock().is_nearly_full)
            && let Err(error) = self.make_durable().await
        {
            tracing::warn!("{error}");
        }
    }

    /// Unlinks retired data files because an operation found no space. Returns false if there are
    /// none.
    pub(super) async fn free_space(&self) -> bool {
        self.lock().drop_nameless();
        self.durable.has_retired() && self.make_durable().await.is_ok()
    }

    /// Makes all changes of names durable, and the bytes that ext4 would flush with them: those
    /// that replaced other bytes.
    pub async fn make_durable(&self) -> Result<()> {
        let durable = Arc::clone(&self.durable);
        blocking(move || durable.flush()).await
    }

    /// Fails if data files have bytes that could not be written to the disk since the last call
    /// ([`Durable::check`]). May block.
    pub fn check_disk(&self, is_explained: bool) -> Result<()> {
        let has_data = !self.lock().state.data_files().is_empty();
        if has_data { self.durable.check(is_explained) } else { Ok(()) }
    }

    /// Marks data file `copy` if it was copied from a marked one.
    pub(super) fn inherit_flush_failure(&self, original: DataFileId, copy: DataFileId) {
        if self.durable.has_flush_failed(original) {
            self.durable.mark_flush_failed(copy);
        }
    }

    /// Logs the paths of files that could not be flushed since the last call.
    fn report_flush_failures(&self) {
        let failed = self.durable.take_unreported();
        if failed.is_empty() {
            return;
        }
        for path in self.paths_of_data(&failed) {
            tracing::error!("{path}: {FLUSH_FAILED}");
        }
    }

    /// Starts compacting the journal after flushes.
    pub fn begin_upkeep(self: &Arc<Self>) {
        let upper = Arc::downgrade(self);
        self.durable.set_upkeep(Arc::new(move || {
            let Some(upper) = upper.upgrade() else { return };
            upper.report_flush_failures();
            if let Err(error) = upper.compact() {
                upper.durable.set_compact_share(1, 2);
                tracing::warn!("{error}; the scratch journal stays as it is");
            }
        }));
    }

    /// Replaces the journal by a shorter one if most lines are about changes that later lines
    /// undid, or if it could not be flushed. Changes wait only while the state is copied
    /// ([`compaction`]).
    pub(super) fn compact(&self) -> Result<()> {
        let durable = &self.durable;
        let (records, end) = {
            let locked = self.lock();
            // Only the journal records that a commit is about to be published.
            let must_stay = locked.is_stale || locked.state.publishing.is_some();
            if must_stay || !(durable.is_long() || durable.needs_rewrite()) {
                return Ok(());
            }
            (records(&locked.origin, &locked.state, &locked.base), durable.end())
        };
        compaction::compact(durable, end, &records)
    }

    /// Returns a message about bytes that lost their names in a power cut.
    pub fn salvaged(&self) -> Option<String> {
        (self.salvaged > 0).then(|| {
            format!(
                "the machine went down: the bytes of {} files that had no durable name are in {}",
                self.salvaged,
                self.scratch().path().join(salvage::FOLDER).display()
            )
        })
    }
}

/// Returns the data file that `record` names.
pub(super) fn data_file_of(record: &Record) -> Option<DataFileId> {
    match record {
        Record::Create { body: Body::File(Source::Data(data)), .. }
        | Record::Promote { body: Body::File(Source::Data(data)), .. }
        | Record::SetSource { source: Source::Data(data), .. }
        | Record::Sparse { data, .. } => Some(*data),
        _ => None,
    }
}
