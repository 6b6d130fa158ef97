//! Tells which process serves a mount.
//!
//! The kernel does not say. A daemon keeps a file in memory open whose bytes are the mountpoint; `/proc` shows it to its user and to root.
//! It holds nothing of the file system around the mount.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::MemfdFlags;

use super::mount_table::Mount;

/// Name of the file, and what a link to it begins with.
const NAME: &str = "icechunkfs mount";
const LINK: &[u8] = b"/memfd:icechunkfs mount";
/// Longest path that is compared, in bytes.
const MAX_PATH: u64 = 4096;

/// Marks this process as the daemon of `mountpoint`, for as long as the file is open. None where that cannot be done.
pub(super) fn set(mountpoint: &Path) -> Option<OwnedFd> {
    let mut mark = File::from(rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC).ok()?);
    mark.write_all(mountpoint.as_os_str().as_bytes()).ok()?;
    Some(mark.into())
}

/// The process that serves `mount`, if this user may know.
pub(super) fn find(mount: &Mount) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let mut processes = processes.flatten().filter(|entry| {
        // Other users may say of their processes what they like.
        entry.metadata().is_ok_and(|metadata| Some(metadata.uid()) == mount.owner)
    });
    processes.find_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let mut files = std::fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        files.any(|file| is_mark_of(&file.path(), &mount.mountpoint)).then_some(number)
    })
}

fn is_mark_of(file: &Path, mountpoint: &Path) -> bool {
    if !std::fs::read_link(file).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(LINK)) {
        return false;
    }
    let Ok(mark) = File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(file) else {
        return false;
    };
    let mut marked = Vec::new();
    mark.take(MAX_PATH).read_to_end(&mut marked).is_ok() && marked == mountpoint.as_os_str().as_bytes()
}
