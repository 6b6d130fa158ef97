//! Filters and compressors of version 2 as codecs of version 3.
//!
//! | version 2 | version 3 |
//! |---|---|
//! | order `F` | `transpose`, first |
//! | filters of numbers | `numcodecs.` and their name, with their settings |
//! | byte order of the type | `bytes` |
//! | filter `vlen-utf8` | `vlen-utf8` |
//! | other filters, and the compressor | codecs of bytes |

use icechunkfs_base::error::Result;
use serde_json::{Map, Value, json};

use super::data_type::DataType2;
use super::{shown, unsupported};

/// Filters that make numbers of numbers.
const OF_NUMBERS: [&str; 4] = ["delta", "fixedscaleoffset", "quantize", "bitround"];
/// Types that `fixedscaleoffset` may store.
const STORED: [&str; 8] = ["|i1", "|u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8"];
/// Bytes of an element that `shuffle` takes if it is not told, as numcodecs does.
const SHUFFLED: i64 = 4;
/// Largest size of an element that blosc knows.
const BLOSC_ITEM: u64 = 255;

/// Returns the codecs of an array; `reversed` is its rank if dimensions are stored in the reversed
/// order.
pub(super) fn all(
    data_type: &DataType2,
    filters: &[Value],
    compressor: Option<&Value>,
    reversed: Option<usize>,
) -> Result<Vec<Value>> {
    let count = filters.iter().take_while(|filter| id(filter).is_some_and(|id| OF_NUMBERS.contains(&id))).count();
    let (of_numbers, mut of_bytes) = filters.split_at_checked(count).unwrap_or_default();
    if !of_numbers.is_empty() && (reversed.is_some() || data_type.is_big) {
        return Err(unsupported("filters of numbers that are big-endian or in order `F`"));
    }
    let mut codecs = Vec::new();
    if let Some(rank) = reversed {
        codecs.push(json!({"name": "transpose", "configuration": {"order": (0..rank).rev().collect::<Vec<_>>()}}));
    }
    for filter in of_numbers {
        check_numbers(filter, data_type)?;
        codecs.push(of_numcodecs(filter)?);
    }
    if data_type.size().is_none() {
        let (first, rest) = of_bytes.split_first().ok_or_else(|| unsupported("objects without a filter"))?;
        if id(first) != Some("vlen-utf8") {
            return Err(unsupported("objects with another first filter than `vlen-utf8`"));
        }
        codecs.push(json!({"name": "vlen-utf8"}));
        of_bytes = rest;
    } else if data_type.has_order() || !of_numbers.is_empty() {
        let order = if data_type.is_big { "big" } else { "little" };
        codecs.push(json!({"name": "bytes", "configuration": {"endian": order}}));
    } else {
        codecs.push(json!({"name": "bytes"}));
    }
    for filter in of_bytes.iter().chain(compressor) {
        codecs.push(codec(filter, data_type)?);
    }
    Ok(codecs)
}

fn id(filter: &Value) -> Option<&str> {
    filter.get("id").and_then(Value::as_str)
}

/// Fails unless the filter of numbers takes elements of this type, and gives numbers of the type in
/// which version 3 would store them, too.
fn check_numbers(filter: &Value, data_type: &DataType2) -> Result<()> {
    let [dtype, stored] = ["dtype", "astype"].map(|name| filter.get(name));
    let keeps_type = || data_type.is_numpy(dtype) && stored.is_none_or(|stored| data_type.is_numpy(Some(stored)));
    let is_known = match id(filter) {
        Some("delta") => keeps_type(),
        Some("quantize") => data_type.is_float() && keeps_type(),
        Some("fixedscaleoffset") => {
            let stored = stored.and_then(Value::as_str).is_some_and(|stored| STORED.contains(&stored));
            data_type.is_float() && data_type.is_numpy(dtype) && stored
        }
        Some("bitround") => data_type.is_float(),
        _ => false,
    };
    if is_known { Ok(()) } else { Err(unsupported(format!("filter {} for other numbers", shown(&filter.to_string())))) }
}

/// Returns the codec of bytes for a filter or a compressor.
fn codec(filter: &Value, data_type: &DataType2) -> Result<Value> {
    let name = id(filter).unwrap_or_default();
    let number = |name: &str, default: i64| match filter.get(name) {
        None => Ok(default),
        Some(value) => {
            value.as_i64().ok_or_else(|| unsupported(format!("setting {name} {}", shown(&value.to_string()))))
        }
    };
    match name {
        // Chunks are decoded whatever the level was: the nearest one that version 3 knows will do.
        "gzip" => Ok(json!({"name": "gzip", "configuration": {"level": number("level", 1)?.clamp(0, 9)}})),
        "zstd" => {
            let checksum = filter.get("checksum").is_some_and(|value| value == true);
            let level = number("level", 1)?.clamp(-131_072, 22);
            Ok(json!({"name": "zstd", "configuration": {"level": level, "checksum": checksum}}))
        }
        "blosc" => {
            let size = data_type.size().unwrap_or(1);
            let shuffle = match number("shuffle", 1)? {
                0 => "noshuffle",
                1 => "shuffle",
                2 => "bitshuffle",
                -1 if size == 1 => "bitshuffle",
                -1 => "shuffle",
                other => return Err(unsupported(format!("shuffle {other} of blosc"))),
            };
            let library = filter.get("cname").and_then(Value::as_str).unwrap_or("lz4");
            if !["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"].contains(&library) {
                return Err(unsupported(format!("blosc with {}", shown(library))));
            }
            Ok(json!({"name": "blosc", "configuration": {
                "cname": library,
                "clevel": number("clevel", 5)?.clamp(0, 9),
                "shuffle": shuffle,
                "typesize": size.min(BLOSC_ITEM),
                "blocksize": number("blocksize", 0)?,
            }}))
        }
        "shuffle" => {
            let size = number("elementsize", SHUFFLED)?;
            Ok(json!({"name": "numcodecs.shuffle", "configuration": {"elementsize": size}}))
        }
        "zlib" | "bz2" | "lzma" | "lz4" | "fletcher32" | "crc32" | "crc32c" | "adler32" => of_numcodecs(filter),
        _ => Err(unsupported(format!("filter {}", shown(name)))),
    }
}

/// Returns the codec of the library numcodecs, with the settings that it has.
fn of_numcodecs(filter: &Value) -> Result<Value> {
    let name = id(filter).ok_or_else(|| unsupported("a filter without a name"))?;
    let mut configuration: Map<String, Value> = filter.as_object().cloned().unwrap_or_default();
    configuration.shift_remove("id");
    Ok(json!({"name": format!("numcodecs.{name}"), "configuration": configuration}))
}
