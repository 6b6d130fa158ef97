//! The difference as JSON, in the shapes that `--help` documents.

use std::cell::RefCell;

use serde::ser::{Error as _, SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Compared;
use super::values::Outcome;
use crate::cli::print_json;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::json;
use icechunkfs_format::format::snapshot::Node;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::compare::{ChunkCounts, CoordLists, NodeDifference};

/// Prints the difference, one node after another: the documents of all would take much memory.
pub(super) fn print(compared: &Compared) -> Result<()> {
    let failure = RefCell::new(None);
    let printed = print_json(&Report { compared, failure: &failure });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => printed,
    }
}

struct Report<'a> {
    compared: &'a Compared,
    /// Error that ended the report.
    failure: &'a RefCell<Option<Error>>,
}

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Compared { old, new, .. } = self.compared;
        let summary = self.compared.summary();
        let nodes = |[groups, arrays]: [u64; 2]| json!({"groups": groups, "arrays": arrays});
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry("from", &old.id())?;
        members.serialize_entry("to", &new.id())?;
        members.serialize_entry("nodes", &Nodes(self))?;
        let summary = json!({
            "added": nodes(summary.added),
            "removed": nodes(summary.removed),
            "moved": nodes(summary.moved),
            "changed": nodes(summary.changed),
            "chunks": chunks(&summary.chunks),
        });
        members.serialize_entry("summary", &summary)?;
        members.end()
    }
}

struct Nodes<'a>(&'a Report<'a>);

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Report { compared, failure } = self.0;
        let mut nodes = serializer.serialize_seq(None)?;
        let mut meter = Meter::brief("the documents of a node");
        for (at, difference) in compared.nodes.iter().enumerate() {
            meter.restart();
            let row = node(compared, difference, &mut meter);
            let values = compared.values.get(&at).map(Outcome::json);
            match row.map(|row| row.map(|row| NodeRow { values, ..row })) {
                Ok(node) => nodes.serialize_element(&node)?,
                Err(error) => {
                    failure.replace(Some(error));
                    return Err(S::Error::custom("a node cannot be shown"));
                }
            }
        }
        nodes.end()
    }
}

#[derive(Serialize)]
struct NodeRow<'a> {
    path: &'a str,
    kind: &'static str,
    what: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coords: Option<CoordsRow<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    values: Option<Value>,
}

#[derive(Serialize)]
struct CoordsRow<'a> {
    added: List<'a>,
    changed: List<'a>,
    removed: List<'a>,
}

struct List<'a>(&'a [Coords]);

impl Serialize for List<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|coords| coords.as_slice()))
    }
}

impl<'a> CoordsRow<'a> {
    fn of(CoordLists { added, changed, removed }: &'a CoordLists) -> Self {
        CoordsRow { added: List(added), changed: List(changed), removed: List(removed) }
    }
}

fn chunks(counts: &ChunkCounts) -> Value {
    let ChunkCounts { added, changed_before: replaced, changed_after: replacing, removed } = counts;
    json!({
        "added": {"count": added.chunks, "bytes": added.bytes},
        "changed": {"count": replacing.chunks, "bytes": replacing.bytes, "bytes_before": replaced.bytes},
        "removed": {"count": removed.chunks, "bytes": removed.bytes},
    })
}

fn node<'a>(compared: &'a Compared, difference: &'a NodeDifference, meter: &mut Meter) -> Result<Option<NodeRow<'a>>> {
    let (before, after) = compared.node(difference);
    let Some(shown) = after.as_ref().or(before.as_ref()) else { return Ok(None) };
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
    let has_document = difference.is_changed || before.is_none() || after.is_none();
    let mut document = |node: &Option<Node<'_>>| {
        let node = node.as_ref().filter(|_| has_document);
        node.map(|node| document(node.zarr_json, meter).context(|| node.path.to_owned())).transpose()
    };
    Ok(Some(NodeRow {
        path: shown.path,
        kind: if shown.is_array() { "array" } else { "group" },
        what,
        from: before.as_ref().filter(|_| difference.is_moved).map(|before| before.path),
        before: document(&before)?,
        after: document(&after)?,
        chunks: (shown.is_array() && difference.chunks.is_any()).then(|| chunks(&difference.chunks)),
        coords: difference.coords.as_ref().filter(|_| difference.chunks.is_any()).map(CoordsRow::of),
        values: None,
    }))
}

/// Returns the value of a document; one that is not JSON becomes a string.
fn document(zarr_json: &[u8], meter: &mut Meter) -> Result<Value> {
    match json::parse(zarr_json, meter) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
        Err(_) => {
            meter.count(3 * zarr_json.len() as u64)?;
            Ok(String::from_utf8_lossy(zarr_json).into_owned().into())
        }
        value => value,
    }
}
