//! A repository's whole life, with two implementations alternating: commits, branches, tags,
//! resets, amendments, moves, expiration, collection. After each step both see the same, and every
//! file is valid.
//!
//! `ICECHUNKFS_LIFE_SEED` repeats a sequence, `ICECHUNKFS_LIFE_STEPS` sets the total number of
//! steps (default 2,400).

pub mod world;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::common::block_on;
use crate::common::lengths::length;
use icechunk::format::format_constants::SpecVersionBin;
use world::{Actor, FailureReport, World};

/// Steps of one repository's life.
const LIFE: usize = 40;
/// One in this many lives is that of a repository of version 1.
const OLD: u64 = 4;

#[test]
fn both_implementations_see_the_same_after_every_step() {
    let steps: usize = length("ICECHUNKFS_LIFE_STEPS", 600, 2400);
    if let Ok(seed) = std::env::var("ICECHUNKFS_LIFE_SEED") {
        return live(seed.parse().unwrap());
    }
    let begin = Instant::now();
    let lives = steps.div_ceil(LIFE) as u64;
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while next.load(Ordering::Relaxed) < lives {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed < lives {
                        live(seed);
                    }
                }
            });
        }
    });
    eprintln!("{} steps in {:?}", lives * LIFE as u64, begin.elapsed());
}

fn live(seed: u64) {
    let version = if seed % OLD == OLD - 1 { SpecVersionBin::V1 } else { SpecVersionBin::V2 };
    let log = Mutex::new(Vec::new());
    let _told = FailureReport(seed, &log);
    block_on(async {
        let mut world = World::new(seed, version).await;
        let mut done = 0;
        while done < LIFE {
            let actor = if world.random.below(2) == 0 { Actor::Ours } else { Actor::Reference };
            if !world.step(actor, &log).await {
                continue;
            }
            done += 1;
            world.compare(false).await;
            if done % 5 == 0 || log.lock().unwrap().last().is_some_and(|last| last.contains("collect")) {
                world.verify().await;
            }
        }
        world.compare(true).await;
        world.verify().await;
    });
}
