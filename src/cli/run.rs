//! `icechunkfs run`: runs a command in a mount of its own, and commits what it wrote.
//!
//! Three processes take part: this one, the daemon of the mount, and the command. Each may be
//! killed at any moment. The daemon ends with a pipe that this process holds, and removes the mount
//! and the scratch directory; the command gets a signal when this process is killed; and this
//! process removes what a killed daemon leaves. A later run removes what is left if several of them
//! are killed at once. There is one commit, or none: it becomes visible with one step, as every
//! commit.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;
use rustix::pipe::PipeFlags;

use super::child_process::{PassedSignals, code_of_signal, exit_code};
use super::control_client::{self, CommitSettings};
use super::daemon::{self, Process};
use super::export::listed;
use super::job_mountpoint::JobMountpoint;
use super::mount_options::{self, MountArgs, NewBranchArgs, ShownArgs};
use super::repo_args::RepoArgs;
use super::virtual_args::VirtualArgs;
use super::{args, logging, mount, note};
use crate::fuse::daemon_mark::Daemon;
use crate::fuse::mountpoint::Mountpoint;
use crate::fuse::open_mount::OpenMount;
use crate::fuse::unmount::{self, UnmountMode};
use crate::library::mounts;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::shell;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_working::operations::Committed;
use icechunkfs_working::operations::request::Command;
use icechunkfs_working::scratch::jobs::{self, Claim};

/// Deadline for the daemon to end after its mount is gone.
const ENDING: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The command and its arguments, after `--`. It runs in the mount, whose path is also in
    /// ICECHUNKFS_MOUNT.
    #[arg(index = 2, last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// The branch [default: main].
    #[arg(long, value_name = "NAME")]
    branch: Option<String>,
    #[command(flatten)]
    new_branch: NewBranchArgs,
    #[command(flatten)]
    commit: CommitSettings,
    /// Keep what a failed command wrote in a scratch directory, whose name is printed [default:
    /// discard it].
    #[arg(long)]
    keep: bool,
    /// Mount at this empty directory [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,
    #[command(flatten)]
    shown: ShownArgs,
    #[command(flatten)]
    repo: RepoArgs,
    #[command(flatten)]
    virtuals: VirtualArgs,
}

/// Runs the command, and returns the status to exit with.
pub(crate) fn run(arguments: &RunArgs, verbose: u8) -> Result<ExitCode> {
    let request = Command::Commit(arguments.commit.options()?);
    let mountpoint = JobMountpoint::new(arguments.mountpoint.as_deref())?;
    let (mount, spec) = mount_arguments(arguments, &mountpoint)?;
    let pipe = rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
    let (read, lifeline) = pipe.map_err(|e| Error::io("making a pipe", e.into()))?;
    match daemon::fork()? {
        Process::Daemon(outcome) => {
            // The daemon ends with the other end, of which it must not have a copy.
            drop(lifeline);
            let input = rustix::stdio::dup2_stdin(&read).map_err(|e| Error::io("standard input", e.into()));
            drop(read);
            // The terminal's signals are for the command.
            let ready = input.and_then(|()| daemon::leave_session()).and_then(|()| logging::to_syslog(verbose));
            mount::serve_as_daemon(&mount, &spec, outcome, ready);
            Ok(ExitCode::SUCCESS)
        }
        Process::Command(answer) => {
            drop(read);
            logging::to_stderr(verbose);
            // From here on, no signal ends this process before the mount is removed.
            let signals = PassedSignals::receive();
            let begun = answer.wait().and_then(|facts| Job::begin(arguments, &mountpoint, &facts, signals?));
            match begun {
                Ok(job) => job.run(arguments, &request, &mountpoint, lifeline),
                Err(error) => {
                    drop(lifeline);
                    mountpoint.abandon();
                    Err(error)
                }
            }
        }
    }
}

/// Returns the arguments of the mount, and the branch.
fn mount_arguments(arguments: &RunArgs, mountpoint: &JobMountpoint) -> Result<(MountArgs, RefSpec)> {
    let words = ["icechunkfs", "mount", "--until-eof", "--job", "--", "REPO"].map(OsString::from);
    let words: Vec<OsString> = words.into_iter().chain([mountpoint.path().into()]).collect();
    let parsed = mount_options::parse(&words).map_err(|e| Error::invalid(e.to_string()))?;
    let args::Command::Mount(mut mount) = parsed.command else { return Err(Error::invalid("no mount")) };
    let branch = arguments.branch.as_deref().unwrap_or(DEFAULT_BRANCH);
    mount.reference.branch = Some(branch.to_owned());
    mount.new_branch = arguments.new_branch.clone();
    mount.shown = arguments.shown.clone();
    mount.temporary = mountpoint.is_temporary();
    mount.repo = arguments.repo.clone();
    mount.virtuals = arguments.virtuals.clone();
    let spec = mount.take_spec()?;
    mount.check(&spec)?;
    Ok((*mount, spec))
}

/// A mount for a command.
struct Job {
    mount: OpenMount,
    scratch: PathBuf,
    /// Dropped when it is decided what becomes of the work.
    claim: Claim,
    signals: PassedSignals,
}

impl Job {
    /// Begins with the mount at `mountpoint`, of which the daemon tells `facts`.
    fn begin(arguments: &RunArgs, mountpoint: &JobMountpoint, facts: &[u8], signals: PassedSignals) -> Result<Self> {
        let mut parts = facts.splitn(2, |byte| *byte == 0);
        let (Some(device), Some(scratch)) = (parts.next(), parts.next()) else {
            return Err(Error::new(ErrorKind::ReadOnly, "the branch cannot be written to"));
        };
        let scratch = PathBuf::from(OsStr::from_bytes(scratch));
        let mount = control_client::open_writable(mountpoint.path())?;
        if mount.mount().device.as_bytes() != device {
            let place = mountpoint.path().display();
            return Err(Error::new(ErrorKind::Busy, format!("{place}: another mount covers that of this job")));
        }
        let claim = Claim::take(&scratch)?;
        if arguments.keep {
            jobs::keep(&scratch)?;
        }
        mountpoint.remove_others();
        Ok(Job { mount, scratch, claim, signals })
    }

