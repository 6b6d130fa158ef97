//! Reasons for which Zarr programs cannot open an array, from its `zarr.json`.
//!
//! Any document that gives chunks their places can be committed. What zarr-python and other
//! libraries need besides, by the core specification of Zarr v3, is looked for here, so that a
//! commit can warn. Codecs and data types that nobody has registered are named, too: the array
//! opens only where a library adds them. A name with a dot in it is that of a library, whose users
//! know.

use serde::Deserialize;
use serde_json::Value;

use super::document;
use super::members::unknown_member;
use icechunkfs_base::error::Result;
use icechunkfs_base::printable;

/// Members that every array has.
const REQUIRED: [&str; 4] = ["data_type", "chunk_key_encoding", "fill_value", "codecs"];
/// Codecs of the specification and of the registry of Zarr's extensions, without those whose names
/// have a dot in them.
const CODECS: [&str; 22] = [
    "bitround",
    "blosc",
    "bytes",
    "bz2",
    "cast_value",
    "conditional",
    "crc32c",
    "endian",
    "gdeflate",
    "gzip",
    "n5_default",
    "packbits",
    "pcodec",
    "reshape",
    "scale_offset",
    "sharding_indexed",
    "transpose",
    "vlen-array",
    "vlen-bytes",
    "vlen-utf8",
    "zfp",
    "zstd",
];
/// Data types besides those that are a kind and a number of bits.
const DATA_TYPES: [&str; 10] = [
    "bool",
    "string",
    "bytes",
    "variable_length_bytes",
    "fixed_length_utf32",
    "null_terminated_bytes",
    "raw_bytes",
    "structured",
    "struct",
    "bfloat16",
];

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    shape: Vec<u64>,
    #[serde(default)]
    chunk_grid: Value,
    #[serde(default)]
    data_type: Value,
    #[serde(default)]
    fill_value: Value,
    #[serde(default)]
    codecs: Value,
}

/// Reason for which programs cannot open an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Description, as a clause.
    pub text: String,
    /// True if a library that is installed beside the program may know better.
    pub is_of_extension: bool,
}

impl Problem {
    fn certain(text: String) -> Self {
        Problem { text, is_of_extension: false }
    }

    fn of_extension(what: &str, name: &str) -> Self {
        Problem { text: format!("{what} `{}` is not one of Zarr's", printable::line(name)), is_of_extension: true }
    }
}

/// Returns the reasons for which programs cannot open the array of `zarr_json`; none if no reason
/// is known.
///
/// Errors: [`ErrorKind::Corrupt`](icechunkfs_base::error::ErrorKind::Corrupt) if it is not an
/// array's.
pub fn problems(zarr_json: &[u8]) -> Result<Vec<Problem>> {
    let mut room = document::reserve(zarr_json)?;
    let document: Document = document::parse(zarr_json, &mut room)?;
    let mut found = Vec::new();
    if let Some(members) = document::members(zarr_json) {
        let missing = REQUIRED.iter().filter(|name| members.get(name).is_none());
        found.extend(missing.map(|name| Problem::certain(format!("{name} is missing"))));
        found.extend(unknown_member(&members).map(|name| Problem::of_extension("the member", name)));
    }
    found.extend(document.empty_chunks());
    found.extend(document.codec_problem());
    found.extend(document.data_type_problem());
    Ok(found)
}

impl Document {
    fn empty_chunks(&self) -> Option<Problem> {
        let chunks = document::setting(&self.chunk_grid, "chunk_shape")?.as_array()?;
        let is_empty = std::iter::zip(chunks, &self.shape).any(|(chunk, length)| *chunk == 0 && *length > 0);
        is_empty.then(|| {
            let shape = document::shown(document::setting(&self.chunk_grid, "chunk_shape").unwrap_or(&Value::Null));
            Problem::certain(format!("chunk_shape {shape}: each length must be at least 1"))
        })
    }

    fn codec_problem(&self) -> Option<Problem> {
        let codecs = self.codecs.as_array()?;
        if codecs.is_empty() {
            let text = "codecs is empty: add a codec that turns elements into bytes, such as `bytes`";
            return Some(Problem::certain(text.to_owned()));
        }
        let needed = codecs.iter().filter(|codec| codec.get("must_understand") != Some(&Value::Bool(false)));
        let mut names = needed.map(|codec| document::extension_name(codec).unwrap_or_default());
        let unknown = names.find(|name| !CODECS.contains(name) && is_unregistered(name))?;
        Some(Problem::of_extension("codec", unknown))
    }

    fn data_type_problem(&self) -> Option<Problem> {
        let name = document::extension_name(&self.data_type)?;
        if !DATA_TYPES.contains(&name) && bits(name).is_none() && is_unregistered(name) {
            return Some(Problem::of_extension("data type", name));
        }
        let fits = fits(&self.fill_value, name)?;
        let shown = || document::shown(&self.fill_value);
        (!fits).then(|| Problem::certain(format!("fill_value {} is not a value of {name}", shown())))
    }
}

/// Returns true if a name is neither of a library nor of a family of codecs that has its own
/// prefix.
fn is_unregistered(name: &str) -> bool {
    !name.contains('.') && !name.starts_with("imagecodecs_") && !name.starts_with("https:")
}

