//! State of a read-only mount: the snapshot that it shows, and the files that are open.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::difference::Difference;
use icechunkfs_tree::inodes::{Ino, REPLACED};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::numbering::Renumbered;
use icechunkfs_views::views::ViewTree;
use icechunkfs_views::views::native::NativeView;

/// State that requests are answered from. One request has one view from its beginning to its end.
#[derive(Debug)]
pub struct View {
    tree: Arc<Tree>,
    files: Arc<dyn ViewTree>,
    time: SystemTime,
    /// True if the kernel may cache the replies.
    cacheable: bool,
    /// Open files that have become other inodes, by their old numbers, with the trees that they are
    /// read from.
    retired: HashMap<Ino, Arc<Tree>>,
}

impl View {
    fn new(tree: Arc<Tree>, cacheable: bool, retired: HashMap<Ino, Arc<Tree>>) -> Arc<Self> {
        let files = Arc::new(NativeView(Arc::clone(&tree)));
        Self::of(tree, files, cacheable, retired)
    }

    fn of(tree: Arc<Tree>, files: Arc<dyn ViewTree>, cacheable: bool, retired: HashMap<Ino, Arc<Tree>>) -> Arc<Self> {
        let since = Duration::from_micros(tree.snapshot().flushed_at());
        let time = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
        Arc::new(View { tree, files, time, cacheable, retired })
    }

    /// Returns the tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the files that the mount shows.
    pub fn files(&self) -> &Arc<dyn ViewTree> {
        &self.files
    }

    /// Returns the files that file `number` is read from.
    pub fn files_of(&self, number: Ino) -> Arc<dyn ViewTree> {
        match self.retired.get(&number) {
            Some(tree) => Arc::new(NativeView(Arc::clone(tree))),
            None => Arc::clone(&self.files),
        }
    }

    /// Returns the time of every file: that of the commit.
    pub fn time(&self) -> SystemTime {
        self.time
    }

    /// Returns true if the kernel may cache the replies.
    pub fn is_cacheable(&self) -> bool {
        self.cacheable
    }
}

/// Current view of a mount, its open files and its listings.
#[derive(Debug)]
pub struct ViewState {
    view: RwLock<Arc<View>>,
    /// None if the view never changes.
    moves: Option<Mutex<Moves>>,
    /// Listings under way, by handle, with the trees that they began with.
    listings: Mutex<HashMap<u64, Arc<Tree>>>,
}

/// State needed to switch to another snapshot.
#[derive(Debug, Default)]
struct Moves {
    /// Number of opens of each file.
    opens: HashMap<Ino, u64>,
    /// Files that were open at any time since the kernel may no longer cache replies.
    opened: HashSet<Ino>,
    renumbered: Renumbered,
    last_number: u64,
    next_listing: u64,
    /// Files of which the kernel may still cache old bytes, and a signal for when it no longer
    /// does.
    stale: Option<(Arc<HashSet<Ino>>, watch::Sender<()>)>,
}

#[derive(Debug)]
pub(super) struct Moved {
    /// View before the switch.
    pub(super) before: Arc<View>,
    /// Files that keep their numbers, of which the kernel may cache old bytes.
    pub(super) stale: Arc<HashSet<Ino>>,
    /// Old numbers of files that have become other inodes.
    pub(super) retired: Vec<Ino>,
}

impl ViewState {
    /// Creates the state of a mount that always shows `tree`.
    pub fn fixed(tree: Arc<Tree>) -> Self {
        ViewState::of(Arc::new(NativeView(tree)))
    }

    /// Creates the state of a mount that always shows `files`.
    pub fn of(files: Arc<dyn ViewTree>) -> Self {
        let view = RwLock::new(View::of(Arc::clone(files.tree()), files, true, HashMap::new()));
        ViewState { view, moves: None, listings: Mutex::default() }
    }

    /// Creates the state of a mount that shows `tree` until the first switch.
    pub fn followed(tree: Arc<Tree>) -> Self {
        ViewState { moves: Some(Mutex::default()), ..ViewState::fixed(tree) }
    }

    /// Returns true if the mount can switch to another snapshot.
    pub fn can_move(&self) -> bool {
        self.moves.is_some()
    }

