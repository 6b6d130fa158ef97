//! Read-ahead of the kernel.
//!
//! At `INIT` a file system can only lower the kernel's default (128 KiB). Root can raise the
//! device's setting in sysfs afterwards. Reads of large chunks then arrive as requests of 1 MiB
//! instead of 128 KiB, several at once. Of files of which programs read parts, whose bytes have to
//! be decoded, the kernel reads less ahead: a time slice of 350 KiB would be followed by 1.5 MiB
//! that nobody wants.

use tracing::debug;

use super::mount_table::Mount;

/// Read-ahead in KiB: four requests of the largest size, so that both workers are busy while the
/// program copies. Measured: see docs/contributing/performance-lessons.md.
const READ_AHEAD_KIB: u32 = 4096;
/// The same for files that are read in parts. A program that reads all of one is as fast with it.
const READ_AHEAD_IN_PARTS_KIB: u32 = 1024;

/// Raises the read-ahead of `mount`, if this process may. `is_in_parts` is true if programs read
/// parts of its files.
pub fn raise(mount: &Mount, is_in_parts: bool) {
    let setting = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    let size = if is_in_parts { READ_AHEAD_IN_PARTS_KIB } else { READ_AHEAD_KIB };
    match std::fs::write(&setting, size.to_string()) {
        Ok(()) => debug!("read-ahead of {} is {size} KiB", mount.mountpoint.display()),
        Err(error) => debug!("read-ahead stays at the kernel's default: {setting}: {error}"),
    }
}
