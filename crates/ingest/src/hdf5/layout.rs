//! Place of the data of a dataset, and the codecs that have made its chunks.

use hdf5_reader::Hdf5File;
use hdf5_reader::btree_v1::{BTreeV1Key, collect_btree_v1_leaves_storage};
use hdf5_reader::chunk_index::{self, ChunkEntry};
use hdf5_reader::extensible_array::collect_extensible_array_chunk_entries_storage;
use hdf5_reader::fixed_array::collect_fixed_array_chunk_entries_storage;
use hdf5_reader::io::Cursor;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::dataspace::DataspaceMessage;
use hdf5_reader::messages::filter_pipeline::FilterDescription;
use hdf5_reader::messages::layout::{ChunkIndexing, DataLayout};
use serde_json::{Value, json};

use super::edges;
use super::links::Variable;
use super::nodes::Nodes;
use super::storage::Widths;
use crate::chunking::{self, Sizes};
use crate::codec::{self, Codec};
use crate::data::{self, ArrayData, ChunkPlace, Stored};
use crate::plan::{self, MAX_CHUNKS};
use crate::run::{Run, product};
use crate::source::Source;

type Outcome<T> = Result<T, String>;

/// Numbers of filters (HDF5 specification, "Filter Pipeline Message", and the registry of filters).
const DEFLATE: u16 = 1;
const SHUFFLE: u16 = 2;
const FLETCHER32: u16 = 3;
const BZIP2: u16 = 307;
const BLOSC: u16 = 32_001;
const ZSTD: u16 = 32_015;
/// Names of the others, for display.
const OTHERS: [(u16, &str); 10] = [
    (4, "szip"),
    (5, "nbit"),
    (6, "scaleoffset"),
    (32_000, "lzf"),
    (32_004, "lz4"),
    (32_008, "bitshuffle"),
    (32_013, "zfp"),
    (32_017, "sz"),
    (32_024, "sz3"),
    (32_026, "blosc2"),
];
/// Most cells of an index that has one for each chunk, whether that is there or not: the library
/// makes a list of them, of 100 bytes each.
const MAX_CELLS: u64 = 2_000_000;
/// Most bytes of the data of a dataset that are in the plan. HDF5 has at most 64 KiB in a header.
const MAX_INLINE: usize = 64 << 10;

/// Chunks that a file may still have: each array is counted before its index is read.
#[derive(Debug)]
pub(super) struct Budget {
    chunks: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { chunks: MAX_CHUNKS }
    }
}

/// Place of the data of an array.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) data: ArrayData,
    /// Elements of a chunk per dimension, if the file has chunks.
    pub(super) chunk_shape: Option<Vec<u64>>,
    /// Codecs of `zarr.json` behind the one of elements.
    pub(super) codecs: Vec<Value>,
}

