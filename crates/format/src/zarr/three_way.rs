//! Three-way merge of a `zarr.json`: what two sides changed in different members is put together.
//!
//! Values stay text ([`super::members`]), so that numbers keep their digits. A member is merged as
//! a whole, with three exceptions: attributes are merged by member, at every level; a shape by
//! dimension; and the documents in consolidated metadata as documents, so that they go on saying
//! what the nodes' own documents say.

use std::collections::HashMap;

use super::members::{Members, list, quoted};

/// Most levels of objects below a document that are looked into. Deeper values are merged as a
/// whole.
const MAX_LEVELS: usize = 16;
/// Whitespace of JSON.
const WHITESPACE: [u8; 4] = [b' ', b'\t', b'\n', b'\r'];

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergedDocument {
    /// The document with the changes of both sides.
    Whole(String),
    /// Paths of the members that both sides changed in different ways.
    Conflict(Vec<String>),
}

/// Side of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The changes that are merged.
    Ours,
    /// State that they are merged into.
    Theirs,
}

/// Merges the changes that `ours` and `theirs` made to the document `base`. The members are in the
/// order that `theirs` has, ours follow. Of a member that both changed in different ways, `side_of`
/// says by its path which side's is taken, if it is known; the path of the whole document is empty.
///
/// Documents that are no JSON objects, or that have a member twice, conflict unless one of the
/// sides is unchanged.
pub fn merge(base: &[u8], ours: &[u8], theirs: &[u8], side_of: &dyn Fn(&str) -> Option<Side>) -> MergedDocument {
    let text = |bytes| std::str::from_utf8(bytes).ok();
    let mut merge = Merge { side_of, conflicts: Vec::new() };
    let merged = match (text(base), text(ours), text(theirs)) {
        (Some(base), Some(ours), Some(theirs)) => {
            let values = Values { base: Some(base), ours: Some(ours), theirs: Some(theirs) };
            merge.value(Part::Document, values, "")
        }
        _ => None,
    };
    match merged {
        Some(text) if merge.conflicts.is_empty() => MergedDocument::Whole(text),
        None if merge.conflicts.is_empty() => MergedDocument::Conflict(vec![String::new()]),
        _ => MergedDocument::Conflict(merge.conflicts),
    }
}

/// Part of a document, which decides how it is merged.
#[derive(Clone, Copy)]
enum Part {
    Document,
    /// All attributes of a document. Without the member it has none.
    AllAttributes,
    Attributes,
    Shape,
    Consolidated,
    /// Documents by path.
    Nodes,
    Whole,
}

impl Part {
    fn of_member(self, name: &str) -> Part {
        match (self, name) {
            (Part::Document, "attributes") => Part::AllAttributes,
            (Part::AllAttributes | Part::Attributes, _) => Part::Attributes,
            (Part::Document, "shape") => Part::Shape,
            (Part::Document, "consolidated_metadata") => Part::Consolidated,
            (Part::Consolidated, "metadata") => Part::Nodes,
            (Part::Nodes, _) => Part::Document,
            _ => Part::Whole,
        }
    }
}

/// Texts of a value on the three sides; none where a side does not have it.
#[derive(Clone, Copy)]
struct Values<'a> {
    base: Option<&'a str>,
    ours: Option<&'a str>,
    theirs: Option<&'a str>,
}

impl<'a> Values<'a> {
    /// Returns the value if at most one side changed it.
    fn unless_both_changed(self) -> Option<Option<&'a str>> {
        if is_same(self.ours, self.theirs) || is_same(self.base, self.ours) {
            Some(self.theirs)
        } else if is_same(self.base, self.theirs) {
            Some(self.ours)
        } else {
            None
        }
    }

    /// Returns the members of all three, if all are objects; a missing one is `absent`.
    fn members(self, absent: Option<&'a str>) -> Option<[Members<'a>; 3]> {
        let members = |text: Option<&'a str>| Members::parse(text.or(absent)?).ok();
        Some([members(self.base)?, members(self.ours)?, members(self.theirs)?])
    }
}

