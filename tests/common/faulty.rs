//! A proxy to a server that injects faults as the test decides: counted, never by chance or by
//! sleeping.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::common::listener::{Listener, read_head};
use crate::common::random::Random;
use crate::common::wait_until;

/// Fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request passes.
    Pass,
    /// The server reports overload; it never sees the request.
    Overloaded,
    /// The server reports an internal error; it never sees the request.
    Broken,
    /// The connection ends before an answer; the server never sees the request.
    Reset,
    /// The server carries it out, and the answer is lost.
    Lost,
    /// The answer ends in its middle.
    Half,
    /// The answer has half the bytes, with a matching length.
    Short,
    /// Some of the answer's bytes are changed.
    Garbled,
    /// The server answers with this status and error code.
    Says(&'static str, &'static str),
    /// There is no answer until [`Line::release`].
    Silent,
    /// The server refuses the request, but carries it out when [`Line::deliver`] is called.
    Late,
}

/// Rule of a proxy or a store for the headers of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderRule {
    /// All headers pass.
    All,
    /// Headers with a `_` in their names are dropped, as nginx does unless `underscores_in_headers`
    /// is on. Where such a header is signed, the store finds another signature.
    NoUnderscores,
    /// The store takes no user metadata.
    NoMetadata,
}

/// After this long without a request no other one follows from those before.
const QUIET: Duration = Duration::from_millis(200);

/// Decides about a request by its number, from 0, and its first line.
type Decide = Box<dyn Fn(usize, &str) -> Fault + Send>;

/// A proxy on a port of this machine.
pub struct Line {
    pub port: u16,
    shared: Arc<Shared>,
    _listener: Listener,
}

struct Shared {
    server: u16,
    decide: Mutex<Decide>,
    headers: Mutex<HeaderRule>,
    requests: AtomicUsize,
    faults: AtomicUsize,
    received: AtomicU64,
    answers: Mutex<Vec<String>>,
    gate: (Mutex<bool>, Condvar),
    late: Mutex<Vec<(String, Vec<u8>)>>,
    /// Requests without an answer.
    open: AtomicUsize,
}

impl Line {
    /// Starts a proxy to the server at `port` of this machine, without faults.
    pub fn to(port: u16) -> Line {
        Line::at("127.0.0.1", port)
    }

    /// Starts a proxy as [`Line::to`], for clients that reach `address`.
    pub fn at(address: &str, port: u16) -> Line {
        let shared = Arc::new(Shared {
            server: port,
            decide: Mutex::new(Box::new(|_, _| Fault::Pass)),
            headers: Mutex::new(HeaderRule::All),
            requests: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            answers: Mutex::default(),
            gate: (Mutex::new(true), Condvar::new()),
            late: Mutex::default(),
        });
        let carrying = Arc::clone(&shared);
        // Errors here are the test's faults, or the end of a program.
        let listener = Listener::start((address, 0), move |client| drop(carrying.serve(client)));
        Line { port: listener.port(), shared, _listener: listener }
    }

    /// Lets `decide` decide about requests, which are counted from 0 again.
    pub fn decide(&self, decide: impl Fn(usize, &str) -> Fault + Send + 'static) {
        let mut current = self.shared.decide.lock().unwrap();
        *current = Box::new(decide);
        self.shared.requests.store(0, Ordering::Relaxed);
        self.shared.faults.store(0, Ordering::Relaxed);
        self.shared.received.store(0, Ordering::Relaxed);
        self.shared.answers.lock().unwrap().clear();
        *self.shared.gate.0.lock().unwrap() = false;
    }

    /// Applies `rule` to the headers of all requests from now on.
    pub fn set_header_rule(&self, rule: HeaderRule) {
        *self.shared.headers.lock().unwrap() = rule;
    }

    /// Ends all silence; no more faults are injected.
    pub fn release(&self) {
        *self.shared.decide.lock().unwrap() = Box::new(|_, _| Fault::Pass);
        *self.shared.gate.0.lock().unwrap() = true;
        self.shared.gate.1.notify_all();
    }

