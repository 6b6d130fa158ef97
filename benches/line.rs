//! A line to a server: what goes over it is late by half a round trip in each direction, and shares
//! one bandwidth.
//!
//! ```text
//! line PORT SERVER_PORT ROUND_TRIP_MS GBIT_PER_S [FOLDERS]
//! ```
//!
//! Only the standard library, so that `rustc -O` builds it in a second (`scripts/bench-remote`
//! does), and threads that sleep to a moment rather than a runtime whose timers count milliseconds:
//! the line must not be what is measured.
//!
//! Connections take turns on the line, part by part, so that none waits behind everything that
//! another has asked for. A new connection takes a round trip before anything is carried, and there
//! is no slow start: every connection has the whole bandwidth at once. Zero as bandwidth is no
//! limit.
//!
//! An empty line on standard input is answered with what was carried since the last one: a line for
//! each request with the microseconds at which it left the client and at which the last of its
//! answer arrived there, the bytes of both, its method and its target, with tabs between; then an
//! empty line. The line ends when its standard input does.
//!
//! FOLDERS is the directory that s3s-fs serves. It answers HEAD of a key that is a folder there
//! with the size of the directory, for which some clients wait without end; the line then answers
//! what a store without folders does, 404.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{BufRead, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::linux::net::TcpStreamExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that a connection sends in its turn: half a millisecond of a gigabit a second.
const PART: usize = 64 << 10;
/// Parts of a connection that may be in transit: 16 MiB, the window of a long fast connection.
const WINDOW: usize = 256;
/// Time by which a part may be handed over early: more than a busy machine needs to wake a thread.
const EARLY: Duration = Duration::from_millis(2);

/// One direction: parts leave in the order in which they came, not faster than the bandwidth, and
/// arrive late.
struct Direction {
    delay: Duration,
    bytes_per_second: f64,
    /// Time at which everything so far has been sent.
    free: Mutex<Instant>,
}

impl Direction {
    fn new(delay: Duration, bytes_per_second: f64) -> Self {
        Direction { delay, bytes_per_second, free: Mutex::new(Instant::now()) }
    }

    /// Waits for a turn; returns the time at which `count` bytes arrive.
    fn arrival(&self, count: usize) -> Instant {
        let now = Instant::now();
        if self.bytes_per_second == 0.0 {
            return now + self.delay;
        }
        let taken = Duration::from_secs_f64(count as f64 / self.bytes_per_second);
        let begins = {
            let mut free = self.free.lock().unwrap();
            let begins = (*free).max(now);
            *free = begins + taken;
            begins
        };
        thread::sleep((begins - now).saturating_sub(EARLY));
        begins + taken + self.delay
    }
}

/// A request, and the bytes transferred for it.
struct Request {
    begin: Instant,
    end: Instant,
    up: usize,
    down: usize,
    words: String,
}

type Log = Mutex<Vec<Arc<Mutex<Request>>>>;

/// Both directions, and the transferred requests.
struct Line {
    up: Direction,
    down: Direction,
    round_trip: Duration,
    folders: Option<PathBuf>,
    log: Log,
}

/// An empty part is the end.
struct Part {
    due: Instant,
    bytes: Vec<u8>,
}

/// Hands over each part at its time.
fn deliver(parts: Receiver<Part>, mut sink: TcpStream) {
    for part in parts {
        thread::sleep(part.due.saturating_duration_since(Instant::now()));
        if part.bytes.is_empty() {
            break;
        }
        if sink.write_all(&part.bytes).is_err() {
            // A sender that continues finds no receiver.
            let _ = sink.shutdown(Shutdown::Both);
            return;
        }
    }
    let _ = sink.shutdown(Shutdown::Write);
}

/// Returns the method and target of a request that begins here. Requests of a client on one
/// connection wait for each other, so that each begins a part.
fn request_line(bytes: &[u8]) -> Option<&str> {
    let first = bytes.get(..bytes.iter().take(8192).position(|&byte| byte == b'\r')?)?;
    std::str::from_utf8(first).ok()?.strip_suffix(" HTTP/1.1")
}

impl Line {
    /// Carries requests until the client ends.
    fn carry_up(&self, mut from: TcpStream, to: SyncSender<Part>, back: SyncSender<Part>, current: &Current) {
        let mut buffer = vec![0; PART];
        while let Some(count) = next(&mut from, &mut buffer) {
            let bytes = &buffer[..count];
            let words = request_line(bytes);
            if let Some(words) = words {
                let now = Instant::now();
                let request = Request { begin: now, end: now, up: 0, down: 0, words: words.to_owned() };
                let request = Arc::new(Mutex::new(request));
                *current.lock().unwrap() = Some(Arc::clone(&request));
                self.log.lock().unwrap().push(request);
            }
            if let Some(request) = &*current.lock().unwrap() {
                request.lock().unwrap().up += count;
            }
            let due = self.up.arrival(count);
            if words.is_some_and(|words| self.is_folder(words)) {
                let bytes = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
                if back.send(Part { due: due + self.down.delay, bytes }).is_err() {
                    return;
                }
            } else if to.send(Part { due, bytes: bytes.to_vec() }).is_err() {
                return;
            }
        }
    }

