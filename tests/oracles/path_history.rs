//! `icechunkfs log REPO PATH`, compared with what the keys of each commit say.
//!
//! The reference implementation makes random commits, moves among them. The expected commits come
//! from the keys and the node ids before and after each commit: no logs, no manifests.
//! `ICECHUNKFS_PATH_HISTORIES` sets the number of repositories.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::Value;

use super::branches::{Begun, begin, is_free, mutate, random_path};
use super::merge::oracle::{Keys, Numbers, is_at_or_below, nodes};
use super::merge::world::{numbers_of, touched};
use crate::common::lengths::number;
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference};
use crate::common::{self, block_on, lab, run_on};

/// Repositories in CI, and commits of each.
const IN_CI: usize = 12;
const COMMITS: usize = 14;

type State = (Keys, Numbers);

/// Returns the commits that touched `path`, newest first: their positions, and what the node was
/// called then.
fn expected(states: &[State], path: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut wanted = path.to_owned();
    for at in (1..states.len()).rev() {
        let old = &states[at - 1];
        let new = &states[at];
        let here = new.1.get(&wanted);
        let moved_from = here.and_then(|number| old.1.iter().find(|(_, other)| *other == number)).map(|(path, _)| path);
        let before = moved_from.unwrap_or(&wanted);
        let changed = touched((&old.0, &old.1), (&new.0, &new.1)).nodes;
        let is_node = here.is_some() || old.1.contains_key(before);
        if is_node && changed.iter().any(|node| is_at_or_below(node, &wanted) || is_at_or_below(node, before)) {
            found.push((at, wanted.clone()));
        }
        wanted = match (here, moved_from) {
            (Some(_), None) if !old.1.contains_key(&wanted) => path.to_owned(),
            _ => before.clone(),
        };
    }
    found
}

fn run(seed: u64) -> usize {
    let mut random = Random::new(seed);
    let Begun { directory: _directory, place, is_v1, reference, mut keys } = begin(seed, &mut random, 12);
    let mut known = BTreeMap::new();
    let mut states: Vec<State> = vec![(Keys::new(), Numbers::new())];
    states.push((keys.clone(), numbers_of(&reference, &mut known)));
    while states.len() <= COMMITS {
        let from = keys.clone();
        let all: Vec<String> = nodes(&from).into_iter().filter(|path| !path.is_empty()).collect();
        let to = random_path(&mut random);
        match random.pick_any(&all).filter(|_| !is_v1 && random.chance(25)) {
            Some(path) if is_free(&from, &to) && !is_at_or_below(&to, path) => {
                reference.rename(path, &to);
                keys = reference.keys();
            }
            _ => {
                (0..1 + random.below(3)).for_each(|_| mutate(&mut random, &mut keys));
                if keys == from {
                    continue;
                }
                reference.change(&from, &keys);
            }
        }
        states.push((keys.clone(), numbers_of(&reference, &mut known)));
    }
    let ids: Vec<String> = reference.history().into_iter().map(|(id, _)| id).rev().collect();
    assert_eq!(ids.len(), states.len());
    let paths: BTreeSet<&String> = states.iter().flat_map(|(_, numbers)| numbers.keys()).collect();
    let mut compared = 0;
    for path in paths.into_iter().filter(|path| !path.is_empty()) {
        let said = run_on(&place, &["log", path, "--json"]).json();
        let found: Vec<(String, String)> = said
            .as_array()
            .unwrap()
            .iter()
            .map(|commit| {
                let text = |name: &str| commit[name].as_str().unwrap().to_owned();
                (text("id"), text("path").trim_start_matches('/').to_owned())
            })
            .collect();
        let expected: Vec<_> = expected(&states, path).into_iter().map(|(at, path)| (ids[at].clone(), path)).collect();
        assert_eq!(found, expected, "seed {seed}, {path}: {ids:?}");
        compared += found.len();
    }
    compared
}

#[test]
fn the_commits_of_a_path_are_those_that_changed_its_keys() {
    common::watchdog();
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let count = number("ICECHUNKFS_PATH_HISTORIES", IN_CI);
    let compared: usize = (first..first + count as u64).map(run).sum();
    assert!(compared > count * 10, "{compared} commits were compared");
}

#[test]
fn ranges_of_chunks_select_commits() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    block_on(lab::create(&place, SpecVersionBin::V2, RepositoryConfig::default()));
    let reference = Reference::open(&place);
    let document = crate::common::writing::array(&[20, 4], &[1, 1]);
    let changed = document.replace("\"attributes\":{}", "\"attributes\":{\"n\":1}");
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes())], "created");
    reference.commit(&[("a/c/3/0", b"x")], "3,0");
    reference.commit(&[("a/c/12/3", b"x")], "12,3");
    reference.commit(&[("a/zarr.json", changed.as_bytes())], "attributes");
    reference.rename("a", "b");
    reference.commit(&[("b/c/3/2", b"x")], "3,2");
    let messages = |words: &[&str]| -> Vec<String> {
        let said = run_on(&place, &[&["log"], words, &["--json"]].concat()).json();
        said.as_array().unwrap().iter().map(|commit: &Value| commit["message"].as_str().unwrap().to_owned()).collect()
    };
    let moved = "moved by the reference";
    assert_eq!(messages(&["b"]), ["3,2", moved, "attributes", "12,3", "3,0", "created"]);
    assert_eq!(messages(&["/b/", "--chunks", "0:10,:"]), ["3,2", moved, "3,0", "created"]);
    assert_eq!(messages(&["b", "--chunks", "12,2:"]), [moved, "12,3", "created"]);
    assert_eq!(messages(&["b", "-n", "2"]), ["3,2", moved]);
    // The old name leads to the same node as long as it had that name.
    assert_eq!(messages(&["a"]), [moved, "attributes", "12,3", "3,0", "created"]);
    for (words, why) in [
        (&["nothing"][..], "no commit has a node of that path"),
        (&["b", "--chunks", "x"], "not a valid list of chunk ranges"),
        (&["--chunks", "1"], "PATH"),
        (&["b", "--graph"], "--graph"),
        // Anything else would be a list that leaves commits out.
        (&["b", "--chunks", "3"], "1 ranges of chunks, but the array has 2 dimensions"),
        (&["a", "--chunks", ":,:,0"], "3 ranges"),
        (&["/", "--chunks", "0,0"], "it is not an array"),
    ] {
        let said = run_on(&place, &[&["log"], words].concat()).failure();
        assert!(said.contains(why), "{words:?}: {said}");
    }
}

/// The first commit of version 1 has no log, nor has it after a migration.
#[test]
fn a_path_that_no_commit_has_is_looked_for_in_a_migrated_repository() {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/repos/own-v1-migrated");
    let said = run_on(&place, &["log", "nothing"]).failure();
    assert!(said.contains("no commit has a node of that path"), "{said}");
}
