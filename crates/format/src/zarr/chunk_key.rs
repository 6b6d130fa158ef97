//! Chunk coordinates and their spelling as keys (Zarr v3, "chunk key encoding").
//!
//! Icechunk stores coordinates; an array's `chunk_key_encoding` determines the keys that Zarr
//! programs ask for. With separator `/` each coordinate but the last is a directory; with `.` the
//! whole key is one file name beside `zarr.json`. Only the canonical spelling is a chunk: no
//! leading zeros, no signs.

use std::fmt::Write as _;

use serde_json::Value;

use super::document;
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Separator between coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// Each coordinate is a path component.
    Slash,
    /// All coordinates are one file name.
    Dot,
}

/// An array's `chunk_key_encoding`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEncoding {
    /// True if keys begin with a component `c` (`default`), false if with the first coordinate
    /// (`v2`).
    pub prefixed: bool,
    /// Separator between coordinates.
    pub separator: Separator,
    /// Text at the end of every key (the `suffix` extension); usually empty.
    pub suffix: String,
}

impl Default for KeyEncoding {
    /// Returns the encoding `c/0/1`, which the reference implementation uses for its own keys.
    fn default() -> Self {
        KeyEncoding { prefixed: true, separator: Separator::Slash, suffix: String::new() }
    }
}

impl KeyEncoding {
    /// Parses the member `chunk_key_encoding`; none is the default encoding.
    pub fn parse(member: Option<&Value>) -> Result<Self> {
        let Some(member) = member else { return Ok(KeyEncoding::default()) };
        let unknown = || Error::new(ErrorKind::Unsupported, format!("chunk key encoding {}", document::shown(member)));
        let name = document::extension_name(member).ok_or_else(unknown)?;
        let setting = |key| document::setting(member, key);
        let separator = |default| match setting("separator") {
            None => Ok(default),
            Some(Value::String(s)) if s == "/" => Ok(Separator::Slash),
            Some(Value::String(s)) if s == "." => Ok(Separator::Dot),
            Some(_) => Err(unknown()),
        };
        match name {
            "default" => Ok(KeyEncoding { separator: separator(Separator::Slash)?, ..KeyEncoding::default() }),
            "v2" => {
                Ok(KeyEncoding { prefixed: false, separator: separator(Separator::Dot)?, ..KeyEncoding::default() })
            }
            "suffix" => {
                let base = setting("base_encoding").or_else(|| setting("base-encoding"));
                let suffix = setting("suffix").and_then(Value::as_str).ok_or_else(unknown)?;
                if suffix.contains(['/', '\0']) || base.and_then(|b| b.get("name")).is_some_and(|n| n == "suffix") {
                    return Err(unknown());
                }
                Ok(KeyEncoding { suffix: suffix.to_owned(), ..KeyEncoding::parse(base)? })
            }
            _ => Err(unknown()),
        }
    }

    /// Returns the file name of chunk `coords` within its directory: the last coordinate, or the
    /// whole key if the key is one name.
    pub fn file_name(&self, coords: &[u32]) -> String {
        let mut name = String::new();
        match (self.separator, coords) {
            (_, []) => name.push(if self.prefixed { 'c' } else { '0' }),
            (Separator::Slash, [.., last]) => push_number(&mut name, *last),
            (Separator::Dot, all) => {
                if self.prefixed {
                    name.push('c');
                }
                for &coord in all {
                    if !name.is_empty() {
                        name.push('.');
                    }
                    push_number(&mut name, coord);
                }
            }
        }
        name.push_str(&self.suffix);
        name
    }

    /// Returns the length in bytes of the longest file name of a chunk in `grid` (chunks per
    /// dimension).
    pub fn longest_name(&self, grid: &[u32]) -> usize {
        let last: Vec<u32> = grid.iter().map(|count| count.saturating_sub(1)).collect();
        self.file_name(&last).len()
    }

