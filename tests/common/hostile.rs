//! A store that keeps objects and can give every kind of wrong HTTP answer: over the protocols of
//! Amazon, Google and Azure and as a plain web server, all below the path `/b`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Result, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::listener::{Listener, read_head};

/// Name of the bucket, container and folder of the web server.
pub const BUCKET: &str = "b";
/// Pause between two bytes of a drip.
const DRIP: Duration = Duration::from_millis(500);
/// Limit for the bytes of a flood.
const FLOOD: u64 = 4 << 30;
/// Modification time of every object, as listings have it.
const STORED: &str = "Wed, 01 Jan 2025 00:00:00 GMT";

/// A wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The connection stays open, and nothing comes.
    Silent,
    /// The head comes byte by byte.
    HeadDrip,
    /// The body comes byte by byte.
    BodyDrip,
    /// The head announces 1 GiB, and the body comes byte by byte.
    HugeClaim,
    /// The head announces 2^60 bytes, and they come.
    EndlessBody,
    /// The body comes in chunks without end, whatever length the head announces.
    EndlessChunks,
    /// The body ends before its length.
    ShortBody,
    /// The answer has another part of the object than was requested.
    WrongRange,
    /// The range of the answer ends with the largest number.
    OverflowingRange,
    /// Each answer leads to another URL of the server.
    Redirects,
    /// The body is marked as compressed, and would expand to much.
    Gzip,
    /// One header without end.
    EndlessHeader,
    /// Headers without end.
    EndlessHeaders,
    /// 1xx answers without end.
    Informational,
    /// Lengths of chunks are no numbers.
    GarbledChunks,
    /// A refusal with a body without end.
    EndlessRefusal,
    /// An overload error with a body without end.
    EndlessOverload,
    /// The server reads the request byte by byte.
    SlowReader,
    /// A listing without end, in order.
    EndlessListing,
    /// Every page of the listing begins at the first name again.
    RepeatedPage,
    /// A listing that goes backwards.
    Backwards,
    /// A listing with names outside the prefix.
    Outside,
    /// A listing of empty pages without end.
    EmptyPages,
    /// A listing of one object a page, each of which takes some time.
    SlowPages,
    /// A page without end.
    EndlessPage,
    /// Correct answers at 1 Mbit/s.
    SlowLine,
}

/// The requests that get a wrong answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    Nobody,
    All,
    Chunks,
    Listings,
    Writes,
}

/// Objects by key, with their versions.
pub type Objects = BTreeMap<String, (Vec<u8>, u64)>;

/// The store. It ends with the test.
pub struct Store {
    pub port: u16,
    shared: Arc<Shared>,
    _listener: Listener,
}

struct Shared {
    objects: Mutex<Objects>,
    versions: AtomicU64,
    lie: Mutex<(To, Lie)>,
    lies: AtomicU64,
    over: AtomicBool,
}

