//! Memory of the machine, the default share of this process, and settings of the allocator.

use std::path::Path;

use super::MIN_MEMORY;

/// Default bound on a large machine, in bytes: room for some million chunk references.
const DEFAULT_MEMORY: u64 = 512 << 20;
/// Divisor of the machine's (or the control group's) memory: the default is at most 1/4 of it.
const DEFAULT_SHARE: u64 = 4;

/// Makes the allocator return memory to the system. Must be called before threads are started.
///
/// glibc keeps an arena for each of many threads, and after the first large buffer was freed keeps
/// others of its size in them; dozens of threads that each read a megabyte once would then hold
/// dozens of megabytes for good.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    {
        /// Buffers from this size on, in bytes, are mapped, and unmapped when they are freed.
        const MAPPED_FROM: libc::c_int = 256 << 10;
        /// Arenas for all threads together.
        const ARENAS: libc::c_int = 4;
        // SAFETY: `mallopt` changes settings of the allocator; there are no other threads that
        // could be in it.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM);
            libc::mallopt(libc::M_ARENA_MAX, ARENAS);
        }
    }
}

/// Returns the default bound: 512 MiB, or 1/4 of the machine's or the control group's memory if
/// less, but at least [`MIN_MEMORY`].
pub fn default_memory() -> u64 {
    available_memory().map_or(DEFAULT_MEMORY, |bytes| (bytes / DEFAULT_SHARE).min(DEFAULT_MEMORY)).max(MIN_MEMORY)
}

/// Returns the memory of this machine, or what the control groups of this process allow if that is
/// less, in bytes, if known.
pub fn available_memory() -> Option<u64> {
    [machine_memory(), cgroup_limit()].into_iter().flatten().min()
}

/// Returns the lowest limit of the control groups of this process, in bytes; none if they set no
/// limit.
pub fn cgroup_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| group_limit(line, Path::new("/sys/fs/cgroup"))).min()
}

/// Returns the limit along the path in one line of `/proc/self/cgroup`, in a hierarchy mounted at
/// `root`.
fn group_limit(line: &str, root: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let controllers = fields.next()?;
    let group = fields.next()?;
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
