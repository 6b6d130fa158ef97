//! Changes the persisted configuration so that every reader can still open the repository.
//!
//! The reference implementation reads the whole configuration when it opens a repository, and
//! refuses one value of a wrong type, one unknown variant or one missing required member. Values
//! are therefore checked against [`schema`], which is the reference implementation's, and a change
//! that adds a problem is refused ([`problems`]). Members that newer programs stored are kept: they
//! are not in the schema and cannot be set, but can be unset.

pub mod containers;
pub mod encode;
pub mod key;
pub mod problems;
pub mod schema;

use serde_json::{Map, Value};

use self::key::{SettingPath, format_key};
use self::schema::{ROOT, ValueKind};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::shell;

/// Setting and its stored value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Full name.
    pub key: String,
    /// Stored value; `None` if the setting is unset.
    pub value: Option<Value>,
    /// ValueKind of the setting; `None` if a newer program stored it.
    pub kind: Option<&'static ValueKind>,
    /// Default, in words.
    pub default: Option<&'static str>,
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigChange {
    /// New configuration.
    pub members: Map<String, Value>,
    /// Full name of the changed setting.
    pub key: String,
    /// Value before the change.
    pub old: Option<Value>,
    /// Value after the change.
    pub new: Option<Value>,
}

/// Returns the setting `key`. Fails with [`icechunkfs_base::error::ErrorKind::InvalidInput`] if
/// there is no such setting.
pub fn get(members: &Map<String, Value>, key: &str) -> Result<Setting> {
    let place = SettingPath::find(members, key)?;
    let value = place.value(members).filter(|value| !value.is_null()).cloned();
    Ok(Setting { key: format_key(&place.path), value, kind: place.kind, default: place.default })
}

/// Sets `key` to the value of `text`: JSON, or otherwise the text itself. Returns `None` if that is
/// the stored value already.
///
/// Fails with [`icechunkfs_base::error::ErrorKind::InvalidInput`] if there is no such setting, or
/// if a reader would not accept the result.
pub fn set(members: &Map<String, Value>, key: &str, text: &str) -> Result<Option<ConfigChange>> {
    let place = SettingPath::find(members, key)?;
    let Some(kind) = place.kind else {
        return Err(Error::invalid(format!(
            "`{}` was set by a newer program: this version does not know its values, and can only unset it",
            format_key(&place.path)
        )));
    };
    let mut value = value_of(text, kind);
    if value.is_null() {
        return Err(Error::invalid(format!("to remove it, use unset {}", shell::quote(&format_key(&place.path)))));
    }
    schema::fill_defaults(&mut value, kind);
    let mut after = members.clone();
    let path = containers::set(&mut after, &place.path, value)?;
    check_change(members, after, &place, &path)
}

/// Unsets `key`. Returns `None` if it is not set. Fails like [`set`].
pub fn unset(members: &Map<String, Value>, key: &str) -> Result<Option<ConfigChange>> {
    let place = SettingPath::find(members, key)?;
    let mut after = members.clone();
    remove(&mut after, &place.path);
    check_change(members, after, &place, &place.path)
}

/// Returns the change from `before`, whose setting is at `place`, to `members`, whose setting is at
/// `path`.
fn check_change(
    before: &Map<String, Value>,
    members: Map<String, Value>,
    place: &SettingPath,
    path: &[String],
) -> Result<Option<ConfigChange>> {
    if members == *before {
        return Ok(None);
    }
    let wrong = problems::introduced(before, &members);
    if !wrong.is_empty() {
        return Err(Error::invalid(format!("{}; nothing was changed", wrong.join("; "))));
    }
    let set = |value: Option<&Value>| value.filter(|value| !value.is_null()).cloned();
    let new = set(key::get_path(&members, path));
    Ok(Some(ConfigChange { key: format_key(path), old: set(place.value(before)), new, members }))
}

/// Returns the value of `text` for a setting of `kind`. A text setting keeps `text`, even if it
/// looks like a number.
fn value_of(text: &str, kind: &ValueKind) -> Value {
    let json: Option<Value> = serde_json::from_str(text).ok();
    let as_text = || Value::String(text.to_owned());
    match (kind, json) {
        (_, None) => as_text(),
        (_, Some(Value::Null)) => Value::Null,
        (ValueKind::Text | ValueKind::Checked(_) | ValueKind::Pattern, Some(Value::String(text))) => {
            Value::String(text)
        }
        (ValueKind::Text | ValueKind::Checked(_) | ValueKind::Pattern, Some(_)) => as_text(),
        (ValueKind::Choice(_), Some(Value::Bool(_) | Value::Number(_))) => as_text(),
        (_, Some(value)) => value,
    }
}

/// Sets `value` at `path`, and creates missing members above it.
fn put(members: &mut Map<String, Value>, path: &[String], value: Value) -> Result<()> {
    let Some((name, rest)) = path.split_first() else { return Err(Error::invalid("a setting needs a name")) };
    if rest.is_empty() {
        members.insert(name.clone(), value);
        return Ok(());
    }
    let below = members.entry(name.clone()).or_insert(Value::Null);
    if below.is_null() {
        *below = Value::Object(Map::new());
    }
    match below {
        Value::Object(below) => put(below, rest, value),
        _ => Err(Error::invalid(format!("`{name}` is set as a whole: it has no member `{}`", format_key(rest)))),
    }
}

