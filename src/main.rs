//! Parses the command line, runs a command, prints an error a person can act on.

use std::process::ExitCode;

fn main() -> ExitCode {
    icechunkfs::cli::run(std::env::args_os().collect())
}
