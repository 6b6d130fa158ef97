//! Chunks of one array in one commit: the references in the old manifests, their difference from
//! the parent's, and the new manifest that lists them.
//!
//! Only references that a reader finds count: those of the right rank, in the grid and in the
//! extents of their manifest, and of several for one chunk the first. Releases up to alpha 10 wrote
//! one manifest of all arrays with each commit; an array whose references equal its parent's keeps
//! its parent's manifest all the same.

use std::cmp::Ordering;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use super::nodes::Array;
use super::objects::{Destination, digest};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::failpoints;
use icechunkfs_format::format::MAX_FILE;
use icechunkfs_format::format::chunk_payload::ChunkPayload;
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::manifest::{ArrayRefs, Manifest};
use icechunkfs_format::format::manifest_builder::ManifestBuilder;
use icechunkfs_format::format::snapshot::{ManifestInfo, ManifestRef};
use icechunkfs_format::zarr::is_in_grid;
use icechunkfs_store::storage::{Storage, decoded};

/// Bytes of decoded manifests kept for the next array: the arrays of a snapshot share manifests,
/// and its children do too.
const MAX_KEPT_BYTES: usize = 512 << 20;
/// Maximum number of kept manifests.
const MAX_KEPT_MANIFESTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1023);

/// An array to migrate.
pub(super) struct ArrayTask<'a> {
    pub(super) commit: ObjectId,
    /// Ids of the array in the new manifests and in the old ones.
    pub(super) node: NodeId,
    pub(super) old_node: NodeId,
    /// The same array in the parent, and its id in the old manifests there.
    pub(super) before: Option<(NodeId, &'a Array)>,
}

pub(super) struct Manifests<'a> {
    storage: &'a Arc<dyn Storage>,
    kept: LruCache<ObjectId, Arc<Manifest>>,
    bytes: usize,
}

/// Place of a reference in one of several manifests.
#[derive(Clone, Copy)]
struct RefPosition {
    manifest: u32,
    at: u32,
}

/// References of an array, in order, each chunk once.
#[derive(Default)]
struct Listed<'m> {
    refs: Vec<ArrayRefs<'m>>,
    items: Vec<RefPosition>,
    /// Number of references to empty chunks, which are left out.
    empty: u64,
}

impl<'a> Manifests<'a> {
    pub(super) fn new(storage: &'a Arc<dyn Storage>) -> Self {
        Manifests { storage, kept: LruCache::new(MAX_KEPT_MANIFESTS), bytes: 0 }
    }

    /// Writes the chunks of `array`, then the manifest that lists them. Returns the chunks that
    /// differ from the parent's.
    pub(super) async fn array(
        &mut self,
        work: ArrayTask<'_>,
        array: &mut Array,
        objects: &mut Destination,
    ) -> Result<Vec<Vec<u32>>> {
        if let Some((old_node, before)) = work.before
            && old_node == work.old_node
            && before.grid() == array.grid()
            && before.old == array.old
        {
            array.new.clone_from(&before.new);
            return Ok(Vec::new());
        }
        let grid = array.grid();
        let manifests = self.load(&array.old).await?;
        let now = Listed::new(&manifests, &array.old, work.old_node, &grid)?;
        let manifests_before = self.load(work.before.map_or(&[], |(_, before)| &before.old)).await?;
        let listed_before = match work.before {
            Some((old_node, before)) => Listed::new(&manifests_before, &before.old, old_node, &before.grid())?,
            None => Listed::default(),
        };
        let (changed, wanted) = now.difference(&listed_before, &grid)?;
        objects.count_empty(now.empty);
        objects.copy_chunks(&wanted).await?;
        match work.before {
            // A smaller grid drops chunks without changing any.
            Some((_, before)) if changed.is_empty() && before.grid() == grid => array.new.clone_from(&before.new),
            _ if now.items.is_empty() => {}
            _ => array.new = vec![now.write(&work, objects).await?],
        }
        Ok(changed)
    }

    async fn load(&mut self, wanted: &[(ManifestRef, ManifestInfo)]) -> Result<Vec<Arc<Manifest>>> {
        let mut manifests = Vec::with_capacity(wanted.len());
        for (reference, _) in wanted {
            manifests.push(self.manifest(reference.id).await?);
        }
        Ok(manifests)
    }

    async fn manifest(&mut self, id: ObjectId) -> Result<Arc<Manifest>> {
        if let Some(manifest) = self.kept.get(&id) {
            return Ok(Arc::clone(manifest));
        }
        let key = format!("manifests/{id}");
        let decode = move |file: &[u8]| Manifest::decode_with_id(id, file, MAX_FILE);
        let read = decoded::fixed(&**self.storage, &key, MAX_FILE, decode).await;
        let manifest = read
            .map_err(|error| error.not_found_as_corrupt(format!("{key}: missing, though a snapshot names it")))?
            .value;
        if manifest.id() != id {
            return Err(Error::corrupt(format!("{key}: the file states that it is manifest {}", manifest.id())));
        }
        let manifest = Arc::new(manifest);
        self.bytes += manifest.size();
        if let Some((_, gone)) = self.kept.push(id, Arc::clone(&manifest)) {
            self.bytes -= gone.size();
        }
        while self.bytes > MAX_KEPT_BYTES
            && let Some((_, gone)) = self.kept.pop_lru()
        {
            self.bytes -= gone.size();
        }
        Ok(manifest)
    }
}

