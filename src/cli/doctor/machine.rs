//! Checks of the machine: the kernel, `/dev/fuse`, `fusermount3`, `/etc/fuse.conf`, limits, memory.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use crate::fuse::{helper, kernel_features, mount_table, ring};
use icechunkfs_base::memory;

const DEVICE: &str = "/dev/fuse";
const CONFIGURATION: &str = "/etc/fuse.conf";
/// Open files that a mount needs: connections, backing files, data files. Below the first it fails,
/// below the second it may.
const MIN_FILES: u64 = 128;
const ENOUGH_FILES: u64 = 1024;
/// Mounts of one user that `fusermount3` allows unless `/etc/fuse.conf` has another number.
const DEFAULT_MOUNT_MAX: usize = 1000;
/// Oldest protocol that the library for FUSE speaks.
const OLDEST_PROTOCOL: (u32, u32) = (7, 6);
/// Seconds that a request may take while a store is slow. A kernel that aborts earlier ends the
/// whole mount.
const SLOW_REQUEST: u64 = 120;

/// Runs the checks. Must be called while this process has one thread.
pub(super) fn check() -> Vec<Finding> {
    let is_root = rustix::process::geteuid().is_root();
    let mut found = vec![kernel(is_root), device(), helper(is_root), user_allow_other(is_root), open_files()];
    found.extend([mount_count(is_root), request_timeout(), memory()].into_iter().flatten());
    found
}

fn kernel(is_root: bool) -> Finding {
    const CHECK: &str = "kernel";
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = format!("Linux {}", release.trim());
    match kernel_features::query() {
        Ok(features) if features.protocol < OLDEST_PROTOCOL => {
            let (major, minor) = features.protocol;
            Finding::fail(CHECK, format!("{release}, FUSE protocol {major}.{minor}"), "Use a newer kernel")
        }
        Ok(features) => {
            let passthrough = match (features.has_passthrough, is_root) {
                (true, true) => "passthrough",
                (true, false) => "passthrough for root only",
                (false, _) => "no passthrough (Linux 6.9 and later have it)",
            };
            let (major, minor) = features.protocol;
            let io_uring = match ring::obstacle() {
                None => "requests through io_uring".to_owned(),
                Some(why) => format!("no requests through io_uring ({why})"),
            };
            Finding::ok(CHECK, format!("{release}, FUSE protocol {major}.{minor}, {passthrough}, {io_uring}"))
        }
        Err(error) if is_root && Path::new(DEVICE).exists() => {
            let remedy = "Give the container the capability CAP_SYS_ADMIN, or mount outside of it";
            Finding::fail(CHECK, format!("{release}; a mount fails: {error}"), remedy)
        }
        Err(error) => Finding::ok(CHECK, format!("{release}; its FUSE features are not known to this user ({error})")),
    }
}

fn device() -> Finding {
    const CHECK: &str = "/dev/fuse";
    let metadata = match std::fs::metadata(DEVICE) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Finding::fail(
                CHECK,
                "it does not exist",
                "Run `modprobe fuse`; start a container with --device /dev/fuse",
            );
        }
        Err(error) => return Finding::fail(CHECK, error.to_string(), "Make /dev accessible"),
    };
    if !metadata.file_type().is_char_device() {
        return Finding::fail(CHECK, "it is not a device", "Remove it, and run `mknod -m 666 /dev/fuse c 10 229`");
    }
    let mode = metadata.mode() & 0o777;
    match File::options().read(true).write(true).open(DEVICE) {
        Ok(_) => Finding::ok(CHECK, format!("this user may open it (mode {mode:03o})")),
        Err(error) if error.kind() == ErrorKind::PermissionDenied && mode & 0o6 != 0o6 => Finding::fail(
            CHECK,
            format!("this user may not open it (mode {mode:03o})"),
            "As root, run `chmod 666 /dev/fuse`",
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Finding::fail(CHECK, "a policy forbids opening it", "Start the container with --device /dev/fuse")
        }
        Err(error) => Finding::fail(CHECK, format!("it cannot be opened: {error}"), "Run `modprobe fuse`"),
    }
}

fn helper(is_root: bool) -> Finding {
    const CHECK: &str = "fusermount3";
    match helper::find() {
        Ok(path) => Finding::ok(CHECK, path.display().to_string()),
        Err(obstacle) if is_root => Finding::ok(CHECK, format!("{}; root mounts without it", obstacle.reason)),
        Err(obstacle) => {
            Finding::fail(CHECK, format!("{}: users cannot mount without it", obstacle.reason), obstacle.remedy)
        }
    }
}

