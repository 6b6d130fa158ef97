//! A store that carries out a publication after it has refused it: whatever was written, committed
//! or killed meanwhile, the branch becomes the mount's tree, and other writers' work stays.
//!
//! The expected content is a plain map of files beside the mount, which knows nothing of commits.
use std::path::PathBuf;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

use crate::common::faulty::{Fault, Line};
use crate::common::lab;
use crate::common::lengths::{length, number};
use crate::common::moto::{self, command, commit, icechunkfs, repository, s3};
use crate::common::random::Random;
use crate::common::writing::{array, put};
use crate::common::{self, Files, Mount, assert_same, block_on, read_files, run, signal};

/// Chunks of each array.
const CHUNKS: usize = 6;
/// Names of arrays, to create and to move to.
const NAMES: [&str; 4] = ["x", "y", "z", "g/w"];

/// Returns true for the request that publishes a commit, in version 1 and 2.
fn publishes(request: &str) -> bool {
    request.starts_with("PUT ") && (request.contains("/repo ") || request.contains("/ref.json "))
}

/// A mount over a proxy that can delay publications, and another writer's mount beside it.
struct World {
    line: Line,
    repo: String,
    mount: Mount,
    others: Mount,
    port: u16,
    scratch: tempfile::TempDir,
    /// Expected files of the mount below `ours`.
    ours: Files,
    /// Files that the other writer has committed below `theirs`.
    theirs: Files,
    steps: Vec<String>,
}

/// Creates an empty repository of a version in the bucket.
fn create(port: u16, version: u64, name: &str) -> String {
    let repo = repository(name);
    if version == 2 {
        icechunkfs(port, &["init", &repo, "--zarr-group"]).success();
        return repo;
    }
    let directory = tempfile::tempdir().unwrap();
    block_on(lab::create(directory.path(), SpecVersionBin::V1, RepositoryConfig::default()));
    moto::upload(port, directory.path(), name)
}

impl World {
    fn new(port: u16, version: u64, name: &str) -> World {
        let repo = create(port, version, name);
        let line = Line::to(port);
        let scratch = tempfile::tempdir().unwrap();
        let others = moto::mount(port, &repo, &["--ephemeral"]);
        put(&others.path().join("zarr.json"), writing_group()).unwrap();
        put(&others.path().join("ours/zarr.json"), writing_group()).unwrap();
        put(&others.path().join("theirs/zarr.json"), array(&[100], &[1])).unwrap();
        commit(&others).unwrap();
        let mut world = World {
            mount: Mount::prepare(),
            line,
            repo,
            others,
            port,
            scratch,
            ours: Files::from([("zarr.json".to_owned(), writing_group().into())]),
            theirs: Files::from([("zarr.json".to_owned(), array(&[100], &[1]).into())]),
            steps: Vec::new(),
        };
        world.mount_again();
        world
    }

    fn mount_again(&mut self) {
        let words = ["--scratch", self.scratch.path().to_str().unwrap(), "--timeout", "10"];
        icechunkfs(self.line.port, &self.mount.arguments(&self.repo, &words)).success();
    }

    fn kill(&mut self) {
        let daemon = self.mount.daemon();
        signal(daemon, "-9");
        self.mount_again();
    }

    fn root(&self) -> PathBuf {
        self.mount.path().join("ours")
    }

    fn commit(&self, words: &[&str]) -> common::Output {
        let place = self.mount.path().display().to_string();
        let words = [&["commit", &place], words].concat();
        run(&mut command(self.line.port, &words))
    }

    /// Makes a commit whose publication the store seems to refuse.
    fn commit_late(&mut self) {
        self.line.decide(|_, request| if publishes(request) { Fault::Late } else { Fault::Pass });
        let before = self.line.late();
        let committed = self.commit(&[]);
        self.line.release();
        let said = format!("{committed:?} after {}", self.steps_so_far());
        assert_eq!(committed.status.success(), self.line.late() == before, "{said}");
    }