/// A merge on its way.
struct Merge<'s> {
    side_of: &'s dyn Fn(&str) -> Option<Side>,
    /// Paths of the members that both sides changed in different ways.
    conflicts: Vec<String>,
}

impl Merge<'_> {
    /// Merges a value. Returns none if it is removed, or if there is a conflict.
    fn value(&mut self, part: Part, values: Values<'_>, path: &str) -> Option<String> {
        if let Some(value) = values.unless_both_changed() {
            return value.map(str::to_owned);
        }
        let merged = match part {
            Part::Whole => None,
            Part::Shape => merge_list(values),
            Part::Document | Part::AllAttributes | Part::Attributes | Part::Consolidated | Part::Nodes => {
                let is_deep = path.bytes().filter(|byte| *byte == b'/').count() > MAX_LEVELS;
                let absent = matches!(part, Part::AllAttributes).then_some("{}");
                let members = values.members(absent).filter(|_| !is_deep);
                members.and_then(|members| self.members(part, &members, path))
            }
        };
        if merged.is_some() {
            return merged;
        }
        match (self.side_of)(path) {
            Some(Side::Ours) => values.ours.map(str::to_owned),
            Some(Side::Theirs) => values.theirs.map(str::to_owned),
            None => {
                self.conflicts.push(path.to_owned());
                None
            }
        }
    }

    /// Merges objects, member by member. Returns none if one of them has a name twice.
    fn members(&mut self, part: Part, [base, ours, theirs]: &[Members<'_>; 3], path: &str) -> Option<String> {
        // An object may have very many members.
        let [in_base, in_ours, in_theirs] = [by_name(base)?, by_name(ours)?, by_name(theirs)?];
        let added = ours.iter().map(|(name, _)| name).filter(|name| !in_theirs.contains_key(name));
        let mut merged = String::from("{");
        for name in theirs.iter().map(|(name, _)| name).chain(added) {
            let [base, ours, theirs] = [&in_base, &in_ours, &in_theirs].map(|members| members.get(name).copied());
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            if let Some(value) = self.value(part.of_member(name), Values { base, ours, theirs }, &below) {
                let comma = if merged.len() > 1 { "," } else { "" };
                merged += &format!("{comma}{}:{value}", quoted(name));
            }
        }
        Some(merged + "}")
    }
}

/// Merges lists of one length, element by element.
fn merge_list(values: Values<'_>) -> Option<String> {
    let [base, ours, theirs] = [list(values.base?)?, list(values.ours?)?, list(values.theirs?)?];
    if base.len() != ours.len() || base.len() != theirs.len() {
        return None;
    }
    let elements = std::iter::zip(base, std::iter::zip(ours, theirs)).map(|(base, (ours, theirs))| {
        Values { base: Some(base), ours: Some(ours), theirs: Some(theirs) }.unless_both_changed()?
    });
    let elements: Vec<&str> = elements.collect::<Option<_>>()?;
    Some(format!("[{}]", elements.join(",")))
}

/// Returns the values by name; none if there is a name twice.
fn by_name<'m>(members: &'m Members<'_>) -> Option<HashMap<&'m str, &'m str>> {
    let mut values = HashMap::new();
    members.iter().all(|(name, value)| values.insert(name, value).is_none()).then_some(values)
}

/// Returns true if two values have the same text but for whitespace. The same number in another
/// spelling counts as another value: which of them a side wants is not known here.
fn is_same(one: Option<&str>, other: Option<&str>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one == other || significant(one).eq(significant(other)),
        (None, None) => true,
        _ => false,
    }
}

