//! Codec chain of an array.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use serde_json::Value;

use super::super::stored::Stored;
use super::array_codec::{ArrayCodec, Parsed};
use super::bytes_codec::BytesCodec;
use super::number::NumberType;
use super::pcodec;
use super::steps::Steps;
use super::transpose::Transpose;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{self, Meter};
use icechunkfs_format::zarr::shard::{Index, ShardLayout};

/// Deepest nesting of shards.
const MAX_DEPTH: usize = 4;
/// Most bytes of a shard for each of its elements' bytes. Of an inner chunk of one byte, bzip2
/// makes 37, and shards in shards have an index entry of 16 bytes for it at every level.
const MAX_OVERHEAD: usize = 128;
/// Most codecs from bytes to bytes. Each may store an eighth more than it got, which adds up.
const MAX_BYTES_CODECS: usize = 4;
/// Most transposes. Each goes through all elements of a chunk; real arrays have one.
const MAX_TRANSPOSES: usize = 4;
/// Most codecs from arrays to arrays.
const MAX_ARRAY_CODECS: usize = 8;
/// Bytes that pcodec stores for numbers that it cannot compress, beside them and a quarter of their
/// own.
const PCODEC_TABLES: usize = 4096;

/// Codecs from stored bytes to elements.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) struct Chain {
    /// In the order of `zarr.json`, which is that of encoding.
    transposes: Vec<Transpose>,
    /// Behind the transposes, in the same order.
    arrays: Vec<ArrayCodec>,
    elements: ElementCodec,
    /// In the order of `zarr.json`.
    bytes: Vec<BytesCodec>,
}

#[derive(Clone, Debug, PartialEq)]
enum ElementCodec {
    /// Numbers in a byte order.
    Bytes { big_endian: bool },
    /// Numbers that are compressed by themselves.
    Pcodec(NumberType),
    /// Texts or byte strings of any length, each after its length.
    Variable,
    /// Inner chunks with codecs of their own.
    Shard { layout: Box<ShardLayout>, inner: Box<Chain> },
}

/// Elements of an array, as codecs need to know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Item {
    /// Bytes of an element, 0 if these vary.
    pub(in super::super) size: usize,
    /// Type of numbers; none if elements are anything else.
    pub(in super::super) number: Option<NumberType>,
}

/// Layout of the elements of a chunk.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Elements<'a> {
    /// Bytes of an element.
    pub(in super::super) size: usize,
    /// Bytes of the numbers that an element consists of, whose order may be reversed.
    pub(in super::super) number: usize,
    /// Elements per dimension of the chunk.
    pub(in super::super) shape: &'a [u64],
    /// One element of the fill value.
    pub(in super::super) fill: &'a [u8],
}

/// Decoded elements of any length.
#[derive(Debug)]
pub(in super::super) struct Values {
    bytes: Vec<u8>,
    places: Vec<Range<usize>>,
}

impl Values {
    /// Returns the elements, in C order.
    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.places.iter().map(|place| self.bytes.get(place.clone()).unwrap_or_default())
    }
}

/// Returns the most bytes of `count` elements that have at most `limit` bytes together: each after
/// its length, and all after their number.
fn serialized(count: usize, limit: usize) -> usize {
    limit.saturating_add(count.saturating_mul(4)).saturating_add(4)
}

impl Elements<'_> {
    fn bytes(&self, shape: &[u64]) -> Result<usize> {
        let count = shape.iter().try_fold(self.size as u64, |bytes, length| bytes.checked_mul(*length));
        count.and_then(|bytes| usize::try_from(bytes).ok()).ok_or_else(|| Error::corrupt("a chunk of 2^64 bytes"))
    }
}

/// Chain whose first codecs are known.
struct Begun {
    transposes: Vec<Transpose>,
    arrays: Vec<ArrayCodec>,
    elements: Option<ElementCodec>,
    bytes: Vec<BytesCodec>,
    /// Shape of a chunk behind the transposes.
    shape: Vec<u64>,
    /// Elements as the codecs have left them.
    stored: Item,
}

impl Begun {
    fn new(shape: &[u64], item: Item) -> Self {
        Begun {
            transposes: Vec::new(),
            arrays: Vec::new(),
            elements: None,
            bytes: Vec::new(),
            shape: shape.to_vec(),
            stored: item,
        }
    }

