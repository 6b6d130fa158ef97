//! Manifests ahead of a program that walks through the tree, such as `find`.
//!
//! Each listing of an array's chunks needs its manifest, and a repository may have tens of
//! thousands of small ones: a walk would wait for each of them in turn. Where arrays are listed in
//! the order of their paths, the small manifests of the next ones are loaded meanwhile.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Tree;
use super::nodes::NodeIndex;
use icechunkfs_repo::reader::SMALL_MANIFEST;

/// Nodes whose manifests are loaded ahead. Over a line of 30 ms, so many arrive in the time of one.
const AHEAD: NodeIndex = 64;
/// Nodes that a walk may pass over and still be one: groups, and arrays without chunks.
const GAP: NodeIndex = 16;

/// Place of the last walk.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Array that was listed last.
    last: AtomicU32,
    /// Node up to which manifests were loaded ahead.
    end: AtomicU32,
}

impl Tree {
    /// Notes that array `node` is listed, and loads manifests of the next arrays if a program seems
    /// to walk through them.
    pub(super) fn walked_to(&self, node: NodeIndex) {
        // The order of concurrent listings does not matter: at worst something is loaded early, or
        // not ahead.
        let last = self.walk.last.swap(node, Ordering::Relaxed);
        if node <= last || node - last > GAP {
            self.walk.end.store(0, Ordering::Relaxed);
            return;
        }
        let begin = self.walk.end.load(Ordering::Relaxed).max(node);
        if begin > node.saturating_add(AHEAD / 2) {
            return;
        }
        let end = node.saturating_add(AHEAD);
        self.walk.end.store(end, Ordering::Relaxed);
        let mut ids = HashSet::new();
        for array in (begin..end).filter_map(|index| self.table.array(index)) {
            // Those of large arrays are not worth the memory.
            if let [only] = &*array.manifests {
                ids.insert(only.id);
            }
        }
        let infos = ids.into_iter().map(|id| self.table.manifest(id));
        self.reader.load_ahead(infos.filter(|info| info.size <= SMALL_MANIFEST));
    }
}
