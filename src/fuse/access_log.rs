//! Log of every request that reaches the daemon, for people who ask why a program is slow: one JSON
//! object a line.
//!
//! A thread writes the lines: a full disk or a slow one must not make a read wait. If it falls
//! behind by [`MAX_WAITING`] lines, lines are dropped, and the next one says how many.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::metrics::Outcome;
use icechunkfs_base::times::{format_time, system_clock};

/// Lines that wait to be written at most: a few MiB.
const MAX_WAITING: usize = 1 << 14;

static LOG: OnceLock<AccessLog> = OnceLock::new();

#[derive(Debug)]
struct AccessLog {
    lines: SyncSender<String>,
    dropped: AtomicU64,
}

/// Starts to log the requests of this process to `file`, which belongs to the file at `path`.
pub fn start(file: File, path: &Path) -> Result<()> {
    let (lines, waiting) = sync_channel(MAX_WAITING);
    let path = path.to_owned();
    let writing = std::thread::Builder::new().name("access log".to_owned()).spawn(move || {
        if let Err(error) = write(file, &waiting) {
            tracing::warn!("{}: {error}; requests are not logged any more", path.display());
        }
    });
    writing.map_err(|e| Error::io("starting the access log", e))?;
    let log = AccessLog { lines, dropped: AtomicU64::new(0) };
    LOG.set(log).map_err(|_| Error::new(ErrorKind::AlreadyExists, "this process has an access log already"))
}

/// Returns true if requests are logged.
pub(super) fn is_on() -> bool {
    LOG.get().is_some()
}

/// Logs a request on `path` that took `time`. `range` is the offset and the length that it names.
pub(super) fn record(
    operation: &str,
    path: Option<String>,
    range: Option<(u64, u64)>,
    outcome: Outcome,
    time: Duration,
) {
    let Some(log) = LOG.get() else { return };
    let mut line = Map::new();
    line.insert("time".to_owned(), format_time(system_clock()).into());
    line.insert("operation".to_owned(), operation.into());
    line.extend(path.map(|path| ("path".to_owned(), Value::from(path))));
    if let Some((offset, length)) = range {
        line.insert("offset".to_owned(), offset.into());
        line.insert("length".to_owned(), length.into());
    }
    line.insert("bytes".to_owned(), outcome.bytes.into());
    line.insert("errno".to_owned(), outcome.errno.into());
    line.insert("microseconds".to_owned(), u64::try_from(time.as_micros()).unwrap_or(u64::MAX).into());
    let dropped = log.dropped.swap(0, Ordering::Relaxed);
    if dropped > 0 {
        line.insert("dropped_before".to_owned(), dropped.into());
    }
    if log.lines.try_send(Value::Object(line).to_string()).is_err() {
        log.dropped.fetch_add(dropped + 1, Ordering::Relaxed);
    }
}

/// Writes lines as they come, and flushes when none waits.
fn write(file: File, lines: &Receiver<String>) -> std::io::Result<()> {
    let mut file = BufWriter::new(file);
    loop {
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(TryRecvError::Disconnected) => return file.flush(),
            Err(TryRecvError::Empty) => {
                file.flush()?;
                match lines.recv() {
                    Ok(line) => line,
                    Err(_) => return Ok(()),
                }
            }
        };
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
    }
}
