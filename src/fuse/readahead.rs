//! Read-ahead of the kernel.
//!
//! At `INIT` a file system can only lower the kernel's default (128 KiB). Root can raise the device's setting in sysfs
//! afterwards. Reads of large chunks then arrive as requests of 1 MiB instead of 128 KiB, several at once.

use tracing::debug;

use super::mount_table::Mount;

/// Read-ahead in KiB: four requests of the largest size, so that both workers are busy while the program copies. Measured: see
/// docs/performance.md.
const READ_AHEAD_KIB: u32 = 4096;

/// Raises the read-ahead of `mount`, if this process may.
pub fn raise(mount: &Mount) {
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    match std::fs::write(&setting, READ_AHEAD_KIB.to_string()) {
        Ok(()) => debug!("read-ahead of {} is {READ_AHEAD_KIB} KiB", mount.mountpoint.display()),
        Err(error) => debug!("read-ahead stays at the kernel's default: {setting}: {error}"),
    }
}
