//! Encodes new manifests.
//!
//! A commit that changes one chunk may have to rewrite a million references, so the file is laid
//! out by hand, front to back, in one pass and without an allocation per reference; the general
//! builder of the `flatbuffers` crate takes several times as long. The layout must keep these
//! rules: a table's 8-byte members are aligned to 8 bytes, everything else to 4; offsets lead
//! forward, except the one from a table to its vtable, which all tables with the same members
//! share.
//!
//! Arrays are added in any order ([`ManifestBuilder::next_array`]), and the references of each in
//! theirs. Those of an older manifest are copied member by member, so that virtual locations keep
//! their checksums and, as long as one dictionary serves them all, their compression.

use super::chunk_payload::{Checksum, ChunkPayload};
use super::envelope::{self, Compression, FileType, MAX_PAYLOAD, SpecVersion};
use super::ids::{NodeId, ObjectId};
use super::manifest::{ArrayRefs, Manifest, ZSTD_DICTIONARY};
use super::snapshot::{ManifestInfo, ManifestRef};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Slots of the table `ChunkRef`, in the schema's order.
const INDEX: usize = 0;
const INLINE: usize = 1;
const OFFSET: usize = 2;
const LENGTH: usize = 3;
const CHUNK_ID: usize = 4;
const LOCATION: usize = 5;
const ETAG: usize = 6;
const LAST_MODIFIED: usize = 7;
const COMPRESSED_LOCATION: usize = 8;
const EXTRA: usize = 9;
const SLOTS: usize = 10;
/// Value of `compression_algorithm` if no location is compressed.
const PLAIN: u8 = 0;
/// Size of an array's table, in bytes: offset to the vtable 4, references 4, node 8.
const ARRAY_TABLE: usize = 16;
/// Size of a native reference of a three-dimensional array, in bytes, for the first allocation.
const TYPICAL_REF: usize = 56;

/// Manifest under construction.
#[derive(Debug)]
pub struct ManifestBuilder {
    id: ObjectId,
    version: SpecVersion,
    /// Arrays; references are added to the last one.
    arrays: Vec<Part>,
    /// Vtables and references; offsets in it are relative, so that it can follow the list of
    /// references.
    body: Vec<u8>,
    /// Start of each reference in `body`.
    ref_offsets: Vec<u32>,
    /// Vtables in `body`, by the members that their tables have.
    layouts: Vec<Layout>,
    /// Dictionary of compressed locations.
    dictionary: Option<Vec<u8>>,
    compression: Compression,
}

/// References of one array.
#[derive(Debug)]
struct Part {
    node: NodeId,
    /// Position of its first reference; they end where those of the next array begin.
    first: usize,
    /// Half-open range of coordinates, per dimension.
    extents: Vec<(u32, u32)>,
}

/// Layout of the tables with one set of members.
#[derive(Clone, Debug)]
struct Layout {
    members: u16,
    vtable: usize,
    /// Offset of each slot in the table; 0 if it is absent.
    at: [u16; SLOTS],
    size: usize,
}

/// Encoded manifest.
#[derive(Debug)]
pub struct BuiltManifest {
    /// Bytes of the file.
    pub file: Vec<u8>,
    /// Entry in the snapshot's list of manifests.
    pub info: ManifestInfo,
    /// Entry in each array's list of manifests, by the arrays' ids.
    pub references: Vec<(NodeId, ManifestRef)>,
    /// Decoded form of the file.
    pub manifest: Manifest,
}

/// RefMembers of one reference; `None` and 0 are left out.
#[derive(Default)]
struct RefMembers<'a> {
    inline: Option<&'a [u8]>,
    offset: u64,
    length: u64,
    chunk_id: Option<[u8; 12]>,
    location: Option<&'a str>,
    etag: Option<&'a str>,
    last_modified: u32,
    compressed_location: Option<&'a [u8]>,
    extra: Option<&'a [u8]>,
}

impl ManifestBuilder {
    /// Creates an empty manifest, at first for the chunks of array `node`, with room for `expected`
    /// references.
    pub fn new(id: ObjectId, version: SpecVersion, node: NodeId, expected: usize) -> Self {
        ManifestBuilder {
            id,
            version,
            arrays: vec![Part { node, first: 0, extents: Vec::new() }],
            body: Vec::with_capacity(expected.saturating_mul(TYPICAL_REF)),
            ref_offsets: Vec::with_capacity(expected),
            layouts: Vec::new(),
            dictionary: None,
            compression: Compression::default(),
        }
    }

