//! An oracle of everything that copies, merges and rewrites history.
//!
//! There is a register for each part of each node: its path, its document, each chunk. A commit is
//! an event that sets registers, and a branch knows a set of events. A merge takes the side that
//! knows the event that the other one shows; if neither does, that is a conflict. That needs no
//! common ancestor, no id and no log, and so is independent of how these are found ([`model`]).
//!
//! | part | steps |
//! |---|---|
//! | [`world`] | commits by the engine and by the reference implementation; branches |
//! | [`merging`] | merges, with each resolution, in this process and by the command |
//! | [`rewriting`] | squash, amend, the reference implementation's amend, new manifests: what a branch knows and shows stays |
//! | [`restoring`] | restores: what another snapshot shows, as a new event |
//! | [`copies`] | push (a pull is one), clone: states move between three repositories |
//! | [`upkeep`] | collection, expiration, migration, killed commands: nothing changes |
//!
//! **What is not strict.** The product may refuse more than the model: where both sides changed one
//! node and one of them more than its chunks, and where nothing tells what both have in common,
//! which is counted and bounded. A state that one side has taken back is no change for a comparison
//! of values: then the other side's work may be taken, as git does, or be a conflict. What it takes
//! otherwise must be what the model says.
//!
//! A refusal that none of these explains is counted, and one in 500 merges at most may be one: it
//! loses nothing, and the commonest is known (an amend by the reference implementation of a commit
//! that a restore then takes back: `ICECHUNKFS_SEED=5440`). With `ICECHUNKFS_REGISTER_ONLY` it is a
//! failure.
//!
//! A merge that deletes a node and moves another one to its path makes a new node of that one, as a
//! transaction log cannot say both. To the model it stays the node that it was: its id is
//! translated wherever a snapshot is read (`ICECHUNKFS_SEED=7115`).
//!
//! Not covered: groups are not moved, only arrays are; no array is resized; nothing is moved in
//! version 1, whose moves give new ids; tags; mounts; collections and expirations by the reference
//! implementation. Paths are restored from commits in which nobody has moved nodes into or out of
//! them, others as a whole. Every third world begins in version 1. In a store
//! (`scripts/with-server moto`) all are of version 2.
//!
//! `ICECHUNKFS_REGISTER_STEPS` sets the number of steps, `ICECHUNKFS_SEED` the first seed. A
//! failure names the seed and the steps that are needed for it, which `ICECHUNKFS_REGISTER_ONLY`
//! (`0,4,7`) repeats.

mod copies;
mod merging;
mod model;
mod repo;
mod restoring;
mod rewriting;
mod upkeep;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use self::world::{Kind, World};
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::{self, block_on};

/// Variable with the steps of a world to repeat.
const ONLY: &str = "ICECHUNKFS_REGISTER_ONLY";
/// Steps in an ordinary run, and in a full one.
const QUICK: usize = 5_000;
const FULL: usize = 20_000;
/// Steps of one world.
const STEPS: usize = 60;
/// Chunks of each array.
const CHUNKS: u32 = 4;

/// Returns true if chosen steps of one world are repeated.
fn is_replayed() -> bool {
    std::env::var_os(ONLY).is_some()
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    steps: usize,
    merged: usize,
    nothing: usize,
    refused: usize,
    /// Refused since nothing tells what both sides have in common.
    doubtful: usize,
    doubtful_after_expiration: usize,
    /// Refused as a conflict, which it is not for one who knows commits that the repository lacks.
    refused_for_loss: usize,
    /// Refused as a conflict although one side knows what the other one shows.
    unexplained: usize,
    /// Chunks in conflict, resolved.
    resolved: usize,
    /// Registers in conflict of which one side shows what the other one has had.
    undone: usize,
    /// Nodes to which a merge has given new ids.
    renamed: usize,
    rewritten: usize,
    restored: usize,
    copied: usize,
    not_copied: usize,
    kept_up: usize,
    killed: usize,
    killed_too_late: usize,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.steps += other.steps;
        self.merged += other.merged;
        self.nothing += other.nothing;
        self.refused += other.refused;
        self.doubtful += other.doubtful;
        self.doubtful_after_expiration += other.doubtful_after_expiration;
        self.refused_for_loss += other.refused_for_loss;
        self.unexplained += other.unexplained;
        self.resolved += other.resolved;
        self.undone += other.undone;
        self.renamed += other.renamed;
        self.rewritten += other.rewritten;
        self.restored += other.restored;
        self.copied += other.copied;
        self.not_copied += other.not_copied;
        self.kept_up += other.kept_up;
        self.killed += other.killed;
        self.killed_too_late += other.killed_too_late;
    }
}

