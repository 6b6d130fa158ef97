//! Random operations on a mount and on a plain directory: programs must see the same in both, and a
//! commit must have exactly the content of the plain directory at that moment.
//!
//! A failure prints a listing of operations, shortened as far as possible, and leaves it in
//! `target/tmp`. To run it again:
//!
//!     ICECHUNKFS_MODEL_REPLAY=listing.txt cargo test --test oracles model::replay -- --ignored --nocapture
//!
//! Kept in `tests/oracles/model/regressions`, it is replayed by every run.
//! `ICECHUNKFS_MODEL_OPERATIONS` sets the number of operations, `ICECHUNKFS_SEED` the seed.

pub mod apply;
pub mod generate;
pub mod mounted;
pub mod ops;
pub mod shrink;
pub mod subject;
pub mod tree;
pub mod world;
pub mod zarr;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::lengths::{length, number};
use crate::common::{self, project};
use generate::{Generator, Sight};
use mounted::Mounted;
use ops::Op;
use shrink::shrink;
use subject::{Defect, Plain, Subject};
use world::{Failure, Statistics, World};

/// Operations of one run, from an empty repository on.
const RUN: usize = 2000;
/// Operations in the ordinary run, and in a full one.
const QUICK: usize = 4000;
const FULL: usize = 20_000;
/// The generator looks at the tree this often.
const LOOK_EVERY: usize = 8;
const SHRINK_FOR: Duration = Duration::from_secs(180);

/// Turns a panic into a failure, with the operations that lead to it.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(Failure { kind: "panic", text: text.unwrap_or_default() })
    })
}

/// Returns the path of a run's listing, which is written during the run: it is there even when the
/// kernel ends this program (SIGBUS of a mapping).
fn listing_path(seed: u64) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("model-{seed}.txt"))
}

/// Runs random operations. A failure comes with the operations that led to it.
fn random_run<S: Subject>(seed: u64, count: usize, subject: S) -> Result<Statistics, (Vec<Op>, Failure)> {
    let mut generator = Generator::new(seed);
    let mut done: Vec<Op> = Vec::new();
    let mut log = std::fs::File::create(listing_path(seed)).unwrap();
    let outcome = guarded(|| {
        let mut world = World::new(subject);
        let mut sight = None;
        while done.len() < count {
            if done.len().is_multiple_of(LOOK_EVERY) || sight.is_none() {
                let (tree, view) = world.look();
                sight = Some(Sight::new(&tree, &view));
            }
            let mut drawn = generator.draw(sight.as_ref().unwrap(), &world.open_slots());
            if matches!(drawn.last(), Some(Op::Commit { .. })) {
                // Repairs need the present tree.
                let (tree, view) = world.look();
                drawn = generator.draw_commit(&Sight::new(&tree, &view));
            }
            for op in drawn {
                writeln!(log, "{op}").unwrap();
                done.push(op);
                world.step(&done[done.len() - 1])?;
            }
        }
        world.finish()?;
        Ok(world.statistics)
    });
    outcome.map_err(|failure| (done, failure))
}

/// Replays a listing; returns the place and kind of a failure.
fn replay<S: Subject>(listing: &[Op], subject: S) -> Option<(usize, Failure)> {
    let mut at = 0;
    let outcome = guarded(|| {
        let mut world = World::new(subject);
        for (step, op) in listing.iter().enumerate() {
            at = step;
            world.step(op)?;
        }
        at = listing.len();
        world.finish()
    });
    outcome.err().map(|failure| (at, failure))
}

/// Shrinks a failure and prints it.
fn report<S: Subject>(seed: u64, found: (Vec<Op>, Failure), subject: impl Fn() -> S) -> (Vec<Op>, String) {
    let (done, failure) = found;
    eprintln!("seed {seed}: {} after {} operations:\n{}\nshrinking...", failure.kind, done.len(), failure.text);
    let (listing, failure) = shrink(done, failure, SHRINK_FOR, |ops| replay(ops, subject()));
    std::fs::write(listing_path(seed), format!("# {}\n{}", failure.kind, ops::listing(&listing))).unwrap();
    let text = format!(
        "seed {seed}, {}: {}\n{}({} operations, also in {})",
        failure.kind,
        failure.text,
        ops::listing(&listing),
        listing.len(),
        listing_path(seed).display()
    );
    (listing, text)
}

