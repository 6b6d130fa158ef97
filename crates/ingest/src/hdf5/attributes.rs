//! Attributes of HDF5 as those of Zarr.

use hdf5_reader::RawAttribute;
use hdf5_reader::group::Group;
use hdf5_reader::messages::attribute::AttributeMessage;
use hdf5_reader::messages::dataspace::DataspaceType;
use hdf5_reader::messages::datatype::{Datatype, StringPadding, StringSize, VarLenKind};
use icechunkfs_base::error;
use icechunkfs_base::memory::Meter;
use serde_json::{Map, Value};

use super::datatype;
use crate::attributes::{self, Attribute, FILL_VALUE};
use crate::element::{Element, Numeric, integer};
use crate::plan::Omissions;

/// Attributes by which netCDF-4 and HDF5 say what the plan says by other means.
const OF_THE_FORMAT: [&str; 8] = [
    "REFERENCE_LIST",
    "CLASS",
    "DIMENSION_LIST",
    "NAME",
    "_Netcdf4Dimid",
    "_Netcdf4Coordinates",
    "_nc3_strict",
    "_NCProperties",
];
/// Names that xarray reads of the values of an enumeration (CF conventions, "Flags").
const FLAG_VALUES: &str = "flag_values";
const FLAG_MEANINGS: &str = "flag_meanings";

/// Attributes of an object, or why they cannot be read.
pub(super) type Attributes = Result<Vec<RawAttribute>, String>;

/// Texts and lists of any length, which are in heaps of the file. Thousands of references may lead
/// to one, so that a file has only so many bytes of them.
pub(super) struct Heaps {
    root: Group,
    /// Bytes that may still be read of attributes, and of the texts of datasets: long ones take
    /// nothing from the attributes of others.
    left: u64,
    of_datasets: u64,
}

impl Heaps {
    pub(super) fn of(root: Group) -> Self {
        /// Most bytes of all. More in attributes would not fit into the documents of Zarr.
        const MOST: u64 = 64 << 20;
        Heaps { root, left: MOST, of_datasets: MOST }
    }

    /// Returns the bytes of a reference: the number of elements, an address, and an index.
    pub(super) fn reference(&self) -> usize {
        8 + usize::from(self.root.offset_size())
    }

    /// Runs `read` for a dataset with references of so many bytes. If that fails, the texts that it
    /// has read count for nothing.
    pub(super) fn of_dataset<T>(
        &mut self,
        references: u64,
        read: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let before = self.of_datasets;
        let found = taken(&mut self.of_datasets, references).and_then(|()| read(self));
        found.inspect_err(|_| self.of_datasets = before)
    }

    /// Reads the text of a dataset behind `reference`.
    pub(super) fn text(&mut self, reference: &[u8]) -> Result<Vec<u8>, String> {
        taken(&mut self.of_datasets, count_of(reference))?;
        self.root.resolve_vlen_reference_bytes(reference, 1).map_err(|e| e.to_string())
    }

    /// Reads the elements of `size` bytes of an attribute behind `reference`.
    pub(super) fn read(&mut self, reference: &[u8], size: usize) -> Result<Vec<u8>, String> {
        taken(&mut self.left, count_of(reference).saturating_mul(size as u64))?;
        self.root.resolve_vlen_reference_bytes(reference, size).map_err(|e| e.to_string())
    }
}

/// Counts `bytes` before they are read.
fn taken(left: &mut u64, bytes: u64) -> Result<(), String> {
    *left = left.checked_sub(bytes).ok_or("more text than a file may have")?;
    Ok(())
}

/// Returns the number of elements behind `reference`.
fn count_of(reference: &[u8]) -> u64 {
    reference.first_chunk::<4>().map_or(0, |count| u32::from_le_bytes(*count).into())
}

/// Adds the names of the values of an enumeration, `meanings`, to the attributes `values` of the
/// dataset `path`.
pub(super) fn add_meanings(
    values: &mut Map<String, Value>,
    meanings: &[(String, Numeric)],
    path: &str,
    omissions: &mut Omissions,
) {
    let has_flags = values.contains_key(FLAG_VALUES) || values.contains_key(FLAG_MEANINGS);
    let is_word = |(name, _): &(String, Numeric)| !name.is_empty() && !name.contains(char::is_whitespace);
    if !meanings.is_empty() && !has_flags && meanings.iter().all(is_word) {
        let numbers = meanings.iter().map(|(_, value)| match value {
            Numeric::Integer(number) => integer(*number),
            Numeric::Float(number) => Value::from(*number),
        });
        values.insert(FLAG_VALUES.to_owned(), numbers.collect());
        let names: Vec<&str> = meanings.iter().map(|(name, _)| name.as_str()).collect();
        values.insert(FLAG_MEANINGS.to_owned(), Value::String(names.join(" ")));
    } else if !meanings.is_empty() && !has_flags {
        omissions.add(|| path.to_owned(), "the names of its values are left out: they have spaces");
    }
}

