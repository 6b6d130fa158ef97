//! One test for each way in which a move to another snapshot once lost work. `a` and `b` are mounts
//! of one branch, each with its own scratch directory.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::Value;

use crate::common;
use crate::common::writing::{GROUP, Reference, Writable, array, put, touch};
use crate::common::{block_on, errno, lab, run_on, signal};

/// Two mounts of a new repository, with `keys` committed before.
pub(super) struct Pair {
    pub(super) a: Writable,
    pub(super) b: Writable,
}

impl Pair {
    pub(super) fn with(keys: &[(&str, String)]) -> Pair {
        common::watchdog();
        let a = Writable::new(&[]);
        put(&a.root().join("zarr.json"), GROUP).unwrap();
        for (key, content) in keys {
            put(&a.root().join(key), content).unwrap();
        }
        a.commit("the beginning").unwrap();
        let b = Writable::of(a.repository(), &[]);
        Pair { a, b }
    }

    /// Returns the content of the repository, as the reference and a fresh mount read it.
    #[track_caller]
    pub(super) fn committed(&self) -> BTreeMap<String, String> {
        let keys = Reference::open(self.a.repository()).keys();
        assert_eq!(self.a.fresh(), keys, "a fresh mount shows something else than the reference");
        keys.into_iter().map(|(key, bytes)| (key, String::from_utf8(bytes).unwrap())).collect()
    }
}

/// Returns the changes in `status.json`: every nonempty list, by its name.
fn changes(mount: &Writable) -> BTreeMap<String, Value> {
    let status: Value = serde_json::from_str(&mount.read_control("status.json")).unwrap();
    let lists = ["added", "changed", "deleted", "moved", "arrays", "faults"];
    let found = lists.into_iter().map(|name| (name.to_owned(), status[name].clone()));
    found.filter(|(_, list)| list.as_array().is_some_and(|list| !list.is_empty())).collect()
}

#[track_caller]
pub(super) fn assert_clean(mount: &Writable) {
    assert_eq!(changes(mount), BTreeMap::new());
}

pub(super) fn read(mount: &Writable, path: &str) -> io::Result<String> {
    std::fs::read_to_string(mount.root().join(path))
}

#[track_caller]
fn assert_absent(mount: &Writable, path: &str) {
    let found = mount.root().join(path).symlink_metadata();
    assert!(found.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::NotFound), "{path}: {found:?}");
}

/// Walks a whole mount: each listed name can be looked up and read, so that no entry is without
/// bytes.
#[track_caller]
fn assert_names_have_files(mount: &Writable) {
    let mut pending = vec![mount.root()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let found = entry.path().symlink_metadata().unwrap_or_else(|e| panic!("{:?}: {e}", entry.path()));
            if found.is_dir() {
                pending.push(entry.path());
            } else if found.is_file() {
                let bytes = std::fs::read(entry.path()).unwrap_or_else(|e| panic!("{:?}: {e}", entry.path()));
                assert_eq!(bytes.len() as u64, found.len(), "{:?}", entry.path());
                assert!(!bytes.is_empty(), "{:?} is empty", entry.path());
            }
        }
    }
}

pub(super) fn line() -> String {
    array(&[8], &[1])
}

fn square() -> String {
    array(&[4, 4], &[1, 1])
}

#[track_caller]
pub(super) fn refresh(mount: &Writable) {
    mount.touch("refresh").unwrap_or_else(|e| panic!("{e}: {}", mount.read_control("commit")));
    assert_names_have_files(mount);
}

#[track_caller]
pub(super) fn commit(mount: &Writable, message: &str) {
    mount
        .commit(message)
        .unwrap_or_else(|e| panic!("{message}: {e}: {}\n{}", mount.read_control("commit"), mount.log()));
    assert_names_have_files(mount);
}

pub(super) fn remount(mount: &Writable) {
    mount.remount();
    assert_names_have_files(mount);
}

/// Mounts again, or refreshes: either shows the commits of others.
fn move_on(mount: &Writable, remounts: bool) {
    if remounts {
        remount(mount)
    } else {
        refresh(mount)
    }
    assert_clean(mount);
}

