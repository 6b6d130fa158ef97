//! Large buffers, and those that were used before.
//!
//! A fresh buffer of 4 MiB costs about as much as a third of decoding a chunk into it: the kernel
//! zeroes each page when it is first written, and a virtual machine may have to get it from its
//! host (docs/contributing/performance-lessons.md, "Memory"). So a few buffers that are not needed
//! any more are kept for the next ones of their size, within the budget. They are no cache, which
//! is asked now and then to evict: buffers come here while others wait for memory, and because
//! others wait. So each attempt to reserve memory that fails releases them ([`release_unused`]).

use parking_lot::Mutex;
use rustix::thread::sched_getcpu;

use super::{Reservation, try_reserve};

/// Size from which on buffers are kept, in bytes. Smaller ones are cheap, and would be many.
const LARGE: usize = 1 << 20;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Bytes that the allocator needs before a buffer, rounded up to a page.
const ALLOCATOR: usize = 4096;
/// Bytes of the last huge page of a buffer that make it worthwhile: all of it is zeroed.
const MOST_OF_HUGE: usize = HUGE / 4 * 3;
/// Most bytes of the buffers of either kind that are kept.
const MAX_KEPT: u64 = 64 << 20;
/// A buffer is used for less than it can hold, but at least for this part of it.
const LEAST_PART: usize = 2;

static UNUSED: Unused = Unused(Mutex::new(Vec::new()));
/// Those of [`aligned_buffer`], whose first bytes have no memory.
static UNUSED_ALIGNED: Unused = Unused(Mutex::new(Vec::new()));

/// Buffers that nothing uses, in the order in which they came. The last one is used first: its
/// bytes may still be in the processor's caches. But those that this processor has filled come
/// first, and the only one that another has filled is left to it: where two processors share no
/// cache, each line that the one writes is fetched from the other's, and a chunk takes half as long
/// again to decode (docs/contributing/performance-lessons.md, "Processors that share no cache"). A
/// few more buffers are made for it, until each processor has its own.
struct Unused(Mutex<Vec<UnusedBuffer>>);

struct UnusedBuffer {
    buffer: Vec<u8>,
    /// Processor that filled it.
    processor: usize,
    reservation: Reservation,
}

impl Unused {
    /// Releases all. Returns false if there are none.
    fn release(&self) -> bool {
        let released = std::mem::take(&mut *self.0.lock());
        !released.is_empty()
    }

    /// Returns a buffer for `capacity` bytes to be filled by `processor`.
    fn take(&self, capacity: usize, processor: usize) -> Option<Vec<u8>> {
        let mut unused = self.0.lock();
        let fits = |buffer: &Vec<u8>| buffer.capacity() >= capacity && buffer.capacity() / LEAST_PART <= capacity;
        let fitting: Vec<_> = unused.iter().enumerate().filter(|(_, kept)| fits(&kept.buffer)).collect();
        let own = fitting.iter().rfind(|(_, kept)| kept.processor == processor);
        let (at, _) = *own.or(fitting.get(1..).and_then(<[_]>::last))?;
        let UnusedBuffer { buffer, reservation, .. } = unused.remove(at);
        drop((unused, reservation));
        Some(buffer)
    }

    /// Keeps `buffer`, of which at most `used` bytes have memory, and which `processor` has filled.
    fn keep(&self, mut buffer: Vec<u8>, used: u64, processor: usize) {
        let Some(reservation) = try_reserve(used) else { return };
        buffer.clear();
        let mut unused = self.0.lock();
        unused.push(UnusedBuffer { buffer, processor, reservation });
        let mut kept: u64 = unused.iter().map(|kept| kept.reservation.bytes()).sum();
        let mut oldest = 0;
        while kept > MAX_KEPT {
            kept -= unused.get(oldest).map_or(kept, |oldest| oldest.reservation.bytes());
            oldest += 1;
        }
        let dropped: Vec<_> = unused.drain(..oldest).collect();
        drop(unused);
        drop(dropped);
    }
}

/// Returns an empty buffer for at least `capacity` bytes that will all be used. A large one is one
/// that was used before, or asks the kernel for huge pages, and for all of them at once: a new
/// buffer of 4 MiB has a thousand page faults otherwise, which take a third of the time of decoding
/// a chunk of that size.
pub fn large_buffer(capacity: usize) -> Vec<u8> {
    if capacity < LARGE {
        return Vec::with_capacity(capacity);
    }
    if let Some(buffer) = UNUSED.take(capacity, sched_getcpu()) {
        return buffer;
    }
    if capacity < HUGE {
        return Vec::with_capacity(capacity);
    }
    let mut buffer = Vec::with_capacity(whole_huge_pages(capacity));
    ask_for_huge_pages(buffer.as_mut_ptr(), capacity, true);
    buffer
}

/// Returns an empty buffer that has room for `capacity` bytes, of which perhaps only the first will
/// be used, behind an offset. Those of a large one begin where a huge page does, and the kernel is
/// not asked for all of them at once. To be given back with [`recycle_aligned`].
pub(super) fn aligned_buffer(capacity: usize) -> (Vec<u8>, usize) {
    if capacity < HUGE {
        return (large_buffer(capacity), 0);
    }
    // Addresses that are not used cost nothing.
    let room = capacity.saturating_add(HUGE);
    let offset = |buffer: &Vec<u8>| (buffer.as_ptr() as usize).wrapping_neg() % HUGE;
    if let Some(buffer) = UNUSED_ALIGNED.take(room, sched_getcpu()) {
        let offset = offset(&buffer);
        return (buffer, offset);
    }
    let mut buffer = Vec::with_capacity(whole_huge_pages(room));
    let offset = offset(&buffer);
    ask_for_huge_pages(buffer.as_mut_ptr().wrapping_add(offset), capacity, false);
    (buffer, offset)
}

