//! Variables: arrays as their `zarr.json` describes them, in the terms of a NetCDF file.

use serde_json::Value;

use super::attributes::UNSIGNED;
use super::data_type::{ElementType, Shown};
use super::decode::Chain;
use super::decode::chain::Elements;
use super::document::{self, StoredAttributes};
use super::fill_value;
use super::look::Obstacle;
use super::partition::{Axis, cut, long_unit_shape, unit_shape};
use icechunkfs_format::zarr::array::{chunk_runs, regular_chunk};
use icechunkfs_format::zarr::document::shown;
use icechunkfs_format::zarr::shard::ShardLayout;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::array::Array;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Most dimensions of an HDF5 dataset.
const MAX_RANK: usize = 32;
/// Chunks from this many bytes on cannot be HDF5 chunks.
const MAX_CHUNK: u64 = 1 << 32;
/// Chunks of an array that have numbers of their own.
const MAX_CHUNKS: u64 = 1 << 62;
/// Length from which on raw chunks are cut: a program that reads one value should not read a
/// gigabyte.
const MAX_RAW: u64 = 64 << 20;
/// Length of the parts that they are cut into.
const CUT: u64 = 8 << 20;
/// Reason why chunks are too long.
const TOO_LONG: &str = "compressed chunks of 4 GiB or more";
/// Array that shows as a variable.
#[derive(Clone, Debug)]
pub(super) struct Variable {
    pub(super) node: NodeIndex,
    pub(super) element: ElementType,
    /// Elements per dimension.
    pub(super) shape: Vec<u64>,
    /// Elements per dimension of a unit: what the file has as a chunk.
    pub(super) unit: Vec<u64>,
    /// The same, cut to the array.
    pub(super) kept: Vec<u64>,
    /// Units per dimension.
    pub(super) grid: Vec<u64>,
    /// Units along the first dimension that are one chunk of the file.
    pub(super) along: u64,
    pub(super) source: Source,
    /// Stored chunks per dimension.
    pub(super) stored_grid: Vec<u64>,
    /// Codecs of a unit, or of a stored chunk whose parts units are.
    pub(super) chain: Chain,
    /// One decoded element of the fill value.
    pub(super) fill: Vec<u8>,
    /// Bytes of the longest text.
    pub(super) longest: u64,
    pub(super) dimension_names: Vec<Option<String>>,
    /// The fill value as the file shows it.
    pub(super) shown_fill: Vec<u8>,
    /// True if the fill value is not a number.
    pub(super) has_nan_fill: bool,
    /// True unless it is known that no time is missing.
    pub(super) has_missing_times: bool,
}

/// Source of the bytes of units.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// A unit is a stored chunk.
    Chunk,
    /// A unit is an inner chunk of shards of this structure.
    Inner(Box<ShardLayout>),
    /// A unit has parts of stored chunks, whose edges these are.
    Parts(Box<[Axis]>),
}

/// Units of an array, and how they are stored.
struct Storage {
    unit: Vec<u64>,
    source: Source,
    chain: Chain,
}

impl Variable {
    /// Parses the array at `node`, without a look at its values ([`super::look`]). Returns it with
    /// its attributes; fails with the reason if it cannot be a variable. `classic` is true for
    /// types that classic programs have.
    pub(super) fn parse(tree: &Tree, node: NodeIndex, classic: bool) -> Result<(Self, StoredAttributes), Obstacle> {
        let array = tree.table().array(node).ok_or("no array")?;
        let zarr_json = tree.zarr_json(node).ok_or("no zarr.json")?;
        let (document, attributes) = document::parse_array(zarr_json)?;
        let member = |name: &str| document.get(name).unwrap_or(&Value::Null);
        let mut element = ElementType::parse(member("data_type"), classic)?;
        let shape = array.shape.to_vec();
        if shape.len() != array.grid.len() {
            return Err("shape and chunk grid contradict each other".into());
        }
        if shape.contains(&0) {
            return Err("a dimension of size 0".into());
        }
        let extra = usize::from(element.extra_dimension(0).is_some());
        if shape.len() + extra > MAX_RANK {
            return Err(format!("{} dimensions: HDF5 has at most {MAX_RANK}", shape.len()).into());
        }
        let Storage { unit, source, chain } = Storage::parse(&document, array, &element)?;
        let stored_grid: Vec<u64> = array.grid.iter().map(|count| u64::from(*count)).collect();
        if product(&stored_grid, 1).is_none_or(|count| count >= MAX_CHUNKS) {
            return Err("2^62 chunks or more".into());
        }
        let fill_json = member("fill_value");
        let fill = fill_value::parse(fill_json, &element).ok_or_else(|| format!("fill value {}", shown(fill_json)))?;
        if let Some(Value::String(unsigned)) = attributes.values.get(UNSIGNED)
            && let Ok(unsigned) = unsigned.parse::<bool>()
        {
            element = element.with_sign(unsigned);
        }
        let is_text = element.shown == Shown::Texts;
        if chain.is_variable() != is_text {
            return Err("codecs that do not fit the data type".into());
        }
        if is_text && source != Source::Chunk {
            return Err("texts of any length in shards or chunks of several shapes".into());
        }
        let kept: Vec<u64> = unit.iter().zip(&shape).map(|(unit, length)| *unit.min(length)).collect();
        let grid: Vec<u64> = shape.iter().zip(&unit).map(|(length, unit)| length.div_ceil(*unit)).collect();
        if product(&unit, element.size.max(1) as u64).is_none_or(|bytes| bytes >= MAX_CHUNK) {
            return Err(TOO_LONG.into());
        }
        let names = member("dimension_names").as_array().filter(|names| names.len() == shape.len());
        let dimension_names = match names {
            Some(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            None => vec![None; shape.len()],
        };
        let has_nan_fill = fill_json.as_str() == Some("NaN");
        let shown_fill =
            element.convert(fill.clone()).map_err(|error| format!("fill value {}: {error}", shown(fill_json)))?;
        let variable = Variable {
            node,
            element,
            shape,
            unit,
            kept,
            grid,
            along: 1,
            source,
            stored_grid,
            chain,
            fill,
            longest: 0,
            dimension_names,
            shown_fill,
            has_nan_fill,
            has_missing_times: true,
        };
        variable.check_length()?;
        Ok((variable, attributes))
    }

    /// Checks that a unit is not too long for the file.
    pub(super) fn check_length(&self) -> Result<(), String> {
        let size = self.element.shown_size(self.longest) as u64;
        if product(&self.kept, size).is_some_and(|bytes| bytes < MAX_CHUNK) { Ok(()) } else { Err(TOO_LONG.into()) }
    }

    /// Returns the bytes of a unit in the file.
    pub(super) fn shown_bytes(&self) -> u64 {
        self.kept.iter().product::<u64>() * self.element.shown_size(self.longest) as u64
    }

    /// Returns the most bytes of the texts of a unit together, without padding.
    pub(super) fn text_bytes(&self) -> usize {
        self.unit.iter().product::<u64>().saturating_mul(self.longest) as usize
    }

    /// Returns the layout of the elements of a unit.
    pub(super) fn elements(&self) -> Elements<'_> {
        Elements { size: self.element.size, number: self.element.number, shape: &self.unit, fill: &self.fill }
    }
}

