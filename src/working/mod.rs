//! The working tree: a snapshot, and what programs changed on top of it.
//!
//! To the kernel it is one directory tree. Underneath, [`state`] has what differs from the snapshot, [`crate::scratch`] keeps
//! that on disk, and everything else comes from the snapshot's [`Tree`] as in a read-only mount. Names change in
//! [`namespace`], bytes in [`content`], attributes in [`attributes`] and [`set_attributes`]; [`listing`] merges directories.
//!
//! **Locks.** `inner` guards the state and the journal; it is never held while something is read from storage. `gate` keeps
//! the tree still: whatever changes it holds the gate for reading, and a commit, a discard or a refresh for writing, so that
//! they see and replace one state. Reading never waits for the gate. What the kernel is to be told is told when no lock is
//! held, since it may wait for a request that waits for us.

pub mod attributes;
pub mod borrowed;
pub mod content;
pub mod copy;
mod discard;
mod durability;
mod edit;
pub mod frozen;
pub mod handles;
pub mod listing;
pub mod namespace;
pub mod opens;
pub mod rebase;
mod recovered;
pub mod replace;
pub mod set_attributes;
pub mod state;
pub mod uploads;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::RwLockReadGuard;

use self::attributes::Attributes;
use self::opens::Opens;
pub use self::recovered::Recovered;
use self::state::State;
use self::uploads::Uploads;
use crate::error::{Error, ErrorKind, Result};
use crate::format::ids::ObjectId;
use crate::repo::identity::Identity;
use crate::scratch::data::Files;
use crate::scratch::journal::{FORMAT, Journal};
use crate::scratch::place::Place as ScratchPlace;
use crate::scratch::record::{Body, Id, Name, ROOT, Record, Source, Time};
use crate::scratch::salvage::Salvage;
use crate::tree::nodes::{MAX_NAME, Place};
use crate::tree::numbering::Numbering;
use crate::tree::{self, Tree};

/// The snapshot that everything is relative to.
#[derive(Debug)]
pub struct Base {
    /// It as a tree.
    pub tree: Arc<Tree>,
    /// Every time in it.
    pub time: Time,
    /// Owner of everything in it.
    pub uid: u32,
    /// Group of everything in it.
    pub gid: u32,
}

/// Which branch of which repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Where the repository lies.
    pub repository: String,
    /// The branch.
    pub branch: String,
    /// What identifies the repository wherever it lies, if that is known.
    pub identity: Option<Identity>,
}

/// A snapshot and the changes on top of it.
#[derive(Debug)]
pub struct WorkingTree {
    base: RwLock<Arc<Base>>,
    inner: Mutex<Locked>,
    gate: tokio::sync::RwLock<()>,
    /// Whether a commit is visible could not be found out, or could not be followed: nothing is changed until it is.
    undecided: AtomicBool,
    /// The last commit was not found, but storage that answers late may still carry it out. As long as nothing is changed, all
    /// that waits is what it would take.
    may_land: AtomicBool,
    /// A commit may be linking data files: the kernel gets no more of them to move bytes by itself.
    linking: AtomicBool,
    /// The kernel was given a data file to write to by itself, since the mount began.
    passed_on: AtomicBool,
    uploads: Arc<Uploads>,
    files: Files,
    scratch: ScratchPlace,
    origin: Origin,
    numbering: Mutex<Numbering>,
    /// Data files without a name that a power cut left, and that were kept.
    salvaged: u64,
    /// Files that are being brought into the scratch directory.
    busy: Mutex<HashMap<Id, Arc<tokio::sync::Mutex<()>>>>,
}

/// What `inner` guards.
#[derive(Debug)]
pub(super) struct Locked {
    pub(super) state: State,
    pub(super) opens: Opens,
    journal: Journal,
    /// Changes with every record: a plan that was made of an older state must not be carried out.
    generation: u64,
    /// The journal is not about this state: it could not be written anew.
    stale: bool,
    /// The disk is nearly full, and data files wait to be unlinked.
    nearly_full: bool,
}

