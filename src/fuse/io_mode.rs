//! I/O mode of a mount: files are opened without the daemon, or the kernel reads chunk files
//! directly.
//!
//! The kernel offers two fast ways, and a mount has to choose one when it begins, because the first
//! reply to `open` decides it for the mount's life:
//!
//! - **cached**: `open` is answered `ENOSYS`, and never sent again. A warm open, read and close
//!   costs no message. The first read of a chunk is copied through the daemon.
//! - **passthrough**: `open` hands the chunk's file to the kernel, which reads it as if there were
//!   no mount. Each open and close costs a message, for small files several times the cost of the
//!   read itself.
//!
//! An open and close costs as much as copying 128 KiB, every time, and a chunk is copied on its
//! first read only: passthrough is better from [`PASSTHROUGH_FROM`] on. The figures are in
//! docs/contributing/performance-lessons.md, "Requests of the kernel".

use std::fmt;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::tree::nodes::NodeTable;

/// Mean chunk size in bytes, before compression, from which passthrough is chosen where it is
/// possible.
pub const PASSTHROUGH_FROM: u64 = 1 << 20;

/// I/O mode that the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoOption {
    /// Mode chosen by the data.
    #[default]
    Auto,
    /// Reply `ENOSYS` to `open`.
    Cached,
    /// Chunk files handed to the kernel.
    Passthrough,
}

/// I/O mode of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// The kernel sends no `open`; reads are copied.
    Cached,
    /// The kernel reads whole-file chunks directly.
    Passthrough,
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoMode::Cached => "cached",
            IoMode::Passthrough => "passthrough",
        })
    }
}

/// Returns the reason why a mount cannot use passthrough; none if it can.
pub fn obstacle(has_files: bool) -> Option<&'static str> {
    if !has_files {
        return Some("chunks are not files of this machine, and there is no cache on a disk");
    }
    if !has_sys_admin() {
        return Some("it needs root (CAP_SYS_ADMIN)");
    }
    None
}

/// Returns true if this process may register backing files: the capability is in its effective set.
fn has_sys_admin() -> bool {
    const CAP_SYS_ADMIN: u64 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|caps| caps >> CAP_SYS_ADMIN & 1 == 1)
}

/// Chooses the mode for a mount of `table`, whose chunks are local files if `has_files`, and
/// returns it with a short reason. Fails with [`ErrorKind::Unsupported`] if the user requires
/// passthrough and it is impossible.
pub fn choose(option: IoOption, table: &NodeTable, has_files: bool) -> Result<(IoMode, String)> {
    let obstacle = obstacle(has_files);
    match (option, obstacle) {
        (IoOption::Cached, _) => Ok((IoMode::Cached, "as asked for".to_owned())),
        (IoOption::Passthrough, None) => Ok((IoMode::Passthrough, "as asked for".to_owned())),
        (IoOption::Passthrough, Some(why)) => {
            Err(Error::new(ErrorKind::Unsupported, format!("--io passthrough is not possible: {why}")))
        }
        (IoOption::Auto, Some(why)) => Ok((IoMode::Cached, format!("no passthrough: {why}"))),
        (IoOption::Auto, None) => {
            let mean = mean_chunk_bytes(table);
            let mode = if mean >= PASSTHROUGH_FROM { IoMode::Passthrough } else { IoMode::Cached };
            let size = if mean < 1 << 10 { format!("{mean} bytes") } else { format!("{} KiB", mean >> 10) };
            Ok((mode, format!("chunks have about {size}")))
        }
    }
}

/// Returns the mean bytes of a chunk before compression, over the chunks that manifests list. The
/// snapshot alone has these numbers, so that choosing costs no request.
fn mean_chunk_bytes(table: &NodeTable) -> u64 {
    let mut bytes = 0_u128;
    let mut chunks = 0_u128;
    for array in table.arrays() {
        let Some(nominal) = array.nominal_chunk_bytes else { continue };
        let listed = u128::from(table.listed_chunks(array).unwrap_or_default());
        chunks += listed;
        bytes += listed * u128::from(nominal);
    }
    u64::try_from(bytes.checked_div(chunks).unwrap_or(0)).unwrap_or(u64::MAX)
}
