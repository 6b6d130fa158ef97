//! Escaping of untrusted text: no terminal, log or shell interprets it, and nothing is lost.

use icechunkfs::{printable, shell};

pub(crate) fn run(bytes: &[u8]) {
    expect_harmless(&printable::bytes(bytes), "");
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let line = printable::line(text);
    expect_harmless(&line, "");
    assert_eq!(printable::line(&line), line, "what has been through once stays");
    expect_harmless(&printable::lines(text), "\n");
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(text) {
        let written = value.to_string();
        let spelled = printable::json(&written);
        expect_harmless(&spelled, "");
        // Not `value`: numbers with many digits are rounded when they are read.
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
        assert_eq!(read(&spelled), read(&written));
    }
    let secret = "hunter2hunter2";
    if !text.contains(secret) && !text.contains(|c: char| c.is_whitespace() || "/?#\"'`".contains(c)) {
        let shown = printable::redact_passwords(&format!("at https://{text}:{secret}@host/x")).into_owned();
        assert!(!shown.contains(secret), "{shown:?}");
    }
    if !text.contains('\0') {
        let word = shell::quote(text);
        expect_harmless(&word, "");
        assert_eq!(read_word(&word).as_deref(), Some(text.as_bytes()), "{word}");
    }
}

/// Checks by the Unicode standard's list, not the program's: characters that are invisible or move
/// visible ones.
fn expect_harmless(text: &str, but: &str) {
    let acts = |c: char| {
        let number = u32::from(c);
        number < 0x20
            || (0x7f..0xa0).contains(&number)
            || (0x202a..=0x202e).contains(&number)
            || (0x2066..=0x2069).contains(&number)
            || number == 0x2028
            || number == 0x2029
    };
    assert!(!text.chars().any(|c| acts(c) && !but.contains(c)), "{text:?}");
}

/// Reads one word of quoted parts as bash does. Returns None if it is not one word.
fn read_word(word: &str) -> Option<Vec<u8>> {
    let mut rest = word.as_bytes();
    let mut read = Vec::new();
    loop {
        rest = match rest {
            [] => return Some(read),
            [b'\'', after @ ..] => {
                let end = after.iter().position(|byte| *byte == b'\'')?;
                read.extend(&after[..end]);
                &after[end + 1..]
            }
            [b'\\', byte, after @ ..] => {
                read.push(*byte);
                after
            }
            [b'$', b'\'', after @ ..] => read_escaped(after, &mut read)?,
            _ => return None,
        }
    }
}

/// Reads to the end of `$'...'`; returns the rest.
fn read_escaped<'a>(mut rest: &'a [u8], read: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [b'\'', after @ ..] => return Some(after),
            [b'\\', b'x', high, low, after @ ..] => {
                read.push(u8::from_str_radix(std::str::from_utf8(&[*high, *low]).ok()?, 16).ok()?);
                after
            }
            [b'\\', byte @ (b'\'' | b'\\'), after @ ..] => {
                read.push(*byte);
                after
            }
            [b'\\', ..] | [] => return None,
            [byte, after @ ..] => {
                read.push(*byte);
                after
            }
        };
    }
}
