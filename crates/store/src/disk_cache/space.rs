//! Bounds the size of a cache, and deletes entries when more room is needed.
//!
//! All processes that share a cache keep one count of its bytes, in the file `used`. A writer adds
//! its bytes to the count *before* it writes them; a process that deletes subtracts them *after*.
//! The count is therefore never less than the truth, whatever dies in between, and while it is
//! within the bound the cache is. When it would exceed the bound, one process lists the files,
//! deletes the least recently used ones, and corrects the count. Writers hold a shared lock on the
//! file `lock` meanwhile, and the process that tidies up an exclusive one, so that nothing is half
//! written while the files are counted.
//!
//! A nearly full disk counts as a bound too: the last part of it is left to other programs.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::place::{CacheDirectory, DIRECTORY, TEMPORARY};
use icechunkfs_base::file_name::is_dots;
use icechunkfs_base::trust;

/// Unit of space that a file takes, in bytes.
const BLOCK: u64 = 4096;
/// Tenths that remain when there was too much: a tenth is freed at once, because listing the files
/// takes long.
const KEPT_TENTHS: u64 = 9;
/// Entries larger than this part (1/4) of the cache are not kept.
const LARGEST_PART: u64 = 4;
/// Part of a disk that is left to other programs: a twentieth, and at most this many bytes.
const LEFT_PART: u64 = 20;
const MAX_LEFT: u64 = 4 << 30;
/// Time that a writer waits for a process that tidies up, and that process for writers.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);
/// Depth of directories that are searched for entries.
const DEPTH: u32 = 4;

#[derive(Debug)]
pub(super) struct Space {
    place: Arc<CacheDirectory>,
    bound: u64,
}

/// Reserved room for one entry, released on drop unless it is committed.
#[derive(Debug)]
pub(super) struct Room<'a> {
    space: &'a Space,
    cost: u64,
    /// Shared lock: no process tidies up while it is held.
    _lock: File,
}

impl Space {
    pub(super) fn new(place: Arc<CacheDirectory>, bound: u64) -> Self {
        Space { place, bound }
    }

