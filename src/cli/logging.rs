//! Log output: standard error, a file, or the system log.
//!
//! Every message becomes one line of escaped text, whatever it contains.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use syslog_tracing::{Facility, Options, Syslog};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::printable;
use icechunkfs_base::trust;

/// Logs warnings and errors to standard error; more if `verbose`.
pub(crate) fn to_stderr(verbose: u8) {
    install(verbose, Level::WARN, false, true, OneLine(std::io::stderr));
}

/// Logs to standard error for a foreground mount: informational messages, too.
pub(crate) fn to_foreground(verbose: u8) {
    install(verbose, Level::INFO, true, true, OneLine(std::io::stderr));
}

/// Logs to the end of a file, which no other user may be able to write to.
pub(crate) fn to_file(path: &Path, verbose: u8) -> Result<()> {
    let file = trust::open_log(path).map_err(|e| e.context(format!("the log file {}", path.display())))?;
    install(verbose, Level::INFO, true, true, OneLine(Mutex::new(file)));
    Ok(())
}

/// Logs to the system log (journald reads it too).
pub(crate) fn to_syslog(verbose: u8) -> Result<()> {
    let syslog = Syslog::new(c"icechunkfs", Options::LOG_PID, Facility::Daemon)
        .ok_or_else(|| Error::new(ErrorKind::Io, "the system's log is open already"))?;
    // syslog adds time, name and level.
    install(verbose, Level::INFO, false, false, OneLine(syslog));
    Ok(())
}

/// Writes each event as one line.
struct OneLine<M>(M);

/// Receives whole events: the formatter hands over each at once.
struct OneLineWriter<W>(W);

impl<'a, M: MakeWriter<'a>> MakeWriter<'a> for OneLine<M> {
    type Writer = OneLineWriter<M::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        OneLineWriter(self.0.make_writer())
    }

    // The system log has a priority for each level.
    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Self::Writer {
        OneLineWriter(self.0.make_writer_for(metadata))
    }
}

impl<W: Write> Write for OneLineWriter<W> {
    fn write(&mut self, event: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let line = printable::line(&printable::redact_passwords(text)) + "\n";
        self.0.write_all(line.as_bytes()).map(|()| event.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Sets the level of the log of this process.
static SET_LEVEL: OnceLock<Box<dyn Fn(LevelFilter) + Send + Sync>> = OnceLock::new();
/// Level at the start, and the times it was raised since.
static LEVEL: Mutex<(Level, usize)> = Mutex::new((Level::INFO, 0));

/// Raises the level of the log by one: to debug, to trace, and then back to that at the start.
/// Returns the new one.
pub(crate) fn raise_level() -> Level {
    let mut level = LEVEL.lock().unwrap_or_else(PoisonError::into_inner);
    let (start, raised) = *level;
    let levels: Vec<Level> = [start, Level::DEBUG, Level::TRACE].into_iter().filter(|level| *level >= start).collect();
    let raised = (raised + 1) % levels.len().max(1);
    *level = (start, raised);
    let now = levels.get(raised).copied().unwrap_or(start);
    if let Some(set) = SET_LEVEL.get() {
        set(LevelFilter::from_level(now));
    }
    now
}

/// Logs events of level `quiet` and above to `writer`; more if `verbose`.
fn install<W>(verbose: u8, quiet: Level, timed: bool, with_level: bool, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let level = [quiet, Level::DEBUG].get(usize::from(verbose)).copied().unwrap_or(Level::TRACE);
    *LEVEL.lock().unwrap_or_else(PoisonError::into_inner) = (level, 0);
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_ansi(false).with_level(with_level);
    let lines = lines.with_writer(writer);
    let subscriber = tracing_subscriber::registry().with(filter);
    // Fails only if a subscriber exists, which is as good.
    let installed =
        if timed { subscriber.with(lines).try_init() } else { subscriber.with(lines.without_time()).try_init() };
    if installed.is_ok() {
        let _ = SET_LEVEL.set(Box::new(move |level| drop(handle.reload(level))));
    }
}
