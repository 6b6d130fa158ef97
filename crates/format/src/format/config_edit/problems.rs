//! Finds values that a reader of the configuration would not accept.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::containers;
use super::key::format_key;
use super::schema::{Member, Presence, ROOT, ValueKind};
use crate::format::patterns::Patterns;

/// Problem, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Problem {
    /// Readers refuse the repository, or ignore the value.
    Invalid(String),
    /// The schema does not have the member. Readers skip it, but a user who sets it made a mistake.
    UnknownMember(String),
}

/// Returns the problems of `members` that affect readers, one sentence each.
pub fn find(members: &Map<String, Value>) -> Vec<String> {
    let problems = find_all(members).into_iter();
    problems.filter_map(|problem| if let Problem::Invalid(what) = problem { Some(what) } else { None }).collect()
}

/// Returns the problems of `after` that `before` does not have.
pub(super) fn introduced(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<String> {
    let text = |problem: &Problem| match problem {
        Problem::Invalid(what) | Problem::UnknownMember(what) => what.clone(),
    };
    find_all(after).difference(&find_all(before)).map(text).collect()
}

fn find_all(members: &Map<String, Value>) -> BTreeSet<Problem> {
    let mut out = BTreeSet::new();
    check_members(members, &ROOT, &mut Vec::new(), &mut out);
    containers::problems(members, &mut out);
    out
}

// Recursion is bounded: the readers of both encodings bound the depth of values, and so does the
// JSON parser.
fn check(value: &Value, kind: &'static ValueKind, path: &mut Vec<String>, out: &mut BTreeSet<Problem>) {
    let mut wrong = || {
        let shown: String = value.to_string().chars().take(60).collect();
        out.insert(Problem::Invalid(format!("`{}` is {shown}, and must be {}", format_key(path), kind.describe())));
    };
    match (kind, value) {
        (ValueKind::Whole { min, max }, Value::Number(number)) => {
            let is_within = match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => number <= *max && i64::try_from(number).map_or(true, |number| number >= *min),
                (None, Some(number)) => number >= *min,
                (None, None) => false,
            };
            if !is_within {
                wrong();
            }
        }
        (ValueKind::Bool, Value::Bool(_)) | (ValueKind::Text, Value::String(_)) => {}
        (ValueKind::Checked(rule), Value::String(text)) => {
            if !(rule.is_valid)(text) {
                out.insert(Problem::Invalid(format!("`{}` must be {}", format_key(path), rule.describe)));
            }
        }
        (ValueKind::Pattern, Value::String(pattern)) => {
            if let Err(why) = Patterns::check(pattern) {
                let what = format!("`{}` is not a valid regular expression: {why}", format_key(path));
                out.insert(Problem::Invalid(what));
            }
        }
        (ValueKind::Struct(_) | ValueKind::Open(..) | ValueKind::Map(_), Value::Object(members)) => {
            check_members(members, kind, path, out);
        }
        (ValueKind::List(below), Value::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                check_below(n.to_string(), item, below, path, out);
            }
        }
        (ValueKind::Pair(first, second), Value::Array(items)) if items.len() == 2 => {
            for (n, (item, below)) in std::iter::zip(items, [first, second]).enumerate() {
                check_below(n.to_string(), item, below, path, out);
            }
        }
        (ValueKind::Choice(variants), Value::String(name))
            if variants.iter().any(|(variant, payload)| variant == name && payload.is_none()) => {}
        (ValueKind::Choice(variants), Value::Object(members)) => {
            let only = members.iter().next().filter(|_| members.len() == 1);
            let found = only.and_then(|(name, payload)| {
                let (_, kind) = variants.iter().find(|(variant, _)| variant == name)?;
                Some((name, payload, (*kind)?))
            });
            match found {
                Some((name, payload, below)) => check_below(name.clone(), payload, below, path, out),
                None => wrong(),
            }
        }
        _ => wrong(),
    }
}

fn check_below(
    name: String,
    value: &Value,
    kind: &'static ValueKind,
    path: &mut Vec<String>,
    out: &mut BTreeSet<Problem>,
) {
    path.push(name);
    check(value, kind, path, out);
    path.pop();
}

fn check_members(
    members: &Map<String, Value>,
    kind: &'static ValueKind,
    path: &mut Vec<String>,
    out: &mut BTreeSet<Problem>,
) {
    let known = kind.members();
    let find = |name: &str| known.iter().find(|member| member.name == name);
    for (name, value) in members {
        path.push(name.clone());
        match (find(name), kind) {
            (Some(Member { presence: Presence::Optional, .. }), _) if value.is_null() => {}
            (Some(member), _) => check(value, member.kind, path, out),
            (None, ValueKind::Map(below) | ValueKind::Open(_, below)) => {
                // Keys of a FlexBuffer end with NUL.
                if name.contains('\0') {
                    out.insert(Problem::Invalid(format!("`{}`: a name cannot have NUL in it", format_key(path))));
                }
                check(value, below, path, out);
            }
            (None, _) => {
                out.insert(Problem::UnknownMember(format!("`{}` cannot be set", format_key(path))));
            }
        }
        path.pop();
    }
    for member in known {
        let is_required = matches!(member.presence, Presence::Required | Presence::Filled);
        if is_required && !members.contains_key(member.name) {
            out.insert(Problem::Invalid(format!("`{}`: `{}` is missing", format_key(path), member.name)));
        }
    }
}
