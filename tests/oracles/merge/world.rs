//! Mounts and the reference on one branch, with the expected state of each.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::Value;

use super::oracle::{self, Keys, Numbers, Sides, is_at_or_below, join, node_of, nodes};
use crate::common::writing::{GROUP, Reference, Writable};
use crate::common::{self, block_on, icechunkfs, lab, run_on, signal};

/// One step of a run. Steps name their targets, so that a listing keeps its meaning without some of
/// its steps: a step without a target does nothing.
#[derive(Clone, Debug)]
pub enum Step {
    Group {
        path: String,
    },
    Array {
        path: String,
        grid: Vec<u64>,
    },
    Chunk {
        array: String,
        coords: Vec<u64>,
        seed: u64,
        how: Writing,
    },
    RemoveChunk {
        array: String,
        coords: Vec<u64>,
    },
    RemoveChunks {
        array: String,
    },
    RenameChunk {
        array: String,
        from: Vec<u64>,
        to: Vec<u64>,
    },
    Attributes {
        path: String,
        seed: u64,
    },
    Resize {
        array: String,
        grid: Vec<u64>,
    },
    Remove {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        one: String,
        other: String,
    },
    Copy {
        from: String,
        to: String,
        links: bool,
    },
    Link {
        array: String,
        coords: Vec<u64>,
        to: String,
    },
    Untracked {
        path: String,
        is_link: bool,
        seed: u64,
    },
    MakeDirectory {
        path: String,
    },
    /// With [`EACH`] each conflict is settled by itself.
    Commit {
        on_conflict: Option<&'static str>,
    },
    Refresh,
    Discard,
    Remount,
    Kill,
}

/// The conflicts of each node are settled by its number.
pub const EACH: &str = "each";

/// Kinds of conflicts of which a side can be taken.
const SETTLED_KINDS: [&str; 2] = ["ChunkDoubleUpdate", "ZarrMetadataDoubleUpdate"];

fn is_ours(number: u64) -> bool {
    number.is_multiple_of(2)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Writing {
    Over,
    Rename,
    Anew,
}

/// Kind of a name of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    File(Vec<u8>),
    Link(PathBuf),
}

pub type View = BTreeMap<String, Leaf>;

/// A mount, and its model.
pub struct Side {
    mount: Writable,
    /// Content of its base.
    base: Keys,
    base_numbers: Numbers,
    /// Number of commits when it moved there.
    base_at: usize,
    /// Its visible files.
    view: View,
    numbers: Numbers,
    /// Files that may have other names.
    linked: BTreeSet<String>,
}

pub struct World {
    pub sides: Vec<Side>,
    reference: Reference,
    pub is_v1: bool,
    /// Content of the branch.
    pub tip: Keys,
    tip_numbers: Numbers,
    /// Changes of each commit, whatever happened later.
    touched: Vec<Touched>,
    /// Numbers of the repository's node ids.
    known: BTreeMap<String, u64>,
    commits: usize,
    pub statistics: Statistics,
    _directory: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Statistics {
    pub steps: usize,
    pub done: usize,
    pub commits: usize,
    pub merged: usize,
    pub refused: usize,
    pub refreshes: usize,
    pub settled: usize,
}

/// Nodes that a commit changed.
pub struct Touched {
    pub nodes: BTreeSet<String>,
    /// True if nodes came, went or moved.
    has_other_nodes: bool,
}

impl Statistics {
    pub fn add(&mut self, other: &Statistics) {
        self.steps += other.steps;
        self.done += other.done;
        self.commits += other.commits;
        self.merged += other.merged;
        self.refused += other.refused;
        self.refreshes += other.refreshes;
        self.settled += other.settled;
    }
}

pub fn document(grid: &[u64], seed: u64) -> String {
    let document: Value = serde_json::from_str(&crate::common::writing::array(grid, &vec![1; grid.len()])).unwrap();
    let mut document = document;
    document["attributes"] = serde_json::json!({ "a0": seed, "a1": 0, "a2": 0 });
    document.to_string()
}

/// Returns a document with another value of one of its attributes.
pub fn with_attribute(document: &[u8], seed: u64) -> String {
    let mut document: Value = serde_json::from_slice(document).unwrap();
    document["attributes"][format!("a{}", seed % 3)] = seed.into();
    document.to_string()
}

pub fn with_shape(document: &[u8], grid: &[u64]) -> String {
    let mut document: Value = serde_json::from_slice(document).unwrap();
    document["shape"] = grid.into();
    document.to_string()
}

/// Returns the grid in an array's document; None for a group's.
pub fn grid_of(document: &[u8]) -> Option<Vec<u64>> {
    let document: Value = serde_json::from_slice(document).ok()?;
    let shape = document["shape"].as_array()?;
    Some(shape.iter().map(|n| n.as_u64().unwrap()).collect())
}

fn chunk_key(coords: &[u64]) -> String {
    coords.iter().fold("c".to_owned(), |key, n| format!("{key}/{n}"))
}

fn bytes(seed: u64) -> Vec<u8> {
    let length = match seed % 7 {
        0 => 3000,
        1 => 40_000,
        _ => 20 + seed % 100,
    };
    format!("content {seed}. ").into_bytes().into_iter().cycle().take(length as usize).collect()
}

/// Returns true if Zarr has a place for the name. Steps make no other names of that form.
fn is_key(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let digits = parts.iter().rev().take_while(|part| part.bytes().all(|b| b.is_ascii_digit())).count();
    path.ends_with("zarr.json") || (digits > 0 && parts.len() > digits && parts[parts.len() - digits - 1] == "c")
}

pub fn keys_of(view: &View) -> Keys {
    let key = |(path, leaf): (&String, &Leaf)| match leaf {
        Leaf::File(bytes) if is_key(path) => Some((path.clone(), bytes.clone())),
        _ => None,
    };
    view.iter().filter_map(key).collect()
}

fn untracked_of(view: &View) -> View {
    let is_key = |path: &str, leaf: &Leaf| is_key(path) && matches!(leaf, Leaf::File(_));
    view.iter().filter(|(path, leaf)| !is_key(path, leaf)).map(|(path, leaf)| (path.clone(), leaf.clone())).collect()
}

/// Returns everything that a directory shows except `.icechunk`. A name that is listed and cannot
/// be looked up or read is an error.
pub fn scan(root: &Path) -> Result<View, String> {
    let mut view = View::new();
    let mut pending = vec![root.to_owned()];
    let told = |path: &Path, e: io::Error| format!("{} is listed, and: {e}", path.display());
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).map_err(|e| told(&directory, e))? {
            let path = entry.map_err(|e| told(&directory, e))?.path();
            let found = path.symlink_metadata().map_err(|e| told(&path, e))?;
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if found.is_dir() {
                pending.push(path);
            } else if found.is_symlink() {
                view.insert(name, Leaf::Link(std::fs::read_link(&path).map_err(|e| told(&path, e))?));
            } else {
                let bytes = std::fs::read(&path).map_err(|e| told(&path, e))?;
                if bytes.len() as u64 != found.len() {
                    return Err(format!("{name}: stat says {} bytes, and there are {}", found.len(), bytes.len()));
                }
                view.insert(name, Leaf::File(bytes));
            }
        }
    }
    Ok(view)
}

