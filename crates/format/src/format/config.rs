//! Reads the persisted configuration: a FlexBuffers map in `repo` (version 2) or `config.yaml`
//! (version 1).
//!
//! Both have the same schema (`serde`'s external tagging; a YAML tag stands for a one-key map). The
//! configuration is kept as JSON: members that this program does not know must survive, and most
//! are hints for the caches of other clients. Members are read one by one, and a member of an
//! unexpected type counts as unset.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::envelope::Compression;
use super::{flexbuffer, yaml};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{Meter, Metered};

/// Largest inline chunk, in bytes, if the configuration does not set a threshold (the reference
/// implementation's default).
pub const DEFAULT_INLINE_THRESHOLD: u64 = 512;

/// Persisted configuration of a repository.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RepoConfig {
    members: Arc<Metered<Map<String, Value>>>,
}

impl RepoConfig {
    /// Decodes the bytes of `Repo.config`.
    pub fn from_flexbuffer(bytes: &[u8]) -> Result<Self> {
        let mut meter = meter();
        let value = flexbuffer::to_json_within(yaml::LIMITS, bytes, &mut meter)?;
        RepoConfig::from_json(value, meter)
    }

    /// Decodes the text of `config.yaml`.
    pub fn from_yaml(bytes: &[u8]) -> Result<Self> {
        let mut meter = meter();
        let value = yaml_to_json(yaml::parse(bytes, &mut meter)?, yaml::MAX_DEPTH)?;
        RepoConfig::from_json(value, meter)
    }

    fn from_json(value: Value, meter: Meter) -> Result<Self> {
        match value {
            Value::Object(members) => Ok(RepoConfig { members: Arc::new(meter.finish(members)) }),
            Value::Null => Ok(RepoConfig::default()),
            _ => Err(Error::corrupt("the configuration is not a map")),
        }
    }

    /// Returns all members as stored.
    pub fn members(&self) -> &Map<String, Value> {
        &self.members
    }

    /// Returns the size, in bytes, up to which a chunk is stored in its manifest.
    pub fn inline_threshold(&self) -> u64 {
        self.members.get("inline_chunk_threshold_bytes").and_then(Value::as_u64).unwrap_or(DEFAULT_INLINE_THRESHOLD)
    }

    /// Returns how metadata files are compressed.
    pub fn compression(&self) -> Compression {
        let level = self.members.get("compression").and_then(|compression| compression.get("level")?.as_u64());
        level.map(Compression::of_level).unwrap_or_default()
    }

    /// Returns the storage class of new objects.
    pub fn storage_classes(&self) -> StorageClasses {
        let class = |name| {
            let set = self.members.get("storage").and_then(|storage| storage.get(name)?.as_str());
            set.filter(|class| !class.is_empty()).map(str::to_owned)
        };
        let of_all = class("storage_class");
        StorageClasses {
            chunks: class("chunks_storage_class").or_else(|| of_all.clone()),
            metadata: class("metadata_storage_class").or(of_all),
        }
    }

    /// Returns true if objects may be stored with user metadata.
    pub fn uses_metadata(&self) -> bool {
        let set = self.members.get("storage").and_then(|storage| storage.get("unsafe_use_metadata")?.as_bool());
        set.unwrap_or(true)
    }

    /// Returns the numbers and times of requests to the store.
    pub fn request_settings(&self) -> RequestSettings {
        let retries = self.members.get("storage").and_then(|storage| storage.get("retries"));
        let number = |name| retries.and_then(|retries| retries.get(name)?.as_u64());
        // 0 is invalid, although the reference implementation stores it.
        let count = |value: Option<u64>| value.filter(|count| *count > 0);
        RequestSettings {
            at_once: count(self.members.get("max_concurrent_requests").and_then(Value::as_u64)),
            tries: count(number("max_tries")),
            first_pause: number("initial_backoff_ms").map(Duration::from_millis),
            longest_pause: number("max_backoff_ms").map(Duration::from_millis),
        }
    }

    /// Returns the virtual chunk containers. Skips unusable entries (in old files a prefix may be a
    /// bare word), like the reference implementation.
    pub fn virtual_containers(&self) -> Vec<Container> {
        let containers = self.members.get("virtual_chunk_containers").and_then(Value::as_object);
        containers
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| {
                let url_prefix = value.get("url_prefix")?.as_str()?;
                let name = value.get("name").and_then(Value::as_str).unwrap_or(key);
                (url_prefix.contains("://") && url_prefix.ends_with('/')).then(|| Container {
                    name: name.to_owned(),
                    url_prefix: url_prefix.to_owned(),
                    store: ContainerStore::read(value.get("store")),
                })
            })
            .collect()
    }
}

fn meter() -> Meter {
    Meter::new("the configuration")
}

