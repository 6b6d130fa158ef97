//! Changes and checks virtual chunk containers, the stores of chunks that lie outside the
//! repository.
//!
//! A container is stored under its URL prefix, in old repositories under its name; a user may give
//! either. The rules for a prefix are the reference implementation's: it ignores containers that
//! break them, so their chunks could not be read. Such a container is refused.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use url::Url;

use super::key::format_key;
use super::problems::Problem;
use super::{key, put};
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::shell;
use icechunkfs_base::store_names::Provider;

/// Member of the configuration that holds the containers.
pub const CONTAINERS_KEY: &str = "virtual_chunk_containers";

/// Schemes of a URL, and the kinds of store that they allow.
const STORES: [(&[&str], &[&str]); 6] = [
    (&["s3"], &["s3", "s3_compatible", "tigris"]),
    (&["gs", "gcs"], &["gcs"]),
    (&["az", "azure", "abfs"], &["azure"]),
    (&["tigris"], &["tigris"]),
    (&["http", "https"], &["http"]),
    (&["file"], &["local_file_system"]),
];

/// Returns the key of the container that is stored under `name` or has that name; otherwise `name`
/// itself.
pub(super) fn resolve_key(containers: &Map<String, Value>, name: &str) -> String {
    if containers.contains_key(name) {
        return name.to_owned();
    }
    let named = containers.iter().find(|(_, container)| member(container, "name") == Some(name));
    named.map_or_else(|| name.to_owned(), |(key, _)| key.clone())
}

/// Sets `value` at `path`, moves a container to the key that its prefix demands, and returns the
/// resulting path.
pub(super) fn set(members: &mut Map<String, Value>, path: &[String], value: Value) -> Result<Vec<String>> {
    let (key, rest) = match path {
        [first, key, rest @ ..] if first == CONTAINERS_KEY => (key, rest),
        _ => {
            put(members, path, value)?;
            return Ok(path.to_owned());
        }
    };
    let old = key::get_path(members, path.get(..2).unwrap_or_default()).cloned();
    let old_prefix = old.as_ref().and_then(|old| member(old, "url_prefix")).map(str::to_owned);
    if rest.is_empty() {
        put(members, path, with_key_member(key, old.as_ref(), value)?)?;
    } else if old.is_none() {
        return Err(Error::invalid(format!(
            "there is no container `{key}`: set a whole one, such as set {} '{{\"url_prefix\": \
             \"s3://bucket/prefix/\", \"store\": {{\"s3\": {{\"region\": \"us-east-1\"}}}}}}'",
            shell::quote(&format_key(&[CONTAINERS_KEY.to_owned(), key.clone()]))
        )));
    } else {
        put(members, path, value)?;
    }
    // An old container that is stored under its name keeps its key, unless it is replaced as a
    // whole.
    let belongs_by_prefix = rest.is_empty() || old_prefix.as_deref() == Some(key);
    let Some(Value::Object(containers)) = members.get_mut(CONTAINERS_KEY) else { return Ok(path.to_owned()) };
    let prefix = containers.get(key).and_then(|container| member(container, "url_prefix")).map(str::to_owned);
    let Some(prefix) = prefix.filter(|prefix| belongs_by_prefix && prefix != key) else { return Ok(path.to_owned()) };
    if containers.contains_key(&prefix) {
        return Err(Error::invalid(format!(
            "there is another container for {prefix}: change that one, or unset it first"
        )));
    }
    if let Some(container) = containers.shift_remove(key) {
        containers.insert(prefix.clone(), container);
    }
    let mut path = path.to_owned();
    if let Some(key) = path.get_mut(1) {
        *key = prefix;
    }
    Ok(path)
}

/// Adds to `value` the prefix or name that the key states.
fn with_key_member(key: &str, old: Option<&Value>, value: Value) -> Result<Value> {
    let Value::Object(mut container) = value else { return Ok(value) };
    let implied = if key.contains("://") { "url_prefix" } else { "name" };
    match container.get(implied) {
        None | Some(Value::Null) => drop(container.insert(implied.to_owned(), key.into())),
        // A stored container moves if it gets a new prefix.
        Some(there) if there != key && !(implied == "url_prefix" && old.is_some()) => {
            return Err(Error::invalid(format!(
                "container `{key}` cannot have the {implied} {there}: use `{key}`, or omit it"
            )));
        }
        Some(_) => {}
    }
    // Replacing a container keeps its name.
    if let (None, Some(name)) = (container.get("name"), old.and_then(|old| member(old, "name"))) {
        container.insert("name".to_owned(), name.into());
    }
    Ok(Value::Object(container))
}

