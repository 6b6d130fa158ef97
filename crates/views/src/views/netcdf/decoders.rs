//! Threads that decode units step by step, and the order in which they do.
//!
//! There are as many as cores. What programs wait for comes first. The kernel reads ahead in the
//! same way as a program reads, and goes on with that while the program has gone on to another
//! unit. So each jump of a reader to another unit begins a turn, and the last turn comes first;
//! within a turn, reads are served as they came. Nobody waits for long behind others: requests of a
//! certain age come before younger ones. Then comes what programs will probably read. Each thread
//! keeps to a processor of its own ([`super::processors`]), and to its unit: a decoder copies from
//! what it has decoded before, which lies in the caches of that processor.

use std::cmp::Reverse;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::growing_unit::GrowingUnit;
use super::processors::DecoderThread;

/// Bytes that are decoded before the next look at what is wanted: two thirds of a millisecond. With
/// half of it a series takes 5 % longer.
const BATCH: usize = 512 << 10;
/// Age from which on a request comes before younger ones.
const OLD: Duration = Duration::from_millis(20);

/// Number of cores, and of threads that decode at the same time.
pub(super) static CORES: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

static QUEUE: Mutex<Queue> = Mutex::new(Queue { entries: Vec::new(), threads: 0, turn: 0 });

/// Units that are to be decoded.
struct Queue {
    entries: Vec<Entry>,
    /// Threads that work on them.
    threads: usize,
    /// Number of the last turn.
    turn: u64,
}

/// Unit, and how much of it is wanted.
struct Entry {
    unit: Arc<GrowingUnit>,
    /// Bytes for which programs wait.
    until: usize,
    /// When the last of them began to wait, and its turn.
    since: Instant,
    turn: u64,
    /// Bytes that programs will probably read.
    ahead: usize,
    /// True while a thread decodes the unit, and until it looks for its next one: meanwhile, no
    /// other takes the unit.
    is_running: bool,
}

impl Entry {
    fn is_urgent(&self) -> bool {
        self.unit.made() < self.until
    }

    fn target(&self) -> usize {
        if self.is_urgent() { self.until } else { self.ahead }
    }

    /// Returns true if nothing is left to do.
    fn is_done(&self) -> bool {
        !self.is_running && (self.unit.made() >= self.until.max(self.ahead) || self.unit.is_over())
    }
}

impl Queue {
    /// Returns the unit that a thread should work on, and the bytes to decode of it. The thread has
    /// worked on `before`, and does so again unless another comes first.
    fn take(&mut self, before: Option<&Arc<GrowingUnit>>) -> Option<(Arc<GrowingUnit>, usize)> {
        if let Some(entry) = before.and_then(|before| self.entry(before)) {
            entry.is_running = false;
        }
        self.entries.retain(|entry| !entry.is_done());
        let waiting = || self.entries.iter().enumerate().filter(|(_, entry)| !entry.is_running);
        let urgent = || waiting().filter(|(_, entry)| entry.is_urgent());
        let is_other = |entry: &Entry| before.is_none_or(|before| !Arc::ptr_eq(before, &entry.unit));
        let oldest = urgent().min_by_key(|(_, entry)| entry.since).filter(|(_, entry)| entry.since.elapsed() >= OLD);
        let last = || urgent().min_by_key(|(_, entry)| (Reverse(entry.turn), is_other(entry), entry.since));
        let found = oldest.or_else(last).or_else(|| waiting().min_by_key(|(_, entry)| is_other(entry)));
        let entry = found.map(|(at, _)| at).and_then(|at| self.entries.get_mut(at))?;
        entry.is_running = true;
        Some((Arc::clone(&entry.unit), entry.target()))
    }

    fn entry(&mut self, unit: &Arc<GrowingUnit>) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| Arc::ptr_eq(&entry.unit, unit))
    }
}

/// Has the first `until` bytes of `unit` decoded, for which a program waits, and the first `ahead`,
/// which it will probably read. `is_jump` is true if the program has not come from the end of the
/// unit before. Needs a runtime.
pub(super) fn request(unit: &Arc<GrowingUnit>, until: usize, ahead: usize, is_jump: bool) {
    if unit.made() >= until.max(ahead) || unit.is_over() {
        return;
    }
    let mut queue = QUEUE.lock();
    let since = Instant::now();
    queue.turn += u64::from(is_jump);
    let turn = queue.turn;
    match queue.entry(unit) {
        Some(entry) => {
            if until > unit.made() {
                (entry.since, entry.turn) = (since, turn);
            }
            (entry.until, entry.ahead) = (entry.until.max(until), entry.ahead.max(ahead));
        }
        None => queue.entries.push(Entry { unit: Arc::clone(unit), until, since, turn, ahead, is_running: false }),
    }
    if queue.threads < *CORES {
        queue.threads += 1;
        drop(tokio::task::spawn_blocking(work));
    }
}

