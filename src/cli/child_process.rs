//! Runs a command in the foreground and passes signals on to it.

use std::collections::HashSet;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, getpgrp, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

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
        SignalsInfo::new(wanted).map(PassedSignals).map_err(failed)
    }

    /// Returns the number of a signal that has come already, if there is one.
    pub(super) fn received(&mut self) -> Option<i32> {
        self.0.pending().next().map(|origin| origin.signal)
    }

    /// Runs `command` to its end. It gets SIGTERM if this process is killed. No other signals can
    /// be received afterwards.
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
        let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else { return child.wait() };
        let signals = self.0.handle();
        std::thread::scope(|scope| {
            // SIGCHLD does not tell it: the caller may have blocked that.
            scope.spawn(move || {
                let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
                while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
                signals.close();
            });
            for origin in self.0.forever() {
                if !has_it(pid, &origin)
                    && let Some(signal) = Signal::from_named_raw(origin.signal)
                {
                    // It was not waited for, so that the number is still its own.
                    let _ = kill_process(pid, signal);
                }
            }
        });
        child.wait()
    }
}

/// Returns true if the command got the signal, too: the terminal sends its signals to all processes
/// of the group in front of it.
fn has_it(command: Pid, origin: &Origin) -> bool {
    origin.cause == Cause::Kernel && getpgid(Some(command)) == Ok(getpgrp())
}

/// Returns the exit status with which a shell would end after this one.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| BY_SIGNAL + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Returns the exit status of a process that signal `number` ended.
pub(super) fn code_of_signal(number: i32) -> u8 {
    u8::try_from(BY_SIGNAL + number).unwrap_or(u8::MAX)
}

/// Returns the numbers of the signals that this process ignores.
pub(super) fn ignored_signals() -> io::Result<HashSet<i32>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    Ok((1..=64).filter(|number| mask >> (number - 1) & 1 == 1).collect())
}
