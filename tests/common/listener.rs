//! Servers of this process: a port, and a thread for each connection.

use std::io::{Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A port that takes connections until this is dropped.
pub struct Listener {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
}

impl Listener {
    /// Listens at `address`; `serve` serves each connection.
    pub fn start(address: impl ToSocketAddrs, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Listener {
        let listener = TcpListener::bind(address).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let started = Listener { address: listener.local_addr().unwrap(), is_over: Arc::clone(&is_over) };
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let serve = Arc::clone(&serve);
                std::thread::spawn(move || serve(connection));
            }
        });
        started
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
    }
}

/// Answer to a request whose path is not plain, as of a server that does not merge slashes.
pub const NOT_PLAIN: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// Returns true unless the path in the first line of a request has an empty segment, `.` or `..` in
/// it.
pub fn has_plain_path(head: &str) -> bool {
    let target = head.lines().next().unwrap_or_default().split(' ').nth(1).unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let segments = path.strip_prefix('/').map(|path| path.strip_suffix('/').unwrap_or(path));
    segments.is_none_or(|path| path.is_empty() || !path.split('/').any(|part| matches!(part, "" | "." | "..")))
}

/// Reads the head of a request, and the part of its body that came with it; None at the end.
/// Answers a request whose path is not plain, as if that were the end.
pub fn read_head(client: &mut TcpStream) -> Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 65536];
    loop {
        if let Some(at) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
            let body = bytes.split_off(at + 4);
            let head = String::from_utf8_lossy(&bytes).into_owned();
            if !has_plain_path(&head) {
                client.write_all(NOT_PLAIN)?;
                return Ok(None);
            }
            return Ok(Some((head, body)));
        }
        match client.read(&mut buffer)? {
            0 => return Ok(None),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
