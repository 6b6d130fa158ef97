//! `--metrics ADDRESS:PORT`: the text of `.icechunk/stats` over HTTP, for Prometheus.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::error::{Error, Result};
use crate::metrics;
use crate::operations::Session;
use crate::reader::Reader;

/// Longest wait for the head of a request, and for all of a connection.
const HEAD: Duration = Duration::from_secs(5);
const CONNECTION: Duration = Duration::from_secs(60);
/// Connections at a time: a scraper needs one.
const CONNECTIONS: usize = 16;
/// Type of the Prometheus text format.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counts of a mount.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) reader: Arc<Reader>,
    pub(super) session: Option<Arc<Session>>,
}

impl Counts {
    async fn text(&self) -> Result<String> {
        match &self.session {
            Some(session) => session.stats().await,
            None => Ok(metrics::render(&self.reader.gauges().metrics())),
        }
    }
}

/// Listens at `address`. Connections wait until [`serve_all`] takes them.
pub(super) fn listen(runtime: &Runtime, address: SocketAddr) -> Result<TcpListener> {
    let listener = runtime.block_on(TcpListener::bind(address));
    listener.map_err(|e| Error::io(format!("--metrics {address}"), e))
}

/// Serves `counts` as long as `runtime` runs.
pub(super) fn serve_all(runtime: &Runtime, listener: TcpListener, counts: Counts) {
    if let Ok(address) = listener.local_addr() {
        info!("metrics are at http://{address}/metrics");
    }
    let (counts, room) = (Arc::new(counts), Arc::new(Semaphore::new(CONNECTIONS)));
    runtime.spawn(async move {
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let counts = Arc::clone(&counts);
                    drop(tokio::spawn(async move {
                        // A client that is cut off asks again.
                        let _ = tokio::time::timeout(CONNECTION, serve(stream, counts)).await;
                        drop(permit);
                    }));
                }
                Err(error) => {
                    warn!("metrics: {error}");
                    tokio::time::sleep(HEAD).await;
                }
            }
        }
    });
}

async fn serve(stream: TcpStream, counts: Arc<Counts>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let counts = Arc::clone(&counts);
        async move { Ok::<_, Infallible>(answer(&request, &counts).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // A connection that breaks concerns its client alone.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: &Request<Incoming>, counts: &Counts) -> Response<String> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match counts.text().await {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
        },
        (&Method::GET | &Method::HEAD, _) => (StatusCode::NOT_FOUND, "the counts are at /metrics\n".to_owned()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "only GET is understood\n".to_owned()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(TEXT));
    response
}