/// Runs all operations, in runs, on as many threads as help.
fn many_runs<S: Subject>(first_seed: u64, count: usize, subject: impl Fn() -> S + Sync) {
    let begin = Instant::now();
    let next = std::sync::atomic::AtomicUsize::new(0);
    let runs = count.div_ceil(RUN);
    let totals = std::sync::Mutex::new(Statistics::default());
    let failed = std::sync::Mutex::new(None::<String>);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let run = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if run >= runs || failed.lock().unwrap().is_some() {
                        break;
                    }
                    let seed = first_seed + run as u64;
                    match random_run(seed, RUN.min(count - run * RUN), subject()) {
                        Ok(statistics) => {
                            let _ = std::fs::remove_file(listing_path(seed));
                            totals.lock().unwrap().add(&statistics);
                        }
                        Err(found) => *failed.lock().unwrap() = Some(report(seed, found, &subject).1),
                    }
                }
            });
        }
    });
    if let Some(text) = failed.into_inner().unwrap() {
        panic!("{text}");
    }
    let totals = totals.into_inner().unwrap();
    println!("{totals:?} in {:?}", begin.elapsed());
    // The operations must have had targets.
    assert!(totals.succeeded * 2 > totals.operations && totals.commits * 250 > totals.operations, "{totals:?}");
    let idle: Vec<_> = totals.kinds.iter().filter(|(_, (_, done))| *done * 2000 < totals.operations).collect();
    // A short run may miss a rare kind by chance.
    assert!(idle.is_empty() || count < FULL, "operations that hardly ever found something to do: {idle:?}");
}

#[test]
fn a_mount_behaves_like_a_plain_directory_with_commits() {
    common::watchdog();
    let seed = number("ICECHUNKFS_SEED", 1) as u64;
    many_runs(seed, length("ICECHUNKFS_MODEL_OPERATIONS", QUICK, FULL), Mounted::new);
}

#[test]
fn a_mount_passes_every_kept_regression() {
    common::watchdog();
    let folder = project("tests/oracles/model/regressions");
    let mut names: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    assert!(!names.is_empty());
    for name in names {
        let listing = ops::parse(&std::fs::read_to_string(&name).unwrap());
        if let Some((step, failure)) = replay(&listing, Mounted::new()) {
            panic!("{} at operation {}: {}: {}", name.display(), step + 1, failure.kind, failure.text);
        }
    }
}

#[test]
#[ignore = "it replays a listing by hand: see the top"]
fn replay_one_listing() {
    let path = std::env::var_os("ICECHUNKFS_MODEL_REPLAY").expect("ICECHUNKFS_MODEL_REPLAY names a listing");
    common::watchdog();
    let listing = ops::parse(&std::fs::read_to_string(&path).unwrap());
    if let Some((step, failure)) = replay(&listing, Mounted::new()) {
        panic!("at operation {} of {}: {}: {}", step + 1, listing.len(), failure.kind, failure.text);
    }
    println!("{} operations, all right", listing.len());
}

/// Two plain directories agree.
#[test]
fn the_harness_accepts_two_plain_directories() {
    many_runs(900_001, length("ICECHUNKFS_MODEL_PLAIN_OPERATIONS", 2000, 6000), || Plain::new(Defect::None));
}

/// The harness finds defects, and reports each in a few operations.
#[test]
fn the_harness_finds_and_shrinks_defects() {
    for (defect, kind, most) in [(Defect::ShortWrite, "tree", 4), (Defect::CommitForgets, "keys", 4)] {
        let found =
            (0..20).find_map(|n| random_run(910_000 + n, RUN, Plain::new(defect)).err().map(|found| (n, found)));
        let (n, found) = found.expect("the defect is found");
        let (listing, text) = report(910_000 + n, found, || Plain::new(defect));
        let _ = std::fs::remove_file(listing_path(910_000 + n));
        assert!(listing.len() <= most, "{text}");
        let (_, failure) = replay(&listing, Plain::new(defect)).expect("the listing fails again");
        assert!(failure.kind == kind || defect == Defect::ShortWrite, "{text}");
        assert!(replay(&listing, Plain::new(Defect::None)).is_none(), "without the defect it is right");
        // A listing read from a file gives the same.
        assert_eq!(ops::parse(&ops::listing(&listing)), listing);
    }
}
