//! Buffers for reads that are answered at once.
//!
//! A fresh buffer of a megabyte costs as much as filling it: 256 page faults, each of which zeroes a page (measured in
//! docs/performance.md). Buffers are therefore kept, a bounded number of them, and handed out again.

use std::sync::Arc;

use parking_lot::Mutex;

/// Capacity of a buffer: the largest read that the kernel sends (256 pages).
pub const BUFFER_SIZE: usize = 1 << 20;

/// A bounded set of buffers.
#[derive(Debug)]
pub struct BufferPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: Vec<Box<[u8]>>,
    /// How many more may be made.
    unmade: usize,
}

/// A buffer of a pool, and how much of it is in use. Goes back to the pool when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    length: usize,
    pool: Arc<Shared>,
}

impl BufferPool {
    /// A pool of at most `count` buffers, made when they are first needed.
    pub fn new(count: usize) -> Self {
        BufferPool { shared: Arc::new(Shared { state: Mutex::new(State { free: Vec::new(), unmade: count }) }) }
    }

    /// A buffer of `length` bytes of unspecified content; none if all are in use or `length` is too much for one.
    pub fn take(&self, length: usize) -> Option<Buffer> {
        if length > BUFFER_SIZE {
            return None;
        }
        let mut state = self.shared.state.lock();
        let bytes = match state.free.pop() {
            Some(bytes) => bytes,
            None => {
                state.unmade = state.unmade.checked_sub(1)?;
                drop(state);
                vec![0; BUFFER_SIZE].into_boxed_slice()
            }
        };
        Some(Buffer { bytes, length, pool: Arc::clone(&self.shared) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.pool.state.lock().free.push(bytes);
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
