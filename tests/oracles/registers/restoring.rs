//! Restores: registers show again what another snapshot shows, as a new event.

use std::collections::BTreeSet;

use icechunkfs::commit::engine::CommitOutcome;
use icechunkfs::format::ids::NodeId;
use icechunkfs::restore::{self, RestoreOptions};

use super::model::{Content, Part, State, above, paths};
use super::repo::by_path;
use super::world::{World, all_paths, short};
use crate::common::differences;

pub async fn restore(world: &mut World, at: usize) -> Result<(), String> {
    let branch = world.pick_branch(at);
    let from = world.pick_branch(at);
    let history = world.known_history(at, &from).await;
    let source = history[world.random.below(history.len().min(6))];
    let now = world.tip_state(at, &branch).clone();
    let then = world.states[&source].clone();
    let mut path = world.random.pick(&all_paths(&now, &then)).clone();
    if !is_simple(&now, &then, &path) {
        path = "/".to_owned();
    }
    world.say(format!("restore {path} of {branch} of {at} from {} ({from})", short(source)));
    let repo = &world.repos[at];
    let options = RestoreOptions {
        path: path.clone(),
        source,
        branch: branch.clone(),
        message: "restored".to_owned(),
        metadata: Default::default(),
    };
    let (_, outcome) = match restore::restore(&repo.open().await, &repo.reader, &repo.engine, &options).await {
        Ok(done) => done,
        Err(error) => return Err(format!("restore: {error}")),
    };
    let wanted = expected(&now, &then, &path);
    match outcome {
        CommitOutcome::Nothing => {
            let differing = differences(&by_path(&now.content()), &by_path(&wanted));
            return if differing.is_empty() { Ok(()) } else { Err(format!("nothing was restored: {differing:#?}")) };
        }
        CommitOutcome::Committed { .. } => {}
        CommitOutcome::Conflicts(conflicts) => return Err(format!("restore: {conflicts:?}")),
    }
    let tip = repo.branches().await[&branch];
    let found = world.read(at, tip).await?;
    let differing = differences(&by_path(&found), &by_path(&wanted));
    if !differing.is_empty() {
        return Err(format!("restored {differing:#?}"));
    }
    check_identity(&now, &then, &found, &path)?;
    world.counts.restored += 1;
    let state = now.after(&found, &mut world.events);
    world.moved(at, &branch, state).await
}

fn is_below(path: &str, above: &str) -> bool {
    above == "/" || path == above || path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns true if the path means the same node in both, which nobody has moved into or out of it.
fn is_simple(now: &State, then: &State, path: &str) -> bool {
    let before = then.paths();
    let after = now.paths();
    let ids = |all: &std::collections::BTreeMap<String, NodeId>, inside: bool| -> BTreeSet<NodeId> {
        all.iter().filter(|(at, _)| is_below(at, path) == inside).map(|(_, id)| *id).collect()
    };
    let is_apart =
        ids(&before, true).is_disjoint(&ids(&after, false)) && ids(&before, false).is_disjoint(&ids(&after, true));
    before.contains_key(path) && after.contains_key(above(path)) && is_apart
}

/// Returns the content after a restore; the ids of nodes are those of the source below the path.
fn expected(now: &State, then: &State, path: &str) -> Content {
    let now = now.content();
    let then = then.content();
    let inside = |content: &Content| -> BTreeSet<NodeId> {
        paths(content).into_iter().filter(|(at, _)| is_below(at, path)).map(|(_, id)| id).collect()
    };
    let gone = inside(&now);
    let back = inside(&then);
    let kept = now.into_iter().filter(|((id, _), _)| !gone.contains(id));
    kept.chain(then.into_iter().filter(|((id, _), _)| back.contains(id))).collect()
}

/// Checks that each node that both states have, or that is not there any more, is the node that it
/// was. One that goes to the path of a deleted one is a new one, as a log cannot say both, and so
/// is one that goes to the path of such a one.
fn check_identity(now: &State, then: &State, found: &Content, path: &str) -> Result<(), String> {
    let before = now.paths();
    let after = paths(found);
    let back: Vec<(String, NodeId)> = then.paths().into_iter().filter(|(at, _)| is_below(at, path)).collect();
    let mut remade: BTreeSet<NodeId> = BTreeSet::new();
    loop {
        let is_deleted = |other: &NodeId| !then.content().contains_key(&(*other, Part::Path)) || remade.contains(other);
        let is_taken = |at: &String, id: NodeId| before.get(at).is_some_and(|other| *other != id && is_deleted(other));
        let more: Vec<NodeId> =
            back.iter().filter(|(at, id)| !remade.contains(id) && is_taken(at, *id)).map(|(_, id)| *id).collect();
        if more.is_empty() {
            break;
        }
        remade.extend(more);
    }
    for (at, id) in back {
        if after.get(&at) != Some(&id) && !remade.contains(&id) {
            return Err(format!("{at} is node {:?} instead of {id:?}", after.get(&at)));
        }
    }
    Ok(())
}
