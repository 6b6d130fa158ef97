//! Chunks that are uploaded before the commit that refers to them, over a proxy with the faults of
//! each test.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::faulty::{Fault, Line};
use crate::common::mapping::Mapping;
use crate::common::moto::{self, commit, icechunkfs, mount, repository, s3};
use crate::common::writing::{array, put};
use crate::common::{Mount, read_files, signal, wait_for_end, wait_until};

/// Bytes of a chunk that is a separate object.
const LARGE: usize = 300_000;

/// Creates a repository with an empty array of 40 chunks.
fn empty(port: u16, name: &str) -> String {
    let repo = repository(name);
    icechunkfs(port, &["init", &repo, "--zarr-group"]).success();
    let mount = mount(port, &repo, &["--ephemeral"]);
    put(&mount.path().join("a/zarr.json"), array(&[40], &[1])).unwrap();
    commit(&mount).unwrap();
    mount.unmount();
    repo
}

fn bytes(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8 ^ salt as u8).collect()
}

fn chunk(mount: &Mount, n: usize) -> PathBuf {
    mount.path().join(format!("a/c/{n}"))
}

/// Counts requests that store chunks from now on, and lets `fault` decide about each by its number.
fn count_uploads(line: &Line, fault: impl Fn(usize) -> Fault + Send + 'static) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    line.decide(move |_, first| {
        if first.starts_with("PUT ") && first.contains("/chunks/") {
            fault(counted.fetch_add(1, Ordering::Relaxed))
        } else {
            Fault::Pass
        }
    });
    count
}

fn pass(line: &Line) -> Arc<AtomicUsize> {
    count_uploads(line, |_| Fault::Pass)
}

fn number(count: &AtomicUsize) -> usize {
    count.load(Ordering::Relaxed)
}

fn uploaded(mount: &Mount) -> u64 {
    mount.control_json("status.json")["uploaded_chunks"].as_u64().unwrap()
}

#[track_caller]
fn wait_for_uploads(mount: &Mount, count: u64) {
    wait_until("chunks are not uploaded", || uploaded(mount) == count);
}

/// Commits, and checks that a fresh mount shows the same as this one.
#[track_caller]
fn commit_and_compare(mount: &Mount, port: u16, repo: &str) {
    commit(mount).unwrap_or_else(|e| panic!("{e}: {}", mount.log()));
    let fresh = moto::mount(port, repo, &["-o", "ro"]);
    assert!(read_files(&fresh.path()) == read_files(&mount.path()));
}

/// Chunks uploaded before a commit look like garbage. When they are collected, the commit uploads
/// them again.
#[test]
fn collected_uploads_are_uploaded_again() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "collected");
    let mount = mount(line.port, &repo, &["--ephemeral"]);
    for n in 0..3 {
        put(&chunk(&mount, n), bytes(LARGE, n)).unwrap();
    }
    wait_for_uploads(&mount, 3);
    let gc = |word| icechunkfs(server.port, &["gc", &repo, "--older-than", "0s", "--json", word]).json();
    // Some stores have times in whole seconds: the chunks are garbage a moment later.
    wait_until("the chunks are no garbage", || gc("--dry-run")["chunks"]["objects"] == 3);
    let output = gc("--yes");
    assert_eq!(output["chunks"]["objects"], 3, "{output:#}");
    let count = pass(&line);
    put(&chunk(&mount, 3), bytes(LARGE, 3)).unwrap();
    wait_for_uploads(&mount, 4);
    commit_and_compare(&mount, server.port, &repo);
    // Clocks may differ, so that an upload shortly after the collection is not trusted either.
    assert_eq!(number(&count), 1 + 4);
    icechunkfs(server.port, &["verify", &repo, "--chunks"]).success();
}

#[test]
fn a_commit_references_finished_uploads() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "names");
    let mount = mount(line.port, &repo, &["--ephemeral"]);
    let count = pass(&line);
    for n in 0..6 {
        // As zarr-python does.
        let partial = mount.path().join(format!("a/c/{n}.partial"));
        put(&partial, bytes(LARGE, n)).unwrap();
        std::fs::rename(&partial, chunk(&mount, n)).unwrap();
    }
    // In parts, and too small for a separate object.
    put(&chunk(&mount, 6), bytes(17 << 20, 6)).unwrap();
    put(&chunk(&mount, 7), bytes(1000, 7)).unwrap();
    // No chunk by its name.
    put(&mount.path().join("a/notes"), bytes(LARGE, 8)).unwrap();
    wait_for_uploads(&mount, 7);
    assert_eq!(number(&count), 9, "6 objects and one in 3 parts");
    let output = mount.control_json("status.json");
    assert_eq!(output["uploaded_bytes"], 6 * LARGE + (17 << 20));
    assert_eq!(output["chunks_written"], 8);
    let count = pass(&line);
    commit(&mount).unwrap();
    assert_eq!(number(&count), 1, "the small one");
    std::fs::remove_file(mount.path().join("a/notes")).unwrap();
    commit_and_compare(&mount, server.port, &repo);
    // The uploads belong to that commit: the next one uses the bytes that are written then.
    put(&chunk(&mount, 0), bytes(LARGE, 99)).unwrap();
    commit_and_compare(&mount, server.port, &repo);
}

