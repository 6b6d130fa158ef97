//! Moves refs of a repository to where another has them.
//!
//! A branch moves forward only, unless that is forced: then commits that only it led to are on no
//! branch any more. A tag never moves, and the name of a deleted tag is never used again, forced or
//! not. Refs that the source lacks stay.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::amended::Amended;
use super::destination::{Destination, made_separately};
use super::history::Outstanding;
use super::notes::CopyNotes;
use super::objects::Copy;
use super::{Counters, Ends, Failure, check_logs, check_metadata, removal};
use crate::repo::change_refs::{RefKind, check_new_name};
use crate::repo::clock::is_of_future;
use crate::repo::history::{is_ancestor, walk_all};
use crate::repo::import_ref::{RefImport, StoredCommits, import_refs};
use crate::repo::refs::{Refs, unknown_name};
use crate::repo::revision::is_revision_of_another;
use crate::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{Meter, Metered};
use icechunkfs_base::stages::Stages;
use icechunkfs_base::times::{Clock, format_time};
use icechunkfs_base::{printable, shell};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::repo_state::SnapshotRecord;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Options of a push.
#[derive(Clone, Debug, Default)]
pub struct PushOptions {
    /// Branches and tags; all if empty.
    pub refs: Vec<String>,
    /// True if branches may lose commits.
    pub force: bool,
    /// True if the user works in the destination: newer commits there are no reason to refuse a
    /// branch.
    pub is_pull: bool,
    /// Options of stores for the commands that a refusal names.
    pub hints: Hints,
    /// True if nothing is changed.
    pub dry_run: bool,
    /// Most memory that objects on their way may take, in bytes.
    pub memory: u64,
    /// Notes on what was compared before; none if everything is compared.
    pub notes: Option<CopyNotes>,
}

/// Options of the stores, for the commands that a refusal names, as
/// [`icechunkfs_store::storage::settings::Settings::of_access`] has them.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// Those of the source.
    pub of_source: Vec<String>,
    /// Those of the destination.
    pub of_destination: Vec<String>,
}

/// Change of a ref of the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is where the source has it.
    Unchanged,
    /// It has all commits of the source and newer ones, and stays: of a pull.
    Newer,
    /// It is new.
    Created,
    /// It moves to a commit that follows.
    Forward,
    /// It moves to another commit since that is forced.
    Forced,
    /// It stays, for this reason; also if it changed there during the push.
    Refused(String),
}

/// Ref of the source, and what happens to it at the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedRef {
    /// Kind of the ref.
    pub kind: RefKind,
    /// Name of the ref.
    pub name: String,
    /// Target before; none if the ref is new.
    pub from: Option<ObjectId>,
    /// Target in the source.
    pub to: ObjectId,
    /// Change at the destination.
    pub change: Change,
}

/// Result of a push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// All refs of the source that were asked for.
    pub refs: Vec<PushedRef>,
    /// Number of commits that the destination lacked.
    pub commits: usize,
}

/// Copies what the destination lacks, and moves its refs. A refused ref does not keep others from
/// moving.
pub async fn push(
    source: Repository,
    destination: Repository,
    options: &PushOptions,
    counters: &Counters,
    clock: Clock,
) -> Result<Pushed> {
    let mut ends = Ends::new(source, destination)?;
    if options.dry_run {
        // A push of the same would be refused. The store is not asked: that needs permission to
        // write.
        ends.destination.check_writable()?;
    } else {
        ends.destination.check_changes_allowed().await?;
    }
    let mut tries = 0;
    loop {
        tries += 1;
        let error = match attempt(&ends, options, counters, clock).await {
            Ok(pushed) => return Ok(pushed),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Changed(error)) => error,
        };
        ends = ends.begin_again(error, tries).await?;
    }
}

