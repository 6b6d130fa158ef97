//! Which chunk files share an object.
//!
//! Small chunks of one array are put together in grid order, so that neighbours are read with one request and a hundred
//! thousand of them are a few dozen objects. An object lives as long as any chunk in it; it therefore holds chunks of one
//! array and one commit only, and some MiB at most.

use super::changes::ChunkFile;

/// A chunk file to store, and the slot that is to know where it went.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Number of the array's slot.
    pub(super) slot: usize,
    /// Where the bytes are.
    pub(super) file: ChunkFile,
}

/// What is stored at one go.
#[derive(Clone, Debug)]
pub(super) enum Job {
    /// Bytes for the manifest: no object.
    Inline(Vec<Pending>),
    /// One object with several chunks, one behind the other.
    Pack(Vec<Pending>),
    /// One object, which is the file.
    Single(Pending),
}

/// Which sizes are stored how, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Chunks up to this size are stored inline.
    pub(super) inline: u64,
    /// Larger chunks below this size are packed.
    pub(super) pack_below: u64,
    /// An object of packed chunks is closed when it has reached this size.
    pub(super) pack_size: u64,
}

/// Inline chunks read at one go.
const INLINE_BATCH: usize = 512;

impl Job {
    /// How many chunks it stores.
    pub(super) fn chunks(&self) -> usize {
        match self {
            Job::Inline(all) | Job::Pack(all) => all.len(),
            Job::Single(_) => 1,
        }
    }

    /// How many bytes it stores.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Job::Inline(all) | Job::Pack(all) => all.iter().map(|pending| pending.file.length).sum(),
            Job::Single(pending) => pending.file.length,
        }
    }
}

/// Shares out the files of one array, which come in grid order.
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
            file: ChunkFile { directory: Arc::clone(&directory), name: slot.to_string(), length },
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
