//! JSON objects whose values stay text: numbers keep all their digits, attributes their bytes, and
//! no value takes memory.

use serde::de::IgnoredAny;

/// Most levels of lists and objects in a value. Readers refuse documents with more (json-c stops at
/// 32 for all of `.zmetadata`).
const MAX_DEPTH: usize = 24;
/// Members of an array's `zarr.json`.
const ARRAY_MEMBERS: [&str; 11] = [
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "dimension_names",
    "storage_transformers",
];
/// Most bytes of a number. Python refuses numbers of more than 4300 digits, and with them the whole
/// document.
const MAX_NUMBER: usize = 400;

/// Whitespace of JSON.
const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Members of a JSON object in their order, with the text of their values.
#[derive(Debug, Default)]
pub struct Members<'a>(Vec<(String, &'a str)>);

impl<'a> Members<'a> {
    /// Parses an object.
    pub fn parse(text: &'a str) -> Result<Self, String> {
        match Self::parse_unicode(text)? {
            (members, others) if others.is_empty() => Ok(members),
            _ => Err("a name that is not Unicode".to_owned()),
        }
    }

    /// Parses an object in which names need not be Unicode: escapes may make half a character.
    /// Returns the members whose names are, and the texts of the other names.
    pub fn parse_unicode(text: &'a str) -> Result<(Self, Vec<&'a str>), String> {
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| error.to_string())?;
        let mut members = Vec::new();
        let mut others = Vec::new();
        for part in split(text, '{', '}').ok_or("not an object")? {
            let (name, value) = member(part).ok_or("a member without a value")?;
            match string(name) {
                Some(name) => members.push((name, value)),
                None => others.push(name),
            }
        }
        Ok((Members(members), others))
    }

    /// Returns the value of `name`: the last one, as in most programs.
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().rev().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    /// Returns all members, of which several may have one name.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &'a str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

/// Extension point of Zarr: `{"name": ..., "configuration": {...}}`, or only the name.
#[derive(Debug)]
pub struct Extension<'a> {
    /// Name.
    pub name: String,
    /// Members of the configuration.
    pub configuration: Members<'a>,
}

impl<'a> Extension<'a> {
    /// Parses the extension `text`, which `what` names in errors.
    pub fn parse(text: &'a str, what: &str) -> Result<Self, String> {
        if let Some(name) = string(text) {
            return Ok(Extension { name, configuration: Members::default() });
        }
        let wrong = || format!("{what} {}", shorten(text));
        let members = Members::parse(text).map_err(|_| wrong())?;
        if let Some((other, _)) =
            members.iter().find(|(n, _)| !["name", "configuration", "must_understand"].contains(n))
        {
            return Err(format!("{what} has the unknown member `{}`", shorten(other)));
        }
        let name = members.get("name").and_then(string).ok_or_else(wrong)?;
        let configuration = match members.get("configuration") {
            Some(text) => Members::parse(text).map_err(|_| wrong())?,
            None => Members::default(),
        };
        Ok(Extension { name, configuration })
    }

    /// Parses a list of extensions.
    pub fn parse_list(text: &'a str, what: &str) -> Result<Vec<Self>, String> {
        list(text)
            .ok_or_else(|| format!("{what}s {}", shorten(text)))?
            .into_iter()
            .map(|e| Self::parse(e, what))
            .collect()
    }
}

/// Parses a list to the texts of its elements.
pub fn list(text: &str) -> Option<Vec<&str>> {
    serde_json::from_str::<IgnoredAny>(text).ok()?;
    split(text, '[', ']')
}

/// Returns the texts between the commas of a valid list or object; none if `text` is something
/// else.
fn split(text: &str, open: char, close: char) -> Option<Vec<&str>> {
    let inside = text.trim_matches(WHITESPACE).strip_prefix(open)?.strip_suffix(close)?;
    let mut parts = Vec::new();
    let mut start = 0;
    let mut depth = 0_usize;
    let mut bytes = inside.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(inside.get(start..at)?.trim_matches(WHITESPACE));
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = inside.get(start..)?.trim_matches(WHITESPACE);
    if !last.is_empty() {
        parts.push(last);
    }
    Some(parts)
}

