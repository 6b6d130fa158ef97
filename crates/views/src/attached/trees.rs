//! The trees themselves: numbered when they are first named, loaded when they are used, dropped
//! when they are not.
//!
//! The number of a tree stays as long as the mount, so that the kernel may hold inodes of a tree
//! that is not loaded: the next request loads it again. Its files have the same numbers then, since
//! they follow from the snapshot alone. Loaded trees count in the budget of memory, which may evict
//! them, and those that nobody used for [`IDLE`] are dropped.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use super::refs::{FreshRefs, NameKind, system_time};
use crate::views::ViewTree;
use crate::views::options::ViewOptions;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, Evict, Reservation};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_format::format::snapshot::Snapshot;
use icechunkfs_repo::reader::Reader;
use icechunkfs_tree::inodes::MAX_TREES;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeTable;
use icechunkfs_tree::tree::numbering::Numbering;

/// Most trees that are loaded at a time. A program that compares a few snapshots has them all; one
/// that walks over thousands of tags keeps no more than these.
const LOADED: NonZeroUsize = NonZeroUsize::new(32).unwrap();
/// Time without a request after which a tree is dropped. Loading it again takes one request for its
/// snapshot.
const IDLE: Duration = Duration::from_secs(60);

/// Memory for each tree that is made at the same time as others, in bytes: a snapshot of some
/// hundred thousand nodes.
const ROOM: u64 = 64 << 20;
/// Most trees that are made at a time: more requests to a store at once gain little.
const MOST_AT_A_TIME: u64 = 8;

/// Name under which a tree is attached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum TreeName {
    /// View of the snapshot that the mount shows.
    Own,
    /// Name in one of the directories of refs.
    At(NameKind, String),
}

/// Identity of a tree. A branch that moves is another tree then.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TreeKey {
    pub(super) name: TreeName,
    pub(super) snapshot: ObjectId,
    /// View, if the tree is below `view`. A directory cannot be below itself: `view/zarr` is
    /// another tree than the one around it.
    pub(super) view: Option<ViewOptions>,
}

/// Loaded tree.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) files: Arc<dyn ViewTree>,
    /// Time of all files: that of the commit.
    pub(super) time: SystemTime,
    /// Bytes that are released when nobody uses the tree: those of its snapshot and of what is made
    /// of it.
    bytes: u64,
    _memory: Reservation,
}

/// Trees that were named, and those that are loaded.
#[derive(Debug)]
pub(super) struct Trees {
    reader: Arc<Reader>,
    location: String,
    /// Node that is the root of all trees; empty for whole trees.
    root: String,
    limit: u64,
    known: Mutex<Known>,
    loaded: Arc<LoadedTrees>,
    /// Trees that may be made at a time: a snapshot is in memory while it waits for room for its
    /// table and documents, so that of several where memory is short each would wait for the
    /// others. Fair: those that wait go in their order.
    making: Semaphore,
    /// Held by a request that is repeated because it did not fit into memory beside others.
    alone: Semaphore,
}

#[derive(Debug, Default)]
struct Known {
    /// Trees and the times of their roots, by number; number 0 is no tree.
    keys: Vec<(TreeKey, SystemTime)>,
    numbers: HashMap<TreeKey, u32>,
}

#[derive(Debug)]
struct LoadedTrees {
    trees: Mutex<LruCache<u32, Slot>>,
    is_watched: AtomicBool,
}

#[derive(Debug)]
struct Slot {
    tree: Arc<OnceCell<Arc<Loaded>>>,
    used: Instant,
}

impl Evict for LoadedTrees {
    fn evict(&self, bytes: u64) {
        let mut gone = Vec::new();
        let mut left = bytes;
        let mut trees = self.trees.lock();
        // Those that are being loaded or used release nothing, and would be loaded a second time.
        let mut evicted = Vec::new();
        for (number, slot) in trees.iter().rev() {
            if left == 0 {
                break;
            }
            let Some(tree) = slot.tree.get().filter(|tree| Arc::strong_count(tree) == 1) else { continue };
            left = left.saturating_sub(tree.bytes);
            evicted.push(*number);
        }
        gone.extend(evicted.iter().map(|number| trees.pop(number)));
        drop(trees);
    }
}

