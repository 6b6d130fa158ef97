//! Commits that replace others: a branch shows and knows what it did.

use icechunkfs::commit::changes::ChangeSet;
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, Request, Rewrite};
use icechunkfs::commit::request::KnownObjects;
use icechunkfs::commit::squash::{self, SquashOptions};
use icechunkfs::repack;
use icechunkfs::times::system_clock;

use super::model::differences;
use super::world::World;

/// Makes one of the newest commits of a branch, or replaces the newest.
pub async fn squash(world: &mut World, at: usize, is_amend: bool) -> Result<(), String> {
    if world.repos[at].is_v1 {
        return Ok(());
    }
    let branch = world.pick_branch(at);
    let count = if is_amend { 1 } else { 2 + world.random.below(3) };
    let repository = world.repos[at].open().await;
    let commits = repository.history(world.repos[at].tips[&branch], count).await.unwrap();
    if commits.len() < count || commits.iter().any(|commit| commit.parent.is_none()) {
        return Ok(());
    }
    world.say(format!("{} {count} commits of {branch} of {at}", if is_amend { "amend" } else { "squash" }));
    let message = "a better message".to_owned();
    let options = SquashOptions { branch: &branch, commits: &commits, message, metadata: Default::default() };
    match squash::squash(&repository, system_clock, &options).await {
        Ok(_) => {}
        Err(error) if error.to_string().contains("cannot record in one commit") => return Ok(()),
        Err(error) => return Err(format!("squash: {error}")),
    }
    world.counts.rewritten += 1;
    let state = world.tip_state(at, &branch).clone();
    world.moved(at, &branch, state).await
}

pub async fn amend_by_the_reference(world: &mut World, at: usize) -> Result<(), String> {
    if world.repos[at].is_v1 {
        return Ok(());
    }
    let branch = world.pick_branch(at);
    let history = world.known_history(at, &branch).await;
    let (from, to) = world.changed(at, &branch, false);
    if history.len() < 3 || from == to {
        return Ok(());
    }
    world.say(format!("reference amend of {branch} of {at}: {:?}", differences(&to, &from)));
    if !world.repos[at].commit_by_the_reference(&branch, &from, &to, true).await {
        return Ok(());
    }
    world.counts.rewritten += 1;
    world.changed_by_the_reference(at, &branch, to).await
}

/// Writes the manifests of a branch again, with its chunks in other places.
pub async fn rewrite(world: &mut World, at: usize) -> Result<(), String> {
    let branch = world.pick_branch(at);
    let history = world.known_history(at, &branch).await;
    let amend = world.random.chance(60) && !world.repos[at].is_v1 && history.len() > 2;
    let repo = &world.repos[at];
    let repository = repo.open().await;
    let tip = repo.tips[&branch];
    let base = repo.snapshot(tip).await;
    let mut changes = ChangeSet::default();
    if world.random.chance(50) {
        let sizes = EngineOptions::default().sizes(&repository.config().await.unwrap());
        changes.chunks = repack::repack(&repo.storage, &repo.reader, &base, sizes, |_| {}).await.unwrap().chunks;
    }
    let request = Request {
        branch: branch.clone(),
        message: "rewritten".to_owned(),
        amend,
        rewrite: Some(Rewrite::default()),
        known_objects: KnownObjects::of(&repository, tip, &changes).await.unwrap(),
        ..Request::default()
    };
    world.say(format!("rewrite manifests of {branch} of {at}, amend {amend}, {} chunks moved", changes.chunk_count()));
    let repo = &world.repos[at];
    match repo.engine.commit(&base, &changes, &request, &Default::default()).await {
        Ok(CommitOutcome::Committed { .. }) => {}
        other => return Err(format!("rewrite: {other:?}")),
    }
    world.counts.rewritten += 1;
    let state = world.tip_state(at, &branch).clone();
    world.moved(at, &branch, state).await
}
