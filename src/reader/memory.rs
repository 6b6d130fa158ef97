//! How much memory a mount may use, and how it is shared out.

use std::path::Path;

use crate::error::{Error, Result};

use super::buffer::BUFFER_SIZE;

const MIB: u64 = 1 << 20;
/// Less than this leaves no room for a manifest of a few thousand chunks beside the program itself.
pub const MIN_MEMORY: u64 = 16 * MIB;
/// What must be left for manifests and reads.
const MIN_REST: u64 = 4 * MIB;
/// What the program itself takes: code, stacks, the runtime, requests under way. Measured, as released: 9 MiB after a mount, of which 8
/// are code, and 10 with many readers.
const PROGRAM: u64 = 10 * MIB;
/// What a mount takes when nobody says otherwise, if the machine is large: room for some million chunk references.
const DEFAULT_MEMORY: u64 = 512 * MIB;
/// Share of the machine's (or the control group's) memory that the default may be at most: 1/4.
const DEFAULT_SHARE: u64 = 4;
/// Unit of the semaphore that bounds reads in flight, in bytes.
const READ_UNIT: u64 = 4096;

/// The memory bound of a mount, divided.
#[derive(Clone, Debug)]
pub struct Budget {
    total: u64,
    /// Taken by the snapshot and the tables made from it, for as long as the mount lives.
    fixed: u64,
    /// What the user allows to be fetched ahead of one reader, if he says.
    ahead: Option<u64>,
}

impl Budget {
    /// A bound of `total` bytes, of which `fixed` are taken already.
    pub fn new(total: u64, fixed: u64) -> Result<Self> {
        let budget = Budget { total, fixed, ahead: None };
        if total < MIN_MEMORY || budget.rest() < MIN_REST {
            return Err(Error::invalid(format!(
                "a memory bound of {} MiB is too small: this snapshot needs {} MiB at least; raise --memory",
                total / MIB,
                ((fixed + PROGRAM + MIN_REST).max(MIN_MEMORY)).div_ceil(MIB)
            )));
        }
        Ok(budget)
    }

    /// It with a bound of the user's for what is fetched ahead of one reader.
    #[must_use]
    pub fn with_ahead(self, ahead: Option<u64>) -> Self {
        Budget { ahead, ..self }
    }

    /// Bytes that may be fetched ahead of one reader: half of what may be for all, or what the user says, if it is less than all.
    ///
    /// A line of 1 Gbit/s and 30 ms has 4 MB on it at a time. It takes several times as much to keep it busy, since a reader
    /// takes chunks as they come and not as they were asked for.
    pub fn ahead(&self) -> u64 {
        let all = self.reads_in_flight() as u64 * READ_UNIT;
        self.ahead.map_or(all / 2, |ahead| ahead.min(all))
    }

    fn rest(&self) -> u64 {
        self.total.saturating_sub(self.fixed + PROGRAM)
    }

    /// Bytes that manifests and chunks in the cache may take: five eighths of what is left.
    pub fn cache(&self) -> u64 {
        self.rest() / 8 * 5
    }

    /// How many buffers reads answered at once may use: an eighth.
    pub fn buffers(&self) -> usize {
        usize::try_from(self.rest() / 8 / BUFFER_SIZE as u64).unwrap_or(usize::MAX).clamp(1, 64)
    }

    /// Permits for bytes of reads that wait for storage: an eighth. As many more are for what is fetched ahead.
    pub fn reads_in_flight(&self) -> usize {
        usize::try_from(self.rest() / 8 / READ_UNIT).unwrap_or(usize::MAX).clamp(1, tokio::sync::Semaphore::MAX_PERMITS)
    }

    /// Permits that a read of `bytes` takes: never more than there are, so that a large read waits but does not starve.
    pub fn read_permits(&self, bytes: u64) -> u32 {
        let wanted = bytes.div_ceil(READ_UNIT).max(1);
        u32::try_from(wanted.min(self.reads_in_flight() as u64)).unwrap_or(u32::MAX)
    }
}

/// Makes the allocator give memory back. Must be called before threads are started.
///
/// glibc keeps an arena for each of many threads, and after the first large buffer was freed keeps others of its size in
/// them; dozens of threads that each read a megabyte once would then hold dozens of megabytes for good.
pub fn tame_allocator() {
    #[cfg(target_env = "gnu")]
    {
        /// Buffers from this size on are mapped, and unmapped when they are freed. Bytes.
        const MAPPED_FROM: libc::c_int = 256 << 10;
        /// Arenas for all threads together.
        const ARENAS: libc::c_int = 4;
        // SAFETY: `mallopt` changes settings of the allocator; there are no other threads that could be in it.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        }
    }
}

/// The bound when the user gives none: 512 MiB, or a quarter of what the machine or the control group has if that is less.
pub fn default_memory() -> u64 {
    available_memory().map_or(DEFAULT_MEMORY, |bytes| (bytes / DEFAULT_SHARE).min(DEFAULT_MEMORY)).max(MIN_MEMORY)
}

/// Bytes of memory that this machine has, or the control groups of this process allow, if that is known.
pub fn available_memory() -> Option<u64> {
    [machine_memory(), cgroup_limit()].into_iter().flatten().min()
}

/// The least that the control groups of this process allow, in bytes; none if they do not limit it.
pub fn cgroup_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| group_limit(line, Path::new("/sys/fs/cgroup"))).min()
}

/// The limit along the path that one line of `/proc/self/cgroup` names, in a hierarchy mounted at `root`.
fn group_limit(line: &str, root: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, group) = (fields.next()?, fields.next()?);
    let (root, file) = if controllers.is_empty() {
        (root.to_owned(), "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        (root.join("memory"), "memory.limit_in_bytes")
    } else {
        return None;
    };
    // A group is bound by its ancestors too; within a container its own path may not be visible.
    let group = Path::new(group.trim_start_matches('/'));
    group
        .ancestors()
        .filter_map(|ancestor| std::fs::read_to_string(root.join(ancestor).join(file)).ok()?.trim().parse().ok())
        .min()
}

fn machine_memory() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shares_stay_below_the_bound() {
        for total in [MIN_MEMORY, 100 * MIB, 64 << 30] {
            let budget = Budget::new(total, 0).unwrap();
            let used = budget.cache()
                + (budget.buffers() * BUFFER_SIZE) as u64
                + 2 * budget.reads_in_flight() as u64 * READ_UNIT;
            assert!(used <= total, "{used} of {total}");
            assert!(budget.read_permits(u64::MAX) as usize <= budget.reads_in_flight());
        }
        assert!(Budget::new(MIN_MEMORY - 1, 0).is_err());
        assert!(Budget::new(100 * MIB, 99 * MIB).is_err());
    }

    #[test]
    fn control_groups_of_both_generations_limit() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            std::fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(root.path().join(path), text).unwrap();
        };
        write("a/memory.max", "1000\n");
        write("a/b/memory.max", "max\n");
        write("memory/x/memory.limit_in_bytes", "2000\n");
        assert_eq!(group_limit("0::/a/b", root.path()), Some(1000));
        assert_eq!(group_limit("4:memory,cpu:/x/y", root.path()), Some(2000));
        assert_eq!(group_limit("3:cpuset:/a", root.path()), None);
        assert_eq!(group_limit("nonsense", root.path()), None);
    }
}
