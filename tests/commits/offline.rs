//! Work without the store: a mount of what the cache has begins without it, keeps what programs
//! write, and commits when the store is there. Over a real server.

use std::path::Path;

use serde_json::json;

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{commit, icechunkfs, made, mount, s3, upload};
use crate::common::writing::put;
use crate::common::{Mount, icechunkfs as locally, project, read_files};

fn errno(path: &Path) -> Option<i32> {
    std::fs::read(path).unwrap_err().raw_os_error()
}

fn status(mount: &Mount) -> serde_json::Value {
    locally(["status", "--json", mount.path().to_str().unwrap()]).json()
}

#[test]
fn work_is_at_hand_without_the_store_and_is_committed_when_it_is_there() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "travel");
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let words = ["--cache", &place("cache"), "--scratch", &place("scratch"), "--timeout", "4", "--ahead", "0"];
    let here = |more: &[&str]| mount(line.port, &repo, &[&words, more].concat());

    let home = here(&[]);
    let cached = std::fs::read(home.path().join("a/c/3")).unwrap();
    put(&home.path().join("a/c/0"), "at home").unwrap();
    commit(&home).unwrap();
    home.end();

    // The store is gone.
    line.decide(|_, _| Fault::Reset);
    let away = here(&["--offline"]);
    assert_eq!(std::fs::read(away.path().join("a/c/0")).unwrap(), b"at home", "what was committed last is shown");
    assert!(std::fs::read(away.path().join("a/c/3")).unwrap() == cached);
    assert_eq!(errno(&away.path().join("a/c/7")), Some(libc::ENETDOWN));
    put(&away.path().join("a/c/1"), "away").unwrap();
    put(&away.path().join("a/c/2"), vec![9; 400_000]).unwrap();
    let told = locally(["status", away.path().to_str().unwrap()]).text();
    assert!(told.contains("offline") && !told.contains("reset") && told.contains("2 chunks"), "{told}");
    assert_eq!(line.counts().0, 0, "nothing was asked");
    let refused = locally(["commit", away.path().to_str().unwrap(), "-m", "away"]).failure();
    assert!(refused.contains("stays offline") && refused.contains("are kept"), "{refused}");
    assert_eq!(status(&away)["is_offline"], json!(true));
    assert_eq!(errno(&away.path().join("a/c/7")), Some(libc::ENETDOWN), "the store is not asked again");
    // A proxy answers in the store's place: the cache keeps none of that.
    for (status, code) in [("404 Not Found", "NoSuchKey"), ("200 OK", "Welcome")] {
        line.decide(move |_, _| Fault::Says(status, code));
        locally(["commit", away.path().to_str().unwrap(), "-m", "away"]).failure();
    }
    line.decide(|_, _| Fault::Reset);
    away.end();

    // The next mount has the changes.
    let away = here(&["--offline"]);
    assert_eq!(std::fs::read(away.path().join("a/c/1")).unwrap(), b"away");
    assert_eq!(status(&away)["chunks_written"], json!(2));
    let colleague = mount(server.port, &repo, &["--ephemeral"]);
    put(&colleague.path().join("a/c/4"), "a colleague").unwrap();
    commit(&colleague).unwrap();
    colleague.end();

    // The store is there again.
    line.decide(|_, _| Fault::Pass);
    locally(["commit", away.path().to_str().unwrap(), "-m", "away"]).success();
    assert_eq!(status(&away)["is_offline"], json!(false));
    assert_eq!(std::fs::read(away.path().join("a/c/4")).unwrap(), b"a colleague");
    assert_eq!(std::fs::read(away.path().join("a/c/7")).unwrap().len(), 1_000_000);
    away.end();
    let read = mount(server.port, &repo, &["-o", "ro"]);
    for (chunk, bytes) in [("0", &b"at home"[..]), ("1", b"away"), ("2", &[9; 400_000]), ("4", b"a colleague")] {
        assert!(std::fs::read(read.path().join("a/c").join(chunk)).unwrap() == bytes, "{chunk}");
    }
    let log = icechunkfs(server.port, &["log", &repo, "--oneline"]).text();
    assert_eq!(log.lines().count(), 6, "{log}");
}

/// A store that does not compare, or that this user may not write to, is noticed as at the start of
/// a mount that is not offline.
#[test]
fn a_store_that_may_not_be_written_to_is_refused_when_it_is_there() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "refused");
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let words = ["--cache", &place("cache"), "--scratch", &place("scratch"), "--timeout", "4"];
    let home = mount(line.port, &repo, &[&words, &["-o", "ro"][..]].concat());
    assert_eq!(std::fs::read(home.path().join("a/c/0")).unwrap().len(), 100);
    home.end();
    let away = mount(line.port, &repo, &[&words, &["--offline"][..]].concat());
    put(&away.path().join("a/c/1"), "away").unwrap();
    line.decide(
        |_, head| {
            if head.starts_with("PUT") { Fault::Says("403 Forbidden", "AccessDenied") } else { Fault::Pass }
        },
    );
    let refused = locally(["commit", away.path().to_str().unwrap(), "-m", "away"]).failure();
    assert!(refused.contains("nothing can be committed"), "{refused}");
    assert_eq!(status(&away)["is_offline"], json!(true));
    line.decide(|_, _| Fault::Pass);
    locally(["commit", away.path().to_str().unwrap(), "-m", "away"]).success();
}

/// Other commands with the cache see newer commits, of which it has nothing else.
#[test]
fn a_mount_without_changes_begins_where_the_cache_is_whole() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "behind");
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let words = ["--cache", &place("cache"), "--scratch", &place("scratch"), "--timeout", "4"];
    let home = mount(line.port, &repo, &words);
    let cached = std::fs::read(home.path().join("a/c/3")).unwrap();
    let colleague = mount(server.port, &repo, &["--ephemeral"]);
    put(&colleague.path().join("a/c/3"), "a colleague").unwrap();
    commit(&colleague).unwrap();
    colleague.end();
    icechunkfs(line.port, &["branch", &repo, "list", "--cache", &place("cache")]).success();
    home.end();
    line.decide(|_, _| Fault::Reset);
    let away = mount(line.port, &repo, &[&words, &["--offline"][..]].concat());
    assert!(std::fs::read(away.path().join("a/c/3")).unwrap() == cached);
    put(&away.path().join("a/c/1"), "away").unwrap();
    line.decide(|_, _| Fault::Pass);
    locally(["commit", away.path().to_str().unwrap(), "-m", "away"]).success();
    assert_eq!(std::fs::read(away.path().join("a/c/3")).unwrap(), b"a colleague");
}

/// A cache of a mount that was read-only may lack something that a writable mount needs.
#[test]
fn what_was_only_looked_at_can_be_looked_at_offline() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = upload(server.port, &project("tests/fixtures/repos/own-v1-basic"), "own-v1-basic-offline");
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).display().to_string();
    let cache = ["--cache", &place("cache"), "--timeout", "4"];
    let online = mount(line.port, &repo, &[&cache, &["-o", "ro"][..]].concat());
    let expected = read_files(&online.path());
    online.end();
    line.decide(|_, _| Fault::Reset);
    let offline = mount(line.port, &repo, &[&cache, &["--offline"][..]].concat());
    assert!(read_files(&offline.path()) == expected);
    assert_eq!(line.counts().0, 0);
    let _ = std::fs::remove_dir_all(Path::new("/var/lib/icechunkfs").join(icechunkfs::file_name::encode(&repo)));
}
