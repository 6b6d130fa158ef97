//! Merges of branches, compared with the independent merge of [`super::merge::oracle`].
//!
//! The reference implementation makes random commits on two branches, which `icechunkfs merge` then
//! merges, several times and in both directions. What the reference reads afterwards must be what
//! the oracle says, and a refusal must have a reason. `ICECHUNKFS_MERGE_PAIRS` sets the number of
//! pairs of branches, `ICECHUNKFS_SEED` the first seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::times::system_clock;

use super::merge::oracle::{self, Keys, Numbers, Sides, is_at_or_below, join, nodes};
use super::merge::world::{document, grid_of, numbers_of, touched, with_attribute, with_shape};
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference};
use crate::common::{self, block_on, icechunkfs, lab};

/// Pairs of branches in the ordinary run, and in a full one.
const QUICK: usize = 40;
const FULL: usize = 200;
/// Merges of each pair.
const MERGES: usize = 4;

/// A branch, and what it must contain.
#[derive(Clone)]
struct Branch {
    name: &'static str,
    keys: Keys,
    numbers: Numbers,
}

struct Pair {
    place: PathBuf,
    reference: Reference,
    is_v1: bool,
    known: BTreeMap<String, u64>,
    /// State that both branches were made from.
    base: (Keys, Numbers),
    main: Branch,
    other: Branch,
    _directory: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    merged: usize,
    refused: usize,
    resolved: usize,
    nothing: usize,
    /// Merged commit by commit, more than one of them.
    kept: usize,
}

pub fn random_path(random: &mut Random) -> String {
    format!("{}{}", random.pick(&["", "g/", "h/", "g/i/"]), random.pick(&["a", "b", "x", "y"]))
}

/// Removes the node at `path` and all below.
fn remove(keys: &mut Keys, path: &str) {
    keys.retain(|key, _| !is_at_or_below(key, path));
}

fn arrays(keys: &Keys) -> Vec<(String, Vec<u64>)> {
    let documents = keys.iter().filter_map(|(key, bytes)| Some((key.strip_suffix("/zarr.json")?, bytes)));
    documents.filter_map(|(path, bytes)| Some((path.to_owned(), grid_of(bytes)?))).collect()
}

/// Returns true if a node can be created at `path`: it is free, and all above are groups.
pub fn is_free(keys: &Keys, path: &str) -> bool {
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/') {
        let Some(bytes) = keys.get(&join(parent, "zarr.json")) else { return false };
        if grid_of(bytes).is_some() {
            return false;
        }
        above = parent;
    }
    !keys.keys().any(|key| is_at_or_below(key, path))
}

/// Makes one random change to `keys`, which may come to nothing.
pub fn mutate(random: &mut Random, keys: &mut Keys) {
    let seed = random.next() % 1_000_000_000;
    let content = || format!("content {seed}").repeat(1 + (seed % 40) as usize).into_bytes();
    let known = arrays(keys);
    let array = random.pick_any(&known).cloned();
    let coords = |random: &mut Random, grid: &[u64]| {
        grid.iter().fold("c".to_owned(), |key, n| format!("{key}/{}", random.below(*n as usize)))
    };
    match (random.below(100), array) {
        (0..6, _) => {
            let path = random_path(random);
            if is_free(keys, &path) {
                keys.insert(join(&path, "zarr.json"), document(&[2 + seed % 4], seed).into_bytes());
            }
        }
        (6..8, _) => {
            let path = (*random.pick(&["g", "h", "g/i"])).to_owned();
            if is_free(keys, &path) {
                keys.insert(join(&path, "zarr.json"), GROUP.as_bytes().to_vec());
            }
        }
        (8..75, Some((path, grid))) => {
            keys.insert(join(&path, &coords(random, &grid)), content());
        }
        (75..83, Some((path, grid))) => {
            keys.remove(&join(&path, &coords(random, &grid)));
        }
        (83..87, Some((path, _))) => {
            let document = with_attribute(&keys[&join(&path, "zarr.json")], seed);
            keys.insert(join(&path, "zarr.json"), document.into_bytes());
        }
        (87..90, Some((path, grid))) => {
            let new: Vec<u64> = grid.iter().map(|_| 1 + random.below(6) as u64).collect();
            let document = with_shape(&keys[&join(&path, "zarr.json")], &new);
            keys.insert(join(&path, "zarr.json"), document.into_bytes());
            let chunks = join(&path, "c/");
            keys.retain(|key, _| {
                let Some(rest) = key.strip_prefix(&chunks) else { return true };
                rest.split('/').zip(&new).all(|(at, n)| at.parse::<u64>().unwrap() < *n)
            });
        }
        (90..94, Some((path, _))) => remove(keys, &path),
        (94..95, _) => remove(keys, ["g", "h", "g/i"][random.below(3)]),
        _ => {}
    }
}

