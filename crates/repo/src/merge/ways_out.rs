//! Ways out where later commits keep a revert from being made: what each does, and its steps.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::authors::ids_of;
use super::revert::RevertPlan;
use crate::commit::conflict::{Conflict, ConflictKind};
use icechunkfs_base::{printable, size};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Node that a conflict is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeThen {
    /// Path that it has now, if it is there.
    pub now: Option<String>,
    /// True if it was there before the commits.
    pub was_there: bool,
}

/// Returns the nodes of `conflicts`, whose paths are those in one of `states`, of which the first
/// is that of now; `side` is the state before the commits.
pub(super) fn nodes_of(conflicts: &[Conflict], states: [&Snapshot; 2], side: &Snapshot) -> HashMap<String, NodeThen> {
    let ids = ids_of(conflicts, states);
    let wanted: HashSet<NodeId> = ids.values().copied().collect();
    let there: HashSet<NodeId> = side.nodes().map(|node| node.id).filter(|id| wanted.contains(id)).collect();
    let [now, _] = states;
    let now: HashMap<NodeId, &str> =
        now.nodes().filter(|node| wanted.contains(&node.id)).map(|node| (node.id, node.path)).collect();
    let then =
        |id: NodeId| NodeThen { now: now.get(&id).map(|path| (*path).to_owned()), was_there: there.contains(&id) };
    ids.into_iter().map(|(path, id)| (path, then(id))).collect()
}

/// Paths that a list of ways names.
const NAMED: usize = 3;

/// Way out of the conflicts of a revert.
#[derive(Debug)]
pub struct Way {
    /// Words for what it does and what that costs, which follow "To".
    pub does: String,
    /// Commits that are taken back besides, newest first.
    pub besides: Vec<SnapshotInfo>,
    /// Commands, one after another, each with a commit of its own.
    pub steps: Vec<Step>,
}

