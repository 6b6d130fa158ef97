//! HTTP transport: every request of every store goes through it.
//!
//! The transport adds what the store's client lacks, below its retries. The number of requests in
//! flight is limited by kind ([`concurrency`]), and each attempt has its own clock ([`attempt`]),
//! so that a silent or slow server costs an attempt and not the operation. Bodies are counted and
//! limited ([`body`]). Uploads can be limited in bytes per second ([`rate_limit`]).

mod attempt;
mod body;
pub(super) mod concurrency;
mod rate_limit;

use std::error::Error;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::{Method, StatusCode};
use object_store::client::{
    HttpClient, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};

use self::attempt::Attempt;
use self::body::{Expectation, LimitedBody, count_body};
use self::concurrency::{ConcurrencyLimit, Permit};
use self::rate_limit::UploadRateLimit;
use super::clock::StoreClock;
use super::deadline::{Deadline, Operation};
use super::explain::{NO_TLS, error_chain};
use super::request_rules::RequestRules;
use super::settings::Settings;
use icechunkfs_base::metrics::STORE;

/// Divisor of an operation's time budget for the time of one attempt: two more are then possible.
const TRIES_IN_BUDGET: u32 = 3;
/// Interval at which waiting requests check whether other transfers make progress.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Transport of requests. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    concurrency: Arc<ConcurrencyLimit>,
    deadline: Deadline,
    /// Bytes that all transfers have moved.
    moved: Arc<AtomicU64>,
    upload_limit: Option<Arc<UploadRateLimit>>,
    clock: Arc<StoreClock>,
    rules: Arc<RequestRules>,
}

impl Transport {
    pub(super) fn new(settings: &Settings) -> Self {
        let concurrency = Arc::new(ConcurrencyLimit::new(usize::from(settings.requests())));
        Transport {
            rules: Arc::new(RequestRules::new(settings, Arc::clone(&concurrency))),
            concurrency,
            deadline: Deadline::of(settings),
            moved: Arc::default(),
            upload_limit: settings.upload_limit.map(|rate| Arc::new(UploadRateLimit::new(rate))),
            clock: Arc::default(),
        }
    }

    /// Returns the upload rate limit, which callers must pass before they send much.
    pub(super) fn upload_limit(&self) -> Option<&UploadRateLimit> {
        self.upload_limit.as_deref()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.concurrency.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn in_flight_gauge(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.concurrency.in_flight)
    }

    pub(super) fn rules(&self) -> Arc<RequestRules> {
        Arc::clone(&self.rules)
    }

    pub(super) fn clock(&self) -> Arc<StoreClock> {
        Arc::clone(&self.clock)
    }

    /// Wraps `client` so that its requests go through this transport.
    pub(super) fn wrap(&self, client: HttpClient) -> HttpClient {
        HttpClient::new(TransportService { client, transport: self.clone() })
    }

    /// Returns the time for which an attempt may wait for a response, or its body may stay below
    /// the minimum rate.
    fn timeout(&self) -> Duration {
        self.deadline.budget() / TRIES_IN_BUDGET
    }

    /// Waits for a permit. Meanwhile `operation` is extended as long as all transfers together keep
    /// up the minimum rate.
    async fn acquire(&self, bulk: bool, operation: Option<&Operation>) -> Permit {
        let mut acquiring = pin!(self.concurrency.acquire(bulk));
        let mut seen = self.moved.load(Ordering::Relaxed);
        loop {
            if let Ok(permit) = tokio::time::timeout(LOOK_EVERY, &mut acquiring).await {
                return permit;
            }
            let now = self.moved.load(Ordering::Relaxed);
            if let Some(operation) = operation {
                operation.extend(now.saturating_sub(seen));
            }
            seen = now;
        }
    }
}

#[derive(Debug)]
struct TransportService {
    client: HttpClient,
    transport: Transport,
}

