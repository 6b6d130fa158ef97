//! Tests of chains.

#![allow(clippy::unwrap_used)]
use std::io::Write;

use super::*;
use serde_json::json;

const FILL: &[u8] = &[0xFF, 0xFF];
const INT16: Item = Item { size: 2, number: Some(NumberType::Int { size: 2, signed: true }) };
const TEXT: Item = Item { size: 0, number: None };

fn elements(shape: &[u64]) -> Elements<'_> {
    Elements { size: 2, number: 2, shape, fill: FILL }
}

#[test]
fn numbers_become_little_endian_and_c_order() {
    let codecs = json!([
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        "zstd"
    ]);
    let chain = Chain::parse(&codecs, &[2, 3], INT16).unwrap();
    // 3 x 2 big-endian numbers: the transposed array.
    let stored: Vec<u8> = [0_u16, 3, 1, 4, 2, 5].iter().flat_map(|n| n.to_be_bytes()).collect();
    let stored = Bytes::from(zstd::encode_all(stored.as_slice(), 1).unwrap());
    let wanted: Vec<u8> = (0..6_u16).flat_map(u16::to_le_bytes).collect();
    assert_eq!(chain.decode(stored.clone(), elements(&[2, 3])).unwrap(), wanted);
    // Another length than that of the shape is damage, not less data.
    assert!(chain.decode(stored.clone(), elements(&[2, 4])).is_err());
    assert!(chain.decode(stored, elements(&[2, 2])).is_err());
}

