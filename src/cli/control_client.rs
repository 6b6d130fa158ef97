//! `icechunkfs commit`, `status`, `diff`, `discard`, `refresh`: commands to the daemon of a mount, through its control files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::ProgressBar;
use serde::Deserialize;

use super::{print, print_json, progress, replace_commits};
use crate::commit::engine::OnConflict;
use crate::control::CONTROL_DIRECTORY;
use crate::error::{Error, ErrorKind, Result};
use crate::fuse::{mount_table, probe};
use crate::mount_facts::MountInfo;
use crate::operations::CommitOptions;
use crate::operations::paths::ShownPart;
use crate::operations::request::{Answer, Command};
use crate::operations::status::Status;

#[derive(Debug, Args)]
pub(crate) struct CommitArgs {
    /// The mountpoint of the branch [default: the mount of the current directory].
    mountpoint: Option<PathBuf>,
    /// The commit message.
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    message: String,
    /// Set a metadata item of the commit; VALUE is JSON, otherwise text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Replace the branch's newest commit.
    #[arg(long)]
    amend: bool,
    /// Resolve conflicts between chunks: ours keeps the chunks of this mount, theirs those of concurrent commits [default: refuse].
    #[arg(long, value_name = "WHOSE")]
    on_conflict: Option<OnConflict>,
    /// Commit nothing if there are warnings: about arrays that the Icechunk library cannot read, chunks of a wrong length, nodes in no group.
    #[arg(long)]
    strict: bool,
    /// Print {"snapshot", "rebased_over", "nodes", "chunks", "untracked", "ungrouped", "warnings": [{"path", "why"}]}; snapshot is null if
    /// there was nothing to commit.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MountpointArgs {
    /// The mountpoint of the branch [default: the mount of the current directory].
    pub(super) mountpoint: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    #[command(flatten)]
    mount: MountpointArgs,
    /// Discard what is at and below this path, as `status` shows it or as the shell names it in the mount [default: everything].
    path: Option<String>,
}

/// Commits the changes in a mount.
pub(crate) fn commit(arguments: &CommitArgs) -> Result<()> {
    let command = Command::Commit(CommitOptions {
        message: arguments.message.clone(),
        metadata: replace_commits::metadata(&arguments.metadata)?,
        amend: arguments.amend,
        on_conflict: arguments.on_conflict,
        strict: arguments.strict,
    });
    let control = control(&or_current(arguments.mountpoint.as_deref())?)?;
    let draw = |bar: &ProgressBar| {
        let text = std::fs::read(control.join("progress")).unwrap_or_default();
        let Ok(progress) = serde_json::from_slice::<ProgressFile>(&text) else { return };
        bar.set_length(progress.bytes);
        bar.set_position(progress.bytes_done);
        bar.set_message(progress.stage);
    };
    let template = "{msg} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}";
    let answer = progress::watched(template, draw, || ask(&control, &command))?;
    print_answer(&answer, arguments.json)
}

/// Content of the control file `progress`.
#[derive(Deserialize)]
struct ProgressFile {
    stage: String,
    bytes: u64,
    bytes_done: u64,
}

/// Discards uncommitted changes.
pub(crate) fn discard(DiscardArgs { mount, path }: &DiscardArgs) -> Result<()> {
    let mountpoint = or_current(mount.mountpoint.as_deref())?;
    let path = repository_path(&mountpoint, path.as_deref().unwrap_or_default())?;
    run(&MountpointArgs { mountpoint: Some(mountpoint), json: mount.json }, &Command::Discard { path })
}

/// Runs `command` in the daemon of a mount, and prints the answer.
pub(crate) fn run(MountpointArgs { mountpoint, json }: &MountpointArgs, command: &Command) -> Result<()> {
    let mountpoint = or_current(mountpoint.as_deref())?;
    match control(&mountpoint) {
        Err(error) if error.kind() == ErrorKind::ReadOnly && *command == Command::Status => {
            print_read_only(&mountpoint, *json)
        }
        control => print_answer(&ask(&control?, command)?, *json),
    }
}

/// Returns the uncommitted changes of a mount whose daemon answers by `ask`, without a look at the branch; `None` if it does not know
/// them.
pub(crate) fn local_status(ask: impl Fn(&[u8]) -> Result<Option<Vec<u8>>>) -> Result<Option<Status>> {
    // A daemon of an older version knows only the second.
    for command in [Command::LocalStatus, Command::Status] {
        let Some(answer) = ask(&encode_command(&command)?)? else { return Ok(None) };
        if let Ok(Answer { result: Some(status), .. }) = serde_json::from_slice(&answer) {
            return Ok(Some(status));
        }
    }
    Ok(None)
}

