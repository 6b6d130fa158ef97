//! `icechunkfs restore`: each promise of its help, in a mount and on a branch. Random histories are
//! in `tests/oracles/restore.rs`.

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::json;

use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{Files, Output, block_on, errno, lab, run_on};

/// Size of a chunk that is an object of its own, in bytes.
const LARGE: usize = 300 << 10;

struct Setup {
    place: PathBuf,
    /// Commits, oldest first: the array `g/a` of four chunks, changed in each.
    commits: Vec<String>,
    _directory: tempfile::TempDir,
}

fn large(byte: u8) -> Vec<u8> {
    vec![byte; LARGE]
}

/// An empty repository, and the directory that it is in.
pub(super) fn empty(version: SpecVersionBin) -> (tempfile::TempDir, PathBuf, Reference) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    block_on(lab::create(&place, version, RepositoryConfig::default()));
    let reference = Reference::open(&place);
    (directory, place, reference)
}

/// A repository with three commits: `g/a` has chunks 0 and 1, then other bytes, and a new array
/// `g/new`; then `g/a` is `g/b`.
fn setup(version: SpecVersionBin) -> Setup {
    let (directory, place, reference) = empty(version);
    let document = array(&[4], &[1]);
    let one = large(1);
    let two = large(2);
    reference.commit(
        &[
            ("zarr.json", GROUP.as_bytes()),
            ("g/zarr.json", GROUP.as_bytes()),
            ("g/a/zarr.json", document.as_bytes()),
            ("g/a/c/0", &one),
            ("g/a/c/1", b"small"),
        ],
        "one",
    );
    reference.create_tag("v1");
    reference.commit(
        &[("g/a/c/0", &two), ("g/a/c/2", b"more"), ("g/new/zarr.json", document.as_bytes()), ("g/new/c/0", b"new")],
        "two",
    );
    let mut commits: Vec<String> = reference.history().into_iter().map(|(id, _)| id).collect();
    commits.reverse();
    Setup { place, commits, _directory: directory }
}

impl Setup {
    fn reference(&self) -> Reference {
        Reference::open(&self.place)
    }

    fn keys(&self) -> Files {
        self.reference().keys()
    }

    fn restore(&self, words: &[&str]) -> Output {
        run_on(&self.place, &[&["restore"], words].concat())
    }

    fn objects(&self) -> usize {
        fs::read_dir(self.place.join("chunks")).unwrap().count()
    }

    /// Opens the objects of chunks for nobody, so that a read of them fails, until the returned
    /// guard is dropped.
    fn without_chunks(&self) -> Hidden {
        let from = self.place.join("chunks");
        let to = self.place.with_file_name("chunks.hidden");
        fs::rename(&from, &to).unwrap();
        fs::create_dir(&from).unwrap();
        Hidden { from, to }
    }
}

struct Hidden {
    from: PathBuf,
    to: PathBuf,
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Fails if something was stored in it.
        fs::remove_dir(&self.from).unwrap();
        fs::rename(&self.to, &self.from).unwrap();
    }
}

fn restore_in(mount: &Writable, words: &[&str]) -> Output {
    run_on(mount.root(), &[&["restore"], words].concat())
}

fn versions() -> [SpecVersionBin; 2] {
    [SpecVersionBin::V1, SpecVersionBin::V2]
}

#[test]
fn a_branch_gets_one_commit_that_stores_no_chunk() {
    for version in versions() {
        let repo = setup(version);
        let objects = repo.objects();
        let ids = repo.reference().node_ids();
        let dry = repo.restore(&["g/a", "--from", "v1", "--dry-run", "--json"]).json();
        assert_eq!((&dry["snapshot"], &dry["chunks"]), (&json!(null), &json!(2)));
        assert_eq!(repo.reference().history().len(), repo.commits.len(), "only shown");
        let said = repo.restore(&["g/a", "--from", "v1", "-m", "Back", "--metadata", "run=7", "--json"]).json();
        assert_eq!((&said["chunks"], &said["path"], &said["updated"]), (&json!(2), &json!("/g/a"), &json!([])));
        let keys = repo.keys();
        assert!(keys["g/a/c/0"] == large(1) && !keys.contains_key("g/a/c/2") && keys["g/new/c/0"] == b"new");
        assert_eq!((repo.objects(), repo.reference().node_ids()), (objects, ids), "the nodes are the same");
        assert_eq!(repo.reference().history()[0], (said["snapshot"].as_str().unwrap().to_owned(), "Back".to_owned()));
        let newest = run_on(&repo.place, &["log", "--json", "-n", "1"]).json();
        assert_eq!(newest[0]["metadata"]["run"], json!(7));
        let again = repo.restore(&["g/a", "--from", "v1"]).text();
        assert!(again.contains("already"), "{again}");
        assert_eq!(repo.reference().history().len(), repo.commits.len() + 1, "nothing to commit");
        run_on(&repo.place, &["verify"]).success();
    }
}

