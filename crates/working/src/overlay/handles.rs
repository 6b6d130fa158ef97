//! Open files: their handles, and the data files that back passthrough handles.
//!
//! With passthrough the kernel moves the bytes of a handle without the daemon, and all handles of a
//! file have one backing. If a commit or a refresh moves the bytes elsewhere, the file keeps the
//! old backing until its last passthrough handle is closed.

use std::collections::HashSet;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use super::content::FileContents;
use super::kernel_view::{Admission, Opening};
use super::node::Inode;
use super::opens::{HandleKind, Open, add_handle, remove_handle};
use super::rebase::open_readers;
use super::upper::Upper;
use super::{Ino, Locked, gone, no_such};
use crate::scratch::data::Files;
use crate::scratch::record::{DataFileId, EntryId, Source};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Options of an open.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Opens for writing too.
    pub write: bool,
    /// Empties the file.
    pub truncate: bool,
    /// Fails with [`ErrorKind::Executed`] if a process executes the file.
    ///
    /// The kernel refuses most changes of such a file itself, but an open with `O_RDONLY | O_TRUNC`
    /// only after the daemon has emptied it.
    pub unless_executed: bool,
    /// Opens for execution by the kernel.
    pub execute: bool,
    /// Allows passthrough.
    pub passthrough: bool,
}

/// Result of an open.
#[derive(Debug)]
pub struct Opened {
    /// Data file for passthrough, if it is used.
    pub backing: Option<Arc<File>>,
    /// True if the file has a data file: the kernel's cached pages may be older.
    pub in_scratch: bool,
}

/// Handles of open files.
#[derive(Debug)]
pub struct Handles {
    pub(super) upper: Arc<Upper>,
    pub(super) contents: Arc<FileContents>,
    /// True while a commit may link data files: no further file is opened for passthrough.
    linking: AtomicBool,
    /// True if the kernel got a data file for passthrough writing since the mount began.
    passthrough_used: AtomicBool,
}

/// Time in which data files may be linked into the repository.
#[derive(Debug)]
pub struct Linking<'a>(&'a AtomicBool);

impl Drop for Linking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Handles {
    pub(super) fn new(contents: &Arc<FileContents>) -> Self {
        Handles {
            upper: Arc::clone(&contents.upper),
            contents: Arc::clone(contents),
            linking: AtomicBool::new(false),
            passthrough_used: AtomicBool::new(false),
        }
    }
}

impl Handles {
    /// Opens inode `number`. Every success needs a [`Handles::release`].
    ///
    /// Waits for the end of a move that is being told to the kernel.
    pub async fn open_file(&self, number: Ino, options: OpenOptions) -> Result<Opened> {
        let mut is_patient = true;
        let mut deadline = None;
        let since = self.upper.moment();
        self.refuse_gone(number, false).await?;
        loop {
            let opening = Opening { number, since, has_waited: deadline.is_some(), is_patient, writes: options.write };
            match self.try_open(opening, options).await? {
                Ok(opened) => return Ok(opened),
                Err(held) => {
                    let deadline = *deadline.get_or_insert_with(open_readers::deadline);
                    is_patient = open_readers::wait_for_admission(held, deadline).await;
                }
            }
            self.refuse_gone(number, true).await?;
        }
    }

    /// Opens a file, or returns the signal to wait for.
    async fn try_open(
        &self,
        opening: Opening,
        options: OpenOptions,
    ) -> Result<std::result::Result<Opened, watch::Receiver<()>>> {
        let number = opening.number;
        if !options.write {
            let mut locked = self.upper.lock();
            if let Admission::Later(held) = locked.kernel.may_open(opening)? {
                return Ok(Err(held));
            }
            locked.refuse_other_file(number)?;
            let source = locked.source_of(number);
            if source.is_none() && !locked.is_base_file(number) {
                return Err(gone(number));
            }
            return self.opened(&mut locked, number, source, options).map(Ok);
        }
        let guard = self.upper.enter().await?;
        let id = {
            let mut locked = self.upper.lock();
            if let Admission::Later(held) = locked.kernel.may_open(opening)? {
                return Ok(Err(held));
            }
            let is_executed = |open: &Open| open.executing_handles > 0;
            if options.unless_executed && locked.open_files.get(&number).is_some_and(is_executed) {
                return Err(Error::new(
                    ErrorKind::Executed,
                    "a process executes this file: end it before it is emptied",
                ));
            }
            locked.refuse_other_file(number)?;
            let id = locked.promote(&guard, number)?;
            add_handle(&mut locked.open_files, number, true);
            self.contents.record_change(&locked, id);
            id
        };
        let prepared = async {
            if options.truncate {
                self.contents.resize(id, 0).await?;
            } else if options.passthrough && self.has_data(id) && !self.contents.sparse.is_sparse(id) {
                // Bytes that are only in the repository are copied up by the first write.
                self.contents.own(id).await?;
            }
            let mut locked = self.upper.lock();
            let source = locked.state.get(id).and_then(|inode| inode.source().cloned());
            self.opened(&mut locked, number, source, options)
        };
        let opened = prepared.await;
        // The handle was counted first so that a commit sees it, and again on success.
        remove_handle(&mut self.upper.lock().open_files, number, HandleKind { writes: true, ..HandleKind::default() });
        opened.map(Ok)
    }

