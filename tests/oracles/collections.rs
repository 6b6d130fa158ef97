//! Random histories of two repositories whose refs are pushed to each other while garbage is
//! collected: by this program, by the reference, and by collections that stop in the middle and
//! remove the rest of what they have found much later. After each step, every branch must have the
//! keys and bytes that a model of plain maps has. `ICECHUNKFS_COLLECTION_RUNS` sets the number of
//! histories, `ICECHUNKFS_SEED` the first seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use icechunkfs::times::system_clock;
use serde_json::Value;

use super::branches::{begin, mutate};
use super::merge::oracle::{Keys, is_at_or_below};
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::writing::Reference;
use crate::common::{block_on, copy_tree, icechunkfs, lab, place, run_on, run_with_fault, watchdog};

/// Runs in the ordinary run of tests, and in a full one.
const QUICK: usize = 3;
const FULL: usize = 8;
const STEPS: usize = 30;
const NAMES: [&str; 4] = ["main", "b1", "b2", "b3"];
const OBJECTS: [&str; 4] = ["chunks", "manifests", "snapshots", "transactions"];

struct Repo {
    place: PathBuf,
    branches: BTreeMap<String, Keys>,
    /// Objects that a collection which stands still will remove.
    pending: Vec<PathBuf>,
}

struct World {
    repos: [Repo; 2],
    log: Vec<String>,
    pushed: usize,
    refused: usize,
    directory: tempfile::TempDir,
}

impl Repo {
    fn run(&self, words: &[&str]) -> crate::common::Output {
        run_on(&self.place, words)
    }

    fn branch(&self, random: &mut Random) -> String {
        let names: Vec<&String> = self.branches.keys().collect();
        (*random.pick(&names)).clone()
    }

    fn objects(&self) -> Vec<PathBuf> {
        objects(&self.place)
    }

    fn resume(&mut self) {
        for name in std::mem::take(&mut self.pending) {
            let _ = std::fs::remove_file(self.place.join(name));
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut reference = Reference::open(&self.place);
        for (name, keys) in &self.branches {
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| reference.on(name).keys()));
            let found = found.map_err(|_| format!("branch {name} of {} cannot be read", self.place.display()))?;
            if found != *keys {
                let all = found.keys().chain(keys.keys());
                let differing: Vec<_> = all.filter(|key| found.get(*key) != keys.get(*key)).collect();
                return Err(format!("branch {name} of {}: {differing:?} differ", self.place.display()));
            }
        }
        Ok(())
    }
}

fn objects(place: &Path) -> Vec<PathBuf> {
    let list = |folder: &&str| {
        let entries = std::fs::read_dir(place.join(folder)).into_iter().flatten();
        let names: Vec<PathBuf> = entries.map(|entry| Path::new(folder).join(entry.unwrap().file_name())).collect();
        names
    };
    OBJECTS.iter().flat_map(list).collect()
}

