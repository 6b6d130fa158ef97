//! Variables: arrays as their `zarr.json` describes them, in the terms of a NetCDF file.

use std::sync::Arc;

use serde_json::Value;

use super::attributes::UNSIGNED;
use super::data_type::{ElementType, Shown};
use super::decode::Chain;
use super::decode::chain::Elements;
use super::document::{self, StoredAttributes};
use super::fill_value;
use super::partition::{Axis, cut, unit_shape};
use super::stored::StoredPlace;
use crate::blocking::blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::memory;
use crate::tree::Tree;
use crate::tree::array::Array;
use crate::tree::nodes::NodeIndex;
use crate::zarr::array::{chunk_runs, regular_chunk};
use crate::zarr::shard::{ShardLayout, coords_in};

/// Most dimensions of an HDF5 dataset.
const MAX_RANK: usize = 32;
/// Chunks from this many bytes on cannot be HDF5 chunks.
const MAX_CHUNK: u64 = 1 << 32;
/// Chunks of an array that have numbers of their own.
const MAX_CHUNKS: u64 = 1 << 62;
/// Length from which on raw chunks are cut: a program that reads one value should not read a gigabyte.
const MAX_RAW: u64 = 64 << 20;
/// Length of the parts that they are cut into.
const CUT: u64 = 8 << 20;
/// Limits of an array of texts of any length, whose values are read when the header is made: elements, and stored bytes.
const MAX_TEXTS: u64 = 64 << 10;
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// Most decoded bytes of the texts of a chunk, and the bytes for which memory is reserved first: few chunks of names have more.
const MAX_DECODED_TEXTS: u64 = 64 << 20;
const FIRST_DECODED_TEXTS: u64 = 256 << 10;
/// Part of the memory that the process may take which the texts of a chunk may have.
const TEXTS_PART: u64 = 8;

/// Array that shows as a variable.
#[derive(Debug)]
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
    /// True if the fill value is not a number.
    pub(super) has_nan_fill: bool,
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

/// Reason why an array is no variable.
#[derive(Debug)]
pub(super) enum Obstacle {
    /// The array cannot be one: the file is made without it.
    OfArray(String),
    /// Nothing is known of it, as it cannot be read now. A file without it would look complete.
    OfAccess(Error),
}

impl<T: Into<String>> From<T> for Obstacle {
    fn from(reason: T) -> Self {
        Obstacle::OfArray(reason.into())
    }
}

impl Obstacle {
    /// Returns the obstacle that a failure to read what is stored of an array is.
    fn of_reading(error: Error) -> Self {
        if error.is_of_access() { Obstacle::OfAccess(error) } else { Obstacle::OfArray(error.to_string()) }
    }
}

/// Units of an array, and how they are stored.
struct Storage {
    unit: Vec<u64>,
    source: Source,
    chain: Chain,
}

