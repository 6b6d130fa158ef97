//! The documents of a node: `zarr.json` of version 3 to `.zarray`, `.zgroup` and `.zattrs` of
//! version 2.
//!
//! Nothing here knows of trees or chunks. A `zarr.json` may be hostile: the mapping gives documents
//! that every reader can parse, or the reason why there are none, and takes memory in proportion to
//! the document.

use super::attributes::{self, ArrayProperties};
use super::codecs;
use super::data_type::DataType;
use super::fill_value;
use icechunkfs_base::error::Result as CrateResult;
use icechunkfs_base::memory::Meter;
use icechunkfs_format::format::json::{self, Unmade};
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator};
use icechunkfs_format::zarr::members::{Extension, Members, list, shorten, string, unknown_member};
use icechunkfs_tree::tree::nodes::MAX_NAME;

/// Document `.zgroup`, the same for every group.
pub(super) const GROUP: &str = r#"{"zarr_format":2}"#;

/// Most dimensions of an array in numpy before 2.0.
const MAX_RANK: usize = 32;
/// Most copies of a text: in a value, in the document before and after it has grown, and as the
/// program gets it.
const COPIES: u64 = 8;
/// Most bytes of a `zarr.json` that needs no reservation: a mount maps a few at a time.
const SMALL: usize = 2 << 10;

/// Documents of an array, and what follows from them for its chunks.
#[derive(Debug)]
pub(super) struct ArrayDocuments {
    /// Text of `.zarray` before and after the fill value.
    zarray: [String; 2],
    /// Fill value, as JSON.
    fill_value: String,
    /// Fill value if every chunk exists, as JSON.
    complete_fill_value: String,
    /// Document `.zattrs`.
    pub(super) zattrs: String,
    /// True if every chunk ends with a checksum that the view trims.
    pub(super) has_checksum: bool,
    /// True if only some dimensions have names: version 2 has names for all or for none.
    pub(super) has_lost_names: bool,
    /// Names of the attributes that are left out or replaced, with the reasons.
    pub(super) changed: Vec<(String, &'static str)>,
}

/// Documents of a group besides [`GROUP`].
#[derive(Debug)]
pub(super) struct GroupDocuments {
    /// Document `.zattrs`.
    pub(super) zattrs: String,
    /// Names of the attributes that are left out, with the reasons.
    pub(super) changed: Vec<(String, &'static str)>,
}

impl ArrayDocuments {
    /// Returns true if the fill value depends on the existence of every chunk.
    pub(super) fn depends_on_chunks(&self) -> bool {
        self.fill_value != self.complete_fill_value
    }

