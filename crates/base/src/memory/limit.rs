//! A bound on memory of which users wait for a share.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Limit on the memory for bytes on their way: packs, files that are sent to a store, objects that
/// are copied.
#[derive(Debug)]
pub struct MemoryLimit {
    kib: Semaphore,
    most: u32,
}

impl MemoryLimit {
    /// Creates a limit of `bytes`. A larger request gets all of it.
    pub fn new(bytes: u64) -> Self {
        let most = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).clamp(1, Semaphore::MAX_PERMITS as u32);
        MemoryLimit { kib: Semaphore::new(most as usize), most }
    }

    /// Waits for `bytes`, which are taken while the permit lives.
    pub async fn take(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(self.most);
        // The semaphore is never closed; a missing permit would only mean more memory.
        self.kib.acquire_many(kib).await.ok()
    }
}