impl Variable {
    /// Parses the array at `node`. Returns it with its attributes; fails with the reason if it is no variable. `classic` is true for types
    /// that classic programs have.
    pub(super) async fn parse(
        tree: &Arc<Tree>,
        node: NodeIndex,
        classic: bool,
    ) -> Result<(Self, StoredAttributes), Obstacle> {
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
        let extra = usize::from(!matches!(
            element.shown,
            Shown::Number(_) | Shown::Boolean | Shown::Widened { .. } | Shown::Time { .. }
        ));
        if shape.len() + extra > MAX_RANK {
            return Err(format!("{} dimensions: HDF5 has at most {MAX_RANK}", shape.len()).into());
        }
        let Storage { unit, source, chain } = Storage::parse(&document, zarr_json, array, &element)?;
        let stored_grid: Vec<u64> = array.grid.iter().map(|count| u64::from(*count)).collect();
        if product(&stored_grid, 1).is_none_or(|count| count >= MAX_CHUNKS) {
            return Err("2^62 chunks or more".into());
        }
        let fill_json = member("fill_value");
        let mut fill = fill_value::parse(fill_json, &element).ok_or_else(|| format!("fill value {fill_json}"))?;
        if let Some(Value::String(unsigned)) = attributes.values.get(UNSIGNED)
            && let Ok(unsigned) = unsigned.parse::<bool>()
        {
            element = element.with_sign(unsigned);
        }
        let is_text = element.shown == Shown::Texts;
        if chain.is_variable() != is_text {
            return Err("codecs that do not fit the data type".into());
        }
        let longest = match (is_text, &source) {
            (false, _) => 0,
            (true, Source::Chunk) => longest_text(tree, node, &chain, &unit, &shape, &fill).await?,
            (true, _) => return Err("texts of any length in shards or chunks of several shapes".into()),
        };
        if is_text {
            fill.resize(longest as usize, 0);
        }
        let kept: Vec<u64> = unit.iter().zip(&shape).map(|(unit, length)| *unit.min(length)).collect();
        let grid: Vec<u64> = shape.iter().zip(&unit).map(|(length, unit)| length.div_ceil(*unit)).collect();
        let size = element.shown_size(longest) as u64;
        if product(&kept, size).is_none_or(|bytes| bytes >= MAX_CHUNK)
            || product(&unit, element.size.max(1) as u64).is_none_or(|bytes| bytes >= MAX_CHUNK)
        {
            return Err("compressed chunks of 4 GiB or more".into());
        }
        let names = member("dimension_names").as_array().filter(|names| names.len() == shape.len());
        let dimension_names = match names {
            Some(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            None => vec![None; shape.len()],
        };
        let has_nan_fill = fill_json.as_str() == Some("NaN");
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
            longest,
            dimension_names,
            has_nan_fill,
        };
        Ok((variable, attributes))
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

    /// Returns one element of the fill value as the file shows it.
    pub(super) fn shown_fill(&self) -> Vec<u8> {
        self.element.convert(self.fill.clone())
    }
}

impl Storage {
    /// Parses the chunk grid and the codecs of an array.
    fn parse(document: &Value, zarr_json: &[u8], array: &Array, element: &ElementType) -> Result<Self, String> {
        let member = |name: &str| document.get(name).unwrap_or(&Value::Null);
        let shape = &array.shape;
        let has_transformers = member("storage_transformers").as_array().is_some_and(|list| !list.is_empty());
        let axes = || {
            let runs = chunk_runs(zarr_json).map_err(|e| e.to_string())?;
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
            let chain = Chain::parse(member("codecs"), &longest, element.size)?;
            if chain.has_shards() {
                return Err("shards in a grid that is not regular".to_owned());
            }
            let (size, is_raw) = (element.size.max(1) as u64, chain.raw_order().is_some());
            if !is_raw && product(&longest, size).is_none_or(|bytes| bytes >= MAX_CHUNK) {
                return Err("compressed chunks of 4 GiB or more".to_owned());
            }
            let mut unit = unit_shape(&axes, shape);
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
        let chain = Chain::parse(member("codecs"), &chunk, element.size)?;
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
fn product(lengths: &[u64], first: u64) -> Option<u64> {
    lengths.iter().try_fold(first, |product, length| product.checked_mul(*length))
}

/// Returns the bytes of the longest text of an array: it determines the size of the variable.
async fn longest_text(
    tree: &Arc<Tree>,
    node: NodeIndex,
    chain: &Chain,
    unit: &[u64],
    shape: &[u64],
    fill: &[u8],
) -> Result<u64, Obstacle> {
    let product = |lengths: &[u64]| product(lengths, 1);
    let grid: Vec<u64> = shape.iter().zip(unit).map(|(length, unit)| length.div_ceil(*unit)).collect();
    let (units, each) = (product(&grid), product(unit));
    let count = units.zip(each).and_then(|(units, each)| units.checked_mul(each));
    let is_small =
        product(shape).is_some_and(|count| count <= MAX_TEXTS) && count.is_some_and(|count| count <= 4 * MAX_TEXTS);
    let (Some(units), Some(each), true) = (units, each, is_small) else {
        return Err(format!("more than {MAX_TEXTS} texts of any length").into());
    };
    let chunks = tree.chunks(node).ok_or("no chunks")?;
    let (_, stored) = chunks.totals().await.map_err(Obstacle::of_reading)?;
    if stored > MAX_TEXT_BYTES {
        return Err(format!("texts of any length in more than {MAX_TEXT_BYTES} bytes").into());
    }
    let mut longest = fill.len() as u64;
    for number in 0..units {
        let place = StoredPlace::chunk(tree, node, &coords_in(&grid, number));
        longest = longest.max(longest_of_chunk(tree, &place, chain, each as usize).await?);
    }
    if longest > u64::from(u16::MAX) {
        return Err(format!("a text of {longest} bytes").into());
    }
    Ok(longest.max(1))
}

/// Returns the bytes of the longest text of a chunk of `count`.
async fn longest_of_chunk(
    tree: &Arc<Tree>,
    place: &StoredPlace<'_>,
    chain: &Chain,
    count: usize,
) -> Result<u64, Obstacle> {
    let Some(found) = place.find(tree).await.map_err(Obstacle::of_reading)? else { return Ok(0) };
    let name = tree.describe(place.inode());
    let reserve = async |bytes| memory::reserve(bytes, &name).await.map_err(Obstacle::of_reading);
    // A chunk that claims to be large, and one that is, must not take the memory of others.
    let most = MAX_DECODED_TEXTS.min(memory::reservable() / TEXTS_PART);
    let mut limit = FIRST_DECODED_TEXTS.min(most);
    let longest = loop {
        // All at once: others may hold what the rest would wait for.
        let held = reserve(found.len().saturating_add(chain.variable_memory(count, limit as usize))).await?;
        // Once more if the answer is too short: it may be whole then.
        let stored = match found.read(tree).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => found.read(tree).await,
            stored => stored,
        };
        let stored = stored.map_err(Obstacle::of_reading)?;
        let chain = chain.clone();
        let decode = move || {
            let texts = chain.decode_variable(stored, count, limit as usize)?;
            Ok::<_, Error>(texts.iter().map(<[u8]>::len).max().unwrap_or(0))
        };
        let decoded = blocking(decode).await;
        drop(held);
        match decoded {
            Ok(longest) => break longest as u64,
            Err(_) if limit < most => limit = most,
            Err(error) => return Err(Obstacle::of_reading(error.context(&name))),
        }
    };
    Ok(longest)
}
