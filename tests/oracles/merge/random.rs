//! Random runs. `ICECHUNKFS_MERGE_STEPS` sets the number of steps, `ICECHUNKFS_SEED` the seed. A
//! failure is shortened as far as possible and printed as a listing of steps.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use icechunk::format::format_constants::SpecVersionBin;

use super::world::{EACH, Statistics, Step, World, Writing, arrays};
use crate::common::lengths::{length, number};
use crate::common::random::Random;

/// Steps of one run, from an empty repository on.
const RUN: usize = 250;
/// Steps in the ordinary run, and in a full one.
const QUICK: usize = 1500;
const FULL: usize = 20_000;
/// All views are compared after this many steps, and after each move.
const LOOK_EVERY: usize = 50;
const SHRINK_FOR: Duration = Duration::from_secs(120);

/// Steps with their actor: a mount, or the reference behind the last of them.
type Listing = Vec<(usize, Step)>;

fn path(random: &mut Random) -> String {
    const NAMES: [&str; 6] = ["a", "b", "x", "y", "latest", "n\u{fffd}"];
    const GROUPS: [&str; 4] = ["", "g/", "h/", "g/i/"];
    format!("{}{}", random.pick(&GROUPS), random.pick(&NAMES))
}

fn grid_of_array(random: &mut Random) -> Vec<u64> {
    random.pick(&[vec![4], vec![8], vec![3, 3], vec![4, 4]]).clone()
}

fn chunk(random: &mut Random, grid: &[u64]) -> Vec<u64> {
    grid.iter().map(|n| random.below(*n as usize) as u64).collect()
}

/// Draws a step; with `is_narrow` mostly one that changes what others change, too, once there are
/// arrays.
fn draw(random: &mut Random, world: &World, is_narrow: bool) -> (usize, Step) {
    let who = random.below(world.sides.len() * 4 + 1) / 4;
    let known = match world.sides.get(who) {
        Some(side) => arrays(side.view()),
        None => arrays(&world.tip.iter().map(|(k, v)| (k.clone(), super::world::Leaf::File(v.clone()))).collect()),
    };
    let (array, grid) = random.pick_any(&known).cloned().unwrap_or_else(|| (path(random), vec![4]));
    let how = [Writing::Over, Writing::Rename, Writing::Anew][random.below(3)];
    // So large that no two writes have the same bytes by chance: writing the same bytes is a change
    // to the mount and none to the oracle.
    let seed = random.next() % 1_000_000_000;
    let coords = chunk(random, &grid);
    if is_narrow && known.len() > 1 {
        return (who, draw_narrow(random, &known[0]));
    }
    let step = match random.below(100) {
        0..6 => Step::Array { path: path(random), grid: grid_of_array(random) },
        6..9 => Step::Group { path: ["g", "h", "g/i", "latest", "a"][random.below(5)].to_owned() },
        9..36 => Step::Chunk { array, coords, seed, how },
        36..42 => Step::RemoveChunk { array, coords },
        42..44 => Step::RemoveChunks { array },
        44..47 => Step::RenameChunk { to: chunk(random, &grid), array, from: coords },
        47..50 => Step::Attributes { path: array, seed },
        50..52 => Step::Resize { grid: grid.iter().map(|_| 2 + random.below(7) as u64).collect(), array },
        52..56 => Step::Remove { path: if random.below(3) == 0 { path(random) } else { array } },
        56..57 => Step::Remove { path: ["g", "h", "g/i"][random.below(3)].to_owned() },
        57..60 => Step::Rename { from: array, to: path(random) },
        60..61 => Step::Rename { from: ["g", "h", "g/i"][random.below(3)].to_owned(), to: path(random) },
        61..63 => Step::Exchange { one: array, other: path(random) },
        63..65 => Step::Copy { from: array, to: path(random), links: random.below(2) == 0 },
        65..67 => Step::Link { to: format!("{array}/backup"), array, coords },
        67..70 => Step::Untracked { path: path(random), is_link: random.below(2) == 0, seed },
        70..71 => Step::Untracked { path: format!("{array}/note"), is_link: false, seed },
        71..73 => Step::MakeDirectory { path: path(random) },
        73..83 => Step::Commit {
            on_conflict: [None, None, None, Some("ours"), Some("theirs"), Some(EACH), Some(EACH)][random.below(7)],
        },
        83..92 => Step::Refresh,
        92..95 => Step::Discard,
        95..98 => Step::Remount,
        _ => Step::Kill,
    };
    (who, step)
}

