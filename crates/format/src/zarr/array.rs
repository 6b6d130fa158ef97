//! The members of an array's `zarr.json` that determine its chunk files.

use serde::Deserialize;
use serde_json::Value;

use super::chunk_key::KeyEncoding;
use super::document;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;

/// Maximum number of dimensions. numpy stops at 64; chunk coordinates are kept in fixed-size
/// buffers of this length.
pub const MAX_RANK: usize = 64;

/// Chunk layout of an array, from its `zarr.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayMetadata {
    /// Elements per dimension.
    pub shape: Vec<u64>,
    /// Stored objects per dimension: all coordinates are below. An object is a chunk of the chunk
    /// grid, or a shard of several chunks if a storage transformer combines them.
    pub grid: Vec<u32>,
    /// Chunks of the chunk grid per dimension, which a snapshot stores.
    chunks: Vec<u32>,
    /// Encoding of coordinates as keys.
    pub key_encoding: KeyEncoding,
    /// Uncompressed bytes of a whole chunk, or of a whole shard of a sharded array; none if the
    /// data type has no fixed size.
    pub nominal_chunk_bytes: Option<u64>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(deserialize_with = "document::lengths")]
    shape: Vec<u64>,
    chunk_grid: Extension,
    #[serde(default)]
    chunk_key_encoding: Option<Value>,
    #[serde(default)]
    data_type: Value,
    #[serde(default)]
    storage_transformers: Value,
}

/// Properties of an array that a snapshot stores beside its `zarr.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySummary {
    /// Elements, chunks and, where all chunks of the dimension have the same length, elements per
    /// chunk.
    pub dimensions: Vec<(u64, u32, Option<u64>)>,
    /// Names of the dimensions, if there are any. An empty name becomes none.
    pub dimension_names: Option<Vec<Option<String>>>,
}

impl ArraySummary {
    /// Parses an array's `zarr.json`, with the errors of [`ArrayMetadata::parse`].
    pub fn parse(zarr_json: &[u8]) -> Result<Self> {
        Self::parse_reserved(zarr_json, &mut document::reserve(zarr_json)?)
    }

    /// Parses like [`ArraySummary::parse`], on the reservation `room` ([`document::reserve`]).
    pub fn parse_reserved(zarr_json: &[u8], room: &mut Meter) -> Result<Self> {
        #[derive(Deserialize)]
        struct Names {
            #[serde(default)]
            dimension_names: Option<Vec<Option<String>>>,
            chunk_grid: Extension,
        }
        let metadata = ArrayMetadata::parse_reserved(zarr_json, room)?;
        let names: Names = document::parse(zarr_json, room)?;
        let dimension_names = names.dimension_names;
        let rank = metadata.shape.len();
        if let Some(names) = &dimension_names
            && names.len() != rank
        {
            let names = names.len();
            return Err(Error::corrupt(format!("{names} dimension_names for a shape of {rank} dimensions")));
        }
        let lengths = names.chunk_grid.configuration.get("chunk_shape").and_then(Value::as_array);
        let dimensions = std::iter::zip(&metadata.shape, &metadata.chunks).enumerate();
        let dimensions = dimensions
            .map(|(axis, (length, chunks))| (*length, *chunks, lengths.and_then(|l| l.get(axis)?.as_u64())))
            .collect();
        let dimension_names =
            dimension_names.map(|names| names.into_iter().map(|name| name.filter(|name| !name.is_empty())).collect());
        Ok(ArraySummary { dimensions, dimension_names })
    }
}

/// An extension point of Zarr: `{"name": ..., "configuration": {...}}`.
#[derive(Deserialize)]
struct Extension {
    name: String,
    #[serde(default)]
    configuration: Value,
}

impl Extension {
    fn chunk_shapes(&self, shape: &[u64]) -> Result<Vec<Dimension>> {
        chunk_shapes(&self.name, &self.configuration, shape)
    }
}

