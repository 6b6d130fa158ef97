//! `list`, and commands that find the mount of the current directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::users::{Commons, NOBODY, as_nobody};
use crate::common::writing::{array, needed, put};
use crate::common::{
    FixtureSet, Mount, Unmounted, copy_tree, icechunkfs, is_root, program, project, run, run_on, run_within, signal,
    wait_for_end, wait_until,
};

/// Longest time of a list with a mount that does not answer: its deadline, and a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// Returns the row of the mount at `path`.
fn row_at(path: &Path, rows: &Value) -> Value {
    let name = path.to_str().unwrap();
    rows.as_array().unwrap().iter().find(|row| row["mountpoint"] == name).cloned().unwrap_or_default()
}

fn row_of(path: &Path) -> Value {
    row_at(path, &icechunkfs(["list", "--json"]).json())
}

/// A mount below a directory with an odd name.
struct OddMount {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl OddMount {
    fn new(repository: &Path, name: &OsStr) -> OddMount {
        let prefix = format!("icechunkfs-test-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::create_dir(&path).unwrap();
        let log = directory.path().join("log");
        run(Command::new(program())
            .arg("mount")
            .arg(repository)
            .arg(&path)
            .args(["--read-only", "--log-file"])
            .arg(log))
        .success();
        OddMount { path, _directory: directory }
    }
}

impl Drop for OddMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

#[test]
fn mounts_of_every_kind_of_ref_are_listed() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let repository = fixture.repository.to_str().unwrap();
    let main = fixture.expected["branches"]["main"].as_str().unwrap();
    let snapshot = ["--snapshot", main];
    let cases: [(&[&str], &str, &str, bool); 5] = [
        (&[], "branch", "main", false),
        (&["--read-only"], "branch", "main", true),
        (&["--tag", "v1.0"], "tag", "v1.0", true),
        (&["-o", "tag=v1.0"], "tag", "v1.0", true),
        (&snapshot, "snapshot", main, true),
    ];
    for (words, kind, name, read_only) in cases {
        let mount = Mount::new(&fixture.repository, words);
        let row = row_of(&mount.path());
        assert_eq!((&row["kind"], &row["ref"]), (&kind.into(), &name.into()), "{words:?}: {row}");
        assert_eq!((&row["read_only"], &row["health"]), (&read_only.into(), &"alive".into()), "{words:?}: {row}");
        assert_eq!((&row["repository"], &row["pid"]), (&repository.into(), &mount.daemon().into()), "{words:?}: {row}");
        assert_eq!(row["uncommitted"].is_null(), read_only, "{words:?}: {row}");
        if kind == "snapshot" || !read_only {
            assert_eq!(row["snapshot"], main, "{words:?}");
        }
    }
}

#[test]
fn uncommitted_changes_are_counted() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &[]);
    let counts = |row: &Value| ["nodes", "chunks", "untracked"].map(|name| row["uncommitted"][name].as_u64().unwrap());
    assert_eq!(counts(&row_of(&mount.path())), [0, 0, 0]);
    put(&mount.path().join("new/zarr.json"), array(&[4], &[1])).unwrap();
    put(&mount.path().join("new/c/0"), b"x").unwrap();
    put(&mount.path().join("new/c/1"), b"y").unwrap();
    put(&mount.path().join("notes.txt"), b"z").unwrap();
    assert_eq!(counts(&row_of(&mount.path())), [1, 2, 1]);
    let text = icechunkfs(["list"]).text();
    let line = text.lines().find(|line| line.starts_with(mount.path().to_str().unwrap())).unwrap();
    assert!(line.contains("1 node, 2 chunks, 1 untracked file") && line.ends_with("alive"), "{line}");
}

#[test]
fn a_stopped_daemon_does_not_stop_the_list() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let stopped = Mount::new(&fixture.repository, &[]);
    let other = Mount::new(&fixture.repository, &["--tag", "v1.0"]);
    let daemon = stopped.daemon();
    signal(daemon, "-STOP");
    let begin = Instant::now();
    let listed = run_within(Command::new(program()).args(["list", "--json"]), SOON);
    let text = run_within(Command::new(program()).arg("list"), SOON);
    let took = begin.elapsed();
    signal(daemon, "-CONT");
    let rows = listed.expect("the list ends").json();
    let row = row_at(&stopped.path(), &rows);
    assert_eq!((&row["health"], &row["pid"]), (&"hanging".into(), &daemon.into()), "{took:?}");
    assert_eq!((&row["kind"], &row["ref"], &row["uncommitted"]), (&"branch".into(), &"main".into(), &Value::Null));
    assert_eq!(row_at(&other.path(), &rows)["health"], "alive");
    assert!(text.expect("the text ends").text().contains("hanging"));
    wait_until("the daemon answers again", || row_of(&stopped.path())["health"] == "alive");
}

