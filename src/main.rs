//! Entry point of the program.

use std::process::ExitCode;

fn main() -> ExitCode {
    icechunkfs::cli::run(std::env::args_os().collect())
}
