//! The `zarr.json` of a node. Its attributes are parsed one by one: one that cannot be parsed must not take the others with it, nor the array.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::zarr::members::{Members, check_portable_within, has_long_integer, shorten, unknown_member};

/// Most levels of lists and objects in an attribute, which shows as JSON text.
const MAX_LEVELS: usize = 100;

/// Members of an array's `zarr.json` that determine its variable.
const MEMBERS: [&str; 6] =
    ["data_type", "chunk_grid", "fill_value", "codecs", "dimension_names", "storage_transformers"];

/// Attributes of a node, as they are stored.
#[derive(Debug, Default)]
pub(super) struct StoredAttributes {
    /// Values by name.
    pub(super) values: Map<String, Value>,
    /// Texts of values that have integers of more than 64 bits, which `values` has rounded.
    pub(super) long: HashMap<String, String>,
    /// Attributes that cannot be parsed, with the reasons. The name is empty for all together.
    pub(super) left_out: Vec<(String, String)>,
}

impl StoredAttributes {
    /// Parses member `attributes` of a `zarr.json`.
    fn parse(text: Option<&str>) -> Self {
        let mut attributes = StoredAttributes::default();
        let Some(text) = text.filter(|text| *text != "null") else { return attributes };
        let (members, not_unicode) = match Members::parse_unicode(text) {
            Ok(parsed) => parsed,
            Err(reason) => {
                attributes.left_out.push((String::new(), format!("attributes: {}", shorten(&reason))));
                return attributes;
            }
        };
        for name in not_unicode {
            attributes.left_out.push((shorten(name), "its name is not Unicode".to_owned()));
        }
        for (name, text) in members.iter() {
            match value(text) {
                Ok(value) => {
                    attributes.values.insert(name.to_owned(), value);
                    if has_long_integer(text) {
                        attributes.long.insert(name.to_owned(), text.to_owned());
                    }
                }
                Err(reason) => {
                    // The last one of a name counts.
                    attributes.values.swap_remove(name);
                    attributes.left_out.push((name.to_owned(), reason));
                }
            }
        }
        attributes
    }

    /// Parses the attributes in the `zarr.json` of a group.
    pub(super) fn of_group(zarr_json: &[u8]) -> Self {
        let members = std::str::from_utf8(zarr_json).map_err(|error| error.to_string());
        match members.and_then(Members::parse) {
            Ok(members) => Self::parse(members.get("attributes")),
            Err(reason) => {
                let reason = format!("zarr.json: {}", shorten(&reason));
                StoredAttributes { left_out: vec![(String::new(), reason)], ..StoredAttributes::default() }
            }
        }
    }

    /// Returns true if there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty() && self.left_out.is_empty()
    }
}

/// Parses an array's `zarr.json` to the members that determine its variable, and its attributes. Fails with the reason if it cannot be a
/// variable.
pub(super) fn parse_array(zarr_json: &[u8]) -> Result<(Value, StoredAttributes), String> {
    let text = std::str::from_utf8(zarr_json).map_err(|error| format!("zarr.json: {error}"))?;
    let members = Members::parse(text).map_err(|error| format!("zarr.json: {error}"))?;
    if let Some(name) = unknown_member(&members) {
        return Err(format!("the unknown member `{}` of zarr.json, which readers must understand", shorten(name)));
    }
    let mut document = Map::new();
    for name in MEMBERS {
        if let Some(text) = members.get(name) {
            let value = serde_json::from_str(text).map_err(|error| format!("{name}: {error}"))?;
            document.insert(name.to_owned(), value);
        }
    }
    Ok((Value::Object(document), StoredAttributes::parse(members.get("attributes"))))
}

/// Parses the value of an attribute.
fn value(text: &str) -> Result<Value, String> {
    check_portable_within(text, MAX_LEVELS)?;
    serde_json::from_str(text).map_err(|error| error.to_string())
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
            let of_group = StoredAttributes::of_group(document.as_bytes());
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
        let none = StoredAttributes::of_group(br#"{"attributes":{}}"#);
        assert!(none.is_empty() && StoredAttributes::of_group(b"{}").is_empty());
        for wrong in ["", "[]", "\u{feff}", r#"{"attributes":7}"#] {
            assert_eq!(StoredAttributes::of_group(wrong.as_bytes()).left_out.len(), 1, "{wrong}");
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
        assert!(parse(json!({"thing": {"name": "x"}})).unwrap_err().contains("`thing`"));
        assert!(parse(json!({"thing": {"must_understand": true}})).is_err());
        assert!(parse_array(br#"{"fill_value":1e400}"#).unwrap_err().starts_with("fill_value: "));
    }

    #[test]
    fn long_integers_keep_their_text() {
        let found = StoredAttributes::of_group(br#"{"attributes":{"a":18446744073709551616,"b":1}}"#);
        assert_eq!(found.long.iter().collect::<Vec<_>>(), [(&"a".to_owned(), &"18446744073709551616".to_owned())]);
    }
}
