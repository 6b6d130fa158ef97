//! `icechunkfs migrate`: converts an older repository to version 2.

use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use serde_json::{Value, json};

use super::confirm::ConfirmArgs;
use super::progress::State;
use super::repo_args::RepoArgs;
use super::{open, print, print_json, print_result, progress};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::shell;
use icechunkfs_base::size;
use icechunkfs_base::times::system_clock;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::migrate::in_place::{self, MigrationProgress, Summary, UnmigratedRef};
use icechunkfs_repo::repo::migrate::{Contents, elsewhere};
use icechunkfs_store::storage;

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Create a new repository at this path or URL, which holds none yet, and leave the old one
    /// unchanged. Required for Icechunk releases before 0.2. Between directories of one file
    /// system, chunks take no additional space. An interrupted migration continues when it is run
    /// again.
    #[arg(long, value_name = "DEST")]
    to: Option<String>,
    /// Show the result without changing anything.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Print {"from_version", "to_version", "dry_run", "finished", "branches", "tags",
    /// "deleted_tags", "commits", "config", "removed", "left", "stray"}; with --to the last four
    /// are {"to", "manifests", "chunks", "bytes", "linked", "copied_by_store", "found_chunks",
    /// "missing_chunks", "empty_chunks"}. "from_version" is 0 for Icechunk releases before
    /// 0.2.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Migrates a repository.
pub(crate) fn run(arguments: &MigrateArgs) -> Result<()> {
    if let Some(to) = &arguments.to {
        return elsewhere(arguments, to);
    }
    // A repository of version 2, whose migration may have to be finished, is past the question.
    if !arguments.dry_run && open::run(arguments.repo.open())?.version() != SpecVersion::V2 {
        arguments.confirm.confirm(&format!(
            "Programs that know version 1 only will not be able to open {} any more. This cannot be undone.",
            arguments.repo.location
        ))?;
    }
    let progress = MigrationProgress::default();
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let state = || State::of("reading the history", (count(&progress.read), count(&progress.snapshots)), "commits");
    let summary = progress::watched(state, || {
        open::run(async {
            let repository = arguments.repo.open().await?;
            in_place::migrate(&repository, system_clock, arguments.dry_run, &progress).await
        })
    })?;
    print_summary(arguments, &summary)?;
    let repo = shell::quote(&arguments.repo.location);
    if summary.unmigrated_refs.is_empty() {
        return check_stray(&summary.stray_snapshots, &repo);
    }
    let describe = |(key, left): (&String, &UnmigratedRef)| {
        let UnmigratedRef { target, other_name, why } = left;
        let command = other_name.as_ref().map_or_else(String::new, |name| {
            format!(": `icechunkfs branch {repo} create {} --at {target}`", shell::quote(name))
        });
        format!("{key} at {target} ({why}){command}")
    };
    let left: Vec<String> = summary.unmigrated_refs.iter().map(describe).collect();
    Err(Error::new(
        ErrorKind::Contended,
        format!(
            "{} old refs stay, and so do the commits that they lead to; --snapshot ID mounts these. To keep one, run \
             the command that is named with it, and then this again; to discard one, remove its file: {}",
            left.len(),
            left.join("; ")
        ),
    ))
}

/// Fails if `stray` has snapshots that may be commits of a program of version 1.
fn check_stray(stray: &[ObjectId], repo: &str) -> Result<()> {
    let Some(first) = stray.first() else { return Ok(()) };
    let all: Vec<String> = stray.iter().map(ToString::to_string).collect();
    Err(Error::new(
        ErrorKind::Contended,
        format!(
            "migrated, but {} snapshots were stored meanwhile and are on no branch. If a program of version 1 reported \
             one as committed, make a branch of it (`icechunkfs branch {repo} create NAME --at {first}`) and merge it. \
             The others are of attempts that failed, and `icechunkfs gc` removes them: {}",
            stray.len(),
            all.join(", ")
        ),
    ))
}

