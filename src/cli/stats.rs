//! `icechunkfs stats`: shows the storage use of a repository.

use std::io::IsTerminal;

use clap::Args;

use super::progress::State;
use super::repo_args::RepoArgs;
use super::{open, print_result, progress, table};
use icechunkfs_base::error::Result;
use icechunkfs_base::memory;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_repo::repo::progress::Progress;
use icechunkfs_repo::repo::refs::{DEFAULT_BRANCH, RefSpec};
use icechunkfs_tree::stats::arrays::ArrayStats;
use icechunkfs_tree::stats::{self, ByKind, MemoryBounds, RefStats, Size, Stats};

/// Number of arrays and refs listed as text; the rest is counted. JSON has all.
const LISTED: usize = 30;
/// Width of a full bar, in characters.
const WIDTH: usize = 24;
/// Divisor of the memory for the list of chunks, and for the manifests that are being read.
const SHARE: u64 = 4;

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The snapshot whose arrays are listed: a branch, a tag, an id, or an earlier commit such as
    /// main~2.
    #[arg(index = 2, value_name = "REF", default_value = DEFAULT_BRANCH)]
    reference: String,
    /// Number of snapshots and manifests to read at a time.
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    jobs: u16,
    /// Print {"repository", "spec_version", "stored", "reachable", "unreachable", "missing":
    /// {"chunks", "manifests", "snapshots", "transactions": {"objects", "bytes"}}, "shared":
    /// {"objects", "bytes"}, "dead_bytes", "dead_in", "chunks": {"native", "native_bytes",
    /// "virtual", "virtual_bytes", "inline", "inline_bytes", "references"}, "refs": [{"kind",
    /// "name", "snapshot", "commits", "nodes", "references", "only_here"}], "snapshot", "arrays":
    /// [{"path", "shape", "places", "chunks", "bytes", "native_bytes", "inline_bytes",
    /// "virtual_bytes", "manifests", "manifest_bytes"}]}; "stored" also has "refs", "backups" and
    /// "removable_backups".
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    repo: RepoArgs,
}

/// Collects and prints the statistics.
pub(crate) fn run(arguments: &StatsArgs) -> Result<()> {
    let progress = Progress::default();
    let state = || State::of("reading", progress.files(), "files");
    let stats = progress::watched(state, || {
        open::run(async {
            let repository = arguments.repo.open().await?;
            let found = repository.resolve_revision(&arguments.reference).await?;
            let limits = open::MemoryLimits::default();
            let tree = open::tree(&repository, &RefSpec::Snapshot(found.id), limits).await?;
            let bound = memory::explicit_bound().unwrap_or_else(memory::default_memory) / SHARE;
            let bounds = MemoryBounds { chunks: bound, manifests: bound };
            stats::collect(&repository, &tree, bounds, arguments.jobs.into(), &progress).await
        })
    })?;
    print_result(arguments.json, &stats, || to_text(&stats, std::io::stdout().is_terminal()))
}

/// Cells of a row of a table, and the part of the whole that its bar shows.
type Row = (Vec<String>, u64);

/// Formats a table: the first column is text, the others are numbers. Parts of `whole` are drawn as
/// bars, if it is given.
fn table(header: [&str; 5], rows: Vec<Row>, whole: Option<u64>) -> String {
    let (cells, parts): (Vec<Vec<String>>, Vec<u64>) = rows.into_iter().unzip();
    let cells = cells.into_iter().map(|row| row.iter().map(|cell| printable::line(cell)).collect());
    let rows: Vec<Vec<String>> = std::iter::once(header.map(str::to_owned).to_vec()).chain(cells).collect();
    let bars = std::iter::once(String::new()).chain(parts.into_iter().map(|part| bar(part, whole.unwrap_or(0))));
    let lines = table::lines(&rows, 1..header.len()).into_iter().zip(bars);
    lines.map(|(line, bar)| format!("  {line}  {bar}").trim_end().to_owned() + "\n").collect()
}

/// Formats a table of the rows with the largest parts; the rest is counted.
fn largest(header: [&str; 5], mut rows: Vec<Row>, whole: Option<u64>) -> String {
    rows.sort_by_key(|(_, part)| std::cmp::Reverse(*part));
    let more = rows.len().saturating_sub(LISTED);
    rows.truncate(LISTED);
    let more = if more > 0 { format!("  and {more} more (--json has all)\n") } else { String::new() };
    table(header, rows, whole) + &more
}

/// Formats a bar that is filled by `part` of `whole`, to an eighth of a character.
fn bar(part: u64, whole: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if whole == 0 {
        return String::new();
    }
    let eighths = (part.min(whole) as f64 / whole as f64 * (WIDTH * 8) as f64).ceil() as usize;
    "█".repeat(eighths / 8) + EIGHTHS.get(eighths % 8).copied().unwrap_or_default()
}

