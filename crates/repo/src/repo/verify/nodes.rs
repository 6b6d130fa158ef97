//! Rules of the groups and arrays in a snapshot.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::Arc;

use super::report::Subject;
use super::{Context, first_twice};
use icechunkfs_base::error::{ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_base::printable;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::{ArrayData, ManifestInfo, ManifestRef, Node, NodeData, Snapshot};
use icechunkfs_format::zarr::array::ArraySummary;
use icechunkfs_format::zarr::chunk_rules::{ChunkRules, OTHER_NAMES};
use icechunkfs_format::zarr::document;

/// Pairs of extents of one array that are compared at most. The rest is trusted: the comparison
/// grows with the square.
const MAX_PAIRS: usize = 4_000_000;

/// Bytes that a manifest takes in a table, with one description.
const MANIFEST_BYTES: u64 = 256;
/// Bytes that a reference to it takes in a list.
const ARRAY_BYTES: u64 = 2 * size_of::<ArrayUse>() as u64;
/// Name of the uses in errors.
const WHAT: &str = "the uses of manifests";

/// An array that refers to a manifest, in one snapshot.
#[derive(Clone, Debug)]
pub(super) struct ArrayUse {
    pub(super) path: Arc<str>,
    /// Chunks per dimension; none if unknown.
    pub(super) grid: Option<Arc<[u32]>>,
    /// Rules for its chunks; none if unknown.
    pub(super) rules: Option<ChunkRules>,
    pub(super) manifest: ManifestRef,
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
    /// Says which arrays need the manifest.
    pub(super) fn needed_by(&self) -> String {
        let first = self.arrays.values().flatten().min_by(|one, other| one.path.cmp(&other.path));
        let Some(ArrayUse { path, snapshot, .. }) = first else { return String::new() };
        let more = match self.arrays.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        format!(
            "needed by {}{more}, among others in snapshot {snapshot}: `icechunkfs log REPO PATH` lists the commits",
            printable::line(path)
        )
    }

    /// Returns the number of chunk references in the manifest, according to snapshots.
    pub(super) fn chunk_refs(&self) -> u64 {
        self.infos.iter().map(|info| u64::from(info.chunk_refs)).max().unwrap_or_default()
    }

    /// Returns the size of the file in bytes, according to snapshots.
    pub(super) fn size(&self) -> u64 {
        self.infos.iter().map(|info| info.size).max().unwrap_or_default()
    }
}

/// References to manifests, with their memory.
#[derive(Debug)]
pub(super) struct Uses {
    manifests: HashMap<ObjectId, ManifestUse>,
    memory: Meter,
}

impl Uses {
    pub(super) fn new() -> Self {
        Uses { manifests: HashMap::new(), memory: Meter::new(WHAT) }
    }

    /// Creates what has memory for the uses by `snapshot`. May block the thread.
    pub(super) fn with_room_for(snapshot: &Snapshot) -> Result<Self> {
        let references = snapshot.nodes().map(|node| match &node.data {
            NodeData::Array(array) => array.places().len() as u64 * (MANIFEST_BYTES + ARRAY_BYTES),
            _ => 0,
        });
        let memory = Meter::prepaid(WHAT, references.sum::<u64>() + snapshot.node_table_size())?;
        Ok(Uses { manifests: HashMap::new(), memory })
    }

    /// Adds a reference, unless it is known.
    fn add(&mut self, node: NodeId, new: ArrayUse) -> Result<()> {
        let known = of(&mut self.manifests, new.manifest.id, &mut self.memory)?.arrays.entry(node).or_default();
        let is_same = |one: &ArrayUse| {
            one.manifest == new.manifest && one.grid == new.grid && one.rules == new.rules && one.all == new.all
        };
        if !known.iter().any(is_same) {
            // What all references of the array share is counted with the first.
            let is_first = new.all.first().is_some_and(|first| first.id == new.manifest.id);
            let shared = if is_first { new.shared_bytes() } else { 0 };
            self.memory.count(ARRAY_BYTES + extent_bytes(&new.manifest) + shared)?;
            known.push(new);
        }
        Ok(())
    }

    /// Adds the uses of one snapshot. May add a part of them and fail; they can then be added
    /// again.
    pub(super) fn merge(&mut self, own: Uses) -> Result<()> {
        for (manifest, used) in own.manifests {
            let known = of(&mut self.manifests, manifest, &mut self.memory)?;
            for info in used.infos {
                if !known.infos.contains(&info) {
                    known.infos.push(info);
                }
            }
            for (node, arrays) in used.arrays {
                arrays.into_iter().try_for_each(|array| self.add(node, array))?;
            }
        }
        Ok(())
    }
}

/// Returns the uses of `manifest`.
fn of<'a>(
    all: &'a mut HashMap<ObjectId, ManifestUse>,
    manifest: ObjectId,
    memory: &mut Meter,
) -> Result<&'a mut ManifestUse> {
    match all.entry(manifest) {
        Entry::Occupied(known) => Ok(known.into_mut()),
        Entry::Vacant(free) => {
            memory.count(MANIFEST_BYTES)?;
            Ok(free.insert(ManifestUse::default()))
        }
    }
}

