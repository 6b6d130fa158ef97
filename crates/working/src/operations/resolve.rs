//! Conflicts of a mount, and their settlement: `icechunkfs resolve`.
//!
//! A commit or refresh that finds conflicts changes nothing and lists them here. For a chunk or a
//! member of `zarr.json` that both sides changed, the user says whose is taken; the next commit or
//! refresh does it ([`icechunkfs_repo::commit::settlements`]). Settlements end with the changes
//! that they are for: when these are committed, moved to another base, or discarded; a discard of a
//! part ends those of its nodes. What is to give way does so only as it was when the user said so:
//! what is written to the node later, as far as the clock of the scratch directory's file system
//! tells, is asked about again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;
use rustix::fs::AtFlags;
use serde_json::{Value, json};

use super::Session;
use super::changes::DetectedChanges;
use super::rebase::description;
use crate::overlay::Base;
use crate::overlay::listing::join;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::size::counted;
use icechunkfs_base::{printable, shell};
use icechunkfs_format::format::ids::NodeId;
use icechunkfs_format::zarr::three_way::Side;
use icechunkfs_repo::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use icechunkfs_repo::commit::conflict::{Conflict, ConflictKind, OwnChange};
use icechunkfs_repo::commit::settlements::Settlements;
use icechunkfs_repo::compare::scope::is_below;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{TreePlace, ZARR_JSON};

/// Conflicts that an error names; `.icechunk/conflicts` has all.
const NAMED: usize = 5;

/// The conflicts that the last operation of a mount found, and those that are settled.
#[derive(Debug, Default)]
pub(super) struct OpenConflicts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Those that the last operation found, without what was settled since.
    conflicts: Vec<Conflict>,
    /// Conflicts that were settled, for those who change their mind.
    settled: Vec<Conflict>,
    /// True if the changes conflict with concurrent commits; false if a revert conflicts with what
    /// followed the commits that it was to take back.
    is_of_changes: bool,
    settlements: Settlements,
    /// The changes of each node of which something is to give way, as they were when that was
    /// settled.
    given_up: BTreeMap<String, u64>,
}

impl OpenConflicts {
    /// Remembers the conflicts of the changes with concurrent commits.
    pub(super) fn found(&self, conflicts: Vec<Conflict>) {
        let mut found = self.0.lock();
        found.conflicts = conflicts;
        found.is_of_changes = true;
    }

    /// Remembers the conflicts of a revert. They are settled by an option of it.
    pub(super) fn found_by_revert(&self, conflicts: Vec<Conflict>) {
        *self.0.lock() = Known { conflicts, ..Known::default() };
    }

    /// Forgets everything: the changes, or what they are based on, are others now.
    pub(super) fn clear(&self) {
        *self.0.lock() = Known::default();
    }

    /// Forgets the conflicts at and below `path`, whose changes are discarded. What was settled of
    /// the same nodes is open again.
    pub(super) fn discarded(&self, path: &str, tree: &Tree) {
        let mut found = self.0.lock();
        let Known { conflicts, settled, settlements, given_up, .. } = &mut *found;
        let is_of_discarded = |conflict: &Conflict| part_at(conflict, path, tree).is_some();
        let nodes: HashSet<String> = conflicts
            .iter()
            .chain(settled.iter())
            .filter(|conflict| is_of_discarded(conflict))
            .map(|conflict| conflict.path.clone())
            .collect();
        for node in &nodes {
            given_up.remove(node);
            settlements.forget(node);
        }
        let (open_again, kept) = settled.drain(..).partition(|conflict| nodes.contains(&conflict.path));
        *settled = kept;
        conflicts.extend::<Vec<_>>(open_again);
        *conflicts = conflicts.iter().filter_map(|conflict| without_part(conflict, path, tree)).collect();
    }

    /// Forgets what is settled for the nodes at `paths`, and returns the rest.
    fn settlements_without(&self, paths: &[String]) -> Settlements {
        let mut found = self.0.lock();
        for path in paths {
            found.given_up.remove(path);
            found.settlements.forget(path);
            found.settled.retain(|conflict| conflict.path != *path);
        }
        found.settlements.clone()
    }

