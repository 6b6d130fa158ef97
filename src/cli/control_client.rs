//! `icechunkfs commit`, `status`, `diff`, `discard`, `resolve`, `refresh`: commands to the daemon
//! of a mount, through its control files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::progress::State;
use super::values::choice;
use super::{interrupted, print, print_json, progress, replace_commits};
use crate::fuse::open_mount::{Deadline, OpenMount, REPLY_TIMEOUT};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::{printable, shell};
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_tree::mount_facts::MountInfo;
use icechunkfs_working::operations::CommitOptions;
use icechunkfs_working::operations::paths::ShownPart;
use icechunkfs_working::operations::request::{Answer, Command};
use icechunkfs_working::operations::status::Status;

/// File that takes commands; only writable mounts have it.
const REQUEST: &str = "request";
/// Longest time for a look at the progress.
const GLANCE: Duration = Duration::from_secs(2);

/// Options of a commit, other than which one it replaces.
#[derive(Debug, Args)]
pub(crate) struct CommitSettings {
    /// The commit message [default: Changes made through a mount].
    #[arg(short, long, value_name = "TEXT", value_parser = message)]
    message: Option<String>,
    /// Set a metadata item; VALUE is JSON or text. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
    /// Take one side in conflicts of chunks and of members of zarr.json: ours is this mount, theirs
    /// the concurrent commits [default: refuse; `resolve` settles them one by one].
    #[arg(long, value_name = "WHOSE", value_parser = choice::<OnConflict>())]
    on_conflict: Option<OnConflict>,
    /// Commit nothing if there are warnings: arrays that the Icechunk library cannot read, chunks
    /// of a wrong length, nodes in no group.
    #[arg(long)]
    strict: bool,
    /// Also store chunks that were written with the same bytes as before [default: leave them out].
    #[arg(long)]
    keep_unchanged: bool,
    /// Make a snapshot that is on no branch, and print its id: `branch create --at` makes a branch
    /// of it. Garbage collection removes it when it is old enough. A mount keeps its uncommitted
    /// changes.
    #[arg(long, conflicts_with = "on_conflict")]
    detach: bool,
}

/// Returns the message `text`. An empty one is rarely meant: a variable of a script has no value.
fn message(text: &str) -> std::result::Result<String, String> {
    if text.trim().is_empty() {
        return Err("the message is empty: write one, or leave -m out".to_owned());
    }
    Ok(text.to_owned())
}

impl CommitSettings {
    /// Returns the options of the commit.
    pub(super) fn options(&self) -> Result<CommitOptions> {
        Ok(CommitOptions {
            message: self.message.clone().unwrap_or_default(),
            metadata: replace_commits::metadata(&self.metadata)?,
            amend: false,
            on_conflict: self.on_conflict,
            strict: self.strict,
            keep_unchanged: self.keep_unchanged,
            detach: self.detach,
            ticket: String::new(),
        })
    }
}

#[derive(Debug, Args)]
pub(crate) struct CommitArgs {
    /// The mountpoint [default: the mount of the current directory].
    mountpoint: Option<PathBuf>,
    #[command(flatten)]
    settings: CommitSettings,
    /// Replace the branch's newest commit. Its message stays unless there is a new one.
    #[arg(long, conflicts_with = "detach")]
    amend: bool,
    /// Print {"snapshot", "rebased_over", "nodes", "chunks", "unchanged", "untracked", "ungrouped",
    /// "warnings": [{"path", "why"}]}; snapshot is null if there was nothing to commit. "unchanged"
    /// (chunks left out) and "deleted" (groups and arrays) are only there if they are not 0,
    /// "is_empty" if nothing is left on the branch, and "detached" with --detach. After a conflict
    /// {"error", "conflicts"}.
    #[arg(long)]
    json: bool,
    /// Write the progress to this descriptor, a JSON object a line, for the Python package.
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(i32).range(3..))]
    progress_fd: Option<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct MountpointArgs {
    /// The mountpoint [default: the mount of the current directory].
    pub(super) mountpoint: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiscardArgs {
    #[command(flatten)]
    mount: MountpointArgs,
    /// Discard the changes at and below this path, as `status` or the shell names it [default:
    /// everything].
    path: Option<String>,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("side").required(true).args(["ours", "theirs"])))]
pub(crate) struct ResolveArgs {
    /// The mountpoint of the branch.
    mountpoint: PathBuf,
    /// Settle the conflicts at and below these paths: groups, arrays, chunks or zarr.json files, as
    /// `.icechunk/conflicts` or the shell names them.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<String>,
    /// Take what this mount has changed.
    #[arg(long)]
    ours: bool,
    /// Take what the concurrent commits have.
    #[arg(long)]
    theirs: bool,
    /// Print {"settled": the number of conflicts}.
    #[arg(long)]
    json: bool,
}

