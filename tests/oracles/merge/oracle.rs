//! The expected result of two sides' work: a three-way merge over plain maps of keys, and of
//! documents by member. It knows moves, and nothing else of the mount: no inodes, no whiteouts, no
//! snapshots.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::world::grid_of;

/// Zarr keys and their bytes.
pub type Keys = BTreeMap<String, Vec<u8>>;

/// Node of each path. A moved node keeps its number; a recreated one in its place has another.
pub type Numbers = BTreeMap<String, u64>;

/// The numbers of the nodes of the three sides.
pub struct Sides<'a> {
    pub base: &'a Numbers,
    pub ours: &'a Numbers,
    pub theirs: &'a Numbers,
}

impl Sides<'_> {
    /// Returns the path on our side of a node of the base, or of theirs.
    fn now(&self, numbers: &Numbers, node: &str) -> Option<&String> {
        let number = numbers.get(node)?;
        let is_base = self.base.values().any(|other| other == number);
        self.ours.iter().find(|(_, other)| is_base && *other == number).map(|(path, _)| path)
    }

    /// Returns true if a node of the base is deleted on both sides.
    fn is_gone(&self, node: &str) -> bool {
        let has = |side: &Numbers, number| side.values().any(|other| other == number);
        self.base.get(node).is_some_and(|number| !has(self.ours, number) && !has(self.theirs, number))
    }

    /// Returns the numbers of a merge that has `keys`.
    pub fn merged(&self, keys: &Keys) -> Numbers {
        let number = |path: String| {
            let ours = self.ours.get(&path);
            let theirs = self.theirs.get(&path);
            let is_where_it_was = ours == self.base.get(&path);
            let number = match (ours, theirs) {
                (Some(ours), Some(theirs)) if ours != theirs => {
                    if is_where_it_was {
                        theirs
                    } else {
                        ours
                    }
                }
                (ours, theirs) => ours.or(theirs)?,
            };
            Some((path, *number))
        };
        nodes(keys).into_iter().filter_map(number).collect()
    }
}

/// Result of a merge.
#[derive(Debug, Default)]
pub struct Merge {
    /// All keys, with ours where both sides changed something.
    pub ours_win: Keys,
    /// All keys, with theirs.
    pub theirs_win: Keys,
    /// Keys that both sides changed in different ways.
    pub conflicts: BTreeSet<String>,
    /// Those of them for which no side can be taken: documents that one side lacks.
    pub unsettled: BTreeSet<String>,
}

impl Merge {
    /// Returns all keys, with ours where both sides changed something and `is_ours` returns true
    /// for the key, and with theirs otherwise.
    pub fn mixed(&self, is_ours: impl Fn(&str) -> bool) -> Keys {
        let all: BTreeSet<&String> = self.ours_win.keys().chain(self.theirs_win.keys()).collect();
        let one = |key: &String| {
            let side = if is_ours(key) { &self.ours_win } else { &self.theirs_win };
            Some((key.clone(), side.get(key)?.clone()))
        };
        all.into_iter().filter_map(one).collect()
    }
}

/// Side that is taken where both changed the same.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Taken {
    Neither,
    Ours,
    Theirs,
}

/// Returns the nodes of `keys`, by path; the root is the empty one.
pub fn nodes(keys: &Keys) -> BTreeSet<String> {
    let documents = keys.keys().filter_map(|key| key.strip_suffix("zarr.json"));
    documents.map(|path| path.trim_end_matches('/').to_owned()).collect()
}

/// Returns the node that `key` belongs to.
pub fn node_of<'a>(nodes: &BTreeSet<String>, key: &'a str) -> Option<&'a str> {
    let mut at = key;
    loop {
        at = at.rsplit_once('/').map_or("", |(above, _)| above);
        if nodes.contains(at) {
            return Some(at);
        }
        if at.is_empty() {
            return None;
        }
    }
}

