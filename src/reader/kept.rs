//! Chunks in a cache on a disk of this machine.
//!
//! What is kept there has come over the network, whole chunks and pieces of large ones alike. A permit for memory goes along with
//! the bytes until they are written: a disk that is slower than the network slows down what is fetched ahead, not more.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Data, NativeChunk, Reader};
use crate::storage::local::LocalFiles;

/// How long the disk may take. What takes longer is slower than the network.
const PATIENCE: Duration = Duration::from_secs(5);

impl Reader {
    /// Bytes `within..within + length` of `piece`, if they are on the disk and can be had without waiting.
    pub(super) fn read_kept_now(&self, piece: NativeChunk, within: u64, length: usize) -> Option<Data> {
        let file = self.storage.disk_cache()?.file_now(&piece.name(), piece.length)?;
        let mut buffer = self.buffers.take(length)?;
        LocalFiles::read_now(&file, &mut buffer, within)?;
        Some(Data::Buffer(buffer))
    }

    /// `piece`, if it is on the disk.
    pub(super) async fn kept(&self, piece: NativeChunk) -> Option<Bytes> {
        let disk = Arc::clone(self.storage.disk_cache()?);
        let reading = tokio::task::spawn_blocking(move || disk.get(&piece.name(), piece.length));
        let bytes = tokio::time::timeout(PATIENCE, reading).await.ok()?.ok()??;
        (bytes.len() as u64 == piece.length).then_some(bytes)
    }

    /// Whether `piece` is on the disk.
    pub(super) fn is_kept(&self, piece: NativeChunk) -> bool {
        self.storage.disk_cache().is_some_and(|disk| disk.has(&piece.name()))
    }

    /// Keeps `piece` on the disk, if there is one, and `permit` until then.
    pub(super) fn keep(&self, piece: NativeChunk, bytes: &Bytes, permit: impl Send + 'static) {
        if let Some(disk) = self.storage.disk_cache() {
            disk.keep(piece.name(), bytes.clone(), permit);
        }
    }

    /// Waits until what was to be kept on the disk is there, but not for long.
    pub async fn settle(&self) {
        if let Some(disk) = self.storage.disk_cache() {
            disk.settle().await;
        }
    }
}
