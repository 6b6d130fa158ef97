//! Log output: standard error, a file, or the system log.
//!
//! Every message becomes one line of escaped text, whatever it contains.

use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use syslog_tracing::{Facility, Options, Syslog};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder};

use crate::error::{Error, ErrorKind, Result};
use crate::{printable, trust};

/// Logs warnings and errors to standard error; more if `verbose`.
pub(crate) fn to_stderr(verbose: u8) {
    install(builder(verbose, Level::WARN).without_time().with_writer(OneLine(std::io::stderr)).finish());
}

/// Logs to standard error for a foreground mount: informational messages, too.
pub(crate) fn to_foreground(verbose: u8) {
    install(builder(verbose, Level::INFO).with_writer(OneLine(std::io::stderr)).finish());
}

/// Logs to the end of a file, which no other user may be able to write to.
pub(crate) fn to_file(path: &Path, verbose: u8) -> Result<()> {
    let file = trust::open_log(path).map_err(|e| e.context(format!("the log file {}", path.display())))?;
    install(builder(verbose, Level::INFO).with_writer(OneLine(Mutex::new(file))).finish());
    Ok(())
}

/// Logs to the system log (journald reads it too).
pub(crate) fn to_syslog(verbose: u8) -> Result<()> {
    let syslog = Syslog::new(c"icechunkfs", Options::LOG_PID, Facility::Daemon)
        .ok_or_else(|| Error::new(ErrorKind::Io, "the system's log is open already"))?;
    // syslog adds time, name and level.
    install(builder(verbose, Level::INFO).with_level(false).without_time().with_writer(OneLine(syslog)).finish());
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

/// Logs events of level `quiet` and above; more if `verbose`.
fn builder(verbose: u8, quiet: Level) -> SubscriberBuilder {
    let level = [quiet, Level::DEBUG].get(usize::from(verbose)).copied().unwrap_or(Level::TRACE);
    tracing_subscriber::fmt().with_max_level(LevelFilter::from_level(level)).with_target(false).with_ansi(false)
}

fn install(subscriber: impl tracing::Subscriber + Send + Sync) {
    use tracing_subscriber::util::SubscriberInitExt;
    // Fails only if a subscriber exists, which is as good.
    let _ = subscriber.try_init();
}