/// Commits the changes in a mount.
pub(crate) fn commit(arguments: &CommitArgs) -> Result<()> {
    let options = arguments.settings.options()?;
    let mount = open_or_current(arguments.mountpoint.as_deref())?;
    require_writable(&mount)?;
    let ticket = interrupted::ticket(&mount)?;
    let command = Command::Commit(CommitOptions { amend: arguments.amend, ticket: ticket.clone(), ..options });
    let look = || progress_of(&mount);
    let work = || interrupted::watched(&mount, &ticket, || execute(&mount, &command));
    let answer = match arguments.progress_fd {
        Some(number) => progress::reported(number, look, work)?,
        None => {
            let state = || {
                let CommitProgress { stage, bytes, bytes_done, .. } = look()?;
                Some(State::of_bytes(stage, (bytes_done, bytes)))
            };
            progress::watched(state, work)?
        }
    };
    for StageTime { stage, seconds } in look().map(|progress| progress.stages).unwrap_or_default() {
        debug!("{}: {seconds:.3} s", printable::line(&stage));
    }
    print_answer(&answer, arguments.json)
}

/// Content of the control file `progress`.
#[derive(Deserialize, Serialize)]
struct CommitProgress {
    stage: String,
    bytes: u64,
    bytes_done: u64,
    /// Absent in a daemon of an older version.
    #[serde(default)]
    stages: Vec<StageTime>,
}

/// A stage of a commit, and its time.
#[derive(Deserialize, Serialize)]
struct StageTime {
    stage: String,
    seconds: f64,
}

/// Returns the progress of a commit, for a terminal.
fn progress_of(mount: &OpenMount) -> Option<CommitProgress> {
    let text = mount.read("progress", Deadline::after(GLANCE)).ok()?.ok()?;
    let progress: CommitProgress = serde_json::from_slice(&text).ok()?;
    Some(CommitProgress { stage: printable::line(&progress.stage), ..progress })
}

/// Discards uncommitted changes.
pub(crate) fn discard(DiscardArgs { mount, path }: &DiscardArgs) -> Result<()> {
    let open = open_or_current(mount.mountpoint.as_deref())?;
    require_writable(&open)?;
    // As a script has it whose variable is not set.
    if path.as_deref().is_some_and(str::is_empty) {
        return Err(Error::invalid("the path is empty: nothing was discarded. To discard everything, name no path"));
    }
    let path = repository_path(&open, path.as_deref().unwrap_or_default())?;
    print_answer(&execute(&open, &Command::Discard { path })?, mount.json)
}

/// Settles conflicts.
pub(crate) fn resolve(arguments: &ResolveArgs) -> Result<()> {
    let open = open_writable(&arguments.mountpoint)?;
    let paths = arguments.paths.iter().map(|path| repository_path(&open, path)).collect::<Result<_>>()?;
    print_answer(&execute(&open, &Command::Resolve { paths, ours: arguments.ours })?, arguments.json)
}

/// Prints the status of a mount; with `verbose` also where its changes are.
pub(crate) fn status(arguments: &MountpointArgs, verbose: u8) -> Result<()> {
    let mount = open_or_current(arguments.mountpoint.as_deref())?;
    match require_writable(&mount) {
        Err(error) if error.kind() == ErrorKind::ReadOnly => return print_read_only(&mount, arguments.json),
        writable => writable?,
    }
    let mut answer = execute(&mount, &Command::Status)?;
    let scratch = answer.result.as_ref().and_then(|status| status.get("scratch")?.as_str());
    if let Some(scratch) = scratch.filter(|_| verbose > 0) {
        answer.text = format!("{}\nscratch directory: {}", answer.text.trim_end(), printable::line(scratch));
    }
    print_answer(&answer, arguments.json)
}

/// Runs `command` in the daemon of a mount, and prints the answer.
pub(crate) fn run(MountpointArgs { mountpoint, json }: &MountpointArgs, command: &Command) -> Result<()> {
    let mount = open_or_current(mountpoint.as_deref())?;
    require_writable(&mount)?;
    print_answer(&execute(&mount, command)?, *json)
}

/// Returns the uncommitted changes of a mount whose daemon answers by `ask`, without a look at the
/// branch; `None` if it does not know them.
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
fn print_read_only(mount: &OpenMount, json: bool) -> Result<()> {
    let text = read(mount, if json { "info.json" } else { "status" })?;
    print(&printable::text(&text))
}

