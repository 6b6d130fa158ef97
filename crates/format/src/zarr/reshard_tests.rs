#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::type_complexity)]
use super::*;
use icechunkfs_base::memory::Meter;
use serde_json::{Value, json};

fn room() -> Meter {
    Meter::brief("a test")
}

fn document(shape: Value, chunk: Value, codecs: Value, more: Value) -> Vec<u8> {
    let mut document =
        json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0});
    document["chunk_grid"] = json!({"name": "regular", "configuration": {"chunk_shape": chunk}});
    document["codecs"] = codecs;
    for (name, value) in more.as_object().unwrap() {
        document[name] = value.clone();
    }
    document.to_string().into_bytes()
}

fn sharded(inner: Value, codecs: Value) -> Value {
    json!({"name": "sharding_indexed", "configuration": {"chunk_shape": inner, "codecs": codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]}})
}

fn transpose(order: Value) -> Value {
    json!({"name": "transpose", "configuration": {"order": order}})
}

fn unsharded(chunk: Value, codecs: Value) -> Result<(Value, Value, Vec<Vec<usize>>, Vec<String>), String> {
    let found = unshard(&document(json!([100, 90]), chunk, codecs, json!({})), &mut room())?.ok_or("no shards")?;
    let json: Value = serde_json::from_str(&found.zarr_json).unwrap();
    let axes = found.levels.iter().map(|level| level.axes.to_vec()).collect();
    Ok((json["chunk_grid"]["configuration"]["chunk_shape"].clone(), json["codecs"].clone(), axes, found.losses))
}

#[test]
fn inner_chunks_become_chunks() {
    let codecs = json!(["bytes", {"name": "zstd", "configuration": {"level": 1}}]);
    let (shape, inner, axes, losses) =
        unsharded(json!([32, 64]), json!([sharded(json!([8, 16]), codecs.clone())])).unwrap();
    assert_eq!((shape, inner, axes, losses), (json!([8, 16]), codecs, vec![vec![0, 1]], vec![]));
    let nested = json!([sharded(json!([16, 32]), json!([sharded(json!([4, 8]), json!(["bytes"]))]))]);
    let (shape, inner, axes, _) = unsharded(json!([32, 64]), nested).unwrap();
    assert_eq!((shape, inner, axes.len()), (json!([4, 8]), json!(["bytes"]), 2));
    let plain = document(json!([4]), json!([2]), json!(["bytes"]), json!({"attributes": {"is": "sharding_indexed"}}));
    assert!(unshard(&plain, &mut room()).unwrap().is_none());
}

