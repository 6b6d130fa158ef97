//! `icechunkfs export`: writes a snapshot as a plain tree of files.

use std::sync::Arc;

use clap::Args;

use super::confirm::ConfirmArgs;
use super::progress::State;
use super::repo_args::RepoArgs;
use super::view_args::ViewArgs;
use super::virtual_args::VirtualArgs;
use super::{open, print_result, progress};
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_working::transfer::destination::{self, Destination, ExportSource};
use icechunkfs_working::transfer::export::{self, ExportOptions, ExportResult};
use icechunkfs_working::transfer::{Counters, SkippedPath};

/// Number of paths listed as text; the rest is counted.
const LISTED: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// A local directory: new, empty, or with an unfinished export of the same contents.
    #[arg(index = 2)]
    dest: String,
    /// The snapshot to export: a branch, a tag, an id, or an earlier commit such as main~2.
    #[arg(index = 3, value_name = "REF", default_value = DEFAULT_BRANCH)]
    reference: String,
    /// Export only this group, array or directory of the view, with its files at the top of DEST.
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    path: String,
    #[command(flatten)]
    view: ViewArgs,
    /// Export into a directory with other contents: replace files that differ, and keep files that
    /// the snapshot does not have.
    #[arg(long)]
    force: bool,
    /// Like --force, and remove files that the snapshot does not have.
    #[arg(long)]
    delete: bool,
    /// Compare bytes, instead of size and time, of the files of an interrupted export.
    #[arg(short, long)]
    checksum: bool,
    /// Show the result without changing anything.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Leave out and list files that cannot be read, such as virtual chunks that are not allowed.
    #[arg(long)]
    skip_unreadable: bool,
    /// Number of batches of files to export at a time.
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Print {"snapshot", "files", "bytes", "written", "written_bytes", "unchanged", "removed":
    /// [PATH], "removed_count", "left_out": [{"path", "why"}], "left_out_count", "dry_run"}; lists
    /// have at most 1000 entries.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    repo: RepoArgs,
    #[command(flatten)]
    virtuals: VirtualArgs,
}

/// Exports a snapshot.
pub(crate) fn run(arguments: &ExportArgs) -> Result<()> {
    let path = destination::local(&arguments.dest)?;
    let options = arguments.view.options()?;
    let counters = Arc::new(Counters::default());
    let state = || {
        let (found, done, bytes) = counters.now();
        // Nothing is drawn while a question is open.
        (done > 0).then(|| State::of("exporting", (done, found), "files").with_bytes(bytes))
    };
    let exported = progress::watched(state, || {
        open::run(async {
            let repository = arguments.repo.open_with(&arguments.virtuals).await?;
            let found = repository.resolve_revision(&arguments.reference).await?;
            let limits = open::MemoryLimits::default();
            let tree = open::tree(&repository, &RefSpec::Snapshot(found.id), limits).await?;
            let source = ExportSource {
                repository: repository.storage().location().to_owned(),
                snapshot: found.id.to_string(),
                path: arguments.path.trim_matches('/').to_owned(),
                view: if options.is_native() { String::new() } else { options.to_string() },
            };
            let view = options.make(tree, repository.storage().location()).await?;
            // Before a directory is created for it.
            let taken = export::marker_names(&*view, &source.path).await?;
            let local = repository.storage().local_path();
            let force = arguments.force || arguments.delete;
            let destination = if arguments.dry_run {
                Destination::inspect(&path, &source, &taken, local.as_deref(), force)?
            } else {
                Some(Destination::open(&path, &source, &taken, local.as_deref(), force)?)
            };
            let how = ExportOptions {
                delete: arguments.delete,
                checksum: arguments.checksum,
                dry_run: arguments.dry_run,
                skip_unreadable: arguments.skip_unreadable,
                jobs: arguments.jobs.into(),
            };
            let confirm = |extra: &[String]| {
                let dest = printable::line(&path.to_string_lossy());
                let listed = listed(extra.iter().map(|path| printable::line(&format!("  {path}"))), extra.len() as u64);
                arguments
                    .confirm
                    .confirm(&format!("{dest}: files that the snapshot does not have will be removed:\n{listed}"))
            };
            let destination = destination.map(Arc::new);
            export::export(view, &source.path, destination, how, Arc::clone(&counters), &confirm).await
        })
    })?;
    print_result(arguments.json, &exported, || to_text(&exported, &arguments.dest))
}

fn to_text(exported: &ExportResult, dest: &str) -> String {
    let ExportResult { snapshot, written, written_bytes, unchanged, removed_count, dry_run, .. } = exported;
    let would = if *dry_run { "would write" } else { "wrote" };
    let mut text = format!(
        "snapshot {snapshot} to {}: {would} {written} files, {}",
        printable::line(dest),
        size::text(*written_bytes)
    );
    if *unchanged > 0 {
        text += &format!("; {unchanged} were there");
    }
    if *removed_count > 0 {
        let would = if *dry_run { "would remove" } else { "removed" };
        text += &format!("; {would} {removed_count}");
    }
    text.push('\n');
    if exported.left_out_count > 0 {
        text += "left out, since it cannot be read:\n";
        let paths =
            exported.left_out.iter().map(|SkippedPath { path, why }| printable::line(&format!("  {path}: {why}")));
        text += &listed(paths, exported.left_out_count);
        text.push('\n');
    }
    text
}

/// Formats the first of `lines`, of which there are `count`, and the number of the rest.
pub(super) fn listed(lines: impl Iterator<Item = String>, count: u64) -> String {
    let mut shown: Vec<String> = lines.take(LISTED).collect();
    let more = count.saturating_sub(shown.len() as u64);
    if more > 0 {
        shown.push(format!("  and {more} more"));
    }
    shown.join("\n")
}
