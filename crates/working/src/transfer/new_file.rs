//! File that gets its name when it is complete.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec};
use rustix::io::Errno;

use icechunkfs_base::beneath;

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
    /// Temporary name, if the file has one.
    temporary: Option<String>,
}

impl NewFile {
    pub(super) fn nameless(folder: Arc<OwnedFd>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&folder, ".", flags, Mode::from_raw_mode(0o666))?;
        Ok(NewFile { file: file.into(), folder, name, temporary: None })
    }

    pub(super) fn named(folder: Arc<OwnedFd>, name: String) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let create = |temporary: &str| rustix::fs::openat(&folder, temporary, flags, Mode::from_raw_mode(0o666));
        let (file, temporary) = with_temporary_name(&folder, &name, create)?;
        Ok(NewFile { file: file.into(), folder, name, temporary: Some(temporary) })
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
        if self.temporary.is_none() {
            match beneath::link(&self.file, &self.folder, name) {
                Err(Errno::EXIST) => {}
                linked => return linked,
            }
            // Only a rename replaces a file, so the new file needs a temporary name first.
            let link = |temporary: &str| beneath::link(&self.file, &self.folder, temporary);
            self.temporary = Some(with_temporary_name(&self.folder, name, link)?.1);
        }
        let temporary = self.temporary.as_deref().unwrap_or_default();
        rustix::fs::renameat(&self.folder, temporary, &self.folder, name)?;
        self.temporary = None;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // If the file stays, the next export of it replaces it.
            let _ = rustix::fs::unlinkat(&self.folder, temporary.as_str(), AtFlags::empty());
        }
    }
}

/// Calls `make` with a temporary name for `name` in `folder`. Removes a file that has the name.
/// Returns what was made, with its name.
fn with_temporary_name<T>(
    folder: &OwnedFd,
    name: &str,
    make: impl Fn(&str) -> Result<T, Errno>,
) -> Result<(T, String), Errno> {
    let mut temporary = temporary(name);
    loop {
        match make(&temporary) {
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (made, temporary)),
        }
        match rustix::fs::unlinkat(folder, temporary.as_str(), AtFlags::empty()) {
            // A group or array of the exported tree has the name. A longer one is tried until it is
            // too long.
            Err(Errno::ISDIR | Errno::PERM) => temporary.push('~'),
            // An export that was killed while it wrote this file left the name.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
}

pub(super) fn timespec(micros: u64) -> Timespec {
    // The nanoseconds are below a billion, which fits.
    Timespec { tv_sec: (micros / 1_000_000).cast_signed(), tv_nsec: (micros % 1_000_000 * 1000) as _ }
}