    /// Returns the current view.
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.read())
    }

    /// Returns true if `view` is the current one.
    pub fn is_current(&self, view: &View) -> bool {
        std::ptr::eq(&raw const **self.view.read(), view)
    }

    /// Opens file `number` and returns its view. None if the file has become another inode: the
    /// kernel must look its name up again.
    pub async fn open(&self, number: Ino) -> Option<Arc<View>> {
        let Some(moves) = &self.moves else { return Some(self.view()) };
        loop {
            let mut invalidated = {
                let mut moves = moves.lock();
                match &moves.stale {
                    Some((stale, invalidated)) if stale.contains(&number) => invalidated.subscribe(),
                    _ => {
                        let view = self.view();
                        // The old number of a file that has become another inode means nothing.
                        view.tree.table().place(number)?;
                        *moves.opens.entry(number).or_default() += 1;
                        if !view.cacheable {
                            moves.opened.insert(number);
                        }
                        return Some(view);
                    }
                }
            };
            // A dropped sender means the same as a signal.
            let _ = invalidated.changed().await;
        }
    }

    /// Closes file `number` once.
    pub fn close(&self, number: Ino) {
        let Some(moves) = &self.moves else { return };
        let mut moves = moves.lock();
        let Some(opens) = moves.opens.get_mut(&number) else { return };
        *opens -= 1;
        if *opens > 0 {
            return;
        }
        moves.opens.remove(&number);
        let mut view = self.view.write();
        if view.retired.contains_key(&number) {
            let mut retired = view.retired.clone();
            retired.remove(&number);
            *view = View::new(Arc::clone(&view.tree), view.cacheable, retired);
        }
    }

    /// Opens a listing. Returns its handle, and true if the kernel may cache it.
    pub fn open_listing(&self) -> (u64, bool) {
        let Some(moves) = &self.moves else { return (0, true) };
        let mut moves = moves.lock();
        moves.next_listing += 1;
        (moves.next_listing, self.view.read().cacheable)
    }

    /// Returns the view with which listing `handle` continues at `offset`: the one that it began
    /// with.
    pub fn listing(&self, handle: u64, offset: u64) -> Arc<View> {
        if self.moves.is_none() {
            return self.view();
        }
        let view = self.view();
        let mut listings = self.listings.lock();
        match listings.get(&handle).filter(|_| offset > 0) {
            Some(tree) if !Arc::ptr_eq(tree, &view.tree) => View::new(Arc::clone(tree), false, HashMap::new()),
            Some(_) => view,
            None => {
                listings.insert(handle, Arc::clone(&view.tree));
                view
            }
        }
    }

    /// Closes listing `handle`.
    pub fn close_listing(&self, handle: u64) {
        self.listings.lock().remove(&handle);
    }

    /// Forbids the kernel to cache replies from now on. Returns the files that are open.
    pub(super) fn stop_caching(&self) -> HashSet<Ino> {
        let Some(moves) = &self.moves else { return HashSet::new() };
        let mut moves = moves.lock();
        let open: HashSet<Ino> = moves.opens.keys().copied().collect();
        moves.opened.clone_from(&open);
        let mut view = self.view.write();
        *view = View::new(Arc::clone(&view.tree), false, view.retired.clone());
        open
    }

    /// Switches from `old` to `new`, which differ by `difference`.
    pub(super) fn replace(&self, old: &Arc<Tree>, new: Tree, difference: &Difference) -> Moved {
        let Some(moves) = &self.moves else {
            return Moved { before: self.view(), stale: Arc::default(), retired: Vec::new() };
        };
        let mut moves = moves.lock();
        let mut view = self.view.write();
        let opened = std::mem::take(&mut moves.opened);
        let mut retired = view.retired.clone();
        let mut gone = Vec::new();
        let mut stale = HashSet::new();
        for number in opened {
            if retired.contains_key(&number) || !difference.is_changed(old, number) {
                continue;
            }
            if !moves.opens.contains_key(&number) {
                stale.insert(number);
                continue;
            }
            moves.last_number += 1;
            let other = REPLACED.at(moves.last_number);
            moves.renumbered.set(number, other);
            retired.insert(number, Arc::clone(old));
            gone.push(number);
        }
        let stale = Arc::new(stale);
        moves.stale = (!stale.is_empty()).then(|| (Arc::clone(&stale), watch::channel(()).0));
        let tree = Arc::new(new.renumbered(moves.renumbered.clone()));
        let before = std::mem::replace(&mut *view, View::new(tree, true, retired));
        Moved { before, stale, retired: gone }
    }

    /// Records that the kernel no longer caches old bytes.
    pub(super) fn caches_invalidated(&self) {
        if let Some(moves) = &self.moves {
            moves.lock().stale = None;
        }
    }
}
