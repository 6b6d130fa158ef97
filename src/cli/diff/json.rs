//! The difference as JSON, in the shapes that `--help` documents.

use serde_json::{Map, Value, json};

use super::Compared;
use crate::compare::{ChunkCounts, NodeDifference};
use crate::zarr::Coords;

pub(super) fn of(compared: &Compared) -> Value {
    let summary = compared.summary();
    let nodes = |[groups, arrays]: [u64; 2]| json!({"groups": groups, "arrays": arrays});
    json!({
        "from": compared.old.id(),
        "to": compared.new.id(),
        "nodes": compared.nodes.iter().map(|difference| node(compared, difference)).collect::<Vec<_>>(),
        "summary": {
            "added": nodes(summary.added),
            "removed": nodes(summary.removed),
            "moved": nodes(summary.moved),
            "changed": nodes(summary.changed),
            "chunks": chunks(&summary.chunks),
        },
    })
}

fn chunks(counts: &ChunkCounts) -> Value {
    let ChunkCounts { added, changed_before: replaced, changed_after: replacing, removed } = counts;
    json!({
        "added": {"count": added.chunks, "bytes": added.bytes},
        "changed": {"count": replacing.chunks, "bytes": replacing.bytes, "bytes_before": replaced.bytes},
        "removed": {"count": removed.chunks, "bytes": removed.bytes},
    })
}

fn node(compared: &Compared, difference: &NodeDifference) -> Value {
    let (before, after) = compared.node(difference);
    let Some(shown) = after.as_ref().or(before.as_ref()) else { return Value::Null };
    let mut what = Vec::new();
    match (&before, &after) {
        (None, _) => what.push("added"),
        (_, None) => what.push("removed"),
        _ => {}
    }
    let kept = [
        (difference.is_moved, "moved"),
        (difference.is_changed, "changed"),
        (difference.chunks.is_any() && before.is_some() && after.is_some(), "chunks"),
    ];
    what.extend(kept.into_iter().filter(|(is, _)| *is).map(|(_, word)| word));
    let mut out = Map::new();
    let mut put = |name: &str, value: Value| drop(out.insert(name.to_owned(), value));
    put("path", shown.path.into());
    put("kind", if shown.is_array() { "array" } else { "group" }.into());
    put("what", what.into());
    if let Some(before) = before.as_ref().filter(|_| difference.is_moved) {
        put("from", before.path.into());
    }
    let has_document = difference.is_changed || before.is_none() || after.is_none();
    for (name, node) in [("before", &before), ("after", &after)] {
        if let Some(node) = node.as_ref().filter(|_| has_document) {
            // A document that is not JSON becomes a string.
            let text = || String::from_utf8_lossy(node.zarr_json).into_owned().into();
            put(name, serde_json::from_slice(node.zarr_json).unwrap_or_else(|_| text()));
        }
    }
    if shown.is_array() && difference.chunks.is_any() {
        put("chunks", chunks(&difference.chunks));
    }
    if let Some(lists) = difference.coords.as_ref().filter(|_| difference.chunks.is_any()) {
        let list = |coords: &[Coords]| coords.iter().map(|coords| coords.as_slice().into()).collect::<Vec<Value>>();
        let all = json!({
            "added": list(&lists.added), "changed": list(&lists.changed), "removed": list(&lists.removed),
        });
        put("coords", all);
    }
    out.into()
}