    fn add_of_bytes(&mut self, name: &str, configuration: &Value, item: Item) -> Result<(), String> {
        let codec = BytesCodec::parse(name, configuration, item.size).ok_or_else(|| format!("codec {name}"))?;
        self.bytes.push(codec);
        if self.bytes.len() > MAX_BYTES_CODECS {
            return Err(format!("more than {MAX_BYTES_CODECS} codecs of bytes"));
        }
        Ok(())
    }

    fn add_of_arrays(&mut self, parsed: Parsed) -> Result<(), String> {
        if let Parsed::Codec(codec) = parsed {
            self.arrays.push(codec);
            self.stored = Item { size: codec.stored().size(), number: Some(codec.stored()) };
        }
        if self.arrays.len() > MAX_ARRAY_CODECS {
            return Err(format!("more than {MAX_ARRAY_CODECS} codecs of arrays"));
        }
        Ok(())
    }

    fn add_transpose(&mut self, configuration: &Value) -> Result<(), String> {
        let transpose = parse_transpose(configuration, self.shape.len()).ok_or("a transpose without an order")?;
        if !self.arrays.is_empty() && !transpose.is_identity() {
            return Err("codec transpose behind one that changes elements".to_owned());
        }
        self.shape = transpose.stored_shape(&self.shape);
        self.transposes.push(transpose);
        if self.transposes.len() > MAX_TRANSPOSES {
            return Err(format!("more than {MAX_TRANSPOSES} transposes"));
        }
        Ok(())
    }

    /// Parses a codec that makes bytes of elements.
    fn element_codec(&self, name: &str, configuration: &Value) -> Result<ElementCodec, String> {
        match name {
            "bytes" => {
                let big_endian = match configuration.get("endian").and_then(Value::as_str) {
                    None | Some("little") => false,
                    Some("big") => true,
                    Some(other) => return Err(format!("byte order {other}")),
                };
                if big_endian && self.stored.size > 1 && !self.arrays.is_empty() {
                    return Err("big-endian numbers behind a codec that changes elements".to_owned());
                }
                Ok(ElementCodec::Bytes { big_endian })
            }
            "numcodecs.pcodec" => {
                let number = self.stored.number.filter(|number| *number != NumberType::Bool);
                Ok(ElementCodec::Pcodec(number.ok_or("codec numcodecs.pcodec for elements that are not numbers")?))
            }
            "vlen-utf8" | "vlen-bytes" | "numcodecs.vlen-utf8" | "numcodecs.vlen-bytes" => Ok(ElementCodec::Variable),
            _ => Err(format!("codec {name}")),
        }
    }

    /// Parses `codec`, which makes shards, as many levels below others as `depth`.
    fn shard(&self, codec: &Value, item: Item, depth: usize) -> Result<ElementCodec, String> {
        if !self.arrays.is_empty() {
            return Err("shards behind a codec that changes elements".to_owned());
        }
        let document = serde_json::json!({
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": self.shape}},
            "codecs": [codec],
        });
        let layout = ShardLayout::parse(document.to_string().as_bytes(), &mut Meter::brief("the codecs of a shard"))
            .map_err(|e| e.to_string())?;
        let layout = Box::new(layout.ok_or("a shard of unknown structure")?);
        let inner = codec.pointer("/configuration/codecs").unwrap_or(&Value::Null);
        let inner = Box::new(Chain::parse_at(inner, &layout.inner_shape, item, depth + 1)?);
        Ok(ElementCodec::Shard { layout, inner })
    }
}

impl Chain {
    /// Parses member `codecs` of a `zarr.json` for chunks of `shape` with elements that are `item`.
    /// Fails with the reason if this program lacks a codec.
    pub(in super::super) fn parse(codecs: &Value, shape: &[u64], item: Item) -> Result<Self, String> {
        Self::parse_at(codecs, shape, item, 0)
    }

    fn parse_at(codecs: &Value, shape: &[u64], item: Item, depth: usize) -> Result<Self, String> {
        if depth > MAX_DEPTH {
            return Err(format!("shards within shards, more than {MAX_DEPTH} deep"));
        }
        let codecs = codecs.as_array().ok_or("codecs are not a list")?;
        let mut begun = Begun::new(shape, item);
        for codec in codecs {
            let name = codec.as_str().or_else(|| codec.get("name")?.as_str()).ok_or("a codec without a name")?;
            let configuration = codec.get("configuration").unwrap_or(&Value::Null);
            if begun.elements.is_some() {
                begun.add_of_bytes(name, configuration, item)?;
            } else if let Some(parsed) = ArrayCodec::parse(name, configuration, begun.stored.number) {
                begun.add_of_arrays(parsed?)?;
            } else if name == "transpose" {
                begun.add_transpose(configuration)?;
            } else if name == "sharding_indexed" {
                begun.elements = Some(begun.shard(codec, item, depth)?);
            } else {
                begun.elements = Some(begun.element_codec(name, configuration)?);
            }
        }
        let Begun { transposes, arrays, elements, bytes, .. } = begun;
        let elements = elements.ok_or("no codec turns the elements into bytes")?;
        Ok(Chain { transposes, arrays, elements, bytes })
    }

