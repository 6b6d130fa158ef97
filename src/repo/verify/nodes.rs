//! Rules of the groups and arrays in a snapshot.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde_json::Value;

use super::report::Severity;
use super::{Context, first_twice};
use crate::error::ErrorKind;
use crate::format::envelope::SpecVersion;
use crate::format::ids::{NodeId, ObjectId};
use crate::format::snapshot::{ArrayData, ManifestInfo, ManifestRef, Node, NodeData, Snapshot};
use crate::zarr::array::ArraySummary;

/// Pairs of extents of one array that are compared at most. The rest is trusted: the comparison grows with the square.
const MAX_PAIRS: usize = 4_000_000;

/// An array that refers to a manifest, in one snapshot.
#[derive(Clone, Debug)]
pub(super) struct ArrayUse {
    pub(super) path: Arc<str>,
    /// Chunks per dimension; none if unknown.
    pub(super) grid: Option<Arc<[u32]>>,
    pub(super) extents: Vec<(u32, u32)>,
    /// All manifests of the array.
    pub(super) all: Arc<[ManifestRef]>,
    /// First snapshot in which the array was met in this form.
    pub(super) snapshot: ObjectId,
}

/// References to a manifest.
#[derive(Clone, Debug, Default)]
pub(super) struct ManifestUse {
    /// Distinct descriptions of the file in snapshots.
    pub(super) infos: Vec<ManifestInfo>,
    /// Arrays, each in its distinct forms in snapshots.
    pub(super) arrays: HashMap<NodeId, Vec<ArrayUse>>,
}

impl ManifestUse {
    /// Returns the number of chunk references in the manifest, according to snapshots.
    pub(super) fn chunk_refs(&self) -> u64 {
        self.infos.iter().map(|info| u64::from(info.chunk_refs)).max().unwrap_or_default()
    }

    /// Returns the size of the file in bytes, according to snapshots.
    pub(super) fn size(&self) -> u64 {
        self.infos.iter().map(|info| info.size).max().unwrap_or_default()
    }

    fn add(&mut self, node: NodeId, new: ArrayUse) {
        let known = self.arrays.entry(node).or_default();
        let is_same = |one: &ArrayUse| one.extents == new.extents && one.grid == new.grid && one.all == new.all;
        if !known.iter().any(is_same) {
            known.push(new);
        }
    }
}

pub(super) type Uses = HashMap<ObjectId, ManifestUse>;

/// Adds the uses of one snapshot.
pub(super) fn merge(all: &mut Uses, own: Uses) {
    for (manifest, used) in own {
        let known = all.entry(manifest).or_default();
        for info in used.infos {
            if !known.infos.contains(&info) {
                known.infos.push(info);
            }
        }
        for (node, arrays) in used.arrays {
            arrays.into_iter().for_each(|array| known.add(node, array));
        }
    }
}

/// Checks all nodes of `snapshot`, which lists the manifests `infos`. Returns the uses of manifests.
pub(super) fn check(
    context: &Context,
    id: ObjectId,
    snapshot: &Snapshot,
    infos: &BTreeMap<ObjectId, ManifestInfo>,
) -> Uses {
    let key = format!("snapshots/{id}");
    let findings = &context.findings;
    check_order(context, &key, snapshot);
    if let Some(twice) = first_twice(snapshot.nodes().map(|node| node.id)) {
        findings.error("node-id", &key, format!("two nodes have the id {twice}: their chunks cannot be told apart"));
    }
    let mut kinds: HashMap<&str, bool> = HashMap::new();
    for node in snapshot.nodes() {
        let is_array = node.is_array();
        if kinds.insert(node.path, is_array).is_some() {
            findings.add(Severity::Error, "node-twice", &key, Some(node.path), None, "it is in the snapshot twice");
        }
    }
    let mut uses = Uses::new();
    for node in snapshot.nodes() {
        if let Some(why) = path_problem(node.path) {
            findings.add(Severity::Warning, "node-path", &key, Some(node.path), None, why);
        }
        let above = node.path.rsplit_once('/').map(|(above, _)| if above.is_empty() { "/" } else { above });
        if above.is_some_and(|above| above != node.path && kinds.get(above) == Some(&true)) {
            findings.add(Severity::Warning, "below-array", &key, Some(node.path), None, "it is below an array");
        }
        match &node.data {
            NodeData::Unknown(kind) => {
                let why = format!("it is of unknown kind {kind}: other clients panic");
                findings.add(Severity::Error, "node-kind", &key, Some(node.path), None, why);
            }
            NodeData::Group => drop(document(context, &key, &node, "group")),
            NodeData::Array(array) => check_array(context, id, snapshot, &node, array, infos, &mut uses),
        }
    }
    uses
}