    fn status(&self) -> serde_json::Value {
        self.mount.control_json("status.json")
    }

    fn tip(&self) -> String {
        let log = icechunkfs(self.port, &["log", &self.repo, "--json"]).json();
        log[0]["id"].as_str().unwrap_or_else(|| panic!("{log}")).to_owned()
    }

    /// Makes a commit that must succeed, after which the branch has exactly the files of both
    /// sides.
    fn commit_and_check(&mut self) {
        self.commit(&[]).success();
        self.check();
        let fresh = moto::mount(self.port, &self.repo, &["-o", "ro"]);
        for (name, expected) in [("ours", &self.ours), ("theirs", &self.theirs)] {
            let there = read_files(&fresh.path().join(name));
            assert_same(&format!("the branch's {name} after {}", self.steps_so_far()), &there, expected);
        }
        let status = self.status();
        assert!(status["clean"] == true && status["landed"].is_null(), "{status} after {}", self.steps_so_far());
    }

    /// Checks that the mount shows its own files, whatever the outcome of commits.
    fn check(&self) {
        assert_same(&format!("the mount's after {}", self.steps_so_far()), &read_files(&self.root()), &self.ours);
    }

    fn steps_so_far(&self) -> String {
        self.steps.join("; ")
    }

    fn put(&mut self, key: &str, bytes: &[u8]) {
        put(&self.root().join(key), bytes).unwrap();
        self.ours.insert(key.to_owned(), bytes.to_owned());
    }

    fn remove(&mut self, key: &str) {
        let path = self.root().join(key);
        if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.unwrap();
        let below = format!("{key}/");
        self.ours.retain(|file, _| file != key && !file.starts_with(&below));
    }

    fn rename(&mut self, from: &str, to: &str) {
        std::fs::rename(self.root().join(from), self.root().join(to)).unwrap();
        let below = format!("{from}/");
        let moved: Vec<String> = self.ours.keys().filter(|file| file.starts_with(&below)).cloned().collect();
        for file in moved {
            let bytes = self.ours.remove(&file).unwrap();
            self.ours.insert(format!("{to}/{}", &file[below.len()..]), bytes);
        }
    }

    fn others_commit(&mut self, chunk: usize, bytes: &[u8]) {
        let place = self.others.path();
        put(&place.join(format!("theirs/c/{chunk}")), bytes).unwrap();
        commit(&self.others).unwrap();
        self.theirs.insert(format!("c/{chunk}"), bytes.to_owned());
    }

    fn has(&self, name: &str) -> bool {
        self.ours.contains_key(&format!("{name}/zarr.json"))
    }
}

fn writing_group() -> &'static str {
    r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#
}

/// Makes one change to the files of the mount.
fn change(world: &mut World, random: &mut Random, n: usize) {
    let name = NAMES[random.below(NAMES.len())];
    let chunk = format!("{name}/c/{}", random.below(CHUNKS));
    match random.below(12) {
        _ if !world.has(name) => {
            if name == "g/w" && !world.ours.contains_key("g/zarr.json") {
                world.put("g/zarr.json", writing_group().as_bytes());
            }
            world.steps.push(format!("make {name}"));
            world.put(&format!("{name}/zarr.json"), array(&[CHUNKS as u64], &[1]).as_bytes());
            world.put(&chunk, format!("{n}").as_bytes());
        }
        0 => {
            world.steps.push(format!("remove {name}"));
            world.remove(name);
        }
        1 => {
            let to = NAMES[random.below(NAMES.len())];
            if !world.has(to) && (to != "g/w" || world.ours.contains_key("g/zarr.json")) {
                world.steps.push(format!("move {name} to {to}"));
                world.rename(name, to);
            }
        }
        2 => {
            world.steps.push(format!("attributes of {name}"));
            let document = array(&[CHUNKS as u64], &[1]).replace("\"attributes\":{}", "\"attributes\":{\"n\":1}");
            world.put(&format!("{name}/zarr.json"), format!("{document}{}", " ".repeat(n % 5)).as_bytes());
        }
        3 if world.ours.contains_key("g/zarr.json") => {
            world.steps.push("remove g".to_owned());
            world.remove("g");
        }
        4..7 if world.ours.contains_key(&chunk) => {
            world.steps.push(format!("remove {chunk}"));
            world.remove(&chunk);
        }
        _ => {
            world.steps.push(format!("write {chunk}"));
            world.put(&chunk, format!("{n}").as_bytes());
        }
    }
}

