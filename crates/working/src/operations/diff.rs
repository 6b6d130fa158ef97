//! Diff of the working tree, node by node: metadata before and after, and chunk coordinates.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;

use super::Session;
use super::changes::DetectedChanges;
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_base::memory::{Meter, SharedReservation};
use icechunkfs_base::printable;
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::json;
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::commit::changes::ChunkChange;

/// Coordinates of one array that the text lists; the rest is counted.
const LISTED: usize = 50;

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
    /// Coordinates of chunks deleted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deleted: Vec<Vec<u32>>,
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
        for (path, [written, deleted]) in self.changed_arrays(&detected) {
            let [written, deleted] =
                [written, deleted].map(|all| all.into_iter().map(|coords| coords.to_vec()).collect());
            nodes.push(NodeDiff { written, deleted, ..node(&path, "chunks") });
        }
        nodes.sort_by(|a, b| a.path.cmp(&b.path).then(a.what.cmp(b.what)));
        Ok(Diff { nodes, _memory: meter.into() })
    }

    /// Returns the paths of arrays with changed chunks, and the chunks that are written and
    /// deleted.
    pub(super) fn changed_arrays<'a>(&self, detected: &'a DetectedChanges) -> Vec<(String, [Vec<&'a Coords>; 2])> {
        let base = self.working.upper().base();
        let changes = &detected.changes;
        let mut paths: HashMap<NodeId, String> = HashMap::new();
        for node in base.tree.snapshot().nodes().filter(|node| changes.chunks.contains_key(&node.id)) {
            paths.insert(node.id, node.path.to_owned());
        }
        paths.extend(changes.moved.iter().map(|moved| (moved.node, moved.to.clone())));
        paths.extend(changes.created.iter().chain(&changes.updated).map(|node| (node.id, node.path.clone())));
        let arrays = changes.chunks.iter().map(|(id, chunks)| {
            let is_deleted = |change: &ChunkChange| matches!(change, ChunkChange::Delete);
            let lists = [false, true].map(|deleted| {
                chunks.iter().filter(|(_, change)| is_deleted(change) == deleted).map(|(coords, _)| coords).collect()
            });
            (paths.remove(id).unwrap_or_else(|| id.to_string()), lists)
        });
        arrays.collect()
    }
}

impl Diff {
    /// Formats the diff as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let path = printable::line(&node.path);
            match &node.from {
                Some(from) => text += &format!("{} {}: from {}\n", node.what, path, printable::line(from)),
                None => text += &format!("{} {path}\n", node.what),
            }
            for (sign, document) in [("-", &node.before), ("+", &node.after)] {
                if let Some(document) = document {
                    text += &format!("  {sign} {}\n", printable::line(&document.to_string()));
                }
            }
            for (sign, coords) in [("+", &node.written), ("-", &node.deleted)] {
                if coords.is_empty() {
                    continue;
                }
                let listed: Vec<String> = coords.iter().take(LISTED).map(|coords| format!("{coords:?}")).collect();
                let more = coords.len().saturating_sub(LISTED);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                text += &format!("  {sign} chunks {}{more}\n", listed.join(" "));
            }
        }
        text
    }
}
