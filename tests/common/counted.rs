//! An allocator that counts, and aborts the process above a limit.

#![allow(dead_code, unreachable_pub)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that are allocated now.
pub static NOW: AtomicUsize = AtomicUsize::new(0);
/// Peak of allocated bytes since this was last set.
pub static PEAK: AtomicUsize = AtomicUsize::new(0);

/// An allocator that counts; the process aborts above this many bytes.
pub struct Counted(pub usize);

// SAFETY: passes every call on to the system's allocator unchanged, and counts.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        if now > self.0 {
            std::process::abort();
        }
        // SAFETY: the caller's guarantee is passed on.
        unsafe { System.alloc(layout) }
    }

    // The system moves a large block without a copy.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let now = NOW.fetch_add(size, Ordering::Relaxed) + size - layout.size();
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        PEAK.fetch_max(now, Ordering::Relaxed);
        if now > self.0 {
            std::process::abort();
        }
        // SAFETY: the caller's guarantee is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantee is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}
