//! Plans and writes the manifests of a commit.
//!
//! An array that was not touched keeps its manifests. The grid of a touched array is cut into cells by the repository's rules
//! ([`super::splitting`]). A cell with changed chunks is written again from all old manifests that reach into it. A cell
//! without changes keeps its manifests if they lie in it, and is written again if one of them reaches beyond, because the
//! rules have changed or the array has shrunk. The cost of a commit is thus that of the cells it touches.
//!
//! A new manifest holds the references that a reader finds: those of the right rank, within the cell and within the extents
//! by which their manifest is found; if several manifests list a chunk, the reference of the first one in the array's order.

use std::collections::{BTreeMap, HashMap};
use std::iter::Peekable;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use super::splitting::{Cells, Splitting};
use super::upload::ChunkList;
use crate::blocking::blocking;
use crate::error::{Context, Error, Result};
use crate::format::chunk_payload::ChunkPayload;
use crate::format::envelope::SpecVersion;
use crate::format::ids::{NodeId, ObjectId};
use crate::format::manifest::{ArrayRefs, Manifest};
use crate::format::manifest_builder::{BuiltManifest, ManifestBuilder};
use crate::format::snapshot::{ManifestInfo, ManifestRef};
use crate::reader::Reader;
use crate::storage::Storage;
use crate::zarr::Coords;

/// Manifests written at the same time.
const CONCURRENT_CELLS: usize = 4;
/// Limit on the references of manifests written at the same time: some 120 bytes of memory each.
const MAX_CONCURRENT_REFS: usize = 1 << 21;

/// Limit on the cells that the manifests of an array reach into, in total. Each becomes a manifest, unless it is empty.
const MAX_CELLS: u64 = 1 << 20;

/// Array whose manifests are written.
#[derive(Debug)]
pub(super) struct ArrayTask<'a> {
    pub(super) node: NodeId,
    pub(super) path: &'a str,
    /// Id under which `old` lists the chunks.
    pub(super) chunks_of: NodeId,
    /// Chunks per dimension.
    pub(super) grid: Vec<u32>,
    pub(super) names: Option<&'a [Option<String>]>,
    /// Manifests before the commit.
    pub(super) old: &'a [ManifestRef],
    pub(super) changes: ChunkList,
    /// True if all manifests are written again, needed or not.
    pub(super) is_rewritten: bool,
}

pub(super) type ArrayManifests = Vec<(ManifestRef, ManifestInfo)>;

/// Writes manifests and remembers them, so that a commit that lost a race writes only what has changed.
pub(super) struct ManifestWriter {
    storage: Arc<dyn Storage>,
    reader: Arc<Reader>,
    version: SpecVersion,
    splitting: Splitting,
    written: HashMap<NodeId, Written>,
}

/// Manifests written for an array, and the inputs that they were made from.
#[derive(Debug)]
struct Written {
    old: Vec<ManifestRef>,
    cells: Cells,
    changes: ChunkList,
    manifests: ArrayManifests,
}

/// Inputs of a cell that is kept or written.
#[derive(Debug, Default)]
struct CellPlan {
    /// Positions of old manifests that reach into the cell.
    sources: Vec<usize>,
    /// Positions of changes in the cell.
    changes: Vec<usize>,
    /// True if a source has references outside the cell.
    is_cut: bool,
}

/// Old manifest as an input of a cell.
struct Source {
    manifest: Arc<Manifest>,
    node: NodeId,
    /// Box within which the manifest's references count: in both its extents and the cell.
    within: Vec<(u32, u32)>,
}

impl ManifestWriter {
    pub(super) fn new(
        storage: Arc<dyn Storage>,
        reader: Arc<Reader>,
        version: SpecVersion,
        splitting: Splitting,
    ) -> Self {
        ManifestWriter { storage, reader, version, splitting, written: HashMap::new() }
    }

    /// Forgets the written manifests, because garbage collection may have removed them.
    pub(super) fn forget(&mut self) {
        self.written.clear();
    }

