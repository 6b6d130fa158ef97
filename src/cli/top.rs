//! `icechunkfs top`: what a mount does right now, from its file `.icechunk/stats`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::{control_client, print, print_raw};
use crate::fuse::open_mount::OpenMount;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_base::printable;

/// Clears the screen and moves to its first line.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";
/// Bytes of a MiB.
const MIB: f64 = (1 << 20) as f64;

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The mountpoint.
    mountpoint: PathBuf,
    /// Seconds between updates, from 0.1 on.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 2.0)]
    delay: f64,
    /// Number of updates [default: until it is interrupted].
    #[arg(short = 'n', long, value_name = "COUNT")]
    iterations: Option<u64>,
}

/// Values of `.icechunk/stats`, by name with labels.
#[derive(Debug, Default)]
struct Sample(BTreeMap<String, f64>);

/// Shows a mount until it is interrupted or unmounted.
pub(crate) fn run(arguments: &TopArgs) -> Result<()> {
    if !(0.1..=3600.0).contains(&arguments.delay) {
        return Err(Error::invalid("--delay is from 0.1 to 3600 seconds"));
    }
    let mount = control_client::open(&arguments.mountpoint)?;
    let place = mount.mount().mountpoint.display();
    let clears = std::io::stdout().is_terminal();
    let mut before = Sample::read(&mount)?;
    let mut at = Instant::now();
    let mut left = arguments.iterations;
    while left != Some(0) {
        std::thread::sleep(Duration::from_secs_f64(arguments.delay));
        let now = Sample::read(&mount)?;
        let seconds = at.elapsed().as_secs_f64();
        at = Instant::now();
        let head = printable::text(&control_client::read(&mount, "HEAD").unwrap_or_default());
        let head = head.trim().replace('\n', ", ");
        let text = format!("{place}: {}\n\n{}", printable::line(&head), now.since(&before, seconds));
        if clears {
            print_raw(CLEAR)?;
        }
        print(&text)?;
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

impl Sample {
    fn read(mount: &OpenMount) -> Result<Self> {
        Ok(Self::parse(&printable::text(&control_client::read(mount, "stats")?)))
    }

    fn parse(text: &str) -> Self {
        let value = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.strip_prefix("icechunkfs_")?.to_owned(), value.parse().ok()?))
        };
        Sample(text.lines().filter(|line| !line.starts_with('#')).filter_map(value).collect())
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// Returns the kinds of request that occurred.
    fn operations(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|name| name.strip_prefix("request_seconds_count{operation=\"")?.strip_suffix("\"}"))
    }

    /// Renders what happened since `before`, `seconds` ago.
    fn since(&self, before: &Sample, seconds: f64) -> String {
        let delta = |name: &str| self.get(name) - before.get(name);
        let rate = |name: &str| delta(name) / seconds;
        let mut text = format!("{:<16}{:>10}{:>12}{:>12}{:>10}\n", "requests", "per s", "mean ms", "all", "failed");
        for operation in self.operations() {
            let of = |name: &str| format!("{name}{{operation=\"{operation}\"}}");
            let count = delta(&of("request_seconds_count"));
            let time = delta(&of("request_seconds_sum"));
            let mean = if count > 0.0 { time / count * 1e3 } else { 0.0 };
            let all = self.get(&of("request_seconds_count"));
            let failed = self.get(&of("request_failures_total"));
            let _ = writeln!(text, "{operation:<16}{:>10.0}{mean:>12.3}{all:>12.0}{failed:>10.0}", count / seconds);
        }
        let _ = writeln!(text, "\n{:<16}{:>10}{:>12}", "bytes", "MiB/s", "all MiB");
        for (shown, name) in [
            ("read", "request_bytes_total{operation=\"read\"}"),
            ("written", "request_bytes_total{operation=\"write\"}"),
            ("from memory", "chunk_bytes_total{source=\"memory\"}"),
            ("from disk cache", "chunk_bytes_total{source=\"disk_cache\"}"),
            ("from files", "chunk_bytes_total{source=\"local\"}"),
            ("from store", "chunk_bytes_total{source=\"store\"}"),
            ("store received", "store_received_bytes_total"),
            ("store sent", "store_sent_bytes_total"),
            ("prefetched", "prefetch_fetched_bytes_total"),
            ("  and used", "prefetch_used_bytes_total"),
            ("  in vain", "prefetch_wasted_bytes_total"),
        ] {
            let _ = writeln!(text, "{shown:<16}{:>10.1}{:>12.1}", rate(name) / MIB, self.get(name) / MIB);
        }
        let requests = ["read", "write", "delete"].map(|kind| format!("store_requests_total{{kind=\"{kind}\"}}"));
        let _ = writeln!(
            text,
            "\nstore requests {:.0}/s ({:.0} in flight, {:.0} retries, {:.0} failures)",
            requests.iter().map(|name| rate(name)).sum::<f64>(),
            self.get("store_requests_in_flight"),
            self.get("store_retries_total"),
            self.get("store_failures_total"),
        );
        let _ = write!(text, "memory {:.1} MiB", self.get("cached_bytes") / MIB);
        if self.0.contains_key("scratch_bytes") {
            let _ = write!(
                text,
                "; open files {:.0} ({:.0} for writing); uncommitted {:.1} MiB, {:.0} MiB free",
                self.get("open_files"),
                self.get("open_files_writing"),
                self.get("scratch_bytes") / MIB,
                self.get("scratch_free_bytes") / MIB,
            );
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_per_second() {
        let sample = |count: u32| {
            Sample::parse(&format!(
                "# HELP x\nicechunkfs_request_seconds_count{{operation=\"read\"}} {count}\n\
                 icechunkfs_request_seconds_sum{{operation=\"read\"}} {}\n\
                 icechunkfs_chunk_bytes_total{{source=\"store\"}} {}\n",
                f64::from(count) / 1000.0,
                u64::from(count) << 20,
            ))
        };
        let text = sample(50).since(&sample(10), 2.0);
        let line = |begin: &str| {
            let line = text.lines().find(|line| line.starts_with(begin)).unwrap_or_default();
            line.trim_start_matches(begin).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(line("read "), ["20", "1.000", "50", "0"]);
        assert_eq!(line("from store"), ["20.0", "50.0"]);
    }
}
