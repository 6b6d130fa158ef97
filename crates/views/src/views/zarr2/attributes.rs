//! Attributes of a node as its `.zattrs`.
//!
//! Values keep their bytes, with three exceptions: the names of dimensions become
//! `_ARRAY_DIMENSIONS`, the `_FillValue` of a floating-point array becomes a number, and values
//! that other programs cannot parse are left out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;

use super::data_type::DataType;
use super::fill_value::of_float;
use icechunkfs_format::zarr::members::{Members, check_portable, list, quoted, shorten, string};

/// Attribute with the names of an array's dimensions.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";
/// Attribute with the value that marks missing values.
const MISSING: &str = "_FillValue";

/// Attributes of a node, mapped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    /// Document `.zattrs`.
    pub(super) text: String,
    /// Attribute `_FillValue`, as JSON.
    pub(super) fill_value: Option<String>,
    /// Names of the attributes that are left out or replaced, with the reasons.
    pub(super) changed: Vec<(String, &'static str)>,
}

/// Properties of an array that its attributes show.
#[derive(Debug)]
pub(super) struct ArrayProperties<'a> {
    /// Data type.
    pub(super) data_type: &'a DataType,
    /// Number of dimensions.
    pub(super) rank: usize,
    /// Names of all dimensions, if all have one.
    pub(super) dimension_names: Option<Vec<String>>,
}

/// Maps the member `attributes` of a group, or of the array `array`.
pub(super) fn map(attributes: Option<&str>, array: Option<&ArrayProperties<'_>>) -> Result<Attributes, String> {
    let (members, not_unicode) = match attributes {
        None | Some("null") => Default::default(),
        Some(text) => Members::parse_unicode(text).map_err(|_| format!("attributes {}", shorten(text)))?,
    };
    // Of several attributes with one name the last one counts, at the place of the first one, as in
    // Python.
    let mut values: Vec<(&str, &str)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (name, value) in members.iter() {
        let place = *places.entry(name).or_insert(values.len());
        match values.get_mut(place) {
            Some(entry) => entry.1 = value,
            None => values.push((name, value)),
        }
    }
    let mut mapped = Attributes { text: "{".to_owned(), fill_value: None, changed: Vec::new() };
    mapped.changed.extend(not_unicode.into_iter().map(|name| (name.to_owned(), "its name is not Unicode")));
    let mut has_dimensions = false;
    for (name, value) in values {
        if let Err(why) = check_portable(value) {
            mapped.changed.push((name.to_owned(), why));
            continue;
        }
        match array {
            Some(array) if name == DIMENSIONS => {
                let Some(named) = names(value, array.rank) else {
                    mapped.changed.push((name.to_owned(), "it does not name every dimension of the array"));
                    continue;
                };
                has_dimensions = true;
                // Programs of version 3 do not look at the attribute.
                if let Some(own) = array.dimension_names.as_ref().filter(|own| **own != named) {
                    mapped.changed.push((name.to_owned(), "replaced by the dimension names of the array"));
                    mapped.push(name, &quoted_names(own));
                    continue;
                }
            }
            Some(array) if name == MISSING => {
                let decoded = decode(value, array.data_type);
                let value = decoded.as_deref().unwrap_or(value);
                mapped.push(name, value);
                mapped.fill_value = Some(value.to_owned());
                continue;
            }
            _ => {}
        }
        mapped.push(name, value);
    }
    if let Some(array) = array.filter(|_| !has_dimensions) {
        // Documents of version 3 have no names for no dimensions, but xarray needs the list.
        let names = array.dimension_names.clone().or_else(|| (array.rank == 0).then(Vec::new));
        if let Some(names) = names {
            mapped.push(DIMENSIONS, &quoted_names(&names));
        }
    }
    mapped.text.push('}');
    Ok(mapped)
}

impl Attributes {
    fn push(&mut self, name: &str, value: &str) {
        if self.text.len() > 1 {
            self.text.push(',');
        }
        self.text += &quoted(name);
        self.text.push(':');
        self.text += value;
    }
}

/// Returns the names in `value` if it is a list of a name for each of `rank` dimensions.
fn names(value: &str, rank: usize) -> Option<Vec<String>> {
    list(value).filter(|names| names.len() == rank)?.into_iter().map(string).collect()
}

/// Returns `names` as a JSON list.
fn quoted_names(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
    format!("[{}]", names.join(","))
}

/// Decodes a `_FillValue` as xarray writes it for version 3: the base64 of a float64, and for a
/// complex number a pair of them.
fn decode(value: &str, data_type: &DataType) -> Option<String> {
    match data_type {
        DataType::Float(_) => decode_float(value),
        DataType::Complex(_) => match list(value)?.as_slice() {
            [real, imaginary] => Some(format!("[{},{}]", decode_float(real)?, decode_float(imaginary)?)),
            _ => None,
        },
        _ => None,
    }
}