async fn attempt(
    Ends { source, destination }: &Ends,
    options: &PushOptions,
    counters: &Counters,
    clock: Clock,
) -> Result<Pushed, Failure> {
    let place = || destination.storage().location().to_owned();
    let stages = Stages::begin("comparing the histories");
    let stored_since = destination.log_position();
    let there = refs_for(destination, &options.refs).await.context(place)?;
    let tips = there.branches.values().chain(there.tags.values()).copied();
    let mut present = HashSet::new();
    let visit = |commit: SnapshotInfo| Ok(present.insert(commit.id));
    walk_all(destination, tips.collect::<HashSet<_>>(), visit).await.context(place)?;
    let deleted = destination.deleted_tags().await.context(place)?;
    let mut refs = wanted(source, &options.refs).await?;
    for found in &mut refs {
        let of_kind = if found.kind == RefKind::Branch { &there.branches } else { &there.tags };
        found.from = of_kind.get(&found.name).copied();
        found.change = change_of(source, destination, found, &present, &deleted, options).await?;
    }
    let agreed = agreed(source, destination, options, &present).await.context(place)?;
    let mut targets = targets_of(&refs);
    let mut outstanding = Outstanding::find(source, targets.iter().copied(), &agreed).await?;
    if refuse_future(&mut refs, &outstanding, &present, clock) {
        targets = targets_of(&refs);
        outstanding = Outstanding::find(source, targets.iter().copied(), &agreed).await?;
    }
    let new: HashSet<ObjectId> =
        outstanding.commits.iter().map(|commit| commit.id).filter(|id| !present.contains(id)).collect();
    let commits = new.len();
    if options.dry_run {
        return Ok(Pushed { refs, commits });
    }
    check_metadata(source, &outstanding).await?;
    if let Some(notes) = &options.notes {
        notes.strike(&**destination.storage(), &**source.storage(), &new)?;
    }
    let to = Destination::new(destination.storage(), source.storage().location());
    let mut copy = Copy::new(source, to, &present, counters, options.memory);
    stages.enter("copying objects");
    copy.run(&outstanding).await?;
    stages.enter("checking what was copied");
    check_logs(source, &outstanding, copy.lacking_logs()).await?;
    if removal::wait(destination, &copy.found(), &present, clock).await? {
        copy.restore_reused().await?;
    }
    let amended = Amended::read(source, &outstanding, Some(destination)).await?;
    let records = records(source, &outstanding, &present, &amended)?;
    stages.enter("moving refs");
    // The setting forbids moving nodes here, not receiving commits that moved them elsewhere.
    let commits_there = StoredCommits { records: &records, stored_since, has_moves: false };
    move_refs(destination, &mut refs, commits_there, clock).await?;
    copy.restore_reused().await?;
    if let Some(notes) = &options.notes {
        notes.note(&**destination.storage(), &**source.storage(), targets);
    }
    Ok(Pushed { refs, commits })
}

/// Moves `refs`, as far as they move. Those that have changed meanwhile are told in them.
async fn move_refs(
    destination: &Repository,
    refs: &mut [PushedRef],
    commits: StoredCommits<'_>,
    clock: Clock,
) -> Result<(), Failure> {
    let place = || destination.storage().location().to_owned();
    let moves: Vec<RefImport<'_>> = refs.iter().filter(|found| is_move(&found.change)).map(import_of).collect();
    if moves.is_empty() {
        return Ok(());
    }
    let outcomes = match import_refs(destination, &moves, commits, clock).await {
        Ok(outcomes) => outcomes,
        Err(error) if error.kind() == ErrorKind::Busy => return Err(Failure::Changed(error)),
        Err(error) => return Err(Failure::Final(error.context(place()))),
    };
    let moved = refs.iter_mut().filter(|found| is_move(&found.change));
    for (found, outcome) in moved.zip(outcomes) {
        let Err(error) = outcome else { continue };
        match change_meanwhile(destination, found, &error).await.context(place)? {
            Some(change) => found.change = change,
            None => return Err(Failure::Final(error.context(place()))),
        }
    }
    Ok(())
}

