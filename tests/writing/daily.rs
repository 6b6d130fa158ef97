//! Facts that a mount tells about itself: which snapshot it shows, where files come from, and what
//! it has done.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify;

use crate::common::users::{Commons, as_nobody, set_mode};
use crate::common::writing::{GROUP, Reference, Writable, array, create, needed, put};
use crate::common::{Mount, errno, run, run_on, signal, wait_for, wait_until};

/// A watch of one file. Programs learn of its removal, as of git's `HEAD`.
struct Watch(std::os::fd::OwnedFd);

impl Watch {
    fn of(path: &Path) -> Watch {
        let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).unwrap();
        inotify::add_watch(&watch, path, inotify::WatchFlags::ALL_EVENTS).unwrap();
        Watch(watch)
    }

    /// Returns true if the file was replaced since the last call.
    fn has_fired(&self) -> bool {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut buffer);
        let mut fired = false;
        while let Ok(event) = reader.next() {
            fired |= event.events().contains(inotify::ReadFlags::DELETE_SELF);
        }
        fired
    }
}

/// Returns the names of the extended attributes.
fn xattr_names(path: &Path) -> Vec<String> {
    let mut buffer = [0_u8; 1024];
    let length: usize = rustix::fs::listxattr(path, &mut buffer[..]).unwrap();
    let mut short = [0_u8; 1];
    assert_eq!(rustix::fs::listxattr(path, &mut short[..]), Err(rustix::io::Errno::RANGE));
    let names = buffer[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8(name.to_vec()).unwrap()).collect()
}

/// Returns an extended attribute, or the errno.
fn xattr(path: &Path, name: &str) -> Result<String, i32> {
    let mut buffer = [0_u8; 512];
    match rustix::fs::getxattr(path, name, &mut buffer) {
        Ok(length) => Ok(String::from_utf8(buffer[..length].to_vec()).unwrap()),
        Err(error) => Err(error.raw_os_error()),
    }
}

/// Returns the values of `.icechunk/stats`.
fn stats(mount: &Mount) -> BTreeMap<String, f64> {
    parse(&mount.read_control("stats"))
}

fn parse(text: &str) -> BTreeMap<String, f64> {
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.strip_prefix("icechunkfs_").unwrap().to_owned(), value.parse().unwrap())
    };
    text.lines().filter(|line| !line.starts_with('#')).map(value).collect()
}

fn count(stats: &BTreeMap<String, f64>, operation: &str) -> f64 {
    stats.get(&format!("request_seconds_count{{operation=\"{operation}\"}}")).copied().unwrap_or_default()
}

