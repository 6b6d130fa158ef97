//! The model: registers, the events that set them, and what a state knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use icechunkfs::format::ids::NodeId;

/// Number of a commit that set something.
pub type Event = u32;

/// Part of a node that has a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Path,
    Document,
    Chunk(u32),
}

pub type Key = (NodeId, Part);

/// Values of the registers that show something.
pub type Content = BTreeMap<Key, Vec<u8>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    event: Event,
    value: Option<Vec<u8>>,
}

impl Register {
    /// Returns true if it shows `value`.
    pub fn shows(&self, value: Option<&Vec<u8>>) -> bool {
        self.value.as_ref() == value
    }
}

/// Content of a branch, and the events that it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    registers: BTreeMap<Key, Register>,
    known: BTreeSet<Event>,
}

/// All events, with what they set.
#[derive(Debug, Default)]
pub struct Events {
    next: Event,
    values: HashMap<Key, BTreeMap<Event, Option<Vec<u8>>>>,
}

impl Events {
    fn begin(&mut self) -> Event {
        self.next += 1;
        self.next
    }

    fn set(&mut self, key: Key, event: Event, value: Option<Vec<u8>>) -> Register {
        self.values.entry(key).or_default().insert(event, value.clone());
        Register { event, value }
    }

    /// Returns true if a commit has set a register of the node.
    pub fn has_node(&self, node: NodeId) -> bool {
        self.values.contains_key(&(node, Part::Path))
    }

    /// Returns true if `state` has had the value that `other` shows: in a comparison of values,
    /// that is not a change. No state had a node before it was created.
    fn has_known(&self, state: &State, other: &State, key: Key) -> bool {
        let is_there = other.registers.get(&(key.0, Part::Path)).is_some_and(|path| path.value.is_some());
        if !is_there {
            return true;
        }
        let value = &other.registers[&key].value;
        let known = |(event, set): (&Event, &Option<Vec<u8>>)| set == value && state.known.contains(event);
        self.values.get(&key).is_some_and(|events| events.iter().any(known))
    }
}

/// Outcome of a merge for a register.
enum Outcome {
    Source,
    Target,
    Conflict,
}

/// Required result of a merge.
pub struct Merge {
    /// Result if conflicts between chunks are resolved for the source, or for the target.
    pub source_wins: State,
    pub target_wins: State,
    /// Registers in conflict.
    pub conflicts: Vec<Key>,
    /// Those of them of which one side shows a value that the other one has had: a comparison of
    /// values does not see a change there.
    pub undone: BTreeMap<Key, Vec<Register>>,
    /// True if the result would not be a tree, or has work on a node that it lacks.
    pub is_broken: bool,
    /// True if both sides changed one node, and at least one of them more than chunks: that may be
    /// refused.
    pub is_coarse: bool,
    /// True if the target knows all that the source knows.
    pub is_nothing: bool,
}

impl State {
    /// Returns what is there.
    pub fn content(&self) -> Content {
        self.registers.iter().filter_map(|(key, register)| Some((*key, register.value.clone()?))).collect()
    }

    /// Returns the nodes with their paths.
    pub fn paths(&self) -> BTreeMap<String, NodeId> {
        paths(&self.content())
    }

    pub fn knows_all_of(&self, other: &State) -> bool {
        other.known.is_subset(&self.known)
    }

    /// Returns the state after a commit that led to `content`.
    pub fn after(&self, content: &Content, events: &mut Events) -> State {
        let mut state = self.clone();
        let event = events.begin();
        state.known.insert(event);
        let keys: BTreeSet<Key> = self.registers.keys().chain(content.keys()).copied().collect();
        let is_there = |content: &Content, key: Key| content.contains_key(&(key.0, Part::Path));
        let before = self.content();
        for key in keys {
            // A node that comes or goes does so with all that it has.
            let appears = is_there(&before, key) != is_there(content, key);
            if appears || before.get(&key) != content.get(&key) {
                let register = events.set(key, event, content.get(&key).cloned());
                state.registers.insert(key, register);
            }
        }
        state
    }

