//! Shards: many *inner* chunks in one stored object, found through an index in it.
//!
//! Two documents describe the same bytes. The codec `sharding_indexed` divides a chunk of the grid
//! into inner chunks, and may do so again within them; ZEP 2's draft had a storage transformer
//! (`"type": "indexed"`) that puts neighbors of the grid into one object. The index has an offset
//! and a length per inner chunk, 8 bytes each, in C order; all ones mark an absent one. The length
//! of the index follows from `zarr.json` alone, since its codecs have fixed sizes.
//!
//! [`ShardLayout::parse`] derives the layout of a stored object from a `zarr.json`,
//! [`Index::decode`] reads an index. Both are pure. An index is untrusted: [`Index::faults`] lists
//! its invalid entries, and nothing here relies on their absence.

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;
use smallvec::SmallVec;

use super::array::{self, MAX_RANK};
use super::document::{self, extension_name, numbers, setting};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;

/// Bytes of an index entry: offset and length.
const ENTRY: u64 = 16;
const CHECKSUM: u64 = 4;
/// Maximum number of inner chunks in a shard. The index is held in memory: these are 16 MiB of it.
pub const MAX_INNER: u64 = 1 << 20;
/// Maximum nesting of shards. More than two levels are not known to exist.
const MAX_DEPTH: usize = 8;

/// Coordinates of an inner chunk within its shard.
pub type InnerCoords = SmallVec<[u64; 6]>;

/// Position of the index in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexLocation {
    /// Before the inner chunks.
    Start,
    /// After the inner chunks.
    End,
}

/// Layout of an array's stored objects, or of inner chunks that are shards again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardLayout {
    /// Inner chunks per dimension of a shard. The dimensions are those that the codec sees, in the
    /// order that a `transpose` gave them.
    pub grid: Vec<u64>,
    /// Elements per dimension of an inner chunk.
    pub inner_shape: Vec<u64>,
    /// Position of the index.
    pub location: IndexLocation,
    /// True if the numbers of the index are big-endian.
    pub big_endian: bool,
    /// True if a CRC-32C of the index follows it.
    pub checksum: bool,
    /// Bytes after the shard that belong to other codecs: a checksum of all of it.
    pub trailer: u64,
    /// Layout of inner chunks that are shards again and can be read in parts.
    pub inner: Option<Box<ShardLayout>>,
    count: u64,
}

/// Part of a [`ShardLayout`] by which the index of a shard is found and decoded. Arrays of
/// different layouts may have the same shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IndexForm {
    location: IndexLocation,
    big_endian: bool,
    checksum: bool,
    trailer: u64,
    count: u64,
}

/// A decoded index.
#[derive(Clone, Debug)]
pub struct Index {
    entries: Bytes,
    big_endian: bool,
    /// Range of the shard that inner chunks may use.
    within: Range<u64>,
    /// Range of the index itself.
    place: Range<u64>,
}

/// An invalid entry of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFault {
    /// Number of the inner chunk in C order.
    pub number: u64,
    /// Offset according to the index.
    pub offset: u64,
    /// Length in bytes according to the index.
    pub length: u64,
    /// Reason.
    pub kind: FaultKind,
}

/// Reason why an index entry is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The inner chunk does not end within the shard.
    Outside,
    /// The inner chunk overlaps the index.
    OverlapsIndex,
    /// The inner chunk overlaps another one, whose number this is.
    Overlaps(u64),
    /// Half of the entry marks the inner chunk as absent.
    HalfAbsent,
}

