//! Attributes: JSON values as HDF5 attributes.

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::data_type::{ElementType, Shown, classic_type};
use super::document::StoredAttributes;
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
/// Beginning of the names of attributes by which netCDF-C knows how values were rounded. It refuses a file, or crashes, if one is not an `int`.
const QUANTIZE_PREFIX: &str = "_Quantize";

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
/// Those of them that may be about the unpacked values of a packed variable: then they are floats.
const UNPACKED: [&str; 4] = ["valid_min", "valid_max", "valid_range", "actual_range"];

/// Converts attributes of the node at `path`, an array of `element` or a group. What is left out or renamed is added to `findings`.
/// `classic` is true for types that classic programs have.
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
    let mut names = HashSet::new();
    for (key, json) in &attributes.values {
        let mut found = |deed: &str, reason: &str| {
            findings.push(Finding { path: format!("{path}@{key}"), deed: deed.to_owned(), reason: reason.to_owned() });
        };
        if key == "_ARRAY_DIMENSIONS" {
            continue;
        }
        let Some(name) = names::allowed(key) else {
            found("left out", "the name is too long or empty");
            continue;
        };
        if is_reserved(key) || is_reserved(&name) {
            found("left out", "the name is reserved for the format");
            continue;
        }
        if name.starts_with(QUANTIZE_PREFIX) && !is_int32(json) {
            found("left out", "programs refuse the file if it is not one integer of 32 bits");
            continue;
        }
        // A renamed attribute must not take the name of another one.
        if names.contains(&name) || (name != *key && attributes.values.contains_key(&name)) {
            found("left out", "another attribute has its name");
            continue;
        }
        if converted.len() >= MAX_ATTRIBUTES {
            found("left out", "a node has at most 65,000 attributes");
            continue;
        }
        let is_unpacked = is_packed && UNPACKED.contains(&name.as_str()) && has_floats(json);
        let typed = element.filter(|_| TYPED.contains(&name.as_str()) && !is_unpacked);
        let is_fill = name == "_FillValue";
        let long = attributes.long.get(key);
        let typed_value = typed.map(|element| typed_value(json, element, is_fill));
        let is_typed = matches!(typed_value, Some(Some(_)));
        let value = match typed_value {
            Some(Some(value)) => Some(value),
            Some(None) if is_fill => {
                found("left out", "the value does not fit the variable's type");
                continue;
            }
            _ if classic => classic_value(json),
            _ => value(json),
        };
        let is_rounded = match &value {
            Some(Value::Numbers { data_type: DataType::Float64, .. }) => {
                long.is_some() || (!is_typed && is_inexact(json))
            }
            _ => false,
        };
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

/// Returns the elements of a list, or the value itself.
fn elements(json: &Json) -> &[Json] {
    json.as_array().map_or(std::slice::from_ref(json), Vec::as_slice)
}

/// Returns true if a value is one integer of 32 bits.
fn is_int32(json: &Json) -> bool {
    match elements(json) {
        [one] => one.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
        _ => false,
    }
}

/// Returns true if any of the numbers of a value is a float.
fn has_floats(json: &Json) -> bool {
    elements(json).iter().any(Json::is_f64)
}

/// Returns true if a float cannot have any of the integers of a value.
fn is_inexact(json: &Json) -> bool {
    let is_inexact = |number: i128| number as f64 as i128 != number;
    let integer = |json: &Json| json.as_i64().map(i128::from).or_else(|| json.as_u64().map(i128::from));
    elements(json).iter().filter_map(integer).any(is_inexact)
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
                // Programs read each text of a list up to its first NUL.
                if texts.iter().any(|text| text.contains('\0')) {
                    return Some(Value::Text(json.to_string()));
                }
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
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn stored<const N: usize>(values: [(&str, Json); N]) -> StoredAttributes {
        let values = values.into_iter().map(|(key, json)| (key.to_owned(), json)).collect();
        StoredAttributes { values, ..StoredAttributes::default() }
    }

    fn parsed(attributes: &str) -> StoredAttributes {
        StoredAttributes::of_group(format!("{{\"attributes\":{attributes}}}").as_bytes())
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
            (json!(["a\0b", "c"]), Some(Value::Text("[\"a\\u0000b\",\"c\"]".into()))),
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
        assert_eq!(one(key, json!(3), Some("float32")), (numbers(int32, &[3, 0, 0, 0], None), vec![]));
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
        let (above, below) = ("1180591620717411303425", 1_180_591_620_717_411_303_424.0);
        assert_eq!(found(&format!("{{\"a\":{above}}}"), false), (doubles(&[below], None), 1));
        let (half, list) = (9_223_372_036_854_775_808.0, r#"{"a":[-1,9223372036854775809]}"#);
        assert_eq!(found(list, false), (doubles(&[-1.0, half], Some(2)), 1));
        let mixed = r#"{"a":[9007199254740993,0.5]}"#;
        assert_eq!(found(mixed, false), (doubles(&[9_007_199_254_740_992.0, 0.5], Some(2)), 1));
        // Classic programs have no integers of 64 bits.
        assert_eq!(found(r#"{"a":9007199254740993}"#, true), (doubles(&[9_007_199_254_740_992.0], None), 1));
        for exact in [r#"{"a":9007199254740993}"#, r#"{"a":[1,0.5]}"#, r#"{"a":1e300}"#, r#"{"a":[-1,2]}"#] {
            assert_eq!(found(exact, false).1, 0, "{exact}");
        }
        // JSON text has all digits.
        let nested = format!("{{\"b\": {above}}}");
        assert_eq!(found(&format!("{{\"a\":{nested}}}"), false), (Some(Value::Text(nested)), 0));
    }

    #[test]
    fn ranges_of_unpacked_values_stay_floats() {
        let element = ElementType::parse(&json!("int16"), false).unwrap();
        let range = |json: Json, scale: Option<&str>| {
            let mut attributes = stored([("valid_range", json.clone()), ("actual_range", json)]);
            attributes.values.extend(scale.map(|name| (name.to_owned(), json!(0.5))));
            let converted = convert(&attributes, Some(&element), false, "/", &mut Vec::new());
            let types = converted.iter().take(2).map(|attribute| match &attribute.value {
                Value::Numbers { data_type, .. } => Some(*data_type),
                _ => None,
            });
            types.collect::<Vec<_>>()
        };
        let (double, int16) = ([Some(DataType::Float64); 2], [Some(DataType::Int { size: 2, signed: true }); 2]);
        assert_eq!(range(json!([-50.0, 50.0]), Some("scale_factor")), double);
        assert_eq!(range(json!([-50.0, 50.0]), Some("add_offset")), double);
        assert_eq!(range(json!([-50, 50]), Some("scale_factor")), int16);
        assert_eq!(range(json!([-50.0, 50.0]), None), int16);
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
        let attributes = stored([("a", json!(vec!["x"; 5_000])), ("b", json!(1))]);
        let converted = convert(&attributes, None, false, "/", &mut findings);
        assert_eq!(converted.iter().map(|attribute| attribute.name.as_str()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(findings.len(), 1);
    }
}
