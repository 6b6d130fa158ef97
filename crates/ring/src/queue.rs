//! Queue of one processor: its thread sleeps in the kernel until there is a request, and answers
//! it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use icechunkfs_base::native_numbers::{u32_at, u64_at};
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::thread::CpuSet;
use tracing::{debug, error, warn};

use super::Ended;
use super::layout::{
    COMMIT, COMMIT_AND_FETCH, HEADER, MAX_OPERATION, OPERATION, PAYLOAD_LENGTH, REGISTER, SEGMENTS, SQE_LENGTH, WRITE,
    command,
};
use super::placement::{Guard, Watched};
use super::slot::{Answer, Answers, Content, Memory, Slot};

/// Mark of the completion that tells of answers from other threads. Others have the number of their
/// entry.
const BELL: u64 = u64::MAX;
/// Bytes of the header of each request (`fuse_in_header`).
const IN_HEADER: usize = 40;
/// Pause before the kernel is asked again whether the mount has begun.
const PAUSE: Duration = Duration::from_millis(1);
/// Most pauses: ten seconds.
const MAX_PAUSES: u32 = 10_000;
/// Pause after a failure of the kernel, such as a lack of memory.
const RETRY: Duration = Duration::from_millis(10);

/// Answers a request through its slot.
pub type Handler = Arc<dyn Fn(&Message<'_>, Slot) + Send + Sync>;

/// Request of the kernel.
#[derive(Debug)]
pub struct Message<'a> {
    /// Number of the operation (`fuse_opcode`).
    pub opcode: u32,
    /// Inode that it is about.
    pub inode: u64,
    /// User and group of the program.
    pub caller: (u32, u32),
    /// Header of the operation, and zeros.
    pub operation: &'a [u8; MAX_OPERATION],
    /// Names, or bytes to be written.
    pub payload: &'a [u8],
}

/// Entry of the queue.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Queue of the kernel that it belongs to.
    queue: u16,
    /// Number of the request that is being answered.
    commit: u64,
    unique: u64,
    /// True if it will not get another request.
    is_over: bool,
}

/// Queue that has not begun.
pub(super) struct Queue {
    ring: IoUring<squeue::Entry128>,
    processor: u16,
    answers: Arc<Answers>,
    entries: Vec<Entry>,
    /// Memory of each entry, as the kernel reads it when it gets the entry.
    segments: Vec<[libc::iovec; SEGMENTS as usize]>,
}

// SAFETY: the addresses are those of `answers`, which may be used by any thread.
unsafe impl Send for Queue {}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("processor", &self.processor).finish_non_exhaustive()
    }
}

impl Queue {
    /// Makes a queue with `depth` entries for `processor`, and one for each of the `absent` ones.
    pub(super) fn new(processor: u16, absent: &[u16], depth: usize, payload: usize) -> io::Result<Self> {
        let of = |queue: &u16| Entry { queue: *queue, commit: 0, unique: 0, is_over: false };
        let entries: Vec<Entry> = std::iter::repeat_n(&processor, depth).chain(absent).map(of).collect();
        let size = (entries.len() as u32 + 1).next_power_of_two();
        let ring = IoUring::builder().setup_cqsize(size * 2).build(size)?;
        let answers = Answers::new(Memory::new(entries.len(), payload)?)?;
        let memory = &answers.memory;
        let segments = |entry| {
            [
                libc::iovec { iov_base: memory.header(entry).cast(), iov_len: HEADER },
                libc::iovec { iov_base: memory.payload(entry).cast(), iov_len: memory.payload_length() },
            ]
        };
        let segments = (0..entries.len()).map(segments).collect();
        Ok(Queue { ring, processor, answers, entries, segments })
    }

    /// Starts the queue's thread, which `guard` watches, and which drops `ended` when it ends.
    pub(super) fn start(
        self,
        device: Arc<OwnedFd>,
        handler: Handler,
        guard: Arc<Guard>,
        ended: Ended,
    ) -> io::Result<()> {
        let name = format!("fuse-ring-{}", self.processor);
        let run = move || {
            let _ended = ended;
            let watched = guard.watch_me();
            let mut running = Running { queue: self, device, handler, guard: Arc::clone(&guard), watched };
            if let Err(error) = running.run() {
                error!("the requests of processor {}: {error}", running.queue.processor);
            }
            guard.ended(&running.watched);
        };
        std::thread::Builder::new().name(name).spawn(run).map(drop)
    }
}