    /// Runs the command and commits. `lifeline` keeps the daemon.
    fn run(
        mut self,
        arguments: &RunArgs,
        request: &Command,
        mountpoint: &JobMountpoint,
        lifeline: OwnedFd,
    ) -> Result<ExitCode> {
        let outcome = match self.signals.received() {
            // It came before there was a command.
            Some(number) => Ok(code_of_signal(number).into()),
            None => self.execute_and_commit(arguments, request, mountpoint.path()),
        };
        let scratch = self.scratch.clone();
        // The outcome matters more than how the mount ended.
        if let Err(error) = self.end(mountpoint, lifeline) {
            note(&error.to_string());
        }
        if jobs::is_kept(&scratch) {
            let [scratch, repository] = [&*scratch.to_string_lossy(), &arguments.repo.location].map(shell::quote);
            let branch = arguments.branch.as_deref().map(mounts::branch_option).unwrap_or_default();
            note(&format!(
                "the work is kept; to continue with it: icechunkfs mount --scratch {scratch}{branch} {repository} DIR"
            ));
        }
        outcome
    }

    fn execute_and_commit(&mut self, arguments: &RunArgs, request: &Command, mountpoint: &Path) -> Result<ExitCode> {
        let (program, ran) = self.execute(arguments, mountpoint);
        match ran {
            Ok(status) if status.success() => self.commit(request).map(|()| ExitCode::SUCCESS),
            Ok(status) => {
                note(&format!("{program}: {status}; nothing is committed"));
                Ok(exit_code(status).into())
            }
            // As shells do.
            Err(error) => {
                let (why, code) = match error.kind() {
                    io::ErrorKind::NotFound if !program.contains('/') => ("command not found".to_owned(), 127),
                    io::ErrorKind::NotFound => (error.to_string(), 127),
                    _ => (error.to_string(), 126),
                };
                note(&format!("{program}: {why}; nothing is committed"));
                Ok(code.into())
            }
        }
    }

    /// Runs the command to its end. Returns its name, too.
    fn execute(&mut self, arguments: &RunArgs, mountpoint: &Path) -> (String, std::io::Result<ExitStatus>) {
        let top = match &arguments.shown.subdir {
            Some(name) => &mountpoint.join(name),
            None => mountpoint,
        };
        let mut words = arguments.command.iter();
        let program = words.next().map(OsString::as_os_str).unwrap_or_default();
        let mut command = std::process::Command::new(program);
        command.args(words).current_dir(top).env("ICECHUNKFS_MOUNT", top);
        (program.to_string_lossy().into_owned(), self.signals.run(&mut command))
    }

    /// Commits what the command wrote. It is whole now: it stays, whatever ends this process, until
    /// it is committed.
    fn commit(&mut self, request: &Command) -> Result<()> {
        jobs::keep(&self.scratch)?;
        let answer = control_client::execute(&self.mount, request).context(
            || "it is not known whether the work is committed (`icechunkfs log` tells), as the daemon has not answered",
        )?;
        control_client::check(&answer).map_err(|error| {
            // The mount is gone when the user reads that.
            let place = self.mount.mount().mountpoint.to_string_lossy().into_owned();
            let text = error.to_string().replace(&shell::quote(&place), "DIR").replace(&place, "DIR");
            let next = "; in a mount of the work, `icechunkfs commit DIR -m MESSAGE` finds the same again";
            Error::of_daemon(error.kind(), error.errno(), format!("commit: {text}{next}"))
        })?;
        let result = answer.result.and_then(|result| serde_json::from_value(result).ok());
        let mut committed: Committed = result.unwrap_or_default();
        let untracked = std::mem::take(&mut committed.untracked);
        note(&committed.to_string());
        if !untracked.is_empty() {
            let paths = listed(untracked.iter().map(|path| format!("  {path}")), untracked.len() as u64);
            let paths = printable::text(paths.as_bytes());
            eprintln!("icechunkfs: not committed, as Zarr has no such files, and removed with the mount:\n{paths}");
        }
        if let Err(error) = jobs::discard(&self.scratch) {
            note(&error.to_string());
        }
        Ok(())
    }

    /// Removes the mount and, unless it is kept, the scratch directory.
    fn end(self, mountpoint: &JobMountpoint, lifeline: OwnedFd) -> Result<()> {
        let Job { mount, scratch, claim, .. } = self;
        drop(claim);
        let daemon = Daemon::of(mount.mount());
        let mode = if mount.has_ended().unwrap_or(true) { UnmountMode::Detach } else { UnmountMode::Polite };
        let unmounted = Mountpoint::find(mountpoint.path()).and_then(|found| unmount::unmount(&found, mount, mode));
        // In any case the daemon ends with its pipe.
        drop(lifeline);
        if let Some(daemon) = daemon
            && !daemon.wait(ENDING)
        {
            note(&format!("process {}, which serves the mount, has not ended yet", daemon.pid()));
        }
        // A daemon that was killed has not done it.
        jobs::remove(&scratch);
        match unmounted {
            Err(error) if error.kind() == ErrorKind::Busy => {
                note(&format!("{error}; they get errors soon, and what they write is not committed"));
                Ok(())
            }
            // The command has unmounted it.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            unmounted => unmounted,
        }
    }
}