    /// Returns the document `.zarray`.
    pub(super) fn zarray(&self, is_complete: bool) -> String {
        let [before, after] = &self.zarray;
        let fill_value = if is_complete { &self.complete_fill_value } else { &self.fill_value };
        [before, fill_value.as_str(), after].concat()
    }
}

/// Returns the separator with which version 2 has the chunks of an array of `rank` dimensions with
/// keys by `encoding`.
pub(super) fn separator(encoding: &KeyEncoding, rank: usize) -> Separator {
    // GDAL 3.6 crashes on an array without dimensions that has the separator `/`.
    if rank == 0 { Separator::Dot } else { encoding.separator }
}

/// Returns the key encoding of version 2 with `separator`.
pub(super) fn encoding(separator: Separator) -> KeyEncoding {
    KeyEncoding { prefixed: false, separator, suffix: String::new() }
}

/// Maps the `zarr.json` of an array, or returns the reason why version 2 cannot have the array.
/// Works on the reservation `room` ([`reserve`]).
pub(super) fn map_array(zarr_json: &[u8], room: &mut Meter) -> Result<ArrayDocuments, String> {
    let members = parse(zarr_json)?;
    if members.get("zarr_format") != Some("3") {
        return Err("its zarr.json is not of version 3".to_owned());
    }
    if members.get("node_type").and_then(string).as_deref() != Some("array") {
        return Err("its zarr.json is not that of an array".to_owned());
    }
    if let Some(name) = unknown_member(&members) {
        return Err(format!("its zarr.json has the unknown member `{}`", shorten(name)));
    }
    if !matches!(members.get("storage_transformers"), None | Some("null")) {
        let transformers = members.get("storage_transformers").and_then(list);
        if transformers.is_none_or(|transformers| !transformers.is_empty()) {
            return Err("it has storage transformers".to_owned());
        }
    }
    let metadata = ArrayMetadata::parse_reserved(zarr_json, room).map_err(|error| error.to_string())?;
    let rank = metadata.shape.len();
    if rank > MAX_RANK {
        return Err(format!("it has {rank} dimensions, and numpy before 2.0 has at most {MAX_RANK}"));
    }
    if !metadata.key_encoding.suffix.is_empty() {
        return Err("the names of its chunks have a suffix".to_owned());
    }
    let separator = separator(&metadata.key_encoding, rank);
    if encoding(separator).longest_name(&metadata.grid) > MAX_NAME {
        return Err(format!("the names of its chunks are longer than {MAX_NAME} bytes"));
    }
    let required = |name| members.get(name).ok_or_else(|| format!("its zarr.json has no {name}"));
    let data_type = DataType::parse(required("data_type")?)?;
    let chunks = chunk_shape(required("chunk_grid")?, &metadata.shape, &data_type)?;
    let pipeline = codecs::map(&Extension::parse_list(required("codecs")?, "codec")?, &data_type, rank)?;
    let fill_value = fill_value::map(&data_type, members.get("fill_value").unwrap_or("null"), pipeline.byte_order)?;
    let (dimension_names, has_lost_names) = dimension_names(members.get("dimension_names"), rank)?;
    let properties = ArrayProperties { data_type: &data_type, rank, dimension_names };
    let attributes = attributes::map(members.get("attributes"), Some(&properties))?;

    let order = if pipeline.is_transposed { 'F' } else { 'C' };
    let dtype = data_type.dtype(pipeline.byte_order);
    let filters = match pipeline.filters.as_slice() {
        [] => "null".to_owned(),
        filters => format!("[{}]", filters.join(",")),
    };
    let compressor = pipeline.compressor.as_deref().unwrap_or("null");
    let shape = &metadata.shape;
    let separator = if separator == Separator::Slash { '/' } else { '.' };
    let before = format!(
        "{{\"zarr_format\":2,\"shape\":{},\"chunks\":{},\"dtype\":{dtype},\"order\":\"{order}\",\
         \"compressor\":{compressor},\"filters\":{filters},\"fill_value\":",
        numbers(shape),
        numbers(&chunks)
    );
    let after = format!(",\"dimension_separator\":\"{separator}\"}}");
    Ok(ArrayDocuments {
        complete_fill_value: fill_value::of_complete(&data_type, attributes.fill_value.as_deref()),
        zarray: [before, after],
        fill_value,
        zattrs: attributes.text,
        has_checksum: pipeline.has_checksum,
        has_lost_names,
        changed: attributes.changed,
    })
}

/// Maps the `zarr.json` of a group, or returns the reason why its attributes cannot be read. The
/// caller has reserved the memory ([`reserve`]).
pub(super) fn map_group(zarr_json: &[u8]) -> Result<GroupDocuments, String> {
    let attributes = attributes::map(parse(zarr_json)?.get("attributes"), None)?;
    Ok(GroupDocuments { zattrs: attributes.text, changed: attributes.changed })
}

/// Reserves the memory that the mapping of `zarr_json` may take.
///
/// Errors: [`ErrorKind::OutOfMemory`](icechunkfs_base::error::ErrorKind::OutOfMemory), which is no
/// reason to leave a node out.
pub(super) fn reserve(zarr_json: &[u8]) -> CrateResult<Meter> {
    const WHAT: &str = "the Zarr version 2 form of a zarr.json";
    if zarr_json.len() <= SMALL {
        return Ok(Meter::brief(WHAT));
    }
    // Attributes stay text.
    let values = json::measure(zarr_json, Unmade { named: &["attributes"], ..Unmade::default() });
    Meter::prepaid(WHAT, 2 * values + COPIES * zarr_json.len() as u64)
}

fn parse(zarr_json: &[u8]) -> Result<Members<'_>, String> {
    let wrong = |why: String| format!("its zarr.json cannot be read: {}", shorten(&why));
    Members::parse(std::str::from_utf8(zarr_json).map_err(|error| wrong(error.to_string()))?).map_err(wrong)
}

/// Returns the chunk shape of a regular grid.
fn chunk_shape(grid: &str, shape: &[u64], data_type: &DataType) -> Result<Vec<u64>, String> {
    let grid = Extension::parse(grid, "chunk grid")?;
    if grid.name != "regular" {
        return Err(format!("chunk grid `{}`", shorten(&grid.name)));
    }
    let wrong = || "its chunk grid has no chunk shape that programs can read".to_owned();
    let chunks = grid.configuration.get("chunk_shape").and_then(list).ok_or_else(wrong)?;
    let chunks: Option<Vec<u64>> = chunks.into_iter().map(|length| length.parse().ok()).collect();
    let mut chunks = chunks.filter(|chunks| chunks.len() == shape.len()).ok_or_else(wrong)?;
    for (chunk, length) in std::iter::zip(&mut chunks, shape) {
        match (*chunk, length) {
            // A dimension without elements has no chunks, and programs divide by the length of one.
            (0, 0) => *chunk = 1,
            (0, _) => return Err("its chunks have no elements".to_owned()),
            _ => {}
        }
    }
    let too_large = |lengths: &[u64]| {
        let item = data_type.item_size().unwrap_or(8).max(1);
        let size = lengths.iter().try_fold(item, |size, length| size.checked_mul((*length).max(1)));
        size.is_none_or(|size| size > i64::MAX as u64)
    };
    if too_large(shape) || too_large(&chunks) {
        return Err("it has more bytes than programs can count".to_owned());
    }
    Ok(chunks)
}

/// Returns the names of all dimensions, if all have one. Returns true with none if some have.
fn dimension_names(member: Option<&str>, rank: usize) -> Result<(Option<Vec<String>>, bool), String> {
    let Some(text) = member.filter(|text| *text != "null") else { return Ok((None, false)) };
    let names = list(text).ok_or_else(|| format!("dimension names {}", shorten(text)))?;
    if names.len() != rank {
        return Err(format!("it has {} names for {rank} dimensions", names.len()));
    }
    let names: Vec<Option<String>> = names.into_iter().map(string).collect();
    let has_some = names.iter().any(Option::is_some);
    let all: Option<Vec<String>> = names.into_iter().collect();
    let has_lost_names = has_some && all.is_none();
    Ok((all, has_lost_names))
}

fn numbers(numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
