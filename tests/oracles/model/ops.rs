//! Operations. A listing has one a line, as JSON, so that a failure can be replayed and kept.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::common::random::Random;

/// Way to write a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Style {
    /// Truncated and written under its own name (zarrs, fsspec, cp, editors).
    InPlace,
    /// Under a temporary name, then renamed over (zarr-python, rsync, sed).
    Rename,
    /// Under a temporary name, then linked if absent (zarr-python's parents, object_store).
    Link,
}

/// One operation. Paths are relative to the root. The file in a slot is decided at run time: an
/// operation on an empty slot does nothing, so that a listing stays meaningful without some of its
/// operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// `how`: letters of r(ead) w(rite) a(ppend) c(reate) x (exclusively) t(runcate).
    Open {
        slot: usize,
        path: String,
        how: String,
    },
    Close {
        slot: usize,
    },
    Pread {
        slot: usize,
        at: u64,
        len: usize,
    },
    Pwrite {
        slot: usize,
        at: u64,
        len: usize,
        seed: u64,
    },
    /// `write` at the handle's own position.
    Write {
        slot: usize,
        len: usize,
        seed: u64,
    },
    Ftruncate {
        slot: usize,
        size: u64,
    },
    Fsync {
        slot: usize,
        data_only: bool,
    },
    /// `mode`: allocate, keep_size, punch, zero.
    Fallocate {
        slot: usize,
        mode: String,
        at: u64,
        len: u64,
    },
    /// Writes through a shared mapping.
    MapWrite {
        slot: usize,
        at: u64,
        len: usize,
        seed: u64,
        sync: bool,
    },
    MapRead {
        slot: usize,
    },
    /// Walks holes and data; a reported hole must read as zeros.
    Holes {
        slot: usize,
    },
    Fstat {
        slot: usize,
    },
    CopyRange {
        from: usize,
        to: usize,
        at: u64,
        to_at: u64,
        len: u64,
    },

    WriteFile {
        path: String,
        len: usize,
        seed: u64,
        style: Style,
        parents: bool,
    },
    /// A `zarr.json` with this text.
    Document {
        path: String,
        text: String,
        style: Style,
        parents: bool,
    },
    ReadFile {
        path: String,
    },
    /// `cp`: `copy_file_range` of a whole file.
    CopyFile {
        from: String,
        to: String,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Unlink {
        path: String,
    },
    Mkdir {
        path: String,
        parents: bool,
    },
    Rmdir {
        path: String,
    },
    RemoveAll {
        path: String,
    },
    /// `flag`: replace, noreplace, exchange.
    Rename {
        from: String,
        to: String,
        flag: String,
    },
    Link {
        from: String,
        to: String,
    },
    Symlink {
        target: String,
        path: String,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    /// Sets the modification time to a moment of [`MARKED`], by which comparisons know it.
    Utimens {
        path: String,
        offset: u32,
    },
    FsyncDir {
        path: String,
    },
    Stat {
        path: String,
    },
    List {
        path: String,
    },

    /// `how`: touch, echo, command.
    Commit {
        how: String,
    },
    Discard,
    DiscardBelow {
        path: String,
    },
    Refresh,
    /// Unmount, and mount with the same scratch directory.
    Remount,
    /// Kills the daemon, and mounts again with the same scratch directory.
    Kill,
    /// Commits by another writer, on separate nodes.
    Others {
        seed: u64,
    },
    /// Compares the whole tree.
    Check,
}

/// First second of the times that operations set (2001-09-09). No other file is that old, so a file
/// of the model with such a time has not been changed since.
pub const MARKED: i64 = 1_000_000_000;
/// Number of seconds that they span.
pub const MARKED_SPAN: u32 = 1 << 24;

impl Op {
    /// Returns the kind for statistics.
    pub fn kind(&self) -> String {
        match self {
            Op::Rename { flag, .. } => flag.clone(),
            Op::Fallocate { mode, .. } => mode.clone(),
            _ if self.is_of_mount() => "on the mount".to_owned(),
            _ => format!("{self:?}").split(' ').next().unwrap_or_default().to_owned(),
        }
    }

    /// Returns true for an operation on the mount as a whole.
    fn is_of_mount(&self) -> bool {
        use Op::*;
        matches!(self, Commit { .. } | Discard | DiscardBelow { .. } | Refresh | Remount | Kill | Others { .. } | Check)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// Parses a listing. Lines that begin with `#` are comments.
pub fn parse(text: &str) -> Vec<Op> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

pub fn listing(ops: &[Op]) -> String {
    ops.iter().map(|op| format!("{op}\n")).collect()
}

/// Returns bytes without zeros in them, so that a hole differs from data.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| (random.next() >> 33) as u8 | 1).collect()
}
