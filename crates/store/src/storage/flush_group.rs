//! Flushes that several writers share: each waits for a flush that began after it had written, and
//! one flush serves all who wait.
//!
//! The kernel reports a lost write to one flush only, and the next one succeeds although the bytes
//! are gone. A flush that fails therefore fails for everyone whose bytes it was to bring to the
//! disk, also for those who have not asked yet.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use icechunkfs_base::error::{Error, Result};

/// Writers that wait for the same flush.
#[derive(Debug, Default)]
pub(super) struct FlushGroup {
    /// Number of writers so far.
    written: AtomicU64,
    state: Mutex<State>,
}

/// Writers by their number, up to which a flush has ended.
#[derive(Debug, Default)]
struct State {
    flushed: u64,
    failed: Option<(u64, Error)>,
}

impl FlushGroup {
    /// Makes what the caller has written survive a power loss, by `flush` or by one that another
    /// caller began after it was written.
    pub(super) async fn flush<F: Future<Output = Result<()>>>(&self, flush: impl FnOnce() -> F) -> Result<()> {
        let number = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        let mut state = self.state.lock().await;
        if let Some((last, error)) = &state.failed
            && number <= *last
        {
            return Err(error.clone());
        }
        if number <= state.flushed {
            return Ok(());
        }
        let last = self.written.load(Ordering::Acquire);
        match flush().await {
            Ok(()) => {
                state.flushed = last;
                Ok(())
            }
            Err(error) => {
                state.failed = Some((last, error.clone()));
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;
    use icechunkfs_base::error::ErrorKind;

    /// Group with a flush under way, begun by the first writer, and the writers behind it.
    struct Scene {
        group: Arc<FlushGroup>,
        flushes: Arc<AtomicU64>,
        gate: Arc<Notify>,
    }

    impl Scene {
        fn new() -> Self {
            Scene { group: Arc::default(), flushes: Arc::default(), gate: Arc::default() }
        }

        /// Begins a writer whose flush, if it comes to one, waits for the gate and fails if
        /// `fails`.
        async fn writer(&self, fails: bool) -> tokio::task::JoinHandle<Result<()>> {
            let before = self.group.written.load(Ordering::Acquire);
            let group = Arc::clone(&self.group);
            let flushes = Arc::clone(&self.flushes);
            let gate = Arc::clone(&self.gate);
            let task = tokio::spawn(async move {
                let flush = || async move {
                    flushes.fetch_add(1, Ordering::AcqRel);
                    gate.notified().await;
                    if fails { Err(Error::new(ErrorKind::Io, "the disk lost it")) } else { Ok(()) }
                };
                group.flush(flush).await
            });
            while self.group.written.load(Ordering::Acquire) == before {
                tokio::task::yield_now().await;
            }
            task
        }

        async fn open_gate_for_flush(&self, count: u64) {
            while self.flushes.load(Ordering::Acquire) < count {
                tokio::task::yield_now().await;
            }
            self.gate.notify_one();
        }
    }

    #[tokio::test]
    async fn writers_behind_a_flush_share_the_next_one() {
        let scene = Scene::new();
        let first = scene.writer(false).await;
        while scene.flushes.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        let second = scene.writer(false).await;
        let third = scene.writer(false).await;
        scene.open_gate_for_flush(1).await;
        first.await.unwrap().unwrap();
        assert!(!second.is_finished() && !third.is_finished(), "the flush began before they had written");
        scene.open_gate_for_flush(2).await;
        second.await.unwrap().unwrap();
        third.await.unwrap().unwrap();
        assert_eq!(scene.flushes.load(Ordering::Acquire), 2);
    }

    #[tokio::test]
    async fn a_failed_flush_fails_for_all_whose_bytes_it_was_to_save() {
        let scene = Scene::new();
        let first = scene.writer(false).await;
        while scene.flushes.load(Ordering::Acquire) == 0 {
            tokio::task::yield_now().await;
        }
        let second = scene.writer(true).await;
        let third = scene.writer(true).await;
        scene.open_gate_for_flush(1).await;
        first.await.unwrap().unwrap();
        scene.open_gate_for_flush(2).await;
        second.await.unwrap().unwrap_err();
        third.await.unwrap().unwrap_err();
        assert_eq!(scene.flushes.load(Ordering::Acquire), 2, "a flush after the failure would tell nothing");
        // What is written later is not concerned.
        let fourth = scene.writer(false).await;
        scene.open_gate_for_flush(3).await;
        fourth.await.unwrap().unwrap();
    }
}
