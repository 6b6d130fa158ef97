//! The `zarr.json` of a node. Its attributes are parsed one by one: one that cannot be parsed must
//! not take the others with it, nor the array.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::look::Obstacle;
use icechunkfs_base::error::{ErrorKind, Result as CrateResult};
use icechunkfs_base::memory::{Meter, Reservation};
use icechunkfs_format::format::json;
use icechunkfs_format::zarr::members::{Members, check_portable_within, has_long_integer, shorten, unknown_member};

/// Most levels of lists and objects in an attribute, which shows as JSON text.
const MAX_LEVELS: usize = 100;

/// Members of an array's `zarr.json` that determine its variable.
const MEMBERS: [&str; 6] =
    ["data_type", "chunk_grid", "fill_value", "codecs", "dimension_names", "storage_transformers"];

/// Name of a node's values in errors.
const WHAT: &str = "a zarr.json with its attributes";

/// Attributes of a node, as they are stored.
#[derive(Debug, Default)]
pub(super) struct StoredAttributes {
    /// Values by name.
    pub(super) values: Map<String, Value>,
    /// Texts of values that have integers of more than 64 bits, which `values` has rounded.
    pub(super) long: HashMap<String, String>,
    /// Attributes that cannot be parsed, with the reasons. The name is empty for all together.
    pub(super) left_out: Vec<(String, String)>,
    /// Memory of the attributes, and of the document that they were parsed with.
    pub(super) memory: Reservation,
}

impl StoredAttributes {
    /// Parses member `attributes` of a `zarr.json`, whose values `meter` counts.
    ///
    /// Errors: [`ErrorKind::OutOfMemory`], which is no property of the attributes.
    fn parse(text: Option<&str>, mut meter: Meter) -> CrateResult<Self> {
        let mut attributes = StoredAttributes::default();
        if let Some(text) = text.filter(|text| *text != "null") {
            attributes.add_all(text, &mut meter)?;
        }
        attributes.memory = meter.into_reservation();
        Ok(attributes)
    }

    fn add_all(&mut self, text: &str, meter: &mut Meter) -> CrateResult<()> {
        meter.count(2 * json::measure_names(text.as_bytes()))?;
        let (members, not_unicode) = match Members::parse_unicode(text) {
            Ok(parsed) => parsed,
            Err(reason) => {
                self.left_out.push((String::new(), format!("attributes: {}", shorten(&reason))));
                return Ok(());
            }
        };
        for name in not_unicode {
            self.left_out.push((shorten(name), "its name is not Unicode".to_owned()));
        }
        for (name, text) in members.iter() {
            match value(text, meter)? {
                Ok(value) => {
                    self.values.insert(name.to_owned(), value);
                    if has_long_integer(text) {
                        meter.count(text.len() as u64)?;
                        self.long.insert(name.to_owned(), text.to_owned());
                    }
                }
                Err(reason) => {
                    // The last one of a name counts.
                    self.values.swap_remove(name);
                    self.left_out.push((name.to_owned(), reason));
                }
            }
        }
        Ok(())
    }

    /// Parses the attributes in the `zarr.json` of a group.
    ///
    /// Errors: [`ErrorKind::OutOfMemory`].
    pub(super) fn of_group(zarr_json: &[u8]) -> CrateResult<Self> {
        let members = std::str::from_utf8(zarr_json).map_err(|error| error.to_string());
        match members.and_then(Members::parse) {
            Ok(members) => Self::parse(members.get("attributes"), Meter::brief(WHAT)),
            Err(reason) => {
                let reason = format!("zarr.json: {}", shorten(&reason));
                Ok(StoredAttributes { left_out: vec![(String::new(), reason)], ..StoredAttributes::default() })
            }
        }
    }
}

/// Returns the bytes that the names of the attributes take at most, about. Their values count while
/// they are made.
pub(super) fn measure_attribute_names(zarr_json: &[u8]) -> u64 {
    let members = std::str::from_utf8(zarr_json).ok().and_then(|text| Members::parse(text).ok());
    match members.as_ref().and_then(|members| members.get("attributes")) {
        Some(text) if inside_of_object(text).is_some_and(str::is_empty) => 0,
        Some(text) => json::measure_names(text.as_bytes()),
        None => 0,
    }
}

/// Returns true if the `zarr.json` of a group has attributes, or cannot be parsed.
pub(super) fn may_have_attributes(zarr_json: &[u8]) -> bool {
    let members = std::str::from_utf8(zarr_json).ok().and_then(|text| Members::parse(text).ok());
    let Some(members) = members else { return true };
    let attributes = members.get("attributes").filter(|text| *text != "null");
    attributes.is_some_and(|text| inside_of_object(text).is_none_or(|inside| !inside.is_empty()))
}

/// Returns the text within the braces of an object.
fn inside_of_object(text: &str) -> Option<&str> {
    text.strip_prefix('{')?.strip_suffix('}').map(str::trim)
}

