//! The snapshot that both sides of a merge are compared with.
//!
//! It is their common ancestor. If there are several, each lacks what the others have: what one
//! side has undone since would look like something that the other one has made. So these are merged
//! first, into a snapshot that no ref leads to; garbage collection removes it.
//!
//! An ancestor that is older than what both sides really have in common is worse than none, for the
//! same reason. A merge is refused where one can know that: a snapshot is gone that both have
//! merged, or that one has merged without a record of the commits that came with it; commits behind
//! the ancestor have expired; or both sides have a node that the ancestor lacks. Where it is in
//! doubt, since a record is false ([`super::claims`]) or may be lost ([`super::doubt`]), the merge
//! is computed with each candidate, and refused if the results differ. Who knows better may name
//! the ancestor.

use std::collections::HashSet;
use std::sync::Arc;

use tracing::warn;

use super::MergeOptions;
use super::ancestor::History;
use super::claims;
use super::doubt::{self, Side};
use super::repacked;
use super::sameness::come_to_the_same;
use super::sides::{self, Applied, ChunkSet, in_both};
use crate::commit::changes::ChangeSet;
use crate::commit::conflict::are_about_chunks;
use crate::commit::engine::{Engine, OnConflict, Request};
use crate::commit::moves::find_moved;
use crate::commit::request::KnownObjects;
use crate::compare::changes::changes_between;
use crate::reader::Reader;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::{NodeId, ObjectId};
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Most times that ancestors of ancestors are merged: merges that cross again and again.
const MAX_DEPTH: usize = 8;

/// Snapshot to compare with.
pub(super) struct Base {
    /// Id of the common ancestor, or of the newest of them.
    pub(super) id: ObjectId,
    pub(super) snapshot: Arc<Snapshot>,
    /// Chunks that several ancestors have changed, each in its own way: nothing tells which of both
    /// sides has changed one since.
    pub(super) disputed: ChunkSet,
    /// True if no record says that both were made from it.
    pub(super) is_inferred: bool,
}

/// Repository of a merge, and what reads and stores its snapshots.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) repository: &'a Repository,
    pub(super) reader: &'a Arc<Reader>,
    pub(super) engine: &'a Engine,
}

/// Repository of a merge, and what reads, stores and knows its snapshots.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) repository: &'a Repository,
    pub(super) reader: &'a Arc<Reader>,
    pub(super) engine: &'a Engine,
    pub(super) history: &'a History,
}

