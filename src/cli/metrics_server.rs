//! `--metrics ADDRESS:PORT`: the text of `.icechunk/stats` over HTTP, for Prometheus.
//!
//! Web pages of any author run in browsers of this machine, and a name of theirs can mean its
//! addresses. So a request is answered only if its `Host` is an own name ([`OwnNames`]), which no
//! such page can send. Where there are too many connections, the one that has asked nothing for the
//! longest time makes room for a new one, so that clients that send nothing, or do not read their
//! answers, keep nobody out.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::AbortHandle;
use tracing::{info, warn};

use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::metrics;
use icechunkfs_repo::reader::Reader;
use icechunkfs_working::operations::Session;

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

/// Names by which requests may call this server.
#[derive(Debug)]
struct OwnNames {
    address: IpAddr,
    /// Names in lower case.
    names: Vec<String>,
}

impl OwnNames {
    /// Creates the names of a server at `address`: the address; any address, if it listens at all
    /// of this machine; `localhost`; the name of the machine; and `given` names.
    fn new(address: IpAddr, given: &[String]) -> Self {
        let machine = rustix::system::uname();
        let machine = machine.nodename().to_string_lossy();
        let names = given.iter().map(String::as_str).chain(["localhost", &machine]);
        OwnNames { address, names: names.map(str::to_ascii_lowercase).collect() }
    }

    /// Returns true if the header has one `Host`, and that is an own name, with any port or none.
    fn accept(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
        let Ok(host) = host.to_str() else { return false };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
            _ => host,
        };
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        match address.parse::<IpAddr>() {
            // A page that is loaded from an address may read only from that address.
            Ok(address) => self.address.is_unspecified() || address == self.address,
            Err(_) => self.names.iter().any(|own| name.eq_ignore_ascii_case(own)),
        }
    }
}

/// Listens at `address`. Connections wait until [`serve_all`] takes them.
pub(super) fn listen(runtime: &Runtime, address: SocketAddr) -> Result<TcpListener> {
    let listener = runtime.block_on(TcpListener::bind(address));
    listener.map_err(|e| Error::io(format!("--metrics {address}"), e))
}

/// Serves `counts` as long as `runtime` runs, to those who call the server by an own name or one of
/// `names`.
pub(super) fn serve_all(runtime: &Runtime, listener: TcpListener, counts: Counts, names: &[String]) {
    let Ok(address) = listener.local_addr() else { return };
    info!("metrics are at http://{address}/metrics");
    let server = Arc::new(Server { counts, names: OwnNames::new(address.ip(), names) });
    runtime.spawn(async move {
        let mut connections = Connections::default();
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let server = Arc::clone(&server);
                    connections.add(|used| serve(stream, server, used));
                }
                Err(error) => {
                    warn!("metrics: {error}");
                    tokio::time::sleep(HEAD).await;
                }
            }
        }
    });
}

/// Server of one mount.
#[derive(Debug)]
struct Server {
    counts: Counts,
    names: OwnNames,
}

/// Connections under way, at most [`CONNECTIONS`].
#[derive(Debug, Default)]
struct Connections {
    open: Vec<Connection>,
    uses: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Connection {
    task: AbortHandle,
    last_use: Arc<AtomicU64>,
}

/// Record of the uses of a connection: its beginning, and each request.
#[derive(Clone, Debug)]
struct Uses {
    all: Arc<AtomicU64>,
    last: Arc<AtomicU64>,
}

impl Uses {
    fn record(&self) {
        self.last.store(self.all.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Connections {
    /// Adds the connection that `serve` serves. Where there are too many, the one that was not used
    /// for the longest time ends.
    fn add<F: Future<Output = ()> + Send + 'static>(&mut self, serve: impl FnOnce(Uses) -> F) {
        self.open.retain(|connection| !connection.task.is_finished());
        if self.open.len() >= CONNECTIONS {
            let last_use = |(_, connection): &(usize, &Connection)| connection.last_use.load(Ordering::Relaxed);
            if let Some((ended, _)) = self.open.iter().enumerate().min_by_key(last_use) {
                self.open.swap_remove(ended).task.abort();
            }
        }
        let uses = Uses { all: Arc::clone(&self.uses), last: Arc::default() };
        uses.record();
        let last_use = Arc::clone(&uses.last);
        let served = serve(uses);
        // A client that is cut off asks again.
        let task = tokio::spawn(async move { drop(tokio::time::timeout(CONNECTION, served).await) });
        self.open.push(Connection { task: task.abort_handle(), last_use });
    }
}

async fn serve(stream: TcpStream, server: Arc<Server>, uses: Uses) {
    let service = service_fn(move |request: Request<Incoming>| {
        uses.record();
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(answer(&request, &server).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    // A connection that breaks concerns its client alone.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: &Request<Incoming>, server: &Server) -> Response<String> {
    let (status, text) = match (request.method(), request.uri().path()) {
        _ if !server.names.accept(request.headers()) => {
            let text = "the Host of this request is not a name of this server: call it by its address, or pass --metrics-host NAME\n";
            (StatusCode::MISDIRECTED_REQUEST, text.to_owned())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => match server.counts.text().await {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn accepts(address: &str, given: &[&str], hosts: &[&str]) -> bool {
        let given: Vec<String> = given.iter().map(|name| (*name).to_owned()).collect();
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        OwnNames::new(address.parse().unwrap(), &given).accept(&headers)
    }

    #[test]
    fn only_own_names_are_answered() {
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for host in ["127.0.0.1", "127.0.0.1:9100", "localhost", "LocalHost:1", &machine, "Ocean.example:80"] {
            assert!(accepts("127.0.0.1", &["ocean.Example"], &[host]), "{host}");
        }
        for host in
            ["attacker.example", "10.0.0.1", "localhost.attacker.example", "127.0.0.1.nip.io", "", ":9100", "[::1]"]
        {
            assert!(!accepts("127.0.0.1", &["ocean.example"], &[host]), "{host}");
        }
        assert!(!accepts("127.0.0.1", &[], &[]) && !accepts("127.0.0.1", &[], &["localhost", "localhost"]));
        assert!(accepts("::1", &[], &["[::1]:9100"]) && accepts("::1", &[], &["[::1]"]));
        // Every address of the machine is an own one then.
        assert!(accepts("0.0.0.0", &[], &["10.0.0.1:9100"]) && accepts("::", &[], &["[fe80::1]:9100"]));
        assert!(!accepts("0.0.0.0", &[], &["attacker.example"]));
    }

    #[tokio::test]
    async fn the_connection_that_was_used_least_recently_makes_room() {
        let mut connections = Connections::default();
        let mut all = Vec::new();
        let mut add = |connections: &mut Connections| {
            connections.add(|uses| {
                all.push(uses);
                std::future::pending()
            });
        };
        (0..CONNECTIONS).for_each(|_| add(&mut connections));
        let tasks: Vec<AbortHandle> = connections.open.iter().map(|connection| connection.task.clone()).collect();
        let first =
            Uses { all: Arc::clone(&connections.uses), last: Arc::clone(&connections.open.first().unwrap().last_use) };
        first.record();
        add(&mut connections);
        add(&mut connections);
        tokio::task::yield_now().await;
        let ended: Vec<bool> = tasks.iter().map(AbortHandle::is_finished).collect();
        assert_eq!(ended.get(..4).unwrap(), [false, true, true, false]);
        assert_eq!(ended.iter().filter(|ended| **ended).count(), 2);
        assert_eq!(connections.open.len(), CONNECTIONS);
    }
}
