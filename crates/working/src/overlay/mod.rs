//! The working tree: a snapshot, and the changes of programs on top of it.
//!
//! The kernel sees one directory tree. [`state`] has the differences from the snapshot,
//! [`crate::scratch`] keeps them on disk, and everything else comes from the snapshot's [`Tree`] as
//! in a read-only mount. [`WorkingTree`] is the facade; its parts are
//!
//! | | |
//! |---|---|
//! | [`node`], [`state`] | inodes and names: pure, without I/O |
//! | [`opens`] | open files, their handles and data files |
//! | `locked` | these and the journal under one lock, changed together by records |
//! | [`kernel_view`] | what the kernel may still believe of the numbers: pure |
//! | `file_locks`, `copy_up`, [`content`], `sparse_content` | bytes of single files |
//! | [`uploads`] | eager uploads |
//! | [`rebase`], [`replace`], `discard`, `restore` | moving to another snapshot or state |
//!
//! **Locks.** `inner` is never held during a read from storage. Reads never wait for the tree lock.
//! Invalidations are sent while no lock is held, since the kernel may wait for a request that waits
//! for the lock.

pub mod attributes;
pub mod content;
pub mod copy;
mod copy_up;
mod discard;
mod durability;
mod file_locks;
pub mod file_origin;
pub mod frozen;
mod gauges;
pub mod generations;
pub mod handles;
pub mod invalidation;
pub mod kernel_view;
mod last_commit;
pub mod listing;
mod locked;
pub mod namespace;
pub mod node;
pub mod opens;
pub mod rebase;
mod recovered;
pub mod replace;
mod restore;
pub mod returned;
pub mod set_attributes;
mod sparse_content;
pub mod sparse_copy;
pub mod state;
pub mod uploads;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use self::attributes::Attributes;
use self::file_locks::FileLocks;
use self::kernel_view::{KernelView, Moves};
use self::last_commit::{LastCommit, Standing};
use self::locked::{Locked, first_line};
pub use self::node::Ino;
use self::opens::OpenFiles;
pub use self::recovered::Recovered;
use self::replace::{SharedTreeGuard, TreeGuard};
use self::state::{State, root_record};
use self::uploads::EagerUploads;
use crate::scratch::data::Files;
use crate::scratch::directory::ScratchDirectory;
use crate::scratch::journal::Journal;
use crate::scratch::record::{Body, DataFileId, EntryId, Name, ROOT, Record, Time};
use crate::scratch::salvage::Salvage;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::repo::identity::Identity;
use icechunkfs_tree::tree::nodes::{MAX_NAME, TreePlace};
use icechunkfs_tree::tree::numbering::Numbering;
use icechunkfs_tree::tree::{self, Tree};

/// Base: the snapshot that the changes are relative to.
#[derive(Debug)]
pub struct Base {
    /// Snapshot as a tree.
    pub tree: Arc<Tree>,
    /// Time of everything in it.
    pub time: Time,
    /// Owner of everything in it.
    pub uid: u32,
    /// Group of everything in it.
    pub gid: u32,
}

/// Branch and repository that the changes belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Location of the repository.
    pub repository: String,
    /// Branch.
    pub branch: String,
    /// Identity of the repository wherever it is located, if known.
    pub identity: Option<Identity>,
}

/// Base and the changes on top of it.
#[derive(Debug)]
pub struct WorkingTree {
    inner: Mutex<Locked>,
    tree_lock: tokio::sync::RwLock<()>,
    last_commit: LastCommit,
    /// True while a commit may link data files: no further file is opened for passthrough.
    linking: AtomicBool,
    /// True if the kernel got a data file for passthrough writing since the mount began.
    passthrough_used: AtomicBool,
    uploads: Arc<EagerUploads>,
    files: Files,
    scratch: ScratchDirectory,
    origin: Origin,
    numbering: Mutex<Numbering>,
    /// Data files that lost their names in a power cut and were saved.
    salvaged: u64,
    file_locks: FileLocks,
    counted_bytes: Mutex<gauges::CountedBytes>,
    /// Moves so far, of the kernel's view.
    moves: Arc<Moves>,
}

/// Meaning of a name.
#[derive(Clone, Debug)]
pub(super) enum Lookup {
    /// Inode of the working tree.
    Upper(EntryId),
    /// Entry that only the base has.
    Lower(TreePlace, tree::Attributes),
}

impl Base {
    /// Creates the base for `tree`.
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

