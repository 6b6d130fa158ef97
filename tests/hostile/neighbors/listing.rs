//! Listings of a local repository stay within it, whatever links another user put there.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::{FixtureSet, Output, copy_tree, program, run, run_on};

/// A copy of a fixture, and a directory outside that links point to.
struct Linked {
    place: tempfile::TempDir,
}

impl Linked {
    fn new(fixture: &str) -> Linked {
        let place = tempfile::tempdir().unwrap();
        copy_tree(&FixtureSet::own().get(fixture).repository, &place.path().join("repo"));
        std::fs::create_dir_all(place.path().join("outside/deep")).unwrap();
        for name in ["file", "deep/ref.json", "repo.1"] {
            std::fs::write(place.path().join("outside").join(name), "of another user").unwrap();
        }
        for folder in ["refs", "chunks", "snapshots", "manifests", "transactions", "overwritten"] {
            let folder = place.path().join("repo").join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            symlink(place.path().join("outside"), folder.join("x")).unwrap();
            symlink("../../outside/file", folder.join("file")).unwrap();
            symlink("..", folder.join("loop")).unwrap();
        }
        symlink("../outside", place.path().join("repo/away")).unwrap();
        Linked { place }
    }

    fn repository(&self) -> std::path::PathBuf {
        self.place.path().join("repo")
    }

    /// Runs a command and returns its result, and the system calls that touched the outside.
    fn traced(&self, words: &[&str]) -> (Output, Vec<String>) {
        let trace = self.place.path().join("trace");
        let mut command = Command::new("strace");
        // Descriptors are shown with their paths.
        command.args(["-f", "-yy", "-s", "4096", "-e", "trace=%file,%desc", "-o"]).arg(&trace).arg(program());
        let output = run(command.arg(words[0]).arg(self.repository()).args(&words[1..]));
        let trace = std::fs::read_to_string(&trace).expect("strace works here: it is needed for this test");
        assert!(trace.lines().count() > 100, "nothing was traced");
        let outside = self.place.path().join("outside").display().to_string();
        // The target of a link may be read with readlink; nothing there may be opened, listed or
        // inspected.
        let touches = |line: &&str| line.contains(&outside) && !line.contains("readlink");
        let touched = trace.lines().filter(touches).map(str::to_owned).collect();
        (output, touched)
    }
}

#[test]
fn listings_do_not_follow_links_out_of_a_repository() {
    for fixture in ["own-v1-basic", "own-v2-basic"] {
        let linked = Linked::new(fixture);
        let gc = ["gc", "--older-than", "0s", "--dry-run", "--json"];
        for words in [&["ls", "-r"][..], &["refs"], &["stats", "--json"], &["verify", "--json"], &gc] {
            let (output, touched) = linked.traced(words);
            assert!(touched.is_empty(), "{fixture} {words:?}: {} times, {:#?}", touched.len(), touched.first());
            assert!(output.status.success() || words[0] == "verify", "{fixture} {words:?}: {}", output.stderr);
        }
    }
}

#[test]
fn links_are_neither_counted_as_objects_nor_removed() {
    let linked = Linked::new("own-v2-basic");
    let plain = FixtureSet::own().get("own-v2-basic").repository;
    let gc = |repository: &Path, words: &[&str]| {
        run_on(repository, &[&["gc", "--older-than", "0s", "--json"], words].concat()).json()
    };
    let expected = gc(&plain, &["--dry-run"]);
    let found = gc(&linked.repository(), &["--dry-run"]);
    for kind in ["total", "chunks", "snapshots", "manifests", "transaction_logs", "copies_of_repo", "unknown_objects"] {
        assert_eq!(found[kind], expected[kind], "{kind}");
    }
    gc(&linked.repository(), &["--yes"]);
    for name in ["file", "deep/ref.json", "repo.1"] {
        assert!(linked.place.path().join("outside").join(name).exists(), "{name}");
    }
}

#[test]
fn a_folder_that_is_a_link_out_of_the_repository_is_an_error() {
    let linked = Linked::new("own-v1-basic");
    let refs = linked.repository().join("refs");
    std::fs::rename(&refs, linked.place.path().join("refs")).unwrap();
    symlink(linked.place.path().join("refs"), &refs).unwrap();
    let said = run_on(linked.repository(), &["refs"]).failure();
    assert!(said.contains("leads out of the repository"), "{said}");
}

#[test]
fn a_ref_that_is_a_link_within_the_repository_is_listed() {
    let place = tempfile::tempdir().unwrap();
    let repository = place.path().join("repo");
    copy_tree(&FixtureSet::own().get("own-v1-basic").repository, &repository);
    let refs = || run_on(&repository, &["refs"]).success();
    let before = refs();
    let file = repository.join("refs/branch.main/ref.json");
    std::fs::rename(&file, repository.join("elsewhere.json")).unwrap();
    symlink("../../elsewhere.json", &file).unwrap();
    assert_eq!(refs(), before);
}
