//! Comparison of documents of arrays by what decides about the meaning of elements.

use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::zarr::array::regular_chunk;
use icechunkfs_format::zarr::document::extension_name;
use serde_json::{Map, Value};

use crate::codec::{self, Codec};
use crate::element::Element;
use crate::plan::{Array, Omissions};
use crate::run::product;
use crate::texts;

/// Attributes by which programs decode elements, or that say what numbers mean.
const DECIDING: [&str; 19] = [
    "units",
    "calendar",
    "leap_year",
    "leap_month",
    "month_lengths",
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
    "_Encoding",
    "dtype",
    "valid_range",
    "valid_min",
    "valid_max",
    "flag_values",
    "flag_masks",
    "flag_meanings",
    "positive",
];
/// Codec of elements that are texts of any length.
const TEXTS: &str = "vlen-utf8";
/// Attribute that each program writes in its own way, and that says nothing about the others.
const HISTORY: &str = "history";

/// Most bytes of a chunk: some are put together in memory at the same time. Those of imports have a
/// quarter of it.
const MAX_CHUNK: u64 = 64 << 20;

pub(crate) fn attributes_of(document: &Map<String, Value>) -> Option<&Map<String, Value>> {
    document.get("attributes").and_then(Value::as_object)
}

/// Notes attributes of the array `name` in a file that the archive has in another way. Those that
/// decide are compared elsewhere.
pub(crate) fn note_attributes(
    archive: Option<&Map<String, Value>>,
    file: Option<&Map<String, Value>>,
    name: &str,
    omissions: &mut Omissions,
) {
    let is_noted = |key: &str| key != HISTORY && !DECIDING.contains(&key);
    for (key, value) in file.into_iter().flatten().filter(|(key, _)| is_noted(key)) {
        if !is_same(archive.and_then(|archive| archive.get(key)), Some(value)) {
            omissions.add(|| format!("{name}@{key}"), "left out: the array has another value, or does not have it");
        }
    }
}

fn shape(document: &Map<String, Value>) -> Option<Vec<u64>> {
    document.get("shape")?.as_array()?.iter().map(Value::as_u64).collect()
}

pub(crate) fn length_along(document: &Map<String, Value>, axis: usize) -> Option<u64> {
    shape(document)?.get(axis).copied()
}

/// Returns the chunk shape that a `zarr.json` has; none if chunks differ.
pub(crate) fn chunk_shape(document: &Map<String, Value>) -> Option<Vec<u64>> {
    regular_chunk(document.get("chunk_grid")?)
}

/// Returns why the elements of an array with the document `file` cannot follow those of one with
/// the document `archive`, along `axis`; without that, why they cannot be the same.
/// Elements have `size` bytes; `compared_with` is what the first one is for people.
pub(crate) fn difference(
    archive: &Map<String, Value>,
    file: &Map<String, Value>,
    axis: Option<usize>,
    size: u64,
    compared_with: &str,
) -> Vec<String> {
    let mut why = Vec::new();
    let said =
        |document: &Map<String, Value>, name: &str| document.get(name).map_or("none".to_owned(), Value::to_string);
    for member in ["data_type", "fill_value", "dimension_names"] {
        if !is_same(archive.get(member), file.get(member)) {
            why.push(format!("{member} is {}, and {} in {compared_with}", said(file, member), said(archive, member)));
        }
    }
    let names = file.get("dimension_names").and_then(Value::as_array);
    let own = axis.and_then(|axis| names?.get(axis));
    if own.is_some() && names.is_some_and(|names| names.iter().filter(|name| Some(*name) == own).count() > 1) {
        why.push("it has the dimension twice".to_owned());
    }
    // Of arrays that are the same, values are compared.
    let are_alike = match (codecs(archive), axis) {
        // Chunks of texts are made anew, with the codecs of the archive.
        (Some(_), Some(_)) if has_texts(archive) && has_texts(file) => true,
        (Some(archive), Some(_)) => codecs(file).is_some_and(|file| are_like(&archive, &file)),
        (archive, _) => archive.is_some(),
    };
    if !are_alike {
        why.push(format!("codecs are {}, and {} in {compared_with}", said(file, "codecs"), said(archive, "codecs")));
    }
    let transformers = archive.get("storage_transformers").and_then(Value::as_array);
    let rank = shape(file).map(|shape| shape.len());
    let chunk = chunk_shape(archive).filter(|chunk| Some(chunk.len()) == rank && !chunk.contains(&0));
    match chunk.map(|chunk| product(&chunk, size)) {
        Some(Some(bytes)) if bytes <= MAX_CHUNK && transformers.is_none_or(Vec::is_empty) => {}
        _ => why.push(format!("{compared_with} does not have it in plain chunks of one shape, of at most 64 MiB")),
    }
    let lengths = |document: &Map<String, Value>| {
        let mut lengths = shape(document).unwrap_or_default();
        if let Some(length) = axis.and_then(|axis| lengths.get_mut(axis)) {
            *length = 0;
        }
        lengths
    };
    if lengths(archive) != lengths(file) {
        why.push(format!("its shape is {}, and {} in {compared_with}", said(file, "shape"), said(archive, "shape")));
    }
    for name in DECIDING {
        let [there, here] = [archive, file].map(|document| attributes_of(document).and_then(|all| all.get(name)));
        if !is_same(there, here) {
            let shown = |value: Option<&Value>| value.map_or("missing".to_owned(), |value| value.to_string());
            why.push(format!("attribute {name} is {}, and {} in {compared_with}", shown(here), shown(there)));
        }
    }
    why
}