#[test]
fn a_chunk_changed_after_its_upload_is_uploaded_again() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "changes");
    let mount = mount(line.port, &repo, &["--ephemeral"]);
    for n in 0..8 {
        put(&chunk(&mount, n), bytes(LARGE, n)).unwrap();
    }
    wait_for_uploads(&mount, 8);
    let count = pass(&line);
    put(&chunk(&mount, 0), bytes(LARGE, 100)).unwrap();
    let middle = std::fs::OpenOptions::new().write(true).open(chunk(&mount, 1)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&middle, b"changed", 1000).unwrap();
    drop(middle);
    // By its path, without a handle.
    let path = std::ffi::CString::new(chunk(&mount, 2).as_os_str().as_bytes()).unwrap();
    // SAFETY: the path ends with a NUL byte and lives on.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), LARGE as i64 - 1) }, 0);
    std::fs::remove_file(chunk(&mount, 3)).unwrap();
    std::fs::rename(chunk(&mount, 4), chunk(&mount, 20)).unwrap();
    std::fs::rename(chunk(&mount, 5), chunk(&mount, 6)).unwrap();
    put(&chunk(&mount, 7), bytes(2 * LARGE, 107)).unwrap();
    commit_and_compare(&mount, server.port, &repo);
    // Chunks with other bytes, and perhaps again those that the commit found in transit.
    assert_eq!(number(&count), 4);
    assert!(!chunk(&mount, 3).exists() && !chunk(&mount, 5).exists());
    assert!(std::fs::read(chunk(&mount, 20)).unwrap() == bytes(LARGE, 4));
    assert!(std::fs::read(chunk(&mount, 6)).unwrap() == bytes(LARGE, 5));
}

#[test]
fn a_file_is_not_uploaded_while_it_is_written_or_mapped() {
    let Some(server) = s3() else { return };
    let repo = empty(server.port, "mapped");
    let mount = mount(server.port, &repo, &["--ephemeral"]);
    put(&chunk(&mount, 0), bytes(LARGE, 0)).unwrap();
    put(&chunk(&mount, 1), bytes(LARGE, 1)).unwrap();
    wait_for_uploads(&mount, 2);
    let open = |n| std::fs::OpenOptions::new().read(true).write(true).open(chunk(&mount, n)).unwrap();
    let written = open(0);
    let mapped = open(1);
    let mapping = Mapping::shared(&mapped);
    drop(mapped);
    // A third interval passes.
    put(&chunk(&mount, 2), bytes(LARGE, 2)).unwrap();
    wait_for_uploads(&mount, 1);
    std::os::unix::fs::FileExt::write_all_at(&written, b"written", 7).unwrap();
    drop(written);
    wait_for_uploads(&mount, 2);
    mapping.write(9, b"mapped");
    drop(mapping);
    commit_and_compare(&mount, server.port, &repo);
    assert_eq!(std::fs::read(chunk(&mount, 0)).unwrap()[7..14], *b"written");
    assert_eq!(std::fs::read(chunk(&mount, 1)).unwrap()[9..15], *b"mapped");
}

#[test]
fn chunks_are_uploaded_once_their_array_is_known() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "later");
    let mount = mount(line.port, &repo, &["--ephemeral"]);
    let count = pass(&line);
    let root = mount.path();
    put(&root.join("b.tmp/c/0"), bytes(LARGE, 1)).unwrap();
    put(&root.join("d/c/0"), bytes(LARGE, 2)).unwrap();
    put(&root.join("d/c/1"), bytes(LARGE, 3)).unwrap();
    // An operation that waits for this one has waited for those before it.
    put(&chunk(&mount, 0), bytes(LARGE, 0)).unwrap();
    wait_for_uploads(&mount, 1);
    assert_eq!(number(&count), 1, "something was uploaded that is no chunk yet");
    put(&root.join("b.tmp/zarr.json"), array(&[4], &[1])).unwrap();
    // One chunk is outside.
    put(&root.join("d/zarr.json"), array(&[1], &[1])).unwrap();
    wait_for_uploads(&mount, 3);
    std::fs::rename(root.join("b.tmp"), root.join("b")).unwrap();
    std::fs::remove_file(root.join("d/c/1")).unwrap();
    commit_and_compare(&mount, server.port, &repo);
    assert_eq!(number(&count), 3);
}

