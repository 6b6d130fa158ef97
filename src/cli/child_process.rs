//! Runs a command in the foreground and passes signals on to it.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use icechunkfs_base::error::{Error, Result};

/// Signals that programs send to end another one, or to tell it something.
const PASSED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Exit status that a shell gives to a command that a signal ended: this, and the number of the
/// signal.
const BY_SIGNAL: i32 = 128;

/// Receiver of the signals for a command. From when it is made, none of them ends this process.
pub(super) struct PassedSignals(SignalsInfo<WithOrigin>);

impl PassedSignals {
    /// Begins to receive. A signal that this process ignores, as SIGHUP under nohup(1), stays
    /// ignored, by the command too.
    pub(super) fn receive() -> Result<Self> {
        let failed = |e| Error::io("listening for signals", e);
        let ignored = ignored_signals().map_err(failed)?;
        let wanted = PASSED.into_iter().filter(|number| !ignored.contains(number));
        SignalsInfo::new(wanted.chain([SIGCHLD])).map(PassedSignals).map_err(failed)
    }

    /// Runs `command` to its end. It gets SIGTERM if this process is killed.
    pub(super) fn run(&mut self, command: &mut Command) -> io::Result<ExitStatus> {
        let parent = rustix::process::getpid();
        let die_with_parent = move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            // The parent may have ended before.
            if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        };
        // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing
        // and takes no lock.
        unsafe { command.pre_exec(die_with_parent) };
        let mut child = command.spawn()?;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            for origin in self.0.wait() {
                // The terminal sends its signals to all processes in front of it, of which the
                // command is one.
                if origin.signal != SIGCHLD && origin.cause != Cause::Kernel {
                    pass_on(&child, origin.signal);
                }
            }
        }
    }
}

fn pass_on(child: &Child, number: i32) {
    let signal = Signal::from_named_raw(number);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Some(signal), Some(pid)) = (signal, pid) {
        // It was not waited for, so that the number is still its own; it may have ended.
        let _ = kill_process(pid, signal);
    }
}

/// Returns the exit status with which a shell would end after this one.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Returns the numbers of the signals that this process ignores.
fn ignored_signals() -> io::Result<HashSet<i32>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    Ok((1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect())
}
