//! The `boot` file: tells whether the machine restarted since a journal was last used, and how much
//! of the journal was durable.
//!
//! One line has the kernel's boot id, the journal's inode number and the number of durable bytes.
//! The file is written after each flush and never flushed: the number may be old, but is never too
//! large.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::OFlags;

use super::requirements::open_file;

const NAME: &str = "boot";
/// Longest line that is read, in bytes.
const MAX: usize = 256;

/// State of a journal when it was last used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastUse {
    /// True if the machine has restarted since: bytes that were not on the disk are lost.
    pub(super) restarted: bool,
    /// Lower bound of the journal's bytes that were on the disk.
    pub(super) durable: u64,
}

/// Records that `durable` bytes of `journal` in `directory` are on the disk.
pub(super) fn note(directory: &OwnedFd, journal: &File, durable: u64) {
    let Ok(inode) = journal.metadata().map(|metadata| metadata.ino()) else { return };
    let Ok(file) = open_file(directory, NAME, OFlags::WRONLY | OFlags::CREATE) else { return };
    // The fixed length lets a line replace the last one. Without a line (on a full disk) a power
    // cut looks like the death of a daemon.
    let line = format!("{} {inode:020} {durable:020}\n", boot_id());
    let _ = file.write_all_at(line.as_bytes(), 0);
}

/// Reads the `boot` file in `directory` and applies it to `journal`; `None` if there is no file.
/// Only a power cut leaves an unreadable one.
pub(super) fn last_use(directory: &OwnedFd, journal: &File) -> Option<LastUse> {
    let file = open_file(directory, NAME, OFlags::RDONLY | OFlags::NONBLOCK).ok()?;
    let mut text = vec![0; MAX];
    let count = file.read_at(&mut text, 0).ok()?;
    text.truncate(count);
    let text = String::from_utf8_lossy(&text);
    let Some((boot, inode, durable)) = parse(&text) else { return Some(LastUse { restarted: true, durable: 0 }) };
    // A line about another journal only tells whether the machine has restarted.
    let durable = if journal.metadata().is_ok_and(|metadata| metadata.ino() == inode) { durable } else { 0 };
    Some(LastUse { restarted: boot != boot_id(), durable })
}

fn parse(text: &str) -> Option<(&str, u64, u64)> {
    let mut words = text.strip_suffix('\n')?.split(' ');
    Some((words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}
