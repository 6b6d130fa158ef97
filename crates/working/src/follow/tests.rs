//! A move, as a kernel sees it that is told of it.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Follower;
use super::shown::ViewState;
use crate::lab::Lab;
use crate::lab::programs::Programs;
use crate::operations::Invalidator;
use crate::overlay::invalidation::Invalidation;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_repo::reader::Reader;
use icechunkfs_repo::reader::memory::Budget;
use icechunkfs_repo::repo::MAX_SNAPSHOT;
use icechunkfs_repo::repo::refs::RefSpec;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::NodeTable;
use icechunkfs_tree::tree::numbering::Numbering;

const MEMORY: u64 = 16 << 20;

/// Kernel in which a program reads `file` right after the first invalidation of it.
struct Kernel {
    shown: Arc<ViewState>,
    file: Ino,
    /// Invalidations, each with the snapshot that the mount showed then.
    told: Mutex<Vec<(Invalidation, ObjectId)>>,
}

impl Invalidator for Kernel {
    fn invalidate(&self, invalidation: &Invalidation) {
        let is_first = !self.was_told(invalidation, None);
        self.told.lock().push((invalidation.clone(), self.shown.view().tree().snapshot().id()));
        if is_first && *invalidation == Invalidation::Inode(self.file) {
            let view = Handle::current().block_on(self.shown.open(self.file)).unwrap();
            assert!(!view.is_cacheable());
            self.shown.close(self.file);
        }
    }

    fn head_moved(&self) {}
}

impl Kernel {
    /// Says whether it was told of `invalidation`, while the mount showed `snapshot` if that is
    /// given.
    fn was_told(&self, invalidation: &Invalidation, snapshot: Option<ObjectId>) -> bool {
        self.told.lock().iter().any(|(told, shown)| told == invalidation && snapshot.is_none_or(|id| id == *shown))
    }
}

async fn follower(lab: &Lab) -> Arc<Follower> {
    let repository = lab.open().await;
    let tip = repository.resolve(&RefSpec::Branch("main".to_owned())).await.unwrap();
    let snapshot = Arc::new(repository.snapshot(tip, MAX_SNAPSHOT).await.unwrap());
    let mut numbering = Numbering::with_headroom();
    let table = NodeTable::build_below(&snapshot, &mut numbering, "").unwrap();
    let reader = Reader::new(Arc::clone(repository.storage()), Budget::new(MEMORY, 0).unwrap());
    let tree = Arc::new(Tree::new(snapshot, table, Arc::new(reader)));
    Follower::new(&repository, "main", tree, numbering, Duration::from_secs(1))
}

/// Answers between the first invalidation and the switch are of the old snapshot.
#[tokio::test]
async fn the_kernel_is_told_before_a_move_and_again_after_it() {
    let lab = Lab::new().await;
    let programs = Programs::with_arrays(&lab).await;
    let follower = follower(&lab).await;
    let before = Arc::clone(follower.shown.view().tree());
    let entry = |path: &str, tree: &Tree| Invalidation::entry(tree, &tree.place_of(path).unwrap()).unwrap();
    let file = before.table().inode(&before.place_of("a/c/0").unwrap());
    let kernel = Arc::new(Kernel { shown: Arc::clone(&follower.shown), file, told: Mutex::default() });
    assert!(follower.kernel.set(Arc::clone(&kernel) as Arc<dyn Invalidator>).is_ok());
    programs.patch("a/c/0", 0, "Z").await;
    programs.put("m/c/3", "new").await;
    programs.commit().await;
    follower.poll().await.unwrap();
    let after = Arc::clone(follower.shown.view().tree());
    let [old, new] = [&before, &after].map(|tree| tree.snapshot().id());
    assert_ne!(old, new);
    assert!(follower.shown.view().is_cacheable());
    for told in [entry("a/c/0", &before), entry("m/c/3", &after), Invalidation::Inode(file)] {
        let told_of = [old, new].map(|snapshot| kernel.was_told(&told, Some(snapshot)));
        assert!(told_of[1], "{told:?} after the move");
        assert!(told_of[0] || matches!(told, Invalidation::Entry(..)), "{told:?} before the move");
    }
    // The file was closed again: it keeps its number, and has the new bytes.
    assert_eq!(after.table().inode(&after.place_of("a/c/0").unwrap()), file);
    assert!(follower.shown.open(file).await.is_some());
}
