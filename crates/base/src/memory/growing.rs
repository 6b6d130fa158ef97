//! Bytes that are made from their beginning to their end, and can be read as far as they are made.
//!
//! A program that reads the beginning of a large decoded chunk needs no more than that, and one
//! that reads all of it can begin while the rest is being decoded. One thread at a time makes
//! bytes, through the only [`Grower`]; any number of readers take slices of what is there, without
//! a copy, and wait for more.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rustix::thread::sched_getcpu;
use tokio::sync::watch;

use super::Reservation;
use super::buffers::{aligned_buffer, recycle_aligned};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a fixed length, of which the first ones are made.
pub struct GrowingBytes {
    /// Taken when the first byte is made: by then, the buffer of bytes that were made before may be
    /// free.
    room: OnceLock<Room>,
    length: usize,
    made: AtomicUsize,
    /// Least number of bytes that a reader waits for. Waking readers for each block took 5 ms of
    /// the 150 that the daemon takes for a time series.
    wanted: AtomicUsize,
    /// Changes when the wanted bytes are made. The reason why no more will be, if there is one.
    progress: watch::Sender<Option<Error>>,
    /// Released before the buffer is kept for others, which has a reservation of its own.
    reservation: Reservation,
}

/// Room for all of the bytes.
struct Room {
    /// Part of the memory of `buffer`. Bytes below `made` are initialized and never change again;
    /// those above belong to the grower.
    memory: NonNull<u8>,
    /// Owner of the memory. Empty: nothing is read or written through it.
    buffer: Vec<u8>,
    /// Processor that made the first byte, and probably most of the others.
    processor: usize,
}

// SAFETY: the memory belongs to this value alone. It is written only by the one `Grower`, at and
// above `made`, and read only below `made`, which is published with release and read with acquire
// ordering.
unsafe impl Send for Room {}
// SAFETY: see above.
unsafe impl Sync for Room {}

impl fmt::Debug for GrowingBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrowingBytes").field("length", &self.length).field("made", &self.made()).finish_non_exhaustive()
    }
}

impl GrowingBytes {
    /// Creates `length` bytes, none of them made, and their writer. `reservation` is for all of
    /// them.
    pub fn create(length: usize, reservation: Reservation) -> (Arc<Self>, Grower) {
        let made = AtomicUsize::new(0);
        let wanted = AtomicUsize::new(usize::MAX);
        let room = OnceLock::new();
        let progress = watch::Sender::new(None);
        let bytes = Arc::new(GrowingBytes { room, length, made, wanted, progress, reservation });
        (Arc::clone(&bytes), Grower { bytes })
    }

    /// Returns the address of the first byte.
    fn start(&self) -> NonNull<u8> {
        let room = self.room.get_or_init(|| {
            let (mut buffer, offset) = aligned_buffer(self.length);
            let memory = NonNull::new(buffer.as_mut_ptr().wrapping_add(offset)).unwrap_or(NonNull::dangling());
            Room { memory, buffer, processor: sched_getcpu() }
        });
        room.memory
    }

    /// Returns the number of bytes when all are made.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the number of bytes that are made.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::Acquire)
    }

    /// Returns the bytes of `range`, which must lie within the length: waits until they are made,
    /// or will never be. If it has to wait, it waits until the first `enough` are made.
    pub async fn get(self: &Arc<Self>, range: Range<usize>, enough: usize) -> Result<Bytes> {
        if range.start > range.end || range.end > self.length {
            return Err(Error::invalid(format!("bytes {range:?} of {}", self.length)));
        }
        if self.made() < range.end {
            let enough = enough.clamp(range.end, self.length);
            let mut progress = self.progress.subscribe();
            let ended = progress.wait_for(|failure| failure.is_some() || self.is_made_or_wanted(enough)).await;
            let failure = ended.ok().and_then(|failure| failure.clone());
            if self.made() < range.end {
                return Err(failure.unwrap_or_else(ended_early));
            }
        }
        Ok(Bytes::from_owner(Slice { bytes: Arc::clone(self), range }))
    }

    /// Returns true if the first `enough` bytes are made. If not, [`Grower::publish`] will tell of
    /// them: each of both writes its own number before it reads that of the other, in one order for
    /// all threads, so that one of them sees both.
    fn is_made_or_wanted(&self, enough: usize) -> bool {
        self.made() >= enough || {
            self.wanted.fetch_min(enough, Ordering::SeqCst);
            self.made.load(Ordering::SeqCst) >= enough
        }
    }

    /// Returns the bytes below `end` that are made.
    fn below(&self, end: usize) -> &[u8] {
        match end.min(self.made()) {
            0 => &[],
            // SAFETY: the first `made` bytes are initialized, lie in the allocation, and nobody
            // writes them again.
            end => unsafe { std::slice::from_raw_parts(self.start().as_ptr(), end) },
        }
    }
}