impl ArrayMetadata {
    /// Parses an array's `zarr.json`.
    ///
    /// Fails with [`ErrorKind::Corrupt`] if it is not JSON or lacks a member, with
    /// [`ErrorKind::Unsupported`] for an unknown chunk grid or key encoding, with
    /// [`ErrorKind::OutOfMemory`] if the memory bound has no room for looking into it: that is no
    /// property of the document.
    pub fn parse(zarr_json: &[u8]) -> Result<Self> {
        Self::parse_reserved(zarr_json, &mut document::reserve(zarr_json)?)
    }

    /// Parses like [`ArrayMetadata::parse`], on the reservation `room` ([`document::reserve`]).
    pub fn parse_reserved(zarr_json: &[u8], room: &mut Meter) -> Result<Self> {
        let document: Document = document::parse(zarr_json, room)?;
        if document.shape.len() > MAX_RANK {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("an array of {} dimensions; at most {MAX_RANK} are supported", document.shape.len()),
            ));
        }
        let objects = object_grid(&document)?;
        let nominal_chunk_bytes = item_size(&document.data_type)
            .and_then(|size| objects.iter().try_fold(size, |bytes, dimension| bytes.checked_mul(dimension.nominal)));
        let counts = |dimensions: &[Dimension]| {
            let too_many = |_| Error::new(ErrorKind::Unsupported, "a dimension of more than 2^32 chunks");
            dimensions.iter().map(|dimension| u32::try_from(dimension.count).map_err(too_many)).collect::<Result<_>>()
        };
        let grid = counts(&objects)?;
        let chunks = counts(&document.chunk_grid.chunk_shapes(&document.shape)?)?;
        let key_encoding = KeyEncoding::parse(document.chunk_key_encoding.as_ref())?;
        Ok(ArrayMetadata { shape: document.shape, grid, chunks, key_encoding, nominal_chunk_bytes })
    }
}

/// Returns the chunks per shard and dimension if `transformers` has the storage transformer of ZEP
/// 2's draft, which named it by its `type`, and by a URL that documents no longer have.
pub(super) fn chunks_per_shard(transformers: &Value) -> Result<Option<Vec<u64>>> {
    let is_indexed = |transformer: &&Value| {
        ["type", "name"].iter().any(|key| transformer.get(key).and_then(Value::as_str) == Some("indexed"))
    };
    let Some(transformer) = transformers.as_array().and_then(|all| all.iter().find(is_indexed)) else {
        return Ok(None);
    };
    document::numbers(document::setting(transformer, "chunks_per_shard"))
        .filter(|chunks| !chunks.contains(&0))
        .map(Some)
        .ok_or_else(|| Error::corrupt("an indexed storage transformer has no chunks_per_shard of whole numbers"))
}

/// Returns the chunk shape if the member `chunk_grid` is regular.
pub fn regular_chunk(grid: &Value) -> Option<Vec<u64>> {
    let is_regular = grid.get("name").and_then(Value::as_str) == Some("regular");
    document::numbers(document::setting(grid, "chunk_shape").filter(|_| is_regular))
}

pub(super) struct Dimension {
    count: u64,
    /// Elements of the longest chunk.
    nominal: u64,
    /// Runs of equal chunks, in order: elements per chunk, and number of chunks.
    pub(super) runs: Vec<(u64, u64)>,
}

impl Dimension {
    fn regular(length: u64, chunk: u64) -> Self {
        let count = if chunk == 0 { 0 } else { length.div_ceil(chunk) };
        Dimension { count, nominal: chunk, runs: vec![(chunk, count)] }
    }
}

/// Returns the shape in an array's `zarr.json`, and the grid of stored objects.
pub(super) fn dimensions(zarr_json: &[u8]) -> Result<(Vec<u64>, Vec<Dimension>)> {
    let document: Document = document::parse(zarr_json, &mut document::reserve(zarr_json)?)?;
    let dimensions = object_grid(&document)?;
    Ok((document.shape, dimensions))
}

/// Returns the runs of chunks of equal length along each dimension of an array of `shape` with the
/// member `chunk_grid`: elements per chunk and number of chunks. They take no more memory than the
/// member.
pub fn chunk_runs(chunk_grid: &Value, shape: &[u64]) -> Result<Vec<Vec<(u64, u64)>>> {
    let name = document::extension_name(chunk_grid).unwrap_or_default();
    let configuration = chunk_grid.get("configuration").unwrap_or(&Value::Null);
    let dimensions = chunk_shapes(name, configuration, shape)?;
    Ok(dimensions.into_iter().map(|dimension| dimension.runs).collect())
}

