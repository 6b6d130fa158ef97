//! Commands of root beside mounts of other users, which can answer anything and change every name
//! around them at any time.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use icechunkfs::fuse::mountpoint::Mountpoint;
use icechunkfs::fuse::open_mount::{Deadline, OpenMount};
use icechunkfs::fuse::unmount::{UnmountMode, unmount};

use crate::common::fake_mount::{FakeMount, Node};
use crate::common::users::{Commons, NOBODY, as_nobody, by_nobody, set_owner};
use crate::common::writing::{self, Writable, put};
use crate::common::{FixtureSet, Mount, copy_tree, icechunkfs, program, run, run_within};

/// Longest time of a command that waits for nobody, on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Returns control files that would do harm: a link to `victim`, one without an end, one that is
/// never answered, and escapes.
fn hostile_files(victim: &Path) -> Vec<(&'static str, Node)> {
    vec![
        (".icechunk", Node::Directory),
        (".icechunk/request", Node::Link(victim.to_owned())),
        (".icechunk/info.json", Node::Endless),
        (".icechunk/status", Node::File(b"\x1b]0;hostile\x07".to_vec())),
        (".icechunk/stats", Node::Silent),
        (".icechunk/HEAD", Node::Fifo),
        (".icechunk/progress", Node::Silent),
    ]
}

#[test]
fn no_command_of_root_sends_a_request_to_a_mount_of_another_user() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    writing::create(&repository);
    let victim = commons.path("victim");
    std::fs::write(&victim, "of root").unwrap();
    let place = commons.directory("mnt", NOBODY, 0o755);
    let fake = FakeMount::new(&place, NOBODY, true, &hostile_files(&victim));
    let name = place.to_str().unwrap();
    let repository = repository.to_str().unwrap();
    for words in [
        &["status", name][..],
        &["status", "--json", name],
        &["diff", name],
        &["commit", "-m", "x", name],
        &["discard", name],
        &["discard", name, "a"],
        &["refresh", name],
        &["restore", name, "a", "--from", "main"],
        &["top", name, "-n", "1", "-d", "0.1"],
        &["prefetch", name],
        &["prefetch", name, "a", "--slice", "0:1"],
        &["unmount", "--require-clean", name],
        &["mount", repository, name],
    ] {
        let output = run_within(Command::new(program()).args(words), SOON).expect("the command ends").failure();
        let is_named = output.contains("of user nobody") || output.contains("is mounted there");
        assert!(is_named && !output.contains('\x1b'), "{words:?}: {output}");
        assert_eq!(fake.requests(), [0; 0], "{words:?}");
    }
    for words in
        [&["list"][..], &["list", "--json"], &["doctor"], &["gc", repository, "--older-than", "1d", "--dry-run"]]
    {
        let output = run_within(Command::new(program()).args(words), SOON).expect("the command ends");
        assert!(!output.all().contains('\x1b'), "{words:?}: {}", output.all());
        assert_eq!(fake.requests(), [0; 0], "{words:?}");
    }
    // In the mount, the current directory is what it is about.
    let inside = run_within(Command::new(program()).arg("status").current_dir(&place), SOON).expect("it ends");
    assert!(inside.failure().contains("of user nobody"));
    let entered = fake.requests();
    // The kernel alone unmounts it.
    let note = icechunkfs(["unmount", name]);
    assert!(note.stderr.contains("was not asked"), "{}", note.stderr);
    note.success();
    assert!(!FakeMount::is_at(&place));
    assert_eq!(fake.requests(), entered);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of root");
    let again = FakeMount::new(&place, NOBODY, true, &[]);
    icechunkfs(["unmount", "--force", name]).success();
    assert!(!FakeMount::is_at(&place) && again.requests().is_empty());
}

#[test]
fn a_command_of_a_user_speaks_to_their_own_daemons_and_to_roots() {
    let commons = Commons::new();
    let own = "own";
    let of_root = "root";
    let of_other = "other";
    let answer = || [(".icechunk", Node::Directory), (".icechunk/status", Node::File(b"said\x1b[31m\n".to_vec()))];
    let mounts = [(own, NOBODY), (of_root, 0), (of_other, 12_345)].map(|(name, user)| {
        let place = commons.directory(name, NOBODY, 0o755);
        FakeMount::new(&place, user, true, &answer())
    });
    for (mount, is_asked) in mounts.iter().zip([true, true, false]) {
        let output = run(as_nobody(commons.program()).arg("status").arg(mount.path()));
        if is_asked {
            assert_eq!(output.text(), "said\\u{1b}[31m\n", "{}", mount.path().display());
        } else {
            assert!(output.failure().contains("of user 12345"));
        }
        assert_eq!(mount.requests().is_empty(), !is_asked);
    }
}