/// Withdraws what was requested of `unit` ahead: the program has gone on to another.
pub(super) fn forget_ahead(unit: &Arc<GrowingUnit>) {
    if let Some(entry) = QUEUE.lock().entry(unit) {
        entry.ahead = 0;
    }
}

/// Unit that a thread decodes, or has decoded last. A thread that ends in the middle of it gives it
/// back.
struct Running(Arc<GrowingUnit>);

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        if let Some(entry) = QUEUE.lock().entry(&self.0) {
            entry.is_running = false;
        }
        // Another thread takes the place of this one: programs wait for other units.
        drop(tokio::task::spawn_blocking(work));
    }
}

/// Decodes until nothing is wanted any more.
fn work() {
    let mut thread = DecoderThread::register();
    let mut before: Option<Running> = None;
    loop {
        let mut queue = QUEUE.lock();
        let taken = queue.take(before.as_ref().map(|running| &running.0));
        queue.threads -= usize::from(taken.is_none());
        drop(queue);
        // If programs have left it, its buffer is for the next one.
        drop(before.take());
        let Some((unit, until)) = taken else { return };
        let running = before.insert(Running(unit));
        thread.keep_apart();
        running.0.decode(until, BATCH);
        // Those that were woken have a core at once: a program waits for each of them, and a time
        // slice takes longer than a batch.
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use serde_json::json;

    use super::super::decode::Chain;
    use super::super::decode::chain::Item;
    use super::super::growing_unit::UnitDecoder;
    use super::super::stored::Stored;
    use super::*;
    use icechunkfs_base::memory::Reservation;
    use icechunkfs_base::memory::growing::GrowingBytes;

    const LENGTH: usize = 1 << 20;

    fn unit() -> Arc<GrowingUnit> {
        let stored = Stored::Bytes(zstd::bulk::compress(&[7; LENGTH], 1).unwrap().into());
        let chain = Chain::parse(&json!(["bytes", "zstd"]), &[LENGTH as u64], Item { size: 1, number: None }).unwrap();
        let steps = chain.steps(stored, LENGTH).unwrap().unwrap();
        let (bytes, grower) = GrowingBytes::create(LENGTH, Reservation::default());
        GrowingUnit::new(bytes, UnitDecoder::new(steps, grower, None, Reservation::default()), "a unit".to_owned())
    }

    fn entry(unit: &Arc<GrowingUnit>, until: usize) -> Entry {
        let unit = Arc::clone(unit);
        let since = Instant::now();
        Entry { unit, until, since, turn: 0, ahead: LENGTH, is_running: false }
    }

    #[test]
    fn a_thread_keeps_to_its_unit_unless_a_program_waits_for_another() {
        let units: Vec<_> = (0..3).map(|_| unit()).collect();
        let entries = units.iter().map(|unit| entry(unit, 0)).collect();
        let mut queue = Queue { entries, threads: 2, turn: 0 };
        let take = |queue: &mut Queue, before: Option<usize>| {
            let (taken, _) = queue.take(before.map(|before| &units[before]))?;
            units.iter().position(|unit| Arc::ptr_eq(unit, &taken))
        };
        // One begins, another goes on: not with the second unit, which nobody has begun.
        assert_eq!([take(&mut queue, None), take(&mut queue, Some(2))], [Some(0), Some(2)]);
        assert_eq!([take(&mut queue, Some(2)), take(&mut queue, Some(0))], [Some(2), Some(0)]);
        units[0].decode(LENGTH, LENGTH);
        assert_eq!(take(&mut queue, Some(0)), Some(1));
        // A program waits for the second: the thread that decodes it has it still.
        queue.entry(&units[1]).unwrap().until = LENGTH;
        assert_eq!([take(&mut queue, Some(2)), take(&mut queue, Some(1))], [Some(2), Some(1)]);
        // It waits for one that no thread decodes.
        let wanted = unit();
        queue.entries.push(entry(&wanted, LENGTH));
        let (taken, _) = queue.take(Some(&units[2])).unwrap();
        assert!(Arc::ptr_eq(&taken, &wanted));
        // Of two for which programs wait, the thread keeps its own.
        queue.entry(&units[2]).unwrap().until = LENGTH;
        queue.entry(&units[1]).unwrap().since = Instant::now();
        assert_eq!(take(&mut queue, Some(1)), Some(1));
    }
}
