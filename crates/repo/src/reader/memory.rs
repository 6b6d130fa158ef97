//! Memory bound of a mount, and its shares.

use super::buffer::BUFFER_SIZE;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::memory::{MIN_MEMORY, PROGRAM};

const MIB: u64 = 1 << 20;

/// Least memory for manifests and reads.
const MIN_REST: u64 = 4 * MIB;
/// Unit of the semaphore that bounds reads in flight, in bytes.
const READ_UNIT: u64 = 4096;

/// Memory bound of a mount, divided into shares.
#[derive(Clone, Debug)]
pub struct Budget {
    total: u64,
    /// Bytes that the snapshot and its tables take for the life of the mount.
    fixed: u64,
    /// Limit that the user sets for the prefetch of one reader.
    prefetch_limit: Option<u64>,
}

impl Budget {
    /// Creates a bound of `total` bytes, of which `fixed` are taken already. Fails if the rest is
    /// too small.
    pub fn new(total: u64, fixed: u64) -> Result<Self> {
        let budget = Budget { total, fixed, prefetch_limit: None };
        if total < MIN_MEMORY || budget.rest() < MIN_REST {
            return Err(Error::invalid(format!(
                "a memory bound of {} MiB is too small: this snapshot needs {} MiB at least; raise --memory",
                total / MIB,
                ((fixed + PROGRAM + MIN_REST).max(MIN_MEMORY)).div_ceil(MIB)
            )));
        }
        Ok(budget)
    }

    /// Sets the user's limit for the prefetch of one reader.
    #[must_use]
    pub fn with_prefetch_limit(self, prefetch_limit: Option<u64>) -> Self {
        Budget { prefetch_limit, ..self }
    }

    /// Returns the bytes that may be prefetched for one reader: half of the share for all, or the
    /// user's limit, up to the share.
    ///
    /// A link of 1 Gbit/s and 30 ms has 4 MB in flight. It takes several times as much to keep it
    /// busy, since a reader takes chunks as they arrive and not as they were requested.
    pub fn prefetch_bytes(&self) -> u64 {
        let all = self.reads_in_flight() as u64 * READ_UNIT;
        self.prefetch_limit.map_or(all / 2, |limit| limit.min(all))
    }

    fn rest(&self) -> u64 {
        self.total.saturating_sub(self.fixed + PROGRAM)
    }

    /// Returns the bytes of manifests and chunks in the cache: five eighths of the rest.
    pub fn cache(&self) -> u64 {
        self.rest() / 8 * 5
    }

    /// Returns the number of buffers for reads answered at once: an eighth of the rest.
    pub fn buffers(&self) -> usize {
        usize::try_from(self.rest() / 8 / BUFFER_SIZE as u64).unwrap_or(usize::MAX).clamp(1, 64)
    }

    /// Returns the permits for reads that wait for storage: an eighth of the rest. Prefetches have
    /// as many again.
    pub fn reads_in_flight(&self) -> usize {
        usize::try_from(self.rest() / 8 / READ_UNIT).unwrap_or(usize::MAX).clamp(1, tokio::sync::Semaphore::MAX_PERMITS)
    }

    /// Returns the permits for a read of `bytes`: never more than exist, so that a large read waits
    /// but does not starve.
    pub fn read_permits(&self, bytes: u64) -> u32 {
        let wanted = bytes.div_ceil(READ_UNIT).max(1);
        u32::try_from(wanted.min(self.reads_in_flight() as u64)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn shares_stay_below_the_bound() {
        for total in [MIN_MEMORY, 100 * MIB, 64 << 30] {
            let budget = Budget::new(total, 0).unwrap();
            let used = budget.cache()
                + (budget.buffers() * BUFFER_SIZE) as u64
                + 2 * budget.reads_in_flight() as u64 * READ_UNIT;
            assert!(used <= total, "{used} of {total}");
            assert!(budget.read_permits(u64::MAX) as usize <= budget.reads_in_flight());
        }
        assert!(Budget::new(MIN_MEMORY - 1, 0).is_err());
        assert!(Budget::new(100 * MIB, 99 * MIB).is_err());
    }
}
