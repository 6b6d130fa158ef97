//! Encodes a configuration in its stored form.
//!
//! Version 2 stores a FlexBuffer, as the reference implementation's serializer writes it: text is a
//! String and never a Key, and no scalar is indirect. Version 1 stores YAML, in which a choice with
//! a payload is a tag (`store: !s3`). The schema states which map is such a choice; for members
//! that newer programs stored, the existing document does, because its unchanged parts are copied.
//!
//! The encoded bytes are decoded again before they are used: they must mean what was to be stored.

use serde_json::{Map, Value};
use serde_yaml_ng::Value as Yaml;
use serde_yaml_ng::value::{Tag, TaggedValue};

use super::schema::{ROOT, ValueKind};
use crate::format::config::{RepoConfig, yaml_to_json};
use crate::format::yaml;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;

/// Encodes `members` as a FlexBuffer.
pub fn flexbuffer(members: &Map<String, Value>) -> Result<Vec<u8>> {
    let bytes = flexbuffers::to_vec(members)
        .map_err(|e| Error::with_source(ErrorKind::InvalidInput, "the configuration", e))?;
    check_round_trip(members, RepoConfig::from_flexbuffer(&bytes))?;
    Ok(bytes)
}

/// Encodes `members` as the text of `config.yaml`, and copies the unchanged parts of its `old`
/// text.
pub fn yaml(members: &Map<String, Value>, old: Option<&[u8]>) -> Result<Vec<u8>> {
    let failed = |e| Error::with_source(ErrorKind::InvalidInput, "config.yaml", e);
    let mut meter = Meter::new("the configuration");
    let old: Option<Yaml> = old.map(|old| yaml::parse(old, &mut meter)).transpose()?;
    let document = to_yaml(&Value::Object(members.clone()), Some(&ROOT), old.as_ref());
    let bytes = serde_yaml_ng::to_string(&document).map_err(failed)?.into_bytes();
    check_round_trip(members, RepoConfig::from_yaml(&bytes))?;
    Ok(bytes)
}

fn check_round_trip(members: &Map<String, Value>, read: Result<RepoConfig>) -> Result<()> {
    match read {
        Ok(read) if read.members() == members => return Ok(()),
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Err(error),
        _ => {}
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        "the stored configuration has a part that this version cannot write: nothing was changed",
    ))
}

// Recursion is bounded by the depth of `value`, which the readers of both encodings bound.
fn to_yaml(value: &Value, kind: Option<&'static ValueKind>, old: Option<&Yaml>) -> Yaml {
    if let Some(old) = old
        && yaml_to_json(old.clone(), yaml::MAX_DEPTH).is_ok_and(|old| old == *value)
    {
        return old.clone();
    }
    match (value, kind) {
        (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_), _) => {
            serde_yaml_ng::to_value(value).unwrap_or_default()
        }
        (Value::Array(items), _) => {
            let kind_of = |n: usize| match (kind, n) {
                (Some(ValueKind::List(below)), _)
                | (Some(ValueKind::Pair(below, _)), 0)
                | (Some(ValueKind::Pair(_, below)), _) => Some(*below),
                _ => None,
            };
            let old = old.and_then(Yaml::as_sequence);
            let item = |(n, item)| to_yaml(item, kind_of(n), old.and_then(|old| old.get(n)));
            Yaml::Sequence(items.iter().enumerate().map(item).collect())
        }
        (Value::Object(members), Some(ValueKind::Choice(variants))) if members.len() == 1 => {
            let tagged = members.iter().map(|(name, payload)| {
                let below = variants.iter().find(|(variant, _)| variant == name).and_then(|(_, below)| *below);
                let old = match old {
                    Some(Yaml::Tagged(old)) if old.tag == *name => Some(&old.value),
                    _ => None,
                };
                TaggedValue { tag: Tag::new(name), value: to_yaml(payload, below, old) }
            });
            tagged.map(|tagged| Yaml::Tagged(Box::new(tagged))).next().unwrap_or(Yaml::Null)
        }
        (Value::Object(members), kind) => {
            let kind_of = |name: &str| {
                let known = kind.and_then(|kind| kind.members().iter().find(|member| member.name == name));
                match (known, kind) {
                    (Some(member), _) => Some(member.kind),
                    (None, Some(ValueKind::Map(below) | ValueKind::Open(_, below))) => Some(*below),
                    _ => None,
                }
            };
            let entry = |(name, value): (&String, &Value)| {
                let old = old.and_then(|old| old.as_mapping()?.get(name.as_str()));
                (Yaml::String(name.clone()), to_yaml(value, kind_of(name), old))
            };
            Yaml::Mapping(members.iter().map(entry).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::format::config_edit::set;
    use serde_json::json;

    #[test]
    fn a_new_document_needs_no_old_one() {
        let members = json!({"storage": {"storage_class": "null"}, "compression": {"algorithm": "zstd"}});
        let members = members.as_object().unwrap();
        assert_eq!(
            String::from_utf8(yaml(members, None).unwrap()).unwrap(),
            "storage:\n  storage_class: 'null'\ncompression:\n  algorithm: zstd\n"
        );
        assert_eq!(yaml(&Map::new(), None).unwrap(), b"{}\n");
        assert!(RepoConfig::from_yaml(b"{}\n").unwrap().members().is_empty());
        let bytes = flexbuffer(members).unwrap();
        assert_eq!(RepoConfig::from_flexbuffer(&bytes).unwrap().members(), members);
    }

    #[test]
    fn documents_that_cannot_be_encoded_are_refused() {
        // YAML allows a tag within a tag, but its serializer does not.
        let old = b"odd: !a !b 1\ncompression:\n  level: 1\n";
        if let Ok(stored) = RepoConfig::from_yaml(old) {
            let changed = set(stored.members(), "compression.level", "2").unwrap().unwrap();
            assert!(yaml(&changed.members, Some(old)).is_err());
        }
    }
}