/// Storage classes of new objects, by the names of the store; none for the store's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageClasses {
    /// Class of chunks.
    pub chunks: Option<String>,
    /// Class of everything else.
    pub metadata: Option<String>,
}

/// Numbers and times of the requests to a store; `None` where the configuration does not set one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestSettings {
    /// Maximum number of requests at a time.
    pub at_once: Option<u64>,
    /// Maximum number of times that one request is sent.
    pub tries: Option<u64>,
    /// Pause after the first failure of a request. It doubles with each further one.
    pub first_pause: Option<Duration>,
    /// Maximum length of these pauses.
    pub longest_pause: Option<Duration>,
}

/// Virtual chunk container: a URL prefix of files outside the repository, and their store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Name that `vcc://NAME/...` refers to.
    pub name: String,
    /// Prefix of all locations in the container; it ends with `/`.
    pub url_prefix: String,
    /// Store that holds the files.
    pub store: ContainerStore,
}

/// Store of a container, as far as the configuration describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerStore {
    /// Kind of the store: `s3`, `s3_compatible`, `tigris`, `gcs`, `azure`, `http`,
    /// `local_file_system`, `in_memory`.
    pub kind: String,
    /// Region of the bucket.
    pub region: Option<String>,
    /// URL of the store, if it is not the provider's default.
    pub endpoint_url: Option<String>,
    /// True if the store is read without credentials.
    pub anonymous: bool,
    /// True if the store may be reached without encryption.
    pub allow_http: bool,
    /// True if the bucket is a part of the path instead of the host name.
    pub force_path_style: bool,
    /// Storage account in Azure.
    pub account: Option<String>,
}

impl ContainerStore {
    fn read(value: Option<&Value>) -> Self {
        let (kind, options) = match value {
            Some(Value::String(kind)) => (kind.as_str(), None),
            Some(Value::Object(store)) => {
                store.iter().next().map_or(("", None), |(kind, options)| (kind, Some(options)))
            }
            _ => ("", None),
        };
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|name| options?.get(name)?.as_str());
            found.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        // Options stored as a map of text have `"true"` for a flag, and may have names with a
        // prefix.
        let flag = |name| options.and_then(|options| options.get(name)).is_some_and(|it| *it == true || *it == "true");
        ContainerStore {
            kind: kind.to_owned(),
            region: text(&["region"]),
            endpoint_url: text(&["endpoint_url"]),
            anonymous: flag("anonymous"),
            allow_http: flag("allow_http"),
            force_path_style: flag("force_path_style"),
            account: text(&["account", "azure_storage_account_name", "account_name"]),
        }
    }
}