struct Running {
    queue: Queue,
    device: Arc<OwnedFd>,
    handler: Handler,
    guard: Arc<Guard>,
    watched: Arc<Watched>,
}

impl Running {
    fn run(&mut self) -> io::Result<()> {
        self.pin();
        self.queue.answers.belong_here();
        self.watch_bell()?;
        for entry in 0..self.queue.entries.len() {
            self.register(entry)?;
        }
        let mut has_failed = false;
        while self.queue.entries.iter().any(|entry| !entry.is_over) {
            match self.queue.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // Nobody else answers the requests of this processor.
                    if !std::mem::replace(&mut has_failed, true) {
                        warn!("the requests of processor {} are tried again: {error}", self.queue.processor);
                    }
                    std::thread::sleep(RETRY);
                }
            }
            self.complete()?;
        }
        Ok(())
    }

    /// Keeps the thread on its processor, where the programs are whose requests it answers.
    fn pin(&self) {
        let mut set = CpuSet::new();
        set.set(self.queue.processor.into());
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            // As in a container that may not use this processor: then no program of it is there.
            debug!("the thread of processor {}: {error}", self.queue.processor);
        }
    }

    /// Handles what the kernel has completed, and hands over the answers.
    fn complete(&mut self) -> io::Result<()> {
        let completed: smallvec::SmallVec<[(u64, i32); 8]> =
            self.queue.ring.completion().map(|entry: cqueue::Entry| (entry.user_data(), entry.result())).collect();
        for (at, (mark, result)) in completed.iter().enumerate() {
            match usize::try_from(*mark) {
                Ok(_) if *mark == BELL => self.watch_bell()?,
                Ok(entry) if *result >= 0 => {
                    self.handle(entry);
                    self.guard.answered(&self.watched);
                }
                Ok(entry) => self.failed(entry, *result)?,
                Err(_) => {}
            }
            self.commit()?;
            if at + 1 < completed.len() {
                // The program need not wait for the others. What fails here is submitted later.
                let _ = self.queue.ring.submit();
            }
        }
        Ok(())
    }

    /// Asks for a completion when another thread has answered.
    fn watch_bell(&mut self) -> io::Result<()> {
        // It was rung any number of times, or never.
        let _ = rustix::io::read(&self.queue.answers.bell, &mut [0_u8; 8]);
        let bell = Fd(self.queue.answers.bell.as_raw_fd());
        let watch = opcode::PollAdd::new(bell, libc::POLLIN as u32).build().user_data(BELL);
        self.push(&watch.into())
    }

    /// Gives the kernel an entry for requests.
    fn register(&mut self, entry: usize) -> io::Result<()> {
        let Some(&Entry { queue, .. }) = self.queue.entries.get(entry) else { return Ok(()) };
        let Some(segments) = self.queue.segments.get(entry) else { return Ok(()) };
        let request = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), REGISTER).cmd(command(0, queue));
        let mut request = request.addr(Some(segments.as_ptr() as u64)).build().user_data(entry as u64);
        // SAFETY: the type is the kernel's structure of 128 bytes, all of them plain numbers. The
        // library has no setter for this one.
        unsafe { (&raw mut request).cast::<u8>().add(SQE_LENGTH).cast::<u32>().write_unaligned(SEGMENTS) };
        self.push(&request)
    }

    /// Gives the kernel an entry with an answer, which is in its memory.
    fn hand_over(&mut self, entry: usize) -> io::Result<()> {
        let Some(&Entry { queue, commit, .. }) = self.queue.entries.get(entry) else { return Ok(()) };
        let answer = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), COMMIT_AND_FETCH).cmd(command(commit, queue));
        self.push(&answer.build().user_data(entry as u64))
    }

    fn push(&mut self, request: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the request points to belongs to the queue, and lives longer than its ring.
        let pushed = unsafe { self.queue.ring.submission().push(request) };
        // There is room for each entry, and each is submitted once before it completes.
        pushed.map_err(io::Error::other)
    }

    /// Handles a request that the kernel has put into `entry`.
    fn handle(&mut self, entry: usize) {
        let answers = Arc::clone(&self.queue.answers);
        let header = answers.memory.header(entry);
        let Some(state) = self.queue.entries.get_mut(entry) else { return };
        // SAFETY: the kernel has handed the entry over, and this thread alone reads its header, of
        // which these are parts.
        let (head, operation, commit, length) = unsafe {
            let head: [u8; IN_HEADER] = header.cast::<[u8; IN_HEADER]>().read();
            let operation: [u8; MAX_OPERATION] = header.add(OPERATION).cast::<[u8; MAX_OPERATION]>().read();
            (head, operation, header.add(COMMIT).cast::<u64>().read(), header.add(PAYLOAD_LENGTH).cast::<u32>().read())
        };
        let number = |at| u32_at(&head, at);
        state.commit = commit;
        state.unique = u64_at(&head, 8);
        let length = (length as usize).min(answers.memory.payload_length());
        let slot = Slot::new(Arc::clone(&answers), entry);
        let opcode = number(4);
        let in_place;
        let copied;
        let payload = if opcode == WRITE {
            // SAFETY: so many bytes of the payload, which nobody writes as long as the handler
            // runs: the answer to a write is short, and this thread copies it there afterwards.
            in_place = unsafe { std::slice::from_raw_parts(answers.memory.payload(entry), length) };
            in_place
        } else {
            // SAFETY: as above; copied, as the answer may be written over it.
            copied = unsafe { std::slice::from_raw_parts(answers.memory.payload(entry), length) }.to_vec();
            &copied
        };
        let inode = u64_at(&head, 16);
        let message = Message { opcode, inode, caller: (number(24), number(28)), operation: &operation, payload };
        // The thread must survive: no other answers the requests of its processor. The program gets
        // EIO, as the slot is dropped.
        if catch_unwind(AssertUnwindSafe(|| (self.handler)(&message, slot))).is_err() {
            error!("a request panicked; the program got EIO. Please report this with the lines before it");
        }
    }

    /// Hands answers to the kernel, for the next call to it.
    fn commit(&mut self) -> io::Result<()> {
        for Answer { entry, errno, content } in self.queue.answers.take() {
            let memory = &self.queue.answers.memory;
            let Some(&Entry { unique, .. }) = self.queue.entries.get(entry) else { continue };
            let length = match &content {
                Content::There(length) => *length,
                Content::Short(bytes) => bytes.len().min(memory.payload_length()),
            };
            let header = memory.header(entry);
            // SAFETY: the slot is gone, and the kernel does not have the entry yet, so that header
            // and payload belong to this thread.
            unsafe {
                if let Content::Short(bytes) = &content {
                    memory.payload(entry).copy_from_nonoverlapping(bytes.as_ptr(), length);
                }
                // The header of an answer (`fuse_out_header`): its length, which the kernel does
                // not read here, the error, and the request.
                header.cast::<u32>().write(length as u32);
                header.add(4).cast::<i32>().write(-errno);
                header.add(8).cast::<u64>().write(unique);
                header.add(PAYLOAD_LENGTH).cast::<u32>().write(length as u32);
            }
            self.hand_over(entry)?;
        }
        Ok(())
    }

    /// Handles a command that failed.
    fn failed(&mut self, entry: usize, result: i32) -> io::Result<()> {
        let Some(state) = self.queue.entries.get_mut(entry) else { return Ok(()) };
        match -result {
            // The mount has not begun: the kernel has not got the reply to its first request.
            libc::EAGAIN if state.unique == 0 && state.commit < u64::from(MAX_PAUSES) => {
                state.commit += 1;
                std::thread::sleep(PAUSE);
                return self.register(entry);
            }
            libc::EINTR if state.unique == 0 => return self.register(entry),
            libc::EINTR => return self.hand_over(entry),
            // The end of the mount.
            libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED => {}
            // All fail in the same way.
            errno if entry == 0 => {
                let error = io::Error::from_raw_os_error(errno);
                warn!("processor {}: the kernel does not take an entry for requests: {error}", self.queue.processor);
            }
            _ => {}
        }
        state.is_over = true;
        Ok(())
    }
}