#[async_trait]
impl HttpService for TransportService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let operation = Operation::current();
        let id = request_id(&request);
        if let Some(operation) = &operation {
            operation.begin_request();
            if let Some(failures) = operation.failures_of(id) {
                // The store's client has paused too, but by its own rule.
                let pause = self.transport.rules.pause(failures.count);
                tokio::time::sleep(pause.saturating_sub(failures.last.elapsed())).await;
            }
        }
        // Chunks are most of the traffic, and no listing of a directory waits for them.
        let bulk = request.uri().path().contains("/chunks/");
        let permit = self.transport.acquire(bulk, operation.as_deref()).await;
        let length = request.body().content_length() as u64;
        STORE.sent.add(length);
        if let Some(limit) = self.transport.upload_limit().filter(|_| length > 0) {
            limit.record_sent(length);
        }
        count_request(&request, operation.as_deref());
        let asked = Expectation::of(&request, operation.as_deref());
        let attempt = Attempt::new(&self.transport, operation.clone(), &request);
        let answer = attempt.run(self.client.execute(count_body(request, &attempt))).await;
        let is_failure = match &answer {
            Ok(answer) => answer.status() == StatusCode::TOO_MANY_REQUESTS || answer.status().is_server_error(),
            Err(_) => true,
        };
        let mut last_try = None;
        if is_failure {
            STORE.failures.add(1);
            let failures = operation.as_ref().map_or(0, |operation| operation.record_failure(id));
            last_try = self.transport.rules.tries().filter(|tries| failures >= *tries);
        } else if let Some(operation) = &operation {
            operation.forget_failures_of(id);
        }
        let answer = answer.map_err(|error| match last_try {
            Some(tries) => tries_used(&texts_of(&error), tries),
            None => without_repetition(error),
        })?;
        if matches!(answer.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            self.transport.concurrency.halve();
        } else {
            self.transport.concurrency.record_response();
        }
        if let Some(tries) = last_try {
            return Err(tries_used(&format!("the server answered {}", answer.status()), tries));
        }
        let (parts, body) = answer.into_parts();
        self.transport.clock.record(&parts.headers);
        let bound = asked.bound(parts.status, &parts.headers)?;
        attempt.begin_body();
        let status = parts.status;
        let body = HttpResponseBody::new(LimitedBody::new(body, attempt, bound, permit));
        let response = HttpResponse::from_parts(parts, body);
        if matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) {
            return Err(not_supported(status, response).await);
        }
        Ok(response)
    }
}

/// Answer of a server that does not support a request. The store's client would repeat a request
/// that is answered with 501.
#[derive(Debug)]
pub(super) struct NotSupportedByServer {
    status: StatusCode,
    /// Document that came with the answer.
    text: String,
}

impl Error for NotSupportedByServer {}

impl fmt::Display for NotSupportedByServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server answered {}: {}", self.status, self.text)
    }
}

async fn not_supported(status: StatusCode, response: HttpResponse) -> HttpError {
    // The document is for people only.
    let text = response.into_body().bytes().await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    HttpError::new(HttpErrorKind::Unknown, NotSupportedByServer { status, text })
}

/// Returns the error of the last try that the repository's configuration allows. The store's client
/// does not repeat it.
fn tries_used(failure: &str, tries: u64) -> HttpError {
    let message = format!("{failure}, and storage.retries.max_tries of the repository's configuration is {tries}");
    HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(message))
}

/// Has the store's client not repeat a request that no repetition helps: to a server that does not
/// speak TLS.
fn without_repetition(error: HttpError) -> HttpError {
    let texts = texts_of(&error);
    if texts.contains(NO_TLS) { HttpError::new(HttpErrorKind::Unknown, std::io::Error::other(texts)) } else { error }
}

/// Returns the texts of an error and its causes.
fn texts_of(error: &HttpError) -> String {
    error_chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Returns a value that distinguishes a request from the others of its operation, and is that of
/// its retries.
fn request_id(request: &HttpRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    (request.method(), request.uri()).hash(&mut hasher);
    hasher.finish()
}

fn count_request(request: &HttpRequest, operation: Option<&Operation>) {
    let kind = match *request.method() {
        Method::GET | Method::HEAD => &STORE.reads,
        Method::DELETE => &STORE.deletes,
        _ => &STORE.writes,
    };
    kind.add(1);
    if operation.is_some_and(Operation::takes_failure) {
        STORE.retries.add(1);
    }
}
