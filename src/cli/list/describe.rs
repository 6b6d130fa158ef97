//! Description of a mount: what it shows, who serves it, what is uncommitted.
//!
//! Facts come from the daemon's `.icechunk/info.json` where commands may ask the daemon and it
//! answers, otherwise from the mount table and the daemon's command line, if that is one of this
//! user or of root.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::OnceLock;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::args::Command;
use super::super::{control_client, mount_helper, mount_options};
use crate::fuse::daemon_mark::{MarkedProcess, marked_processes};
use crate::fuse::health::Health;
use crate::fuse::mount_table::Mount;
use crate::fuse::open_mount::Deadline;
use crate::fuse::preopened;
use crate::fuse::processes::{self, Process};
use crate::fuse::survey::{Question, Surveyed, survey};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::trust;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_tree::mount_facts::{kind_and_name, split_source};
use icechunkfs_working::operations::request::{self, Answer};
use icechunkfs_working::operations::status::Status;

/// Longest time for all command lines together.
const COMMAND_LINES: Duration = Duration::from_secs(3);

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
    faults: usize,
}

impl fmt::Display for ChangeCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [(self.nodes, "nodes"), (self.chunks, "chunks"), (self.untracked, "untracked files")];
        let shown = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| match count {
            1 => format!("1 {}", what.trim_end_matches('s')),
            count => format!("{count} {what}"),
        });
        let faults = (self.faults > 0).then(|| format!("{} that cannot be committed", self.faults));
        let shown: Vec<String> = shown.chain(faults).collect();
        f.write_str(if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }.as_str())
    }
}

/// Part of `.icechunk/info.json`. Every member is optional: a daemon of another release may write
/// others.
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
pub(super) fn describe_all(mounts: &[Mount]) -> Result<Vec<ListedMount>> {
    let processes = Processes::find(mounts);
    let count = control_client::encode_command(&request::Command::LocalStatus)?;
    let info = Question::Content("info.json");
    let questions =
        |mount: &Mount| if mount.read_only { vec![info] } else { vec![info, Question::Reply("request", &count)] };
    let surveyed = survey(mounts, questions);
    Ok(mounts.iter().zip(surveyed).map(|(mount, surveyed)| describe(mount, surveyed, &processes)).collect())
}

fn describe(mount: &Mount, surveyed: Surveyed, processes: &Processes) -> ListedMount {
    let health = surveyed.health;
    let mut answers = surveyed.answers.into_iter().map(|answer| answer.unwrap_or_default());
    let info = answers.next().and_then(|info| serde_json::from_slice(&info).ok());
    let info: DaemonInfo = info.unwrap_or_default();
    let uncommitted = answers.next().as_deref().and_then(uncommitted);
    let served_by = processes.serving(mount);
    // A dead mount has no daemon: a process that claims it is ending, or serves another mount at
    // the same place. It may claim to be served by any process: only those of its owner are
    // believed.
    let is_of_owner = |pid: &u32| Process::find(*pid).is_some_and(|process| Some(process.owner) == mount.owner);
    let claimed = info.pid.filter(is_of_owner);
    let pid = served_by.filter(|_| health != Health::Dead).or(claimed);
    let command_line = pid.and_then(|pid| processes.command_of(Process::find(pid)?));
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
        uncommitted,
    }
}

/// Returns the uncommitted changes in the daemon's answer, if it has counted them.
fn uncommitted(answer: &[u8]) -> Option<ChangeCounts> {
    let answer: Answer<Status> = serde_json::from_slice(answer).ok()?;
    let status = answer.result?;
    Some(ChangeCounts {
        nodes: status.added.len() + status.changed.len() + status.deleted.len() + status.moved.len(),
        chunks: status.chunks_written + status.chunks_deleted,
        bytes: status.bytes,
        untracked: status.untracked.len(),
        faults: status.violations.len(),
    })
}

/// Processes that say of themselves that they serve a mount.
struct Processes {
    /// Those with a mark, which their users and root can see.
    marked: Vec<MarkedProcess>,
    /// Those of this user and of root whose command lines name an absolute mountpoint; looked up
    /// once it is needed.
    by_command_line: OnceLock<Vec<MarkedProcess>>,
    /// Moment until which command lines are read.
    deadline: OnceLock<Deadline>,
}

impl Processes {
    fn find(mounts: &[Mount]) -> Self {
        Processes { marked: marked_processes(mounts), by_command_line: OnceLock::new(), deadline: OnceLock::new() }
    }

    /// Returns the daemon of `mount`. A user can say anything about processes of their own, and
    /// nothing about others.
    fn serving(&self, mount: &Mount) -> Option<u32> {
        let serves =
            |process: &&MarkedProcess| Some(process.owner) == mount.owner && process.mountpoint == mount.mountpoint;
        let marked = self.marked.iter().find(serves);
        // Command lines of other users are not read.
        let claims = || self.by_command_line.get_or_init(|| self.mounting()).iter().find(serves);
        let found = marked.or_else(|| mount.is_own().then(claims).flatten());
        found.map(|process| process.pid)
    }

    /// Returns the processes of icechunkfs, of this user and of root, whose command lines mount.
    fn mounting(&self) -> Vec<MarkedProcess> {
        let found = processes::of_users(trust::is_trusted).filter_map(|process| {
            let name = process.name()?;
            let Process { pid, owner } = process;
            let is_ours = name == crate::PROGRAM || name.starts_with("mount.");
            let command = is_ours.then(|| self.command_of(process)).flatten()?;
            Some(MarkedProcess { pid, owner, mountpoint: command.mountpoint })
        });
        found.collect()
    }

    /// Returns the mount command of `process`, if that is known in time.
    fn command_of(&self, process: Process) -> Option<mount_options::MountArgs> {
        let line = process.command_line(*self.deadline.get_or_init(|| Deadline::after(COMMAND_LINES)))?;
        let line = line.strip_suffix(b"\0")?;
        mount_command(line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect())
    }
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
