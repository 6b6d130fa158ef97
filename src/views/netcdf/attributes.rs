//! Attributes: JSON values as HDF5 attributes.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json};

use super::data_type::{ElementType, Shown, classic_type};
use super::fill_value::number;
use super::hdf5::model::{Attribute, DataType, Value};
use super::hdf5::plan::Plan;
use super::names;
use crate::views::report::Finding;

/// Most bytes of a list of numbers: a message of a header has at most 65,535.
const MAX_LIST: usize = 65_000;
/// Most bytes of a text that classic programs read: a longer one would be a string of any length, which they lack.
const MAX_CLASSIC_TEXT: usize = 60_000;
/// Most attributes of a node: the format counts them in 16 bits, and some are added.
const MAX_ATTRIBUTES: usize = 65_000;

/// Attributes that the format itself, or netCDF, uses.
const RESERVED: [&str; 9] = [
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "DIMENSION_LABELS",
    "_NCProperties",
    "_nc3_strict",
    "_NCCOPY",
    "_ARRAY_DIMENSIONS",
];

/// Attributes that programs compare with the variable's elements, and so have its type.
const TYPED: [&str; 8] = [
    "_FillValue",
    "missing_value",
    "valid_min",
    "valid_max",
    "valid_range",
    "actual_range",
    "flag_values",
    "flag_masks",
];

/// Converts attributes of the node at `path`, an array of `element` or a group. What is left out or renamed is added to `findings`.
/// `classic` is true for types that classic programs have.
pub(super) fn convert(
    attributes: &Map<String, Json>,
    element: Option<&ElementType>,
    classic: bool,
    path: &str,
    findings: &mut Vec<Finding>,
) -> Vec<Attribute> {
    let mut converted: Vec<Attribute> = Vec::with_capacity(attributes.len());
    let mut names = HashSet::new();
    for (key, json) in attributes {
        let mut found = |deed: &str, reason: &str| {
            findings.push(Finding { path: format!("{path}@{key}"), deed: deed.to_owned(), reason: reason.to_owned() });
        };
        if RESERVED.contains(&key.as_str()) || key.starts_with("_Netcdf4") {
            if key != "_ARRAY_DIMENSIONS" {
                found("left out", "the name is reserved for the format");
            }
            continue;
        }
        let Some(name) = names::allowed(key) else {
            found("left out", "the name is too long or empty");
            continue;
        };
        if names.contains(&name) {
            found("left out", "another attribute has its name");
            continue;
        }
        if converted.len() >= MAX_ATTRIBUTES {
            found("left out", "a node has at most 65,000 attributes");
            continue;
        }
        let typed = element.filter(|_| TYPED.contains(&key.as_str()));
        let value = match typed.map(|element| typed_value(json, element, key == "_FillValue")) {
            Some(Some(value)) => Some(value),
            Some(None) if key == "_FillValue" => {
                found("left out", "the value does not fit the variable's type");
                continue;
            }
            _ if classic => classic_value(json),
            _ => value(json),
        };
        let attribute = value.map(|value| Attribute { name, value });
        let Some(attribute) = attribute.filter(|attribute| Plan::check_attribute(attribute).is_ok()) else {
            found("left out", "the value is longer than an attribute can be");
            continue;
        };
        if attribute.name != *key {
            found(&format!("renamed to {}", attribute.name), "programs do not accept the name");
        }
        names.insert(attribute.name.clone());
        converted.push(attribute);
    }
    converted
}

/// Converts a value by its JSON type alone; none if it is too long.
fn value(json: &Json) -> Option<Value> {
    let scalar = |data_type: DataType, bytes: Vec<u8>| Some(Value::Numbers { data_type, bytes, count: None });
    match json {
        Json::String(text) => Some(Value::Text(text.clone())),
        Json::Bool(value) => scalar(DataType::Int { size: 1, signed: true }, vec![u8::from(*value)]),
        Json::Number(_) => {
            let data_type = common_type(std::slice::from_ref(json))?;
            scalar(data_type, number(json, &data_type)?)
        }
        Json::Array(list) if !list.is_empty() => {
            if let Some(texts) = list.iter().map(Json::as_str).collect::<Option<Vec<_>>>() {
                return Some(Value::Texts(texts.into_iter().map(str::to_owned).collect()));
            }
            match common_type(list) {
                Some(data_type) => numbers(list, data_type),
                None => Some(Value::Text(json.to_string())),
            }
        }
        _ => Some(Value::Text(json.to_string())),
    }
}

