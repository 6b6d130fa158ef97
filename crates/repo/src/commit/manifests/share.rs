//! Chooses which small arrays share manifests.
//!
//! Fifty thousand arrays of one chunk each would otherwise need as many objects, and a listing of
//! all as many requests. The small arrays that a commit writes share manifests, in the order of
//! their paths, so that a walk through the tree reads each manifest once. An array that is changed
//! later leaves its manifest for a new one; what the old one lists of it is without effect from
//! then on.
//!
//! Many small commits leave many small manifests. As soon as [`CROWD`] of them are of about one
//! size, the next commit writes them again as one, though their arrays did not change: each
//! reference is so written again once for each power of [`CROWD`] that the number of references
//! has, and the number of manifests grows with its logarithm until they are full.
//!
//! A chunk that a manifest lists is kept by a collection of garbage, also where the array has left.
//! Therefore only arrays of few bytes share manifests, and what is left of a manifest is written
//! again as soon as less than half of it is in use.
//!
//! The reference implementation reads such manifests, and writes one for each array that it
//! changes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::plan::references_of;
use crate::commit::nodes::Planned;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::ManifestInfo;
use icechunkfs_format::zarr::array::ArrayMetadata;

/// References of an array up to which it shares its manifest. A larger one would make the manifest
/// of others expensive to fetch.
const SMALL: u64 = 512;
/// Bytes of an array, before compression, up to which it shares its manifest: what others may keep
/// from being collected.
const SMALL_BYTES: u64 = 1 << 20;
/// References from which on a manifest takes no further array: about 250 KiB in memory, and half of
/// that in the store.
pub(super) const MANY: u64 = 4096;
/// Manifests of about one size that are worth one.
const CROWD: usize = 16;
/// Manifests that a commit gathers at most, so that it stays quick in a repository of many.
const MOST_GATHERED: usize = 32;
/// Manifests of one size whose arrays are examined at most: that takes some microseconds for each
/// array.
const MOST_EXAMINED: usize = 256;

/// Returns true if an array of `references` chunks shares its manifest with others.
pub(super) fn is_shared(references: u64, zarr_json: &[u8]) -> bool {
    // The bytes of text are not known.
    let chunk_bytes = || ArrayMetadata::parse(zarr_json).ok()?.nominal_chunk_bytes;
    references <= SMALL && is_small(references, chunk_bytes().unwrap_or_default())
}

/// Returns true if `references` chunks of `chunk_bytes` each, before compression, are those of a
/// small array.
fn is_small(references: u64, chunk_bytes: u64) -> bool {
    references <= SMALL && references.saturating_mul(chunk_bytes) <= SMALL_BYTES
}

/// Cuts a list of small arrays, given by their references, into groups that share manifests.
/// Returns the start of each group.
pub(super) fn groups(references: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut sum = 0;
    for (at, references) in references.enumerate() {
        if at == 0 || sum + references > MANY {
            starts.push(at);
            sum = 0;
        }
        sum += references;
    }
    starts
}

/// Manifest that small arrays refer to.
#[derive(Debug, Default)]
struct Holder {
    /// Positions of the arrays among the nodes, with their references.
    arrays: Vec<(usize, u64)>,
    /// References of these arrays, at most.
    references: u64,
    /// True if it is not to be gathered: an array refers to it that is large or has other
    /// manifests, too.
    is_fixed: bool,
}

