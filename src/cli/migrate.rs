//! `icechunkfs migrate`: converts an older repository to version 2.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::args::CommonArgs;
use super::confirm::ConfirmArgs;
use super::{open, print, print_json, progress};
use crate::error::{Error, ErrorKind, Result};
use crate::printable;
use crate::repo::migrate::elsewhere;
use crate::repo::migrate::in_place::{self, Progress, Summary};
use crate::storage::{self, settings::Settings};
use crate::times::system_clock;

/// Interval between updates of the progress bar.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Arguments of `icechunkfs migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, file://).
    pub repo: String,
    /// Create a new repository at this location (a path or a URL, empty or without a repository) and leave the old one unchanged.
    /// Required for repositories of releases before 0.2. If both are directories of one file system, chunks take no additional space.
    /// An interrupted migration continues when it is run again.
    #[arg(long, value_name = "DEST")]
    pub to: Option<String>,
    /// Show the result without changing anything.
    #[arg(long)]
    pub dry_run: bool,
    /// Confirmation.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    /// Print {"from_version", "to_version", "dry_run", "finished", "branches", "tags", "deleted_tags", "commits", "config",
    /// "removed", "left"}; with --to the last three are {"to", "manifests", "chunks", "bytes", "linked", "copied_by_store",
    /// "found_chunks", "missing_chunks", "empty_chunks"}. "from_version" is 0 for releases before 0.2.
    #[arg(long)]
    pub json: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// Store settings. Last, because their help heading applies to all later options.
    #[command(flatten)]
    pub store: Settings,
}

/// Migrates a repository.
pub fn run(arguments: &MigrateArgs) -> Result<()> {
    if let Some(to) = &arguments.to {
        return elsewhere(arguments, to);
    }
    if !arguments.dry_run {
        arguments.confirm.confirm(&format!(
            "Programs that know version 1 only will not be able to open {} any more. There is no way back.",
            arguments.repo
        ))?;
    }
    let progress = Progress::default();
    let summary = drawing(
        || draw(&progress),
        || {
            open::runtime()?.block_on(async {
                let repository = open::repository(&arguments.repo, &arguments.store).await?;
                in_place::migrate(&repository, system_clock, arguments.dry_run, &progress).await
            })
        },
    )?;
    tell(arguments, &summary)?;
    match summary.unmigrated_refs.as_slice() {
        [] => Ok(()),
        left => Err(Error::new(
            ErrorKind::Contended,
            format!(
                "{} old refs lead to commits that were made meanwhile and do not follow the branch's newest one, or that \
                 version 2 has removed: {}. They stay; mount their snapshots with --snapshot, or remove the refs",
                left.len(),
                left.join(", ")
            ),
        )),
    }
}

fn tell(arguments: &MigrateArgs, summary: &Summary) -> Result<()> {
    let contents = &summary.contents;
    if arguments.json {
        return print_json(&json!({
            "from_version": 1,
            "to_version": 2,
            "dry_run": arguments.dry_run,
            "finished": summary.was_completed,
            "branches": contents.branches.len(),
            "tags": contents.tags.len(),
            "deleted_tags": contents.deleted_tags.len(),
            "commits": contents.commits.len(),
            "config": summary.has_config,
            "removed": summary.removed,
            "left": summary.unmigrated_refs,
        }));
    }
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = match (summary.was_completed, arguments.dry_run) {
        (true, true) => writeln!(text, "version 2 already; an earlier migration was not finished"),
        (true, false) => writeln!(text, "version 2 already; finished what an earlier migration had begun"),
        (false, dry_run) => writeln!(
            text,
            "{} version 1 to 2: {} branches, {} tags, {} deleted tags, {} commits{}",
            if dry_run { "would migrate" } else { "migrated" },
            contents.branches.len(),
            contents.tags.len(),
            contents.deleted_tags.len(),
            contents.commits.len(),
            if summary.has_config { ", the configuration" } else { "" }
        ),
    };
    let would = if arguments.dry_run { "would remove" } else { "removed" };
    let _ = writeln!(text, "{would} {} objects that only version 1 uses", summary.removed);
    print(&text)
}