    /// Carries answers until the server ends.
    fn carry_down(&self, mut from: TcpStream, to: SyncSender<Part>, current: &Current) {
        let mut buffer = vec![0; PART];
        while let Some(count) = next(&mut from, &mut buffer) {
            let due = self.down.arrival(count);
            if let Some(request) = &*current.lock().unwrap() {
                let mut request = request.lock().unwrap();
                request.down += count;
                request.end = due;
            }
            if to.send(Part { due, bytes: buffer[..count].to_vec() }).is_err() {
                return;
            }
        }
        // The other direction can still send here, so the end does not depend on which side has
        // closed.
        let _ = to.send(Part { due: Instant::now() + self.down.delay, bytes: Vec::new() });
    }

    /// Returns true if a HEAD would be of a folder.
    fn is_folder(&self, words: &str) -> bool {
        let (Some(folders), Some(target)) = (&self.folders, words.strip_prefix("HEAD /")) else { return false };
        let key = target.split('?').next().unwrap_or_default();
        key.contains('/') && folders.join(key.trim_end_matches('/')).is_dir()
    }

    fn connected(self: &Arc<Self>, near: TcpStream, server: u16) -> std::io::Result<()> {
        thread::sleep(self.round_trip);
        let far = TcpStream::connect(("127.0.0.1", server))?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
        }
        let (to_far, at_far) = sync_channel(WINDOW);
        let (to_near, at_near) = sync_channel(WINDOW);
        let current = Arc::new(Mutex::new(None));
        let from_near = near.try_clone()?;
        let from_far = far.try_clone()?;
        thread::spawn(move || deliver(at_far, far));
        thread::spawn(move || deliver(at_near, near));
        let line = Arc::clone(self);
        let of_down = Arc::clone(&current);
        let back = to_near.clone();
        thread::spawn(move || line.carry_down(from_far, to_near, &of_down));
        self.carry_up(from_near, to_far, back, &current);
        Ok(())
    }

    /// Answers each line of standard input with the requests since the last.
    fn report(&self, start: Instant) -> std::io::Result<()> {
        for _ in std::io::stdin().lock().lines() {
            let mut out = std::io::stdout().lock();
            for request in std::mem::take(&mut *self.log.lock().unwrap()) {
                let request = request.lock().unwrap();
                let [begin, end] = [request.begin, request.end].map(|at| at.duration_since(start).as_micros());
                writeln!(
                    out,
                    "{begin}\t{end}\t{}\t{}\t{}",
                    request.up,
                    request.down,
                    request.words.replace(' ', "\t")
                )?;
            }
            writeln!(out)?;
            out.flush()?;
        }
        Ok(())
    }
}

type Current = Arc<Mutex<Option<Arc<Mutex<Request>>>>>;

/// Returns the number of bytes read; None at the end.
fn next(from: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match from.read(buffer) {
            Ok(0) => return None,
            Ok(count) => {
                // Without this, a server that sends head and body apart, and waits for an
                // acknowledgement between them, is 40 ms late.
                let _ = from.set_quickack(true);
                return Some(count);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let [port, server, round_trip, gbit, folders @ ..] = words.as_slice() else {
        // `cargo bench` runs this too.
        eprintln!("line PORT SERVER_PORT ROUND_TRIP_MS GBIT_PER_S [FOLDERS]: scripts/bench-remote starts it");
        return;
    };
    let (port, server): (u16, u16) = (port.parse().expect("a port"), server.parse().expect("the server's port"));
    let round_trip = Duration::from_secs_f64(round_trip.parse::<f64>().expect("milliseconds") / 1e3);
    let rate = gbit.parse::<f64>().expect("Gbit/s") * 1e9 / 8.0;
    let line = Arc::new(Line {
        up: Direction::new(round_trip / 2, rate),
        down: Direction::new(round_trip / 2, rate),
        round_trip,
        folders: folders.first().map(PathBuf::from),
        log: Mutex::default(),
    });
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
    let reporting = Arc::clone(&line);
    thread::spawn(move || {
        let ended = reporting.report(Instant::now());
        std::process::exit(i32::from(ended.is_err()));
    });
    for near in listener.incoming().flatten() {
        let line = Arc::clone(&line);
        thread::spawn(move || {
            if let Err(error) = line.connected(near, server) {
                eprintln!("line: the server at port {server}: {error}");
            }
        });
    }
}
