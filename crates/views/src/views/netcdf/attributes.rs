//! Attributes: JSON values as HDF5 attributes.

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

use super::attribute_values::{self, Converted, MAX_CLASSIC_TEXT, OfArray, Purpose, is_int32};
use super::data_type::{ElementType, Shown};
use super::document::StoredAttributes;
use super::hdf5::model::{Attribute, DataType, Value};
use super::hdf5::plan::Plan;
use super::names;
use super::times::NOT_A_TIME;
use crate::views::report::Finding;

/// Most attributes of a node: the format counts them in 16 bits, and some are added.
const MAX_ATTRIBUTES: usize = 65_000;

/// Attributes that the format itself, or netCDF, uses.
const RESERVED: [&str; 13] = [
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "DIMENSION_LABELS",
    "_NCProperties",
    "_nc3_strict",
    "_NCCOPY",
    "_ARRAY_DIMENSIONS",
    "_IsNetcdf4",
    "_SuperblockVersion",
    "_Format",
    "_Codecs",
];
/// Beginnings of the names of more of them, of which that of NCZarr has letters of any case.
const RESERVED_PREFIX: &str = "_Netcdf4";
const NCZARR_PREFIX: &str = "_nczarr";
/// Beginning of the names of attributes by which netCDF-C knows how values were rounded. It refuses
/// a file, or crashes, if one is not an `int`.
const QUANTIZE_PREFIX: &str = "_Quantize";

/// Attributes by which programs make other numbers of the elements: not the booleans or times that
/// an array has.
const OF_NUMBERS: [&str; 4] = ["missing_value", "scale_factor", "add_offset", UNSIGNED];
/// The same, of times, whose numbers have another unit in the file.
const OF_RANGES: [&str; 6] = ["valid_min", "valid_max", "valid_range", "actual_range", "flag_values", "flag_masks"];
/// Attribute that gives integers a sign, or takes it from them.
pub(super) const UNSIGNED: &str = "_Unsigned";

/// Returns the name that attribute `key` gets, or why it cannot be in the file, beside the others
/// of its node and those whose `names` are taken.
fn name_in_file(
    key: &str,
    json: &Json,
    others: &Map<String, Json>,
    names: &HashSet<String>,
) -> Result<String, &'static str> {
    let name = names::allowed(key).ok_or("the name is too long or empty")?;
    if is_reserved(key) || is_reserved(&name) {
        return Err("the name is reserved for the format");
    }
    if name.starts_with(QUANTIZE_PREFIX) && !is_int32(json) {
        return Err("programs refuse the file if it is not one integer of 32 bits");
    }
    // A renamed attribute must not take the name of another one.
    if names.contains(&name) || (name != key && others.contains_key(&name)) {
        return Err("another attribute has its name");
    }
    Ok(name)
}

