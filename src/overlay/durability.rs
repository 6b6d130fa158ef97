//! The order in which changes of a working tree reach the disk ([`crate::scratch::durable`]).

use std::sync::Arc;

use super::{Locked, Lookup, WorkingTree};
use crate::error::Result;
use crate::scratch::journal::Journal;
use crate::scratch::record::{Body, DataFileId, Record, Source};
use crate::scratch::salvage;

impl WorkingTree {
    /// Appends `record` to the journal and applies it. With it, the bytes of data file `replaces` take the place of other bytes.
    pub(super) fn record_replacing(
        &self,
        locked: &mut Locked,
        record: Record,
        replaces: Option<DataFileId>,
    ) -> Result<()> {
        if locked.stale || locked.journal.durable().needs_rewrite() {
            self.rewrite(locked)?;
        }
        // An inode without a name does not outlive the mount, and a rewritten journal does not have it.
        let is_nameless = match &record {
            Record::Attributes { id, .. } | Record::SetSource { id, .. } => {
                *id != crate::scratch::record::ROOT && locked.state.get(*id).is_some_and(|inode| inode.names.is_empty())
            }
            _ => false,
        };
        if !is_nameless {
            locked.journal.append(&record, replaces)?;
        }
        locked.generation += 1;
        locked.state.apply(record, &self.base().tree)
    }

    /// Ensures that data file `data`, whose bytes are about to replace other bytes, reaches the disk before the journal's line. The
    /// caller must hold no lock.
    pub(super) fn write_out_early(&self, data: DataFileId) {
        let durable = Arc::clone(self.lock().journal.durable());
        durable.write_out_early(data);
    }

    /// Returns the data file of `found`, if it has one.
    pub(super) fn data_of(&self, found: &Lookup) -> Option<DataFileId> {
        let Lookup::Upper(id) = found else { return None };
        self.lock().state.get(*id)?.data_file()
    }

    /// Retires data file `data`, which the journal no longer needs.
    pub(super) fn retire(&self, locked: &mut Locked, data: DataFileId) {
        locked.nearly_full |= locked.journal.durable().retire(data);
    }

    /// Unlinks retired data files at once if the disk is nearly full.
    pub(super) async fn unlink_if_nearly_full(&self) {
        if std::mem::take(&mut self.lock().nearly_full)
            && let Err(error) = self.make_durable().await
        {
            tracing::warn!("{error}");
        }
    }

    /// Unlinks retired data files because an operation found no space. Returns false if there are none.
    pub(super) async fn free_space(&self) -> bool {
        self.lock().journal.durable().has_retired() && self.make_durable().await.is_ok()
    }

    /// Makes all changes of names durable, and the bytes that ext4 would flush with them: those that replaced other bytes.
    pub async fn make_durable(&self) -> Result<()> {
        self.sync(None).await
    }

    /// Starts compacting the journal after flushes.
    pub fn begin_upkeep(self: &Arc<Self>) {
        let working = Arc::downgrade(self);
        self.lock().journal.durable().set_upkeep(Arc::new(move || {
            let Some(working) = working.upgrade() else { return };
            if let Err(error) = working.compact() {
                working.lock().journal.postpone_compaction();
                tracing::warn!("{error}; the scratch journal stays as it is");
            }
        }));
    }

    /// Rewrites the journal if most lines are about changes that later lines undid. Changes are blocked only while the last lines are
    /// copied. A journal that could not be flushed is rewritten at any length.
    pub(super) fn compact(&self) -> Result<()> {
        let (records, position, durable) = {
            let mut locked = self.lock();
            if locked.journal.durable().needs_rewrite() && locked.state.publishing.is_none() {
                return self.rewrite(&mut locked);
            }
            // Only the journal records that a commit is about to be published.
            if locked.stale || locked.state.publishing.is_some() || !locked.journal.is_long() {
                return Ok(());
            }
            let durable = Arc::clone(locked.journal.durable());
            (self.journal_records(&locked.state, &self.base()), durable.length(), durable)
        };
        let compacted = Journal::compacted(self.scratch.directory(), &durable, position, &records)?;
        durable.flush()?;
        let mut locked = self.lock();
        locked.journal.switch_to(compacted)?;
        let durable = Arc::clone(locked.journal.durable());
        drop(locked);
        durable.keep_spare();
        Ok(())
    }

    /// Returns a message about bytes that lost their names in a power cut.
    pub fn salvaged(&self) -> Option<String> {
        (self.salvaged > 0).then(|| {
            format!(
                "the machine went down: the bytes of {} files that had no durable name are in {}",
                self.salvaged,
                self.scratch.path().join(salvage::FOLDER).display()
            )
        })
    }
}

/// Returns the data file whose bytes replace other bytes with `record`, as far as the record shows it.
pub(super) fn replaces(record: &Record) -> Option<DataFileId> {
    match record {
        Record::SetSource { source: Source::Data(data), .. } => Some(*data),
        Record::Covered { data, .. } => Some(*data),
        _ => None,
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
