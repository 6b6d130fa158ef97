//! Repositories in object stores: messages for unreachable stores, secrets, and the effect of
//! faults on reading and committing. With a real server behind the proxy.
//!
//! Other suites show that everything else is as on a local disk: `scripts/with-server` runs them
//! over a store.
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::faulty::{Fault, HeaderRule, Line};
use crate::common::moto::{
    self, BUCKET, SECRET, command, commit, commits, fill, free_port, icechunkfs, made, mount, python_server,
    repository, request, s3, try_to_mount,
};
use crate::common::writing::{array, put};
use crate::common::{FixtureSet, Mount, project, read_files, run};

#[test]
fn an_unreachable_store_is_reported() {
    let Some(server) = s3() else { return };
    let failure_of = |command: &mut Command| run(command).failure();
    let refs =
        |words: &[&'static str]| -> Vec<&'static str> { [&["refs", "s3://icechunkfs-test/none"], words].concat() };

    let none = failure_of(&mut command(server.port, &refs(&[])));
    assert!(none.contains("s3://icechunkfs-test/none holds no Icechunk repository"), "{none}");
    let bucket = failure_of(&mut command(server.port, &["refs", "s3://no-such-bucket/x"]));
    // The document of the store is for -v.
    assert!(bucket.contains("the bucket does not exist") && !bucket.contains('<'), "{bucket}");
    let nobody = failure_of(&mut command(free_port(), &refs(&["--timeout", "2"])));
    assert!(nobody.contains("refuses connections"), "{nobody}");
    let half = failure_of(command(server.port, &refs(&[])).env_remove("AWS_SECRET_ACCESS_KEY"));
    assert!(half.contains("AWS_SECRET_ACCESS_KEY"), "{half}");
    let half = failure_of(&mut command(server.port, &refs(&["--access-key-id", "x"])));
    assert!(half.contains("ICECHUNKFS_SECRET_ACCESS_KEY"), "{half}");
    let profile = failure_of(&mut command(server.port, &refs(&["--profile", "nobody"])));
    assert!(profile.contains("profile `nobody`") && profile.contains("~/.aws"), "{profile}");
    let account = failure_of(&mut command(server.port, &["refs", "az://container/x"]));
    assert!(account.contains("--account") && account.contains("AZURE_STORAGE_ACCOUNT_NAME"), "{account}");
    let header = failure_of(command(server.port, &refs(&[])).env("ICECHUNKFS_HEADER", "no colon"));
    assert!(header.contains("NAME: VALUE"), "{header}");
    for text in [none, bucket, nobody, half, profile, header] {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn a_profile_gives_keys_and_an_endpoint() {
    let Some(server) = s3() else { return };
    let repo = made(server.port, "profile");
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join(".aws");
    std::fs::create_dir(&config).unwrap();
    let address = format!("[profile far]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:{}\n", server.port);
    std::fs::write(config.join("config"), address).unwrap();
    std::fs::write(config.join("credentials"), "[far]\naws_access_key_id = a\naws_secret_access_key = b\n").unwrap();
    let mut command = command(server.port, &["refs", &repo, "--profile", "far"]);
    command.env("HOME", home.path());
    for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"] {
        command.env_remove(name);
    }
    assert!(run(&mut command).text().contains("branch  main"));
    // The default profile, set by the environment.
    command.env("AWS_PROFILE", "far");
    run(&mut command).success();
    std::fs::write(config.join("credentials"), "[far]\ncredential_process = echo no; exit 1\n").unwrap();
    let said = run(&mut command).failure();
    assert!(said.contains("credential_process"), "{said}");
}

#[test]
fn control_files_and_logs_show_no_secrets() {
    let Some(server) = s3() else { return };
    let repo = made(server.port, "secrets");
    let mount = Mount::prepare();
    let words = mount.arguments(&repo, &["--ephemeral", "--access-key-id", "me", "-v", "-v"]);
    let mut command = command(server.port, &words);
    command.env("ICECHUNKFS_SECRET_ACCESS_KEY", SECRET).env("ICECHUNKFS_SESSION_TOKEN", SECRET);
    command.env("ICECHUNKFS_HEADER", format!("x-token: {SECRET}"));
    run(&mut command).success();
    let daemon = mount.daemon();
    let words = String::from_utf8_lossy(&std::fs::read(format!("/proc/{daemon}/cmdline")).unwrap()).into_owned();
    assert!(words.contains(&repo), "{words}");
    // A failure is reported.
    std::fs::write(mount.path().join("a/c/0"), "").unwrap();
    assert!(commit(&mount).is_err());
    let shown = [
        words,
        std::fs::read_to_string("/proc/mounts").unwrap(),
        mount.read_control("info.json"),
        mount.read_control("errors"),
        mount.log(),
    ];
    for text in shown {
        assert!(!text.contains(SECRET), "{text}");
    }
}

#[test]
fn a_web_server_is_mounted_read_only() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let directory = project("tests/fixtures/repos");
    let server = python_server(&directory);
    let url = format!("http://127.0.0.1:{}/{}", server.port, fixture.name);
    let mount = mount(server.port, &url, &[]);
    assert!(mount.log().contains("repositories on web servers are read-only"), "{}", mount.log());
    let local = Mount::new(&project("tests/fixtures/repos/own-v2-basic"), &["-o", "ro"]);
    assert!(read_files(&mount.path()) == read_files(&local.path()));
    assert!(std::fs::write(mount.path().join("x"), "x").is_err());
    let made = icechunkfs(server.port, &["init", &format!("http://127.0.0.1:{}/new", server.port)]).failure();
    assert!(made.contains("repositories on web servers are read-only"), "{made}");
    let wanted = try_to_mount(server.port, &url, &["--ephemeral"]).1.failure();
    assert!(wanted.contains("repositories on web servers are read-only"), "{wanted}");
}

/// The client of stores repeats what a server answers with 501, as those do that cannot list.
#[test]
fn what_a_server_does_not_have_or_support_is_asked_for_once() {
    let server = python_server(&project("tests/fixtures/repos"));
    let line = Line::to(server.port);
    let asked = record(&line, |_| true, |_| Fault::Pass);
    let none = icechunkfs(line.port, &["refs", &format!("http://127.0.0.1:{}/none", line.port)]).failure();
    assert!(none.contains("holds no Icechunk repository"), "{none}");
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|request| request.starts_with("PROPFIND ")), "{asked:?}");
    assert_each_once(&asked);

    let Some(server) = s3() else { return };
    let repo = made(server.port, "refused");
    let line = Line::to(server.port);
    for status in ["404 Not Found", "405 Method Not Allowed", "501 Not Implemented"] {
        let asked = record(&line, |_| true, move |_| Fault::Says(status, "Refused"));
        let why = icechunkfs(line.port, &["refs", &repo]).failure();
        assert!(status.starts_with("404") || why.contains("the server does not support this request"), "{why}");
        assert_each_once(&asked.lock().unwrap());
        // A store that does not know conditions can say so. What the server itself answers is not
        // counted: it may be busy, and be asked again.
        let is_write = |request: &str| request.starts_with("PUT ");
        let asked =
            record(
                &line,
                is_write,
                move |request| {
                    if is_write(request) { Fault::Says(status, "Refused") } else { Fault::Pass }
                },
            );
        let writer = try_to_mount(line.port, &repo, &["--ephemeral"]).1.failure();
        assert!(status.starts_with("404") || writer.contains("does not compare before it writes"), "{writer}");
        assert_each_once(&asked.lock().unwrap());
    }
}

