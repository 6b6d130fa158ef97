//! Refresh, discard, and the scratch directory from mount to mount.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::common::writing::{GROUP, Reference, Writable, array, echo, put};
use crate::common::{Mount, errno, icechunkfs, place, python, read_files, run};

fn unmounted(mount: &Writable, words: &[&str]) -> crate::common::Output {
    icechunkfs([&["unmount", mount.root().to_str().unwrap()], words].concat())
}

/// Groups and arrays that were made and committed here, which the kernel has cached, and concurrent
/// changes in them.
#[test]
fn refresh_shows_commits_of_others() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("g/zarr.json"), GROUP).unwrap();
    put(&root.join("g/a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("g/a/c/0"), "ours").unwrap();
    put(&root.join("g/a/c/1"), "goes").unwrap();
    mount.commit("ours").unwrap();
    // The kernel has cached existing and missing names.
    assert_eq!(std::fs::read(root.join("g/a/c/0")).unwrap(), b"ours");
    for absent in ["g/a/c/2", "g/b/zarr.json", "h"] {
        assert!(!root.join(absent).exists());
    }
    put(&root.join("g/a/c/5"), "waiting").unwrap();
    put(&root.join("notes"), "mine").unwrap();
    let theirs = [
        ("g/a/c/0", "theirs, and longer".as_bytes()),
        ("g/a/c/2", b"new"),
        ("g/b/zarr.json", GROUP.as_bytes()),
        ("h/zarr.json", GROUP.as_bytes()),
    ];
    Reference::open(mount.repository()).commit(&theirs, "theirs");
    assert_eq!(
        std::fs::read(root.join("g/a/c/0")).unwrap(),
        b"ours",
        "a view is one snapshot until it is told to move"
    );
    assert!(
        mount.read_control("status").contains("moved on")
            || mount.read_control("status.json").contains("\"branch_moved\": true")
    );

    mount.touch("refresh").unwrap();
    for (name, content) in theirs {
        assert_eq!(std::fs::read(root.join(name)).unwrap(), content, "{name}");
        assert_eq!(std::fs::metadata(root.join(name)).unwrap().len(), content.len() as u64, "{name}");
    }
    assert_eq!(std::fs::read(root.join("g/a/c/5")).unwrap(), b"waiting");
    assert_eq!(std::fs::read(root.join("notes")).unwrap(), b"mine");
    mount.commit("on top").unwrap();
    let mut working = read_files(&root);
    working.remove("notes").unwrap();
    assert!(Reference::open(mount.repository()).keys() == working && mount.fresh() == working);
}

/// The kernel forgets a replaced file when it is closed, which may be after a commit has put
/// another in its place.
#[test]
fn forgetting_a_replaced_file_keeps_its_successor() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("a/c/0"), "old").unwrap();
    mount.commit("old").unwrap();
    // After this the kernel knows the chunk by the snapshot's number.
    mount.remount();
    let reader = std::fs::File::open(root.join("a/c/0")).unwrap();
    put(&root.join("a/c/0.partial"), "new").unwrap();
    std::fs::rename(root.join("a/c/0.partial"), root.join("a/c/0")).unwrap();
    mount.commit("new").unwrap();
    let mut old = String::new();
    std::io::Read::read_to_string(&mut &reader, &mut old).unwrap();
    assert_eq!(old, "old");
    drop(reader);
    // The kernel reports the close behind later requests: a few requests later it has been
    // processed.
    for n in 1..8 {
        put(&root.join(format!("a/c/{n}")), "more").unwrap();
        mount.commit("more").unwrap();
        assert_eq!(std::fs::read(root.join("a/c/0")).unwrap(), b"new");
    }
}

