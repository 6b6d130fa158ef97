//! Description of a mount: what it shows, who serves it, what is uncommitted.
//!
//! Facts come from the daemon's `.icechunk/info.json` where the mount has one and answers, otherwise from the daemon's command line and
//! the mount table.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::args::Command;
use super::super::{control_client, mount_helper, mount_options};
use crate::fuse::daemon_mark::{MarkedProcess, marked_processes};
use crate::fuse::health::{self, Health};
use crate::fuse::mount_table::Mount;
use crate::fuse::preopened;
use crate::fuse::probe::{self, Probe};
use crate::mount_facts::{kind_and_name, split_source};
use crate::printable;
use crate::repo::refs::RefSpec;

/// Deadline of a daemon that has the reply in memory.
const REPLY: Duration = Duration::from_secs(2);
/// Deadline of a daemon that counts uncommitted changes, which takes a second for a million files.
const COUNT: Duration = Duration::from_secs(5);
/// Mount as the command lists it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ListedMount {
    pub(super) mountpoint: String,
    pub(super) repository: String,
    pub(super) kind: Option<String>,
    #[serde(rename = "ref")]
    pub(super) reference: Option<String>,
    pub(super) snapshot: Option<String>,
    pub(super) read_only: bool,
    pub(super) owner: Option<u32>,
    pub(super) pid: Option<u32>,
    pub(super) health: Health,
    pub(super) uncommitted: Option<ChangeCounts>,
}

/// Uncommitted changes, counted.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ChangeCounts {
    nodes: usize,
    chunks: usize,
    bytes: u64,
    untracked: usize,
}

impl fmt::Display for ChangeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [(self.nodes, "nodes"), (self.chunks, "chunks"), (self.untracked, "untracked files")];
        let shown = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| match count {
            1 => format!("1 {}", what.trim_end_matches('s')),
            count => format!("{count} {what}"),
        });
        let shown: Vec<String> = shown.collect();
        f.write_str(if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }.as_str())
    }
}

/// Part of `.icechunk/info.json`. Every member is optional: a daemon of another release may write others.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DaemonInfo {
    repository: Option<String>,
    kind: Option<String>,
    #[serde(rename = "ref")]
    reference: Option<String>,
    branch: Option<String>,
    snapshot: Option<String>,
    pid: Option<u32>,
}

/// Describes `mounts`, in their order.
pub(super) fn describe_all(mounts: &[Mount]) -> Vec<ListedMount> {
    let marked = marked_processes();
    health::ask_all(mounts, |mount| describe(mount, &marked))
}

fn describe(mount: &Mount, marked: &[MarkedProcess]) -> ListedMount {
    let health = health::check(mount, REPLY);
    let info = if health == Health::Alive { info(mount) } else { None }.unwrap_or_default();
    let serves =
        |process: &&MarkedProcess| Some(process.owner) == mount.owner && process.mountpoint == mount.mountpoint;
    let served_by = marked.iter().find(serves).map(|process| process.pid).or_else(|| process_by_command_line(mount));
    // A dead mount has no daemon: a process that claims it is ending, or serves another mount at the same place.
    let claimed = info.pid.filter(|pid| mount.owner.is_some() && owner_of(*pid) == mount.owner);
    let pid = served_by.filter(|_| health != Health::Dead).or(claimed);
    let command_line = pid.and_then(command_line_of).and_then(mount_command);
    let of_command_line = command_line.clone().and_then(ref_words);
    let of_info = info.kind.zip(info.reference).or_else(|| Some(("branch".to_owned(), info.branch?)));
    // The program that mounted a descriptor chose any source.
    let is_given = |command: &&mount_options::MountArgs| preopened::descriptor(&command.mountpoint).is_some();
    let repository = command_line.as_ref().filter(is_given).map(|command| command.repo.location.clone());
    let (location, of_source) = match split_source(&mount.source) {
        Some((location, spec)) => (location.to_owned(), Some(words(&spec))),
        None => (mount.source.clone(), None),
    };
    let found = of_info.or(of_command_line).or(of_source);
    let (kind, reference) = found.unzip();
    let id = || reference.clone().filter(|_| kind.as_deref() == Some("snapshot"));
    ListedMount {
        mountpoint: printable::text(mount.mountpoint.as_os_str().as_bytes()),
        repository: info.repository.or(repository).unwrap_or(location),
        snapshot: info.snapshot.or_else(id),
        kind,
        reference,
        read_only: mount.read_only,
        owner: mount.owner,
        pid,
        health,
        uncommitted: if health == Health::Alive && !mount.read_only { uncommitted(mount) } else { None },
    }
}

