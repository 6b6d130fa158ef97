//! Handles of files of a writable mount: numbers made of flags, so that a handle needs no state,
//! and the kernel's flags of the open that it comes from.

use fuser::{FileHandle, OpenAccMode, OpenFlags};

use icechunkfs_working::overlay::handles::OpenOptions;
use icechunkfs_working::overlay::opens::HandleKind;

/// Open for writing.
const WRITES: u64 = 1;
/// The kernel reads and writes the backing file directly.
const BACKED: u64 = 2;
/// The kernel executes the file.
const EXECUTES: u64 = 4;
/// Flag of an open by which the kernel executes a file. The kernel sends it, although no header of
/// the C library names it.
const FMODE_EXEC: i32 = 0x20;

/// Returns the options of an open with the kernel's flags.
pub(super) fn open_options(flags: OpenFlags, passthrough: bool) -> OpenOptions {
    let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
    let truncate = flags.0 & libc::O_TRUNC != 0;
    OpenOptions {
        write: writes || truncate,
        truncate,
        // Of a handle that may write, the kernel knows it before it asks for the open.
        unless_executed: truncate && !writes,
        execute: flags.0 & FMODE_EXEC != 0,
        passthrough,
    }
}

/// Returns the handle of kind `kind` to give to the kernel.
pub(super) fn handle_of(kind: HandleKind) -> FileHandle {
    let flags = [(kind.writes, WRITES), (kind.backed, BACKED), (kind.executes, EXECUTES)];
    FileHandle(flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum())
}

/// Returns the kind of a handle that has been given to the kernel.
pub(super) fn kind_of(handle: FileHandle) -> HandleKind {
    let is = |flag| handle.0 & flag != 0;
    HandleKind { writes: is(WRITES), backed: is(BACKED), executes: is(EXECUTES) }
}
