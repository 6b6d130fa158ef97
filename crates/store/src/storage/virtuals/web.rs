//! Virtual chunks on web servers.
//!
//! This code has its own client, since a web server may response anything. It requests a range and
//! checks which part it receives; from a server without ranges it reads and discards the bytes
//! before the range, up to a limit. It follows no redirect by itself: the caller decides, since it
//! knows the permissions.

use http::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, LAST_MODIFIED, LOCATION, RANGE,
};
use http::{HeaderName, Method, StatusCode};
use object_store::RetryConfig;
use object_store::client::{HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse};

use super::super::connect;
use super::super::deadline::{Deadline, UNBOUNDED};
use super::super::object::{take_range, too_short};
use super::super::settings::Settings;
use super::super::transport::Transport;
use super::address::quoted;
use super::checksum::ObjectState;
use super::range::{Part, RangeRequest};
use icechunkfs_base::error::{Error, ErrorKind, Result};

/// Maximum number of bytes before a range that are read from a server that sends only whole
/// objects. They are sent again for each chunk.
const MAX_SKIPPED: u64 = 64 << 20;
/// Suffix of every path: each response of a web server is one of the object.
const ANY_PATH: &str = "";

#[derive(Debug)]
pub(super) struct Web {
    client: HttpClient,
    pub(super) transport: Transport,
    retry: RetryConfig,
    deadline: Deadline,
}

pub(super) enum WebResponse {
    /// The requested bytes.
    Part(Part),
    /// Absolute URL of another place, from a redirect.
    Redirect(String),
}

/// Failure of an attempt; `is_transient` is true if a retry may succeed.
struct Failure {
    error: Error,
    is_transient: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure { error, is_transient: false }
    }
}

impl Web {
    pub(super) fn new(settings: &Settings) -> Result<Self> {
        let (client, transport, retry) = connect::web_client(settings)?;
        Ok(Web { client, transport, retry, deadline: Deadline::of(settings) })
    }

    pub(super) async fn get(&self, wanted: &RangeRequest<'_>) -> Result<WebResponse> {
        let shown = wanted.address.to_string();
        let RetryConfig { backoff, retry_timeout, .. } = &self.retry;
        let begin = tokio::time::Instant::now();
        let request = async {
            let mut pause = backoff.init_backoff;
            loop {
                match self.try_once(wanted, &shown).await {
                    Ok(given) => return Ok(given),
                    Err(failure) if failure.is_transient && begin.elapsed() + pause < *retry_timeout => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(backoff.max_backoff);
                    }
                    Err(failure) => return Err(failure.error),
                }
            }
        };
        // A server without ranges sends more; no more is read than necessary.
        self.deadline.read(ANY_PATH, UNBOUNDED, &shown, request).await
    }

    async fn try_once(&self, wanted: &RangeRequest<'_>, shown: &str) -> Result<WebResponse, Failure> {
        let url = wanted.query.map_or_else(|| shown.to_owned(), |query| format!("{shown}?{query}"));
        let last = wanted.offset.checked_add(wanted.length).and_then(|end| end.checked_sub(1));
        let last = last.ok_or_else(|| too_short(shown, wanted.offset, wanted.length, 0))?;
        let request = http::Request::builder()
            .method(Method::GET)
            .uri(&url)
            .header(RANGE, format!("bytes={}-{last}", wanted.offset))
            // A range counts stored bytes, without an encoding.
            .header(ACCEPT_ENCODING, "identity")
            .body(HttpRequestBody::empty());
        let request: HttpRequest = request
            .map_err(|e| Error::with_source(ErrorKind::Unsupported, format!("{shown}: it is not a valid URL"), e))?;
        let response = self.client.execute(request).await.map_err(|error| transport_error(shown, error))?;
        let status = response.status();
        if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
            return Ok(WebResponse::Redirect(redirect(&response, &url, shown)?));
        }
        let before = match status {
            StatusCode::PARTIAL_CONTENT => {
                check_range(&response, wanted, shown)?;
                0
            }
            StatusCode::OK => {
                check_whole(&response, wanted, shown)?;
                wanted.offset
            }
            other => return Err(status_error(other, wanted, shown)),
        };
        if let Some(encoding) = header(&response, &CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
            let message =
                format!("{shown}: the server sent it encoded as {}, which was not requested", quoted(encoding));
            return Err(Error::new(ErrorKind::Unsupported, message).into());
        }
        let state = state_of(&response);
        if let Some(checksum) = wanted.checksum {
            state.check(checksum)?;
        }
        let whole = whole_length(&response);
        let is_alone = status == StatusCode::PARTIAL_CONTENT;
        let body = response.into_body().bytes_stream();
        let bytes = take_range(body, before, wanted.length).await.map_err(|error| transport_error(shown, error))?;
        Ok(WebResponse::Part(Part { bytes, state, whole, is_alone }.checked(wanted)?))
    }
}

