//! Keeps programs on the processor where their requests are answered.
//!
//! When a program is woken with an answer, its processor is busy: the thread that answered has not
//! gone to sleep yet. So the scheduler moves the program to an idle processor, which takes longer
//! than the answer (measured: `open`, `read` and `close` of a small file 43 us instead of 17). It
//! does not if what runs there has the policy `SCHED_IDLE`, as it may then be interrupted at once.
//!
//! But a thread with that policy may not get to run at all for as long as others compute. So the
//! threads have it only as long as they are watched: a guard gives them back the normal policy when
//! one of them is ready to run and does not get on, and when there are no requests. It watches
//! every few milliseconds while there are some. Where the policy cannot be taken back (that takes
//! `CAP_SYS_NICE`) it is never set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::debug;

/// Time between looks at the threads: what a request may wait at most is about twice that.
const TICK: Duration = Duration::from_millis(5);
/// Looks in a row at which a thread is ready to run and has not got on, before it is helped.
const STUCK: u32 = 2;
/// Looks for which a thread that was helped has the normal policy: half a second, in which a busy
/// machine makes it wait for 2 % of the time.
const HELPED: u32 = 100;
/// Looks without any request before the guard rests: a fifth of a second.
const QUIET: u32 = 40;

/// Guard of the threads of a mount.
#[derive(Debug, Default)]
pub(super) struct Guard {
    threads: Mutex<Vec<Arc<Watched>>>,
    /// True while there are no requests; the next one wakes the guard.
    rests: AtomicBool,
    /// Thread of the guard; none if it has not begun, or cannot help.
    thread: Mutex<Option<Thread>>,
}

/// Thread that answers requests, as the guard sees it.
#[derive(Debug, Default)]
pub(super) struct Watched {
    thread: AtomicI32,
    answered: AtomicU64,
    has_ended: AtomicBool,
}

/// State of a thread as the guard knows it.
#[derive(Debug, Default)]
struct State {
    answered: u64,
    /// Looks in a row at which it was stuck.
    stuck: u32,
    /// Looks for which it keeps the normal policy.
    helped: u32,
    yields: bool,
}

/// Policy of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Normal,
    /// Gives way to any other thread.
    Idle,
}

impl Guard {
    /// Starts a guard, if this process may set policies and take them back.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let may = std::thread::spawn(|| set(0, Policy::Idle) && set(0, Policy::Normal)).join().unwrap_or(false);
        if !may {
            debug!("programs may be moved to other processors by each answer: that takes the capability CAP_SYS_NICE");
            return Ok(());
        }
        self.rests.store(true, Ordering::SeqCst);
        let guard = Arc::clone(self);
        let run = move || guard.watch(set, is_ready);
        let thread = std::thread::Builder::new().name("fuse-guard".to_owned()).spawn(run)?;
        *self.thread.lock() = Some(thread.thread().clone());
        Ok(())
    }

    /// Begins to watch the calling thread.
    pub(super) fn watch_me(&self) -> Arc<Watched> {
        let watched = Arc::<Watched>::default();
        watched.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        self.threads.lock().push(Arc::clone(&watched));
        watched
    }

    /// Records that a watched thread has answered a request.
    pub(super) fn answered(&self, by: &Watched) {
        by.answered.fetch_add(1, Ordering::Relaxed);
        if self.rests.load(Ordering::Relaxed) {
            self.wake();
        }
    }

    /// Records that a watched thread ends.
    pub(super) fn ended(&self, watched: &Watched) {
        watched.has_ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        self.rests.store(false, Ordering::SeqCst);
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    /// Watches until all threads have ended. `set` sets the policy of a thread, `is_ready` tells
    /// whether it is ready to run.
    fn watch(&self, set: impl Fn(i32, Policy) -> bool, is_ready: impl Fn(i32) -> bool) {
        let mut states: Vec<State> = Vec::new();
        let mut quiet = 0;
        loop {
            while self.rests.load(Ordering::SeqCst) {
                std::thread::park();
            }
            std::thread::sleep(TICK);
            let threads = self.threads.lock().clone();
            let alive: Vec<_> = threads.iter().filter(|thread| !thread.has_ended.load(Ordering::SeqCst)).collect();
            if alive.is_empty() && !threads.is_empty() {
                return;
            }
            states.resize_with(threads.len(), State::default);
            let mut has_requests = false;
            for (thread, state) in threads.iter().zip(&mut states) {
                let number = thread.thread.load(Ordering::SeqCst);
                let answered = thread.answered.load(Ordering::SeqCst);
                let went_on = std::mem::replace(&mut state.answered, answered) != answered;
                has_requests |= went_on;
                if !thread.has_ended.load(Ordering::SeqCst) {
                    let wanted = state.look(went_on, || is_ready(number));
                    state.change(wanted, |policy| set(number, policy));
                }
            }
            quiet = if has_requests { 0 } else { quiet + 1 };
            if quiet >= QUIET {
                // Nobody watches from here on.
                for (thread, state) in threads.iter().zip(&mut states) {
                    state.change(Policy::Normal, |policy| set(thread.thread.load(Ordering::SeqCst), policy));
                }
                quiet = 0;
                self.rests.store(true, Ordering::SeqCst);
                let changed = |(thread, state): (&Arc<Watched>, &State)| {
                    thread.answered.load(Ordering::SeqCst) != state.answered || thread.has_ended.load(Ordering::SeqCst)
                };
                if threads.iter().zip(&states).any(changed) {
                    self.rests.store(false, Ordering::SeqCst);
                }
            }
        }
    }
}

