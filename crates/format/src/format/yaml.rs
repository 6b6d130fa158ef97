//! Parses untrusted YAML, after a check of its size.
//!
//! An alias stands for everything under its anchor, so that a few lines can mean billions of
//! values, and parsers take time that grows with the square of the depth of a document. One pass
//! over the events counts values and text with aliases expanded, and stops at a limit.
//! `config.yaml`, the only YAML file, has some hundred values, three or four levels deep.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser};
use serde_yaml_ng::Value;

use super::flexbuffer::Limits;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;

/// Limit of a document, in bytes.
const MAX_DOCUMENT: usize = 1 << 20;
/// Limit of nesting.
pub(super) const MAX_DEPTH: usize = 64;
/// Limits of values and text in a document, with aliases expanded.
pub(super) const LIMITS: Limits = Limits { values: 1 << 16, text: 4 << 20 };
/// Bytes of memory that a value takes at most, its text apart: as an event, in the tree of the
/// parser, and as JSON.
const VALUE: u64 = 512;

/// Size of a part of a document, with aliases expanded.
#[derive(Clone, Copy, Default)]
struct Extent {
    values: usize,
    text: usize,
}

/// Parses a document, whose values `meter` counts, those that [`super::config::yaml_to_json`] makes
/// of them included.
///
/// Errors: [`ErrorKind::Corrupt`] if it exceeds a limit or is not YAML.
pub(super) fn parse(bytes: &[u8], meter: &mut Meter) -> Result<Value> {
    if bytes.len() > MAX_DOCUMENT {
        return Err(Error::corrupt(format!("a YAML document of {} bytes: {MAX_DOCUMENT} are accepted", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|e| unreadable(Box::new(e)))?;
    // The document itself is expanded by none of the parsers: this comes first.
    let Extent { values, text: bytes } = check_size(text)?;
    meter.count(values as u64 * VALUE + 3 * (bytes + text.len()) as u64)?;
    serde_yaml_ng::from_str(text).map_err(|e| unreadable(Box::new(e)))
}

fn check_size(text: &str) -> Result<Extent> {
    let mut anchors: HashMap<usize, Extent> = HashMap::new();
    // Anchors and extents of sequences and maps that have not ended. The document itself is the
    // first.
    let mut open = vec![(0, Extent::default())];
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|e| unreadable(Box::new(e)))?;
        let (anchor, extent) = match event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                if open.len() > MAX_DEPTH {
                    return Err(Error::corrupt(format!("YAML nested deeper than {MAX_DEPTH}")));
                }
                open.push((anchor, Extent { values: 1, text: 0 }));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(ended) => ended,
                None => break,
            },
            Event::Scalar(text, _, anchor, _) => (anchor, Extent { values: 1, text: text.len() }),
            // An alias within its own anchor has no extent yet; the parser refuses it.
            Event::Alias(anchor) => (0, anchors.get(&anchor).copied().unwrap_or_default()),
            _ => continue,
        };
        anchors.insert(anchor, extent);
        let Some((_, all)) = open.last_mut() else { break };
        // The sums cannot overflow: both terms were within their limits before.
        (all.values, all.text) = (all.values + extent.values, all.text + extent.text);
        if all.values > LIMITS.values || all.text > LIMITS.text {
            let Limits { values, text } = LIMITS;
            return Err(Error::corrupt(format!(
                "YAML that comes to more than {values} values or {text} bytes of text"
            )));
        }
    }
    Ok(open.first().map(|(_, all)| *all).unwrap_or_default())
}

fn unreadable(error: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::with_source(ErrorKind::Corrupt, "not readable YAML", error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::{Duration, Instant};

    use super::*;

    fn refused(text: &str) -> String {
        let begin = Instant::now();
        let error = parse(text.as_bytes(), &mut Meter::brief("a sample")).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(2), "{error} took {:?}", begin.elapsed());
        error.to_string()
    }

    #[test]
    fn documents_with_anchors_and_tags_are_read() {
        let parse = |bytes: &[u8]| parse(bytes, &mut Meter::brief("a sample"));
        let value = parse(b"a: &x [1, 2]\nb: *x\nc: !s3\n  region: eu\n").unwrap();
        assert_eq!(value.get("b"), value.get("a"));
        assert!(parse(b"").unwrap().is_null());
    }

    #[test]
    fn documents_over_a_limit_are_refused_at_once() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let refs = vec![format!("*a{}", n - 1); 9].join(", ");
            laughs += &format!("a{n}: &a{n} [{refs}]\n");
        }
        assert!(refused(&laughs).contains("values"));
        let long = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 1000].join(", "));
        assert!(refused(&long).contains("text"));
        assert!(refused(&"[".repeat(200_000)).contains("YAML"));
        assert!(refused(&"- ".repeat(200_000)).contains("YAML"));
        assert!(refused(&"{a: ".repeat(100_000)).contains("YAML"));
        assert!(refused(&"[".repeat(100)).contains("nested"));
        assert!(refused(&"x\n".repeat(1 << 20)).contains("bytes"));
        assert!(refused(&format!("[{}]", "1, ".repeat(70_000))).contains("values"));
        assert!(refused(&"&a ".repeat(100_000)).contains("YAML"));
        assert!(refused(&"a: b: ".repeat(100_000)).contains("YAML"));
        assert!(refused("a: &a [*a]").contains("YAML"));
    }
}