/// Removes `path`, and the members above it that become empty.
fn remove(members: &mut Map<String, Value>, path: &[String]) {
    let Some((name, rest)) = path.split_first() else { return };
    if rest.is_empty() {
        members.shift_remove(name);
        return;
    }
    let Some(Value::Object(below)) = members.get_mut(name) else { return };
    let had_some = !below.is_empty();
    remove(below, rest);
    if had_some && below.is_empty() {
        members.shift_remove(name);
    }
}

/// Returns every setting: those of the schema, and other stored members.
pub fn all(members: &Map<String, Value>) -> Vec<Setting> {
    let mut out = Vec::new();
    let mut path = Vec::new();
    collect_settings(members, &ROOT, &mut path, &mut out);
    out
}

fn collect_settings(
    members: &Map<String, Value>,
    kind: &'static ValueKind,
    path: &mut Vec<String>,
    out: &mut Vec<Setting>,
) {
    let known = kind.members();
    for member in known {
        path.push(member.name.to_owned());
        let value = members.get(member.name).filter(|value| !value.is_null());
        match (member.kind, value) {
            (ValueKind::Struct(_), None) => collect_settings(&Map::new(), member.kind, path, out),
            (ValueKind::Struct(_), Some(Value::Object(below))) => collect_settings(below, member.kind, path, out),
            (_, value) => out.push(Setting {
                key: format_key(path),
                value: value.cloned(),
                kind: Some(member.kind),
                default: Some(member.default).filter(|default| !default.is_empty()),
            }),
        }
        path.pop();
    }
    for (name, value) in members {
        if known.iter().all(|member| member.name != name) && !value.is_null() {
            path.push(name.clone());
            out.push(Setting { key: format_key(path), value: Some(value.clone()), kind: None, default: None });
            path.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn members(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    /// Returns the configuration after `set`, or the error message.
    fn after(before: &Value, key: &str, text: &str) -> std::result::Result<Value, String> {
        let changed = set(&members(before.clone()), key, text).map_err(|error| error.to_string())?;
        Ok(changed.map_or(json!("the same"), |changed| changed.members.into()))
    }

    #[test]
    fn values_follow_their_kind() {
        let none = json!({});
        for (key, text, expected) in [
            ("inline_chunk_threshold_bytes", "12", json!({"inline_chunk_threshold_bytes": 12})),
            // Text that looks like a number.
            ("storage.storage_class", "12", json!({"storage": {"storage_class": "12"}})),
            ("storage.storage_class", "\"A B\"", json!({"storage": {"storage_class": "A B"}})),
            ("manifest.preload.preload_if", "true", json!({"manifest": {"preload": {"preload_if": "true"}}})),
            ("compression", "{\"level\": 9}", json!({"compression": {"level": 9}})),
        ] {
            assert_eq!(after(&none, key, text).unwrap(), expected, "{key}");
        }
        for (key, text, why) in [
            ("inline_chunk_threshold_bytes", "70000", "0 to 65535"),
            ("inline_chunk_threshold_bytes", "1.5", "whole number"),
            ("inline_chunk_threshold_bytes", "much", "whole number"),
            ("inline_chunk_threshold_bytes", "-1", "whole number"),
            ("storage.retries.max_tries", "0", "1 to 65535"),
            ("compression.algorithm", "lz4", "one of `zstd`"),
            ("compression", "{\"levl\": 9}", "`compression.levl`"),
            ("storage.unsafe_use_metadata", "1", "true or false"),
            ("manifest.splitting.split_sizes", "[[\"every_array\", []]]", "`any_array`"),
            ("manifest.splitting.split_sizes", "[[\"any_array\", [{\"condition\": \"Any\"}]]]", "num_chunks"),
            ("manifest.splitting.split_sizes", "[[{\"name_matches\": {\"regex\": \"(\"}}, []]]", "regular expression"),
            ("inline_threshold", "1", "did you mean `inline_chunk_threshold_bytes`"),
            ("compression.level.x", "1", "has no"),
            ("compression.level", "null", "unset 'compression.level'"),
            ("", "1", "name"),
        ] {
            let error = after(&none, key, text).unwrap_err();
            assert!(error.contains(why), "{key} {text}: {error}");
        }
    }

    #[test]
    fn other_members_stay_unchanged() {
        let before = json!({"caching": null, "compression": {"level": 3, "algorithm": "brotli", "window": 5}});
        // Problems that existed before do not prevent a change.
        let changed = after(&before, "compression.level", "4").unwrap();
        assert_eq!(changed["compression"], json!({"level": 4, "algorithm": "brotli", "window": 5}));
        assert_eq!(after(&before, "compression.level", "3").unwrap(), json!("the same"));
        let before = members(before);
        assert_eq!(unset(&before, "caching").unwrap().unwrap().old, None);
        assert!(unset(&before, "manifest.splitting").unwrap().is_none());
        let emptied = unset(&members(json!({"compression": {"level": 3}})), "compression.level").unwrap().unwrap();
        assert_eq!(emptied.members, Map::new());
    }

    #[test]
    fn all_settings_are_listed() {
        let stored = members(json!({"compression": {"level": 4}, "new": 1, "virtual_chunk_containers": {}}));
        let all = all(&stored);
        let find = |key: &str| all.iter().find(|setting| setting.key == key).unwrap();
        assert_eq!(find("compression.level").value, Some(json!(4)));
        assert_eq!(find("compression.algorithm").default, Some("zstd"));
        assert_eq!((&find("new").value, find("new").kind.is_some()), (&Some(json!(1)), false));
        assert_eq!(find("virtual_chunk_containers").value, Some(json!({})));
        assert!(find("manifest.preload.max_total_refs").value.is_none());
    }
}
