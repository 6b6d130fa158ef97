//! Refusals and damaged answers of a store: the message for users, the errno for programs, and no
//! lasting effect.

use std::time::{Duration, Instant};

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{self, commit, icechunkfs, made, mount, s3, try_to_mount};
use crate::common::writing::put;
use crate::common::{read_files, signal, wait_until};

const FORBIDDEN: Fault = Fault::Says("403 Forbidden", "AccessDenied");

fn is_put(request: &str) -> bool {
    request.starts_with("PUT ") || request.starts_with("POST ")
}

fn is_listing(request: &str) -> bool {
    request.contains("list-type=")
}

/// Each refusal is reported with a remedy, at once: none of them is transient.
#[test]
fn refusals_are_reported_at_once_with_advice() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "refused");
    let refusals = [
        ("403 Forbidden", "AccessDenied", "do not allow it"),
        ("403 Forbidden", "InvalidAccessKeyId", "does not know the access key"),
        ("403 Forbidden", "SignatureDoesNotMatch", "does not match"),
        ("400 Bad Request", "ExpiredToken", "expired"),
        ("403 Forbidden", "RequestTimeTooSkewed", "clock is wrong"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "--region"),
        ("301 Moved Permanently", "PermanentRedirect", "--region or --endpoint-url"),
        ("404 Not Found", "NoSuchBucket", "bucket does not exist"),
    ];
    for (status, code, told) in refusals {
        line.decide(move |_, _| Fault::Says(status, code));
        let begin = Instant::now();
        let output = icechunkfs(line.port, &["refs", &repo, "--timeout", "20"]).failure();
        assert!(output.contains(told) && output.contains(&repo), "{code}: {output}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{code}: it was asked again and again");
        let output = try_to_mount(line.port, &repo, &["--timeout", "20"]).1.failure();
        assert!(output.contains(told), "{code}: {output}");
    }
}

#[test]
fn read_permission_alone_gives_a_read_only_mount() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "read-only");
    line.decide(|_, request| if is_put(request) { FORBIDDEN } else { Fault::Pass });
    let read = mount(line.port, &repo, &[]);
    assert!(read.mounted_as().unwrap().contains(" ro,"), "{:?}", read.mounted_as());
    assert!(read.log().contains("mounted read-only") && read.log().contains("do not allow it"), "{}", read.log());
    assert_eq!(read_files(&read.path()).len(), 42);
    let output = try_to_mount(line.port, &repo, &["--ephemeral"]).1.failure();
    assert!(output.contains("cannot be written to") && output.contains("do not allow it"), "{output}");
}

#[test]
fn reading_and_committing_need_no_permission_to_list() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "unlisted");
    line.decide(|_, request| if is_listing(request) { FORBIDDEN } else { Fault::Pass });
    let mount = mount(line.port, &repo, &["--ephemeral"]);
    assert_eq!(read_files(&mount.path()).len(), 42);
    put(&mount.path().join("a/c/3"), "new").unwrap();
    commit(&mount).unwrap();
    assert_eq!(line.counts().1, 1, "only a line of waiting writers was looked for, and the commit did without it");
    let none = icechunkfs(line.port, &["refs", &format!("{repo}-none")]).failure();
    assert!(none.contains("do not allow it"), "whether there is a repository is not known: {none}");
}

/// Write permission is removed while there is uncommitted work: the commit fails with a message,
/// the work stays, and is committed when the permission is back.
#[test]
fn losing_write_permission_loses_no_work() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "lost");
    let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "10"]);
    for refused in ["chunks/", "manifests/", "transactions/", "snapshots/", "overwritten/", "/repo "] {
        put(&mount.path().join("a/c/7"), refused.repeat(100_000)).unwrap();
        line.decide(
            move |_, request| if is_put(request) && request.contains(refused) { FORBIDDEN } else { Fault::Pass },
        );
        let failed = commit(&mount).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EACCES), "{refused}: {failed}");
        let told = mount.read_control("commit");
        assert!(told.contains("do not allow it"), "{refused}: {told}");
        line.release();
        commit(&mount).unwrap();
        let fresh = moto::mount(server.port, &repo, &["-o", "ro"]);
        assert!(std::fs::read(fresh.path().join("a/c/7")).unwrap() == refused.repeat(100_000).as_bytes(), "{refused}");
    }
}

