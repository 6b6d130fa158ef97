//! The journal as the working tree writes it.

use std::sync::Arc;

use super::state::State;
use super::{Base, Origin};
use crate::error::Result;
use crate::format::ids::ObjectId;
use crate::scratch::durable::Durable;
use crate::scratch::journal::{FORMAT, Journal};
use crate::scratch::record::{DataFileId, Record};

/// Journal, and whether it can be appended to.
#[derive(Debug)]
pub(super) struct JournalWriter {
    pub(super) file: Journal,
    origin: Origin,
    /// True if the journal is not about the present state, because it could not be rewritten.
    pub(super) is_stale: bool,
    /// True if the disk is nearly full and data files wait to be unlinked.
    is_nearly_full: bool,
}

impl JournalWriter {
    pub(super) fn new(file: Journal, origin: Origin) -> Self {
        JournalWriter { file, origin, is_stale: false, is_nearly_full: false }
    }

    /// Returns the durability state of the journal.
    pub(super) fn durable(&self) -> &Arc<Durable> {
        self.file.durable()
    }

    /// Rewrites the journal if nothing can be appended to the present one.
    pub(super) fn make_appendable(&mut self, state: &State, base: &Base) -> Result<()> {
        if self.is_stale || self.durable().needs_rewrite() { self.rewrite(state, base) } else { Ok(()) }
    }

    /// Rewrites the journal. Nothing is appended until that succeeds.
    pub(super) fn rewrite(&mut self, state: &State, base: &Base) -> Result<()> {
        self.is_stale = true;
        self.replace(state, base)
    }

    /// Replaces the journal by one of `state` over `base`. On failure the present one remains valid.
    pub(super) fn replace(&mut self, state: &State, base: &Base) -> Result<()> {
        self.file.rewrite(&self.records(state, base))?;
        self.is_stale = false;
        Ok(())
    }

    /// Returns the records of a journal of `state` over `base`.
    pub(super) fn records(&self, state: &State, base: &Base) -> Vec<Record> {
        let mut records = vec![first_line(&self.origin, base.id())];
        records.extend(state.dump(&base.tree));
        records
    }

    /// Retires data file `data`, which the journal no longer needs.
    pub(super) fn retire(&mut self, data: DataFileId) {
        self.is_nearly_full |= self.durable().retire(data);
    }

    /// Returns true if the disk is nearly full and data files wait to be unlinked, once for each time.
    pub(super) fn take_nearly_full(&mut self) -> bool {
        std::mem::take(&mut self.is_nearly_full)
    }
}

/// Returns the first line of a journal.
pub(super) fn first_line(origin: &Origin, snapshot: ObjectId) -> Record {
    Record::Base {
        format: FORMAT,
        repository: origin.repository.clone(),
        branch: origin.branch.clone(),
        snapshot: snapshot.to_string(),
        identity: origin.identity.map(|identity| identity.to_string()),
    }
}
