//! Storage use of a repository.
//!
//! Three views of the same objects: stored objects, by listing ([`objects`]); reachable ones, by
//! reading every snapshot and manifest of all histories once ([`reach`], [`manifests`]); and one
//! snapshot's arrays ([`arrays`]). A stored object that is not reachable is garbage, which a
//! collection removes in time; a reachable object that is not stored is damage.
//!
//! An object belongs to one ref if it would be garbage without that ref, and is shared if several
//! lead to it. Packs hold several chunks: a byte of a pack that no manifest references is dead, and
//! stays as long as any other chunk of the pack is in use.
//!
//! Memory does not grow with the number of references. Distinct chunks of all histories take 32
//! bytes each ([`chunks`]) within a bound; if there are more, the range of ids is divided, and
//! manifests are read once for each part.

pub mod arrays;
mod chunks;
mod manifests;
mod objects;
mod reach;

use std::iter::Sum;
use std::sync::Arc;

use serde::Serialize;

use self::arrays::ArrayStats;
pub use self::objects::Stored;
use crate::tree::Tree;
use icechunkfs_base::error::Result;
use icechunkfs_repo::repo::Repository;
use icechunkfs_repo::repo::progress::Progress;

/// Number and bytes of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of objects.
    pub objects: u64,
    /// Bytes of all objects.
    pub bytes: u64,
}

impl Size {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Sum for Size {
    fn sum<I: Iterator<Item = Size>>(sizes: I) -> Size {
        sizes.fold(Size::default(), |sum, size| Size {
            objects: sum.objects + size.objects,
            bytes: sum.bytes.saturating_add(size.bytes),
        })
    }
}

/// Objects by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByKind {
    /// Chunk objects, each with one chunk or several.
    pub chunks: Size,
    /// Manifests.
    pub manifests: Size,
    /// Snapshots.
    pub snapshots: Size,
    /// Transaction logs.
    pub transactions: Size,
}

impl ByKind {
    /// Returns the sum of all kinds.
    pub fn total(&self) -> Size {
        [self.chunks, self.manifests, self.snapshots, self.transactions].into_iter().sum()
    }
}

/// Chunks of all histories, each counted once however many commits have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// Native chunks, in objects of the repository.
    pub native: u64,
    /// Bytes of native chunks.
    pub native_bytes: u64,
    /// Virtual chunks, in files outside the repository.
    pub r#virtual: u64,
    /// Bytes of virtual chunks.
    pub virtual_bytes: u64,
    /// Inline chunks, counted once for each manifest that stores them.
    pub inline: u64,
    /// Bytes of inline chunks before compression.
    pub inline_bytes: u64,
    /// References in all manifests.
    pub references: u64,
}

/// Statistics of one branch or tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefStats {
    /// `branch` or `tag`.
    pub kind: &'static str,
    /// Name of the ref.
    pub name: String,
    /// Snapshot that the ref points to.
    pub snapshot: String,
    /// Commits in its history, the first included.
    pub commits: u64,
    /// Groups and arrays at the tip.
    pub nodes: u64,
    /// Chunk references in the manifests of the tip.
    pub references: u64,
    /// Objects that would be garbage without the ref.
    pub only_here: Size,
}

/// Statistics of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Location of the repository.
    pub repository: String,
    /// Format version; 0 for an alpha.
    pub spec_version: u8,
    /// Stored objects, by listing.
    pub stored: Stored,
    /// Objects that refs lead to.
    pub reachable: ByKind,
    /// Objects that no ref leads to; a garbage collection removes them when they are old enough.
    pub unreachable: ByKind,
    /// Objects that are referenced but not stored: damage.
    pub missing: ByKind,
    /// Objects that several refs lead to.
    pub shared: Size,
    /// Bytes of reachable chunk objects that no manifest references.
    pub dead_bytes: u64,
    /// Chunk objects with such bytes.
    pub dead_in: u64,
    /// Chunks of all histories.
    pub chunks: Chunks,
    /// Branches and tags.
    pub refs: Vec<RefStats>,
    /// Snapshot whose arrays are listed.
    pub snapshot: String,
    /// Arrays of that snapshot.
    pub arrays: Vec<ArrayStats>,
}

/// Memory bounds, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBounds {
    /// Bound of the list of distinct chunks.
    pub chunks: u64,
    /// Bound of the manifests that are being read.
    pub manifests: u64,
}

/// Collects the statistics of `repository`, and of the arrays of `tree`, a snapshot of it, within
/// `memory`; reads `jobs` manifests concurrently. `progress` counts snapshots and manifests.
pub async fn collect(
    repository: &Repository,
    tree: &Arc<Tree>,
    memory: MemoryBounds,
    jobs: usize,
    progress: &Progress,
) -> Result<Stats> {
    let mut stats = Stats {
        repository: repository.storage().location().to_owned(),
        spec_version: if repository.is_alpha() { 0 } else { repository.version().number() },
        snapshot: tree.snapshot().id().to_string(),
        ..Stats::default()
    };
    let mut reach = reach::find(repository).await?;
    let manifests = manifests::collect_manifests(repository, &mut reach, jobs, progress).await?;
    let storage = Arc::clone(repository.storage());
    let log_files = match repository.operations() {
        Ok(operations) => operations.files().await?,
        Err(_) => Default::default(),
    };
    objects::count_metadata_objects(&*storage, &mut reach, &manifests, &log_files, &mut stats).await?;
    let mut begin = Some(0);
    while let Some(from) = begin {
        let pass = manifests::read(&storage, &manifests, from, memory, jobs, progress).await?;
        if from == 0 {
            stats.chunks = pass.counted;
        }
        begin = pass.set.range.end;
        objects::chunks(&*storage, pass.set, &mut reach, &mut stats).await?;
    }
    (stats.shared, stats.refs) = (reach.shared, reach.refs);
    stats.arrays = arrays::collect_arrays(tree, jobs).await?;
    Ok(stats)
}
