//! Codecs that the library numcodecs has, with the settings that it takes.
//!
//! zarr-python 2 makes the codecs of an array when it opens the array, and cannot list a group with
//! an array whose codecs it cannot make. So only settings that numcodecs is known to take are
//! mapped.

use super::data_type::{ByteOrder, DataType};
use icechunkfs_format::zarr::members::{Extension, integer, quoted, shorten, string};

/// Values that a setting of a codec can have.
enum Values {
    /// Whole numbers of a range.
    Integer(i64, i64),
    /// Numbers.
    Number,
    /// Number types of numpy.
    DataType,
    /// Floating-point types of numpy.
    FloatType,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// Number of a shuffle, or its name.
    Shuffle,
    /// Null only.
    Null,
    /// Any value; version 2 does not have the setting.
    Dropped,
}

/// Setting of a codec.
struct Setting {
    name: &'static str,
    values: Values,
    is_required: bool,
}

const fn required(name: &'static str, values: Values) -> Setting {
    Setting { name, values, is_required: true }
}

const fn optional(name: &'static str, values: Values) -> Setting {
    Setting { name, values, is_required: false }
}

/// Largest number that all versions of numcodecs take.
const MAX: i64 = i32::MAX as i64;

const DTYPE: [Setting; 2] = [required("dtype", Values::DataType), optional("astype", Values::DataType)];

/// Returns the settings of codec `id`; none if version 2 cannot have it.
fn settings(id: &str) -> Option<&'static [Setting]> {
    Some(match id {
        "gzip" => const { &[optional("level", Values::Integer(0, 9))] },
        "zlib" => const { &[optional("level", Values::Integer(-1, 9))] },
        "bz2" => const { &[optional("level", Values::Integer(1, 9))] },
        "lz4" => const { &[optional("acceleration", Values::Integer(-MAX, MAX))] },
        "zstd" => const { &[optional("level", Values::Integer(-131_072, 22)), optional("checksum", Values::Dropped)] },
        "lzma" => {
            const {
                &[
                    optional("format", Values::Integer(0, 3)),
                    optional("check", Values::Integer(-1, 10)),
                    optional("preset", Values::Integer(0, u32::MAX as i64)),
                    optional("filters", Values::Null),
                ]
            }
        }
        "blosc" => {
            const {
                &[
                    optional("cname", Values::OneOf(&["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"])),
                    optional("clevel", Values::Integer(0, 9)),
                    optional("shuffle", Values::Shuffle),
                    optional("typesize", Values::Dropped),
                    optional("blocksize", Values::Integer(0, MAX)),
                ]
            }
        }
        "shuffle" => const { &[optional("elementsize", Values::Integer(1, MAX))] },
        "crc32" | "adler32" => const { &[optional("location", Values::OneOf(&["start", "end"]))] },
        "fletcher32" | "packbits" => &[],
        "jenkins_lookup3" => {
            const { &[optional("initval", Values::Integer(0, u32::MAX as i64)), optional("prefix", Values::Null)] }
        }
        "delta" => &DTYPE,
        "fixedscaleoffset" => {
            const {
                &[
                    required("offset", Values::Number),
                    required("scale", Values::Number),
                    required("dtype", Values::DataType),
                    optional("astype", Values::DataType),
                ]
            }
        }
        "quantize" => {
            const {
                &[
                    required("digits", Values::Integer(-400, 400)),
                    required("dtype", Values::FloatType),
                    optional("astype", Values::FloatType),
                ]
            }
        }
        "bitround" => const { &[required("keepbits", Values::Integer(0, 52))] },
        "astype" => const { &[required("encode_dtype", Values::DataType), required("decode_dtype", Values::DataType)] },
        _ => return None,
    })
}

/// Returns the name in numcodecs of the codec that version 3 calls `name`; none if it has none.
fn id(name: &str) -> Option<&str> {
    match name {
        "gzip" | "zstd" | "blosc" => Some(name),
        _ => name.strip_prefix("numcodecs."),
    }
}

/// Returns true if codec `name` maps arrays to arrays.
pub(super) fn is_array_codec(name: &str) -> bool {
    let id = name.strip_prefix("numcodecs.");
    id.is_some_and(|id| ["delta", "fixedscaleoffset", "quantize", "bitround", "packbits", "astype"].contains(&id))
}