impl<'a> Parts<'a> {
    fn with(self, history: &'a History) -> Surroundings<'a> {
        let Parts { repository, reader, engine } = self;
        Surroundings { repository, reader, engine, history }
    }
}

/// Snapshot to compare with, and others that it may have to be.
pub(super) struct CommonAncestor {
    pub(super) base: Base,
    pub(super) others: Vec<Base>,
}

/// Returns the snapshot to compare the source and tip `into` of the branch with. Leaves out of
/// `history` what cannot be believed.
///
/// Errors: [`ErrorKind::InvalidInput`] if there is none, or if what both have in common is lost.
pub(super) async fn find(
    parts: Parts<'_>,
    history: &mut History,
    options: &MergeOptions,
    into: ObjectId,
) -> Result<CommonAncestor> {
    let tips = [options.source, into];
    let Some(id) = options.ancestor else { return among_known(parts, history, options, tips).await };
    let made_both = tips.iter().all(|tip| history.ancestors(*tip).contains(&id)) && !history.is_missing(id);
    if !made_both {
        // One that is in doubt may be named, too.
        let known = among_known(parts, history, options, tips).await.ok();
        if !known.is_some_and(|known| known.others.iter().any(|other| other.id == id)) {
            let source = &options.source_name;
            let branch = &options.into;
            return Err(Error::invalid(format!(
                "--ancestor: {source} and branch `{branch}` were not both made from snapshot {id}"
            )));
        }
    }
    Ok(CommonAncestor { base: Base::of(parts.repository, id).await?, others: Vec::new() })
}

/// Returns the snapshot to compare both with, by what is known of the history.
async fn among_known(
    parts: Parts<'_>,
    history: &mut History,
    options: &MergeOptions,
    tips: [ObjectId; 2],
) -> Result<CommonAncestor> {
    let claimed = history.common_ancestors(&tips[..1], &tips[1..]);
    reject_false_claims(parts, history, tips).await?;
    let found = history.common_ancestors(&tips[..1], &tips[1..]);
    let mut others = Vec::new();
    if found != claimed && !claimed.is_empty() {
        let rejected: Vec<ObjectId> = history.rejected().iter().copied().collect();
        history.accept_all();
        let base = of_ancestors(parts.with(history), options, tips, &claimed).await;
        rejected.into_iter().for_each(|id| history.reject(id));
        others.push(base?);
    }
    let around = parts.with(history);
    let base = of_ancestors(around, options, tips, &found).await?;
    for id in candidates(around, &base, tips, &found).await? {
        others.push(Base { is_inferred: true, ..Base::of(parts.repository, id).await? });
    }
    Ok(CommonAncestor { base, others })
}

/// Rejects the claims that decide about the common ancestor and are not shown by the snapshots.
async fn reject_false_claims(parts: Parts<'_>, history: &mut History, tips: [ObjectId; 2]) -> Result<()> {
    let deciding = |history: &History| history.claimants(tips, &history.common_ancestors(&tips[..1], &tips[1..]));
    reject_unshown(parts, history, deciding).await
}

/// Rejects claims that a merge of `source` into the branch at `into` would take over into its own
/// record, and that the snapshots do not show: the commit of the merge would vouch for them.
pub(super) async fn reject_false_additions(
    parts: Parts<'_>,
    history: &mut History,
    source: ObjectId,
    into: ObjectId,
) -> Result<()> {
    reject_unshown(parts, history, |history| history.adding(source, &history.ancestors(into))).await
}

/// Rejects the claims that the snapshots do not show of those commits that `find` returns, which
/// depend on what is rejected.
async fn reject_unshown(
    parts: Parts<'_>,
    history: &mut History,
    find: impl Fn(&History) -> Vec<ObjectId>,
) -> Result<()> {
    let mut checked = HashSet::new();
    loop {
        let mut pending = find(history);
        pending.retain(|id| checked.insert(*id));
        if pending.is_empty() {
            return Ok(());
        }
        for id in pending {
            if !claims::is_shown(parts.with(history), id).await? {
                warn!(
                    "commit {id} does not contain the snapshot that it was made from by its record: the record is \
                     ignored"
                );
                history.reject(id);
                // Other claims may have seemed to be parts of that one: they have to show all of it
                // now.
                checked.clear();
            }
        }
    }
}

/// Returns the commits that one side may have been made from although no record says so.
async fn candidates(
    around: Surroundings<'_>,
    base: &Base,
    tips: [ObjectId; 2],
    found: &[ObjectId],
) -> Result<Vec<ObjectId>> {
    let Surroundings { repository, history, .. } = around;
    let below: HashSet<ObjectId> = found.iter().flat_map(|id| history.ancestors(*id)).collect();
    let line = |tip| -> Vec<&SnapshotInfo> {
        history.first_parents(tip).take_while(|commit| !below.contains(&commit.id)).collect()
    };
    let [one, other] = tips.map(line);
    if one.is_empty() || other.is_empty() {
        return Ok(Vec::new());
    }
    let load = |id| repository.snapshot(id, MAX_SNAPSHOT);
    let (source, tip) = tokio::try_join!(load(tips[0]), load(tips[1]))?;
    let source = Side { tip: &source, line: &one };
    let tip = Side { tip: &tip, line: &other };
    let of_source = doubt::candidate(around, &base.snapshot, source, tip).await?;
    let of_tip = doubt::candidate(around, &base.snapshot, tip, source).await?;
    Ok(of_source.into_iter().chain(of_tip).collect())
}

/// Returns the snapshot that stands for the common ancestors `found` of `tips`.
async fn of_ancestors(
    around: Surroundings<'_>,
    options: &MergeOptions,
    tips: [ObjectId; 2],
    found: &[ObjectId],
) -> Result<Base> {
    let Surroundings { repository, history, .. } = around;
    let Some(first) = found.first().copied() else {
        return Err(unknown(options, "their histories were expired or rewritten", &[]));
    };
    if let Some(gone) = found.iter().find(|id| history.is_missing(**id)) {
        let why = format!("both have merged snapshot {gone}, which no longer exists");
        return Err(unknown(options, &why, found));
    }
    if tips.contains(&first) {
        return Base::of(repository, first).await;
    }
    let below: HashSet<ObjectId> = found.iter().flat_map(|id| history.ancestors(*id)).collect();
    for tip in tips {
        let above = history.ancestors(tip).difference(&below).copied().collect();
        if let Some(commit) = history.with_unknown_merge(&above) {
            let why = format!("commit {} was made from a snapshot that no longer exists", commit.id);
            return Err(unknown(options, &why, found));
        }
    }
    if let Some(commit) = history.shortened(repository, found, tips).await? {
        return Err(unknown(options, &format!("the history before commit {} has expired", commit.id), found));
    }
    merged(around, found, 0).await
}

/// Both sides of a merge.
#[derive(Clone, Copy)]
pub(super) struct Sides<'a> {
    pub(super) source: &'a Snapshot,
    pub(super) tip: &'a Snapshot,
    /// Description of the tip.
    pub(super) tip_commit: &'a SnapshotInfo,
}

