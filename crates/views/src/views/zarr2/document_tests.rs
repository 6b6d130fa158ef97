#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use serde_json::{Value, json};

use super::*;

fn array() -> Value {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [10, 7], "data_type": "float32", "fill_value": 0.0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 7]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {"units": "m"}, "dimension_names": ["y", "x"],
    })
}

fn with(changes: Value) -> Result<ArrayDocuments, String> {
    let mut document = array();
    for (name, value) in changes.as_object().unwrap() {
        document[name] = value.clone();
    }
    map_array(document.to_string().as_bytes(), &mut Meter::brief("a sample"))
}

fn zarray(documents: &ArrayDocuments, is_complete: bool) -> Value {
    serde_json::from_str(&documents.zarray(is_complete)).unwrap()
}

#[test]
fn an_array_has_both_documents() {
    let documents = with(json!({})).unwrap();
    let expected = json!({
        "zarr_format": 2, "shape": [10, 7], "chunks": [4, 7], "dtype": "<f4", "order": "C", "compressor": null,
        "filters": null, "fill_value": 0.0, "dimension_separator": "/",
    });
    assert_eq!(zarray(&documents, false), expected);
    assert_eq!(zarray(&documents, true)["fill_value"], Value::Null);
    assert_eq!(documents.zattrs, r#"{"units":"m","_ARRAY_DIMENSIONS":["y","x"]}"#);
    assert!(documents.depends_on_chunks() && !documents.has_checksum && documents.changed.is_empty());
}

#[test]
fn the_mark_of_missing_values_stays() {
    let documents = with(json!({"fill_value": "NaN", "attributes": {"_FillValue": "AAAAAAAA+H8="}})).unwrap();
    assert!(!documents.depends_on_chunks());
    assert_eq!(zarray(&documents, true)["fill_value"], "NaN");
    let documents = with(json!({"attributes": {"_FillValue": "AAAAAAAA8L8="}})).unwrap();
    assert_eq!(zarray(&documents, true)["fill_value"], -1.0);
    assert_eq!(zarray(&documents, false)["fill_value"], 0.0);
}

#[test]
fn separators_follow_the_key_encoding() {
    let separator = |changes| zarray(&with(changes).unwrap(), false)["dimension_separator"].clone();
    let encoding = |name: &str, separator: &str| json!({"chunk_key_encoding": {"name": name, "configuration": {"separator": separator}}});
    for name in ["default", "v2"] {
        assert_eq!(separator(encoding(name, "/")), "/");
        assert_eq!(separator(encoding(name, ".")), ".");
    }
    assert_eq!(separator(json!({"chunk_key_encoding": "v2"})), ".");
    let scalar = json!({"shape": [], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": []}}, "dimension_names": null});
    let documents = with(scalar).unwrap();
    assert_eq!(zarray(&documents, false)["dimension_separator"], ".");
    assert_eq!(documents.zattrs, r#"{"units":"m","_ARRAY_DIMENSIONS":[]}"#);
}

#[test]
fn column_major_chunks_have_an_order() {
    let codecs = json!([
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd", "configuration": {"level": 3}}]);
    let mapped = zarray(&with(json!({"codecs": codecs})).unwrap(), false);
    assert_eq!((&mapped["order"], &mapped["dtype"]), (&json!("F"), &json!(">f4")));
    assert_eq!(mapped["compressor"], json!({"id": "zstd", "level": 3}));
}

#[test]
fn unknown_members_that_need_not_be_understood_do_no_harm() {
    assert!(with(json!({"note": {"must_understand": false}, "storage_transformers": []})).is_ok());
    assert!(with(json!({"note": {"must_understand": true}})).is_err());
    assert!(with(json!({"note": 1})).is_err());
}

#[test]
fn empty_dimensions_have_chunks_of_some_length() {
    let grid = json!({"name": "regular", "configuration": {"chunk_shape": [0, 7]}});
    let mapped = zarray(&with(json!({"shape": [0, 7], "chunk_grid": grid})).unwrap(), false);
    assert_eq!((&mapped["shape"], &mapped["chunks"]), (&json!([0, 7]), &json!([1, 7])));
    let grid = json!({"name": "regular", "configuration": {"chunk_shape": [0, 7]}});
    assert!(with(json!({"chunk_grid": grid})).is_err());
}

#[test]
fn what_version_2_cannot_have_has_a_reason() {
    let regular = |chunks: Value| json!({"name": "regular", "configuration": {"chunk_shape": chunks}});
    let many =
        |n: usize| json!({"shape": vec![1; n], "chunk_grid": regular(json!(vec![1; n])), "dimension_names": null});
    for changes in [
        json!({"zarr_format": 2}),
        json!({"node_type": "group"}),
        json!({"shape": [-1, 7]}),
        json!({"shape": [1e300, 7]}),
        json!({"shape": 7}),
        json!({"shape": [u64::MAX, 7], "chunk_grid": regular(json!([u64::MAX, 7]))}),
        json!({"shape": [u64::MAX, 7], "chunk_grid": regular(json!([1, 7]))}),
        json!({"chunk_grid": regular(json!([4]))}),
        json!({"chunk_grid": regular(json!([i64::MAX, 7]))}),
        json!({"chunk_grid": regular(json!([4, 7.5]))}),
        json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[4, 6], 7]}}}),
        json!({"chunk_grid": {"name": "hexagonal"}}),
        json!({"chunk_key_encoding": {"name": "suffix", "configuration": {"suffix": ".x", "base_encoding": {"name": "v2"}}}}),
        json!({"chunk_key_encoding": {"name": "fan-out"}}),
        json!({"data_type": "bfloat16"}),
        json!({"fill_value": "0"}),
        json!({"codecs": "bytes"}),
        json!({"codecs": null}),
        json!({"attributes": []}),
        json!({"dimension_names": ["x"]}),
        json!({"dimension_names": {}}),
        json!({"storage_transformers": [{"name": "indexed"}]}),
        json!({"storage_transformers": {}}),
        many(33),
        many(64),
        many(65),
    ] {
        let reason = with(changes.clone()).unwrap_err();
        assert!(!reason.is_empty() && reason.len() < 400, "{changes}: {reason}");
    }
    assert!(with(many(32)).is_ok());
    for name in ["data_type", "codecs", "chunk_grid", "shape", "zarr_format", "node_type"] {
        let mut document = array();
        document.as_object_mut().unwrap().remove(name);
        assert!(map_array(document.to_string().as_bytes(), &mut Meter::brief("a sample")).is_err(), "{name}");
    }
    for text in [&b""[..], b"{", b"[]", b"null", b"\xff", b"{\"zarr_format\":3}"] {
        assert!(map_array(text, &mut Meter::brief("a sample")).is_err());
    }
}

#[test]
fn dimensions_without_names_have_none() {
    // Names that are lost are reported.
    for (names, has_lost_names) in
        [(json!(null), false), (json!([null, null]), false), (json!([null, "x"]), true), (json!([7, "x"]), true)]
    {
        let documents = with(json!({"dimension_names": names})).unwrap();
        assert_eq!(
            (documents.zattrs.as_str(), documents.has_lost_names),
            (r#"{"units":"m"}"#, has_lost_names),
            "{names}"
        );
    }
}

#[test]
fn groups_keep_their_attributes() {
    let text = |json: &str| map_group(json.as_bytes()).map(|group| group.zattrs);
    assert_eq!(text(r#"{"zarr_format":3,"node_type":"group","attributes":{"a": 1.10}}"#).unwrap(), r#"{"a":1.10}"#);
    assert_eq!(text("{}").unwrap(), "{}");
    for wrong in ["", "[]", r#"{"attributes":7}"#] {
        assert!(text(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn deep_documents_do_not_exhaust_the_stack() {
    let deep = format!("{{\"attributes\":{}{}}}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert!(map_group(deep.as_bytes()).is_err());
    let deep = format!("{{\"attributes\":{{\"a\":{}{},\"b\":1}}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(map_group(deep.as_bytes()).unwrap().zattrs, r#"{"b":1}"#);
}