/// Draws a step that changes the contents of one array, or settles the conflicts that come of it.
fn draw_narrow(random: &mut Random, (array, grid): &(String, Vec<u64>)) -> Step {
    let array = array.clone();
    let seed = random.next() % 1_000_000_000;
    match random.below(100) {
        0..55 => Step::Chunk { coords: chunk(random, grid), array, seed, how: Writing::Over },
        55..60 => Step::RemoveChunk { coords: chunk(random, grid), array },
        60..72 => Step::Attributes { path: array, seed },
        72..75 => Step::Resize { grid: grid.iter().map(|_| 2 + random.below(7) as u64).collect(), array },
        75..92 => {
            Step::Commit { on_conflict: [None, Some("ours"), Some("theirs"), Some(EACH)][random.below(7).min(3)] }
        }
        92..97 => Step::Refresh,
        97..98 => Step::Discard,
        98..99 => Step::Remount,
        _ => Step::Kill,
    }
}

fn version(seed: u64) -> SpecVersionBin {
    if seed.is_multiple_of(3) { SpecVersionBin::V1 } else { SpecVersionBin::V2 }
}

fn world(seed: u64) -> World {
    World::new(2 + (seed % 4 == 1) as usize, version(seed))
}

fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    })
}

fn run(seed: u64, steps: usize) -> Result<Statistics, (Listing, String)> {
    let mut random = Random::new(seed);
    let mut done = Listing::new();
    let outcome = guarded(|| {
        let mut world = world(seed);
        for n in 0..steps {
            done.push(draw(&mut random, &world, seed.is_multiple_of(5)));
            let (who, step) = done.last().unwrap();
            world.step(*who, step)?;
            if n % LOOK_EVERY == LOOK_EVERY - 1 {
                world.check()?;
            }
        }
        world.check()?;
        Ok(world.statistics)
    });
    outcome.map_err(|why| (done, why))
}

fn replay(seed: u64, listing: &[(usize, Step)]) -> Result<(), String> {
    guarded(|| {
        let mut world = world(seed);
        for (who, step) in listing {
            world.step(*who, step)?;
        }
        world.check()
    })
}

/// Leaves out steps that a failure does not need.
fn shrink(seed: u64, mut listing: Listing, mut why: String) -> (Listing, String) {
    let begin = Instant::now();
    let mut size = listing.len().div_ceil(2);
    while size > 0 && begin.elapsed() < SHRINK_FOR {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < listing.len() && begin.elapsed() < SHRINK_FOR {
            let mut shorter = listing.clone();
            shorter.drain(at..(at + size).min(listing.len()));
            match replay(seed, &shorter) {
                Err(other) if !shorter.is_empty() => (listing, why, has_shrunk) = (shorter, other, true),
                _ => at += size,
            }
        }
        if !has_shrunk {
            size /= 2;
        }
    }
    (listing, why)
}

#[test]
fn mounts_and_the_reference_merge_as_the_oracle_does() {
    let steps = length("ICECHUNKFS_MERGE_STEPS", QUICK, FULL);
    let first = number("ICECHUNKFS_SEED", 1) as u64;
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let totals = Mutex::new(Statistics::default());
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n * RUN >= steps || failed.lock().unwrap().is_some() {
                        break;
                    }
                    let seed = first + n as u64;
                    match run(seed, RUN) {
                        Ok(statistics) => totals.lock().unwrap().add(&statistics),
                        Err(found) => *failed.lock().unwrap() = Some((seed, found)),
                    }
                }
            });
        }
    });
    if let Some((seed, (listing, why))) = failed.into_inner().unwrap() {
        eprintln!("seed {seed}: after {} steps: {why}\nshrinking...", listing.len());
        let (listing, why) = shrink(seed, listing, why);
        let mut text = String::new();
        for (who, step) in &listing {
            let name = if *who < world(seed).sides.len() { format!("mount {who}") } else { "reference".to_owned() };
            writeln!(text, "  {name}: {step:?}").unwrap();
        }
        panic!("seed {seed} ({:?}): {why}\n{text}", version(seed));
    }
    let totals = totals.into_inner().unwrap();
    println!("{totals:?} in {:?}", begin.elapsed());
    // The steps must have effects, and must conflict with each other.
    let enough = |found: usize, one_in: usize| found * one_in >= totals.steps;
    assert!(enough(totals.done, 2) && enough(totals.commits, 25), "{totals:?}");
    assert!(enough(totals.merged, 200) && enough(totals.refused, 200) && enough(totals.refreshes, 50), "{totals:?}");
    assert!(enough(totals.settled, 1000), "{totals:?}");
}