impl ShardLayout {
    /// Derives the layout of stored objects from an array's `zarr.json`. Returns none if they are
    /// no shards, or are compressed as a whole, so that parts of them cannot be read. Looks into it
    /// on the reservation `room` (`document::reserve`).
    ///
    /// Fails with [`ErrorKind::Corrupt`] if the document contradicts itself, with
    /// [`ErrorKind::Unsupported`] for more than [`MAX_INNER`] inner chunks and for codecs around a
    /// shard or its index whose effect on sizes is unknown.
    pub fn parse(zarr_json: &[u8], room: &mut Meter) -> Result<Option<Self>> {
        /// The required members only: attributes may be much longer.
        #[derive(Deserialize)]
        struct Document {
            #[serde(default)]
            chunk_grid: Value,
            #[serde(default)]
            codecs: Value,
            #[serde(default)]
            storage_transformers: Value,
        }
        let document: Document = document::parse(zarr_json, room)?;
        let shape = array::regular_chunk(&document.chunk_grid);
        if let Some(grid) = array::chunks_per_shard(&document.storage_transformers)? {
            let inner_shape = shape.ok_or_else(|| Error::corrupt("chunks_per_shard without a regular chunk grid"))?;
            if grid.len() != inner_shape.len() {
                let stated = grid.len();
                let rank = inner_shape.len();
                return Err(Error::corrupt(format!("chunks_per_shard of {stated} dimensions for an array of {rank}")));
            }
            let inner = from_codecs(&document.codecs, &inner_shape, 1)?.map(Box::new);
            let count = count(&grid)?;
            let location = IndexLocation::End;
            let big_endian = false;
            let checksum = false;
            let trailer = 0;
            return Ok(Some(ShardLayout { grid, inner_shape, location, big_endian, checksum, trailer, inner, count }));
        }
        match shape {
            Some(shape) => from_codecs(&document.codecs, &shape, 0),
            // Chunks of different shapes have indexes of different lengths.
            None => Ok(None),
        }
    }

    /// Returns false if [`ShardLayout::parse`] cannot find a shard, without parsing. Escaped names
    /// are missed; no program writes them.
    pub fn may_be_in(zarr_json: &[u8]) -> bool {
        let text = std::str::from_utf8(zarr_json).unwrap_or_default();
        text.contains("sharding_indexed")
            || (text.contains("storage_transformers") && text.contains("chunks_per_shard"))
    }

    /// Returns the number of inner chunks in a shard, absent ones included.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the bytes of the index, its checksum included.
    pub fn index_length(&self) -> u64 {
        self.count * ENTRY + if self.checksum { CHECKSUM } else { 0 }
    }

    /// Returns what decides about the index of a shard.
    pub fn index_form(&self) -> IndexForm {
        let &ShardLayout { location, big_endian, checksum, trailer, count, .. } = self;
        IndexForm { location, big_endian, checksum, trailer, count }
    }

    /// Returns the range of the index in a shard of `length` bytes; none if the shard is too short.
    pub fn index_range(&self, length: u64) -> Option<Range<u64>> {
        let end = length.checked_sub(self.trailer)?;
        let index = self.index_length();
        match self.location {
            IndexLocation::Start => (index <= end).then_some(0..index),
            IndexLocation::End => Some(end.checked_sub(index)?..end),
        }
    }

    /// Returns the coordinates of inner chunk `number`.
    pub fn coords(&self, number: u64) -> InnerCoords {
        coords_in(&self.grid, number)
    }
}

/// Returns the coordinates in `grid` of number `number` in C order.
pub fn coords_in(grid: &[u64], number: u64) -> InnerCoords {
    let mut rest = number;
    let last_first = grid.iter().rev().map(|&length| {
        let coord = rest.checked_rem(length).unwrap_or(0);
        rest = rest.checked_div(length).unwrap_or(0);
        coord
    });
    let mut coords: InnerCoords = last_first.collect();
    coords.reverse();
    coords
}