/// Fails if the merge would not come to the same as `changes` if both sides were compared with one
/// of the `others`.
pub(super) async fn check_others(
    around: Surroundings<'_>,
    options: &MergeOptions,
    base: &Base,
    others: Vec<Base>,
    sides: Sides<'_>,
    changes: &ChangeSet,
) -> Result<()> {
    if others.is_empty() {
        return Ok(());
    }
    let Sides { source, tip, tip_commit } = sides;
    let reader = around.reader;
    let mut others = others;
    if options.on_conflict != OnConflict::Fail {
        let undecided = sides::apply(reader, &base.snapshot, source, tip, tip_commit, OnConflict::Fail).await?;
        // Where both changed the same and the user has said whose it shall be, nothing more is to
        // be asked about chance, unless a record can be lost.
        if !undecided.conflicts.is_empty()
            && around.history.were_made_here(around.repository, base.id, [source.id(), tip.id()]).await?
        {
            others.retain(|other| !other.is_inferred);
        }
    }
    let mut different = changes_between(reader, tip, source).await?;
    for other in others {
        let Applied { changes: also, conflicts, .. } =
            sides::apply(reader, &other.snapshot, source, tip, tip_commit, options.on_conflict).await?;
        if conflicts.is_empty() && come_to_the_same(reader, [changes, &also], tip, source, &mut different).await? {
            continue;
        }
        let name = &options.source_name;
        let into = &options.into;
        let [one, two] = [base.id, other.id];
        return Err(Error::new(
            ErrorKind::Stale,
            format!(
                "it is not clear what {name} and branch `{into}` have in common: snapshot {one} or {two}, which would \
                 give different results. Nothing was merged. A commit was amended, squashed or merged without a \
                 record, or its record is false; name the snapshot that both were made from: --ancestor {one} or \
                 --ancestor {two}"
            ),
        ));
    }
    Ok(())
}

/// Fails if both sides have a node that their common ancestor lacks: then they have a newer one,
/// which nothing tells any more.
pub(super) fn check(options: &MergeOptions, base: &Base, source: &Snapshot, tip: &Snapshot) -> Result<()> {
    if options.ancestor.is_some() || [source.id(), tip.id()].contains(&base.id) {
        return Ok(());
    }
    let _room = (base.snapshot.room_for_table()?, tip.room_for_table()?, source.room_for_table()?);
    let known = base.snapshot.node_ids();
    let theirs = tip.node_ids();
    let newer: HashSet<NodeId> =
        source.nodes().map(|node| node.id).filter(|id| theirs.contains(id) && !known.contains(id)).collect();
    if newer.is_empty() {
        return Ok(());
    }
    // Both may have moved a node of the ancestor: its new id is the same on both sides.
    let gone = known.iter().filter(|id| !theirs.contains(id));
    let moved: HashSet<NodeId> = gone.filter_map(|id| find_moved(*id, |new| newer.contains(new))).collect();
    match source.nodes().find(|node| newer.contains(&node.id) && !moved.contains(&node.id)) {
        Some(node) => {
            let why = format!("both have node {}, which snapshot {} does not have", node.path, base.id);
            Err(unknown(options, &why, &[base.id]))
        }
        None => Ok(()),
    }
}

