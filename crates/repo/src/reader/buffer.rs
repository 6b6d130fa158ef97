//! Buffers for reads that are answered at once.
//!
//! A fresh buffer of a megabyte costs as much as filling it: 256 page faults, each of which zeroes
//! a page (docs/contributing/performance-lessons.md). So a bounded number of buffers is reused.

use std::sync::Arc;

use parking_lot::Mutex;

/// Capacity of a buffer: the largest read that the kernel sends (256 pages).
pub const BUFFER_SIZE: usize = 1 << 20;

/// Bounded set of buffers.
#[derive(Debug)]
pub struct BufferPool(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: Vec<Box<[u8]>>,
    /// Buffers that may still be made.
    unmade: usize,
}

/// Buffer of a pool, and its length in use. Returns to the pool when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    length: usize,
    pool: Arc<Mutex<State>>,
}

impl BufferPool {
    /// Creates a pool of at most `count` buffers, made when they are first needed.
    pub fn new(count: usize) -> Self {
        BufferPool(Arc::new(Mutex::new(State { free: Vec::new(), unmade: count })))
    }

    /// Returns a buffer of `length` bytes of unspecified content; none if all are in use or
    /// `length` is too much for one.
    pub fn take(&self, length: usize) -> Option<Buffer> {
        if length > BUFFER_SIZE {
            return None;
        }
        let mut state = self.0.lock();
        let bytes = match state.free.pop() {
            Some(bytes) => bytes,
            None => {
                state.unmade = state.unmade.checked_sub(1)?;
                drop(state);
                vec![0; BUFFER_SIZE].into_boxed_slice()
            }
        };
        Some(Buffer { bytes, length, pool: Arc::clone(&self.0) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.lock().free.push(bytes);
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_bounded_and_come_back() {
        let pool = BufferPool::new(2);
        assert!(pool.take(BUFFER_SIZE + 1).is_none());
        let first = pool.take(10);
        let second = pool.take(BUFFER_SIZE);
        assert_eq!(first.as_ref().map(|b| b.len()), Some(10));
        assert!(second.is_some());
        assert!(pool.take(1).is_none());
        drop(first);
        assert!(pool.take(1).is_some());
    }
}