fn print_summary(arguments: &MigrateArgs, summary: &Summary) -> Result<()> {
    let Summary { contents, was_completed, has_config, removed, unmigrated_refs, stray_snapshots } = summary;
    let more = json!({
        "config": has_config,
        "removed": removed,
        "left": unmigrated_refs.keys().collect::<Vec<_>>(),
        "stray": stray_snapshots,
    });
    let value = summary_json(arguments, 1, *was_completed, contents, more);
    print_result(arguments.json, &value, || {
        let [migrate, remove] =
            if arguments.dry_run { ["would migrate", "would remove"] } else { ["migrated", "removed"] };
        let config = if *has_config { ", the configuration" } else { "" };
        let first = match (was_completed, arguments.dry_run) {
            (true, true) => "version 2 already; an earlier migration was not finished".to_owned(),
            (true, false) => "version 2 already; finished what an earlier migration had begun".to_owned(),
            (false, _) => format!("{migrate} version 1 to 2: {}{config}", describe_contents(contents)),
        };
        format!("{first}\n{remove} {removed} objects that only version 1 uses\n")
    })
}

/// Returns the members that both kinds of migration have, and `more`.
fn summary_json(args: &MigrateArgs, from_version: u8, is_finished: bool, contents: &Contents, more: Value) -> Value {
    let mut out = json!({
        "from_version": from_version,
        "to_version": 2,
        "dry_run": args.dry_run,
        "finished": is_finished,
        "branches": contents.branches.len(),
        "tags": contents.tags.len(),
        "deleted_tags": contents.deleted_tags.len(),
        "commits": contents.commits.len(),
    });
    if let (Value::Object(out), Value::Object(more)) = (&mut out, more) {
        out.extend(more);
    }
    out
}

fn describe_contents(contents: &Contents) -> String {
    let Contents { branches, tags, deleted_tags, commits, .. } = contents;
    let [branches, tags, deleted_tags, commits] = [branches.len(), tags.len(), deleted_tags.len(), commits.len()];
    format!("{branches} branches, {tags} tags, {deleted_tags} deleted tags, {commits} commits")
}

/// Migrates to a new repository at `to`.
fn elsewhere(arguments: &MigrateArgs, to: &str) -> Result<()> {
    let progress = elsewhere::CopyProgress::default();
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let state = || {
        let steps = (count(&progress.commits_done), count(&progress.commits));
        State::of("migrating", steps, "commits").with_bytes(count(&progress.bytes))
    };
    let (summary, from_version) = progress::watched(state, || {
        open::run(async {
            let repository = arguments.repo.open().await?;
            let destination = if arguments.dry_run {
                // A dry run creates nothing.
                match storage::open(to, &arguments.repo.store).await {
                    Ok(destination) => Some(destination),
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    Err(error) => return Err(error),
                }
            } else {
                Some(open::new_place(to, &arguments.repo.store).await?)
            };
            let dry_run = arguments.dry_run;
            let done = elsewhere::migrate(&repository, destination.as_ref(), system_clock, dry_run, &progress).await?;
            Ok((done, if repository.is_alpha() { 0 } else { 1 }))
        })
    })?;
    let contents = &summary.contents;
    if arguments.json {
        let more = json!({
            "to": to,
            "manifests": summary.manifests,
            "chunks": summary.chunks,
            "bytes": summary.bytes,
            "linked": summary.linked,
            "copied_by_store": summary.store_address,
            "found_chunks": summary.found,
            "missing_chunks": summary.missing,
            "empty_chunks": summary.empty,
        });
        return print_json(&summary_json(arguments, from_version, summary.was_completed, contents, more));
    }
    if summary.was_completed {
        let to = printable::line(to);
        return print(&format!("{to} holds the new repository already\n"));
    }
    let mut text = String::new();
    text += &format!(
        "{} to {}: {}\n",
        if arguments.dry_run { "would migrate" } else { "migrated" },
        printable::line(to),
        describe_contents(contents),
    );
    text += &format!(
        "{} chunk objects of {}, {} manifests\n",
        summary.chunks,
        size::text(summary.bytes),
        summary.manifests
    );
    for (count, what) in [
        (summary.linked, "chunk objects share their bytes with the old repository's"),
        (summary.store_address, "chunk objects were copied by the store itself"),
        (summary.found, "chunk objects were there from an earlier try"),
        (summary.missing, "chunk objects are missing from the old repository, and from the new one"),
        (summary.empty, "references to chunks without bytes were left out: they hold no value"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    print(&text)
}