    /// Returns the paths of the nodes that have conflicts.
    fn paths(&self) -> Vec<String> {
        let found = self.0.lock();
        found.conflicts.iter().chain(&found.settled).map(|conflict| conflict.path.clone()).collect()
    }

    /// Returns the number of the open conflicts of the changes.
    pub(super) fn count(&self) -> usize {
        let found = self.0.lock();
        if found.is_of_changes { found.conflicts.len() } else { 0 }
    }

    /// Returns the open conflicts as JSON.
    pub(super) fn to_json(&self) -> Value {
        serde_json::to_value(&self.0.lock().conflicts).unwrap_or_default()
    }

    /// Settles what `paths` name, in `tree`, of the open conflicts, or of the settled ones if none
    /// of the open ones is named. Returns the number of settled ones.
    ///
    /// Errors: [`ErrorKind::NotFound`] if a path names none, [`ErrorKind::Stale`] if one is of a
    /// kind that no side can win. Then nothing is settled.
    fn settle(
        &self,
        paths: &[String],
        side: Side,
        tree: &Tree,
        fingerprints: &BTreeMap<String, u64>,
        mountpoint: &str,
    ) -> Result<usize> {
        let mut found = self.0.lock();
        if !found.is_of_changes {
            let message = "there are no conflicts to settle: `icechunkfs commit` and `icechunkfs refresh` find them";
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let mut settlements = found.settlements.clone();
        let mut open = found.conflicts.clone();
        let mut settled = found.settled.clone();
        let mut given_up = found.given_up.clone();
        let mut give_up = |part: &Conflict| {
            let now = fingerprints.get(&part.path).filter(|_| side == Side::Theirs);
            given_up.extend(now.map(|now| (part.path.clone(), *now)));
        };
        let mut count = 0;
        for path in paths {
            let before = count;
            let mut left = Vec::new();
            let mut now = Vec::new();
            for conflict in open {
                let Some(part) = part_at(&conflict, path, tree) else {
                    left.push(conflict);
                    continue;
                };
                if !settlements.settle(&part, side) {
                    return Err(not_settled(&conflict, mountpoint));
                }
                count += 1;
                give_up(&part);
                left.extend(without_part(&conflict, path, tree));
                now.push(part);
            }
            if now.is_empty() {
                for part in settled.iter().filter_map(|conflict| part_at(conflict, path, tree)) {
                    give_up(&part);
                    count += usize::from(settlements.settle(&part, side));
                }
            }
            settled.extend(now);
            if count == before {
                let path = printable::line(path);
                let message =
                    format!("no conflict is at or below {path}: .icechunk/conflicts lists them. Nothing was settled");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            open = left;
        }
        *found = Known { conflicts: open, settled, settlements, given_up, is_of_changes: true };
        Ok(count)
    }

    /// Returns the conflicts as text, each with the commands that settle it.
    pub(super) fn to_text(&self, mountpoint: &str) -> String {
        let found = self.0.lock();
        if found.conflicts.is_empty() {
            return "no conflicts\n".to_owned();
        }
        let mut text = String::new();
        for conflict in &found.conflicts {
            let _ = writeln!(text, "{conflict}");
            if found.is_of_changes {
                let _ = writeln!(text, "  {}", remedy(conflict, mountpoint));
            }
        }
        text
    }
}

/// Returns what settles a conflict, as a clause.
fn remedy(conflict: &Conflict, mountpoint: &str) -> String {
    let place = shell::quote(mountpoint);
    let path = shell::quote(&conflict.path);
    if let OwnChange::Removal(group) = &conflict.own {
        let group = shell::quote(group);
        return format!(
            "to keep what the other side added: icechunkfs discard {place} {group}, then commit or refresh; to remove \
             or move the group anyway: run that discard, icechunkfs refresh {place}, and do it again"
        );
    }
    match conflict.kind {
        kind if kind.has_sides() => {
            format!("to settle it: icechunkfs resolve {place} {path} --ours (or --theirs), then commit")
        }
        ConflictKind::UntrackedNameExists => format!("to settle it: move {path} away, then commit"),
        ConflictKind::MergedByBoth => "merge again".to_owned(),
        ConflictKind::DeleteOfUpdatedArray | ConflictKind::DeleteOfUpdatedGroup => format!(
            "to keep what the other side changed: icechunkfs discard {place} {path}, then commit or refresh; to delete \
             it anyway: discard it, icechunkfs refresh {place}, and delete it again"
        ),
        // A discard of the group would take everything below with it.
        ConflictKind::NewNodeConflictsWithExistingNode if conflict.own == OwnChange::NewGroup => {
            let document = shell::quote(&join(&conflict.path, ZARR_JSON));
            format!(
                "to take the group of the other side, with the content of yours: icechunkfs discard {place} \
                 {document}, then commit, or refresh if that was all"
            )
        }
        _ => format!(
            "to discard your change, with all below {path}: icechunkfs discard {place} {path}, then commit; to keep it: copy it \
             elsewhere, discard and refresh, then make it again"
        ),
    }
}

fn not_settled(conflict: &Conflict, mountpoint: &str) -> Error {
    let path = printable::line(&conflict.path);
    let remedy = remedy(conflict, mountpoint);
    let what = conflict.kind.describe();
    Error::new(ErrorKind::Stale, format!("{path}: {what}: neither side can be taken; {remedy}. Nothing was settled"))
}

/// Returns the error for `conflicts` with concurrent commits: what was not done, and the next
/// command.
pub(super) fn refusal(conflicts: &[Conflict], outcome: &str, mountpoint: &str) -> Error {
    let mut paths: Vec<&str> = conflicts.iter().map(|conflict| conflict.path.as_str()).collect();
    paths.dedup();
    let more = if paths.len() > NAMED { ", ..." } else { "" };
    let named: Vec<_> = paths.iter().take(NAMED).map(|path| printable::line(path)).collect();
    let count = counted(conflicts.len() as u64, "conflict");
    let next = match conflicts {
        [conflict] => remedy(conflict, mountpoint),
        all if all.iter().all(|one| one.kind.has_sides()) => format!(
            "to settle all of them: icechunkfs resolve {} / --ours (or --theirs), then commit; .icechunk/conflicts lists each",
            shell::quote(mountpoint)
        ),
        _ => ".icechunk/conflicts lists them, each with the commands that settle it".to_owned(),
    };
    Error::new(
        ErrorKind::Stale,
        format!(
            "concurrent commits changed the same things ({count}: {}{more}): {outcome}, and nothing is lost; {next}",
            named.join(", ")
        ),
    )
}

/// Returns the part of `conflict` that `path` names: everything at and below it, or a chunk, or the
/// document of a node.
fn part_at(conflict: &Conflict, path: &str, tree: &Tree) -> Option<Conflict> {
    if is_below(&conflict.path, path) {
        return Some(conflict.clone());
    }
    if !is_below(path, &conflict.path) {
        return None;
    }
    let is_about_document = matches!(
        conflict.kind,
        ConflictKind::ZarrMetadataDoubleUpdate
            | ConflictKind::NewNodeConflictsWithExistingNode
            | ConflictKind::ZarrMetadataUpdateOfDeletedArray
            | ConflictKind::ZarrMetadataUpdateOfDeletedGroup
    );
    if is_about_document {
        return (join(&conflict.path, ZARR_JSON) == path).then(|| conflict.clone());
    }
    let Some(TreePlace::Directory(index)) = tree.place_of(&conflict.path) else { return None };
    let encoding = &tree.table().array(index)?.encoding;
    let is_named = |coords: &&Vec<u32>| join(&conflict.path, &encoding.key(coords)) == path;
    let coords: Vec<Vec<u32>> = conflict.coords.iter().filter(is_named).cloned().collect();
    (!coords.is_empty()).then(|| Conflict { coords, ..conflict.clone() })
}

/// Returns what of `conflict` [`part_at`] does not return; none if that is nothing.
fn without_part(conflict: &Conflict, path: &str, tree: &Tree) -> Option<Conflict> {
    let Some(part) = part_at(conflict, path, tree) else { return Some(conflict.clone()) };
    let taken: HashSet<&Vec<u32>> = part.coords.iter().collect();
    let coords: Vec<Vec<u32>> = conflict.coords.iter().filter(|coords| !taken.contains(coords)).cloned().collect();
    (!coords.is_empty()).then(|| Conflict { coords, ..conflict.clone() })
}

/// The changes of each node. A conflict names a node by its path now or in the base.
struct NodeChanges<'a> {
    changes: &'a ChangeSet,
    base: &'a Base,
    documents: HashMap<NodeId, &'a WrittenNode>,
    ids: HashMap<&'a str, NodeId>,
}

impl<'a> NodeChanges<'a> {
    fn new(changes: &'a ChangeSet, base: &'a Base) -> Self {
        let documents = changes.updated.iter().map(|node| (node.id, node)).collect();
        let ids = changes.updated.iter().map(|node| (node.path.as_str(), node.id)).collect();
        NodeChanges { changes, base, documents, ids }
    }