fn object_grid(document: &Document) -> Result<Vec<Dimension>> {
    let mut dimensions = document.chunk_grid.chunk_shapes(&document.shape)?;
    let Some(per_shard) = chunks_per_shard(&document.storage_transformers)? else { return Ok(dimensions) };
    check_rank(per_shard.len(), &document.shape)?;
    if document.chunk_grid.name != "regular" {
        let grid = &document.chunk_grid.name;
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("an indexed storage transformer over a {grid} chunk grid"),
        ));
    }
    for ((dimension, chunks), &length) in dimensions.iter_mut().zip(per_shard).zip(&document.shape) {
        let size = dimension.nominal.checked_mul(chunks);
        *dimension = Dimension::regular(length, size.ok_or_else(|| Error::corrupt("a shard of 2^64 elements"))?);
    }
    Ok(dimensions)
}

fn chunk_shapes(name: &str, configuration: &Value, shape: &[u64]) -> Result<Vec<Dimension>> {
    match name {
        "regular" => regular(configuration, shape),
        "rectilinear" => rectilinear(configuration, shape),
        other => Err(Error::new(ErrorKind::Unsupported, format!("chunk grid `{other}`"))),
    }
}

fn regular(configuration: &Value, shape: &[u64]) -> Result<Vec<Dimension>> {
    let chunk_shape = configuration.get("chunk_shape").and_then(Value::as_array);
    let chunk_shape = chunk_shape.ok_or_else(|| Error::corrupt("the regular chunk grid has no chunk_shape"))?;
    check_rank(chunk_shape.len(), shape)?;
    std::iter::zip(chunk_shape, shape)
        .map(|(chunk, &length)| {
            let chunk = chunk
                .as_u64()
                .ok_or_else(|| Error::corrupt(format!("chunk_shape holds {}", document::shown(chunk))))?;
            Ok(Dimension::regular(length, chunk))
        })
        .collect()
}

/// Parses `chunk_shapes`: per dimension a size for all chunks, or a list of sizes and
/// `[size, count]` runs.
fn rectilinear(configuration: &Value, shape: &[u64]) -> Result<Vec<Dimension>> {
    let dimensions = configuration.get("chunk_shapes").and_then(Value::as_array);
    let dimensions = dimensions.ok_or_else(|| Error::corrupt("the rectilinear chunk grid has no chunk_shapes"))?;
    check_rank(dimensions.len(), shape)?;
    std::iter::zip(dimensions, shape)
        .map(|(sizes, &length)| {
            let wrong = || Error::corrupt(format!("chunk_shapes holds {}", document::shown(sizes)));
            if let Some(size) = sizes.as_u64() {
                return Ok(Dimension::regular(length, size));
            }
            let mut count: u64 = 0;
            let mut nominal = 0;
            let mut runs = Vec::<(u64, u64)>::new();
            for run in sizes.as_array().ok_or_else(wrong)? {
                let (size, times) = match run.as_array().map(Vec::as_slice) {
                    Some([size, times]) => (size.as_u64().ok_or_else(wrong)?, times.as_u64().ok_or_else(wrong)?),
                    Some(_) => return Err(wrong()),
                    None => (run.as_u64().ok_or_else(wrong)?, 1),
                };
                count = count.checked_add(times).ok_or_else(wrong)?;
                nominal = nominal.max(size);
                match runs.last_mut() {
                    // The sum of all does not overflow.
                    Some((last, before)) if *last == size => *before += times,
                    _ => runs.push((size, times)),
                }
            }
            Ok(Dimension { count, nominal, runs })
        })
        .collect()
}

fn check_rank(rank: usize, shape: &[u64]) -> Result<()> {
    if rank == shape.len() {
        return Ok(());
    }
    Err(Error::corrupt(format!("a chunk grid of {rank} dimensions for a shape of {}", shape.len())))
}

