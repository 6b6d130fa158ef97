//! Compares the chunks of one array in two snapshots.
//!
//! Chunks that both snapshots list in the same manifests are the same and are not examined. Every
//! chunk of the other manifests is looked up on the other side, page by page. Manifests are
//! processed one after another, are read as often as there are pages, and none is held longer than
//! that, so that the memory needed is that of a page and of the reader's cache.
//!
//! Two chunks are the same if their payloads are. The caller decides if it is worth reading chunks
//! in different places to compare their bytes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::reader::Reader;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::manifest::{ArrayRefs, Manifest};
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef, overlap};
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// References that are compared together. Each takes some 100 bytes of memory.
const PAGE: usize = 1 << 16;
/// Bytes of inline chunks and locations in a page, above which it ends early.
const MAX_PAGE_BYTES: u64 = 4 << 20;

/// Chunks of one array as a snapshot lists them.
#[derive(Clone, Copy)]
pub struct ChunkList<'a> {
    /// Id under which the manifests list the chunks.
    pub id: NodeId,
    /// Chunks per dimension; chunks outside do not exist.
    pub grid: &'a [u32],
    /// Manifests of the array, in the order of lookup.
    pub manifests: &'a [ManifestRef],
    /// Manifest infos of the snapshot.
    pub infos: &'a HashMap<ObjectId, ManifestInfo>,
    /// Reader of the manifests.
    pub reader: &'a Arc<Reader>,
}

/// Chunk that is not the same on both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkDifference {
    /// Coordinates of the chunk.
    pub coords: Coords,
    /// Payload before; none if the chunk is new.
    pub before: Option<ChunkPayload>,
    /// Payload after; none if the chunk was deleted.
    pub after: Option<ChunkPayload>,
}

/// All differences between two lists, page by page.
pub struct ChunkDifferences<'a> {
    before: ChunkList<'a>,
    after: ChunkList<'a>,
    /// Manifests to process, the next one last.
    left: Vec<Pass>,
}

/// Remaining work on one manifest.
#[derive(Clone, Copy)]
struct Pass {
    /// True for a manifest of the old list. Its chunks are compared; of the new list's chunks only
    /// the new ones are looked for.
    is_before: bool,
    /// Position of the manifest in its list.
    manifest: usize,
    /// References of the manifest that have been processed.
    done: usize,
}

struct Item {
    at: usize,
    coords: Coords,
    found: Match,
}

impl ChunkDifference {
    /// Returns the bytes that the chunk takes in a set or a map.
    pub(crate) fn memory(&self) -> u64 {
        let payloads = [&self.before, &self.after].into_iter().flatten();
        2 * size_of::<ChunkDifference>() as u64
            + 4 * self.coords.len() as u64
            + payloads.map(ChunkPayload::held).sum::<u64>()
    }
}

enum Match {
    Nothing,
    Same,
    Other(ChunkPayload),
}

impl ChunkList<'_> {
    async fn load(&self, manifest: &ManifestRef) -> Result<Arc<Manifest>> {
        // A manifest that the snapshot does not list is read all the same.
        let unlisted = ManifestInfo { id: manifest.id, size: 0, chunk_refs: 0 };
        self.reader.manifest(self.infos.get(&manifest.id).copied().unwrap_or(unlisted)).await
    }

    /// Calls `found` for each item that a reader of the first `count` manifests finds, with its
    /// references and position.
    async fn find_all(
        &self,
        count: usize,
        beside: &[(u32, u32)],
        items: &mut [Item],
        mut found: impl FnMut(&mut Item, &ArrayRefs<'_>, usize) -> Result<()>,
    ) -> Result<()> {
        for manifest in self.manifests.iter().take(count).filter(|m| overlap(&m.extents, beside)) {
            let wanted = |item: &Item| {
                matches!(item.found, Match::Nothing)
                    && is_in_grid(&item.coords, self.grid)
                    && manifest.covers(&item.coords)
            };
            if !items.iter().any(wanted) {
                continue;
            }
            let loaded = self.load(manifest).await?;
            let Some(refs) = loaded.array(self.id)? else { continue };
            for item in items.iter_mut().filter(|item| wanted(item)) {
                if let Some(at) = refs.find(&item.coords) {
                    found(item, &refs, at)?;
                }
            }
        }
        Ok(())
    }
}

