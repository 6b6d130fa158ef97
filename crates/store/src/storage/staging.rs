//! Files that get the name of an object when they are complete.
//!
//! A staging file is beside the object, as `NAME#DIGITS`, which the reference implementation and
//! `object_store` omit from listings. One that is dropped without a name is removed; a process that
//! is killed leaves it.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Name of a staging file.
#[derive(Debug)]
pub(super) struct StagingName {
    folder: OwnedFd,
    /// Empty once the file has another name.
    name: String,
}

impl StagingName {
    /// Creates an empty staging file for the object `name` in `folder`.
    pub(super) fn create(folder: &OwnedFd, name: &str) -> std::io::Result<(File, Self)> {
        loop {
            let mut digits = [0; 8];
            rustix::rand::getrandom(&mut digits, rustix::rand::GetRandomFlags::empty())?;
            let staging = format!("{name}#{}", u64::from_le_bytes(digits));
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            match rustix::fs::openat(folder, staging.as_str(), flags, Mode::from_raw_mode(0o666)) {
                Ok(file) => return Ok((file.into(), StagingName { folder: folder.try_clone()?, name: staging })),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Gives the file the name `name`, whatever has it.
    pub(super) fn replace(mut self, name: &str) -> Result<(), Errno> {
        rustix::fs::renameat(&self.folder, self.name.as_str(), &self.folder, name)?;
        self.name.clear();
        Ok(())
    }

    /// Gives the file the name `name`. Fails with [`Errno::EXIST`] if anything has it.
    pub(super) fn publish(mut self, name: &str) -> Result<(), Errno> {
        let folder = &self.folder;
        match rustix::fs::linkat(folder, self.name.as_str(), folder, name, AtFlags::empty()) {
            // A file system without links, as some of FUSE.
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
                rustix::fs::renameat_with(folder, self.name.as_str(), folder, name, RenameFlags::NOREPLACE)?;
                self.name.clear();
                Ok(())
            }
            // The drop removes the other name.
            linked => linked,
        }
    }
}

impl Drop for StagingName {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = rustix::fs::unlinkat(&self.folder, self.name.as_str(), AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    #[test]
    fn a_staging_file_replaces_or_leaves_what_has_the_name() {
        let directory = tempfile::tempdir().unwrap();
        let folder = OwnedFd::from(File::open(directory.path()).unwrap());
        let read = || std::fs::read_to_string(directory.path().join("A")).unwrap();
        let staged = |text: &str| {
            let (mut file, staging) = StagingName::create(&folder, "A").unwrap();
            file.write_all(text.as_bytes()).unwrap();
            staging
        };
        staged("first").publish("A").unwrap();
        assert_eq!(read(), "first");
        assert_eq!(staged("second").publish("A"), Err(Errno::EXIST));
        assert_eq!(read(), "first");
        staged("third").replace("A").unwrap();
        assert_eq!(read(), "third");
        drop(staged("fourth"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "no staging file stays");
    }
}