/// Finds the data of `variable`, whose elements are in `space` in the file and in `shape` in the
/// array; one with the fill value is `fill`. Returns why it is left out otherwise.
pub(super) fn of(
    file: &Hdf5File,
    source: &dyn Source,
    variable: &Variable,
    space: &DataspaceMessage,
    shape: &[u64],
    fill: &[u8],
    budget: &mut Budget,
) -> Outcome<Layout> {
    let header = &variable.header;
    let layout = header.messages.iter().find_map(|message| match message {
        HdfMessage::DataLayout(layout) => Some(&layout.layout),
        _ => None,
    });
    let filters = header.messages.iter().find_map(|message| match message {
        HdfMessage::FilterPipeline(pipeline) => Some(pipeline.filters.as_slice()),
        _ => None,
    });
    let filters = filters.unwrap_or_default();
    let whole = |data| Ok(Layout { data, chunk_shape: None, codecs: Vec::new() });
    let size = fill.len() as u64;
    let run = |begin| Run::new(shape.to_vec(), size, begin, None).map_err(|e| e.to_string());
    match layout {
        None => Err("it does not state where its data are".to_owned()),
        Some(DataLayout::Compact { data }) => {
            let length = product(shape, size).and_then(|length| usize::try_from(length).ok());
            let bytes = length.filter(|length| *length <= MAX_INLINE).and_then(|length| data.get(..length));
            let bytes = bytes.ok_or("its data are shorter than its shape")?.to_vec();
            whole(ArrayData::Inline { run: run(0)?, bytes })
        }
        Some(DataLayout::Contiguous { address: place, .. }) => {
            if is_nowhere(file, *place) {
                let chunk_shape = chunking::chunk_shape(shape, size, Sizes::USUAL);
                return Ok(stored(shape, chunk_shape, fill, Filters::default(), Vec::new()));
            }
            let begin = place.checked_add(file.superblock().base_address).ok_or("its data are beyond any file")?;
            whole(ArrayData::Plain(run(begin)?))
        }
        Some(DataLayout::Chunked { address: place, dims, chunk_indexing, .. }) => {
            // Older files have the size of an element as one dimension more.
            let rank = space.dims.len();
            let dims = dims.get(..rank).filter(|dims| !dims.contains(&0)).ok_or("chunks of another rank")?;
            let chunk: Vec<u64> = dims.iter().map(|length| u64::from(*length)).collect();
            let kind = chunk_indexing.as_ref();
            let index = Index { file, source, header: variable.address, address: *place, kind, space, dims, size };
            if index.chunk_bytes() > data::MAX_STORED {
                return Err(format!("chunks of {} bytes: at most 256 MiB are supported", index.chunk_bytes()));
            }
            let entries = index.entries(budget)?;
            let filters = Filters::of(&index, &entries, filters)?;
            let grid = plan::grid(shape, &chunk).ok_or("more than 2^32 chunks along a dimension")?;
            let chunks = places(&index, entries, &grid, &filters)?;
            Ok(stored(shape, chunk, fill, filters, chunks))
        }
    }
}

fn is_nowhere(file: &Hdf5File, address: u64) -> bool {
    Cursor::is_undefined_offset(address, file.superblock().offset_size)
}

/// Index of the chunks of a dataset.
struct Index<'a> {
    file: &'a Hdf5File,
    /// The same file.
    source: &'a dyn Source,
    /// Address of the header of the dataset.
    header: u64,
    /// Address of the index.
    address: u64,
    kind: Option<&'a ChunkIndexing>,
    space: &'a DataspaceMessage,
    dims: &'a [u32],
    /// Bytes of an element.
    size: u64,
}