/// Converts attributes of the node at `path`, an array of `element` or a group. What is left out or
/// renamed is added to `findings`. `classic` is true for types that classic programs have.
pub(super) fn convert(
    attributes: &StoredAttributes,
    element: Option<&ElementType>,
    classic: bool,
    path: &str,
    findings: &mut Vec<Finding>,
) -> Vec<Attribute> {
    let mut converted: Vec<Attribute> = Vec::with_capacity(attributes.values.len());
    for (key, reason) in &attributes.left_out {
        let (path, deed) = match key.as_str() {
            "" => (path.to_owned(), "attributes left out"),
            key => (format!("{path}@{key}"), "left out"),
        };
        findings.push(Finding { path, deed: deed.to_owned(), reason: reason.clone() });
    }
    let is_packed = ["scale_factor", "add_offset"].iter().any(|name| attributes.values.contains_key(*name));
    let array = element.map(|element| OfArray { element, is_packed });
    let mut names = HashSet::new();
    for (key, json) in &attributes.values {
        let mut found = |deed: &str, reason: &str| {
            findings.push(Finding { path: format!("{path}@{key}"), deed: deed.to_owned(), reason: reason.to_owned() });
        };
        if key == "_ARRAY_DIMENSIONS" {
            continue;
        }
        let name = match name_in_file(key, json, &attributes.values, &names) {
            Ok(name) => name,
            Err(reason) => {
                found("left out", reason);
                continue;
            }
        };
        if converted.len() >= MAX_ATTRIBUTES {
            found("left out", "a node has at most 65,000 attributes");
            continue;
        }
        if element.is_some_and(|element| has_other_meaning(&name, element)) {
            // Of a time that is missing, the data type has it.
            if !is_missing_time(&name, json) {
                found("left out", "programs would read other values: the data type says what they mean");
            }
            continue;
        }
        if name == UNSIGNED && element.is_some_and(|element| element.has_other_sign) {
            continue;
        }
        let long = attributes.long.get(key);
        let purpose = array.map_or(Purpose::Shown, |array| Purpose::of(&name, json, array));
        let converted_value = match element {
            Some(element) => attribute_values::of_array(json, element, purpose),
            None => attribute_values::own_value(json, classic),
        };
        let Converted { value, is_rounded, is_partial } = converted_value;
        if purpose == Purpose::FillValue && value.is_none() {
            found("left out", "the value does not fit the variable's type");
            continue;
        }
        let is_rounded = is_rounded
            || (long.is_some() && matches!(&value, Some(Value::Numbers { data_type: DataType::Float64, .. })));
        // JSON text has all digits.
        let value = match (value, long) {
            (Some(Value::Text(_)), Some(long)) if !classic || long.len() <= MAX_CLASSIC_TEXT => {
                Some(Value::Text(long.clone()))
            }
            (value, _) => value,
        };
        let attribute = value.map(|value| Attribute { name, value });
        let Some(attribute) = attribute.filter(|attribute| Plan::check_attribute(attribute).is_ok()) else {
            found("left out", "the value is longer than an attribute can be");
            continue;
        };
        if is_rounded {
            let reason = match long {
                Some(_) => "integers have at most 64 bits; longer ones are rounded",
                None => "the numbers have one type; integers beyond 2^53 are rounded",
            };
            found("shown as double", reason);
        }
        if is_partial {
            found("values left out", "they do not fit the variable's type");
        }
        if attribute.name != *key {
            found(&format!("renamed to {}", attribute.name), "programs do not accept the name");
        }
        names.insert(attribute.name.clone());
        converted.push(attribute);
    }
    converted
}

/// Returns true if no attribute of a repository can be called `name`.
fn is_reserved(name: &str) -> bool {
    let is_nczarr = name.get(..NCZARR_PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(NCZARR_PREFIX));
    RESERVED.contains(&name) || name.starts_with(RESERVED_PREFIX) || is_nczarr
}

/// Returns true if programs would make other numbers of the elements by attribute `name` with the
/// value `json`.
fn has_other_meaning(name: &str, element: &ElementType) -> bool {
    match &element.shown {
        // A program that takes one of two values for a missing one, converts the number for that to
        // a boolean again.
        Shown::Boolean => name == "_FillValue" || OF_NUMBERS.contains(&name),
        Shown::Time(_) => name == "_FillValue" || OF_NUMBERS.contains(&name) || OF_RANGES.contains(&name),
        _ => false,
    }
}

