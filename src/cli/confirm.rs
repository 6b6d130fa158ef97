//! Confirmation of destructive commands.
//!
//! A destructive command lists what it will remove, and continues only if the user confirms: by `--yes`, or by an answer
//! on the terminal. Without a terminal it refuses, so that a script that destroys data must state the intent.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};

use clap::Args;

use crate::error::{Error, ErrorKind, Result};
use crate::printable;

/// Bytes of an answer that are read. An answer is one word.
const LONGEST_ANSWER: u64 = 256;

/// Arguments of destructive commands.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct ConfirmArgs {
    /// Do not ask. Without a terminal to ask on, the command refuses unless this is given.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl ConfirmArgs {
    /// Returns if the user confirms `what`, one or more sentences that list what will be removed. Names in it must have gone through
    /// [`printable::line`]. Must be called before anything is changed, and outside of any deadline: users take time to answer.
    ///
    /// Fails with [`ErrorKind::InvalidInput`] if there is no terminal, with [`ErrorKind::NotPermitted`] if the answer is no.
    pub(crate) fn confirm(self, what: &str) -> Result<()> {
        if self.yes {
            return Ok(());
        }
        let what = printable::lines(what);
        let (stdin, stderr) = (std::io::stdin(), std::io::stderr());
        // The question goes to standard error, so that results can be piped.
        if !stdin.is_terminal() || !stderr.is_terminal() {
            return Err(Error::multi_line(
                ErrorKind::InvalidInput,
                &format!("{what}\nno terminal to ask on: pass --yes to continue"),
            ));
        }
        if ask(&what, stdin.lock(), stderr.lock()).map_err(|e| Error::io("the terminal", e))? {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::NotPermitted, "the answer was not yes: nothing was changed"))
        }
    }
}

/// Writes the question and reads the answer. Returns true only for a clear yes; the end of the input is a no.
fn ask(what: &str, input: impl Read, mut output: impl Write) -> std::io::Result<bool> {
    write!(output, "{what}\nContinue? [y/N] ")?;
    output.flush()?;
    let mut answer = Vec::new();
    BufReader::new(input.take(LONGEST_ANSWER)).read_until(b'\n', &mut answer)?;
    if !answer.ends_with(b"\n") {
        writeln!(output)?;
    }
    let answer = String::from_utf8_lossy(&answer).trim().to_lowercase();
    Ok(answer == "y" || answer == "yes")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_a_clear_yes_is_one() {
        for (answer, expected) in [
            ("y\n", true),
            ("yes\n", true),
            (" YES \n", true),
            ("y", true),
            ("", false),
            ("\n", false),
            ("n\n", false),
            ("yes, but\n", false),
            ("ja\n", false),
        ] {
            let mut asked = Vec::new();
            assert_eq!(ask("Tag `v1` will be gone.", answer.as_bytes(), &mut asked).unwrap(), expected, "{answer:?}");
            assert!(asked.starts_with(b"Tag `v1` will be gone.\nContinue? [y/N] "));
        }
        assert!(!ask("", [b'y'; 1000].as_slice(), Vec::new()).unwrap());
    }

    #[test]
    fn without_a_terminal_it_needs_the_word() {
        assert!(ConfirmArgs { yes: true }.confirm("all gone").is_ok());
    }
}
