//! Attributes of NetCDF as those of Zarr, in the form in which xarray writes and reads them.

use std::borrow::Cow;

use data_encoding::BASE64;
use serde_json::{Map, Number, Value, json};

use crate::element::{Element, Numeric, integer, not_finite};
use crate::plan::Omissions;

/// Attribute that marks elements without a value.
pub(crate) const FILL_VALUE: &str = "_FillValue";
/// Attributes with numbers by which programs compute: a text in their place is an error to them.
pub(crate) const COMPUTED: [&str; 3] = ["missing_value", "scale_factor", "add_offset"];

/// Attribute of a file or of a variable.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) element: Element,
    /// Elements one after another, big-endian.
    pub(crate) bytes: Vec<u8>,
}

impl Attribute {
    /// Returns the only element as one of type `element`, big-endian; none if there are more or
    /// fewer, or if that type does not have it.
    pub(crate) fn as_one(&self, element: Element) -> Option<Vec<u8>> {
        if self.bytes.len() as u64 != self.element.size() {
            return None;
        }
        if self.element == element {
            return Some(self.bytes.clone());
        }
        // Text is no number.
        let is_text = self.element.is_text() || element.is_text();
        if is_text { None } else { element.stored(self.element.number(&self.bytes)?) }
    }

    /// Returns the memory of the values that are made of it, in bytes.
    pub(crate) fn cost(&self) -> u64 {
        // A value of JSON, and its text.
        const VALUE: u64 = size_of::<Value>() as u64 + 32;
        let elements = match self.element {
            Element::Char | Element::Text(_) | Element::String => 0,
            _ => self.bytes.len() as u64 / self.element.size(),
        };
        elements * VALUE + 4 * self.bytes.len() as u64 + 4 * self.name.len() as u64 + 256
    }
}

/// Converts the `attributes` of the variable `path` with elements `of`, or of the file. What cannot
/// be as it is, is added to `omissions`.
pub(crate) fn convert(
    attributes: &[Attribute],
    of: Option<Element>,
    path: &str,
    omissions: &mut Omissions,
) -> Map<String, Value> {
    let mut converted = Map::new();
    for attribute in attributes {
        let mut tell = |why: &str| omissions.add(|| format!("{path}@{}", attribute.name), why);
        if converted.contains_key(&attribute.name) {
            tell("left out: another attribute has its name");
            continue;
        }
        if let Some(value) = value_of(attribute, of, &mut tell) {
            converted.insert(attribute.name.clone(), value);
        }
    }
    converted
}

/// Returns the value of an attribute of a variable with elements `of`, or of a group; none if it is
/// left out, which `tell` is told with the reason.
pub(crate) fn value_of(attribute: &Attribute, of: Option<Element>, tell: &mut impl FnMut(&str)) -> Option<Value> {
    match of {
        Some(element) if attribute.name == FILL_VALUE => fill_value(attribute, element, tell),
        _ if attribute.element == Element::Char => Some(text(&attribute.bytes, tell)),
        _ => numbers(attribute, tell),
    }
}

/// Returns the mark of missing values as xarray encodes it: floats as base64.
fn fill_value(attribute: &Attribute, element: Element, tell: &mut impl FnMut(&str)) -> Option<Value> {
    let Some(bytes) = attribute.as_one(element) else {
        tell("left out: it is not one value of the variable's type");
        return None;
    };
    if element.is_text() {
        // xarray opens no group in which texts have one.
        tell("left out, as xarray cannot open a group with it");
        return None;
    }
    match element.number(&bytes)? {
        Numeric::Integer(number) => Some(integer(number)),
        Numeric::Float(number) => Some(encoded(number)),
    }
}

/// Returns a floating-point mark of missing values as xarray encodes it.
pub(crate) fn encoded(number: f64) -> Value {
    json!(BASE64.encode(&number.to_le_bytes()))
}

/// Returns a text without zeros, as netCDF4-python reads it.
pub(crate) fn text(bytes: &[u8], tell: &mut impl FnMut(&str)) -> Value {
    let text = String::from_utf8_lossy(bytes);
    if matches!(text, Cow::Owned(_)) {
        tell("its bytes that are not UTF-8 became U+FFFD");
    }
    if text.trim_end_matches('\0').contains('\0') {
        tell("zero bytes in the text are left out");
    }
    Value::String(text.replace('\0', ""))
}

/// Returns one number, or a list of them; none if it is left out.
fn numbers(attribute: &Attribute, tell: &mut impl FnMut(&str)) -> Option<Value> {
    let size = usize::try_from(attribute.element.size()).unwrap_or(1);
    let mut has_text = false;
    let mut values: Vec<Value> = Vec::with_capacity(attribute.bytes.len() / size);
    for number in attribute.bytes.chunks_exact(size).filter_map(|bytes| attribute.element.number(bytes)) {
        values.push(match number {
            Numeric::Integer(number) => integer(number),
            Numeric::Float(number) => match Number::from_f64(number) {
                Some(number) => Value::Number(number),
                None => {
                    has_text = true;
                    Value::String(not_finite(number).to_owned())
                }
            },
        });
    }
    if has_text && COMPUTED.contains(&attribute.name.as_str()) {
        tell("left out: JSON has no number for NaN and infinity");
        return None;
    }
    if has_text {
        tell("NaN and infinity are texts: JSON has no number for them");
    }
    match <[Value; 1]>::try_from(values) {
        Ok([value]) => Some(value),
        Err(values) => Some(Value::Array(values)),
    }
}