/// Returns true for the mark of a missing time as the data type has it.
fn is_missing_time(name: &str, json: &Json) -> bool {
    name == "_FillValue" && json.as_i64() == Some(NOT_A_TIME)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn stored<const N: usize>(values: [(&str, Json); N]) -> StoredAttributes {
        let values = values.into_iter().map(|(key, json)| (key.to_owned(), json)).collect();
        StoredAttributes { values, ..StoredAttributes::default() }
    }

    fn parsed(attributes: &str) -> StoredAttributes {
        StoredAttributes::of_group(format!("{{\"attributes\":{attributes}}}").as_bytes()).unwrap()
    }

    fn one(key: &str, json: Json, data_type: Option<&str>) -> (Option<Value>, Vec<Finding>) {
        let element = data_type.map(|name| ElementType::parse(&json!(name), false).unwrap());
        let mut findings = Vec::new();
        let attributes = stored([(key, json)]);
        let converted = convert(&attributes, element.as_ref(), false, "/a", &mut findings);
        (converted.into_iter().next().map(|attribute| attribute.value), findings)
    }

    fn numbers(data_type: DataType, bytes: &[u8], count: Option<u64>) -> Option<Value> {
        Some(Value::Numbers { data_type, bytes: bytes.to_vec(), count })
    }

    #[test]
    fn reserved_and_bad_names_are_reported() {
        let reserved =
            ["CLASS", "_Netcdf4Dimid", "_IsNetcdf4", "_SuperblockVersion", "_Format", "_Codecs", "_nczarr_attr"];
        // Names that become reserved ones are reserved, too.
        let others = ["_NCZARR_ARRAY", "_ncZarr_x", "/Netcdf4Dimid", "/Format", "/NCProperties"];
        let cases = reserved.into_iter().chain(others).map(|key| (key, 1));
        for (key, count) in cases.chain([("_ARRAY_DIMENSIONS", 0)]) {
            let (value, findings) = one(key, json!(1), None);
            assert_eq!((value, findings.len()), (None, count), "{key}");
        }
        for (key, wanted) in [("/FillValue", 1), ("/Quantize", 1)] {
            let (value, findings) = one(key, json!("x"), Some("int16"));
            assert_eq!((value, findings.len()), (None, wanted), "{key}");
        }
        let (value, findings) = one("a/b", json!(1), None);
        assert!(value.is_some());
        assert_eq!(findings.first().unwrap().deed, "renamed to a_b");
    }

    #[test]
    fn attributes_of_quantization_are_one_integer_or_left_out() {
        let key = "_QuantizeBitGroomNumberOfSignificantDigits";
        let int32 = DataType::Int { size: 4, signed: true };
        assert_eq!(one(key, json!(3), Some("float32")), (numbers(int32, &[3, 0, 0, 0], Some(1)), vec![]));
        assert_eq!(one(key, json!([3]), None), (numbers(int32, &[3, 0, 0, 0], Some(1)), vec![]));
        for bad in [
            json!("3"),
            json!([1, 2]),
            json!([]),
            json!(1_i64 << 31),
            json!(1.0),
            json!(true),
            json!(null),
            json!([[1]]),
        ] {
            let (value, findings) = one(key, bad.clone(), Some("float32"));
            assert_eq!((value, findings.len()), (None, 1), "{bad}");
        }
    }

    #[test]
    fn a_renamed_attribute_never_takes_the_name_of_another() {
        for attributes in [r#"{"t/u":"bad","t_u":"good"}"#, r#"{"t_u":"good","t/u":"bad"}"#] {
            let mut findings = Vec::new();
            let converted = convert(&parsed(attributes), None, false, "/", &mut findings);
            let good = Attribute { name: "t_u".to_owned(), value: Value::Text("good".to_owned()) };
            assert_eq!((converted, findings.len()), (vec![good], 1));
            assert_eq!(findings[0].path, "/@t/u");
        }
    }

    #[test]
    fn integers_that_are_rounded_are_reported() {
        let found = |attributes: &str, classic| {
            let mut findings = Vec::new();
            let converted = convert(&parsed(attributes), None, classic, "/", &mut findings);
            assert!(
                findings.iter().all(|finding| finding.deed == "shown as double" && finding.reason.contains("rounded"))
            );
            (converted.into_iter().map(|attribute| attribute.value).next(), findings.len())
        };
        let doubles = |list: &[f64], count| {
            let bytes: Vec<u8> = list.iter().flat_map(|number| number.to_le_bytes()).collect();
            numbers(DataType::Float64, &bytes, count)
        };
        let above = "1180591620717411303425";
        let below = 1_180_591_620_717_411_303_424.0;
        assert_eq!(found(&format!("{{\"a\":{above}}}"), false), (doubles(&[below], Some(1)), 1));
        let half = 9_223_372_036_854_775_808.0;
        let list = r#"{"a":[-1,9223372036854775809]}"#;
        assert_eq!(found(list, false), (doubles(&[-1.0, half], Some(2)), 1));
        let mixed = r#"{"a":[9007199254740993,0.5]}"#;
        assert_eq!(found(mixed, false), (doubles(&[9_007_199_254_740_992.0, 0.5], Some(2)), 1));
        // Classic programs have no integers of 64 bits.
        assert_eq!(found(r#"{"a":9007199254740993}"#, true), (doubles(&[9_007_199_254_740_992.0], Some(1)), 1));
        for exact in [r#"{"a":9007199254740993}"#, r#"{"a":[1,0.5]}"#, r#"{"a":1e300}"#, r#"{"a":[-1,2]}"#] {
            assert_eq!(found(exact, false).1, 0, "{exact}");
        }
        // JSON text has all digits.
        let nested = format!("{{\"b\": {above}}}");
        assert_eq!(found(&format!("{{\"a\":{nested}}}"), false), (Some(Value::Text(nested)), 0));
    }

    #[test]
    fn attributes_that_cannot_be_parsed_are_reported() {
        let mut findings = Vec::new();
        let converted = convert(&parsed(r#"{"a":1e400,"b":1}"#), None, false, "/g", &mut findings);
        assert_eq!((converted.len(), findings.len()), (1, 1));
        assert_eq!((findings[0].path.as_str(), findings[0].deed.as_str()), ("/g@a", "left out"));
        findings.clear();
        assert!(convert(&parsed("7"), None, false, "/g", &mut findings).is_empty());
        assert_eq!((findings[0].path.as_str(), findings[0].deed.as_str()), ("/g", "attributes left out"));
    }

    #[test]
    fn marks_that_no_element_can_equal_are_reported() {
        let (value, findings) = one("missing_value", json!([-9, 70_000]), Some("int16"));
        let int16 = DataType::Int { size: 2, signed: true };
        assert_eq!(value, numbers(int16, &[0xF7, 0xFF], Some(1)));
        assert_eq!(findings[0].deed, "values left out");
        let (value, findings) = one("_FillValue", json!(70_000), Some("int16"));
        assert_eq!((value, findings.len()), (None, 1));
    }

    #[test]
    fn booleans_and_times_keep_no_attributes_that_make_other_numbers_of_them() {
        for (key, json) in [("missing_value", json!(1)), ("scale_factor", json!(2)), ("_FillValue", json!(0))] {
            let (value, findings) = one(key, json, Some("bool"));
            assert_eq!((value, findings.len()), (None, 1), "{key}");
        }
        let time = json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}});
        let time = ElementType::parse(&time, false).unwrap();
        let values = [("_FillValue", json!(i64::MIN)), ("valid_range", json!([0, 9])), ("units", json!("K"))];
        let mut findings = Vec::new();
        let converted = convert(&stored(values), Some(&time), false, "/a", &mut findings);
        assert_eq!(converted.iter().map(|attribute| attribute.name.as_str()).collect::<Vec<_>>(), ["units"]);
        assert_eq!(findings.iter().map(|finding| finding.path.as_str()).collect::<Vec<_>>(), ["/a@valid_range"]);
    }

    #[test]
    fn an_attribute_that_is_too_long_spoils_no_others() {
        let mut findings = Vec::new();
        let attributes = stored([("a", json!(vec!["x"; 5_000])), ("b", json!(1))]);
        let converted = convert(&attributes, None, false, "/", &mut findings);
        assert_eq!(converted.iter().map(|attribute| attribute.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(findings.len(), 1);
    }
}