    /// Sets how the file is compressed.
    #[must_use]
    pub fn with_compression(self, compression: Compression) -> Self {
        ManifestBuilder { compression, ..self }
    }

    /// Lets [`ManifestBuilder::copy`] keep compressed locations. All copied references must then
    /// come from manifests with this dictionary.
    #[must_use]
    pub fn with_dictionary(mut self, dictionary: Option<&[u8]>) -> Self {
        // Version 1 has plain locations only.
        self.dictionary = dictionary.filter(|_| self.version == SpecVersion::V2).map(<[u8]>::to_vec);
        self
    }

    /// Lets the next references be those of array `node`, to which none were added before.
    pub fn next_array(&mut self, node: NodeId) {
        let first = self.ref_offsets.len();
        // An array without references is not listed.
        self.arrays.pop_if(|last| last.first == first);
        self.arrays.push(Part { node, first, extents: Vec::new() });
    }

    /// Returns the size of the references, in bytes. The manifest will be a little larger.
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// Returns the number of references.
    pub fn len(&self) -> usize {
        self.ref_offsets.len()
    }

    /// Returns true if there are no references; an empty manifest cannot be written.
    pub fn is_empty(&self) -> bool {
        self.ref_offsets.is_empty()
    }

    /// Adds a new reference, which must sort after all previous ones.
    pub fn push<B: AsRef<[u8]>>(&mut self, coords: &[u32], payload: &ChunkPayload<B>) -> Result<()> {
        if payload.length() == 0 {
            // The reference implementation fails on an empty chunk.
            return Err(Error::invalid(format!("chunk {coords:?} is empty, which cannot be stored")));
        }
        let members = match payload {
            ChunkPayload::Inline(bytes) => RefMembers { inline: Some(bytes.as_ref()), ..RefMembers::default() },
            &ChunkPayload::Native { chunk, offset, length } => {
                RefMembers { chunk_id: Some(chunk.0), offset, length, ..RefMembers::default() }
            }
            ChunkPayload::Virtual { location, offset, length, checksum } => {
                let (etag, last_modified) = match checksum {
                    Some(Checksum::Etag(tag)) => (Some(tag.as_str()), 0),
                    Some(Checksum::LastModified(seconds)) => (None, *seconds),
                    None => (None, 0),
                };
                let offset = *offset;
                let length = *length;
                RefMembers { location: Some(location), offset, length, etag, last_modified, ..RefMembers::default() }
            }
        };
        self.add(coords.len(), coords.iter().copied(), &members)
    }

    /// Adds reference `at` of an older manifest unchanged; it must sort after all previous ones.
    /// Fails if that manifest has members that this one would lose.
    #[inline]
    pub fn copy(&mut self, refs: &ArrayRefs<'_>, at: usize) -> Result<()> {
        refs.manifest().check_known()?;
        let stored = refs.raw(at);
        let extra = stored.extra().map(|v| v.bytes());
        let coords = stored.index();
        if let Some(id) = stored.chunk_id() {
            let members = RefMembers {
                chunk_id: Some(id.0),
                offset: stored.offset(),
                length: stored.length(),
                extra,
                ..RefMembers::default()
            };
            return self.add(coords.len(), coords.iter(), &members);
        }
        let mut members = RefMembers {
            offset: stored.offset(),
            length: stored.length(),
            location: stored.location(),
            etag: stored.checksum_etag(),
            last_modified: stored.checksum_last_modified(),
            compressed_location: stored.compressed_location().map(|v| v.bytes()),
            extra,
            ..RefMembers::default()
        };
        let plain;
        if let (Some(compressed), None) = (members.compressed_location, &self.dictionary) {
            plain = refs.decompress_location(compressed)?;
            members.location = Some(&plain);
            members.compressed_location = None;
        }
        if members.location.is_none() && members.compressed_location.is_none() {
            members.inline = stored.inline().map(|v| v.bytes());
        }
        self.add(coords.len(), coords.iter(), &members)
    }