/// Makes an array in `a` that `b` then has, too.
fn with_array_made_here() -> Pair {
    let pair = Pair::with(&[]);
    write(&pair.a, "n/zarr.json", line());
    write(&pair.a, "n/c/0", "ours");
    commit(&pair.a, "made here");
    refresh(&pair.b);
    pair
}

fn remove(mount: &Writable, path: &str) {
    let path = mount.root().join(path);
    if path.symlink_metadata().unwrap().is_dir() {
        std::fs::remove_dir_all(path).unwrap();
    } else {
        std::fs::remove_file(path).unwrap();
    }
}

pub(super) fn write(mount: &Writable, path: &str, content: impl AsRef<[u8]>) {
    put(&mount.root().join(path), content).unwrap();
}

#[test]
fn refresh_keeps_chunks_that_others_added_to_an_array_that_had_none() {
    let pair = Pair::with(&[("y/zarr.json", line())]);
    write(&pair.a, "y/c/0", "ours");
    write(&pair.b, "y/c/1", "theirs");
    commit(&pair.b, "theirs");
    refresh(&pair.a);
    assert_eq!(read(&pair.a, "y/c/1").unwrap(), "theirs");
    assert_eq!(changes(&pair.a)["arrays"], serde_json::json!([{"path": "/y", "written": 1, "deleted": 0}]));
    commit(&pair.a, "ours");
    let keys = pair.committed();
    assert_eq!((keys["y/c/0"].as_str(), keys["y/c/1"].as_str()), ("ours", "theirs"));
}

#[test]
fn refresh_keeps_chunks_that_others_added_to_a_new_row() {
    let pair = Pair::with(&[("x/zarr.json", square()), ("x/c/0/0", "first".into())]);
    write(&pair.a, "x/c/2/0", "ours");
    write(&pair.b, "x/c/2/1", "theirs");
    commit(&pair.b, "theirs");
    refresh(&pair.a);
    assert_eq!(read(&pair.a, "x/c/2/1").unwrap(), "theirs");
    commit(&pair.a, "ours");
    let keys = pair.committed();
    assert_eq!((keys["x/c/2/0"].as_str(), keys["x/c/2/1"].as_str()), ("ours", "theirs"));
}

#[test]
fn refresh_merges_a_directory_made_here_with_the_same_implicit_group_of_others() {
    let pair = Pair::with(&[]);
    write(&pair.a, "g/ours/zarr.json", line());
    write(&pair.b, "g/theirs/zarr.json", line());
    write(&pair.b, "g/theirs/c/3", "three");
    commit(&pair.b, "theirs");
    refresh(&pair.a);
    assert_eq!(read(&pair.a, "g/theirs/c/3").unwrap(), "three");
    commit(&pair.a, "ours");
    let keys = pair.committed();
    assert!(keys.contains_key("g/ours/zarr.json") && keys.contains_key("g/theirs/c/3"), "{keys:?}");
}

#[test]
fn refresh_shows_a_group_of_others_in_an_empty_directory_of_the_same_name() {
    let pair = Pair::with(&[]);
    std::fs::create_dir(pair.a.root().join("d")).unwrap();
    write(&pair.b, "d/zarr.json", GROUP);
    write(&pair.b, "d/x/zarr.json", line());
    commit(&pair.b, "theirs");
    refresh(&pair.a);
    assert_eq!(read(&pair.a, "d/zarr.json").unwrap(), GROUP);
    assert_clean(&pair.a);
    write(&pair.a, "other/zarr.json", line());
    commit(&pair.a, "ours");
    let keys = pair.committed();
    assert!(keys.contains_key("d/zarr.json") && keys.contains_key("d/x/zarr.json"), "{keys:?}");
}

#[test]
fn commit_over_others_commits_keeps_what_they_put_into_directories_made_here() {
    let pair = Pair::with(&[("y/zarr.json", line()), ("x/zarr.json", square())]);
    write(&pair.a, "y/c/0", "ours");
    write(&pair.a, "x/c/2/0", "ours");
    write(&pair.a, "g/ours/zarr.json", line());
    std::fs::create_dir(pair.a.root().join("d")).unwrap();
    write(&pair.b, "y/c/1", "theirs");
    write(&pair.b, "x/c/2/1", "theirs");
    write(&pair.b, "g/theirs/zarr.json", line());
    write(&pair.b, "d/zarr.json", GROUP);
    commit(&pair.b, "theirs");
    commit(&pair.a, "ours");
    assert_clean(&pair.a);
    let keys = pair.committed();
    for (key, content) in &keys {
        assert_eq!(&read(&pair.a, key).unwrap(), content, "{key}");
    }
    write(&pair.a, "y/c/5", "later");
    commit(&pair.a, "later");
    let later = pair.committed();
    assert!(keys.keys().all(|key| later.contains_key(key)) && later.len() == keys.len() + 1, "{later:?}");
}

