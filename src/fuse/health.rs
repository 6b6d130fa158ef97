//! Health of a mount: alive, hanging, dead.

use std::time::Duration;

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