fn import_of(found: &PushedRef) -> RefImport<'_> {
    RefImport {
        kind: found.kind,
        name: &found.name,
        expected: found.from,
        target: found.to,
        is_forward: found.change == Change::Forward,
    }
}

/// Returns those of the commits `present` of the destination that were compared with the source
/// before.
async fn agreed(
    source: &Repository,
    destination: &Repository,
    options: &PushOptions,
    present: &HashSet<ObjectId>,
) -> Result<HashSet<ObjectId>> {
    let Some(notes) = &options.notes else { return Ok(HashSet::new()) };
    let targets = notes.targets(&**destination.storage(), &**source.storage());
    let targets: Vec<ObjectId> = targets.into_iter().filter(|target| present.contains(target)).collect();
    let mut agreed = HashSet::new();
    walk_all(destination, targets, |commit| Ok(agreed.insert(commit.id))).await?;
    Ok(agreed)
}

/// Returns the refs of `repository` for a push of those that `names` name, or of all. A push of all
/// fails if one is damaged, because it would not be pushed, or its target not be known, without a
/// failure.
async fn refs_for(repository: &Repository, names: &[String]) -> Result<Refs> {
    if names.is_empty() { repository.complete_refs().await } else { repository.refs().await }
}

/// Returns the refs of the source that `names` name, or all of them.
async fn wanted(source: &Repository, names: &[String]) -> Result<Vec<PushedRef>> {
    let Refs { branches, tags, .. } =
        refs_for(source, names).await.context(|| source.storage().location().to_owned())?;
    let of = |kind, (name, to): (&String, &ObjectId)| PushedRef {
        kind,
        name: name.clone(),
        from: None,
        to: *to,
        change: Change::Unchanged,
    };
    let all = branches.iter().map(|named| of(RefKind::Branch, named));
    let all = all.chain(tags.iter().map(|named| of(RefKind::Tag, named)));
    if let Some(unknown) = names.iter().find(|name| !branches.contains_key(*name) && !tags.contains_key(*name)) {
        return Err(unknown_name(source, "branch or tag", unknown).await);
    }
    Ok(all.filter(|found| names.is_empty() || names.contains(&found.name)).collect())
}

fn is_move(change: &Change) -> bool {
    matches!(change, Change::Created | Change::Forward | Change::Forced)
}

/// Returns the commit of the destination that the new commits up to `tip` of the source follow
/// there; none if they follow none. What the source says of commits that the destination has does
/// not count: these keep their parents.
async fn joined(source: &Repository, tip: ObjectId, present: &HashSet<ObjectId>) -> Result<Option<ObjectId>> {
    let mut joined = None;
    source
        .try_walk(tip, |commit| {
            joined = if present.contains(&commit.id) {
                Some(commit.id)
            } else {
                newest_expired(&commit.pruned_ancestor_tx_logs, present)
                    .and_then(|at| commit.pruned_ancestor_tx_logs.get(at).copied())
            };
            Ok(joined.is_none())
        })
        .await?;
    Ok(joined)
}

/// Returns the position of the newest of the ancestors that have `expired` in the source and that
/// the destination still has.
fn newest_expired(expired: &[ObjectId], present: &HashSet<ObjectId>) -> Option<usize> {
    expired.iter().rposition(|ancestor| present.contains(ancestor))
}