pub fn is_at_or_below(path: &str, top: &str) -> bool {
    top.is_empty() || path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

pub fn join(path: &str, rest: &str) -> String {
    if path.is_empty() { rest.to_owned() } else { format!("{path}/{rest}") }
}

/// Returns `keys`, whose nodes have `numbers`, with the nodes that we moved at their new paths.
fn moved(keys: &Keys, numbers: &Numbers, sides: &Sides<'_>) -> Keys {
    let nodes = nodes(keys);
    let name = |key: &String| {
        let node = node_of(&nodes, key)?;
        let now = sides.now(numbers, node)?;
        let other = sides.base.iter().find(|(_, n)| Some(*n) == numbers.get(node))?;
        // A node that they moved stays at their path, unless we moved it too, which is a conflict.
        (now != other.0).then(|| join(now, key[node.len()..].trim_start_matches('/')))
    };
    keys.iter().map(|(key, bytes)| (name(key).unwrap_or_else(|| key.clone()), bytes.clone())).collect()
}

/// Merges `ours` and `theirs`, which both came of `base`.
pub fn merge(base: &Keys, ours: &Keys, theirs: &Keys, sides: &Sides<'_>) -> Merge {
    let base_nodes = nodes(base);
    let mut base = base.clone();
    // A deletion on both sides is no change of one of them, whatever has its name now.
    base.retain(|key, _| node_of(&base_nodes, key).is_none_or(|node| !sides.is_gone(node)));
    let base = moved(&base, sides.base, sides);
    let theirs = moved(theirs, sides.theirs, sides);
    let mut merge = Merge::default();
    let all: BTreeSet<&String> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    for key in all {
        let b = base.get(key);
        let o = ours.get(key);
        let t = theirs.get(key);
        let (for_us, for_them) = if o == b {
            (t, t)
        } else if t == b || o == t {
            (o, o)
        } else if key.ends_with("zarr.json")
            && let Some(ours_win) = merge_documents([b, o, t], Taken::Ours)
            && let Some(theirs_win) = merge_documents([b, o, t], Taken::Theirs)
        {
            if merge_documents([b, o, t], Taken::Neither).is_none() {
                merge.conflicts.insert(key.clone());
            }
            merge.ours_win.insert(key.clone(), ours_win);
            merge.theirs_win.insert(key.clone(), theirs_win);
            continue;
        } else {
            merge.conflicts.insert(key.clone());
            merge.unsettled.extend(key.ends_with("zarr.json").then(|| key.clone()));
            (o, t)
        };
        for (side, value) in [(&mut merge.ours_win, for_us), (&mut merge.theirs_win, for_them)] {
            side.extend(value.map(|bytes| (key.clone(), bytes.clone())));
        }
    }
    merge
}

/// Merges documents by member, attributes by attribute and shapes by dimension; of what both sides
/// changed, the side that is `taken`, or none if that is neither. Members are in the order that
/// theirs have, ours follow.
fn merge_documents([base, ours, theirs]: [Option<&Vec<u8>>; 3], taken: Taken) -> Option<Vec<u8>> {
    let parse = |document: Option<&Vec<u8>>| serde_json::from_slice::<Value>(document?).ok();
    let [base, ours, theirs] = [parse(base)?, parse(ours)?, parse(theirs)?];
    let one_of = |b, o, t| {
        changed(b, o, t).or(match taken {
            Taken::Neither => None,
            Taken::Ours => Some(o),
            Taken::Theirs => Some(t),
        })
    };
    let [Value::Object(base), Value::Object(ours), Value::Object(theirs)] = [base, ours, theirs] else { return None };
    let added = |one: &serde_json::Map<String, Value>, other: &serde_json::Map<String, Value>| -> Vec<String> {
        one.keys().chain(other.keys().filter(|name| !one.contains_key(*name))).cloned().collect()
    };
    let names = added(&theirs, &ours);
    let mut merged = serde_json::Map::new();
    for name in names {
        let [b, o, t] = [&base, &ours, &theirs].map(|document| document.get(&name));
        let value = match (name.as_str(), b, o, t) {
            ("attributes", Some(Value::Object(b)), Some(Value::Object(o)), Some(Value::Object(t))) => {
                let mut attributes = serde_json::Map::new();
                for name in added(t, o) {
                    let value = one_of(b.get(&name), o.get(&name), t.get(&name))?.cloned();
                    attributes.extend(value.map(|value| (name.clone(), value)));
                }
                Some(attributes.into())
            }
            ("shape", Some(Value::Array(b)), Some(Value::Array(o)), Some(Value::Array(t)))
                if b.len() == o.len() && b.len() == t.len() =>
            {
                // A shape is taken as a whole.
                let lengths = (0..b.len()).map(|n| changed(Some(&b[n]), Some(&o[n]), Some(&t[n])).flatten().cloned());
                match (lengths.collect::<Option<Vec<Value>>>(), taken) {
                    (Some(lengths), _) => Some(lengths.into()),
                    (None, Taken::Neither) => return None,
                    (None, Taken::Ours) => Some(o.clone().into()),
                    (None, Taken::Theirs) => Some(t.clone().into()),
                }
            }
            _ => one_of(b, o, t)?.cloned(),
        };
        merged.extend(value.map(|value| (name.clone(), value)));
    }
    Some(Value::from(merged).to_string().into_bytes())
}

/// Returns the value that one side, or both, changed it to; none if both did in different ways.
fn changed<'a>(
    base: Option<&'a Value>,
    ours: Option<&'a Value>,
    theirs: Option<&'a Value>,
) -> Option<Option<&'a Value>> {
    if ours == base || ours == theirs { Some(theirs) } else { (theirs == base).then_some(ours) }
}