    /// Returns the manifests of `arrays`, all of them touched, after their changes. `infos` describes all old manifests.
    pub(super) async fn write(
        &mut self,
        arrays: Vec<ArrayTask<'_>>,
        infos: &HashMap<ObjectId, ManifestInfo>,
    ) -> Result<HashMap<NodeId, ArrayManifests>> {
        let nodes: Vec<NodeId> = arrays.iter().map(|task| task.node).collect();
        let mut jobs = Vec::new();
        for task in arrays {
            let cells = self.splitting.cells(task.path, &task.grid, task.names);
            if let Some(known) = self.written.get(&task.node)
                && known.old == task.old
                && known.cells == cells
                && Arc::ptr_eq(&known.changes, &task.changes)
            {
                continue;
            }
            let plans = plan(&task, &cells).context(|| format!("array {}", task.path))?;
            let (old, changes) = (task.old.to_vec(), Arc::clone(&task.changes));
            let known = Written { old, cells: cells.clone(), changes, manifests: Vec::new() };
            self.written.insert(task.node, known);
            let task = Arc::new(task);
            for (number, (cell, plan)) in plans.into_iter().enumerate() {
                jobs.push((number, Arc::clone(&task), cells.extents(&cell), plan));
            }
        }
        let this = &*self;
        let memory = &Semaphore::new(MAX_CONCURRENT_REFS);
        // Each future is boxed: the compiler cannot prove that one from a closure is `Send`.
        type Running<'a> = BoxFuture<'a, Result<((NodeId, usize), ArrayManifests)>>;
        let running = jobs.into_iter().map(|(number, task, extents, plan)| -> Running<'_> {
            Box::pin(async move {
                let old = plan.sources.iter().filter_map(|&at| infos.get(&task.old.get(at)?.id));
                let refs = old.map(|info| u64::from(info.chunk_refs)).sum::<u64>() + plan.changes.len() as u64;
                let _permit = memory.acquire_many(refs.min(MAX_CONCURRENT_REFS as u64) as u32).await;
                let found = this.cell(&task, extents, plan, infos).await;
                found.context(|| format!("manifests of array {}", task.path)).map(|found| ((task.node, number), found))
            })
        });
        let running: Vec<Running<'_>> = running.collect();
        let found: BTreeMap<(NodeId, usize), ArrayManifests> =
            futures_util::stream::iter(running).buffer_unordered(CONCURRENT_CELLS).try_collect().await?;
        for ((node, _), manifests) in found {
            if let Some(known) = self.written.get_mut(&node) {
                known.manifests.extend(manifests);
            }
        }
        Ok(nodes.into_iter().filter_map(|node| Some((node, self.written.get(&node)?.manifests.clone()))).collect())
    }

    async fn cell(
        &self,
        task: &ArrayTask<'_>,
        extents: Vec<(u32, u32)>,
        plan: CellPlan,
        infos: &HashMap<ObjectId, ManifestInfo>,
    ) -> Result<ArrayManifests> {
        let sources: Vec<&ManifestRef> = plan.sources.iter().filter_map(|&at| task.old.get(at)).collect();
        let info = |id: ObjectId| {
            let found = infos.get(&id).copied();
            found.ok_or_else(|| Error::corrupt(format!("the snapshot does not list manifest {id}, which it refers to")))
        };
        if !task.is_rewritten
            && plan.changes.is_empty()
            && !plan.is_cut
            && task.chunks_of == task.node
            && are_disjoint(&sources)
        {
            return sources.into_iter().map(|source| Ok((source.clone(), info(source.id)?))).collect();
        }
        let mut opened = Vec::with_capacity(sources.len());
        for source in sources {
            let manifest = self.reader.manifest(info(source.id)?).await?;
            opened.push(Source { manifest, node: task.chunks_of, within: intersection(&extents, &source.extents) });
        }
        let (node, version, changes) = (task.node, self.version, Arc::clone(&task.changes));
        let built = blocking(move || build(node, version, &opened, &changes, &plan.changes)).await?;
        let Some(BuiltManifest { file, info, reference, manifest }) = built else { return Ok(Vec::new()) };
        self.storage.put_new(&format!("manifests/{}", info.id), file.into()).await?;
        self.reader.keep_manifest(manifest);
        Ok(vec![(reference, info)])
    }
}

/// Assigns the changes and the old manifests of an array to cells.
fn plan(task: &ArrayTask<'_>, cells: &Cells) -> Result<BTreeMap<Vec<u32>, CellPlan>> {
    let mut plans: BTreeMap<Vec<u32>, CellPlan> = BTreeMap::new();
    for (at, (coords, place)) in task.changes.iter().enumerate() {
        match cells.find(coords) {
            Some(cell) => plans.entry(cell).or_default().changes.push(at),
            // The deletion of a chunk outside the grid has no effect.
            None if place.is_none() => {}
            None => {
                return Err(Error::invalid(format!("chunk {coords:?} is not in the grid of {:?} chunks", task.grid)));
            }
        }
    }
    if cells.is_empty() {
        return Ok(plans);
    }
    let mut touched: u64 = 0;
    for (at, old) in task.old.iter().enumerate() {
        touched = touched.saturating_add(cells.count_touched(&old.extents));
        if touched > MAX_CELLS {
            return Err(Error::invalid(format!(
                "the rules for splitting manifests would cut its {:?} chunks into more than {MAX_CELLS} parts: choose larger ones",
                task.grid
            )));
        }
        let (touched, is_inside) = cells.touched(&old.extents);
        let is_cut = !is_inside || touched.len() > 1;
        for cell in touched {
            let plan = plans.entry(cell).or_default();
            plan.sources.push(at);
            plan.is_cut |= is_cut;
        }
    }
    Ok(plans)
}