/// Converts a value to one that classic programs have: lists of texts become JSON, longer integers floats.
fn classic_value(json: &Json) -> Option<Value> {
    let value = match json {
        Json::Array(list) if list.iter().any(Json::is_string) => Value::Text(json.to_string()),
        Json::Array(list) => match common_type(list).filter(|_| !list.is_empty()) {
            Some(data_type) => numbers(list, classic_type(data_type))?,
            None => value(json)?,
        },
        Json::Number(_) => {
            let data_type = classic_type(common_type(std::slice::from_ref(json))?);
            Value::Numbers { data_type, bytes: number(json, &data_type)?, count: None }
        }
        _ => value(json)?,
    };
    let is_long = matches!(&value, Value::Text(text) if text.len() > MAX_CLASSIC_TEXT);
    (!is_long).then_some(value)
}

fn numbers(list: &[Json], data_type: DataType) -> Option<Value> {
    let bytes = list.iter().map(|json| number(json, &data_type)).collect::<Option<Vec<_>>>()?.concat();
    (bytes.len() <= MAX_LIST).then_some(Value::Numbers { data_type, bytes, count: Some(list.len() as u64) })
}

/// Returns the narrowest type of all numbers or booleans in `list`; none if there is anything else.
fn common_type(list: &[Json]) -> Option<DataType> {
    if list.iter().all(Json::is_boolean) {
        return Some(DataType::Int { size: 1, signed: true });
    }
    if !list.iter().all(Json::is_number) {
        return None;
    }
    let types = [
        DataType::Int { size: 4, signed: true },
        DataType::Int { size: 8, signed: true },
        DataType::Int { size: 8, signed: false },
    ];
    let is_whole = |json: &Json| json.is_i64() || json.is_u64();
    if list.iter().all(is_whole) {
        let fits = |data_type: &DataType| list.iter().all(|json| number(json, data_type).is_some());
        return types.into_iter().find(fits).or(Some(DataType::Float64));
    }
    Some(DataType::Float64)
}