async fn change_of(
    source: &Repository,
    destination: &Repository,
    found: &PushedRef,
    present: &HashSet<ObjectId>,
    deleted: &[String],
    options: &PushOptions,
) -> Result<Change> {
    let Some(from) = found.from else {
        return Ok(match found.kind {
            RefKind::Tag if deleted.contains(&found.name) => deleted_tag(),
            // A stranger's names must not keep the others from moving.
            _ if is_revision_of_another(&found.name) => Change::Refused(
                "its name would be taken for another commit there: rename it, or copy it with `branch` or `tag create`"
                    .to_owned(),
            ),
            kind => match check_new_name(destination, kind, &found.name) {
                Ok(()) => Change::Created,
                Err(error) => Change::Refused(error.to_string()),
            },
        });
    };
    if from == found.to {
        return Ok(Change::Unchanged);
    }
    if found.kind == RefKind::Tag {
        return Ok(Change::Refused(format!("it is at {from} there, and tags never move")));
    }
    let joined = joined(source, found.to, present).await?;
    if let Some(joined) = joined
        && is_ancestor(destination, from, joined).await.context(|| destination.storage().location().to_owned())?
    {
        return Ok(Change::Forward);
    }
    if options.force {
        return Ok(Change::Forced);
    }
    let is_newer = is_ancestor(destination, found.to, from).await?;
    if is_newer && options.is_pull {
        return Ok(Change::Newer);
    }
    if !is_newer && are_separate(source, destination).await {
        let [here, there] = [source, destination].map(|repository| repository.storage().location());
        return Ok(Change::Refused(printable::line(&made_separately(there, here))));
    }
    let why = with_other_commits(source, destination, found, is_newer, options);
    Ok(Change::Refused(printable::line(&why)))
}

/// Returns true if the repositories were created separately: their first snapshots, which have one
/// id, differ. One that has expired, or cannot be read, tells nothing.
async fn are_separate(source: &Repository, destination: &Repository) -> bool {
    let key = format!("snapshots/{}", ObjectId::INITIAL);
    let [source, destination] = [source, destination].map(|repository| repository.storage().get(&key, MAX_SNAPSHOT));
    matches!(tokio::join!(source, destination), (Ok(one), Ok(other)) if one != other)
}

/// Returns why a branch is refused that has commits that the source does not have, and the commands
/// that bring both together. They only read the other repository. Names of a stranger's repository
/// are no options of these commands.
fn with_other_commits(
    source: &Repository,
    destination: &Repository,
    found: &PushedRef,
    is_newer: bool,
    options: &PushOptions,
) -> String {
    let Some(from) = found.from else { return String::new() };
    let Hints { of_source, of_destination } = &options.hints;
    let [source, destination] = [(source, of_source), (destination, of_destination)];
    let ends = if options.is_pull { [destination, source] } else { [source, destination] };
    let [here, there] = ends.map(|(repository, _)| shell::quote(repository.storage().location()));
    let is_remote = |repository: &Repository| repository.storage().local_path().is_none();
    let words = |(repository, words): (&Repository, &Vec<String>), prefix: &str| -> String {
        let words = words.iter().filter(|_| is_remote(repository));
        words.map(|word| format!(" {}", shell::quote(&format!("{prefix}{word}")))).collect()
    };
    let of_here = words(ends[0], "--");
    let of_both = of_here.clone() + &words(ends[1], if is_remote(ends[0].0) { "--other=" } else { "--" });
    let name = shell::quote(&found.name);
    if is_newer {
        return format!(
            "the destination has newer commits, up to {from}: `icechunkfs pull{of_both} -- {here} {there} {name}` brings them \
             here; --force removes them from that branch"
        );
    }
    // A name of its own for each refusal, for the commits that the branch has when that is typed.
    let kept = ObjectId::random().map_or_else(|_| "mine".to_owned(), |id| format!("mine-{id}"));
    let at = shell::quote(&format!("--at=branch/{}", found.name));
    let into = shell::quote(&format!("--into={}", found.name));
    format!(
        "the destination has other commits, up to {from}. To merge both, while the branch is not mounted: \
         `icechunkfs branch {here} create{of_here} {at} {kept} && icechunkfs pull --force{of_both} -- {here} {there} {name} && \
         icechunkfs merge --delete-source {into}{of_here} -- {here} {kept}`. --force alone removes commits from that branch"
    )
}