/// Returns the bytes of one element; none for strings and unknown types.
fn item_size(data_type: &Value) -> Option<u64> {
    match document::extension_name(data_type)? {
        "bool" | "int8" | "uint8" => Some(1),
        "int16" | "uint16" | "float16" | "bfloat16" => Some(2),
        "int32" | "uint32" | "float32" => Some(4),
        "int64" | "uint64" | "float64" | "complex64" | "numpy.datetime64" | "numpy.timedelta64" => Some(8),
        "complex128" => Some(16),
        "fixed_length_utf32" | "null_terminated_bytes" | "raw_bytes" => {
            document::setting(data_type, "length_bytes")?.as_u64()
        }
        raw => raw.strip_prefix('r')?.parse::<u64>().ok().map(|bits| bits / 8),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn array(shape: Value, grid: Value) -> Result<ArrayMetadata> {
        let document =
            json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "float32", "chunk_grid": grid});
        ArrayMetadata::parse(document.to_string().as_bytes())
    }

    fn regular(chunks: Value) -> Value {
        json!({"name": "regular", "configuration": {"chunk_shape": chunks}})
    }

    #[test]
    fn regular_grids() {
        let parsed = array(json!([10, 7]), regular(json!([4, 7]))).unwrap();
        assert_eq!((parsed.grid.as_slice(), parsed.nominal_chunk_bytes), ([3, 1].as_slice(), Some(112)));
        assert!(array(json!([]), regular(json!([]))).unwrap().grid.is_empty());
        assert_eq!(array(json!([0, 5]), regular(json!([2, 0]))).unwrap().grid, [0, 0]);
        assert!(array(json!([10]), regular(json!([4, 7]))).is_err());
        assert!(array(json!([u64::MAX]), regular(json!([1]))).is_err());
        assert!(array(json!([-1]), regular(json!([1]))).is_err());
    }

    #[test]
    fn rectilinear_grids() {
        let grid = |shapes| json!({"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}});
        assert_eq!(array(json!([4, 4, 9]), grid(json!([[1, 3], [[2, 2]], 2]))).unwrap().grid, [2, 2, 5]);
        assert!(array(json!([4]), grid(json!([[1, "x"]]))).is_err());
        assert!(array(json!([4]), grid(json!([[[1, u64::MAX], [1, 1]]]))).is_err());
    }

    #[test]
    fn a_storage_transformer_stores_several_chunks_in_one_object() {
        let sharded = |per_shard: Value| {
            let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": [10, 7], "data_type": "int16"});
            document["chunk_grid"] = regular(json!([2, 2]));
            let transformer =
                json!({"extension": "", "type": "indexed", "configuration": {"chunks_per_shard": per_shard}});
            document["storage_transformers"] = json!([{"type": "other"}, transformer]);
            document.to_string().into_bytes()
        };
        let document = sharded(json!([2, 3]));
        let parsed = ArrayMetadata::parse(&document).unwrap();
        assert_eq!((parsed.grid.as_slice(), parsed.nominal_chunk_bytes), ([3, 2].as_slice(), Some(2 * 4 * 6)));
        // A snapshot counts the chunks, as the reference implementation does.
        assert_eq!(ArraySummary::parse(&document).unwrap().dimensions, [(10, 5, Some(2)), (7, 4, Some(2))]);
        let slices = crate::zarr::slices::Slices::parse("4:,0:6").unwrap();
        assert_eq!(slices.chunks(&document).unwrap(), [1..3, 0..1]);
        for wrong in [json!([2]), json!([2, 0]), json!("2"), json!([u64::MAX, 1])] {
            assert!(ArrayMetadata::parse(&sharded(wrong)).is_err());
        }
    }

    #[test]
    fn unsupported_grids_are_distinguished_from_damage() {
        let kind = |grid| array(json!([1]), grid).unwrap_err().kind();
        assert_eq!(kind(json!({"name": "hexagonal"})), ErrorKind::Unsupported);
        assert_eq!(kind(json!({"name": "regular"})), ErrorKind::Corrupt);
        assert_eq!(ArrayMetadata::parse(b"{").unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