/// Splits a member of a valid object into the texts of its name and value.
fn member(text: &str) -> Option<(&str, &str)> {
    let mut bytes = text.bytes().enumerate().skip(1);
    skip_string(&mut bytes);
    let end = bytes.next().map(|(at, _)| at)?;
    let value = text.get(end..)?.trim_start_matches(WHITESPACE).strip_prefix(':')?;
    Some((text.get(..end)?, value.trim_matches(WHITESPACE)))
}

/// Consumes a string, of which the first quotation mark has been consumed.
fn skip_string(bytes: &mut impl Iterator<Item = (usize, u8)>) {
    while let Some((_, byte)) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

/// Parses a string.
pub fn string(text: &str) -> Option<String> {
    if text.starts_with('"') { serde_json::from_str(text).ok() } else { None }
}

/// Parses an integer.
pub fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Returns `text` as a JSON string.
pub fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Shortens `text`, which a repository may have made long, for a message.
pub fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut letters = text.chars();
    let mut short: String = letters.by_ref().take(LONGEST).collect();
    if letters.next().is_some() {
        short.push_str("...");
    }
    short
}

/// Returns a member of an array's `zarr.json` that is unknown, and that a reader must understand.
pub fn unknown_member<'m>(members: &'m Members<'_>) -> Option<&'m str> {
    members.iter().find(|(name, value)| !ARRAY_MEMBERS.contains(name) && must_understand(value)).map(|(name, _)| name)
}

/// Returns true if a program that does not know a member with this value must not read the node.
pub fn must_understand(value: &str) -> bool {
    Members::parse(value).ok().and_then(|members| members.get("must_understand")) != Some("false")
}

/// Returns true if the valid JSON value `text` has an integer of more than 64 bits.
pub fn has_long_integer(text: &str) -> bool {
    let is_long = |number: &str| {
        // Neither a fraction nor the letter `e` of `true`.
        let is_integer =
            number.bytes().enumerate().all(|(at, byte)| byte.is_ascii_digit() || (at == 0 && byte == b'-'));
        is_integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
    };
    let mut start = None;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E' => {
                start.get_or_insert(at);
                continue;
            }
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
        if start.take().is_some_and(|start| is_long(text.get(start..at).unwrap_or_default())) {
            return true;
        }
    }
    start.is_some_and(|start| is_long(text.get(start..).unwrap_or_default()))
}

/// Checks that all readers can parse the valid JSON value `text`. Returns the reason if not.
pub fn check_portable(text: &str) -> Result<(), &'static str> {
    check_portable_within(text, MAX_DEPTH)
}

/// Checks that readers of `most_levels` levels can parse the valid JSON value `text`. Returns the
/// reason if not.
pub fn check_portable_within(text: &str, most_levels: usize) -> Result<(), &'static str> {
    let mut depth = 0_usize;
    let mut number = None;
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        if matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.') || (number.is_some() && matches!(byte, b'e' | b'E')) {
            number.get_or_insert(at);
            continue;
        }
        if let Some(start) = number.take() {
            check_number(text.get(start..at).unwrap_or_default())?;
        }
        match byte {
            b'"' => {
                skip_string(&mut bytes);
                let end = bytes.clone().next().map_or(text.len(), |(end, _)| end);
                check_string(text.get(at..end).unwrap_or_default())?;
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most_levels {
            return Err("it is nested too deeply for other programs");
        }
    }
    number.map_or(Ok(()), |start| check_number(text.get(start..).unwrap_or_default()))
}

