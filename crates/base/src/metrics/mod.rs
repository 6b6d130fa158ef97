//! Counts of what this process does, for `.icechunk/stats`, `--metrics` and `icechunkfs top`.
//!
//! A daemon serves one mount, so the counts are of the process. A program that makes several mounts
//! with the library sees their sum.
//!
//! Counting must cost nothing that a read could notice: relaxed additions to atomics, and two clock
//! readings a request. What the kernel answers from its own caches, and what it reads from chunk
//! files itself (passthrough), never reaches the daemon and is in no count.

mod histogram;
mod prometheus;
mod request;

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

pub use self::prometheus::{Gauge, render};
pub use self::request::{Operation, Outcome, Timed};

/// Counter that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    const fn new() -> Self {
        Counter(AtomicU64::new(0))
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Returns the sum.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes of chunks by where they came from.
#[derive(Debug)]
pub struct Sources {
    /// Memory of the daemon.
    pub memory: Counter,
    /// Disk cache.
    pub disk_cache: Counter,
    /// Files of a repository on a disk of this machine, and of virtual chunks on it.
    pub local: Counter,
    /// Object store.
    pub store: Counter,
}

/// Requests to object stores over HTTP, each attempt counted.
#[derive(Debug)]
pub struct Store {
    /// GET and HEAD.
    pub reads: Counter,
    /// PUT and POST.
    pub writes: Counter,
    /// DELETE.
    pub deletes: Counter,
    /// Attempts after the first one of the same request.
    pub retries: Counter,
    /// Responses that tell of overload or a fault of the server (429, 5xx), and attempts without a
    /// response.
    pub failures: Counter,
    /// Bytes of response bodies.
    pub received: Counter,
    /// Bytes of request bodies.
    pub sent: Counter,
}

/// Bytes of chunks that were fetched before a program asked for them.
#[derive(Debug)]
pub struct Prefetch {
    /// Fetched.
    pub fetched: Counter,
    /// Fetched, and then read.
    pub used: Counter,
    /// Fetched, and evicted before they were read.
    pub wasted: Counter,
}

/// Bytes of chunks by source.
pub static SOURCES: Sources =
    Sources { memory: Counter::new(), disk_cache: Counter::new(), local: Counter::new(), store: Counter::new() };
/// Requests to object stores.
pub static STORE: Store = Store {
    reads: Counter::new(),
    writes: Counter::new(),
    deletes: Counter::new(),
    retries: Counter::new(),
    failures: Counter::new(),
    received: Counter::new(),
    sent: Counter::new(),
};
/// Prefetched bytes.
pub static PREFETCH: Prefetch = Prefetch { fetched: Counter::new(), used: Counter::new(), wasted: Counter::new() };
/// Start of the process, as far as counting goes.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Begins the time that `icechunkfs_uptime_seconds` counts.
pub fn begin() {
    LazyLock::force(&START);
}