#[test]
fn a_mount_shows_it_as_an_uncommitted_change_without_reading_chunks() {
    for version in versions() {
        let repo = setup(version);
        let mount = Writable::of(&repo.place, &[]);
        let file = mount.root().join("g/a/c/0");
        let mut open = File::open(&file).unwrap();
        assert_eq!(fs::read(mount.root().join("g/new/c/0")).unwrap(), b"new", "cached by the kernel");
        let hidden = repo.without_chunks();
        let said = restore_in(&mount, &["g", "--from", "v1", "--json"]).json();
        assert_eq!((&said["deleted"], &said["snapshot"]), (&json!(["/g/new"]), &json!(null)));
        assert_eq!(said["chunks"], json!(2));
        drop(hidden);
        assert_eq!(errno(fs::read(mount.root().join("g/new/c/0"))), libc::ENOENT);
        assert_eq!(errno(fs::read(mount.root().join("g/a/c/2"))), libc::ENOENT);
        assert_eq!(fs::read(&file).unwrap(), large(1));
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, large(2), "an open file stays as it was");
        let status = mount.control_json("status.json");
        assert_eq!((&status["deleted"], status["clean"].as_bool()), (&json!(["/g/new"]), Some(false)));
        mount.kill_and_remount();
        assert_eq!(fs::read(&file).unwrap(), large(1), "resumed");
        let objects = repo.objects();
        mount.commit("back").unwrap();
        assert_eq!(repo.objects(), objects);
        let keys = repo.keys();
        assert_eq!(keys.keys().filter(|key| key.starts_with("g/")).count(), 4, "{:?}", keys.keys());
        assert_eq!(keys["g/a/c/0"], large(1));
    }
}

/// A node that comes back is the node that it was: what other branches do to it is merged with it.
#[test]
fn a_restored_node_is_the_node_that_it_was() {
    for (version, in_mount) in versions().into_iter().flat_map(|version| [(version, false), (version, true)]) {
        let repo = setup(version);
        let before = repo.reference().node_ids();
        for (branch, path) in [("delete", "g/a"), ("write", "g/new")] {
            run_on(&repo.place, &["branch", "create", branch]).success();
            let side = Writable::of(&repo.place, &["--branch", branch]);
            match branch {
                "delete" => fs::remove_dir_all(side.root().join(path)).unwrap(),
                _ => put(&side.root().join("g/new/c/1"), b"written").unwrap(),
            }
            side.commit(branch).unwrap();
        }
        let mount = Writable::of(&repo.place, &[]);
        for path in ["g/a", "g/new"] {
            fs::remove_dir_all(mount.root().join(path)).unwrap();
        }
        mount.commit("removed").unwrap();
        let newest = repo.commits.last().unwrap();
        if in_mount {
            restore_in(&mount, &["g", "--from", newest]).success();
            mount.kill_and_remount();
            fs::rename(mount.root().join("g/a"), mount.root().join("g/moved")).unwrap();
            fs::rename(mount.root().join("g/moved"), mount.root().join("g/a")).unwrap();
            mount.commit("back").unwrap();
        } else {
            drop(mount);
            repo.restore(&["g", "--from", newest]).success();
        }
        assert_eq!(repo.reference().node_ids(), before, "{version:?}, in a mount: {in_mount}");
        for branch in ["delete", "write"] {
            run_on(&repo.place, &["merge", branch, "--into", "main"]).success();
        }
        let keys = repo.keys();
        assert!(!keys.contains_key("g/a/zarr.json"), "{version:?}, in a mount: {in_mount}");
        assert_eq!((&*keys["g/new/c/0"], &*keys["g/new/c/1"]), (&b"new"[..], &b"written"[..]));
        run_on(&repo.place, &["verify"]).success();
    }
}