/// A request.
struct Request {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Store {
    /// Starts a store of `objects` that answers correctly.
    pub fn new(objects: Objects) -> Store {
        let shared = Arc::new(Shared {
            versions: AtomicU64::new(1 + objects.len() as u64),
            objects: Mutex::new(objects),
            lie: Mutex::new((To::Nobody, Lie::Silent)),
            lies: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        // Errors here are the end of a program, or the test's own.
        let listener = Listener::start("127.0.0.1:0", move |client| drop(serving.serve(client)));
        Store { port: listener.port(), shared, _listener: listener }
    }

    /// Gives `lie` to these requests from now on.
    pub fn lie(&self, to: To, lie: Lie) {
        *self.shared.lie.lock().unwrap() = (to, lie);
        self.shared.lies.store(0, Ordering::Relaxed);
    }

    /// Returns the number of wrong answers.
    pub fn lies(&self) -> u64 {
        self.shared.lies.load(Ordering::Relaxed)
    }

    pub fn objects(&self) -> Objects {
        self.shared.objects.lock().unwrap().clone()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Serves one request; the connection ends then.
    fn serve(&self, mut client: TcpStream) -> Result<()> {
        let (to, lie) = *self.lie.lock().unwrap();
        let Some((mut request, length)) = head(&mut client)? else { return Ok(()) };
        let is_lied_to = match to {
            To::Nobody => false,
            To::All => true,
            To::Chunks => request.path.contains("/chunks/"),
            To::Listings => request.is_listing(),
            To::Writes => matches!(request.method.as_str(), "PUT" | "POST"),
        };
        if is_lied_to {
            self.lies.fetch_add(1, Ordering::Relaxed);
            if lie == Lie::SlowReader {
                return self.read_slowly(client, length);
            }
        }
        let missing = length - request.body.len();
        Read::by_ref(&mut client).take(missing as u64).read_to_end(&mut request.body)?;
        if !is_lied_to {
            return client.write_all(&self.answer(&request).bytes());
        }
        self.send_lie(client, &request, lie)
    }

    fn read_slowly(&self, mut client: TcpStream, length: usize) -> Result<()> {
        for _ in 0..length {
            client.read_exact(&mut [0])?;
            self.pause()?;
        }
        Ok(())
    }

    /// Waits between two bytes; fails once the test has ended.
    fn pause(&self) -> Result<()> {
        std::thread::sleep(DRIP);
        if self.over.load(Ordering::Relaxed) { Err(std::io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    fn drip(&self, client: &mut TcpStream, bytes: impl IntoIterator<Item = u8>) -> Result<()> {
        for byte in bytes {
            client.write_all(&[byte])?;
            self.pause()?;
        }
        Ok(())
    }

    /// Sends `bytes` repeatedly, some 50 MB a second: more would measure the speed of this machine.
    fn flood(&self, client: &mut TcpStream, bytes: &[u8]) -> Result<()> {
        let block = bytes.repeat((64 << 10) / bytes.len() + 1);
        let mut sent = 0;
        while sent < FLOOD && !self.over.load(Ordering::Relaxed) {
            client.write_all(&block)?;
            sent += block.len() as u64;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn send_lie(&self, mut client: TcpStream, request: &Request, lie: Lie) -> Result<()> {
        let honest = self.answer(request);
        let with = |name: &str, value: &str| honest.clone().with(name, value);
        match lie {
            Lie::Silent | Lie::SlowReader => {
                while self.pause().is_ok() {}
                Ok(())
            }
            Lie::HeadDrip => self.drip(&mut client, honest.bytes()),
            Lie::BodyDrip => {
                client.write_all(&honest.head())?;
                self.drip(&mut client, honest.body)
            }
            Lie::HugeClaim => {
                client.write_all(&with("content-length", &(1_u64 << 30).to_string()).head())?;
                self.drip(&mut client, std::iter::repeat(b'x'))
            }
            Lie::EndlessBody => {
                client.write_all(&with("content-length", &(1_u64 << 60).to_string()).head())?;
                self.flood(&mut client, b"x")
            }
            Lie::EndlessChunks => {
                client.write_all(&with("transfer-encoding", "chunked").head())?;
                let chunk = [b"10000\r\n".as_slice(), &[b'x'; 0x10000], b"\r\n"].concat();
                self.flood(&mut client, &chunk)
            }
            Lie::ShortBody => {
                let bytes = honest.bytes();
                client.write_all(&bytes[..bytes.len() - honest.body.len().div_ceil(2)])
            }
            Lie::WrongRange => client.write_all(&with("content-range", "bytes 7-8/9").status("206 Partial").bytes()),
            Lie::OverflowingRange => {
                let range = format!("bytes 0-{}/{}", u64::MAX, u64::MAX);
                client.write_all(&with("content-range", &range).status("206 Partial").bytes())
            }
            Lie::Redirects => {
                let n = self.lies.load(Ordering::Relaxed);
                let location = format!("http://127.0.0.1:{}{}?{n}", client.local_addr()?.port(), request.path);
                client.write_all(&Answer::new("302 Found", Vec::new()).with("location", &location).bytes())
            }
            // The beginning of a gzip stream: decoding it would never end.
            Lie::Gzip => {
                client.write_all(&with("content-encoding", "gzip").with("content-length", "1000000").head())?;
                client.write_all(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3])?;
                self.flood(&mut client, &[0])
            }
            Lie::SlowLine => {
                client.write_all(&honest.head())?;
                honest.body.chunks(12_200).try_for_each(|part| {
                    std::thread::sleep(Duration::from_millis(100));
                    client.write_all(part)
                })
            }
            Lie::EndlessHeader => {
                client.write_all(b"HTTP/1.1 200 OK\r\nx-long: ")?;
                self.flood(&mut client, b"x")
            }
            Lie::EndlessHeaders => {
                client.write_all(b"HTTP/1.1 200 OK\r\n")?;
                self.flood(&mut client, b"x-more: x\r\n")
            }
            // Each is parsed by itself: many small ones would measure how fast a parser without
            // optimization is.
            Lie::Informational => {
                let hint = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "x".repeat(2000));
                self.flood(&mut client, hint.as_bytes())
            }
            Lie::GarbledChunks => {
                client.write_all(&with("transfer-encoding", "chunked").head())?;
                client.write_all(b"ffffffffffffffff1\r\nabc\r\nzz\r\n")
            }
            Lie::EndlessRefusal | Lie::EndlessOverload => {
                let status = if lie == Lie::EndlessRefusal { "403 Forbidden" } else { "503 Slow Down" };
                client.write_all(
                    &Answer::new(status, Vec::new()).with("content-length", &(1_u64 << 60).to_string()).head(),
                )?;
                self.flood(&mut client, b"x")
            }
            Lie::EndlessPage => {
                let length = (1_u64 << 60).to_string();
                let begin = Answer::new("200 OK", Vec::new()).with("content-length", &length);
                client.write_all(&begin.head())?;
                let kind = request.kind();
                client.write_all(kind.page("", &[], None).split_once(kind.end()).unwrap().0.as_bytes())?;
                self.flood(&mut client, kind.object("b/x", 1).as_bytes())
            }
            Lie::EndlessListing
            | Lie::RepeatedPage
            | Lie::Backwards
            | Lie::Outside
            | Lie::EmptyPages
            | Lie::SlowPages => self.page(&mut client, request, lie),
        }
    }

    /// Writes a page of a wrong listing.
    fn page(&self, client: &mut TcpStream, request: &Request, lie: Lie) -> Result<()> {
        let prefix = request.query.get("prefix").cloned().unwrap_or_default();
        let page: u64 = request.token().map_or(0, |token| token.parse().unwrap());
        let (count, step) = if lie == Lie::SlowPages { (1, 1) } else { (1000, 1000) };
        let numbers: Vec<u64> = match lie {
            Lie::EmptyPages => Vec::new(),
            Lie::RepeatedPage => (0..count).collect(),
            Lie::Backwards => (0..count).map(|n| 10_000_000_000 - page * step - n).collect(),
            _ => (0..count).map(|n| page * step + n).collect(),
        };
        if lie == Lie::SlowPages {
            self.pause()?;
        }
        let folder = if lie == Lie::Outside { "elsewhere/".to_owned() } else { prefix };
        // Ids as chunks have them: 20 characters of Crockford's base 32.
        let keys: Vec<String> = numbers.iter().map(|n| format!("{folder}{n:019}0")).collect();
        let objects: Vec<(&str, u64)> = keys.iter().map(|key| (key.as_str(), 1)).collect();
        let next = if lie == Lie::RepeatedPage { 1 } else { page + 1 };
        let kind = request.kind();
        client.write_all(&Answer::new("200 OK", kind.page("", &objects, Some(&next.to_string())).into_bytes()).bytes())
    }

    /// Returns the answer of a correct store.
    fn answer(&self, request: &Request) -> Answer {
        let mut objects = self.objects.lock().unwrap();
        let key = request.path.strip_prefix("/b/").unwrap_or_default().to_owned();
        match request.method.as_str() {
            "GET" if request.is_listing() => {
                let prefix = request.query.get("prefix").cloned().unwrap_or_default();
                let below = objects.iter().filter(|(key, _)| key.starts_with(&prefix));
                let listed: Vec<(&str, u64)> =
                    below.map(|(key, (bytes, _))| (key.as_str(), bytes.len() as u64)).collect();
                Answer::new("200 OK", request.kind().page(&prefix, &listed, None).into_bytes())
            }
            "GET" | "HEAD" => {
                let Some((bytes, version)) = objects.get(&key) else { return Answer::new("404 Not Found", Vec::new()) };
                if request.headers.get("if-none-match").is_some_and(|tag| *tag == format!("\"{version}\"")) {
                    return Answer::new("304 Not Modified", Vec::new()).versioned(*version);
                }
                let range = request.headers.get("range").or_else(|| request.headers.get("x-ms-range"));
                let answer = match range.and_then(|range| part(range, bytes.len())) {
                    Some(range) => {
                        let content_range = format!("bytes {}-{}/{}", range.start, range.end - 1, bytes.len());
                        Answer::new("206 Partial Content", bytes[range].to_vec()).with("content-range", &content_range)
                    }
                    None => Answer::new("200 OK", bytes.clone()),
                };
                let answer = answer.versioned(*version).with("last-modified", &now());
                if request.method == "HEAD" { answer.without_body() } else { answer }
            }
            "PUT" => {
                let known = objects.get(&key).map(|(_, version)| *version);
                let header = |name: &str| request.headers.get(name).map(String::as_str);
                let tag = known.map(|version| format!("\"{version}\""));
                let refused = (header("if-none-match") == Some("*") && known.is_some())
                    || header("if-match").is_some_and(|asked| Some(asked) != tag.as_deref())
                    || header("x-goog-if-generation-match")
                        .is_some_and(|asked| asked != known.unwrap_or(0).to_string());
                if refused {
                    return Answer::new("412 Precondition Failed", Vec::new());
                }
                let version = self.versions.fetch_add(1, Ordering::Relaxed);
                objects.insert(key, (request.body.clone(), version));
                Answer::new(if request.kind() == Kind::Azure { "201 Created" } else { "200 OK" }, Vec::new())
                    .versioned(version)
            }
            "POST" if request.query.contains_key("uploads") => {
                let id = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>";
                Answer::new("200 OK", id.into())
            }
            "DELETE" => {
                objects.remove(&key);
                Answer::new("204 No Content", Vec::new())
            }
            _ => Answer::new("405 Method Not Allowed", Vec::new()),
        }
    }
}

/// Protocol of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Amazon,
    Azure,
}

impl Kind {
    fn object(self, key: &str, size: u64) -> String {
        match self {
            Kind::Amazon => format!(
                "<Contents><Key>{key}</Key><LastModified>2025-01-01T00:00:00.000Z</LastModified><ETag>&quot;1&quot;</ETag>\
                 <Size>{size}</Size></Contents>"
            ),
            Kind::Azure => format!(
                "<Blob><Name>{key}</Name><Properties><Last-Modified>{STORED}</Last-Modified><Etag>1</Etag>\
                 <Content-Type>x</Content-Type>\
                 <Content-Length>{size}</Content-Length></Properties></Blob>"
            ),
        }
    }

    fn end(self) -> &'static str {
        match self {
            Kind::Amazon => "</ListBucketResult>",
            Kind::Azure => "</Blobs>",
        }
    }

    fn page(self, prefix: &str, objects: &[(&str, u64)], next: Option<&str>) -> String {
        let listed: String = objects.iter().fold(String::new(), |mut text, (key, size)| {
            write!(text, "{}", self.object(key, *size)).unwrap();
            text
        });
        match self {
            Kind::Amazon => {
                let next = next.map(|next| format!("<NextContinuationToken>{next}</NextContinuationToken>"));
                let truncated = next.is_some();
                format!(
                    "<ListBucketResult><Name>b</Name><Prefix>{prefix}</Prefix><IsTruncated>{truncated}</IsTruncated>{}{listed}\
                     </ListBucketResult>",
                    next.unwrap_or_default()
                )
            }
            Kind::Azure => format!(
                "<EnumerationResults ContainerName=\"b\"><Blobs>{listed}</Blobs><NextMarker>{}</NextMarker></EnumerationResults>",
                next.unwrap_or_default()
            ),
        }
    }
}

impl Request {
    fn is_listing(&self) -> bool {
        self.method == "GET"
            && (self.query.contains_key("list-type") || self.query.get("comp").is_some_and(|c| c == "list"))
    }

    fn kind(&self) -> Kind {
        if self.headers.contains_key("x-ms-version") { Kind::Azure } else { Kind::Amazon }
    }

    fn token(&self) -> Option<&str> {
        let token = self.query.get("continuation-token").or_else(|| self.query.get("marker"));
        token.map(String::as_str)
    }
}

#[derive(Clone)]
struct Answer {
    status: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: &str, body: Vec<u8>) -> Answer {
        let headers = [("connection", "close".to_owned()), ("content-length", body.len().to_string())];
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value));
        Answer { status: status.to_owned(), headers: headers.collect(), body }
    }

    fn with(mut self, name: &str, value: &str) -> Answer {
        self.headers.insert(name.to_owned(), value.to_owned());
        self
    }

    fn status(self, status: &str) -> Answer {
        Answer { status: status.to_owned(), ..self }
    }

    fn versioned(self, version: u64) -> Answer {
        self.with("etag", &format!("\"{version}\"")).with("x-goog-generation", &version.to_string())
    }

    fn without_body(self) -> Answer {
        Answer { body: Vec::new(), ..self }
    }

    fn head(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {}\r\n", self.status);
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        [self.head(), self.body.clone()].concat()
    }
}

/// Returns the time, in the format of HTTP.
fn now() -> String {
    jiff::Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

/// Returns the part of `length` bytes that `bytes=FIRST-LAST` names.
fn part(range: &str, length: usize) -> Option<std::ops::Range<usize>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let end = last.parse::<usize>().map_or(length, |last| last.saturating_add(1).min(length));
    (first < end).then_some(first..end)
}

/// Reads a request without the rest of its body, and the body's length; None at the end.
fn head(client: &mut TcpStream) -> Result<Option<(Request, usize)>> {
    let Some((text, body)) = read_head(client)? else { return Ok(None) };
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    let url = url::Url::parse("http://x").unwrap().join(target).unwrap();
    let path = percent_encoding::percent_decode_str(url.path()).decode_utf8_lossy().into_owned();
    let query = url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers: BTreeMap<String, String> =
        headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    Ok(Some((Request { method: method.to_owned(), path, query, headers, body }, length)))
}