/// Converts the `attributes` of the object `path`: of a dataset with elements `of`, or of a group.
///
/// Errors: [`icechunkfs_base::error::ErrorKind::OutOfMemory`] if there are too many.
pub(super) fn convert(
    attributes: &Attributes,
    path: &str,
    of: Option<Element>,
    heaps: &mut Heaps,
    meter: &mut Meter,
    omissions: &mut Omissions,
) -> error::Result<Map<String, Value>> {
    let mut values = Map::new();
    let raw = match attributes {
        Ok(raw) => raw,
        Err(error) => {
            omissions.add(|| path.to_owned(), format!("its attributes are left out: {error}"));
            return Ok(values);
        }
    };
    for attribute in raw {
        let name = attribute.name().to_owned();
        if OF_THE_FORMAT.contains(&name.as_str()) {
            continue;
        }
        let mut tell = |why: &str| omissions.add(|| format!("{path}@{name}"), why);
        if values.contains_key(&name) {
            tell("left out: another attribute has its name");
            continue;
        }
        match value(attribute, of, heaps, meter, &mut tell)? {
            Ok(Some(value)) => {
                values.insert(name, value);
            }
            Ok(None) => {}
            Err(why) => tell(&format!("left out: {why}")),
        }
    }
    Ok(values)
}

/// Returns the value of an attribute, or why it is left out; none if `tell` was told.
fn value(
    attribute: &RawAttribute,
    of: Option<Element>,
    heaps: &mut Heaps,
    meter: &mut Meter,
    tell: &mut impl FnMut(&str),
) -> error::Result<Result<Option<Value>, String>> {
    let message = attribute.message();
    if let Some(texts) = texts_of(message, heaps) {
        let texts = match texts {
            Ok(texts) => texts,
            Err(why) => return Ok(Err(why)),
        };
        meter
            .count(texts.iter().map(|text| 4 * text.len() as u64 + 64).sum::<u64>() + 4 * message.name.len() as u64)?;
        if message.name == FILL_VALUE && of.is_some_and(Element::is_text) {
            tell("left out, as xarray cannot open a group with it");
            return Ok(Ok(None));
        }
        let mut values: Vec<Value> = texts.iter().map(|text| attributes::text(text, tell)).collect();
        let is_one = values.len() == 1;
        return Ok(Ok(if is_one { values.pop() } else { Some(Value::Array(values)) }));
    }
    let kind = match datatype::of(&message.datatype, attribute.raw_datatype()) {
        Ok(kind) => kind,
        Err(why) => return Ok(Err(why)),
    };
    if !kind.element.is_number() {
        return Ok(Err("complex numbers, which JSON does not have".to_owned()));
    }
    let size = usize::try_from(kind.element.size()).unwrap_or(1).max(1);
    let count = message.dataspace.num_elements().ok().and_then(|count| usize::try_from(count).ok());
    let length = count.and_then(|count| count.checked_mul(size));
    let Some(bytes) = length.and_then(|length| message.raw_data.get(..length)) else {
        return Ok(Err("its data are shorter than its shape".to_owned()));
    };
    if message.dataspace.dims.len() > 1 {
        tell("its values became one list");
    }
    let mut bytes = bytes.to_vec();
    kind.order.to_big_endian(&mut bytes, kind.element.unit());
    let attribute = Attribute { name: message.name.clone(), element: kind.element, bytes };
    meter.count(attribute.cost())?;
    Ok(Ok(attributes::value_of(&attribute, of, tell)))
}

/// Returns the texts of an attribute; none if it has others. One without elements is an empty text,
/// as netCDF has it.
fn texts_of(message: &AttributeMessage, heaps: &mut Heaps) -> Option<Result<Vec<Vec<u8>>, String>> {
    let count = usize::try_from(message.dataspace.num_elements().unwrap_or_default()).unwrap_or(usize::MAX);
    let is_text = |datatype: &Datatype| {
        matches!(datatype, Datatype::String { .. } | Datatype::VarLen { kind: VarLenKind::String, .. })
    };
    if !is_text(&message.datatype) {
        return None;
    }
    if message.dataspace.dataspace_type == DataspaceType::Null {
        return Some(Ok(vec![Vec::new()]));
    }
    Some(match &message.datatype {
        Datatype::String { size: StringSize::Fixed(length), padding, .. } => {
            let length = usize::try_from(*length).unwrap_or(usize::MAX).max(1);
            let texts = message.raw_data.chunks_exact(length).take(count);
            Ok(texts.map(|text| without_padding(text, *padding).to_vec()).collect())
        }
        _ => {
            let references = message.raw_data.chunks_exact(heaps.reference()).take(count);
            references.map(|reference| heaps.read(reference, 1)).collect()
        }
    })
}

fn without_padding(text: &[u8], padding: StringPadding) -> &[u8] {
    let end = match padding {
        StringPadding::NullTerminate => text.iter().position(|byte| *byte == 0).unwrap_or(text.len()),
        StringPadding::NullPad => text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1),
        StringPadding::SpacePad => text.iter().rposition(|byte| *byte != b' ').map_or(0, |last| last + 1),
    };
    text.get(..end).unwrap_or_default()
}
