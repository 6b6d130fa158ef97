//! Directories of another user, who exchanges them while root works in them, and links there.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::common::fake_mount::{FakeMount, Node};
use crate::common::users::{Commons, NOBODY, by_nobody};
use crate::common::writing::{self, Writable, put};
use crate::common::{Output, program, run, run_within};

/// Longest time of a command that waits for nobody, on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// Commands of each kind: a look-up by name finds the other mount every second time.
const TIMES: usize = 12;

/// Runs `work` while `nobody` exchanges the directories `one` and `other` all the time.
fn exchanging(one: &Path, other: &Path, work: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            by_nobody(|| {
                while !stop.load(Ordering::Relaxed) {
                    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).unwrap();
                }
            });
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs the program in the directory `at`, which a descriptor names, so that it is this one
/// whatever its path means.
fn run_at(at: &std::fs::File, words: &[&str]) -> Output {
    use std::os::fd::AsRawFd;
    let place = format!("/proc/{}/fd/{}", std::process::id(), at.as_raw_fd());
    let mut command = Command::new(program());
    command.args(words).current_dir(place);
    run_within(&mut command, SOON).expect("the command ends")
}

#[test]
fn a_command_is_about_the_mount_that_the_current_directory_is_in() {
    let commons = Commons::new();
    commons.directory("w", NOBODY, 0o755);
    let [one, other] = ["w/a", "w/b"].map(|name| commons.directory(name, NOBODY, 0o755));
    let answer = |text: &str| {
        [(".icechunk", Node::Directory), (".icechunk/status", Node::File(format!("{text}\n").into_bytes()))]
    };
    let [of_one, of_other] = [("w/a/m", "one"), ("w/b/m", "other")]
        .map(|(name, text)| FakeMount::new(&commons.directory(name, 0, 0o755), 0, false, &answer(text)));
    let at = std::fs::File::open(of_one.path()).unwrap();
    exchanging(&one, &other, || {
        for _ in 0..TIMES {
            assert_eq!(run_at(&at, &["status"]).text(), "one\n");
        }
    });
    exchanging(&one, &other, || drop(run_at(&at, &["unmount", "--force", "."]).success()));
    // The other mount is left, wherever it is now.
    let left: Vec<_> = [&one, &other].into_iter().filter(|place| FakeMount::is_at(&place.join("m"))).collect();
    assert_eq!(left.len(), 1);
    let status = run(Command::new(program()).arg("status").arg(left[0].join("m")));
    assert_eq!(status.text(), "other\n");
    run(Command::new("umount").arg("-l").arg(left[0].join("m"))).success();
    drop((of_one, of_other));
}

#[test]
fn a_path_of_the_repository_follows_no_link_in_the_current_directory() {
    let commons = Commons::new();
    let writer = Writable::new(&[]);
    let root = writer.root();
    for name in ["temp", "precious"] {
        put(&root.join(name).join("zarr.json"), writing::GROUP).unwrap();
    }
    let place = commons.directory("cwd", NOBODY, 0o755);
    let at = std::fs::File::open(&place).unwrap();
    let mountpoint = root.to_str().unwrap();
    by_nobody(|| symlink(root.join("precious"), place.join("temp")).unwrap());
    run_at(&at, &["discard", mountpoint, "temp"]).success();
    assert!(root.join("precious").exists() && !root.join("temp").exists());
    // Nor is the path looked up there, where an answer may never come.
    let silent = commons.directory("mnt", NOBODY, 0o755);
    let fake = FakeMount::new(&silent, NOBODY, true, &[("x", Node::Silent)]);
    by_nobody(|| symlink(silent.join("x"), place.join("other")).unwrap());
    for words in [&["discard", mountpoint, "other"][..], &["prefetch", mountpoint, "other"]] {
        let said = run_at(&at, words).failure();
        assert!(said.contains("other"), "{words:?}: {said}");
        assert_eq!(fake.requests(), [0; 0], "{words:?}");
    }
    // In the mount, a path begins in the current directory, and leads up to the root at most.
    let inside = std::fs::File::open(root.join("precious")).unwrap();
    let out = run_at(&inside, &["discard", mountpoint, "../../precious"]).failure();
    assert!(out.contains("leads out of the mount"), "{out}");
    run_at(&inside, &["discard", mountpoint, "../precious"]).success();
    assert!(!root.join("precious").exists());
}
