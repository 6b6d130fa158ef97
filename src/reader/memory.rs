//! How much memory a mount may use, and how it is shared out.

use super::buffer::BUFFER_SIZE;
use crate::error::{Error, Result};
use crate::memory::{MIN_MEMORY, PROGRAM};

const MIB: u64 = 1 << 20;

/// What must be left for manifests and reads.
const MIN_REST: u64 = 4 * MIB;
/// Unit of the semaphore that bounds reads in flight, in bytes.
const READ_UNIT: u64 = 4096;

/// The memory bound of a mount, divided.
#[derive(Clone, Debug)]
pub struct Budget {
    total: u64,
    /// Taken by the snapshot and the tables made from it, for as long as the mount lives.
    fixed: u64,
    /// What the user allows to be fetched ahead of one reader, if he says.
    ahead: Option<u64>,
}

impl Budget {
    /// A bound of `total` bytes, of which `fixed` are taken already.
    pub fn new(total: u64, fixed: u64) -> Result<Self> {
        let budget = Budget { total, fixed, ahead: None };
        if total < MIN_MEMORY || budget.rest() < MIN_REST {
            return Err(Error::invalid(format!(
                "a memory bound of {} MiB is too small: this snapshot needs {} MiB at least; raise --memory",
                total / MIB,
                ((fixed + PROGRAM + MIN_REST).max(MIN_MEMORY)).div_ceil(MIB)
            )));
        }
        Ok(budget)
    }

    /// It with a bound of the user's for what is fetched ahead of one reader.
    #[must_use]
    pub fn with_ahead(self, ahead: Option<u64>) -> Self {
        Budget { ahead, ..self }
    }

    /// Bytes that may be fetched ahead of one reader: half of what may be for all, or what the user says, if it is less than all.
    ///
    /// A line of 1 Gbit/s and 30 ms has 4 MB on it at a time. It takes several times as much to keep it busy, since a reader
    /// takes chunks as they come and not as they were asked for.
    pub fn ahead(&self) -> u64 {
        let all = self.reads_in_flight() as u64 * READ_UNIT;
        self.ahead.map_or(all / 2, |ahead| ahead.min(all))
    }

    fn rest(&self) -> u64 {
        self.total.saturating_sub(self.fixed + PROGRAM)
    }

    /// Bytes that manifests and chunks in the cache may take: five eighths of what is left.
    pub fn cache(&self) -> u64 {
        self.rest() / 8 * 5
    }

    /// How many buffers reads answered at once may use: an eighth.
    pub fn buffers(&self) -> usize {
        usize::try_from(self.rest() / 8 / BUFFER_SIZE as u64).unwrap_or(usize::MAX).clamp(1, 64)
    }

    /// Permits for bytes of reads that wait for storage: an eighth. As many more are for what is fetched ahead.
    pub fn reads_in_flight(&self) -> usize {
        usize::try_from(self.rest() / 8 / READ_UNIT).unwrap_or(usize::MAX).clamp(1, tokio::sync::Semaphore::MAX_PERMITS)
    }

    /// Permits that a read of `bytes` takes: never more than there are, so that a large read waits but does not starve.
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