/// New repository with one commit.
pub struct Begun {
    pub directory: tempfile::TempDir,
    pub place: PathBuf,
    pub is_v1: bool,
    pub reference: Reference,
    pub keys: Keys,
}

/// Creates a repository, every third one of version 1, whose commit is the result of so many random
/// changes.
pub fn begin(seed: u64, random: &mut Random, changes: usize) -> Begun {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let is_v1 = seed.is_multiple_of(3);
    let version = if is_v1 { SpecVersionBin::V1 } else { SpecVersionBin::V2 };
    block_on(lab::create(&place, version, RepositoryConfig::default()));
    let reference = Reference::open(&place);
    let mut keys = Keys::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    for group in ["g", "h"] {
        keys.insert(join(group, "zarr.json"), GROUP.as_bytes().to_vec());
    }
    (0..changes).for_each(|_| mutate(random, &mut keys));
    reference.change(&Keys::new(), &keys);
    Begun { directory, place, is_v1, reference, keys }
}

impl Pair {
    fn new(seed: u64, random: &mut Random) -> Pair {
        let Begun { directory, place, is_v1, reference, keys } = begin(seed, random, 30);
        reference.create_branch("dev");
        let mut known = BTreeMap::new();
        let numbers = numbers_of(&reference, &mut known);
        let branch = |name| Branch { name, keys: keys.clone(), numbers: numbers.clone() };
        let main = branch("main");
        let other = branch("dev");
        let base = (keys.clone(), numbers.clone());
        Pair { place, reference, is_v1, known, base, main, other, _directory: directory }
    }

    /// Makes random commits on a branch.
    fn work(&mut self, random: &mut Random, on_main: bool) {
        for _ in 0..random.below(3) {
            let branch = if on_main { &mut self.main } else { &mut self.other };
            let reference = self.reference.on(branch.name);
            let from = branch.keys.clone();
            let moved = nodes(&from).into_iter().filter(|path| !path.is_empty()).collect::<Vec<_>>();
            let to = random_path(random);
            // The reference makes commits that move nodes of nothing but moves.
            if let Some(path) = random.pick_any(&moved).filter(|_| !self.is_v1 && random.chance(8))
                && is_free(&from, &to)
                && !is_at_or_below(&to, path)
            {
                reference.rename(path, &to);
                let name = |key: &String| {
                    if is_at_or_below(key, path) { format!("{to}{}", &key[path.len()..]) } else { key.clone() }
                };
                branch.keys = from.iter().map(|(key, bytes)| (name(key), bytes.clone())).collect();
            } else {
                for _ in 0..1 + random.below(4) {
                    mutate(random, &mut branch.keys);
                }
                if branch.keys == from {
                    continue;
                }
                reference.change(&from, &branch.keys);
            }
            branch.numbers = numbers_of(reference, &mut self.known);
            assert_eq!(reference.keys(), branch.keys, "the test's own model of its commits");
        }
    }

    /// Lets the reference collect garbage: for a day, nothing tells whether it still removes
    /// objects.
    fn collect(&mut self) {
        self.reference.create_branch("gone");
        let from = self.reference.on("main").keys();
        let mut to = from.clone();
        to.insert("gone/zarr.json".to_owned(), GROUP.as_bytes().to_vec());
        self.reference.on("gone").change(&from, &to);
        self.reference.delete_branch("gone");
        block_on(lab::collect_by_reference(&self.place, system_clock() + 1_000_000));
        self.reference = Reference::open(&self.place);
    }

