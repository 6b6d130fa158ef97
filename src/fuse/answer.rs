//! Replies that do not block a worker.
//!
//! A fuser worker handles one request after another: one that waits for storage would delay all
//! behind it. Each request is therefore a future that owns its reply. The worker polls it once; if
//! everything that it needs is in memory, the reply is sent without a task or a thread switch.
//! Otherwise the runtime takes it over as soon as it can go on, and the worker takes the next
//! request: until then no other thread need wake up for it.

use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fuser::{Errno, FileAttr};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tracing::error;

use super::reply;
use icechunkfs_base::metrics::Outcome;

/// Reply with a value of type `T`, or an errno.
pub(super) trait Reply<T>: Send + 'static {
    fn send(self, result: Result<T, Errno>);

    /// Returns the number of bytes that `value` says were read or written.
    fn moved(_value: &T) -> u64 {
        0
    }
}

/// Returns how a request ends that is answered with `result` through a reply of type `R`.
pub(super) fn outcome_of<T, R: Reply<T>>(result: &Result<T, Errno>) -> Outcome {
    match result {
        Ok(value) => Outcome { errno: 0, bytes: R::moved(value) },
        Err(errno) => Outcome { errno: (*errno).into(), bytes: 0 },
    }
}

macro_rules! replies {
    ($($reply:ident($value:ty): |$self:ident, $pattern:pat_param| $send:expr;)*) => {$(
        impl Reply<$value> for reply::$reply {
            fn send($self, result: Result<$value, Errno>) {
                match result {
                    Ok($pattern) => $send,
                    Err(errno) => $self.error(errno),
                }
            }
        }
    )*};
}

replies! {
    ReplyEmpty(()): |self, ()| self.ok();
    ReplyDirectory(()): |self, ()| self.ok();
    ReplyDirectoryPlus(()): |self, ()| self.ok();
    ReplyLseek(Option<u64>): |self, found| match found {
        Some(found) => self.offset(i64::try_from(found).unwrap_or(i64::MAX)),
        None => self.error(Errno::ENXIO),
    };
    ReplyAttr((Duration, FileAttr)): |self, (timeout, attr)| self.attr(&timeout, &attr);
    ReplyEntry((Duration, FileAttr)): |self, (timeout, attr)| self.entry(&timeout, &attr);
}

impl Reply<u32> for reply::ReplyWrite {
    fn send(self, result: Result<u32, Errno>) {
        match result {
            Ok(count) => self.written(count),
            Err(errno) => self.error(errno),
        }
    }

    fn moved(count: &u32) -> u64 {
        (*count).into()
    }
}

/// Value of an extended attribute, if there is one, for a program that has room for so many bytes;
/// 0 asks for its length.
pub(super) struct XattrValue(pub(super) Option<String>, pub(super) u32);

impl Reply<XattrValue> for reply::ReplyXattr {
    fn send(self, result: Result<XattrValue, Errno>) {
        match result {
            Ok(XattrValue(None, _)) => self.error(Errno::ENODATA),
            Ok(XattrValue(Some(value), 0)) => self.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
            Ok(XattrValue(Some(value), room)) if value.len() > room as usize => self.error(Errno::ERANGE),
            Ok(XattrValue(Some(value), _)) => self.data(value.as_bytes()),
            Err(errno) => self.error(errno),
        }
    }
}

impl<T: Deref<Target = [u8]>> Reply<T> for reply::ReplyData {
    fn moved(bytes: &T) -> u64 {
        bytes.len() as u64
    }

    fn send(self, result: Result<T, Errno>) {
        match result {
            Ok(bytes) => self.data(&bytes),
            Err(errno) => self.error(errno),
        }
    }
}

/// Request that waits for something.
struct Waiting {
    runtime: Handle,
    request: Mutex<Stage>,
}