/// Parses an array's `zarr.json` to the members that determine its variable, and its attributes,
/// which have the memory of both. Fails with the reason if it cannot be a variable.
pub(super) fn parse_array(zarr_json: &[u8]) -> Result<(Value, StoredAttributes), Obstacle> {
    let text = std::str::from_utf8(zarr_json).map_err(|error| format!("zarr.json: {error}"))?;
    let members = Members::parse(text).map_err(|error| format!("zarr.json: {error}"))?;
    if let Some(name) = unknown_member(&members) {
        let name = shorten(name);
        return Err(format!("the unknown member `{name}` of zarr.json, which readers must understand").into());
    }
    let mut meter = Meter::brief(WHAT);
    let mut document = Map::new();
    for name in MEMBERS {
        if let Some(text) = members.get(name) {
            let value = parsed(text, &mut meter).map_err(Obstacle::OfAccess)?;
            document.insert(name.to_owned(), value.map_err(|error| format!("{name}: {error}"))?);
        }
    }
    let attributes = StoredAttributes::parse(members.get("attributes"), meter).map_err(Obstacle::OfAccess)?;
    Ok((Value::Object(document), attributes))
}

/// Parses the value of an attribute, or returns the reason why not.
fn value(text: &str, meter: &mut Meter) -> CrateResult<Result<Value, String>> {
    match check_portable_within(text, MAX_LEVELS) {
        Ok(()) => parsed(text, meter),
        Err(reason) => Ok(Err(reason.to_owned())),
    }
}

/// Parses JSON, or returns the reason why not. The outer error is that of a lack of memory.
fn parsed(text: &str, meter: &mut Meter) -> CrateResult<Result<Value, String>> {
    match json::parse(text.as_bytes(), meter) {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.kind() == ErrorKind::OutOfMemory => Err(error),
        Err(error) => Ok(Err(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    /// Attributes of which some cannot be parsed.
    fn bad() -> String {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        format!(
            r#"{{"title":"x","limit":1e400,"half":"\ud800","deep":{deep},"\udfff":1,"twice":1,"twice":-1e999,"last":[2]}}"#
        )
    }

    #[test]
    fn a_bad_attribute_takes_no_other_with_it() {
        for document in [
            format!(r#"{{"zarr_format":3,"node_type":"group","attributes":{}}}"#, bad()),
            format!(r#"{{"attributes":{},"codecs":["bytes"]}}"#, bad()),
        ] {
            let of_group = StoredAttributes::of_group(document.as_bytes()).unwrap();
            let of_array = parse_array(document.as_bytes()).unwrap().1;
            for found in [of_group, of_array] {
                let mut names: Vec<&str> = found.values.keys().map(String::as_str).collect();
                names.sort_unstable();
                assert_eq!(names, ["last", "title"]);
                let left_out: Vec<&str> = found.left_out.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(left_out, [r#""\udfff""#, "limit", "half", "deep", "twice"]);
                assert!(found.left_out.iter().all(|(_, reason)| !reason.is_empty()));
            }
        }
        let of_group = |document: &[u8]| StoredAttributes::of_group(document).unwrap();
        for none in ["{}", r#"{"attributes":{}}"#, r#"{"attributes": { } }"#, r#"{"attributes":null}"#] {
            let found = of_group(none.as_bytes());
            assert!(found.values.is_empty() && found.left_out.is_empty());
            assert!(!may_have_attributes(none.as_bytes()), "{none}");
        }
        for wrong in ["", "[]", "\u{feff}", r#"{"attributes":7}"#] {
            assert_eq!(of_group(wrong.as_bytes()).left_out.len(), 1, "{wrong}");
            assert!(may_have_attributes(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn members_that_must_be_understood_are_refused() {
        let parse = |more: Value| {
            let mut document = json!({"zarr_format": 3, "shape": [1], "codecs": ["bytes"], "chunk_key_encoding": {}});
            document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            parse_array(document.to_string().as_bytes()).map(|(document, _)| document)
        };
        assert_eq!(parse(json!({})).unwrap(), json!({"codecs": ["bytes"]}));
        assert!(parse(json!({"thing": {"must_understand": false}})).is_ok());
        let reason = |failed: Result<Value, Obstacle>| match failed {
            Err(Obstacle::OfArray(reason)) => reason,
            other => format!("{other:?}"),
        };
        assert!(reason(parse(json!({"thing": {"name": "x"}}))).contains("`thing`"));
        assert!(parse(json!({"thing": {"must_understand": true}})).is_err());
        let wrong = parse_array(br#"{"fill_value":1e400}"#).map(|(document, _)| document);
        assert!(reason(wrong).starts_with("fill_value: "));
    }

    #[test]
    fn long_integers_keep_their_text() {
        let found = StoredAttributes::of_group(br#"{"attributes":{"a":18446744073709551616,"b":1}}"#).unwrap();
        assert_eq!(found.long.iter().collect::<Vec<_>>(), [(&"a".to_owned(), &"18446744073709551616".to_owned())]);
    }
}
