//! Web servers and their answers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::cat;
use super::web::{MODIFIED_SECONDS, SIZE, TAG, Web, content};
use crate::common::made::{Reference, reference, repository};
use crate::common::moto::{free_port, plain, python_server};
use crate::common::run;

struct Place {
    _directory: tempfile::TempDir,
    repository: PathBuf,
}

fn made(references: &[Reference]) -> Place {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"), Vec::new(), references);
    Place { _directory: directory, repository }
}

#[test]
fn ranges_are_read_from_servers_with_and_without_range_support() {
    let web = Web::new("");
    let place = made(&[
        reference(web.url("well"), 1000, 5000),
        reference(web.url("whole"), 1000, 5000),
        reference(web.url("more"), 0, 10),
        reference(web.url("broken-twice"), 20, 10),
        reference(web.url("sub%20dir/pi%C3%A8ce%231%3F?v=2"), SIZE - 1, 1),
        reference(web.url("well"), 5, 5).tagged(TAG),
        reference(web.url("well"), 5, 5).not_after(MODIFIED_SECONDS),
        reference(web.url("no-validators"), 5, 5),
    ]);
    let allowed = ["--allow-virtual", &web.url("")];
    for (n, offset, length) in
        [(0, 1000, 5000), (1, 1000, 5000), (2, 0, 10), (3, 20, 10), (4, SIZE - 1, 1), (5, 5, 5), (6, 5, 5), (7, 5, 5)]
    {
        assert_eq!(cat(&place.repository, n, &allowed).success(), content(offset, length), "{n}");
    }
    let asked = web.take();
    assert!(asked.iter().any(|request| request.target == "/sub%20dir/pi%C3%A8ce%231%3F"), "{asked:?}");
    assert_eq!(asked.len(), 10, "one request a chunk, and two that failed");
    let identity = |headers: &str| headers.contains("accept-encoding: identity") && !headers.contains("authorization");
    assert!(asked.iter().all(|request| identity(&request.headers)), "{asked:?}");
}

#[test]
fn wrong_answers_of_a_web_server_are_errors() {
    let web = Web::new("");
    let cases = [
        ("less", "too short"),
        ("another-part", "and the server sent"),
        ("no-range", "and the server sent"),
        ("encoded", "encoded as `gzip`"),
        ("cut-off", "line broke"),
        ("silent", "did not answer"),
        ("gone", "is gone"),
        ("forbidden", "403"),
        ("broken", "500"),
        ("nonsense", "virtual chunk"),
        ("sent-nowhere", "not a valid URL"),
        ("sent-round", "redirects more than"),
    ];
    let mut references: Vec<Reference> = cases.iter().map(|(path, _)| reference(web.url(path), 0, 100)).collect();
    references.extend([
        reference(web.url("well"), 0, 10).tagged("\"two\""),
        reference(web.url("well"), 0, 10).not_after(MODIFIED_SECONDS - 1),
        reference(web.url("no-validators"), 0, 10).tagged(TAG),
        reference(web.url("no-validators"), 0, 10).not_after(u32::MAX),
        reference(web.url("well"), SIZE - 5, 10),
        reference(web.url("well"), SIZE, 10),
        reference(web.url("whole"), SIZE, 10),
        reference(web.url("well"), u64::MAX - 5, 100),
    ]);
    let place = made(&references);
    let allowed = ["--allow-virtual", &web.url(""), "--timeout", "2"];
    let more =
        ["has changed", "has changed", "unchecked", "unchecked", "too short", "too short", "too short", "too short"];
    for (n, message) in cases.iter().map(|(_, message)| *message).chain(more).enumerate() {
        let begin = Instant::now();
        let output = cat(&place.repository, n, &allowed).failure();
        assert!(output.contains(message), "{n}: {output}");
        assert!(begin.elapsed() < Duration::from_secs(8), "{n}: it took {:?}", begin.elapsed());
    }
    let unchecked = format!("{},unchecked", web.url(""));
    for n in [cases.len(), cases.len() + 3] {
        let words = [&allowed[..], &["--virtual-option", &unchecked]].concat();
        assert_eq!(cat(&place.repository, n, &words).success(), content(0, 10));
    }
    // A server that does not exist.
    let gone = made(&[reference(format!("http://127.0.0.1:{}/x", free_port()), 0, 1)]);
    let output = cat(&gone.repository, 0, &["--allow-virtual", "http://127.0.0.1", "--timeout", "1"]).failure();
    assert!(output.contains("no such location is allowed"), "the port is part of it: {output}");
}

