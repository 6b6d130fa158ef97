//! Finds values that a reader of the configuration would not accept.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::containers;
use super::key::{may_be_missing, spell};
use super::schema::{Kind, Member, Presence, ROOT};

/// Problem, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Problem {
    /// Readers refuse the repository, or ignore the value.
    Wrong(String),
    /// The schema does not have the member. Readers skip it, but a user who sets it made a mistake.
    Unknown(String),
}

/// Returns the problems of `members` that affect readers, one sentence each.
pub fn of(members: &Map<String, Value>) -> Vec<String> {
    let wrong = |problem| match problem {
        Problem::Wrong(what) => Some(what),
        Problem::Unknown(_) => None,
    };
    find(members).into_iter().filter_map(wrong).collect()
}

/// Returns the problems of `after` that `before` does not have.
pub(super) fn made(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<String> {
    let text = |problem: &Problem| match problem {
        Problem::Wrong(what) | Problem::Unknown(what) => what.clone(),
    };
    find(after).difference(&find(before)).map(text).collect()
}

fn find(members: &Map<String, Value>) -> BTreeSet<Problem> {
    let mut out = BTreeSet::new();
    check_members(members, &ROOT, &mut Vec::new(), &mut out);
    containers::problems(members, &mut out);
    out
}

// Recursion is bounded: the readers of both encodings bound the depth of values, and so does the JSON parser.
fn check(value: &Value, kind: &'static Kind, path: &mut Vec<String>, out: &mut BTreeSet<Problem>) {
    let mut wrong = || {
        let shown: String = value.to_string().chars().take(60).collect();
        out.insert(Problem::Wrong(format!("`{}` is {shown}, and must be {}", spell(path), kind.describe())))
    };
    match (kind, value) {
        (Kind::Whole { least, most }, Value::Number(number)) => {
            let fits = match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => number <= *most && i64::try_from(number).map_or(true, |number| number >= *least),
                (None, Some(number)) => number >= *least,
                (None, None) => false,
            };
            if !fits {
                wrong();
            }
        }
        (Kind::Bool, Value::Bool(_)) | (Kind::Text, Value::String(_)) => {}
        (Kind::Checked(rule), Value::String(text)) => {
            if !(rule.fits)(text) {
                out.insert(Problem::Wrong(format!("`{}` must be {}", spell(path), rule.describe)));
            }
        }
        (Kind::Pattern, Value::String(pattern)) => {
            if let Err(error) = regex::Regex::new(pattern) {
                let why = error.to_string();
                let why = why.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                out.insert(Problem::Wrong(format!("`{}` is no regular expression: {why}", spell(path))));
            }
        }
        (Kind::Struct(_) | Kind::Open(..) | Kind::Map(_), Value::Object(members)) => {
            check_members(members, kind, path, out);
        }
        (Kind::List(below), Value::Array(items)) => {
            for (n, item) in items.iter().enumerate() {
                path.push(n.to_string());
                check(item, below, path, out);
                path.pop();
            }
        }
        (Kind::Pair(first, second), Value::Array(items)) => match items.as_slice() {
            [one, two] => {
                for (n, (item, below)) in [(one, first), (two, second)].into_iter().enumerate() {
                    path.push(n.to_string());
                    check(item, below, path, out);
                    path.pop();
                }
            }
            _ => drop(wrong()),
        },
        (Kind::Choice(variants), Value::String(name)) if variants.contains_plain(name) => {}
        (Kind::Choice(variants), Value::Object(members)) => {
            let only = members.iter().next().filter(|_| members.len() == 1);
            let found = only.and_then(|(name, payload)| {
                let (_, kind) = variants.iter().find(|(variant, _)| variant == name)?;
                Some((name, payload, (*kind)?))
            });
            match found {
                Some((name, payload, below)) => {
                    path.push(name.clone());
                    check(payload, below, path, out);
                    path.pop();
                }
                None => drop(wrong()),
            }
        }
        _ => drop(wrong()),
    }
}

trait Variants {
    fn contains_plain(&self, name: &str) -> bool;
}

impl Variants for [super::schema::Variant] {
    fn contains_plain(&self, name: &str) -> bool {
        self.iter().any(|(variant, payload)| *variant == name && payload.is_none())
    }
}

fn check_members(
    members: &Map<String, Value>,
    kind: &'static Kind,
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
            (None, Kind::Map(below) | Kind::Open(_, below)) => {
                // Keys of a FlexBuffer end with NUL.
                if name.contains('\0') {
                    out.insert(Problem::Wrong(format!("`{}`: a name cannot have NUL in it", spell(path))));
                }
                check(value, below, path, out);
            }
            (None, _) => drop(out.insert(Problem::Unknown(format!("`{}` is nothing that can be set", spell(path))))),
        }
        path.pop();
    }
    for member in known.iter().filter(|member| !may_be_missing(member.presence) && !members.contains_key(member.name)) {
        out.insert(Problem::Wrong(format!("`{}`: `{}` is missing", spell(path), member.name)));
    }
}