/// Command of a [`Way`].
#[derive(Debug)]
pub enum Step {
    /// Take commits back, with this value of `--on-conflict`.
    Revert(Vec<SnapshotInfo>, Option<&'static str>),
    /// Remove what is at a path.
    Remove(String),
    /// Restore a path as it was before the commits.
    Restore(String),
    /// List the commits that changed a path.
    List(String),
}

/// Returns the ways out of the conflicts of `plan`, the one that changes least first.
pub fn ways_out(plan: &RevertPlan) -> Vec<Way> {
    let those = if plan.reverted.len() == 1 { "this commit" } else { "these commits" };
    let revert = |side| Step::Revert(plan.reverted.clone(), side);
    let alone = |does: String, step| Way { does, besides: Vec::new(), steps: vec![step] };
    let mut ways = Vec::new();
    let open: Vec<&Conflict> = plan.conflicts.iter().filter(|conflict| !conflict.kind.has_sides()).collect();
    if open.is_empty() {
        let does = format!("take back all of {those}, and lose later changes of the same things");
        ways.push(alone(does, revert(Some("theirs"))));
        if plan.has_rest {
            let does = format!("keep later changes of the same things, and take back the rest of {those}");
            ways.push(alone(does, revert(Some("ours"))));
        }
    }
    ways.extend(by_hand(plan, &open, those));
    match (plan.obstacles.as_slice(), plan.conflicts.first()) {
        ([], Some(conflict)) => {
            let does = format!("see which later commits changed {}, down to {those}", printable::line(&conflict.path));
            ways.push(alone(does, Step::List(conflict.path.clone())));
        }
        (obstacles, _) => {
            let first = obstacles.iter().map(|commit| Step::Revert(vec![commit.clone()], None));
            ways.push(Way {
                does: "take back the later commits first, with all that they changed".to_owned(),
                besides: obstacles.to_vec(),
                steps: first.chain([revert(None)]).collect(),
            });
        }
    }
    ways
}

/// Returns the ways out of the conflicts `open`, about which `--on-conflict` does not decide.
fn by_hand(plan: &RevertPlan, open: &[&Conflict], those: &str) -> Vec<Way> {
    let nodes: Vec<&NodeThen> = open.iter().filter_map(|conflict| plan.nodes.get(&conflict.path)).collect();
    let paths: BTreeSet<&str> = nodes.iter().filter_map(|node| node.now.as_deref()).collect();
    if paths.len() > NAMED || paths.contains("/") {
        return Vec::new();
    }
    let is_new = |path: &&str| nodes.iter().any(|node| node.now.as_deref() == Some(*path) && !node.was_there);
    let (new, old): (Vec<&str>, Vec<&str>) = paths.into_iter().partition(is_new);
    // A removal takes everything below along.
    let is_below = |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
    let new: Vec<&str> = new.iter().copied().filter(|path| !new.iter().any(|above| is_below(path, above))).collect();
    let mut ways = Vec::new();
    if !new.is_empty() {
        let named: Vec<String> = new.iter().map(|path| printable::line(path)).collect();
        let named = named.join(" and ");
        // With others left open, the rest cannot be taken back.
        let rest = if old.is_empty() { format!(", and take back the rest of {those}") } else { String::new() };
        let removals = new.iter().map(|path| Step::Remove((*path).to_owned()));
        let then = old.is_empty().then(|| Step::Revert(plan.reverted.clone(), None));
        ways.push(Way {
            does: format!("remove {named}, with its later changes{rest}"),
            besides: Vec::new(),
            steps: removals.chain(then).collect(),
        });
    }
    ways.extend(old.into_iter().map(|path| Way {
        does: format!(
            "make {}, with all below it, as it was before {those}, and lose its later changes",
            printable::line(path)
        ),
        besides: Vec::new(),
        steps: vec![Step::Restore(path.to_owned())],
    }));
    ways
}

/// Returns why nothing is taken back, as the beginning of a message.
pub fn headline(plan: &RevertPlan, dry_run: bool) -> String {
    let count = size::counted(plan.conflicts.len() as u64, "conflict");
    let outcome = if dry_run { "nothing can be taken back as it is" } else { "nothing was taken back" };
    format!("later commits changed the same things ({count}): {outcome}")
}

/// Returns what later commits did, as a line.
pub fn since(conflict: &Conflict) -> String {
    let what = match conflict.kind {
        ConflictKind::ChunkDoubleUpdate => "changed again".to_owned(),
        ConflictKind::ZarrMetadataDoubleUpdate => "zarr.json was changed again".to_owned(),
        ConflictKind::DeleteOfUpdatedArray | ConflictKind::DeleteOfUpdatedGroup => {
            "taking the commit back would remove this, which was changed since".to_owned()
        }
        ConflictKind::MoveOperationCannotBeRebased => "moved since, or taking the commit back would move it".to_owned(),
        ConflictKind::NewNodeInDeletedGroup => {
            "taking the commit back would remove the group that this is in".to_owned()
        }
        kind => kind.describe().to_owned(),
    };
    let path = printable::line(&conflict.path);
    let message = printable::line(&conflict.message);
    let parts = if conflict.kind.has_sides() { conflict.parts() } else { String::new() };
    format!("{path}: {what}{parts}; last by commit {} \"{message}\"", conflict.other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::commit::changes::ChangeSet;
    use icechunkfs_base::memory::Metered;
    use icechunkfs_format::format::ids::ObjectId;

    fn conflict(kind: ConflictKind, path: &str) -> Conflict {
        Conflict {
            kind,
            path: path.to_owned(),
            coords: Vec::new(),
            members: Vec::new(),
            other: ObjectId::INITIAL,
            message: "later".to_owned(),
            own: crate::commit::conflict::OwnChange::default(),
        }
    }

    fn ways(conflicts: Vec<Conflict>, has_rest: bool) -> Vec<String> {
        let plan = RevertPlan {
            reverted: Vec::new(),
            before: ObjectId::INITIAL,
            changes: Metered::own(ChangeSet::default()),
            conflicts,
            obstacles: Vec::new(),
            has_rest,
            nodes: [
                ("/b", "/b", false),
                ("/b/x", "/b/x", false),
                ("/c", "/d", true),
                ("/", "/", true),
                ("/gone", "", true),
            ]
            .into_iter()
            .map(|(path, now, was_there)| {
                let now = Some(now.to_owned()).filter(|now| !now.is_empty());
                (path.to_owned(), NodeThen { now, was_there })
            })
            .collect(),
        };
        let first = |way: Way| match way.steps.first().unwrap() {
            Step::Revert(_, side) => side.unwrap_or("first").to_owned(),
            Step::Remove(path) => format!("remove {path}"),
            Step::Restore(path) => format!("restore {path}"),
            Step::List(path) => format!("list {path}"),
        };
        ways_out(&plan).into_iter().map(first).collect()
    }

    #[test]
    fn each_kind_of_conflict_has_a_way_out() {
        let chunks = || conflict(ConflictKind::ChunkDoubleUpdate, "/a");
        assert_eq!(ways(vec![chunks()], false), ["theirs", "list /a"]);
        assert_eq!(ways(vec![chunks()], true), ["theirs", "ours", "list /a"]);
        // One conflict that has no sides leaves none to all.
        let removed = conflict(ConflictKind::DeleteOfUpdatedArray, "/b");
        assert_eq!(ways(vec![chunks(), removed], true), ["remove /b", "list /a"]);
        // A path below another one goes along.
        let both = ["/b/x", "/b"].map(|path| conflict(ConflictKind::MoveOperationCannotBeRebased, path));
        assert_eq!(ways(both.into(), true), ["remove /b", "list /b/x"]);
        let moved = conflict(ConflictKind::MoveOperationCannotBeRebased, "/c");
        assert_eq!(ways(vec![moved], true), ["restore /d", "list /c"]);
        let gone = conflict(ConflictKind::MoveOperationCannotBeRebased, "/gone");
        assert_eq!(ways(vec![gone], true), ["list /gone"]);
        let root = conflict(ConflictKind::DeleteOfUpdatedGroup, "/");
        assert_eq!(ways(vec![root], true), ["list /"]);
    }
}
