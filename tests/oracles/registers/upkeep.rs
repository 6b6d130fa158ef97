//! Collections, expirations and migrations, which change nothing of what branches show, and
//! commands that are killed.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use icechunkfs::repo::collect::{self, GcOptions, Uncommitted, UncommittedFinder};
use icechunkfs::repo::expire::{self, ExpireOptions};
use icechunkfs::repo::migrate::in_place::{self, MigrationProgress};
use icechunkfs::times::system_clock;

use super::merging::{self, MergeOutcome, MergeWords};
use super::world::{World, short};
use crate::common::program;

fn nothing_uncommitted() -> UncommittedFinder {
    Arc::new(|| Box::pin(async { Ok(Uncommitted::default()) }))
}

pub async fn collect(world: &mut World, at: usize) -> Result<(), String> {
    world.say(format!("collection in {at}"));
    let repo = &world.repos[at];
    let options = GcOptions { older_than: system_clock() + 1_000_000, dry_run: false };
    let finder = nothing_uncommitted();
    let done = collect::collect(&repo.open().await, options, system_clock, &finder, &Default::default()).await;
    let done = done.map_err(|error| format!("collect: {error}"))?;
    world.say(format!("  removed {} objects", done.total().objects));
    world.counts.kept_up += 1;
    world.repos[at].forget();
    world.check_contents(at).await
}

pub async fn expire(world: &mut World, at: usize) -> Result<(), String> {
    let branch = world.pick_branch(at);
    let repo = &world.repos[at];
    let history = repo.open().await.history(repo.tips[&branch], usize::MAX).await.unwrap();
    let older_than = history[world.random.below(history.len())].flushed_at;
    let options = ExpireOptions { older_than, delete_tags: false, delete_branches: false, dry_run: false };
    let expired = expire::expire(&repo.open().await, options, system_clock).await;
    let expired = expired.map_err(|error| format!("expire: {error}"))?;
    world.say(format!("expiration in {at}: {:?}", expired.released.iter().map(|id| short(*id)).collect::<Vec<_>>()));
    world.is_expired |= !expired.is_empty();
    world.counts.kept_up += 1;
    world.check_contents(at).await
}

pub async fn migrate(world: &mut World, at: usize) -> Result<(), String> {
    if !world.repos[at].is_v1 {
        return Ok(());
    }
    world.say(format!("migration of {at}"));
    let repository = world.repos[at].open().await;
    let done = in_place::migrate(&repository, system_clock, false, &MigrationProgress::default()).await;
    done.map_err(|error| format!("migrate: {error}"))?;
    world.repos[at].is_v1 = false;
    world.repos[at].forget();
    world.counts.kept_up += 1;
    world.check_contents(at).await
}

/// Kills a command: the branches are as before or as after.
pub async fn kill(world: &mut World, at: usize) -> Result<(), String> {
    let branch = world.pick_branch(at);
    let from = (at + 1 + world.random.below(world.repos.len() - 1)) % world.repos.len();
    let history = world.known_history(at, &branch).await;
    let which = world.random.below(5);
    let others: Vec<String> = world.repos[at].tips.keys().filter(|name| **name != branch).cloned().collect();
    let Some(other) = world.random.pick_any(&others).cloned() else { return Ok(()) };
    let source = world.repos[at].tips[&other];
    let wanted = MergeWords { resolution: Some(merging::Whose::Theirs), keeps_commits: false };
    let [here, there] = [at, from].map(|at| world.repos[at].name().to_owned());
    let can_copy = world.repos[at].is_v1 == world.repos[from].is_v1 && world.repos[from].tips.contains_key(&branch);
    let words: Vec<String> = match which {
        0 => ["gc", &here, "--older-than", "0s", "--yes"].map(str::to_owned).into(),
        1 if !world.repos[at].is_v1 && history.len() > 4 => {
            ["squash", &here, "--branch", &branch, "--last", "2", "--yes"].map(str::to_owned).into()
        }
        2 if can_copy => ["push", &there, &here, &branch].map(str::to_owned).into(),
        3 if can_copy => ["pull", &here, &there, &branch].map(str::to_owned).into(),
        _ => merging::words(&world.repos[at], source, &branch, wanted),
    };
    let wait = Duration::from_micros(world.random.below(150_000) as u64);
    world.say(format!("{words:?}, killed after {wait:?}"));
    let mut command = Command::new(program());
    let null = || Stdio::null();
    let mut child = command.args(&words).stdin(null()).stdout(null()).stderr(null()).spawn().unwrap();
    std::thread::sleep(wait);
    let _ = child.kill();
    child.wait().unwrap();
    world.counts.killed += 1;
    world.repos[at].forget();
    let before = world.repos[at].tips[&branch];
    let after = world.repos[at].branches().await[&branch];
    if after != before {
        world.counts.killed_too_late += 1;
        match words[0].as_str() {
            "merge" => {
                let source = world.states[&source].clone();
                world.judge(at, &branch, &source, &wanted, MergeOutcome::Made).await?;
            }
            "squash" => {
                let state = world.tip_state(at, &branch).clone();
                world.moved(at, &branch, state).await?;
            }
            "push" | "pull" => {
                let tip = world.repos[from].tips[&branch];
                let state = world.states[&tip].clone();
                if after != tip || !state.knows_all_of(&world.states[&before]) {
                    return Err(format!("{branch} is at {}", short(after)));
                }
                world.moved(at, &branch, state).await?;
            }
            other => return Err(format!("{other} has moved a branch")),
        }
    }
    world.check_contents(at).await?;
    world.repos[at].verify().await?;
    // Nothing tells that a collection that was killed has ended, but another one.
    if words[0] == "gc" { collect(world, at).await } else { Ok(()) }
}
