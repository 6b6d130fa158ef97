//! JSON values as values of HDF5 attributes.
//!
//! Programs compute with the numbers of some attributes, and compare those of others with elements
//! of the variable. What type such an attribute has decides about the result, so it does not follow
//! from the JSON number but from what the attribute is for ([`Purpose`]): a whole number that JSON
//! has as an integer would otherwise be one of 32 bits, in which programs then compute.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value as Json;

use super::data_type::{ElementType, classic_type, number_size};
use super::fill_value::{self, number};
use super::hdf5::model::{DataType, Value};

/// Most bytes of a list of numbers: a message of a header has at most 65,535.
const MAX_LIST: usize = 65_000;
/// Most bytes of a text that classic programs read: a longer one would be a string of any length,
/// which they lack.
pub(super) const MAX_CLASSIC_TEXT: usize = 60_000;

/// Attributes with whose numbers programs unpack elements.
const PACKING: [&str; 2] = ["scale_factor", "add_offset"];
/// Attributes that mark elements as missing.
const MARKS: [&str; 2] = ["_FillValue", "missing_value"];
/// Attributes that programs compare with elements, besides.
const COMPARED: [&str; 5] = ["valid_min", "valid_max", "valid_range", "flag_values", "flag_masks"];
/// The ones of these that may be about the unpacked values of a packed variable.
const RANGES: [&str; 3] = ["valid_min", "valid_max", "valid_range"];
/// Range of the values of a variable: of a packed one, of the unpacked values (CF 1.11, 2.5.1).
const ACTUAL_RANGE: &str = "actual_range";

/// Use that programs make of the numbers of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// None that depends on their type.
    Shown,
    /// The one mark of missing elements that a variable can have: in the type of the variable.
    FillValue,
    /// Marks of missing elements: those that an element can equal, in the type of the variable.
    Marks,
    /// Compared with elements: in the type of the variable, if they fit.
    Compared,
    /// Computed with, or compared with what is computed: `double`.
    Computed,
}

/// Array whose attributes are converted.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfArray<'a> {
    pub(super) element: &'a ElementType,
    /// True if elements are unpacked by `scale_factor` or `add_offset`.
    pub(super) is_packed: bool,
}

/// Value of an attribute, and the numbers that it does not have.
#[derive(Debug, PartialEq)]
pub(super) struct Converted {
    pub(super) value: Option<Value>,
    /// True if integers were rounded.
    pub(super) is_rounded: bool,
    /// True if some marks were dropped.
    pub(super) is_partial: bool,
}

impl From<Option<Value>> for Converted {
    fn from(value: Option<Value>) -> Self {
        Converted { value, is_rounded: false, is_partial: false }
    }
}

impl Purpose {
    /// Returns the purpose of attribute `name` with the value `json` of an array.
    pub(super) fn of(name: &str, json: &Json, array: OfArray<'_>) -> Self {
        let is_packed = array.is_packed;
        match name {
            _ if array.element.is_text() => match name {
                "_FillValue" => Purpose::FillValue,
                _ => Purpose::Shown,
            },
            "_FillValue" => Purpose::FillValue,
            name if MARKS.contains(&name) => Purpose::Marks,
            name if PACKING.contains(&name) => Purpose::Computed,
            ACTUAL_RANGE if is_packed => Purpose::Computed,
            name if RANGES.contains(&name) && is_packed => {
                let is_stored = !has_floats(json)
                    && elements(json).iter().all(|one| fill_value::mark(one, array.element).is_some());
                if is_stored { Purpose::Compared } else { Purpose::Computed }
            }
            ACTUAL_RANGE => Purpose::Compared,
            name if COMPARED.contains(&name) => Purpose::Compared,
            _ => Purpose::Shown,
        }
    }
}

/// Converts the value of an attribute of an array for its purpose; no value if it does not fit.
pub(super) fn of_array(json: &Json, element: &ElementType, purpose: Purpose) -> Converted {
    let own = || own_value(json, element.classic);
    match purpose {
        Purpose::Shown => own(),
        Purpose::FillValue => match elements(json) {
            [one] => marks(element, mark_of_all(one, element)).into(),
            _ => None.into(),
        },
        Purpose::Marks => {
            let all = elements(json);
            let fitting: Vec<Vec<u8>> = all.iter().filter_map(|one| fill_value::mark(one, element)).collect();
            if fitting.is_empty() {
                own()
            } else {
                let is_partial = fitting.len() < all.len();
                Converted { is_partial, ..marks(element, Some(fitting.concat())).into() }
            }
        }
        Purpose::Compared => {
            let all: Option<Vec<Vec<u8>>> = elements(json).iter().map(|one| fill_value::mark(one, element)).collect();
            match all.filter(|all| !all.is_empty()) {
                Some(all) => marks(element, Some(all.concat())).into(),
                None => own(),
            }
        }
        Purpose::Computed => {
            let all: Option<Vec<[u8; 8]>> = elements(json).iter().map(double).collect();
            match all.filter(|all| !all.is_empty()) {
                Some(all) => {
                    let value = list(DataType::Float64, all.concat());
                    Converted { is_rounded: is_inexact(json), ..value.into() }
                }
                None => own(),
            }
        }
    }
}

