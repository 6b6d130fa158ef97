//! Open files: which handles there are, and which file of this machine the kernel reads or writes for them.
//!
//! With passthrough the kernel moves the bytes of a handle by itself, and all handles of a file have one backing. A file whose bytes have
//! moved elsewhere under such handles, because of a commit or a refresh, keeps the old backing until the last of them is closed.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Locked, WorkingTree, no_such};
use crate::error::{Error, ErrorKind, Result};
use crate::scratch::data::Files;
use crate::scratch::record::{Id, Source};

/// Options of an open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// For writing too.
    pub write: bool,
    /// Empty it.
    pub truncate: bool,
    /// The kernel may move the bytes by itself.
    pub passthrough: bool,
}

/// An open file.
#[derive(Debug)]
pub struct Opened {
    /// The file that holds the bytes, if the kernel is to move them by itself.
    pub backing: Option<Arc<File>>,
    /// Whether the file has a data file: what the kernel has in its page cache may be older.
    pub in_scratch: bool,
}

impl WorkingTree {
    /// Opens inode `number`. Every success needs a [`WorkingTree::release`].
    pub async fn open_file(&self, number: u64, options: OpenOptions) -> Result<Opened> {
        if !options.write {
            let mut locked = self.lock();
            let source = locked.source_of(number);
            if source.is_none() && number >= super::state::UPPER {
                return Err(no_such(number));
            }
            return self.opened(&mut locked, number, source, options);
        }
        let _gate = self.enter().await?;
        let id = {
            let mut locked = self.lock();
            let id = self.promote(&mut locked, number)?;
            locked.opens.add(number, true);
            self.may_change(&locked, id);
            id
        };
        let prepared = async {
            if options.truncate {
                self.resize(id, 0).await?;
            } else if options.passthrough && self.has_data(id) && !self.is_borrowed(id) {
                // What is only in the repository is copied when something is written, and not before.
                self.own(id).await?;
            }
            let mut locked = self.lock();
            let source = locked.state.get(id).and_then(|inode| inode.source().cloned());
            self.opened(&mut locked, number, source, options)
        };
        let opened = prepared.await;
        // It was counted before, so that a commit would see it, and again when it succeeded.
        self.lock().opens.remove(number, true, false);
        opened
    }

    fn opened(&self, locked: &mut Locked, number: u64, source: Option<Source>, options: OpenOptions) -> Result<Opened> {
        let in_scratch = matches!(source, Some(Source::Data(_)));
        let open = locked.opens.add(number, options.write);
        if open.backed > 0 {
            // The kernel insists that all handles of a file that it moves by itself have one backing.
            let backing = open.backing.as_ref().filter(|(data, _)| match &source {
                Some(Source::Data(current)) => current == data,
                _ => !options.write,
            });
            let backing = backing.map(|(_, file)| Arc::clone(file));
            if backing.is_some() {
                open.backed += 1;
                if options.write {
                    self.passed_on.store(true, Ordering::Release);
                }
                return Ok(Opened { backing, in_scratch: true });
            }
            locked.opens.remove(number, options.write, false);
            return Err(Error::new(
                ErrorKind::Busy,
                "a program still has it open as it was before it was changed by others or given up: close it there first",
            ));
        }
        let same_kind = open.handles == 1 + u32::from(options.write);
        let linking = self.linking.load(Ordering::Acquire);
        let Some(Source::Data(data)) = source.filter(|_| options.passthrough && same_kind && !linking) else {
            return Ok(Opened { backing: None, in_scratch });
        };
        if locked.state.borrowed(data).is_some() {
            return Ok(Opened { backing: None, in_scratch });
        }
        let file = match &open.file {
            Some(file) => Ok(Arc::clone(file)),
            None => self.files.open(data).map(Arc::new),
        };
        match file.and_then(|file| Files::is_own(&file).map(|own| (file, own))) {
            // What is in the repository too will be replaced by a copy when somebody writes: a backing could not be.
            Ok((_, false)) => Ok(Opened { backing: None, in_scratch }),
            Ok((file, true)) => {
                open.file = Some(Arc::clone(&file));
                open.backing = Some((data, Arc::clone(&file)));
                open.backed += 1;
                if options.write {
                    self.passed_on.store(true, Ordering::Release);
                }
                Ok(Opened { backing: Some(file), in_scratch })
            }
            Err(error) => {
                // Nobody releases what was not opened.
                locked.opens.remove(number, options.write, false);
                Err(error)
            }
        }
    }

    /// Whether the bytes of inode `id` are in a data file, if only because a program goes on reading that by the kernel's own
    /// means.
    fn has_data(&self, id: Id) -> bool {
        let locked = self.lock();
        let Some(inode) = locked.state.get(id) else { return false };
        let read_on = locked.opens.get(inode.number).is_some_and(|open| open.backing.is_some());
        read_on || matches!(inode.source(), Some(Source::Data(_)))
    }

    /// The kernel could not take the backing after all.
    pub fn not_backed(&self, number: u64) {
        if let Some(open) = self.lock().opens.get_mut(number) {
            open.backed = open.backed.saturating_sub(1);
            open.backing = open.backing.take().filter(|_| open.backed > 0);
        }
    }

    /// Closes one handle of inode `number`.
    pub async fn release(&self, number: u64, write: bool, backed: bool) -> Result<()> {
        let completed = if write { self.complete_number(number).await } else { Ok(()) };
        let written = self.release_handle(number, write, backed);
        self.relieve().await;
        if let Some(file) = written {
            Files::begin_flushing(file);
        }
        completed
    }

    /// Counts one handle less. Returns the data file of one that was written to.
    fn release_handle(&self, number: u64, write: bool, backed: bool) -> Option<Arc<File>> {
        let mut locked = self.lock();
        let written = locked.opens.get(number).filter(|_| write).and_then(|open| open.file.clone());
        let id = locked.state.by_number(number);
        if backed && let Some(open) = locked.opens.get_mut(number).filter(|open| open.backed == 1) {
            let backing = open.backing.take().map(|(data, _)| Source::Data(data));
            let source = locked.source_of(number);
            // A commit has left it to those who were reading.
            if let (Some(Source::Data(data)), true) = (&backing, backing != source) {
                self.retire(&mut locked, *data);
            }
        }
        let last = locked.opens.remove(number, write, backed);
        if let Some(id) = id.filter(|_| write) {
            self.may_change(&locked, id);
            if locked.opens.get(number).is_none_or(|open| open.writers == 0) {
                self.uploads.closed(id);
            }
            if let Some(Source::Data(data)) = locked.state.get(id).and_then(|inode| inode.source()) {
                locked.journal.durable().closed(*data);
            }
        }
        let deleted = id.is_some_and(|id| locked.state.get(id).is_some_and(|inode| inode.names.is_empty()));
        if let (true, true, Some(id)) = (last, deleted, id) {
            self.drop_inode(&mut locked, id);
        }
        written.filter(|_| !deleted)
    }

    /// The data file of inode `id`, if it has one, may have other bytes from here on, or since it was last said.
    pub(super) fn may_change(&self, locked: &Locked, id: Id) {
        if let Some(Source::Data(data)) = locked.state.get(id).and_then(|inode| inode.source()) {
            self.uploads.changed(*data);
        }
    }

    /// Forgets an inode that has neither name nor handle, with its bytes.
    pub(super) fn drop_inode(&self, locked: &mut Locked, id: Id) {
        if let Some(inode) = locked.state.drop_inode(id)
            && let Some(Source::Data(data)) = inode.source()
        {
            self.retire(locked, *data);
        }
    }
}
