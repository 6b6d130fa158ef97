//! All counts in the text format of Prometheus (exposition format 0.0.4).

use std::fmt::Write;

use super::{PREFETCH, SOURCES, START, STORE, request};

/// Value of the moment, from outside of this module.
#[derive(Clone, Debug)]
pub struct Gauge {
    /// Name after `icechunkfs_`.
    pub name: &'static str,
    /// Explanation.
    pub help: &'static str,
    /// Value.
    pub value: u64,
}

/// Renders all counts, and `gauges`.
pub fn render(gauges: &[Gauge]) -> String {
    let mut text = String::new();
    requests(&mut text);
    let bytes = [
        ("memory", &SOURCES.memory),
        ("disk_cache", &SOURCES.disk_cache),
        ("local", &SOURCES.local),
        ("store", &SOURCES.store),
    ];
    let help = "Bytes of chunks by source, without those that the kernel had in its caches or read from files.";
    head(&mut text, "chunk_bytes_total", "counter", help);
    for (source, counter) in bytes {
        line(&mut text, &format!("chunk_bytes_total{{source=\"{source}\"}}"), counter.get());
    }
    head(&mut text, "store_requests_total", "counter", "Requests to object stores, each attempt counted.");
    for (kind, counter) in [("read", &STORE.reads), ("write", &STORE.writes), ("delete", &STORE.deletes)] {
        line(&mut text, &format!("store_requests_total{{kind=\"{kind}\"}}"), counter.get());
    }
    for (name, help, counter) in [
        ("store_retries_total", "Attempts after the first one of a request to a store.", &STORE.retries),
        ("store_failures_total", "Responses 429 and 5xx of stores, and attempts without a response.", &STORE.failures),
        ("store_received_bytes_total", "Bytes of response bodies of stores.", &STORE.received),
        ("store_sent_bytes_total", "Bytes of request bodies to stores.", &STORE.sent),
        ("prefetch_fetched_bytes_total", "Bytes of chunks that were fetched ahead of programs.", &PREFETCH.fetched),
        ("prefetch_used_bytes_total", "Bytes of chunks that were fetched ahead and then read.", &PREFETCH.used),
        ("prefetch_wasted_bytes_total", "Bytes fetched ahead and evicted before they were read.", &PREFETCH.wasted),
    ] {
        head(&mut text, name, "counter", help);
        line(&mut text, name, counter.get());
    }
    for gauge in gauges {
        head(&mut text, gauge.name, "gauge", gauge.help);
        line(&mut text, gauge.name, gauge.value);
    }
    head(&mut text, "uptime_seconds", "gauge", "Time since the mount began.");
    let _ = writeln!(text, "icechunkfs_uptime_seconds {:.3}", START.elapsed().as_secs_f64());
    head(&mut text, "build_info", "gauge", "Version of the program.");
    line(&mut text, concat!("build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1);
    text
}

/// Renders the requests of the kernel: only those that occurred, as most mounts see few kinds.
fn requests(text: &mut String) {
    let seen: Vec<_> = request::all()
        .map(|(name, figures)| (name, figures, figures.times.cumulative()))
        .filter(|(_, _, times)| times.last().is_some_and(|(_, count)| *count > 0))
        .collect();
    head(text, "request_seconds", "histogram", "Time from a request of the kernel to its reply.");
    for (name, figures, times) in &seen {
        for (bound, count) in times {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            line(text, &format!("request_seconds_bucket{{operation=\"{name}\",le=\"{bound}\"}}"), *count);
        }
        let _ = writeln!(text, "icechunkfs_request_seconds_sum{{operation=\"{name}\"}} {:.6}", figures.times.seconds());
        let count = times.last().map_or(0, |(_, count)| *count);
        line(text, &format!("request_seconds_count{{operation=\"{name}\"}}"), count);
    }
    head(text, "request_failures_total", "counter", "Requests of the kernel that were answered with an error.");
    for (name, figures, _) in &seen {
        line(text, &format!("request_failures_total{{operation=\"{name}\"}}"), figures.failures.get());
    }
    head(text, "request_bytes_total", "counter", "Bytes that requests of the kernel read and wrote.");
    for (name, figures, _) in seen.iter().filter(|(name, ..)| matches!(*name, "read" | "write" | "copy_file_range")) {
        line(text, &format!("request_bytes_total{{operation=\"{name}\"}}"), figures.bytes.get());
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(text, "# HELP icechunkfs_{name} {help}\n# TYPE icechunkfs_{name} {kind}\n");
}

fn line(text: &mut String, name: &str, value: u64) {
    let _ = writeln!(text, "icechunkfs_{name} {value}");
}