fn member<'a>(container: &'a Value, name: &str) -> Option<&'a str> {
    container.get(name)?.as_str()
}

/// Adds the problems of the containers that a check of types cannot find.
pub(super) fn problems(members: &Map<String, Value>, out: &mut BTreeSet<Problem>) {
    let Some(containers) = members.get(CONTAINERS_KEY).and_then(Value::as_object) else { return };
    let mut names = BTreeSet::new();
    for (key, container) in containers {
        let place = format_key(&[CONTAINERS_KEY.to_owned(), key.clone()]);
        if let Some(name) = member(container, "name") {
            if name.is_empty() || name.contains('/') {
                out.insert(Problem::Invalid(format!(
                    "`{place}`: the name of a container must not be empty or contain `/`"
                )));
            } else if !names.insert(name) {
                out.insert(Problem::Invalid(format!("`{place}`: there is another container with the name `{name}`")));
            }
        }
        let (Some(prefix), Some(store)) = (member(container, "url_prefix"), store(container)) else { continue };
        if let Err(why) = check_prefix(prefix, store) {
            out.insert(Problem::Invalid(format!("`{place}`: {prefix} {why}")));
        }
    }
}

fn store(container: &Value) -> Option<&str> {
    match container.get("store")? {
        Value::String(store) => Some(store),
        Value::Object(store) => store.keys().next().map(String::as_str),
        _ => None,
    }
}

fn check_prefix(prefix: &str, store: &str) -> std::result::Result<(), String> {
    if !prefix.ends_with('/') {
        return Err("does not end with `/`, as the prefix of a container must".to_owned());
    }
    let url = Url::parse(prefix).map_err(|error| format!("is not a valid URL: {error}"))?;
    let Some((_, stores)) = STORES.iter().find(|(schemes, _)| schemes.contains(&url.scheme())) else {
        return Err(format!("has an unknown scheme: {}", url.scheme()));
    };
    if !stores.contains(&store) {
        return Err(format!("is not in a store of kind `{store}`, but in one of {}", stores.join(", ")));
    }
    if url.scheme() == "file" {
        let path = prefix.split_once("://").map_or(prefix, |(_, path)| path);
        if path.split('/').any(|part| part == "." || part == "..") {
            return Err("has `.` or `..` in its path".to_owned());
        }
        if !url.has_host() && url.path().len() < 2 {
            return Err("has no path".to_owned());
        }
    } else if !url.has_host() || !is_authority(url.scheme(), prefix) {
        return Err("does not name a valid bucket or host".to_owned());
    }
    Ok(())
}

