//! Health of a mount: alive, hanging, dead.

use serde::Serialize;

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
    /// The mount is another user's, whose daemon is not asked.
    Private,
    /// Another mount covers it.
    Covered,
    /// The question itself failed.
    Unknown,
}

impl Health {
    /// Returns the health that a mount has if a request fails with `error`.
    pub(super) fn of_error(error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            // The kernel aborts a request that was in flight when the daemon died.
            Some(libc::ENOTCONN | libc::ECONNABORTED) => Health::Dead,
            Some(libc::EACCES | libc::EPERM) => Health::Private,
            _ => Health::Unknown,
        }
    }
}