/// Converts a part of `config.yaml`, nested at most `depth` levels deep, to JSON.
pub(super) fn yaml_to_json(value: serde_yaml_ng::Value, depth: usize) -> Result<Value> {
    use serde_yaml_ng::Value as Yaml;
    let depth =
        depth.checked_sub(1).ok_or_else(|| Error::corrupt(format!("nested deeper than {}", yaml::MAX_DEPTH)))?;
    Ok(match value {
        Yaml::Null => Value::Null,
        Yaml::Bool(b) => Value::Bool(b),
        Yaml::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
            (Some(u), _, _) => Value::from(u),
            (_, Some(i), _) => Value::from(i),
            (_, _, f) => flexbuffer::json_number(f.unwrap_or(f64::NAN))?,
        },
        Yaml::String(s) => Value::String(s),
        Yaml::Sequence(items) => {
            Value::Array(items.into_iter().map(|item| yaml_to_json(item, depth)).collect::<Result<_>>()?)
        }
        Yaml::Mapping(items) => {
            let mut out = Map::new();
            for (key, value) in items {
                let key = match yaml_to_json(key, depth)? {
                    Value::String(key) => key,
                    // No setting has such a key. As text, each level would double the escapes of
                    // those below it.
                    Value::Array(_) | Value::Object(_) => {
                        return Err(Error::corrupt("a key that is a list or a mapping"));
                    }
                    scalar => scalar.to_string(),
                };
                out.insert(key, yaml_to_json(value, depth)?);
            }
            Value::Object(out)
        }
        Yaml::Tagged(tagged) => {
            let tag = tagged.tag.to_string();
            let key = tag.strip_prefix('!').unwrap_or(&tag).to_owned();
            Value::Object(Map::from_iter([(key, yaml_to_json(tagged.value, depth)?)]))
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_and_flexbuffers_decode_to_the_same_configuration() {
        let yaml = b"inline_chunk_threshold_bytes: 12\nmanifest: null\nvirtual_chunk_containers:\n  tigris:\n    name: tigris\n    \
            url_prefix: tigris\n    store: !tigris\n      region: null\n  mine:\n    name: null\n    url_prefix: s3://bucket/x/\n    \
            store: !local_file_system ''\n";
        let from_yaml = RepoConfig::from_yaml(yaml).unwrap();
        let json = json!({
            "inline_chunk_threshold_bytes": 12, "manifest": null,
            "virtual_chunk_containers": {
                "tigris": {"name": "tigris", "url_prefix": "tigris", "store": {"tigris": {"region": null}}},
                "mine": {"name": null, "url_prefix": "s3://bucket/x/", "store": {"local_file_system": ""}}
            }
        });
        assert_eq!(Value::Object(from_yaml.members().clone()), json);
        assert_eq!(from_yaml.inline_threshold(), 12);
        let store = ContainerStore { kind: "local_file_system".into(), ..ContainerStore::default() };
        let mine = Container { name: "mine".into(), url_prefix: "s3://bucket/x/".into(), store };
        assert_eq!(from_yaml.virtual_containers(), [mine]);
        assert_eq!(RepoConfig::from_flexbuffer(&flexbuffers::to_vec(&json).unwrap()).unwrap(), from_yaml);
    }

    #[test]
    fn storage_classes_and_compression_are_read() {
        let read = |said: Value| RepoConfig::from_flexbuffer(&flexbuffers::to_vec(&said).unwrap()).unwrap();
        let classes = |chunks: Option<&str>, metadata: Option<&str>| StorageClasses {
            chunks: chunks.map(str::to_owned),
            metadata: metadata.map(str::to_owned),
        };
        let both = json!({"storage": {"storage_class": "A", "chunks_storage_class": "B", "metadata_storage_class": null},
            "compression": {"algorithm": null, "level": 19}});
        assert_eq!(read(both.clone()).storage_classes(), classes(Some("B"), Some("A")));
        assert_eq!(read(both).compression(), Compression::of_level(19));
        let odd = read(json!({"storage": {"chunks_storage_class": 3, "storage_class": ""}, "compression": "zstd"}));
        assert_eq!((odd.storage_classes(), odd.compression()), (classes(None, None), Compression::default()));
        let uses_metadata = |value: Value| read(json!({"storage": {"unsafe_use_metadata": value}})).uses_metadata();
        assert_eq!([json!(false), json!(true), json!(null), json!("no")].map(uses_metadata), [false, true, true, true]);
    }

    #[test]
    fn numbers_of_requests_are_read() {
        let read =
            |said: Value| RepoConfig::from_flexbuffer(&flexbuffers::to_vec(&said).unwrap()).unwrap().request_settings();
        let retries = json!({"max_tries": 3, "initial_backoff_ms": 250, "max_backoff_ms": 0});
        let expected = RequestSettings {
            at_once: Some(4),
            tries: Some(3),
            first_pause: Some(Duration::from_millis(250)),
            longest_pause: Some(Duration::ZERO),
        };
        assert_eq!(read(json!({"max_concurrent_requests": 4, "storage": {"retries": retries}})), expected);
        for unset in [
            json!({"max_concurrent_requests": 0, "storage": {"retries": {"max_tries": 0, "max_backoff_ms": null}}}),
            json!({"max_concurrent_requests": -1, "storage": {"retries": [1]}}),
            json!({"storage": null}),
        ] {
            assert_eq!(read(unset), RequestSettings::default());
        }
    }

    #[test]
    fn container_store_options_are_read() {
        let said = json!({"virtual_chunk_containers": {"x": {"url_prefix": "s3://b/", "store": {"s3_compatible": {
            "region": "eu", "endpoint_url": "http://h:9000", "anonymous": true, "allow_http": 1, "force_path_style": true,
        }}}, "odd": {"url_prefix": "az://c/", "store": {"azure": {"account": "acc", "anonymous": "true"}}},
        "broken": {"url_prefix": 3}, "none": {"url_prefix": "gs://b/", "store": [1]}}});
        let config = RepoConfig::from_flexbuffer(&flexbuffers::to_vec(&said).unwrap()).unwrap();
        let containers = config.virtual_containers();
        let store = |name: &str| containers.iter().find(|container| container.name == name).unwrap().store.clone();
        let expected = ContainerStore {
            kind: "s3_compatible".into(),
            region: Some("eu".into()),
            endpoint_url: Some("http://h:9000".into()),
            anonymous: true,
            // The stored value has an unexpected type.
            allow_http: false,
            force_path_style: true,
            account: None,
        };
        assert_eq!(store("x"), expected);
        assert_eq!((store("odd").account.as_deref(), store("odd").anonymous), (Some("acc"), true));
        assert_eq!(store("none"), ContainerStore::default());
        assert_eq!(containers.len(), 3);
    }

    #[test]
    fn an_absent_configuration_has_the_defaults() {
        assert_eq!(RepoConfig::from_yaml(b"").unwrap().inline_threshold(), DEFAULT_INLINE_THRESHOLD);
        assert!(RepoConfig::from_yaml(b"[1, 2").is_err());
    }
}