    #[inline]
    fn add(&mut self, rank: usize, coords: impl Iterator<Item = u32>, members: &RefMembers<'_>) -> Result<()> {
        let present = 1 << INDEX
            | u16::from(members.inline.is_some()) << INLINE
            | u16::from(members.offset != 0) << OFFSET
            | u16::from(members.length != 0) << LENGTH
            | u16::from(members.chunk_id.is_some()) << CHUNK_ID
            | u16::from(members.location.is_some()) << LOCATION
            | u16::from(members.etag.is_some()) << ETAG
            | u16::from(members.last_modified != 0) << LAST_MODIFIED
            | u16::from(members.compressed_location.is_some()) << COMPRESSED_LOCATION
            | u16::from(members.extra.is_some()) << EXTRA;
        let found = self.layouts.iter().position(|layout| layout.members == present);
        let number = found.unwrap_or_else(|| self.add_layout(present));
        let Some(layout) = self.layouts.get(number) else { return Ok(()) };

        pad(&mut self.body, 8);
        let table = self.body.len();
        let start = u32::try_from(table).map_err(|_| too_large())?;
        self.ref_offsets.push(start);
        self.body.resize(table + layout.size, 0);
        // Positions are below 2^31: `assemble` refuses larger manifests.
        overwrite(&mut self.body, table, &((table - layout.vtable) as i32).to_le_bytes());
        let at = |slot: usize| table + usize::from(layout.at.get(slot).copied().unwrap_or_default());
        if members.offset != 0 {
            overwrite(&mut self.body, at(OFFSET), &members.offset.to_le_bytes());
        }
        if members.length != 0 {
            overwrite(&mut self.body, at(LENGTH), &members.length.to_le_bytes());
        }
        if let Some(id) = &members.chunk_id {
            overwrite(&mut self.body, at(CHUNK_ID), id);
        }
        if members.last_modified != 0 {
            overwrite(&mut self.body, at(LAST_MODIFIED), &members.last_modified.to_le_bytes());
        }
        patch_offset(&mut self.body, at(INDEX));
        self.body.extend_from_slice(&(rank as u32).to_le_bytes());
        let count = self.ref_offsets.len();
        let mut none = Vec::new();
        let extents = self.arrays.last_mut().map_or(&mut none, |part| {
            if part.first + 1 == count {
                part.extents = vec![(u32::MAX, 0); rank];
            }
            &mut part.extents
        });
        let mut extents = extents.iter_mut();
        for coord in coords {
            self.body.extend_from_slice(&coord.to_le_bytes());
            if let Some((from, to)) = extents.next() {
                *from = (*from).min(coord);
                *to = (*to).max(coord.saturating_add(1));
            }
        }
        for (slot, bytes, is_text) in [
            (INLINE, members.inline, false),
            (COMPRESSED_LOCATION, members.compressed_location, false),
            (EXTRA, members.extra, false),
            (LOCATION, members.location.map(str::as_bytes), true),
            (ETAG, members.etag.map(str::as_bytes), true),
        ] {
            if let Some(bytes) = bytes {
                patch_offset(&mut self.body, at(slot));
                append(&mut self.body, bytes, is_text);
            }
        }
        Ok(())
    }

    /// Writes the vtable of tables with these members and returns the index of their layout.
    fn add_layout(&mut self, members: u16) -> usize {
        let mut at = [0; SLOTS];
        // The offset to the vtable comes first.
        let mut size: u16 = 4;
        // This order needs no padding: one offset of 4 bytes, then all members of 8 bytes, then
        // those of 4 and of 12.
        for slot in [INDEX, OFFSET, LENGTH, CHUNK_ID, INLINE, LOCATION, COMPRESSED_LOCATION, ETAG, LAST_MODIFIED, EXTRA]
        {
            if members & 1 << slot == 0 {
                continue;
            }
            if let Some(place) = at.get_mut(slot) {
                *place = size;
            }
            size += match slot {
                OFFSET | LENGTH => 8,
                CHUNK_ID => 12,
                _ => 4,
            };
        }
        pad(&mut self.body, 8);
        let vtable = self.body.len();
        // Nearly no reference has the last member.
        let slots = if members & 1 << EXTRA == 0 { EXTRA } else { SLOTS };
        self.body.extend_from_slice(&(4 + 2 * slots as u16).to_le_bytes());
        self.body.extend_from_slice(&size.to_le_bytes());
        for place in at.into_iter().take(slots) {
            self.body.extend_from_slice(&place.to_le_bytes());
        }
        self.layouts.push(Layout { members, vtable, at, size: usize::from(size) });
        self.layouts.len() - 1
    }