impl Index<'_> {
    /// Returns the bytes of a chunk without filters.
    fn chunk_bytes(&self) -> u64 {
        self.dims.iter().fold(self.size, |bytes, length| bytes.saturating_mul(u64::from(*length)))
    }

    /// Reads the entries. Those beyond the shape are left out: it may have been larger.
    fn entries(&self, budget: &mut Budget) -> Outcome<Vec<ChunkEntry>> {
        if is_nowhere(self.file, self.address) {
            return Ok(Vec::new());
        }
        let Widths { offset, length } = Widths::of(self.file);
        let storage = self.file.storage();
        let shape = self.space.dims.as_slice();
        let dims = self.dims;
        let rank = u32::try_from(shape.len()).unwrap_or(u32::MAX);
        let most = self.space.max_dims.as_deref();
        // These number chunks by the largest shape that the dataset may have.
        let largest = most.filter(|most| most.len() == shape.len()).unwrap_or(shape);
        let count = |shape: &[u64]| {
            std::iter::zip(shape, dims)
                .try_fold(1_u64, |count, (length, chunk)| count.checked_mul(length.div_ceil(u64::from(*chunk))))
        };
        let is_few = |shape: &[u64]| count(shape).is_some_and(|count| count <= budget.chunks.min(MAX_CELLS));
        let too_many =
            || format!("more chunks than a file may have: {MAX_CHUNKS}, or {MAX_CELLS} that need not be there");
        let found = match self.kind {
            None => {
                let nodes = Nodes::of(self.file, self.source, self.address, rank);
                let leaves =
                    collect_btree_v1_leaves_storage(&nodes, self.address, offset, length, Some(rank), dims, None);
                leaves.map(|leaves| {
                    leaves.into_iter().filter_map(|(key, address)| entry_of(key, address, shape.len())).collect()
                })
            }
            Some(ChunkIndexing::SingleChunk { filtered_size, filters }) => {
                Ok(vec![chunk_index::single_chunk_entry(self.address, *filtered_size, *filters, shape.len())])
            }
            Some(ChunkIndexing::BTreeV2) => {
                chunk_index::collect_v2_chunk_entries_storage(storage, self.address, offset, length, rank, dims, None)
            }
            Some(ChunkIndexing::Implicit) => {
                if !is_few(largest) {
                    return Err(too_many());
                }
                let size = usize::try_from(self.size).unwrap_or(usize::MAX);
                chunk_index::collect_implicit_chunk_entries(self.address, largest, dims, size, None, storage.len())
            }
            Some(ChunkIndexing::FixedArray { .. }) => {
                if !is_few(largest) {
                    return Err(too_many());
                }
                collect_fixed_array_chunk_entries_storage(storage, self.address, offset, length, largest, dims, None)
            }
            Some(ChunkIndexing::ExtensibleArray { .. }) => {
                if !is_few(shape) {
                    return Err(too_many());
                }
                collect_extensible_array_chunk_entries_storage(
                    storage,
                    self.address,
                    offset,
                    length,
                    shape,
                    most,
                    dims,
                    None,
                )
            }
        };
        let mut found: Vec<ChunkEntry> = found.map_err(|e| e.to_string())?;
        found.retain(|entry| std::iter::zip(&entry.offsets, shape).all(|(offset, length)| offset < length));
        found.retain(|entry| !is_nowhere(self.file, entry.address));
        budget.chunks = budget.chunks.checked_sub(found.len() as u64).ok_or_else(too_many)?;
        Ok(found)
    }
}

fn entry_of(key: BTreeV1Key, address: u64, rank: usize) -> Option<ChunkEntry> {
    match key {
        BTreeV1Key::RawData { chunk_size, filter_mask, offsets } => {
            Some(ChunkEntry { address, size: chunk_size.into(), filter_mask, offsets: offsets.get(..rank)?.to_vec() })
        }
        _ => None,
    }
}

fn stored(shape: &[u64], chunk_shape: Vec<u64>, fill: &[u8], filters: Filters, chunks: Vec<ChunkPlace>) -> Layout {
    let converted = filters.is_converted.then(|| codec::all_of(&filters.documents));
    let data = Stored {
        shape: shape.to_vec(),
        chunk_shape: chunk_shape.clone(),
        fill: fill.to_vec(),
        filters: filters.codecs,
        converted,
        chunks,
    };
    Layout { data: ArrayData::Stored(data), chunk_shape: Some(chunk_shape), codecs: filters.documents }
}

/// Returns the places of the chunks with the `entries` of an index, in an array with this `grid` of
/// chunks.
fn places(index: &Index<'_>, entries: Vec<ChunkEntry>, grid: &[u32], filters: &Filters) -> Outcome<Vec<ChunkPlace>> {
    let mut chunks = Vec::with_capacity(entries.len());
    for (number, entry) in entries.into_iter().enumerate() {
        let coord = |(offset, chunk): (&u64, &u32)| {
            let chunk = u64::from(*chunk);
            offset.is_multiple_of(chunk).then(|| u32::try_from(offset / chunk).ok())?
        };
        let coords: Option<Vec<u32>> = std::iter::zip(&entry.offsets, index.dims).map(coord).collect();
        let position =
            coords.filter(|coords| coords.len() == grid.len()).and_then(|coords| data::position_of(&coords, grid));
        let position = position.ok_or("a chunk that does not begin where chunks do")?;
        let offset = entry.address.checked_add(index.file.superblock().base_address);
        let offset = offset.ok_or("a chunk beyond any file")?;
        // Without filters the index has no lengths.
        let length = if filters.is_none { index.chunk_bytes() } else { entry.size };
        chunks.push(ChunkPlace {
            position,
            offset,
            length,
            mask: filters.masks.get(number).copied().unwrap_or_default(),
        });
    }
    chunks.sort_unstable_by_key(|place| place.position);
    if chunks.windows(2).any(|pair| matches!(pair, [one, next] if one.position == next.position)) {
        return Err("a chunk that is there twice".to_owned());
    }
    Ok(chunks)
}