    /// Returns the outermost shards and the codecs of their inner chunks, if inner chunks can be
    /// read by themselves.
    pub(in super::super) fn shards(&self) -> Option<(&ShardLayout, &Chain)> {
        match &self.elements {
            ElementCodec::Shard { layout, inner } if self.transposes.is_empty() => Some((layout, inner)),
            _ => None,
        }
    }

    /// Returns true if a chunk consists of inner chunks.
    pub(in super::super) fn has_shards(&self) -> bool {
        matches!(self.elements, ElementCodec::Shard { .. })
    }

    /// Returns whether numbers are big-endian if a stored chunk is its elements in C order: then
    /// parts of it can be read.
    pub(in super::super) fn raw_order(&self) -> Option<bool> {
        match self.elements {
            ElementCodec::Bytes { big_endian } if self.is_plain() && self.bytes.is_empty() => Some(big_endian),
            _ => None,
        }
    }

    /// Returns true if elements are stored in C order, as they are.
    fn is_plain(&self) -> bool {
        self.transposes.is_empty() && self.arrays.is_empty()
    }

    /// Returns true if elements have no fixed length.
    pub(in super::super) fn is_variable(&self) -> bool {
        matches!(self.elements, ElementCodec::Variable)
    }

    /// Decodes a stored chunk to its elements, little-endian and in C order.
    pub(in super::super) fn decode(&self, stored: Bytes, of: Elements<'_>) -> Result<Vec<u8>> {
        let mut shapes = vec![of.shape.to_vec()];
        for transpose in &self.transposes {
            let shape = transpose.stored_shape(shapes.last().map_or(&[], Vec::as_slice));
            shapes.push(shape);
        }
        let innermost = shapes.pop().unwrap_or_default();
        let length = of.bytes(&innermost)?;
        if self.is_variable() {
            return Err(Error::corrupt("elements of any length where fixed ones are needed"));
        }
        let lengths = self.array_lengths(length);
        let stored_length = lengths.last().copied().unwrap_or(length);
        let stored = self.to_bytes(stored, self.max_serialized(length, of.size), stored_length)?;
        let mut decoded = match &self.elements {
            ElementCodec::Bytes { big_endian } => {
                let mut elements = stored;
                if elements.len() != stored_length {
                    let found = elements.len();
                    return Err(Error::corrupt(format!(
                        "a chunk of {found} bytes where its shape needs {stored_length}"
                    )));
                }
                if *big_endian && of.number > 1 {
                    elements.chunks_exact_mut(of.number).for_each(<[u8]>::reverse);
                }
                elements
            }
            ElementCodec::Pcodec(number) => pcodec::decompress(&stored, *number, stored_length)?,
            ElementCodec::Shard { layout, inner } => whole_shard(layout, inner, &stored.into(), of, length)?,
            ElementCodec::Variable => Vec::new(),
        };
        for (codec, length) in self.arrays.iter().zip(&lengths).rev() {
            decoded = codec.decode(decoded, *length)?;
        }
        for (transpose, shape) in self.transposes.iter().zip(&shapes).rev() {
            decoded = transpose.decode(&decoded, shape, of.size);
        }
        Ok(decoded)
    }

    /// Returns the bytes of the elements of a chunk of `length` bytes before each codec of arrays,
    /// and behind the last one.
    fn array_lengths(&self, length: usize) -> Vec<usize> {
        let mut lengths = vec![length];
        for codec in &self.arrays {
            lengths.push(codec.stored_bytes(lengths.last().copied().unwrap_or(length)));
        }
        lengths
    }

