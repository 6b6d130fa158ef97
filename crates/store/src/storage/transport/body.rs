//! Bodies of requests and responses: counted as they move, and limited.
//!
//! The store's client collects whole responses: pages of listings, error documents, credentials.
//! Sizes that a server announces are not trusted; a response ends at the length that was requested.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, RANGE};
use http::{HeaderMap, Method, StatusCode};
use http_body::{Body, Frame};
use object_store::PutPayload;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponseBody};
use tokio::time::Sleep;

use super::super::deadline::{Operation, UNBOUNDED};
use super::attempt::Attempt;
use super::concurrency::Permit;
use icechunkfs_base::metrics::STORE;

/// Size of the pieces that are sent, in bytes. Progress is visible piece by piece.
const PIECE: usize = 64 << 10;
/// Maximum size of a response that is no object, in bytes: pages of listings are the largest.
/// Azure's have 5,000 entries of 1 to 2 KiB.
const MAX_RESPONSE: u64 = 16 << 20;
/// Maximum number of bytes that are read of an error response, which is for people.
const MAX_ERROR_BODY: u64 = 64 << 10;

/// Maximum number of bytes that are taken of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLimit {
    /// More bytes are an error.
    Most(u64),
    /// Further bytes are dropped.
    First(u64),
}

/// Properties of a request that decide the limit of its response.
pub(super) struct Expectation {
    method: Method,
    /// First and last byte of the requested range.
    range: Option<(u64, u64)>,
    /// Maximum number of bytes to read of the object, if the request reads one.
    object: Option<u64>,
}

impl Expectation {
    pub(super) fn of(request: &HttpRequest, operation: Option<&Operation>) -> Self {
        Expectation {
            method: request.method().clone(),
            range: range_of(request.headers()),
            object: operation.and_then(|operation| operation.limit_of(request.uri().path())),
        }
    }

    /// Returns the limit of a response. Fails for a range that was not requested and that would
    /// overflow in the client.
    pub(super) fn bound(&self, status: StatusCode, headers: &HeaderMap) -> Result<BodyLimit, HttpError> {
        let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
        if status == StatusCode::PARTIAL_CONTENT
            && text(CONTENT_RANGE).is_some_and(|said| said.contains(&u64::MAX.to_string()))
        {
            return Err(wrong("the server sent an impossible range"));
        }
        Ok(match (self.object.filter(|_| self.method == Method::GET), self.range) {
            _ if !status.is_success() => BodyLimit::First(MAX_ERROR_BODY),
            (Some(UNBOUNDED), _) => BodyLimit::Most(UNBOUNDED),
            (Some(limit), Some((first, last))) if status == StatusCode::PARTIAL_CONTENT => {
                BodyLimit::Most(limit.min(last.saturating_sub(first).saturating_add(1)))
            }
            (Some(limit), _) => BodyLimit::Most(limit),
            (None, _) => BodyLimit::Most(MAX_RESPONSE),
        })
    }
}

/// Parses the range `bytes=FIRST-LAST` that a request asks for.
fn range_of(headers: &HeaderMap) -> Option<(u64, u64)> {
    let (first, last) = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn wrong(what: &'static str) -> HttpError {
    HttpError::new(HttpErrorKind::Decode, std::io::Error::new(std::io::ErrorKind::InvalidData, what))
}

/// Splits the body of `request` into pieces that notify `attempt` when they have been sent.
pub(super) fn count_body(request: HttpRequest, attempt: &Arc<Attempt>) -> HttpRequest {
    if request.body().content_length() <= PIECE {
        return request;
    }
    let (mut parts, mut body) = request.into_parts();
    // A body in pieces does not know its length.
    parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| body.content_length().into());
    let mut pieces = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    // The whole body is in memory: it is never pending, and has no errors.
    while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) {
        let Ok(mut bytes) = frame.into_data() else { continue };
        while !bytes.is_empty() {
            let bytes = bytes.split_to(bytes.len().min(PIECE));
            pieces.push(Bytes::from_owner(Piece { bytes, attempt: Arc::clone(attempt) }));
        }
    }
    HttpRequest::from_parts(parts, HttpRequestBody::from(PutPayload::from_iter(pieces)))
}

