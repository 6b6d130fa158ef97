//! Variables: arrays as their `zarr.json` describes them, in the terms of a NetCDF file.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::data_type::{ElementType, Shown};
use super::decode::Chain;
use super::decode::chain::Elements;
use super::fill_value;
use crate::error::Result;
use crate::tree::Tree;
use crate::tree::nodes::NodeIndex;
use crate::zarr::array::regular_chunk;
use crate::zarr::shard::{ShardLayout, coords_in};

/// Most dimensions of an HDF5 dataset.
const MAX_RANK: usize = 32;
/// Chunks from this many bytes on cannot be HDF5 chunks.
const MAX_CHUNK: u64 = 1 << 32;
/// Limits of an array of texts of any length, whose values are read when the header is made: elements, and stored bytes.
const MAX_TEXTS: u64 = 64 << 10;
const MAX_TEXT_BYTES: u64 = 1 << 20;

/// Array that shows as a variable.
#[derive(Debug)]
pub(super) struct Variable {
    pub(super) node: NodeIndex,
    pub(super) element: ElementType,
    /// Elements per dimension.
    pub(super) shape: Vec<u64>,
    /// Elements per dimension of a unit: the smallest part that can be decoded by itself, a chunk or an inner chunk.
    pub(super) unit: Vec<u64>,
    /// The same, cut to the array.
    pub(super) kept: Vec<u64>,
    /// Units per dimension.
    pub(super) grid: Vec<u64>,
    /// Units per dimension of a stored chunk; none if a unit is one.
    pub(super) shards: Option<Box<ShardLayout>>,
    /// Codecs of a unit.
    pub(super) chain: Chain,
    /// One decoded element of the fill value.
    pub(super) fill: Vec<u8>,
    /// Bytes of the longest text.
    pub(super) longest: u64,
    pub(super) dimension_names: Vec<Option<String>>,
    pub(super) attributes: Map<String, Value>,
    /// True if the fill value is not a number.
    pub(super) has_nan_fill: bool,
}