/// Parses the outermost shard in `codecs` of a chunk of `shape`; none if there is none or parts of
/// it cannot be read.
fn from_codecs(codecs: &Value, shape: &[u64], depth: usize) -> Result<Option<ShardLayout>> {
    let Some(codecs) = codecs.as_array() else { return Ok(None) };
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::Unsupported, format!("shards within shards, more than {MAX_DEPTH} deep")));
    }
    let Some(at) = codecs.iter().position(|codec| extension_name(codec) == Some("sharding_indexed")) else {
        return Ok(None);
    };
    let (before, rest) = codecs.split_at(at);
    let Some((sharding, behind)) = rest.split_first() else { return Ok(None) };
    let mut trailer: u64 = 0;
    for codec in behind {
        match extension_name(codec) {
            Some("crc32c") => trailer += CHECKSUM,
            // The codec transforms the shard as a whole: parts of it cannot be read.
            _ => return Ok(None),
        }
    }
    let mut shape = shape.to_vec();
    for codec in before {
        shape = reshaped(codec, &shape)?;
    }
    let inner_shape = numbers(setting(sharding, "chunk_shape"))
        .ok_or_else(|| Error::corrupt("sharding_indexed has no chunk_shape of whole numbers"))?;
    if inner_shape.len() != shape.len() {
        let inner = inner_shape.len();
        let rank = shape.len();
        return Err(Error::corrupt(format!(
            "sharding_indexed has inner chunks of {inner} dimensions in chunks of {rank}"
        )));
    }
    let per_dimension = std::iter::zip(&shape, &inner_shape).map(|(&length, &inner)| {
        let fits = inner > 0 && length.checked_rem(inner) == Some(0);
        let wrong = || Error::corrupt(format!("inner chunks of {inner_shape:?} do not divide chunks of {shape:?}"));
        if fits { Ok(length / inner) } else { Err(wrong()) }
    });
    let grid = per_dimension.collect::<Result<Vec<u64>>>()?;
    let count = count(&grid)?;
    let location = match setting(sharding, "index_location") {
        None | Some(Value::Null) => IndexLocation::End,
        Some(Value::String(place)) if place == "end" => IndexLocation::End,
        Some(Value::String(place)) if place == "start" => IndexLocation::Start,
        Some(other) => {
            return Err(Error::corrupt(format!(
                "sharding_indexed has its index_location at {}",
                document::shown(other)
            )));
        }
    };
    let (big_endian, checksum) = index_codecs(setting(sharding, "index_codecs"))?;
    let codecs = setting(sharding, "codecs").unwrap_or(&Value::Null);
    let inner = from_codecs(codecs, &inner_shape, depth + 1)?.map(Box::new);
    Ok(Some(ShardLayout { grid, inner_shape, location, big_endian, checksum, trailer, inner, count }))
}

/// Parses the codecs of an index. Returns true if its numbers are big-endian, and true if a CRC-32C
/// follows.
fn index_codecs(codecs: Option<&Value>) -> Result<(bool, bool)> {
    let unknown = |codec: &Value| {
        Error::new(
            ErrorKind::Unsupported,
            format!("index_codecs of a shard with {}: `bytes` and `crc32c` are known", document::shown(codec)),
        )
    };
    let Some(codecs) = codecs.filter(|codecs| !codecs.is_null()) else { return Ok((false, true)) };
    let codecs = codecs.as_array().ok_or_else(|| Error::corrupt("index_codecs of a shard is not a list"))?;
    let mut big_endian = false;
    let mut bytes = false;
    let mut checksum = false;
    for codec in codecs {
        match extension_name(codec) {
            Some("bytes") if !bytes => {
                big_endian = match setting(codec, "endian").map(Value::as_str) {
                    None | Some(Some("little")) => false,
                    Some(Some("big")) => true,
                    Some(_) => return Err(unknown(codec)),
                };
                bytes = true;
            }
            Some("crc32c") if bytes && !checksum => checksum = true,
            _ => return Err(unknown(codec)),
        }
    }
    if bytes {
        Ok((big_endian, checksum))
    } else {
        Err(Error::corrupt("the index_codecs of a shard do not produce bytes"))
    }
}

/// Returns the shape of the output of `codec` for an array of `shape`.
fn reshaped(codec: &Value, shape: &[u64]) -> Result<Vec<u64>> {
    let name = extension_name(codec).unwrap_or_default();
    match name {
        "transpose" => {
            let wrong =
                || Error::corrupt(format!("a transpose codec for {} dimensions has an invalid order", shape.len()));
            let order = numbers(setting(codec, "order")).ok_or_else(wrong)?;
            let mut seen = order.clone();
            seen.sort_unstable();
            if !seen.iter().copied().eq(0..shape.len() as u64) {
                return Err(wrong());
            }
            order.iter().map(|&axis| shape.get(axis as usize).copied().ok_or_else(wrong)).collect()
        }
        "cast_value"
        | "scale_offset"
        | "bitround"
        | "numcodecs.delta"
        | "numcodecs.fixedscaleoffset"
        | "numcodecs.quantize"
        | "numcodecs.bitround"
        | "numcodecs.astype" => Ok(shape.to_vec()),
        _ => Err(Error::new(
            ErrorKind::Unsupported,
            format!("codec `{name}` before sharding_indexed: it may change shapes"),
        )),
    }
}

