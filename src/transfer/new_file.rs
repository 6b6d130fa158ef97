//! File that gets its name when it is complete.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec};
use rustix::io::Errno;

use crate::beneath;

/// Returns the name of a file until it is complete, where it must have one.
pub(super) fn temporary(name: &str) -> String {
    format!(".icechunkfs-{name}~")
}

/// File that does not have its final name yet.
#[derive(Debug)]
pub(super) struct NewFile {
    file: File,
    folder: Arc<OwnedFd>,
    name: String,
    /// True if the file has a temporary name.
    is_named: bool,
}

impl NewFile {
    pub(super) fn nameless(folder: Arc<OwnedFd>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, ".", flags, Mode::from_raw_mode(0o666))?;
        Ok(NewFile { file: file.into(), folder, name, is_named: false })
    }

    pub(super) fn named(folder: Arc<OwnedFd>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = || rustix::fs::openat(&folder, temporary(&name), flags, Mode::from_raw_mode(0o666));
        let file = match create() {
            // An export that was killed while it wrote this file left the name.
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&folder, temporary(&name), AtFlags::empty())?;
                create()?
            }
            created => created?,
        };
        Ok(NewFile { file: file.into(), folder, name, is_named: true })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its final name, replacing an existing file.
    pub(super) fn take_name(mut self) -> Result<(), Errno> {
        let name = self.name.as_str();
        if !self.is_named {
            match beneath::link(&self.file, &self.folder, name) {
                Err(Errno::EXIST) => {}
                linked => return linked,
            }
            // Only a rename replaces a file, so the new file needs a temporary name first.
            let temporary = temporary(name);
            if beneath::link(&self.file, &self.folder, &temporary) == Err(Errno::EXIST) {
                rustix::fs::unlinkat(&self.folder, temporary.as_str(), AtFlags::empty())?;
                beneath::link(&self.file, &self.folder, &temporary)?;
            }
        }
        let renamed = rustix::fs::renameat(&self.folder, temporary(name), &self.folder, name);
        self.is_named = renamed.is_err();
        renamed
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.is_named {
            // If the file stays, the next export of it replaces it.
            let _ = rustix::fs::unlinkat(&self.folder, temporary(&self.name), AtFlags::empty());
        }
    }
}

pub(super) fn timespec(micros: u64) -> Timespec {
    // The nanoseconds are below a billion, which fits.
    Timespec { tv_sec: (micros / 1_000_000).cast_signed(), tv_nsec: (micros % 1_000_000 * 1000) as _ }
}