/// Returns the kind and the bits of a numeric data type such as `uint16`.
fn bits(name: &str) -> Option<(&str, u32)> {
    if ["float8_", "float6_", "float4_", "complex_"].iter().any(|kind| name.starts_with(kind)) {
        return Some(("small", 8));
    }
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let bits = name.get(kind.len()..)?.parse().ok()?;
    let is_known = match kind {
        "int" | "uint" => matches!(bits, 2 | 4 | 8 | 16 | 32 | 64),
        "float" => matches!(bits, 16 | 32 | 64),
        "complex" => matches!(bits, 64 | 128),
        "r" => bits > 0 && bits % 8 == 0,
        _ => false,
    };
    is_known.then_some((kind, bits))
}

/// Returns true if `fill` is a value of the data type `name`; none for types of which this is not
/// known here. Nothing says what `null` is: libraries take it for 0.
fn fits(fill: &Value, name: &str) -> Option<bool> {
    if fill.is_null() {
        return None;
    }
    if name == "bool" {
        return Some(fill.is_boolean());
    }
    Some(match bits(name)? {
        ("int", bits) => is_whole(fill, -(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        ("uint", bits) => is_whole(fill, 0, (1 << bits) - 1),
        ("float", _) => is_float(fill),
        ("complex", _) => fill.as_array().is_some_and(|parts| parts.len() == 2 && parts.iter().all(is_float)),
        _ => return None,
    })
}

/// Returns true for a whole number from `least` to `most`, also one that is written `3.0`.
fn is_whole(fill: &Value, least: i128, most: i128) -> bool {
    let whole = fill.as_f64().filter(|number| number.fract() == 0.0).map(|number| number as i128);
    let number = fill.as_i64().map(i128::from).or_else(|| fill.as_u64().map(i128::from)).or(whole);
    number.is_some_and(|number| (least..=most).contains(&number))
}

/// Returns true for a number, or one of the texts that stand for numbers.
fn is_float(fill: &Value) -> bool {
    let is_hexadecimal = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match fill {
        Value::Number(_) => true,
        Value::String(text) => {
            matches!(&**text, "NaN" | "Infinity" | "-Infinity") || text.strip_prefix("0x").is_some_and(is_hexadecimal)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use serde_json::json;

    fn with(name: &str, value: Value) -> Vec<Problem> {
        let mut document = json!({
            "zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "int16", "fill_value": 0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": "default",
            "codecs": ["bytes", {"name": "zstd"}], "attributes": {"nosuch": 1}, "dimension_names": ["x"],
        });
        document.as_object_mut().unwrap().insert(name.to_owned(), value);
        problems(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn what_no_program_opens_is_told() {
        assert_eq!(with("zarr_format", json!(3)), []);
        let grid = |chunks: Value| json!({"name": "regular", "configuration": {"chunk_shape": chunks}});
        for (name, value, expected) in [
            ("codecs", json!([]), "codecs is empty"),
            ("codecs", json!(["bytes", {"name": "nosuch"}]), "codec `nosuch`"),
            ("data_type", json!("float31"), "data type `float31`"),
            ("data_type", json!("r12"), "data type `r12`"),
            ("fill_value", json!("abc"), "fill_value \"abc\" is not a value of int16"),
            ("fill_value", json!(40_000), "fill_value 40000"),
            ("fill_value", json!(0.5), "fill_value 0.5"),
            ("fill_value", json!(true), "fill_value true"),
            ("chunk_grid", grid(json!([0])), "chunk_shape [0]: each length must be at least 1"),
            ("nosuch", json!({"a": 1}), "the member `nosuch`"),
        ] {
            let found = with(name, value);
            assert!(found.len() == 1 && found[0].text.starts_with(expected), "{expected}: {found:?}");
            assert_eq!(found[0].is_of_extension, expected.contains('`') && !expected.contains("fill"), "{expected}");
        }
        let bare = br#"{"zarr_format": 3, "node_type": "array", "shape": [0], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}}"#;
        let missing = REQUIRED.map(|name| Problem::certain(format!("{name} is missing")));
        assert_eq!(problems(bare).unwrap(), missing);
    }

    #[test]
    fn what_some_program_opens_is_not_told() {
        for (name, value) in [
            ("codecs", json!(["bytes", "numcodecs.zlib"])),
            ("codecs", json!([{"name": "imagecodecs_jpeg2k"}])),
            ("codecs", json!(["bytes", {"name": "nosuch", "must_understand": false}])),
            ("data_type", json!("complex_float16")),
            ("fill_value", json!(3.0)),
            ("fill_value", json!(null)),
            ("nosuch", json!({"must_understand": false})),
            ("storage_transformers", json!([])),
        ] {
            assert_eq!(with(name, value), [], "{name}");
        }
        let fits = |fill: Value, name: &str| fits(&fill, name) != Some(false);
        for (fill, name) in [
            (json!(u64::MAX), "uint64"),
            (json!(i64::MIN), "int64"),
            (json!(-128), "int8"),
            (json!("NaN"), "float32"),
            (json!("0x7fc00000"), "float32"),
            (json!(1), "float64"),
            (json!(["NaN", 0]), "complex64"),
            (json!(false), "bool"),
            (json!("AAA="), "raw_bytes"),
            (json!("NaT"), "numpy.datetime64"),
            (json!([0, 1]), "r16"),
            (json!(0), "float8_e4m3"),
        ] {
            assert!(fits(fill.clone(), name), "{fill} {name}");
        }
        for (fill, name) in
            [(json!(0), "bool"), (json!("nan"), "float32"), (json!([1]), "complex64"), (json!(16), "uint4")]
        {
            assert!(!fits(fill.clone(), name), "{fill} {name}");
        }
    }
}
