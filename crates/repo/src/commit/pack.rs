//! Decides which chunk files share an object.
//!
//! Small chunks of one array are packed in grid order, so that neighbors are read with one request
//! and a hundred thousand of them become a few dozen objects. An object lives as long as any chunk
//! in it; a pack therefore holds chunks of one array and one commit only, and some MiB at most.

use std::sync::Arc;

use super::changes::{ChunkFile, MadeChunk};
use super::request::Sizes;

/// Chunk file to store, and the slot that receives its payload.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Position among the array's changed chunks.
    pub(super) slot: usize,
    pub(super) content: Content,
}

/// Bytes of a chunk to store.
#[derive(Clone, Debug)]
pub(super) enum Content {
    File(ChunkFile),
    Made(Arc<dyn MadeChunk>),
}

impl Content {
    pub(super) fn length(&self) -> u64 {
        match self {
            Content::File(file) => file.length,
            Content::Made(made) => made.length(),
        }
    }

    /// Returns the bytes of memory that reading it takes, besides its own.
    pub(super) fn workspace(&self) -> u64 {
        match self {
            Content::File(_) => 0,
            Content::Made(made) => made.workspace(),
        }
    }

    /// Returns true if the file itself may become an object, without its bytes in memory.
    pub(super) fn is_file(&self) -> bool {
        matches!(self, Content::File(_))
    }
}

/// Way to store chunk files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StorageForm {
    /// In the manifest, without an object.
    Inline,
    /// In one object for all, back to back.
    Pack,
    /// As an object; one file.
    Object,
}

/// Chunk files that are stored together.
pub(super) type Job = (StorageForm, Vec<Pending>);

/// Inline chunks per job.
const INLINE_BATCH: usize = 512;

/// Groups the files of one array, which come in grid order, into jobs.
pub(super) fn plan(files: impl Iterator<Item = Pending>, sizes: Sizes) -> Vec<Job> {
    let mut jobs = Vec::new();
    let mut inline = Vec::new();
    let mut pack = Vec::new();
    let mut packed = 0;
    for pending in files {
        let length = pending.content.length();
        if length <= sizes.inline {
            inline.push(pending);
            if inline.len() >= INLINE_BATCH {
                jobs.push((StorageForm::Inline, std::mem::take(&mut inline)));
            }
        } else if length < sizes.pack_below {
            pack.push(pending);
            packed += length;
            if packed >= sizes.pack_size {
                jobs.push((StorageForm::Pack, std::mem::take(&mut pack)));
                packed = 0;
            }
        } else {
            jobs.push((StorageForm::Object, vec![pending]));
        }
    }
    jobs.extend(
        [(StorageForm::Inline, inline), (StorageForm::Pack, pack)].into_iter().filter(|(_, files)| !files.is_empty()),
    );
    jobs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::fd::OwnedFd;

    #[test]
    fn sizes_decide_and_order_is_kept() {
        let directory = Arc::new(OwnedFd::from(std::fs::File::open("/").unwrap()));
        let lengths = [10, 100, 40, 5, 60, 30, 99, 11];
        let files = lengths.iter().enumerate().map(|(slot, &length)| Pending {
            slot,
            content: Content::File(ChunkFile {
                directory: Arc::clone(&directory),
                name: slot.to_string(),
                length,
                can_link: true,
            }),
        });
        let jobs = plan(files, Sizes { inline: 10, pack_below: 100, pack_size: 100 });
        let shown: Vec<(StorageForm, Vec<usize>)> =
            jobs.into_iter().map(|(place, files)| (place, files.iter().map(|p| p.slot).collect())).collect();
        let expected = [
            (StorageForm::Object, vec![1]),
            (StorageForm::Pack, vec![2, 4]),
            (StorageForm::Pack, vec![5, 6]),
            (StorageForm::Inline, vec![0, 3]),
            (StorageForm::Pack, vec![7]),
        ];
        assert_eq!(shown, expected);
    }
}