impl<'m> Listed<'m> {
    fn new(
        manifests: &'m [Arc<Manifest>],
        listed: &[(ManifestRef, ManifestInfo)],
        node: NodeId,
        grid: &[u32],
    ) -> Result<Self> {
        let mut refs = Vec::new();
        let mut items = Vec::new();
        let mut empty = 0;
        for (file, (reference, _)) in std::iter::zip(manifests, listed) {
            let Some(found) = file.array(node)? else { continue };
            let manifest = refs.len() as u32;
            for at in 0..found.len() {
                let coords = found.coords(at);
                let is_found = coords.len() == grid.len()
                    && coords.iter().zip(grid).all(|(coord, chunks)| coord < *chunks)
                    && coords.iter().zip(&reference.extents).all(|(coord, (from, to))| *from <= coord && coord < *to);
                match is_found {
                    true if found.length(at) == 0 => empty += 1,
                    true => items.push(RefPosition { manifest, at: u32::try_from(at).map_err(|_| too_many())? }),
                    false => {}
                }
            }
            refs.push(found);
        }
        let mut listed = Listed { refs, items: Vec::new(), empty };
        listed.items = listed.in_order(items);
        Ok(listed)
    }

    /// Sorts `items` and keeps one per chunk, the one from the first manifest.
    fn in_order(&self, mut items: Vec<RefPosition>) -> Vec<RefPosition> {
        if !items.is_sorted_by(|a, b| self.compare(*a, self, *b) != Ordering::Greater) {
            // The sort is stable: items from an earlier manifest stay first.
            items.sort_by(|a, b| self.compare(*a, self, *b));
        }
        items.dedup_by(|later, first| self.compare(*first, self, *later) == Ordering::Equal);
        items
    }

    fn at(&self, item: RefPosition) -> Option<(&ArrayRefs<'m>, usize)> {
        Some((self.refs.get(item.manifest as usize)?, item.at as usize))
    }

    fn coords(&self, item: RefPosition) -> impl Iterator<Item = u32> + use<'m> {
        self.at(item).map(|(refs, at)| refs.coords(at)).into_iter().flatten()
    }

    fn compare(&self, item: RefPosition, other: &Listed<'_>, of_other: RefPosition) -> Ordering {
        self.coords(item).cmp(other.coords(of_other))
    }

    fn payload(&self, item: RefPosition) -> Result<Option<ChunkPayload<&'m [u8]>>> {
        self.at(item).map(|(refs, at)| refs.payload(at)).transpose()
    }

    /// Returns the chunks that differ from `before`, are new, or are missing although inside of
    /// `grid`; and the objects that the changed references need.
    fn difference(&self, before: &Listed<'_>, grid: &[u32]) -> Result<(Vec<Vec<u32>>, Vec<ObjectId>)> {
        let mut changed = Vec::new();
        let mut objects = Vec::new();
        let mut now = self.items.iter().copied().peekable();
        let mut then = before.items.iter().copied().peekable();
        loop {
            let order = match (now.peek(), then.peek()) {
                (Some(a), Some(b)) => self.compare(*a, before, *b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            let item = if order == Ordering::Greater { None } else { now.next() };
            let other = if order == Ordering::Less { None } else { then.next() };
            let payload = item.map(|item| self.payload(item)).transpose()?.flatten();
            let payload_before = other.map(|other| before.payload(other)).transpose()?.flatten();
            if payload == payload_before {
                continue;
            }
            if let Some(ChunkPayload::Native { chunk, .. }) = payload {
                objects.push(chunk);
            }
            match (item, other) {
                (Some(item), _) => changed.push(self.coords(item).collect()),
                (None, Some(other)) => {
                    // A chunk that a smaller shape dropped is not a changed chunk.
                    let coords: Vec<u32> = before.coords(other).collect();
                    if is_in_grid(&coords, grid) {
                        changed.push(coords);
                    }
                }
                (None, None) => {}
            }
        }
        objects.sort_unstable();
        objects.dedup();
        Ok((changed, objects))
    }

    /// Writes the manifest of the array in this commit.
    async fn write(&self, work: &ArrayTask<'_>, objects: &mut Destination) -> Result<(ManifestRef, ManifestInfo)> {
        let id = objects.manifest_id(digest(&[&work.commit.0, &work.node.0]));
        let mut draft = ManifestBuilder::new(id, SpecVersion::V2, work.node, self.items.len());
        for item in &self.items {
            if let Some((refs, at)) = self.at(*item) {
                draft.copy(refs, at)?;
            }
        }
        let mut built = draft.finish()?;
        objects.put(&format!("manifests/{id}"), built.file).await?;
        objects.counted.manifests += 1;
        failpoints::pass("migrate.to.manifest.done")?;
        let (_, reference) = built.references.pop().ok_or_else(|| Error::invalid("a manifest of no array"))?;
        Ok((reference, built.info))
    }
}

fn too_many() -> Error {
    Error::new(ErrorKind::Unsupported, "an array of more than 2^32 chunks in one manifest")
}