#[test]
fn discard_reverts_changes_and_keeps_the_rest() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("a/c/0"), "first").unwrap();
    put(&root.join("b/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("b/c/0"), "second").unwrap();
    mount.commit("base").unwrap();
    let base = read_files(&root);
    let change = || {
        put(&root.join("a/c/0"), "changed").unwrap();
        put(&root.join("a/c/1"), "new").unwrap();
        put(&root.join("notes"), "mine").unwrap();
        put(&root.join("new/zarr.json"), GROUP).unwrap();
        std::fs::rename(root.join("b"), root.join("new/b")).unwrap();
        std::fs::remove_file(root.join("new/b/c/0")).unwrap();
    };
    change();
    // No path is given by a variable that is not set, and all would be lost.
    let before = read_files(&root);
    icechunkfs(["discard", root.to_str().unwrap(), ""]).failure();
    assert_eq!(errno(echo(&mount.control("discard"), "")), libc::EINVAL);
    assert!(read_files(&root) == before);
    // A part of it, by a path as a user types it.
    icechunkfs(["discard", root.to_str().unwrap(), root.join("a/c").to_str().unwrap()]).success();
    assert_eq!(std::fs::read(root.join("a/c/0")).unwrap(), b"first");
    assert!(!root.join("a/c/1").exists() && root.join("new/b/zarr.json").exists() && !root.join("b").exists());
    echo(&mount.control("discard"), "new").unwrap();
    let mut now = read_files(&root);
    assert_eq!(now.remove("notes").unwrap(), b"mine");
    assert!(now == base, "{:?}", now.keys());
    // All of it. Moved nodes are back, and untracked files stay.
    change();
    mount.touch("discard").unwrap();
    let mut now = read_files(&root);
    assert_eq!(now.remove("notes").unwrap(), b"mine");
    assert!(now == base, "{:?}", now.keys());
    assert!(mount.read_control("status.json").contains("\"clean\": true"), "{}", mount.read_control("status.json"));
    mount.commit("nothing").unwrap();
    assert_eq!(Reference::open(mount.repository()).history().len(), 2);
}

/// Nothing but the path in `discard` is lost, however a program writes it.
#[test]
fn discard_by_a_file_discards_no_more_than_the_path() {
    let Some(python) = python() else { return };
    let mount = Writable::new(&[]);
    let outside = tempfile::tempdir().unwrap();
    let root = mount.root();
    let path = outside.path().join("path");
    let discard = mount.control("discard");
    let left = |name: &str| root.join(name).exists();
    let names = ["a", "b", "a ", "c"];
    for name in names {
        put(&root.join(name).join("zarr.json"), GROUP).unwrap();
    }
    std::fs::write(&path, "a\n").unwrap();
    run(Command::new("cp").arg("-p").args([&path, &discard])).success();
    assert_eq!(names.map(left), [false, true, true, true]);
    std::fs::write(&path, "b\n").unwrap();
    let copy = "import shutil, sys; shutil.copy2(sys.argv[1], sys.argv[2])";
    run(Command::new(python).args(["-c", copy]).args([&path, &discard])).success();
    assert_eq!(names.map(left), [false, false, true, true]);
    // A blank is a name, or nothing at all; and one path is discarded at a time.
    let refused = |bytes: &[&[u8]]| {
        let mut file = std::fs::OpenOptions::new().write(true).open(&discard).unwrap();
        bytes.iter().try_for_each(|bytes| file.write_all(bytes)).unwrap_err().raw_os_error()
    };
    assert_eq!(refused(&[b" "]), Some(libc::EINVAL));
    assert_eq!(names.map(left), [false, false, true, true]);
    assert_eq!(refused(&[b"a ", b"c"]), Some(libc::EINVAL));
    assert_eq!(names.map(left), [false, false, false, true]);
    // Long after a path was written, a given time is no command.
    std::thread::sleep(Duration::from_secs(3));
    run(Command::new("touch").args(["-d", "2026-01-01"]).arg(&discard)).failure();
    assert_eq!(names.map(left), [false, false, false, true]);
    mount.touch("discard").unwrap();
    assert_eq!(names.map(left), [false; 4]);
}

#[test]
fn uncommitted_work_is_resumed_from_the_scratch_directory() {
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("a/c/0"), "waiting").unwrap();
    let working = read_files(&root);
    let refused = unmounted(&mount, &["--require-clean"]).failure();
    assert!(refused.contains("uncommitted changes") && refused.contains("scratch"), "{refused}");
    let told = unmounted(&mount, &[]);
    assert!(told.status.success() && told.stderr.contains("uncommitted changes: "), "{}", told.stderr);

    let resumed = mount.mount_again(None);
    assert!(resumed.stderr.contains("resuming uncommitted work: 2 nodes, 1 chunk,"), "{}", resumed.stderr);
    resumed.success();
    assert!(read_files(&root) == working);
    // One daemon has it.
    let scratch = mount.control_json("info.json")["scratch"].as_str().unwrap().to_owned();
    let other = Mount::prepare();
    let refused = other.command(mount.repository(), &["--scratch", &scratch]).failure();
    assert!(refused.contains("in use") && refused.contains("--scratch"), "{refused}");
    // Changes of another repository are refused, and so is a place inside the repository.
    unmounted(&mount, &[]).success();
    let foreign = Writable::new(&[]);
    let refused = other.command(foreign.repository(), &["--scratch", &scratch]).failure();
    assert!(refused.contains("has changes to branch main of"), "{refused}");
    if place::is_local() {
        let inside = mount.repository().join("scratch");
        let refused = other.command(mount.repository(), &["--scratch", inside.to_str().unwrap()]).failure();
        assert!(refused.contains("inside the repository") && !inside.exists(), "{refused}");
    }
    // Discarded, it is removed.
    let begun = Mount::new(mount.repository(), &["--scratch", &scratch, "--discard"]);
    assert!(read_files(&begun.path()).is_empty());
    begun.unmount();
    mount.mount_again(None).success();
    assert!(read_files(&root).is_empty());
}