impl Trees {
    /// Creates the trees of the repository at `location`, read by `reader`, whose root is node
    /// `root`; a snapshot may have `limit` bytes.
    pub(super) fn new(reader: Arc<Reader>, location: &str, root: &str, limit: u64) -> Self {
        let loaded =
            Arc::new(LoadedTrees { trees: Mutex::new(LruCache::new(LOADED)), is_watched: AtomicBool::new(false) });
        memory::register_cache(&loaded);
        let at_a_time = memory::reservable() / ROOM;
        Trees {
            reader,
            location: location.to_owned(),
            root: root.to_owned(),
            limit,
            known: Mutex::default(),
            loaded,
            making: Semaphore::new(at_a_time.clamp(1, MOST_AT_A_TIME) as usize),
            alone: Semaphore::new(1),
        }
    }

    /// Returns the number of the tree `key`, and the time of its root: `time` if the tree was not
    /// known.
    pub(super) fn number(&self, key: TreeKey, time: SystemTime) -> Result<(u32, SystemTime)> {
        let mut known = self.known.lock();
        if let Some(&number) = known.numbers.get(&key) {
            let time = known.keys.get(number as usize - 1).map_or(time, |(_, time)| *time);
            return Ok((number, time));
        }
        let number = u32::try_from(known.keys.len() + 1).ok().filter(|number| *number < MAX_TREES);
        let number = number.ok_or_else(|| {
            Error::new(
                ErrorKind::OutOfMemory,
                format!("{MAX_TREES} snapshots were named below .icechunk: mount again to enter more"),
            )
        })?;
        known.keys.push((key.clone(), time));
        known.numbers.insert(key, number);
        Ok((number, time))
    }

    /// Returns the identity of tree `number`, and the time of its root.
    pub(super) fn key(&self, number: u32) -> Option<(TreeKey, SystemTime)> {
        self.known.lock().keys.get((number as usize).checked_sub(1)?).cloned()
    }

    /// Returns the names of all trees that were named, each once, with their views.
    pub(super) fn names(&self) -> HashSet<(TreeName, Option<ViewOptions>)> {
        self.known.lock().keys.iter().map(|(key, _)| (key.name.clone(), key.view.clone())).collect()
    }

    /// Returns tree `number` if it is loaded.
    pub(super) fn loaded_now(&self, number: u32) -> Option<Arc<Loaded>> {
        self.loaded.trees.lock().peek(&number)?.tree.get().cloned()
    }

    /// Returns tree `number`, loaded if it is not. `shown` is the tree that the mount shows: its
    /// snapshot need not be read again.
    pub(super) async fn load(&self, number: u32, refs: &FreshRefs, shown: &Arc<Tree>) -> Result<Arc<Loaded>> {
        let cell = {
            let mut trees = self.loaded.trees.lock();
            let slot = trees.get_or_insert_mut(number, || Slot { tree: Arc::default(), used: Instant::now() });
            slot.used = Instant::now();
            Arc::clone(&slot.tree)
        };
        let made = cell.get_or_try_init(|| async {
            let key = self.key(number);
            let (key, _) = key.ok_or_else(|| Error::new(ErrorKind::NotFound, "this tree was never entered"))?;
            self.make(&key, refs, shown).await.map(Arc::new)
        });
        let loaded = Arc::clone(made.await?);
        self.drop_when_idle();
        Ok(loaded)
    }

