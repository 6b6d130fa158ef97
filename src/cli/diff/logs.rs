//! `icechunkfs diff --logs`: the changes in the transaction logs between two snapshots, as the
//! reference implementation's diff has them.
//!
//! Logs have the ids of nodes; paths are those of the two snapshots. A node that is in neither,
//! because it was created and deleted in between, has no path and is only counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use tracing::warn;

use super::DiffArgs;
use crate::cli::open::MemoryLimits;
use crate::cli::output::{Lines, print_json};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::transaction_log::{Move, NodeChange};
use icechunkfs_format::zarr::Coords;
use icechunkfs_repo::compare::chunks::spelled;
use icechunkfs_repo::compare::logs;
use icechunkfs_repo::repo::Repository;

pub(super) async fn run(repository: &Repository, from: ObjectId, to: ObjectId, arguments: &DiffArgs) -> Result<()> {
    let Some((logged, missing)) = logs::between(repository, from, to).await? else {
        return Err(Error::invalid(format!("{from} is not an ancestor of {to}: omit --logs to compare the snapshots")));
    };
    for id in &missing {
        warn!("the log of commit {id}, which has expired, is gone: its changes are not listed");
    }
    let limits = MemoryLimits::default();
    let snapshots = [
        repository.snapshot(from, limits.max_snapshot_size()?).await?,
        repository.snapshot(to, limits.max_snapshot_size()?).await?,
    ];
    let mut paths: HashMap<NodeId, &str> = HashMap::new();
    let mut tables = Vec::new();
    for snapshot in &snapshots {
        tables.push(snapshot.room_for_table()?);
        paths.extend(snapshot.nodes().map(|node| (node.id, node.path)));
    }
    let ids = logged.nodes.iter().map(|(_, id)| *id);
    let mut in_neither: BTreeSet<NodeId> = ids.filter(|id| !paths.contains_key(id)).collect();
    let named = |change: NodeChange| -> BTreeSet<&str> {
        let ids = logged.nodes.iter().filter(|(of, _)| *of == change);
        ids.filter_map(|(_, id)| paths.get(id)).copied().collect()
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
        let moves: Vec<MoveRow<'_>> = logged.moves.iter().map(MoveRow::of).collect();
        return print_json(&Report { from, to, lists, chunks, moves, in_neither: in_neither.len(), missing });
    }
    let mut out = Lines::new();
    for (name, paths) in lists {
        let name = name.trim_end_matches('s').replace('_', " ");
        paths.into_iter().try_for_each(|path| out.line(format_args!("{name:<14} {path}")))?;
    }
    for (path, all) in chunks {
        out.line(format_args!("updated chunks {path}  {}", all.len()))?;
        for coords in all.into_iter().filter(|_| arguments.chunks) {
            out.line(format_args!("  {}", spelled(coords)))?;
        }
    }
    for moved in &logged.moves {
        out.line(format_args!("moved          {} -> {}", moved.from, moved.to))?;
    }
    if !in_neither.is_empty() {
        out.line(format_args!("and {} nodes that came and went in between", in_neither.len()))?;
    }
    out.end()
}

struct Report<'a> {
    from: ObjectId,
    to: ObjectId,
    lists: [(&'static str, BTreeSet<&'a str>); 6],
    chunks: BTreeMap<&'a str, BTreeSet<&'a Coords>>,
    moves: Vec<MoveRow<'a>>,
    in_neither: usize,
    missing: Vec<ObjectId>,
}

#[derive(Serialize)]
struct MoveRow<'a> {
    from: &'a str,
    to: &'a str,
}

impl<'a> MoveRow<'a> {
    fn of(moved: &'a Move) -> Self {
        MoveRow { from: &moved.from, to: &moved.to }
    }
}

struct Chunks<'a>(&'a BTreeMap<&'a str, BTreeSet<&'a Coords>>);

struct CoordsSet<'a>(&'a BTreeSet<&'a Coords>);

impl Serialize for Report<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut members = serializer.serialize_map(None)?;
        members.serialize_entry("from", &self.from)?;
        members.serialize_entry("to", &self.to)?;
        self.lists.iter().try_for_each(|(name, paths)| members.serialize_entry(name, paths))?;
        members.serialize_entry("updated_chunks", &Chunks(&self.chunks))?;
        members.serialize_entry("moved_nodes", &self.moves)?;
        members.serialize_entry("nodes_in_neither", &self.in_neither)?;
        members.serialize_entry("missing_logs", &self.missing)?;
        members.end()
    }
}

impl Serialize for Chunks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(path, all)| (path, CoordsSet(all))))
    }
}

impl Serialize for CoordsSet<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|coords| coords.as_slice()))
    }
}
