//! `icechunkfs commit`, `status`, `diff`, `discard`, `refresh`: commands to the daemon of a mount, through its control files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::args::{CommitArgs, DiscardArgs, MountpointArgs};
use super::{logging, print, print_json, progress, replace_commits};
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::{mount_table, probe};
use crate::operations::request::{Answer, Command};
use crate::overlay::namespace::CONTROL_DIRECTORY;

/// Interval between updates of the progress bar.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Commits the changes in a mount.
pub fn commit(arguments: &CommitArgs) -> Result<()> {
    logging::to_stderr(0);
    let command = Command::Commit {
        message: arguments.message.clone(),
        metadata: replace_commits::metadata(&arguments.metadata)?,
        amend: arguments.amend,
        on_conflict: arguments.on_conflict.clone(),
    };
    let control = control(&arguments.mountpoint)?;
    let done = Arc::new(AtomicBool::new(false));
    let watcher = watch(control.clone(), Arc::clone(&done));
    let answer = ask(&control, &command);
    done.store(true, Ordering::Relaxed);
    // The thread ends by itself; a bar that is left half drawn is no failure.
    let _ = watcher.join();
    say(&answer?, arguments.json)
}

/// Prints a summary of the uncommitted changes.
pub fn status(arguments: &MountpointArgs) -> Result<()> {
    run(&arguments.mountpoint, &Command::Status, arguments.json)
}

/// Prints the uncommitted changes, node by node.
pub fn diff(arguments: &MountpointArgs) -> Result<()> {
    run(&arguments.mountpoint, &Command::Diff, arguments.json)
}

/// Discards uncommitted changes.
pub fn discard(arguments: &DiscardArgs) -> Result<()> {
    let path = inside(&arguments.mountpoint, arguments.path.as_deref().unwrap_or_default())?;
    run(&arguments.mountpoint, &Command::Discard { path }, arguments.json)
}

/// Moves a mount to its branch's newest commit.
pub fn refresh(arguments: &MountpointArgs) -> Result<()> {
    run(&arguments.mountpoint, &Command::Refresh, arguments.json)
}

fn run(mountpoint: &Path, command: &Command, json: bool) -> Result<()> {
    logging::to_stderr(0);
    say(&ask(&control(mountpoint)?, command)?, json)
}

/// Returns the control directory of the mount at `mountpoint`. Fails if the mount is read-only.
fn control(mountpoint: &Path) -> Result<PathBuf> {
    let mountpoint = probe::require_responsive_mount(mountpoint)?;
    let control = control_directory(&mountpoint);
    match std::fs::metadata(&control) {
        Ok(_) => Ok(control),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::new(ErrorKind::ReadOnly, format!("{} is mounted read-only", mountpoint.display())))
        }
        Err(e) => Err(Error::io(control.display(), e)),
    }
}

/// Returns the path of the control directory of a mount, whether or not it has one.
pub(super) fn control_directory(mountpoint: &Path) -> PathBuf {
    mountpoint.join(OsStr::from_bytes(CONTROL_DIRECTORY))
}

/// Converts `path`, on this machine or in the mount, to one in the mount.
pub(super) fn inside(mountpoint: &Path, path: &str) -> Result<String> {
    match std::path::absolute(path) {
        Ok(absolute) if !path.is_empty() => {
            let mountpoint = mount_table::absolute(mountpoint)?;
            let inside = absolute.strip_prefix(&mountpoint);
            Ok(inside.map_or(path.to_owned(), |inside| inside.to_string_lossy().into_owned()))
        }
        _ => Ok(path.to_owned()),
    }
}

/// Encodes `command` for the daemon.
pub(super) fn spell(command: &Command) -> Result<Vec<u8>> {
    serde_json::to_vec(command).map_err(|e| Error::with_source(ErrorKind::InvalidInput, "the command", e))
}

/// Sends `command` to the daemon behind `control` and returns its answer.
pub(super) fn ask(control: &Path, command: &Command) -> Result<Answer> {
    let place = control.join("request");
    let failed = |e| Error::io(place.display(), e);
    let mut file = File::options().read(true).write(true).open(&place).map_err(failed)?;
    file.write_all(&spell(command)?).map_err(failed)?;
    let mut answer = Vec::new();
    // The answer is at the beginning, whatever offset the write left.
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read_at(&mut buffer, answer.len() as u64).map_err(failed)? {
            0 => break,
            count => answer.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
    serde_json::from_slice(&answer).map_err(|e| Error::with_source(ErrorKind::Io, "the daemon's answer", e))
}

fn say(answer: &Answer, json: bool) -> Result<()> {
    if json && (answer.ok || !answer.conflicts.is_null()) {
        let result = if answer.ok {
            answer.result.clone()
        } else {
            serde_json::json!({"error": answer.said, "conflicts": answer.conflicts})
        };
        print_json(&result)?;
    } else if answer.ok {
        print(&format!("{}\n", answer.said.trim_end()))?;
    }
    if answer.ok {
        return Ok(());
    }
    let kind = match answer.errno {
        libc::ESTALE => ErrorKind::Stale,
        libc::EBUSY => ErrorKind::Busy,
        libc::ENOSPC => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Err(Error::new(kind, answer.said.clone()))
}

/// Draws the progress of a commit if it takes long and standard error is a terminal.
fn watch(control: PathBuf, done: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let bar = progress::still("{msg} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
        while !done.load(Ordering::Relaxed) && !bar.is_hidden() {
            std::thread::sleep(LOOK_EVERY);
            let text = std::fs::read(control.join("progress")).unwrap_or_default();
            let Ok(progress) = serde_json::from_slice::<Value>(&text) else { continue };
            let number = |name: &str| progress.get(name).and_then(Value::as_u64).unwrap_or(0);
            if done.load(Ordering::Relaxed) {
                break;
            }
            bar.set_length(number("bytes"));
            bar.set_position(number("bytes_done"));
            bar.set_message(progress.get("stage").and_then(Value::as_str).unwrap_or_default().to_owned());
        }
        bar.finish_and_clear();
    })
}