#[test]
fn unmount_returns_when_the_daemon_has_ended() {
    let mount = Writable::new(&[]);
    for n in 0..10 {
        (0..200).for_each(|file| put(&mount.root().join(format!("{n}/{file}")), "mine").unwrap());
        let daemon = mount.daemon();
        assert!(daemon > 0);
        mount.unmount();
        let state = std::fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
        // The parent process may not have read its exit status yet.
        assert!(state.is_empty() || state.contains(") Z "), "{n}: {state}");
        mount.mount_again(None).success();
    }
}

#[test]
fn an_ephemeral_scratch_directory_is_removed_when_empty() {
    let mount = Writable::new(&[]);
    let scratch_of = |mount: &Mount| PathBuf::from(mount.control_json("info.json")["scratch"].as_str().unwrap());
    let gone = |place: &std::path::Path, daemon: i32| {
        crate::common::wait_for_end(daemon);
        !place.exists()
    };
    let clean = Mount::new(mount.repository(), &["--ephemeral"]);
    let place = scratch_of(&clean);
    let daemon = clean.daemon();
    put(&clean.path().join("zarr.json"), GROUP).unwrap();
    std::fs::write(clean.path().join(".icechunk/commit"), "kept").unwrap();
    clean.unmount();
    assert!(gone(&place, daemon));

    let changed = Mount::new(mount.repository(), &["--ephemeral"]);
    let place = scratch_of(&changed);
    let daemon = changed.daemon();
    put(&changed.path().join("a/zarr.json"), array(&[8], &[1])).unwrap();
    let unmounted = icechunkfs(["unmount", changed.path().to_str().unwrap()]);
    // No other mount uses the directory by itself: the message promises none, and says which one
    // would.
    let note = unmounted.stderr.clone();
    unmounted.success();
    assert!(note.contains("uncommitted changes: 1 node,") && !note.contains("resumes them"), "{note}");
    assert!(note.contains(&format!("--scratch '{}'", place.display())), "{note}");
    assert!(!gone(&place, daemon), "uncommitted work is lost");
    let again = Mount::new(mount.repository(), &["--scratch", place.to_str().unwrap()]);
    assert!(again.path().join("a/zarr.json").exists());
    std::fs::remove_dir_all(again.path().join("a")).unwrap();
    put(&again.path().join("notes"), "mine").unwrap();
    let unmounted = icechunkfs(["unmount", again.path().to_str().unwrap()]);
    assert!(unmounted.stderr.contains("1 untracked file") && unmounted.stderr.contains("they stay for the next mount"));
    std::fs::remove_dir_all(&place).unwrap();

    let untracked = Mount::new(mount.repository(), &["--ephemeral"]);
    let place = scratch_of(&untracked);
    put(&untracked.path().join("notes"), "mine").unwrap();
    let unmounted = icechunkfs(["unmount", untracked.path().to_str().unwrap()]);
    assert!(unmounted.stderr.contains("1 untracked file") && unmounted.stderr.contains("--scratch"));
    std::fs::remove_dir_all(&place).unwrap();
}
