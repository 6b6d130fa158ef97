//! Processors that threads decode on, each on one of its own.
//!
//! Threads that decode for long never sleep, so the scheduler does not choose a processor for them
//! again. It moves one away from a busy processor when another is idle, but not to one that was
//! idle for moments only, nor a thread that ran within the last half of a millisecond. While a
//! program reads a series, the other processor is idle between its reads, and threads that take
//! turns have all just run: two of them were seen on one processor of two for 30 of the 60 ms of a
//! series (docs/contributing/performance-lessons.md). So a thread that finds another one on its
//! processor leaves it. No thread is bound to a processor.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tracing::debug;

/// Shortest time between two moves of a thread. Where other programs keep all processors busy,
/// moving gains nothing, and costs what the processor's caches held: about a tenth of a
/// millisecond.
const PAUSE: Duration = Duration::from_millis(5);

static THREADS: Mutex<DecoderThreads> = Mutex::new(DecoderThreads { last: 0, processors: Vec::new() });

/// Threads that decode.
#[derive(Debug, Default)]
struct DecoderThreads {
    /// Number of the last thread.
    last: u64,
    /// Their numbers, and the processors on which they began their last batches, if they have not
    /// left them since.
    processors: Vec<(u64, usize)>,
}

/// Thread that decodes, among others.
#[derive(Debug)]
pub(super) struct DecoderThread {
    number: u64,
    moved: Option<Instant>,
}

impl DecoderThreads {
    /// Records that `thread` begins a batch on processor `here`. Returns the processors of others
    /// if it should leave this one.
    fn begin(&mut self, thread: &mut DecoderThread, here: usize, now: Instant) -> Option<Vec<usize>> {
        self.processors.retain(|(number, _)| *number != thread.number);
        let is_shared = self.processors.iter().any(|(_, processor)| *processor == here);
        let may_move = thread.moved.is_none_or(|moved| now.saturating_duration_since(moved) >= PAUSE);
        if is_shared && may_move {
            thread.moved = Some(now);
            return Some(self.processors.iter().map(|(_, processor)| *processor).collect());
        }
        self.processors.push((thread.number, here));
        None
    }
}

impl DecoderThread {
    /// Registers this thread.
    pub(super) fn register() -> Self {
        let mut threads = THREADS.lock();
        threads.last += 1;
        DecoderThread { number: threads.last, moved: None }
    }

    /// Moves this thread if it should leave its processor. To be called at the beginning of each
    /// batch.
    pub(super) fn keep_apart(&mut self) {
        let others = THREADS.lock().begin(self, sched_getcpu(), Instant::now());
        if let Some(others) = others {
            leave(&others);
        }
    }
}

impl Drop for DecoderThread {
    fn drop(&mut self) {
        THREADS.lock().processors.retain(|(number, _)| *number != self.number);
    }
}

/// Moves this thread to a processor that is none of `others`, if it may run on one. It may run on
/// the same ones as before afterwards.
fn leave(others: &[usize]) {
    let moved = sched_getaffinity(None).and_then(|allowed| {
        let mut wanted = allowed;
        for other in others.iter().filter(|other| **other < CpuSet::MAX_CPU) {
            wanted.unset(*other);
        }
        if wanted.count() == 0 {
            return Ok(());
        }
        // The kernel moves a thread at once from a processor where it may not run.
        sched_setaffinity(None, &wanted)?;
        sched_setaffinity(None, &allowed)
    });
    if let Err(error) = moved {
        // As on a machine with more processors than a set holds. Decoding goes on where it is.
        debug!("a thread that decodes stays on its processor: {error}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_of_two_threads_leaves_a_shared_processor() {
        let mut threads = DecoderThreads::default();
        let start = Instant::now();
        let [mut one, mut two] = [1, 2].map(|number| DecoderThread { number, moved: None });
        let mut begin =
            |thread: &mut DecoderThread, here, ms| threads.begin(thread, here, start + Duration::from_millis(ms));
        assert_eq!([begin(&mut one, 0, 0), begin(&mut two, 1, 0), begin(&mut one, 0, 1)], [None, None, None]);
        assert_eq!(begin(&mut two, 0, 1), Some(vec![0]));
        // The other one has it for itself now.
        assert_eq!([begin(&mut one, 0, 2), begin(&mut two, 1, 2), begin(&mut one, 0, 3)], [None, None, None]);
        // On one again: none of them leaves before it has been there for a time.
        assert_eq!([begin(&mut two, 0, 3), begin(&mut two, 0, 5)], [None, None]);
        assert_eq!([begin(&mut two, 0, 6), begin(&mut one, 0, 7)], [Some(vec![0]), None]);
    }

    #[test]
    fn leaving_a_processor_binds_a_thread_to_none() {
        let allowed = sched_getaffinity(None).unwrap();
        let all: Vec<usize> = (0..CpuSet::MAX_CPU).collect();
        leave(&all);
        if allowed.count() > 1 {
            // The scheduler may move the thread back before it looks.
            let has_moved = (0..100).any(|_| {
                let before = sched_getcpu();
                leave(&[before]);
                sched_getcpu() != before
            });
            assert!(has_moved);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