    /// Encodes the file. Fails if there are no references, or if an array was added twice.
    pub fn finish(mut self) -> Result<BuiltManifest> {
        let id = self.id;
        let version = self.version;
        let compression = self.compression;
        let chunk_refs = u32::try_from(self.ref_offsets.len()).map_err(|_| too_large())?;
        if chunk_refs == 0 {
            return Err(Error::invalid("a manifest without references is not written"));
        }
        self.arrays.pop_if(|last| last.first == chunk_refs as usize);
        let references: Vec<(NodeId, ManifestRef)> = self
            .arrays
            .iter_mut()
            .map(|part| (part.node, ManifestRef { id, extents: std::mem::take(&mut part.extents) }))
            .collect();
        let payload = self.assemble()?;
        let file = envelope::encode(version, FileType::Manifest, &payload, compression)?;
        // SAFETY: `assemble` has laid out exactly the table that the schema describes; tests verify
        // what it writes.
        let manifest = unsafe { Manifest::new_unchecked(payload) };
        Ok(BuiltManifest { info: ManifestInfo { id, size: file.len() as u64, chunk_refs }, references, manifest, file })
    }

    /// Returns the flatbuffer, and drops its parts: both together are large.
    fn assemble(self) -> Result<Vec<u8>> {
        let dictionary = self.dictionary.as_deref();
        let lists = self.lists()?;
        let room =
            128 + self.ref_offsets.len() * 4 + lists.len() * 24 + self.body.len() + dictionary.map_or(0, <[u8]>::len);
        if room as u64 > MAX_PAYLOAD {
            return Err(too_large());
        }
        let mut out = Vec::with_capacity(room);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(envelope::FILE_IDENTIFIER.as_bytes());
        // Sizes in the root table, in bytes: offset to the vtable 4, id 12, arrays 4, dictionary 4,
        // algorithm 1.
        let root_vtable = out.len();
        let dictionary_at: u16 = if dictionary.is_some() { 20 } else { 0 };
        for number in [4 + 2 * 4, 28_u16, 4, 16, dictionary_at, 24] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let array_vtable = out.len();
        for number in [4 + 2 * 2, ARRAY_TABLE as u16, 8, 4] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        pad(&mut out, 4);
        let root = out.len();
        overwrite(&mut out, 0, &(root as u32).to_le_bytes());
        out.extend_from_slice(&((root - root_vtable) as i32).to_le_bytes());
        out.extend_from_slice(&self.id.0);
        let arrays_at = out.len();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&[if dictionary.is_some() { ZSTD_DICTIONARY } else { PLAIN }, 0, 0, 0]);
        if let Some(dictionary) = dictionary {
            patch_offset(&mut out, arrays_at + 4);
            append(&mut out, dictionary, false);
            pad(&mut out, 4);
        }
        patch_offset(&mut out, arrays_at);
        out.extend_from_slice(&(lists.len() as u32).to_le_bytes());
        // The offsets to the tables, the tables, and the lists of references follow each other.
        let offsets = out.len();
        let tables = offsets + 4 * lists.len();
        for n in 0..lists.len() {
            out.extend_from_slice(&((tables + ARRAY_TABLE * n - (offsets + 4 * n)) as u32).to_le_bytes());
        }
        let mut list_at = tables + ARRAY_TABLE * lists.len();
        for (node, list) in &lists {
            let table = out.len();
            out.extend_from_slice(&((table - array_vtable) as i32).to_le_bytes());
            out.extend_from_slice(&((list_at - out.len()) as u32).to_le_bytes());
            out.extend_from_slice(&node.0);
            list_at += 4 + 4 * list.len();
        }
        let body = list_at.next_multiple_of(8);
        for (_, list) in &lists {
            out.extend_from_slice(&(list.len() as u32).to_le_bytes());
            let list_at = out.len();
            out.extend(list.iter().zip((list_at..).step_by(4)).flat_map(|(start, at)| {
                // Both terms are below the payload's limit of 2^31.
                ((body - at) as u32 + start).to_le_bytes()
            }));
        }
        pad(&mut out, 8);
        out.extend_from_slice(&self.body);
        Ok(out)
    }

    /// Returns the starts of each array's references, sorted by the arrays' ids as readers expect
    /// it. Fails if an array is there twice.
    fn lists(&self) -> Result<Vec<(NodeId, &[u32])>> {
        let ends = self.arrays.iter().skip(1).map(|part| part.first).chain([self.ref_offsets.len()]);
        let list = |(part, end): (&Part, usize)| (part.node, self.ref_offsets.get(part.first..end).unwrap_or_default());
        let mut lists: Vec<(NodeId, &[u32])> = self.arrays.iter().zip(ends).map(list).collect();
        lists.sort_unstable_by_key(|(node, _)| *node);
        if let Some((node, _)) =
            lists.windows(2).find_map(|pair| pair.first().filter(|a| pair.last().is_some_and(|b| a.0 == b.0)))
        {
            return Err(Error::invalid(format!("array {node} was added to a manifest twice")));
        }
        Ok(lists)
    }
}