impl<'a> ChunkDifferences<'a> {
    /// Returns the differences between `before` and `after`: lists of one array, one of which may
    /// be empty.
    pub fn new(before: ChunkList<'a>, after: ChunkList<'a>) -> Self {
        let same = same_on_both_sides(&before, &after);
        let passes = |list: &ChunkList<'_>, is_before| {
            let all = list.manifests.iter().enumerate().filter(|(_, manifest)| !same.contains(&manifest.id));
            let all = all.map(|(manifest, _)| Pass { is_before, manifest, done: 0 });
            all.collect::<Vec<_>>()
        };
        let mut left = passes(&before, true);
        left.extend(passes(&after, false));
        left.reverse();
        ChunkDifferences { before, after, left }
    }

    /// Returns the next differences, each chunk once; none when there are no more. A page may be
    /// empty.
    pub async fn page(&mut self) -> Result<Option<Metered<Vec<ChunkDifference>>>> {
        let Some(pass) = self.left.last_mut() else { return Ok(None) };
        let (here, there) = if pass.is_before { (self.before, self.after) } else { (self.after, self.before) };
        let Pass { is_before, manifest: position, done } = *pass;
        let Some(listed) = here.manifests.get(position) else { return Ok(None) };
        let manifest = here.load(listed).await?;
        let refs = manifest.array(here.id)?;
        let Some(refs) = refs.filter(|refs| done < refs.len()) else {
            self.left.pop();
            return Ok(Some(Metered::default()));
        };
        let end = end_of_page(&refs, done);
        pass.done = end;
        let mut meter = Meter::new("the chunks that differ");
        meter.count_items::<Item>(end - done)?;
        meter.count((done..end).map(|at| 4 * refs.coords(at).len() as u64).sum())?;
        let mut items: Vec<Item> = (done..end)
            // The same chunk may be listed twice in a row; it counts once.
            .filter(|&at| at == 0 || !refs.coords(at).iter().eq(refs.coords(at - 1).iter()))
            .map(|at| Item { at, coords: refs.coords(at).iter().collect(), found: Match::Nothing })
            .filter(|item| is_in_grid(&item.coords, here.grid) && listed.covers(&item.coords))
            .collect();
        // If several manifests list a chunk, the reference of the first one counts.
        let shadowed = |item: &mut Item, _: &ArrayRefs<'_>, _| {
            item.found = Match::Same;
            Ok(())
        };
        here.find_all(position, &listed.extents, &mut items, shadowed).await?;
        items.retain(|item| matches!(item.found, Match::Nothing));
        let compare = |item: &mut Item, others: &ArrayRefs<'_>, at| {
            item.found = Match::Same;
            if is_before {
                let other = others.payload(at)?;
                if other != refs.payload(item.at)? {
                    meter.count(other.held())?;
                    item.found = Match::Other(other.into());
                }
            }
            Ok(())
        };
        there.find_all(usize::MAX, &listed.extents, &mut items, compare).await?;
        let mut differences = Vec::new();
        for item in items {
            let other = match item.found {
                Match::Same => continue,
                Match::Other(other) => Some(other),
                Match::Nothing => None,
            };
            let own = refs.payload(item.at)?;
            meter.count(own.held())?;
            meter.count_items::<ChunkDifference>(1)?;
            let own = Some(own.into());
            let (before, after) = if is_before { (own, other) } else { (other, own) };
            differences.push(ChunkDifference { coords: item.coords, before, after });
        }
        Ok(Some(meter.finish(differences)))
    }
}

/// Returns the position after the page of references that begins at `start`.
fn end_of_page(refs: &ArrayRefs<'_>, start: usize) -> usize {
    let mut bytes = 0;
    let is_within = |at: &usize| {
        let is_first = bytes == 0;
        bytes += 1 + refs.held(*at) + 4 * refs.coords(*at).len() as u64;
        is_first || bytes <= MAX_PAGE_BYTES
    };
    start + (start..refs.len().min(start + PAGE)).take_while(is_within).count()
}

/// Returns the manifests whose chunks are the same on both sides: both lists have them, in the same
/// order, no other manifest reaches into them, and both grids show the same part of them.
fn same_on_both_sides(before: &ChunkList<'_>, after: &ChunkList<'_>) -> HashSet<ObjectId> {
    let none = HashSet::new();
    if before.id != after.id || before.grid.len() != after.grid.len() {
        return none;
    }
    let by_id = |list: &ChunkList<'_>| -> HashMap<ObjectId, Vec<(u32, u32)>> {
        list.manifests.iter().map(|manifest| (manifest.id, manifest.extents.clone())).collect()
    };
    let old = by_id(before);
    let new = by_id(after);
    if old.len() != before.manifests.len() || new.len() != after.manifests.len() {
        return none;
    }
    let is_common = |m: &&ManifestRef| old.get(&m.id) == Some(&m.extents) && new.get(&m.id) == Some(&m.extents);
    let common = || before.manifests.iter().filter(is_common);
    if !common().map(|m| m.id).eq(after.manifests.iter().filter(is_common).map(|m| m.id)) {
        return none;
    }
    let others: Vec<&ManifestRef> =
        before.manifests.iter().chain(after.manifests).filter(|manifest| !is_common(manifest)).collect();
    let shown_alike = |manifest: &&ManifestRef| {
        manifest.extents.len() == before.grid.len()
            && std::iter::zip(&manifest.extents, std::iter::zip(before.grid, after.grid))
                .all(|((_, to), (old, new))| old == new || to <= old.min(new))
    };
    let alone = |manifest: &&ManifestRef| others.iter().all(|other| !manifest.overlaps(other));
    common().filter(shown_alike).filter(alone).map(|manifest| manifest.id).collect()
}

