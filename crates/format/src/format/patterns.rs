//! Regular expressions of a configuration, which anybody may have written.
//!
//! A few bytes of a pattern can stand for megabytes of what it is compiled to (`\pL{200}`), and a
//! configuration may have tens of thousands of patterns. So each is compiled within a limit that is
//! reserved before.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::Meter;

/// Limits of a compiled pattern, in bytes. They are tried in turn, as the library does not say what
/// a pattern takes. The last one is the library's own, and that of the reference implementation.
const LIMITS: [usize; 5] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 10 << 20];
/// Forms of a pattern that the library keeps, each within the limit: forward, backward, and what it
/// remembers of matches.
const FORMS: u64 = 3;
/// Most bytes of a parsed pattern for each byte of its text: a class of three bytes lists 680
/// ranges of characters.
const PARSED: u64 = 2048;
const WHAT: &str = "a regular expression of the configuration";

/// Compiled patterns, which share what they were counted by.
#[derive(Debug)]
pub struct Patterns {
    meter: Meter,
    /// Equal texts are one pattern: a configuration may repeat it in each rule.
    known: HashMap<String, Regex>,
}

impl Default for Patterns {
    fn default() -> Self {
        Patterns { meter: Meter::new(WHAT), known: HashMap::new() }
    }
}

impl Patterns {
    /// Compiles `text`. The inner result has the reason why it is no regular expression, in words.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::OutOfMemory`] if what it is compiled to has no
    /// room.
    pub fn compile(&mut self, text: &str) -> Result<Result<Regex, String>> {
        if let Some(regex) = self.known.get(text) {
            return Ok(Ok(regex.clone()));
        }
        let mut parsing = Meter::new(WHAT);
        parsing.count((text.len() as u64).saturating_mul(PARSED))?;
        let mut why = String::new();
        for limit in LIMITS {
            self.meter.count(FORMS * limit as u64)?;
            match RegexBuilder::new(text).size_limit(limit).dfa_size_limit(limit).build() {
                Ok(regex) => {
                    self.known.insert(text.to_owned(), regex.clone());
                    return Ok(Ok(regex));
                }
                Err(error) => {
                    why = error.to_string();
                    if !matches!(error, regex::Error::CompiledTooBig(_)) {
                        break;
                    }
                }
            }
        }
        let last = why.lines().last().unwrap_or_default();
        Ok(Err(last.trim_start_matches("error: ").to_owned()))
    }

    /// Compiles `text` and drops the result.
    ///
    /// Errors: [`icechunkfs_base::error::ErrorKind::InvalidInput`] with the reason if it is no
    /// regular expression, or has no room.
    pub fn check(text: &str) -> Result<()> {
        Patterns::default().compile(text)?.map(drop).map_err(Error::invalid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_pattern_is_counted_before_it_is_compiled() {
        let mut patterns = Patterns::default();
        assert!(patterns.compile("^/a").unwrap().unwrap().is_match("/abc"));
        let small = patterns.meter.counted();
        assert!(small < 100_000, "{small}");
        patterns.compile("^/a").unwrap().unwrap();
        assert_eq!(patterns.meter.counted(), small, "an equal one costs nothing");
        assert!(patterns.compile(r"\pL{200}x").unwrap().unwrap().is_match(&("é".repeat(200) + "x")));
        assert!(patterns.meter.counted() > 20 << 20, "{}", patterns.meter.counted());
        let why = patterns.compile("(").unwrap().unwrap_err();
        assert!(why.contains("unclosed group"), "{why}");
        let why = patterns.compile(r"\pL{4000}").unwrap().unwrap_err();
        assert!(why.contains("size limit"), "{why}");
    }
}