/// Lets `line` record the first lines of the requests that `counts` selects; `fault` decides about
/// all.
fn record(
    line: &Line,
    counts: impl Fn(&str) -> bool + Send + 'static,
    fault: impl Fn(&str) -> Fault + Send + 'static,
) -> Arc<Mutex<Vec<String>>> {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = Arc::clone(&asked);
    line.decide(move |_, request| {
        if counts(request) {
            seen.lock().unwrap().push(request.to_owned());
        }
        fault(request)
    });
    asked
}

#[track_caller]
fn assert_each_once(requests: &[String]) {
    assert!(!requests.is_empty(), "nothing was asked for");
    let distinct: BTreeSet<&String> = requests.iter().collect();
    assert_eq!(distinct.len(), requests.len(), "{requests:#?}");
}

/// Old releases wrote repositories at the root of a bucket under keys that begin with a slash.
#[test]
fn a_repository_whose_keys_begin_with_a_slash_is_read_and_written() {
    let Some(server) = s3() else { return };
    let repositories = project("tests/fixtures/repos");
    for (fixture, prefix) in [("own-v2-basic", ""), ("own-v1-basic", ""), ("own-v2-basic", "deep/er/")] {
        let bucket = format!("slashed-{fixture}{}", prefix.len());
        request(server.port, "PUT", &format!("/{bucket}"), b"");
        for (key, bytes) in read_files(&repositories.join(fixture)) {
            request(server.port, "PUT", &format!("/{bucket}//{prefix}{key}"), &bytes);
        }
        let repo = format!("s3://{bucket}/{prefix}");
        let local = Mount::new(&repositories.join(fixture), &["-o", "ro"]);
        let seen = mount(server.port, &repo, &["-o", "ro"]);
        assert!(read_files(&seen.path()) == read_files(&local.path()), "{repo}");
        // Version 1 lists its refs.
        let refs = |place: &str| icechunkfs(server.port, &["refs", place, "--json"]).json();
        assert_eq!(refs(&repo), refs(repositories.join(fixture).to_str().unwrap()), "{repo}");

        let before = commits(server.port, &repo);
        let writer = mount(server.port, &repo, &["--ephemeral"]);
        put(&writer.path().join("added/zarr.json"), array(&[3], &[1])).unwrap();
        // Inline, a separate object, and sent in parts.
        for (n, length) in [10, 300_000, 17 << 20].into_iter().enumerate() {
            put(&writer.path().join(format!("added/c/{n}")), vec![n as u8 + 1; length]).unwrap();
        }
        commit(&writer).unwrap_or_else(|e| panic!("{repo}: {e}: {}", writer.log()));
        let shown = read_files(&writer.path());
        writer.unmount();
        assert_eq!(commits(server.port, &repo), before + 1, "{repo}");
        assert!(read_files(&mount(server.port, &repo, &["-o", "ro"]).path()) == shown, "{repo}");
        let listing = request(server.port, "GET", &format!("/{bucket}?list-type=2"), b"");
        let keys: Vec<&str> = listing.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap()).collect();
        let begin = format!("/{prefix}");
        assert!(keys.len() > 5 && keys.iter().all(|key| key.starts_with(&begin)), "{keys:?}");
    }
    // Users without any of this pay nothing for it.
    let repo = made(server.port, "no-slash");
    let line = Line::to(server.port);
    line.decide(|_, _| Fault::Pass);
    icechunkfs(line.port, &["refs", &repo]).success();
    // `repo`, and what a repository of version 1 would have.
    assert!((1..=2).contains(&line.counts().0), "{:?}", line.counts());
}