    /// Returns the bytes of memory that decoding a chunk of `length` bytes takes beside these, the
    /// stored ones, and those between two codecs of bytes. `size` is that of an element.
    pub(in super::super) fn extra_memory(&self, length: usize, size: usize) -> usize {
        // Elements of other types, of two codecs at a time.
        let arrays = if self.arrays.is_empty() {
            0
        } else {
            self.array_lengths(length).into_iter().max().unwrap_or(0).saturating_mul(2)
        };
        let of_elements = match &self.elements {
            ElementCodec::Pcodec(_) => pcodec::MEMORY,
            ElementCodec::Shard { layout, inner } => {
                let each = layout.inner_shape.iter().fold(size, |bytes, length| bytes.saturating_mul(*length as usize));
                // Of an inner chunk, there is what its decoder returns, and the step before.
                let steps = 1 + usize::from(!inner.transposes.is_empty()) + usize::from(inner.bytes.len() > 1);
                each.saturating_mul(steps).saturating_add(inner.extra_memory(each, size))
            }
            ElementCodec::Bytes { .. } | ElementCodec::Variable => 0,
        };
        let mut limit = self.max_serialized(length, size);
        let mut of_bytes = 0;
        for codec in &self.bytes {
            of_bytes = of_bytes.max(codec.memory(limit));
            limit = codec.max_stored(limit);
        }
        arrays.saturating_add(of_elements).saturating_add(of_bytes)
    }

    /// Returns the most bytes that the elements of a chunk of `length` bytes have before the codecs
    /// from bytes to bytes. `size` is that of an element.
    fn max_serialized(&self, length: usize, size: usize) -> usize {
        let ElementCodec::Shard { layout, inner } = &self.elements else {
            let stored = self.array_lengths(length).pop().unwrap_or(length);
            // What cannot be compressed has tables beside it.
            let is_compressed = matches!(self.elements, ElementCodec::Pcodec(_));
            return if is_compressed {
                stored.saturating_add(stored / 4).saturating_add(PCODEC_TABLES)
            } else {
                stored
            };
        };
        let each = layout.inner_shape.iter().fold(size, |bytes, length| bytes.saturating_mul(*length as usize));
        let inner_chunks = (layout.count() as usize).saturating_mul(inner.max_stored(each, size));
        let sum = inner_chunks.saturating_add(layout.index_length() as usize);
        sum.min(length.saturating_mul(MAX_OVERHEAD).saturating_add(layout.index_length() as usize).saturating_add(4096))
    }

    /// Returns the most bytes that are stored for a chunk of `length` bytes. `size` is that of an
    /// element.
    fn max_stored(&self, length: usize, size: usize) -> usize {
        self.bytes.iter().fold(self.max_serialized(length, size), |bytes, codec| codec.max_stored(bytes))
    }

    /// Returns the most bytes of a shard that is compressed as a whole, for a chunk of `length`
    /// bytes with elements of `size`; 0 for other chunks.
    pub(in super::super) fn decompressed_shard(&self, length: usize, size: usize) -> usize {
        if self.has_shards() && !self.bytes.is_empty() { self.max_serialized(length, size) } else { 0 }
    }

    /// Returns whether numbers are big-endian if [`Chain::steps`] may be possible.
    pub(in super::super) fn step_order(&self) -> Option<bool> {
        match self.elements {
            ElementCodec::Bytes { big_endian } if self.is_plain() && self.bytes == [BytesCodec::Zstd] => {
                Some(big_endian)
            }
            _ => None,
        }
    }

    /// Begins to decode a stored chunk of `length` bytes block by block. Returns the decoder; none
    /// if the chunk has to be decoded at once, by [`Chain::decode`]. On a thread that may block.
    pub(in super::super) fn steps(&self, stored: Stored, length: usize) -> Result<Option<Steps>> {
        match self.step_order() {
            Some(_) => Steps::new(stored, length),
            None => Ok(None),
        }
    }

