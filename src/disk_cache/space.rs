//! How much a cache may take, and what goes when more is wanted.
//!
//! All processes that share a cache keep one count of its bytes, in the file `used`. A writer adds its bytes to it *before* it
//! writes them; whoever deletes takes them off *after*. So the count is never less than the truth, whatever dies in between, and
//! while it is within the bound the cache is. Where it would not be, somebody looks what there is, deletes what was used
//! longest ago, and sets the count right. Writers hold a shared lock on the file `lock` meanwhile, and the one who tidies up an
//! exclusive one, so that nothing is half written while the files are counted.
//!
//! A disk that is nearly full is as good as a bound: the last part of it is left to others.

use std::fs::{DirEntry, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FlockOperation;

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
    root: PathBuf,
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
    /// The room below `root`, of `bound` bytes.
    pub(super) fn new(root: &Path, bound: u64) -> Self {
        Space { root: root.to_owned(), bound }
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
        let file = self.open("used")?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
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
        let disk = rustix::fs::statvfs(&self.root)?;
        let left = (disk.f_blocks.saturating_mul(disk.f_frsize) / LEFT_PART).min(LEFT_MOST);
        Ok((left + cost).saturating_sub(disk.f_bavail.saturating_mul(disk.f_frsize)))
    }

    /// Deletes what was used longest ago until `cost` more fits and the disk has `wanted` bytes more, and sets the count
    /// right. False if there is nothing to be had.
    fn tidy(&self, cost: u64, wanted: u64) -> io::Result<bool> {
        let Some(_lock) = self.lock(FlockOperation::NonBlockingLockExclusive)? else { return Ok(false) };
        // What a writer left when it died.
        let _ = each_file(&self.root.join("new"), 1, &mut |file| drop(std::fs::remove_file(file.path())));
        let whole = self.root.parent().unwrap_or(&self.root).to_owned();
        let mut files: Vec<(SystemTime, u64)> = Vec::new();
        each_layout(&whole, &mut |file| files.extend(age_and_cost(file)))?;
        let used: u64 = files.iter().map(|(_, cost)| cost).sum();
        let goal = (self.bound / 10 * KEPT_TENTHS).min(self.bound - cost).min(used.saturating_sub(wanted));
        files.sort_unstable();
        let (mut left, mut newest_gone) = (used, SystemTime::UNIX_EPOCH);
        for (age, cost) in files {
            if left <= goal {
                break;
            }
            (left, newest_gone) = (left - cost, age);
        }
        left = used;
        if goal < used {
            each_layout(&whole, &mut |file| {
                let Some((age, cost)) = age_and_cost(file) else { return };
                if left > goal && age <= newest_gone && std::fs::remove_file(file.path()).is_ok() {
                    left = left.saturating_sub(cost);
                }
            })?;
        }
        self.set(left)?;
        Ok(wanted == 0 || left < used)
    }

    fn set(&self, used: u64) -> io::Result<()> {
        let file = self.open("used")?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        file.set_len(8)?;
        file.write_all_at(&used.to_le_bytes(), 0)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        let path = self.root.join(name);
        let opened = File::options().read(true).write(true).open(&path);
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
                // Whoever may make files in the directory has to count them.
                let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&self.root)?.permissions());
                file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode & 0o666))?;
                Ok(file)
            }
            opened => opened,
        }
    }

    /// The lock, if it can be had soon.
    fn lock(&self, operation: FlockOperation) -> io::Result<Option<File>> {
        let file = self.open("lock")?;
        let end = Instant::now() + PATIENCE;
        loop {
            match rustix::fs::flock(&file, operation) {
                Ok(()) => return Ok(Some(file)),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(PAUSE),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
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

fn age_and_cost(file: &DirEntry) -> Option<(SystemTime, u64)> {
    let metadata = file.metadata().ok()?;
    Some((metadata.modified().ok()?, cost(metadata.len())))
}

/// Every entry of every layout of the cache at `directory`.
fn each_layout(directory: &Path, then: &mut impl FnMut(&DirEntry)) -> io::Result<()> {
    for layout in std::fs::read_dir(directory)? {
        let layout = layout?;
        let name = layout.file_name();
        let is_layout = name.to_str().and_then(|name| name.strip_prefix('v')).is_some_and(|n| n.parse::<u32>().is_ok());
        if !is_layout || !layout.file_type()?.is_dir() {
            continue;
        }
        for repository in std::fs::read_dir(layout.path())? {
            let repository = repository?;
            if repository.file_type()?.is_dir() {
                each_file(&repository.path(), DEPTH, then)?;
            }
        }
    }
    Ok(())
}

/// Every file below `directory`. Links are not followed, and what vanishes meanwhile is not missed.
fn each_file(directory: &Path, depth: u32, then: &mut impl FnMut(&DirEntry)) -> io::Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 1 => each_file(&entry.path(), depth - 1, then)?,
            Ok(kind) if kind.is_file() => then(&entry),
            _ => {}
        }
    }
    Ok(())
}