/// nginx drops headers with a `_`, and the store behind it then finds another signature.
#[test]
fn commits_pass_a_server_that_drops_headers_with_an_underscore() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    line.set_header_rule(HeaderRule::NoUnderscores);
    let repo = made(line.port, "nginx");
    icechunkfs(line.port, &["branch", &repo, "create", "other"]).success();
    assert_commits_survive_lost_answers(&line, &repo);
}

/// The write id is user metadata, which a configuration turns off for a store that takes none.
#[test]
fn a_configuration_without_metadata_is_obeyed() {
    let Some(server) = s3() else { return };
    let old = moto::upload(server.port, &project("tests/fixtures/repos/own-v1-basic"), "plain-v1");
    for repo in [made(server.port, "plain"), old] {
        let line = Line::to(server.port);
        line.set_header_rule(HeaderRule::NoMetadata);
        let create = |name: &str| icechunkfs(line.port, &["tag", &repo, "create", name]);
        let refused = create("one").failure();
        assert!(refused.contains("MetadataNotAllowed"), "{refused}");
        icechunkfs(server.port, &["config", &repo, "set", "storage.unsafe_use_metadata", "false"]).success();
        create("one").success();
        assert_commits_survive_lost_answers(&line, &repo);
    }
}

/// Commits to `repo` through `line`, which loses the answer to the first write of a ref.
#[track_caller]
fn assert_commits_survive_lost_answers(line: &Line, repo: &str) {
    let mount = mount(line.port, repo, &["--ephemeral"]);
    let before = commits(line.port, repo);
    for n in 1..=2 {
        let is_lost = AtomicBool::new(false);
        line.decide(move |_, request| {
            let is_ref = request.starts_with("PUT ") && (request.contains("/repo ") || request.contains("/ref.json "));
            if is_ref && !is_lost.swap(true, Ordering::Relaxed) { Fault::Lost } else { Fault::Pass }
        });
        fill(&mount.path().join("new"), n);
        commit(&mount).unwrap_or_else(|e| panic!("{e}: {}", mount.log()));
        assert_eq!(line.counts().1, 1, "no answer was lost");
        line.release();
        assert_eq!(commits(line.port, repo), before + usize::from(n), "{}", mount.log());
    }
}