impl Locked {
    /// Where the bytes of file `number` are; none if they are the snapshot's, and nothing differs about it.
    pub(super) fn source_of(&self, number: u64) -> Option<Source> {
        self.state.get(self.state.by_number(number)?)?.source().cloned()
    }
}

/// What a name means.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// An inode that differs from the snapshot's.
    Upper(Id),
    /// Something that only the snapshot has.
    Lower(Place, tree::Attributes),
}

impl Base {
    /// The base that `tree` is.
    pub fn new(tree: Arc<Tree>) -> Self {
        let micros = i64::try_from(tree.snapshot().flushed_at()).unwrap_or(i64::MAX);
        let nanos = u32::try_from(micros.rem_euclid(1_000_000)).unwrap_or(0) * 1000;
        Base {
            time: Time(micros.div_euclid(1_000_000), nanos),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            tree,
        }
    }

    /// Its snapshot's id.
    pub fn id(&self) -> ObjectId {
        self.tree.snapshot().id()
    }
}

impl WorkingTree {
    /// The working tree in `scratch` on top of `tree`, the snapshot that `recovered` names, if it names one.
    pub fn open(
        tree: Arc<Tree>,
        numbering: Numbering,
        scratch: ScratchPlace,
        origin: Origin,
        recovered: Recovered,
    ) -> Result<Self> {
        let base = Base::new(tree);
        let files = Files::new(scratch.data()?);
        let mut state = State::new();
        let root = Record::Promote {
            parent: None,
            name: Name::new(b""),
            id: ROOT,
            lower: "/".to_owned(),
            meta: base.meta(0o755),
            body: Body::Directory,
        };
        let mut named = HashSet::new();
        let journal = match recovered.journal {
            Some(mut journal) => {
                if journal.was_restarted() {
                    named.extend(recovered.records.iter().filter_map(durability::data_file_of));
                }
                state.trusts_all = recovered.is_old;
                for record in recovered.records {
                    state.apply(record, &base.tree).map_err(|e| {
                        e.context(format!("{}: to begin anew, mount with --discard", scratch.path().display()))
                    })?;
                }
                state.trusts_all = false;
                if state.get(ROOT).is_none() {
                    return Err(Error::corrupt(format!(
                        "{}: the scratch journal says nothing: to begin anew, mount with --discard",
                        scratch.path().display()
                    )));
                }
                if journal.is_large() {
                    journal.set_compact_lines(state.dump(&base.tree).len() as u64 + 1);
                }
                journal
            }
            None => {
                state.apply(root.clone(), &base.tree)?;
                Journal::replace(scratch.directory(), &[first_line(&origin, base.id()), root])?
            }
        };
        let mut working = WorkingTree {
            base: RwLock::new(Arc::new(base)),
            inner: Mutex::new(Locked {
                state,
                opens: Opens::default(),
                journal,
                generation: 0,
                stale: false,
                nearly_full: false,
            }),
            gate: tokio::sync::RwLock::new(()),
            undecided: AtomicBool::new(false),
            may_land: AtomicBool::new(false),
            linking: AtomicBool::new(false),
            passed_on: AtomicBool::new(false),
            uploads: Arc::default(),
            files,
            scratch,
            origin,
            numbering: Mutex::new(numbering),
            salvaged: 0,
            busy: Mutex::default(),
        };
        working.salvaged = working.drop_orphans(&named)?;
        if let Err(error) = working.compact() {
            // The long one is as good.
            tracing::warn!("{error}; the scratch journal stays as it is");
            working.lock().stale = false;
        }
        working.lock().journal.keep_spare();
        Ok(working)
    }

