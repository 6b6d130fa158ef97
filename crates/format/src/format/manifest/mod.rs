//! Reads `$ROOT/manifests/ID`: the locations of the chunks of arrays (spec, "Chunk Manifest
//! Files").
//!
//! A manifest may hold millions of references, so it is never unpacked: it is decompressed and
//! verified once, then searched in place by bisection of the sorted lists. Bisection of an unsorted
//! list would miss chunks that exist; therefore the order is checked once on opening, and every
//! access to an unsorted array fails, while the manifest's other arrays work. Equal neighbors are
//! in order: release 1.1 wrote the same reference twice when it rewrote manifests under changed
//! splitting rules.

mod check;
mod location;

use std::cmp::Ordering;

use self::check::Order;
use self::location::DictionaryKey;

use super::alpha;
use super::alpha::wrapping::{self, Unwrapped};
use super::chunk_payload::{Checksum, ChunkPayload};
use super::envelope::FileType;
use super::generated::icechunk as fb;
use super::ids::{NodeId, ObjectId};
use super::partition_point;
use super::unknown;
use super::verified::VerifiedFlatbuffer;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};

/// Most bytes of a location that is not compressed, and of an entity tag. Stores have keys of 1
/// KiB, and servers URLs of 8.
const MAX_TEXT: usize = 64 << 10;
/// Value of `compression_algorithm` for locations compressed with the manifest's dictionary.
pub(super) const ZSTD_DICTIONARY: u8 = 1;

/// Decoded manifest file.
#[derive(Debug)]
pub struct Manifest {
    pub(in crate::format) buffer: VerifiedFlatbuffer<fb::Manifest<'static>>,
    order: Order,
    dictionary: DictionaryKey,
}

/// References of one array in one manifest, read in place.
#[derive(Clone, Copy)]
pub struct ArrayRefs<'a> {
    refs: flatbuffers::Vector<'a, flatbuffers::ForwardsUOffset<fb::ChunkRef<'a>>>,
    manifest: &'a Manifest,
}

/// Kind of a [`ChunkPayload`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadKind {
    /// Bytes in the manifest itself.
    Inline,
    /// Range of an object below `chunks/`.
    Native,
    /// Range of a file outside the repository.
    Virtual,
}

impl Manifest {
    /// Decodes a manifest file whose payload may take `limit` bytes of memory.
    pub fn decode(file: &[u8], limit: u64) -> Result<Self> {
        Self::decode_with_id(ObjectId([0; 12]), file, limit)
    }

    /// Decodes like [`Manifest::decode`]. `id` is the id of a file that does not contain one, as
    /// before 0.1.0.
    pub fn decode_with_id(id: ObjectId, file: &[u8], limit: u64) -> Result<Self> {
        let payload = match wrapping::open(file, FileType::Manifest, limit)? {
            Unwrapped::Flatbuffer(_, payload) => payload,
            Unwrapped::Alpha(body) => alpha::manifest::translate(&body, id)?,
        };
        // SAFETY: `check` accepts only valid manifests.
        let (buffer, mut order) = unsafe { VerifiedFlatbuffer::verified_by(payload.into(), check::check) }?;
        order.has_unknown_members |= unknown::is_in_manifest(buffer.root());
        Ok(Manifest { buffer, order, dictionary: DictionaryKey::next() })
    }

    /// Creates a manifest from `payload`, which this program has just encoded.
    ///
    /// # Safety
    ///
    /// `payload` must be a valid `Manifest` whose lists are sorted.
    pub(super) unsafe fn new_unchecked(payload: Vec<u8>) -> Self {
        // SAFETY: the caller guarantees that `payload` is a valid `Manifest`.
        let buffer = unsafe { VerifiedFlatbuffer::new_unchecked(payload) };
        let order = Order { unsorted: Vec::new(), arrays_sorted: true, has_unknown_members: false };
        Manifest { buffer, order, dictionary: DictionaryKey::next() }
    }