impl Deref for Uses {
    type Target = HashMap<ObjectId, ManifestUse>;

    fn deref(&self) -> &Self::Target {
        &self.manifests
    }
}

impl ArrayUse {
    fn shared_bytes(&self) -> u64 {
        let grid = self.grid.as_ref().map_or(0, |grid| 4 * grid.len());
        let all: u64 = self.all.iter().map(|one| size_of::<ManifestRef>() as u64 + extent_bytes(one)).sum();
        all + (self.path.len() + grid) as u64
    }
}

fn extent_bytes(manifest: &ManifestRef) -> u64 {
    (manifest.extents.len() * size_of::<(u32, u32)>()) as u64
}

/// Checks all nodes of `snapshot`, which lists the manifests `infos`. Returns the uses of
/// manifests. The caller has reserved the memory for looking into each of the documents as `room`,
/// and that of tables of the nodes.
pub(super) fn check(
    context: &Context,
    id: ObjectId,
    snapshot: &Snapshot,
    infos: &BTreeMap<ObjectId, ManifestInfo>,
    room: &mut Meter,
    mut uses: Uses,
) -> Result<Uses> {
    let key = format!("snapshots/{id}");
    let object = context.object(&key);
    check_order(object, snapshot);
    if let Some(twice) = first_twice(snapshot.nodes().map(|node| node.id)) {
        object.error("node-id", format!("two nodes have the id {twice}: their chunks cannot be told apart"));
    }
    let mut kinds: HashMap<&str, bool> = HashMap::new();
    for node in snapshot.nodes() {
        let is_array = node.is_array();
        if kinds.insert(node.path, is_array).is_some() {
            object.node(node.path).error("node-twice", "it is in the snapshot twice");
        }
    }
    for node in snapshot.nodes() {
        let object = object.node(node.path);
        if let Some(why) = path_problem(node.path) {
            object.warning("node-path", why);
        }
        let above = node.path.rsplit_once('/').map(|(above, _)| if above.is_empty() { "/" } else { above });
        if above.is_some_and(|above| above != node.path && kinds.get(above) == Some(&true)) {
            object.warning("below-array", "it is below an array");
        }
        match &node.data {
            NodeData::Unknown(kind) => {
                object.error("node-kind", format!("it is of unknown kind {kind}: other clients panic"));
            }
            NodeData::Group => drop(check_document(object, &node, "group")),
            NodeData::Array(array) => {
                let array = check_array(object, snapshot.version(), &node, array, room);
                add_uses(object, id, node.id, &array, infos, &mut uses)?;
            }
        }
    }
    Ok(uses)
}

/// Checks the order of the nodes: the reference implementation bisects by the bytes of paths.
fn check_order(object: Subject<'_>, snapshot: &Snapshot) {
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
    object.warning("nodes-sorted", why);
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

/// Checks that the node's `zarr.json` is JSON and has the node type `kind`; returns true if it is
/// JSON.
fn check_document(object: Subject<'_>, node: &Node<'_>, kind: &str) -> bool {
    let said = match document::node_type(node.zarr_json) {
        Ok(said) => said,
        Err(error) => {
            object.error("zarr-json", format!("its zarr.json is not valid JSON: {error}"));
            return false;
        }
    };
    if said.as_deref() != Some(kind) {
        let said = said.map_or("nothing".to_owned(), |said| format!("`{said}`"));
        let why = format!("its zarr.json gives the node type {said}, but the snapshot has a {kind}");
        object.warning("node-type", why);
    }
    true
}

/// Array as its node describes it.
struct DescribedArray {
    path: Arc<str>,
    grid: Option<Arc<[u32]>>,
    rules: Option<ChunkRules>,
    manifests: Arc<[ManifestRef]>,
}

fn check_array(
    object: Subject<'_>,
    version: SpecVersion,
    node: &Node<'_>,
    array: &ArrayData<'_>,
    room: &mut Meter,
) -> DescribedArray {
    let is_json = check_document(object, node, "array");
    let summary = ArraySummary::parse_reserved(node.zarr_json, room);
    match &summary {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            object.note("zarr-unknown", format!("this program does not understand its zarr.json: {error}"));
        }
        Err(error) if is_json => object.error("zarr-json", error.to_string()),
        _ => {}
    }
    let summary = summary.ok();
    let rules = summary.as_ref().and_then(|_| ChunkRules::parse_reserved(node.zarr_json, room).ok());
    if rules.is_some_and(|rules| !rules.has_default_names) {
        object.warning("chunk-names", OTHER_NAMES);
    }
    check_shape(object, version, array, summary.as_ref());
    let grid: Option<Arc<[u32]>> = match &summary {
        Some(summary) => Some(summary.dimensions.iter().map(|dimension| dimension.1).collect()),
        None => array.grid().map(Into::into),
    };
    let manifests: Arc<[ManifestRef]> = array.manifests().into();
    check_extents(object, &manifests, grid.as_deref());
    DescribedArray { path: node.path.into(), grid, rules, manifests }
}