    /// Returns the id of the snapshot.
    pub fn id(&self) -> ObjectId {
        self.tree.snapshot().id()
    }
}

impl WorkingTree {
    /// Opens the working tree in `scratch` on top of `tree`, which must be the snapshot that
    /// `recovered` names, if it names one.
    pub fn open(
        tree: Arc<Tree>,
        numbering: Numbering,
        scratch: ScratchDirectory,
        origin: Origin,
        recovered: Recovered,
    ) -> Result<Self> {
        let base = Base::new(tree);
        let files = Files::new(scratch.data()?);
        let mut state = State::new();
        let to_start_again = || format!("{}: to start again, mount with --discard", scratch.path().display());
        let mut named = HashSet::new();
        let journal = match recovered.journal {
            Some(journal) => {
                if journal.was_restarted() {
                    named.extend(recovered.records.iter().filter_map(durability::data_file_of));
                }
                state.all_entries_cover = recovered.is_old;
                let lines = recovered.records.len() as u64 + 1;
                for record in recovered.records {
                    state.apply(record, &base.tree).context(to_start_again)?;
                }
                state.all_entries_cover = false;
                if state.get(ROOT).is_none() {
                    return Err(Error::corrupt(format!(
                        "{}: the scratch journal is empty: to start again, mount with --discard",
                        scratch.path().display()
                    )));
                }
                if journal.durable().is_large() {
                    journal.durable().set_compact_share(state.dump(&base.tree).len() as u64 + 1, lines);
                }
                journal
            }
            None => {
                let root = root_record(base.meta(0o755));
                state.apply(root.clone(), &base.tree)?;
                Journal::replace(scratch.directory(), &[first_line(&origin, base.id()), root])?
            }
        };
        let kernel = KernelView::default();
        let moves = Arc::clone(kernel.moves());
        let mut working = WorkingTree {
            inner: Mutex::new(Locked {
                state,
                open_files: OpenFiles::default(),
                journal,
                is_stale: false,
                is_nearly_full: false,
                origin: origin.clone(),
                base: Arc::new(base),
                generation: 0,
                kernel,
            }),
            tree_lock: tokio::sync::RwLock::new(()),
            last_commit: LastCommit::new(),
            linking: AtomicBool::new(false),
            passthrough_used: AtomicBool::new(false),
            uploads: Arc::default(),
            files,
            scratch,
            origin,
            numbering: Mutex::new(numbering),
            salvaged: 0,
            file_locks: FileLocks::default(),
            counted_bytes: Mutex::default(),
            moves,
        };
        working.salvaged = working.drop_orphans(&named)?;
        if let Err(error) = working.compact() {
            // The long journal remains valid.
            tracing::warn!("{error}; the scratch journal stays as it is");
        }
        working.lock().journal.durable().keep_reserve();
        Ok(working)
    }

    /// Drops inodes that lost their last name while they were open, and data files without an
    /// inode.
    ///
    /// After a power cut, data files outside of `named`, the ones that lines on the disk name, are
    /// saved instead. Returns their number.
    fn drop_orphans(&self, named: &HashSet<DataFileId>) -> Result<u64> {
        let mut locked = self.lock();
        let nameless: Vec<EntryId> =
            locked.state.iter().filter(|(id, inode)| *id != ROOT && inode.names.is_empty()).map(|(id, _)| id).collect();
        for id in nameless {
            locked.state.drop_inode(id);
        }
        let used = locked.state.data_files();
        locked.state.forget_borrowed(&used);
        locked.journal.durable().retain_flush_failures(&used);
        let restarted = locked.journal.was_restarted();
        let mut salvage = Salvage::new(self.scratch.directory(), self.files.directory());
        for number in self.files.list()?.into_iter().filter(|number| !used.contains(number)) {
            // The file is unlinked later: a new file of this number would be unlinked instead of
            // it.
            locked.state.reserve_number(number.0);
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

    /// Returns the base.
    pub fn base(&self) -> Arc<Base> {
        Arc::clone(&self.lock().base)
    }

    /// Returns the branch and repository that the changes belong to.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the scratch directory.
    pub fn scratch(&self) -> &ScratchDirectory {
        &self.scratch
    }

    /// Returns the data files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    fn lock(&self) -> MutexGuard<'_, Locked> {
        self.inner.lock()
    }

    /// Waits for shared access, for an operation that changes the tree.
    async fn enter(&self) -> Result<SharedTreeGuard<'_>> {
        let before = self.moves.now();
        let lock = self.tree_lock.read().await;
        let guard = SharedTreeGuard { _lock: lock, is_late: self.moves.now() != before };
        if self.is_undecided() {
            return Err(Error::new(
                ErrorKind::Io,
                "a commit failed at its end, and it is not known whether it was published: commit again, or refresh, before you continue",
            ));
        }
        if self.may_land() {
            self.record_unpublished().await?;
        }
        Ok(guard)
    }