impl Storage {
    /// Parses the chunk grid and the codecs of an array.
    fn parse(document: &Value, array: &Array, element: &ElementType) -> Result<Self, String> {
        let member = |name: &str| document.get(name).unwrap_or(&Value::Null);
        let shape = &array.shape;
        let has_transformers = member("storage_transformers").as_array().is_some_and(|list| !list.is_empty());
        let axes = || {
            let runs = chunk_runs(member("chunk_grid"), shape).map_err(|e| e.to_string())?;
            let axes = runs.iter().zip(shape.iter()).map(|(runs, length)| Axis::new(runs, *length));
            let axes: Option<Box<[Axis]>> = axes.collect();
            axes.filter(|axes| axes.len() == shape.len()).ok_or_else(|| "chunks that do not cover the array".to_owned())
        };
        let Some(chunk) = regular_chunk(member("chunk_grid")) else {
            if has_transformers {
                return Err("a storage transformer".to_owned());
            }
            let axes = axes()?;
            let longest: Vec<u64> = axes.iter().map(Axis::longest).collect();
            let chain = Chain::parse(member("codecs"), &longest, element.item())?;
            if chain.has_shards() {
                return Err("shards in a grid that is not regular".to_owned());
            }
            let size = element.size.max(1) as u64;
            let is_raw = chain.raw_order().is_some();
            if !is_raw && product(&longest, size).is_none_or(|bytes| bytes >= MAX_CHUNK) {
                return Err(TOO_LONG.to_owned());
            }
            // A unit of one chunk needs all of that, decoded: it stays in memory for the next ones.
            let is_short = product(&longest, size).is_some_and(|bytes| bytes <= MAX_RAW);
            let mut unit =
                if is_raw || is_short { unit_shape(&axes, shape, size) } else { long_unit_shape(&axes, shape) };
            if product(&unit, size).is_none_or(|bytes| bytes > MAX_RAW) && is_raw {
                unit = cut(&unit, size, CUT);
            }
            return Ok(Storage { unit, source: Source::Parts(axes), chain });
        };
        if chunk.len() != shape.len() {
            return Err("shape and chunk grid contradict each other".to_owned());
        }
        if chunk.contains(&0) {
            return Err("chunks of size 0".to_owned());
        }
        let chain = Chain::parse(member("codecs"), &chunk, element.item())?;
        let (unit, source, chain) = match (&array.sharding, has_transformers) {
            (Some(layout), true) => (layout.inner_shape.clone(), Source::Inner(layout.clone()), chain),
            (None, true) => return Err("a storage transformer".to_owned()),
            (sharding, false) => match (sharding, chain.shards().map(|(_, inner)| inner.clone())) {
                (Some(layout), Some(inner)) => (layout.inner_shape.clone(), Source::Inner(layout.clone()), inner),
                _ => (chunk, Source::Chunk, chain),
            },
        };
        if unit.len() != shape.len() || unit.contains(&0) {
            return Err("inner chunks that do not fit the array".to_owned());
        }
        let size = element.size.max(1) as u64;
        let is_long = product(&unit, size).is_none_or(|bytes| bytes > MAX_RAW);
        if is_long && source == Source::Chunk && chain.raw_order().is_some() {
            let kept: Vec<u64> = unit.iter().zip(shape.iter()).map(|(unit, length)| *unit.min(length)).collect();
            return Ok(Storage { unit: cut(&kept, size, CUT), source: Source::Parts(axes()?), chain });
        }
        Ok(Storage { unit, source, chain })
    }
}

/// Multiplies `lengths` and `first`; none if that overflows.
pub(super) fn product(lengths: &[u64], first: u64) -> Option<u64> {
    lengths.iter().try_fold(first, |product, length| product.checked_mul(*length))
}
