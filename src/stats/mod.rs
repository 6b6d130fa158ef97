//! What a repository's bytes are for.
//!
//! Three views of the same objects: what is stored, by listing ([`objects`]); what refs lead to, by reading every snapshot and manifest of
//! all histories once ([`reach`], [`manifests`]); and one snapshot's arrays ([`arrays`]). The first without the second is what a
//! garbage collection would remove in time; the second without the first is damage.
//!
//! An object belongs to one ref if it would be garbage without that ref, and is shared if several lead to it. Packs hold several
//! chunks: a byte of a pack that no manifest names any more is dead, and stays as long as any chunk beside it is in use.
//!
//! Memory does not grow with the number of references. Distinct chunks of all histories take 32 bytes each ([`chunks`]) within a
//! bound; if they are more, the range of ids is divided, and manifests are read once for each part.

pub mod arrays;
mod chunks;
mod manifests;
mod objects;
mod reach;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use self::arrays::ArrayStats;
pub use self::objects::Stored;
use crate::error::Result;
use crate::repo::Repository;
use crate::tree::Tree;

/// Objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Size {
    /// How many.
    pub objects: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Size {
    fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Objects by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByKind {
    /// Chunk objects, of which each holds one chunk or several.
    pub chunks: Size,
    /// Manifests.
    pub manifests: Size,
    /// Snapshots.
    pub snapshots: Size,
    /// Transaction logs.
    pub transactions: Size,
}

impl ByKind {
    /// All kinds together.
    pub fn total(&self) -> Size {
        let all = [self.chunks, self.manifests, self.snapshots, self.transactions];
        Size {
            objects: all.iter().map(|size| size.objects).sum(),
            bytes: all.iter().fold(0, |sum, size| sum.saturating_add(size.bytes)),
        }
    }
}

/// Chunks of all histories, each counted once however many commits have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chunks {
    /// Chunks in objects of the repository.
    pub native: u64,
    /// Bytes of those.
    pub native_bytes: u64,
    /// Chunks in other people's files.
    pub r#virtual: u64,
    /// Bytes of those.
    pub virtual_bytes: u64,
    /// Chunks in manifests, counted in each manifest that has them, for there they are stored.
    pub inline: u64,
    /// Bytes of those, before compression.
    pub inline_bytes: u64,
    /// References in all manifests.
    pub references: u64,
}

/// One branch or tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefStats {
    /// `branch` or `tag`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// The snapshot that it points to.
    pub snapshot: String,
    /// Commits of its history, the first included.
    pub commits: u64,
    /// Groups and arrays of its newest commit.
    pub nodes: u64,
    /// Chunk references in the manifests of its newest commit.
    pub references: u64,
    /// Objects that would be garbage without it.
    pub only_here: Size,
}

/// What a repository's bytes are for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// The repository.
    pub repository: String,
    /// Its version; 0 for one of a release before 0.2.
    pub spec_version: u8,
    /// What is stored, by listing.
    pub stored: Stored,
    /// What refs lead to.
    pub reachable: ByKind,
    /// What no ref leads to: what a garbage collection removes when it is old enough.
    pub unreachable: ByKind,
    /// Objects that something names and that are not there. Damage.
    pub missing: ByKind,
    /// Objects that several refs lead to.
    pub shared: Size,
    /// Bytes of reachable chunk objects that no manifest names.
    pub dead_bytes: u64,
    /// Chunk objects that have such.
    pub dead_in: u64,
    /// The chunks of all histories.
    pub chunks: Chunks,
    /// Branches and tags.
    pub refs: Vec<RefStats>,
    /// The snapshot whose arrays are listed.
    pub snapshot: String,
    /// Its arrays.
    pub arrays: Vec<ArrayStats>,
}

/// How far it is, for other threads to look at.
#[derive(Debug, Default)]
pub struct Counters {
    expected: AtomicU64,
    read: AtomicU64,
}

impl Counters {
    /// Snapshots and manifests to be read as far as that is known, and how many are.
    pub fn now(&self) -> (u64, u64) {
        (self.expected.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    fn expect(&self, more: u64) {
        self.expected.fetch_add(more, Ordering::Relaxed);
    }

    fn did(&self) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// For the list of distinct chunks.
    pub chunks: u64,
    /// For manifests that are being read.
    pub manifests: u64,
}

/// Looks at all of `repository`, and at the arrays of `tree`, a snapshot of it, within `memory`; `jobs` manifests are read at a
/// time.
pub async fn collect(
    repository: &Repository,
    tree: &Arc<Tree>,
    memory: Bounds,
    jobs: usize,
    counters: &Counters,
) -> Result<Stats> {
    let mut stats = Stats {
        repository: repository.storage().location().to_owned(),
        spec_version: if repository.is_before_0_2() { 0 } else { repository.version().number() },
        snapshot: tree.snapshot().id().to_string(),
        ..Stats::default()
    };
    let mut reach = reach::find(repository).await?;
    let manifests = manifests::of_snapshots(repository, &mut reach, jobs, counters).await?;
    let storage = Arc::clone(repository.storage());
    let log_files = match repository.operations() {
        Ok(operations) => operations.files().await?,
        Err(_) => Default::default(),
    };
    objects::documents(&*storage, &mut reach, &manifests, &log_files, &mut stats).await?;
    let mut begin = Some(0);
    while let Some(from) = begin {
        let pass = manifests::read(&storage, &manifests, from, memory, jobs, counters).await?;
        if from == 0 {
            stats.chunks = pass.counted;
        }
        begin = pass.set.end();
        objects::chunks(&*storage, pass.set, &mut reach, &mut stats).await?;
    }
    stats.shared = reach.shared();
    stats.refs = reach.into_refs();
    stats.arrays = arrays::of(tree, jobs).await?;
    Ok(stats)
}