/// A redirect is followed only to an allowed prefix.
#[test]
fn redirects_are_followed_only_to_allowed_prefixes() {
    let secret = Web::new("");
    let web = Web::new(&secret.url("data/secret"));
    let paths = ["data/sent-on", "sent-up", "sent-away", "sent-to-a-file", "sent-on"];
    let place = made(&paths.map(|path| reference(web.url(path), 7, 11)));
    let read = |n: usize, allowed: &[String]| {
        let words: Vec<&str> = allowed.iter().flat_map(|prefix| ["--allow-virtual", prefix]).collect();
        cat(&place.repository, n, &words)
    };
    // The path decides about the answer; below `data` answers are correct.
    assert_eq!(read(0, &[web.url("data")]).success(), content(7, 11));
    web.take();
    assert_eq!(read(4, &[web.url("")]).success(), content(7, 11));
    assert_eq!(web.take().last().unwrap().target, "/data/well?signed=yes");
    assert_eq!(read(4, &[web.url("sent-on"), web.url("data")]).success(), content(7, 11));
    for (n, message) in [(1, "secret/"), (2, "data/"), (3, "the server redirects"), (4, "data/")] {
        let only = web.url(paths[n]);
        let output = read(n, &[only]).failure();
        assert!(output.contains("the server redirects") && output.contains(message), "{n}: {output}");
    }
    assert!(secret.take().is_empty(), "the server got a request");
    assert_eq!(read(2, &[web.url(""), secret.url("data")]).success(), content(7, 11));
    assert_eq!(secret.take().len(), 1);
}

#[test]
fn headers_are_sent_only_below_their_prefix() {
    let other = Web::new("");
    let web = Web::new(&other.url("x"));
    let place = made(&[reference(web.url("forbidden"), 0, 10), reference(web.url("sent-away"), 0, 10)]);
    let prefix = web.url("");
    let header = format!("{prefix},header=Authorization: Bearer let-me-in");
    let repository = place.repository.to_str().unwrap();
    let elsewhere = other.url("");
    for key in ["v/c/0", "v/c/1"] {
        let mut command = plain(&["cat", repository, key, "--allow-virtual", &prefix, "--allow-virtual", &elsewhere]);
        assert_eq!(run(command.env("ICECHUNKFS_VIRTUAL_OPTION", &header)).success(), content(0, 10));
    }
    assert!(web.take().iter().all(|request| request.headers.contains("let-me-in")));
    assert!(other.take().iter().all(|request| !request.headers.contains("let-me-in")));
    // Headers of the repository's own store go to no other server.
    let mut own = plain(&["cat", repository, "v/c/0", "--allow-virtual", &prefix]);
    own.env("ICECHUNKFS_HEADER", "Authorization: Bearer let-me-in");
    assert!(run(&mut own).failure().contains("--virtual-option"));
    assert!(web.take().iter().all(|request| !request.headers.contains("let-me-in")));
}

/// Python's server has no range support.
#[test]
fn virtual_chunks_are_read_from_a_server_without_ranges() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("sub dir")).unwrap();
    std::fs::write(directory.path().join("sub dir/x"), content(0, 100_000)).unwrap();
    let server = python_server(directory.path());
    let url = format!("http://127.0.0.1:{}", server.port);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as u32;
    let place = made(&[
        reference(format!("{url}/sub%20dir/x"), 50_000, 700).not_after(now + 10),
        reference(format!("{url}/sub%20dir/x"), 50_000, 700).not_after(now - 10_000),
        reference(format!("{url}/nothing"), 0, 1),
        // It redirects requests for a directory without a slash.
        reference(format!("{url}/sub%20dir"), 0, 1),
    ]);
    let read = |n| cat(&place.repository, n, &["--allow-virtual", &url]);
    assert_eq!(read(0).success(), content(50_000, 700));
    for (n, message) in [(1, "has changed"), (2, "is gone"), (3, "the server redirects")] {
        let output = read(n).failure();
        assert!(output.contains(message), "{n}: {output}");
    }
    // An object of one server is at another place, too.
    let map = format!("{url}={}", directory.path().display());
    let words = ["cat", place.repository.to_str().unwrap(), "v/c/0", "--virtual-map", &map];
    assert_eq!(run(&mut plain(&words)).success(), content(50_000, 700));
}
