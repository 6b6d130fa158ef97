//! What a mount is doing at a moment, in numbers. When nobody reads or writes, all of them but the memory in use are zero: what
//! stays is a leak.

use serde::Serialize;

use super::Reader;

/// The numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gauges {
    /// Requests on the network.
    pub requests: usize,
    /// Units of memory that reads hold which somebody waits for.
    pub reading: usize,
    /// Units of memory that reads hold which nobody waits for yet.
    pub ahead: usize,
    /// Manifests and chunks on their way into memory.
    pub loading: usize,
    /// Chunks on their way to the cache on a disk.
    pub keeping: u64,
    /// Bytes of manifests and chunks in memory.
    pub cached_bytes: u64,
}

impl Reader {
    /// What is going on now.
    pub fn gauges(&self) -> Gauges {
        let all = self.budget.reads_in_flight();
        Gauges {
            requests: self.storage.under_way() + self.virtuals.under_way(),
            reading: all.saturating_sub(self.reads.available_permits()),
            ahead: all.saturating_sub(self.ahead.available_permits()),
            loading: self.cache.loading(),
            keeping: self.storage.disk_cache().map_or(0, |disk| disk.waiting()),
            cached_bytes: self.cache.bytes(),
        }
    }
}
