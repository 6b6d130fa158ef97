//! `icechunkfs gc`: removes garbage.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::confirm::ConfirmArgs;
use super::progress::State;
use super::repo_args::RepoArgs;
use super::uncommitted;
use super::{open, print_result, progress};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_base::times::{format_time, parse_older_than, system_clock};
use icechunkfs_base::trust;
use icechunkfs_repo::repo::collect::{Collected, Count, GcOptions, collect};
use icechunkfs_repo::repo::progress::Progress;
use icechunkfs_working::scratch::requirements::Requirements;
use icechunkfs_working::scratch::search::{Foreign, SearchResult};

#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Remove only objects that were stored before: an age such as 30d (s, m, h, d, w), a time (RFC
    /// 3339), or a date (its beginning, UTC).
    #[arg(long, value_name = "AGE")]
    older_than: String,
    /// Show the result without changing anything.
    #[arg(long)]
    dry_run: bool,
    /// Also keep what the uncommitted changes in this scratch directory need. Repeatable.
    #[arg(long, value_name = "DIR")]
    keep_scratch: Vec<PathBuf>,
    /// Print {"older_than", "dry_run", "commits": [ID], "snapshots", "transaction_logs",
    /// "manifests", "chunks", "copies_of_repo", "total", "packs", "unknown_objects", "uncommitted":
    /// [{"scratch", "branch", "snapshots", "changes"}], "not_looked_at": [DIR], "not_counted":
    /// [{"path", "user"}]}. Each kind is {"objects", "bytes"}; "packs" are objects that stay, with
    /// the bytes in them that nothing needs.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Collects garbage, after confirmation.
pub(crate) fn run(arguments: &GcArgs) -> Result<()> {
    open::run_on(|runtime| run_on(runtime, arguments))
}

fn run_on(runtime: &Runtime, arguments: &GcArgs) -> Result<()> {
    let older_than = parse_older_than(&arguments.older_than, system_clock()).map_err(|e| e.context("--older-than"))?;
    let repository = runtime.block_on(arguments.repo.open())?;
    let found = Arc::new(Mutex::new(SearchResult::default()));
    let finder = uncommitted::finder(repository.storage(), arguments.keep_scratch.clone(), Arc::clone(&found));
    let collect = |dry_run: bool| {
        let progress = Progress::default();
        let state = || {
            let doing = if progress.is_removing() { "removing" } else { "finding reachable objects" };
            State::of(doing, progress.files(), "files")
        };
        let options = GcOptions { older_than, dry_run };
        progress::watched(state, || runtime.block_on(collect(&repository, options, system_clock, &finder, &progress)))
    };
    let mut collected = None;
    if arguments.dry_run || !arguments.confirm.yes {
        collected = Some(collect(true)?);
    }
    let is_something = collected.as_ref().is_none_or(|would| would.total().objects > 0 || !would.commits.is_empty());
    if !arguments.dry_run && is_something {
        if let Some(would) = &collected {
            let question = format!("{}This cannot be undone.", text(would, &found.lock(), older_than, true));
            arguments.confirm.confirm(&question)?;
        }
        collected = Some(collect(false)?);
    }
    let collected = collected.unwrap_or_default();
    let found = found.lock();
    let value = as_json(&collected, &found, older_than, arguments.dry_run);
    print_result(arguments.json, &value, || text(&collected, &found, older_than, arguments.dry_run))
}

fn as_json(collected: &Collected, found: &SearchResult, older_than: u64, dry_run: bool) -> Value {
    let count = |count: Count| json!({"objects": count.objects, "bytes": count.bytes});
    let work = |needs: &Requirements| json!({"scratch": needs.scratch, "branch": needs.branch, "snapshots": needs.snapshots, "changes": needs.has_work});
    let foreign = |foreign: &Foreign| json!({"path": foreign.path, "user": (foreign.owner != trust::UNKNOWN_USER).then_some(foreign.owner)});
    json!({
        "older_than": format_time(older_than),
        "dry_run": dry_run,
        "commits": collected.commits,
        "snapshots": count(collected.snapshots),
        "transaction_logs": count(collected.transaction_logs),
        "manifests": count(collected.manifests),
        "chunks": count(collected.chunks),
        "copies_of_repo": count(collected.copies),
        "total": count(collected.total()),
        "packs": count(collected.packs),
        "unknown_objects": collected.unknown,
        "uncommitted": found.work.iter().map(work).collect::<Vec<_>>(),
        "not_looked_at": found.closed,
        "not_counted": found.foreign.iter().map(foreign).collect::<Vec<_>>(),
    })
}

fn text(collected: &Collected, found: &SearchResult, older_than: u64, would: bool) -> String {
    let mut text = String::new();
    for needs in &found.work {
        let what = if needs.has_work { "uncommitted work on" } else { "a mount of" };
        text += &format!(
            "kept for {what} branch `{}`: {}\n",
            printable::line(&needs.branch),
            printable::bytes(needs.scratch.as_os_str().as_bytes())
        );
    }
    for place in &found.closed {
        text += &format!(
            "cannot read {}: uncommitted work there is not protected\n",
            printable::bytes(place.as_os_str().as_bytes())
        );
    }
    for foreign in &found.foreign {
        let user = trust::name_of(foreign.owner);
        let place = foreign.path.display();
        text += &format!(
            "not counted: uncommitted work of user {user} in {place}; to keep its base, pass its scratch directory as \
             --keep-scratch\n"
        );
    }
    let removed = if would { "would remove" } else { "removed" };
    let kinds = [
        ("snapshots", collected.snapshots),
        ("transaction logs", collected.transaction_logs),
        ("manifests", collected.manifests),
        ("chunk objects", collected.chunks),
        ("copies of repo", collected.copies),
    ];
    for (name, count) in kinds.iter().filter(|(_, count)| count.objects > 0) {
        text += &format!("{removed} {} {name}, {} bytes\n", count.objects, count.bytes);
    }
    if !collected.commits.is_empty() {
        let commits = size::counted(collected.commits.len() as u64, "commit");
        text += &format!("{removed} {commits} that no branch or tag leads to\n");
    }
    if collected.packs.objects > 0 {
        let Count { objects, bytes } = collected.packs;
        text +=
            &format!("{objects} chunk objects stay for some of their chunks, with {bytes} bytes that nothing needs\n");
    }
    if collected.unknown > 0 {
        text += &format!("kept {}\n", size::counted(collected.unknown, "unrecognized object"));
    }
    let total = collected.total();
    text + &match total.objects {
        0 => format!("nothing before {} can be removed\n", format_time(older_than)),
        _ => format!("{removed} {} objects, {} bytes\n", total.objects, total.bytes),
    }
}