fn too_large() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "a manifest would be larger than the 2 GiB that the format allows: set manifest splitting in the repository's \
         configuration",
    )
}

fn pad(out: &mut Vec<u8>, to: usize) {
    out.resize(out.len().next_multiple_of(to), 0);
}

/// Overwrites the bytes at `at` with `bytes`.
#[inline]
fn overwrite(out: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = out.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

/// Points the offset at `at` to the bytes appended next, aligned to 4 bytes.
#[inline]
fn patch_offset(out: &mut Vec<u8>, at: usize) {
    pad(out, 4);
    let distance = (out.len() - at) as u32;
    overwrite(out, at, &distance.to_le_bytes());
}

/// Appends a vector of bytes, or a string.
fn append(out: &mut Vec<u8>, bytes: &[u8], is_text: bool) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
    if is_text {
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::chunk_payload::ChunkPayload;
    use crate::format::testing::{id, node_id};

    fn all(manifest: &Manifest) -> Vec<(Vec<u32>, ChunkPayload<&[u8]>)> {
        let refs = manifest.array(node_id(1)).unwrap().unwrap();
        (0..refs.len()).map(|at| (refs.coords(at).iter().collect(), refs.payload(at).unwrap())).collect()
    }

    fn sample(rank: usize) -> ManifestBuilder {
        let mut builder = ManifestBuilder::new(id(7), SpecVersion::V2, node_id(1), 4);
        let coords = |n: u32| (0..rank as u32).map(|axis| n * 3 + axis).collect::<Vec<u32>>();
        let etag = Checksum::Etag("\"tag\"".into());
        let places = [
            ChunkPayload::Inline(b"abcde".as_slice()),
            ChunkPayload::Native { chunk: id(3), offset: 0, length: 10 },
            ChunkPayload::Native { chunk: id(3), offset: u64::MAX - 100, length: 10 },
            ChunkPayload::Virtual {
                location: "s3://bucket/key".to_owned(),
                offset: 5,
                length: 6,
                checksum: Some(etag.clone()),
            },
            ChunkPayload::Virtual {
                location: "s3://b/k".to_owned(),
                offset: 0,
                length: 1,
                checksum: Some(Checksum::LastModified(77)),
            },
            ChunkPayload::Virtual { location: "gs://b/ключ".to_owned(), offset: 0, length: 1, checksum: None },
        ];
        for (n, place) in places.into_iter().enumerate().take(if rank == 0 { 1 } else { 6 }) {
            builder.push(&coords(n as u32), &place).unwrap();
        }
        builder
    }

    #[test]
    fn built_manifests_pass_the_verifier_and_read_back() {
        for rank in [0, 1, 2, 3, 64] {
            let built = sample(rank).finish().unwrap();
            let decoded = Manifest::decode(&built.file, 1 << 20).unwrap();
            assert_eq!(all(&decoded), all(&built.manifest));
            assert_eq!(built.info.size, built.file.len() as u64);
            assert_eq!((decoded.id(), built.info.chunk_refs), (id(7), if rank == 0 { 1 } else { 6 }));
            let expected: Vec<(u32, u32)> = (0..rank as u32).map(|axis| (axis, 15 + axis + 1)).collect();
            assert_eq!(built.references, [(node_id(1), ManifestRef { id: id(7), extents: expected })]);
            let again = sample(rank).assemble().unwrap();
            assert_eq!(again.get(4..8), Some(&b"Ichk"[..]));
        }
    }

    #[test]
    fn copies_are_equal() {
        let original = sample(2).finish().unwrap().manifest;
        let refs = original.array(node_id(1)).unwrap().unwrap();
        let mut builder = ManifestBuilder::new(id(8), SpecVersion::V2, node_id(1), 0);
        for at in 0..refs.len() {
            builder.copy(&refs, at).unwrap();
        }
        let copy = Manifest::decode(&builder.finish().unwrap().file, 1 << 20).unwrap();
        assert_eq!(all(&copy), all(&original));
    }

    #[test]
    fn compressed_locations_stay_compressed_or_become_plain() {
        let locations: Vec<String> = (0..200).map(|n| format!("s3://some-bucket/some/prefix/file-{n:05}.nc")).collect();
        let dictionary = zstd::dict::from_samples(&locations, 1024).unwrap();
        let mut compressor = zstd::bulk::Compressor::with_dictionary(3, &dictionary).unwrap();
        let mut builder =
            ManifestBuilder::new(id(1), SpecVersion::V2, node_id(1), 0).with_dictionary(Some(&dictionary));
        for (n, location) in (0..).zip(&locations) {
            let compressed = compressor.compress(location.as_bytes()).unwrap();
            let members = RefMembers {
                length: 9,
                compressed_location: Some(&compressed),
                last_modified: 4,
                ..RefMembers::default()
            };
            builder.add(1, [n].into_iter(), &members).unwrap();
        }
        let original = Manifest::decode(&builder.finish().unwrap().file, 1 << 20).unwrap();
        assert_eq!(original.location_dictionary(), Some(dictionary.as_slice()));
        let refs = original.array(node_id(1)).unwrap().unwrap();
        for (version, keep, compressed) in
            [(SpecVersion::V2, true, true), (SpecVersion::V2, false, false), (SpecVersion::V1, true, false)]
        {
            let dictionary = original.location_dictionary().filter(|_| keep);
            let mut copy = ManifestBuilder::new(id(2), version, node_id(1), 0).with_dictionary(dictionary);
            (0..refs.len()).for_each(|at| copy.copy(&refs, at).unwrap());
            let copy = Manifest::decode(&copy.finish().unwrap().file, 1 << 20).unwrap();
            assert_eq!(all(&copy), all(&original));
            assert_eq!(copy.location_dictionary().is_some(), compressed);
        }
    }

    #[test]
    fn arrays_share_a_manifest_in_any_order_of_adding() {
        let mut builder = ManifestBuilder::new(id(7), SpecVersion::V1, node_id(9), 0);
        // Neither the first nor the last of these arrays has chunks.
        for node in [5_u8, 8, 2, 3, 4] {
            builder.next_array(node_id(node));
            for n in 0..u32::from(node % 4) {
                builder.push(&[n, u32::from(node)], &ChunkPayload::Inline([node])).unwrap();
            }
        }
        let built = builder.finish().unwrap();
        let manifest = Manifest::decode(&built.file, 1 << 20).unwrap();
        assert_eq!(manifest.node_ids().collect::<Vec<_>>(), [node_id(2), node_id(3), node_id(5)]);
        for (node, reference) in &built.references {
            let number = u32::from(node.0[0]);
            let refs = manifest.array(*node).unwrap().unwrap();
            assert_eq!(refs.len() as u32, number % 4);
            assert_eq!(reference.extents, [(0, number % 4), (number, number + 1)]);
            for at in 0..refs.len() {
                assert_eq!(refs.coords(at).iter().collect::<Vec<_>>(), [at as u32, number]);
                assert_eq!(refs.payload(at).unwrap(), ChunkPayload::Inline(&[number as u8][..]));
            }
        }
        assert_eq!((built.references.len(), built.info.chunk_refs), (3, 2 + 3 + 1));
    }

    #[test]
    fn an_array_is_not_added_twice() {
        let mut builder = ManifestBuilder::new(id(7), SpecVersion::V2, node_id(1), 0);
        for node in [1, 2, 1] {
            builder.next_array(node_id(node));
            builder.push(&[u32::from(node)], &ChunkPayload::Inline([1])).unwrap();
        }
        assert!(builder.finish().is_err());
    }

    #[test]
    fn empty_chunks_and_empty_manifests_are_refused() {
        let mut builder = ManifestBuilder::new(id(1), SpecVersion::V2, node_id(1), 0);
        assert!(builder.push(&[0], &ChunkPayload::Inline(&[])).is_err());
        assert!(builder.push(&[0], &ChunkPayload::<&[u8]>::Native { chunk: id(1), offset: 0, length: 0 }).is_err());
        assert!(builder.is_empty() && builder.finish().is_err());
    }
}