/// Checks the order of the nodes: the reference implementation bisects by the bytes of paths.
fn check_order(context: &Context, key: &str, snapshot: &Snapshot) {
    let paths = || snapshot.nodes().map(|node| node.path);
    if paths().is_sorted_by(|a, b| a.as_bytes() <= b.as_bytes()) {
        return;
    }
    let by_component = paths().is_sorted_by(|a, b| a.split('/').le(b.split('/')));
    let why = if by_component {
        "the nodes are sorted by the components of their paths, as releases before 1.1.3 did: other clients list nodes that they then \
         do not find"
    } else {
        "the nodes are not sorted by path: other clients do not find them"
    };
    context.findings.warning("nodes-sorted", key, why);
}

fn path_problem(path: &str) -> Option<&'static str> {
    let Some(rest) = path.strip_prefix('/') else { return Some("its path does not begin with `/`") };
    if rest.is_empty() {
        return None;
    }
    let wrong = |part: &str| part.is_empty() || part == "." || part == "..";
    if rest.split('/').any(wrong) {
        return Some("its path has empty components, or `.` or `..`");
    }
    path.contains('\0').then_some("its path has a NUL in it, which no file name can have")
}

/// Parses the node's `zarr.json`, and checks that its node type is `kind`.
fn document(context: &Context, key: &str, node: &Node<'_>, kind: &str) -> Option<Value> {
    let found: Value = match serde_json::from_slice(node.zarr_json) {
        Ok(found) => found,
        Err(error) => {
            let why = format!("its zarr.json is no JSON: {error}");
            context.findings.add(Severity::Error, "zarr-json", key, Some(node.path), None, why);
            return None;
        }
    };
    let said = found.get("node_type").and_then(Value::as_str);
    if said != Some(kind) {
        let said = said.map_or("nothing".to_owned(), |said| format!("`{said}`"));
        let why = format!("its zarr.json gives the node type {said}, but the snapshot a {kind}");
        context.findings.add(Severity::Warning, "node-type", key, Some(node.path), None, why);
    }
    Some(found)
}

fn check_array(
    context: &Context,
    id: ObjectId,
    snapshot: &Snapshot,
    node: &Node<'_>,
    array: &ArrayData<'_>,
    infos: &BTreeMap<ObjectId, ManifestInfo>,
    uses: &mut Uses,
) {
    let key = format!("snapshots/{id}");
    let add = |severity, rule, why: String| context.findings.add(severity, rule, &key, Some(node.path), None, why);
    let is_json = document(context, &key, node, "array").is_some();
    let summary = match ArraySummary::parse(node.zarr_json) {
        Ok(summary) => Some(summary),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            add(Severity::Note, "zarr-unknown", format!("this program does not understand its zarr.json: {error}"));
            None
        }
        Err(error) => {
            if is_json {
                add(Severity::Error, "zarr-json", error.to_string());
            }
            None
        }
    };
    check_shape(snapshot.version(), array, summary.as_ref(), add);
    let grid: Option<Arc<[u32]>> = match &summary {
        Some(summary) => Some(summary.dimensions.iter().map(|dimension| dimension.1).collect()),
        None => array.grid().map(Into::into),
    };
    let all: Arc<[ManifestRef]> = array.manifests().into();
    check_extents(&all, grid.as_deref(), add);
    let path: Arc<str> = node.path.into();
    for reference in all.iter() {
        let used = uses.entry(reference.id).or_default();
        match infos.get(&reference.id) {
            Some(info) if used.infos.is_empty() => used.infos.push(*info),
            Some(_) => {}
            None => add(
                Severity::Error,
                "manifest-unlisted",
                format!(
                    "it refers to manifest {}, which the snapshot does not list: other clients cannot read its chunks",
                    reference.id
                ),
            ),
        }
        let (path, grid, extents) = (Arc::clone(&path), grid.clone(), reference.extents.clone());
        used.add(node.id, ArrayUse { path, grid, extents, all: Arc::clone(&all), snapshot: id });
    }
}

