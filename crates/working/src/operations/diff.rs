//! Diff of the working tree, node by node: metadata before and after, and chunk coordinates.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::Session;
use super::changes::DetectedChanges;
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_base::printable;
use icechunkfs_base::size;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::json;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::compare::chunks::spelled;
use icechunkfs_repo::compare::members;

/// Chunks of one array that the text names; all are counted.
const NAMED: usize = 5;

/// Uncommitted changes, node by node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Diff {
    /// Nodes, by path.
    pub nodes: Vec<NodeDiff>,
    #[serde(skip)]
    _memory: SharedReservation,
}

/// Change of one node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeDiff {
    /// Path now, or before the node was deleted.
    pub path: String,
    /// Kind of change: added, changed, deleted, moved or chunks.
    pub what: &'static str,
    /// Path before the move, if the node was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Content of `zarr.json` before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// Content of `zarr.json` now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// Coordinates of chunks written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub written: Vec<Vec<u32>>,
    /// Bytes of the chunks written.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Coordinates of chunks deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<Vec<u32>>,
}

/// Array whose chunks were changed.
pub(super) struct ChangedArray<'a> {
    /// Path now.
    pub(super) path: String,
    pub(super) written: Vec<&'a Coords>,
    pub(super) deleted: Vec<&'a Coords>,
    /// Bytes of the chunks that were written.
    pub(super) bytes: u64,
}

impl ChangedArray<'_> {
    fn at(path: String) -> Self {
        ChangedArray { path, written: Vec::new(), deleted: Vec::new(), bytes: 0 }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Session {
    /// Returns the uncommitted changes, node by node.
    pub async fn diff(&self) -> Result<Diff> {
        let (_, detected) = self.detect_changes().await?;
        let mut meter = Meter::new("the documents of changed nodes");
        let mut json = |bytes: &[u8]| match json::parse::<Value>(bytes, &mut meter) {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
            parsed => Ok(parsed.ok()),
        };
        let before: HashMap<&str, &[u8]> =
            detected.before.iter().map(|(path, bytes)| (path.as_str(), &**bytes)).collect();
        let node = |path: &str, what| NodeDiff { path: path.to_owned(), what, ..NodeDiff::default() };
        let mut nodes = Vec::new();
        for created in &detected.changes.created {
            nodes.push(NodeDiff { after: json(&created.zarr_json)?, ..node(&created.path, "added") });
        }
        for updated in &detected.changes.updated {
            let before = before.get(updated.path.as_str()).map(|bytes| json(bytes)).transpose()?.flatten();
            nodes.push(NodeDiff { before, after: json(&updated.zarr_json)?, ..node(&updated.path, "changed") });
        }
        nodes.extend(detected.changes.deleted.iter().map(|deleted| node(&deleted.path, "deleted")));
        for moved in &detected.changes.moved {
            nodes.push(NodeDiff { from: Some(moved.from.clone()), ..node(&moved.to, "moved") });
        }
        for ChangedArray { path, written, deleted, bytes } in self.changed_arrays(&detected) {
            let [written, deleted] =
                [written, deleted].map(|all| all.into_iter().map(|coords| coords.to_vec()).collect());
            nodes.push(NodeDiff { written, deleted, bytes, ..node(&path, "chunks") });
        }
        nodes.sort_by(|a, b| a.path.cmp(&b.path).then(a.what.cmp(b.what)));
        Ok(Diff { nodes, _memory: meter.into() })
    }

    /// Returns the arrays with changed chunks.
    pub(super) fn changed_arrays<'a>(&self, detected: &'a DetectedChanges) -> Vec<ChangedArray<'a>> {
        let base = self.working.upper().base();
        let changes = &detected.changes;
        let mut paths: HashMap<NodeId, String> = HashMap::new();
        for node in base.tree.snapshot().nodes().filter(|node| changes.chunks.contains_key(&node.id)) {
            paths.insert(node.id, node.path.to_owned());
        }
        paths.extend(changes.moved.iter().map(|moved| (moved.node, moved.to.clone())));
        paths.extend(changes.created.iter().chain(&changes.updated).map(|node| (node.id, node.path.clone())));
        let arrays = changes.chunks.iter().map(|(id, chunks)| {
            let mut array = ChangedArray::at(paths.remove(id).unwrap_or_else(|| id.to_string()));
            for (coords, change) in chunks {
                match change.length() {
                    None => array.deleted.push(coords),
                    Some(length) => {
                        array.written.push(coords);
                        array.bytes += length;
                    }
                }
            }
            array
        });
        arrays.collect()
    }
}

impl NodeDiff {
    /// Describes the changes of chunks: how many, their bytes, and the keys of some.
    fn chunks_as_text(&self) -> String {
        let counted = |chunks: &[Vec<u32>], what: &str| match chunks.len() {
            0 => None,
            count => Some(format!("{count} {what}")),
        };
        let written = counted(&self.written, "written").map(|text| format!("{text} ({})", size::text(self.bytes)));
        let all: Vec<String> = written.into_iter().chain(counted(&self.deleted, "deleted")).collect();
        if all.is_empty() {
            return String::new();
        }
        let keys = self.written.iter().chain(&self.deleted).map(|coords| spelled(coords));
        let mut keys: Vec<String> = keys.take(NAMED).collect();
        if self.written.len() + self.deleted.len() > NAMED {
            keys.push("...".to_owned());
        }
        format!("{}: {}", all.join(", "), keys.join(" "))
    }
}

/// Returns what the document of a new node makes it.
fn kind_of(document: &Value) -> &'static str {
    match document.get("node_type").and_then(Value::as_str) {
        Some("array") => "array",
        _ => "group",
    }
}

impl Diff {
    /// Formats the diff as text, a line for each node and for the chunks of each array.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let path = printable::line(&node.path);
            let details = match (&node.from, &node.before, &node.after) {
                (Some(from), ..) => format!("from {}", printable::line(from)),
                (_, Some(before), Some(after)) => members::describe(before, after),
                (_, None, Some(after)) => kind_of(after).to_owned(),
                _ => node.chunks_as_text(),
            };
            text += format!("{:<8} {path}  {details}", node.what).trim_end();
            text.push('\n');
        }
        text
    }
}
