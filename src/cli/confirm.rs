//! Confirmation of destructive commands.
//!
//! A destructive command lists what it will remove, and continues only if the user confirms: by
//! `--yes`, or by an answer on the terminal. Without a terminal it refuses, so that a script that
//! destroys data must state the intent.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};

use clap::Args;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;

/// Bytes of an answer that are read. An answer is one word.
const LONGEST_ANSWER: u64 = 256;

/// Arguments of destructive commands.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ConfirmArgs {
    /// Do not ask. Required without a terminal to ask on.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl ConfirmArgs {
    /// Returns if the user confirms `what`, one or more sentences that list what will be removed.
    /// Names in it must have gone through [`printable::line`]. Must be called before anything is
    /// changed, and outside of any deadline: users take time to answer.
    ///
    /// Fails with [`ErrorKind::InvalidInput`] if there is no terminal, with
    /// [`ErrorKind::NotPermitted`] if the answer is no.
    pub(crate) fn confirm(self, what: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        let what = printable::lines(what);
        let stdin = std::io::stdin();
        let stderr = std::io::stderr();
        // The question goes to standard error, so that results can be piped.
        if !stdin.is_terminal() || !stderr.is_terminal() {
            return Err(Error::multi_line(
                ErrorKind::InvalidInput,
                &format!("{what}\nno terminal to ask on: pass --yes to continue"),
            ));
        }
        // Only a clear yes is one; the end of the input is a no.
        let ask = || -> std::io::Result<String> {
            let mut output = stderr.lock();
            let mut answer = Vec::new();
            write!(output, "{what}\nContinue? [y/N] ")?;
            output.flush()?;
            BufReader::new(stdin.lock().take(LONGEST_ANSWER)).read_until(b'\n', &mut answer)?;
            if !answer.ends_with(b"\n") {
                writeln!(output)?;
            }
            Ok(String::from_utf8_lossy(&answer).trim().to_lowercase())
        };
        match ask().map_err(|e| Error::io("the terminal", e))?.as_str() {
            "y" | "yes" => Ok(()),
            _ => Err(Error::new(ErrorKind::NotPermitted, "the answer was not yes: nothing was changed")),
        }
    }
}
