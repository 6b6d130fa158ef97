//! Decides which chunk files share an object.
//!
//! Small chunks of one array are packed in grid order, so that neighbors are read with one request and a hundred thousand of
//! them become a few dozen objects. An object lives as long as any chunk in it; a pack therefore holds chunks of one array
//! and one commit only, and some MiB at most.

use super::changes::ChunkFile;
use super::request::Sizes;

/// Chunk file to store, and the slot that receives its payload.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Position among the array's changed chunks.
    pub(super) slot: usize,
    pub(super) file: ChunkFile,
}

/// Chunk files that are stored together.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Chunks that go into the manifest, without an object.
    Inline(Vec<Pending>),
    /// Chunks that become one object, back to back.
    Pack(Vec<Pending>),
    /// File that becomes one object.
    Single(Pending),
}

/// Inline chunks per job.
const INLINE_BATCH: usize = 512;

impl Job {
    pub(super) fn chunks(&self) -> usize {
        match self {
            Job::Inline(all) | Job::Pack(all) => all.len(),
            Job::Single(_) => 1,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Job::Inline(all) | Job::Pack(all) => all.iter().map(|pending| pending.file.length).sum(),
            Job::Single(pending) => pending.file.length,
        }
    }
}

/// Groups the files of one array, which come in grid order, into jobs.
pub(super) fn plan(files: impl Iterator<Item = Pending>, sizes: Sizes) -> Vec<Job> {
    let mut jobs = Vec::new();
    let (mut inline, mut pack, mut packed) = (Vec::new(), Vec::new(), 0);
    for pending in files {
        let length = pending.file.length;
        if length <= sizes.inline {
            inline.push(pending);
            if inline.len() >= INLINE_BATCH {
                jobs.push(Job::Inline(std::mem::take(&mut inline)));
            }
        } else if length < sizes.pack_below {
            pack.push(pending);
            packed += length;
            if packed >= sizes.pack_size {
                jobs.push(Job::Pack(std::mem::take(&mut pack)));
                packed = 0;
            }
        } else {
            jobs.push(Job::Single(pending));
        }
    }
    if !inline.is_empty() {
        jobs.push(Job::Inline(inline));
    }
    if !pack.is_empty() {
        jobs.push(Job::Pack(pack));
    }
    jobs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    #[test]
    fn sizes_decide_and_order_is_kept() {
        let directory = Arc::new(OwnedFd::from(std::fs::File::open("/").unwrap()));
        let lengths = [10, 100, 40, 5, 60, 30, 99, 11];
        let files = lengths.iter().enumerate().map(|(slot, &length)| Pending {
            slot,
            file: ChunkFile { directory: Arc::clone(&directory), name: slot.to_string(), length, can_link: true },
        });
        let jobs = plan(files, Sizes { inline: 10, pack_below: 100, pack_size: 100 });
        let slots = |all: &[Pending]| all.iter().map(|p| p.slot).collect::<Vec<_>>();
        let shown: Vec<(char, Vec<usize>)> = jobs
            .iter()
            .map(|job| match job {
                Job::Inline(all) => ('i', slots(all)),
                Job::Pack(all) => ('p', slots(all)),
                Job::Single(one) => ('s', vec![one.slot]),
            })
            .collect();
        assert_eq!(shown, [('s', vec![1]), ('p', vec![2, 4]), ('p', vec![5, 6]), ('i', vec![0, 3]), ('p', vec![7])]);
        assert_eq!(jobs.iter().map(Job::bytes).sum::<u64>(), lengths.iter().sum::<u64>());
        assert_eq!(jobs.iter().map(Job::chunks).sum::<usize>(), lengths.len());
    }
}