/// Exchanges the directory `d` for a link to `victim`, as its owner can at any time.
fn exchange(commons: &Commons) {
    std::fs::rename(commons.path("d"), commons.path("away")).unwrap();
    symlink(commons.path("victim"), commons.path("d")).unwrap();
}

#[test]
fn a_mount_that_was_opened_is_unmounted_whatever_its_path_means_by_then() {
    for mode in [UnmountMode::Polite, UnmountMode::Detach] {
        let commons = Commons::new();
        let place = commons.directory("d/m", NOBODY, 0o755);
        let other = commons.directory("victim/m", 0, 0o755);
        let victim = FakeMount::new(&other, 0, false, &[]);
        let fake = FakeMount::new(&place, NOBODY, false, &[]);
        let mountpoint = Mountpoint::find(&place).unwrap();
        let mount = OpenMount::at(&mountpoint).unwrap();
        exchange(&commons);
        unmount(&mountpoint, mount, mode).unwrap();
        assert!(FakeMount::is_at(&other), "{mode:?}");
        assert!(!FakeMount::is_at(&commons.path("away/m")), "{mode:?}");
        assert!(fake.requests().is_empty() && victim.requests().is_empty());
    }
}

#[test]
fn a_polite_unmount_takes_no_other_mount_at_the_same_place() {
    let commons = Commons::new();
    let place = commons.directory("m", NOBODY, 0o755);
    let fake = FakeMount::new(&place, NOBODY, false, &[]);
    let mountpoint = Mountpoint::find(&place).unwrap();
    let mount = OpenMount::at(&mountpoint).unwrap();
    let above = FakeMount::new(&place, 0, false, &[]);
    let error = unmount(&mountpoint, mount, UnmountMode::Polite).unwrap_err();
    assert!(error.to_string().contains("nothing was unmounted"), "{error}");
    drop(above);
    assert!(FakeMount::is_at(&place) && fake.requests().is_empty());
}

