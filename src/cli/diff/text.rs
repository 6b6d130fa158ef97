//! The difference as text.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::time::Duration;

use serde_json::Value;
use similar::TextDiff;

use super::Compared;
use crate::cli::output::Lines;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_format::format::json;
use icechunkfs_format::format::snapshot::Node;
use icechunkfs_repo::compare::chunks::spelled;
use icechunkfs_repo::compare::{ChunkCounts, Count, NodeDifference, members};

/// Name of a side without the document.
const NOTHING: &str = "/dev/null";
/// Time to search for the shortest patch; after it a longer one is used.
const SHORTEST: Duration = Duration::from_secs(2);
/// Memory that a line takes while the documents are compared, in bytes.
const LINE_BYTES: u64 = 256;

/// Prints every node and the summary.
pub(super) fn print(compared: &Compared, patch: bool) -> Result<()> {
    let moves = topmost_moves(compared);
    let mut out = Lines::new();
    for (at, difference) in compared.nodes.iter().enumerate() {
        let (before, after) = compared.node(difference);
        let kind = |node: &Node<'_>| if node.is_array() { "array" } else { "group" };
        let chunks = &difference.chunks;
        match (&before, &after) {
            (None, Some(node)) => {
                out.line(format_args!("added    {}  {}{}", node.path, kind(node), many(chunks.added)))?;
            }
            (Some(node), None) => {
                out.line(format_args!("removed  {}  {}{}", node.path, kind(node), many(chunks.removed)))?;
            }
            (Some(before), Some(after)) => kept(difference, before, after, &moves, &mut out)?,
            (None, None) => {}
        }
        if let Some(lists) = &difference.coords {
            for (sign, list) in [('+', &lists.added), ('~', &lists.changed), ('-', &lists.removed)] {
                list.iter().try_for_each(|coords| out.line(format_args!("  {sign} {}", spelled(coords))))?;
            }
        }
        if let (Some(outcome), Some(after)) = (compared.values.get(&at), &after) {
            outcome.lines(after.path).iter().try_for_each(|line| out.line(format_args!("{line}")))?;
        }
        if patch && (before.is_none() || after.is_none() || difference.is_changed) {
            documents(before.as_ref(), after.as_ref(), &mut out)?;
        }
    }
    if !compared.nodes.is_empty() {
        out.line(format_args!(""))?;
    }
    out.text(format_args!("{}", summary(compared)))?;
    out.end()
}

fn kept(
    difference: &NodeDifference,
    before: &Node<'_>,
    after: &Node<'_>,
    moves: &BTreeMap<&str, u64>,
    out: &mut Lines,
) -> Result<()> {
    if let Some(below) = moves.get(after.path).filter(|_| difference.is_moved) {
        let more = match below {
            0 => String::new(),
            below => format!("  with {} below", size::counted(*below, "node")),
        };
        out.line(format_args!("moved    {} -> {}{more}", before.path, after.path))?;
    }
    if difference.is_changed {
        let mut meter = Meter::brief("the documents of a node");
        let parsed = |node: &Node<'_>, meter: &mut Meter| json::parse::<Value>(node.zarr_json, meter).ok();
        let documents = parsed(before, &mut meter).zip(parsed(after, &mut meter));
        let members = documents.map(|(before, after)| members::describe(&before, &after)).unwrap_or_default();
        let members = if members.is_empty() { members } else { format!("  {members}") };
        out.line(format_args!("changed  {}/zarr.json{members}", after.path.trim_end_matches('/')))?;
    }
    if difference.chunks.is_any() {
        out.line(format_args!("chunks   {}  {}", after.path, chunks(&difference.chunks)))?;
    }
    Ok(())
}

fn many(count: Count) -> String {
    match count.chunks {
        0 => String::new(),
        chunks => format!(", {} ({})", size::counted(chunks, "chunk"), size::text(count.bytes)),
    }
}

fn chunks(counts: &ChunkCounts) -> String {
    let ChunkCounts { added, changed_before, changed_after, removed } = counts;
    let mut parts = Vec::new();
    if added.chunks > 0 {
        parts.push(format!("{} added ({})", size::grouped(added.chunks), size::text(added.bytes)));
    }
    if changed_before.chunks > 0 {
        let was = size::text(changed_before.bytes);
        let is = size::text(changed_after.bytes);
        parts.push(format!("{} changed ({was} -> {is})", size::grouped(changed_before.chunks)));
    }
    if removed.chunks > 0 {
        parts.push(format!("{} removed ({})", size::grouped(removed.chunks), size::text(removed.bytes)));
    }
    parts.join(", ")
}