fn header<'a>(response: &'a HttpResponse, name: &HeaderName) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

fn state_of(response: &HttpResponse) -> ObjectState {
    let parser = jiff::fmt::rfc2822::DateTimeParser::new();
    let time = header(response, &LAST_MODIFIED).and_then(|text| parser.parse_timestamp(text).ok());
    ObjectState { e_tag: header(response, &ETAG).map(str::to_owned), last_modified: time.map(|time| time.as_second()) }
}

/// Returns the length of the whole object, if the server tells it.
fn whole_length(response: &HttpResponse) -> Option<u64> {
    let length = match response.status() {
        StatusCode::PARTIAL_CONTENT => header(response, &CONTENT_RANGE)?.rsplit_once('/')?.1,
        _ => header(response, &CONTENT_LENGTH)?,
    };
    length.trim().parse().ok()
}

/// Checks that the received part begins at the requested offset.
fn check_range(response: &HttpResponse, wanted: &RangeRequest<'_>, shown: &str) -> Result<()> {
    let content_range = header(response, &CONTENT_RANGE).unwrap_or_default();
    let first =
        content_range.strip_prefix("bytes ").and_then(|rest| rest.split('-').next()?.trim().parse::<u64>().ok());
    if first == Some(wanted.offset) {
        return Ok(());
    }
    let offset = wanted.offset;
    let given = quoted(content_range);
    Err(Error::corrupt(format!("{shown}: bytes from {offset} on were requested, and the server sent {given}")))
}

/// Checks that a whole object has the wanted part, and not too far from its beginning.
fn check_whole(response: &HttpResponse, wanted: &RangeRequest<'_>, shown: &str) -> Result<()> {
    let size = header(response, &CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    if let Some(size) = size.filter(|_| !wanted.may_be_shorter)
        && size < wanted.offset.saturating_add(wanted.length)
    {
        let available = size.saturating_sub(wanted.offset).min(wanted.length);
        return Err(too_short(shown, wanted.offset, wanted.length, available));
    }
    if wanted.offset > MAX_SKIPPED {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{shown}: the server only sends whole files, and {} MiB would precede the chunk each time: copy the \
                 file, and name the copy with --virtual-map",
                wanted.offset >> 20
            ),
        ));
    }
    Ok(())
}

fn redirect(response: &HttpResponse, url: &str, shown: &str) -> Result<String> {
    let location = header(response, &LOCATION).unwrap_or_default();
    let joined = url::Url::parse(url).ok().filter(|_| !location.is_empty()).and_then(|base| base.join(location).ok());
    let joined = joined.map(|url| url.to_string());
    joined.ok_or_else(|| {
        Error::corrupt(format!("{shown}: the server redirects to {}, which is not a valid URL", quoted(location)))
    })
}

fn status_error(status: StatusCode, wanted: &RangeRequest<'_>, shown: &str) -> Failure {
    let is_transient = matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
    let error = match status.as_u16() {
        404 | 410 => Error::new(ErrorKind::NotFound, format!("{shown}: the server does not have the object")),
        401 | 403 | 407 => Error::new(
            ErrorKind::PermissionDenied,
            format!("{shown}: the server answers {status}; a header may provide what it requires"),
        ),
        416 => too_short(shown, wanted.offset, wanted.length, 0),
        _ => Error::new(ErrorKind::Io, format!("{shown}: the server answers {status}")),
    };
    Failure { error, is_transient }
}

fn transport_error(shown: &str, error: HttpError) -> Failure {
    let (kind, what) = match error.kind() {
        HttpErrorKind::Timeout => (ErrorKind::Timeout, "the server did not answer in time"),
        HttpErrorKind::Connect => (ErrorKind::Io, "the server cannot be reached"),
        _ => (ErrorKind::Io, "the line broke"),
    };
    let is_transient = !matches!(error.kind(), HttpErrorKind::Decode);
    Failure { error: Error::with_source(kind, format!("{shown}: {what}"), error), is_transient }
}