fn check_number(number: &str) -> Result<(), &'static str> {
    let is_portable = number.len() <= MAX_NUMBER && number.parse().is_ok_and(|value: f64| value.is_finite());
    if is_portable { Ok(()) } else { Err("it has a number that is too large for other programs") }
}

/// Checks that a string is Unicode: escapes may make half a character.
fn check_string(string: &str) -> Result<(), &'static str> {
    let is_unicode = !string.contains("\\u") || serde_json::from_str::<String>(string).is_ok();
    if is_unicode { Ok(()) } else { Err("it has a text that is not Unicode") }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_keep_their_text() {
        let text = r#"{ "a": 0.1000 , "b":[1, 2],"a":18446744073709551616}"#;
        let members = Members::parse(text).unwrap();
        assert_eq!(members.get("a"), Some("18446744073709551616"));
        assert_eq!(
            members.iter().map(|(_, value)| value).collect::<Vec<_>>(),
            ["0.1000", "[1, 2]", "18446744073709551616"]
        );
        assert!(Members::parse(" {\n} ").unwrap().iter().next().is_none());
        assert_eq!(Members::parse(r#"{"a\",\\":{"b":[1,"]"]}}"#).unwrap().get("a\",\\"), Some(r#"{"b":[1,"]"]}"#));
        for wrong in ["", "[]", "7", r#"{"a" 1}"#, r#"{"a":NaN}"#, r#"{"a":1,}"#, r#"{"\ud800":1}"#] {
            assert!(Members::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_that_break_other_programs_are_found() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(check_portable(&nested(MAX_DEPTH)).is_ok() && check_portable(&nested(MAX_DEPTH + 1)).is_err());
        assert!(check_portable(&format!("0.{}", "3".repeat(MAX_NUMBER - 2))).is_ok());
        assert!(check_portable(&format!("0.{}", "3".repeat(MAX_NUMBER))).is_err());
        assert!(check_portable(&format!("\"{}\\\"{}\"", "[".repeat(100), "9".repeat(5000))).is_ok());
    }

    #[test]
    fn names_that_are_not_unicode_take_no_others_with_them() {
        let (members, others) = Members::parse_unicode(r#"{"a":1,"\ud800":[2,3],"b":4}"#).unwrap();
        assert_eq!(members.iter().collect::<Vec<_>>(), [("a", "1"), ("b", "4")]);
        assert_eq!(others, [r#""\ud800""#]);
    }

    #[test]
    fn integers_beyond_64_bits_are_found() {
        let long = [
            "18446744073709551616",
            "-9223372036854775809",
            "[1, 99999999999999999999]",
            "{\"a\":[-1e5,-18446744073709551616]}",
        ];
        for text in long.map(str::to_owned).into_iter().chain(["9".repeat(300), format!("[-{}]", "1".repeat(39))]) {
            assert!(has_long_integer(&text), "{text}");
        }
        for text in [
            "18446744073709551615",
            "-9223372036854775808",
            "1e300",
            "[1.0, true, null, false]",
            "\"99999999999999999999\"",
            "0.333333333333333333333333333333333333333333",
            "123456789012345678901234567890.5",
            "12345678901234567890123456789012345678901234567890e3",
        ] {
            assert!(!has_long_integer(text), "{text}");
        }
    }

    #[test]
    fn members_that_a_reader_must_understand_are_found() {
        let unknown = |text| unknown_member(&Members::parse(text).unwrap()).map(str::to_owned);
        assert_eq!(unknown(r#"{"shape":[1],"note":{"must_understand":false}}"#), None);
        assert_eq!(unknown(r#"{"shape":[1],"note":{"name":"x"}}"#).as_deref(), Some("note"));
        assert_eq!(unknown(r#"{"note":null}"#).as_deref(), Some("note"));
    }

    #[test]
    fn messages_are_short() {
        assert_eq!(shorten("abc"), "abc");
        assert_eq!(shorten(&"\u{1f600}".repeat(1000)).chars().count(), 83);
    }
}