/// The store says of each object which class it has.
#[test]
fn new_objects_have_the_configured_storage_class() {
    let Some(server) = s3() else { return };
    let repo = repository("classes");
    icechunkfs(server.port, &["init", &repo, "--zarr-group"]).success();
    let classes = || -> Vec<(String, String)> {
        let listing = request(server.port, "GET", &format!("/{BUCKET}?list-type=2&prefix=classes/"), b"");
        let member = |object: &str, name: &str| {
            let (_, rest) = object.split_once(&format!("<{name}>")).unwrap();
            rest.split('<').next().unwrap().to_owned()
        };
        let objects = listing.split("<Contents>").skip(1);
        objects.map(|object| (member(object, "Key"), member(object, "StorageClass"))).collect()
    };
    let before = classes();
    assert!(before.len() > 2 && before.iter().all(|(_, class)| class == "STANDARD"), "{before:?}");
    let set = |name: &str, class: &str| icechunkfs(server.port, &["config", &repo, "set", name, class]);
    set("storage.storage_class", "STANDARD_IA").success();
    set("storage.chunks_storage_class", "GLACIER_IR").success();
    let writer = mount(server.port, &repo, &["--ephemeral"]);
    put(&writer.path().join("a/zarr.json"), array(&[3], &[1])).unwrap();
    // Inline, a separate object, and sent in parts.
    for (n, length) in [10, 300_000, 17 << 20].into_iter().enumerate() {
        put(&writer.path().join(format!("a/c/{n}")), vec![n as u8 + 1; length]).unwrap();
    }
    commit(&writer).unwrap_or_else(|e| panic!("{e}: {}", writer.log()));
    writer.unmount();
    let after = classes();
    let new: Vec<_> = after.iter().filter(|(key, _)| !before.iter().any(|(old, _)| old == key)).collect();
    let chunks = new.iter().filter(|(key, _)| key.contains("/chunks/")).count();
    assert!(chunks == 2 && new.len() >= 5, "{new:?}");
    // The copies of `repo` from before a change are made by the store.
    for (key, class) in new.into_iter().filter(|(key, _)| !key.contains("/overwritten/")) {
        let expected = if key.contains("/chunks/") { "GLACIER_IR" } else { "STANDARD_IA" };
        assert_eq!(class, expected, "{key}");
    }
    assert!(after.contains(&("classes/repo".to_owned(), "STANDARD_IA".to_owned())), "{after:?}");
    // Another program can have stored anything; it becomes part of no request.
    set("storage.metadata_storage_class", "X\r\nx-amz-acl: public-read").success();
    let writer = mount(server.port, &repo, &["--ephemeral"]);
    put(&writer.path().join("a/c/0"), b"new").unwrap();
    assert!(commit(&writer).is_err() && writer.log().contains("configuration is not valid"), "{}", writer.log());
    writer.unmount();
}

/// Each kind of fault hits every third request, in reading and in committing.
#[test]
fn transient_failures_are_retried() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(line.port, "faults");
    let expected = read_files(&mount(server.port, &repo, &["-o", "ro"]).path());
    for fault in [Fault::Overloaded, Fault::Broken, Fault::Reset, Fault::Half, Fault::Silent] {
        line.decide(move |n, _| if n % 3 == 1 { fault } else { Fault::Pass });
        let mount = mount(line.port, &repo, &["-o", "ro", "--timeout", "6"]);
        assert!(read_files(&mount.path()) == expected, "{fault:?}");
        let (requests, faults) = line.counts();
        assert!(faults > 10, "{fault:?}: {faults} faults in {requests} requests");
        line.release();
    }
    // Lost answers matter for writes: each commit is there, and once.
    for (n, fault) in [Fault::Overloaded, Fault::Reset, Fault::Lost].into_iter().enumerate() {
        let before = commits(server.port, &repo);
        line.decide(move |n, _| if n % 3 == 1 { fault } else { Fault::Pass });
        let mount = mount(line.port, &repo, &["--ephemeral", "--timeout", "10"]);
        fill(&mount.path(), n as u8 + 1);
        commit(&mount).unwrap_or_else(|e| panic!("{fault:?}: {e}: {}", mount.log()));
        let shown = read_files(&mount.path());
        let (requests, faults) = line.counts();
        assert!(faults > 5, "{fault:?}: {faults} faults in {requests} requests");
        line.release();
        mount.unmount();
        assert_eq!(commits(server.port, &repo), before + 1, "{fault:?}");
        let fresh = moto::mount(server.port, &repo, &["-o", "ro"]);
        assert!(read_files(&fresh.path()) == shown, "{fault:?}");
    }
}

