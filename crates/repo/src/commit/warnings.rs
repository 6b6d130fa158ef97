//! Warnings about a change set: what it stores so that some programs cannot read it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::changes::{ChangeSet, ChunkChange};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::zarr::Coords;
use icechunkfs_format::zarr::chunk_rules::{ChunkRules, OTHER_NAMES};
use icechunkfs_format::zarr::readable;

/// Change that can be committed, and that some programs cannot read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Path of the array.
    pub path: String,
    /// Reason.
    pub why: String,
    /// True if that may be intended: `--strict` does not refuse it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_note: bool,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.why)
    }
}

/// Returns the warnings about `changes`, made for `base`: about arrays that are created, or have a
/// new `zarr.json` or new chunks. Sorted by path. May block the thread.
pub fn warnings_of(base: &Snapshot, changes: &ChangeSet) -> Vec<Warning> {
    let written: BTreeMap<NodeId, &BTreeMap<Coords, ChunkChange>> = changes
        .chunks
        .iter()
        .filter(|(_, chunks)| chunks.values().any(|change| change.length().is_some()))
        .map(|(node, chunks)| (*node, chunks))
        .collect();
    let mut documents: HashMap<NodeId, (&str, &[u8])> = HashMap::new();
    let moved = changes.moved_to();
    let mut found = Vec::new();
    for node in changes.created.iter().chain(&changes.updated).filter(|node| node.is_array) {
        documents.insert(node.id, (&node.path, &node.zarr_json));
        let problems = readable::problems(&node.zarr_json).unwrap_or_default();
        for is_of_extension in [false, true] {
            let texts = problems.iter().filter(|problem| problem.is_of_extension == is_of_extension);
            let texts: Vec<&str> = texts.map(|problem| problem.text.as_str()).collect();
            let what = if is_of_extension {
                "Zarr programs open it only with a library that knows this"
            } else {
                "Zarr programs cannot open it"
            };
            if !texts.is_empty() {
                let why = format!("{what}: {}", texts.join("; "));
                found.push(Warning { path: node.path.clone(), why, is_note: is_of_extension });
            }
        }
    }
    if written.keys().any(|node| !documents.contains_key(node)) {
        for node in base.nodes().filter(|node| written.contains_key(&node.id)) {
            let path = moved.get(&node.id).copied().unwrap_or(node.path);
            documents.entry(node.id).or_insert((path, node.zarr_json));
        }
    }
    for (node, (path, zarr_json)) in documents {
        // Violations and the log name documents that cannot be parsed.
        let Ok(rules) = ChunkRules::parse(zarr_json) else { continue };
        if !rules.has_default_names {
            found.push(Warning { path: path.to_owned(), why: OTHER_NAMES.to_owned(), is_note: false });
        }
        let lengths = written.get(&node).into_iter().flat_map(|chunks| chunks.iter());
        let mut wrong = lengths.filter_map(|(coords, change)| Some((coords, rules.length_problem(change.length()?)?)));
        if let Some((coords, why)) = wrong.next() {
            let more = match wrong.count() {
                0 => String::new(),
                count => format!(" (and {count} more)"),
            };
            let why = format!("chunk {:?}{more}: {why}", coords.as_slice());
            found.push(Warning { path: path.to_owned(), why, is_note: false });
        }
    }
    found.sort_by(|a, b| (&a.path, &a.why).cmp(&(&b.path, &b.why)));
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use serde_json::json;

    use super::super::changes::WrittenNode;
    use super::*;
    use icechunkfs_format::format::chunk_payload::ChunkPayload;
    use icechunkfs_format::format::testing::{TestNode, id, node_id, snapshot};
    use icechunkfs_format::format::transaction_log::Move;

    fn document(encoding: &str, codecs: serde_json::Value) -> String {
        json!({
            "zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "int16", "fill_value": 0, "codecs": codecs,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": encoding,
        })
        .to_string()
    }

    fn chunks(lengths: &[(u32, usize)]) -> BTreeMap<Coords, ChunkChange> {
        let chunk = |length: usize| ChunkChange::Stored(ChunkPayload::Inline(Bytes::from(vec![0; length])));
        lengths.iter().map(|(at, length)| (Coords::from_slice(&[*at]), chunk(*length))).collect()
    }

    #[test]
    fn arrays_that_a_change_touches_are_warned_of() {
        let raw = document("default", json!(["bytes"]));
        let packed = document("v2", json!(["bytes", "zstd"]));
        let node = |n, path, zarr_json| TestNode { id: node_id(n), path, zarr_json, manifests: Some(Vec::new()) };
        let nodes = [node(1, "/raw", &*raw), node(2, "/v2", &*packed), node(3, "/v2-too", &*packed)];
        let base = Snapshot::decode(&snapshot(id(1), &nodes), 1 << 20).unwrap();
        let mut deleted = chunks(&[]);
        deleted.insert(Coords::from_slice(&[0]), ChunkChange::Delete);
        let created = document("v2", json!(["bytes"]));
        let changes = ChangeSet {
            created: vec![WrittenNode {
                id: node_id(9),
                path: "/new".into(),
                zarr_json: created.into(),
                is_array: true,
            }],
            moved: vec![Move { from: "/v2".into(), to: "/moved".into(), node: node_id(2), is_array: true }],
            chunks: [
                (node_id(1), chunks(&[(0, 4), (1, 3), (2, 5), (3, 4)])),
                (node_id(2), chunks(&[(0, 7)])),
                (node_id(3), deleted),
            ]
            .into(),
            ..ChangeSet::default()
        };
        let found: Vec<String> = warnings_of(&base, &changes).iter().map(ToString::to_string).collect();
        let expected = [
            format!("/moved: {OTHER_NAMES}"),
            format!("/new: {OTHER_NAMES}"),
            "/raw: chunk [1] (and 1 more): it has 3 bytes, but each uncompressed chunk of the array has 4".to_owned(),
        ];
        assert_eq!(found, expected);
        assert_eq!(warnings_of(&base, &ChangeSet::default()), []);
    }
}
