//! Quotes words for a shell, in advice that users paste into one.

use std::fmt::Write;

use crate::printable;

/// Quotes any `word` so that a shell reads it back unchanged. Characters that a terminal would not
/// show become byte escapes.
pub fn quote(word: &str) -> String {
    if !word.chars().any(printable::is_special) {
        return format!("'{}'", word.replace('\'', r"'\''"));
    }
    let mut quoted = "$'".to_owned();
    for c in word.chars() {
        match c {
            '\'' | '\\' => quoted.extend(['\\', c]),
            c if printable::is_special(c) => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing into a string cannot fail.
                    let _ = write!(quoted, "\\x{byte:02x}");
                }
            }
            c => quoted.push(c),
        }
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn read_back(word: &str) -> Vec<u8> {
        let script = format!("printf %s {}", quote(word));
        std::process::Command::new("bash").args(["-c", &script]).output().unwrap().stdout
    }

    #[test]
    fn a_shell_reads_words_back() {
        for word in
            ["", "s3://b/", "a b", "'$(touch x)'", "`x`", "\\", "!", "a'b\n'c\\\u{1b}", "\u{202e}x\ny", "~", "-x", "*"]
        {
            assert_eq!(read_back(word), word.as_bytes(), "{word:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) })]

        #[test]
        fn any_word_is_read_back(word in "[^\\x00]{0,30}") {
            prop_assert_eq!(read_back(&word), word.as_bytes());
        }
    }
}
