//! Codecs of version 3 as order, filters and compressor of version 2.
//!
//! | version 3 | version 2 |
//! |---|---|
//! | `transpose` that reverses the dimensions, first | order `F` |
//! | array codecs | filters |
//! | `bytes` | byte order of the data type |
//! | `vlen-utf8`, `vlen-bytes` | a filter |
//! | bytes codecs | filters, and the last one the compressor |
//! | `crc32c`, last | nothing: the view trims the checksum from the chunk files |
//!
//! A trimmed checksum is one that no program can check. The mapping `{"id": "crc32c"}` is worse:
//! GDAL refuses the array, and so does zarr-python, for the whole group, unless an optional package
//! is installed.

use super::data_type::{ByteOrder, DataType};
use super::numcodecs;
use icechunkfs_format::zarr::members::{Extension, list, shorten, string};

/// Bytes of a checksum.
pub(super) const CHECKSUM: u64 = 4;

/// Codecs of an array, mapped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pipeline {
    /// True if the elements of a chunk are in column-major order.
    pub(super) is_transposed: bool,
    /// Order of the bytes of a number.
    pub(super) byte_order: ByteOrder,
    /// Filters, as JSON.
    pub(super) filters: Vec<String>,
    /// Compressor, as JSON.
    pub(super) compressor: Option<String>,
    /// True if a checksum at the end of every chunk must be trimmed.
    pub(super) has_checksum: bool,
}

