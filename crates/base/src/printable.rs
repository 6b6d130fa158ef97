//! Escapes untrusted text for a terminal, a log or a control file.
//!
//! Other parties write the names of nodes and refs, commit messages, answers of stores, and paths.
//! Characters that a terminal would interpret are escaped: control characters, marks that change
//! the writing direction, line breaks. So text can neither hide its surroundings nor imitate
//! another line. Everything printed goes through this module: results and questions in the
//! commands, error messages where they are displayed ([`crate::error::Error`]), and every log line
//! where it is written.
//!
//! Escaping escaped text changes nothing, so that a message may become part of another.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::io;

/// Escapes `text` as one line.
pub fn line(text: &str) -> String {
    escape(text, |_| false)
}

/// Escapes `text` except its line breaks. Values in it that may contain line breaks must have gone
/// through [`line()`].
pub fn lines(text: &str) -> String {
    escape(text, |c| c == '\n')
}

/// Escapes bytes that may not be UTF-8, such as a file name, as one line.
pub fn bytes(bytes: &[u8]) -> String {
    line(&text(bytes))
}

/// Cuts `text` to `most` characters, and three dots in the place of the rest.
pub fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}...", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

/// Converts bytes that may not be UTF-8 to text: escapes invalid bytes, and nothing else.
pub fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        text += part.valid();
        for byte in part.invalid() {
            // Writing into a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Escapes special characters in JSON as `\u....`. They can occur only in strings, whose values do
/// not change.
pub fn json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_special(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Writes text escaped as one line, piece by piece: a text of any length takes no memory.
#[derive(Debug)]
pub struct LineWriter<W>(pub W);

impl<W: io::Write> Write for LineWriter<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| {
            let mut write = |c: char| self.0.write_all(c.encode_utf8(&mut [0; 4]).as_bytes());
            escape_char(c).try_for_each(&mut write).map_err(|_| fmt::Error)
        })
    }
}

/// Writes JSON with escaped special characters, like [`json`], piece by piece. Each write must be
/// of whole characters, as those of serde are.
#[derive(Debug)]
pub struct JsonWriter<W>(pub W);

impl<W: io::Write> io::Write for JsonWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(io::Error::other)?;
        let mut plain = text;
        while let Some((at, c)) = plain.char_indices().find(|(_, c)| is_special(*c) && *c != '\n') {
            let (before, rest) = plain.split_at(at);
            self.0.write_all(before.as_bytes())?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(self.0, "\\u{unit:04x}")?;
            }
            plain = rest.get(c.len_utf8()..).unwrap_or_default();
        }
        self.0.write_all(plain.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Replaces user names and passwords in the URLs of `text` by `***`.
pub fn redact_passwords(text: &str) -> Cow<'_, str> {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        shown += before;
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '`'));
        let (authority, after) = after.split_at(end.unwrap_or(after.len()));
        let is_web = ["http://", "https://"].iter().any(|scheme| ends_with(before, scheme));
        match authority.rsplit_once('@') {
            // `abfs://CONTAINER@HOST` contains no secret.
            Some((user, host)) if is_web || user.contains(':') => {
                shown += "***@";
                shown += host;
            }
            _ => shown += authority,
        }
        rest = after;
    }
    if shown.is_empty() {
        return Cow::Borrowed(text);
    }
    Cow::Owned(shown + rest)
}

fn ends_with(text: &str, end: &str) -> bool {
    let begin = text.len().checked_sub(end.len());
    begin.and_then(|begin| text.get(begin..)).is_some_and(|text| text.eq_ignore_ascii_case(end))
}

/// Returns true if `c` affects a terminal or a line reader instead of being shown.
pub fn is_special(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            // Direction marks reorder the surrounding text.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Line and paragraph separators, and interlinear annotations.
            | '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}'
            // Invisible tag characters.
            | '\u{e0000}'..='\u{e007f}'
        )
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if keep(c) {
            shown.push(c);
        } else {
            shown.extend(escape_char(c));
        }
    }
    shown
}

/// Returns the characters that are shown for `c`.
fn escape_char(c: char) -> impl Iterator<Item = char> {
    let is_special = is_special(c);
    let plain = (!is_special).then_some(c);
    let control = (is_special && c.is_control()).then(|| c.escape_default());
    let other = (is_special && !c.is_control()).then(|| c.escape_unicode());
    plain.into_iter().chain(control.into_iter().flatten()).chain(other.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(lines("tag `a\u{1b}[2J\r`\nb"), "tag `a\\u{1b}[2J\\r`\nb");
        assert_eq!(line("a\nb\tü\u{9b}\u{7f}"), "a\\nb\\tü\\u{9b}\\u{7f}");
        assert_eq!(line("x\u{202e}y\u{2066}ü\u{2028}"), "x\\u{202e}y\\u{2066}ü\\u{2028}");
        assert_eq!(bytes(b"a\xff\n\xc3\xbc"), "a\\xff\\nü");
        assert_eq!(json("\"\u{202e}\u{7f}\u{e0001}\"\n"), "\"\\u202e\\u007f\\udb40\\udc01\"\n");
    }

    #[test]
    fn passwords_are_taken_out_of_urls() {
        for (text, shown) in [
            ("at http://me:pw@host/a@b: no", "at http://***@host/a@b: no"),
            ("HTTPS://token@host", "HTTPS://***@host"),
            ("s3://key:pw@b/x and http://a:b@c", "s3://***@b/x and http://***@c"),
            ("abfs://c@acc.dfs.core.windows.net/x", "abfs://c@acc.dfs.core.windows.net/x"),
            ("http://a:b@c@host/", "http://***@host/"),
            ("`http://host` x@y", "`http://host` x@y"),
            ("none", "none"),
        ] {
            assert_eq!(redact_passwords(text), shown);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

        #[test]
        fn any_text_can_be_printed_and_printed_again(text in any::<String>()) {
            let once = line(&text);
            prop_assert!(!once.chars().any(is_special));
            prop_assert_eq!(line(&once), &*once);
            prop_assert_eq!(lines(&text).matches('\n').count(), text.matches('\n').count());
            let value = serde_json::to_string(&text).unwrap();
            let shown = json(&value);
            let mut line_written = LineWriter(Vec::new());
            let mut json_written = JsonWriter(Vec::new());
            line_written.write_str(&text).unwrap();
            serde_json::to_writer(&mut json_written, &text).unwrap();
            prop_assert_eq!((&*line_written.0, &*json_written.0), (once.as_bytes(), shown.as_bytes()));
            prop_assert!(!shown.chars().any(is_special));
            prop_assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
        }

        #[test]
        fn any_bytes_can_be_printed(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(!bytes(&text).chars().any(is_special));
        }
    }
}
