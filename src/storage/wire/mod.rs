//! The line to a store: every request of every store goes over it.
//!
//! What the store's client does not do is done here, below its repetitions: how many requests are under way, of which kind,
//! is bounded ([`pressure`]), and each try has a deadline for its answer and for each pause within it, so that a server that
//! falls silent costs a moment and not the operation. What is sent can be bounded in bytes a second ([`limit`]).

mod limit;
mod pressure;

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::time::{Instant, Sleep};

pub(super) use self::limit::Limit;
use self::pressure::{Permit, Pressure};

/// What part of an operation's time one try may take: two more are possible then.
const TRIES_IN_BUDGET: u32 = 3;
/// What a network carries in a second at least. Bytes: a body that is sent takes that much longer.
pub(super) const SLOWEST: u64 = 64 << 10;

/// A line. Clones are the same line.
#[derive(Clone, Debug)]
pub(super) struct Wire {
    pressure: Arc<Pressure>,
    /// How long a try may wait for an answer, or for its next bytes.
    patience: Duration,
    limit: Option<Arc<Limit>>,
}

impl Wire {
    /// A line for `requests` at a time, on which an operation may take `budget`, and which sends at most `upload_limit` bytes a
    /// second, if that is given.
    pub(super) fn new(requests: u16, budget: Duration, upload_limit: Option<u64>) -> Self {
        Wire {
            pressure: Arc::new(Pressure::new(usize::from(requests))),
            patience: budget / TRIES_IN_BUDGET,
            limit: upload_limit.map(|rate| Arc::new(Limit::new(rate))),
        }
    }

    /// The bound for what is sent: who sends much asks it before.
    pub(super) fn limit(&self) -> Option<Arc<Limit>> {
        self.limit.clone()
    }

    /// Requests that are under way.
    pub(super) fn under_way(&self) -> usize {
        self.pressure.under_way()
    }

    /// `client`, over this line.
    pub(super) fn wrap(&self, client: HttpClient) -> HttpClient {
        HttpClient::new(OverWire { client, wire: self.clone() })
    }
}

#[derive(Debug)]
struct OverWire {
    client: HttpClient,
    wire: Wire,
}

#[async_trait]
impl HttpService for OverWire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Chunks are most of what goes over the line, and nobody lists a directory by them.
        let bulk = request.uri().path().contains("/chunks/");
        let permit = self.wire.pressure.enter(bulk).await;
        let length = request.body().content_length() as u64;
        if let Some(limit) = self.wire.limit.as_ref().filter(|_| length > 0) {
            limit.sends(length);
        }
        let sending = Duration::from_secs(length / SLOWEST);
        let patience = self.wire.patience;
        let answer = tokio::time::timeout(patience + sending, self.client.execute(request)).await;
        let answer = answer.map_err(|_| silent("the server did not answer", patience + sending))??;
        if matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            self.wire.pressure.throttled();
        } else {
            self.wire.pressure.answered();
        }
        let (parts, body) = answer.into_parts();
        let idle = Box::pin(tokio::time::sleep(patience));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(Watched { body, idle, patience, _permit: permit })))
    }
}

fn silent(what: impl Display, patience: Duration) -> HttpError {
    let error =
        std::io::Error::new(std::io::ErrorKind::TimedOut, format!("{what} within {} s", patience.as_secs_f32()));
    HttpError::new(HttpErrorKind::Timeout, error)
}

/// The body of an answer, which may not fall silent. The request is under way until its end.
struct Watched {
    body: HttpResponseBody,
    idle: Pin<Box<Sleep>>,
    patience: Duration,
    _permit: Permit,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let patience = self.patience;
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.idle.as_mut().reset(Instant::now() + patience);
            return Poll::Ready(frame);
        }
        match Future::poll(self.idle.as_mut(), context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(silent("the server sent nothing more", patience)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