    fn opened(&self, locked: &mut Locked, number: Ino, source: Option<Source>, options: OpenOptions) -> Result<Opened> {
        let open = add_handle(&mut locked.open_files, number, options.write);
        open.executing_handles += u32::from(options.execute);
        // A failed open is never released.
        let backing = self.backing(locked, number, source.as_ref(), options).inspect_err(|_| {
            let kind = HandleKind { writes: options.write, backed: false, executes: options.execute };
            remove_handle(&mut locked.open_files, number, kind);
        })?;
        if backing.is_some() && options.write {
            self.passthrough_used.store(true, Ordering::Release);
        }
        let had_other_bytes = locked.kernel.on_opened(number);
        Ok(Opened { backing, in_scratch: had_other_bytes || matches!(source, Some(Source::Data(_))) })
    }

    /// Returns the data file for passthrough by a handle that has just been added, if it is used.
    fn backing(
        &self,
        locked: &mut Locked,
        number: Ino,
        source: Option<&Source>,
        options: OpenOptions,
    ) -> Result<Option<Arc<File>>> {
        let open = locked.open_files.get_mut(&number).ok_or_else(|| no_such(number))?;
        if open.passthrough_handles > 0 {
            // The kernel requires that all passthrough handles of a file have one backing.
            let backing = open.backing.as_ref().filter(|(data, _)| match source {
                Some(Source::Data(current)) => current == data,
                _ => !options.write,
            });
            let other = "a program has it open in the state before a remote change or a discard: close it there first";
            let (_, file) = backing.ok_or_else(|| Error::new(ErrorKind::Busy, other))?;
            open.passthrough_handles += 1;
            return Ok(Some(Arc::clone(file)));
        }
        let same_kind = open.handles == 1 + u32::from(options.write);
        let can_pass = options.passthrough && same_kind && !self.linking.load(Ordering::Acquire);
        let Some(Source::Data(data)) = source else { return Ok(None) };
        if locked.state.borrowed(*data).is_some() {
            return Ok(None);
        }
        if !can_pass {
            // The kernel would not ask for bytes of a file that has none, as one seems to have
            // whose data file was removed.
            if open.file.is_none() && !options.truncate {
                self.upper.files.stat(*data)?;
            }
            return Ok(None);
        }
        let file = match &open.file {
            Some(file) => Arc::clone(file),
            None => Arc::new(self.upper.files.open(*data)?),
        };
        // A write replaces a file that is in the repository too by a copy, which is impossible for
        // a backing.
        if !Files::is_unshared(&file)? {
            return Ok(None);
        }
        open.add_passthrough(*data, &file);
        Ok(Some(file))
    }

    /// Returns true if the bytes of inode `id` are in a data file, even one that only passthrough
    /// handles still read.
    fn has_data(&self, id: EntryId) -> bool {
        let locked = self.upper.lock();
        let Some(inode) = locked.state.get(id) else { return false };
        let read_on = locked.open_files.get(&inode.number).is_some_and(|open| open.backing.is_some());
        read_on || inode.data_file().is_some()
    }

    /// Returns the data file for passthrough to a file that
    /// [`super::namespace::Namespace::create`] has just created and opened.
    pub fn open_passthrough(&self, number: Ino) -> Result<Arc<File>> {
        let mut locked = self.upper.lock();
        let Some(Source::Data(data)) = locked.source_of(number) else { return Err(no_such(number)) };
        let file = Arc::new(self.upper.files.open(data)?);
        self.passthrough_used.store(true, Ordering::Release);
        locked.open_files.get_mut(&number).ok_or_else(|| no_such(number))?.add_passthrough(data, &file);
        Ok(file)
    }