/// Returns true if each chunk that one side wrote is within the shape that the other side has.
pub fn chunks_have_places(base: &Keys, ours: &Keys, theirs: &Keys) -> bool {
    let arrays = nodes(base);
    let has_place = |key: &str, there: &Keys| {
        let node = node_of(&arrays, key)?;
        let grid = grid_of(there.get(&join(node, "zarr.json"))?)?;
        let coords = key[node.len()..].trim_start_matches('/').strip_prefix("c/")?;
        let coords: Vec<u64> = coords.split('/').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        Some(coords.len() == grid.len() && std::iter::zip(coords, grid).all(|(at, length)| at < length))
    };
    [(ours, theirs), (theirs, ours)].into_iter().all(|(written, there)| {
        let chunks = written.iter().filter(|(key, _)| !key.ends_with("zarr.json"));
        let mut new = chunks.filter(|(key, bytes)| base.get(*key) != Some(bytes));
        new.all(|(key, _)| has_place(key, there) == Some(true))
    })
}

/// Returns the nodes of which `from` and `to` have different keys.
pub fn touched(from: &Keys, to: &Keys) -> BTreeSet<String> {
    let old = nodes(from);
    let new = nodes(to);
    let mut touched = BTreeSet::new();
    for (one, other, nodes) in [(from, to, &old), (to, from, &new)] {
        for (key, bytes) in one {
            if other.get(key) != Some(bytes) {
                touched.extend(node_of(nodes, key).map(str::to_owned));
            }
        }
    }
    touched
}

/// Returns true if two sets of nodes are independent: none is at or below one of the other set.
pub fn are_apart(one: &BTreeSet<String>, other: &BTreeSet<String>) -> bool {
    one.iter()
        .all(|a| other.iter().all(|b| !(a.is_empty() || b.is_empty() || is_at_or_below(a, b) || is_at_or_below(b, a))))
}

#[test]
fn the_oracle_merges_by_key() {
    let keys = |list: &[(&str, &str)]| -> Keys {
        list.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect()
    };
    let base = keys(&[("a/zarr.json", "a"), ("a/c/0", "0"), ("a/c/1", "1"), ("b/zarr.json", "b")]);
    let ours =
        keys(&[("m/zarr.json", "a"), ("m/c/0", "ours"), ("m/c/1", "1"), ("b/zarr.json", "b"), ("n/zarr.json", "n")]);
    let theirs = keys(&[("a/zarr.json", "a"), ("a/c/0", "0"), ("a/c/1", "theirs"), ("a/c/2", "2")]);
    let numbers = |list: &[(&str, u64)]| -> Numbers { list.iter().map(|(path, n)| ((*path).to_owned(), *n)).collect() };
    let was = numbers(&[("a", 1), ("b", 2)]);
    let now = numbers(&[("m", 1), ("b", 2), ("n", 3)]);
    let sides = Sides { base: &was, ours: &now, theirs: &numbers(&[("a", 1)]) };
    let merged = merge(&base, &ours, &theirs, &sides);
    let expected =
        keys(&[("m/zarr.json", "a"), ("m/c/0", "ours"), ("m/c/1", "theirs"), ("m/c/2", "2"), ("n/zarr.json", "n")]);
    assert_eq!((merged.ours_win, merged.conflicts), (expected, BTreeSet::new()));
    let both = keys(&[("a/zarr.json", "x"), ("a/c/0", "0"), ("a/c/1", "1"), ("b/zarr.json", "b")]);
    let other = keys(&[("a/zarr.json", "y"), ("a/c/0", "0"), ("b/zarr.json", "b")]);
    let merged = merge(&base, &both, &other, &Sides { base: &was, ours: &was, theirs: &was });
    assert_eq!(merged.conflicts, BTreeSet::from(["a/zarr.json".to_owned()]));
    assert!(!merged.ours_win.contains_key("a/c/1") && merged.theirs_win["a/zarr.json"] == b"y");
    assert_eq!(touched(&base, &both), BTreeSet::from(["a".to_owned()]));
    // Both deleted it, and they recreated it: that is theirs alone.
    let without = keys(&[("b/zarr.json", "b")]);
    let anew = keys(&[("a/zarr.json", "new"), ("b/zarr.json", "b")]);
    let gone = numbers(&[("b", 2)]);
    let new = numbers(&[("a", 9), ("b", 2)]);
    let merged = merge(&base, &without, &anew, &Sides { base: &was, ours: &gone, theirs: &new });
    assert_eq!((merged.ours_win, merged.conflicts), (anew.clone(), BTreeSet::new()));
    let same = Sides { base: &was, ours: &gone, theirs: &was };
    assert_eq!(merge(&base, &without, &anew, &same).conflicts, BTreeSet::from(["a/zarr.json".to_owned()]));
}
