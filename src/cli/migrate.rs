//! `icechunkfs migrate`: a repository of an older generation becomes one of version 2.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::args::CommonArgs;
use super::confirm::ConfirmArgs;
use super::{open, print, print_json, progress};
use crate::error::{Error, Result};
use crate::repo::migrate::in_place::{self, Progress, Summary};
use crate::repo::update::system_clock;
use crate::storage::settings::Settings;

/// Between two drawings of how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// `icechunkfs migrate`
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The repository: a path or a URL (s3://, gs://, az://, abfs://, file://).
    pub repo: String,
    /// Only say what would be done.
    #[arg(long)]
    pub dry_run: bool,
    /// Whether to ask.
    #[command(flatten)]
    pub confirm: ConfirmArgs,
    /// Print {"from_version", "to_version", "dry_run", "finished", "branches", "tags", "deleted_tags", "commits", "config",
    /// "removed", "left"}.
    #[arg(long)]
    pub json: bool,
    /// Verbosity.
    #[command(flatten)]
    pub common: CommonArgs,
    /// How to reach the repository. Last, since its heading goes for all that follows.
    #[command(flatten)]
    pub store: Settings,
}

/// Migrates.
pub fn run(arguments: &MigrateArgs) -> Result<()> {
    if !arguments.dry_run {
        arguments.confirm.confirm(&format!(
            "Programs that know version 1 only will not be able to open {} any more. There is no way back.",
            arguments.repo
        ))?;
    }
    let progress = Progress::default();
    let ended = AtomicBool::new(false);
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| draw(&progress, &ended));
        let done = open::runtime().and_then(|runtime| {
            runtime.block_on(async {
                let repository = open::repository(&arguments.repo, &arguments.store).await?;
                in_place::migrate(&repository, system_clock, arguments.dry_run, &progress).await
            })
        });
        ended.store(true, Ordering::Relaxed);
        done
    })?;
    tell(arguments, &summary)?;
    match summary.left.as_slice() {
        [] => Ok(()),
        left => Err(Error::new(
            crate::error::ErrorKind::Conflict,
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
            "finished": summary.finished,
            "branches": contents.branches.len(),
            "tags": contents.tags.len(),
            "deleted_tags": contents.deleted_tags.len(),
            "commits": contents.commits.len(),
            "config": summary.has_config,
            "removed": summary.removed,
            "left": summary.left,
        }));
    }
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = match (summary.finished, arguments.dry_run) {
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
    print(text.as_bytes())
}

fn draw(progress: &Progress, ended: &AtomicBool) {
    let bar = progress::still("reading the history {bar:40} {pos}/{len} commits");
    while !ended.load(Ordering::Relaxed) && !bar.is_hidden() {
        std::thread::sleep(LOOK_EVERY);
        bar.set_length(progress.snapshots.load(Ordering::Relaxed));
        bar.set_position(progress.read.load(Ordering::Relaxed));
    }
    bar.finish_and_clear();
}