/// Prints what a read-only mount shows.
fn print_read_only(mountpoint: &Path, json: bool) -> Result<()> {
    let path = control_directory(mountpoint).join(if json { "info.json" } else { "status" });
    let text = std::fs::read_to_string(&path).map_err(|e| Error::io(path.display(), e))?;
    print(&text)
}

/// Returns `mountpoint`, or the mountpoint of the mount that the current directory is in.
fn or_current(mountpoint: Option<&Path>) -> Result<PathBuf> {
    mountpoint.map_or_else(mount_table::current_mountpoint, |path| Ok(path.to_owned()))
}

/// Returns the control directory of the mount at `mountpoint`. Fails if the mount is read-only.
fn control(mountpoint: &Path) -> Result<PathBuf> {
    let mountpoint = probe::require_responsive_mount(mountpoint)?;
    let control = control_directory(&mountpoint);
    // A read-only mount has the directory, too, but takes no commands.
    match std::fs::metadata(control.join("request")) {
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
pub(super) fn path_in_mount(mountpoint: &Path, path: &str) -> Result<String> {
    Ok(inside_mount(mountpoint, path)?.unwrap_or_else(|| path.to_owned()))
}

/// Converts `path` to one of the repository, for a command to the daemon: a path that lies in the mount on this machine is mapped through
/// what the mount shows, any other is one of the repository already. The empty path stays.
///
/// Fails with [`ErrorKind::ReadOnly`] if the mount is read-only.
pub(super) fn repository_path(mountpoint: &Path, path: &str) -> Result<String> {
    let control = control(mountpoint)?;
    let path = match inside_mount(mountpoint, path)? {
        Some(inside) => {
            let place = control.join("info.json");
            let info = std::fs::read(&place).map_err(|e| Error::io(place.display(), e))?;
            let info: MountInfo = serde_json::from_slice(&info)
                .map_err(|e| Error::with_source(ErrorKind::Corrupt, place.display().to_string(), e))?;
            ShownPart::of(&info.options).path_of(&inside)?
        }
        None => path.to_owned(),
    };
    // The daemon takes an absolute path below its mountpoint for one of the mount.
    let relative = path.trim_start_matches('/');
    Ok(if relative.is_empty() { path } else { relative.to_owned() })
}

/// Returns the path relative to `mountpoint` of what `path` names on this machine; none if that is elsewhere.
fn inside_mount(mountpoint: &Path, path: &str) -> Result<Option<String>> {
    if path.is_empty() {
        return Ok(None);
    }
    // Without a current directory, a relative path names nothing on this machine.
    let Ok(absolute) = std::path::absolute(path) else { return Ok(None) };
    let mountpoint = mount_table::absolute(mountpoint)?;
    let text = |inside: &Path| Some(inside.to_string_lossy().into_owned());
    if let Ok(inside) = absolute.strip_prefix(&mountpoint) {
        return Ok(text(inside));
    }
    // A symbolic link above the mount may lead to it. One in the mount is not followed: the command is about the link.
    let mut above = PathBuf::new();
    let mut components = absolute.components();
    while let Some(component) = components.next() {
        above.push(component);
        let Ok(real) = mount_table::absolute(&above) else { return Ok(None) };
        if let Ok(inside) = real.strip_prefix(&mountpoint) {
            return Ok(text(&inside.join(components.as_path())));
        }
    }
    Ok(None)
}

/// Encodes `command` for the daemon.
pub(super) fn encode_command(command: &Command) -> Result<Vec<u8>> {
    serde_json::to_vec(command).map_err(|e| Error::with_source(ErrorKind::InvalidInput, "the command", e))
}

/// Sends `command` to the daemon behind `control` and returns its answer.
pub(super) fn ask(control: &Path, command: &Command) -> Result<Answer> {
    let place = control.join("request");
    let failed = |e| Error::io(place.display(), e);
    let mut file = File::options().read(true).write(true).open(&place).map_err(failed)?;
    file.write_all(&encode_command(command)?).map_err(failed)?;
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

fn print_answer(answer: &Answer, json: bool) -> Result<()> {
    if !answer.ok {
        if json && !answer.conflicts.is_null() {
            print_json(&serde_json::json!({"error": answer.text, "conflicts": answer.conflicts}))?;
        }
        return Err(Error::of_daemon(ErrorKind::Io, answer.errno, answer.text.clone()));
    }
    if json { print_json(&answer.result) } else { print(&format!("{}\n", answer.text.trim_end())) }
}
