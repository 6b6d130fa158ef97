//! Requests of the kernel through io_uring (Linux 6.14): a queue for each processor.
//!
//! A request that goes through `/dev/fuse` wakes a thread on whichever processor is idle, which
//! takes longer than most answers. Here the program that made it and the thread that answers are on
//! one processor, the request is in the thread's memory when it wakes, and one system call hands
//! over the answer and fetches the next request.
//!
//! The kernel offers it where root has set `/sys/module/fuse/parameters/enable_uring`. The first
//! request of a mount and those without an answer still come from `/dev/fuse`, and so do all if the
//! queues cannot be made.
//!
//! It knows bytes and the heads of requests, and nothing of what they ask for. Begin with
//! [`Prepared`], which makes the queues, and with [`Slot`], which answers one request.
//!
//! Three rules that are hard to keep:
//!
//! 1. The memory of a request belongs to the kernel, to the thread of its queue, or to its slot,
//!    and never to two of them.
//! 2. Every request is answered once, also when the code that answers it panics.
//! 3. A thread that waits for storage keeps no other request of its processor waiting.

mod layout;
mod placement;
mod queue;
mod slot;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::warn;

use placement::Guard;
use queue::Queue;
pub use queue::{Handler, Message};
pub use slot::Slot;
#[cfg(any(test, feature = "testing"))]
pub use slot::testing;

/// Largest read or write through a ring, in bytes. Each entry has so much memory for as long as the
/// mount lives once it was used.
pub const MAX_REQUEST: u32 = 128 << 10;
/// Requests of one processor that may wait at the same time, for storage most often.
const DEPTH: usize = 32;
/// Longest wait for the threads at the end of a mount: the kernel tells them at once.
const END: Duration = Duration::from_secs(5);

/// Setting of the kernel that allows it.
const SETTING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Returns why requests cannot come through rings, with what to do; none if they can.
pub fn obstacle() -> Option<String> {
    match fs::read_to_string(SETTING) {
        Ok(setting) if setting.trim() == "Y" => io_uring::IoUring::new(1)
            .err()
            .map(|error| format!("this process may not use io_uring ({error}): see `sysctl kernel.io_uring_disabled`")),
        Ok(_) => Some(format!("it is switched off in the kernel: root can allow it with `echo Y > {SETTING}`")),
        Err(_) => Some("this kernel cannot: Linux 6.14 and later can".to_owned()),
    }
}

/// Queues that are made before the kernel is told of them, so that nothing can fail afterwards.
#[derive(Debug, Default)]
pub struct Prepared(Mutex<Option<Vec<Queue>>>);

impl Prepared {
    /// Makes the queues.
    pub fn make(&self) -> io::Result<()> {
        let processors = processors("possible")?;
        let online = processors_or_first(&processors);
        let mut queues = Vec::new();
        for (index, processor) in online.iter().enumerate() {
            // The kernel wants a queue for each processor that could ever be there. Those that are
            // not share a thread with one that is.
            let absent = processors.iter().filter(|other| !online.contains(other));
            let absent = absent.enumerate().filter(|(at, _)| at % online.len() == index).map(|(_, other)| *other);
            queues.push(Queue::new(*processor, &absent.collect::<Vec<_>>(), DEPTH, MAX_REQUEST as usize)?);
        }
        *self.0.lock() = Some(queues);
        Ok(())
    }

    /// Starts the threads, once the kernel has got the reply to its first request: `device` is the
    /// connection to it. None if nothing was made.
    pub fn start(&self, device: &Arc<OwnedFd>, handler: &Handler) -> io::Result<Option<Rings>> {
        let Some(queues) = self.0.lock().take() else { return Ok(None) };
        let (ended, all_ended) = channel();
        let guard = Arc::<Guard>::default();
        guard.start()?;
        for queue in queues {
            queue.start(Arc::clone(device), Arc::clone(handler), Arc::clone(&guard), ended.clone())?;
        }
        Ok(Some(Rings { all_ended }))
    }
}

/// Threads that answer requests.
#[derive(Debug)]
pub struct Rings {
    all_ended: Receiver<()>,
}

impl Rings {
    /// Waits until the threads have seen the end of the mount.
    pub fn wait(&self) {
        match self.all_ended.recv_timeout(END) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => warn!("requests are still being answered; they end with this process"),
        }
    }
}

/// Marks the end of a thread when it is dropped.
type Ended = Sender<()>;

fn processors_or_first(possible: &[u16]) -> Vec<u16> {
    let online = processors("online").unwrap_or_default();
    if online.is_empty() { possible.iter().take(1).copied().collect() } else { online }
}

/// Returns the numbers of processors in a list of the kernel's.
fn processors(list: &str) -> io::Result<Vec<u16>> {
    let text = fs::read_to_string(format!("/sys/devices/system/cpu/{list}"))?;
    parse_list(&text).ok_or_else(|| io::Error::other(format!("a list of processors: {text:?}")))
}

/// Parses numbers and ranges such as `0-3,8`.
fn parse_list(text: &str) -> Option<Vec<u16>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_understood() {
        assert_eq!(parse_list("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list("a"), None);
    }
}