/// Formats the summary, in a line or two.
pub(super) fn summary(compared: &Compared) -> String {
    let summary = compared.summary();
    let mut nodes = Vec::new();
    let all = [
        (summary.added, "added"),
        (summary.removed, "removed"),
        (summary.moved, "moved"),
        (summary.changed, "changed"),
    ];
    for ([groups, arrays], what) in all {
        let counts = [(groups, "group"), (arrays, "array")].into_iter().filter(|(n, _)| *n > 0);
        let counts: Vec<String> = counts.map(|(n, noun)| size::counted(n, noun)).collect();
        if !counts.is_empty() {
            nodes.push(format!("{} {what}", counts.join(" and ")));
        }
    }
    let mut lines = Vec::new();
    if !nodes.is_empty() {
        lines.push(nodes.join(", "));
    }
    if summary.chunks.is_any() {
        lines.push(format!("chunks: {}", chunks(&summary.chunks)));
    }
    if lines.is_empty() {
        lines.push("nothing differs".to_owned());
    }
    lines.join("\n") + "\n"
}

/// Returns the moves that get a line each, by the new path, with the number of nodes below that
/// moved along.
fn topmost_moves(compared: &Compared) -> BTreeMap<&str, u64> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for difference in compared.nodes.iter().filter(|difference| difference.is_moved) {
        if let (Some(before), Some(after)) = compared.node(difference) {
            all.push((after.path, before.path));
        }
    }
    // Groups come before what is in them.
    all.sort_unstable_by_key(|(path, _)| path.len());
    // Old path, and new path of the topmost group that moved in the same way, by new path.
    let mut known: HashMap<&str, (&str, &str)> = HashMap::new();
    let mut topmost: BTreeMap<&str, u64> = BTreeMap::new();
    for (path, from) in all {
        let above = path.rsplit_once('/').zip(from.rsplit_once('/'));
        let above = above.filter(|((_, name), (_, name_from))| name == name_from);
        let above = above.and_then(|((above, _), (above_from, _))| {
            known.get(above).filter(|(from, _)| *from == above_from).map(|(_, top)| *top)
        });
        known.insert(path, (from, above.unwrap_or(path)));
        *topmost.entry(above.unwrap_or(path)).or_default() += u64::from(above.is_some());
    }
    topmost
}

/// Prints the differences of a node's documents as a patch.
fn documents(before: Option<&Node<'_>>, after: Option<&Node<'_>>, out: &mut Lines) -> Result<()> {
    let name = |node: Option<&Node<'_>>| match node {
        Some(node) => format!("{}/zarr.json", printable::line(node.path).trim_end_matches('/')),
        None => NOTHING.to_owned(),
    };
    let mut meter = Meter::brief("the documents of a node, line by line");
    let raw = |node: Option<&Node<'_>>, meter: &mut Meter| -> Result<String> {
        meter.count(node.map_or(0, |node| 3 * node.zarr_json.len() as u64))?;
        let text = node.map(|node| String::from_utf8_lossy(node.zarr_json).into_owned()).unwrap_or_default();
        Ok(if text.is_empty() || text.ends_with('\n') { text } else { text + "\n" })
    };
    let mut old = laid_out(before, &mut meter)?;
    let mut new = laid_out(after, &mut meter)?;
    // The values are equal: the layout differs.
    if old == new {
        (old, new) = (None, None);
    }
    let old = old.map_or_else(|| raw(before, &mut meter), Ok)?;
    let new = new.map_or_else(|| raw(after, &mut meter), Ok)?;
    meter.count(LINE_BYTES * (old.lines().count() + new.lines().count()) as u64)?;
    let lines = TextDiff::configure().timeout(SHORTEST).diff_lines(&old, &new);
    let mut patch = lines.unified_diff();
    out.text(format_args!("{}", patch.context_radius(3).header(&name(before), &name(after))))
}

/// Returns a node's document with one member per line; none if it is not JSON.
fn laid_out(node: Option<&Node<'_>>, meter: &mut Meter) -> Result<Option<String>> {
    let Some(node) = node else { return Ok(None) };
    let value: Value = match json::parse(node.zarr_json, meter) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error.context(node.path)),
        Err(_) => return Ok(None),
        Ok(value) => value,
    };
    let mut text = MeteredText { text: Vec::new(), meter };
    match serde_json::to_writer_pretty(&mut text, &value) {
        Ok(()) => text.text.push(b'\n'),
        Err(_) => return Err(text.meter.count(0).err().unwrap_or_else(too_long).context(node.path)),
    }
    Ok(String::from_utf8(text.text).ok())
}

fn too_long() -> Error {
    Error::new(ErrorKind::OutOfMemory, "the document does not fit into the memory bound, line by line: raise --memory")
}

/// Text that is counted before it grows.
struct MeteredText<'a> {
    text: Vec<u8>,
    meter: &'a mut Meter,
}

impl io::Write for MeteredText<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A list doubles when it grows, and is then there twice.
        self.meter.count(3 * bytes.len() as u64).map_err(io::Error::other)?;
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