/// A copy is another node: the one that was moved away, or restored before, has the id.
#[test]
fn a_node_that_is_restored_twice_is_two() {
    let repo = setup(SpecVersionBin::V2);
    let mount = Writable::of(&repo.place, &[]);
    fs::remove_dir_all(mount.root().join("g/new")).unwrap();
    mount.commit("removed").unwrap();
    for to in ["g/first", "g/second"] {
        restore_in(&mount, &["g/new", "--from", repo.commits.last().unwrap()]).success();
        fs::rename(mount.root().join("g/new"), mount.root().join(to)).unwrap();
    }
    mount.commit("back").unwrap();
    let keys = repo.keys();
    assert_eq!((&*keys["g/first/c/0"], &*keys["g/second/c/0"]), (&b"new"[..], &b"new"[..]));
    run_on(&repo.place, &["verify"]).success();
}

#[test]
fn a_discard_takes_it_back() {
    let repo = setup(SpecVersionBin::V2);
    let mount = Writable::of(&repo.place, &[]);
    restore_in(&mount, &[".", "--from", "v1"]).success();
    assert!(!mount.root().join("g/new").exists());
    run_on(mount.root(), &["discard"]).success();
    assert_eq!(crate::common::read_files(&mount.root()), repo.keys());
    assert!(mount.read_control("status").contains("nothing to commit"));
}

