//! `doctor` finds problems that are really there: namespaces hide and replace files of the machine,
//! and a front before a real server changes its answers.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::common::hostile::{self, Lie, Store, To};
use crate::common::listener::{Listener, read_head};
use crate::common::users::Commons;
use crate::common::writing::needed;
use crate::common::{FixtureSet, Mount, Output, icechunkfs, is_root, moto, run, run_within, signal, wait_for_end};

/// Becomes a user without rights, before the program.
const NOBODY: &str = "setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=$home";
const ROOT: &str = "env";

/// Returns severity, text and remedy of a check, and asserts that the exit status fits all
/// severities.
#[track_caller]
fn finding(output: &Output, check: &str) -> (String, String) {
    let examination: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", output.all()));
    let checks = examination["checks"].as_array().unwrap();
    let fails = checks.iter().any(|finding| finding["severity"] == "fail");
    assert_eq!(output.status.code(), Some(i32::from(fails)), "{examination}");
    assert_eq!(examination["ok"], !fails);
    for finding in checks {
        // Whatever is wrong has a remedy.
        assert_eq!(finding["remedy"].is_null(), finding["severity"] == "ok", "{finding}");
    }
    let found: Vec<&Value> = checks.iter().filter(|finding| finding["check"] == check).collect();
    assert_eq!(found.len(), 1, "{check}: {examination}");
    let text = |name: &str| found[0][name].as_str().unwrap_or_default().to_owned();
    (text("severity"), format!("{}. {}", text("text"), text("remedy")))
}

/// Runs `doctor` with `words` as `user` in a mount namespace, after `injection`. The scripts have
/// the variable `place`, a directory.
fn injected(commons: &Commons, injection: &str, user: &str, words: &str) -> Output {
    let program = commons.program();
    let script = format!("{injection}\nexec {user} {} doctor --json {words}", program.display());
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", &script]).current_dir("/").env("place", commons.path(""));
    run(command.env("home", commons.path("home")))
}

#[test]
fn problems_of_the_machine_are_found() {
    if !needed(is_root(), "root, for mount namespaces") {
        return;
    }
    let commons = Commons::new();
    commons.directory("home", 65534, 0o700);
    commons.directory("scratch", 0, 0o700);
    let without_helper = "mkdir $place/up $place/work
        mount -t overlay overlay -o lowerdir=/usr/bin,upperdir=$place/up,workdir=$place/work /usr/bin
        rm -f /usr/bin/fusermount3 /usr/bin/fusermount";
    let own_device = |mode: &str| format!("mount -t tmpfs none /dev; mknod -m {mode} /dev/fuse c 10 229");
    let cases: [(&str, &str, &str, &str, &str, &str, &str); 14] = [
        ("mount -t tmpfs none /dev", ROOT, "", "/dev/fuse", "fail", "does not exist", "modprobe fuse"),
        (&own_device("600"), NOBODY, "", "/dev/fuse", "fail", "mode 600", "chmod 666 /dev/fuse"),
        ("mount -t tmpfs none /dev; touch /dev/fuse", ROOT, "", "/dev/fuse", "fail", "not a device", "mknod"),
        (without_helper, NOBODY, "", "fusermount3", "fail", "is missing", "Install the package fuse3"),
        (
            "cp /usr/bin/fusermount3 $place/plain; chmod 755 $place/plain; mount --bind $place/plain $(realpath /usr/bin/fusermount3)",
            NOBODY,
            "",
            "fusermount3",
            "fail",
            "is not set-user-ID root",
            "chmod u+s",
        ),
        (
            "f=$(realpath /usr/bin/fusermount3); mount --bind $f $f; mount -o remount,bind,nosuid $f",
            NOBODY,
            "",
            "fusermount3",
            "fail",
            "nosuid",
            "as root",
        ),
        (
            "echo '#user_allow_other' >$place/conf; mount --bind $place/conf /etc/fuse.conf",
            NOBODY,
            "",
            "user_allow_other",
            "warn",
            "--allow-other is refused",
            "/etc/fuse.conf",
        ),
        ("ulimit -n 64", ROOT, "", "open files", "fail", "64", "ulimit -n"),
        ("ulimit -n 512", ROOT, "", "open files", "warn", "512", "LimitNOFILE"),
        (
            "mount -t tmpfs -o size=1m,mode=700 none $place/scratch",
            ROOT,
            "--scratch $place/scratch",
            "scratch",
            "fail",
            "MiB free",
            "Free space",
        ),
        (
            "mount -t tmpfs -o ro none $place/scratch",
            ROOT,
            "--scratch $place/scratch/below",
            "scratch",
            "fail",
            "read-only file system",
            "--scratch",
        ),
        ("true", NOBODY, "--scratch $place/scratch", "scratch", "fail", "may not write", "--scratch"),
        (
            "mount -t tmpfs -o size=2g,mode=700 none $place/scratch",
            ROOT,
            "--scratch $place/scratch",
            "scratch",
            "warn",
            "reboot",
            "disk",
        ),
        // A container without the capability: root cannot mount.
        ("true", "setpriv --bounding-set -sys_admin", "", "kernel", "fail", "a mount fails", "CAP_SYS_ADMIN"),
    ];
    for (n, (injection, user, words, check, severity, text, remedy)) in cases.into_iter().enumerate() {
        if text.contains("user_allow_other") || check == "user_allow_other" {
            // The opposite is not reported.
            let set = "echo user_allow_other >$place/conf; mount --bind $place/conf /etc/fuse.conf";
            assert_eq!(finding(&injected(&commons, set, NOBODY, ""), check).0, "ok");
        }
        let found = finding(&injected(&commons, injection, user, words), check);
        assert_eq!(found.0, severity, "{n}: {injection}: {found:?}");
        assert!(found.1.contains(text) && found.1.contains(remedy), "{n}: {injection}: {found:?}");
        for left in ["up", "work", "plain", "conf"] {
            let _ = std::fs::remove_dir_all(commons.path(left)).or_else(|_| std::fs::remove_file(commons.path(left)));
        }
    }
    // Without an injection none of the checks fails, for either user.
    for (user, words) in [(ROOT, "--scratch $place/scratch"), (NOBODY, "")] {
        let healthy = injected(&commons, "true", user, words);
        for check in ["kernel", "/dev/fuse", "fusermount3", "open files", "scratch"] {
            assert_eq!(finding(&healthy, check).0, "ok", "{user}: {check}");
        }
    }
}