    /// Returns what the merge of `source` into this state must come to.
    pub fn merge(&self, source: &State, events: &mut Events) -> Merge {
        let mut source_wins = self.clone();
        let mut target_wins = self.clone();
        let mut conflicts = Vec::new();
        let mut undone = BTreeMap::new();
        let resolution = events.begin();
        for (key, theirs) in &source.registers {
            let outcome = match self.registers.get(key) {
                None => Outcome::Source,
                Some(own) if own.event == theirs.event => Outcome::Target,
                Some(own) => match (self.known.contains(&theirs.event), source.known.contains(&own.event)) {
                    (true, false) => Outcome::Target,
                    (false, true) => Outcome::Source,
                    _ if own.value == theirs.value => Outcome::Target,
                    // If both know both, they have resolved a conflict, each in its own way.
                    _ => Outcome::Conflict,
                },
            };
            match outcome {
                Outcome::Target => {}
                Outcome::Source => {
                    source_wins.registers.insert(*key, theirs.clone());
                    target_wins.registers.insert(*key, theirs.clone());
                }
                Outcome::Conflict => {
                    let own = &self.registers[key];
                    conflicts.push(*key);
                    let mut allowed = Vec::new();
                    if events.has_known(source, self, *key) {
                        allowed.push(theirs.clone());
                    }
                    if events.has_known(self, source, *key) {
                        allowed.push(own.clone());
                    }
                    if !allowed.is_empty() {
                        undone.insert(*key, allowed);
                    }
                    source_wins.registers.insert(*key, events.set(*key, resolution, theirs.value.clone()));
                    target_wins.registers.insert(*key, events.set(*key, resolution, own.value.clone()));
                }
            }
        }
        for state in [&mut source_wins, &mut target_wins] {
            state.known.extend(&source.known);
            state.known.insert(resolution);
        }
        let is_broken = !source_wins.is_tree() || !target_wins.is_tree();
        let is_coarse = self.is_coarse(source);
        let is_nothing = self.knows_all_of(source);
        Merge { source_wins, target_wins, conflicts, undone, is_broken, is_coarse, is_nothing }
    }

    /// Gives a register in conflict the value that one side has.
    pub fn put(&mut self, key: Key, register: Register) {
        self.registers.insert(key, register);
    }

    /// Returns what changed in `self` that `other` does not know, by node.
    fn touched(&self, other: &State) -> BTreeMap<NodeId, BTreeSet<Part>> {
        let mut touched: BTreeMap<NodeId, BTreeSet<Part>> = BTreeMap::new();
        for ((node, part), register) in &self.registers {
            if !other.known.contains(&register.event) {
                touched.entry(*node).or_default().insert(*part);
            }
        }
        touched
    }

    fn is_coarse(&self, other: &State) -> bool {
        let own = self.touched(other);
        let theirs = other.touched(self);
        let is_more = |parts: &BTreeSet<Part>| parts.iter().any(|part| !matches!(part, Part::Chunk(_)));
        own.iter().any(|(node, parts)| theirs.get(node).is_some_and(|others| is_more(parts) || is_more(others)))
    }

    /// Returns true if each node has a path of its own in a group, and nothing is left of nodes
    /// without one.
    pub fn is_tree(&self) -> bool {
        let content = self.content();
        let all = paths(&content);
        let nodes: BTreeSet<NodeId> = all.values().copied().collect();
        let count = content.keys().filter(|(_, part)| *part == Part::Path).count();
        let is_group = |path: &str| {
            all.get(path).and_then(|node| content.get(&(*node, Part::Document))).is_some_and(|bytes| is_group(bytes))
        };
        all.len() == count
            && content.keys().all(|(node, _)| nodes.contains(node))
            && all.keys().filter(|path| *path != "/").all(|path| is_group(above(path)))
    }
}

pub fn is_group(document: &[u8]) -> bool {
    String::from_utf8_lossy(document).contains(r#""node_type":"group""#)
}

/// Returns the path of the group of a node.
pub fn above(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((above, _)) => above,
    }
}

pub fn paths(content: &Content) -> BTreeMap<String, NodeId> {
    let found = content.iter().filter(|((_, part), _)| *part == Part::Path);
    found.map(|((node, _), path)| (String::from_utf8(path.clone()).unwrap(), *node)).collect()
}

/// Describes the registers in which `found` is not `wanted`.
pub fn differences(found: &Content, wanted: &Content) -> Vec<String> {
    let keys: BTreeSet<Key> = found.keys().chain(wanted.keys()).copied().collect();
    let shown = |content: &Content, key: &Key| {
        content.get(key).map_or("nothing".to_owned(), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            text.split("  ")
                .next()
                .unwrap_or_default()
                .chars()
                .rev()
                .take(40)
                .collect::<Vec<_>>()
                .iter()
                .rev()
                .collect()
        })
    };
    let path = |node: NodeId| {
        let key = (node, Part::Path);
        wanted.get(&key).or(found.get(&key)).map_or(String::new(), |path| String::from_utf8_lossy(path).into_owned())
    };
    let differs = keys.into_iter().filter(|key| found.get(key) != wanted.get(key));
    differs
        .map(|key| format!("{} {:?}: {} instead of {}", path(key.0), key.1, shown(found, &key), shown(wanted, &key)))
        .collect()
}
