//! Parses and spells names of settings: `manifest.preload.max_total_refs`,
//! `virtual_chunk_containers."s3://a.b/".url_prefix`.
//!
//! Dots separate the parts. A part that contains a dot is written as a JSON string; a part that
//! names a stored member needs no quotes.

use serde_json::{Map, Value};

use super::containers;
use super::schema::{ROOT, ValueKind};
use icechunkfs_base::error::{Error, Result};

/// Lowest similarity of a name that is suggested: 0 for nothing in common, 1 for equality
/// (Jaro-Winkler).
const MIN_SIMILARITY: f64 = 0.7;

/// Position and kind of a setting.
#[derive(Debug)]
pub struct SettingPath {
    /// Names of the members that lead to the setting.
    pub path: Vec<String>,
    /// ValueKind of the setting; `None` if a newer program stored it.
    pub kind: Option<&'static ValueKind>,
    /// Default, in words.
    pub default: Option<&'static str>,
}

impl SettingPath {
    /// Finds the setting `key`, whether it is stored among `members` or not.
    pub fn find(members: &Map<String, Value>, key: &str) -> Result<SettingPath> {
        let mut parts: &[String] = &parse(key)?;
        let mut place = SettingPath { path: Vec::new(), kind: Some(&ROOT), default: None };
        let mut at = Some(members);
        while !parts.is_empty() {
            let taken = place.descend(at, parts)?;
            parts = parts.get(taken..).unwrap_or_default();
            at = at.and_then(|at| at.get(place.path.last()?)?.as_object());
        }
        Ok(place)
    }

    /// Descends to the member that `parts` begin with, and returns the number of parts that it
    /// took.
    fn descend(&mut self, at: Option<&Map<String, Value>>, parts: &[String]) -> Result<usize> {
        let Some(name) = parts.first() else { return Ok(0) };
        let is_stored = |name: &str| at.is_some_and(|at| at.get(name).is_some_and(|value| !value.is_null()));
        let known = self.kind.map_or(&[][..], ValueKind::members);
        if let Some(member) = known.iter().find(|member| member.name == name) {
            self.kind = Some(member.kind);
            self.default = Some(member.default).filter(|default| !default.is_empty());
            self.path.push(name.clone());
            return Ok(1);
        }
        self.default = None;
        match self.kind {
            Some(ValueKind::Choice(variants)) => {
                let payload = variants.iter().find(|(variant, _)| variant == name).and_then(|(_, payload)| *payload);
                self.kind = Some(payload.ok_or_else(|| self.unknown(name))?);
                self.path.push(name.clone());
                Ok(1)
            }
            Some(ValueKind::Map(below)) | Some(ValueKind::Open(_, below)) => {
                // Take as many parts as form the name of a stored member, otherwise one.
                let (name, taken) = (1..=parts.len())
                    .rev()
                    .map(|count| (parts.iter().take(count).cloned().collect::<Vec<_>>().join("."), count))
                    .find(|(joined, _)| is_stored(joined))
                    .unwrap_or_else(|| (name.clone(), 1));
                let name = match (at, self.path.as_slice()) {
                    (Some(at), [only]) if only == containers::CONTAINERS_KEY => containers::resolve_key(at, &name),
                    _ => name,
                };
                self.kind = Some(below);
                self.path.push(name);
                Ok(taken)
            }
            Some(ValueKind::Struct(_)) | None if is_stored(name) => {
                self.kind = None;
                self.path.push(name.clone());
                Ok(1)
            }
            _ => Err(self.unknown(name)),
        }
    }