#[test]
fn a_node_deleted_on_both_sides_and_recreated_by_others_stays() {
    for remounts in [false, true] {
        for refreshes_between in [false, true] {
            let pair = Pair::with(&[("y/zarr.json", line()), ("y/c/1", "old".into()), ("z/zarr.json", line())]);
            remove(&pair.a, "y");
            remove(&pair.b, "y");
            commit(&pair.b, "deleted");
            if refreshes_between {
                refresh(&pair.a);
                assert_clean(&pair.a);
            }
            write(&pair.b, "y/zarr.json", line());
            write(&pair.b, "y/c/1", "new");
            commit(&pair.b, "anew");
            if remounts {
                remount(&pair.a);
            }
            refresh(&pair.a);
            assert_recreated_chunk_stays(&pair);
        }
    }
}

#[test]
fn a_chunk_deleted_on_both_sides_and_recreated_by_others_stays() {
    for remounts in [false, true] {
        let pair = Pair::with(&[
            ("y/zarr.json", line()),
            ("y/c/0", "stays".into()),
            ("y/c/1", "old".into()),
            ("z/zarr.json", line()),
        ]);
        remove(&pair.a, "y/c/1");
        remove(&pair.b, "y/c/1");
        commit(&pair.b, "deleted");
        // Both did the same: nothing conflicts, and nothing is left to commit.
        refresh(&pair.a);
        assert_clean(&pair.a);
        if remounts {
            remount(&pair.a);
        }
        write(&pair.b, "y/c/1", "new");
        commit(&pair.b, "anew");
        refresh(&pair.a);
        assert_recreated_chunk_stays(&pair);
    }
}

/// Checks that `a` shows chunk `y/c/1` of the others, and that its next commit keeps it.
fn assert_recreated_chunk_stays(pair: &Pair) {
    assert_clean(&pair.a);
    assert_eq!(read(&pair.a, "y/c/1").unwrap(), "new");
    write(&pair.a, "z/c/0", "ours");
    commit(&pair.a, "ours");
    assert_eq!(pair.committed()["y/c/1"], "new");
}

#[test]
fn refresh_shows_the_array_that_others_recreated() {
    for remounts in [false, true] {
        let pair = with_array_made_here();
        remove(&pair.b, "n");
        commit(&pair.b, "deleted");
        write(&pair.b, "n/zarr.json", square());
        write(&pair.b, "n/c/1/1", "theirs");
        commit(&pair.b, "made anew");
        move_on(&pair.a, remounts);
        assert_eq!(read(&pair.a, "n/c/1/1").unwrap(), "theirs");
        assert_absent(&pair.a, "n/c/0");
        write(&pair.a, "m/zarr.json", line());
        commit(&pair.a, "something else");
        assert_eq!(pair.committed()["n/c/1/1"], "theirs");
    }
}

#[test]
fn an_array_made_here_and_moved_by_others_blocks_nothing() {
    for remounts in [false, true] {
        let pair = with_array_made_here();
        std::fs::rename(pair.b.root().join("n"), pair.b.root().join("moved")).unwrap();
        commit(&pair.b, "moved");
        move_on(&pair.a, remounts);
        assert_eq!(read(&pair.a, "moved/c/0").unwrap(), "ours");
        assert_absent(&pair.a, "n");
        remount(&pair.a);
        write(&pair.a, "m/zarr.json", line());
        commit(&pair.a, "something else");
        assert_eq!(pair.committed()["moved/c/0"], "ours");
    }
}