/// Filters of the chunks of a dataset, and the codecs of its array.
#[derive(Debug, Default)]
struct Filters {
    /// True if there are none, whatever chunks have passed of them.
    is_none: bool,
    /// Filters that chunks have passed.
    codecs: Vec<Codec>,
    /// Codecs of `zarr.json`.
    documents: Vec<Value>,
    /// True if the chunks are not those of the codecs.
    is_converted: bool,
    /// Filters that each chunk has not passed, in the order of the entries; empty if each has
    /// passed all.
    masks: Vec<u64>,
}

impl Filters {
    /// Finds the filters of the `entries`. Each may have left out some of those `all` of the
    /// dataset.
    fn of(index: &Index<'_>, entries: &[ChunkEntry], all: &[FilterDescription]) -> Outcome<Self> {
        let mut masks: Vec<u64> = entries.iter().map(|entry| entry.filter_mask.into()).collect();
        // Files whose chunks are in a B-tree of version 1 are from before the flag.
        let edges_are_plain = match index.kind {
            Some(_) if !all.is_empty() => edges::are_plain(index.file, index.header).map_err(|e| e.to_string())?,
            _ => Some(false),
        };
        if edges_are_plain.ok_or("it does not state whether its chunks at the edges have passed the filters")? {
            let partial = std::iter::zip(entries, &mut masks).filter(|(entry, _)| index.is_partial(entry));
            partial.for_each(|(_, mask)| *mask = u64::MAX);
        }
        Filters::with_masks(masks, all)
    }

    fn with_masks(masks: Vec<u64>, all: &[FilterDescription]) -> Outcome<Self> {
        let unused = masks.iter().copied().reduce(|one, other| one & other).unwrap_or_default();
        if masks.iter().all(|mask| *mask == unused) {
            // Filters that no chunk has passed may be any.
            let is_used = |number: usize| number >= 64 || unused & (1 << number) == 0;
            // The library gives a shuffle of texts its size with the first chunk.
            let is_unset =
                |filter: &FilterDescription| masks.is_empty() && filter.id == SHUFFLE && filter.client_data.is_empty();
            let used = all.iter().enumerate().filter(|(number, filter)| is_used(*number) && !is_unset(filter));
            let codecs = used.map(|(_, filter)| codec_of(filter)).collect::<Outcome<Vec<_>>>()?;
            return Ok(Filters::uniform(all.is_empty(), codecs));
        }
        let codecs = all.iter().map(codec_of).collect::<Outcome<Vec<_>>>()?;
        let (codecs, documents): (Vec<Codec>, Vec<Option<Value>>) = codecs.into_iter().unzip();
        if codecs.contains(&Codec::Other) {
            return Err("its chunks have passed different filters, which cannot be undone here".to_owned());
        }
        let documents = documents.into_iter().flatten().collect();
        Ok(Filters { is_none: all.is_empty(), codecs, documents, is_converted: true, masks })
    }