    /// Returns true if the file has the identifier of Icechunk's files.
    pub fn has_identifier(&self) -> bool {
        self.buffer.has_identifier()
    }

    /// Returns the root table, for `icechunkfs_repo::repo::verify`, which checks members that
    /// nothing else reads.
    pub fn root(&self) -> fb::Manifest<'_> {
        self.buffer.root()
    }

    /// Fails if the manifest has members that other manifests with its references would lose. The
    /// `extra` of a reference is kept.
    #[inline]
    pub(super) fn check_known(&self) -> Result<()> {
        if self.order.has_unknown_members {
            return Err(unknown::would_lose_members(format!("manifest {}", self.id())));
        }
        Ok(())
    }

    /// Returns the id that the file contains.
    pub fn id(&self) -> ObjectId {
        ObjectId::from(self.buffer.root().id())
    }

    /// Returns the dictionary of compressed locations.
    pub fn location_dictionary(&self) -> Option<&[u8]> {
        self.buffer.root().location_dictionary().map(|dictionary| dictionary.bytes())
    }

    /// Returns the memory that the manifest takes, in bytes.
    pub fn size(&self) -> usize {
        self.buffer.len()
    }

    /// Returns the range of `part`, a slice of an inline chunk, in this manifest; see
    /// [`Manifest::slice`].
    pub fn range_of(&self, part: &[u8]) -> Option<std::ops::Range<usize>> {
        self.buffer.range_of(part)
    }

    /// Returns the bytes of a range that [`Manifest::range_of`] returned.
    pub fn slice(&self, range: std::ops::Range<usize>) -> &[u8] {
        self.buffer.slice(range)
    }

    /// Returns the ids of the arrays that have references in the manifest.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.iter_arrays().map(|(node, _)| node)
    }

    /// Returns all references, array by array, in the file's order, including unsorted ones.
    pub fn iter_arrays(&self) -> impl Iterator<Item = (NodeId, ArrayRefs<'_>)> + '_ {
        let arrays = self.buffer.root().arrays();
        arrays.iter().map(|array| (NodeId::from(array.node_id()), ArrayRefs { refs: array.refs(), manifest: self }))
    }

    /// Returns the references of array `node`, if it has any in the manifest. Fails if they are not
    /// sorted.
    pub fn array(&self, node: NodeId) -> Result<Option<ArrayRefs<'_>>> {
        let arrays = self.buffer.root().arrays();
        let found = if self.order.arrays_sorted {
            let at = partition_point(arrays.len(), |i| arrays.get(i).node_id().0 < node.0);
            (at < arrays.len() && arrays.get(at).node_id().0 == node.0).then_some(at)
        } else {
            arrays.iter().position(|a| a.node_id().0 == node.0)
        };
        let Some(at) = found else { return Ok(None) };
        if self.order.unsorted.binary_search(&at).is_ok() {
            return Err(Error::corrupt(format!("manifest {}: the chunks of node {node} are not sorted", self.id())));
        }
        Ok(Some(ArrayRefs { refs: arrays.get(at).refs(), manifest: self }))
    }

    fn decompress_location(&self, compressed: &[u8]) -> Result<String> {
        let root = self.buffer.root();
        let (Some(dictionary), ZSTD_DICTIONARY) = (root.location_dictionary(), root.compression_algorithm()) else {
            let algorithm = root.compression_algorithm();
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("compressed locations without a dictionary (algorithm {algorithm})"),
            ));
        };
        location::decompress(self.dictionary, dictionary.bytes(), compressed)
    }
}

impl<'a> ArrayRefs<'a> {
    /// Returns the number of references.
    pub fn len(&self) -> usize {
        self.refs.len()
    }