    /// Returns true if the last commit, which was not found, may still become visible, and nothing
    /// has changed since.
    pub fn may_land(&self) -> bool {
        self.last_commit.standing() == Standing::MayLand
    }

    /// Records, durably, that later changes are not part of the last commit, should that become
    /// visible after all.
    async fn record_unpublished(&self) -> Result<()> {
        {
            let mut locked = self.lock();
            if let Some(snapshot) = locked.state.publishing.clone() {
                locked.record(Record::Unpublished { snapshot })?;
            }
        }
        self.make_durable().await?;
        self.last_commit.on_change();
        Ok(())
    }

    /// Returns true if the outcome of the last commit is unknown. Later changes must not be taken
    /// for a part of it.
    pub fn is_undecided(&self) -> bool {
        self.last_commit.standing() == Standing::Undecided
    }

    /// Records that the outcome of the last commit is unknown, until
    /// [`WorkingTree::clear_publishing`] or [`WorkingTree::set_may_land`].
    pub fn set_undecided(&self, _guard: &TreeGuard<'_>) {
        self.last_commit.set(Standing::Undecided);
    }

    /// Sets whether data files may be linked into the repository: no further file is then opened
    /// for passthrough.
    pub fn set_linking(&self, linking: bool) {
        self.linking.store(linking, Ordering::Release);
    }

    /// Returns true if the kernel may write, or may have written, to data files by passthrough.
    pub fn was_passthrough_used(&self) -> bool {
        self.passthrough_used.load(Ordering::Acquire)
    }

    /// Records that the commit that was about to be published never will be, or that the tree
    /// shows it.
    pub fn clear_publishing(&self) {
        self.last_commit.set(Standing::Known);
        self.lock().state.publishing = None;
    }

    /// Records that the commit that was about to be published is not visible so far.
    pub fn set_may_land(&self) {
        let is_known = self.lock().state.publishing.is_some();
        self.last_commit.set(if is_known { Standing::MayLand } else { Standing::Known });
    }

    /// Returns the snapshot that a commit was about to publish, if its outcome is unknown.
    pub fn publishing(&self) -> Option<ObjectId> {
        self.lock().state.publishing.as_deref()?.parse().ok()
    }

    /// Returns the snapshots of commits that were not found, including the last one. Each may
    /// become visible until the branch moves.
    pub fn unpublished(&self) -> Vec<ObjectId> {
        let locked = self.lock();
        let given_up = locked.state.unpublished.iter().chain(&locked.state.publishing);
        given_up.filter_map(|snapshot| snapshot.parse().ok()).collect()
    }

    /// Finds the meaning of `name` in directory `parent`.
    pub(super) async fn find(&self, parent: Ino, name: &Name) -> Result<Option<Lookup>> {
        if name.0.len() > MAX_NAME {
            return Err(Error::new(ErrorKind::NameTooLong, format!("a name of {} bytes", name.0.len())));
        }
        let (lower, base) = {
            let locked = self.lock();
            let lower = match locked.state.by_number(parent).and_then(|id| locked.state.get(id)) {
                None => None,
                Some(inode) => {
                    let directory = inode.directory().ok_or_else(|| not_a_directory(parent))?;
                    if let Some(entry) = directory.get(name) {
                        return Ok(entry.id.map(Lookup::Upper));
                    }
                    match &inode.lower {
                        Some(place) => Some(place.clone()),
                        None => return Ok(None),
                    }
                }
            };
            (lower, Arc::clone(&locked.base))
        };
        let number = lower.map_or(parent.0, |place| base.tree.table().inode(&place));
        // Every name in a snapshot is UTF-8.
        let Some(text) = name.text() else { return Ok(None) };
        let Some(found) = base.tree.lookup(number, text).await? else { return Ok(None) };
        let place = base.tree.table().place(found.inode).ok_or_else(|| no_such(Ino(found.inode)))?;
        Ok(Some(Lookup::Lower(place, found)))
    }