#[test]
fn a_writable_scratch_directory_of_others_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    crate::common::users::set_mode(&shared, 0o777);
    let found = finding(&icechunkfs(["doctor", "--json", "--scratch", shared.to_str().unwrap()]), "scratch");
    assert!(found.0 == "fail" && found.1.contains("other users may write"), "{found:?}");
    crate::common::users::set_mode(&shared, 0o700);
    assert_eq!(finding(&icechunkfs(["doctor", "--json", "--scratch", shared.to_str().unwrap()]), "scratch").0, "ok");
}

#[test]
fn stale_mounts_are_found() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &["--tag", "v1.0"]);
    let place = mount.path().to_str().unwrap().to_owned();
    // Other tests may have stale mounts at the same time.
    let stale = || {
        let output = icechunkfs(["doctor"]);
        let text = output.all();
        text.lines().find(|line| line.contains(&place)).map(|line| (output.status.code(), line.to_owned()))
    };
    assert_eq!(stale(), None);
    let daemon = mount.daemon();
    signal(daemon, "-STOP");
    let hanging = stale();
    signal(daemon, "-CONT");
    let (status, line) = hanging.unwrap();
    assert!(status == Some(1) && line.starts_with("fail") && line.contains("unmount --force"), "{line}");
    signal(daemon, "-KILL");
    wait_for_end(daemon);
    let (status, line) = stale().unwrap();
    assert!(
        status == Some(1) && line.starts_with("fail") && line.contains(&format!("`icechunkfs unmount '{place}'`")),
        "{line}"
    );
    run(Command::new(crate::common::program()).args(["unmount", &place])).success();
    assert_eq!(stale(), None);
}

/// Change of a request's or an answer's head.
type Change = Box<dyn Fn(&str) -> String + Send + Sync>;

/// A front before a server, which changes heads and records requests.
struct Front {
    listener: Listener,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Front {
    /// Starts a front before the server at `port`.
    fn new(port: u16, request: Change, answer: Change) -> Front {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&requests);
        let listener = Listener::start(("127.0.0.1", 0), move |client| {
            // An error is the end of the program.
            let _ = pass(client, port, &request, &answer, &record);
        });
        Front { listener, requests }
    }
}