/// Converts a value to the type of the variable; none if it does not fit.
fn typed_value(json: &Json, element: &ElementType, is_fill: bool) -> Option<Value> {
    let data_type = match &element.shown {
        Shown::Chars | Shown::Utf32 | Shown::Texts => return None,
        _ => element.data_type(),
    };
    let one = |json: &Json| {
        let is_float = matches!(data_type, DataType::Float32 | DataType::Float64);
        // xarray stores the `_FillValue` of a float as the base 64 of a float64.
        match json.as_str().filter(|_| is_float && is_fill).and_then(|text| STANDARD.decode(text).ok()) {
            Some(bytes) if bytes.len() == 8 => {
                let value = f64::from_le_bytes(*bytes.first_chunk::<8>()?);
                Some(match data_type {
                    DataType::Float32 => (value as f32).to_le_bytes().to_vec(),
                    _ => value.to_le_bytes().to_vec(),
                })
            }
            _ => number(json, &data_type),
        }
    };
    let list = match json {
        Json::Array(list) if !list.is_empty() => list.as_slice(),
        _ => std::slice::from_ref(json),
    };
    if is_fill && list.len() != 1 {
        return None;
    }
    let bytes = list.iter().map(one).collect::<Option<Vec<_>>>()?.concat();
    let count = (is_fill || json.is_array()).then_some(list.len() as u64);
    (bytes.len() <= MAX_LIST).then_some(Value::Numbers { data_type, bytes, count })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn one(key: &str, json: Json, data_type: Option<&str>) -> (Option<Value>, Vec<Finding>) {
        let element = data_type.map(|name| ElementType::parse(&json!(name), false).unwrap());
        let mut findings = Vec::new();
        let attributes = Map::from_iter([(key.to_owned(), json)]);
        let converted = convert(&attributes, element.as_ref(), false, "/a", &mut findings);
        (converted.into_iter().next().map(|attribute| attribute.value), findings)
    }

    fn numbers(data_type: DataType, bytes: &[u8], count: Option<u64>) -> Option<Value> {
        Some(Value::Numbers { data_type, bytes: bytes.to_vec(), count })
    }

    #[test]
    fn json_values_become_the_narrowest_hdf5_values() {
        let (int32, int8) = (DataType::Int { size: 4, signed: true }, DataType::Int { size: 1, signed: true });
        let cases = [
            (json!("text"), Some(Value::Text("text".into()))),
            (json!(7), numbers(int32, &[7, 0, 0, 0], None)),
            (json!(1_u64 << 40), numbers(DataType::Int { size: 8, signed: true }, &(1_u64 << 40).to_le_bytes(), None)),
            (json!(u64::MAX), numbers(DataType::Int { size: 8, signed: false }, &[0xFF; 8], None)),
            (json!(0.5), numbers(DataType::Float64, &0.5_f64.to_le_bytes(), None)),
            (json!(true), numbers(int8, &[1], None)),
            (json!([1, 2]), numbers(int32, &[1, 0, 0, 0, 2, 0, 0, 0], Some(2))),
            (
                json!([1, 0.5]),
                numbers(DataType::Float64, &[1_f64.to_le_bytes(), 0.5_f64.to_le_bytes()].concat(), Some(2)),
            ),
            (json!([true, false]), numbers(int8, &[1, 0], Some(2))),
            (json!(["a", ""]), Some(Value::Texts(vec!["a".into(), "".into()]))),
            (json!(["a", 1]), Some(Value::Text("[\"a\",1]".into()))),
            (json!([]), Some(Value::Text("[]".into()))),
            (json!(null), Some(Value::Text("null".into()))),
            (json!({"a": 1}), Some(Value::Text("{\"a\":1}".into()))),
        ];
        for (json, wanted) in cases {
            assert_eq!(one("x", json.clone(), None).0, wanted, "{json}");
        }
        assert_eq!(one("x", json!(vec![1; 20_000]), None).0, None);
    }

    #[test]
    fn values_that_programs_compare_have_the_type_of_the_variable() {
        let int16 = DataType::Int { size: 2, signed: true };
        assert_eq!(one("_FillValue", json!(-9), Some("int16")).0, numbers(int16, &[0xF7, 0xFF], Some(1)));
        assert_eq!(one("missing_value", json!(-9), Some("int16")).0, numbers(int16, &[0xF7, 0xFF], None));
        assert_eq!(one("valid_range", json!([0, 1]), Some("int16")).0, numbers(int16, &[0, 0, 1, 0], Some(2)));
        assert_eq!(
            one("_FillValue", json!("AAAAAAAA+H8="), Some("float32")).0,
            numbers(DataType::Float32, &[0, 0, 0xC0, 0x7F], Some(1))
        );
        let (dropped, findings) = one("_FillValue", json!(70_000), Some("int16"));
        assert_eq!((dropped, findings.len()), (None, 1));
        // Others keep their own type if they do not fit.
        assert!(one("valid_max", json!(70_000), Some("int16")).0.is_some());
    }

    #[test]
    fn reserved_and_bad_names_are_reported() {
        for (key, count) in [("CLASS", 1), ("_Netcdf4Dimid", 1), ("_ARRAY_DIMENSIONS", 0)] {
            let (value, findings) = one(key, json!(1), None);
            assert_eq!((value, findings.len()), (None, count), "{key}");
        }
        let (value, findings) = one("a/b", json!(1), None);
        assert!(value.is_some());
        assert_eq!(findings.first().unwrap().deed, "renamed to a_b");
    }

    #[test]
    fn classic_programs_get_values_that_they_have() {
        let double = |number: f64, count| numbers(DataType::Float64, &number.to_le_bytes(), count);
        let int32 = DataType::Int { size: 4, signed: true };
        let cases = [
            (json!(1), numbers(int32, &[1, 0, 0, 0], None)),
            (json!(1_u64 << 40), double((1_u64 << 40) as f64, None)),
            (json!([u64::MAX]), double(u64::MAX as f64, Some(1))),
            (json!(["a", "b"]), Some(Value::Text("[\"a\",\"b\"]".into()))),
            (json!("x".repeat(60_001)), None),
        ];
        for (json, wanted) in cases {
            assert_eq!(classic_value(&json), wanted, "{json}");
        }
        let element = ElementType::parse(&json!("uint16"), true).unwrap();
        assert_eq!(typed_value(&json!(65_535), &element, true), numbers(int32, &[0xFF, 0xFF, 0, 0], Some(1)));
    }

    #[test]
    fn an_attribute_that_is_too_long_spoils_no_others() {
        let mut findings = Vec::new();
        let attributes = Map::from_iter([("a".to_owned(), json!(vec!["x"; 5_000])), ("b".to_owned(), json!(1))]);
        let converted = convert(&attributes, None, false, "/", &mut findings);
        assert_eq!(converted.iter().map(|attribute| attribute.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(findings.len(), 1);
    }
}
