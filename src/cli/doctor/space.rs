//! Checks of directories: scratch and cache.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, Mode, OFlags, StatVfsMountFlags};

use super::finding::Finding;
use icechunkfs_base::trust;
use icechunkfs_working::scratch::directory;

/// Deadline of a directory: a network file system may not answer.
const DEADLINE: Duration = Duration::from_secs(5);
/// Free bytes below which writes soon fail, and below which a large commit may.
const MIN_FREE: u64 = 16 << 20;
const ENOUGH_FREE: u64 = 1 << 30;
/// File systems of a network, by their magic numbers (statfs(2)).
const NETWORK: [(u64, &str); 9] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x6573_5546, "FUSE"),
];
/// File systems in memory.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Checks the scratch directory `path`, or the parent of this user's scratch directories.
pub(super) fn check_scratch(path: Option<PathBuf>) -> Vec<Finding> {
    match path.map_or_else(directory::state_directory, Ok) {
        Ok(path) => vec![within_deadline("scratch", path, |path| check("scratch", path, true))],
        Err(error) => vec![Finding::fail("scratch", error.to_string(), "Set HOME, or name a directory with --scratch")],
    }
}

/// Checks the cache directory `path`.
pub(super) fn check_cache(path: PathBuf) -> Finding {
    within_deadline("cache", path, |path| check("cache", path, false))
}

fn within_deadline(
    name: &'static str,
    path: PathBuf,
    check: impl FnOnce(&Path) -> Finding + Send + 'static,
) -> Finding {
    let (sender, receiver) = mpsc::sync_channel(1);
    let shown = path.display().to_string();
    // A thread that hangs ends with the process.
    std::thread::spawn(move || sender.send(check(&path)));
    receiver.recv_timeout(DEADLINE).unwrap_or_else(|_| {
        let text = format!("{shown}: its file system does not answer within {} s", DEADLINE.as_secs());
        Finding::fail(name, text, "Make it answer, or choose a directory on a local disk")
    })
}

fn check(name: &'static str, path: &Path, must_last: bool) -> Finding {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // A directory that does not exist yet is made in the nearest one that does.
    let Some(existing) = absolute.ancestors().find(|ancestor| ancestor.exists()) else {
        return Finding::fail(
            name,
            format!("{}: no part of this path exists", path.display()),
            "Choose another directory",
        );
    };
    let shown = absolute.display();
    let (Ok(space), Ok(system)) = (rustix::fs::statvfs(existing), rustix::fs::statfs(existing)) else {
        return Finding::fail(name, format!("{shown}: its file system cannot be examined"), "Choose another directory");
    };
    if space.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Finding::fail(name, format!("{shown} is on a read-only file system"), elsewhere(name));
    }
    if rustix::fs::accessat(rustix::fs::CWD, existing, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS).is_err() {
        return Finding::fail(name, format!("this user may not write to {}", existing.display()), elsewhere(name));
    }
    if existing == absolute {
        let opened = rustix::fs::open(existing, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        match opened.map(|directory| trust::check(&directory)) {
            Ok(Err(why)) => {
                return Finding::fail(name, trust::distrust_error(existing, &why).to_string(), elsewhere(name));
            }
            Err(errno) => return Finding::fail(name, format!("{shown}: {errno}"), elsewhere(name)),
            Ok(Ok(_)) => {}
        }
    }
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let free_text = format!("{shown} has {} MiB free", free >> 20);
    let kind = u64::try_from(system.f_type).unwrap_or_default() & 0xffff_ffff;
    let network = NETWORK.iter().find(|(magic, _)| *magic == kind);
    match free {
        0..MIN_FREE => Finding::fail(name, free_text, format!("Free space. {}", elsewhere(name))),
        MIN_FREE..ENOUGH_FREE => Finding::warn(name, free_text, format!("Free space. {}", elsewhere(name))),
        _ if network.is_some() => {
            let system = network.map(|(_, system)| *system).unwrap_or_default();
            let text = format!("{shown} is on {system}: slow, and its locks may not hold on other machines");
            Finding::warn(name, text, format!("Use a local disk. {}", elsewhere(name)))
        }
        _ if must_last && MEMORY.contains(&kind) => {
            let text = format!("{shown} is in memory: a reboot loses uncommitted changes");
            Finding::warn(name, text, format!("Use a disk. {}", elsewhere(name)))
        }
        _ => Finding::ok(name, free_text),
    }
}

fn elsewhere(name: &str) -> String {
    format!("--{name} names another directory")
}