/// Adds the manifests of the array at `node` in `snapshot`, which lists `infos`, to `uses`.
fn add_uses(
    object: Subject<'_>,
    snapshot: ObjectId,
    node: NodeId,
    array: &DescribedArray,
    infos: &BTreeMap<ObjectId, ManifestInfo>,
    uses: &mut Uses,
) -> Result<()> {
    for reference in array.manifests.iter() {
        let used = of(&mut uses.manifests, reference.id, &mut uses.memory)?;
        match infos.get(&reference.id) {
            Some(info) if used.infos.is_empty() => used.infos.push(*info),
            Some(_) => {}
            None => {
                let why = "which the snapshot does not list: other clients cannot read its chunks";
                object.error("manifest-unlisted", format!("it refers to manifest {}, {why}", reference.id));
            }
        }
        let path = Arc::clone(&array.path);
        let grid = array.grid.clone();
        let rules = array.rules;
        let manifest = reference.clone();
        let all = Arc::clone(&array.manifests);
        uses.add(node, ArrayUse { path, grid, rules, manifest, all, snapshot })?;
    }
    Ok(())
}

/// Checks that the shape stored in the snapshot is that of `zarr.json`.
fn check_shape(object: Subject<'_>, version: SpecVersion, array: &ArrayData<'_>, summary: Option<&ArraySummary>) {
    let stored = array.table();
    match version {
        SpecVersion::V2 if stored.shape_v2().is_none() => {
            let why = "its shape (shape_v2) is missing: other clients take it for an array without dimensions";
            object.warning("shape", why);
        }
        SpecVersion::V2 if !stored.shape().is_empty() => {
            object.warning("shape", "it has the shape of version 1 as well");
        }
        SpecVersion::V1 if stored.shape_v2().is_some() => {
            object.warning("shape", "a file of version 1 has a shape of version 2");
        }
        _ => {}
    }
    let Some(summary) = summary else { return };
    let said: Vec<(u64, u32)> = summary.dimensions.iter().map(|dimension| (dimension.0, dimension.1)).collect();
    match array.dimensions() {
        None => object.warning("shape", "the snapshot stores a shape that no array can have"),
        Some(dimensions) => {
            let stored: Vec<(u64, u32)> = dimensions.iter().map(|d| (d.array_length, d.num_chunks)).collect();
            let same_lengths = stored.iter().map(|d| d.0).eq(said.iter().map(|d| d.0));
            // Libraries of version 2 wrote wrong chunk lengths into version 1 files, which no
            // reader uses.
            if !same_lengths || (version == SpecVersion::V2 && stored != said) {
                let why = format!(
                    "the snapshot stores (length, chunks) {stored:?} for its dimensions, but zarr.json gives {said:?}"
                );
                object.warning("shape", why);
            }
        }
    }
    // Some programs store a list of absent or empty names for an array without names, and some
    // store no list.
    let stored = array.dimension_names().into_iter().flatten().map(|name| name.filter(|name| !name.is_empty()));
    let stored: Vec<Option<&str>> = stored.collect();
    let said: Vec<Option<&str>> = summary.dimension_names.iter().flatten().map(Option::as_deref).collect();
    let named = |names: Vec<_>| Some(names).filter(|names: &Vec<Option<&str>>| names.iter().any(Option::is_some));
    if named(stored) != named(said) {
        object.warning("dimension-names", "the snapshot stores other names of dimensions than zarr.json has");
    }
}

fn check_extents(object: Subject<'_>, all: &[ManifestRef], grid: Option<&[u32]>) {
    if let Some(twice) = first_twice(all.iter().map(|reference| reference.id)) {
        object.warning("manifest-twice", format!("it refers to manifest {twice} twice"));
    }
    for reference in all {
        let id = reference.id;
        let extents = &reference.extents;
        if let Some(grid) = grid
            && extents.len() != grid.len()
        {
            let why =
                format!("the extents of manifest {id} have {} dimensions, the array {}", extents.len(), grid.len());
            object.warning("extents", why);
            continue;
        }
        if extents.iter().any(|(from, to)| from >= to) {
            object.warning("extents", format!("the extents of manifest {id} are empty: {extents:?}"));
        }
        if let Some(grid) = grid
            && std::iter::zip(extents, grid).any(|((_, to), chunks)| to > chunks)
        {
            let why = format!("the extents of manifest {id} lead out of the grid {grid:?}: {extents:?}");
            object.warning("extents-grid", why);
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
                object.warning("extents-overlap", why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Findings;
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
            let findings = Findings::default();
            check_extents(findings.object("x"), &all(boxes), Some(&[10, 10]));
            let report = findings.into_report();
            assert!(report.findings.iter().all(|finding| finding.rule == "extents-overlap"));
            report.warnings
        };
        assert_eq!(count(&[[(0, 5), (0, 5)], [(0, 5), (5, 10)], [(5, 10), (0, 10)]]), 0);
        assert_eq!(count(&[[(0, 6), (0, 6)], [(0, 5), (5, 10)], [(5, 10), (0, 10)]]), 2);
    }
}