#[test]
fn an_untracked_name_that_others_committed_is_a_conflict_and_hides_nothing() {
    type Make = fn(&Path) -> io::Result<()>;
    let kinds: [Make; 2] =
        [|path| std::os::unix::fs::symlink("elsewhere", path), |path| std::fs::write(path, "a note")];
    for make in kinds {
        let pair = Pair::with(&[("z/zarr.json", line())]);
        make(&pair.a.root().join("latest")).unwrap();
        write(&pair.a, "z/c/0", "ours");
        write(&pair.b, "latest/zarr.json", GROUP);
        write(&pair.b, "latest/x/zarr.json", line());
        commit(&pair.b, "theirs");
        assert_eq!(errno(pair.a.touch("refresh")), libc::ESTALE);
        let output = pair.a.read_control("conflicts");
        assert!(output.contains("/latest") && output.contains("untracked"), "{output}");
        assert_eq!(errno(pair.a.commit("ours")), libc::ESTALE);
        assert!(pair.a.read_control("conflicts").contains("/latest"));
        assert!(pair.a.root().join("latest").symlink_metadata().is_ok(), "nothing was lost here");
        // With the file moved away, the refresh succeeds.
        std::fs::rename(pair.a.root().join("latest"), pair.a.root().join("note")).unwrap();
        refresh(&pair.a);
        commit(&pair.a, "ours");
        write(&pair.a, "z/c/1", "more");
        commit(&pair.a, "more");
        let keys = pair.committed();
        assert!(keys.contains_key("latest/x/zarr.json") && keys["z/c/0"] == "ours", "{keys:?}");
        assert!(pair.a.root().join("note").symlink_metadata().is_ok());
    }
}

#[test]
fn a_hard_link_keeps_its_bytes_when_others_change_the_chunk() {
    let pair = Pair::with(&[("x/zarr.json", line()), ("x/c/0", "old".into())]);
    std::fs::hard_link(pair.a.root().join("x/c/0"), pair.a.root().join("x/backup")).unwrap();
    write(&pair.b, "x/c/0", "new");
    commit(&pair.b, "theirs");
    refresh(&pair.a);
    assert_eq!(read(&pair.a, "x/c/0").unwrap(), "new");
    assert_eq!(read(&pair.a, "x/backup").unwrap(), "old");
    assert_clean(&pair.a);
    write(&pair.a, "x/c/1", "ours");
    commit(&pair.a, "ours");
    assert_eq!(pair.committed()["x/c/0"], "new");
}

#[test]
fn a_tree_of_hard_links_keeps_the_old_bytes() {
    let pair = Pair::with(&[("y/zarr.json", line()), ("y/c/0", "old".into()), ("y/c/1", "same".into())]);
    let root = pair.a.root();
    for key in ["zarr.json", "c/0", "c/1"] {
        let to = root.join("ycopy").join(key);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::hard_link(root.join("y").join(key), to).unwrap();
    }
    write(&pair.b, "y/c/0", "new");
    commit(&pair.b, "theirs");
    refresh(&pair.a);
    assert_eq!(read(&pair.a, "ycopy/c/0").unwrap(), "old");
    assert_eq!(read(&pair.a, "y/c/0").unwrap(), "new");
    commit(&pair.a, "ours");
    let keys = pair.committed();
    assert_eq!(
        (keys["ycopy/c/0"].as_str(), keys["y/c/0"].as_str(), keys["ycopy/c/1"].as_str()),
        ("old", "new", "same")
    );
}

#[test]
fn arrays_made_here_and_deleted_by_others_leave_no_entries() {
    let pair = Pair::with(&[]);
    for key in ["s/zarr.json", "t/zarr.json"] {
        write(&pair.a, key, line());
    }
    for key in ["s/c/0", "s/c/1", "t/c/0", "t/c/1"] {
        write(&pair.a, key, "made here");
    }
    commit(&pair.a, "made here");
    refresh(&pair.b);
    remove(&pair.b, "s");
    remove(&pair.b, "t/c/0");
    commit(&pair.b, "deleted");
    write(&pair.a, "u/zarr.json", line());
    commit(&pair.a, "something else");
    assert_absent(&pair.a, "s");
    assert_absent(&pair.a, "t/c/0");
    assert_clean(&pair.a);
    write(&pair.a, "t/c/0", "again");
    write(&pair.a, "s/zarr.json", line());
    commit(&pair.a, "again");
    assert_eq!(pair.committed()["t/c/0"], "again");
    remount(&pair.a);
    assert_clean(&pair.a);
}