/// Returns the arrays whose small manifests are worth gathering. None of them is one of `touched`,
/// which the commit writes anyway.
pub(in crate::commit) fn worth_gathering(
    planned: &[Planned<'_>],
    touched: &HashSet<NodeId>,
    infos: &HashMap<ObjectId, ManifestInfo>,
) -> HashSet<NodeId> {
    let mut holders: HashMap<ObjectId, Holder> = HashMap::with_capacity(infos.len());
    for (at, planned) in planned.iter().enumerate() {
        let Some(manifests) = planned.manifests().filter(|_| !touched.contains(&planned.id())) else { continue };
        let is_alone = manifests.len() == 1;
        for (id, places) in manifests {
            let holder = holders.entry(id).or_default();
            let references = references_of(id, places, infos);
            holder.is_fixed |= !is_alone || references > SMALL;
            holder.references = holder.references.saturating_add(references);
            holder.arrays.push((at, references));
        }
    }
    let node_of = |(at, _): &(usize, u64)| planned.get(*at);
    let is_small = |array: &(usize, u64)| node_of(array).is_some_and(|node| is_shared(array.1, node.zarr_json()));
    // Of two manifests with more than that, one would not be fewer.
    holders.retain(|_, holder| !holder.is_fixed && holder.references <= MANY / 2);
    let is_mostly_unused = |id: &ObjectId, holder: &Holder| {
        infos.get(id).is_some_and(|info| holder.references.saturating_mul(2) < u64::from(info.chunk_refs))
    };
    let (unused, mut rest): (Vec<_>, Vec<_>) =
        holders.into_iter().partition(|(id, holder)| is_mostly_unused(id, holder));
    rest.sort_unstable_by_key(|(_, holder)| holder.arrays.first().map(|(at, _)| *at));
    let mut sizes: BTreeMap<u32, Vec<Holder>> = BTreeMap::new();
    for (_, holder) in rest {
        sizes.entry(holder.references.max(1).ilog(CROWD as u64)).or_default().push(holder);
    }
    let crowd = |alike: Vec<Holder>| {
        let examined = alike.into_iter().take(MOST_EXAMINED);
        let small: Vec<Holder> = examined.filter(|holder| holder.arrays.iter().all(is_small)).collect();
        if small.len() >= CROWD { small } else { Vec::new() }
    };
    let crowds = sizes.into_values().filter(|alike| alike.len() >= CROWD).flat_map(crowd);
    let gathered = unused.into_iter().map(|(_, holder)| holder).chain(crowds).take(MOST_GATHERED);
    gathered.flat_map(|holder| holder.arrays).filter_map(|array| Some(node_of(&array)?.id())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::commit::nodes::PlannedNode;
    use icechunkfs_format::format::draft::{ArrayDraft, NodeDraft};
    use icechunkfs_format::format::snapshot::{Dimension, ManifestRef};
    use icechunkfs_format::format::testing::{id, node_id};

    #[test]
    fn groups_are_full_and_none_is_too_large() {
        assert_eq!(groups([].into_iter()), Vec::<usize>::new());
        assert_eq!(groups([MANY, 1].into_iter()), [0, 1]);
        assert_eq!(groups(std::iter::repeat_n(1, 10_000)), [0, 4096, 8192]);
        assert_eq!(groups(std::iter::repeat_n(SMALL, 17)), [0, 8, 16]);
    }

    /// Returns arrays with a manifest of `references` each, and the entries of these manifests.
    fn arrays(count: u8, references: u32) -> (Vec<Planned<'static>>, HashMap<ObjectId, ManifestInfo>) {
        let array = |n: u8| {
            let manifests = vec![ManifestRef { id: id(n), extents: vec![(0, references)] }];
            let shape = vec![Dimension { array_length: 1000, num_chunks: 1000, chunk_length: 1 }];
            let array = Some(ArrayDraft { shape, dimension_names: None, manifests });
            let node =
                NodeDraft { id: node_id(n), path: format!("/{n:03}"), zarr_json: Vec::new(), array, extra: None };
            Planned { node: PlannedNode::Drafted(node), is_written: false, chunks_of: node_id(n) }
        };
        let info = |n: u8| (id(n), ManifestInfo { id: id(n), size: 100, chunk_refs: references });
        ((0..count).map(array).collect(), (0..count).map(info).collect())
    }

    #[test]
    fn manifests_are_gathered_when_many_are_of_one_size() {
        let gathered = |(planned, infos): &(Vec<Planned<'_>>, HashMap<ObjectId, ManifestInfo>), touched: &[u8]| {
            worth_gathering(planned, &touched.iter().map(|n| node_id(*n)).collect(), infos).len()
        };
        assert_eq!(gathered(&arrays(15, 3), &[]), 0);
        assert_eq!(gathered(&arrays(16, 3), &[]), 16);
        assert_eq!(gathered(&arrays(16, 3), &[4]), 0);
        assert_eq!(gathered(&arrays(17, 3), &[4]), 16);
        assert_eq!(gathered(&arrays(100, 3), &[]), MOST_GATHERED);
        assert_eq!(gathered(&arrays(100, SMALL as u32), &[]), MOST_GATHERED);
        assert_eq!(gathered(&arrays(100, SMALL as u32 + 1), &[]), 0);
        // One size is not another.
        let (mut planned, mut infos) = arrays(15, 3);
        let (more, other) = arrays(30, 200);
        planned.extend(more.into_iter().skip(15));
        infos.extend(other.into_iter().filter(|(one, _)| (15..30).any(|n| *one == id(n))));
        assert_eq!(gathered(&(planned, infos), &[]), 0);
    }

    #[test]
    fn of_a_manifest_that_most_arrays_have_left_the_rest_is_gathered() {
        let (planned, mut infos) = arrays(2, 3);
        infos.get_mut(&id(0)).unwrap().chunk_refs = 6;
        assert_eq!(worth_gathering(&planned, &HashSet::new(), &infos), HashSet::new());
        infos.get_mut(&id(0)).unwrap().chunk_refs = 7;
        assert_eq!(worth_gathering(&planned, &HashSet::new(), &infos), HashSet::from([node_id(0)]));
    }

    #[test]
    fn arrays_of_many_bytes_are_not_small() {
        assert!(is_small(1, SMALL_BYTES) && !is_small(1, SMALL_BYTES + 1) && !is_small(2, SMALL_BYTES));
        assert!(is_small(SMALL, 0) && !is_small(SMALL + 1, 0) && !is_small(SMALL, u64::MAX));
    }

    #[test]
    fn an_array_with_several_manifests_keeps_them() {
        let (mut planned, infos) = arrays(20, 1);
        for one in planned.iter_mut().take(5) {
            let PlannedNode::Drafted(node) = &mut one.node else { unreachable!("a draft") };
            let array = node.array.as_mut().unwrap();
            array.manifests.push(ManifestRef { id: id(19), extents: vec![(1, 2)] });
        }
        assert_eq!(worth_gathering(&planned, &HashSet::new(), &infos).len(), 0);
    }
}
