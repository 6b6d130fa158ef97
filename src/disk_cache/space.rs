//! How much a cache may take, and what goes when more is wanted.
//!
//! All processes that share a cache keep one count of its bytes, in the file `used`. A writer adds its bytes to it *before* it
//! writes them; whoever deletes takes them off *after*. So the count is never less than the truth, whatever dies in between, and
//! while it is within the bound the cache is. Where it would not be, somebody looks what there is, deletes what was used
//! longest ago, and sets the count right. Writers hold a shared lock on the file `lock` meanwhile, and the one who tidies up an
//! exclusive one, so that nothing is half written while the files are counted.
//!
//! A disk that is nearly full is as good as a bound: the last part of it is left to others.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::place::{Place, TEMPORARY, is_dot};
use crate::trust;

/// What a file takes at least, and in multiples of which. Bytes.
const BLOCK: u64 = 4096;
/// What is left when there was too much: a tenth is made free at once, because to look what there is takes long.
const KEPT_TENTHS: u64 = 9;
/// Entries larger than this part of the cache are not kept.
const LARGEST_PART: u64 = 4;
/// The part of a disk that is left to others: a twentieth, and this many bytes at most.
const LEFT_PART: u64 = 20;
const LEFT_MOST: u64 = 4 << 30;
/// How long a writer waits for one who tidies up, and he for writers.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(2);
/// How deep entries lie.
const DEPTH: u32 = 4;

/// The room of a cache.
#[derive(Debug)]
pub(super) struct Space {
    place: Arc<Place>,
    bound: u64,
}

/// Room for one entry. If it is not taken it is given back.
#[derive(Debug)]
pub(super) struct Room<'a> {
    space: &'a Space,
    cost: u64,
    /// Nobody tidies up as long as it is open.
    _lock: File,
}

impl Space {
    /// The room in `place`, of `bound` bytes.
    pub(super) fn new(place: Arc<Place>, bound: u64) -> Self {
        Space { place, bound }
    }

