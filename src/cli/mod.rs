//! The command line: one file per command.
//!
//! [`args`] has the parser. Arguments of a command are in its file, and those of several commands
//! in [`repo_args`], [`virtual_args`] and [`confirm`]; [`mount_options`] has those of `mount`, also
//! in the form of `-o`. [`daemon`] moves a mount to the background, [`logging`] selects the log. A
//! command prints its result on stdout, and on failure one actionable message on stderr.

#![allow(rustdoc::broken_intra_doc_links, reason = "what is in brackets there is for the reader of --help")]

mod amend;
pub mod args;
mod branch;
mod cat;
mod child_process;
mod clone;
mod config;
mod confirm;
mod control_client;
mod daemon;
mod diff;
mod doctor;
mod end_signals;
mod examples;
mod expire;
mod export;
mod gc;
mod generate;
mod graph;
mod import;
mod init;
mod interrupted;
mod job_mountpoint;
mod list;
mod log;
mod logging;
mod ls;
mod ls_view;
mod ls_virtual;
mod merge;
mod metrics_server;
mod migrate;
mod mount;
mod mount_helper;
mod mount_options;
mod ops;
mod output;
mod place_args;
mod plan_file;
mod prefetch;
mod progress;
mod pull;
mod push;
mod ref_commands;
mod refs;
mod replace_commits;
mod repo_args;
mod restore;
mod revert;
mod rewrite_locations;
mod rewrite_manifests;
mod run;
mod service_manager;
mod shards;
mod short_help;
mod show;
mod squash;
mod stats;
mod sync_args;
mod table;
mod tag;
mod top;
mod uncommitted;
mod undo;
mod unmount;
mod usage;
mod values;
mod verify;
mod view_args;
mod virtual_args;
mod word_order;

use std::ffi::OsString;
use std::process::ExitCode;

use self::args::{Command, ErrorFormat};
use self::output::{print, print_json, print_raw, print_result};
use crate::library::open;
use icechunkfs_base::error::{Error, ErrorKind};
use icechunkfs_base::memory;
use icechunkfs_base::printable;
use icechunkfs_working::operations::request;

/// Runs the command in `words`, which begin with the program's name.
pub fn run(words: Vec<OsString>) -> ExitCode {
    let words = match mount_helper::as_mount_helper(&words) {
        Some(Ok(translated)) => translated,
        Some(Err(error)) => return report(&error, ErrorFormat::Text),
        None => words,
    };
    memory::configure_allocator();
    let words = word_order::as_expected(words);
    let arguments = match mount_options::parse(&words) {
        Ok(arguments) => arguments,
        Err(error) => return usage::report(error, &words),
    };
    if let Some(total) = arguments.memory {
        memory::set_bound(total);
    }
    // The log of a mount may be elsewhere.
    if !matches!(arguments.command, Command::Mount(_) | Command::Run(_)) {
        logging::to_stderr(arguments.verbose);
    }
    let outcome = match arguments.command {
        Command::Mount(mount) => mount::run(&mount, arguments.verbose),
        Command::Unmount(unmount) => unmount::run(&unmount),
        Command::Run(run) => {
            return run::run(&run, arguments.verbose).unwrap_or_else(|error| report(&error, arguments.error_format));
        }
        Command::Commit(commit) => control_client::commit(&commit),
        Command::Status(mount) => control_client::status(&mount, arguments.verbose),
        Command::Diff(diff) => diff::run(&diff),
        Command::Amend(amend) => amend::run(&amend),
        Command::Clone(clone) => clone::run(&clone),
        Command::Push(push) => push::run(&push),
        Command::Pull(pull) => pull::run(&pull),
        Command::Merge(merge) => merge::run(&merge),
        Command::Restore(restore) => restore::run(&restore),
        Command::Revert(revert) => revert::run(&revert),
        Command::Undo(undo) => undo::run(&undo),
        Command::RewriteLocations(rewrite) => rewrite_locations::run(&rewrite),
        Command::RewriteManifests(rewrite) => rewrite_manifests::run(&rewrite),
        Command::Squash(squash) => squash::run(&squash),
        Command::Discard(discard) => control_client::discard(&discard),
        Command::Resolve(resolve) => control_client::resolve(&resolve),
        Command::Refresh(mount) => control_client::run(&mount, &request::Command::Refresh),
        Command::List(list) => list::run(&list),
        Command::Doctor(doctor) => {
            return doctor::run(&doctor).unwrap_or_else(|error| report(&error, arguments.error_format));
        }
        Command::Prefetch(prefetch) => prefetch::run(&prefetch),
        Command::Init(init) => init::run(&init),
        Command::Refs(refs) => refs::run(&refs),
        Command::Branch(branch) => branch::run(&branch),
        Command::Tag(tag) => tag::run(&tag),
        Command::Config(config) => config::run(&config),
        Command::Ops(ops) => ops::run(&ops),
        Command::Log(log) => log::run(&log),
        Command::Ls(ls) => ls::run(&ls),
        Command::Show(show) => show::run(&show),
        Command::Migrate(migrate) => migrate::run(&migrate),
        Command::Expire(expire) => expire::run(&expire),
        Command::Gc(gc) => gc::run(&gc),
        Command::Verify(verify) => {
            return verify::run(&verify).unwrap_or_else(|error| report(&error, arguments.error_format));
        }
        Command::Export(export) => export::run(&export),
        Command::Import(import) => import::run(&import),
        Command::Stats(stats) => stats::run(&stats),
        Command::Cat(cat) => cat::run(&cat),
        Command::Top(top) => top::run(&top),
        Command::Generate(generate) => generate::run(&generate),
        Command::PlanFile => plan_file::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&usage::with_swapped(error, &words), arguments.error_format),
    }
}

fn report(error: &Error, format: ErrorFormat) -> ExitCode {
    // Those who know which disk it is have said it in other words.
    let is_raw = error.kind() == ErrorKind::NoSpace && error.to_string().contains("os error");
    let with_next = error.clone().context("the disk is full: make room, and try again");
    let error = if is_raw { &with_next } else { error };
    match format {
        ErrorFormat::Text => eprintln!("icechunkfs: {error}"),
        ErrorFormat::Json => {
            let value = serde_json::json!({"errno": error.errno(), "message": error.to_string()});
            eprintln!("{}", printable::json(&value.to_string()));
        }
    }
    ExitCode::from(error.exit_code())
}

/// Prints a note on standard error that is no failure.
fn note(text: &str) {
    eprintln!("icechunkfs: {}", printable::line(text));
}
