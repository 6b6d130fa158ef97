//! Questions before destructive commands, on a real terminal, and the mounts of a branch that they
//! name.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::writing;
use crate::common::{self, icechunkfs, is_root, place, run_on};

/// Opens a terminal: the user's side, and the side of programs.
fn terminal() -> (File, OwnedFd) {
    let mut person = 0;
    let mut programs = 0;
    use std::ptr::null_mut;
    // SAFETY: both descriptors are written by the call, and the other pointers may be null.
    let made = unsafe { libc::openpty(&mut person, &mut programs, null_mut(), null_mut(), null_mut()) };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has made both, and nothing else owns them.
    unsafe { (File::from_raw_fd(person), OwnedFd::from_raw_fd(programs)) }
}

/// Runs a command on a terminal on which `answer` is typed when it asks. Returns its exit status
/// and its output.
fn on_terminal(words: &[&str], answer: &str) -> (Option<i32>, String) {
    common::watchdog();
    let (mut person, programs) = terminal();
    let mut command = Command::new(common::program());
    let end = |end: &OwnedFd| Stdio::from(end.try_clone().unwrap());
    command.args(words).stdin(end(&programs)).stdout(end(&programs)).stderr(programs);
    let mut child = command.spawn().unwrap();
    // The command has the only other end now: reading ends when the command ends.
    drop(command);
    let mut seen = Vec::new();
    let mut has_answered = false;
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = person.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
        if !has_answered && seen.ends_with(b"[y/N] ") {
            person.write_all(answer.as_bytes()).unwrap();
            has_answered = true;
        }
    }
    let status = common::wait_for("the command does not end", || child.try_wait().unwrap());
    (status.code(), String::from_utf8(seen).unwrap())
}

#[test]
fn destructive_commands_ask_on_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    let repo = repo.to_str().unwrap();
    icechunkfs(["init", repo, "--zarr-group"]).success();
    icechunkfs(["branch", repo, "create", "dev"]).success();
    let branches = || icechunkfs(["branch", repo, "list", "--json"]).json().as_array().unwrap().len();
    for no in ["n\n", "\n", "yes please\n", "\u{4}"] {
        let (status, seen) = on_terminal(&["branch", repo, "delete", "dev"], no);
        assert_eq!((status, branches()), (Some(1), 2), "{seen}");
        assert!(seen.contains("Create the root group") && seen.contains("nothing was changed"), "{seen}");
    }
    let (status, seen) = on_terminal(&["branch", repo, "delete", "dev"], "y\n");
    assert_eq!((status, branches()), (Some(0), 1), "{seen}");
    // A deletion that affects no commit does not ask.
    icechunkfs(["branch", repo, "create", "dev"]).success();
    let (status, seen) = on_terminal(&["branch", repo, "reset", "dev", "--to", "main~"], "n\n");
    assert_eq!(status, Some(0), "{seen}");
    assert!(!seen.contains("[y/N]"), "{seen}");
    let (status, seen) = on_terminal(&["branch", repo, "reset", "main", "--to", "main~"], "n\n");
    assert_eq!(status, Some(1), "{seen}");
    assert!(seen.contains("One commit is then on no branch or tag"), "{seen}");
    // Colors are for terminals, unless the user sets them.
    let (_, seen) = on_terminal(&["log", repo, "--graph"], "");
    assert!(seen.contains("\u{1b}["), "{seen}");
}

/// The default place of a scratch directory; it is removed when this is dropped.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn destructive_commands_name_a_mount_of_the_branch() {
    if !writing::needed(is_root(), "root, whose scratch directories have a known place") || !place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    writing::create(&repo);
    let name = icechunkfs::file_name::encode(repo.canonicalize().unwrap().to_str().unwrap());
    let scratch = Scratch(Path::new("/var/lib/icechunkfs").join(name));
    run_on(&repo, &["branch", "create", "dev"]).success();
    let delete = |words: &[&str]| run_on(&repo, &[&["branch", "delete", "dev"], words].concat());
    let mount = writing::Writable::placed(&repo, &scratch.0.join("dev"), &["--branch", "dev"]);
    let said = delete(&[]).failure();
    let mountpoint = mount.root().display().to_string();
    assert!(said.contains("in use on this machine") && said.contains(&mountpoint), "{said}");
    assert!(!said.contains("not committed"), "{said}");
    std::fs::create_dir(mount.root().join("new")).unwrap();
    std::fs::write(mount.root().join("new/zarr.json"), writing::GROUP).unwrap();
    assert!(delete(&[]).failure().contains("with changes that are not committed"));
    let said = run_on(&repo, &["merge", "dev", "--delete-source"]).failure();
    assert!(said.contains("branch `dev` cannot be deleted: The branch is in use on this machine"), "{said}");
    mount.unmount();
    let said = delete(&[]).failure();
    assert!(said.contains("stay in") && !said.contains("in use"), "{said}");
    // With confirmation the command reports the mount.
    let done = delete(&["--yes"]);
    assert!(done.stderr.contains("stay in"), "{}", done.stderr);
    done.success();
}
