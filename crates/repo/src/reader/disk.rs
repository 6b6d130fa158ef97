//! Chunks in a disk cache.
//!
//! Its entries have come over the network, whole chunks and pieces of large ones alike. A permit
//! for memory accompanies the bytes until they are written: a disk that is slower than the network
//! slows down fetching, and does not fill memory.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

use super::chunk::ChunkRange;
use super::{Data, Reader};
use icechunkfs_base::metrics::SOURCES;
use icechunkfs_store::storage::local::LocalFiles;

impl Reader {
    /// Returns bytes `within..within + length` of `piece`, if they are on the disk and that needs
    /// no waiting.
    pub(super) fn read_kept_now(&self, piece: &ChunkRange, within: u64, length: usize) -> Option<Data> {
        let file = self.storage.disk_cache()?.file_now(&piece.name()?, piece.length)?;
        let mut buffer = self.buffers.take(length)?;
        LocalFiles::read_now(&file, &mut buffer, within)?;
        SOURCES.disk_cache.add(length as u64);
        Some(Data::Buffer(buffer))
    }

    /// Reads like [`Reader::read_kept_now`], but waits for the disk. The piece does not go into
    /// memory: the disk is as fast.
    pub(super) async fn read_kept(&self, piece: &ChunkRange, within: u64, length: usize) -> Option<Data> {
        let disk = self.storage.disk_cache()?;
        let name = piece.name()?;
        let whole = piece.length;
        let mut buffer = self.buffers.take(length)?;
        let reading = disk.run_blocking(move |disk| {
            let file = disk.file(&name, whole)?;
            file.read_exact_at(&mut buffer, within).ok()?;
            Some(buffer)
        });
        let read = reading.await?;
        SOURCES.disk_cache.add(length as u64);
        Some(Data::Buffer(read))
    }

    pub(super) async fn kept(&self, piece: &ChunkRange) -> Option<Bytes> {
        let disk = self.storage.disk_cache()?;
        let name = piece.name()?;
        let length = piece.length;
        let bytes = disk.run_blocking(move |disk| disk.get(&name, length)).await?;
        let bytes = Some(bytes).filter(|bytes| bytes.len() as u64 == piece.length)?;
        SOURCES.disk_cache.add(piece.length);
        Some(bytes)
    }

    /// Returns true if `piece` is on the disk. Reads it in the background, so that it is in the
    /// kernel's page cache and verified by the time it is needed.
    pub(super) fn warm_disk(&self, piece: &ChunkRange) -> bool {
        let (Some(disk), Some(name)) = (self.storage.disk_cache(), piece.name()) else { return false };
        if disk.file_now(&name, piece.length).is_some() {
            return true;
        }
        let is_on_disk = disk.has(&name);
        let permit = Arc::clone(&self.prefetches).try_acquire_many_owned(self.budget.read_permits(piece.length));
        if let (true, Ok(permit)) = (is_on_disk, permit) {
            let disk = Arc::clone(disk);
            let length = piece.length;
            drop(tokio::task::spawn_blocking(move || {
                let _permit = permit;
                disk.file(&name, length)
            }));
        }
        is_on_disk
    }

    /// Keeps `piece` on the disk, if there is one, and holds `permit` until then.
    pub(super) fn keep(&self, piece: &ChunkRange, bytes: &Bytes, permit: impl Send + 'static) {
        if let (Some(disk), Some(name)) = (self.storage.disk_cache(), piece.name()) {
            disk.put_in_background(name, bytes.clone(), permit);
        }
    }

    /// Waits for pending writes to the disk cache, but not for long.
    pub async fn flush_disk_cache(&self) {
        if let Some(disk) = self.storage.disk_cache() {
            disk.flush().await;
        }
    }
}