#[test]
fn chunks_and_documents_are_restored_alone() {
    let repo = setup(SpecVersionBin::V2);
    repo.restore(&["g/a/c/2", "--from", "v1"]).success();
    let keys = repo.keys();
    assert!(!keys.contains_key("g/a/c/2") && keys["g/a/c/0"] == large(2), "that chunk alone");
    let mount = Writable::of(&repo.place, &[]);
    restore_in(&mount, &["g/a/c/0", "--from", "v1"]).success();
    assert_eq!(fs::read(mount.root().join("g/a/c/0")).unwrap(), large(1));
    restore_in(&mount, &["g/a/c", "--from", "main~1"]).success();
    assert_eq!(fs::read(mount.root().join("g/a/c/2")).unwrap(), b"more", "a directory of chunks");
    let old = fs::read_to_string(mount.root().join("g/zarr.json")).unwrap();
    put(&mount.root().join("g/zarr.json"), old.replace('}', r#","attributes":{"x":1}}"#)).unwrap();
    mount.commit("attributes").unwrap();
    restore_in(&mount, &["g/zarr.json", "--from", "v1"]).success();
    assert_eq!(fs::read_to_string(mount.root().join("g/zarr.json")).unwrap(), old);
    mount.commit("without").unwrap();
    assert_eq!(repo.keys()["g/zarr.json"], old.as_bytes());
    let why = restore_in(&mount, &["g/a/c/9", "--from", "v1"]).failure();
    assert!(why.contains("/g/a/c/9"), "outside the grid: {why}");
}

/// The document that the mount shows decides about the meaning of a part of an array.
#[test]
fn a_part_of_an_array_is_refused_if_its_uncommitted_document_gives_chunks_another_meaning() {
    let repo = setup(SpecVersionBin::V2);
    let mount = Writable::of(&repo.place, &[]);
    let root = mount.root();
    let old = fs::read_to_string(root.join("g/a/zarr.json")).unwrap();
    let other = old.replace("uint8", "int8");
    assert_ne!(old, other, "{old}");
    put(&root.join("g/a/zarr.json"), &other).unwrap();
    put(&root.join("g/a/c/1"), "signed").unwrap();
    let before = crate::common::read_files(&root);
    for path in ["g/a/c/0", "g/a/c", "g/a/zarr.json"] {
        let why = restore_in(&mount, &[path, "--from", "v1"]).failure();
        assert!(why.contains("data_type") && why.contains("restore /g/a as a whole"), "{path}: {why}");
        assert!(crate::common::read_files(&root) == before, "{path}");
    }
    // The same of an array that is new.
    restore_in(&mount, &["g/a", "--from", "v1"]).success();
    mount.commit("as it was").unwrap();
    fs::remove_dir_all(root.join("g/a")).unwrap();
    mount.commit("without").unwrap();
    put(&root.join("g/a/zarr.json"), &other).unwrap();
    put(&root.join("g/a/c/1"), "signed").unwrap();
    let before = crate::common::read_files(&root);
    for path in ["g/a/c/0", "g/a/zarr.json"] {
        let why = restore_in(&mount, &[path, "--from", "v1"]).failure();
        assert!(why.contains("restore /g/a as a whole"), "{path}: {why}");
        assert!(crate::common::read_files(&root) == before, "{path}");
    }
    restore_in(&mount, &["g/a", "--from", "v1"]).success();
    assert_eq!(fs::read_to_string(root.join("g/a/zarr.json")).unwrap(), old);
}

#[test]
fn a_path_is_found_under_its_old_name() {
    let repo = setup(SpecVersionBin::V2);
    repo.reference().rename("g/a", "g/b");
    let ids = repo.reference().node_ids();
    // The present name.
    let said = repo.restore(&["g/b", "--from", "v1", "--json"]).json();
    assert_eq!((&said["found_at"], &said["chunks"]), (&json!("/g/a"), &json!(2)));
    assert_eq!(repo.reference().node_ids(), ids);
    assert_eq!(repo.keys()["g/b/c/0"], large(1));
    let text = repo.restore(&["g/b/c/0", "--from", "main~2"]).text();
    assert!(text.contains("/g/b was called /g/a in that snapshot"), "{text}");
    assert_eq!(repo.keys()["g/b/c/0"], large(2));
    // The old name: a copy, while the moved array stays.
    let text = repo.restore(&["g/a", "--from", "v1"]).text();
    assert!(text.contains("/g/a was moved since") && text.contains("/g/b stays as it is"), "{text}");
    let keys = repo.keys();
    assert_eq!((&keys["g/a/c/0"], &keys["g/b/c/0"]), (&large(1), &large(2)));
    // Both names below the path: the array goes back.
    let said = repo.restore(&["g", "--from", "v1", "--json"]).json();
    assert_eq!(repo.keys().keys().filter(|key| key.starts_with("g/")).count(), 4, "{said}");
    assert_eq!(repo.keys()["g/a/c/0"], large(1));
}

#[test]
fn an_array_that_was_moved_within_the_path_is_moved_back_in_a_mount() {
    let repo = setup(SpecVersionBin::V2);
    let ids = repo.reference().node_ids();
    repo.reference().rename("g/a", "g/b");
    let mount = Writable::of(&repo.place, &[]);
    let said = restore_in(&mount, &["g", "--from", &repo.commits[2], "--json"]).json();
    assert_eq!((&said["moved"], &said["chunks"]), (&json!([{"from": "/g/b", "to": "/g/a"}]), &json!(0)));
    assert_eq!(fs::read(mount.root().join("g/a/c/0")).unwrap(), large(2));
    mount.commit("back").unwrap();
    assert_eq!(repo.reference().node_ids(), ids);
}

#[test]
fn missing_groups_above_are_restored_too() {
    for in_mount in [false, true] {
        let repo = setup(SpecVersionBin::V2);
        let all = repo.keys();
        let root = Files::from([("zarr.json".to_owned(), all["zarr.json"].clone())]);
        repo.reference().change(&all, &root);
        let text = if in_mount {
            let mount = Writable::of(&repo.place, &[]);
            let text = restore_in(&mount, &["g/a", "--from", "v1"]).text();
            mount.commit("again").unwrap();
            text
        } else {
            repo.restore(&["g/a", "--from", "v1"]).text()
        };
        assert!(text.contains("group /g was missing and is restored too"), "{text}");
        let names: Vec<String> = repo.keys().into_keys().collect();
        assert_eq!(names, ["g/a/c/0", "g/a/c/1", "g/a/zarr.json", "g/zarr.json", "zarr.json"]);
    }
}

#[test]
fn a_new_group_above_stays_as_it_is() {
    let repo = setup(SpecVersionBin::V2);
    let mount = Writable::of(&repo.place, &[]);
    fs::remove_dir_all(mount.root().join("g")).unwrap();
    mount.commit("without").unwrap();
    let document = GROUP.replace('}', r#","attributes":{"new":1}}"#);
    fs::create_dir(mount.root().join("g")).unwrap();
    put(&mount.root().join("g/zarr.json"), &document).unwrap();
    let text = restore_in(&mount, &["g/a", "--from", "v1"]).text();
    assert!(!text.contains("was missing"), "{text}");
    assert_eq!(fs::read_to_string(mount.root().join("g/zarr.json")).unwrap(), document);
    mount.commit("both").unwrap();
    assert_eq!(repo.keys()["g/a/c/0"], large(1));
}

#[test]
fn untracked_files_stay_or_are_named() {
    let repo = setup(SpecVersionBin::V2);
    let mount = Writable::of(&repo.place, &[]);
    put(&mount.root().join("g/a/note.txt"), "mine").unwrap();
    restore_in(&mount, &["g", "--from", "v1"]).success();
    assert_eq!(fs::read(mount.root().join("g/a/note.txt")).unwrap(), b"mine");
    run_on(mount.root(), &["discard"]).success();
    put(&mount.root().join("g/new/note.txt"), "mine").unwrap();
    let before = crate::common::read_files(&mount.root());
    let why = restore_in(&mount, &["g", "--from", "v1"]).failure();
    assert!(why.contains("/g/new/note.txt") && why.contains("move them away"), "{why}");
    assert_eq!(crate::common::read_files(&mount.root()), before, "nothing was changed");

    // In the place of a deleted array, and of a chunk, which only a discard may remove.
    run_on(mount.root(), &["discard"]).success();
    fs::remove_dir_all(mount.root().join("g/a")).unwrap();
    put(&mount.root().join("g/a"), "mine").unwrap();
    fs::remove_file(mount.root().join("g/new/c/0")).unwrap();
    std::os::unix::fs::symlink("elsewhere", mount.root().join("g/new/c/0")).unwrap();
    for (path, named) in
        [("g/a", "1: /g/a"), ("g/new/c/0", "/g/new/c/0"), ("g/new", "/g/new/c/0"), (".", "2: /g/a, /g/new/c/0")]
    {
        let why = restore_in(&mount, &[path, "--from", "main"]).failure();
        assert!(why.contains(named) && why.contains("move them away"), "{path}: {why}");
    }
    restore_in(&mount, &["g", "--from", "v1"]).failure();
    assert_eq!(fs::read(mount.root().join("g/a")).unwrap(), b"mine");
    assert_eq!(fs::read_link(mount.root().join("g/new/c/0")).unwrap(), std::path::Path::new("elsewhere"));
    // Others are none of its business.
    restore_in(&mount, &["g/zarr.json", "--from", "v1"]).success();
}

#[test]
fn a_chunk_without_room_is_not_restored_alone() {
    let repo = setup(SpecVersionBin::V2);
    let small = array(&[2], &[1]);
    repo.reference().commit(&[("g/a/zarr.json", small.as_bytes())], "smaller");
    let mount = Writable::of(&repo.place, &[]);
    for path in ["g/a/c/2", "g/a/c"] {
        for said in [repo.restore(&[path, "--from", "main~1"]), restore_in(&mount, &[path, "--from", "main~1"])] {
            let why = said.failure();
            assert!(why.contains("no room for chunk [2]") && why.contains("restore /g/a as a whole"), "{why}");
        }
    }
    repo.restore(&["g/a/c/0", "--from", "v1"]).success();
    assert_eq!(repo.keys()["g/a/c/0"], large(1));
    repo.restore(&["g/a", "--from", "main~2"]).success();
    assert_eq!(repo.keys()["g/a/c/2"], b"more");
}

/// A document that is restored alone must not make chunks vanish or mean something else.
#[test]
fn a_document_alone_is_refused_if_it_does_not_fit_the_chunks() {
    for version in versions() {
        let repo = setup(version);
        let larger = array(&[9], &[1]);
        repo.reference().commit(&[("g/a/zarr.json", larger.as_bytes()), ("g/a/c/8", b"far")], "larger");
        let before = repo.keys();
        let mount = Writable::of(&repo.place, &[]);
        let words = ["g/a/zarr.json", "--from", "main~1"];
        for said in
            [repo.restore(&words), repo.restore(&[&words[..], &["--dry-run"]].concat()), restore_in(&mount, &words)]
        {
            let why = said.failure();
            assert!(why.contains("has no room for 1 chunks") && why.contains("([8])"), "{why}");
            assert!(why.contains("restore /g/a as a whole"), "{why}");
        }
        assert!(repo.keys() == before && mount.read_control("status").contains("nothing to commit"));
        // Uncommitted changes of chunks count in a mount.
        put(&mount.root().join("g/a/c/7"), "new").unwrap();
        fs::remove_file(mount.root().join("g/a/c/8")).unwrap();
        assert!(restore_in(&mount, &words).failure().contains("([7])"));
        fs::remove_file(mount.root().join("g/a/c/7")).unwrap();
        restore_in(&mount, &words).success();
        assert_eq!(fs::read_to_string(mount.root().join("g/a/zarr.json")).unwrap(), array(&[4], &[1]));
        run_on(mount.root(), &["discard"]).success();
        repo.restore(&["g/a", "--from", "main~1"]).success();
        assert!(!repo.keys().contains_key("g/a/c/8"));

        // Another data type: a chunk that was written with it has no meaning in the old one, others
        // have.
        let typed = array(&[4], &[1]).replace("uint8", "int8");
        repo.reference().commit(&[("g/a/zarr.json", typed.as_bytes())], "typed");
        repo.restore(&words).success();
        repo.reference().commit(&[("g/a/zarr.json", typed.as_bytes()), ("g/a/c/1", b"typed")], "typed again");
        for said in [repo.restore(&words), restore_in(&Writable::of(&repo.place, &[]), &words)] {
            let why = said.failure();
            assert!(
                why.contains("has another `data_type`, which does not fit 1 chunks") && why.contains("([1])"),
                "{why}"
            );
        }
        repo.restore(&["g/a", "--from", "main~1"]).success();
        assert_eq!(repo.keys()["g/a/c/1"], b"small");
        run_on(&repo.place, &["verify"]).success();
    }
}

#[test]
fn uncommitted_changes_elsewhere_stay_and_moves_across_are_refused() {
    let repo = setup(SpecVersionBin::V2);
    let mount = Writable::of(&repo.place, &[]);
    put(&mount.root().join("g/new/c/1"), "elsewhere").unwrap();
    put(&mount.root().join("g/a/c/3"), "below").unwrap();
    restore_in(&mount, &["g/a", "--from", "v1"]).success();
    assert_eq!(fs::read(mount.root().join("g/new/c/1")).unwrap(), b"elsewhere");
    assert!(!mount.root().join("g/a/c/3").exists());
    mount.commit("both").unwrap();
    fs::rename(mount.root().join("g/new"), mount.root().join("out")).unwrap();
    let why = restore_in(&mount, &["g", "--from", "v1"]).failure();
    assert!(why.contains("the move of /g/new to /out is not committed"), "{why}");
    assert!(mount.root().join("out/c/1").exists());
    let file = File::options().write(true).open(mount.root().join("g/a/c/0")).unwrap();
    let why = restore_in(&mount, &["g/a", "--from", "main~1"]).failure();
    assert!(why.contains("open for writing"), "{why}");
    drop(file);
}

#[test]
fn a_shrunk_or_replaced_array_gets_its_old_shape() {
    for in_mount in [false, true] {
        let repo = setup(SpecVersionBin::V2);
        let then = repo.keys();
        let mut now = then.clone();
        now.insert("g/a/zarr.json".to_owned(), array(&[9], &[1]).into_bytes());
        now.insert("g/a/c/8".to_owned(), b"far".to_vec());
        now.remove("g/new/c/0");
        now.insert("g/new/zarr.json".to_owned(), GROUP.as_bytes().to_vec());
        repo.reference().change(
            &then,
            &then.iter().filter(|(k, _)| !k.starts_with("g/new")).map(|(k, v)| (k.clone(), v.clone())).collect(),
        );
        let mid = repo.keys();
        repo.reference().change(&mid, &now);
        if in_mount {
            let mount = Writable::of(&repo.place, &[]);
            restore_in(&mount, &[".", "--from", &repo.commits[2]]).success();
            assert_eq!(crate::common::read_files(&mount.root()), then);
            mount.commit("back").unwrap();
        } else {
            repo.restore(&[".", "--from", &repo.commits[2]]).success();
        }
        assert_eq!(repo.keys(), then);
        run_on(&repo.place, &["verify"]).success();
    }
}

#[test]
fn times_and_unknown_names() {
    let repo = setup(SpecVersionBin::V2);
    let text = repo.restore(&[".", "--from", "2999-01-01", "--dry-run"]).text();
    assert!(text.contains("already"), "the newest commit: {text}");
    let why = repo.restore(&["nothing", "--from", "v1"]).failure();
    assert!(why.contains("/nothing") && why.contains("does not have this path"), "{why}");
    let why = repo.restore(&["g/new", "--from", "v1"]).failure();
    assert!(why.contains("it was created later"), "{why}");
    let why = repo.restore(&["g", "--from", "no-such"]).failure();
    assert!(why.contains("no-such"), "{why}");
    let why = repo.restore(&["../g", "--from", "v1"]).failure();
    assert!(why.contains("without `..`"), "{why}");
    let mount = Writable::of(&repo.place, &[]);
    let why = restore_in(&mount, &["g", "--from", "v1", "-m", "x"]).failure();
    assert!(why.contains("--message cannot be used with a mount"), "{why}");
    let dry = restore_in(&mount, &["g", "--from", "v1", "--dry-run"]).text();
    assert!(dry.contains("can be restored"), "{dry}");
    assert!(mount.read_control("status").contains("nothing to commit"));
}