#[test]
fn members_keep_their_text() {
    let text = r#"{"attributes":{"a":1.50,"b":"\u00e9"},"codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[2],
        "codecs":[ "bytes" ]}}],"shape":[8],"chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4]}},"data_type":"uint8"}"#;
    let found = unshard(text.as_bytes(), &mut room()).unwrap().unwrap().zarr_json;
    assert!(found.starts_with(r#"{"attributes":{"a":1.50,"b":"\u00e9"},"shape":[8],"#), "{found}");
    let packed = pack(found.as_bytes(), &[4], &mut room()).unwrap().zarr_json;
    let json: Value = serde_json::from_str(&packed).unwrap();
    assert_eq!(json["chunk_grid"]["configuration"]["chunk_shape"], json!([8]));
    assert_eq!(json["codecs"][0]["configuration"]["codecs"], json!(["bytes"]));
    assert!(packed.contains(r#""a":1.50"#));
}

#[test]
fn a_transpose_moves_into_the_chunks() {
    let codecs = json!([transpose(json!([1, 0])), sharded(json!([16, 8]), json!(["bytes"]))]);
    let (shape, inner, axes, _) = unsharded(json!([32, 64]), codecs).unwrap();
    assert_eq!((shape, axes), (json!([8, 16]), vec![vec![1, 0]]));
    assert_eq!(inner, json!([transpose(json!([1, 0])), "bytes"]));
    let within = sharded(json!([8, 8]), json!([transpose(json!([1, 0])), sharded(json!([2, 4]), json!(["bytes"]))]));
    let (shape, inner, axes, _) = unsharded(json!([32, 64]), json!([transpose(json!([1, 0])), within])).unwrap();
    assert_eq!((shape, axes), (json!([2, 4]), vec![vec![1, 0], vec![0, 1]]), "turned twice");
    assert_eq!(inner, json!([transpose(json!([1, 0])), transpose(json!([1, 0])), "bytes"]));
}

#[test]
fn arrays_that_would_change_stay_as_they_are() {
    let shard = sharded(json!([8, 16]), json!(["bytes"]));
    for (codecs, expected) in [
        (json!([shard, {"name": "gzip", "configuration": {"level": 1}}]), "codec `gzip` behind its shards"),
        (json!([{"name": "numcodecs.delta"}, shard]), "codec `numcodecs.delta` before its shards"),
        (json!([{"name": "scale_offset"}, shard]), "codec `scale_offset` before its shards"),
        (json!([sharded(json!([5, 16]), json!(["bytes"]))]), "do not divide"),
        (json!([sharded(json!([8, 16]), json!(7))]), "without codecs"),
    ] {
        let reason = unsharded(json!([32, 64]), codecs).unwrap_err();
        assert!(reason.contains(expected), "{reason}");
    }
    let (.., losses) = unsharded(json!([32, 64]), json!([shard, "crc32c"])).unwrap();
    assert_eq!(losses, ["checksum of all of a shard left out"]);
    let zipped = sharded(json!([16, 32]), json!([sharded(json!([4, 8]), json!(["bytes"])), {"name": "zstd"}]));
    let (shape, inner, axes, losses) = unsharded(json!([32, 64]), json!([zipped])).unwrap();
    assert_eq!((shape, axes.len(), losses.len()), (json!([16, 32]), 1, 1));
    assert_eq!(inner[1]["name"], "zstd");
    let rectilinear =
        json!({"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[[32, 4]], [[64, 2]]]}}});
    let reason =
        unshard(&document(json!([100, 90]), json!([32, 64]), json!([shard]), rectilinear), &mut room()).unwrap_err();
    assert!(reason.contains("not regular"), "{reason}");
    let huge = document(
        json!([u64::MAX, 4]),
        json!([1_u64 << 40, 4]),
        json!([sharded(json!([1_u64 << 22, 1]), json!(["bytes"]))]),
        json!({}),
    );
    assert!(unshard(&huge, &mut room()).unwrap_err().contains("2^32"));
}

#[test]
fn a_storage_transformer_is_a_level() {
    let transformers = |list: Value| {
        let codecs = json!([sharded(json!([1, 2]), json!(["bytes"]))]);
        unshard(&document(json!([10, 8]), json!([2, 2]), codecs, json!({"storage_transformers": list})), &mut room())
    };
    let indexed = json!({"type": "indexed", "configuration": {"chunks_per_shard": [3, 2]}});
    let found = transformers(json!([indexed])).unwrap().unwrap();
    assert_eq!(found.levels.iter().map(|level| level.layout.grid.clone()).collect::<Vec<_>>(), [[3, 2], [2, 1]]);
    assert!(!found.zarr_json.contains("storage_transformers"));
    assert!(transformers(json!([indexed, {"type": "other"}])).is_err());
    assert!(transformers(json!([{"type": "other"}])).is_err());
}

#[test]
fn chunks_become_inner_chunks() {
    let packed = |shape: Value, chunk: Value, wanted: &[u64]| {
        pack(&document(shape, chunk, json!(["bytes", "crc32c"]), json!({})), wanted, &mut room())
    };
    let found = packed(json!([100, 90]), json!([3, 5]), &[7, 4, 2]).unwrap();
    assert_eq!(&*found.per_shard, [4, 2]);
    let layout = ShardLayout::parse(found.zarr_json.as_bytes(), &mut room()).unwrap().unwrap();
    assert_eq!((layout.grid, layout.inner_shape, layout.checksum), (vec![4, 2], vec![3, 5], true));
    assert_eq!(&*packed(json!([9, 9, 9]), json!([1, 1, 1]), &[4]).unwrap().per_shard, [1, 1, 4]);
    for (shape, chunk, wanted) in [
        (json!([]), json!([]), &[4_u64][..]),
        (json!([4]), json!([0]), &[4]),
        (json!([4]), json!([1]), &[MAX_INNER + 1]),
        (json!([4]), json!([u64::MAX]), &[2]),
        (json!([4, 4]), json!([1, 1_u64 << 62]), &[2, 2]),
        (json!([4]), json!([-1]), &[2]),
    ] {
        assert!(packed(shape, chunk.clone(), wanted).is_err(), "{chunk}");
    }
    let with = |codecs: Value, more: Value| pack(&document(json!([4]), json!([2]), codecs, more), &[2], &mut room());
    assert!(with(json!([sharded(json!([1]), json!(["bytes"]))]), json!({})).unwrap_err().contains("shards already"));
    assert!(with(json!([]), json!({})).is_err() && with(json!("bytes"), json!({})).is_err());
    assert!(with(json!(["bytes"]), json!({"storage_transformers": [{"name": "x"}]})).is_err());
    assert!(with(json!(["bytes"]), json!({"storage_transformers": null})).is_ok());
    assert!(with(json!(["bytes"]), json!({"shape": [1, 2]})).is_err());
    assert!(pack(b"{", &[2], &mut room()).is_err() && pack(b"\xff", &[2], &mut room()).is_err());
}

#[test]
fn consolidated_metadata_is_left_out_of_groups() {
    let group =
        r#"{"zarr_format":3,"node_type":"group","consolidated_metadata":{"kind":"inline"},"attributes":{"x":1.0}}"#;
    let expected = r#"{"zarr_format":3,"node_type":"group","attributes":{"x":1.0}}"#;
    assert_eq!(without_consolidated(group.as_bytes()).as_deref(), Some(expected));
    assert_eq!(without_consolidated(br#"{"attributes":{"a":"consolidated_metadata"}}"#), None);
}

#[test]
fn structures_have_shards_unless_their_fill_value_is_bytes() {
    let fields = json!([{"name": "a", "data_type": "int32"}, {"name": "b", "data_type": "float32"}]);
    let packed = |name: &str, fill: Value| {
        let data_type = json!({"name": name, "configuration": {"fields": fields}});
        let more = json!({"data_type": data_type, "fill_value": fill});
        pack(&document(json!([8]), json!([2]), json!(["bytes"]), more), &[2], &mut room())
    };
    assert!(packed("struct", json!({"a": -1, "b": "NaN"})).is_ok());
    // As zarr-python before 3.2 names them.
    assert!(packed("structured", json!("AAAAAAAAAAA=")).unwrap_err().contains("structured"));
}
