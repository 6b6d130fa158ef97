//! The command line: one file per command.
//!
//! [`args`] has the arguments, [`mount_options`] those of `-o`; [`daemon`] moves a mount to the background, [`logging`] selects the
//! log. A command prints its result on stdout, and on failure one actionable message on stderr.

#![allow(rustdoc::broken_intra_doc_links, reason = "what is in brackets there is for the reader of --help")]

pub mod amend;
pub mod args;
pub mod branch;
pub mod cat;
pub mod config;
pub mod confirm;
pub mod control_client;
pub mod daemon;
pub mod diff;
pub mod expire;
pub mod export;
pub mod gc;
pub mod graph;
pub mod import;
pub mod init;
pub mod log;
pub mod logging;
pub mod ls;
pub mod migrate;
pub mod mount;
pub mod mount_helper;
pub mod mount_options;
pub mod open;
pub mod ops;
pub mod prefetch;
mod progress;
pub mod ref_commands;
pub mod refs;
mod replace_commits;
pub mod rewrite_manifests;
mod shards;
pub mod squash;
pub mod stats;
pub mod tag;
mod uncommitted;
pub mod unmount;
pub mod verify;
pub mod virtual_args;
pub mod writable;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use self::args::{Arguments, Command};
use crate::error::{Error, Result};
use crate::memory;
use crate::printable;

/// Runs the command in `words`, which begin with the program's name.
pub fn run(words: Vec<OsString>) -> ExitCode {
    let words = match mount_helper::as_mount_helper(&words) {
        Some(Ok(translated)) => translated,
        Some(Err(error)) => return report(&error),
        None => words,
    };
    memory::configure_allocator();
    let arguments = Arguments::parse_from(words);
    if let Some(total) = arguments.memory {
        memory::set_bound(total);
    }
    let outcome = match arguments.command {
        Command::Mount(mount) => mount::run(mount),
        Command::Unmount(unmount) => unmount::run(&unmount),
        Command::Commit(commit) => control_client::commit(&commit),
        Command::Status(look) => control_client::status(&look),
        Command::Diff(diff) => diff::run(&diff),
        Command::Amend(amend) => in_foreground(amend.common.verbose, || amend::run(&amend)),
        Command::RewriteManifests(rewrite) => {
            in_foreground(rewrite.common.verbose, || rewrite_manifests::run(&rewrite))
        }
        Command::SquashOptions(squash) => in_foreground(squash.common.verbose, || squash::run(&squash)),
        Command::Discard(discard) => control_client::discard(&discard),
        Command::Refresh(look) => control_client::refresh(&look),
        Command::Prefetch(prefetch) => prefetch::run(&prefetch),
        Command::Init(init) => in_foreground(init.common.verbose, || init::run(&init)),
        Command::Refs(refs) => in_foreground(refs.common.verbose, || refs::run(&refs)),
        Command::Branch(branch) => in_foreground(branch.action.verbose(), || branch::run(&branch)),
        Command::Tag(tag) => in_foreground(tag.action.verbose(), || tag::run(&tag)),
        Command::Config(config) => in_foreground(config.action.verbose(), || config::run(&config)),
        Command::Ops(ops) => in_foreground(ops.reach.common.verbose, || ops::run(&ops)),
        Command::Log(log) => in_foreground(log.common.verbose, || log::run(&log)),
        Command::Ls(ls) => in_foreground(ls.common.verbose, || ls::run(&ls)),
        Command::Migrate(migrate) => in_foreground(migrate.common.verbose, || migrate::run(&migrate)),
        Command::Expire(expire) => in_foreground(expire.common.verbose, || expire::run(&expire)),
        Command::Gc(gc) => in_foreground(gc.common.verbose, || gc::run(&gc)),
        Command::Verify(verify) => {
            logging::to_stderr(verify.common.verbose);
            return verify::run(&verify).unwrap_or_else(|error| report(&error));
        }
        Command::Export(export) => in_foreground(export.common.verbose, || export::run(&export)),
        Command::Import(import) => in_foreground(import.common.verbose, || import::run(&import)),
        Command::Stats(stats) => in_foreground(stats.common.verbose, || stats::run(&stats)),
        Command::Cat(cat) => in_foreground(cat.common.verbose, || cat::run(&cat)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn in_foreground(verbose: u8, command: impl FnOnce() -> Result<()>) -> Result<()> {
    logging::to_stderr(verbose);
    command()
}

fn report(error: &Error) -> ExitCode {
    eprintln!("icechunkfs: {error}");
    ExitCode::from(error.exit_code())
}

/// Prints a command's result as text, escaped for a terminal: see [`printable`]. Values in it that may contain line breaks must have
/// gone through [`printable::line`].
fn print(text: &str) -> Result<()> {
    print_raw(printable::lines(text).as_bytes())
}

/// Writes bytes unchanged: of a file, of a picture, of escaped text. A closed pipe (`| head`) is no failure.
fn print_raw(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => written.map_err(|e| Error::io("standard output", e)),
    }
}

/// Prints `value` as indented JSON and a newline.
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::with_source(crate::error::ErrorKind::Io, "writing JSON", e))?;
    print_raw((printable::json(&text) + "\n").as_bytes())
}

/// Prints a note on standard error that is no failure.
fn note(text: &str) {
    eprintln!("icechunkfs: {}", printable::line(text));
}
