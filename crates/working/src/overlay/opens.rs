//! Open files, by inode number.
//!
//! With every request the kernel names the inode and the kind of the handle, so a handle has no
//! state; the state that all handles of a file share is here.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::node::Ino;
use crate::scratch::record::DataFileId;

/// All open files.
pub type OpenFiles = HashMap<Ino, Open>;

/// Open file.
#[derive(Debug, Default)]
pub struct Open {
    /// Handles, including writing ones.
    pub handles: u32,
    /// Handles that may write. A shared mapping keeps its handle.
    pub writers: u32,
    /// Passthrough handles.
    pub passthrough_handles: u32,
    /// Handles by which the kernel executes the file. A process keeps its handle to its end.
    pub executing_handles: u32,
    /// Data file of the passthrough handles. After a commit only they may need it.
    pub backing: Option<(DataFileId, Arc<File>)>,
    /// Data file, while it has the file's bytes.
    pub file: Option<Arc<File>>,
    /// State of an overwrite from the beginning of the file.
    pub partial: Option<Partial>,
}

/// File of the base that is being overwritten from its beginning on. If the program writes all of
/// it, as most do, no old byte is fetched.
#[derive(Clone, Debug)]
pub struct Partial {
    /// Number of the data file.
    pub number: DataFileId,
    /// Data file.
    pub file: Arc<File>,
    /// Bytes written so far, from the beginning on.
    pub covered: u64,
    /// Bytes of the old file.
    pub old_size: u64,
}

impl Open {
    /// Adds a passthrough handle, with data file `data` as the backing.
    pub fn add_passthrough(&mut self, data: DataFileId, file: &Arc<File>) {
        self.passthrough_handles += 1;
        self.backing = Some((data, Arc::clone(file)));
        self.file = Some(Arc::clone(file));
    }

    /// Undoes passthrough for a handle whose backing the kernel did not take.
    pub fn cancel_passthrough(&mut self) {
        self.passthrough_handles = self.passthrough_handles.saturating_sub(1);
        self.backing = self.backing.take().filter(|_| self.passthrough_handles > 0);
    }
}

/// Kind of a handle, as far as the counts of [`Open`] depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandleKind {
    /// It may write.
    pub writes: bool,
    /// The kernel reads and writes the backing file directly.
    pub backed: bool,
    /// The kernel executes the file by it.
    pub executes: bool,
}

/// Adds a handle of inode `number`.
pub fn add_handle(files: &mut OpenFiles, number: Ino, writes: bool) -> &mut Open {
    let open = files.entry(number).or_default();
    open.handles += 1;
    open.writers += u32::from(writes);
    open
}

/// Removes a handle of inode `number`. Returns true if it was the last one.
pub fn remove_handle(files: &mut OpenFiles, number: Ino, kind: HandleKind) -> bool {
    let Some(open) = files.get_mut(&number) else { return false };
    open.handles = open.handles.saturating_sub(1);
    open.writers = open.writers.saturating_sub(u32::from(kind.writes));
    open.passthrough_handles = open.passthrough_handles.saturating_sub(u32::from(kind.backed));
    open.executing_handles = open.executing_handles.saturating_sub(u32::from(kind.executes));
    open.handles == 0 && files.remove(&number).is_some()
}
