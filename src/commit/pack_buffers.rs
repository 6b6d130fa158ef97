//! Memory of packs on their way to the store.
//!
//! The kernel provides new memory page by page, and a virtual machine may have to get it from its host: for packs that were made of new
//! memory, a tenth of the time of a commit of 40,000 chunks. So a pack that is stored leaves its memory to one that is made next. All of it
//! is given back when the commit ends.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::memory;

/// Memory that packs of one commit leave to others. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct PackBuffers {
    unused: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl PackBuffers {
    /// Returns an empty buffer for at least `capacity` bytes. Where all that are unused are smaller, one of them is given back for it: there are
    /// never more than were lent at the same time, which the commit's memory limit bounds.
    pub(super) fn take(&self, capacity: usize) -> Vec<u8> {
        let mut unused = self.unused.lock();
        let found = unused.iter().rposition(|buffer| buffer.capacity() >= capacity);
        let found = found.map(|at| unused.remove(at));
        let smaller = if found.is_none() { unused.pop() } else { None };
        drop((unused, smaller));
        found.unwrap_or_else(|| memory::large_buffer(capacity))
    }

    /// Returns `buffer` as bytes that leave it to others when the last clone is dropped.
    pub(super) fn lend(&self, buffer: Vec<u8>) -> Bytes {
        Bytes::from_owner(Lent { buffer, buffers: self.clone() })
    }
}

/// Buffer that returns.
struct Lent {
    buffer: Vec<u8>,
    buffers: PackBuffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        self.buffers.unused.lock().push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_returns_with_the_last_of_its_bytes() {
        let buffers = PackBuffers::default();
        let mut buffer = buffers.take(1000);
        let (address, capacity) = (buffer.as_ptr(), buffer.capacity());
        buffer.extend([7; 600]);
        let bytes = buffers.lend(buffer);
        let part = bytes.slice(5..10);
        let first = buffers.take(1000);
        drop(bytes);
        let second = buffers.take(1000);
        assert!(first.as_ptr() != address && second.as_ptr() != address);
        assert_eq!(part.as_ref(), [7; 5]);
        drop(part);
        let again = buffers.take(900);
        assert!(again.is_empty() && again.as_ptr() == address && again.capacity() == capacity);
        drop(buffers.lend(again));
        // A larger one is new, and takes its place.
        let larger = buffers.take(capacity + 1);
        assert!(larger.capacity() > capacity && buffers.unused.lock().is_empty());
    }
}