#[test]
fn a_node_name_with_a_replacement_character_is_an_ordinary_name() {
    let name = "n\u{fffd}m";
    let pair = Pair::with(&[]);
    let reference = Reference::open(pair.a.repository());
    let document = line();
    let zarr_json = format!("{name}/zarr.json");
    let chunk = format!("{name}/c/0");
    reference.commit(&[(zarr_json.as_str(), document.as_bytes()), (chunk.as_str(), b"theirs")], "by the reference");
    refresh(&pair.a);
    write(&pair.a, &format!("{name}/c/1"), "ours");
    commit(&pair.a, "ours");
    assert_clean(&pair.a);
    write(&pair.a, &format!("{name}/sub\u{fffd}/zarr.json"), GROUP);
    assert_eq!(errno(pair.a.commit("below an array")), libc::EINVAL);
    remove(&pair.a, &format!("{name}/sub\u{fffd}"));
    write(&pair.a, "g\u{fffd}/zarr.json", GROUP);
    commit(&pair.a, "made here");
    assert_clean(&pair.a);
    let keys = pair.committed();
    assert_eq!((keys[&chunk].as_str(), keys[&format!("{name}/c/1")].as_str()), ("theirs", "ours"));
    // A name that is not UTF-8 prints like this one, and is another one.
    let bad = pair.a.root().join(std::ffi::OsStr::from_bytes(b"bad\xff"));
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("zarr.json"), GROUP).unwrap();
    assert_eq!(errno(pair.a.commit("not UTF-8")), libc::EINVAL);
}

#[test]
fn a_chunk_beside_a_group_below_the_chunk_directory_is_committed() {
    // The reference allows such groups.
    for group in ["x/c/zarr.json", "x/c/0/zarr.json", "x/c/0/deep/zarr.json", "x/sub/zarr.json"] {
        let pair = Pair::with(&[("x/zarr.json", square()), ("x/c/0/0", "first".into()), ("x/c/0/1", "other".into())]);
        let reference = Reference::open(pair.a.repository());
        reference.commit(&[(group, GROUP.as_bytes())], "a group below an array");
        write(&pair.a, "x/c/0/0", "second");
        write(&pair.a, "x/c/1/0", "new");
        refresh(&pair.a);
        assert_eq!(changes(&pair.a)["arrays"][0]["written"], 2, "{group}: {:?}", changes(&pair.a));
        commit(&pair.a, "ours");
        assert_clean(&pair.a);
        write(&pair.a, "x/c/0/0", "third");
        remove(&pair.a, "x/c/0/1");
        commit(&pair.a, "once more");
        assert_clean(&pair.a);
        let keys = Reference::open(pair.a.repository()).keys();
        assert_eq!((keys["x/c/0/0"].as_slice(), keys["x/c/1/0"].as_slice()), (&b"third"[..], &b"new"[..]), "{group}");
        assert!(keys.contains_key(group) && !keys.contains_key("x/c/0/1"), "{group}: {keys:?}");
    }
}

#[test]
fn a_chunk_is_written_beside_others_below_a_group_that_is_the_chunk_directory() {
    common::watchdog();
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        block_on(lab::create(&place, version, RepositoryConfig::default()));
        let document = square();
        let chunk = "stored".repeat(200);
        let reference = Reference::open(&place);
        let chunks = ["x/c/0/0", "x/c/0/1", "x/c/0/2"].map(|key| (key, chunk.as_bytes()));
        let nodes = [("zarr.json", GROUP.as_bytes()), ("x/zarr.json", document.as_bytes())];
        reference.commit(&[nodes.as_slice(), &chunks].concat(), "the beginning");
        let mount = Writable::of(&place, &[]);
        reference.commit(&[("x/c/zarr.json", GROUP.as_bytes())], "a group below an array");
        // Without a look at anything.
        mount.touch("refresh").unwrap();
        write(&mount, "x/c/0/0", "ours".repeat(300));
        commit(&mount, "ours");
        assert_clean(&mount);
        let keys = reference.keys();
        assert_eq!(keys["x/c/0/0"], "ours".repeat(300).into_bytes());
        assert!(keys["x/c/0/1"] == chunk.as_bytes() && keys["x/c/0/2"] == chunk.as_bytes() && keys.len() == 6);
    }
}

