//! Current activity of a mount, in numbers. On an idle mount all but the cached bytes are zero: a
//! value that stays is a leak.

use serde::Serialize;

use super::Reader;
use icechunkfs_base::metrics::Gauge;

/// Gauges of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gauges {
    /// Network requests in flight.
    pub requests: usize,
    /// Units of memory that reads hold.
    pub reading: usize,
    /// Units of memory that prefetches hold.
    pub ahead: usize,
    /// Manifests and chunks being loaded into memory.
    pub loading: usize,
    /// Chunks being written to the disk cache.
    pub keeping: u64,
    /// Bytes of manifests and chunks in memory.
    pub cached_bytes: u64,
}

impl Gauges {
    /// Returns the values as metrics.
    pub fn metrics(&self) -> Vec<Gauge> {
        let gauge = |name, help, value| Gauge { name, help, value };
        vec![
            gauge("store_requests_in_flight", "Requests to stores that have no answer yet.", self.requests as u64),
            gauge("loading", "Manifests and chunks being loaded into memory.", self.loading as u64),
            gauge("disk_cache_writes_waiting", "Chunks that wait to be written to the disk cache.", self.keeping),
            gauge("cached_bytes", "Bytes of manifests and chunks in memory.", self.cached_bytes),
        ]
    }
}

impl Reader {
    /// Returns the current values.
    pub fn gauges(&self) -> Gauges {
        let all = self.budget.reads_in_flight();
        Gauges {
            requests: self.storage.in_flight() + self.virtuals.in_flight(),
            reading: all.saturating_sub(self.reads.available_permits()),
            ahead: all.saturating_sub(self.prefetches.available_permits()),
            loading: self.cache.loading(),
            keeping: self.storage.disk_cache().map_or(0, |disk| disk.waiting()),
            cached_bytes: self.cache.bytes(),
        }
    }
}
