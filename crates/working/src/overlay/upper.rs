//! The upper layer: the changes on top of a snapshot, under one lock, with the journal and the data
//! files that keep them.
//!
//! **Locks.** `inner` is never held during a read from storage, and is the last one to be taken.
//! [`Upper::enter`] lets operations change the tree together, [`Upper::quiesce`] keeps them out
//! while another snapshot or state takes its place.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::file_locks::FileLocks;
use super::kernel_view::{KernelView, Moment, Moves};
use super::last_commit::LastCommit;
use super::listing::Listings;
use super::locked::{Locked, first_line};
use super::opens::OpenFiles;
use super::replace::{SharedTreeGuard, TreeGuard};
use super::state::{State, root_record};
use super::uploads::EagerUploads;
use super::{Base, Ino, Origin, Recovered, durability, gauges};
use crate::scratch::data::Files;
use crate::scratch::directory::ScratchDirectory;
use crate::scratch::durable::Durable;
use crate::scratch::journal::Journal;
use crate::scratch::record::{DataFileId, EntryId, ROOT};
use crate::scratch::salvage::Salvage;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_tree::tree::Tree;

/// Upper layer of a working tree, and the base below it. It is the only one that has the lock.
#[derive(Debug)]
pub struct Upper {
    inner: Mutex<Locked>,
    tree_lock: tokio::sync::RwLock<()>,
    pub(super) last_commit: LastCommit,
    pub(super) uploads: Arc<EagerUploads>,
    pub(super) files: Files,
    scratch: ScratchDirectory,
    /// The journal's side towards the disk, which may be asked without the lock.
    pub(super) durable: Arc<Durable>,
    origin: Origin,
    /// Data files that lost their names in a power cut and were saved.
    pub(super) salvaged: u64,
    pub(super) file_locks: FileLocks,
    pub(super) counted_bytes: Mutex<gauges::CountedBytes>,
    /// Moves so far, of the kernel's view.
    pub(super) moves: Arc<Moves>,
    pub(super) listings: Listings,
}

impl Upper {
    /// Returns the present moment between two moves. Only a move changes the tree otherwise than by
    /// requests.
    pub fn moment(&self) -> Moment {
        self.moves.now()
    }

    /// Opens the upper layer in `scratch` on top of `tree`, which must be the snapshot that
    /// `recovered` names, if it names one.
    pub(super) fn open(
        tree: Arc<Tree>,
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
        let durable = Arc::clone(journal.durable());
        let mut upper = Upper {
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
            uploads: Arc::default(),
            files,
            scratch,
            durable,
            origin,
            salvaged: 0,
            file_locks: FileLocks::default(),
            counted_bytes: Mutex::default(),
            moves,
            listings: Listings::default(),
        };
        upper.salvaged = upper.drop_orphans(&named)?;
        if let Err(error) = upper.compact() {
            // The long journal remains valid.
            tracing::warn!("{error}; the scratch journal stays as it is");
        }
        upper.durable.keep_reserve();
        Ok(upper)
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
        self.durable.retain_flush_failures(&used);
        let restarted = locked.journal.was_restarted();
        let mut salvage = Salvage::new(self.scratch.directory(), self.files.directory());
        for data in self.files.list()?.into_iter().filter(|data| !used.contains(data)) {
            // The file is unlinked later: a new file of this number would be unlinked instead of
            // it. One with a number that is never given is not ours.
            if locked.state.fresh.reserve(data.0).is_err() {
                continue;
            }
            if !restarted {
                // The lines that made it unneeded may be in the page cache only.
                self.durable.retire(data);
                continue;
            }
            let kept = match self.files.find(data)? {
                Some(stat) if !named.contains(&data) => salvage.keep(data, &stat)?,
                _ => false,
            };
            if !kept {
                self.files.remove(data);
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Locked> {
        self.inner.lock()
    }

    /// Waits for shared access, for an operation that changes the tree.
    pub(super) async fn enter(&self) -> Result<SharedTreeGuard<'_>> {
        let before = self.moment();
        let lock = self.tree_lock.read().await;
        let guard = SharedTreeGuard { _lock: lock, is_late: self.moment() != before };
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

    /// Waits for operations that change the tree to end, and keeps new ones out.
    pub async fn quiesce(&self) -> TreeGuard<'_> {
        TreeGuard { _lock: self.tree_lock.write().await }
    }

    /// Returns shared access, if that is possible without waiting.
    pub(super) fn enter_now(&self) -> Option<impl Sized + '_> {
        self.tree_lock.try_read().ok().filter(|_| !self.is_undecided() && !self.may_land())
    }

    /// Returns the side of the journal that says which changes the disk has.
    pub fn durable(&self) -> &Arc<Durable> {
        &self.durable
    }

    /// Returns a path of inode `number` for messages.
    pub fn describe(&self, number: Ino) -> String {
        self.lock().describe(number)
    }

    /// Returns the bytes and blocks of the file system that holds the scratch directory.
    pub fn space(&self) -> Result<rustix::fs::StatVfs> {
        rustix::fs::fstatvfs(self.scratch.directory()).map_err(|e| Error::io("the scratch directory", e.into()))
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
}