fn are_disjoint(manifests: &[&ManifestRef]) -> bool {
    let overlap = |a: &ManifestRef, b: &ManifestRef| {
        std::iter::zip(&a.extents, &b.extents).all(|(a, b)| a.0.max(b.0) < a.1.min(b.1))
    };
    manifests.iter().enumerate().all(|(at, a)| manifests.iter().skip(at + 1).all(|b| !overlap(a, b)))
}

/// Returns the intersection of two boxes. Extents of another rank do not restrict the cell.
fn intersection(cell: &[(u32, u32)], extents: &[(u32, u32)]) -> Vec<(u32, u32)> {
    if cell.len() != extents.len() {
        return cell.to_vec();
    }
    std::iter::zip(cell, extents).map(|(a, b)| (a.0.max(b.0), a.1.min(b.1))).collect()
}

/// Builds the manifest of a cell; none if no chunk is left in it.
fn build(
    node: NodeId,
    version: SpecVersion,
    sources: &[Source],
    changes: &[(Coords, Option<ChunkPayload>)],
    picked: &[usize],
) -> Result<Option<BuiltManifest>> {
    let lists: Vec<(ArrayRefs<'_>, &Source)> = sources
        .iter()
        .map(|source| Ok(source.manifest.array(source.node)?.map(|refs| (refs, source))))
        .filter_map(Result::transpose)
        .collect::<Result<_>>()?;
    let expected = picked.len() + lists.iter().map(|(refs, _)| refs.len()).sum::<usize>();
    let dictionary = common_dictionary(&lists);
    let mut draft = ManifestBuilder::new(ObjectId::random()?, version, node, expected).with_dictionary(dictionary);
    let mut changes = picked.iter().filter_map(|&at| changes.get(at)).peekable();
    if let [(refs, source)] = lists.as_slice() {
        for at in visible(refs, source) {
            merge(&mut draft, &mut changes, refs, at)?;
        }
    } else {
        let mut all: Vec<(usize, usize)> = Vec::with_capacity(expected);
        for (list, (refs, source)) in lists.iter().enumerate() {
            all.extend(visible(refs, source).map(|at| (list, at)));
        }
        let refs_of = |list: usize| lists.get(list).map(|(refs, _)| refs);
        let coords = |&(list, at): &(usize, usize)| -> Coords {
            refs_of(list).map(|refs| refs.coords(at).iter().collect()).unwrap_or_default()
        };
        // The sort is stable: of references to the same chunk, that of the first manifest stays in front.
        all.sort_by_cached_key(coords);
        let mut last: Option<Coords> = None;
        for entry in &all {
            let coords = coords(entry);
            if last.as_ref() == Some(&coords) {
                continue;
            }
            last = Some(coords);
            if let Some(refs) = refs_of(entry.0) {
                merge(&mut draft, &mut changes, refs, entry.1)?;
            }
        }
    }
    for (coords, place) in changes {
        push(&mut draft, coords, place.as_ref())?;
    }
    if draft.is_empty() { Ok(None) } else { draft.finish().map(Some) }
}

/// Returns the positions of the references that a reader finds in this source, in order, without repeats.
fn visible<'a>(refs: &'a ArrayRefs<'_>, source: &'a Source) -> impl Iterator<Item = usize> + 'a {
    let within = source.within.as_slice();
    let start = within.first().map_or(0, |(from, _)| refs.lower_bound(&[*from]));
    let end = within.first().map_or(refs.len(), |(_, to)| refs.lower_bound(&[*to]));
    let inside = move |at: usize| {
        let coords = refs.coords(at);
        coords.len() == within.len()
            && std::iter::zip(coords.iter(), within).all(|(coord, (from, to))| *from <= coord && coord < *to)
    };
    let repeats = move |at: usize| at > start && refs.coords(at).iter().eq(refs.coords(at - 1).iter());
    (start..end.max(start)).filter(move |&at| inside(at) && !repeats(at))
}