enum Stage {
    /// The worker polls the request. True if it can go on already.
    Polled(bool),
    Waits(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// Done, or the runtime has it.
    Gone,
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        let mut stage = self.request.lock();
        match std::mem::replace(&mut *stage, Stage::Gone) {
            Stage::Polled(_) => *stage = Stage::Polled(true),
            Stage::Waits(request) => {
                drop(stage);
                // The task polls it again, with its own waker: no wake-up is lost.
                self.runtime.spawn(request);
            }
            Stage::Gone => {}
        }
    }
}

/// Carries out `request`, which ends by sending its own reply: now if it does not have to wait,
/// otherwise on `runtime`.
///
/// If a request panics, its reply is dropped, which answers `EIO`; the worker survives.
pub fn answer(runtime: &Handle, request: impl Future<Output = ()> + Send + 'static) {
    let _runtime = runtime.enter();
    let mut request: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(request);
    let waiting = Arc::new(Waiting { runtime: runtime.clone(), request: Mutex::new(Stage::Polled(false)) });
    let waker = Waker::from(Arc::clone(&waiting));
    match catch_unwind(AssertUnwindSafe(|| request.as_mut().poll(&mut Context::from_waker(&waker)))) {
        Ok(Poll::Ready(())) => *waiting.request.lock() = Stage::Gone,
        Ok(Poll::Pending) => {
            let mut stage = waiting.request.lock();
            match *stage {
                Stage::Polled(true) => {
                    *stage = Stage::Gone;
                    drop(stage);
                    runtime.spawn(request);
                }
                _ => *stage = Stage::Waits(request),
            }
        }
        Err(_) => error!("a request panicked; the program got EIO. Please report this with the lines before it"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn ready_requests_are_answered_on_the_calling_thread() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
        let (sender, receiver) = mpsc::channel();
        let ready = sender.clone();
        answer(runtime.handle(), async move { ready.send(std::thread::current().id()).unwrap() });
        assert_eq!(receiver.try_recv().unwrap(), std::thread::current().id());
        answer(runtime.handle(), async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            sender.send(std::thread::current().id()).unwrap();
        });
        assert_ne!(receiver.recv_timeout(Duration::from_secs(10)).unwrap(), std::thread::current().id());
    }

    #[test]
    fn a_request_that_waits_goes_on_when_it_can_and_never_twice() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let (sender, receiver) = mpsc::channel();
        for round in 0..200_u64 {
            let wake = tokio::sync::oneshot::channel::<u64>();
            let sender = sender.clone();
            let (waker, woken) = wake;
            // Woken during the first poll, right after it, or by a timer, and waiting once more
            // afterwards.
            let waker = std::sync::Mutex::new(Some(waker));
            let send = move || waker.lock().unwrap().take().map(|waker| waker.send(round).unwrap());
            match round % 3 {
                0 => send().unwrap(),
                1 => drop(std::thread::spawn(move || send().unwrap())),
                _ => drop(runtime.spawn(async move { send().unwrap() })),
            }
            answer(runtime.handle(), async move {
                let value = woken.await.unwrap();
                tokio::task::yield_now().await;
                tokio::time::sleep(Duration::from_micros(50)).await;
                sender.send(value).unwrap();
            });
        }
        let mut found: Vec<u64> = (0..200).map(|_| receiver.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, (0..200).collect::<Vec<_>>());
        assert!(receiver.recv_timeout(Duration::from_millis(20)).is_err());
    }

    #[test]
    fn a_request_whose_source_is_gone_is_dropped() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let (sender, receiver) = mpsc::channel::<()>();
        let (waker, woken) = tokio::sync::oneshot::channel::<()>();
        answer(runtime.handle(), async move {
            let _ = woken.await;
            drop(sender);
        });
        drop(waker);
        assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Err(mpsc::RecvTimeoutError::Disconnected));
    }

    #[test]
    fn a_panic_does_not_reach_the_worker() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let fail = std::hint::black_box(true);
        answer(runtime.handle(), async move { assert!(!fail) });
    }
}
