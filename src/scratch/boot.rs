//! Whether the machine went down since a scratch directory was last used, and how much of its journal was on the disk then.
//!
//! The file `boot` says it in one line: the kernel's boot id, the journal's inode number, and a number of bytes that are durable. It is
//! written after each flush and never flushed itself, so that what it says may be old and is never too much.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{Mode, OFlags};

const NAME: &str = "boot";
/// Longest line that is read, in bytes.
const MAX: usize = 256;

/// What is known about the last daemon that used a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Last {
    /// The machine has been started anew since: what was not on the disk is gone.
    pub(super) restarted: bool,
    /// So many bytes of the journal were on the disk at least.
    pub(super) durable: u64,
}

/// Notes that `durable` bytes of `journal` in `directory` are on the disk.
pub(super) fn note(directory: &OwnedFd, journal: &File, durable: u64) {
    let Ok(inode) = journal.metadata().map(|metadata| metadata.ino()) else { return };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(file) = rustix::fs::openat(directory, NAME, flags, Mode::from_raw_mode(0o600)) else { return };
    // A line of always the same length. Without it a power cut is taken for the death of a daemon, on a full disk for instance.
    let line = format!("{} {inode:020} {durable:020}\n", boot_id());
    let _ = File::from(file).write_all_at(line.as_bytes(), 0);
}

/// What the note in `directory` says about `journal`; none if there is none. Only a power cut leaves one that cannot be read.
pub(super) fn last(directory: &OwnedFd, journal: &File) -> Option<Last> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::openat(directory, NAME, flags, Mode::empty()).ok()?);
    let mut text = vec![0; MAX];
    let count = file.read_at(&mut text, 0).ok()?;
    text.truncate(count);
    let text = String::from_utf8_lossy(&text);
    let Some((boot, inode, durable)) = parse(&text) else { return Some(Last { restarted: true, durable: 0 }) };
    // One about another journal tells at least when it was written.
    let durable = if journal.metadata().is_ok_and(|metadata| metadata.ino() == inode) { durable } else { 0 };
    Some(Last { restarted: boot != boot_id(), durable })
}

fn parse(text: &str) -> Option<(&str, u64, u64)> {
    let mut words = text.strip_suffix('\n')?.split(' ');
    Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
