//! Restores of random paths from random commits, compared with an independent model on plain maps
//! of keys.
//!
//! The reference implementation makes a random history with moves. What `icechunkfs restore` makes
//! of it, on a branch and in a mount, must be below the path what the reference reads in the old
//! commit, and elsewhere what it was. `ICECHUNKFS_RESTORES` sets the number of histories,
//! `ICECHUNKFS_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::branches::{Begun, begin, is_free, mutate, random_path};
use super::merge::oracle::{Keys, Numbers, is_at_or_below, join, nodes};
use super::merge::world::numbers_of;
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::writing::{Reference, Writable, put};
use crate::common::{self, icechunkfs, read_files};

/// Histories in the ordinary run, and in a full one.
const QUICK: usize = 15;
const FULL: usize = 60;
/// Commits of each history.
const COMMITS: usize = 5;
/// Restores in each history.
const RESTORES: usize = 3;

/// A commit as it must be read.
#[derive(Clone)]
struct Commit {
    id: String,
    keys: Keys,
    numbers: Numbers,
}

struct History {
    begun: Begun,
    known: BTreeMap<String, u64>,
    commits: Vec<Commit>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    restored: usize,
    unchanged: usize,
    renamed: usize,
    refused: usize,
}

impl History {
    fn new(seed: u64, random: &mut Random) -> History {
        let begun = begin(seed, random, 30);
        let mut history = History { begun, known: BTreeMap::new(), commits: Vec::new() };
        history.record();
        for _ in 0..COMMITS {
            history.work(random);
        }
        history
    }

    /// Makes a random commit with the reference.
    fn work(&mut self, random: &mut Random) {
        let from = self.tip().keys.clone();
        let paths: Vec<String> = nodes(&from).into_iter().filter(|path| !path.is_empty()).collect();
        let to = random_path(random);
        if let Some(path) = random.pick_any(&paths).filter(|_| !self.begun.is_v1 && random.chance(40))
            && is_free(&from, &to)
            && !is_at_or_below(&to, path)
        {
            self.begun.reference.rename(path, &to);
        } else {
            let mut keys = from.clone();
            for _ in 0..1 + random.below(8) {
                mutate(random, &mut keys);
            }
            if keys == from {
                return;
            }
            self.begun.reference.change(&from, &keys);
        }
        self.record();
    }

    /// Notes what the reference reads at the tip.
    fn record(&mut self) {
        // Opened anew: the reference keeps what it has read of a repository.
        self.begun.reference = Reference::open(&self.begun.place);
        let reference = &self.begun.reference;
        let id = reference.history()[0].0.clone();
        let keys = reference.keys();
        let numbers = numbers_of(reference, &mut self.known);
        self.commits.push(Commit { id, keys, numbers });
    }

    fn tip(&self) -> &Commit {
        self.commits.last().unwrap()
    }
}

