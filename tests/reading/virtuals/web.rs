//! A web server whose answers depend on the path: right, wrong, or none.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::common::listener::{Listener, read_head};
use crate::common::shard::{USUAL, shuffled};

/// Bytes of every object.
pub const SIZE: u64 = 1 << 20;
pub const TAG: &str = "\"one\"";
/// Modification time of every object: 2024-07-13 15:09:59 UTC.
pub const MODIFIED: &str = "Sat, 13 Jul 2024 15:09:59 GMT";
pub const MODIFIED_SECONDS: u32 = 1_720_883_399;

/// Bytes of every object.
pub fn content(offset: u64, length: u64) -> Vec<u8> {
    (offset..offset + length).map(|n| (n % 251) as u8 ^ (n / 251) as u8).collect()
}

/// Inner chunks of the shard, and bytes of each.
pub const INNER: (usize, usize) = (256, 16 << 10);

/// Inner chunk `number` of the shard.
pub fn inner(number: usize) -> Vec<u8> {
    (0..INNER.1).map(|at| (at * 7 + number * 13) as u8).collect()
}

/// Returns the object at `/shard`: 4 MiB in inner chunks in random order.
pub fn shard() -> &'static [u8] {
    static SHARD: OnceLock<Vec<u8>> = OnceLock::new();
    SHARD.get_or_init(|| {
        let chunks: Vec<Option<Vec<u8>>> = (0..INNER.0).map(|number| Some(inner(number))).collect();
        USUAL.shard(&chunks, shuffled(INNER.0))
    })
}

/// A request's first line and its headers, in lower case.
#[derive(Clone, Debug)]
pub struct Request {
    pub target: String,
    pub headers: String,
}

pub struct Web {
    pub port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    _listener: Listener,
}

impl Web {
    /// Starts a server which redirects `/sent-away` to `elsewhere`.
    pub fn new(elsewhere: &str) -> Web {
        let requests = Arc::<Mutex<Vec<Request>>>::default();
        let seen = Arc::clone(&requests);
        let elsewhere = elsewhere.to_owned();
        let failures = AtomicUsize::new(0);
        let listener = Listener::start("127.0.0.1:0", move |connection| {
            drop(answer(connection, &seen, &elsewhere, &failures));
        });
        Web { port: listener.port(), requests, _listener: listener }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Returns the requests since the last call.
    pub fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn answer(
    mut connection: TcpStream,
    seen: &Mutex<Vec<Request>>,
    elsewhere: &str,
    failures: &AtomicUsize,
) -> std::io::Result<()> {
    let Some((head, _)) = read_head(&mut connection)? else { return Ok(()) };
    let (first, headers) = head.split_once("\r\n").unwrap();
    let target = first.split(' ').nth(1).unwrap().to_owned();
    let headers = headers.to_ascii_lowercase();
    seen.lock().unwrap().push(Request { target: target.clone(), headers: headers.clone() });
    let range = headers.lines().find_map(|line| line.strip_prefix("range: bytes="));
    let range = range.and_then(|range| range.split_once('-'));
    let (begin, last) = range.map_or((0, SIZE - 1), |(begin, last)| (begin.parse().unwrap(), last.parse().unwrap()));
    let validators = format!("ETag: {TAG}\r\nLast-Modified: {MODIFIED}\r\n");
    let path = target.split('?').next().unwrap().trim_start_matches('/');
    let path = path.strip_prefix("bucket/").unwrap_or(path);
    // Servers cut a range that goes beyond the end.
    let end = (last + 1).min(SIZE);
    let mut say = |status: &str, headers: &str, body: &[u8]| {
        let length = body.len();
        write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n")?;
        connection.write_all(body)
    };
    if path == "shard" {
        let begin = begin as usize;
        let end = (last as usize + 1).min(shard().len());
        let size = shard().len();
        let head = format!("Content-Range: bytes {begin}-{}/{size}\r\n", end - 1);
        return say("206 Partial Content", &head, &shard()[begin..end]);
    }
    if path != "whole" && path != "no-validators-whole" && begin >= SIZE {
        return say("416 Range Not Satisfiable", "", b"");
    }
    let part = content(begin, end.max(begin) - begin);
    let range = format!("Content-Range: bytes {begin}-{}/{SIZE}\r\n", end - 1);
    match path {
        "whole" => say("200 OK", &validators, &content(0, SIZE)),
        "no-validators" => say("206 Partial Content", &range, &part),
        "less" => say("206 Partial Content", &format!("{range}{validators}"), &part[..part.len() / 2]),
        "more" => say("206 Partial Content", &format!("{range}{validators}"), &[&part[..], b"more"].concat()),
        "another-part" => {
            let lie = format!("Content-Range: bytes {}-{}/{SIZE}\r\n{validators}", begin + 1, end);
            say("206 Partial Content", &lie, &part)
        }
        "no-range" => say("206 Partial Content", &validators, &part),
        "encoded" => say("206 Partial Content", &format!("{range}{validators}Content-Encoding: gzip\r\n"), &part),
        "cut-off" => {
            let length = part.len();
            write!(connection, "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\n{range}{validators}\r\n")?;
            connection.write_all(&part[..length / 2])
        }
        // Until the client gives up.
        "silent" => std::io::copy(&mut connection, &mut std::io::sink()).map(drop),
        "gone" => say("404 Not Found", "", b""),
        "forbidden" if headers.contains("authorization: bearer let-me-in") => {
            say("206 Partial Content", &format!("{range}{validators}"), &part)
        }
        "forbidden" => say("403 Forbidden", "", b""),
        "broken-twice" if failures.fetch_add(1, Ordering::Relaxed) < 2 => say("503 Service Unavailable", "", b""),
        "broken" => say("500 Internal Server Error", "", b""),
        "nonsense" => connection.write_all(b"\0\0\0 this is no answer\r\n\r\n"),
        "sent-on" => say("302 Found", "Location: data/well?signed=yes\r\n", b""),
        "sent-up" => say("302 Found", "Location: /data/../secret/x\r\n", b""),
        "sent-away" => say("307 Temporary Redirect", &format!("Location: {elsewhere}\r\n"), b""),
        "sent-to-a-file" => say("302 Found", "Location: file:///etc/passwd\r\n", b""),
        "sent-round" => say("301 Moved Permanently", "Location: /sent-round\r\n", b""),
        "sent-nowhere" => say("302 Found", "", b""),
        _ => say("206 Partial Content", &format!("{range}{validators}"), &part),
    }
}