impl Variable {
    /// Parses the array at `node`. Fails with the reason if it cannot be a variable.
    pub(super) async fn parse(tree: &Arc<Tree>, node: NodeIndex) -> Result<Self, String> {
        let array = tree.table().array(node).ok_or("no array")?;
        let zarr_json = tree.zarr_json(node).ok_or("no zarr.json")?;
        let document: Value = serde_json::from_slice(zarr_json).map_err(|e| format!("zarr.json: {e}"))?;
        let member = |name: &str| document.get(name).unwrap_or(&Value::Null);
        let element = ElementType::parse(member("data_type"))?;
        let shape = array.shape.to_vec();
        let chunk = regular_chunk(member("chunk_grid")).ok_or("the chunk grid is not regular")?;
        if shape.len() != chunk.len() || shape.len() != array.grid.len() {
            return Err("shape and chunk grid contradict each other".to_owned());
        }
        if shape.contains(&0) {
            return Err("a dimension of size 0".to_owned());
        }
        if chunk.contains(&0) {
            return Err("chunks of size 0".to_owned());
        }
        let extra = usize::from(!matches!(
            element.shown,
            Shown::Number(_) | Shown::Boolean | Shown::Widened { .. } | Shown::Time { .. }
        ));
        if shape.len() + extra > MAX_RANK {
            return Err(format!("{} dimensions: HDF5 has at most {MAX_RANK}", shape.len()));
        }
        let has_transformers = member("storage_transformers").as_array().is_some_and(|list| !list.is_empty());
        let (chain, shards) = match (array.sharding.clone(), has_transformers) {
            (Some(layout), true) => (Chain::parse(member("codecs"), &chunk)?, Some(layout)),
            (None, true) => return Err("a storage transformer".to_owned()),
            (sharding, false) => {
                let chain = Chain::parse(member("codecs"), &chunk)?;
                match (sharding, chain.shards().map(|(_, inner)| inner.clone())) {
                    (Some(layout), Some(inner)) => (inner, Some(layout)),
                    _ => (chain, None),
                }
            }
        };
        let unit = shards.as_ref().map_or(chunk, |layout| layout.inner_shape.clone());
        if unit.len() != shape.len() || unit.contains(&0) {
            return Err("inner chunks that do not fit the array".to_owned());
        }
        let fill_json = member("fill_value");
        let mut fill = fill_value::parse(fill_json, &element).ok_or_else(|| format!("fill value {fill_json}"))?;
        let is_text = element.shown == Shown::Texts;
        if chain.is_variable() != is_text {
            return Err("codecs that do not fit the data type".to_owned());
        }
        let longest = if is_text {
            if shards.is_some() {
                return Err("texts of any length in shards".to_owned());
            }
            longest_text(tree, node, &chain, &unit, &shape, &fill).await?
        } else {
            0
        };
        if is_text {
            fill.resize(longest as usize, 0);
        }
        let kept: Vec<u64> = unit.iter().zip(&shape).map(|(unit, length)| *unit.min(length)).collect();
        let grid: Vec<u64> = shape.iter().zip(&unit).map(|(length, unit)| length.div_ceil(*unit)).collect();
        let size = element.shown_size(longest) as u64;
        let bytes = |shape: &[u64], size: u64| shape.iter().try_fold(size, |bytes, length| bytes.checked_mul(*length));
        if bytes(&kept, size).is_none_or(|bytes| bytes >= MAX_CHUNK)
            || bytes(&unit, element.size.max(1) as u64).is_none_or(|bytes| bytes >= MAX_CHUNK)
        {
            return Err("chunks of 4 GiB or more".to_owned());
        }
        let names = member("dimension_names").as_array().filter(|names| names.len() == shape.len());
        let dimension_names = match names {
            Some(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect(),
            None => vec![None; shape.len()],
        };
        let attributes = member("attributes").as_object().cloned().unwrap_or_default();
        let has_nan_fill = fill_json.as_str() == Some("NaN");
        Ok(Variable {
            node,
            element,
            shape,
            unit,
            kept,
            grid,
            shards,
            chain,
            fill,
            longest,
            dimension_names,
            attributes,
            has_nan_fill,
        })
    }

    /// Returns the bytes of a unit in the file.
    pub(super) fn shown_bytes(&self) -> u64 {
        self.kept.iter().product::<u64>() * self.element.shown_size(self.longest) as u64
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

/// Returns the bytes of the longest text of an array: it determines the size of the variable.
async fn longest_text(
    tree: &Arc<Tree>,
    node: NodeIndex,
    chain: &Chain,
    unit: &[u64],
    shape: &[u64],
    fill: &[u8],
) -> Result<u64, String> {
    let product = |lengths: &[u64]| lengths.iter().try_fold(1_u64, |count, length| count.checked_mul(*length));
    let grid: Vec<u64> = shape.iter().zip(unit).map(|(length, unit)| length.div_ceil(*unit)).collect();
    let (units, each) = (product(&grid), product(unit));
    let count = units.zip(each).and_then(|(units, each)| units.checked_mul(each));
    let is_small =
        product(shape).is_some_and(|count| count <= MAX_TEXTS) && count.is_some_and(|count| count <= 4 * MAX_TEXTS);
    let (Some(units), true) = (units, is_small) else {
        return Err(format!("more than {MAX_TEXTS} texts of any length"));
    };
    let chunks = tree.chunks(node).ok_or("no chunks")?;
    let (_, stored) = chunks.totals().await.map_err(|e| e.to_string())?;
    if stored > MAX_TEXT_BYTES {
        return Err(format!("texts of any length in more than {MAX_TEXT_BYTES} bytes"));
    }
    let mut longest = fill.len() as u64;
    for number in 0..units {
        let at = super::chunks::StoredPlace::chunk(tree, node, &coords_in(&grid, number));
        let Some(bytes) = at.read(tree).await.map_err(|e| e.to_string())? else { continue };
        let texts =
            chain.decode_variable(bytes, each.unwrap_or(0) as usize, MAX_DECODED_TEXTS).map_err(|e| e.to_string())?;
        longest = longest.max(texts.iter().map(|text| text.len() as u64).max().unwrap_or(0));
    }
    if longest > u64::from(u16::MAX) {
        return Err(format!("a text of {longest} bytes"));
    }
    Ok(longest.max(1))
}

/// Most decoded bytes of the texts of a chunk.
pub(super) const MAX_DECODED_TEXTS: usize = 64 << 20;