    /// Returns true if there are no references.
    pub fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    /// Returns reference `at` as stored, for [`super::manifest_builder`] and
    /// `icechunkfs_repo::repo::verify`.
    #[inline]
    pub fn raw(&self, at: usize) -> fb::ChunkRef<'a> {
        self.refs.get(at)
    }

    /// Returns the manifest that holds the references.
    pub fn manifest(&self) -> &'a Manifest {
        self.manifest
    }

    /// Returns the chunk coordinates of reference `at`, which must be below [`ArrayRefs::len`].
    /// Their rank may differ from the array's: the reference implementation does not check it.
    pub fn coords(&self, at: usize) -> flatbuffers::Vector<'a, u32> {
        self.refs.get(at).index()
    }

    /// Returns the first position whose coordinates are not below `coords`, in lexicographic order.
    /// A prefix is below all coordinates that begin with it.
    pub fn lower_bound(&self, coords: &[u32]) -> usize {
        partition_point(self.refs.len(), |i| compare(&self.refs.get(i).index(), coords) == Ordering::Less)
    }

    /// Returns the position of the reference of chunk `coords`; the first one if there are several.
    pub fn find(&self, coords: &[u32]) -> Option<usize> {
        let at = self.lower_bound(coords);
        (at < self.len() && compare(&self.coords(at), coords) == Ordering::Equal).then_some(at)
    }

    /// Returns the length of the chunk at `at`, in bytes, from the reference alone.
    pub fn length(&self, at: usize) -> u64 {
        let stored = self.refs.get(at);
        match stored.inline() {
            Some(bytes) if self.kind(at) == PayloadKind::Inline => bytes.len() as u64,
            _ => stored.length(),
        }
    }

    /// Returns the most bytes that a copy of the payload at `at` takes besides itself, from the
    /// reference alone.
    pub fn held(&self, at: usize) -> u64 {
        let stored = self.refs.get(at);
        let compressed = stored.compressed_location().map_or(0, |_| location::MAX_LOCATION);
        let texts = [stored.location(), stored.checksum_etag()].into_iter().flatten().map(str::len);
        let inline = stored.inline().map_or(0, |bytes| bytes.len());
        (compressed + inline + texts.sum::<usize>()) as u64
    }

    /// Returns the kind of the reference at `at`, from the reference alone. A reference of no kind
    /// counts as inline without bytes.
    pub fn kind(&self, at: usize) -> PayloadKind {
        let stored = self.refs.get(at);
        match stored.chunk_id() {
            Some(_) => PayloadKind::Native,
            None if is_virtual(&stored) => PayloadKind::Virtual,
            None => PayloadKind::Inline,
        }
    }

    /// Returns the payload of the chunk at `at`.
    pub fn payload(&self, at: usize) -> Result<ChunkPayload<&'a [u8]>> {
        let stored = self.refs.get(at);
        let offset = stored.offset();
        let length = stored.length();
        if let Some(chunk) = stored.chunk_id() {
            if offset.checked_add(length).is_none() {
                return Err(self.corrupt_chunk(at, "its offset and length are beyond any file"));
            }
            return Ok(ChunkPayload::Native { chunk: ObjectId::from(chunk), offset, length });
        }
        if is_virtual(&stored) {
            let too_long = |text: Option<&str>| text.is_some_and(|text| text.len() > MAX_TEXT);
            if too_long(stored.location()) || too_long(stored.checksum_etag()) {
                return Err(self.corrupt_chunk(at, "a location or entity tag of more than 64 KiB"));
            }
            let location = match (stored.compressed_location(), stored.location()) {
                (Some(compressed), _) => self.decompress_location(compressed.bytes())?,
                (None, location) => location.unwrap_or_default().to_owned(),
            };
            let checksum = match (stored.checksum_etag(), stored.checksum_last_modified()) {
                (Some(etag), _) => Some(Checksum::Etag(etag.to_owned())),
                (None, 0) => None,
                (None, seconds) => Some(Checksum::LastModified(seconds)),
            };
            return Ok(ChunkPayload::Virtual { location, offset, length, checksum });
        }
        match stored.inline() {
            Some(bytes) => Ok(ChunkPayload::Inline(bytes.bytes())),
            None => Err(self.corrupt_chunk(at, "it is neither inline nor native nor virtual")),
        }
    }

    pub(super) fn decompress_location(&self, compressed: &[u8]) -> Result<String> {
        self.manifest.decompress_location(compressed).context(|| format!("manifest {}", self.manifest.id()))
    }

    fn corrupt_chunk(&self, at: usize, why: &str) -> Error {
        let coords: Vec<u32> = self.coords(at).iter().collect();
        Error::corrupt(format!("manifest {}: chunk {coords:?}: {why}", self.manifest.id()))
    }
}

