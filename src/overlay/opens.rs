//! Open files, by inode number.
//!
//! With every request the kernel names the inode and whether the handle writes, so a handle has no state; the state that all handles of a
//! file share is here.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use super::node::Ino;
use crate::scratch::record::DataFileId;

/// All open files.
#[derive(Debug, Default)]
pub struct OpenFiles {
    open: HashMap<Ino, Open>,
}

/// Open file.
#[derive(Debug, Default)]
pub struct Open {
    /// Handles, including writing ones.
    pub handles: u32,
    /// Handles that may write. A shared mapping keeps its handle.
    pub writers: u32,
    /// Passthrough handles.
    pub passthrough_handles: u32,
    /// Data file of the passthrough handles. After a commit only they may need it.
    pub backing: Option<(DataFileId, Arc<File>)>,
    /// Data file, while it has the file's bytes.
    pub file: Option<Arc<File>>,
    /// State of an overwrite from the beginning of the file.
    pub partial: Option<Partial>,
}

/// File of the base that is being overwritten from its beginning on. If the program writes all of it, as most do, no old byte is fetched.
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

impl OpenFiles {
    /// Adds a handle.
    pub fn add(&mut self, number: Ino, writes: bool) -> &mut Open {
        let open = self.open.entry(number).or_default();
        open.handles += 1;
        open.writers += u32::from(writes);
        open
    }

    /// Removes a handle. Returns true if it was the last one.
    pub fn remove(&mut self, number: Ino, writes: bool, backed: bool) -> bool {
        let Some(open) = self.open.get_mut(&number) else { return false };
        open.handles = open.handles.saturating_sub(1);
        open.writers = open.writers.saturating_sub(u32::from(writes));
        open.passthrough_handles = open.passthrough_handles.saturating_sub(u32::from(backed));
        if open.handles > 0 {
            return false;
        }
        self.open.remove(&number);
        true
    }

    /// Returns all open files.
    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Open)> {
        self.open.iter().map(|(number, open)| (*number, open))
    }

    /// Returns all open files for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Ino, &mut Open)> {
        self.open.iter_mut().map(|(number, open)| (*number, open))
    }

    /// Returns the open file `number`.
    pub fn get(&self, number: Ino) -> Option<&Open> {
        self.open.get(&number)
    }

    /// Returns the open file `number` for changes.
    pub fn get_mut(&mut self, number: Ino) -> Option<&mut Open> {
        self.open.get_mut(&number)
    }

    /// Returns the numbers of open files.
    pub fn numbers(&self) -> impl Iterator<Item = Ino> {
        self.open.keys().copied()
    }

    /// Returns the numbers of files that are open for writing.
    pub fn written(&self) -> impl Iterator<Item = Ino> {
        self.open.iter().filter(|(_, open)| open.writers > 0).map(|(number, _)| *number)
    }

    /// Returns the size of a file that is being overwritten.
    pub fn partial_size(&self, number: Ino) -> Option<u64> {
        let partial = self.open.get(&number)?.partial.as_ref()?;
        Some(partial.covered.max(partial.old_size))
    }
}
