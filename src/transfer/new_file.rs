//! A file that takes its name when it is complete, with the time that it is to have.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

/// What a file is called until it is complete, where it has to be called something.
pub(super) fn temporary(name: &str) -> String {
    format!(".icechunkfs-{name}~")
}

/// A file that has no name yet.
#[derive(Debug)]
pub(super) struct NewFile {
    file: File,
    folder: Arc<OwnedFd>,
    name: String,
    /// Whether it has a temporary name.
    is_named: bool,
}

impl NewFile {
    /// One without a name.
    pub(super) fn nameless(folder: Arc<OwnedFd>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, ".", flags, Mode::from_raw_mode(0o666))?;
        Ok(NewFile { file: file.into(), folder, name, is_named: false })
    }

    /// One with a temporary name.
    pub(super) fn named(folder: Arc<OwnedFd>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = || rustix::fs::openat(&folder, temporary(&name), flags, Mode::from_raw_mode(0o666));
        let file = match create() {
            // Of an export that was ended while it wrote this very file.
            Err(Errno::EXIST) => {
                rustix::fs::unlinkat(&folder, temporary(&name), AtFlags::empty())?;
                create()?
            }
            created => created?,
        };
        Ok(NewFile { file: file.into(), folder, name, is_named: true })
    }

    /// What its name will be.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// It, to be written.
    pub(super) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives it its name, whoever has it.
    pub(super) fn take_name(mut self) -> Result<(), Errno> {
        let name = self.name.as_str();
        if !self.is_named {
            match link(&self.file, &self.folder, name) {
                Err(Errno::EXIST) => {}
                linked => return linked,
            }
            // Only a rename replaces.
            let temporary = temporary(name);
            if link(&self.file, &self.folder, &temporary) == Err(Errno::EXIST) {
                rustix::fs::unlinkat(&self.folder, temporary.as_str(), AtFlags::empty())?;
                link(&self.file, &self.folder, &temporary)?;
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
            // If it stays, the next export of the file replaces it.
            let _ = rustix::fs::unlinkat(&self.folder, temporary(&self.name), AtFlags::empty());
        }
    }
}

/// `micros` after 1970.
pub(super) fn timespec(micros: u64) -> Timespec {
    // A thousandth of what is less than a million fits.
    Timespec { tv_sec: (micros / 1_000_000).cast_signed(), tv_nsec: (micros % 1_000_000 * 1000) as _ }
}

/// Gives `file` the time `micros` after 1970 as its last change.
pub(super) fn set_time(file: &File, micros: u64) -> Result<(), Errno> {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    rustix::fs::futimens(file, &Timestamps { last_access, last_modification: timespec(micros) })
}

/// Gives `file`, which may have none, the name `name` in `folder`, if nothing has it.
pub(super) fn link(file: &File, folder: &OwnedFd, name: &str) -> Result<(), Errno> {
    // Older kernels let only the privileged link a descriptor by itself; the name that `/proc` has for it always works.
    match rustix::fs::linkat(file, "", folder, name, AtFlags::EMPTY_PATH) {
        Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
            let place = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(rustix::fs::CWD, place, folder, name, AtFlags::SYMLINK_FOLLOW)
        }
        linked => linked,
    }
}