impl State {
    /// Returns the policy that a thread should have, which has answered since the last look if
    /// `went_on` is true.
    fn look(&mut self, went_on: bool, is_ready: impl FnOnce() -> bool) -> Policy {
        self.stuck = if !went_on && is_ready() { self.stuck + 1 } else { 0 };
        self.helped = self.helped.saturating_sub(1);
        if self.yields && self.stuck >= STUCK {
            self.helped = HELPED;
        }
        if self.helped == 0 && (self.yields || went_on) { Policy::Idle } else { Policy::Normal }
    }

    /// Sets `policy`, unless the thread has it.
    fn change(&mut self, policy: Policy, set: impl FnOnce(Policy) -> bool) {
        let yields = policy == Policy::Idle;
        if yields != self.yields && set(policy) {
            self.yields = yields;
        }
    }
}

/// Sets the policy of a thread of this process; 0 is the calling one. Returns false if that is not
/// allowed.
fn set(thread: i32, policy: Policy) -> bool {
    let policy = if policy == Policy::Idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: the structure lives as long as the call, and other threads are not harmed by a
    // priority.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(thread, policy, &raw const parameters) == 0
    }
}

/// Returns true if a thread of this process is running or would like to.
fn is_ready(thread: i32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name before the state may have any characters.
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_thread_that_does_not_get_on_is_helped_for_a_while() {
        let mut state = State::default();
        let mut step = |went_on, ready| {
            let wanted = state.look(went_on, || ready);
            state.change(wanted, |_| true);
            wanted
        };
        assert_eq!(step(false, false), Policy::Normal, "no requests yet");
        assert_eq!([step(true, true), step(false, false), step(true, false)], [Policy::Idle; 3]);
        assert_eq!([step(false, true), step(false, true)], [Policy::Idle, Policy::Normal]);
        let helped: Vec<Policy> = (1..HELPED).map(|_| step(true, true)).collect();
        assert!(helped.iter().all(|policy| *policy == Policy::Normal));
        assert_eq!(step(true, true), Policy::Idle);
    }

    #[test]
    fn policies_are_normal_when_nobody_watches() {
        let guard = Arc::new(Guard::default());
        let policies = Arc::new(Mutex::new(Vec::new()));
        guard.rests.store(true, Ordering::SeqCst);
        let watching = Arc::clone(&guard);
        let seen = Arc::clone(&policies);
        let thread = std::thread::spawn(move || {
            let set = |_, policy| {
                seen.lock().push(policy);
                true
            };
            watching.watch(set, |_| false);
        });
        *guard.thread.lock() = Some(thread.thread().clone());
        let watched = guard.watch_me();
        for round in 1..=2 {
            guard.answered(&watched);
            let deadline = Instant::now() + Duration::from_secs(20);
            while policies.lock().len() < 2 * round && Instant::now() < deadline {
                std::thread::sleep(TICK);
            }
            assert!(policies.lock().chunks(2).all(|pair| pair == [Policy::Idle, Policy::Normal]));
            while !guard.rests.load(Ordering::SeqCst) && Instant::now() < deadline {
                std::thread::sleep(TICK);
            }
        }
        assert_eq!(policies.lock().len(), 4);
        guard.ended(&watched);
        thread.join().unwrap();
    }

    #[test]
    fn the_kernel_tells_whether_a_thread_is_ready() {
        assert!(is_ready(rustix::thread::gettid().as_raw_nonzero().get()));
        assert!(!is_ready(0));
    }
}
