//! Programs of the current user that keep a mount busy, for a message.
//!
//! Only links in `/proc` are read, which ask no daemon.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::processes::{self, Process};
use icechunkfs_base::printable;

/// Programs that a message names.
const NAMED: usize = 5;
/// Files of one program that are looked at.
const FILES: usize = 4096;

/// Describes the other programs of this user that have a file below `mountpoint` open, or their
/// working directory there: process, name, and the first such file.
pub(super) fn of_mount(mountpoint: &Path) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let own = processes::of_users(|owner| owner == user).filter(|process| process.pid != std::process::id());
    let used = own.filter_map(|process| Some((used_file(&process, mountpoint)?, process)));
    let described = used.map(|(file, process)| {
        let name = process.name().unwrap_or_default();
        let file = file.to_string_lossy();
        let file = if file.is_empty() { "working directory" } else { &*file };
        printable::line(&format!("{} {name} ({file})", process.pid))
    });
    described.take(NAMED).collect()
}

/// Returns the path below `mountpoint` of a file that `process` has open, the empty path for its
/// working directory; none if it uses nothing there.
fn used_file(process: &Process, mountpoint: &Path) -> Option<PathBuf> {
    let place = process.place();
    // The links are those of a new process if this one has ended and its number is used again.
    if place.metadata().ok()?.uid() != process.owner {
        return None;
    }
    let is_here = std::fs::read_link(place.join("cwd")).is_ok_and(|path| path.starts_with(mountpoint));
    if is_here {
        return Some(PathBuf::new());
    }
    let files = std::fs::read_dir(place.join("fd")).ok()?.flatten().take(FILES);
    files.filter_map(|entry| std::fs::read_link(entry.path()).ok()).find_map(|path| {
        let below = path.strip_prefix(mountpoint).ok()?;
        Some(if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_program_is_named_with_its_file() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let own = Process::find(std::process::id()).unwrap();
        assert_eq!(used_file(&own, &place), None);
        let _open = std::fs::File::create(place.join("f")).unwrap();
        assert_eq!(used_file(&own, &place), Some(PathBuf::from("f")));
        assert_eq!(used_file(&own, &place.join("other")), None);
        // Another program, in the directory.
        let mut child = std::process::Command::new("sleep").arg("60").current_dir(&place).spawn().unwrap();
        let found = of_mount(&place);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("{} sleep (working directory)", child.id())]);
    }
}