    /// Returns true if both branches have the nodes and documents of the base.
    fn only_chunks_differ(&self) -> bool {
        let documents = |keys: &Keys| -> Keys {
            keys.iter().filter(|(key, _)| key.ends_with("zarr.json")).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        let (base, numbers) = &self.base;
        [&self.main, &self.other]
            .iter()
            .all(|branch| documents(&branch.keys) == documents(base) && branch.numbers == *numbers)
    }

    /// Returns true if both branches have the nodes of the base, and places for each other's
    /// chunks.
    fn only_contents_differ(&self) -> bool {
        let (base, numbers) = &self.base;
        let has_same_nodes = |branch: &Branch| branch.numbers == *numbers;
        has_same_nodes(&self.main)
            && has_same_nodes(&self.other)
            && oracle::chunks_have_places(base, &self.main.keys, &self.other.keys)
    }

    /// Merges one branch into the other, and compares the outcome with the oracle's.
    fn merge(&mut self, random: &mut Random, counts: &mut Counts) -> Result<(), String> {
        let into_main = random.chance(70);
        let (source, target) = if into_main { (&self.other, &self.main) } else { (&self.main, &self.other) };
        let on_conflict = *random.pick(&[None, None, Some("ours"), Some("theirs")]);
        let (base, base_numbers) = &self.base;
        let sides = Sides { base: base_numbers, ours: &source.numbers, theirs: &target.numbers };
        let expected = oracle::merge(base, &source.keys, &target.keys, &sides);
        let before = self.reference.on(target.name).history();
        let mut words: Vec<&str> =
            vec!["merge", self.place.to_str().unwrap(), source.name, "--into", target.name, "--json"];
        let keep_commits = random.chance(40);
        words.extend(keep_commits.then_some("--keep-commits"));
        words.extend(on_conflict.iter().flat_map(|whose: &&str| ["--on-conflict", *whose]));
        let output = icechunkfs(&words);
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = &output.stderr;
        let what = format!("{} into {} ({on_conflict:?}, {keep_commits}): {said}{errors}", source.name, target.name);
        // Opened anew: the reference keeps what it has read of a repository.
        let mut reference = Reference::open(&self.place);
        let found = reference.on(target.name).keys();
        let history = reference.history();
        if !output.status.success() {
            let one = touched((base, base_numbers), (&source.keys, &source.numbers)).nodes;
            let other = touched((base, base_numbers), (&target.keys, &target.numbers)).nodes;
            // Where documents were merged before, what both have in common may be in doubt.
            let may_doubt = errors.contains("it is not clear what") && !self.only_chunks_differ();
            let is_apart = oracle::are_apart(&one, &other) || (self.only_contents_differ() && !may_doubt);
            // One of the commits may conflict although all together do not: what it changed was
            // changed back.
            if expected.conflicts.is_empty() && is_apart && !keep_commits {
                return Err(format!("refused without a reason: {what}"));
            }
            if found != target.keys || history != before {
                return Err(format!("refused, and changed all the same: {what}"));
            }
            counts.refused += 1;
            return Ok(());
        }
        let wanted = match on_conflict {
            _ if expected.conflicts.is_empty() => &expected.ours_win,
            None => return Err(format!("merged in spite of conflicts {:?}: {what}", expected.conflicts)),
            // Each commit's conflicts are resolved: one may shrink an array and the next one
            // enlarge it again, which together are no change.
            Some(_) if keep_commits => &found,
            // For git, ours is the branch that is merged into.
            Some("ours") => &expected.theirs_win,
            Some(_) => &expected.ours_win,
        };
        if found != *wanted {
            let differing: Vec<_> =
                found.keys().chain(wanted.keys()).filter(|key| found.get(*key) != wanted.get(*key)).collect();
            return Err(format!("{differing:?} are not as expected: {what}"));
        }
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        let made: Vec<&str> = report["made"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
        let new: Vec<&str> = history.iter().map(|(id, _)| id.as_str()).take(made.len()).rev().collect();
        if made != new || history.len() - before.len() != made.len() || !history.ends_with(&before) {
            return Err(format!("the history is now {history:?}: {what}"));
        }
        match made.len() {
            0 => counts.nothing += 1,
            1 => counts.merged += 1,
            more if keep_commits && more <= report["commits"].as_array().unwrap().len() => counts.kept += 1,
            more => return Err(format!("{more} commits: {what}")),
        }
        counts.resolved += usize::from(!expected.conflicts.is_empty());
        // A merge that had nothing to do records nothing; both branches then have the same changes.
        if history.len() > before.len() {
            self.base = (source.keys.clone(), source.numbers.clone());
        }
        let numbers = numbers_of(&reference, &mut self.known);
        let target = if into_main { &mut self.main } else { &mut self.other };
        (target.keys, target.numbers) = (found, numbers);
        self.reference = reference;
        Ok(())
    }
}

fn run(seed: u64) -> Result<Counts, String> {
    let mut random = Random::new(seed);
    let mut counts = Counts::default();
    let mut pair = Pair::new(seed, &mut random);
    for _ in 0..MERGES {
        pair.work(&mut random, true);
        pair.work(&mut random, false);
        if !pair.is_v1 && random.chance(25) {
            pair.collect();
        }
        pair.merge(&mut random, &mut counts)?;
    }
    verify(&pair.place);
    Ok(counts)
}

fn verify(place: &Path) {
    icechunkfs(["verify", place.to_str().unwrap()]).success();
}

#[test]
fn branches_merge_as_the_oracle_does() {
    common::watchdog();
    let pairs = length("ICECHUNKFS_MERGE_PAIRS", QUICK, FULL);
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let next = AtomicUsize::new(0);
    let totals = Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= pairs {
                        break;
                    }
                    let seed = first + n as u64;
                    let counts = run(seed).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                    let mut totals = totals.lock().unwrap();
                    totals.merged += counts.merged;
                    totals.refused += counts.refused;
                    totals.resolved += counts.resolved;
                    totals.nothing += counts.nothing;
                    totals.kept += counts.kept;
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    assert!(totals.merged > pairs / 2 && totals.refused > pairs / 10 && totals.resolved > pairs / 40, "{totals:?}");
    assert!(totals.kept > pairs / 10, "{totals:?}");
}