/// Returns true if `codec` puts a CRC-32C of four bytes at the end of a chunk.
pub(super) fn is_final_checksum(codec: &Extension<'_>) -> bool {
    let location = codec.configuration.get("location").map(|location| string(location).unwrap_or_default());
    ["crc32c", "numcodecs.crc32c"].contains(&codec.name.as_str()) && location.is_none_or(|location| location == "end")
}

/// Returns the data type of the elements that array codec `codec` stores; none if it is that of its
/// input.
pub(super) fn stored_type(codec: &Extension<'_>) -> Result<Option<DataType>, String> {
    if codec.name == "numcodecs.packbits" {
        return Ok(Some(DataType::Integer { signed: false, size: 1 }));
    }
    let setting = ["astype", "encode_dtype"].into_iter().find_map(|name| codec.configuration.get(name));
    let setting = setting.or_else(|| codec.configuration.get("dtype")).filter(|text| *text != "null");
    setting
        .map(|text| data_type(text).ok_or_else(|| format!("codec `{}` for unknown elements", codec.name)))
        .transpose()
}

/// Returns `codec` as version 2 has it, for elements of `order` and of `item_size` bytes, none if
/// these vary.
pub(super) fn map(codec: &Extension<'_>, order: ByteOrder, item_size: Option<u64>) -> Result<String, String> {
    let unknown = || format!("codec `{}`", shorten(&codec.name));
    let id = id(&codec.name).ok_or_else(unknown)?;
    let settings = settings(id).ok_or_else(unknown)?;
    if let Some((name, _)) = codec.configuration.iter().find(|(name, _)| !settings.iter().any(|s| s.name == *name)) {
        return Err(format!("codec `{id}` with the unknown setting `{}`", shorten(name)));
    }
    let mut mapped = format!("{{\"id\":\"{id}\"");
    for setting in settings {
        let name = setting.name;
        let text = codec.configuration.get(name);
        if id == "shuffle" && text.is_none_or(|text| text == "null") {
            // The default of version 3 is the size of an element, that of numcodecs is 4.
            let size = item_size.filter(|size| (1..=MAX as u64).contains(size));
            let size = size.ok_or_else(|| format!("codec `{id}` without `{name}` for elements of any size"))?;
            mapped += &format!(",\"{name}\":{size}");
            continue;
        }
        let Some(text) = text else {
            if setting.is_required {
                return Err(format!("codec `{id}` without `{name}`"));
            }
            continue;
        };
        if matches!(setting.values, Values::Dropped) || (text == "null" && !setting.is_required) {
            continue;
        }
        let value = setting.values.map(text, order);
        let value = value.ok_or_else(|| format!("codec `{id}` with {name} {}", shorten(text)))?;
        // Older releases of numcodecs do not have the setting, but this value.
        if name == "location" && value == "\"start\"" {
            continue;
        }
        mapped += &format!(",\"{name}\":{value}");
    }
    mapped.push('}');
    Ok(mapped)
}

impl Values {
    /// Returns the value `text` as version 2 has it; none if it is not one of these.
    fn map(&self, text: &str, order: ByteOrder) -> Option<String> {
        match self {
            Values::Integer(least, most) => {
                integer(text).filter(|value| (*least..=*most).contains(value)).map(|value| value.to_string())
            }
            Values::Number => {
                let is_finite = text.len() <= 40 && text.parse().is_ok_and(|value: f64| value.is_finite());
                is_finite.then(|| text.to_owned())
            }
            Values::DataType => data_type(text).map(|data_type| data_type.dtype(order)),
            Values::FloatType => {
                data_type(text).filter(|t| matches!(t, DataType::Float(_))).map(|data_type| data_type.dtype(order))
            }
            Values::OneOf(names) => {
                string(text).filter(|name| names.contains(&name.as_str())).map(|name| quoted(&name))
            }
            Values::Shuffle => match string(text).as_deref() {
                Some("noshuffle") => Some("0".to_owned()),
                Some("shuffle") => Some("1".to_owned()),
                Some("bitshuffle") => Some("2".to_owned()),
                Some(_) => None,
                None => integer(text).filter(|value| (-1..=2).contains(value)).map(|value| value.to_string()),
            },
            Values::Null | Values::Dropped => None,
        }
    }
}

fn data_type(text: &str) -> Option<DataType> {
    DataType::from_numpy(&string(text)?)
}