/// Returns the byte order of elements, and the codecs behind; none of an array whose chunks cannot
/// be made here.
pub(crate) fn codecs(document: &Map<String, Value>) -> Option<(Option<&str>, Vec<Codec>)> {
    let (first, others) = document.get("codecs")?.as_array()?.split_first()?;
    let name = extension_name(first)?;
    let codecs = codec::all_of(others);
    let order = || first.get("configuration")?.get("endian")?.as_str();
    (["bytes", TEXTS].contains(&name) && !codecs.contains(&Codec::Other)).then(|| (order(), codecs))
}

/// Says whether elements are texts of any length.
fn has_texts(document: &Map<String, Value>) -> bool {
    document.get("codecs").and_then(|codecs| codecs.get(0)).and_then(extension_name) == Some(TEXTS)
}

/// Returns true if chunks with both codecs can be in one array.
pub(crate) fn are_like(one: &(Option<&str>, Vec<Codec>), other: &(Option<&str>, Vec<Codec>)) -> bool {
    let are_all = || std::iter::zip(&one.1, &other.1).all(|(one, other)| one.is_like(*other));
    one.0 == other.0 && one.1.len() == other.1.len() && are_all()
}

/// Returns the most bytes that a chunk of an array with the `zarr.json` `document` may have, whose
/// elements have so many `bytes`; none if it has just those.
pub fn longest(document: &Map<String, Value>, bytes: u64) -> Option<u64> {
    /// Bytes that a codec may add, besides a part of the length.
    const MORE: u64 = 1 << 10;
    if has_texts(document) {
        return Some(texts::MAX_CHUNK);
    }
    let is_coded = codecs(document).is_none_or(|(_, codecs)| !codecs.is_empty());
    is_coded.then(|| bytes.saturating_add(bytes / 8).saturating_add(MORE))
}

/// Returns the elements of `chunk`, one of an array with the `zarr.json` `document`, in the byte
/// order of `array`, whose chunks have as many elements. Texts are as a chunk without other codecs
/// has them.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::Corrupt`] if it is not such a chunk.
pub fn decoded(document: &Map<String, Value>, chunk: &[u8], array: &Array) -> Result<Vec<u8>> {
    let (order, codecs) = codecs(document).ok_or_else(|| Error::invalid("chunks that cannot be decoded here"))?;
    if array.element == Element::String {
        return codec::undo(codecs.into_iter(), chunk.to_vec(), texts::MAX_CHUNK);
    }
    let mut elements = codec::decode(codecs.into_iter(), chunk.to_vec(), array.chunk_bytes())?;
    if order.is_some_and(|order| order != array.order.name()) {
        array.element.swap_bytes(&mut elements);
    }
    Ok(elements)
}

/// Returns true if both values mean the same: 1 and 1.0 do.
pub(crate) fn is_same(one: Option<&Value>, other: Option<&Value>) -> bool {
    match (one, other) {
        (Some(Value::Number(one)), Some(Value::Number(other))) => {
            one == other || (one.is_f64() != other.is_f64() && one.as_f64() == other.as_f64())
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            one.len() == other.len() && std::iter::zip(one, other).all(|(one, other)| is_same(Some(one), Some(other)))
        }
        (one, other) => one == other,
    }
}
