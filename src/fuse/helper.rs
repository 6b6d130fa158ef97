//! `fusermount3`, the helper with which users mount.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::fs::StatVfsMountFlags;

/// Names of the helper, and directories besides `PATH` in which it is looked for.
const NAMES: [&str; 2] = ["fusermount3", "fusermount"];
const DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
const SET_USER_ID: u32 = 0o4000;

/// Reason why users cannot mount with the helper, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Reason, without a subject's name before it.
    pub reason: String,
    /// Remedy, as a sentence.
    pub remedy: String,
}

/// Returns the path of the helper, or the reason why users cannot mount with it. Root mounts
/// without it.
pub fn find() -> Result<PathBuf, Obstacle> {
    let obstacle = |reason: String, remedy: &str| Err(Obstacle { reason, remedy: remedy.to_owned() });
    let Some((path, metadata)) = installed() else {
        return obstacle("fusermount3 is missing".to_owned(), "Install the package fuse3, or mount as root");
    };
    let shown = path.display();
    if metadata.uid() != 0 || metadata.mode() & SET_USER_ID == 0 {
        let remedy = format!("As root, run `chown root {shown} && chmod u+s {shown}`, or mount as root");
        return obstacle(format!("{shown} is not set-user-ID root"), &remedy);
    }
    if rustix::fs::statvfs(&path).is_ok_and(|space| space.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        let remedy = "Mount that file system without nosuid, or mount as root";
        return obstacle(format!("{shown} is on a file system that is mounted with nosuid"), remedy);
    }
    Ok(path)
}

fn installed() -> Option<(PathBuf, Metadata)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).chain(DIRECTORIES.map(PathBuf::from)).collect();
    let named = std::env::var_os("FUSERMOUNT_PATH").map(PathBuf::from);
    let usual = NAMES.iter().flat_map(|name| directories.iter().map(move |directory| directory.join(name)));
    let mut candidates = named.into_iter().chain(usual);
    candidates.find_map(|path| std::fs::metadata(&path).ok().filter(Metadata::is_file).map(|metadata| (path, metadata)))
}
