//! `icechunkfs plan-file`: the process that reads a file for an import, apart from it.

use std::path::PathBuf;

use icechunkfs_base::error::Result;
use icechunkfs_ingest::apart::{self, Reader};

/// Name of the command, which is for this program alone.
const NAME: &str = "plan-file";

/// Returns the reader of files that this program is, too.
pub(crate) fn reader() -> Reader {
    // The file may be another one by now, of an update.
    Reader { program: PathBuf::from("/proc/self/exe"), words: vec![NAME.into()] }
}

/// Reads the file on standard input.
pub(crate) fn run() -> Result<()> {
    apart::serve()
}