/// Refuses refs whose commit is new to the destination and from the future: times of commits rise,
/// so that programs could not commit after it until then. Returns true if there are any.
fn refuse_future(refs: &mut [PushedRef], outstanding: &Outstanding, present: &HashSet<ObjectId>, clock: Clock) -> bool {
    let is_new_of_future =
        |commit: &&SnapshotInfo<()>| !present.contains(&commit.id) && is_of_future(commit.flushed_at, clock);
    let times: HashMap<ObjectId, u64> =
        outstanding.commits.iter().filter(is_new_of_future).map(|commit| (commit.id, commit.flushed_at)).collect();
    let mut has_refused = false;
    for found in refs.iter_mut().filter(|found| is_move(&found.change)) {
        let Some(time) = times.get(&found.to) else { continue };
        has_refused = true;
        found.change = Change::Refused(format!(
            "commit {} is dated {}, which is later than this machine's clock: programs could not commit after it until then. If the clock is right, \
             the machine that made it was wrong: amend it there",
            found.to,
            format_time(*time)
        ));
    }
    has_refused
}

/// Returns the commits that the refs lead to which are not refused.
fn targets_of(refs: &[PushedRef]) -> HashSet<ObjectId> {
    refs.iter().filter(|found| !matches!(found.change, Change::Refused(_))).map(|found| found.to).collect()
}

/// Returns what becomes of a ref whose move failed with `error`, if it failed because the ref
/// changed there during the push: others move all the same. So do they if the repository forbids
/// this one.
async fn change_meanwhile(destination: &Repository, found: &PushedRef, error: &Error) -> Result<Option<Change>> {
    if error.kind() == ErrorKind::NotPermitted {
        return Ok(Some(Change::Refused(error.to_string())));
    }
    if !matches!(error.kind(), ErrorKind::Stale | ErrorKind::AlreadyExists | ErrorKind::NotFound) {
        return Ok(None);
    }
    let now = Repository::open(Arc::clone(destination.storage())).await?;
    let Refs { branches, tags, .. } = now.refs().await?;
    let there = if found.kind == RefKind::Branch { &branches } else { &tags }.get(&found.name).copied();
    Ok(match there {
        Some(there) if there == found.to => Some(Change::Unchanged),
        there if there == found.from => match found.kind {
            RefKind::Tag if now.deleted_tags().await?.contains(&found.name) => Some(deleted_tag()),
            _ => None,
        },
        Some(there) => {
            Some(Change::Refused(format!("it changed there during the push and is at {there} now: push again")))
        }
        None => Some(Change::Refused("it was deleted there during the push: push again to create it".to_owned())),
    })
}

fn deleted_tag() -> Change {
    Change::Refused("it was deleted there, and names of deleted tags are not used again".to_owned())
}

/// Returns the records of the commits that the destination lacks, parents first; none in version 1.
///
/// A commit whose ancestors have expired in the source follows the newest of them that the
/// destination still has: else the push would expire them there, too.
fn records(
    source: &Repository,
    outstanding: &Outstanding,
    present: &HashSet<ObjectId>,
    amended: &Amended,
) -> Result<Metered<Vec<(ObjectId, SnapshotRecord)>>> {
    let Some(state) = source.state()? else { return Ok(Metered::default()) };
    let mut meter = Meter::new("the descriptions of commits");
    let mut record = |id: ObjectId| {
        let found = state.snapshots.get(&id);
        let found = found.ok_or_else(|| Error::corrupt(format!("repo: snapshot {id} is not listed")))?;
        found.count(&mut meter)?;
        let mut record = found.clone();
        amended.describe(id, &mut record);
        let expired = &mut record.pruned_ancestor_tx_logs;
        if let Some(at) = newest_expired(expired, present) {
            record.parent = expired.drain(..=at).next_back();
        }
        Ok((id, record))
    };
    let new = outstanding.commits.iter().filter(|commit| !present.contains(&commit.id));
    let records = new.map(|commit| record(commit.id)).collect::<Result<_>>()?;
    Ok(meter.finish(records))
}