/// Runs `work` and draws its progress: the state that `draw` returns.
fn drawing<T: Send>(draw: impl Fn() -> Drawn + Sync, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bar = progress::still(draw().template);
            while !ended.load(Ordering::Relaxed) && !bar.is_hidden() {
                std::thread::sleep(LOOK_EVERY);
                let Drawn { length, position, message, .. } = draw();
                bar.set_length(length);
                bar.set_message(message);
                bar.set_position(position);
            }
            bar.finish_and_clear();
        });
        let done = work();
        ended.store(true, Ordering::Relaxed);
        done
    })
}

/// State of the progress bar.
struct Drawn {
    template: &'static str,
    length: u64,
    position: u64,
    message: String,
}

fn draw(progress: &Progress) -> Drawn {
    Drawn {
        template: "reading the history {bar:40} {pos}/{len} commits",
        length: progress.snapshots.load(Ordering::Relaxed),
        position: progress.read.load(Ordering::Relaxed),
        message: String::new(),
    }
}

/// Migrates to a new repository at `to`.
fn elsewhere(arguments: &MigrateArgs, to: &str) -> Result<()> {
    let progress = elsewhere::Progress::default();
    let draw = || Drawn {
        template: "migrating {bar:40} {pos}/{len} commits, {msg} of chunks",
        length: progress.commits.load(Ordering::Relaxed),
        position: progress.commits_done.load(Ordering::Relaxed),
        message: indicatif::HumanBytes(progress.bytes.load(Ordering::Relaxed)).to_string(),
    };
    let work = || {
        open::runtime()?.block_on(async {
            let repository = open::repository(&arguments.repo, &arguments.store).await?;
            let destination = match arguments.dry_run {
                false => Some(storage::open_new(to, &arguments.store).await?),
                // A dry run creates nothing.
                true => match storage::open(to, &arguments.store).await {
                    Ok(destination) => Some(destination),
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    Err(error) => return Err(error),
                },
            };
            let dry_run = arguments.dry_run;
            let done = elsewhere::migrate(&repository, destination.as_ref(), system_clock, dry_run, &progress).await?;
            Ok((done, if repository.is_alpha() { 0 } else { 1 }))
        })
    };
    let (summary, from_version) = drawing(draw, work)?;
    tell_elsewhere(arguments, to, &summary, from_version)
}

fn tell_elsewhere(arguments: &MigrateArgs, to: &str, summary: &elsewhere::Summary, from_version: u8) -> Result<()> {
    let contents = &summary.contents;
    if arguments.json {
        return print_json(&json!({
            "from_version": from_version,
            "to_version": 2,
            "dry_run": arguments.dry_run,
            "finished": summary.was_completed,
            "branches": contents.branches.len(),
            "tags": contents.tags.len(),
            "deleted_tags": contents.deleted_tags.len(),
            "commits": contents.commits.len(),
            "to": to,
            "manifests": summary.manifests,
            "chunks": summary.chunks,
            "bytes": summary.bytes,
            "linked": summary.linked,
            "copied_by_store": summary.store_address,
            "found_chunks": summary.found,
            "missing_chunks": summary.missing,
            "empty_chunks": summary.empty,
        }));
    }
    if summary.was_completed {
        let to = printable::line(to);
        return print(&format!("{to} holds the new repository already\n"));
    }
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "{} to {}: {} branches, {} tags, {} deleted tags, {} commits",
        if arguments.dry_run { "would migrate" } else { "migrated" },
        printable::line(to),
        contents.branches.len(),
        contents.tags.len(),
        contents.deleted_tags.len(),
        contents.commits.len(),
    );
    let _ = writeln!(
        text,
        "{} chunk objects of {}, {} manifests",
        summary.chunks,
        indicatif::HumanBytes(summary.bytes),
        summary.manifests
    );
    for (count, what) in [
        (summary.linked, "chunk objects share their bytes with the old repository's"),
        (summary.store_address, "chunk objects were copied by the store itself"),
        (summary.found, "chunk objects were there from an earlier try"),
        (summary.missing, "chunk objects are missing from the old repository, and from the new one"),
        (summary.empty, "references to chunks of no bytes were left out: no value can be read from such"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{count} {what}");
        }
    }
    print(&text)
}
