//! Health of a mount: alive, hanging, dead.

use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use super::mount_table::Mount;
use super::probe::{self, Probe};
use crate::error::ErrorKind;

/// Health of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// The daemon answers.
    Alive,
    /// The daemon does not answer before the deadline: it is stopped, or overloaded.
    Hanging,
    /// There is no daemon: programs get `ENOTCONN` ("transport endpoint is not connected").
    Dead,
    /// The mount is another user's, and this user may not ask its daemon.
    Private,
    /// Another mount covers it.
    Covered,
    /// The question itself failed.
    Unknown,
}

/// Mounts that are asked at a time. Their processes mostly wait.
const AT_ONCE: usize = 32;

/// Asks all `mounts`, many at a time, and returns the answers in their order.
pub fn ask_all<T: Send>(mounts: &[Mount], ask: impl Fn(&Mount) -> T + Sync) -> Vec<T> {
    let waiting = Mutex::new(mounts.iter().enumerate());
    let answers = Mutex::new(Vec::with_capacity(mounts.len()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE.min(mounts.len()) {
            scope.spawn(|| {
                loop {
                    // The lock is not held while a mount is asked.
                    let Some((at, mount)) = waiting.lock().next() else { break };
                    let answer = ask(mount);
                    answers.lock().push((at, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner();
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Returns the health of `mount`. Takes at most `timeout`, also if the daemon hangs.
pub fn check(mount: &Mount, timeout: Duration) -> Health {
    let mountpoint = &mount.mountpoint;
    // The daemon has the attributes of the root in memory: no storage is involved.
    match probe::ask(mount, mountpoint, Probe::Attributes, timeout) {
        Ok(Ok(_)) => Health::Alive,
        Ok(Err(error)) => match error.raw_os_error() {
            // The kernel aborts a request that was in flight when the daemon died.
            Some(libc::ENOTCONN | libc::ECONNABORTED) => Health::Dead,
            Some(libc::EXDEV) => Health::Covered,
            Some(libc::EACCES | libc::EPERM) => Health::Private,
            _ => Health::Unknown,
        },
        Err(error) if error.kind() == ErrorKind::Timeout => Health::Hanging,
        Err(_) => Health::Unknown,
    }
}