/// Returns what the daemon says about the mount, if it says anything.
fn info(mount: &Mount) -> Option<DaemonInfo> {
    let path = control_client::control_directory(&mount.mountpoint).join("info.json");
    let text = probe::ask(mount, &path, Probe::Content, REPLY).ok()?.ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the uncommitted changes, if the daemon counts them before the deadline.
fn uncommitted(mount: &Mount) -> Option<ChangeCounts> {
    let path = control_client::control_directory(&mount.mountpoint).join("request");
    let ask = |question: &[u8]| Ok(probe::ask(mount, &path, Probe::Reply(question), COUNT)?.ok());
    let status = control_client::local_status(ask).ok()??;
    Some(ChangeCounts {
        nodes: status.added.len() + status.changed.len() + status.deleted.len() + status.moved.len(),
        chunks: status.chunks_written + status.chunks_deleted,
        bytes: status.bytes,
        untracked: status.untracked.len(),
    })
}

/// Returns the daemon of another user's mount by its command line, which everybody may read. Only an absolute mountpoint tells.
fn process_by_command_line(mount: &Mount) -> Option<u32> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut owned =
        processes.filter(|entry| entry.metadata().is_ok_and(|metadata| Some(metadata.uid()) == mount.owner));
    owned.find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let comm = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        let is_ours = comm.trim_end() == env!("CARGO_PKG_NAME") || comm.starts_with("mount.");
        let command = mount_command(command_line_of(pid).filter(|_| is_ours)?)?;
        (command.mountpoint == mount.mountpoint).then_some(pid)
    })
}

/// Returns the user of a process. A mount may claim to be served by any process: only those of its owner are believed.
fn owner_of(pid: u32) -> Option<u32> {
    std::fs::metadata(Path::new("/proc").join(pid.to_string())).ok().map(|metadata| metadata.uid())
}

fn command_line_of(pid: u32) -> Option<Vec<OsString>> {
    let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
    let line = line.strip_suffix(b"\0")?;
    Some(line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
}

/// Parses a command line of `icechunkfs mount`, or of the helper of mount(8).
fn mount_command(words: Vec<OsString>) -> Option<mount_options::MountArgs> {
    let words = match mount_helper::as_mount_helper(&words) {
        Some(translated) => translated.ok()?,
        None => words,
    };
    match mount_options::parse(&words).ok()?.command {
        Command::Mount(mount) => Some(*mount),
        _ => None,
    }
}

/// Returns the kind and the name of the ref that a mount command selects.
fn ref_words(mut command: mount_options::MountArgs) -> Option<(String, String)> {
    command.take_spec().ok().map(|spec| words(&spec))
}

fn words(spec: &RefSpec) -> (String, String) {
    let (kind, name) = kind_and_name(spec);
    (kind.to_owned(), name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn command_lines_of_daemons_are_understood() {
        let selected = |line: &str| {
            let command = mount_command(line.split(' ').map(OsString::from).collect())?;
            let place = command.mountpoint.display().to_string();
            let (kind, name) = ref_words(command)?;
            Some(format!("{place} {kind} {name}"))
        };
        assert_eq!(selected("icechunkfs mount /r /m --tag v1").unwrap(), "/m tag v1");
        assert_eq!(selected("icechunkfs --memory 64M mount /r /m").unwrap(), "/m branch main");
        assert_eq!(selected("/sbin/mount.icechunkfs /r /m -o rw,branch=x").unwrap(), "/m branch x");
        assert_eq!(selected("icechunkfs mount /r /m -o branch=a\\,b").unwrap(), "/m branch a,b");
        assert!(selected("icechunkfs unmount /m").is_none() && selected("vim").is_none());
    }
}