/// Converts a value by its JSON type alone; no value if it is too long. `classic` is true for types
/// that classic programs have.
pub(super) fn own_value(json: &Json, classic: bool) -> Converted {
    let value = if classic { classic_value(json) } else { value(json) };
    let is_double = matches!(&value, Some(Value::Numbers { data_type: DataType::Float64, .. }));
    Converted { is_rounded: is_double && is_inexact(json), ..value.into() }
}

/// Returns a list of elements of a variable.
fn marks(element: &ElementType, bytes: Option<Vec<u8>>) -> Option<Value> {
    list(element.data_type(), bytes?)
}

/// Returns the bytes of a `_FillValue`: xarray stores that of a float as the base 64 of a float64.
fn mark_of_all(json: &Json, element: &ElementType) -> Option<Vec<u8>> {
    let bytes = json.as_str().filter(|_| element.is_float()).and_then(|text| STANDARD.decode(text).ok());
    match bytes.as_deref().and_then(<[u8]>::as_array::<8>) {
        Some(bytes) => fill_value::mark_of_float(f64::from_le_bytes(*bytes), element),
        None => fill_value::mark(json, element),
    }
}

/// Returns a number, or 1 and 0 for true and false, as a `double`.
fn double(json: &Json) -> Option<[u8; 8]> {
    let number = json.as_f64().or_else(|| json.as_bool().map(|value| f64::from(u8::from(value))))?;
    Some(number.to_le_bytes())
}

/// Returns a list of numbers, if it has any and they are not too long: netCDF-C knows no single
/// numbers either.
fn list(data_type: DataType, bytes: Vec<u8>) -> Option<Value> {
    let count = Some(bytes.len().checked_div(number_size(data_type)?)? as u64);
    (!bytes.is_empty() && bytes.len() <= MAX_LIST).then_some(Value::Numbers { data_type, bytes, count })
}

/// Returns the elements of a list, or the value itself.
fn elements(json: &Json) -> &[Json] {
    json.as_array().map_or(std::slice::from_ref(json), Vec::as_slice)
}

