//! Copies of histories between repositories: a clone, and what is new since.
//!
//! | part | task |
//! |---|---|
//! | [`clone`] | makes a repository with all refs of another |
//! | [`push`] | moves refs of one repository to where another has them |
//! | [`history`] | the commits that the destination lacks |
//! | [`objects`] | copies what these commits need |
//! | [`destination`] | stores an object only where nothing is, and compares what is there |
//! | [`notes`] | where a repository was cloned from, and what two places agree about |
//! | [`amended`] | what the operations log of the source tells of commits, which their copies do not |
//! | [`removal`] | waits for a collection at the destination that may remove some of it |
//!
//! Snapshots, logs, manifests and chunks never change and keep their names, so that they are copied
//! byte for byte and ids stay. Refs come last, when everything below them is stored and survives a
//! power cut: a copy that is killed leaves objects that nothing refers to, and the next one goes on
//! there.
//!
//! **Ids are no hashes.** Whatever is at the destination under an id that the refs reach is
//! compared with the source, byte by byte ([`destination`]), also that of a commit that both have.
//! An object that was compared with a source is not compared with it again ([`notes`]). In
//! version 1, snapshots of one commit may name different parents, since expiration writes them
//! again: that of the destination stays.
//!
//! **A collection of garbage at the destination** takes what is copied for garbage. As with a
//! commit, refs move only if none has begun since the first object was stored; else all is looked
//! at again. What an earlier copy or a deleted ref left may be found by a collection that began
//! before and has not ended: then nothing is moved ([`removal`]). These objects are looked for
//! again after the refs have moved, too, while the originals are at hand.
//!
//! **The source may change meanwhile.** Its refs are read once, in version 2 as one object. If an
//! object is missing then, the source is opened again: a collection or an expiration may have
//! removed it, and the copy begins again with the refs as they are now.

mod amended;
pub mod clone;
mod destination;
mod history;
pub mod notes;
mod objects;
pub mod push;
mod removal;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::info;

use self::history::Outstanding;
use crate::repo::Repository;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::envelope::SpecVersion;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot_info::SnapshotInfo;

/// Folders of objects.
const FOLDERS: [&str; 4] = ["chunks", "manifests", "transactions", "snapshots"];

/// Attempts of a copy, each but the first after a change of the source or a collection of garbage.
const TRIES: u32 = 3;

/// Progress of a copy, for other threads to read, and its result.
#[derive(Debug, Default)]
pub struct Counters {
    found: AtomicU64,
    done: AtomicU64,
    copied: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    /// Returns the number of objects that are needed as far as that is known, and of those that are
    /// there.
    pub fn progress(&self) -> (u64, u64) {
        let done = self.done.load(Ordering::Relaxed);
        (self.found.load(Ordering::Relaxed).max(done), done)
    }