    /// Returns a hash of the changes of the node at `path`: of its document, and of each chunk with
    /// the time when its file was last written.
    fn fingerprint(&self, path: &str) -> u64 {
        let id = self.ids.get(path).copied().or_else(|| {
            let tree = &self.base.tree;
            let Some(TreePlace::Directory(index)) = tree.place_of(path) else { return None };
            tree.table().id(tree.snapshot(), index)
        });
        let document = id.and_then(|id| self.documents.get(&id));
        let mut hasher = DefaultHasher::new();
        document.map(|node| &*node.zarr_json).hash(&mut hasher);
        for (coords, change) in id.and_then(|id| self.changes.chunks.get(&id)).into_iter().flatten() {
            (coords, description(change)).hash(&mut hasher);
            if let ChunkChange::File(file) = change
                && let Ok(written) = rustix::fs::statat(&*file.directory, &file.name, AtFlags::SYMLINK_NOFOLLOW)
            {
                (written.st_ctime, written.st_ctime_nsec).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

impl Session {
    /// Settles the conflicts at and below `paths` in favor of `side`. Returns the result as text
    /// and as JSON. The next commit or refresh takes that side.
    ///
    /// Errors: [`ErrorKind::NotFound`] if one of the paths has no conflict, [`ErrorKind::Stale`] if
    /// one is of a kind that no side can win. Then nothing is settled.
    pub async fn resolve(&self, paths: &[String], side: Side) -> Result<(String, Value)> {
        let _turn = self.take_turn().await;
        let mut absolute = Vec::new();
        for path in paths {
            absolute.push(self.repository_path(path).await?);
        }
        let base = self.working.upper().base();
        let (_, detected) = self.detect_changes().await?;
        // New bytes are not given up with the chunks that are settled now.
        drop(self.settlements(&detected));
        let changes = NodeChanges::new(&detected.changes, &base);
        let paths = self.conflicts.paths().into_iter().filter(|_| side == Side::Theirs);
        let fingerprints: BTreeMap<String, u64> =
            paths.map(|path| (path.clone(), changes.fingerprint(&path))).collect();
        let count = self.conflicts.settle(&absolute, side, &base.tree, &fingerprints, &self.mountpoint())?;
        let whose = match side {
            Side::Ours => "what this mount has",
            Side::Theirs => "what the other commits have",
        };
        let settled = counted(count as u64, "conflict");
        let text = format!("settled {settled}: the next commit keeps {whose}\n");
        Ok((text, json!({ "settled": count })))
    }

    /// Returns what is settled of `detected`. What was written after it was settled to give way is
    /// not what the user gave up: that is asked again.
    pub(super) fn settlements(&self, detected: &DetectedChanges) -> Settlements {
        let given_up = self.conflicts.0.lock().given_up.clone();
        let base = self.working.upper().base();
        let changes = NodeChanges::new(&detected.changes, &base);
        let is_other = |(path, before): &(String, u64)| changes.fingerprint(path) != *before;
        let written: Vec<String> = given_up.into_iter().filter(is_other).map(|(path, _)| path).collect();
        self.conflicts.settlements_without(&written)
    }

    /// Returns the mountpoint as text.
    pub(super) fn mountpoint(&self) -> String {
        self.facts.mountpoint.to_string_lossy().into_owned()
    }

    /// Returns the conflicts of the last commit or refresh as text.
    pub fn conflicts_text(&self) -> String {
        self.conflicts.to_text(&self.mountpoint())
    }
}