    /// Returns the number of late requests.
    pub fn late(&self) -> usize {
        self.shared.late.lock().unwrap().len()
    }

    /// Lets the server carry out the late request at position `at`; the client gets no answer.
    /// Returns true if it was accepted.
    pub fn deliver(&self, at: usize) -> bool {
        let (head, body) = self.shared.late.lock().unwrap().remove(at);
        let answer = self.shared.pass(&head, &body).unwrap();
        answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200")
    }

    /// Returns the number of requests, and of those with a fault, since the last [`Line::decide`].
    pub fn counts(&self) -> (usize, usize) {
        (self.shared.requests.load(Ordering::Relaxed), self.shared.faults.load(Ordering::Relaxed))
    }

    /// Waits until every request is answered and no other one comes: everything that was prefetched
    /// has arrived.
    #[track_caller]
    pub fn wait_until_quiet(&self) {
        let mut seen = self.counts().0;
        let mut since = Instant::now();
        wait_until("requests do not end", || {
            let requests = self.counts().0;
            if requests != seen || self.shared.open.load(Ordering::Relaxed) > 0 {
                (seen, since) = (requests, Instant::now());
            }
            since.elapsed() > QUIET
        });
    }

    /// Returns the number of requests without an answer.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the server's answers since the last [`Line::decide`].
    pub fn received(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Returns the first lines of the server's answers since the last [`Line::decide`].
    pub fn answers(&self) -> Vec<String> {
        self.shared.answers.lock().unwrap().clone()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.release();
    }
}

impl Shared {
    /// Serves one request; the connection ends then.
    fn serve(&self, mut client: TcpStream) -> std::io::Result<()> {
        let Some((head, body)) = request(&mut client)? else { return Ok(()) };
        self.open.fetch_add(1, Ordering::Relaxed);
        let done = self.carry(client, head, body);
        self.open.fetch_sub(1, Ordering::Relaxed);
        done
    }