    /// Drops inodes that lost their last name while they were open, and data files that nobody has.
    ///
    /// After a power cut, those that none of the lines on the disk names, as `named` ones are, are kept elsewhere. Returns how many.
    fn drop_orphans(&self, named: &HashSet<u64>) -> Result<u64> {
        let mut locked = self.lock();
        let nameless: Vec<Id> =
            locked.state.iter().filter(|(id, inode)| *id != ROOT && inode.names.is_empty()).map(|(id, _)| id).collect();
        for id in nameless {
            locked.state.drop_inode(id);
        }
        let used: HashSet<u64> = locked
            .state
            .iter()
            .filter_map(|(_, inode)| match inode.source() {
                Some(Source::Data(number)) => Some(*number),
                _ => None,
            })
            .collect();
        locked.state.forget_borrowed(&used);
        let restarted = locked.journal.was_restarted();
        let mut salvage = Salvage::new(self.scratch.directory(), self.files.directory());
        for number in self.files.list()?.into_iter().filter(|number| !used.contains(number)) {
            if !restarted {
                // The lines that made it unneeded may be in the page cache only.
                locked.journal.durable().retire(number);
                continue;
            }
            let kept = match self.files.find(number)? {
                Some(stat) if !named.contains(&number) => salvage.keep(number, &stat)?,
                _ => false,
            };
            if !kept {
                self.files.remove(number);
            }
        }
        Ok(salvage.count)
    }

    /// The snapshot below.
    pub fn base(&self) -> Arc<Base> {
        Arc::clone(&self.base.read())
    }

    /// Which branch of which repository.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The scratch directory.
    pub fn scratch(&self) -> &ScratchPlace {
        &self.scratch
    }

