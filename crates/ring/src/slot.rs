//! Memory of a request in a ring, and its answer.
//!
//! The kernel writes a request into memory that was registered for it, and reads the answer from
//! there. In between the memory belongs to a [`Slot`]: the one owner of the payload, until it is
//! finished. The thread of the queue copies what is short, and hands the memory back.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use smallvec::SmallVec;

use super::layout::HEADER;

/// Bytes of the longest answer but those of files, listings and links: attributes and a handle.
const SHORT: usize = 160;
/// Bytes before the payload, so that it begins at a page.
const PAGE: usize = 4096;

/// Memory of the entries of one queue.
pub(super) struct Memory {
    start: NonNull<u8>,
    entries: usize,
    payload: usize,
}

// SAFETY: plain memory. Who may access which part of it is said at each method.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Reserves memory for `entries` entries with up to `payload` bytes each. It takes no room
    /// before it is used.
    pub(super) fn new(entries: usize, payload: usize) -> std::io::Result<Self> {
        let payload = payload.next_multiple_of(PAGE);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new memory at a place of the kernel's choice.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), entries * (PAGE + payload), ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let start = NonNull::new(start.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Memory { start, entries, payload })
    }

    /// Returns the bytes of a payload, at most.
    pub(super) fn payload_length(&self) -> usize {
        self.payload
    }

    /// Returns the address of the header of `entry`, of [`HEADER`] bytes. The thread of the queue
    /// may access them while the kernel does not have the entry.
    pub(super) fn header(&self, entry: usize) -> *mut u8 {
        const { assert!(HEADER <= PAGE) };
        // An entry that does not exist would be one of the first: no caller has any.
        let entry = if entry < self.entries { entry } else { 0 };
        self.start.as_ptr().wrapping_add(entry * (PAGE + self.payload))
    }

    /// Returns the address of the payload of `entry`, which belongs to the kernel or a [`Slot`].
    pub(super) fn payload(&self, entry: usize) -> *mut u8 {
        self.header(entry).wrapping_add(PAGE)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made. The kernel writes to it in the queue's thread only,
        // which has ended or never began: it and each slot hold a reference.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.entries * (PAGE + self.payload)) };
    }
}

/// Answer to a request.
#[derive(Debug)]
pub(super) struct Answer {
    /// Number of the entry.
    pub(super) entry: usize,
    /// Number of the error, positive; 0 for success.
    pub(super) errno: i32,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    /// Bytes that the queue's thread writes into the payload.
    Short(SmallVec<[u8; SHORT]>),
    /// Bytes of the payload, which are there already.
    There(usize),
}

/// Queue as slots know it.
pub(super) struct Answers {
    pub(super) memory: Memory,
    /// Answers to be handed to the kernel.
    ready: Mutex<Vec<Answer>>,
    /// Wakes the queue's thread.
    pub(super) bell: OwnedFd,
    /// Thread of the queue, which looks for answers by itself before it sleeps.
    thread: Mutex<Option<ThreadId>>,
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl Answers {
    pub(super) fn new(memory: Memory) -> std::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Answers { memory, ready: Mutex::default(), bell, thread: Mutex::default() }))
    }

    /// Makes the calling thread the one that needs no wake-up.
    pub(super) fn belong_here(&self) {
        *self.thread.lock() = Some(std::thread::current().id());
    }

    /// Takes the answers that are ready.
    pub(super) fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.ready.lock())
    }

    fn give(&self, answer: Answer) {
        self.ready.lock().push(answer);
        if *self.thread.lock() != Some(std::thread::current().id()) {
            // It fails only if the counter is full, and then the thread is awake.
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Request that is to be answered, and the memory for the answer. If it is dropped, the program
/// gets `EIO`.
pub struct Slot {
    answers: Arc<Answers>,
    entry: usize,
    is_answered: bool,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl Slot {
    /// Creates the slot of a request that the kernel has put into `entry`.
    pub(super) fn new(answers: Arc<Answers>, entry: usize) -> Self {
        Slot { answers, entry, is_answered: false }
    }

    fn give(&mut self, errno: i32, content: Content) {
        self.is_answered = true;
        self.answers.give(Answer { entry: self.entry, errno, content });
    }

    /// Answers with an error, a positive number.
    pub fn error(mut self, errno: i32) {
        self.give(errno, Content::There(0));
    }

    /// Answers with up to 160 bytes.
    pub fn short(mut self, bytes: &[u8]) {
        self.give(0, Content::Short(SmallVec::from_slice(bytes)));
    }

    /// Answers with the first `length` bytes of the payload.
    pub fn filled(mut self, length: usize) {
        self.give(0, Content::There(length));
    }

    /// Answers with `bytes`, of any length that the request asked for.
    pub fn data(mut self, bytes: &[u8]) {
        match self.payload().get_mut(..bytes.len()) {
            Some(payload) => {
                payload.copy_from_slice(bytes);
                self.filled(bytes.len());
            }
            // The kernel asks for no more than it has room for.
            None => self.error(libc::EIO),
        }
    }

    /// Returns the memory for a long answer.
    pub fn payload(&mut self) -> &mut [u8] {
        let memory = &self.answers.memory;
        // SAFETY: the mapping has so many bytes there, and they belong to this slot: the kernel has
        // handed the entry over, and gets it back with the answer. What the queue's thread reads of
        // the request it has copied before.
        unsafe { std::slice::from_raw_parts_mut(memory.payload(self.entry), memory.payload_length()) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_answered {
            self.give(libc::EIO, Content::There(0));
        }
    }
}

/// Answers of tests, without a kernel.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Answer as the kernel would get it.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Given {
        /// Number of the error, positive; 0 for success.
        pub errno: i32,
        /// Bytes of the answer.
        pub bytes: Vec<u8>,
    }

    /// Returns the one answer that `act` gives through a slot.
    pub fn given(act: impl FnOnce(Slot)) -> Given {
        let answers = Answers::new(Memory::new(1, 8192).unwrap()).unwrap();
        act(Slot::new(Arc::clone(&answers), 0));
        let [Answer { errno, content, .. }] = <[Answer; 1]>::try_from(answers.take()).unwrap();
        let bytes = match content {
            Content::Short(bytes) => bytes.to_vec(),
            Content::There(length) => Slot::new(answers, 0).payload().get(..length).unwrap().to_vec(),
        };
        Given { errno, bytes }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::testing::{Given, given};
    use super::*;

    #[test]
    fn a_request_has_one_answer() {
        assert_eq!(given(drop), Given { errno: libc::EIO, bytes: Vec::new() });
        assert_eq!(given(|slot| slot.error(2)), Given { errno: 2, bytes: Vec::new() });
        assert_eq!(given(|slot| slot.short(b"short")), Given { errno: 0, bytes: b"short".to_vec() });
        let long = vec![7; 8192];
        assert_eq!(given(|slot| slot.data(&long)), Given { errno: 0, bytes: long });
        assert_eq!(given(|slot| slot.data(&[0; 8193])).errno, libc::EIO, "more than there is room for");
    }

    #[test]
    fn answers_of_other_threads_ring_the_bell() {
        let answers = Answers::new(Memory::new(2, 4096).unwrap()).unwrap();
        answers.belong_here();
        let rung = || rustix::io::read(&answers.bell, &mut [0_u8; 8]).is_ok();
        Slot::new(Arc::clone(&answers), 0).error(1);
        assert!(!rung());
        let slot = Slot::new(Arc::clone(&answers), 1);
        std::thread::spawn(move || slot.error(1)).join().unwrap();
        assert!(rung());
        assert_eq!(answers.take().len(), 2);
    }
}