/// Answers that are too short without announcing it, and answers with wrong bytes, each once at
/// each request of a mount, a walk and a reader. Documents are fetched again; a chunk that is too
/// short is an error and never a short file. A cache keeps none of them.
#[test]
fn damaged_answers_are_not_cached() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "garbled");
    let expected = read_files(&mount(server.port, &repo, &["-o", "ro"]).path());
    for fault in [Fault::Short, Fault::Garbled] {
        for at in 0..6 {
            let directory = tempfile::tempdir().unwrap();
            let cache = directory.path().join("cache").display().to_string();
            // Wrong bytes of a chunk cannot be detected: only their number is known.
            line.decide(move |n, request| match fault {
                Fault::Garbled if request.contains("/chunks/") => Fault::Pass,
                fault if n == at => fault,
                _ => Fault::Pass,
            });
            let place = mount(line.port, &repo, &["-o", "ro", "--cache", &cache, "--ahead", "0"]);
            for (name, bytes) in &expected {
                match std::fs::read(place.path().join(name)) {
                    Ok(read) => assert!(read == *bytes, "{fault:?} at {at}: {name}"),
                    Err(error) => {
                        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{fault:?} at {at}: {name}");
                        assert!(std::fs::read(place.path().join(name)).unwrap() == *bytes, "{fault:?} at {at}: {name}");
                    }
                }
            }
            place.unmount();
            line.release();
            let again = mount(line.port, &repo, &["-o", "ro", "--cache", &cache]);
            assert!(read_files(&again.path()) == expected, "{fault:?} at {at}: from the cache");
        }
    }
}

/// A machine sleeps during requests, for longer than their deadline.
#[test]
fn a_mount_recovers_after_the_machine_sleeps() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "asleep");
    let expected = read_files(&mount(server.port, &repo, &["-o", "ro"]).path());
    let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "2"]);
    put(&mount.path().join("a/c/1"), "written").unwrap();
    let daemon = mount.daemon();
    line.decide(|_, request| if request.contains("/chunks/") { Fault::Silent } else { Fault::Pass });
    let path = mount.path().join("a/c/3");
    let reader = std::thread::spawn(move || std::fs::read(path));
    wait_until("no request arrives", || line.counts().0 > 0);
    signal(daemon, "-STOP");
    // Longer than the deadline: the sleep is the behavior under test.
    std::thread::sleep(Duration::from_secs(4));
    line.release();
    signal(daemon, "-CONT");
    match reader.join().unwrap() {
        Ok(bytes) => assert!(bytes == expected["a/c/3"]),
        Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{error}"),
    }
    assert!(std::fs::read(mount.path().join("a/c/3")).unwrap() == expected["a/c/3"]);
    commit(&mount).unwrap();
    assert_eq!(std::fs::read(mount.path().join("a/c/1")).unwrap(), b"written");
}

/// Without network, or far behind a long branch: what an unmount says about local changes does not
/// depend on the store.
#[test]
fn a_mount_is_listed_and_unmounted_without_its_store() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "unplugged");
    let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "30"]);
    put(&mount.path().join("a/c/1"), "written").unwrap();
    line.decide(|_, _| Fault::Silent);
    let begin = Instant::now();
    let listed = icechunkfs(line.port, &["list", "--json"]).success();
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap();
    let own =
        listed.as_array().unwrap().iter().find(|found| found["mountpoint"] == mount.path().to_str().unwrap()).unwrap();
    assert_eq!(own["uncommitted"]["chunks"], 1, "{own}");
    let path = mount.path();
    let refused = icechunkfs(line.port, &["unmount".as_ref(), path.as_os_str(), "--require-clean".as_ref()]).failure();
    assert!(refused.contains("uncommitted changes: 0 nodes, 1 chunk ("), "{refused}");
    let output = icechunkfs(line.port, &["unmount".as_ref(), path.as_os_str()]);
    assert!(
        output.status.success() && output.stderr.contains("uncommitted changes: 0 nodes, 1 chunk ("),
        "{}",
        output.stderr
    );
    assert_eq!(line.counts().0, 0, "an unmount asked the store");
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    line.release();
}