/// Four mounts commit at a time over a proxy that refuses one request in twenty and loses one
/// answer in twenty.
#[test]
fn racing_commits_survive_an_unreliable_network() {
    const WRITERS: usize = 4;
    const COMMITS: usize = 6;
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "race");
    let before = commits(server.port, &repo);
    line.decide(|n, _| match n % 20 {
        3 => Fault::Overloaded,
        13 => Fault::Lost,
        _ => Fault::Pass,
    });
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let line = &line;
            let repo = &repo;
            scope.spawn(move || {
                let mount = mount(line.port, repo, &["--ephemeral", "--timeout", "30"]);
                for n in 0..COMMITS {
                    // Ten chunks for each, of which no other writer has one.
                    let chunk = mount.path().join(format!("a/c/{}", writer * 10 + n));
                    std::fs::write(chunk, format!("writer {writer}, commit {n}")).unwrap();
                    commit(&mount).unwrap_or_else(|e| panic!("writer {writer}, commit {n}: {e}: {}", mount.log()));
                }
                mount.unmount();
            });
        }
    });
    let (requests, faults) = line.counts();
    assert!(faults > 20, "{faults} faults in {requests} requests");
    line.release();
    assert_eq!(commits(server.port, &repo), before + WRITERS * COMMITS);
    let fresh = mount(server.port, &repo, &["-o", "ro"]);
    for (writer, n) in (0..WRITERS).flat_map(|writer| (0..COMMITS).map(move |n| (writer, n))) {
        let chunk = std::fs::read_to_string(fresh.path().join(format!("a/c/{}", writer * 10 + n))).unwrap();
        assert_eq!(chunk, format!("writer {writer}, commit {n}"));
    }
}

/// A program that reads an array chunk by chunk does not wait for each; one without a pattern costs
/// no more requests than chunks.
#[test]
fn chunks_are_prefetched_for_sequential_readers_only() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "ahead");
    let pass = |line: &Line| line.decide(|_, _| Fault::Pass);
    // Chunks 2, 6, 10, ... have 300,000 bytes: each is an object of its own.
    let read = |mount: &Mount, n: usize| {
        assert_eq!(std::fs::read(mount.path().join(format!("a/c/{n}"))).unwrap().len(), 300_000)
    };
    let steady = mount(line.port, &repo, &["-o", "ro"]);
    for n in [2, 6, 10] {
        read(&steady, n);
    }
    // The server need not answer for the chunks that were prefetched.
    line.wait_until_quiet();
    line.decide(|_, _| Fault::Silent);
    for n in [14, 18, 22] {
        read(&steady, n);
    }
    line.release();
    let random = mount(line.port, &repo, &["-o", "ro"]);
    std::fs::read(random.path().join("a/zarr.json")).unwrap();
    read(&random, 2);
    pass(&line);
    for n in [30, 6, 38, 14, 26, 2] {
        read(&random, n);
    }
    assert!(line.counts().0 <= 5, "{} requests for five chunks in no order", line.counts().0);
}

#[test]
fn a_mount_recovers_when_its_store_returns() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(line.port, "gone");
    let mount = mount(line.port, &repo, &["-o", "ro", "--timeout", "3", "--ahead", "0"]);
    assert_eq!(std::fs::read(mount.path().join("a/c/2")).unwrap().len(), 300_000);
    for fault in [Fault::Reset, Fault::Silent] {
        line.decide(move |_, _| fault);
        let begin = Instant::now();
        let error = std::fs::read(mount.path().join("a/c/6")).unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{fault:?}: {error}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{fault:?}: {:?}", begin.elapsed());
        line.release();
    }
    assert_eq!(std::fs::read(mount.path().join("a/c/6")).unwrap().len(), 300_000);
    assert!(mount.log().contains("a/c/6"), "{}", mount.log());
}