    /// The bytes of changed files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Locked> {
        self.inner.lock()
    }

    /// Keeps the tree from being replaced while it is changed.
    pub(super) async fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let entered = self.gate.read().await;
        if self.is_undecided() {
            return Err(Error::new(
                ErrorKind::Io,
                "a commit failed at its end, and whether it is visible is not known: commit again, or refresh, before you go on",
            ));
        }
        if self.may_land() {
            self.go_on_after_unpublished().await?;
        }
        Ok(entered)
    }

    /// Whether the last commit, which was not found, may yet become visible, and nothing was changed since.
    pub fn may_land(&self) -> bool {
        self.may_land.load(Ordering::Acquire)
    }

    /// Writes down, durably, that what comes now is no part of the last commit, should that become visible after all.
    async fn go_on_after_unpublished(&self) -> Result<()> {
        {
            let mut locked = self.lock();
            if let Some(snapshot) = locked.state.publishing.clone() {
                self.record(&mut locked, Record::Unpublished { snapshot })?;
            }
        }
        self.make_durable().await?;
        self.may_land.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether it is open what became of the last commit. What is changed after it must not be taken for a part of it.
    pub fn is_undecided(&self) -> bool {
        self.undecided.load(Ordering::Acquire)
    }

    /// Says whether it is open what became of the last commit. The tree must be held still.
    pub fn set_undecided(&self, undecided: bool) {
        self.undecided.store(undecided, Ordering::Release);
    }

    /// Says whether data files may be linked into the repository: then the kernel gets none that it has not already.
    pub fn set_linking(&self, linking: bool) {
        self.linking.store(linking, Ordering::Release);
    }

    /// Whether the kernel may write, or have written, to data files by itself.
    pub fn was_passed_on(&self) -> bool {
        self.passed_on.load(Ordering::Acquire)
    }

    /// The commit that was about to become visible never will be.
    pub fn not_published(&self) {
        self.may_land.store(false, Ordering::Release);
        self.lock().state.publishing = None;
    }

    /// The commit that was about to become visible is not, as far as anybody can tell now.
    pub fn not_published_yet(&self) {
        let is_known = self.lock().state.publishing.is_some();
        self.may_land.store(is_known, Ordering::Release);
    }

    /// The snapshot that a commit was about to become, if it was never heard of again.
    pub fn publishing(&self) -> Option<ObjectId> {
        self.lock().state.publishing.as_deref()?.parse().ok()
    }

    /// Commits of earlier states of the changes that were looked for and not found. Each may become visible until the branch moves.
    pub fn unpublished(&self) -> Vec<ObjectId> {
        let locked = self.lock();
        let given_up = locked.state.unpublished.iter().chain(&locked.state.publishing);
        given_up.filter_map(|snapshot| snapshot.parse().ok()).collect()
    }

    /// Writes `record` to the journal and carries it out.
    pub(super) fn record(&self, locked: &mut Locked, record: Record) -> Result<()> {
        let replaces = durability::replaces(&record);
        self.record_replacing(locked, record, replaces)
    }

    /// What `name` in directory `parent` means.
    pub(super) async fn find(&self, parent: u64, name: &Name) -> Result<Option<Found>> {
        if name.0.len() > MAX_NAME {
            return Err(Error::new(ErrorKind::NameTooLong, format!("a name of {} bytes", name.0.len())));
        }
        let lower = {
            let locked = self.lock();
            match locked.state.by_number(parent).and_then(|id| locked.state.get(id)) {
                None => None,
                Some(inode) => {
                    let directory = inode.directory().ok_or_else(|| not_a_directory(parent))?;
                    if let Some(entry) = directory.get(name) {
                        return Ok(entry.id.map(Found::Upper));
                    }
                    match &inode.lower {
                        Some(place) => Some(place.clone()),
                        None => return Ok(None),
                    }
                }
            }
        };
        let base = self.base();
        let number = lower.map_or(parent, |place| base.tree.table().inode(&place));
        // Every name in a snapshot is UTF-8.
        let Some(text) = name.text() else { return Ok(None) };
        let Some(found) = base.tree.lookup(number, text).await? else { return Ok(None) };
        let place = base.tree.table().place(found.inode).ok_or_else(|| no_such(found.inode))?;
        Ok(Some(Found::Lower(place, found)))
    }

    /// The attributes of entry `name` of directory `parent`; none if there is none. The kernel is told of it, which is
    /// counted until [`WorkingTree::forget`].
    pub async fn lookup(&self, parent: u64, name: &Name) -> Result<Option<Attributes>> {
        match self.find(parent, name).await? {
            None => Ok(None),
            Some(Found::Lower(_, attributes)) => Ok(Some(self.base().attributes(attributes))),
            Some(Found::Upper(id)) => {
                let attributes = self.attributes_of(id).await?;
                self.told(id);
                Ok(Some(attributes))
            }
        }
    }

    /// The kernel was told of inode `id` once more.
    pub(super) fn told(&self, id: Id) {
        if let Some(inode) = self.lock().state.get_mut(id) {
            inode.lookups += 1;
        }
    }

    /// As [`WorkingTree::told`], by number.
    pub fn told_number(&self, number: u64) {
        if let Some(inode) = self.lock().state.known_as(number) {
            inode.lookups += 1;
        }
    }

    /// The kernel has forgotten inode `number` so many times.
    pub fn forget(&self, number: u64, times: u64) {
        if let Some(inode) = self.lock().state.known_as(number) {
            inode.lookups = inode.lookups.saturating_sub(times);
        }
    }

    /// The target of symbolic link `number`.
    pub fn read_link(&self, number: u64) -> Result<Name> {
        let locked = self.lock();
        let inode = locked.state.by_number(number).and_then(|id| locked.state.get(id));
        match inode.map(|inode| &inode.node) {
            Some(state::Node::Symlink(target)) => Ok(target.clone()),
            _ => Err(Error::invalid("not a symbolic link")),
        }
    }

    /// The inode of `number`, promoted if it was only in the snapshot. The gate must be held.
    pub(super) fn promote(&self, locked: &mut Locked, number: u64) -> Result<Id> {
        if let Some(id) = locked.state.by_number(number) {
            return Ok(id);
        }
        let base = self.base();
        let place = base.tree.table().place(number).ok_or_else(|| no_such(number))?;
        self.promote_place(locked, &base, place)
    }

    fn promote_place(&self, locked: &mut Locked, base: &Base, place: Place) -> Result<Id> {
        // From the nearest promoted ancestor down; the root always is.
        let mut missing = Vec::new();
        let mut at = place;
        let mut parent = loop {
            if let Some(id) = locked.state.by_number(base.tree.table().inode(&at)) {
                break id;
            }
            let (above, name) = base.tree.parent_of(&at).ok_or_else(|| Error::corrupt("a place without a parent"))?;
            missing.push((std::mem::replace(&mut at, above), name));
        };
        for (place, name) in missing.into_iter().rev() {
            let name = Name::new(name.as_bytes());
            // Removed while it was open somewhere: it does not come back.
            if locked.state.get(parent).and_then(|inode| inode.directory()?.get(&name)).is_some() {
                return Err(no_such(base.tree.table().inode(&place)));
            }
            let id = locked.state.take_next();
            let body = if base.tree.is_directory_place(&place) { Body::Directory } else { Body::File(Source::Lower) };
            let record = Record::Promote {
                parent: Some(parent),
                name,
                id,
                lower: base.tree.path_of(&place),
                meta: base.meta_of(&place),
                body,
            };
            self.record(locked, record)?;
            parent = id;
        }
        Ok(parent)
    }

    /// A path for messages.
    pub fn describe(&self, number: u64) -> String {
        let locked = self.lock();
        match locked.state.by_number(number) {
            Some(id) => locked.state.path(id).unwrap_or_else(|| "a deleted file".to_owned()),
            None => self.describe_lower(&locked, number),
        }
    }

    /// Where something of the snapshot shows: below a directory that may have been moved.
    fn describe_lower(&self, locked: &Locked, number: u64) -> String {
        let base = self.base();
        let Some(mut place) = base.tree.table().place(number) else { return format!("inode {number}") };
        let mut below = String::new();
        while let Some((above, name)) = base.tree.parent_of(&place) {
            below = format!("/{name}{below}");
            if let Some(id) = locked.state.by_number(base.tree.table().inode(&above)) {
                let path = locked.state.path(id).unwrap_or_default();
                return format!("{}{below}", path.trim_end_matches('/'));
            }
            place = above;
        }
        below
    }

    /// Bytes and blocks of the file system that holds the scratch directory.
    pub fn space(&self) -> Result<rustix::fs::StatVfs> {
        rustix::fs::fstatvfs(self.scratch.directory()).map_err(|e| Error::io("the scratch directory", e.into()))
    }

    /// Whether any file is open for writing.
    pub fn any_open_for_writing(&self) -> bool {
        self.lock().opens.written().next().is_some()
    }

    /// The paths of the files whose bytes are in data files `numbers`.
    pub fn paths_of_data(&self, numbers: &std::collections::HashSet<u64>) -> Vec<String> {
        let locked = self.lock();
        let is_one = |source: Option<&Source>| matches!(source, Some(Source::Data(data)) if numbers.contains(data));
        let found = locked.state.iter().filter(|(_, inode)| is_one(inode.source()));
        let mut paths: Vec<String> = found.filter_map(|(id, _)| locked.state.path(id)).collect();
        paths.sort();
        paths
    }

    /// Data files that the kernel reads by itself at the moment.
    pub fn backed_data(&self) -> std::collections::HashSet<u64> {
        let locked = self.lock();
        let backed =
            locked.opens.numbers().filter(|number| locked.opens.get(*number).is_some_and(|open| open.backed > 0));
        let data = backed.filter_map(|number| match locked.state.get(locked.state.by_number(number)?)?.source() {
            Some(Source::Data(data)) => Some(*data),
            _ => None,
        });
        data.collect()
    }
}

/// The first line of a journal.
pub(super) fn first_line(origin: &Origin, snapshot: ObjectId) -> Record {
    Record::Base {
        format: FORMAT,
        repository: origin.repository.clone(),
        branch: origin.branch.clone(),
        snapshot: snapshot.to_string(),
        identity: origin.identity.map(|identity| identity.to_string()),
    }
}

pub(super) fn no_such(number: u64) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no inode {number}"))
}

pub(super) fn not_a_directory(number: u64) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("inode {number} is not a directory"))
}