    /// Undoes passthrough for a handle whose backing the kernel did not take.
    pub fn cancel_passthrough(&self, number: Ino) {
        if let Some(open) = self.upper.lock().open_files.get_mut(&number) {
            open.cancel_passthrough();
        }
    }

    /// Closes one handle of inode `number`.
    pub async fn release(&self, number: Ino, kind: HandleKind) -> Result<()> {
        let completed = if kind.writes { self.contents.complete_number(number).await } else { Ok(()) };
        let written = self.release_handle(number, kind);
        self.upper.unlink_if_nearly_full().await;
        if let Some(file) = written {
            Files::begin_flushing(file);
        }
        completed
    }

    /// Removes one handle. Returns the data file if the handle could write.
    fn release_handle(&self, number: Ino, kind: HandleKind) -> Option<Arc<File>> {
        let mut locked = self.upper.lock();
        let written = locked.open_files.get(&number).filter(|_| kind.writes).and_then(|open| open.file.clone());
        let id = locked.state.by_number(number);
        if kind.backed
            && let Some(open) = locked.open_files.get_mut(&number).filter(|open| open.passthrough_handles == 1)
        {
            let backing = open.backing.take().map(|(data, _)| Source::Data(data));
            let source = locked.source_of(number);
            // A commit left the data file to the handles that read it, and to other names of the
            // file, which became files of their own.
            if let (Some(Source::Data(data)), true) = (&backing, backing != source)
                && !locked.state.iter().any(|(_, inode)| inode.data_file() == Some(*data))
            {
                locked.retire(*data);
            }
        }
        let last = remove_handle(&mut locked.open_files, number, kind);
        // A descriptor that is kept for readers must not look like a program that writes to the
        // file: nothing could be committed.
        let only_read = |open: &&mut Open| open.writers == 0 && open.passthrough_handles == 0;
        if let Some(open) = locked.open_files.get_mut(&number).filter(only_read) {
            open.file = None;
        }
        if let Some(id) = id.filter(|_| kind.writes) {
            self.contents.record_change(&locked, id);
            if locked.open_files.get(&number).is_none_or(|open| open.writers == 0) {
                self.upper.uploads.enqueue_closed(id);
            }
            if let Some(data) = locked.state.get(id).and_then(Inode::data_file) {
                self.upper.durable.mark_closed(data);
            }
        }
        let deleted = id.is_some_and(|id| locked.state.get(id).is_some_and(|inode| inode.names.is_empty()));
        if let (true, Some(id)) = (last, id) {
            locked.drop_if_gone(id);
        }
        written.filter(|_| !deleted)
    }

    /// Refuses file `number`, which a program opens while the tree moves or after it has waited for
    /// that, if only the base before had it: the kernel then looks the name up again.
    pub(in super::super) async fn refuse_gone(&self, number: Ino, has_waited: bool) -> Result<()> {
        if !number.is_of_base() || !(has_waited || self.upper.moves.is_settling()) {
            return Ok(());
        }
        let (base, is_upper) = {
            let locked = self.upper.lock();
            (Arc::clone(&locked.base), locked.state.by_number(number).is_some())
        };
        let is_there = match base.tree.table().place(number) {
            _ if is_upper => true,
            // If it cannot be found out, reading it tells.
            Some(place) => base.tree.has(&place).await.unwrap_or(true),
            None => false,
        };
        if is_there { Ok(()) } else { Err(gone(number)) }
    }

    /// Allows data files to be linked into the repository, until the result is dropped: no further
    /// file is opened for passthrough.
    pub fn allow_linking(&self) -> Linking<'_> {
        self.linking.store(true, Ordering::Release);
        Linking(&self.linking)
    }

    /// Returns true if the kernel may write, or may have written, to data files by passthrough.
    pub fn was_passthrough_used(&self) -> bool {
        self.passthrough_used.load(Ordering::Acquire)
    }

    /// Returns true if any file is open for writing.
    pub fn any_open_for_writing(&self) -> bool {
        self.upper.lock().open_files.values().any(|open| open.writers > 0)
    }

    /// Returns the data files that passthrough handles use at the moment.
    pub fn passthrough_data(&self) -> HashSet<DataFileId> {
        let locked = self.upper.lock();
        let open = locked.open_files.iter().filter(|(_, open)| open.passthrough_handles > 0);
        open.filter_map(|(number, _)| locked.state.get(locked.state.by_number(*number)?)?.data_file()).collect()
    }
}