/// Formats a chunk's coordinates as its key has them.
pub fn spelled(coords: &[u32]) -> String {
    let all: Vec<String> = coords.iter().map(u32::to_string).collect();
    if all.is_empty() { "the only chunk".to_owned() } else { all.join("/") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;
    use crate::reader::memory::Budget;
    use icechunkfs_format::format::chunk_payload::ChunkPayload;
    use icechunkfs_format::format::envelope::SpecVersion;
    use icechunkfs_format::format::manifest_builder::ManifestBuilder;
    use icechunkfs_format::format::testing::{id, node_id};
    use icechunkfs_store::storage::empty_storage;

    fn reader() -> Arc<Reader> {
        Arc::new(Reader::new(empty_storage("memory"), Budget::new(64 << 20, 0).unwrap()))
    }

    /// One side of a random case.
    #[derive(Debug)]
    struct Side {
        grid: Vec<u32>,
        manifests: Vec<ManifestRef>,
    }

    type Stored = BTreeMap<ObjectId, BTreeMap<Vec<u32>, u8>>;

    /// Returns what a reader finds: if several manifests list a chunk, the reference of the first
    /// one.
    fn visible(side: &Side, stored: &Stored) -> BTreeMap<Vec<u32>, u8> {
        let mut all = BTreeMap::new();
        for manifest in side.manifests.iter().rev() {
            for (coords, byte) in stored.get(&manifest.id).into_iter().flatten() {
                if is_in_grid(coords, &side.grid) && manifest.covers(coords) {
                    all.insert(coords.clone(), *byte);
                }
            }
        }
        all
    }

    #[tokio::test]
    async fn lists_of_every_kind_are_compared() {
        let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut below = |n: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
        };
        for case in 0..400 {
            let reader = reader();
            let rank = below(3) as usize;
            let mut stored = Stored::new();
            let mut pool = Vec::new();
            for number in 0..1 + below(5) as u8 {
                // Boxes that overlap, with references outside of them and outside of any grid.
                let extents: Vec<(u32, u32)> = (0..rank).map(|_| (below(3) as u32, 3 + below(4) as u32)).collect();
                let mut refs = BTreeMap::new();
                for _ in 0..below(12) {
                    let coords: Vec<u32> = (0..rank).map(|_| below(8) as u32).collect();
                    refs.insert(coords, below(2) as u8 + 1);
                }
                let mut draft = ManifestBuilder::new(id(number + 1), SpecVersion::V2, node_id(1), 0);
                for (coords, byte) in &refs {
                    draft.push(coords, &ChunkPayload::Inline([*byte])).unwrap();
                }
                if !draft.is_empty() {
                    reader.keep_manifest(draft.finish().unwrap().manifest);
                    pool.push(ManifestRef { id: id(number + 1), extents });
                    stored.insert(id(number + 1), refs);
                }
            }
            let mut side = || Side {
                grid: (0..rank).map(|_| 2 + below(6) as u32).collect(),
                manifests: {
                    let mut some: Vec<ManifestRef> = pool.iter().filter(|_| below(3) > 0).cloned().collect();
                    if below(4) == 0 {
                        some.reverse();
                    }
                    some
                },
            };
            let old = side();
            let new = side();
            let was = visible(&old, &stored);
            let is = visible(&new, &stored);
            let mut expected = BTreeMap::new();
            for coords in was.keys().chain(is.keys()).filter(|coords| was.get(*coords) != is.get(*coords)) {
                expected.insert(coords.clone(), (was.get(coords).copied(), is.get(coords).copied()));
            }
            let infos = HashMap::new();
            let [before, after] = [&old, &new].map(|Side { grid, manifests }| ChunkList {
                id: node_id(1),
                grid,
                manifests,
                infos: &infos,
                reader: &reader,
            });
            let mut differences = ChunkDifferences::new(before, after);
            let mut found = BTreeMap::new();
            while let Some(page) = differences.page().await.unwrap() {
                for chunk in page {
                    let byte = |payload: Option<ChunkPayload>| match payload {
                        Some(ChunkPayload::Inline(bytes)) => bytes.first().copied(),
                        _ => None,
                    };
                    let both = (byte(chunk.before), byte(chunk.after));
                    assert_eq!(found.insert(chunk.coords.to_vec(), both), None, "case {case}: told twice");
                }
            }
            assert_eq!(found, expected, "case {case}: {old:?} {new:?} {stored:?}");
        }
    }
}