    /// Returns the attributes of entry `name` of directory `parent`; `None` if there is none.
    /// Raises the lookup count, which [`WorkingTree::forget`] lowers.
    ///
    /// They are those after all moves so far, however long the storage takes: the kernel does not
    /// know the inode yet, and an invalidation that is sent while the storage is asked would have
    /// no effect on it.
    pub async fn lookup(&self, parent: Ino, name: &Name) -> Result<Option<Attributes>> {
        loop {
            let moment = self.moves.now();
            let found = self.find(parent, name).await?;
            let known = match &found {
                Some(Lookup::Upper(id)) => Some(self.attributes_of(*id).await),
                _ => None,
            };
            let mut locked = self.lock();
            if self.moves.now() != moment {
                continue;
            }
            match found {
                None => return Ok(None),
                Some(Lookup::Lower(_, attributes)) => {
                    locked.refuse_other_file(Ino(attributes.inode))?;
                    locked.kernel.on_lookup(Ino(attributes.inode));
                    return Ok(Some(locked.base.attributes(attributes)));
                }
                // If there is no such inode, another file has got the name meanwhile, and this one
                // is gone.
                Some(Lookup::Upper(id)) => {
                    if locked.state.increment_lookups(id)
                        && let Some(known) = known
                    {
                        if let Some(number) = locked.state.get(id).map(|inode| inode.number) {
                            locked.kernel.on_lookup(number);
                        }
                        return known.map(Some);
                    }
                }
            }
        }
    }

    /// Raises the lookup count of inode `number`.
    pub fn increment_lookups_of(&self, number: Ino) {
        let mut locked = self.lock();
        locked.kernel.on_lookup(number);
        if let Some(inode) = locked.state.by_kernel_number(number) {
            inode.lookup_count += 1;
        }
    }

    /// Lowers the lookup count of inode `number` by `times`.
    pub fn forget(&self, number: Ino, times: u64) {
        let mut locked = self.lock();
        if let Some(inode) = locked.state.by_kernel_number(number) {
            inode.lookup_count = inode.lookup_count.saturating_sub(times);
            if let Some(id) = locked.state.by_number(number) {
                locked.drop_if_gone(id);
            }
        }
    }

    /// Returns the target of symbolic link `number`.
    pub fn read_link(&self, number: Ino) -> Result<Name> {
        let locked = self.lock();
        let inode = locked.state.by_number(number).and_then(|id| locked.state.get(id));
        match inode.map(|inode| &inode.body) {
            Some(Body::Symlink(target)) => Ok(target.clone()),
            _ => Err(Error::invalid("not a symbolic link")),
        }
    }

    /// Returns a path of inode `number` for messages.
    pub fn describe(&self, number: Ino) -> String {
        self.lock().describe(number)
    }

    /// Returns the bytes and blocks of the file system that holds the scratch directory.
    pub fn space(&self) -> Result<rustix::fs::StatVfs> {
        rustix::fs::fstatvfs(self.scratch.directory()).map_err(|e| Error::io("the scratch directory", e.into()))
    }

    /// Returns true if any file is open for writing.
    pub fn any_open_for_writing(&self) -> bool {
        self.lock().open_files.values().any(|open| open.writers > 0)
    }

    /// Returns the paths of the files whose bytes are in data files `numbers`.
    pub fn paths_of_data(&self, numbers: &HashSet<DataFileId>) -> Vec<String> {
        let locked = self.lock();
        let found =
            locked.state.iter().filter(|(_, inode)| inode.data_file().is_some_and(|data| numbers.contains(&data)));
        let mut paths: Vec<String> = found.filter_map(|(id, _)| locked.state.path(id)).collect();
        paths.sort();
        paths
    }

    /// Returns the data files that passthrough handles use at the moment.
    pub fn passthrough_data(&self) -> HashSet<DataFileId> {
        let locked = self.lock();
        let open = locked.open_files.iter().filter(|(_, open)| open.passthrough_handles > 0);
        open.filter_map(|(number, _)| locked.state.get(locked.state.by_number(*number)?)?.data_file()).collect()
    }
}

/// Returns the error for a number that the kernel knows and that is of no inode any more. The
/// kernel then looks the name up again.
pub(super) fn gone(number: Ino) -> Error {
    Error::new(ErrorKind::Stale, format!("{number} is gone: open it by its path again"))
}

pub(super) fn no_such(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {what}"))
}

pub(super) fn not_a_directory(number: Ino) -> Error {
    Error::new(ErrorKind::NotADirectory, format!("{number} is not a directory"))
}