#[test]
fn every_mount_says_which_snapshot_it_shows() {
    let writer = Writable::new(&[]);
    put(&writer.root().join("zarr.json"), GROUP).unwrap();
    writer.commit("first").unwrap();
    let repository = writer.repository();
    let first = writer.control_json("info.json")["snapshot"].as_str().unwrap().to_owned();
    run_on(repository, &["tag", "create", "v1, with a comma"]).success();
    let of = |words: &[&str]| Mount::new(repository, words);
    let source = |mount: &Mount| mount.mounted_as().unwrap().split(' ').next().unwrap().replace("\\040", " ");
    let place = repository.display();
    let snapshot_line = format!("snapshot {first}\n");
    for (mount, kind, name, head, suffix) in [
        (of(&["--follow", "0.2"]), "branch", "main", "branch main\n", "@branch:main".to_owned()),
        (
            of(&["--tag", "v1, with a comma"]),
            "tag",
            "v1, with a comma",
            "tag v1, with a comma\n",
            "@tag:v1, with a comma".to_owned(),
        ),
        (of(&["--snapshot", &first]), "snapshot", &first, "", format!("@snapshot:{first}")),
        (
            of(&["--tag", "v1, with a comma", "--view", "netcdf"]),
            "tag",
            "v1, with a comma",
            "tag v1, with a comma\n",
            "@tag:v1, with a comma".to_owned(),
        ),
    ] {
        let info = mount.control_json("info.json");
        assert_eq!((info["kind"].as_str(), info["ref"].as_str()), (Some(kind), Some(name)));
        assert_eq!((info["snapshot"].as_str(), info["pid"].as_i64()), (Some(&*first), Some(mount.daemon().into())));
        assert_eq!(info["mountpoint"].as_str(), mount.path().to_str());
        assert_eq!(mount.read_control("HEAD"), format!("{head}{snapshot_line}"));
        assert_eq!(run_on(mount.path(), &["status"]).text(), mount.read_control("status"));
        assert_eq!(run_on(mount.path(), &["status", "--json"]).json(), info);
        assert!(mount.read_control("status").contains(&first) && mount.read_control("status").contains("read-only"));
        assert_eq!(mount.read_control("log"), writer.read_control("log"), "{kind}");
        assert_eq!(source(&mount), format!("{place}{suffix}"));
        assert!(mount.read_control("stats").contains("icechunkfs_uptime_seconds"));
        // A length that is told is right: programs such as `cp` rely on it.
        for name in ["info.json", "HEAD", "log", "status"] {
            let length = std::fs::metadata(mount.control(name)).unwrap().len();
            assert_eq!(length, mount.read_control(name).len() as u64, "{name}");
        }
        assert_eq!(errno(std::fs::write(mount.control("HEAD"), "x")), libc::EROFS);
    }
    assert_eq!(writer.read_control("HEAD"), format!("branch main\n{snapshot_line}"));
    // The source of one mount names what another one shows.
    let by_name = Mount::prepare();
    by_name.command(Path::new(&format!("{place}@tag:v1, with a comma")), &[]).success();
    assert_eq!(source(&by_name), format!("{place}@tag:v1, with a comma"));
    assert_eq!(by_name.control_json("info.json")["kind"], "tag");
}