    /// Room for an entry of `length` bytes, if that can be had; older entries go for it.
    pub(super) fn room_for(&self, length: u64) -> io::Result<Option<Room<'_>>> {
        let cost = cost(length);
        if cost > self.bound / LARGEST_PART {
            return Ok(None);
        }
        for _ in 0..2 {
            let Some(lock) = self.lock(FlockOperation::NonBlockingLockShared)? else { return Ok(None) };
            let wanted = self.wanted_by_others(cost)?;
            if wanted == 0 && self.add(cost)? {
                return Ok(Some(Room { space: self, cost, _lock: lock }));
            }
            drop(lock);
            if !self.tidy(cost, wanted)? {
                break;
            }
        }
        Ok(None)
    }

    /// An entry of `length` bytes was deleted.
    pub(super) fn gone(&self, length: u64) {
        // What is not taken off is found when somebody tidies up.
        let _ = self.count(|used| Some(used.saturating_sub(cost(length))));
    }

    /// Adds `cost` to the count, unless it would be over the bound or is not known.
    fn add(&self, cost: u64) -> io::Result<bool> {
        self.count(|used| used.checked_add(cost).filter(|used| *used <= self.bound))
    }

    /// Changes the count; false if it stays as it is, or is not known.
    fn count(&self, change: impl FnOnce(u64) -> Option<u64>) -> io::Result<bool> {
        let Some(file) = self.locked("used", FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        let mut bytes = [0; 8];
        if file.metadata()?.len() != 8 || file.read_exact_at(&mut bytes, 0).is_err() {
            return Ok(false);
        }
        let Some(used) = change(u64::from_le_bytes(bytes)) else { return Ok(false) };
        file.write_all_at(&used.to_le_bytes(), 0)?;
        Ok(true)
    }

    /// Bytes that have to go before `cost` more may be taken, because the disk is nearly full.
    fn wanted_by_others(&self, cost: u64) -> io::Result<u64> {
        let disk = rustix::fs::fstatvfs(self.place.directories().layout())?;
        let left = (disk.f_blocks.saturating_mul(disk.f_frsize) / LEFT_PART).min(LEFT_MOST);
        Ok((left + cost).saturating_sub(disk.f_bavail.saturating_mul(disk.f_frsize)))
    }

    /// Deletes what was used longest ago until `cost` more fits and the disk has `wanted` bytes more, and sets the count
    /// right. False if there is nothing to be had.
    fn tidy(&self, cost: u64, wanted: u64) -> io::Result<bool> {
        let Some(_lock) = self.lock(FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        let directories = self.place.directories();
        // What a writer left when it died.
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
        let (mut left, mut newest_gone) = (used, (i64::MIN, 0));
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
        self.set(left)?;
        Ok(wanted == 0 || left < used)
    }

    fn set(&self, used: u64) -> io::Result<()> {
        // A count that cannot be set now is not known, or too large, and found out again.
        let Some(file) = self.locked("used", FlockOperation::NonBlockingLockExclusive)? else { return Ok(()) };
        file.set_len(8)?;
        file.write_all_at(&used.to_le_bytes(), 0)
    }

    /// Opens the file `name`, made if need be. Nobody else may read it: whoever may could lock it for ever.
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
        // Something else, or from a time when caches were shared. The directory is this user's alone.
        match rustix::fs::unlinkat(directories.layout(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(open()?),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The lock that keeps writers from one who tidies up, if it can be had soon.
    fn lock(&self, operation: FlockOperation) -> io::Result<Option<File>> {
        self.locked("lock", operation)
    }

    /// The file `name`, locked, if that can be had soon.
    fn locked(&self, name: &str, operation: FlockOperation) -> io::Result<Option<File>> {
        let file = self.open(name)?;
        let end = Instant::now() + PATIENCE;
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
    /// The entry is in its place, where one of `old` bytes was before it.
    pub(super) fn taken(mut self, old: Option<u64>) {
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

/// What an entry of `length` bytes takes.
fn cost(length: u64) -> u64 {
    length.div_ceil(BLOCK).max(1).saturating_mul(BLOCK)
}

/// Seconds and nanoseconds.
type Time = (i64, u32);

/// A file of a cache, in an open directory.
struct Found<'a> {
    directory: &'a OwnedFd,
    name: &'a CStr,
    stat: Stat,
}

impl Found<'_> {
    /// When it was used last.
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

/// Opens the directory `name` in `parent`, which is no link.
fn open_directory(parent: &OwnedFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Every entry of every layout of the cache in `directory`.
fn each_layout(directory: &OwnedFd, then: &mut impl FnMut(&Found<'_>)) -> io::Result<()> {
    for layout in Dir::read_from(directory)? {
        let layout = layout?;
        let name = layout.file_name().to_str().ok().and_then(|name| name.strip_prefix('v'));
        if name.is_none_or(|number| number.parse::<u32>().is_err()) {
            continue;
        }
        let Ok(layout) = open_directory(directory, layout.file_name()) else { continue };
        for repository in Dir::read_from(&layout)? {
            let repository = repository?;
            if is_dot(repository.file_name()) {
                continue;
            }
            if let Ok(opened) = open_directory(&layout, repository.file_name()) {
                each_file(&opened, DEPTH, then)?;
            }
        }
    }
    Ok(())
}

/// Every file below `directory`. Links are not followed, and what vanishes meanwhile is not missed.
fn each_file(directory: &OwnedFd, depth: u32, then: &mut impl FnMut(&Found<'_>)) -> io::Result<()> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if is_dot(name) {
            continue;
        }
        let Ok(stat) = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if depth > 1 => {
                if let Ok(inner) = open_directory(directory, name) {
                    each_file(&inner, depth - 1, then)?;
                }
            }
            FileType::RegularFile => then(&Found { directory, name, stat }),
            _ => {}
        }
    }
    Ok(())
}