fn is_virtual(stored: &fb::ChunkRef<'_>) -> bool {
    stored.compressed_location().is_some() || stored.location().is_some()
}

/// Compares coordinates lexicographically, as the lists are sorted.
fn compare(stored: &flatbuffers::Vector<'_, u32>, wanted: &[u32]) -> Ordering {
    stored.iter().cmp(wanted.iter().copied())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::testing::{self, TestPayload, TestRefs, id, node_id};

    fn inline(n: u8) -> TestPayload {
        TestPayload::Inline(vec![n])
    }

    fn decode(arrays: &[TestRefs]) -> Manifest {
        Manifest::decode(&testing::manifest(id(1), arrays), 1 << 20).unwrap()
    }

    #[test]
    fn every_kind_of_reference_is_read() {
        let refs = vec![
            (vec![0, 1], inline(7)),
            (vec![1, 0], TestPayload::Native(id(9), 100, 50)),
            (vec![1, 1], TestPayload::Virtual("s3://b/k".into(), 3, 4)),
            (vec![2, 0], TestPayload::Nothing),
            (vec![2, 1], TestPayload::Native(id(9), u64::MAX, 2)),
        ];
        let manifest = decode(&[(node_id(1), refs)]);
        let refs = manifest.array(node_id(1)).unwrap().unwrap();
        let payload = |coords: [u32; 2]| refs.payload(refs.find(&coords).unwrap());
        assert_eq!(payload([0, 1]).unwrap(), ChunkPayload::Inline([7].as_slice()));
        assert_eq!(payload([1, 0]).unwrap(), ChunkPayload::Native { chunk: id(9), offset: 100, length: 50 });
        let location = ChunkPayload::Virtual { location: "s3://b/k".into(), offset: 3, length: 4, checksum: None };
        assert_eq!(payload([1, 1]).unwrap(), location);
        assert!(payload([2, 0]).unwrap_err().to_string().contains("neither"));
        assert!(payload([2, 1]).is_err());
        assert_eq!((0..4).map(|at| refs.length(at)).collect::<Vec<_>>(), [1, 50, 4, 0]);
        assert_eq!((refs.find(&[0]), refs.find(&[0, 0]), refs.find(&[3, 0])), (None, None, None));
        assert!(manifest.array(node_id(2)).unwrap().is_none());
    }

    #[test]
    fn an_unsorted_array_is_an_error_and_the_others_work() {
        let manifest = decode(&[
            (node_id(1), vec![(vec![1], inline(1)), (vec![0], inline(0))]),
            (node_id(2), vec![(vec![0], inline(0)), (vec![0], inline(0)), (vec![1], inline(1))]),
        ]);
        assert!(manifest.array(node_id(1)).err().unwrap().to_string().contains("not sorted"));
        let twice = manifest.array(node_id(2)).unwrap().unwrap();
        assert_eq!((twice.find(&[0]), twice.find(&[1])), (Some(0), Some(2)));
    }

    #[test]
    fn arrays_out_of_order_are_found() {
        let manifest = decode(&[(node_id(2), vec![(vec![0], inline(2))]), (node_id(1), vec![(vec![0], inline(1))])]);
        for n in [1, 2] {
            let refs = manifest.array(node_id(n)).unwrap().unwrap();
            assert_eq!(refs.payload(0).unwrap(), ChunkPayload::Inline([n].as_slice()));
        }
    }
}
