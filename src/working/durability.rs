//! In which order a working tree's changes reach the disk ([`crate::scratch::durable`]).

use std::sync::Arc;

use super::{Found, Locked, WorkingTree, first_line};
use crate::error::Result;
use crate::scratch::journal::Journal;
use crate::scratch::record::{Body, Record, Source};
use crate::scratch::salvage;

impl WorkingTree {
    /// Writes `record` to the journal and carries it out. The bytes of data file `replaces` take the place of others with it.
    pub(super) fn record_replacing(&self, locked: &mut Locked, record: Record, replaces: Option<u64>) -> Result<()> {
        if locked.stale || locked.journal.durable().is_doubtful() {
            self.rewrite(locked)?;
        }
        // An inode without a name does not outlive the mount, and a journal that was written anew does not know it.
        let is_nameless = match &record {
            Record::Attributes { id, .. } | Record::Moved { id, .. } => {
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

    /// Sees to it that the bytes of data file `data`, which is about to take the place of others, reach the disk before the journal
    /// says so. No lock may be held.
    pub(super) fn prepare(&self, data: u64) {
        let durable = Arc::clone(self.lock().journal.durable());
        durable.prepare(data);
    }

    /// The data file of what was found under a name.
    pub(super) fn data_of(&self, found: &Found) -> Option<u64> {
        let Found::Upper(id) = found else { return None };
        match self.lock().state.get(*id)?.source() {
            Some(Source::Data(data)) => Some(*data),
            _ => None,
        }
    }

    /// Data file `data` is not needed by what the journal says now.
    pub(super) fn retire(&self, locked: &mut Locked, data: u64) {
        locked.nearly_full |= locked.journal.durable().retire(data);
    }

    /// Unlinks what is not needed, at once if the disk is nearly full.
    pub(super) async fn relieve(&self) {
        if std::mem::take(&mut self.lock().nearly_full)
            && let Err(error) = self.make_durable().await
        {
            tracing::warn!("{error}");
        }
    }

    /// Unlinks what is not needed because there is no room for something else. False if that is nothing.
    pub(super) async fn make_room(&self) -> bool {
        self.lock().journal.durable().has_retired() && self.make_durable().await.is_ok()
    }

    /// Makes every change of names durable, and with it the bytes that ext4 would keep: those that replaced others.
    pub async fn make_durable(&self) -> Result<()> {
        self.sync(None).await
    }

    /// Keeps the journal short from now on.
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

    /// Writes the journal anew if most of it is about changes that later ones undid. Only the last lines are copied while
    /// nothing else can be done. One that could not be flushed is written anew whatever its length.
    pub(super) fn compact(&self) -> Result<()> {
        let (records, position, durable) = {
            let mut locked = self.lock();
            if locked.journal.durable().is_doubtful() && locked.state.publishing.is_none() {
                return self.rewrite(&mut locked);
            }
            // That a commit is on its way is said by the journal alone.
            if locked.stale || locked.state.publishing.is_some() || !locked.journal.is_long() {
                return Ok(());
            }
            let base = self.base();
            let mut records = vec![first_line(&self.origin, base.id())];
            records.extend(locked.state.dump(&base.tree));
            let durable = Arc::clone(locked.journal.durable());
            (records, durable.length(), durable)
        };
        let compacted = Journal::compacted(self.scratch.directory(), &durable, position, &records)?;
        durable.flush()?;
        let mut locked = self.lock();
        locked.journal.go_on_with(compacted)?;
        let durable = Arc::clone(locked.journal.durable());
        drop(locked);
        durable.keep_spare();
        Ok(())
    }

    /// What to tell the user of bytes that a power cut left without a name.
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

/// The data file whose bytes take the place of others with `record`, as far as that can be seen from it.
pub(super) fn replaces(record: &Record) -> Option<u64> {
    match record {
        Record::Moved { source: Source::Data(data), .. } => Some(*data),
        Record::Covered { data, .. } => Some(*data),
        _ => None,
    }
}

/// The data file that `record` names.
pub(super) fn data_file_of(record: &Record) -> Option<u64> {
    match record {
        Record::Create { body: Body::File(Source::Data(data)), .. }
        | Record::Promote { body: Body::File(Source::Data(data)), .. }
        | Record::Moved { source: Source::Data(data), .. }
        | Record::Borrowed { data, .. } => Some(*data),
        _ => None,
    }
}