    /// Reserves room for an entry of `length` bytes, if possible; older entries are deleted for it.
    pub(super) fn room_for(&self, length: u64) -> io::Result<Option<Room<'_>>> {
        let cost = cost(length);
        if cost > self.bound / LARGEST_PART {
            return Ok(None);
        }
        for _ in 0..2 {
            let Some(lock) = self.lock("lock", FlockOperation::NonBlockingLockShared)? else { return Ok(None) };
            let wanted = self.disk_shortage(cost)?;
            let add = |used: u64| used.checked_add(cost).filter(|used| *used <= self.bound);
            if wanted == 0 && self.count(add)? {
                return Ok(Some(Room { space: self, cost, _lock: lock }));
            }
            drop(lock);
            if !self.tidy(cost, wanted)? {
                break;
            }
        }
        Ok(None)
    }

    pub(super) fn release(&self, length: u64) {
        // Bytes that are not subtracted are found when a process tidies up.
        let _ = self.count(|used| Some(used.saturating_sub(cost(length))));
    }

    /// Changes the count. Returns false if the count stays as it is, or is unknown.
    fn count(&self, change: impl FnOnce(u64) -> Option<u64>) -> io::Result<bool> {
        let Some(file) = self.lock("used", FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        let mut bytes = [0; 8];
        if file.metadata()?.len() != 8 || file.read_exact_at(&mut bytes, 0).is_err() {
            return Ok(false);
        }
        let Some(used) = change(u64::from_le_bytes(bytes)) else { return Ok(false) };
        file.write_all_at(&used.to_le_bytes(), 0)?;
        Ok(true)
    }

    /// Returns the bytes to delete before `cost` more may be taken, because the disk is nearly
    /// full.
    fn disk_shortage(&self, cost: u64) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(self.place.directories().layout())?;
        let left = (disk.f_blocks.saturating_mul(disk.f_frsize) / LEFT_PART).min(MAX_LEFT);
        Ok((left + cost).saturating_sub(disk.f_bavail.saturating_mul(disk.f_frsize)))
    }

    /// Deletes the least recently used entries until `cost` more fits and the disk has `wanted`
    /// bytes more, and corrects the count. Returns false if no room could be gained.
    fn tidy(&self, cost: u64, wanted: u64) -> io::Result<bool> {
        let Some(_lock) = self.lock("lock", FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        let directories = self.place.directories();
        // Temporary files are left by writers that died.
        if let Ok(temporary) = open_directory(directories.layout(), TEMPORARY) {
            let _ = each_file(&temporary, 1, &mut |file| {
                let _ = file.remove();
            });
        }
        let mut files: Vec<(Time, u64)> = Vec::new();
        each_layout(directories.whole(), &mut |file| files.push((file.time(), file.cost())))?;
        let used: u64 = files.iter().map(|(_, cost)| cost).sum();
        let goal = (self.bound / 10 * KEPT_TENTHS).min(self.bound - cost).min(used.saturating_sub(wanted));
        files.sort_unstable();
        let mut left = used;
        let mut newest_gone = (i64::MIN, 0);
        for (age, cost) in files {
            if left <= goal {
                break;
            }
            (left, newest_gone) = (left - cost, age);
        }
        left = used;
        if goal < used {
            each_layout(directories.whole(), &mut |file| {
                if left > goal && file.time() <= newest_gone && file.remove().is_ok() {
                    left = left.saturating_sub(file.cost());
                }
            })?;
        }
        // A count that cannot be set now is unknown or too large, and is corrected later.
        if let Some(file) = self.lock("used", FlockOperation::NonBlockingLockExclusive)? {
            file.set_len(8)?;
            file.write_all_at(&left.to_le_bytes(), 0)?;
        }
        Ok(wanted == 0 || left < used)
    }

    /// Opens the file `name`, creating it if necessary. No other user may read it: any reader could
    /// lock it forever.
    fn open(&self, name: &str) -> io::Result<File> {
        let directories = self.place.directories();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || rustix::fs::openat(directories.layout(), name, flags, Mode::from_raw_mode(0o600)).map(File::from);
        if let Ok(file) = open()
            && trust::check_file(&file).is_ok()
            && file.metadata()?.mode() & 0o077 == 0
        {
            return Ok(file);
        }
        // The file is not trusted, or from a time when caches were shared. The directory belongs to
        // this user alone.
        match rustix::fs::unlinkat(directories.layout(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(open()?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens and locks the file `name`, if the lock is free soon.
    fn lock(&self, name: &str, operation: FlockOperation) -> io::Result<Option<File>> {
        let file = self.open(name)?;
        let end = Instant::now() + LOCK_TIMEOUT;
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Some(file)),
                Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Room<'_> {
    /// Keeps the room for an entry that is in its place; only the `old` bytes that it replaced are
    /// released.
    pub(super) fn commit(mut self, old: Option<u64>) {
        self.cost = old.map_or(0, cost);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if self.cost > 0 {
            let _ = self.space.count(|used| Some(used.saturating_sub(self.cost)));
        }
    }
}

/// Returns the bytes that an entry of `length` bytes takes on the disk.
fn cost(length: u64) -> u64 {
    length.div_ceil(BLOCK).max(1).saturating_mul(BLOCK)
}

type Time = (i64, u32);

struct FoundEntry<'a> {
    directory: &'a OwnedFd,
    name: &'a CStr,
    stat: Stat,
}

impl FoundEntry<'_> {
    /// Returns the time of the last use.
    fn time(&self) -> Time {
        (self.stat.st_mtime, u32::try_from(self.stat.st_mtime_nsec).unwrap_or_default())
    }

    fn cost(&self) -> u64 {
        cost(self.stat.st_size.unsigned_abs())
    }

    fn remove(&self) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.directory, self.name, AtFlags::empty())
    }
}

/// Opens the directory `name` in `parent`, unless it is a link.
fn open_directory(parent: &OwnedFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(parent, name, DIRECTORY, Mode::empty())
}

/// Calls `then` for every entry of every layout of the cache in `directory`.
fn each_layout(directory: &OwnedFd, then: &mut impl FnMut(&FoundEntry<'_>)) -> io::Result<()> {
    for layout in Dir::read_from(directory)? {
        let layout = layout?;
        let name = layout.file_name().to_str().ok().and_then(|name| name.strip_prefix('v'));
        if name.is_none_or(|number| number.parse::<u32>().is_err()) {
            continue;
        }
        let Ok(layout) = open_directory(directory, layout.file_name()) else { continue };
        for repository in Dir::read_from(&layout)? {
            let repository = repository?;
            if is_dots(repository.file_name().to_bytes()) {
                continue;
            }
            if let Ok(opened) = open_directory(&layout, repository.file_name()) {
                each_file(&opened, DEPTH, then)?;
            }
        }
    }
    Ok(())
}

/// Calls `then` for every file below `directory`. Links are not followed, and files that vanish
/// meanwhile are skipped.
fn each_file(directory: &OwnedFd, depth: u32, then: &mut impl FnMut(&FoundEntry<'_>)) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name.to_bytes()) {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if depth > 1 => {
                if let Ok(inner) = open_directory(directory, name) {
                    each_file(&inner, depth - 1, then)?;
                }
            }
            FileType::RegularFile => then(&FoundEntry { directory, name, stat }),
            _ => {}
        }
    }
    Ok(())
}