fn pass(
    mut client: TcpStream,
    port: u16,
    change: &Change,
    answer: &Change,
    record: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let Some((head, mut body)) = read_head(&mut client)? else { return Ok(()) };
    record.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(|n| n.trim().parse().unwrap()));
    let missing = length.unwrap_or(0_u64).saturating_sub(body.len() as u64);
    (&client).take(missing).read_to_end(&mut body)?;
    let mut server = TcpStream::connect(("127.0.0.1", port))?;
    let kept = head.trim_end().lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
    let head: String = kept.map(|line| format!("{line}\r\n")).collect();
    server.write_all(format!("{}Connection: close\r\n\r\n", change(&head)).as_bytes())?;
    server.write_all(&body)?;
    let mut bytes = Vec::new();
    server.read_to_end(&mut bytes)?;
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").unwrap_or(bytes.len());
    client.write_all(answer(&String::from_utf8_lossy(&bytes[..end])).as_bytes())?;
    client.write_all(&bytes[end..])
}

fn unchanged() -> Change {
    Box::new(str::to_owned)
}

/// Returns a change that sets the `Date` header to `offset` seconds from now.
fn with_date(offset: i64) -> Change {
    Box::new(move |head| {
        let time = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_secs(offset)).unwrap();
        let date = jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap();
        let kept = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("date:"));
        kept.map(str::to_owned).chain([format!("Date: {date}")]).collect::<Vec<_>>().join("\r\n")
    })
}

fn examine(port: u16, repo: &str, words: &[&str]) -> Output {
    run(&mut moto::command(port, &[&["doctor", repo, "--json"], words].concat()))
}

#[test]
fn clocks_are_compared() {
    let Some(server) = moto::s3() else { return };
    let repo = moto::made(server.port, "clock");
    for (offset, severity, text) in [
        (0, "ok", "as the store's"),
        (300, "warn", "behind"),
        (1200, "fail", "19 minutes behind|20 minutes behind"),
        (-1200, "fail", "20 minutes ahead"),
    ] {
        let front = Front::new(server.port, unchanged(), with_date(offset));
        let found = finding(&examine(front.listener.port(), &repo, &[]), "clock");
        assert_eq!(found.0, severity, "{offset}: {found:?}");
        assert!(text.split('|').any(|text| found.1.contains(text)), "{offset}: {found:?}");
    }
}

#[test]
fn denied_and_expired_credentials_are_found() {
    let Some(server) = moto::s3() else { return };
    let repo = moto::made(server.port, "denied");
    let healthy = examine(server.port, &repo, &[]);
    for check in ["credentials", "read", "list", "clock"] {
        assert_eq!(finding(&healthy, check).0, "ok", "{check}");
    }
    let source = finding(&healthy, "credentials").1;
    assert!(source.contains("test... of AWS_ACCESS_KEY_ID") && !healthy.all().contains(moto::SECRET), "{source}");
    let line = crate::common::faulty::Line::to(server.port);
    let is_list = |first: &str| first.contains("list-type=2");
    let says = |code, error, about_list: bool| {
        line.decide(move |_, first| {
            if is_list(first) == about_list {
                crate::common::faulty::Fault::Says(code, error)
            } else {
                crate::common::faulty::Fault::Pass
            }
        });
    };
    says("403 Forbidden", "AccessDenied", true);
    let output = examine(line.port, &repo, &[]);
    let found = finding(&output, "list");
    assert!(found.0 == "warn" && found.1.contains("gc") && found.1.contains("Use other credentials"), "{found:?}");
    assert_eq!(finding(&output, "read").0, "ok");
    says("403 Forbidden", "AccessDenied", false);
    let output = examine(line.port, &repo, &[]);
    let found = finding(&output, "read");
    assert!(found.0 == "fail" && found.1.contains("Use other credentials"), "{found:?}");
    for (status, code, advice) in
        [("400 Bad Request", "ExpiredToken", "expired"), ("403 Forbidden", "RequestTimeTooSkewed", "clock is wrong")]
    {
        line.decide(move |_, _| crate::common::faulty::Fault::Says(status, code));
        let found = finding(&examine(line.port, &repo, &[]), "read");
        assert!(found.0 == "fail" && found.1.contains(advice), "{code}: {found:?}");
    }
    let nowhere = examine(moto::free_port(), &repo, &["--timeout", "2"]);
    assert_eq!(finding(&nowhere, "read").0, "fail");
    let found = finding(&examine(server.port, &moto::repository("nothing"), &[]), "read");
    assert!(found.0 == "fail" && found.1.contains("icechunkfs init"), "{found:?}");
}