/// Piece of a request body. The client drops it when the operating system has its bytes.
struct Piece {
    bytes: Bytes,
    attempt: Arc<Attempt>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.attempt.record_transfer(self.bytes.len() as u64);
    }
}

/// Body of a response, with limits of time and size. The request is in flight until the body ends.
pub(super) struct LimitedBody {
    body: HttpResponseBody,
    attempt: Arc<Attempt>,
    expiry: Pin<Box<Sleep>>,
    bound: BodyLimit,
    is_over: bool,
    _permit: Permit,
}

impl LimitedBody {
    pub(super) fn new(body: HttpResponseBody, attempt: Arc<Attempt>, bound: BodyLimit, permit: Permit) -> Self {
        let expiry = Box::pin(tokio::time::sleep_until(attempt.expires()));
        LimitedBody { body, attempt, expiry, bound, is_over: false, _permit: permit }
    }

    /// Returns the part of `bytes` that is within the limit.
    fn take(&mut self, mut bytes: Bytes) -> Result<Bytes, HttpError> {
        let length = bytes.len() as u64;
        self.attempt.record_transfer(length);
        STORE.received.add(length);
        match &mut self.bound {
            BodyLimit::Most(left) => {
                *left = left.checked_sub(length).ok_or_else(|| wrong("the server sent more than was requested"))?;
            }
            BodyLimit::First(left) => {
                bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left = left.saturating_sub(length);
                self.is_over = *left == 0;
            }
        }
        Ok(bytes)
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            let taken = frame.map(|frame| match frame?.into_data() {
                Ok(bytes) => self.take(bytes).map(Frame::data),
                Err(trailers) => Ok(trailers),
            });
            self.is_over |= matches!(taken, None | Some(Err(_)));
            return Poll::Ready(taken);
        }
        while self.expiry.as_mut().poll(context).is_ready() {
            let expires = self.attempt.expires();
            if expires <= self.expiry.deadline() {
                self.is_over = true;
                return Poll::Ready(Some(Err(self.attempt.too_slow("the server sent too little"))));
            }
            self.expiry.as_mut().reset(expires);
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    // The body gives no size hint: the client would allocate memory for the size that the server
    // announces.
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(range: Option<(u64, u64)>, object: Option<u64>) -> Expectation {
        Expectation { method: Method::GET, range, object }
    }

    #[test]
    fn an_answer_is_bounded_by_what_was_asked_for() {
        let none = HeaderMap::new();
        let bound = |asked: Expectation, status| asked.bound(status, &none).unwrap();
        assert_eq!(bound(asked(None, None), StatusCode::OK), BodyLimit::Most(MAX_RESPONSE));
        assert_eq!(bound(asked(None, Some(1 << 30)), StatusCode::OK), BodyLimit::Most(1 << 30));
        assert_eq!(bound(asked(Some((10, 19)), Some(10)), StatusCode::PARTIAL_CONTENT), BodyLimit::Most(10));
        // The rest of an object is requested after the connection broke.
        assert_eq!(bound(asked(Some((15, 19)), Some(10)), StatusCode::PARTIAL_CONTENT), BodyLimit::Most(5));
        for status in [StatusCode::FORBIDDEN, StatusCode::SERVICE_UNAVAILABLE, StatusCode::FOUND] {
            assert_eq!(bound(asked(None, Some(1 << 30)), status), BodyLimit::First(MAX_ERROR_BODY));
        }
    }

    #[test]
    fn a_range_that_cannot_be_added_up_is_refused() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_RANGE, format!("bytes 0-{}/7", u64::MAX).parse().unwrap());
        assert!(asked(Some((0, 6)), Some(7)).bound(StatusCode::PARTIAL_CONTENT, &headers).is_err());
    }
}
