//! Any text as a file's name: the names of repositories, branches and keys.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Characters that a file's name cannot or should not have.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'/').add(b'%').add(b' ').add(b'\\');
/// Longest name, in bytes; what is longer is cut, and told apart by its checksum.
const MAX_NAME: usize = 180;

/// The name of a file or directory for `text`, whatever that is. It has no space and no slash.
pub fn of(text: &str) -> String {
    let encoded = utf8_percent_encode(text, ESCAPED).to_string();
    // `.` and `..` are no names; a dot in front would hide the directory.
    let encoded =
        if encoded.starts_with('.') { format!("%2E{}", encoded.get(1..).unwrap_or_default()) } else { encoded };
    if encoded.len() <= MAX_NAME {
        return encoded;
    }
    let kept: String = encoded.chars().take(MAX_NAME - 9).collect();
    format!("{kept}-{:08x}", crc32fast::hash(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_fit() {
        assert_eq!(of("/data/x"), "%2Fdata%2Fx");
        assert_eq!(of(".."), "%2E.");
        let (long, longer) = ("a".repeat(300), "a".repeat(301));
        assert!(of(&long).len() <= MAX_NAME && of(&long) != of(&longer));
    }
}