/// Returns the name that `then` has for `path` of `now`.
fn old_name(now: &Numbers, then: &Numbers, path: &str) -> Option<String> {
    let mut above = path;
    loop {
        let rest = path[above.len()..].trim_start_matches('/');
        let moved = now.get(above).and_then(|id| then.iter().find(|(_, other)| *other == id)).map(|(path, _)| path);
        let named = then.contains_key(above).then(|| above.to_owned());
        for found in named.into_iter().chain(moved.cloned()) {
            let name = if rest.is_empty() { found } else { join(&found, rest) };
            if then.contains_key(&name) {
                return Some(name);
            }
        }
        if above.is_empty() {
            return None;
        }
        above = above.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
}

/// Returns the keys after the restore of `path` from `then`; none if it has to be refused.
fn expected(now: &Keys, numbers: &Numbers, then: &Commit, path: &str) -> Option<Keys> {
    let name = old_name(numbers, &then.numbers, path)?;
    let mut keys: Keys = now.clone();
    keys.retain(|key, _| !is_at_or_below(key, path));
    for (key, bytes) in then.keys.iter().filter(|(key, _)| is_at_or_below(key, &name)) {
        let rest = key[name.len()..].trim_start_matches('/');
        keys.insert(join(path, rest), bytes.clone());
    }
    let mut above = path;
    while let Some((parent, _)) = above.rsplit_once('/') {
        above = parent;
        let document = join(above, "zarr.json");
        match keys.get(&document) {
            Some(bytes) if super::merge::world::grid_of(bytes).is_some() => return None,
            Some(_) => {}
            None => {
                keys.insert(document.clone(), then.keys.get(&document)?.clone());
            }
        }
    }
    Some(keys)
}

/// Returns the names of the objects of chunks.
fn chunk_objects(place: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(place.join("chunks")).into_iter().flatten();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn differing(one: &Keys, other: &Keys) -> Vec<String> {
    one.keys().chain(other.keys()).filter(|key| one.get(*key) != other.get(*key)).cloned().collect()
}

/// Checks that nodes that both commits have below the path, under whatever name, are the same nodes
/// afterwards.
fn check_identity(before: &Numbers, then: &Numbers, after: &Numbers, path: &str, name: &str) {
    for (at, number) in then.iter().filter(|(at, _)| is_at_or_below(at, name)) {
        let here = before.iter().any(|(path_now, other)| other == number && is_at_or_below(path_now, path));
        let rest = at[name.len()..].trim_start_matches('/');
        let restored = if rest.is_empty() { path.to_owned() } else { join(path, rest) };
        if here {
            assert_eq!(after.get(&restored), Some(number), "{at} is another node at {restored}");
        }
    }
}

fn on_branch(history: &mut History, random: &mut Random, counts: &mut Counts) {
    let then = random.pick(&history.commits).clone();
    let now = history.tip().clone();
    let all: Vec<String> = then.numbers.keys().chain(now.numbers.keys()).cloned().collect();
    let path = random.pick(&all).clone();
    let shown = if path.is_empty() { "." } else { path.as_str() };
    let place = history.begun.place.clone();
    let objects = chunk_objects(&place);
    let words = ["restore", place.to_str().unwrap(), shown, "--from", &then.id, "--json"];
    let dry = icechunkfs([&words[..], &["--dry-run"]].concat());
    let output = icechunkfs(words);
    let what = format!("{shown} from {}: {}", then.id, output.stderr);
    let Some(wanted) = expected(&now.keys, &now.numbers, &then, &path) else {
        assert!(!output.status.success() && !dry.status.success(), "not refused: {what}");
        assert_eq!(Reference::open(&place).history()[0].0, now.id, "{what}");
        counts.refused += 1;
        return;
    };
    let said = output.json();
    assert_eq!(dry.json()["chunks"], said["chunks"], "{what}");
    let commits = Reference::open(&place).history().len();
    history.record();
    assert_eq!(differing(&history.tip().keys, &wanted), Vec::<String>::new(), "{what} {said}");
    assert_eq!(chunk_objects(&place), objects, "{what}");
    if said["snapshot"].is_null() {
        assert_eq!((&history.tip().id, &wanted), (&now.id, &now.keys), "{what}");
        counts.unchanged += 1;
    } else {
        counts.restored += 1;
        assert!(commits > 1);
    }
    let name = old_name(&now.numbers, &then.numbers, &path).unwrap();
    counts.renamed += usize::from(name != path);
    // The transaction log has no moves in version 1, and only some in version 2.
    if !history.begun.is_v1 && said["moved"].as_array().unwrap().is_empty() {
        check_identity(&now.numbers, &then.numbers, &history.tip().numbers, &path, &name);
    }
}

fn in_mount(history: &mut History, random: &mut Random, counts: &mut Counts) {
    let place = history.begun.place.clone();
    let mount = Writable::of(&place, &[]);
    for _ in 0..RESTORES {
        let then = random.pick(&history.commits).clone();
        let now = history.tip().clone();
        let all: Vec<String> = then.numbers.keys().chain(now.numbers.keys()).cloned().collect();
        let path = random.pick(&all).clone();
        let shown = if path.is_empty() { "." } else { path.as_str() };
        // Changes that are not committed: those below the path go, the others stay.
        let mut dirty = now.keys.clone();
        for _ in 0..random.below(4) {
            let key = random.pick(&dirty.keys().cloned().collect::<Vec<_>>()).clone();
            if !key.ends_with("zarr.json") && random.chance(50) {
                std::fs::remove_file(mount.root().join(&key)).unwrap();
                dirty.remove(&key);
            } else if !key.ends_with("zarr.json") {
                let bytes = random.bytes(100);
                put(&mount.root().join(&key), &bytes).unwrap();
                dirty.insert(key, bytes);
            }
        }
        let objects = chunk_objects(&place);
        let output = icechunkfs(["restore", mount.root().to_str().unwrap(), shown, "--from", &then.id, "--json"]);
        let what = format!("{shown} from {} in a mount of {}: {}", then.id, now.id, output.stderr);
        let wanted = expected(&dirty, &now.numbers, &then, &path);
        let is_refused = !output.status.success();
        let wanted = match wanted {
            Some(wanted) if !is_refused => wanted,
            Some(_) => panic!("refused without a reason: {what}"),
            None => {
                assert!(is_refused, "not refused: {what}");
                counts.refused += 1;
                dirty
            }
        };
        assert_eq!(differing(&read_files(&mount.root()), &wanted), Vec::<String>::new(), "{what}");
        if random.chance(30) {
            mount.kill_and_remount();
            assert_eq!(differing(&read_files(&mount.root()), &wanted), Vec::<String>::new(), "resumed: {what}");
        }
        assert_eq!(chunk_objects(&place), objects, "{what}");
        mount.commit("restored").unwrap_or_else(|e| panic!("{e}: {what} {}", mount.read_control("status")));
        history.record();
        assert_eq!(differing(&history.tip().keys, &wanted), Vec::<String>::new(), "committed: {what}");
        assert_eq!(differing(&read_files(&mount.root()), &wanted), Vec::<String>::new(), "after the commit: {what}");
        if is_refused {
            continue;
        }
        counts.restored += 1;
        let name = old_name(&now.numbers, &then.numbers, &path).unwrap();
        counts.renamed += usize::from(name != path);
    }
    mount.unmount();
}

fn run(seed: u64) -> Counts {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut counts = Counts::default();
    let mut history = History::new(seed, &mut random);
    if seed.is_multiple_of(2) {
        in_mount(&mut history, &mut random, &mut counts);
    } else {
        (0..RESTORES).for_each(|_| on_branch(&mut history, &mut random, &mut counts));
    }
    icechunkfs(["verify", history.begun.place.to_str().unwrap()]).success();
    counts
}

#[test]
fn restored_paths_are_as_they_were_and_others_as_they_are() {
    common::watchdog();
    let histories = length("ICECHUNKFS_RESTORES", QUICK, FULL);
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let next = AtomicUsize::new(0);
    let totals = std::sync::Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= histories {
                        break;
                    }
                    let counts = run(first + n as u64);
                    let mut totals = totals.lock().unwrap();
                    totals.restored += counts.restored;
                    totals.unchanged += counts.unchanged;
                    totals.renamed += counts.renamed;
                    totals.refused += counts.refused;
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    assert!(
        histories < FULL || (totals.restored > histories && totals.renamed > 3 && totals.refused > 5),
        "{totals:?}"
    );
}
