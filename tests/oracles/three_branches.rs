//! Merges among three branches, compared with what the promise says of each chunk.
//!
//! Each write has bytes of its own, so that a branch knows a set of writes for each chunk, and shows one of them. In a merge the side wins that knows the
//! other one's write; if neither does, there is a conflict. That needs no common ancestor, and so is independent of how one is found.
//! `ICECHUNKFS_MERGE_TRIPLES` sets the number of histories, `ICECHUNKFS_SEED` the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, array, number};
use crate::common::{self, block_on, icechunkfs, lab};

/// Histories in CI.
const IN_CI: usize = 24;
/// Commits and merges of each.
const STEPS: usize = 16;
const CHUNKS: usize = 4;
const BRANCHES: [&str; 3] = ["main", "dev", "feat"];

/// Chunk of a branch: the write that it shows, and all that it knows.
#[derive(Clone, Debug)]
struct Chunk {
    shown: usize,
    known: BTreeSet<usize>,
}

type State = Vec<Chunk>;

/// Outcome of a merge for a chunk.
enum Outcome {
    Source,
    Target,
    Conflict,
}

fn outcome(source: &Chunk, target: &Chunk) -> Outcome {
    match (target.known.contains(&source.shown), source.known.contains(&target.shown)) {
        (true, _) if source.shown == target.shown => Outcome::Target,
        // Each side knows what the other one shows: both have resolved a conflict, each in its own way.
        (true, true) | (false, false) => Outcome::Conflict,
        (true, false) => Outcome::Target,
        (false, true) => Outcome::Source,
    }
}

#[derive(Debug, Default)]
struct Counts {
    merged: usize,
    refused: usize,
    resolved: usize,
}

fn run(seed: u64, counts: &mut Counts) -> Result<(), String> {
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let version = if seed.is_multiple_of(3) { SpecVersionBin::V1 } else { SpecVersionBin::V2 };
    block_on(lab::create(&place, version, RepositoryConfig::default()));
    let mut next = 1;
    let mut bytes = |at: usize| {
        next += 1;
        (next, format!("write {next} of chunk {at}").into_bytes())
    };
    let document = array(&[CHUNKS as u64], &[1]);
    let mut keys = vec![
        ("zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        ("a/zarr.json".to_owned(), document.as_bytes().to_vec()),
    ];
    let mut contents = BTreeMap::new();
    let mut begin = State::new();
    for at in 0..CHUNKS {
        let (id, content) = bytes(at);
        keys.push((format!("a/c/{at}"), content.clone()));
        contents.insert(id, content);
        begin.push(Chunk { shown: id, known: BTreeSet::from([id]) });
    }
    commit(&place, "main", &keys);
    for branch in &BRANCHES[1..] {
        Reference::open(&place).create_branch(branch);
    }
    // The states of each branch, with the snapshots that have them: older ones are merged, too.
    let tip = |branch: &str| Reference::open(&place).on(branch).history()[0].0.clone();
    let mut states: Vec<Vec<(String, State)>> = BRANCHES.iter().map(|name| vec![(tip(name), begin.clone())]).collect();
    for step in 0..STEPS {
        let branch = random.below(BRANCHES.len());
        let mut state = states[branch].last().unwrap().1.clone();
        if random.chance(45) {
            let mut keys = Vec::new();
            for _ in 0..1 + random.below(2) {
                let at = random.below(CHUNKS);
                let (id, content) = bytes(at);
                keys.push((format!("a/c/{at}"), content.clone()));
                contents.insert(id, content);
                state[at].shown = id;
                state[at].known.insert(id);
            }
            commit(&place, BRANCHES[branch], &keys);
        } else {
            let from = (branch + 1 + random.below(2)) % BRANCHES.len();
            let back = random.below(3.min(states[from].len()));
            let (snapshot, source) = states[from][states[from].len() - 1 - back].clone();
            let on_conflict = *random.pick(&[None, Some("ours"), Some("theirs")]);
            let keep = random.chance(25);
            let mut words = vec!["merge", place.to_str().unwrap(), &snapshot, "--into", BRANCHES[branch]];
            words.extend(on_conflict.iter().flat_map(|whose: &&str| ["--on-conflict", *whose]));
            words.extend(keep.then_some("--keep-commits"));
            let output = icechunkfs(&words);
            let what = format!("step {step}: {words:?}: {}", output.all());
            let outcomes: Vec<Outcome> = source.iter().zip(&state).map(|(one, other)| outcome(one, other)).collect();
            let has_conflict = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Conflict));
            if !output.status.success() {
                // A commit of many may conflict where all together do not; and one that only merges cannot always be taken apart.
                if !has_conflict && !keep && !output.all().contains("several common ancestors") {
                    return Err(format!("refused without a reason: {what}"));
                }
                counts.refused += 1;
            } else {
                if has_conflict && on_conflict.is_none() {
                    return Err(format!("merged in spite of a conflict: {what}"));
                }
                counts.merged += 1;
                counts.resolved += usize::from(has_conflict);
                for ((source, chunk), outcome) in source.iter().zip(&mut state).zip(outcomes) {
                    let takes_source = match outcome {
                        Outcome::Source => true,
                        Outcome::Target => false,
                        Outcome::Conflict => on_conflict == Some("theirs"),
                    };
                    if takes_source {
                        chunk.shown = source.shown;
                    }
                    chunk.known.extend(&source.known);
                }
            }
            let found = Reference::open(&place).on(BRANCHES[branch]).keys();
            for (at, chunk) in state.iter().enumerate() {
                if found.get(&format!("a/c/{at}")) != contents.get(&chunk.shown) {
                    let found = found.get(&format!("a/c/{at}")).map(|bytes| String::from_utf8_lossy(bytes));
                    return Err(format!("chunk {at} is {found:?} instead of write {}: {what}", chunk.shown));
                }
            }
        }
        let snapshot = tip(BRANCHES[branch]);
        states[branch].push((snapshot, state));
    }
    icechunkfs(["verify", place.to_str().unwrap()]).success();
    Ok(())
}

fn commit(place: &Path, branch: &str, keys: &[(String, Vec<u8>)]) {
    let keys: Vec<(&str, &[u8])> = keys.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    Reference::open(place).on(branch).commit(&keys, "writes");
}

#[test]
fn what_is_newest_is_kept_among_three_branches() {
    common::watchdog();
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let mut counts = Counts::default();
    let triples = number("ICECHUNKFS_MERGE_TRIPLES", IN_CI);
    for seed in first..first + triples as u64 {
        run(seed, &mut counts).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    println!("{counts:?}");
    assert!(counts.merged > 2 * triples && counts.resolved > triples / 8, "{counts:?}");
}
