//! Large buffers, and those that were used before.
//!
//! A fresh buffer of 4 MiB costs about as much as a third of decoding a chunk into it: the kernel zeroes each page when it is first written,
//! and a virtual machine may have to get it from its host (measured in docs/performance.md). So a few buffers that are not
//! needed any more are kept for the next ones of their size, within the budget. They are no cache, which is asked now and then to evict: buffers
//! come here while others wait for memory, and because others wait. So each attempt to reserve memory that fails releases them ([`release_unused`]).

use parking_lot::Mutex;

use super::{Reservation, try_reserve};

/// Size from which on buffers are kept, in bytes. Smaller ones are cheap, and would be many.
const LARGE: usize = 1 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Bytes that the allocator needs before a buffer, rounded up to a page.
const ALLOCATOR: usize = 4096;
/// Bytes of the last huge page of a buffer that make it worthwhile: all of it is zeroed.
const MOST_OF_HUGE: usize = HUGE / 4 * 3;
/// Most bytes of the buffers that are kept.
const MAX_KEPT: u64 = 64 << 20;
/// A buffer is used for less than it can hold, but at least for this part of it.
const LEAST_PART: usize = 2;

static UNUSED: Unused = Unused(Mutex::new(Vec::new()));

/// Buffers that nothing uses, in the order in which they came. The last one is used first: its bytes may still be in the processor's
/// caches.
struct Unused(Mutex<Vec<(Vec<u8>, Reservation)>>);

impl Unused {
    /// Releases all. Returns false if there are none.
    fn release(&self) -> bool {
        let released = std::mem::take(&mut *self.0.lock());
        !released.is_empty()
    }

    fn take(&self, capacity: usize) -> Option<Vec<u8>> {
        let mut unused = self.0.lock();
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= capacity && buffer.capacity() / LEAST_PART <= capacity;
        let at = unused.iter().rposition(|(buffer, _)| fits(buffer))?;
        let (buffer, reservation) = unused.remove(at);
        drop((unused, reservation));
        Some(buffer)
    }

    fn keep(&self, mut buffer: Vec<u8>) {
        let bytes = buffer.capacity() as u64;
        let Some(reservation) = try_reserve(bytes) else { return };
        buffer.clear();
        let mut unused = self.0.lock();
        unused.push((buffer, reservation));
        let mut kept: u64 = unused.iter().map(|(_, reservation)| reservation.bytes()).sum();
        let mut oldest = 0;
        while kept > MAX_KEPT {
            kept -= unused.get(oldest).map_or(kept, |(_, reservation)| reservation.bytes());
            oldest += 1;
        }
        let dropped: Vec<_> = unused.drain(..oldest).collect();
        drop(unused);
        drop(dropped);
    }
}

/// Returns an empty buffer for at least `capacity` bytes that will all be used. A large one is one that was used before, or asks the
/// kernel for huge pages, and for all of them at once: a new buffer of 4 MiB has a thousand page faults otherwise, which take a third of
/// the time of decoding a chunk of that size.
pub fn large_buffer(capacity: usize) -> Vec<u8> {
    buffer(capacity, true)
}

/// Returns an empty buffer like [`large_buffer`], of which perhaps only the beginning will be used: the kernel is not asked for all of it at
/// once.
pub(super) fn large_buffer_unpopulated(capacity: usize) -> Vec<u8> {
    buffer(capacity, false)
}

fn buffer(capacity: usize, is_populated: bool) -> Vec<u8> {
    if capacity < LARGE {
        return Vec::with_capacity(capacity);
    }
    if let Some(buffer) = UNUSED.take(capacity) {
        return buffer;
    }
    if capacity < HUGE {
        return Vec::with_capacity(capacity);
    }
    // The kernel maps whole numbers of huge pages at their boundaries; memory that is not written costs nothing.
    let whole = capacity.saturating_add(ALLOCATOR).checked_next_multiple_of(HUGE);
    let buffer = Vec::with_capacity(whole.map_or(capacity, |whole| whole - ALLOCATOR));
    #[cfg(target_os = "linux")]
    {
        let page = rustix::param::page_size();
        let start = buffer.as_ptr() as usize / page * page;
        let rest = capacity % HUGE;
        let length = capacity - rest + if rest >= MOST_OF_HUGE { HUGE } else { 0 };
        let advise = |length: usize, advice| {
            // SAFETY: advice changes no bytes. The first page is one of the buffer's: it may have bytes before the buffer, which are
            // mapped. A kernel that does not know the advice refuses.
            let _ = unsafe { libc::madvise(start as *mut libc::c_void, length, advice) };
        };
        advise(length, libc::MADV_HUGEPAGE);
        if is_populated {
            advise(capacity, libc::MADV_POPULATE_WRITE);
        }
    }
    buffer
}

/// Releases the memory of unused buffers. Returns false if there are none.
pub fn release_unused() -> bool {
    UNUSED.release()
}

/// Keeps a buffer that is not needed any more for [`large_buffer`], if it is large and the budget has room.
pub fn recycle(buffer: Vec<u8>) {
    if buffer.capacity() >= LARGE {
        UNUSED.keep(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_buffer_is_used_for_its_size_until_memory_is_short() {
        let unused = Unused(Mutex::default());
        let buffer = vec![1; 3 << 20];
        let address = buffer.as_ptr();
        unused.keep(buffer);
        // Much less, or more than it can hold.
        assert!(unused.take(1 << 20).is_none() && unused.take((3 << 20) + 1).is_none());
        let again = unused.take(2 << 20);
        assert!(again.as_ref().is_some_and(|buffer| buffer.is_empty() && buffer.as_ptr() == address));
        assert!(unused.take(2 << 20).is_none());
        unused.keep(again.unwrap_or_default());
        assert!(unused.release() && !unused.release() && unused.take(2 << 20).is_none());
    }

    #[test]
    fn the_oldest_unused_buffers_are_dropped_first() {
        let unused = Unused(Mutex::default());
        for size in [16, 17, 18, 19] {
            unused.keep(Vec::with_capacity(size << 20));
        }
        assert!(unused.take(16 << 20).is_some_and(|buffer| buffer.capacity() == 19 << 20));
        let kept: u64 = unused.0.lock().iter().map(|(_, reservation)| reservation.bytes()).sum();
        assert_eq!(kept, (17 + 18) << 20);
    }

    #[test]
    fn a_large_buffer_has_room() {
        for capacity in [0, LARGE, HUGE - 1, HUGE, 2 * HUGE - 1, 2 * HUGE, 5_000_000] {
            let mut buffer = large_buffer(capacity);
            assert!(buffer.is_empty() && buffer.capacity() >= capacity, "{capacity}");
            buffer.resize(capacity, 1);
        }
    }
}