#[test]
fn a_dead_mount_is_listed_as_dead() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &["--tag", "v1.0"]);
    let daemon = mount.daemon();
    signal(daemon, "-KILL");
    wait_for_end(daemon);
    let row = row_of(&mount.path());
    assert_eq!((&row["health"], &row["pid"], &row["uncommitted"]), (&"dead".into(), &Value::Null, &Value::Null));
    assert_eq!(row["repository"], fixture.repository.to_str().unwrap());
    let text = icechunkfs(["list"]).text();
    assert!(text.contains("transport endpoint is not connected"), "{text}");
    let status = run_on(mount.path(), &["status"]).failure();
    let expected = format!("the daemon of this mount, of {}@tag:v1.0, has ended", fixture.repository.display());
    assert!(status.contains(&expected) && status.contains("scratch directory"), "{status}");
}

#[test]
fn odd_mountpoints_stay_one_line() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    for name in [&b"two words"[..], b"two\nlines", b"tab\tand \\134", b"\x1b[31mred", b"quote'\"$x"] {
        let mount = OddMount::new(&fixture.repository, OsStr::from_bytes(name));
        let text = icechunkfs(["list"]).text();
        let directory = mount.path.parent().unwrap().to_str().unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(directory)).collect();
        assert!(lines.len() == 1 && lines[0].ends_with("alive"), "{name:?}: {text}");
        assert!(!text.contains(['\x1b', '\t']), "{name:?}: {text:?}");
        let rows = icechunkfs(["list", "--json"]).json();
        let mut listed = rows.as_array().unwrap().iter().filter_map(|row| row["mountpoint"].as_str());
        let shown = String::from_utf8_lossy(name);
        assert!(listed.any(|place| place == format!("{directory}/{shown}")), "{name:?}: {rows}");
        // The commands of the current directory find it, too: a read-only mount says so.
        let status = run(Command::new(program()).arg("status").current_dir(&mount.path));
        assert!(status.text().contains("read-only"), "{name:?}");
    }
}

#[test]
fn a_mountpoint_that_is_no_text_is_listed() {
    if !needed(is_root(), "root, for a mount namespace") {
        return;
    }
    let fixture = FixtureSet::own().get("own-v2-basic");
    let directory = tempfile::tempdir().unwrap();
    // In a namespace of its own: programs that take the mount table for text run at the same time.
    let script = r#"d=$(printf "$place/not \377 text"); mkdir "$d"; trap 'umount -l "$d"' EXIT
        $program mount $repo "$d" --read-only --log-file $place/log; $program list; $program list --json"#;
    let mut command = Command::new("unshare");
    command.args(["-m", "bash", "-ec", script]).env("program", program()).env("place", directory.path());
    let text = run(command.env("repo", &fixture.repository)).text();
    let shown = format!("{}/not \\xff text", directory.path().display());
    assert!(text.lines().any(|line| line.starts_with(&shown) && line.ends_with("alive")), "{text}");
    assert!(text.contains(&format!("\"mountpoint\": \"{}\"", shown.replace('\\', "\\\\"))), "{text}");
}

#[test]
fn mounts_of_other_users_are_listed_and_not_asked() {
    if !needed(is_root(), "root, to be two users") {
        return;
    }
    let commons = Commons::new();
    let program = commons.program();
    copy_tree(&FixtureSet::own().get("own-v2-basic").repository, &commons.path("repo"));
    let of_root = commons.directory("root", 0, 0o755);
    let of_nobody = commons.directory("nobody", NOBODY, 0o755);
    let scratch = commons.directory("scratch", NOBODY, 0o700);
    let _unmount = Unmounted(vec![of_root.clone(), of_nobody.clone()]);
    run(Command::new(&program)
        .arg("mount")
        .arg(commons.path("repo"))
        .arg(&of_root)
        .arg("--scratch")
        .arg(commons.path("s")))
    .success();
    // The repository is root's: a branch of it is writable for nobody's mount only if the copy is.
    run(as_nobody(&program).arg("mount").arg(commons.path("repo")).arg(&of_nobody).args([
        "--tag",
        "v1.0",
        "--log-file",
        "/dev/null",
    ]))
    .success();
    let rows = run(as_nobody(&program).args(["list", "--json"])).json();
    let foreign = row_at(&of_root, &rows);
    assert_eq!(
        (&foreign["health"], &foreign["owner"], &foreign["ref"]),
        (&"private".into(), &0.into(), &"main".into())
    );
    assert!(foreign["pid"].is_u64() && foreign["uncommitted"].is_null(), "{foreign}");
    assert_eq!(row_at(&of_nobody, &rows)["health"], "alive");
    let rows = run(Command::new(&program).args(["list", "--json"])).json();
    let row = row_at(&of_nobody, &rows);
    assert_eq!((&row["health"], &row["owner"], &row["ref"]), (&"private".into(), &NOBODY.into(), &"v1.0".into()));
    assert!(row["pid"].is_u64() && row["uncommitted"].is_null(), "{row}");
    drop(scratch);
}