impl Drop for GrowingBytes {
    fn drop(&mut self) {
        drop(std::mem::take(&mut self.reservation));
        if let Some(room) = self.room.take() {
            recycle_aligned(room.buffer, room.processor);
        }
    }
}

/// Slice of bytes that are made.
struct Slice {
    bytes: Arc<GrowingBytes>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.bytes.below(self.range.end).get(self.range.clone()).unwrap_or_default()
    }
}

fn ended_early() -> Error {
    Error::new(ErrorKind::Io, "the work that makes these bytes ended early")
}

/// Writer of the bytes, the only one of a [`GrowingBytes`].
#[derive(Debug)]
pub struct Grower {
    bytes: Arc<GrowingBytes>,
}

impl Grower {
    /// Returns the bytes that are made.
    pub fn made(&self) -> &[u8] {
        self.bytes.below(usize::MAX)
    }

    /// Returns the number of bytes when all are made.
    pub fn length(&self) -> usize {
        self.bytes.length
    }

    /// Returns the address of the first byte, for code that writes at and above [`Grower::made`],
    /// up to the length.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.start().as_ptr()
    }

    /// Makes the first `count` bytes readable; those that are already stay so.
    ///
    /// # Safety
    ///
    /// The first `count` bytes must have been written.
    pub unsafe fn publish(&mut self, count: usize) {
        let count = count.min(self.bytes.length);
        if count > self.bytes.made.load(Ordering::Relaxed) {
            self.bytes.made.store(count, Ordering::SeqCst);
            if self.bytes.wanted.load(Ordering::SeqCst) <= count {
                // All that wait are woken, and say anew what they want.
                self.bytes.wanted.store(usize::MAX, Ordering::SeqCst);
                self.bytes.progress.send_modify(|_| ());
            }
        }
    }

    /// Appends `bytes`, as far as there is room.
    pub fn append(&mut self, bytes: &[u8]) {
        let made = self.made().len();
        let count = bytes.len().min(self.bytes.length - made);
        // SAFETY: the room behind `made` belongs to this grower, and `bytes` is other memory. What
        // is published has been written.
        unsafe {
            self.as_mut_ptr().add(made).copy_from_nonoverlapping(bytes.as_ptr(), count);
            self.publish(made + count);
        }
    }

    /// Ends with `failure`, which readers of the other bytes get.
    pub fn fail(self, failure: Error) {
        self.bytes.progress.send_replace(Some(failure));
    }
}