#[test]
fn a_mount_is_made_on_the_directory_that_was_checked() {
    use icechunkfs::fuse::io_mode::IoMode;
    use icechunkfs::fuse::kernel_mount;
    use icechunkfs::fuse::mount::Options;
    use icechunkfs::fuse::mount_target::MountTarget;
    use icechunkfs::fuse::presentation::Presentation;

    let commons = Commons::new();
    let place = commons.directory("d/m", NOBODY, 0o755);
    let other = commons.directory("victim/m", 0, 0o755);
    let target = MountTarget::open(&place, false).unwrap();
    exchange(&commons);
    let options = Options {
        source: "/data/ocean".to_owned(),
        allow_other: false,
        nonempty: false,
        flags: Vec::new(),
        mode: IoMode::Cached,
        insist: false,
        rings: false,
        writable: false,
        presentation: Presentation::default(),
        xattrs: false,
    };
    let _device = kernel_mount::mount(&target, &options).unwrap().unwrap();
    assert!(!FakeMount::is_at(&other) && FakeMount::is_at(&commons.path("away/m")));
    rustix::mount::unmount(commons.path("away/m"), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_link_of_another_user_is_not_followed() {
    let commons = Commons::new();
    let repository = commons.path("repo");
    copy_tree(&FixtureSet::own().get("own-v2-basic").repository, &repository);
    let shared = commons.directory("shared", 0, 0o1777);
    let of_root = commons.directory("victim/m", 0, 0o755);
    let mount = Mount::new(&repository, &["--read-only"]);
    by_nobody(|| {
        symlink(mount.path(), shared.join("mount")).unwrap();
        symlink(mount.path().parent().unwrap(), shared.join("above")).unwrap();
        symlink(&of_root, shared.join("empty")).unwrap();
    });
    let name = mount.path().file_name().unwrap().to_owned();
    for place in [shared.join("mount"), shared.join("above").join(&name)] {
        for command in ["unmount", "status", "top"] {
            let output = run(Command::new(program()).arg(command).arg(&place)).failure();
            assert!(output.contains("symbolic link of user nobody"), "{command}: {output}");
        }
    }
    assert!(mount.mounted_as().is_some());
    let mut command = Command::new(program());
    command.arg("mount").arg(&repository).arg(shared.join("empty")).args(["--read-only", "--log-file", "/dev/null"]);
    assert!(run(&mut command).failure().contains("symbolic link of user nobody"));
    assert!(!FakeMount::is_at(&of_root));
    // Links of root lead where root wants.
    symlink(mount.path(), commons.path("link")).unwrap();
    run(Command::new(program()).arg("unmount").arg(commons.path("link"))).success();
    assert!(mount.mounted_as().is_none());
}

#[test]
fn a_path_through_a_file_system_of_another_user_is_refused() {
    let commons = Commons::new();
    let place = commons.directory("mnt", NOBODY, 0o755);
    let fake = FakeMount::new(&place, NOBODY, true, &[("d", Node::Directory), ("d/m", Node::Directory)]);
    let inside = place.join("d/m");
    for words in [&["unmount"][..], &["unmount", "--force"], &["status"], &["mount", "/nowhere"]] {
        let output = run(Command::new(program()).args(words).arg(&inside)).failure();
        assert!(output.contains("file system of user nobody") || output.contains("/nowhere"), "{words:?}: {output}");
        assert_eq!(fake.requests(), [0; 0], "{words:?}");
    }
    // A user who declares it safe waits for it.
    let mut command = Command::new(program());
    command.arg("status").arg(&inside).env("ICECHUNKFS_SAFE_DIRECTORY", &place);
    assert!(run(&mut command).failure().contains("nothing is mounted"));
    assert!(!fake.requests().is_empty());
}

#[test]
fn a_process_that_claims_a_mark_is_not_waited_for() {
    let commons = Commons::new();
    let place = commons.directory("mnt", NOBODY, 0o755);
    // The file of a mount that was detached has its path from there on: that of a file in memory.
    let fake = FakeMount::new(&place, NOBODY, true, &[("memfd:icechunkfs mount", Node::Silent)]);
    let held = std::fs::File::open(place.join("memfd:icechunkfs mount")).unwrap();
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).unwrap();
    let mut claims = as_nobody("sleep").arg("60").stdin(held).spawn().unwrap();
    let opened = fake.requests().len();
    let link = std::fs::read_link(format!("/proc/{}/fd/0", claims.id())).unwrap();
    assert_eq!(link, Path::new("/memfd:icechunkfs mount"));
    let own = Mount::new(&FixtureSet::own().get("own-v2-basic").repository, &["--read-only"]);
    let listed = run_within(Command::new(program()).args(["list", "--json"]), SOON).expect("the list ends");
    assert!(listed.text().contains(own.path().to_str().unwrap()));
    assert_eq!(fake.requests().split_off(opened), [0; 0]);
    claims.kill().unwrap();
    claims.wait().unwrap();
}

#[test]
fn files_of_an_own_mount_are_regular_bounded_and_in_time() {
    let commons = Commons::new();
    let place = commons.directory("mnt", 0, 0o755);
    let victim = commons.path("victim");
    std::fs::write(&victim, "of root").unwrap();
    let _fake = FakeMount::new(&place, 0, false, &hostile_files(&victim));
    let mount = OpenMount::open(&place).unwrap();
    let soon = || Deadline::after(SOON);
    let errno = |file: &str| mount.read(file, soon()).unwrap().unwrap_err().raw_os_error();
    assert_eq!(mount.read("status", soon()).unwrap().unwrap(), b"\x1b]0;hostile\x07");
    assert_eq!(errno("request"), Some(libc::ELOOP));
    assert_eq!(errno("HEAD"), Some(libc::EINVAL));
    assert_eq!(errno("info.json"), Some(libc::EFBIG));
    assert_eq!(errno("nothing"), Some(libc::ENOENT));
    assert_eq!(mount.ask(b"{}", soon()).unwrap().unwrap_err().raw_os_error(), Some(libc::ELOOP));
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of root");
    let begin = Instant::now();
    let silent = mount.read("stats", Deadline::after(Duration::from_millis(200))).unwrap_err();
    assert!(silent.to_string().contains("does not answer within 1 s"), "{silent}");
    assert!(begin.elapsed() < SOON);
}

#[test]
fn one_deadline_is_for_all_mounts_of_a_list() {
    let commons = Commons::new();
    let answering = Mount::new(&FixtureSet::own().get("own-v2-basic").repository, &["--read-only"]);
    let mounts: Vec<FakeMount> = (0..160)
        .map(|n| {
            let place = commons.directory(&format!("m{n}"), 0, 0o755);
            FakeMount::new(&place, 0, false, &[(".icechunk", Node::Directory), (".icechunk/info.json", Node::Silent)])
        })
        .collect();
    for words in [&["list", "--json"][..], &["doctor", "--json"]] {
        let begin = Instant::now();
        let output =
            run_within(Command::new(program()).args(words), Duration::from_secs(60)).expect("the command ends");
        assert!(begin.elapsed() < SOON, "{words:?} took {:?}", begin.elapsed());
        if words[0] == "list" {
            let rows = output.json();
            let rows = rows.as_array().unwrap();
            let health =
                |place: &Path| &rows.iter().find(|row| row["mountpoint"] == place.to_str().unwrap()).unwrap()["health"];
            assert_eq!(health(&answering.path()), "alive");
            let others: Vec<_> =
                mounts.iter().map(|mount| health(mount.path())).filter(|health| *health != "alive").collect();
            assert!(others.is_empty(), "{others:?}");
        }
    }
}

#[test]
fn text_of_a_daemon_reaches_no_terminal_unescaped() {
    let commons = Commons::new();
    let place = commons.directory("mnt", NOBODY, 0o755);
    let escapes = "\u{1b}]0;hostile\u{7}\u{1b}[31m\u{202e}";
    let json = |value: serde_json::Value| Node::File(value.to_string().into_bytes());
    let files = [
        (".icechunk", Node::Directory),
        // The command is not answered, so that its progress is shown.
        (".icechunk/request", Node::SilentWrites),
        (".icechunk/progress", json(serde_json::json!({"stage": escapes, "bytes": 100, "bytes_done": 50}))),
    ];
    let fake = FakeMount::new(&place, NOBODY, true, &files);
    let log = commons.directory("log", NOBODY, 0o755).join("typescript");
    let command = format!("{} commit {}", commons.program().display(), place.display());
    let mut terminal = as_nobody("script").args(["-qec", &command]).arg(&log).spawn().unwrap();
    let shown = || String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    crate::common::wait_until("the progress is shown", || shown().contains("hostile"));
    drop(fake);
    terminal.wait().unwrap();
    assert!(
        !shown().contains("\u{1b}]0;") && !shown().contains("\u{1b}[31m") && !shown().contains('\u{202e}'),
        "{}",
        shown()
    );
}

#[test]
fn root_commands_mounts_of_root_and_users_their_own() {
    let writer = Writable::new(&[]);
    let place = writer.root();
    put(&place.join("zarr.json"), writing::GROUP).unwrap();
    let text = |words: &[&str]| run(Command::new(program()).args(words).arg(&place)).text();
    assert!(text(&["status"]).contains("zarr.json") || text(&["status", "--json"]).contains("added"));
    text(&["commit", "-m", "by root"]);
    text(&["refresh"]);
    assert!(text(&["diff"]).is_empty() || text(&["diff", "--json"]).contains('{'));
    assert!(text(&["top", "-n", "1", "-d", "0.1"]).contains("requests"));
    assert!(text(&["prefetch"]).contains("files"));
    // Through a bind mount, and in another mount namespace, it is the same mount.
    let commons = Commons::new();
    let bound = commons.directory("bound", 0, 0o755);
    let script =
        r#"mount --bind "$1" "$2" && "$0" status "$2" && "$0" list --json && "$0" unmount "$2" && "$0" status "$1""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", script]).arg(program()).arg(&place).arg(&bound);
    let output = run(&mut command).text();
    assert!(output.contains(bound.to_str().unwrap()), "{output}");
    assert!(writer.mount().mounted_as().is_some());
    set_owner(&bound, NOBODY);
}