/// Opens the mount at `mountpoint`, or the one that the current directory is in; its daemon answers
/// and may be asked.
fn open_or_current(mountpoint: Option<&Path>) -> Result<OpenMount> {
    let mount = mountpoint.map_or_else(OpenMount::current, OpenMount::open)?;
    mount.require_answers()?;
    Ok(mount)
}

/// Opens the mount at `mountpoint`, whose daemon answers and may be asked.
pub(super) fn open(mountpoint: &Path) -> Result<OpenMount> {
    open_or_current(Some(mountpoint))
}

/// Opens the mount at `mountpoint` as [`open`] does. Fails with [`ErrorKind::ReadOnly`] if it is
/// read-only.
pub(super) fn open_writable(mountpoint: &Path) -> Result<OpenMount> {
    let mount = open(mountpoint)?;
    require_writable(&mount)?;
    Ok(mount)
}

/// Fails with [`ErrorKind::ReadOnly`] if the mount takes no commands. A read-only mount has the
/// directory, but not the file for them.
fn require_writable(mount: &OpenMount) -> Result<()> {
    match mount.read(REQUEST, Deadline::after(REPLY_TIMEOUT))? {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let place = mount.mount().mountpoint.display();
            let why = match mount.info() {
                Ok(MountInfo { kind, reference, repository, .. }) if kind != "branch" => {
                    let [repository, reference] = [repository, reference].map(|text| printable::line(&text));
                    format!(
                        "{place} shows {kind} {reference}, which does not change: to write, mount a branch: icechunkfs mount {} DIR",
                        shell::quote(&repository)
                    )
                }
                _ => format!(
                    "{place} is mounted read-only: `icechunkfs list` tells how, and why a mount cannot be written to"
                ),
            };
            Err(Error::new(ErrorKind::ReadOnly, why))
        }
        Err(error) => Err(mount.failure(REQUEST, error)),
    }
}

/// Reads `file` of the control directory.
pub(super) fn read(mount: &OpenMount, file: &str) -> Result<Vec<u8>> {
    mount.read(file, Deadline::after(REPLY_TIMEOUT))?.map_err(|error| mount.failure(file, error))
}

/// Converts `path`, on this machine or in the mount, to one in the mount.
pub(super) fn path_in_mount(mount: &OpenMount, path: &str) -> Result<String> {
    Ok(inside_mount(mount, path)?.unwrap_or_else(|| path.to_owned()))
}

/// Converts `path` to one of the repository, for a command to the daemon: a path that lies in the
/// mount on this machine is mapped through what the mount shows, any other is one of the repository
/// already. The empty path stays.
pub(super) fn repository_path(mount: &OpenMount, path: &str) -> Result<String> {
    let path = match inside_mount(mount, path)? {
        Some(inside) => ShownPart::of(&mount.info()?.options).path_of(&inside)?,
        None => path.to_owned(),
    };
    // The daemon takes an absolute path below its mountpoint for one of the mount.
    let relative = path.trim_start_matches('/');
    Ok(if relative.is_empty() { path } else { relative.to_owned() })
}

/// Returns the path in `mount` of what `path` names on this machine; none if that is elsewhere.
fn inside_mount(mount: &OpenMount, path: &str) -> Result<Option<String>> {
    if path.is_empty() {
        return Ok(None);
    }
    Ok(mount.inside(Path::new(path))?.map(|inside| inside.to_string_lossy().into_owned()))
}

/// Encodes `command` for the daemon.
pub(super) fn encode_command(command: &Command) -> Result<Vec<u8>> {
    serde_json::to_vec(command).map_err(|e| Error::with_source(ErrorKind::InvalidInput, "the command", e))
}

/// Sends `command` to the daemon of `mount` and returns its answer.
pub(super) fn execute(mount: &OpenMount, command: &Command) -> Result<Answer> {
    let reply = mount.execute(&encode_command(command)?)?.map_err(|error| mount.failure(REQUEST, error))?;
    serde_json::from_slice(&reply).map_err(|e| Error::with_source(ErrorKind::Io, "the daemon's answer", e))
}

/// Fails with the error that the daemon answers.
pub(super) fn check(answer: &Answer) -> Result<()> {
    if answer.ok { Ok(()) } else { Err(Error::of_daemon(ErrorKind::Io, answer.errno, answer.text.clone())) }
}

/// Prints an answer.
pub(super) fn print_answer(answer: &Answer, json: bool) -> Result<()> {
    if json && !answer.conflicts.is_null() && !answer.ok {
        print_json(&serde_json::json!({"error": answer.text, "conflicts": answer.conflicts}))?;
    }
    check(answer)?;
    if json { print_json(&answer.result) } else { print(&format!("{}\n", answer.text.trim_end())) }
}