#[test]
fn upload_commit_stores_nothing_before_the_commit() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "waits");
    let mount = mount(line.port, &repo, &["--ephemeral", "--upload", "commit", "--upload-limit", "1M"]);
    let info = mount.control_json("info.json");
    assert_eq!((&info["options"]["upload"], &info["options"]["upload_limit"]), (&"commit".into(), &(1 << 20).into()));
    let count = pass(&line);
    for n in 0..3 {
        put(&chunk(&mount, n), bytes(1 << 20, n)).unwrap();
    }
    // Nothing must happen for longer than the delay of any upload: no condition shows that.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(number(&count), 0);
    let begin = Instant::now();
    commit_and_compare(&mount, server.port, &repo);
    assert_eq!(number(&count), 3);
    assert!(begin.elapsed() > Duration::from_millis(1900), "3 MiB at 1 MiB/s took {:?}", begin.elapsed());
}

#[test]
fn a_commit_stores_chunks_whose_upload_failed() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "fails");
    for (salt, fault) in
        [Fault::Broken, Fault::Overloaded, Fault::Reset, Fault::Lost, Fault::Half].into_iter().enumerate()
    {
        let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "3"]);
        let count = count_uploads(&line, move |_| fault);
        for n in 0..4 {
            put(&chunk(&mount, n), bytes(LARGE, 10 * salt + n)).unwrap();
        }
        wait_until("nothing was tried", || number(&count) >= 4);
        line.release();
        commit_and_compare(&mount, server.port, &repo);
        mount.unmount();
    }
    // The commit meets uploads that hang.
    let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "3"]);
    let count = count_uploads(&line, |n| if n < 2 { Fault::Silent } else { Fault::Pass });
    for n in 0..4 {
        put(&chunk(&mount, n), bytes(LARGE, 90 + n)).unwrap();
    }
    wait_until("nothing was tried", || number(&count) >= 2);
    commit_and_compare(&mount, server.port, &repo);
    line.release();
    mount.unmount();
}

/// A store that fails is tried now and then, and everything is uploaded when it works again.
#[test]
fn failed_uploads_are_retried_with_backoff() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "gone");
    let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "1"]);
    let count = count_uploads(&line, |_| Fault::Reset);
    for n in 0..30 {
        put(&chunk(&mount, n), bytes(LARGE, n)).unwrap();
    }
    wait_until("nothing was tried", || number(&count) > 0);
    // The requests within a time are what is tested.
    std::thread::sleep(Duration::from_secs(5));
    let tries = number(&count);
    assert!(tries < 150, "{tries} requests within seconds");
    line.release();
    wait_for_uploads(&mount, 30);
    assert!(mount.log().contains("uploading before the commit"), "{}", mount.log());
    let count = pass(&line);
    commit_and_compare(&mount, server.port, &repo);
    assert_eq!(number(&count), 0);
}

#[test]
fn a_daemon_killed_during_an_upload_loses_nothing() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = empty(server.port, "dies");
    let scratch = tempfile::tempdir().unwrap();
    let words = ["--scratch", scratch.path().to_str().unwrap()];
    let first = mount(line.port, &repo, &words);
    let count = count_uploads(&line, |n| if n < 2 { Fault::Pass } else { Fault::Silent });
    for n in 0..6 {
        put(&chunk(&first, n), bytes(LARGE, n)).unwrap();
    }
    wait_until("nothing is on its way", || number(&count) >= 4);
    let daemon = first.daemon();
    signal(daemon, "-9");
    wait_for_end(daemon);
    line.release();
    drop(first);
    let second = mount(line.port, &repo, &words);
    for n in 0..6 {
        assert!(std::fs::read(chunk(&second, n)).unwrap() == bytes(LARGE, n), "chunk {n}");
    }
    commit_and_compare(&second, server.port, &repo);
    // An unmount does not wait for uploads in progress.
    count_uploads(&line, |_| Fault::Silent);
    put(&chunk(&second, 9), bytes(LARGE, 9)).unwrap();
    wait_until("nothing is on its way", || line.counts().1 > 0);
    let begin = Instant::now();
    let daemon = second.daemon();
    second.unmount();
    wait_for_end(daemon);
    assert!(begin.elapsed() < Duration::from_secs(10), "the unmount took {:?}", begin.elapsed());
    line.release();
}
