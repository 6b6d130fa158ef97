//! Copies of states between repositories.

use icechunkfs::sync::clone::{self, CloneOptions};
use icechunkfs::sync::notes::CopyNotes;
use icechunkfs::sync::push::{self, Change, PushOptions};
use icechunkfs::times::system_clock;

use super::repo::Repo;
use super::world::{World, short};

const MEMORY: u64 = 32 << 20;

fn notes(repo: &Repo) -> CopyNotes {
    CopyNotes::new(repo.state_directory().join("compared"))
}

/// Makes a copy of a repository.
pub async fn clone_of(source: &Repo, with: Option<CopyNotes>) -> Result<Repo, String> {
    let mut copy = Repo::empty().await;
    let options = CloneOptions { memory: MEMORY, notes: with };
    let cloned = clone::clone(source.open().await, &copy.storage, &options, &Default::default(), system_clock).await;
    cloned.map_err(|error| format!("clone: {error}"))?;
    copy.is_v1 = source.is_v1;
    copy.tips.clone_from(&source.tips);
    Ok(copy)
}

/// Puts a copy of another repository in the place of one.
pub async fn clone(world: &mut World, at: usize) -> Result<(), String> {
    let from = (at + 1 + world.random.below(world.repos.len() - 1)) % world.repos.len();
    world.say(format!("clone of {from} in the place of {at}"));
    let with = world.random.chance(50).then(|| notes(&world.repos[from]));
    let copy = clone_of(&world.repos[from], with).await?;
    world.repos[at] = copy;
    world.counts.copied += 1;
    world.check_contents(at).await
}

/// Moves a branch to where another repository has it.
pub async fn push(world: &mut World, at: usize) -> Result<(), String> {
    let from = (at + 1 + world.random.below(world.repos.len() - 1)) % world.repos.len();
    if world.repos[from].is_v1 != world.repos[at].is_v1 {
        return Ok(());
    }
    let branch = world.pick_branch(from);
    let force = world.random.chance(20);
    world.say(format!("push {branch} of {from} to {at}{}", if force { " by force" } else { "" }));
    let options = PushOptions {
        refs: vec![branch.clone()],
        force,
        memory: MEMORY,
        notes: world.random.chance(50).then(|| notes(&world.repos[at])),
        ..PushOptions::default()
    };
    let source = world.repos[from].open().await;
    let destination = world.repos[at].open().await;
    let pushed = push::push(source, destination, &options, &Default::default(), system_clock).await;
    let pushed = pushed.map_err(|error| format!("push: {error}"))?;
    let [found] = pushed.refs.as_slice() else { return Err(format!("{pushed:?}")) };
    let tip = world.repos[from].tips[&branch];
    let history = world.repos[from].history(&branch).await;
    let old = world.repos[at].tips.get(&branch).copied();
    world.say(format!("  from {:?} to {}: {:?}", old.map(short), short(tip), found.change));
    let is_right = match (&found.change, old) {
        (Change::Created, None) => true,
        (Change::Unchanged, Some(old)) => old == tip,
        (Change::Forward, Some(old)) => old != tip && world.states[&tip].knows_all_of(&world.states[&old]),
        (Change::Forced, Some(old)) => force && !history.contains(&old),
        (Change::Refused(_), Some(old)) => !force && !history.contains(&old),
        _ => false,
    };
    if !is_right {
        return Err(format!("{found:?}"));
    }
    if matches!(found.change, Change::Refused(_) | Change::Unchanged) {
        world.counts.not_copied += 1;
        return Ok(());
    }
    world.counts.copied += 1;
    let state = world.states[&tip].clone();
    world.moved(at, &branch, state).await?;
    if world.repos[at].tips[&branch] == tip { Ok(()) } else { Err("the copy is another commit".to_owned()) }
}
