//! `icechunkfs stats`: shows the storage use of a repository.

use std::fmt::Write;
use std::io::IsTerminal;

use clap::Args;
use indicatif::{HumanBytes, HumanCount, ProgressBar};

use super::repo_args::RepoArgs;
use super::{open, print, print_json, progress};
use crate::error::Result;
use crate::repo::refs::{DEFAULT_BRANCH, RefSpec};
use crate::stats::arrays::ArrayStats;
use crate::stats::{self, ByKind, Counters, MemoryBounds, RefStats, Size, Stats};
use crate::{memory, printable};

/// Name of the copies of `repo`.
const BACKUPS: &str = "earlier states of repo";
/// Number of arrays and refs listed as text; the rest is counted. JSON has all.
const LISTED: usize = 30;
/// Width of a full bar, in characters.
const WIDTH: usize = 24;
/// Divisor of the memory for the list of chunks, and for the manifests that are being read.
const SHARE: u64 = 4;

/// Arguments of `icechunkfs stats`.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// The snapshot whose arrays are listed: a branch, a tag, a snapshot id, or one before it, such as main~2.
    #[arg(index = 2, value_name = "REF", default_value = DEFAULT_BRANCH)]
    pub reference: String,
    /// Number of snapshots and manifests to read at a time.
    #[arg(short, long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,
    /// Print {"repository", "spec_version", "stored", "reachable", "unreachable", "missing": {"chunks", "manifests",
    /// "snapshots", "transactions": {"objects", "bytes"}}, "shared": {"objects", "bytes"}, "dead_bytes", "dead_in", "chunks":
    /// {"native", "native_bytes", "virtual", "virtual_bytes", "inline", "inline_bytes", "references"}, "refs": [{"kind", "name",
    /// "snapshot", "commits", "nodes", "references", "only_here"}], "snapshot", "arrays": [{"path", "shape", "places", "chunks",
    /// "bytes", "native_bytes", "inline_bytes", "virtual_bytes", "manifests", "manifest_bytes"}]}; "stored" also has "refs",
    /// "backups" and "removable_backups".
    #[arg(long)]
    pub json: bool,
    /// The repository. Last, because the help heading of its settings applies to all later options.
    #[command(flatten)]
    pub repo: RepoArgs,
}

/// Collects and prints the statistics.
pub fn run(arguments: &StatsArgs) -> Result<()> {
    let counters = Counters::default();
    let draw = |bar: &ProgressBar| {
        let (expected, read) = counters.now();
        bar.set_length(expected);
        bar.set_position(read);
    };
    let stats = progress::watched("reading {wide_bar} {pos}/{len} snapshots and manifests", draw, || {
        open::runtime()?.block_on(async {
            let repository = arguments.repo.open().await?;
            let found = repository.resolve_revision(&arguments.reference).await?;
            let limits = open::MemoryLimits::default();
            let tree = open::tree(&repository, &RefSpec::Snapshot(found.id), limits).await?;
            let bound = memory::explicit_bound().unwrap_or_else(memory::default_memory) / SHARE;
            let bounds = MemoryBounds { chunks: bound, manifests: bound };
            stats::collect(&repository, &tree, bounds, arguments.jobs.into(), &counters).await
        })
    })?;
    if arguments.json {
        return print_json(&stats);
    }
    let bars = std::io::stdout().is_terminal();
    print(&to_text(&stats, bars))
}

/// A table whose columns are as wide as their contents.
struct Table {
    bars: bool,
    rows: Vec<Row>,
}

/// Cells, and the bar after them: a part and the whole.
type Row = (Vec<String>, Option<(u64, u64)>);

impl Table {
    fn new(bars: bool) -> Self {
        Table { bars, rows: Vec::new() }
    }

    /// Adds a row: the first cell is text, the others are numbers; `part` is a bar as a part and the whole.
    fn row(&mut self, cells: Vec<String>, part: Option<(u64, u64)>) {
        self.rows.push((cells.iter().map(|cell| printable::line(cell)).collect(), part));
    }

