//! One attempt of a request: the bytes that move, and the time limit.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::Method;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::deadline::{Expiry, Operation, until_expired};
use super::Transport;

/// No time limit besides the operation's own deadline.
const NO_LIMIT: Duration = Duration::MAX;
/// Maximum number of sent bytes that the operating system holds: the largest buffer of a socket
/// that Linux allocates by itself. When the last piece has left the client, this many bytes may
/// still be in transit.
const SOCKET_BUFFER: u64 = 4 << 20;

/// Headers of requests for which a store moves bytes by itself.
const COPY_SOURCES: [&str; 3] = ["x-amz-copy-source", "x-goog-copy-source", "x-ms-copy-source"];

#[derive(Debug)]
pub(super) struct Attempt {
    transport: Transport,
    operation: Option<Arc<Operation>>,
    clock: Mutex<Expiry>,
    timeout: Duration,
    /// Time for which the body of the response may stay below the minimum rate.
    body_timeout: Duration,
}

impl Attempt {
    pub(super) fn new(transport: &Transport, operation: Option<Arc<Operation>>, request: &HttpRequest) -> Arc<Self> {
        let length = request.body().content_length() as u64;
        let body_timeout = if operation.is_some() && is_server_side(request) { NO_LIMIT } else { transport.timeout() };
        let sending = transport.deadline.time_of(length.min(SOCKET_BUFFER), transport.in_flight());
        // The operation's own deadline applies in any case.
        let timeout = body_timeout.saturating_add(sending.min(transport.deadline.budget()));
        let clock = Mutex::new(Expiry::new(transport.deadline.with_budget(timeout)));
        Arc::new(Attempt { transport: transport.clone(), operation, clock, timeout, body_timeout })
    }

    /// Waits for the response until the attempt expires.
    pub(super) async fn run<T>(&self, asking: impl Future<Output = Result<T, HttpError>>) -> Result<T, HttpError> {
        let answer = until_expired(|| self.expires(), asking).await;
        answer.unwrap_or_else(|| Err(self.too_slow("the server did not answer")))
    }

    pub(super) fn record_transfer(&self, bytes: u64) {
        let sharers = self.transport.in_flight();
        self.transport.moved.fetch_add(bytes, Ordering::Relaxed);
        self.clock.lock().add_transfer(Instant::now(), bytes, sharers);
        if let Some(operation) = &self.operation {
            operation.add_transfer(bytes, sharers);
        }
    }

    /// Restarts the clock for the body of the response.
    pub(super) fn begin_body(&self) {
        *self.clock.lock() = Expiry::new(self.transport.deadline.with_budget(self.body_timeout));
    }

    /// Returns the expiry time if nothing more moves.
    pub(super) fn expires(&self) -> Instant {
        self.clock.lock().expires()
    }

    pub(super) fn too_slow(&self, what: impl Display) -> HttpError {
        let message = format!("{what} within {} s", self.timeout.as_secs_f32());
        HttpError::new(HttpErrorKind::Timeout, std::io::Error::new(std::io::ErrorKind::TimedOut, message))
    }
}

/// Returns true if the store works on `request` before it responds, or sends little meanwhile: it
/// copies an object, or joins its parts.
fn is_server_side(request: &HttpRequest) -> bool {
    let joins =
        request.method() == Method::POST && request.uri().query().is_some_and(|query| query.contains("uploadId="));
    joins || COPY_SOURCES.iter().any(|name| request.headers().contains_key(*name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use object_store::client::HttpRequestBody;

    use super::*;

    #[test]
    fn a_store_that_copies_has_the_operation_s_time() {
        let request = |method: Method, uri: &str| {
            http::Request::builder().method(method).uri(uri).body(HttpRequestBody::empty()).unwrap()
        };
        assert!(is_server_side(&request(Method::POST, "http://h/b/k?uploadId=1")));
        assert!(!is_server_side(&request(Method::PUT, "http://h/b/k?partNumber=1&uploadId=1")));
        let mut copy = request(Method::PUT, "http://h/b/k");
        assert!(!is_server_side(&copy));
        copy.headers_mut().insert("x-amz-copy-source", "b/j".parse().unwrap());
        assert!(is_server_side(&copy));
    }
}