#[test]
fn conditional_writes_are_checked_with_an_object_that_is_removed() {
    let Some(server) = moto::s3() else { return };
    let repo = moto::made(server.port, "write");
    let keys = || moto::request(server.port, "GET", &format!("/{}?list-type=2", moto::BUCKET), b"");
    let before = keys();
    let requested = |front: &Front| front.requests.lock().unwrap().clone();
    let front = Front::new(server.port, unchanged(), unchanged());
    let output = examine(front.listener.port(), &repo, &[]);
    let found = finding(&output, "write");
    assert!(found.0 == "ok" && found.1.contains("--write"), "{found:?}");
    assert!(
        requested(&front).iter().all(|first| first.starts_with("GET") || first.starts_with("HEAD")),
        "{:?}",
        requested(&front)
    );
    let output = examine(front.listener.port(), &repo, &["--write"]);
    let found = finding(&output, "write");
    assert!(found.0 == "ok" && found.1.contains("temporary object is removed"), "{found:?}");
    let written: Vec<_> = requested(&front).into_iter().filter(|first| first.starts_with("PUT")).collect();
    assert!(!written.is_empty() && written.iter().all(|first| first.contains("icechunkfs-doctor-")), "{written:?}");
    // A store that ignores conditions.
    let without_conditions: Change = Box::new(|head| {
        let kept = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("if-"));
        kept.map(|line| format!("{line}\r\n")).collect()
    });
    let front = Front::new(server.port, without_conditions, unchanged());
    let found = finding(&examine(front.listener.port(), &repo, &["--write"]), "write");
    assert!(found.0 == "fail" && found.1.contains("--unsafe-single-writer"), "{found:?}");
    // The user's guarantee does not hide it.
    let found = finding(&examine(front.listener.port(), &repo, &["--write", "--unsafe-single-writer"]), "write");
    assert_eq!(found.0, "fail", "{found:?}");
    let line = crate::common::faulty::Line::to(server.port);
    line.decide(|_, first| {
        if first.starts_with("PUT") {
            crate::common::faulty::Fault::Says("403 Forbidden", "AccessDenied")
        } else {
            crate::common::faulty::Fault::Pass
        }
    });
    let output = examine(line.port, &repo, &["--write"]);
    let found = finding(&output, "write");
    assert!(found.0 == "fail" && found.1.contains("do not allow it"), "{found:?}");
    assert_eq!(finding(&output, "read").0, "ok");
    assert_eq!(keys(), before, "nothing is left behind");
}

#[test]
fn doctor_ends_whatever_the_store_answers() {
    let lies = [
        Lie::Silent,
        Lie::HeadDrip,
        Lie::BodyDrip,
        Lie::EndlessBody,
        Lie::EndlessChunks,
        Lie::EndlessHeaders,
        Lie::EndlessRefusal,
        Lie::EndlessOverload,
        Lie::EndlessListing,
        Lie::Redirects,
    ];
    for lie in lies {
        let store = Store::new(BTreeMap::new());
        store.lie(To::All, lie);
        let repo = format!("s3://{}/repo", hostile::BUCKET);
        let mut command = moto::command(store.port, &["doctor", &repo, "--json", "--write", "--timeout", "1"]);
        let output = run_within(&mut command, Duration::from_secs(30)).unwrap_or_else(|| panic!("{lie:?} has no end"));
        assert_eq!(finding(&output, "read").0, "fail", "{lie:?}");
        assert_ne!(finding(&output, "write").0, "ok", "{lie:?}");
    }
}

#[test]
fn a_local_repository_is_checked_too() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    crate::common::run_on(&repo, &["init"]).success();
    let doctor =
        |repo: &Path| run(Command::new(crate::common::program()).args(["doctor", "--json", "--write"]).arg(repo));
    let output = doctor(&repo);
    for check in ["credentials", "read", "list", "write"] {
        assert_eq!(finding(&output, check).0, "ok", "{check}: {}", output.all());
    }
    let names = crate::common::entries(&repo);
    assert!(names.iter().all(|path| !path.to_string_lossy().contains("doctor")), "{names:?}");
    assert_eq!(finding(&doctor(&directory.path().join("nothing")), "store").0, "fail");
}