fn unknown(options: &MergeOptions, why: &str, known: &[ObjectId]) -> Error {
    let source = &options.source_name;
    let into = &options.into;
    let mut what = format!(
        "{source} and branch `{into}` do not have a known common ancestor: {why}, so their changes are not known"
    );
    if let Some(last) = known.last() {
        what += &format!("; to compare with one anyway, pass --ancestor {last} or another common snapshot");
    }
    Error::new(ErrorKind::InvalidInput, what)
}

impl Base {
    async fn of(repository: &Repository, id: ObjectId) -> Result<Self> {
        let snapshot = Arc::new(repository.snapshot(id, MAX_SNAPSHOT).await?);
        Ok(Base { id, snapshot, disputed: ChunkSet::new(), is_inferred: false })
    }

    fn dispute(&mut self, chunks: ChunkSet) {
        for (node, coords) in chunks {
            self.disputed.entry(node).or_default().extend(coords);
        }
    }
}

/// Merges the snapshots `ancestors`, none of which was made from another.
pub(super) async fn merged(around: Surroundings<'_>, ancestors: &[ObjectId], depth: usize) -> Result<Base> {
    let Surroundings { repository, reader, engine, history } = around;
    let Some((first, rest)) = ancestors.split_first() else { return Err(Error::invalid("no common ancestor")) };
    let mut base = Base::of(repository, *first).await?;
    for (done, next) in rest.iter().enumerate() {
        let before = history.common_ancestors(ancestors.get(..=done).unwrap_or_default(), &[*next]);
        if before.is_empty() || before.iter().any(|id| history.is_missing(*id)) || depth >= MAX_DEPTH {
            return Err(several(ancestors, "their own common ancestor is not known"));
        }
        let before = Box::pin(merged(around, &before, depth + 1)).await?;
        let source = repository.snapshot(*next, MAX_SNAPSHOT).await?;
        let commit = history.get(*first).ok_or_else(|| Error::corrupt(format!("{first} is not in its own history")))?;
        let Applied { changes, conflicts, contested } =
            sides::apply(reader, &before.snapshot, &source, &base.snapshot, commit, OnConflict::Fail).await?;
        if !are_about_chunks(&conflicts) {
            return Err(several(ancestors, "these have changed the same nodes"));
        }
        // Moved nodes get new ids in version 1, which are not those that the sides have.
        if !changes.moved.is_empty() && base.snapshot.version() == SpecVersion::V1 {
            return Err(several(ancestors, "these have moved nodes"));
        }
        base.dispute(contested);
        base.dispute(before.disputed);
        let message = "Common ancestor of a merge".to_owned();
        let known_objects = KnownObjects::of(repository, *next, &changes).await?;
        let request = Request { message, known_objects, ..Request::default() };
        if let Some(stored) = engine.store_after(repository, &base.snapshot, &changes, &request).await? {
            base.snapshot = stored.snapshot;
        }
    }
    Ok(base)
}

fn several(ancestors: &[ObjectId], why: &str) -> Error {
    let names: Vec<String> = ancestors.iter().map(ToString::to_string).collect();
    let what = format!(
        "both sides have several common ancestors ({}), and {why}: name one of them with --ancestor; what only the \
         others have then counts as a change of both sides",
        names.join(", ")
    );
    Error::new(ErrorKind::Unsupported, what)
}

/// Fails if the sides differ in a chunk of which nothing tells who changed it.
pub(super) async fn check_disputed(
    reader: &Arc<Reader>,
    options: &MergeOptions,
    base: &Base,
    source: &Snapshot,
    tip: &Snapshot,
) -> Result<()> {
    if base.disputed.is_empty() {
        return Ok(());
    }
    let mut different = changes_between(reader, tip, source).await?;
    let disputed = in_both(&different, &base.disputed);
    repacked::drop_unchanged(reader, tip, source, &mut different, disputed).await?;
    let Some((node, coords)) = in_both(&different, &base.disputed).into_iter().next() else { return Ok(()) };
    let path = tip.nodes().find(|other| other.id == node).map(|node| node.path.to_owned()).unwrap_or_default();
    let name = &options.source_name;
    let into = &options.into;
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{name} and branch `{into}` have several common ancestors, which changed the same {} chunks of {path} and \
             differ there: it is not known which side changed them since. Make them equal on both sides first, for \
             example with `icechunkfs restore`, or name an ancestor with --ancestor",
            coords.len()
        ),
    ))
}
