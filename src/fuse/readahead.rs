//! How far the kernel reads ahead.
//!
//! At `INIT` a file system can only lower the kernel's default (128 KiB): larger wishes are refused. The device's own
//! setting in sysfs can be raised afterwards, by root only. Reads of large chunks then come as requests of 1 MiB instead of
//! 128 KiB, several at once.

use tracing::debug;

use super::mount_table::Mount;

/// What we ask for, in KiB: four requests of the largest size, so that both workers are busy while the program copies.
/// Measured: see docs/performance.md.
const READ_AHEAD_KIB: u32 = 4096;

/// Raises the read-ahead of `mount`, if this process may.
pub fn raise(mount: &Mount) {
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    match std::fs::write(&setting, READ_AHEAD_KIB.to_string()) {
        Ok(()) => debug!("read-ahead of {} is {READ_AHEAD_KIB} KiB", mount.mountpoint.display()),
        Err(error) => debug!("read-ahead stays at the kernel's default: {setting}: {error}"),
    }
}
