//! Moves a command to the background and reports its outcome.
//!
//! The command forks before it has any thread. The child does all the work and stays as the daemon;
//! the parent waits for one message, prints the error if there is one, and exits with the status
//! that scripts see. So the command returns when the mount answers, and not before.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use rustix::pipe::PipeFlags;

use icechunkfs_base::error::{Error, ErrorKind, Result};

/// First byte of the child's message: success. The length of the facts (four bytes, little endian),
/// the facts, and perhaps a note for the user follow.
const READY: u8 = b'+';
/// First byte of the child's message: failure. The exit status, the errno (little endian) and the
/// message follow.
const FAILED: u8 = b'-';

/// Side of the fork that this process is on.
#[derive(Debug)]
pub(crate) enum Process {
    /// The daemon, which must report the outcome.
    Daemon(DaemonReport),
    /// The command, which waits for the daemon's answer.
    Command(DaemonAnswer),
}

/// The command's end of the pipe.
#[derive(Debug)]
pub(crate) struct DaemonAnswer {
    pipe: OwnedFd,
    daemon: libc::pid_t,
}

/// The daemon's end of the pipe.
#[derive(Debug)]
pub(crate) struct DaemonReport {
    pipe: File,
}

/// Forks the process. Must be called while it has one thread.
pub(crate) fn fork() -> Result<Process> {
    let (read, write) =
        rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| Error::io("making a pipe", e.into()))?;
    // SAFETY: this process has a single thread, so that the child's state is consistent: no other
    // thread can have been interrupted, for example while it held the allocator's lock.
    match unsafe { libc::fork() } {
        -1 => Err(Error::io("starting the daemon", std::io::Error::last_os_error())),
        0 => {
            drop(read);
            Ok(Process::Daemon(DaemonReport { pipe: File::from(write) }))
        }
        child => {
            drop(write);
            Ok(Process::Command(DaemonAnswer { pipe: read, daemon: child }))
        }
    }
}

impl DaemonAnswer {
    /// Waits until the mount answers, and prints the daemon's note. Returns the facts that the
    /// daemon tells.
    pub(crate) fn wait(self) -> Result<Vec<u8>> {
        let mut message = Vec::new();
        // A read error means the same as silence: the daemon has ended.
        let _ = File::from(self.pipe).read_to_end(&mut message);
        match message.split_first() {
            Some((&READY, [a, b, c, d, rest @ ..])) => {
                let length = usize::try_from(u32::from_le_bytes([*a, *b, *c, *d])).unwrap_or(usize::MAX);
                let (facts, text) = rest.split_at_checked(length).unwrap_or((rest, &[]));
                if !text.is_empty() {
                    super::note(&String::from_utf8_lossy(text));
                }
                Ok(facts.to_vec())
            }
            Some((&FAILED, [status, a, b, c, d, text @ ..])) => {
                let kind = if *status == 2 { ErrorKind::InvalidInput } else { ErrorKind::Io };
                Err(Error::of_daemon(kind, i32::from_le_bytes([*a, *b, *c, *d]), String::from_utf8_lossy(text)))
            }
            _ => Err(Error::new(ErrorKind::Io, died(self.daemon))),
        }
    }
}

fn died(child: libc::pid_t) -> String {
    let pid = rustix::process::Pid::from_raw(child);
    let status = rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).ok().flatten();
    match status.and_then(|(_, status)| status.terminating_signal()) {
        Some(signal) => format!("the daemon was killed by signal {signal} before the mount answered"),
        None => "the daemon ended before the mount answered; see its log".to_owned(),
    }
}

/// Gives this process a session of its own.
pub(crate) fn leave_session() -> Result<()> {
    match rustix::process::setsid() {
        // It has one.
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(errno) => Err(Error::io("leaving the session", errno.into())),
    }
}

impl DaemonReport {
    /// Reports that the mount answers, with `facts` for the command and a note for the user, and
    /// detaches from the terminal and the working directory.
    ///
    /// The daemon stays in the command's process group until now: below an automount point, the
    /// kernel lets only the process group of the automounter reach the mountpoint before the mount
    /// is complete, and everyone else waits for that.
    pub(crate) fn report_ready(mut self, facts: &[u8], note: &str) -> Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null").map_err(|e| Error::io("/dev/null", e))?;
        let detached = rustix::stdio::dup2_stdin(&null)
            .and_then(|()| rustix::stdio::dup2_stdout(&null))
            .and_then(|()| rustix::stdio::dup2_stderr(&null));
        detached.map_err(|e| Error::io("leaving the terminal", e.into()))?;
        // A new session: the terminal's signals and its end are not meant for the daemon.
        leave_session()?;
        std::env::set_current_dir("/").map_err(|e| Error::io("/", e))?;
        let length = u32::try_from(facts.len()).unwrap_or_default().to_le_bytes();
        let message = [&[READY], &length[..], facts, note.as_bytes()].concat();
        self.pipe.write_all(&message).map_err(|e| Error::io("telling that the mount is ready", e))
    }

    /// Reports a failure.
    pub(crate) fn report_failure(mut self, error: &Error) {
        let mut message = vec![FAILED, error.exit_code()];
        message.extend_from_slice(&error.errno().to_le_bytes());
        message.extend_from_slice(error.to_string().as_bytes());
        // If the command has ended too, nothing receives the message; the log has it.
        let _ = self.pipe.write_all(&message);
    }
}