fn to_text(stats: &Stats, bars: bool) -> String {
    let total = stats.stored.total();
    let version = match stats.spec_version {
        0 => "of an Icechunk release before 0.2".to_owned(),
        version => format!("version {version}"),
    };
    let mut text = format!(
        "{} ({version}): {} in {} objects\n",
        printable::line(&stats.repository),
        size::text(total.bytes),
        size::grouped(total.objects)
    );
    let mut rows: Vec<Row> = Vec::new();
    type Pick = fn(&ByKind) -> Size;
    let kinds: [(&str, Pick); 4] = [
        ("chunks", |kinds| kinds.chunks),
        ("manifests", |kinds| kinds.manifests),
        ("snapshots", |kinds| kinds.snapshots),
        ("transaction logs", |kinds| kinds.transactions),
    ];
    for (name, pick) in kinds {
        let [stored, used, unused] = [&stats.stored.kinds, &stats.reachable, &stats.unreachable].map(pick);
        let sizes =
            [size::text(stored.bytes), size::grouped(stored.objects), size::text(used.bytes), size::text(unused.bytes)];
        rows.push(([vec![name.to_owned()], sizes.to_vec()].concat(), stored.bytes));
    }
    let refs = stats.stored.refs;
    let backups = stats.stored.backups;
    let removable = stats.stored.removable_backups.bytes;
    let split = vec![size::text(backups.bytes.saturating_sub(removable)), size::text(removable)];
    for (name, size, more) in [("refs", refs, vec![]), ("earlier states of repo", backups, split)] {
        if size.objects > 0 {
            rows.push((
                [vec![name.to_owned(), size::text(size.bytes), size::grouped(size.objects)], more].concat(),
                size.bytes,
            ));
        }
    }
    text += &table(["", "stored", "objects", "in use", "no ref leads to"], rows, bars.then_some(total.bytes));
    text += &chunks(stats);
    text += &format!("\nrefs: {} are shared by several\n", size::text(stats.shared.bytes));
    let row = |one: &RefStats| {
        let RefStats { kind, name, commits, nodes, references, only_here: Size { bytes: alone, .. }, .. } = one;
        let counts = [
            format!("{kind} {name}"),
            size::grouped(*commits),
            size::grouped(*nodes),
            size::grouped(*references),
            size::text(*alone),
        ];
        (counts.to_vec(), *alone)
    };
    let whole = bars.then(|| stats.reachable.total().bytes);
    let header = ["", "commits", "nodes", "references", "only here"];
    text += &largest(header, stats.refs.iter().map(row).collect(), whole);
    let whole: u64 = stats.arrays.iter().fold(0, |sum, array| sum.saturating_add(array.bytes));
    text += &format!("\narrays of snapshot {}: {}, {}\n", stats.snapshot, stats.arrays.len(), size::text(whole));
    let row = |array: &ArrayStats| {
        let ArrayStats { path, bytes: stored, chunks, places, manifest_bytes, .. } = array;
        let sizes = [
            path.clone(),
            size::text(*stored),
            size::grouped(*chunks),
            size::grouped(*places),
            size::text(*manifest_bytes),
        ];
        (sizes.to_vec(), *stored)
    };
    let header = ["", "bytes", "chunks", "of", "manifests"];
    text + &largest(header, stats.arrays.iter().map(row).collect(), bars.then_some(whole))
}

fn chunks(stats: &Stats) -> String {
    let chunks = &stats.chunks;
    let mut text = format!(
        "\nchunks of all histories: {} in objects, {}; {} inline, {}; {} virtual, {}; {} references\n",
        size::grouped(chunks.native),
        size::text(chunks.native_bytes),
        size::grouped(chunks.inline),
        size::text(chunks.inline_bytes),
        size::grouped(chunks.r#virtual),
        size::text(chunks.virtual_bytes),
        size::grouped(chunks.references)
    );
    let unused = stats.unreachable.total();
    if unused.objects > 0 {
        text += &format!(
            "no ref leads to {} in {} objects: a garbage collection removes them when they are old enough\n",
            size::text(unused.bytes),
            size::grouped(unused.objects)
        );
    }
    if stats.dead_bytes > 0 {
        text += &format!(
            "{} are unused in {} objects whose other chunks are in use\n",
            size::text(stats.dead_bytes),
            size::grouped(stats.dead_in)
        );
    }
    let missing = stats.missing.total();
    if missing.objects > 0 {
        text += &format!("{} objects are missing: `icechunkfs verify` names them\n", size::grouped(missing.objects));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_full_as_they_should_be() {
        assert_eq!((bar(0, 10), bar(10, 10), bar(20, 10)), (String::new(), "█".repeat(WIDTH), "█".repeat(WIDTH)));
        assert_eq!(bar(1, u64::MAX), "▏");
        assert_eq!(bar(1, 2), "█".repeat(WIDTH / 2));
        assert_eq!(bar(1, 0), "");
    }
}