/// Failure of a world, with what was done.
struct Failure {
    why: String,
    log: Vec<String>,
    /// Number of steps until then.
    steps: usize,
}

/// Makes those steps of world `seed` whose numbers are in `only`.
fn run(seed: u64, only: &[usize]) -> Result<Counts, Failure> {
    let mut random = Random::new(seed);
    let steps: Vec<(Kind, u64)> = (0..STEPS).map(|_| (Kind::random(&mut random), random.next())).collect();
    let mut log = Vec::new();
    let mut done = 0;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        block_on(async {
            let mut world = World::new(seed).await?;
            for (number, (kind, seed)) in steps.into_iter().enumerate().filter(|(number, _)| only.contains(number)) {
                done = number + 1;
                let ended = world.step(kind, seed).await;
                log.clear();
                log.extend(world.log.iter().cloned());
                ended.map_err(|why| format!("step {number}, {kind:?}: {why}"))?;
            }
            done = STEPS;
            world.check_all().await?;
            Ok(world.counts)
        })
    }));
    let failed = |why| Failure { why, log, steps: done };
    match ended {
        Ok(ended) => ended.map_err(failed),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(failed(text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()))
        }
    }
}

/// Leaves out all steps without which world `seed` fails, too.
fn shrink(seed: u64, mut only: Vec<usize>, mut failure: Failure) -> (Vec<usize>, Failure) {
    only.retain(|number| *number < failure.steps);
    for size in [8, 4, 2, 1, 1] {
        let mut at = 0;
        while at < only.len() {
            let mut fewer = only.clone();
            fewer.drain(at..(at + size).min(only.len()));
            match run(seed, &fewer) {
                Err(other) => (only, failure) = (fewer, other),
                Ok(_) => at += size,
            }
        }
    }
    (only, failure)
}

fn report(seed: u64, all: &[usize], failure: Failure) -> ! {
    let whole = failure.why.clone();
    let (only, failure) = shrink(seed, all.to_vec(), failure);
    let only: Vec<String> = only.iter().map(ToString::to_string).collect();
    panic!(
        "seed {seed}: {}\n{}\nICECHUNKFS_SEED={seed} ICECHUNKFS_REGISTER_ONLY={} fails so; with all steps: {whole}",
        failure.why,
        failure.log.join("\n"),
        only.join(",")
    );
}

#[test]
fn each_branch_shows_what_the_newest_event_that_it_knows_has_set() {
    common::watchdog();
    let wanted = length("ICECHUNKFS_REGISTER_STEPS", QUICK, FULL);
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let all: Vec<usize> = match std::env::var(ONLY) {
        Ok(list) => list.split(',').filter_map(|number| number.trim().parse().ok()).collect(),
        Err(_) => (0..STEPS).collect(),
    };
    let next = AtomicU64::new(first);
    let totals = Mutex::new(Counts::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while totals.lock().unwrap().steps < wanted {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match run(seed, &all) {
                        Ok(counts) => totals.lock().unwrap().add(counts),
                        Err(failure) => report(seed, &all, failure),
                    }
                }
            });
        }
    });
    let totals = totals.into_inner().unwrap();
    println!("{totals:?}");
    let merges = totals.merged + totals.nothing + totals.refused + totals.doubtful;
    assert!(wanted < QUICK || totals.unexplained * 500 <= merges, "refused without a reason: {totals:?}");
    assert!(
        wanted < QUICK || (totals.doubtful + totals.refused_for_loss) * 20 < merges,
        "too many refusals: {totals:?}"
    );
    assert!(wanted < QUICK || (totals.merged > wanted / 20 && totals.killed > wanted / 500), "{totals:?}");
}