    /// Calls `work` with tree `number`, loaded if it is not. If that does not fit into memory, the
    /// tree is given up, so that other requests go on, and all is repeated after those to which
    /// that happened before: each of several requests may hold a tree and wait for memory.
    pub(super) async fn with<R, F: Future<Output = Result<R>>>(
        &self,
        number: u32,
        refs: &FreshRefs,
        shown: &Arc<Tree>,
        work: impl Fn(Arc<Loaded>) -> F,
    ) -> Result<R> {
        let first = match self.load(number, refs, shown).await {
            Ok(loaded) => work(loaded).await,
            Err(error) => Err(error),
        };
        match first {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                // The semaphore is never closed.
                let _alone = self.alone.acquire().await;
                work(self.load(number, refs, shown).await?).await
            }
            result => result,
        }
    }

    async fn make(&self, key: &TreeKey, refs: &FreshRefs, shown: &Arc<Tree>) -> Result<Loaded> {
        let what = || format!("snapshot {}", key.snapshot);
        // The semaphore is never closed.
        let _making = self.making.acquire().await;
        let shared = if shown.snapshot().id() == key.snapshot {
            Some(Arc::clone(shown.snapshot()))
        } else {
            self.snapshot_of_another_view(key.snapshot)
        };
        let (snapshot, own): (Arc<Snapshot>, u64) = match shared {
            Some(snapshot) => (snapshot, 0),
            None => {
                let repository = refs.repository().await?;
                let snapshot = repository.snapshot(key.snapshot, self.limit).await.context(what)?;
                let size = snapshot.size() as u64;
                (Arc::new(snapshot), size)
            }
        };
        // The numbers of the mount's own tree may depend on its past; these follow from the
        // snapshot alone.
        let described = Arc::clone(&snapshot);
        let root = self.root.clone();
        let table = blocking(move || NodeTable::build_below(&described, &mut Numbering::default(), &root)).await;
        let table = table.context(what)?;
        // The snapshot has a reservation of its own.
        let memory = memory::reserve(table.size(), &what()).await?;
        let bytes = own.saturating_add(memory.bytes());
        let time = system_time(snapshot.flushed_at());
        let tree = Arc::new(Tree::new(snapshot, table, Arc::clone(&self.reader)));
        let files = key
            .view
            .clone()
            .unwrap_or_default()
            .make(tree, if self.root.is_empty() { &self.location } else { &self.root })
            .await
            .context(what)?;
        Ok(Loaded { files, time, bytes, _memory: memory })
    }

    /// Returns snapshot `id` if a loaded tree has it.
    fn snapshot_of_another_view(&self, id: ObjectId) -> Option<Arc<Snapshot>> {
        let trees = self.loaded.trees.lock();
        let snapshots = trees.iter().filter_map(|(_, slot)| Some(slot.tree.get()?.files.tree().snapshot()));
        snapshots.into_iter().find(|snapshot| snapshot.id() == id).map(Arc::clone)
    }

    /// Starts the task that drops idle trees, unless it runs. It ends when no tree is left.
    fn drop_when_idle(&self) {
        if self.loaded.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let loaded: Weak<LoadedTrees> = Arc::downgrade(&self.loaded);
        drop(tokio::spawn(async move {
            loop {
                tokio::time::sleep(IDLE / 2).await;
                let Some(loaded) = loaded.upgrade() else { return };
                let mut gone = Vec::new();
                let mut trees = loaded.trees.lock();
                while trees.peek_lru().is_some_and(|(_, slot)| slot.used.elapsed() >= IDLE) {
                    gone.extend(trees.pop_lru());
                }
                if trees.is_empty() {
                    loaded.is_watched.store(false, Ordering::Release);
                    return;
                }
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_format::format::testing::{self, group, id};
    use icechunkfs_repo::reader::memory::Budget;
    use icechunkfs_store::storage::empty_storage;

    #[tokio::test]
    async fn a_tree_in_use_is_not_evicted() {
        let snapshot = Snapshot::decode(&testing::snapshot(id(1), &[group(1, "/")]), 1 << 20).unwrap();
        let table = NodeTable::build(&snapshot).unwrap();
        let reader = Reader::new(empty_storage("memory"), Budget::new(64 << 20, 0).unwrap());
        let tree = Arc::new(Tree::new(snapshot, table, Arc::new(reader)));
        let files = ViewOptions::default().make(tree, "").await.unwrap();
        let loaded = Arc::new(Loaded { files, time: SystemTime::now(), bytes: 10, _memory: Reservation::default() });
        let slot = Slot { tree: Arc::new(OnceCell::new_with(Some(Arc::clone(&loaded)))), used: Instant::now() };
        let trees = LoadedTrees { trees: Mutex::new(LruCache::new(LOADED)), is_watched: AtomicBool::new(false) };
        trees.trees.lock().put(1, slot);
        trees.evict(5);
        assert_eq!(trees.trees.lock().len(), 1, "it would be loaded a second time");
        drop(loaded);
        trees.evict(5);
        assert_eq!(trees.trees.lock().len(), 0);
    }
}