/// Adds the changes that come before reference `at` of `refs`, and then that reference if it was not changed.
#[inline]
fn merge<'a>(
    draft: &mut ManifestBuilder,
    changes: &mut Peekable<impl Iterator<Item = &'a (Coords, Option<ChunkPayload>)>>,
    refs: &ArrayRefs<'_>,
    at: usize,
) -> Result<()> {
    use std::cmp::Ordering;
    while let Some((coords, place)) = changes.peek() {
        match coords.iter().copied().cmp(refs.coords(at).iter()) {
            Ordering::Greater => break,
            Ordering::Less => push(draft, coords, place.as_ref())?,
            Ordering::Equal => {
                push(draft, coords, place.as_ref())?;
                changes.next();
                return Ok(());
            }
        }
        changes.next();
    }
    draft.copy(refs, at)
}

/// Adds a new or changed reference; none if the chunk was deleted.
#[inline]
fn push(draft: &mut ManifestBuilder, coords: &[u32], payload: Option<&ChunkPayload>) -> Result<()> {
    payload.map_or(Ok(()), |payload| draft.push(coords, payload))
}

/// Returns the dictionary that all compressed locations of these lists need; none if they need different ones.
fn common_dictionary<'a>(lists: &[(ArrayRefs<'a>, &Source)]) -> Option<&'a [u8]> {
    let mut dictionaries = lists.iter().filter_map(|(refs, _)| refs.manifest().location_dictionary());
    let first = dictionaries.next()?;
    dictionaries.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::chunk_payload::ChunkPayload;
    use crate::format::testing::{id, node_id};

    /// Returns a manifest of node 1 with chunks of one byte.
    fn source(chunks: &[(&[u32], u8)], within: &[(u32, u32)]) -> Source {
        let mut draft = ManifestBuilder::new(id(1), SpecVersion::V2, node_id(1), 0);
        for (coords, byte) in chunks {
            draft.push(coords, &ChunkPayload::Inline([*byte])).unwrap();
        }
        Source { manifest: Arc::new(draft.finish().unwrap().manifest), node: node_id(1), within: within.to_vec() }
    }

    fn inline(byte: u8) -> Option<ChunkPayload> {
        Some(ChunkPayload::Inline(vec![byte].into()))
    }

    fn built(sources: &[Source], changes: &[(Coords, Option<ChunkPayload>)]) -> Vec<(Vec<u32>, u8)> {
        let picked: Vec<usize> = (0..changes.len()).collect();
        let Some(built) = build(node_id(2), SpecVersion::V2, sources, changes, &picked).unwrap() else {
            return Vec::new();
        };
        let refs = built.manifest.array(node_id(2)).unwrap().unwrap();
        (0..refs.len())
            .map(|at| {
                let ChunkPayload::Inline(bytes) = refs.payload(at).unwrap() else { unreachable!("all are inline") };
                (refs.coords(at).iter().collect(), bytes.first().copied().unwrap_or_default())
            })
            .collect()
    }

    #[test]
    fn of_several_references_the_first_manifest_s_counts() {
        let first = || source(&[(&[1], 1), (&[3], 3)], &[(0, 9)]);
        let second = || source(&[(&[0], 10), (&[1], 11), (&[2], 12), (&[3], 13)], &[(0, 9)]);
        let expected = [(vec![0], 10), (vec![1], 1), (vec![2], 12), (vec![3], 3)];
        assert_eq!(built(&[first(), second()], &[]), expected);
        let expected = [(vec![0], 10), (vec![1], 11), (vec![2], 12), (vec![3], 13)];
        assert_eq!(built(&[second(), first()], &[]), expected);
    }

    #[test]
    fn what_readers_do_not_find_is_left_out() {
        // References outside the box, of another rank, and repeated.
        let chunks: &[(&[u32], u8)] =
            &[(&[0, 5], 1), (&[1], 2), (&[1, 1], 3), (&[1, 1], 4), (&[1, 1, 1], 5), (&[1, 4], 6), (&[3, 0], 7)];
        assert_eq!(built(&[source(chunks, &[(0, 3), (0, 4)])], &[]), [(vec![1, 1], 3)]);
        assert_eq!(built(&[source(chunks, &[(2, 3), (0, 4)])], &[]), []);
    }

    #[test]
    fn changes_take_their_places() {
        let change = |n: u32, place| (Coords::from_slice(&[n]), place);
        let old = || source(&[(&[1], 1), (&[3], 3), (&[5], 5)], &[(0, 9)]);
        let changes =
            [change(0, inline(10)), change(1, None), change(3, inline(13)), change(4, None), change(8, inline(18))];
        assert_eq!(built(&[old()], &changes), [(vec![0], 10), (vec![3], 13), (vec![5], 5), (vec![8], 18)]);
        assert_eq!(built(&[], &changes), [(vec![0], 10), (vec![3], 13), (vec![8], 18)]);
        let gone = [change(1, None), change(3, None), change(5, None)];
        assert_eq!(built(&[old()], &gone), []);
    }
}