/// Returns the capacity of a buffer that ends with a huge page: the kernel maps whole ones at their
/// boundaries.
fn whole_huge_pages(capacity: usize) -> usize {
    let whole = capacity.saturating_add(ALLOCATOR).checked_next_multiple_of(HUGE);
    whole.map_or(capacity, |whole| whole - ALLOCATOR)
}

/// Asks the kernel for huge pages for `length` bytes of a buffer at `start`, and for all pages at
/// once if `is_populated`.
fn ask_for_huge_pages(start: *mut u8, length: usize, is_populated: bool) {
    let page = rustix::param::page_size();
    let start = start as usize / page * page;
    let rest = length % HUGE;
    let huge = length - rest + if rest >= MOST_OF_HUGE { HUGE } else { 0 };
    let advise = |length: usize, advice| {
        // SAFETY: advice changes no bytes. The first page is one of the buffer's: it may have bytes
        // before the buffer, which are mapped. A kernel that does not know the advice refuses.
        let _ = unsafe { libc::madvise(start as *mut libc::c_void, length, advice) };
    };
    advise(huge, libc::MADV_HUGEPAGE);
    if is_populated {
        advise(length, libc::MADV_POPULATE_WRITE);
    }
}

/// Releases the memory of unused buffers. Returns false if there are none.
pub fn release_unused() -> bool {
    // Both, in any case.
    UNUSED.release() | UNUSED_ALIGNED.release()
}

/// Keeps a buffer that is not needed any more for [`large_buffer`], if it is large and the budget
/// has room.
pub fn recycle(buffer: Vec<u8>) {
    // Its bytes were read here, at least.
    recycle_large(buffer, sched_getcpu());
}

fn recycle_large(buffer: Vec<u8>, processor: usize) {
    if buffer.capacity() >= LARGE {
        let used = buffer.capacity() as u64;
        UNUSED.keep(buffer, used, processor);
    }
}

/// Keeps a buffer of [`aligned_buffer`] that is not needed any more, and that `processor` has
/// filled, for others.
pub(super) fn recycle_aligned(buffer: Vec<u8>, processor: usize) {
    match (buffer.capacity() as u64).checked_sub(HUGE as u64) {
        // Nobody used more of it: each had room for a huge page besides.
        Some(used) if buffer.capacity() >= 2 * HUGE => UNUSED_ALIGNED.keep(buffer, used, processor),
        _ => recycle_large(buffer, processor),
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
        unused.keep(buffer, 3 << 20, 0);
        // Much less, or more than it can hold.
        assert!(unused.take(1 << 20, 0).is_none() && unused.take((3 << 20) + 1, 0).is_none());
        let again = unused.take(2 << 20, 0);
        assert!(again.as_ref().is_some_and(|buffer| buffer.is_empty() && buffer.as_ptr() == address));
        assert!(unused.take(2 << 20, 0).is_none());
        unused.keep(again.unwrap_or_default(), 3 << 20, 0);
        assert!(unused.release() && !unused.release() && unused.take(2 << 20, 0).is_none());
    }

    #[test]
    fn each_processor_gets_buffers_that_it_has_filled() {
        let unused = Unused(Mutex::default());
        let take = |processor| unused.take(1 << 20, processor).map(|buffer| buffer.capacity() - (1 << 20));
        let keep = |size: usize, processor| unused.keep(Vec::with_capacity((1 << 20) + size), 1 << 20, processor);
        keep(1, 0);
        // The only one is left to the other processor.
        assert_eq!(take(1), None);
        [(2, 0), (3, 1), (4, 0)].into_iter().for_each(|(size, processor)| keep(size, processor));
        assert_eq!([take(1), take(0)], [Some(3), Some(4)]);
        // One of several is not: on a machine with many processors, few have filled any.
        assert_eq!([take(2), take(2)], [Some(2), None]);
        assert_eq!([take(0), take(0)], [Some(1), None]);
    }

    #[test]
    fn the_oldest_unused_buffers_are_dropped_first() {
        let unused = Unused(Mutex::default());
        for size in [16, 17, 18, 19] {
            unused.keep(Vec::with_capacity(size << 20), (size as u64) << 20, 0);
        }
        assert!(unused.take(16 << 20, 0).is_some_and(|buffer| buffer.capacity() == 19 << 20));
        let kept: u64 = unused.0.lock().iter().map(|kept| kept.reservation.bytes()).sum();
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

    #[test]
    fn an_aligned_buffer_has_room_behind_its_offset() {
        // The second time, they are buffers that were used before.
        for capacity in [0, LARGE, HUGE - 1, HUGE, 2 * HUGE - 1, 2 * HUGE, 5_000_000].repeat(2) {
            let (buffer, offset) = aligned_buffer(capacity);
            assert!(buffer.is_empty() && buffer.capacity() - offset >= capacity, "{capacity}");
            assert!(capacity < HUGE || (buffer.as_ptr() as usize + offset).is_multiple_of(HUGE), "{capacity}");
            recycle_aligned(buffer, 0);
        }
    }
}