#[test]
fn whoever_watches_head_is_told_that_it_moves() {
    let writer = Writable::new(&[]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    writer.commit("first").unwrap();
    let follower = Mount::new(writer.repository(), &["--follow", "0.2"]);
    let second = Writable::of(writer.repository(), &[]);
    let watch = |control: &dyn Fn(&str) -> std::path::PathBuf| Watch::of(&control("HEAD"));
    let own = watch(&|name| writer.control(name));
    let followed = watch(&|name| follower.control(name));
    let refreshed = watch(&|name| second.control(name));
    put(&root.join("a/zarr.json"), array(&[4], &[1])).unwrap();
    put(&root.join("a/c/0"), "0").unwrap();
    writer.touch("discard").unwrap();
    // Neither changes nor a commit without any move it.
    writer.commit("nothing").unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert!(!own.has_fired() && !followed.has_fired() && !refreshed.has_fired());
    put(&root.join("a/zarr.json"), array(&[4], &[1])).unwrap();
    writer.commit("second").unwrap();
    assert!(own.has_fired(), "before the commit returns");
    let head = writer.read_control("HEAD");
    wait_until("the mount that follows", || followed.has_fired());
    assert_eq!(follower.read_control("HEAD"), head);
    assert!(!refreshed.has_fired());
    second.touch("refresh").unwrap();
    assert!(refreshed.has_fired());
    assert_eq!(second.read_control("HEAD"), head);
    // The next one, too: the file is there again, to be watched.
    let own = watch(&|name| writer.control(name));
    put(&root.join("b/zarr.json"), GROUP).unwrap();
    writer.commit("third").unwrap();
    assert!(own.has_fired());
}

#[test]
fn extended_attributes_tell_where_a_file_comes_from() {
    let writer = Writable::new(&["--xattrs", "--pack-below", "1K"]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[4], &[1])).unwrap();
    put(&root.join("a/c/0"), vec![7; 5000]).unwrap();
    let chunk = root.join("a/c/0");
    assert_eq!(xattr(&chunk, "user.icechunk.chunk").unwrap(), "uncommitted");
    assert_eq!(xattr(&chunk, "user.icechunk.node_id"), Err(libc::ENODATA));
    writer.commit("first").unwrap();
    let head = writer.control_json("info.json")["snapshot"].as_str().unwrap().to_owned();
    run_on(writer.repository(), &["tag", "create", "v1"]).success();
    let object = xattr(&chunk, "user.icechunk.chunk").unwrap();
    let words: Vec<&str> = object.split(' ').collect();
    assert_eq!((words[0], words[2], words[3]), ("native", "0", "5000"));
    if crate::common::place::is_local() {
        let stored = crate::common::place::stored(writer.repository()).join("chunks").join(words[1]);
        assert_eq!(std::fs::read(stored).unwrap(), vec![7; 5000]);
    }
    let ids = Reference::open(writer.repository()).node_ids();
    let reader = Mount::new(writer.repository(), &["--tag", "v1"]);
    for place in [root.as_path(), &reader.path(), &writer.control("at/tag/v1")] {
        let of = |path: &str, name: &str| xattr(&place.join(path), name);
        assert_eq!(of("a/c/0", "user.icechunk.chunk").unwrap(), object);
        for path in ["a", "a/c/0", "a/zarr.json"] {
            assert_eq!(of(path, "user.icechunk.node_id").unwrap(), ids["a"], "{path}");
            assert_eq!(of(path, "user.icechunk.snapshot").unwrap(), head);
        }
        assert_eq!(of("a", "user.icechunk.chunk"), Err(libc::ENODATA));
        assert_eq!(of("a", "user.icechunk.color"), Err(libc::EOPNOTSUPP));
        // The names that are listed are those that have a value.
        for (path, expected) in [("a", 3), ("a/c/0", 4), ("a/zarr.json", 3), ("", 3)] {
            let names = xattr_names(&place.join(path));
            assert_eq!(names.len(), expected, "{path}: {names:?}");
            let named = ["snapshot", "ref", "node_id", "chunk"].map(|name| format!("user.icechunk.{name}"));
            for name in &named {
                assert_eq!(names.contains(name), of(path, name).is_ok(), "{path} {name}");
            }
        }
    }
    assert_eq!(xattr(&chunk, "user.icechunk.ref").unwrap(), "branch main");
    assert_eq!(xattr(&reader.path(), "user.icechunk.ref").unwrap(), "tag v1");
    assert_eq!(xattr(&writer.control("at/tag/v1/a"), "user.icechunk.ref").unwrap(), "tag v1");
    // A changed file is not in the repository, but its array is.
    put(&chunk, vec![8; 5000]).unwrap();
    assert_eq!(xattr(&chunk, "user.icechunk.chunk").unwrap(), "uncommitted");
    assert_eq!(xattr(&chunk, "user.icechunk.node_id").unwrap(), ids["a"]);
    // Without the option, the kernel asks once and never again.
    let plain = Writable::of(writer.repository(), &[]);
    assert_eq!(xattr(&plain.root().join("a/c/0"), "user.icechunk.chunk"), Err(libc::EOPNOTSUPP));
}