/// Returns the bytes of a JSON value without whitespace between its tokens.
fn significant(text: &str) -> impl Iterator<Item = u8> {
    let mut is_in_string = false;
    let mut is_escaped = false;
    text.bytes().filter(move |byte| {
        if !is_in_string {
            is_in_string = *byte == b'"';
            return !WHITESPACE.contains(byte);
        }
        match (is_escaped, byte) {
            (true, _) => is_escaped = false,
            (false, b'\\') => is_escaped = true,
            (false, b'"') => is_in_string = false,
            _ => {}
        }
        true
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]
    use serde_json::Value;

    use super::*;

    /// Merges documents that are written with single quotes.
    fn merged(base: &str, ours: &str, theirs: &str) -> MergedDocument {
        let [base, ours, theirs] = [base, ours, theirs].map(|text| text.replace('\'', "\""));
        merge(base.as_bytes(), ours.as_bytes(), theirs.as_bytes(), &|_| None)
    }

    fn whole(text: &str) -> MergedDocument {
        MergedDocument::Whole(text.replace('\'', "\""))
    }

    fn conflict(paths: &[&str]) -> MergedDocument {
        MergedDocument::Conflict(paths.iter().map(|path| (*path).to_owned()).collect())
    }

    #[test]
    fn changes_of_different_members_are_put_together() {
        for (base, ours, theirs, expected) in [
            ("{'a':1,'b':2}", "{'a':1,'b':3}", "{'a':4,'b':2}", "{'a':4,'b':3}"),
            ("{'a':1,'b':2}", "{'b':2}", "{'a':1}", "{}"),
            ("{'a':1}", "{'a':1,'new':2}", "{'a':3}", "{'a':3,'new':2}"),
            ("{'a':1}", "{'a':1,'new':2}", "{'a':1,'new':2,'x':3}", "{'a':1,'new':2,'x':3}"),
            ("{'a':1}", "{'a':2}", "{'a':2}", "{'a':2}"),
            // As attributes, at every level.
            (
                "{'attributes':{'u':{'x':1,'y':1},'v':1}}",
                "{'attributes':{'u':{'x':2,'y':1},'v':1}}",
                "{'attributes':{'u':{'x':1,'y':3},'w':1}}",
                "{'attributes':{'u':{'x':2,'y':3},'w':1}}",
            ),
            // Without the member there are no attributes.
            (
                "{'a':1}",
                "{'a':1,'attributes':{'u':1}}",
                "{'attributes':{'v':1},'a':1}",
                "{'attributes':{'v':1,'u':1},'a':1}",
            ),
            ("{'attributes':{'u':1}}", "{}", "{'attributes':{'u':1,'v':1}}", "{'attributes':{'v':1}}"),
            // A shape by dimension.
            ("{'shape':[4,4]}", "{'shape':[5,4]}", "{'shape':[4,9]}", "{'shape':[5,9]}"),
            (
                "{'shape':[4],'attributes':{}}",
                "{'shape':[5],'attributes':{}}",
                "{'shape':[4],'attributes':{'u':1}}",
                "{'shape':[5],'attributes':{'u':1}}",
            ),
        ] {
            assert_eq!(merged(base, ours, theirs), whole(expected), "{base} {ours} {theirs}");
        }
    }

    #[test]
    fn an_unchanged_side_gives_the_other_one_byte_for_byte() {
        let base = "{ 'a' : [1, 2],\n 'b': 0.10 }";
        let other = "{'b':1e5,  'a':7}";
        assert_eq!(merged(base, "{'a':[1,2],'b':0.10}", other), whole(other));
        assert_eq!(merged(base, other, base), whole(other));
        assert_eq!(merged("not json", other, "not json"), whole(other));
    }

    #[test]
    fn the_same_member_changed_in_different_ways_is_a_conflict() {
        for (base, ours, theirs, paths) in [
            ("{'codecs':[1]}", "{'codecs':[1,2]}", "{'codecs':[1,3]}", &["codecs"][..]),
            ("{'attributes':{'u':1}}", "{'attributes':{'u':2}}", "{'attributes':{'u':3}}", &["attributes/u"]),
            ("{'attributes':{'u':1}}", "{'attributes':{}}", "{'attributes':{'u':3}}", &["attributes/u"]),
            ("{'attributes':{}}", "{'attributes':{'u':1}}", "{'attributes':{'u':2}}", &["attributes/u"]),
            ("{}", "{'attributes':{'u':1}}", "{'attributes':{'u':2}}", &["attributes/u"]),
            ("{}", "{'b':{'u':1}}", "{'b':{'v':2}}", &["b"]),
            ("{'shape':[4,4]}", "{'shape':[5,4]}", "{'shape':[6,4]}", &["shape"]),
            ("{'shape':[4]}", "{'shape':[4,1]}", "{'shape':[5]}", &["shape"]),
            ("{'a':1,'shape':[4]}", "{'a':2,'shape':[5]}", "{'a':3,'shape':[6]}", &["a", "shape"]),
            // The same name twice: which of the values counts differs by program.
            ("{'a':1}", "{'a':1,'a':2}", "{'a':1,'b':2}", &[""]),
            ("[1]", "[2]", "[3]", &[""]),
            // Spellings of one number.
            ("{'a':1}", "{'a':2}", "{'a':2.0}", &["a"]),
        ] {
            assert_eq!(merged(base, ours, theirs), conflict(paths), "{base} {ours} {theirs}");
        }
    }

    #[test]
    fn whitespace_is_no_change_and_whitespace_in_a_text_is() {
        let ours = "{'a':{'x':[1 , 2]},'b':1}";
        assert_eq!(merged("{'a':{'x':[1,2]},'b':0}", ours, "{'a':3,'b':0}"), whole("{'a':3,'b':1}"));
        assert_eq!(merged("{'a':'x y'}", "{'a':'xy'}", "{'a':'x  y'}"), conflict(&["a"]));
        assert_eq!(merged("{'a':'\\' '}", "{'a':'\\''}", "{'a':'\\'  '}"), conflict(&["a"]));
    }

    /// Consolidated metadata that agree with the documents on each side agree with the merged ones.
    #[test]
    fn consolidated_documents_are_merged_as_documents() {
        let group = |shape: &str, unit: &str| {
            format!(
                "{{'node_type':'group','consolidated_metadata':{{'kind':'inline','metadata':{{'sst':{{'shape':{shape},\
                 'attributes':{{{unit}}}}}}}}}}}"
            )
        };
        let result = merged(&group("[4]", ""), &group("[5]", ""), &group("[4]", "'units':'K'"));
        assert_eq!(result, whole(&group("[5]", "'units':'K'")));
    }

    #[test]
    fn nested_values_end_somewhere() {
        let nested = |leaf: u32, other: u32| {
            let levels = 2000;
            let text = format!("{}{leaf}{}", "{'a':".repeat(levels), "}".repeat(levels));
            format!("{{'attributes':{text},'b':{other}}}")
        };
        assert_eq!(merged(&nested(1, 1), &nested(1, 2), &nested(1, 3)), conflict(&["b"]));
        let nested = |leaf: u32| {
            let levels = 60;
            format!("{{'attributes':{}{leaf}{}}}", "{'a':".repeat(levels), "}".repeat(levels))
        };
        assert!(matches!(merged(&nested(1), &nested(2), &nested(3)), MergedDocument::Conflict(_)));
    }

    /// A repository can have any document: the time must not grow with the square of its members.
    #[test]
    fn very_many_attributes_are_merged() {
        let document = |first: u32, last: u32| {
            let members: Vec<String> =
                (0..60_000).map(|n| format!("'a{n}':{}", if n == 0 { first } else { last })).collect();
            format!("{{'attributes':{{{}}}}}", members.join(","))
        };
        assert_eq!(merged(&document(1, 1), &document(2, 1), &document(1, 3)), whole(&document(2, 3)));
    }

    #[test]
    fn a_settled_member_is_one_sides_and_the_rest_is_merged() {
        let sides = |path: &str| match path {
            "attributes/u" => Some(Side::Ours),
            "shape" | "attributes/v" => Some(Side::Theirs),
            _ => None,
        };
        let base = r#"{"shape":[4],"attributes":{"u":1,"v":1,"w":1}}"#;
        let ours = r#"{"shape":[5],"attributes":{"u":2,"v":2,"w":2}}"#;
        let theirs = r#"{"shape":[6],"attributes":{"u":3,"w":1,"x":1}}"#;
        let result = merge(base.as_bytes(), ours.as_bytes(), theirs.as_bytes(), &sides);
        assert_eq!(result, whole("{'shape':[6],'attributes':{'u':2,'w':2,'x':1}}"));
        let other = theirs.replace(r#""w":1"#, r#""w":9"#);
        let result = merge(base.as_bytes(), ours.as_bytes(), other.as_bytes(), &sides);
        assert_eq!(result, conflict(&["attributes/w"]));
        // A document that cannot be merged by member is one side's as a whole.
        let whole_document = |path: &str| path.is_empty().then_some(Side::Ours);
        let result = merge(b"[1]", b"[2]", b"[3]", &whole_document);
        assert_eq!(result, whole("[2]"));
    }

    /// Against a merge of parsed values, by its definition.
    #[test]
    fn random_documents_merge_as_their_values_do() {
        fn expected(
            base: Option<&Value>,
            ours: Option<&Value>,
            theirs: Option<&Value>,
            side: Option<Side>,
        ) -> Result<Option<Value>, ()> {
            if ours == theirs || ours == base {
                return Ok(theirs.cloned());
            }
            if theirs == base {
                return Ok(ours.cloned());
            }
            let objects = [base, ours, theirs].map(|value| value.and_then(Value::as_object));
            let [Some(base), Some(ours), Some(theirs)] = objects else {
                return side.map(|side| if side == Side::Ours { ours.cloned() } else { theirs.cloned() }).ok_or(());
            };
            let mut merged = serde_json::Map::new();
            for name in base.keys().chain(ours.keys()).chain(theirs.keys()) {
                let value = expected(base.get(name), ours.get(name), theirs.get(name), side)?;
                merged.extend(value.map(|value| (name.clone(), value)));
            }
            Ok(Some(Value::Object(merged)))
        }
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut outcomes = [0, 0];
        for round in 0..20_000 {
            let mut draw = || {
                let mut attributes = serde_json::Map::new();
                for name in ["a", "b", "c"] {
                    match random(5) {
                        0 => {}
                        1 => drop(attributes.insert(name.into(), serde_json::json!({"x": random(2), "y": random(2)}))),
                        _ => drop(attributes.insert(name.into(), random(2).into())),
                    }
                }
                serde_json::json!({ "attributes": attributes })
            };
            let [base, ours, theirs] = [draw(), draw(), draw()];
            let side = match round % 4 {
                0 => Some(Side::Ours),
                1 => Some(Side::Theirs),
                _ => None,
            };
            let [one, two, three] = [&base, &ours, &theirs].map(Value::to_string);
            let result = merge(one.as_bytes(), two.as_bytes(), three.as_bytes(), &|_| side);
            match (expected(Some(&base), Some(&ours), Some(&theirs), side), result) {
                (Ok(Some(value)), MergedDocument::Whole(text)) => {
                    assert_eq!(serde_json::from_str::<Value>(&text).ok(), Some(value), "{base} {ours} {theirs}");
                    outcomes[0] += 1;
                }
                (Err(()), MergedDocument::Conflict(_)) => outcomes[1] += 1,
                (expected, result) => panic!("{base} {ours} {theirs}: {result:?} instead of {expected:?}"),
            }
        }
        assert!(outcomes.iter().all(|count| *count > 1000), "{outcomes:?}");
    }
}
