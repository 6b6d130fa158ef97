//! JSON as Python writes it, with numbers that JSON does not have.

use serde_json::Value;

/// Names of those numbers.
const NUMBERS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Returns `json` with texts in the place of NaN and infinity, and whether there were any.
pub(super) fn with_quoted_numbers(json: &[u8]) -> (Vec<u8>, bool) {
    replaced(json, |number| [b"\"", number, b"\""].concat())
}

/// Returns `json` with other numbers of as many bytes in the place of NaN and infinity: what is
/// found in it is at the same place in `json`.
pub(crate) fn with_masked_numbers(json: &[u8]) -> Vec<u8> {
    replaced(json, |number| vec![b'1'; number.len()]).0
}

/// Returns `json` with what `other` returns in the place of NaN and infinity, and whether there
/// were any.
fn replaced(json: &[u8], other: impl Fn(&[u8]) -> Vec<u8>) -> (Vec<u8>, bool) {
    let mut out = Vec::with_capacity(json.len());
    let mut has_any = false;
    let mut rest = json;
    let mut is_text = false;
    while let Some((byte, next)) = rest.split_first() {
        if is_text && *byte == b'\\' {
            let pair = rest.get(..2).unwrap_or(rest);
            out.extend_from_slice(pair);
            rest = rest.get(pair.len()..).unwrap_or_default();
            continue;
        }
        is_text ^= *byte == b'"';
        match NUMBERS.iter().find(|number| !is_text && rest.starts_with(number)) {
            Some(number) => {
                has_any = true;
                out.extend(other(number));
                rest = rest.get(number.len()..).unwrap_or_default();
            }
            None => {
                out.push(*byte);
                rest = next;
            }
        }
    }
    (out, has_any)
}

/// Returns true if `value` is a text that takes the place of such a number, or a list with one.
pub(super) fn is_quoted_number(value: &Value) -> bool {
    match value {
        Value::String(text) => NUMBERS.contains(&text.as_bytes()),
        Value::Array(all) => all.iter().any(is_quoted_number),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_numbers_leave_all_else_where_it_was() {
        let masked = with_masked_numbers(br#"{"a":NaN,"NaN":[-Infinity,"Infinity"]}"#);
        assert_eq!(masked, br#"{"a":111,"NaN":[111111111,"Infinity"]}"#);
    }

    #[test]
    fn numbers_outside_of_texts_are_quoted() {
        let quoted = |json: &str| {
            let (bytes, has_any) = with_quoted_numbers(json.as_bytes());
            (String::from_utf8(bytes).unwrap_or_default(), has_any)
        };
        assert_eq!(
            quoted(r#"{"a":NaN,"b":[-Infinity,Infinity]}"#),
            (r#"{"a":"NaN","b":["-Infinity","Infinity"]}"#.into(), true)
        );
        let texts = r#"{"NaN":"a \"NaN\" \\","b":"Infinity"}"#;
        assert_eq!(quoted(texts), (texts.into(), false));
        assert_eq!(quoted("\"\\"), ("\"\\".into(), false));
    }
}
