//! A small disk that tests can fill.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::writing::needed;
use crate::common::{is_root, run};

/// Allocation unit of the tested file systems, in bytes.
pub(crate) const PAGE: u64 = 4096;

/// A mounted file system that is unmounted when it is dropped. Values that use it must be declared
/// after it.
pub(crate) struct Disk {
    directory: tempfile::TempDir,
}

impl Disk {
    /// Returns a disk in memory; None, with a message, for users who may not mount.
    pub(crate) fn tmpfs(mib: u32) -> Option<Disk> {
        Disk::mounted(|place| {
            let size = format!("size={mib}m");
            run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "icechunkfs-test"]).arg(place)).success();
        })
    }

    /// Returns a disk with ext4, in a file. It has no space reserved for root.
    pub(crate) fn ext4(mib: u32) -> Option<Disk> {
        Disk::mounted(|place| {
            let image = place.with_file_name("image");
            File::create(&image).unwrap().set_len(u64::from(mib) << 20).unwrap();
            run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image)).success();
            run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(place)).success();
            // The tests count directories.
            let _ = std::fs::remove_dir(place.join("lost+found"));
        })
    }

    fn mounted(mount: impl Fn(&Path)) -> Option<Disk> {
        if !needed(is_root(), "root, who may mount a small disk") {
            return None;
        }
        let prefix = format!("icechunkfs-test-{}-", std::process::id());
        let disk = Disk { directory: tempfile::Builder::new().prefix(&prefix).tempdir().unwrap() };
        std::fs::create_dir(disk.path()).unwrap();
        mount(&disk.path());
        Some(disk)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Fills the disk except for this many pages.
    pub(crate) fn fill(&self, but_for: u64) {
        self.empty();
        let mut file = File::create(self.filler()).unwrap();
        let page = [1; PAGE as usize];
        let mut length = 0;
        let error = loop {
            match file.write(&page).and_then(|count| file.flush().map(|()| count)) {
                Ok(count) => length += count as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert!(length >= but_for * PAGE, "{length} bytes were free");
        file.set_len((length / PAGE - but_for) * PAGE).unwrap();
        file.sync_all().unwrap();
    }

    /// Frees the space that `fill` took.
    pub(crate) fn empty(&self) {
        let _ = std::fs::remove_file(self.filler());
        // A journaling file system frees blocks only with its next commit.
        run(Command::new("sync").arg("-f").arg(self.path())).success();
    }

    pub(crate) fn remount(&self, options: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(self.path())).success();
    }
}

/// A disk that accepts more bytes than it has space for, as a thin volume does: once its backing is
/// full, the kernel cannot write what programs have written.
pub(crate) struct ThinDisk {
    // Unmounted in this order.
    disk: Disk,
    backing: Disk,
}

impl ThinDisk {
    /// Returns a disk with ext4 that has space for some 50 MiB; None, with a message, for users who
    /// may not mount.
    pub(crate) fn ext4() -> Option<ThinDisk> {
        let backing = Disk::tmpfs(70)?;
        let image = backing.path().join("image");
        File::create(&image).unwrap().set_len(300 << 20).unwrap();
        // The file system's metadata and journal come first in the image, and have their space from
        // the beginning.
        let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0,packed_meta_blocks=1";
        let words = ["-q", "-F", "-b", "4096", "-N", "4096", "-E", extended, "-J", "size=8"];
        run(Command::new("mkfs.ext4").args(words).arg(&image)).success();
        run(Command::new("fallocate").args(["-l", "11M"]).arg(&image)).success();
        let disk = Disk::mounted(|place| {
            run(Command::new("mount").args(["-o", "loop,nodiscard"]).arg(&image).arg(place)).success();
        })?;
        Some(ThinDisk { disk, backing })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.disk.path()
    }

    /// Fills the backing: bytes in new places fail when the kernel writes them.
    pub(crate) fn fill_backing(&self) {
        run(Command::new("sync").arg("-f").arg(self.path())).success();
        let mut file = File::create(self.backing.filler()).unwrap();
        while file.write_all(&[1; PAGE as usize]).is_ok() {}
    }

    /// Gives the backing its space back.
    pub(crate) fn free_backing(&self) {
        std::fs::remove_file(self.backing.filler()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