    /// Returns those that all chunks have passed.
    fn uniform(is_none: bool, codecs: Vec<(Codec, Option<Value>)>) -> Self {
        let is_checksum = |(codec, _): &(Codec, Option<Value>)| *codec == Codec::Checksum;
        // Any program can read what is in front of a checksum. One before others is a part of what
        // they have packed, and few programs have a codec for that.
        let inside = codecs.iter().rev().skip(1).any(is_checksum);
        let can_convert = !codecs.iter().any(|(codec, _)| *codec == Codec::Other);
        let is_converted = inside && can_convert;
        let document = |(codec, document): &(Codec, Option<Value>)| match codec {
            Codec::Checksum if inside && !can_convert => {
                Some(json!({"name": "numcodecs.fletcher32", "configuration": {}}))
            }
            _ => document.clone(),
        };
        let last = codecs.len().saturating_sub(1);
        let has_last = codecs.last().is_some_and(is_checksum);
        let documents = codecs.iter().enumerate().filter(|(at, _)| !(has_last && *at == last));
        let documents = documents.filter_map(|(_, codec)| document(codec)).collect();
        let codecs = codecs.into_iter().map(|(codec, _)| codec).collect();
        Filters { is_none, codecs, documents, is_converted, masks: Vec::new() }
    }
}

/// Returns a filter as it is undone here, and the codec that undoes it; none for a checksum.
fn codec_of(filter: &FilterDescription) -> Outcome<(Codec, Option<Value>)> {
    if filter.id == FLETCHER32 {
        return Ok((Codec::Checksum, None));
    }
    let document = codec(filter)?;
    Ok((Codec::parse(&document), Some(document)))
}

fn codec(filter: &FilterDescription) -> Outcome<Value> {
    let number = |place: usize| filter.client_data.get(place).copied();
    let named = |name: &str, configuration: Value| Ok(json!({"name": name, "configuration": configuration}));
    match filter.id {
        DEFLATE => named("numcodecs.zlib", json!({"level": number(0).unwrap_or(1).min(9)})),
        SHUFFLE => {
            let size = number(0).filter(|size| *size > 0).ok_or("a shuffle filter without a size")?;
            named("numcodecs.shuffle", json!({"elementsize": size}))
        }
        BZIP2 => named("numcodecs.bz2", json!({"level": number(0).unwrap_or(9).clamp(1, 9)})),
        ZSTD => named("zstd", json!({"level": number(0).map_or(0, u32::cast_signed), "checksum": false})),
        BLOSC => blosc(filter),
        id => {
            let known = OTHERS.iter().find(|(other, _)| *other == id).map(|(_, name)| (*name).to_owned());
            let name = known.or_else(|| filter.name.clone()).unwrap_or_else(|| format!("number {id}"));
            Err(format!(
                "compressed with filter {name}, for which Zarr has no codec: decompress it, such as with h5repack"
            ))
        }
    }
}

/// Returns the codec of chunks of Blosc: readers find everything but the size of an element in the
/// chunk itself.
fn blosc(filter: &FilterDescription) -> Outcome<Value> {
    const NAMES: [&str; 6] = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"];
    const SHUFFLES: [&str; 3] = ["noshuffle", "shuffle", "bitshuffle"];
    let number = |place: usize| filter.client_data.get(place).copied();
    let named = |names: &[&'static str], place: usize, usual: u32| {
        let found = usize::try_from(number(place).unwrap_or(usual)).ok().and_then(|at| names.get(at).copied());
        found.ok_or_else(|| "compressed with a kind of blosc that Zarr does not have".to_owned())
    };
    let typesize = number(2).filter(|size| (1..=255).contains(size)).ok_or("a blosc filter without a size")?;
    Ok(json!({"name": "blosc", "configuration": {
        "cname": named(&NAMES, 6, 0)?,
        "clevel": number(4).unwrap_or(5).min(9),
        "shuffle": named(&SHUFFLES, 5, 1)?,
        "typesize": typesize,
        "blocksize": 0,
    }}))
}