fn count(grid: &[u64]) -> Result<u64> {
    let too_many = || {
        Error::new(
            ErrorKind::Unsupported,
            format!("a shard of {grid:?} inner chunks: at most {MAX_INNER} are supported"),
        )
    };
    if grid.len() > MAX_RANK {
        return Err(too_many());
    }
    let count = grid.iter().try_fold(1_u64, |count, &length| count.checked_mul(length));
    count.filter(|count| *count <= MAX_INNER).ok_or_else(too_many)
}

impl Index {
    /// Decodes the index `bytes` of a shard of `length` bytes. Fails with [`ErrorKind::Corrupt`] if
    /// it has another length or its checksum does not match.
    pub fn decode(sharding: &ShardLayout, length: u64, mut bytes: Bytes) -> Result<Self> {
        let wanted = sharding.index_length();
        let place = sharding.index_range(length).filter(|_| bytes.len() as u64 == wanted).ok_or_else(|| {
            let count = sharding.count;
            Error::corrupt(format!("no room for an index of {count} inner chunks ({wanted} bytes) in {length} bytes"))
        })?;
        if sharding.checksum {
            let at = bytes.len() - CHECKSUM as usize;
            let stored = bytes.split_off(at);
            let stored = stored.first_chunk::<4>().map_or(0, |stored| u32::from_le_bytes(*stored));
            let computed = crc32c::crc32c(&bytes);
            if stored != computed {
                return Err(Error::corrupt(format!(
                    "the index at offset {} has CRC-32C {computed:08x}, and {stored:08x} is stored with it",
                    place.start
                )));
            }
        }
        let within = 0..length - sharding.trailer;
        Ok(Index { entries: bytes, big_endian: sharding.big_endian, within, place })
    }

    /// Returns the number of entries, those of absent inner chunks included.
    pub fn entry_count(&self) -> u64 {
        self.entries.len() as u64 / ENTRY
    }

    /// Returns offset and length of entry `number` as stored, valid or not; none if the inner chunk
    /// is absent.
    pub fn entry(&self, number: u64) -> Option<(u64, u64)> {
        let (offset, length) = self.raw_entry(number)?;
        ((offset, length) != (u64::MAX, u64::MAX)).then_some((offset, length))
    }

    fn raw_entry(&self, number: u64) -> Option<(u64, u64)> {
        let at = usize::try_from(number.checked_mul(ENTRY)?).ok()?;
        let entry = self.entries.get(at..)?.first_chunk::<16>()?;
        let (offset, length) = entry.split_first_chunk::<8>()?;
        let length = length.first_chunk::<8>()?;
        let number =
            |bytes: &[u8; 8]| if self.big_endian { u64::from_be_bytes(*bytes) } else { u64::from_le_bytes(*bytes) };
        Some((number(offset), number(length)))
    }

    /// Returns the range of inner chunk `number`; none if it is absent, empty or not within the
    /// shard.
    pub fn range(&self, number: u64) -> Option<Range<u64>> {
        let (offset, length) = self.entry(number)?;
        let end = offset.checked_add(length)?;
        (length > 0 && end <= self.within.end).then_some(offset..end)
    }

    /// Returns ranges and numbers of the inner chunks that lie in the shard, sorted by range.
    pub fn in_order(&self) -> Vec<(Range<u64>, u64)> {
        let mut places: Vec<(Range<u64>, u64)> =
            (0..self.entry_count()).filter_map(|number| Some((self.range(number)?, number))).collect();
        places.sort_unstable_by_key(|(place, number)| (place.start, place.end, *number));
        places
    }