#[test]
fn a_hard_link_does_not_keep_a_chunk_that_others_deleted() {
    let pair = Pair::with(&[("x/zarr.json", line()), ("x/c/0", "old".into()), ("x/c/1", "stays".into())]);
    std::fs::hard_link(pair.a.root().join("x/c/0"), pair.a.root().join("note")).unwrap();
    remove(&pair.b, "x/c/0");
    commit(&pair.b, "deleted");
    refresh(&pair.a);
    assert_absent(&pair.a, "x/c/0");
    assert_eq!(read(&pair.a, "note").unwrap(), "old");
    assert_clean(&pair.a);
}

#[test]
fn discard_keeps_a_symbolic_link_with_the_name_of_a_chunk() {
    let pair = Pair::with(&[("x/zarr.json", line())]);
    std::fs::create_dir(pair.a.root().join("x/c")).unwrap();
    std::os::unix::fs::symlink("elsewhere", pair.a.root().join("x/c/3")).unwrap();
    write(&pair.a, "x/c/4", "ours");
    touch(&pair.a.control("discard")).unwrap();
    assert_names_have_files(&pair.a);
    assert_eq!(std::fs::read_link(pair.a.root().join("x/c/3")).unwrap(), Path::new("elsewhere"));
    assert_absent(&pair.a, "x/c/4");
}

#[test]
fn a_mount_replaces_a_killed_one_at_the_same_mountpoint() {
    let pair = Pair::with(&[]);
    for n in 0..10 {
        write(&pair.a, "n/zarr.json", format!("{}{}", GROUP, " ".repeat(n)));
        let daemon = pair.a.daemon();
        // As a user types it: without waiting for the daemon's end, and without removing the dead
        // mount.
        signal(daemon, "-9");
        pair.a.mount_again(None).success();
        assert_eq!(read(&pair.a, "n/zarr.json").unwrap().len(), GROUP.len() + n);
    }
}

