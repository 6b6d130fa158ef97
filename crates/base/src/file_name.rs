//! File names: encodes any text, such as the name of a repository, branch or key, as one.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Characters that a file name cannot or should not contain.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%').add(b' ').add(b'\\');
/// Longest name, in bytes. A longer one is truncated and made unique by its checksum.
const MAX_NAME: usize = 180;
/// Length of the checksum and its hyphen.
const SUFFIX: usize = 9;

/// Returns a file name for any `text`, without spaces and slashes.
pub fn encode(text: &str) -> String {
    let encoded = utf8_percent_encode(text, ESCAPED).to_string();
    // `.` and `..` are reserved, and a leading dot would hide the directory.
    let encoded =
        if encoded.starts_with('.') { format!("%2E{}", encoded.get(1..).unwrap_or_default()) } else { encoded };
    if encoded.len() <= MAX_NAME {
        return encoded;
    }
    let kept: String = encoded.chars().take(MAX_NAME - SUFFIX).collect();
    format!("{kept}-{:08x}", crc32fast::hash(text.as_bytes()))
}

/// Returns the text of which `name` is the file name; `None` if it is no such name, or so long that
/// it may have been truncated.
pub fn decode(name: &str) -> Option<String> {
    if name.len() >= MAX_NAME {
        return None;
    }
    let text = percent_decode_str(name).decode_utf8().ok()?;
    (encode(&text) == name).then(|| text.into_owned())
}

/// Returns the beginning of the text of which `name` is the file name, if it is so long that it may
/// have been truncated.
pub fn decode_beginning(name: &str) -> Option<String> {
    let kept = name.get(..name.len().checked_sub(SUFFIX)?).filter(|_| name.len() >= MAX_NAME)?;
    // An escape of three characters may have been cut.
    let end = kept.rfind('%').filter(|at| kept.len() - at < 3).unwrap_or(kept.len());
    let bytes: Vec<u8> = percent_decode_str(kept.get(..end)?).collect();
    let valid = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    Some(valid.to_owned())
}

/// Returns true if `name` is `.` or `..`, which listings of a directory contain.
pub fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_fit() {
        assert_eq!(encode("/data/x"), "%2Fdata%2Fx");
        assert_eq!(encode(".."), "%2E.");
        let long = "a".repeat(300);
        let longer = "a".repeat(301);
        for text in ["/data/x", "..", "", "a b%2F\\ü\n", "s3://bucket/x", ".hidden"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
        assert_eq!((decode(&encode(&long)), decode("a b")), (None, None));
        assert_eq!(decode_beginning(&encode(&long)), Some("a".repeat(171)));
        let escapes = decode_beginning(&encode(&"ü/".repeat(100))).unwrap_or_default();
        assert!(escapes.len() > 40 && "ü/".repeat(100).starts_with(&escapes), "{escapes}");
        assert_eq!(decode_beginning("a%2Fb"), None);
        assert!(encode(&long).len() <= MAX_NAME && encode(&long) != encode(&longer));
    }
}