impl Index<'_> {
    /// Returns true if the chunk reaches beyond the shape.
    fn is_partial(&self, entry: &ChunkEntry) -> bool {
        let ends =
            std::iter::zip(&entry.offsets, self.dims).map(|(offset, chunk)| offset.saturating_add((*chunk).into()));
        std::iter::zip(ends, &self.space.dims).any(|(end, length)| end > *length)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    fn filter(id: u16, client_data: &[u32]) -> FilterDescription {
        FilterDescription { id, name: None, client_data: client_data.to_vec() }
    }

    fn filters(all: &[FilterDescription], masks: &[u64]) -> Outcome<Filters> {
        Filters::with_masks(masks.to_vec(), all)
    }

    fn names(filters: &Filters) -> Vec<&str> {
        filters.documents.iter().map(|document| document["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn filters_that_no_chunk_has_passed_are_left_out() {
        let all = [filter(SHUFFLE, &[4]), filter(DEFLATE, &[6])];
        for (masks, expected) in [
            (&[][..], &["numcodecs.shuffle", "numcodecs.zlib"][..]),
            (&[0, 0], &["numcodecs.shuffle", "numcodecs.zlib"]),
            (&[1], &["numcodecs.zlib"]),
            (&[2, 2], &["numcodecs.shuffle"]),
            (&[u64::MAX], &[]),
        ] {
            let found = filters(&all, masks).unwrap();
            assert_eq!((names(&found).as_slice(), found.is_converted), (expected, false), "{masks:?}");
        }
        // Also one that nobody can undo.
        let found = filters(&[filter(32_000, &[]), filter(DEFLATE, &[6])], &[1]).unwrap();
        assert_eq!(names(&found), ["numcodecs.zlib"]);
    }

    #[test]
    fn chunks_that_have_passed_different_filters_are_made_again() {
        let found = filters(&[filter(SHUFFLE, &[4]), filter(DEFLATE, &[6])], &[0, 2]).unwrap();
        assert!(found.is_converted && found.masks == [0, 2]);
        assert_eq!(names(&found), ["numcodecs.shuffle", "numcodecs.zlib"]);
        assert!(filters(&[filter(BZIP2, &[6])], &[0, 1]).unwrap_err().contains("different"));
    }

    #[test]
    fn codecs_undo_filters_in_their_order() {
        let all = [filter(SHUFFLE, &[4]), filter(DEFLATE, &[6]), filter(FLETCHER32, &[])];
        let found = filters(&all, &[0]).unwrap();
        assert_eq!(found.documents[0], json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}}));
        assert_eq!(found.documents[1], json!({"name": "numcodecs.zlib", "configuration": {"level": 6}}));
        assert!(found.documents.len() == 2 && !found.is_converted);
        assert_eq!(found.codecs, [Codec::Shuffle(4), Codec::Zlib(6), Codec::Checksum]);
        // A checksum before others.
        let found = filters(&[filter(FLETCHER32, &[]), filter(SHUFFLE, &[8]), filter(DEFLATE, &[1])], &[0]).unwrap();
        assert!(found.is_converted);
        assert_eq!(names(&found), ["numcodecs.shuffle", "numcodecs.zlib"]);
        let found = filters(&[filter(FLETCHER32, &[]), filter(BZIP2, &[1])], &[0]).unwrap();
        assert!(!found.is_converted && names(&found) == ["numcodecs.fletcher32", "numcodecs.bz2"]);
    }

    #[test]
    fn a_filter_without_a_codec_is_named() {
        assert!(filters(&[filter(32_000, &[])], &[0]).unwrap_err().contains("lzf"));
        assert!(filters(&[filter(40_000, &[])], &[]).unwrap_err().contains("number 40000"));
        let found = filters(&[filter(BLOSC, &[2, 2, 8, 800, 3, 2, 5])], &[0]).unwrap();
        assert_eq!(found.documents[0]["configuration"]["cname"], "zstd");
        assert_eq!(found.documents[0]["configuration"]["shuffle"], "bitshuffle");
        assert!(filters(&[filter(BLOSC, &[2, 2, 8, 800, 3, 2, 9])], &[0]).is_err());
    }
}
