//! References in one file of JSON.
//!
//! Both forms are read: a map of keys, and version 1 with `refs` and plain `templates`. References
//! that have to be computed first (`gen`, templates with expressions) are not: kerchunk and
//! VirtualiZarr write files without them.

use std::collections::BTreeMap;

use data_encoding::BASE64;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use serde::Deserialize;
use serde_json::Value;

use super::{Collected, Reference, References, check_length, not_kerchunk, shown};
use crate::zarr2;

/// Beginning of a text that is the encoded bytes.
const ENCODED: &str = "base64:";

/// Value of a key as the file has it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Range(String, u64, u64),
    Whole((String,)),
    /// Some programs write documents as they are, not as texts.
    Document(serde_json::Map<String, Value>),
}

#[derive(Deserialize)]
struct File {
    refs: Option<BTreeMap<String, Written>>,
    #[serde(default)]
    templates: BTreeMap<String, String>,
    #[serde(default)]
    r#gen: Vec<serde::de::IgnoredAny>,
    version: Option<Value>,
    /// Keys of a file without `refs`.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Parses a file of references.
///
/// Errors: [`ErrorKind::Corrupt`] if it is not one, [`ErrorKind::Unsupported`] if its references
/// have to be computed, [`ErrorKind::OutOfMemory`].
pub fn parse(json: &[u8]) -> Result<Metered<References>> {
    let mut collected = Collected::new();
    collected.meter.count(zarr2::cost(json))?;
    let not_one = |e| Error::with_source(ErrorKind::Corrupt, "it is not a file of kerchunk references", e);
    let File { refs, templates, r#gen, version, others } = serde_json::from_slice(json).map_err(not_one)?;
    if !r#gen.is_empty() {
        return Err(unsupported("it has `gen`"));
    }
    let written = match refs {
        Some(refs) => refs,
        None if version.is_none() => {
            let parsed = others.into_iter().map(|(key, value)| Ok((key, serde_json::from_value(value)?)));
            parsed.collect::<std::result::Result<_, _>>().map_err(not_one)?
        }
        None => return Err(not_kerchunk("it has no `refs`")),
    };
    for (key, written) in written {
        let reference = match written {
            Written::Text(text) => Reference::Inline(decoded(text, &key)?),
            Written::Document(document) => Reference::Inline(serde_json::to_vec(&document).map_err(not_one)?),
            Written::Range(url, offset, length) => {
                Reference::Range { file: collected.file(filled(&url, &templates)?)?, offset, length }
            }
            Written::Whole((url,)) => Reference::Whole(collected.file(filled(&url, &templates)?)?),
        };
        collected.add(key, reference)?;
    }
    collected.finish()
}

fn decoded(text: String, key: &str) -> Result<Vec<u8>> {
    match text.strip_prefix(ENCODED) {
        Some(encoded) => BASE64
            .decode(encoded.as_bytes())
            .map_err(|e| Error::with_source(ErrorKind::Corrupt, format!("{}: its base64", shown(key)), e)),
        None => Ok(text.into_bytes()),
    }
}

/// Returns the URL with the templates that it names.
fn filled(url: &str, templates: &BTreeMap<String, String>) -> Result<String> {
    let mut out = String::new();
    let mut rest = url;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").ok_or_else(|| unsupported("a template has no end"))?;
        let template = templates.get(name.trim()).filter(|template| !template.contains("{{"));
        let template = template.ok_or_else(|| unsupported("it has templates with expressions"))?;
        check_length(out.len() + before.len() + template.len())?;
        out.push_str(before);
        out.push_str(template);
        rest = behind;
    }
    check_length(out.len() + rest.len())?;
    out.push_str(rest);
    Ok(out)
}

fn unsupported(why: &str) -> Error {
    let next = "write it without them, such as by fsspec's `ReferenceFileSystem` or VirtualiZarr's `to_kerchunk`";
    Error::new(ErrorKind::Unsupported, format!("{why}, which is computed when it is read: {next}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::kerchunk::MAX_DEPTH;

    fn parsed(json: &str) -> std::result::Result<References, String> {
        parse(json.as_bytes()).map(Metered::into_inner).map_err(|error| error.to_string())
    }

    #[test]
    fn both_forms_have_the_same_references() {
        let keys = r#"".zgroup": "{\"zarr_format\":2}", "a/.zarray": {"zarr_format": 2}, "a/0.0": "base64:AAE=",
            "a/0.1": ["x.nc", 10, 20], "a/1.0": ["y.nc"], "a/1.1": ["x.nc", 0, 5]"#;
        let flat = parsed(&format!("{{{keys}}}")).unwrap();
        assert_eq!(flat.files, ["x.nc", "y.nc"]);
        let at = |key: &str| flat.entries.get(key).unwrap().clone();
        assert_eq!(at("a/0.0"), Reference::Inline(vec![0, 1]));
        assert_eq!(at("a/.zarray"), Reference::Inline(br#"{"zarr_format":2}"#.to_vec()));
        assert_eq!(at("a/0.1"), Reference::Range { file: 0, offset: 10, length: 20 });
        assert_eq!(at("a/1.0"), Reference::Whole(1));
        let with = keys.replace("x.nc", "{{u}}x.nc");
        let templates =
            parsed(&format!(r#"{{"version": 1, "templates": {{"u": "s3://b/"}}, "refs": {{{with}}}}}"#)).unwrap();
        assert_eq!(templates.files, ["s3://b/x.nc", "y.nc"]);
        assert_eq!(templates.entries, flat.entries);
    }

    #[test]
    fn other_files_are_refused_with_the_reason() {
        for (json, why) in [
            ("[]", "not a file of kerchunk"),
            ("{}", "no key is that of"),
            (r#"{"version": 1}"#, "no `refs`"),
            (r#"{"a/.zarray": 3}"#, "not a file of kerchunk"),
            (r#"{".zgroup": "{}", "../a": "x"}"#, "not a valid key"),
            (r#"{".zgroup": "{}", "/a": "x"}"#, "not a valid key"),
            (r#"{".zgroup": "{}", "a": "base64:!"}"#, "base64"),
            (r#"{".zgroup": "{}", "a/0": ["x", 1, 18446744073709551615]}"#, "range of no file"),
            (r#"{".zgroup": "{}", "a/0": ["x", -1, 2]}"#, "not a file of kerchunk"),
            (r#"{"version": 1, "refs": {".zgroup": "{}"}, "gen": [{"key": "a"}]}"#, "`gen`"),
            (r#"{"version": 1, "refs": {"a/.zarray": ["{{f(1)}}"]}}"#, "expressions"),
        ] {
            let refused = parsed(json).unwrap_err();
            assert!(refused.contains(why), "{json}: {refused}");
        }
    }

    /// A short file can ask for much memory.
    #[test]
    fn urls_and_paths_are_bounded_before_they_are_made() {
        let file = |template: &str, url: &str, key: &str| {
            format!(
                r#"{{"version": 1, "templates": {{"u": "{template}"}}, "refs": {{".zgroup": "{{}}", "{key}": ["{url}"]}}}}"#
            )
        };
        let long = "u".repeat(1 << 20);
        let refused = parsed(&file(&long, &"{{u}}".repeat(100_000), "a")).unwrap_err();
        assert!(refused.contains("too long"), "{refused}");
        assert!(parsed(&file("", &long, "a")).unwrap_err().contains("too long"));
        let deep = |names: usize| file("", "x", &vec!["a"; names].join("/"));
        assert!(parsed(&deep(MAX_DEPTH + 1)).unwrap_err().contains("not a valid key"));
        parsed(&deep(MAX_DEPTH)).unwrap();
    }
}
