//! Asking before something is destroyed, on a real terminal, and what a branch's mounts have to do with it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::writing;
use crate::common::{self, icechunkfs, is_root, place};

/// A terminal: the side that a person sits at, and the side that programs see.
fn terminal() -> (File, OwnedFd) {
    let (mut person, mut programs) = (0, 0);
    use std::ptr::null_mut;
    // SAFETY: both descriptors are written by the call, and the other pointers may be null.
    let made = unsafe { libc::openpty(&mut person, &mut programs, null_mut(), null_mut(), null_mut()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has made both, and nobody else has them.
    unsafe { (File::from_raw_fd(person), OwnedFd::from_raw_fd(programs)) }
}

/// Runs a command on a terminal on which `answer` is typed when it asks. Returns its exit status and what was to be seen.
fn on_terminal(words: &[&str], answer: &str) -> (Option<i32>, String) {
    common::watchdog();
    let (mut person, programs) = terminal();
    let mut command = Command::new(common::program());
    let end = |end: &OwnedFd| Stdio::from(end.try_clone().unwrap());
    command.args(words).stdin(end(&programs)).stdout(end(&programs)).stderr(programs);
    let mut child = command.spawn().unwrap();
    // The command has the only other end now: when it ends, reading does.
    drop(command);
    let (mut seen, mut has_answered) = (Vec::new(), false);
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = person.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
        if !has_answered && seen.ends_with(b"[y/N] ") {
            person.write_all(answer.as_bytes()).unwrap();
            has_answered = true;
        }
    }
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    (child.wait().unwrap().code(), String::from_utf8(seen).unwrap())
}

#[test]
fn on_a_terminal_it_asks() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    let repo = repo.to_str().unwrap();
    icechunkfs(["init", repo, "--zarr-group"]).success();
    icechunkfs(["branch", repo, "create", "dev"]).success();
    let branches = || icechunkfs(["branch", repo, "list", "--json"]).json().as_array().unwrap().len();
    for no in ["n\n", "\n", "yes please\n", "\u{4}"] {
        let (status, seen) = on_terminal(&["branch", repo, "delete", "dev"], no);
        assert_eq!((status, branches()), (Some(1), 2), "{seen}");
        assert!(seen.contains("Create the root group") && seen.contains("nothing is changed"), "{seen}");
    }
    let (status, seen) = on_terminal(&["branch", repo, "delete", "dev"], "y\n");
    assert_eq!((status, branches()), (Some(0), 1), "{seen}");
    // What nothing depends on is not asked about.
    icechunkfs(["branch", repo, "create", "dev"]).success();
    let (status, seen) = on_terminal(&["branch", repo, "reset", "dev", "--to", "main~"], "n\n");
    assert_eq!(status, Some(0), "{seen}");
    assert!(!seen.contains("[y/N]"), "{seen}");
    let (status, seen) = on_terminal(&["branch", repo, "reset", "main", "--to", "main~"], "n\n");
    assert_eq!(status, Some(1), "{seen}");
    assert!(seen.contains("One commit is then on no branch or tag"), "{seen}");
    // Colours are for who looks, unless he says otherwise.
    let (_, seen) = on_terminal(&["log", repo, "--graph"], "");
    assert!(seen.contains("\u{1b}["), "{seen}");
}

/// The one place of a scratch directory that commands look at; it goes when this is dropped.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_mounted_branch_is_said_to_be() {
    if !is_root() || !place::is_local() {
        eprintln!("NOT RUN: where scratch directories of other users are is not known here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    writing::create(&repo);
    let name = icechunkfs::file_name::encode(repo.canonicalize().unwrap().to_str().unwrap());
    let scratch = Scratch(Path::new("/var/lib/icechunkfs").join(name));
    icechunkfs(["branch".as_ref(), repo.as_os_str(), "create".as_ref(), "dev".as_ref()]).success();
    let delete = |words: &[&str]| {
        let before = ["branch".as_ref(), repo.as_os_str(), "delete".as_ref(), "dev".as_ref()];
        icechunkfs(before.into_iter().chain(words.iter().map(|word| word.as_ref())))
    };
    let mount = writing::Writable::placed(&repo, &scratch.0.join("dev"), &["--branch", "dev"]);
    let said = delete(&[]).failure();
    let mountpoint = mount.root().display().to_string();
    assert!(said.contains("in use on this machine") && said.contains(&mountpoint), "{said}");
    assert!(!said.contains("not committed"), "{said}");
    std::fs::create_dir(mount.root().join("new")).unwrap();
    std::fs::write(mount.root().join("new/zarr.json"), writing::GROUP).unwrap();
    assert!(delete(&[]).failure().contains("with changes that are not committed"));
    mount.unmount();
    let said = delete(&[]).failure();
    assert!(said.contains("wait in") && !said.contains("in use"), "{said}");
    // Who does it all the same is told.
    let done = delete(&["--yes"]);
    assert!(done.stderr.contains("wait in"), "{}", done.stderr);
    done.success();
}