fn decode_float(value: &str) -> Option<String> {
    let bytes: [u8; 8] = STANDARD.decode(string(value)?).ok()?.try_into().ok()?;
    Some(of_float(f64::from_le_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn array<'a>(data_type: &'a DataType, rank: usize, names: Option<&[&str]>) -> ArrayProperties<'a> {
        let dimension_names = names.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        ArrayProperties { data_type, rank, dimension_names }
    }

    #[test]
    fn values_keep_their_bytes_and_order() {
        let text = r#"{"z":1.50,"a":{"x": [1.0e40, 123456789012345678901234567890]},"\u00e9":null,"z":2}"#;
        let mapped = map(Some(text), None).unwrap();
        let expected = "{\"z\":2,\"a\":{\"x\": [1.0e40, 123456789012345678901234567890]},\"\u{e9}\":null}";
        assert_eq!((mapped.text.as_str(), mapped.changed.len()), (expected, 0));
        assert_eq!(map(None, None).unwrap().text, "{}");
        assert_eq!(map(Some("null"), None).unwrap().text, "{}");
        assert!(map(Some("[]"), None).is_err());
    }

    #[test]
    fn dimension_names_become_an_attribute() {
        let float = DataType::Float(8);
        let text = |rank, names, attributes| map(Some(attributes), Some(&array(&float, rank, names))).unwrap().text;
        assert_eq!(text(2, Some(&["y", "x\""]), "{}"), r#"{"_ARRAY_DIMENSIONS":["y","x\""]}"#);
        assert_eq!(text(2, None, r#"{"a":1}"#), r#"{"a":1}"#);
        assert_eq!(text(0, None, "{}"), r#"{"_ARRAY_DIMENSIONS":[]}"#);
        let own = r#"{"_ARRAY_DIMENSIONS":["lat"],"a":1}"#;
        assert_eq!(text(1, None, own), own);
        assert_eq!(text(1, Some(&["lat"]), own), own);
        // The names of the document win, as in version 3.
        let mapped = map(Some(own), Some(&array(&float, 1, Some(&["x"])))).unwrap();
        assert_eq!((mapped.text.as_str(), mapped.changed.len()), (r#"{"_ARRAY_DIMENSIONS":["x"],"a":1}"#, 1));
        assert_eq!(text(1, Some(&["x"]), r#"{"_ARRAY_DIMENSIONS":["a","b"]}"#), r#"{"_ARRAY_DIMENSIONS":["x"]}"#);
        assert_eq!(text(1, None, r#"{"_ARRAY_DIMENSIONS":[7]}"#), "{}");
    }

    #[test]
    fn missing_values_of_floats_become_numbers() {
        let fill = |data_type: DataType, text: &str| {
            let attributes = format!("{{\"_FillValue\":{text}}}");
            let mapped = map(Some(&attributes), Some(&array(&data_type, 1, None))).unwrap();
            assert_eq!(mapped.text, format!("{{\"_FillValue\":{}}}", mapped.fill_value.as_ref().unwrap()));
            mapped.fill_value.unwrap()
        };
        assert_eq!(fill(DataType::Float(4), r#""AAAAAAAA+H8=""#), r#""NaN""#);
        assert_eq!(fill(DataType::Float(8), r#""AAAAAAAA8L8=""#), "-1.0");
        assert_eq!(fill(DataType::Float(8), "-1.5"), "-1.5");
        assert_eq!(fill(DataType::Float(8), r#""NaN""#), r#""NaN""#);
        assert_eq!(fill(DataType::Complex(8), r#"["AAAAAAAA8L8=","AAAAAAAA+H8="]"#), r#"[-1.0,"NaN"]"#);
        assert_eq!(fill(DataType::String, r#""AAAAAAAA+H8=""#), r#""AAAAAAAA+H8=""#);
    }

    #[test]
    fn values_that_break_other_programs_are_left_out() {
        let deep = format!("{{\"a\":{}{},\"b\":1}}", "[".repeat(1000), "]".repeat(1000));
        let mapped = map(Some(&deep), None).unwrap();
        assert_eq!((mapped.text.as_str(), mapped.changed.len()), (r#"{"b":1}"#, 1));
        let mapped = map(Some(r#"{"\ud800":1,"b":1}"#), None).unwrap();
        assert_eq!((mapped.text.as_str(), mapped.changed.len()), (r#"{"b":1}"#, 1));
    }
}
