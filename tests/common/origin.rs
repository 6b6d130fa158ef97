//! A web server that serves a directory, redirects some of its paths, and records its requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::listener::{Listener, NOT_PLAIN, has_plain_path};

/// A request: its first line, and all of its headers in lower case.
#[derive(Clone, Debug)]
pub struct Seen {
    pub first: String,
    pub headers: String,
}

/// A redirect for paths that contain `part`. `{rest}` stands for the text after `part`.
#[derive(Clone)]
pub struct Redirect {
    pub part: &'static str,
    pub to: String,
}

pub struct Origin {
    pub port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
    redirects: Arc<Mutex<Vec<Redirect>>>,
    _listener: Listener,
}

impl Origin {
    /// Serves `directory` on a free port.
    pub fn of(directory: &Path) -> Origin {
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let redirects = Arc::<Mutex<Vec<Redirect>>>::default();
        let noted = Arc::clone(&seen);
        let rules = Arc::clone(&redirects);
        let directory = directory.to_owned();
        let listener = Listener::start("127.0.0.1:0", move |connection| {
            let rules = rules.lock().unwrap().clone();
            answer(connection, &noted, &rules, &directory);
        });
        Origin { port: listener.port(), seen, redirects, _listener: listener }
    }

    /// Starts a server without files that only records requests.
    pub fn listener() -> Origin {
        Origin::of(Path::new("/nonexistent"))
    }

    pub fn redirect(&self, part: &'static str, to: impl Into<String>) {
        *self.redirects.lock().unwrap() = vec![Redirect { part, to: to.into() }];
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// Returns the requests since the last call. A connection without HTTP counts too.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn answer(mut connection: TcpStream, seen: &Mutex<Vec<Seen>>, redirects: &[Redirect], directory: &Path) {
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match connection.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => break,
        }
        // A client that begins TLS sends nothing that can be read.
        if head.len() == 3 && head[0] == 0x16 {
            break;
        }
    }
    if head.is_empty() {
        return;
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (first, headers) = head.split_once("\r\n").unwrap_or((&head, ""));
    let headers = headers.to_ascii_lowercase();
    seen.lock().unwrap().push(Seen { first: first.to_owned(), headers: headers.clone() });
    if !has_plain_path(first) {
        let _ = connection.write_all(NOT_PLAIN);
        return;
    }
    let target = first.split(' ').nth(1).unwrap_or_default();
    let mut say = |status: &str, more: &str, body: &[u8]| {
        let length = body.len();
        let _ = write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{more}\r\n");
        let _ = connection.write_all(body);
    };
    for Redirect { part, to } in redirects {
        if let Some((_, rest)) = target.split_once(part) {
            return say("307 Temporary Redirect", &format!("Location: {}\r\n", to.replace("{rest}", rest)), b"");
        }
    }
    let path = directory.join(target.split('?').next().unwrap_or_default().trim_start_matches('/'));
    let Ok(bytes) = std::fs::read(path) else { return say("404 Not Found", "", b"") };
    let validators = "Last-Modified: Sat, 13 Jul 2024 15:09:59 GMT\r\nETag: \"one\"\r\n";
    let range =
        headers.lines().find_map(|line| line.strip_prefix("range: bytes=")).and_then(|range| range.split_once('-'));
    let Some((begin, last)) = range else { return say("200 OK", validators, &bytes) };
    let begin = begin.parse::<usize>().unwrap_or(0);
    let last = last.parse::<usize>().unwrap_or(usize::MAX - 1);
    let end = (last + 1).min(bytes.len());
    if begin >= end {
        return say("416 Range Not Satisfiable", "", b"");
    }
    let range = format!("{validators}Content-Range: bytes {begin}-{}/{}\r\n", end - 1, bytes.len());
    say("206 Partial Content", &range, &bytes[begin..end]);
}
