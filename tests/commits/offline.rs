//! Work without the store: a mount of what the cache has begins without it, keeps what programs
//! write, and commits when the store is there. Over a real server.

use std::path::Path;

use serde_json::json;

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{commit, icechunkfs, made, mount, s3};
use crate::common::writing::put;
use crate::common::{Mount, icechunkfs as locally};

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
    assert!(refused.contains("stays offline") && refused.contains("is kept"), "{refused}");
    assert_eq!(status(&away)["is_offline"], json!(true));
    assert_eq!(errno(&away.path().join("a/c/7")), Some(libc::ENETDOWN), "the store is not asked again");
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
