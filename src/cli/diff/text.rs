//! The difference as text.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use indicatif::HumanBytes;
use serde_json::Value;
use similar::TextDiff;

use super::Compared;
use crate::compare::{ChunkCounts, Count, NodeDifference};
use crate::format::snapshot::Node;
use crate::printable;
use crate::zarr::Coords;

/// Name of a side without the document.
const NOTHING: &str = "/dev/null";
/// Time to search for the shortest patch; after it a longer one is used.
const SHORTEST: Duration = Duration::from_secs(2);

/// Formats every node and the summary.
pub(super) fn of(compared: &Compared, patch: bool) -> String {
    let moves = topmost_moves(compared);
    let mut text = String::new();
    for difference in &compared.nodes {
        let (before, after) = compared.node(difference);
        let kind = |node: &Node<'_>| if node.is_array() { "array" } else { "group" };
        text += &match (&before, &after) {
            (None, Some(node)) => {
                format!("added    {}  {}{}\n", shown(node), kind(node), many(difference.chunks.added))
            }
            (Some(node), None) => {
                format!("removed  {}  {}{}\n", shown(node), kind(node), many(difference.chunks.removed))
            }
            (Some(before), Some(after)) => kept(difference, before, after, &moves),
            (None, None) => String::new(),
        };
        if let Some(lists) = &difference.coords {
            for (sign, list) in [('+', &lists.added), ('~', &lists.changed), ('-', &lists.removed)] {
                for coords in list {
                    text += &format!("  {sign} {}\n", spelled(coords));
                }
            }
        }
        if patch && (before.is_none() || after.is_none() || difference.is_changed) {
            text += &documents(before.as_ref(), after.as_ref());
        }
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text + &summary(compared)
}

fn kept(difference: &NodeDifference, before: &Node<'_>, after: &Node<'_>, moves: &BTreeMap<String, u64>) -> String {
    let mut text = String::new();
    if let Some(below) = moves.get(after.path).filter(|_| difference.is_moved) {
        let more = match below {
            0 => String::new(),
            below => format!("  with {}", number(*below, "node below", "nodes below")),
        };
        text += &format!("moved    {} -> {}{more}\n", shown(before), shown(after));
    }
    if difference.is_changed {
        text += &format!("changed  {}/zarr.json\n", shown(after).trim_end_matches('/'));
    }
    if difference.chunks.is_any() {
        text += &format!("chunks   {}  {}\n", shown(after), chunks(&difference.chunks));
    }
    text
}

fn shown(node: &Node<'_>) -> String {
    printable::line(node.path)
}

fn number(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn many(count: Count) -> String {
    match count.chunks {
        0 => String::new(),
        chunks => format!(", {} ({})", number(chunks, "chunk", "chunks"), HumanBytes(count.bytes)),
    }
}

fn chunks(counts: &ChunkCounts) -> String {
    let ChunkCounts { added, changed_before, changed_after, removed } = counts;
    let mut parts = Vec::new();
    if added.chunks > 0 {
        parts.push(format!("{} added ({})", added.chunks, HumanBytes(added.bytes)));
    }
    if changed_before.chunks > 0 {
        let (was, is) = (HumanBytes(changed_before.bytes), HumanBytes(changed_after.bytes));
        parts.push(format!("{} changed ({was} -> {is})", changed_before.chunks));
    }
    if removed.chunks > 0 {
        parts.push(format!("{} removed ({})", removed.chunks, HumanBytes(removed.bytes)));
    }
    parts.join(", ")
}

/// Formats a chunk's coordinates as its key has them.
pub(super) fn spelled(coords: &Coords) -> String {
    let all: Vec<String> = coords.iter().map(u32::to_string).collect();
    if all.is_empty() { "the only chunk".to_owned() } else { all.join("/") }
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
        let counts = [(groups, "group", "groups"), (arrays, "array", "arrays")];
        let counts: Vec<String> =
            counts.into_iter().filter(|(n, ..)| *n > 0).map(|(n, one, more)| number(n, one, more)).collect();
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

/// Returns the moves that get a line each, by the new path, with the number of nodes below that moved along.
fn topmost_moves(compared: &Compared) -> BTreeMap<String, u64> {
    let mut all: HashMap<&str, &str> = HashMap::new();
    for difference in compared.nodes.iter().filter(|difference| difference.is_moved) {
        if let (Some(before), Some(after)) = compared.node(difference) {
            all.insert(after.path, before.path);
        }
    }
    let mut topmost: BTreeMap<String, u64> = BTreeMap::new();
    for (&path, &from) in &all {
        let (mut path, mut from, mut went_along) = (path, from, 0);
        // Up to the topmost group that moved in the same way.
        while let (Some((above, name)), Some((above_from, name_from))) = (path.rsplit_once('/'), from.rsplit_once('/'))
            && name == name_from
            && all.get(above) == Some(&above_from)
        {
            (path, from, went_along) = (above, above_from, 1);
        }
        *topmost.entry(path.to_owned()).or_default() += went_along;
    }
    topmost
}

/// Formats the differences of a node's documents as a patch.
fn documents(before: Option<&Node<'_>>, after: Option<&Node<'_>>) -> String {
    let name = |node: Option<&Node<'_>>| match node {
        Some(node) => format!("{}/zarr.json", shown(node).trim_end_matches('/')),
        None => NOTHING.to_owned(),
    };
    let raw = |node: Option<&Node<'_>>| {
        let text = node.map(|node| String::from_utf8_lossy(node.zarr_json).into_owned()).unwrap_or_default();
        if text.is_empty() || text.ends_with('\n') { text } else { text + "\n" }
    };
    let laid_out = |node: Option<&Node<'_>>| {
        let value: Value = node.and_then(|node| serde_json::from_slice(node.zarr_json).ok())?;
        Some(serde_json::to_string_pretty(&value).ok()? + "\n")
    };
    let [mut old, mut new] = [before, after].map(|node| laid_out(node).unwrap_or_else(|| raw(node)));
    // The values are equal: the layout differs.
    if old == new {
        [old, new] = [before, after].map(raw);
    }
    let lines = TextDiff::configure().timeout(SHORTEST).diff_lines(&old, &new);
    lines.unified_diff().context_radius(3).header(&name(before), &name(after)).to_string()
}