/// Checks that the shape stored in the snapshot is that of `zarr.json`.
fn check_shape(
    version: SpecVersion,
    array: &ArrayData<'_>,
    summary: Option<&ArraySummary>,
    add: impl Fn(Severity, &'static str, String),
) {
    let stored = array.table();
    match version {
        SpecVersion::V2 if stored.shape_v2().is_none() => {
            add(
                Severity::Warning,
                "shape",
                "its shape (shape_v2) is missing: other clients take it for an array without dimensions".into(),
            );
        }
        SpecVersion::V2 if !stored.shape().is_empty() => {
            add(Severity::Warning, "shape", "it has the shape of version 1 as well".into());
        }
        SpecVersion::V1 if stored.shape_v2().is_some() => {
            add(Severity::Warning, "shape", "a file of version 1 has a shape of version 2".into());
        }
        _ => {}
    }
    let Some(summary) = summary else { return };
    let said: Vec<(u64, u32)> = summary.dimensions.iter().map(|dimension| (dimension.0, dimension.1)).collect();
    match array.dimensions() {
        None => add(Severity::Warning, "shape", "the snapshot stores a shape that no array can have".into()),
        Some(dimensions) => {
            let stored: Vec<(u64, u32)> = dimensions.iter().map(|d| (d.array_length, d.num_chunks)).collect();
            let same_lengths = stored.iter().map(|d| d.0).eq(said.iter().map(|d| d.0));
            // Libraries of version 2 wrote wrong chunk lengths into version 1 files, which no reader uses.
            if !same_lengths || (version == SpecVersion::V2 && stored != said) {
                let why = format!(
                    "the snapshot stores (length, chunks) {stored:?} for its dimensions, but zarr.json gives {said:?}"
                );
                add(Severity::Warning, "shape", why);
            }
        }
    }
    let names = array
        .dimension_names()
        .map(|names| names.into_iter().map(|name| name.filter(|n| !n.is_empty())).collect::<Vec<_>>());
    // Some programs store a list of absent names for an array without names, and some store no list.
    let named = |names: Option<&Vec<Option<String>>>| names.filter(|names| names.iter().any(Option::is_some)).cloned();
    if named(names.as_ref()) != named(summary.dimension_names.as_ref()) {
        add(
            Severity::Warning,
            "dimension-names",
            "the snapshot stores other names of dimensions than zarr.json has".into(),
        );
    }
}

fn check_extents(all: &[ManifestRef], grid: Option<&[u32]>, add: impl Fn(Severity, &'static str, String)) {
    if let Some(twice) = first_twice(all.iter().map(|reference| reference.id)) {
        add(Severity::Warning, "manifest-twice", format!("it refers to manifest {twice} twice"));
    }
    for reference in all {
        let (id, extents) = (reference.id, &reference.extents);
        if let Some(grid) = grid
            && extents.len() != grid.len()
        {
            let why =
                format!("the extents of manifest {id} have {} dimensions, the array {}", extents.len(), grid.len());
            add(Severity::Warning, "extents", why);
            continue;
        }
        if extents.iter().any(|(from, to)| from >= to) {
            add(Severity::Warning, "extents", format!("the extents of manifest {id} are empty: {extents:?}"));
        }
        if let Some(grid) = grid
            && std::iter::zip(extents, grid).any(|((_, to), chunks)| to > chunks)
        {
            add(
                Severity::Warning,
                "extents-grid",
                format!("the extents of manifest {id} lead out of the grid {grid:?}: {extents:?}"),
            );
        }
    }
    let mut sorted: Vec<&ManifestRef> = all.iter().filter(|reference| !reference.extents.is_empty()).collect();
    sorted.sort_by(|a, b| a.extents.cmp(&b.extents));
    let mut pairs = 0;
    for (at, one) in sorted.iter().enumerate() {
        for other in sorted.iter().skip(at + 1) {
            pairs += 1;
            let (Some(first), Some(second)) = (one.extents.first(), other.extents.first()) else { break };
            if second.0 >= first.1 || pairs > MAX_PAIRS {
                break;
            }
            let apart = std::iter::zip(&one.extents, &other.extents).any(|(a, b)| a.1 <= b.0 || b.1 <= a.0);
            if !apart {
                let why = format!(
                    "manifests {} and {} overlap ({:?} and {:?}): a chunk may be in both",
                    one.id, other.id, one.extents, other.extents
                );
                add(Severity::Warning, "extents-overlap", why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_canonical() {
        for good in ["/", "/a", "/a/b c/..d", "/c/0"] {
            assert_eq!(path_problem(good), None, "{good}");
        }
        for bad in ["", "a", "/a/", "//", "/a//b", "/./a", "/a/..", "/a\0"] {
            assert!(path_problem(bad).is_some(), "{bad:?}");
        }
    }

    #[test]
    fn overlaps_are_found_on_any_axis() {
        let all = |boxes: &[[(u32, u32); 2]]| {
            let manifest = |n: usize, extents: &[(u32, u32); 2]| ManifestRef {
                id: ObjectId([n as u8; 12]),
                extents: extents.to_vec(),
            };
            boxes.iter().enumerate().map(|(n, extents)| manifest(n, extents)).collect::<Vec<_>>()
        };
        let count = |boxes: &[[(u32, u32); 2]]| {
            let found = std::cell::Cell::new(0);
            check_extents(&all(boxes), Some(&[10, 10]), |_, rule, _| {
                assert_eq!(rule, "extents-overlap");
                found.set(found.get() + 1);
            });
            found.get()
        };
        assert_eq!(count(&[[(0, 5), (0, 5)], [(0, 5), (5, 10)], [(5, 10), (0, 10)]]), 0);
        assert_eq!(count(&[[(0, 6), (0, 6)], [(0, 5), (5, 10)], [(5, 10), (0, 10)]]), 2);
    }
}
