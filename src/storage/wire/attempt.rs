//! One try of a request: what has moved, and when it has been too slow.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use object_store::client::{HttpError, HttpErrorKind};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::deadline::{Clock, Operation};
use super::Wire;

/// Bytes that the operating system holds of what is sent, at most: the largest buffer of a socket that Linux makes by itself. When
/// the last piece has left the client, so many may still be on their way.
const SOCKET_BUFFER: u64 = 4 << 20;

/// A try of a request.
#[derive(Debug)]
pub(super) struct Attempt {
    wire: Wire,
    operation: Option<Arc<Operation>>,
    clock: Mutex<Clock>,
    patience: Duration,
}

impl Attempt {
    /// A try that sends `length` bytes for `operation`.
    pub(super) fn new(wire: &Wire, operation: Option<Arc<Operation>>, length: u64) -> Arc<Self> {
        let sending = wire.deadline.time_of(length.min(SOCKET_BUFFER), wire.under_way());
        // The operation's own deadline is there in any case.
        let patience = wire.patience().saturating_add(sending.min(wire.deadline.budget()));
        let clock = Mutex::new(Clock::new(wire.deadline.with_budget(patience)));
        Arc::new(Attempt { wire: wire.clone(), operation, clock, patience })
    }

    /// Waits for the answer.
    pub(super) async fn answer<T>(&self, asking: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
        let mut asking = std::pin::pin!(asking);
        loop {
            let expires = self.expires();
            match tokio::time::timeout_at(expires, &mut asking).await {
                Ok(answer) => return answer,
                Err(_) if self.expires() > expires => {}
                Err(_) => return Err(self.too_slow("the server did not answer")),
            }
        }
    }

    /// Counts bytes that were sent or have come.
    pub(super) fn moved(&self, bytes: u64) {
        let sharers = self.wire.under_way();
        self.wire.count(bytes);
        self.clock.lock().add_transfer(Instant::now(), bytes, sharers);
        if let Some(operation) = &self.operation {
            operation.add_transfer(bytes, sharers);
        }
    }

    /// Begins to wait for the body of the answer.
    pub(super) fn begin_body(&self) {
        *self.clock.lock() = Clock::new(self.wire.deadline.with_budget(self.wire.patience()));
    }

    /// When it has been too slow, if nothing more moves.
    pub(super) fn expires(&self) -> Instant {
        self.clock.lock().expires()
    }

    /// The error of a try that was too slow.
    pub(super) fn too_slow(&self, what: impl Display) -> HttpError {
        let message = format!("{what} within {} s", self.patience.as_secs_f32());
        HttpError::new(HttpErrorKind::Timeout, std::io::Error::new(std::io::ErrorKind::TimedOut, message))
    }
}
