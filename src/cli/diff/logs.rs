//! `icechunkfs diff --logs`: the changes in the transaction logs between two snapshots, as the reference implementation's diff has them.
//!
//! Logs have the ids of nodes; paths are those of the two snapshots. A node that is in neither, because it was created and
//! deleted in between, has no path and is only counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::json;
use tracing::warn;

use super::text::spelled;
use super::{DiffArgs, print, print_json};
use crate::cli::open::MemoryLimits;
use crate::compare::logs;
use crate::error::{Error, Result};
use crate::format::ids::{NodeId, ObjectId};
use crate::format::transaction_log::NodeChange;
use crate::printable;
use crate::repo::Repository;
use crate::zarr::Coords;

pub(super) async fn run(repository: &Repository, from: ObjectId, to: ObjectId, arguments: &DiffArgs) -> Result<()> {
    let Some((logged, missing)) = logs::between(repository, from, to).await? else {
        return Err(Error::invalid(format!(
            "{from} is no ancestor of {to}, so that no logs lead from one to the other: leave --logs out to compare the \
             snapshots themselves"
        )));
    };
    for id in &missing {
        warn!("the log of commit {id}, which has expired, is gone: its changes are not listed");
    }
    let limits = MemoryLimits::default();
    let mut paths: HashMap<NodeId, String> = HashMap::new();
    for id in [from, to] {
        let snapshot = repository.snapshot(id, limits.max_snapshot_size()?).await?;
        paths.extend(snapshot.nodes().map(|node| (node.id, node.path.to_owned())));
    }
    let ids = logged.nodes.iter().map(|(_, id)| *id);
    let mut in_neither: BTreeSet<NodeId> = ids.filter(|id| !paths.contains_key(id)).collect();
    let named = |change: NodeChange| -> BTreeSet<&str> {
        let ids = logged.nodes.iter().filter(|(of, _)| *of == change);
        ids.filter_map(|(_, id)| paths.get(id)).map(String::as_str).collect()
    };
    let lists = [
        ("new_groups", named(NodeChange::NewGroups)),
        ("new_arrays", named(NodeChange::NewArrays)),
        ("deleted_groups", named(NodeChange::DeletedGroups)),
        ("deleted_arrays", named(NodeChange::DeletedArrays)),
        ("updated_groups", named(NodeChange::UpdatedGroups)),
        ("updated_arrays", named(NodeChange::UpdatedArrays)),
    ];
    let mut chunks: BTreeMap<&str, BTreeSet<&Coords>> = BTreeMap::new();
    for (id, coords) in &logged.chunks {
        match paths.get(id) {
            // Two nodes can have one path, each in one of the snapshots.
            Some(path) => chunks.entry(path).or_default().extend(coords),
            None => drop(in_neither.insert(*id)),
        }
    }
    if arguments.json {
        let mut out = serde_json::Map::new();
        let mut put = |name: &str, value| drop(out.insert(name.to_owned(), value));
        put("from", json!(from));
        put("to", json!(to));
        lists.into_iter().for_each(|(name, paths)| put(name, json!(paths)));
        let chunks: BTreeMap<&str, Vec<&[u32]>> =
            chunks.iter().map(|(path, all)| (*path, all.iter().map(|coords| coords.as_slice()).collect())).collect();
        put("updated_chunks", json!(chunks));
        put("moved_nodes", logged.moves.iter().map(|m| json!({"from": m.from, "to": m.to})).collect());
        put("nodes_in_neither", in_neither.len().into());
        put("missing_logs", json!(missing));
        return print_json(&out);
    }
    let mut text = String::new();
    for (name, paths) in lists {
        let name = name.trim_end_matches('s').replace('_', " ");
        for path in paths {
            text += &format!("{name:<14} {}\n", printable::line(path));
        }
    }
    for (path, all) in chunks {
        text += &format!("updated chunks {}  {}\n", printable::line(path), all.len());
        for coords in all.into_iter().filter(|_| arguments.chunks) {
            text += &format!("  {}\n", spelled(coords));
        }
    }
    for moved in &logged.moves {
        text += &format!("moved          {} -> {}\n", printable::line(&moved.from), printable::line(&moved.to));
    }
    if !in_neither.is_empty() {
        text += &format!("and {} nodes that came and went in between\n", in_neither.len());
    }
    print(&text)
}