#[test]
fn a_mount_that_only_claims_to_be_of_icechunkfs_misleads_nobody() {
    if !needed(is_root(), "root, to be two users") {
        return;
    }
    let commons = Commons::new();
    let script = commons.path("impostor.py");
    std::fs::copy(project("tests/python/impostor.py"), &script).unwrap();
    for mode in ["lies", "endless"] {
        let mountpoint = commons.directory(mode, NOBODY, 0o755);
        let _unmount = Unmounted(vec![mountpoint.clone()]);
        let mut served = as_nobody("/usr/bin/python3").arg(&script).arg(&mountpoint).arg(mode).spawn().unwrap();
        wait_until("it is mounted", || {
            String::from_utf8_lossy(&std::fs::read("/proc/mounts").unwrap()).contains(mountpoint.to_str().unwrap())
        });
        let list = |by_owner: bool, words: &[&str]| {
            let mut command = if by_owner { as_nobody(commons.program()) } else { Command::new(program()) };
            run_within(command.arg("list").args(words), SOON).expect("the list ends")
        };
        // The list of its owner asks it, and that of root does not.
        for (by_owner, health) in [(true, "alive"), (false, "private: only its owner may ask it")] {
            let text = list(by_owner, &[]).text();
            let line = text.lines().find(|line| line.starts_with(mountpoint.to_str().unwrap())).unwrap();
            assert!(line.ends_with(health) && !text.contains(['\x1b', '\u{202e}']), "{mode}: {text:?}");
            let row = row_at(&mountpoint, &list(by_owner, &["--json"]).json());
            assert_eq!((&row["pid"], &row["uncommitted"]), (&Value::Null, &Value::Null), "{mode}: {row}");
            let reference = if mode == "lies" && by_owner { "x\ny" } else { "main" };
            assert_eq!(row["ref"], reference, "{mode}: {row}");
        }
        run(Command::new("umount").arg("-l").arg(&mountpoint)).success();
        served.wait().unwrap();
    }
}

#[test]
fn commands_without_a_mountpoint_use_the_mount_of_the_current_directory() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let directory = tempfile::tempdir().unwrap();
    let copy = "repo";
    copy_tree(&fixture.repository, &directory.path().join(copy));
    let mount = Mount::new(&directory.path().join(copy), &[]);
    let inside = mount.path().join("a");
    let run_in = |place: &Path, words: &[&str]| run(Command::new(program()).args(words).current_dir(place));
    put(&mount.path().join("a/new/zarr.json"), array(&[4], &[1])).unwrap();
    assert!(run_in(&inside, &["status"]).text().contains("/a/new"));
    assert_eq!(run_in(&inside, &["status", "--json"]).json()["added"][0], "/a/new");
    assert!(run_in(&inside, &["diff"]).text().contains("a/new"));
    assert_eq!(run_in(&inside, &["diff", "--json"]).json(), run_on(mount.path(), &["diff", "--json"]).json());
    run_in(&inside, &["refresh"]).success();
    run_in(&inside, &["discard"]).success();
    assert!(!mount.path().join("a/new").exists());
    put(&mount.path().join("a/other/zarr.json"), array(&[4], &[1])).unwrap();
    run_in(&mount.path(), &["commit", "-m", "from within"]).success();
    let log = run_on(directory.path().join(copy), &["log"]).text();
    assert!(log.contains("from within"), "{log}");
    for command in ["status", "diff", "commit", "refresh", "discard"] {
        let outside = run_in(directory.path(), &[command]).failure();
        assert!(outside.contains("is not in an icechunkfs mount"), "{command}: {outside}");
    }
}

#[test]
fn a_covered_mount_is_not_taken_for_the_one_above() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mount = Mount::new(&fixture.repository, &["--tag", "v1.0"]);
    let below = mount.daemon();
    let _above = Unmounted(vec![mount.path()]);
    mount.command(&fixture.repository, &["--read-only", "-o", "nonempty"]).success();
    let rows = icechunkfs(["list", "--json"]).json();
    let place = mount.path().to_str().unwrap().to_owned();
    let health: Vec<&Value> =
        rows.as_array().unwrap().iter().filter(|row| row["mountpoint"] == place).map(|row| &row["health"]).collect();
    assert_eq!(health, ["covered", "alive"]);
    run(Command::new("umount").arg(mount.path())).success();
    let row = row_of(&mount.path());
    assert_eq!((&row["health"], &row["pid"], &row["ref"]), (&"alive".into(), &below.into(), &"v1.0".into()));
}

#[test]
fn a_hundred_mounts_are_listed_at_once() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let mounts: Vec<Mount> = (0..100).map(|_| Mount::new(&fixture.repository, &["--tag", "v1.0"])).collect();
    let begin = Instant::now();
    let listed = run_within(Command::new(program()).args(["list", "--json"]), SOON);
    let rows = listed.expect("the list ends").json();
    let took = begin.elapsed();
    for mount in &mounts {
        assert_eq!(row_at(&mount.path(), &rows)["health"], "alive");
    }
    assert!(took < Duration::from_secs(10), "{took:?}");
}
