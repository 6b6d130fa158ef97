//! Settings of a repository for the requests to its store: how many at a time, how many tries, and
//! how far apart.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{icechunkfs, mount, repository, s3};
use crate::common::writing::{array, put};
use crate::common::{moto, wait_until};

const CHUNKS: usize = 24;
/// Bytes of a chunk: enough for an object of its own.
const SIZE: usize = 300_000;

/// Makes a repository of [`CHUNKS`] chunks that are no inline ones, with `settings`.
fn made_with(port: u16, name: &str, settings: &[(&str, &str)]) -> String {
    let repo = repository(name);
    icechunkfs(port, &["init", &repo, "--zarr-group"]).success();
    let writer = mount(port, &repo, &["--ephemeral"]);
    put(&writer.path().join("a/zarr.json"), array(&[CHUNKS as u64], &[1])).unwrap();
    for n in 0..CHUNKS {
        put(&writer.path().join(format!("a/c/{n}")), vec![n as u8 + 1; SIZE]).unwrap();
    }
    moto::commit(&writer).unwrap();
    writer.unmount();
    for (setting, value) in settings {
        icechunkfs(port, &["config", &repo, "set", setting, value]).success();
    }
    repo
}

/// Returns how many requests for chunks a mount sends at a time if the store is silent.
fn at_once(line: &Line, repo: &str, options: &[&str]) -> usize {
    let reader = mount(line.port, repo, &[&["-o", "ro", "--ahead", "0", "--timeout", "60"], options].concat());
    line.wait_until_quiet();
    line.decide(|_, request| if request.contains("/chunks/") { Fault::Silent } else { Fault::Pass });
    thread::scope(|scope| {
        for n in 0..CHUNKS {
            let path = reader.path().join(format!("a/c/{n}"));
            scope.spawn(move || assert!(std::fs::read(path).unwrap() == vec![n as u8 + 1; SIZE]));
        }
        let mut most = 0;
        let mut since = Instant::now();
        wait_until("no request for a chunk comes", || {
            let open = line.open();
            if open > most {
                (most, since) = (open, Instant::now());
            }
            most > 0 && since.elapsed() > Duration::from_secs(1)
        });
        line.release();
        most
    })
}

#[test]
fn the_configured_number_of_requests_is_sent_at_a_time() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made_with(server.port, "at-once", &[]);
    let default = at_once(&line, &repo, &[]);
    assert!(default > 8, "{default}");
    icechunkfs(server.port, &["config", &repo, "set", "max_concurrent_requests", "4"]).success();
    let configured = at_once(&line, &repo, &[]);
    assert!((2..=4).contains(&configured), "{configured}");
    let explicit = at_once(&line, &repo, &["--max-requests", "12"]);
    assert!((5..=12).contains(&explicit), "what the user says counts: {explicit}");
}

#[test]
fn a_request_is_tried_as_often_as_configured() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    for tries in [1, 3] {
        let repo =
            made_with(server.port, &format!("tries-{tries}"), &[("storage.retries.max_tries", &tries.to_string())]);
        let is_chunk = |request: &str| request.contains("/chunks/");
        for fault in [Fault::Overloaded, Fault::Reset] {
            line.decide(move |_, request| if is_chunk(request) { fault } else { Fault::Pass });
            let refused = icechunkfs(line.port, &["cat", &repo, "a/c/0"]).failure();
            assert_eq!(line.counts().1, tries, "{fault:?}: {refused}");
            let advice = format!("storage.retries.max_tries of the repository's configuration is {tries}");
            assert!(refused.contains(&advice), "{refused}");
            // One failure less is none.
            let left = AtomicUsize::new(tries - 1);
            line.decide(move |_, request| {
                let fails = is_chunk(request)
                    && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
                if fails { fault } else { Fault::Pass }
            });
            assert!(icechunkfs(line.port, &["cat", &repo, "a/c/1"]).success() == vec![2; SIZE], "{fault:?}");
            assert_eq!(line.counts().1, tries - 1);
            line.release();
        }
        // Another request has tries of its own: a commit makes many.
        let writer = mount(line.port, &repo, &["--ephemeral", "--timeout", "30"]);
        put(&writer.path().join("a/c/0"), vec![99; SIZE]).unwrap();
        let seen: Mutex<Vec<String>> = Mutex::default();
        line.decide(move |_, request| {
            let mut seen = seen.lock().unwrap();
            let is_first = !seen.iter().any(|other| other == request);
            seen.push(request.to_owned());
            if is_first && tries > 1 { Fault::Overloaded } else { Fault::Pass }
        });
        moto::commit(&writer).unwrap_or_else(|error| panic!("{error}: {}", writer.log()));
        line.release();
    }
}

#[test]
fn tries_are_as_far_apart_as_configured() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let retries = [("storage.retries.initial_backoff_ms", "700"), ("storage.retries.max_backoff_ms", "1000")];
    let repo = made_with(server.port, "apart", &retries);
    let reader = mount(line.port, &repo, &["-o", "ro", "--ahead", "0", "--timeout", "40"]);
    line.wait_until_quiet();
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&times);
    line.decide(move |n, _| {
        noted.lock().unwrap().push(Instant::now());
        if n < 3 { Fault::Broken } else { Fault::Pass }
    });
    assert!(std::fs::read(reader.path().join("a/c/0")).unwrap() == vec![1; SIZE]);
    let times = times.lock().unwrap();
    let gaps: Vec<u128> = times.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    // 700 ms, then twice that, but not more than a second.
    assert!(gaps.len() >= 3 && gaps[0] >= 700 && gaps[1] >= 1000 && gaps[2] >= 1000, "{gaps:?}");
}