    fn write(&self, out: &mut String) {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|(cells, _)| cells.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let columns = self.rows.iter().map(|(cells, _)| cells.len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (cells, part) in &self.rows {
            let mut line = String::from(" ");
            for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
                // Writing into a string cannot fail.
                let _ = if at == 0 { write!(line, " {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
            }
            if let (true, Some((part, whole))) = (self.bars, part) {
                line += "  ";
                line += &bar(*part, *whole);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
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

fn bytes(bytes: u64) -> String {
    HumanBytes(bytes).to_string()
}

fn count(count: u64) -> String {
    HumanCount(count).to_string()
}

fn to_text(stats: &Stats, bars: bool) -> String {
    let mut text = String::new();
    let total = stats.stored.total();
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "{} ({}): {} in {} objects",
        printable::line(&stats.repository),
        match stats.spec_version {
            0 => "of a release before 0.2".to_owned(),
            version => format!("version {version}"),
        },
        bytes(total.bytes),
        count(total.objects)
    );
    let mut table = Table::new(bars);
    let header = ["", "stored", "objects", "in use", "no ref leads to"].map(str::to_owned);
    table.row(header.to_vec(), None);
    type Pick = fn(&ByKind) -> Size;
    let kinds: [(&str, Pick); 4] = [
        ("chunks", |kinds| kinds.chunks),
        ("manifests", |kinds| kinds.manifests),
        ("snapshots", |kinds| kinds.snapshots),
        ("transaction logs", |kinds| kinds.transactions),
    ];
    for (name, pick) in kinds {
        let [stored, used, unused] = [&stats.stored.kinds, &stats.reachable, &stats.unreachable].map(pick);
        let cells =
            [name.to_owned(), bytes(stored.bytes), count(stored.objects), bytes(used.bytes), bytes(unused.bytes)];
        table.row(cells.to_vec(), Some((stored.bytes, total.bytes)));
    }
    for (name, size) in [("refs", stats.stored.refs), (BACKUPS, stats.stored.backups)] {
        if size.objects > 0 {
            let mut cells = vec![name.to_owned(), bytes(size.bytes), count(size.objects)];
            if name == BACKUPS {
                let removable = stats.stored.removable_backups.bytes;
                cells.extend([bytes(size.bytes.saturating_sub(removable)), bytes(removable)]);
            }
            table.row(cells, Some((size.bytes, total.bytes)));
        }
    }
    table.write(&mut text);
    chunks(&mut text, stats);
    refs(&mut text, stats, bars);
    arrays(&mut text, stats, bars);
    text
}

fn chunks(text: &mut String, stats: &Stats) {
    let chunks = &stats.chunks;
    let _ = writeln!(
        text,
        "\nchunks of all histories: {} in objects, {}; {} inline, {}; {} virtual, {}; {} references",
        count(chunks.native),
        bytes(chunks.native_bytes),
        count(chunks.inline),
        bytes(chunks.inline_bytes),
        count(chunks.r#virtual),
        bytes(chunks.virtual_bytes),
        count(chunks.references)
    );
    let unused = stats.unreachable.total();
    if unused.objects > 0 {
        let _ = writeln!(
            text,
            "no ref leads to {} in {} objects: a garbage collection removes them when they are old enough",
            bytes(unused.bytes),
            count(unused.objects)
        );
    }
    if stats.dead_bytes > 0 {
        let _ = writeln!(
            text,
            "no chunk has {} in {} objects whose other chunks are in use",
            bytes(stats.dead_bytes),
            count(stats.dead_in)
        );
    }
    let missing = stats.missing.total();
    if missing.objects > 0 {
        let _ = writeln!(text, "{} objects are missing: `icechunkfs verify` names them", count(missing.objects));
    }
}

fn refs(text: &mut String, stats: &Stats, bars: bool) {
    let alone = |one: &RefStats| one.only_here.bytes;
    let whole = stats.reachable.total().bytes;
    let _ = writeln!(text, "\nrefs: {} are shared by several", bytes(stats.shared.bytes));
    let mut table = Table::new(bars);
    table.row(["", "commits", "nodes", "references", "only here"].map(str::to_owned).to_vec(), None);
    let mut sorted: Vec<&RefStats> = stats.refs.iter().collect();
    sorted.sort_by_key(|one| std::cmp::Reverse(alone(one)));
    for one in sorted.iter().take(LISTED) {
        let RefStats { kind, name, commits, nodes, references, .. } = one;
        let cells = [format!("{kind} {name}"), count(*commits), count(*nodes), count(*references), bytes(alone(one))];
        table.row(cells.to_vec(), Some((alone(one), whole)));
    }
    table.write(text);
    more(text, sorted.len());
}

fn arrays(text: &mut String, stats: &Stats, bars: bool) {
    let whole: u64 = stats.arrays.iter().fold(0, |sum, array| sum.saturating_add(array.bytes));
    let _ = writeln!(text, "\narrays of snapshot {}: {}, {}", stats.snapshot, stats.arrays.len(), bytes(whole));
    let mut table = Table::new(bars);
    table.row(["", "bytes", "chunks", "of", "manifests"].map(str::to_owned).to_vec(), None);
    let mut sorted: Vec<&ArrayStats> = stats.arrays.iter().collect();
    sorted.sort_by_key(|array| std::cmp::Reverse(array.bytes));
    for array in sorted.iter().take(LISTED) {
        let cells = [
            array.path.clone(),
            bytes(array.bytes),
            count(array.chunks),
            count(array.places),
            bytes(array.manifest_bytes),
        ];
        table.row(cells.to_vec(), Some((array.bytes, whole)));
    }
    table.write(text);
    more(text, sorted.len());
}

fn more(text: &mut String, all: usize) {
    if all > LISTED {
        let _ = writeln!(text, "  and {} more (--json has all)", all - LISTED);
    }
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
