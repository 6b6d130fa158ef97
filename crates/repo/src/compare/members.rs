//! The members in which two `zarr.json` documents of a node differ, in words.

use icechunkfs_base::printable;
use serde_json::{Map, Value};

/// Members that are named; the rest is counted.
const NAMED: usize = 5;
/// Longest value that is shown, in characters: a longer one is only said to have changed.
const LONGEST: usize = 40;

/// Describes how the documents differ, such as `shape [12, 90] -> [13, 90], attribute units
/// removed`; empty if their members are equal or one is not an object.
pub fn describe(before: &Value, after: &Value) -> String {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else { return String::new() };
    let mut found = Vec::new();
    for key in names(before, after) {
        match (before.get(key), after.get(key)) {
            (Some(Value::Object(old)), Some(Value::Object(new))) if key == "attributes" => {
                for key in names(old, new) {
                    found.extend(member(&format!("attribute {key}"), old.get(key), new.get(key)));
                }
            }
            (old, new) => found.extend(member(key, old, new)),
        }
    }
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    if more > 0 {
        found.push(format!("and {more} more"));
    }
    found.join(", ")
}

/// Returns the names of the members of either object, those of the first in front.
fn names<'a>(before: &'a Map<String, Value>, after: &'a Map<String, Value>) -> Vec<&'a str> {
    let new = after.keys().filter(|key| !before.contains_key(*key));
    before.keys().chain(new).map(String::as_str).collect()
}

fn member(name: &str, before: Option<&Value>, after: Option<&Value>) -> Option<String> {
    let name = printable::line(name);
    match (before, after) {
        (before, after) if before == after => None,
        (_, None) => Some(format!("{name} removed")),
        (None, Some(value)) => Some(match shown(value) {
            Some(value) => format!("{name} {value} added"),
            None => format!("{name} added"),
        }),
        (Some(before), Some(after)) => Some(match (shown(before), shown(after)) {
            (Some(before), Some(after)) => format!("{name} {before} -> {after}"),
            _ => format!("{name} changed"),
        }),
    }
}

/// Returns a value as text, if it is short.
fn shown(value: &Value) -> Option<String> {
    let text = match value {
        Value::Array(items) if items.len() <= LONGEST => {
            let items: Option<Vec<String>> = items.iter().map(shown).collect();
            format!("[{}]", items?.join(", "))
        }
        Value::Array(_) | Value::Object(_) => return None,
        Value::String(text) if text.len() > LONGEST * size_of::<char>() => return None,
        value => value.to_string(),
    };
    let text = printable::line(&text);
    (text.chars().count() <= LONGEST).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn members_and_attributes_are_named_with_short_values() {
        let before = json!({"shape": [12, 90], "fill_value": 0, "codecs": [{"name": "bytes"}], "attributes": {"units": "K", "long": "a"}});
        let after = json!({"shape": [13, 90], "fill_value": 0, "codecs": [{"name": "zstd"}], "attributes": {"long": "b", "new": 1}, "dimension_names": null});
        let all = describe(&before, &after);
        for part in [
            "shape [12, 90] -> [13, 90]",
            "codecs changed",
            "attribute units removed",
            "attribute long \"a\" -> \"b\"",
            "attribute new 1 added",
            "and 1 more",
        ] {
            assert!(all.contains(part), "{all}");
        }
        assert!(!all.contains("fill_value"), "{all}");
        assert_eq!(describe(&before, &before), "");
        let long = "x".repeat(200);
        assert_eq!(describe(&json!({"a": long}), &json!({"a": 1})), "a changed");
        assert_eq!(describe(&json!({}), &json!({"a\nb": 1})), "a\\nb 1 added");
    }
}
