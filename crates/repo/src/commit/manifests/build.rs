//! Builds manifests from the cells that go into them.

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::Arc;

use crate::commit::upload::ChunkList;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::envelope::{Compression, SpecVersion};
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::manifest::{ArrayRefs, Manifest};
use icechunkfs_format::format::manifest_builder::{BuiltManifest, ManifestBuilder};
use icechunkfs_format::zarr::Coords;

/// Bytes of references from which on a manifest takes no further cell. Inline chunks of half a KiB
/// would make one of some MiB, which every reader of one of the arrays would fetch.
const FULL: usize = 1 << 20;

/// Cell that is written.
pub(super) struct Cell {
    pub(super) node: NodeId,
    /// Old manifests that reach into it.
    pub(super) sources: Vec<Source>,
    pub(super) changes: ChunkList,
    /// Positions of the changes in the cell.
    pub(super) picked: Vec<usize>,
}

/// Old manifest as an input of a cell.
pub(super) struct Source {
    pub(super) manifest: Arc<Manifest>,
    pub(super) node: NodeId,
    /// Box within which the manifest's references count: in both its extents and the cell.
    pub(super) within: Vec<(u32, u32)>,
}

/// Builds the manifests of `cells`, each of another array: as few as fit ([`FULL`]). A cell without
/// chunks is in none of them.
pub(super) fn build(version: SpecVersion, compression: Compression, cells: &[Cell]) -> Result<Vec<BuiltManifest>> {
    let opened: Vec<(&Cell, Vec<Part<'_>>)> =
        cells.iter().map(|cell| Ok((cell, cell.parts()?))).collect::<Result<_>>()?;
    let dictionary = common_dictionary(opened.iter().flat_map(|(_, parts)| parts));
    let mut built = Vec::new();
    let mut rest = opened.as_slice();
    while let [(first, parts), after @ ..] = rest {
        let expected = first.picked.len() + parts.iter().map(|(refs, _)| refs.len()).sum::<usize>();
        let draft = ManifestBuilder::new(ObjectId::random()?, version, first.node, expected);
        let mut draft = draft.with_dictionary(dictionary).with_compression(compression);
        fill(&mut draft, first, parts)?;
        rest = after;
        while let [(cell, parts), after @ ..] = rest
            && draft.size() < FULL
        {
            draft.next_array(cell.node);
            fill(&mut draft, cell, parts)?;
            rest = after;
        }
        if !draft.is_empty() {
            built.push(draft.finish()?);
        }
    }
    Ok(built)
}

/// Fails unless readers find in `built` the references that they find in the sources of `cells`,
/// which have no changes.
pub(super) fn check_same<'a>(cells: impl Iterator<Item = &'a Cell>, built: &[BuiltManifest]) -> Result<()> {
    let mut new: HashMap<NodeId, ArrayRefs<'_>> = HashMap::new();
    for manifest in built {
        for (node, _) in &manifest.references {
            new.extend(manifest.manifest.array(*node)?.map(|refs| (*node, refs)));
        }
    }
    for cell in cells {
        let mut count = 0;
        for (refs, source) in cell.parts()? {
            for at in visible(&refs, source) {
                let coords: Coords = refs.coords(at).iter().collect();
                let found = new.get(&cell.node).and_then(|new| Some(new.payload(new.find(&coords)?)));
                if found.transpose()? != Some(refs.payload(at)?) {
                    let node = cell.node;
                    return Err(Error::corrupt(format!("chunk {coords:?} of node {node} would not be what it was")));
                }
                count += 1;
            }
        }
        if new.get(&cell.node).map_or(0, ArrayRefs::len) != count {
            return Err(Error::corrupt(format!("node {} would have other chunks than before", cell.node)));
        }
    }
    Ok(())
}

/// References of one source of a cell.
type Part<'a> = (ArrayRefs<'a>, &'a Source);

impl Cell {
    fn parts(&self) -> Result<Vec<Part<'_>>> {
        self.sources
            .iter()
            .map(|source| Ok(source.manifest.array(source.node)?.map(|refs| (refs, source))))
            .filter_map(Result::transpose)
            .collect()
    }
}

/// Adds the references of a cell to `draft`.
fn fill(draft: &mut ManifestBuilder, cell: &Cell, parts: &[Part<'_>]) -> Result<()> {
    let mut changes = cell.picked.iter().filter_map(|&at| cell.changes.get(at)).peekable();
    if let [(refs, source)] = parts {
        for at in visible(refs, source) {
            merge(draft, &mut changes, refs, at)?;
        }
    } else {
        let mut all: Vec<(usize, usize)> = Vec::with_capacity(parts.iter().map(|(refs, _)| refs.len()).sum());
        for (part, (refs, source)) in parts.iter().enumerate() {
            all.extend(visible(refs, source).map(|at| (part, at)));
        }
        let refs_of = |part: usize| parts.get(part).map(|(refs, _)| refs);
        let coords = |&(part, at): &(usize, usize)| -> Coords {
            refs_of(part).map(|refs| refs.coords(at).iter().collect()).unwrap_or_default()
        };
        // The sort is stable: of references to the same chunk, that of the first manifest stays in
        // front.
        all.sort_by_cached_key(coords);
        let mut last: Option<Coords> = None;
        for entry in &all {
            let coords = coords(entry);
            if last.as_ref() == Some(&coords) {
                continue;
            }
            last = Some(coords);
            if let Some(refs) = refs_of(entry.0) {
                merge(draft, &mut changes, refs, entry.1)?;
            }
        }
    }
    for (coords, place) in changes {
        push(draft, coords, place.as_ref())?;
    }
    Ok(())
}

/// Returns the positions of the references that a reader finds in this source, in order, without
/// repeats.
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

/// Adds the changes that come before reference `at` of `refs`, and then that reference if it was
/// not changed.
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

/// Returns the dictionary that all compressed locations of these lists need; none if they need
/// different ones.
fn common_dictionary<'a>(parts: impl Iterator<Item = &'a Part<'a>>) -> Option<&'a [u8]> {
    let mut dictionaries = parts.filter_map(|(refs, _)| refs.manifest().location_dictionary());
    let first = dictionaries.next()?;
    dictionaries.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::chunk_payload::ChunkPayload;
    use icechunkfs_format::format::testing::{id, node_id};

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
        let sources = sources
            .iter()
            .map(|source| Source { manifest: Arc::clone(&source.manifest), within: source.within.clone(), ..*source })
            .collect();
        let cell = Cell { node: node_id(2), sources, changes: Arc::new(changes.to_vec()), picked };
        let built = build(SpecVersion::V2, Compression::default(), &[cell]).unwrap();
        let [built] = built.as_slice() else { return Vec::new() };
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