/// Maps `codecs` of an array of `rank` dimensions.
pub(super) fn map(codecs: &[Extension<'_>], data_type: &DataType, rank: usize) -> Result<Pipeline, String> {
    let mut codecs = codecs;
    let mut is_transposed = false;
    while let Some((transpose, rest)) = codecs.split_first().filter(|(codec, _)| codec.name == "transpose") {
        is_transposed ^= reverses(transpose, rank)?;
        codecs = rest;
    }
    let count = codecs.iter().take_while(|codec| numcodecs::is_array_codec(&codec.name)).count();
    let (of_array, rest) = codecs.split_at_checked(count).unwrap_or_default();
    let Some((serializer, mut of_bytes)) = rest.split_first() else {
        return Err("no codec turns the elements into bytes".to_owned());
    };
    // The elements that become bytes are those of the last filter.
    let mut stored = data_type.clone();
    for codec in of_array {
        stored = numcodecs::stored_type(codec)?.unwrap_or(stored);
    }
    let mut serializer_filter = None;
    let byte_order = match serializer.name.as_str() {
        "bytes" if data_type.item_size().is_none() => {
            return Err("codec `bytes` for elements of variable length".to_owned());
        }
        "bytes" => byte_order(serializer, &stored)?,
        name @ ("vlen-utf8" | "vlen-bytes") => {
            let fits =
                matches!((name, data_type), ("vlen-utf8", DataType::String) | ("vlen-bytes", DataType::VariableBytes));
            if !fits || !of_array.is_empty() {
                return Err(format!("codec `{name}` for other elements"));
            }
            serializer_filter = Some(format!("{{\"id\":\"{name}\"}}"));
            ByteOrder::Little
        }
        "sharding_indexed" => return Err("its chunks are shards".to_owned()),
        other => return Err(format!("codec `{}`", shorten(other))),
    };
    let mut has_checksum = false;
    if let Some((last, rest)) = of_bytes.split_last().filter(|(codec, _)| numcodecs::is_final_checksum(codec)) {
        if last.configuration.iter().any(|(name, _)| name != "location") {
            return Err("codec `crc32c` with an unknown setting".to_owned());
        }
        (has_checksum, of_bytes) = (true, rest);
    }
    let mut filters = Vec::new();
    for codec in of_array {
        filters.push(numcodecs::map(codec, byte_order, None)?);
    }
    filters.extend(serializer_filter);
    for codec in of_bytes {
        filters.push(numcodecs::map(codec, byte_order, stored.item_size())?);
    }
    let compressor = if of_bytes.is_empty() { None } else { filters.pop() };
    Ok(Pipeline { is_transposed, byte_order, filters, compressor, has_checksum })
}

/// Returns true if `transpose` reverses the dimensions, false if it does nothing.
fn reverses(transpose: &Extension<'_>, rank: usize) -> Result<bool, String> {
    let unknown = || "codec `transpose` without an order".to_owned();
    let order = transpose.configuration.get("order").ok_or_else(unknown)?;
    // Drafts of version 3 had the names of version 2.
    match string(order).as_deref() {
        Some("C") => return Ok(false),
        Some("F") => return Ok(rank > 1),
        _ => {}
    }
    let order: Option<Vec<usize>> =
        list(order).ok_or_else(unknown)?.into_iter().map(|axis| axis.parse().ok()).collect();
    match order {
        Some(order) if order.iter().copied().eq(0..rank) => Ok(false),
        Some(order) if order.iter().copied().eq((0..rank).rev()) => Ok(true),
        _ => Err("codec `transpose` with another order than the reversed one".to_owned()),
    }
}

fn byte_order(bytes: &Extension<'_>, stored: &DataType) -> Result<ByteOrder, String> {
    match bytes.configuration.get("endian").map(|order| string(order).unwrap_or_default()).as_deref() {
        Some("little") => Ok(ByteOrder::Little),
        Some("big") => Ok(ByteOrder::Big),
        None if !stored.has_order() => Ok(ByteOrder::Little),
        // zarr-python writes structures so, in the order of its machine: all that it supports are
        // little-endian.
        None if matches!(stored, DataType::Structure(_)) => Ok(ByteOrder::Little),
        None => Err("codec `bytes` without a byte order".to_owned()),
        Some(_) => Err("codec `bytes` with an unknown byte order".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BYTES: &str = r#"{"name":"bytes","configuration":{"endian":"little"}}"#;

    fn mapped(data_type: &str, rank: usize, codecs: &[&str]) -> Result<Pipeline, String> {
        let text = format!("[{}]", codecs.join(","));
        map(&Extension::parse_list(&text, "codec")?, &DataType::parse(data_type)?, rank)
    }

    fn compressor(codec: &str) -> String {
        mapped("\"int32\"", 1, &[BYTES, codec]).unwrap().compressor.unwrap()
    }

    #[test]
    fn compressors() {
        for (v3, v2) in [
            (r#"{"name":"gzip","configuration":{"level":5}}"#, r#"{"id":"gzip","level":5}"#),
            (r#"{"name":"zstd","configuration":{"level":-3,"checksum":true}}"#, r#"{"id":"zstd","level":-3}"#),
            (
                r#"{"name":"blosc","configuration":{"cname":"lz4","clevel":5,"shuffle":"bitshuffle","typesize":4,"blocksize":0}}"#,
                r#"{"id":"blosc","cname":"lz4","clevel":5,"shuffle":2,"blocksize":0}"#,
            ),
            (r#"{"name":"numcodecs.zlib","configuration":{"level":1}}"#, r#"{"id":"zlib","level":1}"#),
            (r#"{"name":"numcodecs.lz4","configuration":{"acceleration":1}}"#, r#"{"id":"lz4","acceleration":1}"#),
        ] {
            assert_eq!(compressor(v3), v2);
        }
        assert_eq!(mapped("\"int32\"", 1, &[BYTES]).unwrap().compressor, None);
    }

    #[test]
    fn chains() {
        let delta = r#"{"name":"numcodecs.delta","configuration":{"dtype":"int32","astype":"int16"}}"#;
        let shuffle = r#"{"name":"numcodecs.shuffle","configuration":{"elementsize":2}}"#;
        let big = r#"{"name":"bytes","configuration":{"endian":"big"}}"#;
        let pipeline = mapped("\"int32\"", 2, &[delta, big, shuffle, r#"{"name":"gzip"}"#]).unwrap();
        let expected = [r#"{"id":"delta","dtype":">i4","astype":">i2"}"#, r#"{"id":"shuffle","elementsize":2}"#];
        assert_eq!((pipeline.filters, pipeline.byte_order), (expected.map(str::to_owned).to_vec(), ByteOrder::Big));
        assert_eq!(pipeline.compressor.as_deref(), Some(r#"{"id":"gzip"}"#));
        let text =
            mapped("\"string\"", 1, &["\"vlen-utf8\"", r#"{"name":"zstd","configuration":{"level":0}}"#]).unwrap();
        assert_eq!(text.filters, [r#"{"id":"vlen-utf8"}"#]);
        assert_eq!(text.compressor.as_deref(), Some(r#"{"id":"zstd","level":0}"#));
    }

    #[test]
    fn a_shuffle_without_a_size_gets_that_of_the_elements() {
        let shuffled = |data_type: &str, codecs: &[&str]| mapped(data_type, 1, codecs).map(|p| p.compressor.unwrap());
        let shuffle = |settings: &str| format!("{{\"name\":\"numcodecs.shuffle\",\"configuration\":{settings}}}");
        for settings in ["{}", "{\"elementsize\":null}"] {
            let expected = |size: u8| Ok(format!("{{\"id\":\"shuffle\",\"elementsize\":{size}}}"));
            assert_eq!(shuffled("\"float64\"", &[BYTES, &shuffle(settings)]), expected(8));
            assert_eq!(shuffled("\"int16\"", &[BYTES, &shuffle(settings)]), expected(2));
            // The elements that are stored count, not those of the array.
            let astype =
                r#"{"name":"numcodecs.astype","configuration":{"encode_dtype":"int16","decode_dtype":"float64"}}"#;
            assert_eq!(shuffled("\"float64\"", &[astype, BYTES, &shuffle(settings)]), expected(2));
            assert!(shuffled("\"string\"", &["\"vlen-utf8\"", &shuffle(settings)]).is_err());
        }
    }

    #[test]
    fn elements_of_a_byte_need_no_order() {
        let scale = r#"{"name":"numcodecs.fixedscaleoffset","configuration":{"offset":0.1,"scale":10,"dtype":"float64","astype":"uint8"}}"#;
        let pipeline = mapped("\"float64\"", 1, &[scale, "\"bytes\""]).unwrap();
        let expected = r#"{"id":"fixedscaleoffset","offset":0.1,"scale":10,"dtype":"<f8","astype":"|u1"}"#;
        assert_eq!(pipeline.filters, [expected]);
        assert!(mapped("\"uint8\"", 1, &["\"bytes\""]).is_ok());
        assert!(mapped("\"float64\"", 1, &["\"bytes\""]).is_err());
    }

    #[test]
    fn only_a_reversed_order_has_a_name() {
        let transpose = |order: &str| format!("{{\"name\":\"transpose\",\"configuration\":{{\"order\":{order}}}}}");
        let is_transposed =
            |rank, order: &str| mapped("\"int32\"", rank, &[&transpose(order), BYTES]).map(|p| p.is_transposed);
        assert_eq!(is_transposed(3, "[2,1,0]"), Ok(true));
        assert_eq!(is_transposed(3, "[0,1,2]"), Ok(false));
        assert_eq!(is_transposed(1, "[0]"), Ok(false));
        assert_eq!(is_transposed(0, "[]"), Ok(false));
        for wrong in ["[1,0,2]", "[0,1]", "[0,0,0]", "[-1,0,1]", "7", "\"A\"", "[2,1,0,3]"] {
            assert!(is_transposed(3, wrong).is_err(), "{wrong}");
        }
        let twice = mapped("\"int32\"", 2, &[&transpose("[1,0]"), &transpose("[1,0]"), BYTES]).unwrap();
        assert!(!twice.is_transposed);
        let bitround = r#"{"name":"numcodecs.bitround","configuration":{"keepbits":3}}"#;
        assert!(mapped("\"float32\"", 2, &[bitround, &transpose("[1,0]"), BYTES]).is_err());
    }

    #[test]
    fn a_last_checksum_is_trimmed() {
        let gzip = r#"{"name":"gzip","configuration":{"level":1}}"#;
        let pipeline = mapped("\"int32\"", 1, &[BYTES, gzip, "\"crc32c\""]).unwrap();
        assert!(pipeline.has_checksum && pipeline.filters.is_empty() && pipeline.compressor.is_some());
        let pipeline = mapped("\"int32\"", 1, &[BYTES, r#"{"name":"numcodecs.crc32c","configuration":{}}"#]).unwrap();
        assert!(pipeline.has_checksum && pipeline.compressor.is_none());
        assert!(mapped("\"int32\"", 1, &[BYTES, "\"crc32c\"", gzip]).is_err());
        assert!(mapped("\"int32\"", 1, &[BYTES, "\"crc32c\"", "\"crc32c\""]).is_err());
    }

    #[test]
    fn other_codecs_are_refused() {
        for codecs in [
            &[][..],
            &[r#"{"name":"gzip","configuration":{"level":1}}"#],
            &[BYTES, BYTES],
            &[BYTES, "\"unheard-of\""],
            &[BYTES, "\"numcodecs.zfpy\""],
            &[BYTES, r#"{"name":"zstd","configuration":{"level":1000}}"#],
            &[BYTES, r#"{"name":"zstd","configuration":{"level":"1"}}"#],
            &[BYTES, r#"{"name":"gzip","configuration":{"level":5,"depth":1}}"#],
            &[BYTES, r#"{"name":"blosc","configuration":{"cname":"no","clevel":5,"shuffle":"shuffle"}}"#],
            &[BYTES, r#"{"name":"blosc","configuration":{"cname":"lz4","clevel":5,"shuffle":"sideways"}}"#],
            &[r#"{"name":"bytes","configuration":{"endian":"middle"}}"#],
            &[r#"{"name":"bytes","configuration":{"endian":7}}"#],
            &[r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[1]}}"#],
            &["\"vlen-utf8\""],
            &[r#"{"name":"numcodecs.delta","configuration":{"dtype":"O"}}"#, BYTES],
            &[r#"{"name":"numcodecs.delta"}"#, BYTES],
            &[r#"{"name":"numcodecs.quantize","configuration":{"digits":2,"dtype":"int32"}}"#, BYTES],
            &["7"],
            &["null"],
        ] {
            assert!(mapped("\"int32\"", 1, codecs).is_err(), "{codecs:?}");
        }
        assert!(mapped("\"string\"", 1, &[BYTES]).is_err());
    }
}
