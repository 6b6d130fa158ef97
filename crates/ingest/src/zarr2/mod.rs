//! Zarr of version 2 as version 3: the documents of arrays and groups, and the keys of chunks.
//!
//! Chunks stay as they are, byte for byte: each filter and compressor that is taken has a codec of
//! version 3 that undoes it. xarray masks elements with the fill value of version 2, and in version
//! 3 those with the attribute `_FillValue`, so that arrays get that.

mod codecs;
mod data_type;
pub(crate) mod text;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::attributes::{COMPUTED, FILL_VALUE};
use crate::document;
use crate::plan::{self, Omissions};
use data_type::DataType2;

/// Document of an array.
pub const ARRAY: &str = ".zarray";
/// Document of a group.
pub const GROUP: &str = ".zgroup";
/// Attributes of a group or an array.
pub const ATTRIBUTES: &str = ".zattrs";
/// Copies of all documents of a group.
pub const CONSOLIDATED: &str = ".zmetadata";

/// Attribute with the names of dimensions.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// Member of a `.zarray` that NCZarr writes, with the paths of dimensions.
const NCZARR_ARRAY: &str = "_NCZARR_ARRAY";
/// Beginning of the names of such members, in lower case.
const NCZARR: &str = "_nczarr";

/// Chunks of an array of version 2.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Keys of the chunks in version 2.
    pub keys: KeyEncoding,
    /// Chunks per dimension.
    pub grid: Vec<u32>,
}

/// Members of a `.zarray` (Zarr v2, "Arrays").
#[derive(Deserialize)]
struct Zarray {
    zarr_format: u64,
    shape: Vec<u64>,
    chunks: Vec<u64>,
    dtype: Value,
    #[serde(default)]
    compressor: Option<Value>,
    #[serde(default)]
    fill_value: Value,
    order: String,
    #[serde(default)]
    filters: Option<Vec<Value>>,
    #[serde(default)]
    dimension_separator: Option<String>,
    /// Those of NCZarr among them.
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Members of a `.zgroup` (Zarr v2, "Groups").
#[derive(Deserialize)]
struct Zgroup {
    zarr_format: u64,
}

/// Returns the most bytes of memory that parsing the document `json` takes.
pub fn cost(json: &[u8]) -> u64 {
    /// A value, as long as most are, in a list or an object that has grown.
    const VALUE: u64 = 160;
    let values = json.iter().filter(|byte| b"[{,:".contains(byte)).count() as u64;
    (4 * json.len() as u64).saturating_add(values.saturating_mul(VALUE))
}

/// Returns the `zarr.json` of the array at `path` with the document `zarray`, and the attributes
/// `zattrs` if it has any; and its chunks. What cannot be as it was is added to `omissions`.
///
/// Errors: [`ErrorKind::Unsupported`] if version 3 has no such array, [`ErrorKind::Corrupt`] if the
/// documents are damaged.
pub fn array(
    zarray: &[u8],
    zattrs: Option<&[u8]>,
    path: &str,
    omissions: &mut Omissions,
) -> Result<(Vec<u8>, Converted)> {
    let (zarray, _) = text::with_quoted_numbers(zarray);
    let mut found: Zarray =
        serde_json::from_slice(&zarray).map_err(|e| Error::with_source(ErrorKind::Corrupt, ARRAY, e))?;
    check_format(found.zarr_format)?;
    let rank = found.shape.len();
    // An array without elements may have chunks without any.
    std::iter::zip(&mut found.chunks, &found.shape).filter(|(_, length)| **length == 0).for_each(|(chunk, _)| {
        *chunk = (*chunk).max(1);
    });
    if found.chunks.len() != rank || found.chunks.contains(&0) {
        return Err(Error::corrupt(format!("chunks of {:?} for a shape of {:?}", found.chunks, found.shape)));
    }
    let grid = plan::grid(&found.shape, &found.chunks);
    let grid = grid.ok_or_else(|| Error::corrupt("more than 2^32 chunks along a dimension"))?;
    let filters = found.filters.unwrap_or_default();
    let data_type = DataType2::parse(&found.dtype, &filters)?;
    let is_transposed = match found.order.as_str() {
        "C" => false,
        "F" => rank > 1,
        other => return Err(unsupported(format!("order {}", shown(other)))),
    };
    let separator = match found.dimension_separator.as_deref() {
        None | Some(".") => Separator::Dot,
        Some("/") => Separator::Slash,
        Some(other) => return Err(unsupported(format!("chunks with the separator {}", shown(other)))),
    };
    let codecs = codecs::all(&data_type, &filters, found.compressor.as_ref(), is_transposed.then_some(rank))?;
    let fill_value = data_type.fill_value(&found.fill_value)?;
    let mut attributes = attributes(zattrs, path, omissions)?;
    let names = dimension_names(&mut attributes, &found.others, rank);
    for name in found.others.keys().filter(|name| !name.to_ascii_lowercase().starts_with(NCZARR)) {
        omissions.add(|| format!("{path}@{name}"), "left out: it is not a member of a .zarray");
    }
    // Elements with the fill value are missing ones for xarray, or those with the attribute.
    let of_attributes = attributes.shift_remove(FILL_VALUE);
    let marked = if found.fill_value.is_null() { of_attributes } else { Some(fill_value.clone()) };
    match marked.as_ref().map(|marked| data_type.mark(marked)) {
        Some(Some(mark)) => drop(attributes.insert(FILL_VALUE.to_owned(), mark)),
        Some(None) => {
            let why = "left out, as xarray cannot open a group with it: the array's fill value has it";
            omissions.add(|| format!("{path}@{FILL_VALUE}"), why);
        }
        None => {}
    }
    let mut zarr_json = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": found.shape,
        "data_type": data_type.of_version_3(),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": found.chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": attributes,
        "storage_transformers": [],
    });
    if let (Some(names), Some(document)) = (names, zarr_json.as_object_mut()) {
        document.insert("dimension_names".to_owned(), names);
    }
    let keys = KeyEncoding { prefixed: false, separator, suffix: String::new() };
    Ok((document::written(&zarr_json)?, Converted { keys, grid }))
}