fn step(world: &mut World, random: &mut Random, n: usize) {
    match random.below(20) {
        0..3 => {
            world.steps.push("commit late".to_owned());
            world.commit_late();
        }
        3..6 if world.line.late() > 0 => {
            let at = random.below(world.line.late());
            let landed = world.line.deliver(at);
            world.steps.push(format!("deliver {at}: {landed}"));
        }
        6 => {
            world.steps.push("commit".to_owned());
            world.commit_and_check();
            world.steps.push("committed".to_owned());
        }
        7 => {
            world.steps.push("kill".to_owned());
            world.kill();
        }
        8 => {
            world.steps.push("mount again".to_owned());
            world.mount.unmount();
            world.mount_again();
        }
        9 => {
            world.steps.push("others commit".to_owned());
            world.others_commit(random.below(100), format!("{n}").as_bytes());
        }
        10 => {
            let place = world.mount.path().display().to_string();
            let refreshed = icechunkfs(world.line.port, &["refresh", &place]);
            world.steps.push(format!("refresh: {}", refreshed.status.success()));
            if !refreshed.status.success() {
                let said = refreshed.failure();
                assert!(said.contains("Commit those changes first"), "{said} after {}", world.steps_so_far());
            }
        }
        _ => change(world, random, n),
    }
    world.check();
}

#[test]
fn the_branch_matches_the_mount_whenever_publications_land() {
    let Some(server) = s3() else { return };
    let steps = number("ICECHUNKFS_LATE_STEPS", 60);
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    for seed in first..first + length("ICECHUNKFS_LATE_SEEDS", 1, 4) as u64 {
        let version = 1 + seed % 2;
        let mut world = World::new(server.port, version, &format!("late-{seed}"));
        let mut random = Random::new(seed);
        world.steps.push(format!("seed {seed}, version {version}"));
        for n in 0..steps {
            step(&mut world, &mut random, n);
        }
        world.commit_and_check();
    }
}

/// The sequence that loses work if the late commit is taken for another writer's, or for the
/// present state.
#[test]
fn the_next_commit_follows_one_that_landed_late() {
    let Some(server) = s3() else { return };
    for version in [1, 2] {
        for is_killed in [false, true] {
            let mut world = World::new(server.port, version, &format!("on-{version}-{is_killed}"));
            world.put("x/zarr.json", array(&[6], &[1]).as_bytes());
            for chunk in 0..3 {
                world.put(&format!("x/c/{chunk}"), b"first");
            }
            world.commit_late();
            world.put("x/c/1", b"later");
            world.remove("x/c/2");
            world.put("y/zarr.json", array(&[6], &[1]).as_bytes());
            assert!(world.line.deliver(0));
            if is_killed {
                world.kill();
                world.check();
            }
            let landed = world.tip();
            assert_eq!(world.status()["landed"], landed.as_str(), "{}", world.status());
            let place = world.mount.path().display().to_string();
            let said = icechunkfs(world.line.port, &["refresh", &place]).failure();
            assert!(said.contains(&landed) && said.contains("Commit those changes first"), "{said}");
            world.commit_and_check();
            let history = icechunkfs(world.port, &["log", &world.repo, "--json"]).json();
            assert_eq!(history[1]["id"], landed.as_str(), "the commit must follow the one that landed");
            let then = moto::mount(world.port, &world.repo, &["-o", "ro", "--snapshot", &landed]);
            let chunk = std::fs::read(then.path().join("ours/x/c/1")).unwrap();
            assert_eq!(chunk, b"first", "the late commit is as it was");
        }
    }
}