/// Returns true if the authority of `prefix` is a bucket by its provider's rule.
fn is_authority(scheme: &str, prefix: &str) -> bool {
    let rest = prefix.split_once("://").map_or(prefix, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    match scheme {
        "s3" | "tigris" => Provider::S3.is_bucket(authority),
        "gs" | "gcs" => Provider::Gcs.is_bucket(authority),
        "az" | "azure" | "abfs" => Provider::Azure.is_bucket(authority.split('@').next().unwrap_or_default()),
        _ => !authority.contains('@'),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::{set, unset};
    use super::*;
    use serde_json::json;

    fn after(before: &Value, key: &str, text: &str) -> std::result::Result<Value, String> {
        let changed = set(before.as_object().unwrap(), &format!("{CONTAINERS_KEY}.{key}"), text);
        changed.map(|changed| changed.unwrap().members.into()).map_err(|error| error.to_string())
    }

    const OCEAN: &str = r#"{"url_prefix": "s3://ocean/", "store": {"s3": {"region": "us-east-1"}}}"#;

    #[test]
    fn a_container_is_stored_by_its_prefix() {
        let expected = json!({CONTAINERS_KEY: {"s3://ocean/": {
            "url_prefix": "s3://ocean/",
            "store": {"s3": {"region": "us-east-1", "anonymous": false, "allow_http": false}},
            "name": "ocean"
        }}});
        let named = after(&json!({}), "ocean", OCEAN).unwrap();
        assert_eq!(named, expected);
        let by_prefix = after(&json!({}), "s3://ocean/", r#"{"store": {"s3": {}}}"#).unwrap();
        assert_eq!(by_prefix[CONTAINERS_KEY]["s3://ocean/"]["url_prefix"], "s3://ocean/");
        // Both names address one member; a new prefix moves it.
        let moved = after(&named, "ocean.url_prefix", "s3://sea/").unwrap();
        assert_eq!(moved[CONTAINERS_KEY]["s3://sea/"]["name"], "ocean");
        assert_eq!(moved[CONTAINERS_KEY].as_object().unwrap().len(), 1);
        let region = after(&named, "s3://ocean/.store.s3.region", "eu-west-1").unwrap();
        assert_eq!(region[CONTAINERS_KEY]["s3://ocean/"]["store"]["s3"]["region"], "eu-west-1");
        let replaced = after(&named, "ocean", r#"{"url_prefix": "s3://sea/", "store": {"s3": {}}}"#).unwrap();
        assert_eq!(replaced[CONTAINERS_KEY].as_object().unwrap().keys().collect::<Vec<_>>(), ["s3://sea/"]);
        // Unsetting the last container also removes the member that held it.
        let gone = unset(named.as_object().unwrap(), "virtual_chunk_containers.ocean").unwrap().unwrap();
        assert!(gone.members.is_empty());
    }

    #[test]
    fn containers_that_readers_ignore_are_not_set() {
        let two =
            after(&after(&json!({}), "ocean", OCEAN).unwrap(), "\"gs://x/\"", r#"{"store": {"gcs": {}}}"#).unwrap();
        for (key, text, why) in [
            ("a", r#"{"url_prefix": "s3://ocean", "store": {"s3": {}}}"#, "does not end with `/`"),
            ("a", r#"{"url_prefix": "ocean/", "store": {"s3": {}}}"#, "is not a valid URL"),
            ("a", r#"{"url_prefix": "ftp://ocean/", "store": {"s3": {}}}"#, "unknown scheme"),
            ("a", r#"{"url_prefix": "gs://ocean/", "store": {"s3": {}}}"#, "not in a store of kind `s3`"),
            ("a", r#"{"url_prefix": "file:///a/../b/", "store": {"local_file_system": "/a"}}"#, "`..`"),
            ("a", r#"{"url_prefix": "file:///", "store": {"local_file_system": "/a"}}"#, "no path"),
            ("a", r#"{"url_prefix": "s3://ocean2/", "store": "in_memory"}"#, "in_memory"),
            ("a", r#"{"url_prefix": "s3://ocean2/", "store": {"s3": {}, "gcs": {}}}"#, "one of"),
            ("a", r#"{"url_prefix": "s3://ocean2/"}"#, "`store` is missing"),
            ("a", r#"{"url_prefix": "s3://ocean/", "store": {"s3": {}}}"#, "another container for"),
            ("a", r#"{"name": "b", "url_prefix": "s3://b/", "store": {"s3": {}}}"#, "cannot have the name"),
            ("a/b", r#"{"url_prefix": "s3://b/", "store": {"s3": {}}}"#, "contain `/`"),
            ("\"gs://x/\".name", "ocean", "another container with the name"),
            ("\"gs://x/\".url_prefix", "s3://x/", "not in a store of kind `gcs`"),
            ("nobody.url_prefix", "s3://x/", "no container `nobody`"),
            ("ocean.store.gcs", "{}", "one of"),
            ("ocean.store.s3.checksum_algorithm", "md5", "`crc64_nvme`"),
            ("ocean.store.s3.anonymous", "no", "true or false"),
        ] {
            let error = after(&two, key, text).unwrap_err();
            assert!(error.contains(why), "{key} {text}: {error}");
        }
        // Old containers that readers ignore stay.
        let old = json!({CONTAINERS_KEY: {"az": {"name": "az", "url_prefix": "az", "store": {"azure": {}}}}});
        assert_eq!(after(&old, "ocean", OCEAN).unwrap()[CONTAINERS_KEY]["az"], old[CONTAINERS_KEY]["az"]);
        assert!(unset(two.as_object().unwrap(), "virtual_chunk_containers.ocean.store").is_err());
    }
}