    /// Returns the invalid entries, by number of the inner chunk. Bytes between inner chunks are
    /// allowed.
    ///
    /// Errors: [`ErrorKind::OutOfMemory`] if there is no room in `meter` for them.
    pub fn faults(&self, meter: &mut Meter) -> Result<Vec<IndexFault>> {
        let mut faults = Vec::new();
        let mut add = |fault: IndexFault, faults: &mut Vec<IndexFault>| {
            meter.count_items::<IndexFault>(1)?;
            faults.push(fault);
            Ok::<_, Error>(())
        };
        for number in 0..self.entry_count() {
            let Some((offset, length)) = self.entry(number) else { continue };
            let fault = |kind| IndexFault { number, offset, length, kind };
            if offset == u64::MAX || length == u64::MAX {
                add(fault(FaultKind::HalfAbsent), &mut faults)?;
            } else if offset.checked_add(length).is_none_or(|end| end > self.within.end) {
                add(fault(FaultKind::Outside), &mut faults)?;
            } else if length > 0 && offset < self.place.end && self.place.start < offset + length {
                add(fault(FaultKind::OverlapsIndex), &mut faults)?;
            }
        }
        // The preceding inner chunk that reaches farthest.
        let mut farthest: Option<(u64, u64)> = None;
        for (place, number) in self.in_order() {
            if let Some((end, other)) = farthest
                && place.start < end
            {
                let length = place.end - place.start;
                let kind = FaultKind::Overlaps(other);
                add(IndexFault { number, offset: place.start, length, kind }, &mut faults)?;
            }
            if farthest.is_none_or(|(end, _)| place.end > end) {
                farthest = Some((place.end, number));
            }
        }
        faults.sort_by_key(|fault| fault.number);
        Ok(faults)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn document(chunk: Value, codecs: Value) -> Vec<u8> {
        let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": [100, 100], "data_type": "uint8"});
        document["chunk_grid"] = json!({"name": "regular", "configuration": {"chunk_shape": chunk}});
        document["codecs"] = codecs;
        document.to_string().into_bytes()
    }

    fn sharded(inner: Value, more: Value) -> Value {
        let mut codec = json!({"name": "sharding_indexed", "configuration": {
            "chunk_shape": inner, "codecs": [{"name": "bytes"}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}});
        for (key, value) in more.as_object().unwrap() {
            codec["configuration"][key] = value.clone();
        }
        codec
    }

    #[test]
    fn layout_follows_from_codecs() {
        let parse =
            |codecs| ShardLayout::parse(&document(json!([32, 64]), codecs), &mut Meter::brief("a test")).unwrap();
        assert_eq!(parse(json!([{"name": "bytes"}, {"name": "zstd"}])), None);
        let plain = parse(json!([sharded(json!([8, 16]), json!({}))])).unwrap();
        assert_eq!((plain.grid.as_slice(), plain.index_length(), plain.trailer), ([4, 4].as_slice(), 16 * 16 + 4, 0));
        assert_eq!(plain.index_range(1000), Some(740..1000));
        assert_eq!(plain.index_range(259), None);
        assert_eq!(plain.coords(7).as_slice(), [1, 3]);
        let start =
            parse(json!([sharded(json!([32, 64]), json!({"index_location": "start", "index_codecs": ["bytes"]}))]));
        assert_eq!(start.unwrap().index_range(16), Some(0..16));
        // A checksum after the shard, and a transpose before it.
        let transposed = json!([{"name": "transpose", "configuration": {"order": [1, 0]}},
            sharded(json!([16, 32]), json!({})), {"name": "crc32c"}]);
        let transposed = parse(transposed).unwrap();
        assert_eq!((transposed.grid.as_slice(), transposed.trailer), ([4, 1].as_slice(), 4));
        assert_eq!(transposed.index_range(1000), Some(1000 - 4 - 68..996));
        let nested = parse(json!([sharded(json!([16, 32]), json!({"codecs": [sharded(json!([4, 4]), json!({}))]}))]));
        assert_eq!(nested.unwrap().inner.unwrap().grid, [4, 8]);
        assert_eq!(parse(json!([sharded(json!([8, 16]), json!({})), {"name": "gzip"}])), None, "compressed as a whole");
    }

    #[test]
    fn invalid_and_unsupported_codecs_are_distinguished() {
        let kind = |codecs| {
            ShardLayout::parse(&document(json!([32, 64]), codecs), &mut Meter::brief("a test")).unwrap_err().kind()
        };
        assert_eq!(kind(json!([sharded(json!([5, 16]), json!({}))])), ErrorKind::Corrupt);
        assert_eq!(kind(json!([sharded(json!([0, 16]), json!({}))])), ErrorKind::Corrupt);
        assert_eq!(kind(json!([sharded(json!([8]), json!({}))])), ErrorKind::Corrupt);
        assert_eq!(kind(json!([sharded(json!([8, 16]), json!({"index_location": "middle"}))])), ErrorKind::Corrupt);
        let zipped = json!({"index_codecs": ["bytes", "gzip"]});
        assert_eq!(kind(json!([sharded(json!([8, 16]), zipped)])), ErrorKind::Unsupported);
        assert_eq!(kind(json!(["reshape", sharded(json!([8, 16]), json!({}))])), ErrorKind::Unsupported);
        let huge = document(json!([1_u64 << 40, 64]), json!([sharded(json!([1, 1]), json!({}))]));
        assert_eq!(ShardLayout::parse(&huge, &mut Meter::brief("a test")).unwrap_err().kind(), ErrorKind::Unsupported);
        let mut deep = json!(["bytes"]);
        for _ in 0..20 {
            deep = json!([sharded(json!([32, 64]), json!({"codecs": deep}))]);
        }
        assert_eq!(kind(deep), ErrorKind::Unsupported);
    }

    fn index(entries: &[(u64, u64)], length: u64, checksum: bool) -> Result<Index> {
        let grid = json!([entries.len()]);
        let codecs = if checksum { json!(["bytes", "crc32c"]) } else { json!(["bytes"]) };
        let codec = sharded(json!([1]), json!({"index_codecs": codecs}));
        let sharding =
            ShardLayout::parse(&document(grid, json!([codec])), &mut Meter::brief("a test")).unwrap().unwrap();
        let mut bytes: Vec<u8> =
            entries.iter().flat_map(|(offset, length)| [offset.to_le_bytes(), length.to_le_bytes()].concat()).collect();
        if checksum {
            let sum = crc32c::crc32c(&bytes);
            bytes.extend(sum.to_le_bytes());
        }
        Index::decode(&sharding, length, bytes.into())
    }

    fn faults(index: &Index) -> Vec<IndexFault> {
        index.faults(&mut Meter::new("faults")).unwrap()
    }

    #[test]
    fn invalid_index_entries_are_faults() {
        const NONE: (u64, u64) = (u64::MAX, u64::MAX);
        let good = index(&[(100, 50), NONE, (0, 100)], 500, true).unwrap();
        assert_eq!((good.entry(0), good.entry(1), good.entry(3)), (Some((100, 50)), None, None));
        assert_eq!(good.in_order(), [(0..100, 2), (100..150, 0)]);
        assert_eq!(faults(&good), []);
        let bad = [(0, 100), (50, 10), (90, 5), (450, 20), (u64::MAX - 1, 7), (3, u64::MAX), (600, 1)];
        let bad = index(&bad, 500, false).unwrap();
        let faults: Vec<(u64, FaultKind)> = faults(&bad).into_iter().map(|fault| (fault.number, fault.kind)).collect();
        let expected = [
            (1, FaultKind::Overlaps(0)),
            (2, FaultKind::Overlaps(0)),
            (3, FaultKind::OverlapsIndex),
            (4, FaultKind::Outside),
            (5, FaultKind::HalfAbsent),
            (6, FaultKind::Outside),
        ];
        assert_eq!(faults, expected);
        assert_eq!((bad.range(4), bad.range(6), bad.range(0)), (None, None, Some(0..100)));
    }
}