#[test]
fn absent_inner_chunks_of_a_shard_are_filled() {
    let codecs = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [1, 2], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]);
    let chain = Chain::parse(&codecs, &[2, 4], INT16).unwrap();
    let mut shard = vec![1, 0, 2, 0, 3, 0, 4, 0];
    for (offset, length) in [(4_u64, 4_u64), (u64::MAX, u64::MAX), (u64::MAX, u64::MAX), (0, 4)] {
        shard.extend(offset.to_le_bytes().into_iter().chain(length.to_le_bytes()));
    }
    let decoded = chain.decode(Bytes::copy_from_slice(&shard), elements(&[2, 4])).unwrap();
    assert_eq!(decoded, [3, 0, 4, 0, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 2, 0]);
    shard.truncate(20);
    assert!(chain.decode(shard.into(), elements(&[2, 4])).is_err());
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a shard with its index at the end.
fn shard(inner: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut index = Vec::new();
    for inner in inner {
        index.extend([bytes.len() as u64, inner.len() as u64].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(inner);
    }
    [bytes, index].concat()
}

#[test]
fn a_compressed_shard_may_be_much_longer_than_its_elements() {
    let sharded = |shape: [u64; 1], codecs: Value| json!({"name": "sharding_indexed", "configuration": {"chunk_shape": shape, "codecs": codecs, "index_codecs": ["bytes"]}});
    // Inner chunks of one element: gzip makes 25 bytes of two.
    let elements = |size: u64| -> Vec<u8> { (0..size as u16).flat_map(u16::to_le_bytes).collect() };
    let one = |number: u16| gzip(&number.to_le_bytes());
    let flat = Chain::parse(&json!([sharded([1], json!(["bytes", "gzip"])), "gzip"]), &[4096], INT16).unwrap();
    let stored = gzip(&shard((0..4096).map(one)));
    assert!(stored.len() > 8 * 4096 * 2);
    assert_eq!(flat.decode(stored.into(), self::elements(&[4096])).unwrap(), elements(4096));
    // Indexes of shards in shards count, too.
    let inner = sharded([1], json!(["bytes", "gzip"]));
    let nested = Chain::parse(&json!([sharded([4], json!([inner])), "gzip"]), &[4096], INT16).unwrap();
    let stored = gzip(&shard((0..1024).map(|number| shard((0..4).map(|low| one(number * 4 + low))))));
    assert_eq!(nested.decode(stored.into(), self::elements(&[4096])).unwrap(), elements(4096));
    // No more than that.
    let limit = flat.max_serialized(8192, 2);
    assert!(limit < 1 << 21, "{limit}");
    assert_eq!(flat.decompressed_shard(8192, 2), limit);
    assert!(flat.decode(gzip(&vec![0; limit + 1]).into(), self::elements(&[4096])).is_err());
    let long = Chain::parse(&json!([sharded([1 << 40], json!(["bytes"])), "gzip"]), &[1 << 60], INT16).unwrap();
    assert_eq!(long.max_serialized(usize::MAX, usize::MAX), usize::MAX);
}

#[test]
fn a_shuffle_without_a_size_is_one_of_elements() {
    let codecs = json!(["bytes", {"name": "numcodecs.shuffle", "configuration": {}}]);
    let chain = Chain::parse(&codecs, &[3], INT16).unwrap();
    let decoded = chain.decode(Bytes::from_static(&[1, 3, 5, 2, 4, 6]), elements(&[3])).unwrap();
    assert_eq!(decoded, [1, 2, 3, 4, 5, 6]);
    assert_eq!(Chain::parse(&json!(["vlen-utf8", "shuffle"]), &[3], TEXT).unwrap_err(), "codec shuffle");
}

#[test]
fn texts_of_any_length_are_read_within_their_chunk() {
    let chain = Chain::parse(&json!(["vlen-utf8"]), &[2], TEXT).unwrap();
    let mut stored = 2_u32.to_le_bytes().to_vec();
    for text in ["ä", ""] {
        stored.extend((text.len() as u32).to_le_bytes());
        stored.extend(text.as_bytes());
    }
    let texts = chain.decode_variable(Bytes::copy_from_slice(&stored), 2, 100).unwrap();
    assert_eq!(texts.iter().collect::<Vec<_>>(), ["ä".as_bytes(), b""]);
    assert!(chain.decode_variable(Bytes::copy_from_slice(&stored), 3, 100).is_err());
    stored.pop();
    assert!(chain.decode_variable(stored.into(), 2, 100).is_err());
}

fn delta() -> Value {
    json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i2", "astype": "|i1"}})
}

#[test]
fn codecs_of_arrays_are_undone_in_stored_order() {
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    let chain = Chain::parse(&json!([transpose, delta(), "bytes", "zstd"]), &[2, 3], INT16).unwrap();
    // Differences of 0, 3, 1, 4, 2, 5: the transposed array.
    let stored = zstd::encode_all([0_u8, 3, 0xFE, 3, 0xFE, 3].as_slice(), 1).unwrap();
    let wanted: Vec<u8> = (0..6_u16).flat_map(u16::to_le_bytes).collect();
    assert_eq!(chain.decode(stored.into(), elements(&[2, 3])).unwrap(), wanted);
    assert_eq!(chain.extra_memory(12, 2), 24);
    let behind = Chain::parse(
        &json!([delta(), {"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"]),
        &[2, 3],
        INT16,
    );
    assert_eq!(behind.unwrap_err(), "codec transpose behind one that changes elements");
    // Twice, with other types between.
    let cast = json!({"name": "numcodecs.astype", "configuration": {"encode_dtype": "<i4"}});
    let small = json!({"name": "numcodecs.delta", "configuration": {"dtype": "<i4", "astype": "|i1"}});
    let chain = Chain::parse(&json!([cast, small, "bytes"]), &[3], INT16).unwrap();
    assert_eq!(chain.decode(Bytes::from_static(&[1, 1, 1]), elements(&[3])).unwrap(), [1, 0, 2, 0, 3, 0]);
    assert!(chain.decode(Bytes::from_static(&[1, 1]), elements(&[3])).is_err());
}

#[test]
fn codecs_that_are_missing_here_are_named() {
    for (codecs, reason) in [
        (json!(["bytes", "pcodec"]), "codec pcodec"),
        (json!(["numcodecs.zfpy"]), "codec numcodecs.zfpy"),
        (
            json!([{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}, "bytes"]),
            "codec numcodecs.delta with settings for other elements",
        ),
        (
            json!([
                {"name": "numcodecs.delta", "configuration": {"dtype": "<i2"}},
                {"name": "bytes", "configuration": {"endian": "big"}}
            ]),
            "big-endian numbers behind a codec that changes elements",
        ),
        (json!(["zstd"]), "codec zstd"),
        (json!([]), "no codec turns the elements into bytes"),
        (json!({}), "codecs are not a list"),
        (json!(["bytes", "zstd", "zstd", "zstd", "zstd", "zstd"]), "more than 4 codecs of bytes"),
    ] {
        assert_eq!(Chain::parse(&codecs, &[1], INT16).unwrap_err(), reason);
    }
}

/// Each goes through all elements of a chunk, and a document of a kilobyte can list hundreds.
#[test]
fn transposes_are_bounded() {
    let codecs = |count: usize| {
        let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
        let mut all = vec![transpose; count];
        all.push(json!({"name": "bytes", "configuration": {"endian": "little"}}));
        json!(all)
    };
    assert!(Chain::parse(&codecs(4), &[2, 3], INT16).is_ok());
    assert_eq!(Chain::parse(&codecs(5), &[2, 3], INT16).unwrap_err(), "more than 4 transposes");
}