    /// Returns the number and the bytes of the objects that were copied.
    pub fn copied(&self) -> (u64, u64) {
        (self.copied.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    fn expect(&self, objects: usize) {
        self.found.fetch_add(objects as u64, Ordering::Relaxed);
    }

    fn add_copied(&self, bytes: u64) {
        self.copied.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.add_present();
    }

    fn add_present(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Failure of one attempt of a copy.
#[derive(Debug)]
enum Failure {
    /// An object is missing in the source, or was collected at the destination: the next attempt
    /// may succeed.
    Changed(Error),
    /// It cannot succeed.
    Final(Error),
}

impl Failure {
    /// Names the place `source` in an error of the source. An object that is missing may be so
    /// because the source has changed.
    fn of_source(error: Error, source: &str) -> Self {
        let is_missing = error.kind() == ErrorKind::NotFound;
        let error = error.context(source.to_owned());
        if is_missing { Failure::Changed(error) } else { Failure::Final(error) }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Final(error)
    }
}

/// Opens `source` again. Returns true with it if refs or objects may have changed since it was
/// opened. It may have become a repository of another version, which callers that have a
/// destination check by [`Ends::new`].
async fn reopen(source: &Repository) -> Result<(Repository, bool)> {
    let again = Repository::open(Arc::clone(source.storage())).await?;
    check_source(&again)?;
    let has_changed = again.refs().await? != source.refs().await? || again.log_position() != source.log_position();
    Ok((again, has_changed))
}

/// Returns the source for another attempt after `error`, with which attempt number `tries` has
/// failed; or fails if that cannot help.
async fn begin_again(source: &Repository, error: Error, tries: u32) -> Result<Repository> {
    let is_busy = error.kind() == ErrorKind::Busy;
    let (again, has_changed) = reopen(source).await?;
    if !is_busy && !has_changed {
        return Err(damaged(source, error));
    }
    if tries < TRIES {
        info!("{error}: beginning again");
        return Ok(again);
    }
    if is_busy {
        return Err(error);
    }
    let place = source.storage().location();
    Err(Error::with_source(
        ErrorKind::Busy,
        format!(
            "{place}: it changes and its garbage is collected faster than it is copied: try again later, which \
             continues the copy"
        ),
        error,
    ))
}

/// Fails if the file `repo` of the source has metadata of one of the commits `outstanding` that
/// cannot be read: the destination's would have it from then on. In version 1 they are in the
/// snapshots, which are copied as they are.
async fn check_metadata(source: &Repository, outstanding: &Outstanding) -> Result<()> {
    if source.version() != SpecVersion::V2 {
        return Ok(());
    }
    for commit in &outstanding.commits {
        let read = source.commit(commit.id).await.and_then(|commit| commit.metadata().map(drop));
        read.context(|| format!("{}: `repo` is damaged, and nothing was changed", source.storage().location()))?;
    }
    Ok(())
}

/// Fails with [`Failure::Changed`] if one of the logs `lacking` of the commits `copied` was
/// collected while they were copied.
async fn check_logs(source: &Repository, copied: &Outstanding, lacking: &HashSet<ObjectId>) -> Result<(), Failure> {
    // A first commit of version 1 never has one.
    let is_first = |id: &ObjectId| copied.commits.iter().any(|commit| commit.id == *id && commit.parent.is_none());
    let is_v1 = source.version() == SpecVersion::V1;
    let lacking: Vec<&ObjectId> = lacking.iter().filter(|id| !(is_v1 && is_first(id))).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    let (again, has_changed) = reopen(source).await?;
    if !has_changed {
        return Ok(());
    }
    // What refs still need was needed all the time: its log was not collected, but was never there.
    let refs = again.refs().await?;
    let targets = refs.branches.into_values().chain(refs.tags.into_values());
    let needed = Outstanding::find(&again, targets, &HashSet::new()).await?;
    let needed: HashSet<ObjectId> = needed.commits.iter().flat_map(SnapshotInfo::log_ids).collect();
    if lacking.into_iter().all(|id| needed.contains(id)) {
        return Ok(());
    }
    Err(Failure::Changed(Error::new(ErrorKind::NotFound, "the source has changed meanwhile")))
}

/// Fails for a source whose files have the form of an alpha.
fn check_source(source: &Repository) -> Result<()> {
    if source.is_alpha() {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: a repository of an Icechunk release before 0.2 cannot be copied as it is: `icechunkfs migrate` \
                 makes a repository of version 2 from it",
                source.storage().location()
            ),
        ));
    }
    Ok(())
}

/// Returns the error for an object of `source` that is still missing when the source has not
/// changed.
fn damaged(source: &Repository, error: Error) -> Error {
    let why = "an object is missing: `icechunkfs verify` tells which snapshots need it".to_owned();
    error.not_found_as_corrupt(why).context(source.storage().location().to_owned())
}

/// The repositories of one attempt of a push: each can hold files of the other's version.
#[derive(Debug)]
struct Ends {
    source: Repository,
    destination: Repository,
}

impl Ends {
    /// Fails for repositories between which nothing can be copied as it is.
    fn new(source: Repository, destination: Repository) -> Result<Self> {
        check_source(&source)?;
        check_source(&destination)?;
        check_versions(&source, &destination)?;
        Ok(Ends { source, destination })
    }

    /// Opens both again after `error`, with which attempt number `tries` has failed; or fails if
    /// that cannot help. What they are now is checked anew.
    async fn begin_again(self, error: Error, tries: u32) -> Result<Self> {
        let source = begin_again(&self.source, error, tries).await?;
        let destination = Repository::open(Arc::clone(self.destination.storage())).await?;
        Ends::new(source, destination)
    }
}

/// Fails unless the destination can hold files of the source's version.
fn check_versions(source: &Repository, destination: &Repository) -> Result<()> {
    if source.version() == destination.version() {
        return Ok(());
    }
    let [from, to] = [source, destination].map(|repository| match repository.version() {
        SpecVersion::V1 => 1,
        SpecVersion::V2 => 2,
    });
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{} has version {from}, and {} has version {to}: migrate the one of version 1 (`icechunkfs migrate`) first",
            source.storage().location(),
            destination.storage().location()
        ),
    ))
}