    /// Returns the error for a member that does not exist.
    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> = match self.kind {
            Some(ValueKind::Choice(variants)) => {
                variants.iter().filter(|(_, payload)| payload.is_some()).map(|(name, _)| *name).collect()
            }
            Some(kind) => kind.members().iter().map(|member| member.name).collect(),
            None => Vec::new(),
        };
        let what = match self.path.as_slice() {
            [] => format!("there is no setting `{name}`"),
            path => format!("`{}` has no `{name}`", format_key(path)),
        };
        let similarity = |candidate: &str| strsim::jaro_winkler(name, candidate);
        let near = names.iter().copied().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
        let near = near.filter(|near| similarity(near) >= MIN_SIMILARITY);
        let help = match (near, names.as_slice()) {
            (Some(near), _) => format!("; did you mean `{near}`?"),
            (None, []) => String::new(),
            (None, _) => format!("; there is {}", names.join(", ")),
        };
        Error::invalid(format!("{what}{help}"))
    }

    /// Returns the stored value of the setting.
    pub fn value<'a>(&self, members: &'a Map<String, Value>) -> Option<&'a Value> {
        get_path(members, &self.path)
    }
}

/// Returns the value stored at `path`.
pub fn get_path<'a>(members: &'a Map<String, Value>, path: &[String]) -> Option<&'a Value> {
    let (name, rest) = path.split_first()?;
    let value = members.get(name)?;
    if rest.is_empty() { Some(value) } else { get_path(value.as_object()?, rest) }
}

fn parse(key: &str) -> Result<Vec<String>> {
    let wrong = |why: &str| Error::invalid(format!("`{key}` is not a valid setting name: {why}"));
    let mut parts = Vec::new();
    let mut rest = key;
    loop {
        if rest.starts_with('"') {
            let mut quoted = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let part = quoted.next().and_then(std::result::Result::ok).ok_or_else(|| wrong("a quote is not closed"))?;
            let end = quoted.byte_offset();
            parts.push(part);
            rest = rest.get(end..).unwrap_or_default();
        } else {
            let end = rest.find('.').unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            if part.is_empty() {
                return Err(wrong("a part between dots is empty"));
            }
            parts.push(part.to_owned());
            rest = after;
        }
        match rest.strip_prefix('.') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Ok(parts),
            None => return Err(wrong("a quoted part must be followed by a dot")),
        }
    }
}

/// Returns `path` as a user writes it.
pub fn format_key(path: &[String]) -> String {
    let part = |part: &String| {
        let plain = !part.is_empty() && !part.starts_with('"') && !part.contains(['.', ' ']);
        if plain && !part.chars().any(char::is_control) { part.clone() } else { Value::from(part.as_str()).to_string() }
    };
    path.iter().map(part).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn names_survive_the_round_trip() {
        for (key, parts) in [
            ("a", &["a"][..]),
            ("a.b-c.d", &["a", "b-c", "d"]),
            (r#"c."s3://a.b/".x"#, &["c", "s3://a.b/", "x"]),
            (r#""\"q\" .é""#, &["\"q\" .é"]),
            (r#"a."""#, &["a", ""]),
        ] {
            assert_eq!(parse(key).unwrap(), parts);
            assert_eq!(parse(&format_key(&parse(key).unwrap())).unwrap(), parts);
        }
        for wrong in ["", ".", "a.", ".a", "a..b", "\"a", "\"a\"b", "a.\"b"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_stored_members_need_no_quotes() {
        let stored = json!({"virtual_chunk_containers": {
            "s3://my.bucket/": {"name": "mine", "url_prefix": "s3://my.bucket/", "store": {"s3": {}}}
        }});
        let stored = stored.as_object().unwrap();
        let path = |key: &str| SettingPath::find(stored, key).unwrap().path;
        let expected = ["virtual_chunk_containers", "s3://my.bucket/", "store", "s3", "region"];
        assert_eq!(path("virtual_chunk_containers.s3://my.bucket/.store.s3.region"), expected);
        assert_eq!(path("virtual_chunk_containers.mine.store.s3.region"), expected);
        assert_eq!(path("virtual_chunk_containers.\"s3://my.bucket/\".store.s3.region"), expected);
    }
}