impl World {
    fn new(seed: u64, random: &mut Random) -> World {
        // A seed that makes a repository of version 2.
        let begun = begin(3 * seed + 1, random, 30);
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        copy_tree(&begun.place, &one);
        icechunkfs(["clone", one.to_str().unwrap(), other.to_str().unwrap()]).success();
        let branches = BTreeMap::from([("main".to_owned(), begun.keys)]);
        let repos = [one, other].map(|place| Repo { place, branches: branches.clone(), pending: Vec::new() });
        World { repos, log: Vec::new(), pushed: 0, refused: 0, directory }
    }

    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let at = random.below(2);
        let said = match random.below(100) {
            0..22 => self.commit(random, at),
            22..30 => self.create(random, at),
            30..38 => self.delete(random, at),
            38..60 => self.push(random, at)?,
            60..66 => self.collect(random, at),
            66..72 => self.begin_collection(random, at),
            72..80 => self.collect_pushed(random, at)?,
            80..86 => self.restore(random, at)?,
            86..90 => self.repack(random, at),
            90..96 => self.merge(random, at)?,
            _ => {
                self.repos[at].resume();
                "the collection goes on".to_owned()
            }
        };
        self.log.push(format!("{at}: {said}"));
        self.repos.iter().try_for_each(Repo::check)
    }

    fn commit(&mut self, random: &mut Random, at: usize) -> String {
        let repo = &mut self.repos[at];
        let name = repo.branch(random);
        let from = repo.branches[&name].clone();
        let mut to = from.clone();
        (0..1 + random.below(5)).for_each(|_| mutate(random, &mut to));
        if from != to {
            Reference::open(&repo.place).on(&name).change(&from, &to);
            repo.branches.insert(name.clone(), to);
        }
        format!("commit to {name}")
    }

    fn create(&mut self, random: &mut Random, at: usize) -> String {
        let repo = &mut self.repos[at];
        let name = (*random.pick(&NAMES)).to_owned();
        let from = repo.branch(random);
        if !repo.branches.contains_key(&name) {
            repo.run(&["branch", "create", &name, "--at", &from]).success();
            repo.branches.insert(name.clone(), repo.branches[&from].clone());
        }
        format!("create {name} at {from}")
    }

    fn delete(&mut self, random: &mut Random, at: usize) -> String {
        let repo = &mut self.repos[at];
        let name = repo.branch(random);
        if name != "main" {
            repo.run(&["branch", "delete", &name, "--yes"]).success();
            repo.branches.remove(&name);
        }
        format!("delete {name}")
    }

    fn push(&mut self, random: &mut Random, at: usize) -> Result<String, String> {
        let to = self.repos[1 - at].place.clone();
        let name = self.repos[at].branch(random);
        let mut words = vec!["push", to.to_str().unwrap()];
        let is_one = random.chance(60);
        words.extend(is_one.then_some(name.as_str()));
        words.extend(random.chance(30).then_some("--force"));
        words.push("--json");
        let output = self.repos[at].run(&words);
        let what = format!("push {:?}: {}", &words[2..], output.all());
        let Ok(said) = serde_json::from_slice::<Value>(&output.stdout) else {
            if !what.contains("a collection of garbage began") {
                return Err(what);
            }
            self.refused += 1;
            return Ok(what);
        };
        for pushed in said["refs"].as_array().unwrap() {
            let name = pushed["name"].as_str().unwrap();
            if ["created", "forward", "forced", "unchanged"].contains(&pushed["change"].as_str().unwrap()) {
                let keys = self.repos[at].branches[name].clone();
                self.repos[1 - at].branches.insert(name.to_owned(), keys);
                self.pushed += usize::from(pushed["change"] != "unchanged");
            }
        }
        Ok(what)
    }

    fn collect(&mut self, random: &mut Random, at: usize) -> String {
        let repo = &mut self.repos[at];
        // Two collections at the same time may remove what a push has stored between them.
        repo.resume();
        if random.chance(50) {
            repo.run(&["gc", "--older-than", "0s", "--yes"]).success();
            return "gc".to_owned();
        }
        block_on(lab::collect_by_reference(&repo.place, system_clock() + 1_000_000));
        "gc by the reference".to_owned()
    }

    /// A collection stops at a random point. All that it would have removed goes later.
    fn begin_collection(&mut self, random: &mut Random, at: usize) -> String {
        let repo = &mut self.repos[at];
        repo.resume();
        let probe = tempfile::tempdir_in(self.directory.path()).unwrap();
        copy_tree(&repo.place, &probe.path().join("probe"));
        run_on(probe.path().join("probe"), &["gc", "--older-than", "0s", "--yes"]).success();
        let left = objects(&probe.path().join("probe"));
        let point = *random.pick(&["gc.repo.done", "gc.snapshots.done", "gc.manifests.done"]);
        let words = ["gc", "--older-than", "0s", "--yes"];
        if !run_with_fault(&repo.place, &words, &format!("{point}=abort")).status.success() {
            repo.pending = repo.objects().into_iter().filter(|name| !left.contains(name)).collect();
        }
        format!("gc until {point}, {} objects to go", repo.pending.len())
    }

    /// A branch that both have is deleted in one of them, and pushed again while its garbage is
    /// collected.
    fn collect_pushed(&mut self, random: &mut Random, at: usize) -> Result<String, String> {
        let mut said = vec![self.commit(random, at), self.push(random, at)?];
        said.push(self.delete(random, 1 - at));
        said.push(self.begin_collection(random, 1 - at));
        said.push(self.push(random, at)?);
        Ok(said.join("; "))
    }

    fn restore(&mut self, random: &mut Random, at: usize) -> Result<String, String> {
        let repo = &mut self.repos[at];
        let name = repo.branch(random);
        let from = repo.branch(random);
        let path = *random.pick(&["a", "g/a", "g", "h", "b", "x"]);
        let source = repo.branches[&from].clone();
        let output = repo.run(&["restore", path, "--from", &from, "--branch", &name]);
        let what = format!("restore {path} of {name} from {from}: {}", output.all());
        if output.status.success() {
            let keys = repo.branches.get_mut(&name).unwrap();
            keys.retain(|key, _| !is_at_or_below(key, path));
            keys.extend(
                source.iter().filter(|(key, _)| is_at_or_below(key, path)).map(|(k, v)| (k.clone(), v.clone())),
            );
            // Groups above the path that were missing are restored, too.
            if let Some((above, _)) = path.rsplit_once('/') {
                let document = format!("{above}/zarr.json");
                if let Some(bytes) = source.get(&document) {
                    keys.entry(document).or_insert_with(|| bytes.clone());
                }
            }
        }
        Ok(what)
    }

    fn repack(&mut self, random: &mut Random, at: usize) -> String {
        let repo = &mut self.repos[at];
        let name = repo.branch(random);
        let output = repo.run(&["rewrite-manifests", "--repack", "--yes", "--branch", &name]);
        format!("repack {name}: {}", output.all())
    }

    /// Each key of a merge is as on one of both sides.
    fn merge(&mut self, random: &mut Random, at: usize) -> Result<String, String> {
        let repo = &mut self.repos[at];
        let from = repo.branch(random);
        let into = repo.branch(random);
        let mut words = vec!["merge", from.as_str(), "--into", into.as_str()];
        words.extend(*random.pick(&[&[][..], &["--on-conflict", "ours"], &["--on-conflict", "theirs"]]));
        words.extend(random.chance(40).then_some("--keep-commits"));
        let output = repo.run(&words);
        let what = format!("{words:?}: {}", output.all());
        if output.status.success() {
            let found = Reference::open(&repo.place).on(&into).keys();
            let one = &repo.branches[&from];
            let other = &repo.branches[&into];
            if let Some((key, _)) =
                found.iter().find(|(key, bytes)| one.get(*key) != Some(bytes) && other.get(*key) != Some(bytes))
            {
                return Err(format!("{key} is of neither side: {what}"));
            }
            repo.branches.insert(into.clone(), found);
        }
        Ok(what)
    }
}

fn run(seed: u64) -> (usize, usize) {
    let mut random = Random::new(seed);
    let mut world = World::new(seed, &mut random);
    for _ in 0..STEPS {
        if let Err(why) = world.step(&mut random) {
            panic!("seed {seed}: {why}\n{}", world.log.join("\n"));
        }
    }
    for repo in &mut world.repos {
        repo.resume();
        repo.check().unwrap_or_else(|why| panic!("seed {seed}: {why}\n{}", world.log.join("\n")));
        repo.run(&["verify"]).success();
    }
    (world.pushed, world.refused)
}

#[test]
fn pushes_and_collections_lose_nothing() {
    if !place::needs_directory() {
        return;
    }
    watchdog();
    let runs = length("ICECHUNKFS_COLLECTION_RUNS", QUICK, FULL);
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let totals = (0..runs as u64).map(|n| run(first + n)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{totals:?} pushes and refused ones");
    assert!(totals.0 > runs, "{totals:?}");
}
