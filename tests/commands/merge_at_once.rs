//! Merges into one branch at the same time, of sources that have commits in common.

use std::path::Path;
use std::process::{Command, Stdio};

use icechunk::format::format_constants::SpecVersionBin;

use super::merge::{Setup, setup, versions};
use crate::common::writing::{Writable, array};
use crate::common::{entries, icechunkfs, place, program, run_on, signal, wait_until};

impl Setup {
    /// Begins to merge `source` into `main`, runs `meanwhile` when the merge is planned and waits
    /// to publish, and returns what it prints.
    fn merge_around(&self, source: &str, meanwhile: impl FnOnce()) -> String {
        // The merge waits for another writer, whose ticket this is.
        let queue = self.place.join("queue");
        std::fs::create_dir_all(&queue).unwrap();
        std::fs::write(queue.join(ticket()), "x").unwrap();
        let mut command = Command::new(program());
        command.arg("merge").arg(&self.place).arg(source).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("the merge does not line up", || entries(&queue).len() == 2);
        let id = i32::try_from(child.id()).unwrap();
        signal(id, "-STOP");
        std::fs::remove_dir_all(&queue).unwrap();
        meanwhile();
        signal(id, "-CONT");
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

fn ticket() -> String {
    format!("{:020}-AAAAAAAAAAAAAAAAAAA0", icechunkfs::times::system_clock())
}

fn branch(place: &Path, name: &str, at: &str) {
    run_on(place, &["branch", "create", name, "--at", at]).success();
}

#[test]
fn a_merge_brings_back_nothing_that_one_at_the_same_time_has_corrected() {
    // The other writer is a file.
    if !place::is_local() {
        return;
    }
    for version in versions() {
        let repo = setup(version);
        repo.commit("dev", &[("a/c/0", b"wrong")]);
        branch(&repo.place, "feature", "dev");
        // For the branch that gets both commits the chunk is as it was, so that the log of the
        // merge does not have it.
        repo.commit("feature", &[("a/c/0", b"0"), ("a/c/6", b"feature")]);
        let printed = repo.merge_around("dev", || drop(run_on(&repo.place, &["merge", "feature"]).success()));
        assert!(printed.contains("has all changes"), "{version}: {printed}");
        let keys = repo.keys("main");
        assert_eq!((&keys["a/c/0"][..], &keys["a/c/6"][..]), (&b"0"[..], &b"feature"[..]), "{version}");
        // The other way round, the later merge has something to bring.
        branch(&repo.place, "again", "main");
        repo.commit("again", &[("a/c/1", b"wrong")]);
        branch(&repo.place, "more", "again");
        repo.commit("more", &[("a/c/1", b"1"), ("a/c/7", b"more")]);
        repo.merge_around("more", || drop(run_on(&repo.place, &["merge", "again"]).success()));
        let keys = repo.keys("main");
        assert_eq!((&keys["a/c/1"][..], &keys["a/c/7"][..]), (&b"1"[..], &b"more"[..]), "{version}");
    }
}

#[test]
fn a_node_that_two_merges_bring_at_the_same_time_is_there_once() {
    // The other writer is a file.
    if !place::is_local() {
        return;
    }
    let repo = setup(SpecVersionBin::V2);
    repo.commit("dev", &[("n/zarr.json", array(&[3], &[1]).as_bytes())]);
    branch(&repo.place, "feature", "dev");
    let mount = Writable::of(&repo.place, &["--branch", "feature"]);
    std::fs::rename(mount.root().join("n"), mount.root().join("n2")).unwrap();
    std::fs::create_dir_all(mount.root().join("n2/c")).unwrap();
    std::fs::write(mount.root().join("n2/c/0"), "W").unwrap();
    run_on(mount.root(), &["commit", "-m", "moved"]).success();
    drop(mount);
    repo.merge_around("dev", || drop(run_on(&repo.place, &["merge", "feature"]).success()));
    let keys = repo.keys("main");
    assert!(!keys.contains_key("n/zarr.json") && keys["n2/c/0"] == b"W", "{:?}", keys.keys());
    icechunkfs(["verify".as_ref(), repo.place.as_os_str()]).success();
}