/// Returns true if a value is one integer of 32 bits.
pub(super) fn is_int32(json: &Json) -> bool {
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

/// Converts a value by its JSON type; none if it is too long.
fn value(json: &Json) -> Option<Value> {
    match json {
        Json::String(text) => Some(Value::Text(text.clone())),
        Json::Bool(_) | Json::Number(_) => numbers(elements(json), common_type(elements(json))?),
        Json::Array(all) if !all.is_empty() => {
            if let Some(texts) = all.iter().map(Json::as_str).collect::<Option<Vec<_>>>() {
                // Programs read each text of a list up to its first NUL.
                if texts.iter().any(|text| text.contains('\0')) {
                    return Some(Value::Text(json.to_string()));
                }
                return Some(Value::Texts(texts.into_iter().map(str::to_owned).collect()));
            }
            match common_type(all) {
                Some(data_type) => numbers(all, data_type),
                None => Some(Value::Text(json.to_string())),
            }
        }
        _ => Some(Value::Text(json.to_string())),
    }
}

/// Converts a value to one that classic programs have: lists of texts become JSON, longer integers
/// floats.
fn classic_value(json: &Json) -> Option<Value> {
    let value = match json {
        Json::Array(all) if all.iter().any(Json::is_string) => Value::Text(json.to_string()),
        Json::Array(_) | Json::Number(_) => match common_type(elements(json)) {
            Some(data_type) => numbers(elements(json), classic_type(data_type))?,
            None => value(json)?,
        },
        _ => value(json)?,
    };
    let is_long = matches!(&value, Value::Text(text) if text.len() > MAX_CLASSIC_TEXT);
    (!is_long).then_some(value)
}

fn numbers(all: &[Json], data_type: DataType) -> Option<Value> {
    let bytes = all.iter().map(|json| number(json, &data_type)).collect::<Option<Vec<_>>>()?.concat();
    list(data_type, bytes)
}

/// Returns the narrowest type of all numbers or booleans in `list`; none if it is empty or there is
/// anything else.
fn common_type(list: &[Json]) -> Option<DataType> {
    if list.is_empty() {
        return None;
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    const INT32: DataType = DataType::Int { size: 4, signed: true };
    const INT16: DataType = DataType::Int { size: 2, signed: true };
    const INT8: DataType = DataType::Int { size: 1, signed: true };

    fn numbers(data_type: DataType, bytes: &[u8], count: u64) -> Option<Value> {
        Some(Value::Numbers { data_type, bytes: bytes.to_vec(), count: Some(count) })
    }

    fn doubles(all: &[f64]) -> Option<Value> {
        let bytes: Vec<u8> = all.iter().flat_map(|number| number.to_le_bytes()).collect();
        numbers(DataType::Float64, &bytes, all.len() as u64)
    }

    fn element(data_type: &str, classic: bool) -> ElementType {
        ElementType::parse(&json!(data_type), classic).unwrap()
    }

    /// Converts attribute `name` of an array.
    fn converted(name: &str, json: &Json, element: &ElementType, is_packed: bool) -> Converted {
        of_array(json, element, Purpose::of(name, json, OfArray { element, is_packed }))
    }

    fn of(name: &str, json: Json, data_type: &str, is_packed: bool) -> Option<Value> {
        converted(name, &json, &element(data_type, false), is_packed).value
    }

    #[test]
    fn json_values_become_the_narrowest_lists() {
        let cases = [
            (json!("text"), Some(Value::Text("text".into()))),
            (json!(7), numbers(INT32, &[7, 0, 0, 0], 1)),
            (json!(1_u64 << 40), numbers(DataType::Int { size: 8, signed: true }, &(1_u64 << 40).to_le_bytes(), 1)),
            (json!(u64::MAX), numbers(DataType::Int { size: 8, signed: false }, &[0xFF; 8], 1)),
            (json!(0.5), doubles(&[0.5])),
            (json!(true), numbers(INT8, &[1], 1)),
            (json!([1, 2]), numbers(INT32, &[1, 0, 0, 0, 2, 0, 0, 0], 2)),
            (json!([1, 0.5]), doubles(&[1.0, 0.5])),
            (json!([true, false]), numbers(INT8, &[1, 0], 2)),
            (json!(["a", ""]), Some(Value::Texts(vec!["a".into(), "".into()]))),
            (json!(["a\0b", "c"]), Some(Value::Text("[\"a\\u0000b\",\"c\"]".into()))),
            (json!(["a", 1]), Some(Value::Text("[\"a\",1]".into()))),
            (json!([]), Some(Value::Text("[]".into()))),
            (json!(null), Some(Value::Text("null".into()))),
            (json!({"a": 1}), Some(Value::Text("{\"a\":1}".into()))),
        ];
        for (json, wanted) in cases {
            assert_eq!(own_value(&json, false).value, wanted, "{json}");
        }
        assert_eq!(own_value(&json!(vec![1; 20_000]), false).value, None);
    }

    #[test]
    fn numbers_that_programs_compute_with_are_doubles() {
        for name in ["scale_factor", "add_offset"] {
            for data_type in ["int8", "uint64", "float32", "float16"] {
                assert_eq!(of(name, json!(1000), data_type, true), doubles(&[1000.0]), "{name} {data_type}");
                assert_eq!(of(name, json!([1000]), data_type, true), doubles(&[1000.0]));
            }
            assert_eq!(of(name, json!(true), "int8", true), doubles(&[1.0]));
            assert_eq!(of(name, json!("1000"), "int8", true), Some(Value::Text("1000".into())));
            assert_eq!(of(name, json!(7), "string", true), numbers(INT32, &[7, 0, 0, 0], 1));
        }
        let rounded = converted("add_offset", &json!((1_u64 << 53) + 1), &element("int64", false), true);
        assert_eq!((rounded.value, rounded.is_rounded), (doubles(&[(1_u64 << 53) as f64]), true));
        let classic = converted("scale_factor", &json!(3), &element("uint8", true), true);
        assert_eq!(classic.value, doubles(&[3.0]));
    }

    #[test]
    fn numbers_that_programs_compare_have_the_type_of_the_variable() {
        assert_eq!(of("_FillValue", json!(-9), "int16", false), numbers(INT16, &[0xF7, 0xFF], 1));
        assert_eq!(of("_FillValue", json!([-9]), "int16", false), numbers(INT16, &[0xF7, 0xFF], 1));
        assert_eq!(of("missing_value", json!(-9.0), "int16", true), numbers(INT16, &[0xF7, 0xFF], 1));
        assert_eq!(of("valid_range", json!([0, 1]), "int16", false), numbers(INT16, &[0, 0, 1, 0], 2));
        let nan = numbers(DataType::Float32, &[0, 0, 0xC0, 0x7F], 1);
        assert_eq!(of("_FillValue", json!("AAAAAAAA+H8="), "float32", false), nan);
        for wrong in [json!(70_000), json!(0.5), json!([1, 2]), json!([]), json!(null), json!("x")] {
            assert_eq!(of("_FillValue", wrong.clone(), "int16", false), None, "{wrong}");
        }
        // Others keep their own type if they do not fit.
        assert_eq!(of("valid_max", json!(70_000), "int16", false), numbers(INT32, &70_000_i32.to_le_bytes(), 1));
    }

    #[test]
    fn marks_are_kept_where_an_element_can_equal_them() {
        let partial = converted("missing_value", &json!([70_000, -9, 0.5]), &element("int16", false), false);
        assert_eq!((partial.value, partial.is_partial), (numbers(INT16, &[0xF7, 0xFF], 1), true));
        let none = converted("missing_value", &json!(70_000), &element("int16", false), false);
        assert_eq!((none.value, none.is_partial), (numbers(INT32, &70_000_i32.to_le_bytes(), 1), false));
        // Half-precision numbers are rounded before they are widened, and so are their marks.
        let half = DataType::Float32;
        let tenth = 0.099_975_586_f32.to_le_bytes();
        assert_eq!(of("missing_value", json!(0.1), "float16", false), numbers(half, &tenth, 1));
        let stored = STANDARD.encode(0.1_f64.to_le_bytes());
        assert_eq!(of("_FillValue", json!(stored), "float16", false), numbers(half, &tenth, 1));
    }

    #[test]
    fn marks_of_integers_with_another_sign_have_the_same_bits() {
        let signed = element("uint8", false).with_sign(false);
        let unsigned = element("int8", false).with_sign(true);
        assert!(signed.has_other_sign && unsigned.has_other_sign);
        let mark = |element: &ElementType, json: Json| converted("_FillValue", &json, element, false).value;
        for json in [json!(-1), json!(255)] {
            assert_eq!(mark(&signed, json.clone()), numbers(INT8, &[0xFF], 1));
            assert_eq!(mark(&unsigned, json), numbers(DataType::Int { size: 1, signed: false }, &[0xFF], 1));
        }
        assert_eq!(mark(&signed, json!(256)), None);
        // Nothing changes where the sign is the same, and for floats.
        let same = element("int8", false).with_sign(false);
        assert!(!same.has_other_sign && !element("float32", false).with_sign(true).has_other_sign);
        assert_eq!(mark(&same, json!(255)), None);
        // Classic programs get the number that is meant.
        let classic = element("int8", true).with_sign(true);
        assert_eq!(mark(&classic, json!(-1)), numbers(INT16, &[0xFF, 0], 1));
        assert_eq!(classic.convert(vec![0xFF]).unwrap(), [0xFF, 0]);
    }

    #[test]
    fn ranges_of_packed_variables_have_the_type_of_what_they_are_about() {
        let range = |name, json: Json, is_packed| match of(name, json, "int16", is_packed) {
            Some(Value::Numbers { data_type, .. }) => Some(data_type),
            _ => None,
        };
        let double = Some(DataType::Float64);
        assert_eq!(range("valid_range", json!([-50.0, 50.0]), true), double);
        assert_eq!(range("valid_range", json!([-50, 50]), true), Some(INT16));
        assert_eq!(range("valid_max", json!(70_000), true), double);
        assert_eq!(range("valid_range", json!([-50.0, 50.0]), false), Some(INT16));
        assert_eq!(range("actual_range", json!([-50, 50]), true), double);
        assert_eq!(range("actual_range", json!([-50, 50]), false), Some(INT16));
        assert_eq!(range("flag_values", json!([0, 1]), true), Some(INT16));
    }

    #[test]
    fn classic_programs_get_values_that_they_have() {
        let cases = [
            (json!(1), numbers(INT32, &[1, 0, 0, 0], 1)),
            (json!(1_u64 << 40), doubles(&[(1_u64 << 40) as f64])),
            (json!([u64::MAX]), doubles(&[u64::MAX as f64])),
            (json!(["a", "b"]), Some(Value::Text("[\"a\",\"b\"]".into()))),
            (json!("x".repeat(60_001)), None),
        ];
        for (json, wanted) in cases {
            assert_eq!(own_value(&json, true).value, wanted, "{json}");
        }
        let mark = converted("_FillValue", &json!(65_535), &element("uint16", true), false);
        assert_eq!(mark.value, numbers(INT32, &[0xFF, 0xFF, 0, 0], 1));
        assert!(own_value(&json!((1_u64 << 53) + 1), true).is_rounded);
    }
}