/// Returns the first names on which two maps differ.
fn difference<V: PartialEq>(found: &BTreeMap<String, V>, expected: &BTreeMap<String, V>) -> Option<String> {
    let all: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let told = |name: &&String| match (found.get(*name), expected.get(*name)) {
        (Some(_), None) => format!("{name} is there"),
        (None, Some(_)) => format!("{name} is missing"),
        _ => format!("{name} has other bytes"),
    };
    let all: Vec<String> =
        all.iter().filter(|name| found.get(**name) != expected.get(**name)).take(6).map(told).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

impl World {
    pub fn new(mounts: usize, version: SpecVersionBin) -> World {
        common::watchdog();
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        let is_v1 = version == SpecVersionBin::V1;
        block_on(lab::create(&place, version, RepositoryConfig::default()));
        let reference = Reference::open(&place);
        reference.commit(&[("zarr.json", GROUP.as_bytes())], "the beginning");
        let tip = Keys::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
        let mut known = BTreeMap::new();
        let tip_numbers = numbers_of(&reference, &mut known);
        let sides = (0..mounts).map(|_| Side::new(Writable::of(&place, &[]), &tip, &tip_numbers)).collect();
        World {
            sides,
            reference,
            is_v1,
            tip,
            tip_numbers,
            touched: Vec::new(),
            known,
            commits: 2,
            statistics: Statistics::default(),
            _directory: directory,
        }
    }

    /// Does one step by mount `who`, or by the reference if there is no such mount. An error is a
    /// defect.
    pub fn step(&mut self, who: usize, step: &Step) -> Result<(), String> {
        self.statistics.steps += 1;
        let done = match self.sides.get_mut(who) {
            None => self.by_reference(step)?,
            Some(side) => match step {
                Step::Commit { on_conflict } => self.commit(who, *on_conflict)?,
                Step::Refresh => self.refresh(who)?,
                Step::Discard => self.discard(who)?,
                Step::Remount | Step::Kill => self.remount(who, matches!(step, Step::Kill))?,
                _ => side.operate(step).map_err(|e| format!("mount {who}: {step:?}: {e}"))?,
            },
        };
        self.statistics.done += usize::from(done);
        Ok(())
    }

    /// Checks all mounts against the model.
    pub fn check(&self) -> Result<(), String> {
        for (who, side) in self.sides.iter().enumerate() {
            side.check().map_err(|e| format!("mount {who}: {e}"))?;
        }
        self.check_repository()
    }

    fn check_repository(&self) -> Result<(), String> {
        match difference(&self.reference.keys(), &self.tip) {
            Some(what) => Err(format!("the branch is not what it must be: {what}")),
            None => Ok(()),
        }
    }

    fn check_history(&self) -> Result<(), String> {
        let length = self.reference.history().len();
        if length != self.commits {
            return Err(format!("the branch has {length} commits instead of {}", self.commits));
        }
        Ok(())
    }

    fn commit(&mut self, who: usize, on_conflict: Option<&'static str>) -> Result<bool, String> {
        let side = &mut self.sides[who];
        let ours = keys_of(&side.view);
        let sides = side.sides(&self.tip_numbers);
        let merged = oracle::merge(&side.base, &ours, &self.tip, &sides);
        let mut words =
            vec!["commit".to_owned(), side.mount.root().display().to_string(), "-m".into(), "by a mount".into()];
        words.push("--json".to_owned());
        words.extend(on_conflict.filter(|how| *how != EACH).map(|how| format!("--on-conflict={how}")));
        let mut output = icechunkfs(&words);
        if on_conflict == Some(EACH) && !output.status.success() && side.settle(&output.stdout)? {
            self.statistics.settled += 1;
            output = icechunkfs(&words);
            if !output.status.success() && output.stdout.contains(&b'{') {
                let said = String::from_utf8_lossy(&output.stdout);
                if SETTLED_KINDS.iter().any(|kind| said.contains(kind)) {
                    return Err(format!("mount {who} settled all, and is asked again: {said}"));
                }
            }
        }
        if output.status.success() {
            let expected = match on_conflict {
                Some(EACH) => merged.mixed(|key| {
                    let nodes = oracle::nodes(&ours);
                    let number = oracle::node_of(&nodes, key).and_then(|node| side.numbers.get(node));
                    number.is_none_or(|number| is_ours(*number))
                }),
                Some("theirs") => merged.theirs_win,
                Some(_) => merged.ours_win,
                None if merged.conflicts.is_empty() => merged.ours_win,
                None => return Err(format!("mount {who} committed over {:?}, which others changed", merged.conflicts)),
            };
            if !merged.unsettled.is_empty() {
                return Err(format!("mount {who} settled {:?}", merged.unsettled));
            }
            let said: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
            let has_committed = !said["snapshot"].is_null();
            let has_work = !side.has_nothing_new();
            self.statistics.merged += usize::from(side.base != self.tip && has_work);
            if !has_committed && expected != self.tip && !has_work {
                return Err(format!("mount {who} had nothing to commit, and others' work would be changed"));
            }
            // Without changes a commit does not move the mount.
            if has_work || has_committed {
                // The repository decides the identity of nodes: version 1 has no moves, and neither
                // have some commits of version 2.
                let numbers = numbers_of(&self.reference, &mut self.known);
                side.rebased(&expected, &numbers);
                self.touched.push(touched((&self.tip, &self.tip_numbers), (&expected, &numbers)));
                side.base_at = self.touched.len();
                (self.tip, self.tip_numbers) = (expected, numbers);
            }
            self.commits = self.reference.history().len();
            self.statistics.commits += 1;
            self.check_repository()?;
            self.sides[who].check().map_err(|e| format!("mount {who} after its commit: {e}"))?;
            self.sides[who].check_diff().map_err(|e| format!("mount {who} after its commit: {e}"))?;
            return Ok(true);
        }
        self.refused(who, &output.stderr, &merged, on_conflict)?;
        Ok(false)
    }

    /// Checks that a refusal changes nothing, and has a reason.
    fn refused(
        &mut self,
        who: usize,
        output: &str,
        merged: &oracle::Merge,
        on_conflict: Option<&'static str>,
    ) -> Result<(), String> {
        self.statistics.refused += 1;
        self.check_history()?;
        let side = &self.sides[who];
        side.check().map_err(|e| format!("mount {who} after a refusal ({output}): {e}"))?;
        if output.contains("cannot be moved without changing") || output.contains("nothing here removed it") {
            return Err(format!("mount {who}: {output}"));
        }
        let ours = keys_of(&side.view);
        let commits = || self.touched.iter().skip(side.base_at);
        let theirs = commits().flat_map(|touched| touched.nodes.iter().cloned()).collect();
        let is_in_place = side.numbers == side.base_numbers && !commits().any(|touched| touched.has_other_nodes);
        let is_apart = oracle::are_apart(&oracle::touched(&side.base, &ours), &theirs)
            || (is_in_place && oracle::chunks_have_places(&side.base, &ours, &self.tip));
        let new = self.tip.keys().filter(|key| !side.base.contains_key(*key));
        let untracked = untracked_of(&side.view);
        let is_taken =
            new.clone().any(|key| untracked.keys().any(|path| is_at_or_below(key, path) || is_at_or_below(path, key)));
        if merged.conflicts.is_empty() && is_apart && !is_taken && on_conflict.is_none() {
            return Err(format!("mount {who} was refused without a reason: {output}"));
        }
        Ok(())
    }

    fn refresh(&mut self, who: usize) -> Result<bool, String> {
        let side = &mut self.sides[who];
        let ours = keys_of(&side.view);
        let merged = oracle::merge(&side.base, &ours, &self.tip, &side.sides(&self.tip_numbers));
        match side.mount.touch("refresh") {
            Ok(()) => {
                if !merged.conflicts.is_empty() {
                    return Err(format!("mount {who} moved over {:?}, which others changed", merged.conflicts));
                }
                let numbers = side.sides(&self.tip_numbers).merged(&merged.ours_win);
                side.rebased(&merged.ours_win, &numbers);
                (side.base, side.base_numbers) = (self.tip.clone(), self.tip_numbers.clone());
                side.base_at = self.touched.len();
                self.statistics.refreshes += 1;
                side.check().map_err(|e| format!("mount {who} after a refresh: {e}"))?;
                side.check_diff().map_err(|e| format!("mount {who}: {e}"))?;
                Ok(true)
            }
            Err(_) => {
                let output = side.mount.read_control("commit");
                self.refused(who, &output, &merged, None)?;
                Ok(false)
            }
        }
    }

    fn discard(&mut self, who: usize) -> Result<bool, String> {
        let side = &mut self.sides[who];
        if side.mount.touch("discard").is_err() {
            let output = side.mount.read_control("commit");
            // Untracked files may have no directory any more.
            return if output.contains("move those away") { Ok(false) } else { Err(format!("discard: {output}")) };
        }
        let found = scan(&side.mount.root())?;
        let keys = keys_of(&found);
        if let Some(what) = difference(&keys, &side.base) {
            return Err(format!("mount {who} after a discard: {what}"));
        }
        // Untracked files go back with directories that were moved; each is still somewhere, or was
        // replaced by a key.
        let before = untracked_of(&side.view);
        let after = untracked_of(&found);
        for (path, leaf) in &before {
            // The old place of its directory may have an entry of the base under its name.
            let name = path.rsplit('/').next();
            let gave_way = side.base.keys().any(|key| key.split('/').any(|part| Some(part) == name));
            if !after.values().any(|other| other == leaf) && !gave_way {
                return Err(format!("mount {who}: a discard lost {path}"));
            }
        }
        side.view = found;
        side.numbers = side.base_numbers.clone();
        Ok(true)
    }

    fn remount(&mut self, who: usize, kill: bool) -> Result<bool, String> {
        let side = &mut self.sides[who];
        if kill {
            let daemon = side.mount.daemon();
            signal(daemon, "-9");
        } else {
            side.mount.unmount();
        }
        let output = side.mount.mount_again(None);
        if !output.status.success() {
            return Err(format!("mount {who} does not come up again: {}", output.stderr));
        }
        let status = side.status();
        let has_moved = status["branch_moved"] == false && side.base != self.tip;
        if !side.has_nothing_new() {
            if has_moved {
                return Err(format!("mount {who} left its base with uncommitted work"));
            }
        } else if has_moved {
            side.rebased(&self.tip, &self.tip_numbers);
            side.base_at = self.touched.len();
        }
        side.check().map_err(|e| format!("mount {who} mounted again: {e}"))?;
        side.check_diff().map_err(|e| format!("mount {who}: {e}"))?;
        Ok(true)
    }

    /// Commits one change with the reference.
    fn by_reference(&mut self, step: &Step) -> Result<bool, String> {
        let view = self.tip.iter().map(|(k, v)| (k.clone(), Leaf::File(v.clone()))).collect();
        let mut side = Model { view };
        if !side.apply(step) {
            return Ok(false);
        }
        let keys = keys_of(&side.view);
        // The written bytes were there already: the reference makes no commit of that.
        if keys == self.tip {
            return Ok(false);
        }
        if let (Step::Rename { from, to }, false) = (step, self.is_v1)
            && has_parent_of(step, &keys)
        {
            self.reference.rename(from, to);
        } else {
            self.reference.change(&self.tip, &keys);
        }
        let numbers = numbers_of(&self.reference, &mut self.known);
        self.touched.push(touched((&self.tip, &self.tip_numbers), (&keys, &numbers)));
        (self.tip, self.tip_numbers) = (keys, numbers);
        self.commits = self.reference.history().len();
        self.check_repository()?;
        Ok(true)
    }
}

/// Returns true if the node that a step moves gets into a group with a document, which the
/// reference requires.
fn has_parent_of(step: &Step, keys: &Keys) -> bool {
    let Step::Rename { to, .. } = step else { return false };
    to.rsplit_once('/').is_none_or(|(above, _)| keys.contains_key(&join(above, "zarr.json")))
}

/// Returns the nodes that differ in two states. A recreated one is another one, though its document
/// may be the same.
pub fn touched((from, old): (&Keys, &Numbers), (to, new): (&Keys, &Numbers)) -> Touched {
    let mut nodes = oracle::touched(from, to);
    nodes.extend(new.iter().filter(|(path, number)| old.get(*path) != Some(*number)).map(|(path, _)| path.clone()));
    nodes.extend(old.keys().filter(|path| !new.contains_key(*path)).cloned());
    Touched { nodes, has_other_nodes: old != new }
}

/// Returns the nodes of the branch by the numbers of their ids.
pub fn numbers_of(reference: &Reference, known: &mut BTreeMap<String, u64>) -> Numbers {
    let ids = reference.node_ids().into_iter();
    ids.map(|(path, id)| (path, *known.entry(id).or_insert_with(fresh))).collect()
}

/// Returns an unused number.
fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns `numbers`, with the nodes at and below each `from` at `to`.
fn renamed(numbers: &Numbers, pairs: &[(&str, &str)]) -> Numbers {
    let to = |path: &String| {
        let pair = pairs.iter().find(|(from, _)| is_at_or_below(path, from));
        pair.map_or_else(|| path.clone(), |(from, to)| format!("{to}{}", &path[from.len()..]))
    };
    numbers.iter().map(|(path, number)| (to(path), *number)).collect()
}

/// A view without a mount.
struct Model {
    view: View,
}

impl Model {
    fn apply(&mut self, step: &Step) -> bool {
        let has = |path: &str, view: &View| view.contains_key(&join(path, "zarr.json"));
        let is_free = |path: &str, view: &View| !view.keys().any(|key| is_at_or_below(key, path));
        match step {
            Step::Array { path, grid } if is_free(path, &self.view) => {
                self.view.insert(join(path, "zarr.json"), Leaf::File(document(grid, fresh()).into_bytes()));
            }
            Step::Group { path } if is_free(path, &self.view) => {
                self.view.insert(join(path, "zarr.json"), Leaf::File(GROUP.as_bytes().to_vec()));
            }
            Step::Chunk { array, coords, seed, .. } if fits(&self.view, array, coords) => {
                self.view.insert(join(array, &chunk_key(coords)), Leaf::File(bytes(*seed)));
            }
            Step::RemoveChunk { array, coords } => {
                return fits(&self.view, array, coords) && self.view.remove(&join(array, &chunk_key(coords))).is_some();
            }
            Step::Attributes { path, seed } if has(path, &self.view) => {
                let Some(Leaf::File(old)) = self.view.get(&join(path, "zarr.json")) else { return false };
                if grid_of(old).is_none() {
                    return false;
                }
                let document = with_attribute(old, *seed);
                self.view.insert(join(path, "zarr.json"), Leaf::File(document.into_bytes()));
            }
            Step::Remove { path } if has(path, &self.view) => {
                self.view.retain(|key, _| !is_at_or_below(key, path));
            }
            Step::Rename { from, to }
                if has(from, &self.view) && is_free(to, &self.view) && !is_at_or_below(to, from) =>
            {
                let below: Vec<String> = self.view.keys().filter(|key| is_at_or_below(key, from)).cloned().collect();
                for key in below {
                    let leaf = self.view.remove(&key).unwrap();
                    self.view.insert(format!("{to}{}", &key[from.len()..]), leaf);
                }
            }
            _ => return false,
        }
        true
    }
}

fn fits(view: &View, array: &str, coords: &[u64]) -> bool {
    let Some(Leaf::File(document)) = view.get(&join(array, "zarr.json")) else { return false };
    let Some(grid) = grid_of(document) else { return false };
    grid.len() == coords.len() && std::iter::zip(coords, &grid).all(|(coord, n)| coord < n)
}

impl Side {
    fn new(mount: Writable, base: &Keys, numbers: &Numbers) -> Side {
        let view = base.iter().map(|(key, bytes)| (key.clone(), Leaf::File(bytes.clone()))).collect();
        let base_numbers = numbers.clone();
        let numbers = numbers.clone();
        Side { mount, base: base.clone(), base_numbers, base_at: 0, view, numbers, linked: BTreeSet::new() }
    }

    fn sides<'a>(&'a self, theirs: &'a Numbers) -> Sides<'a> {
        Sides { base: &self.base_numbers, ours: &self.numbers, theirs }
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// Settles the conflicts in the answer of a commit. Returns false if none were settled.
    fn settle(&self, answer: &[u8]) -> Result<bool, String> {
        let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return Ok(false) };
        let conflicts = answer["conflicts"].as_array().cloned().unwrap_or_default();
        let kinds: BTreeSet<&str> = conflicts.iter().map(|conflict| conflict["kind"].as_str().unwrap()).collect();
        if !kinds.iter().all(|kind| SETTLED_KINDS.contains(kind)) {
            return Ok(false);
        }
        let paths: BTreeSet<&str> = conflicts.iter().map(|conflict| conflict["path"].as_str().unwrap()).collect();
        for path in &paths {
            // A document and chunks of an array that this mount moved have its old path.
            let number = self.base_numbers.get(path.trim_start_matches('/'));
            let number = number.or(self.numbers.get(path.trim_start_matches('/'))).ok_or(format!("no node {path}"))?;
            let side = if is_ours(*number) { "--ours" } else { "--theirs" };
            let settled = icechunkfs(["resolve", self.mount.root().to_str().unwrap(), path, side]);
            if !settled.status.success() {
                return Err(format!("{path} cannot be settled: {}", settled.stderr));
            }
        }
        Ok(!paths.is_empty())
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.mount.read_control("status.json")).unwrap()
    }

    /// Puts the mount on another base, over which it shows `keys`.
    fn rebased(&mut self, keys: &Keys, numbers: &Numbers) {
        let untracked = untracked_of(&self.view);
        self.base = keys.clone();
        (self.base_numbers, self.numbers) = (numbers.clone(), numbers.clone());
        self.view = keys.iter().map(|(key, bytes)| (key.clone(), Leaf::File(bytes.clone()))).collect();
        self.view.extend(untracked);
    }

    fn check(&self) -> Result<(), String> {
        match difference(&scan(&self.mount.root())?, &self.view) {
            Some(what) => Err(what),
            None => Ok(()),
        }
    }

    /// Checks that this mount made every addition, deletion and move of the diff. Writing the same
    /// bytes is a change all the same: of a written chunk only its existence is checked.
    fn check_diff(&self) -> Result<(), String> {
        let diff: Value = run_on(self.mount.root(), &["diff", "--json"]).json();
        let view = keys_of(&self.view);
        let numbers = &self.numbers;
        let base_path =
            |number: &u64| self.base_numbers.iter().find(|(_, other)| *other == number).map(|(path, _)| path);
        let text = |value: &Value| value.as_str().unwrap_or_default().trim_start_matches('/').to_owned();
        for node in diff["nodes"].as_array().unwrap() {
            let path = text(&node["path"]);
            let from = text(&node["from"]);
            let number = numbers.get(&path);
            let was_at = number.and_then(base_path);
            let keys = |list: &str, path: &str| -> Vec<String> {
                let coords = node[list].as_array().into_iter().flatten();
                let coords = coords.map(|coords| serde_json::from_value::<Vec<u64>>(coords.clone()).unwrap());
                coords.map(|coords| join(path, &chunk_key(&coords))).collect()
            };
            let is_so = match node["what"].as_str().unwrap() {
                "added" => number.is_some() && was_at.is_none(),
                "changed" => was_at.is_some(),
                "deleted" => self.base_numbers.get(&path).is_some_and(|number| !numbers.values().any(|n| n == number)),
                "moved" => was_at == Some(&from) && path != from,
                "chunks" => {
                    let is_shown = |key: &String| view.contains_key(key);
                    let was = keys("deleted", was_at.map_or(path.as_str(), String::as_str));
                    keys("written", &path).iter().all(is_shown)
                        && !keys("deleted", &path).iter().any(is_shown)
                        && was.iter().all(|key| self.base.contains_key(key))
                }
                other => return Err(format!("{other} in the diff")),
            };
            if !is_so {
                return Err(format!("the diff says what nobody did: {node}"));
            }
        }
        Ok(())
    }

    /// Returns true if it shows its base, node by node.
    fn has_nothing_new(&self) -> bool {
        keys_of(&self.view) == self.base && self.numbers == self.base_numbers
    }

    fn at(&self, path: &str) -> PathBuf {
        self.mount.root().join(path)
    }

    fn is_free(&self, path: &str) -> bool {
        self.at(path).symlink_metadata().is_err()
            && Path::new(path).ancestors().skip(1).all(|above| {
                let found = self.at(above.to_str().unwrap()).symlink_metadata();
                found.is_err() || found.is_ok_and(|found| found.is_dir())
            })
    }

    fn is_array(&self, path: &str) -> bool {
        matches!(self.view.get(&join(path, "zarr.json")), Some(Leaf::File(document)) if grid_of(document).is_some())
    }

    /// Returns true if `path` may hold nodes: no array is above it.
    fn may_hold(&self, path: &str) -> bool {
        let above = |path: &str| path.rsplit_once('/').map_or(String::new(), |(above, _)| above.to_owned());
        let mut at = above(path);
        loop {
            if self.is_array(&at) {
                return false;
            }
            if at.is_empty() {
                return true;
            }
            at = above(&at);
        }
    }

    fn insert(&mut self, path: String, leaf: Leaf) {
        self.view.insert(path, leaf);
    }

    fn forget_below(&mut self, top: &str) {
        self.view.retain(|path, _| !is_at_or_below(path, top));
        self.linked.retain(|path| !is_at_or_below(path, top));
        self.numbers.retain(|path, _| !is_at_or_below(path, top));
    }

    fn write(&mut self, path: &str, content: Vec<u8>, how: Writing) -> io::Result<()> {
        let target = self.at(path);
        std::fs::create_dir_all(target.parent().unwrap())?;
        let how = if self.linked.contains(path) && how == Writing::Over { Writing::Rename } else { how };
        match how {
            Writing::Over => std::fs::write(&target, &content)?,
            Writing::Rename => {
                let temporary = target.with_file_name("w.0123.partial");
                std::fs::write(&temporary, &content)?;
                std::fs::rename(&temporary, &target)?;
            }
            Writing::Anew => {
                if target.symlink_metadata().is_ok() {
                    std::fs::remove_file(&target)?;
                }
                std::fs::write(&target, &content)?;
            }
        }
        self.linked.remove(path);
        if let Some(node) = path.strip_suffix("zarr.json") {
            self.numbers.entry(node.trim_end_matches('/').to_owned()).or_insert_with(fresh);
        }
        self.insert(path.to_owned(), Leaf::File(content));
        Ok(())
    }

    /// Does an operation of programs. Returns false if it has no target.
    fn operate(&mut self, step: &Step) -> io::Result<bool> {
        match step {
            Step::Group { path } | Step::Array { path, .. } => {
                if !self.is_free(path) && !self.at(path).is_dir() || !self.may_hold(path) {
                    return Ok(false);
                }
                let document_path = join(path, "zarr.json");
                // A directory that holds other nodes already must not become an array.
                let holds = self.view.keys().any(|key| is_at_or_below(key, path) && is_key(key));
                if self.view.contains_key(&document_path) || (holds && matches!(step, Step::Array { .. })) {
                    return Ok(false);
                }
                if Path::new(path).ancestors().skip(1).any(|above| self.at(above.to_str().unwrap()).is_file()) {
                    return Ok(false);
                }
                let content = match step {
                    // No two arrays are the same, so that the oracle can identify them.
                    Step::Array { grid, .. } => document(grid, fresh()),
                    _ => GROUP.to_owned(),
                };
                self.write(&document_path, content.into_bytes(), Writing::Anew)?;
            }
            Step::Chunk { array, coords, seed, how } => {
                let path = join(array, &chunk_key(coords));
                if !fits(&self.view, array, coords) || matches!(self.view.get(&path), Some(Leaf::Link(_))) {
                    return Ok(false);
                }
                self.write(&path, bytes(*seed), *how)?;
            }
            Step::RemoveChunk { array, coords } => {
                let path = join(array, &chunk_key(coords));
                if !fits(&self.view, array, coords) || !self.view.contains_key(&path) {
                    return Ok(false);
                }
                std::fs::remove_file(self.at(&path))?;
                self.forget_below(&path);
            }
            Step::RemoveChunks { array } => {
                let path = join(array, "c");
                if !self.is_array(array) || !self.at(&path).is_dir() {
                    return Ok(false);
                }
                std::fs::remove_dir_all(self.at(&path))?;
                self.forget_below(&path);
            }
            Step::RenameChunk { array, from, to } => {
                let old = join(array, &chunk_key(from));
                let new = join(array, &chunk_key(to));
                let is_ours = fits(&self.view, array, from) && fits(&self.view, array, to) && from != to;
                if !is_ours || !self.view.contains_key(&old) || matches!(self.view.get(&new), Some(Leaf::Link(_))) {
                    return Ok(false);
                }
                std::fs::create_dir_all(self.at(&new).parent().unwrap())?;
                // Two names of one file: a rename does nothing.
                if self.linked.contains(&old) && self.linked.contains(&new) {
                    return Ok(false);
                }
                std::fs::rename(self.at(&old), self.at(&new))?;
                let leaf = self.view.remove(&old).unwrap();
                if self.linked.remove(&old) {
                    self.linked.insert(new.clone());
                } else {
                    self.linked.remove(&new);
                }
                self.insert(new, leaf);
            }
            Step::Attributes { path, seed } => {
                let key = join(path, "zarr.json");
                let Some(Leaf::File(old)) = self.view.get(&key) else { return Ok(false) };
                let content = match grid_of(old) {
                    Some(_) => with_attribute(old, *seed),
                    None => format!(r#"{{"zarr_format":3,"node_type":"group","attributes":{{"seed":{seed}}}}}"#),
                };
                self.write(&key, content.into_bytes(), if seed % 2 == 0 { Writing::Over } else { Writing::Rename })?;
            }
            Step::Resize { array, grid } => {
                let key = join(array, "zarr.json");
                let Some(Leaf::File(old)) = self.view.get(&key).cloned() else { return Ok(false) };
                let Some(before) = grid_of(&old).filter(|before| before.len() == grid.len() && before != grid) else {
                    return Ok(false);
                };
                let top = join(array, "c");
                let chunks: Vec<String> = self.view.keys().filter(|key| is_at_or_below(key, &top)).cloned().collect();
                for chunk in chunks {
                    let coords: Vec<u64> =
                        chunk[top.len() + 1..].split('/').filter_map(|part| part.parse().ok()).collect();
                    let is_chunk = coords.len() == before.len();
                    if is_chunk && std::iter::zip(&coords, grid).any(|(coord, n)| coord >= n) {
                        std::fs::remove_file(self.at(&chunk))?;
                        self.forget_below(&chunk);
                    }
                }
                let document = with_shape(&old, grid);
                self.write(&key, document.into_bytes(), Writing::Rename)?;
            }
            Step::Remove { path } => {
                let Ok(found) = self.at(path).symlink_metadata() else { return Ok(false) };
                if found.is_dir() {
                    std::fs::remove_dir_all(self.at(path))?;
                } else {
                    std::fs::remove_file(self.at(path))?;
                }
                self.forget_below(path);
            }
            Step::Rename { from, to } => {
                let is_node = self.view.contains_key(&join(from, "zarr.json"));
                if !is_node || !self.is_free(to) || is_at_or_below(to, from) || !self.may_hold(to) {
                    return Ok(false);
                }
                std::fs::create_dir_all(self.at(to).parent().unwrap())?;
                std::fs::rename(self.at(from), self.at(to))?;
                self.moved(&[(from, to)]);
            }
            Step::Exchange { one, other } => {
                let is_node = |path: &str| self.view.contains_key(&join(path, "zarr.json"));
                let is_within = is_at_or_below(one, other) || is_at_or_below(other, one);
                if !is_node(one) || !is_node(other) || is_within {
                    return Ok(false);
                }
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    self.at(one),
                    rustix::fs::CWD,
                    self.at(other),
                    rustix::fs::RenameFlags::EXCHANGE,
                )?;
                self.moved(&[(one, other), (other, one)]);
            }
            Step::Copy { from, to, links } => {
                if !self.is_array(from) || !self.is_free(to) || !self.may_hold(to) {
                    return Ok(false);
                }
                let files: Vec<(String, Leaf)> =
                    self.view.iter().map(|(path, leaf)| (path.clone(), leaf.clone())).collect();
                for (path, leaf) in files.into_iter().filter(|(path, _)| is_at_or_below(path, from) && is_key(path)) {
                    let Leaf::File(_) = leaf else { continue };
                    let new = format!("{to}{}", &path[from.len()..]);
                    std::fs::create_dir_all(self.at(&new).parent().unwrap())?;
                    if *links {
                        std::fs::hard_link(self.at(&path), self.at(&new))?;
                        self.linked.extend([path, new.clone()]);
                    } else {
                        std::fs::copy(self.at(&path), self.at(&new))?;
                    }
                    if let Some(node) = new.strip_suffix("/zarr.json") {
                        self.numbers.insert(node.to_owned(), fresh());
                    }
                    self.insert(new, leaf);
                }
            }
            Step::Link { array, coords, to } => {
                let path = join(array, &chunk_key(coords));
                let Some(leaf @ Leaf::File(_)) = self.view.get(&path).cloned() else { return Ok(false) };
                if !self.is_free(to) || !self.at(to).parent().unwrap().is_dir() {
                    return Ok(false);
                }
                std::fs::hard_link(self.at(&path), self.at(to))?;
                self.linked.extend([path, to.clone()]);
                self.insert(to.clone(), leaf);
            }
            Step::Untracked { path, is_link, seed } => {
                if !self.is_free(path) || !self.at(path).parent().unwrap().is_dir() {
                    return Ok(false);
                }
                if *is_link {
                    let target = PathBuf::from(format!("target-{seed}"));
                    symlink(&target, self.at(path))?;
                    self.insert(path.clone(), Leaf::Link(target));
                } else {
                    self.write(path, bytes(*seed), Writing::Anew)?;
                }
            }
            Step::MakeDirectory { path } => {
                if !self.is_free(path) || !self.at(path).parent().unwrap().is_dir() {
                    return Ok(false);
                }
                std::fs::create_dir(self.at(path))?;
            }
            Step::Commit { .. } | Step::Refresh | Step::Discard | Step::Remount | Step::Kill => return Ok(false),
        }
        Ok(true)
    }

    fn moved(&mut self, pairs: &[(&str, &str)]) {
        let to = |path: &str| {
            let pair = pairs.iter().find(|(from, _)| is_at_or_below(path, from));
            pair.map_or_else(|| path.to_owned(), |(from, to)| format!("{to}{}", &path[from.len()..]))
        };
        self.view = std::mem::take(&mut self.view).into_iter().map(|(path, leaf)| (to(&path), leaf)).collect();
        self.linked = std::mem::take(&mut self.linked).into_iter().map(|path| to(&path)).collect();
        self.numbers = renamed(&self.numbers, pairs);
    }
}

/// Returns the nodes of a view, by path, and the grid of those that are arrays.
pub fn arrays(view: &View) -> Vec<(String, Vec<u64>)> {
    let keys = keys_of(view);
    let all = nodes(&keys);
    let grid = |path: &String| Some((path.clone(), grid_of(&keys[&join(path, "zarr.json")])?));
    // An array below an array is ignored.
    all.iter().filter(|path| node_of(&all, path).is_none_or(|above| above != path.as_str())).filter_map(grid).collect()
}