    /// Decodes a stored chunk of `count` elements of any length, in C order, which together have at
    /// most `limit` bytes. Takes [`Chain::variable_memory`].
    pub(in super::super) fn decode_variable(&self, stored: Bytes, count: usize, limit: usize) -> Result<Values> {
        if !self.transposes.is_empty() {
            return Err(Error::corrupt("a transpose of elements of any length"));
        }
        // The room for them follows from the stored bytes, as most chunks have far less.
        let bytes = self.to_bytes(stored, serialized(count, limit), 0)?;
        let short = || Error::corrupt("a chunk of texts ends within a text");
        let number = |at: usize| {
            let number = bytes.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_le_bytes(*number) as usize)
        };
        let wanted = number(0).ok_or_else(short)?;
        if wanted != count {
            return Err(Error::corrupt(format!("a chunk of {wanted} texts where its shape has {count}")));
        }
        let mut places = Vec::with_capacity(count);
        let mut at = 4;
        for _ in 0..count {
            let place = number(at).and_then(|length| Some(at + 4..(at + 4).checked_add(length)?));
            let place = place.filter(|place| place.end <= bytes.len()).ok_or_else(short)?;
            at = place.end;
            places.push(place);
        }
        Ok(Values { bytes, places })
    }

    /// Returns the most bytes of memory that [`Chain::decode_variable`] takes besides the stored
    /// bytes.
    pub(in super::super) fn variable_memory(&self, count: usize, limit: usize) -> u64 {
        let between = self.bytes.iter().skip(1).fold(serialized(count, limit), |bytes, codec| codec.max_stored(bytes));
        // A codec's input lives beside its output.
        let buffers = self.bytes.len().clamp(1, 2);
        let places = count.saturating_mul(size_of::<Range<usize>>());
        let of_codecs = self.bytes.iter().map(|codec| codec.memory(between)).max().unwrap_or(0);
        between.saturating_mul(buffers).saturating_add(places).saturating_add(of_codecs) as u64
    }

    /// Decodes stored bytes to at most `limit`, probably `expected` ones.
    fn to_bytes(&self, stored: Bytes, limit: usize, expected: usize) -> Result<Vec<u8>> {
        // The last codec in encoding is the first in decoding, and may produce what the codecs
        // before it may have stored.
        let mut limits = vec![limit];
        for codec in &self.bytes {
            limits.push(codec.max_stored(limits.last().copied().unwrap_or(limit)));
        }
        limits.pop();
        let mut codecs = self.bytes.iter().zip(limits).rev();
        let Some((first, limit)) = codecs.next() else { return Ok(stored.into()) };
        let mut bytes = first.decode(&stored, limit, expected)?;
        for (codec, limit) in codecs {
            bytes = match bytes {
                Cow::Borrowed(bytes) => codec.decode(bytes, limit, expected)?,
                Cow::Owned(bytes) => {
                    let decoded = codec.decode(&bytes, limit, expected)?.into_owned();
                    memory::recycle(bytes);
                    Cow::Owned(decoded)
                }
            };
        }
        let bytes = bytes.into_owned();
        if stored.is_unique() {
            memory::recycle(stored.into());
        }
        Ok(bytes)
    }
}

fn parse_transpose(configuration: &Value, rank: usize) -> Option<Transpose> {
    let order = match configuration.get("order")? {
        Value::String(order) if order == "C" => (0..rank).collect(),
        Value::String(order) if order == "F" => (0..rank).rev().collect(),
        order => order.as_array()?.iter().map(|axis| axis.as_u64().map(|axis| axis as usize)).collect::<Option<_>>()?,
    };
    Transpose::new(order, rank)
}

/// Decodes all inner chunks of a shard to one array.
fn whole_shard(layout: &ShardLayout, inner: &Chain, shard: &Bytes, of: Elements<'_>, length: usize) -> Result<Vec<u8>> {
    let total = shard.len() as u64;
    let place = layout.index_range(total).ok_or_else(|| Error::corrupt("a shard shorter than its index"))?;
    let index = Index::decode(layout, total, part(shard, place))?;
    let shape: Vec<u64> = layout.grid.iter().zip(&layout.inner_shape).map(|(count, inner)| count * inner).collect();
    let mut decoded = of.fill.repeat(length.checked_div(of.size).unwrap_or(0));
    for number in 0..layout.count() {
        if index.entry(number).is_none() {
            continue;
        }
        let range =
            index.range(number).ok_or_else(|| Error::corrupt(format!("inner chunk {number} is not in its shard")))?;
        let part = inner.decode(part(shard, range), Elements { shape: &layout.inner_shape, ..of })?;
        let first: Vec<u64> =
            layout.coords(number).iter().zip(&layout.inner_shape).map(|(coord, inner)| coord * inner).collect();
        super::super::rows::paste(&mut decoded, &shape, &first, &part, &layout.inner_shape, of.size);
    }
    Ok(decoded)
}

/// Returns `range` of `bytes`, or nothing if it does not lie in them.
fn part(bytes: &Bytes, range: Range<u64>) -> Bytes {
    let range = range.start as usize..range.end as usize;
    bytes.get(range).map(|part| bytes.slice_ref(part)).unwrap_or_default()
}

#[cfg(test)]
#[path = "chain_tests.rs"]
mod tests;