#[test]
fn stats_and_top_count_what_programs_did() {
    let writer = Writable::new(&[]);
    let root = writer.root();
    let mount = writer.mount();
    put(&root.join("zarr.json"), GROUP).unwrap();
    // A file is created and closed before its request has been counted.
    wait_until("the first requests in the counts", || {
        ["create", "release"].iter().all(|name| count(&stats(mount), name) >= 1.0)
    });
    let before = stats(mount);
    for n in 0..7 {
        std::fs::create_dir(root.join(format!("g{n}"))).unwrap();
        std::fs::write(root.join(format!("g{n}/zarr.json")), GROUP).unwrap();
    }
    std::fs::rename(root.join("g0"), root.join("h0")).unwrap();
    for n in 1..4 {
        std::fs::remove_file(root.join(format!("g{n}/zarr.json"))).unwrap();
        std::fs::remove_dir(root.join(format!("g{n}"))).unwrap();
    }
    assert_eq!(errno(std::fs::remove_dir(root.join("g5"))), libc::ENOTEMPTY);
    wait_until("the last request in the counts", || count(&stats(mount), "release") - count(&before, "release") >= 7.0);
    let after = stats(mount);
    for (operation, expected) in [
        ("release", 7.0),
        ("mkdir", 7.0),
        ("create", 7.0),
        ("rename", 1.0),
        ("unlink", 3.0),
        ("rmdir", 4.0),
        ("symlink", 0.0),
    ] {
        assert_eq!(count(&after, operation) - count(&before, operation), expected, "{operation}");
    }
    let failures = |stats: &BTreeMap<String, f64>| stats.get("request_failures_total{operation=\"rmdir\"}").copied();
    assert_eq!((failures(&before).unwrap_or_default(), failures(&after)), (0.0, Some(1.0)));
    // Buckets grow up to all.
    let buckets: Vec<f64> = after
        .iter()
        .filter(|(name, _)| name.starts_with("request_seconds_bucket{operation=\"mkdir\""))
        .map(|(_, n)| *n)
        .collect();
    assert!(buckets.len() == 13 && buckets.contains(&7.0) && buckets.iter().all(|n| *n <= 7.0), "{buckets:?}");
    let open = std::fs::File::create(root.join("g5/x")).unwrap();
    let now = stats(mount);
    assert!(now["open_files_writing"] >= 1.0 && now["scratch_bytes"] > 0.0 && now["scratch_free_bytes"] > 0.0);
    drop(open);
    let top = run_on(&root, &["top", "-n", "1", "-d", "0.2"]).text();
    let line = |name: &str| {
        let line =
            top.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap_or_else(|| panic!("{top}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((line("mkdir")[3].as_str(), line("rmdir")[3].as_str(), line("rmdir")[4].as_str()), ("7", "4", "1"));
    assert!(top.contains("branch main") && top.contains("uncommitted"));
    // Bytes that the daemon reads for programs are counted where they come from.
    put(&root.join("a/zarr.json"), array(&[4], &[1])).unwrap();
    put(&root.join("a/c/0"), vec![7; 700_000]).unwrap();
    writer.commit("chunks").unwrap();
    let reader = Mount::new(writer.repository(), &["--io", "cached"]);
    let before = stats(&reader);
    assert_eq!(std::fs::read(reader.path().join("a/c/0")).unwrap().len(), 700_000);
    // The text is made once a second.
    wait_until("the bytes of the chunk in the stats", || {
        let now = stats(&reader);
        let source = if crate::common::place::is_local() { "local" } else { "store" };
        let name = format!("chunk_bytes_total{{source=\"{source}\"}}");
        now[&name] - before[&name] == 700_000.0 && now["request_bytes_total{operation=\"read\"}"] >= 700_000.0
    });
}

#[test]
fn metrics_are_served_to_those_who_may_connect() {
    let writer = Writable::new(&["--metrics", "127.0.0.1:0", "--metrics-host", "ocean.example"]);
    let address = wait_for("the address in the log", || {
        let log = writer.log();
        let (_, rest) = log.split_once("metrics are at http://")?;
        Some(rest.split_once('/')?.0.to_owned())
    });
    let ask = |path: &str, host: &str| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let get = |path: &str| ask(path, &address);
    std::fs::create_dir(writer.root().join("d")).unwrap();
    let answer = get("/metrics");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert_eq!(count(&parse(text), "mkdir"), 1.0);
    assert!(get("/").starts_with("HTTP/1.1 404"));
    // A page that calls this machine by a name of its own learns nothing.
    assert!(ask("/metrics", "attacker.example").starts_with("HTTP/1.1 421"));
    assert!(!ask("/metrics", "attacker.example").contains("mkdir"));
    assert!(ask("/metrics", "ocean.example:9100").starts_with("HTTP/1.1 200"));
    // Idle connections keep nobody else out, however many there are.
    let _idle: Vec<_> = (0..64).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    let begin = std::time::Instant::now();
    assert!(get("/metrics").starts_with("HTTP/1.1 200"));
    assert!(begin.elapsed() < Duration::from_secs(4), "{:?}", begin.elapsed());
    let taken = Mount::prepare();
    let refused = taken.command(writer.repository(), &["--follow", "5", "--metrics", &address]).failure();
    assert!(refused.contains(&address) && taken.mounted_as().is_none(), "{refused}");
}

#[test]
fn an_access_log_has_a_line_for_each_request() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let writer = Writable::new(&["--access-log", log.to_str().unwrap()]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    std::fs::create_dir(root.join("a \"b\"\n")).unwrap();
    assert_eq!(errno(std::fs::remove_dir(root.join("none"))), libc::ENOENT);
    assert_eq!(std::fs::read(root.join("zarr.json")).unwrap(), GROUP.as_bytes());
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let find = |operation: &str, path: &str| {
        wait_for(&format!("{operation} of {path}"), || {
            lines().into_iter().find(|line| line["operation"] == operation && line["path"] == path)
        })
    };
    let made = find("mkdir", "/a \"b\"\n");
    assert!(made["errno"] == 0 && made["microseconds"].is_u64() && made["time"].as_str().unwrap().starts_with("20"));
    assert_eq!(find("lookup", "/none")["errno"], 0, "a negative entry, which the kernel keeps");
    assert_eq!(find("create", "/zarr.json")["errno"], 0);
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o777);
    let refused = Mount::prepare();
    let message = refused.command(writer.repository(), &["--access-log", shared.join("x").to_str().unwrap()]).failure();
    assert!(message.contains("access log"), "{message}");
}

#[test]
fn the_log_says_more_after_sigusr2() {
    let writer = Writable::new(&[]);
    let daemon = writer.daemon();
    for level in ["debug", "trace", "info"] {
        signal(daemon, "-USR2");
        wait_until(level, || writer.log().contains(&format!("the log has level {level} now")));
    }
}

#[test]
fn a_command_runs_after_each_commit_of_this_mount() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out");
    let command = format!(
        "printf '%s|%s|%s|%s|%s\\n' \"$ICECHUNKFS_SNAPSHOT\" \"$ICECHUNKFS_PARENT\" \"$ICECHUNKFS_BRANCH\" \"$ICECHUNKFS_MESSAGE\" \
         \"$(head -c 1 \"$ICECHUNKFS_MOUNTPOINT/zarr.json\")\" >> {}",
        out.display()
    );
    let writer = Writable::new(&["--on-commit", &command]);
    let other = Writable::of(writer.repository(), &[]);
    let base = |writable: &Writable| writable.control_json("info.json")["snapshot"].as_str().unwrap().to_owned();
    let parent = base(&writer);
    put(&writer.root().join("zarr.json"), GROUP).unwrap();
    writer.commit("it's $(touch /tmp/never) \"quoted\"").unwrap();
    let first = base(&writer);
    let lines = || std::fs::read_to_string(&out).unwrap_or_default();
    let expected = format!("{first}|{parent}|main|it's $(touch /tmp/never) \"quoted\"|{{\n");
    wait_until("the command", || lines() == expected);
    // Not for nothing, not for others' commits, and not for a refresh over them.
    writer.commit("nothing").unwrap();
    other.touch("refresh").unwrap();
    put(&other.root().join("other/zarr.json"), GROUP).unwrap();
    other.commit("by another").unwrap();
    writer.touch("refresh").unwrap();
    put(&writer.root().join("own/zarr.json"), GROUP).unwrap();
    writer.commit("second").unwrap();
    wait_until("the second one", || lines().lines().count() >= 2);
    assert_eq!(lines().lines().count(), 2, "{}", lines());
    assert!(lines().contains(&format!("{}|{}|main|second|", base(&writer), base(&other))));
    // A command that fails changes nothing.
    let failing = Writable::of(writer.repository(), &["--on-commit", "echo oh no; exit 3"]);
    put(&failing.root().join("third/zarr.json"), GROUP).unwrap();
    failing.commit("third").unwrap();
    wait_until("its failure in the log", || failing.log().contains("oh no"));
}

#[test]
fn a_group_shares_a_mount_with_masks() {
    if !needed(crate::common::is_root(), "root, to act as other users") {
        return;
    }
    let commons = Commons::new();
    let repository = commons.path("repo");
    create(&repository);
    let mount = Mount::prepare();
    set_mode(mount.path().parent().unwrap(), 0o755);
    let group = crate::common::users::NOBODY.to_string();
    mount.command(&repository, &["--allow-other", "-o", &format!("gid={group},umask=007")]).success();
    let root = mount.path();
    let program = commons.program();
    // A member of the group: writes, replaces what root wrote, and commits.
    put(&root.join("zarr.json"), GROUP).unwrap();
    let shell = |text: &str| run(as_nobody("sh").args(["-c", &format!("umask 077; cd {} && {text}", root.display())]));
    shell("mkdir a && cp zarr.json a/zarr.json && cp -p a/zarr.json b.tmp && rm b.tmp").success();
    shell("chmod 600 a/zarr.json && cat .icechunk/status").success();
    let shown = |path: &str| {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(root.join(path)).unwrap();
        (found.mode() & 0o7777, found.gid().to_string())
    };
    for (path, mode) in
        [("a", 0o770), ("a/zarr.json", 0o660), ("zarr.json", 0o660), (".icechunk", 0o770), (".icechunk/commit", 0o660)]
    {
        assert_eq!(shown(path), (mode, group.clone()), "{path}");
    }
    shell("echo 'by a member' > .icechunk/commit").success();
    assert!(mount.read_control("log").contains("by a member"));
    shell("echo '{\"zarr_format\": 3, \"node_type\": \"group\", \"attributes\": {\"by\": \"member\"}}' > zarr.json")
        .success();
    run(as_nobody(&program).args([OsStr::new("commit"), root.as_os_str(), OsStr::from_bytes(b"-mthe root's file")]))
        .success();
    assert!(mount.read_control("log").contains("the root's file"));
    // A user outside of it can neither read nor commit.
    let outside = |words: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new(words[0]);
        run(command.args(&words[1..]).uid(12_345).gid(12_345).current_dir("/").env("HOME", "/nonexistent"))
    };
    let before = mount.read_control("log");
    for path in ["", "zarr.json", ".icechunk/HEAD", ".icechunk/at", "a"] {
        let place = root.join(path).display().to_string();
        assert!(outside(&["ls", &place]).failure().contains("Permission denied"), "{path}");
    }
    outside(&["touch", mount.control("commit").to_str().unwrap()]).failure();
    outside(&[program.to_str().unwrap(), "commit", root.to_str().unwrap()]).failure();
    assert_eq!(mount.read_control("log"), before);
    // A read-only mount shows the same.
    mount.unmount();
    mount
        .command(
            &repository,
            &["--allow-other", "--read-only", "-o", &format!("uid=7,gid={group},fmask=037,dmask=027")],
        )
        .success();
    assert_eq!((shown("a").0, shown("a/zarr.json").0, shown(".icechunk/HEAD").0), (0o750, 0o640, 0o640));
    shell("cat a/zarr.json").success();
    outside(&["cat", root.join("a/zarr.json").to_str().unwrap()]).failure();
}