/// Returns the `zarr.json` of the group at `path` with the document `zgroup`, and the attributes
/// `zattrs` if it has any.
///
/// Errors: [`ErrorKind::Corrupt`] if these are damaged, [`ErrorKind::Unsupported`] if the group is
/// of another version.
pub fn group(zgroup: &[u8], zattrs: Option<&[u8]>, path: &str, omissions: &mut Omissions) -> Result<Vec<u8>> {
    let Zgroup { zarr_format } =
        serde_json::from_slice(zgroup).map_err(|e| Error::with_source(ErrorKind::Corrupt, GROUP, e))?;
    check_format(zarr_format)?;
    document::of_group(&attributes(zattrs, path, omissions)?)
}

/// Returns the attributes. Python writes numbers that JSON does not have.
fn attributes(zattrs: Option<&[u8]>, path: &str, omissions: &mut Omissions) -> Result<Map<String, Value>> {
    let Some(zattrs) = zattrs else { return Ok(Map::new()) };
    let (json, has_replaced) = text::with_quoted_numbers(zattrs);
    let found: Value =
        serde_json::from_slice(&json).map_err(|e| Error::with_source(ErrorKind::Corrupt, ATTRIBUTES, e))?;
    let Value::Object(mut attributes) = found else { return Err(Error::corrupt(".zattrs is not an object")) };
    if has_replaced {
        attributes.retain(|name, value| {
            let is_computed = COMPUTED.contains(&name.as_str()) && text::is_quoted_number(value);
            let why = if is_computed {
                "left out: JSON has no number for NaN and infinity"
            } else {
                "NaN and infinity are texts: JSON has no number for them"
            };
            if text::is_quoted_number(value) {
                omissions.add(|| format!("{path}@{name}"), why);
            }
            !is_computed
        });
    }
    Ok(attributes)
}

/// Takes the names of `rank` dimensions out of the attributes, or those of NCZarr out of the other
/// members of a `.zarray`.
fn dimension_names(attributes: &mut Map<String, Value>, others: &Map<String, Value>, rank: usize) -> Option<Value> {
    let is_all =
        |names: &Value| names.as_array().is_some_and(|names| names.len() == rank && names.iter().all(Value::is_string));
    if attributes.get(DIMENSIONS).is_some_and(is_all) {
        return attributes.shift_remove(DIMENSIONS);
    }
    let paths = others.get(NCZARR_ARRAY)?.get("dimrefs").filter(|paths| is_all(paths))?;
    let name = |path: &Value| path.as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned();
    Some(paths.as_array()?.iter().map(name).collect())
}

fn check_format(zarr_format: u64) -> Result<()> {
    if zarr_format == 2 { Ok(()) } else { Err(unsupported(format!("zarr_format is {zarr_format}, not 2"))) }
}

fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, why.into())
}

/// Returns an untrusted word for a message.
fn shown(word: &str) -> String {
    /// Characters that are shown.
    const SHOWN: usize = 40;
    format!("`{}`", icechunkfs_base::printable::line(&word.chars().take(SHOWN).collect::<String>()))
}

#[cfg(test)]
mod tests;