/// Returns the lines of `/etc/fuse.conf` without comments.
fn configuration() -> Vec<String> {
    let text = std::fs::read_to_string(CONFIGURATION).unwrap_or_default();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim().to_owned());
    lines.filter(|line| !line.is_empty()).collect()
}

fn user_allow_other(is_root: bool) -> Finding {
    const CHECK: &str = "user_allow_other";
    if configuration().iter().any(|line| line == "user_allow_other") {
        return Finding::ok(CHECK, format!("set in {CONFIGURATION}"));
    }
    if is_root {
        Finding::ok(CHECK, format!("not set in {CONFIGURATION}; root may use --allow-other without it"))
    } else {
        let remedy =
            format!("Add the line `user_allow_other` to {CONFIGURATION} if other users should read your mounts");
        Finding::warn(CHECK, format!("not set in {CONFIGURATION}: --allow-other is refused"), remedy)
    }
}

fn open_files() -> Finding {
    const CHECK: &str = "open files";
    const REMEDY: &str = "Raise it: `ulimit -n 65536`, LimitNOFILE= in a unit, or /etc/security/limits.conf";
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    match limit {
        0..MIN_FILES => Finding::fail(CHECK, format!("the limit is {limit}: a mount runs out of them"), REMEDY),
        MIN_FILES..ENOUGH_FILES => {
            Finding::warn(CHECK, format!("the limit is {limit}: many open chunks exceed it"), REMEDY)
        }
        _ => Finding::ok(CHECK, format!("the limit is {limit}")),
    }
}

fn mount_count(is_root: bool) -> Option<Finding> {
    const CHECK: &str = "mounts";
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let all = table.lines().count();
    let kernel_max: usize = std::fs::read_to_string("/proc/sys/fs/mount-max").ok()?.trim().parse().ok()?;
    if all * 10 > kernel_max * 9 {
        let text = format!("{all} of at most {kernel_max} mounts exist");
        return Some(Finding::fail(CHECK, text, "Unmount some, or raise /proc/sys/fs/mount-max"));
    }
    let listed = configuration()
        .iter()
        .find_map(|line| line.strip_prefix("mount_max")?.trim_start().strip_prefix('=')?.trim().parse().ok());
    let user_max: usize = listed.unwrap_or(DEFAULT_MOUNT_MAX);
    let fuse = table.lines().filter(|line| line.contains(" - fuse.") || line.contains(" - fuse ")).count();
    if !is_root && fuse * 10 > user_max * 9 {
        let text = format!("{fuse} of at most {user_max} FUSE mounts exist");
        return Some(Finding::fail(CHECK, text, format!("Unmount some, or raise mount_max in {CONFIGURATION}")));
    }
    let own = mount_table::own_mounts().ok()?.len();
    Some(Finding::ok(CHECK, format!("{own} of icechunkfs, {fuse} of FUSE, {all} in all; at most {kernel_max}")))
}

/// Checks the kernel's own deadline of requests, which Linux 6.14 and later have.
fn request_timeout() -> Option<Finding> {
    const CHECK: &str = "request timeout";
    let seconds = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(Path::new("/proc/sys/fs/fuse").join(name)).ok()?;
        text.trim().parse().ok().filter(|&seconds| seconds > 0)
    };
    let least = [seconds("default_request_timeout"), seconds("max_request_timeout")].into_iter().flatten().min()?;
    Some(match least {
        0..SLOW_REQUEST => {
            let text = format!("the kernel ends a mount whose request takes {least} s, which a slow store may take");
            let remedy = format!("Raise /proc/sys/fs/fuse/*_request_timeout to {SLOW_REQUEST}, or set 0");
            Finding::warn(CHECK, text, remedy)
        }
        _ => Finding::ok(CHECK, format!("the kernel ends a mount whose request takes {least} s")),
    })
}

fn memory() -> Option<Finding> {
    const CHECK: &str = "memory";
    let available = memory::available_memory()?;
    let used = memory::default_memory();
    let of = if memory::cgroup_limit() == Some(available) { "the control group allows" } else { "this machine has" };
    let text = format!("{of} {} MiB; a mount holds at most {} MiB", available >> 20, used >> 20);
    Some(if available < 4 * memory::MIN_MEMORY {
        Finding::warn(CHECK, text, "Raise the limit of the control group: large snapshots will not fit")
    } else {
        Finding::ok(CHECK, text)
    })
}