impl Drop for Grower {
    fn drop(&mut self) {
        // Readers must not wait for a thread that has panicked.
        if self.bytes.made() < self.bytes.length {
            self.bytes.progress.send_modify(|failure| {
                failure.get_or_insert_with(ended_early);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn readers_get_bytes_as_soon_as_they_are_made() {
        let (bytes, mut grower) = GrowingBytes::create(10, Reservation::default());
        grower.append(b"0123");
        assert_eq!(bytes.get(1..4, 0).await.unwrap(), "123");
        let late = tokio::spawn({
            let bytes = Arc::clone(&bytes);
            async move { bytes.get(2..9, 0).await }
        });
        tokio::task::yield_now().await;
        assert!(!late.is_finished());
        grower.append(b"45");
        tokio::task::yield_now().await;
        assert!(!late.is_finished());
        // No more than the length.
        grower.append(b"6789ABC");
        assert_eq!(late.await.unwrap().unwrap(), "2345678");
        assert_eq!(bytes.get(0..10, 0).await.unwrap(), "0123456789");
        drop(grower);
        assert_eq!(bytes.get(10..10, 0).await.unwrap(), "");
        assert!(bytes.get(9..11, 0).await.is_err());
    }

    #[test]
    fn bytes_that_are_made_later_have_the_buffer_of_those_before() {
        let length = 40 << 20;
        let is_used_again = || {
            let (before, mut first) = GrowingBytes::create(length, Reservation::default());
            let (_after, mut second) = GrowingBytes::create(length, Reservation::default());
            assert!(second.made().is_empty());
            first.append(b"x");
            let address = first.as_mut_ptr();
            drop((before, first));
            second.append(b"y");
            assert_eq!(second.made(), b"y");
            second.as_mut_ptr() == address
        };
        // Tests that run at the same time may take it, or need memory.
        assert!((0..20).any(|_| is_used_again()));
    }

    #[tokio::test]
    async fn readers_are_woken_once_for_what_they_want() {
        let (bytes, mut grower) = GrowingBytes::create(64, Reservation::default());
        let polls = Arc::new(AtomicUsize::new(0));
        let reader = |end: usize, enough: usize| {
            let bytes = Arc::clone(&bytes);
            let polls = Arc::clone(&polls);
            tokio::spawn(async move {
                let mut read = std::pin::pin!(bytes.get(0..end, enough));
                std::future::poll_fn(|context| {
                    polls.fetch_add(1, Ordering::Relaxed);
                    read.as_mut().poll(context)
                })
                .await
            })
        };
        let early = reader(1, 20);
        let late = reader(50, 50);
        for at in 0..64 {
            tokio::task::yield_now().await;
            assert_eq!((early.is_finished(), late.is_finished()), (at >= 20, at >= 50), "{at}");
            grower.append(b"x");
        }
        assert!(early.await.unwrap().is_ok() && late.await.unwrap().is_ok());
        // Both began to wait, both were woken by what the first one wanted, and then the second
        // one.
        assert_eq!(polls.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn no_reader_misses_what_it_wants() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
        // The last byte comes while its readers begin to wait, which nothing else would wake.
        for round in 0..20_000 {
            let (bytes, mut grower) = GrowingBytes::create(2, Reservation::default());
            let readers = (1..=2).map(|end| {
                let bytes = Arc::clone(&bytes);
                runtime.spawn(async move { bytes.get(0..end, 2).await })
            });
            let readers = futures_util::future::try_join_all(readers.collect::<Vec<_>>());
            (0..round % 500).for_each(|_| std::hint::spin_loop());
            grower.append(b"x");
            grower.append(b"y");
            let read = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), readers).await });
            assert!(read.unwrap().unwrap().into_iter().all(|bytes| bytes.is_ok()), "{round}");
        }
    }

    #[tokio::test]
    async fn a_failure_leaves_what_was_made() {
        for is_reported in [true, false] {
            let (bytes, mut grower) = GrowingBytes::create(4, Reservation::default());
            grower.append(b"01");
            let kept = bytes.get(0..2, 4).await.unwrap();
            let waiting = tokio::spawn({
                let bytes = Arc::clone(&bytes);
                async move { bytes.get(1..3, 4).await }
            });
            tokio::task::yield_now().await;
            grower.append(b"2");
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            if is_reported {
                grower.fail(Error::corrupt("a block"))
            } else {
                drop(grower)
            }
            assert_eq!(waiting.await.unwrap().unwrap(), "12");
            let error = bytes.get(0..4, 0).await.unwrap_err().to_string();
            assert!(error.contains(if is_reported { "a block" } else { "ended early" }), "{error}");
            assert_eq!(bytes.get(1..2, 0).await.unwrap(), "1");
            drop(bytes);
            assert_eq!(kept, "01");
        }
    }

    #[test]
    fn readers_on_other_threads_see_what_was_written() {
        let (bytes, mut grower) = GrowingBytes::create(1 << 20, Reservation::default());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut seen = 0;
                    while seen < bytes.length() {
                        let made = bytes.below(usize::MAX);
                        assert!(made.iter().enumerate().skip(seen).all(|(at, byte)| *byte == at as u8));
                        seen = made.len();
                    }
                });
            }
            let part: Vec<u8> = (0..=255).collect();
            (0..bytes.length() / part.len()).for_each(|_| grower.append(&part));
        });
    }
}