    fn carry(&self, mut client: TcpStream, head: String, body: Vec<u8>) -> std::io::Result<()> {
        let first = head.lines().next().unwrap_or_default().to_owned();
        let fault = {
            let decide = self.decide.lock().unwrap();
            decide(self.requests.fetch_add(1, Ordering::Relaxed), &first)
        };
        let rule = *self.headers.lock().unwrap();
        let (head, fault) = match allowed_head(&head, rule) {
            Ok(head) => (head, fault),
            Err(refusal) => (head, refusal),
        };
        if fault != Fault::Pass {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        let says = |code: &str| format!("HTTP/1.1 {code}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        match fault {
            Fault::Overloaded => return client.write_all(says("503 Slow Down").as_bytes()),
            Fault::Broken => return client.write_all(says("500 Internal Server Error").as_bytes()),
            Fault::Reset => return client.shutdown(Shutdown::Both),
            Fault::Silent => {
                let (open, changed) = &self.gate;
                let waited = changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap();
                drop(waited);
                return client.shutdown(Shutdown::Both);
            }
            Fault::Says(status, code) => {
                let body =
                    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{code}</Message></Error>");
                let length = body.len();
                let head =
                    format!("HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n");
                return client.write_all(format!("{head}Connection: close\r\n\r\n{body}").as_bytes());
            }
            Fault::Late => {
                self.late.lock().unwrap().push((head, body));
                return client.write_all(says("403 Forbidden").as_bytes());
            }
            Fault::Pass | Fault::Lost | Fault::Half | Fault::Short | Fault::Garbled => {}
        }
        let answer = self.pass(&head, &body)?;
        self.received.fetch_add(answer.len() as u64, Ordering::Relaxed);
        let first_line = answer.split(|&b| b == b'\r').next().unwrap_or_default();
        self.answers.lock().unwrap().push(String::from_utf8_lossy(first_line).into_owned());
        match fault {
            Fault::Lost => {}
            Fault::Half => client.write_all(&answer[..answer.len() - answer.len().min(40) / 2])?,
            Fault::Short => client.write_all(&halved(&answer))?,
            Fault::Garbled => client.write_all(&garbled(answer))?,
            _ => client.write_all(&answer)?,
        }
        client.shutdown(Shutdown::Both)
    }

    /// Returns the server's answer to a request.
    fn pass(&self, head: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(("127.0.0.1", self.server))?;
        // There is one request a connection, so the answer ends with the connection.
        let lines = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
        let mut head: String = lines.take_while(|line| !line.is_empty()).map(|line| format!("{line}\r\n")).collect();
        head += "Connection: close\r\n\r\n";
        server.write_all(head.as_bytes())?;
        server.write_all(body)?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// Returns `head` with the headers that pass `rule`, or the refusal of the request.
fn allowed_head(head: &str, rule: HeaderRule) -> Result<String, Fault> {
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let has_underscore = |line: &str| name(line).contains('_');
    match rule {
        HeaderRule::All => Ok(head.to_owned()),
        HeaderRule::NoMetadata => {
            if head.lines().skip(1).any(|line| name(line).starts_with("x-amz-meta-")) {
                return Err(Fault::Says("400 Bad Request", "MetadataNotAllowed"));
            }
            Ok(head.to_owned())
        }
        HeaderRule::NoUnderscores => {
            let authorization = head.lines().find(|line| name(line) == "authorization").unwrap_or_default();
            let signed = authorization.split("SignedHeaders=").nth(1).unwrap_or_default();
            if signed.split(',').next().unwrap_or_default().contains('_') {
                return Err(Fault::Says("403 Forbidden", "SignatureDoesNotMatch"));
            }
            let kept = head.lines().enumerate().filter(|(n, line)| *n == 0 || !has_underscore(line));
            Ok(kept.map(|(_, line)| format!("{line}\r\n")).collect())
        }
    }
}

fn body_of(answer: &[u8]) -> usize {
    answer.windows(4).position(|part| part == b"\r\n\r\n").map_or(answer.len(), |at| at + 4)
}

/// Returns `answer` with half its body, and a matching length.
fn halved(answer: &[u8]) -> Vec<u8> {
    let (head, body) = answer.split_at(body_of(answer));
    let body = &body[..body.len() / 2];
    let head = String::from_utf8_lossy(head).into_owned();
    let lines =
        head.lines().filter(|line| !line.is_empty() && !line.to_ascii_lowercase().starts_with("content-length:"));
    let mut halved: Vec<u8> = lines.flat_map(|line| format!("{line}\r\n").into_bytes()).collect();
    halved.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
    halved.extend_from_slice(body);
    halved
}

/// Returns `answer` with every hundredth byte of its body inverted.
fn garbled(mut answer: Vec<u8>) -> Vec<u8> {
    let begin = body_of(&answer);
    for byte in answer[begin..].iter_mut().skip(50).step_by(100) {
        *byte = !*byte;
    }
    answer
}

/// Reads the head of a request and its body; None at the end.
fn request(client: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let Some((head, mut body)) = read_head(client)? else { return Ok(None) };
    let of_line =
        |line: &str| line.to_ascii_lowercase().strip_prefix("content-length:").map(|v| v.trim().parse().unwrap());
    let length: usize = head.lines().find_map(of_line).unwrap_or(0);
    let missing = length.saturating_sub(body.len()) as u64;
    client.take(missing).read_to_end(&mut body)?;
    Ok((body.len() >= length).then_some((head, body)))
}

/// Returns a decision by chance, the same for the same seed: of a hundred requests some five fail
/// in different ways, and of five the answer is lost.
pub fn five_of_a_hundred(seed: u64) -> impl Fn(usize, &str) -> Fault + Send + 'static {
    move |n, _| {
        // Of each request by itself: they come in any order.
        let mut random = Random::new(seed.wrapping_add((n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        match random.below(300) {
            0..5 => Fault::Overloaded,
            5..10 => Fault::Broken,
            10..15 => Fault::Reset,
            15..30 => Fault::Lost,
            _ => Fault::Pass,
        }
    }
}