#[test]
fn writes_after_a_commit_that_lands_late_are_kept() {
    // Version 1 has one small file for a branch: written here, it is as if the store had carried
    // the request out late.
    for changes_go_on in [false, true] {
        common::watchdog();
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        block_on(lab::create(&place, SpecVersionBin::V1, RepositoryConfig::default()));
        let document = line();
        let keys: [(&str, &[u8]); 2] = [("zarr.json", GROUP.as_bytes()), ("y/zarr.json", document.as_bytes())];
        Reference::open(&place).commit(&keys, "the beginning");
        let mount = Writable::of(&place, &[]);
        mount.unmount();
        mount.mount_again(Some("commit.publish=eio")).success();
        write(&mount, "y/c/0", "before");
        assert!(mount.commit("lands late").is_err());
        let journal = std::fs::read_to_string(mount.scratch().join("journal")).unwrap();
        let (_, rest) = journal.rsplit_once(r#""op":"publishing","snapshot":""#).unwrap();
        let snapshot = &rest[..20];
        if changes_go_on {
            write(&mount, "y/c/1", "after");
        }
        let reference = place.join("refs/branch.main/ref.json");
        std::fs::write(&reference, format!(r#"{{"snapshot":"{snapshot}"}}"#)).unwrap();
        mount.kill_and_remount();
        assert_eq!(read(&mount, "y/c/0").unwrap(), "before");
        if changes_go_on {
            assert_eq!(
                read(&mount, "y/c/1").unwrap(),
                "after",
                "it was written after the commit, and is no part of it"
            );
            commit(&mount, "after");
        }
        assert_clean(&mount);
        let keys = Reference::open(&place).keys();
        assert_eq!(keys["y/c/0"], b"before");
        assert_eq!(keys.get("y/c/1").map(Vec::as_slice), changes_go_on.then_some(&b"after"[..]));
    }
}

#[test]
fn a_moved_array_shows_concurrent_writes() {
    for is_read in [false, true] {
        let pair = Pair::with(&[]);
        write(&pair.a, "g/a/zarr.json", line());
        std::fs::create_dir(pair.a.root().join("h")).unwrap();
        std::fs::rename(pair.a.root().join("g/a"), pair.a.root().join("h/x")).unwrap();
        write(&pair.a, "h/x/c/0.partial", "first");
        std::fs::rename(pair.a.root().join("h/x/c/0.partial"), pair.a.root().join("h/x/c/0")).unwrap();
        commit(&pair.a, "made here");
        refresh(&pair.b);
        std::fs::rename(pair.a.root().join("h/x"), pair.a.root().join("h/y")).unwrap();
        if is_read {
            assert_names_have_files(&pair.a);
        }
        write(&pair.b, "h/x/c/0", "other");
        commit(&pair.b, "others");
        commit(&pair.a, "moved");
        assert_eq!(pair.committed()["h/y/c/0"], "other");
        assert_eq!(read(&pair.a, "h/y/c/0").unwrap(), "other");
    }
}

#[test]
fn on_conflict_theirs_keeps_the_chunks_of_the_other_commit() {
    let pair = Pair::with(&[("y/zarr.json", line()), ("y/c/0", "first".to_owned()), ("y/c/1", "first".to_owned())]);
    assert_eq!(read(&pair.a, "y/c/0").unwrap(), "first");
    write(&pair.b, "y/c/0", "other");
    write(&pair.b, "y/c/1", "other");
    commit(&pair.b, "both");
    write(&pair.a, "y/c/1", "ours");
    run_on(pair.a.root(), &["commit", "--on-conflict=theirs"]).success();
    assert_eq!((read(&pair.a, "y/c/0").unwrap(), read(&pair.a, "y/c/1").unwrap()), ("other".into(), "other".into()));
    assert_clean(&pair.a);
}

#[test]
fn refresh_keeps_hard_links_with_an_untracked_name() {
    let pair = Pair::with(&[("x/zarr.json", line()), ("x/c/1", "first".to_owned())]);
    for name in ["y/zarr.json", "y/c/1", "y/backup"] {
        let from = name.replace("y/", "x/").replace("backup", "c/1");
        let to = pair.a.root().join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::hard_link(pair.a.root().join(from), to).unwrap();
    }
    remove(&pair.a, "x/c/1");
    write(&pair.a, "x/c/1", "second");
    write(&pair.b, "z/zarr.json", line());
    commit(&pair.b, "others");
    refresh(&pair.a);
    assert_eq!((read(&pair.a, "y/c/1").unwrap(), read(&pair.a, "y/backup").unwrap()), ("first".into(), "first".into()));
    commit(&pair.a, "the copy");
    let keys = pair.committed();
    assert_eq!((&*keys["x/c/1"], &*keys["y/c/1"]), ("second", "first"));
}

#[test]
fn a_chunk_that_others_wrote_and_removed_again_is_no_conflict() {
    let pair = Pair::with(&[("y/zarr.json", line()), ("y/c/1", "first".to_owned())]);
    write(&pair.a, "y/c/0", "ours");
    write(&pair.b, "y/c/0", "other");
    commit(&pair.b, "written");
    remove(&pair.b, "y/c/0");
    commit(&pair.b, "removed again");
    commit(&pair.a, "ours");
    assert_eq!(pair.committed()["y/c/0"], "ours");
}

/// Compares the files of a mount with `expected`; only that a document is there is compared of it.
fn assert_files(mount: &Writable, expected: &[(&str, Option<&str>)]) {
    for (key, wanted) in expected {
        match wanted {
            Some("") => assert!(read(mount, key).is_ok(), "{key}"),
            Some(content) => assert_eq!(read(mount, key).unwrap(), *content, "{key}"),
            None => assert_absent(mount, key),
        }
    }
}

fn assert_committed(pair: &Pair, expected: &[(&str, Option<&str>)]) {
    let committed = pair.committed();
    for (key, wanted) in expected {
        let found = committed.get(*key).map(String::as_str);
        assert!(found == *wanted || (*wanted == Some("") && found.is_some()), "{key}: {found:?}");
    }
}

/// A directory of no node has no identity: what others have put into it stays where they put it,
/// and what was in it has moved.
#[test]
fn refresh_leaves_what_others_put_into_a_directory_that_was_moved_here() {
    for remounts in [false, true] {
        let pair = Pair::with(&[
            ("new/zarr.json", GROUP.to_owned()),
            ("i/z/zarr.json", line()),
            ("i/z/c/0", "z".to_owned()),
            ("i/deep/x/zarr.json", line()),
            ("s/zarr.json", square()),
            ("s/c/0/0", "00".to_owned()),
        ]);
        let a = &pair.a;
        let b = &pair.b;
        std::fs::rename(a.root().join("i"), a.root().join("new/i")).unwrap();
        std::fs::rename(a.root().join("s/c/0"), a.root().join("s/c/3")).unwrap();
        write(a, "new/i/z/c/1", "mine");
        let before = changes(a);
        let refresh_and_check = |expected: &[(&str, Option<&str>)]| {
            refresh(a);
            if remounts {
                remount(a);
            }
            assert_eq!(changes(a), before);
            assert_files(a, expected);
        };
        for (key, content) in [("i/q/zarr.json", line()), ("i/q/c/0", "q".to_owned()), ("i/deep/y/zarr.json", line())] {
            write(b, key, content);
        }
        write(b, "s/c/0/1", "01");
        write(b, "i/z/c/2", "theirs");
        commit(b, "theirs");
        let mut expected = vec![
            ("i/q/c/0", Some("q")),
            ("i/deep/y/zarr.json", Some("")),
            ("new/i/z/c/0", Some("z")),
            ("new/i/z/c/1", Some("mine")),
            ("new/i/z/c/2", Some("theirs")),
            ("new/i/deep/x/zarr.json", Some("")),
            ("s/c/0/1", Some("01")),
            ("s/c/3/0", Some("00")),
            ("i/z/c/0", None),
            ("i/deep/x/zarr.json", None),
            ("new/i/q/c/0", None),
            ("new/i/deep/y/zarr.json", None),
            ("s/c/0/0", None),
            ("s/c/3/1", None),
        ];
        refresh_and_check(&expected);
        for (key, content) in [("i/r/zarr.json", line()), ("i/r/c/0", "r".to_owned()), ("i/q/c/1", "q1".to_owned())] {
            write(b, key, content);
        }
        write(b, "i/deep/v/w/zarr.json", line());
        write(b, "s/c/0/2", "02");
        commit(b, "theirs again");
        expected.extend([
            ("i/r/c/0", Some("r")),
            ("i/q/c/1", Some("q1")),
            ("i/deep/v/w/zarr.json", Some("")),
            ("s/c/0/2", Some("02")),
            ("new/i/r/c/0", None),
            ("new/i/deep/v/w/zarr.json", None),
            ("s/c/3/2", None),
        ]);
        refresh_and_check(&expected);
        commit(a, "mine");
        assert_committed(&pair, &expected);
        assert_files(a, &expected);
        assert_clean(a);
    }
}

#[test]
fn refresh_shows_what_others_put_into_a_directory_that_was_moved_and_made_again() {
    let pair = Pair::with(&[
        ("new/zarr.json", GROUP.to_owned()),
        ("i/z/zarr.json", line()),
        ("i/z/c/0", "z".to_owned()),
        ("i/deep/x/zarr.json", line()),
    ]);
    let a = &pair.a;
    let b = &pair.b;
    std::fs::rename(a.root().join("i"), a.root().join("new/i")).unwrap();
    write(a, "i/mine/zarr.json", line());
    write(a, "i/deep/mine/zarr.json", line());
    write(b, "i/q/zarr.json", line());
    write(b, "i/deep/y/zarr.json", line());
    commit(b, "theirs");
    let before = changes(a);
    refresh(a);
    remount(a);
    assert_eq!(changes(a), before);
    let expected = [
        ("i/mine/zarr.json", Some("")),
        ("i/deep/mine/zarr.json", Some("")),
        ("i/q/zarr.json", Some("")),
        ("i/deep/y/zarr.json", Some("")),
        ("new/i/z/c/0", Some("z")),
        ("new/i/deep/x/zarr.json", Some("")),
        ("i/z/c/0", None),
        ("new/i/q/zarr.json", None),
        ("new/i/mine/zarr.json", None),
        ("new/i/deep/y/zarr.json", None),
    ];
    assert_files(a, &expected);
    commit(a, "mine");
    assert_committed(&pair, &expected);
    assert_clean(a);
}