    /// Returns the key of chunk `coords` relative to the array.
    pub fn key(&self, coords: &[u32]) -> String {
        let (Separator::Slash, [dirs @ .., _]) = (self.separator, coords) else { return self.file_name(coords) };
        let mut key = String::from(if self.prefixed { "c/" } else { "" });
        for &dir in dirs {
            push_number(&mut key, dir);
            key.push('/');
        }
        key + &self.file_name(coords)
    }

    /// Parses a whole key in one file name, for arrays of rank `rank`: the inverse of
    /// [`KeyEncoding::file_name`] for separator `.` and for rank 0.
    pub fn parse_flat(&self, name: &str, rank: usize) -> Option<Vec<u32>> {
        let name = name.strip_suffix(self.suffix.as_str())?;
        if rank == 0 {
            return (name == if self.prefixed { "c" } else { "0" }).then(Vec::new);
        }
        let numbers = if self.prefixed { name.strip_prefix("c.")? } else { name };
        let coords: Vec<u32> = numbers.split('.').map(parse_number).collect::<Option<_>>()?;
        (coords.len() == rank).then_some(coords)
    }

    /// Parses a file name as the last coordinate, where the other coordinates are directories.
    pub fn parse_last(&self, name: &str) -> Option<u32> {
        parse_number(name.strip_suffix(self.suffix.as_str())?)
    }
}

fn push_number(out: &mut String, number: u32) {
    // Writing into a string cannot fail.
    let _ = write!(out, "{number}");
}

/// Parses a coordinate in its canonical spelling: decimal, no sign, no leading zeros, below 2^32.
pub fn parse_number(text: &str) -> Option<u32> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    if canonical { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn encoding(member: Value) -> KeyEncoding {
        KeyEncoding::parse(Some(&member)).unwrap()
    }

    #[test]
    fn keys_of_every_encoding() {
        let default = KeyEncoding::parse(None).unwrap();
        let default_dot = encoding(json!({"name": "default", "configuration": {"separator": "."}}));
        let v2 = encoding(json!({"name": "v2"}));
        let v2_slash = encoding(json!({"name": "v2", "configuration": {"separator": "/"}}));
        let tiff =
            encoding(json!({"name": "suffix", "configuration": {"suffix": ".tiff", "base_encoding": {"name": "v2"}}}));
        for (encoding, two_d, zero_d) in [
            (&default, "c/3/10", "c"),
            (&default_dot, "c.3.10", "c"),
            (&v2, "3.10", "0"),
            (&v2_slash, "3/10", "0"),
            (&tiff, "3.10.tiff", "0.tiff"),
        ] {
            assert_eq!(encoding.key(&[3, 10]), two_d);
            assert_eq!(encoding.key(&[]), zero_d);
            assert_eq!(encoding.parse_flat(zero_d, 0), Some(vec![]));
            if encoding.separator == Separator::Dot {
                assert_eq!(encoding.parse_flat(two_d, 2), Some(vec![3, 10]));
            }
        }
        assert_eq!(encoding(json!("default")), default);
    }

    #[test]
    fn only_canonical_names_are_chunks() {
        let v2 = encoding(json!({"name": "v2"}));
        for name in ["0.00", "01.0", "+1.0", "-1.0", "1", "1.2.3", "1.", ".1", "", "4294967296.0", "1.0x", "c.0.1"] {
            assert_eq!(v2.parse_flat(name, 2), None, "{name}");
        }
        assert_eq!(v2.parse_flat("4294967295.0", 2), Some(vec![u32::MAX, 0]));
        assert_eq!(KeyEncoding::default().parse_last("4913"), Some(4913));
        assert_eq!(KeyEncoding::default().parse_last("00"), None);
    }

    #[test]
    fn unknown_encodings_are_refused() {
        for member in [
            json!({"name": "fan-out"}),
            json!({"name": "v2", "configuration": {"separator": "-"}}),
            json!({"name": "suffix", "configuration": {"suffix": "/x"}}),
            json!(7),
        ] {
            assert_eq!(KeyEncoding::parse(Some(&member)).unwrap_err().kind(), ErrorKind::Unsupported, "{member}");
        }
    }
}
