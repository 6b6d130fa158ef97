//! ^C while a daemon commits: the first says where the outcome will be, the second cancels the
//! commit where that is still possible, the third ends this program.
//!
//! Without a terminal nobody presses twice: the first ends this program, as it would any other.

use std::io::IsTerminal;

use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;

use super::child_process::ignored_signals;
use super::note;
use crate::fuse::open_mount::{Deadline, OpenMount, REPLY_TIMEOUT};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::shell;
use icechunkfs_format::format::ids::ObjectId;

/// Control file that takes the ticket of a commit to cancel.
const CANCEL: &str = "cancel";

/// Returns a ticket for a commit of the daemon of `mount`; an empty one, with which it cannot be
/// cancelled, for a daemon of an older version, which would refuse the command.
pub(super) fn ticket(mount: &OpenMount) -> Result<String> {
    // Without a terminal there is no second key.
    let is_known = std::io::stderr().is_terminal() && mount.read(CANCEL, Deadline::after(REPLY_TIMEOUT))?.is_ok();
    if is_known { Ok(ObjectId::random()?.to_string()) } else { Ok(String::new()) }
}

/// Runs `work`, which waits for a commit with `ticket` in `mount`.
pub(super) fn watched<T>(mount: &OpenMount, ticket: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let failed = |e| Error::io("listening for signals", e);
    // A command in the background of a script does not get the keys for the one in front.
    if ignored_signals().map_err(failed)?.contains(&SIGINT) {
        return work();
    }
    let mut signals = Signals::new([SIGINT]).map_err(failed)?;
    let end = Closed(signals.handle());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut keys = Keys::default();
            for signal in signals.forever() {
                if keys.answer(mount, ticket) {
                    // Fails only for a signal that there is not.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        });
        let _end = end;
        work()
    })
}

/// Ends the wait for signals when it is dropped.
struct Closed(signal_hook::iterator::Handle);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Interruptions so far.
#[derive(Default)]
struct Keys {
    count: usize,
    /// True if the commit could not be cancelled.
    is_refused: bool,
}

impl Keys {
    /// Answers an interruption. Returns true if this program is to end.
    fn answer(&mut self, mount: &OpenMount, ticket: &str) -> bool {
        self.count += 1;
        let is_asked_again = std::io::stderr().is_terminal();
        if self.count == 1 {
            let place = shell::quote(&mount.mount().mountpoint.join(".icechunk/commit").to_string_lossy());
            let again = if is_asked_again && !ticket.is_empty() { "; ^C again cancels it" } else { "" };
            note(&format!("the mount continues the commit; its outcome will be in {place}{again}"));
            return !is_asked_again;
        }
        if ticket.is_empty() {
            return true;
        }
        // Its own file: the kernel passes on one write to a file at a time.
        let cancelled = mount.write(CANCEL, ticket.as_bytes(), Deadline::after(REPLY_TIMEOUT));
        match cancelled.and_then(|written| written.map_err(|error| failure(&error))) {
            Ok(()) => note("the commit stops at its next step"),
            // An attempt to publish may have lost its race since, so that this one was worth it.
            Err(_) if self.is_refused => return true,
            Err(error) => {
                self.is_refused = true;
                note(&format!("{error}; ^C again ends this command, not the commit"));
            }
        }
        false
    }
}

/// Says why a commit was not cancelled.
fn failure(error: &std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::EBUSY) => Error::new(ErrorKind::Busy, "the commit is being published and cannot be canceled"),
        Some(libc::ENOENT) => Error::new(ErrorKind::NotFound, "the commit waits for another operation, or has ended"),
        _ => Error::io("cancelling the commit", std::io::Error::from(error.kind())),
    }
}
