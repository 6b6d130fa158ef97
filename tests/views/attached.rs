//! Trees below `.icechunk`: other snapshots and other views in one mount.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use crate::common::writing::{Reference, Writable, put, raw_array};
use crate::common::{FixtureSet, Mount, assert_same, block_on, errno, icechunkfs, read_files, run_on, wait_until};
use icechunkfs::repo::Repository;
use icechunkfs::repo::change_refs::RefKind;
use icechunkfs::storage;
use icechunkfs::times::system_clock;

/// Time after which a name of a tree is looked up again.
const BRIEF: Duration = Duration::from_millis(1100);

/// Bytes of a chunk: too many to be stored inline.
const SIZE: u64 = 300_000;

fn chunk(byte: u8) -> Vec<u8> {
    vec![byte; SIZE as usize]
}

/// Returns the file name of a ref of the fixtures.
fn file_name(name: &str) -> String {
    match name {
        ".." => "%2E%2E".to_owned(),
        _ => name.replace('%', "%25").replace('\t', "%09").replace('/', "%2F"),
    }
}

/// Returns the names in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the names and targets of refs of a kind.
fn refs(repo: &Path, kind: &str) -> Vec<(String, String)> {
    let listed = run_on(repo, &[kind, "list", "--json"]).json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    listed.as_array().unwrap().iter().map(|one| (text(&one["name"]), text(&one["snapshot"]))).collect()
}

/// A repository with an array, a tag `v1` of its first commit, and a second commit with another
/// chunk 0 and a chunk 1.
pub fn two_commits() -> Writable {
    let mount = Writable::new(&[]);
    put(&mount.root().join("x/zarr.json"), raw_array(&[3 * SIZE], &[SIZE])).unwrap();
    put(&mount.root().join("x/c/0"), chunk(1)).unwrap();
    mount.commit("one").unwrap();
    run_on(mount.repository(), &["tag", "create", "v1"]).success();
    put(&mount.root().join("x/c/0"), chunk(2)).unwrap();
    put(&mount.root().join("x/c/1"), chunk(3)).unwrap();
    mount.commit("two").unwrap();
    mount
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn every_ref_of_every_fixture_reads_as_in_a_mount_of_its_own() {
    // Virtual chunks are read only where a mount allows them; that has tests of its own.
    for fixture in FixtureSet::own().all().iter().filter(|fixture| !fixture.name.contains("virtual")) {
        let repo = &fixture.repository;
        let mount = Mount::new(repo, &["--read-only"]);
        for kind in ["branch", "tag"] {
            let refs = refs(repo, kind);
            let mut expected: Vec<String> = refs.iter().map(|(name, _)| file_name(name)).collect();
            expected.sort();
            let at = mount.control(&format!("at/{kind}"));
            assert_eq!(names(&at), expected, "{}", fixture.name);
            for (name, snapshot) in refs {
                let own = Mount::new(repo, &[&format!("--{kind}={name}"), "--read-only"]);
                let expected = read_files(&own.path());
                let what = format!("{}: {kind} {name}", fixture.name);
                assert_same(&what, &read_files(&at.join(file_name(&name))), &expected);
                let by_id = mount.control(&format!("at/snapshot/{snapshot}"));
                assert_same(&what, &read_files(&by_id), &expected);
            }
        }
    }
}

#[test]
fn views_in_a_mount_are_those_of_their_own_mounts() {
    let mount = two_commits();
    for (view, words) in [
        ("zarr", &["--view", "zarr", "--read-only"][..]),
        ("zarr2", &["--view", "zarr2"]),
        ("netcdf", &["--view", "netcdf"]),
        ("zarr,shard=2,consolidated", &["--view", "zarr", "--shard", "2", "--consolidated"]),
        ("zarr2,unshard", &["--view", "zarr2", "--unshard"]),
        (
            "netcdf,classic-types,groups=nested",
            &["--view", "netcdf", "--netcdf-classic-types", "--netcdf-groups", "nested"],
        ),
    ] {
        for (own, attached) in [
            (Mount::new(mount.repository(), words), mount.control(&format!("view/{view}"))),
            (
                Mount::new(mount.repository(), &[words, &["--tag", "v1"]].concat()),
                mount.control(&format!("at/tag/v1/.icechunk/view/{view}")),
            ),
        ] {
            let expected = read_files(&own.path());
            assert!(!expected.is_empty());
            assert_same(view, &read_files(&attached), &expected);
        }
    }
    let readme = fs::read_to_string(mount.control("view/README")).unwrap();
    assert!(readme.contains("uncommitted changes"), "{readme}");
    assert!(names(&mount.control("view")).contains(&"netcdf".to_owned()));
    // A view has its report.
    assert_eq!(fs::read_to_string(mount.control("view/zarr2/.icechunk/zarr2")).unwrap(), "");
}

#[test]
fn views_and_names_show_a_commit_or_refresh_at_once() {
    let mount = two_commits();
    let netcdf = mount.control("view/netcdf");
    let file = names(&netcdf).into_iter().find(|name| name.ends_with(".nc")).unwrap();
    let mut before = fs::read(netcdf.join(&file)).unwrap();
    let places = [
        "view/zarr2/x/0",
        "view/zarr/x/c/0",
        "at/branch/main/x/c/0",
        "at/branch/main/.icechunk/view/zarr2/x/0",
        "at/time/2999-01-01/x/c/0",
    ];
    for byte in 10..20 {
        if byte % 2 == 0 {
            put(&mount.root().join("x/c/0"), chunk(byte)).unwrap();
            mount.commit("another").unwrap();
        } else {
            Reference::open(mount.repository()).commit(&[("x/c/0", &chunk(byte))], "by others");
            mount.touch("refresh").unwrap();
        }
        for place in places {
            assert_eq!(fs::read(mount.control(place)).unwrap()[0], byte, "{place}");
        }
        let now = fs::read(netcdf.join(&file)).unwrap();
        assert!(now != before, "{file} shows {byte}");
        before = now;
    }
    let old = fs::read(mount.control("at/tag/v1/x/c/0")).unwrap();
    assert_eq!(old, chunk(1));
}

#[test]
fn views_show_the_base_and_move_with_it() {
    let mount = two_commits();
    let file = mount.control("view/zarr2/x/0");
    assert_eq!(fs::read(&file).unwrap(), chunk(2));
    let mut open = File::open(&file).unwrap();
    put(&mount.root().join("x/c/0"), chunk(9)).unwrap();
    std::thread::sleep(BRIEF);
    assert_eq!(fs::read(&file).unwrap(), chunk(2), "uncommitted changes are not in it");
    mount.commit("three").unwrap();
    wait_until("the view shows the commit", || fs::read(&file).unwrap() == chunk(9));
    let mut bytes = Vec::new();
    open.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, chunk(2), "an open file stays as it was");
}

#[test]
fn a_copy_out_of_the_past_stores_no_bytes_again() {
    let mount = two_commits();
    let chunks = || fs::read_dir(mount.repository().join("chunks")).unwrap().count();
    let before = chunks();
    let from = mount.control("at/tag/v1/x/c/0");
    let copied = std::process::Command::new("cp").arg(&from).arg(mount.root().join("x/c/2")).status().unwrap();
    assert!(copied.success());
    assert_eq!(fs::metadata(mount.root().join("x/c/2")).unwrap().len(), SIZE);
    mount.commit("old chunk").unwrap();
    assert_eq!(chunks(), before);
    let keys = Reference::open(mount.repository()).keys();
    assert_eq!(keys["x/c/2"], chunk(1));
    // A shard that the view makes of several chunks is nothing that a reference can name.
    let shard = mount.control("view/zarr,shard=2/x/c/0");
    assert!(std::process::Command::new("cp").arg(&shard).arg(mount.root().join("shard")).status().unwrap().success());
    assert!(fs::read(mount.root().join("shard")).unwrap() == fs::read(&shard).unwrap());
    fs::remove_file(mount.root().join("shard")).unwrap();
    // Parts are copied as bytes.
    let mut part = vec![0; 100];
    File::open(&from).unwrap().read_exact(&mut part).unwrap();
    assert_eq!(part, vec![1; 100]);
}

#[test]
fn the_past_cannot_be_changed() {
    let mount = two_commits();
    let past = mount.control("at/tag/v1");
    let file = past.join("x/c/0");
    assert_eq!(errno(fs::write(&file, "x")), libc::EROFS);
    assert_eq!(errno(File::options().append(true).open(&file)), libc::EROFS);
    assert_eq!(errno(fs::remove_file(&file)), libc::EROFS);
    assert_eq!(errno(fs::rename(&file, mount.root().join("y"))), libc::EROFS);
    assert_eq!(errno(fs::rename(mount.root().join("x/c/1"), past.join("y"))), libc::EROFS);
    assert_eq!(errno(fs::create_dir(past.join("d"))), libc::EROFS);
    assert_eq!(errno(fs::create_dir(mount.control("at/tag/v2"))), libc::EROFS);
    assert_eq!(errno(fs::remove_dir(mount.control("at/tag/v1"))), libc::EROFS);
    assert_eq!(errno(fs::hard_link(&file, mount.root().join("y"))), libc::EROFS);
    assert_eq!(errno(fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions())), libc::EROFS);
    assert_eq!(errno(std::os::unix::fs::symlink("a", past.join("l"))), libc::EROFS);
    assert!(mount.read_control("status").contains("nothing to commit"));
}

#[test]
fn names_follow_their_refs() {
    let mount = two_commits();
    let repo = mount.repository();
    // A mount that never changes keeps all else in the kernel's caches.
    let fixed = Mount::new(repo, &["--tag", "v1"]);
    let follower = Mount::new(repo, &["--follow"]);
    run_on(repo, &["branch", "create", "dev", "--at", "v1"]).success();
    for (n, at) in [mount.control("at"), fixed.control("at"), follower.control("at")].iter().enumerate() {
        // The name of a deleted tag is never used again.
        let new = format!("v2-{n}");
        std::thread::sleep(BRIEF);
        assert_eq!(names(&at.join("tag")), ["v1"], "{}", at.display());
        assert_eq!(fs::metadata(at.join("tag").join(&new)).unwrap_err().kind(), ErrorKind::NotFound);
        let before = fs::metadata(at.join("branch/dev")).unwrap().ino();
        assert_eq!(fs::read(at.join("branch/dev/x/c/0")).unwrap(), chunk(1));
        run_on(repo, &["tag", "create", &new]).success();
        run_on(repo, &["branch", "reset", "dev", "--to", "main", "--yes"]).success();
        wait_until("the new tag is listed", || names(&at.join("tag")) == ["v1", &new]);
        wait_until("the branch has moved", || fs::read(at.join("branch/dev/x/c/0")).unwrap() == chunk(2));
        assert_ne!(fs::metadata(at.join("branch/dev")).unwrap().ino(), before);
        assert_eq!(fs::read(at.join("tag").join(&new).join("x/c/1")).unwrap(), chunk(3));
        run_on(repo, &["branch", "reset", "dev", "--to", "v1", "--yes"]).success();
        run_on(repo, &["tag", "delete", &new, "--yes"]).success();
        wait_until("the deleted tag is gone", || fs::metadata(at.join("tag").join(&new)).is_err());
        wait_until("the deleted tag is not listed", || names(&at.join("tag")) == ["v1"]);
    }
}

/// Creates or deletes tags.
fn change_tags(repo: &Path, tags: &[String], is_new: bool) {
    block_on(async {
        for tag in tags {
            let repository = Repository::open(storage::open_directory(repo).unwrap()).await.unwrap();
            let tip = repository.branch_tip("main").await.unwrap().unwrap();
            if is_new {
                repository.create_ref(RefKind::Tag, tag, tip, system_clock).await.unwrap()
            } else {
                repository.delete_ref(RefKind::Tag, tag, tip, system_clock).await.unwrap()
            }
        }
    });
}

/// A program lists tags in several steps. Meanwhile tags come and go, and another program lists
/// them.
#[test]
fn a_listing_of_names_goes_on_as_it_began_beside_others() {
    let mount = two_commits();
    let fixed = Mount::new(mount.repository(), &["--tag", "v1"]);
    // The directory does not fit into one answer.
    let tags = |first: char, count| -> Vec<String> {
        (0..count).map(|n| format!("{first}{n:04}{}", "-a-long-name".repeat(18))).collect()
    };
    let mut known = tags('t', 200);
    change_tags(mount.repository(), &known, true);
    known.push("v1".to_owned());
    for (place, letter) in [(mount.control("at/tag"), 'a'), (fixed.control("at/tag"), 'b')] {
        let new = tags(letter, 60);
        std::thread::sleep(BRIEF);
        for is_new in [true, false] {
            let mut reader =
                fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut seen: Vec<String> = reader.by_ref().take(if is_new { 3 } else { 63 }).collect();
            change_tags(mount.repository(), &new, is_new);
            wait_until("the change is listed", || names(&place).contains(&new[0]) == is_new);
            seen.extend(reader);
            seen.retain(|name| !new.contains(name));
            assert_eq!(seen, known, "{}, new: {is_new}", place.display());
        }
    }
}

#[test]
fn times_are_those_of_commits() {
    let mount = two_commits();
    let times = names(&mount.control("at/time"));
    let tree = |time: &str| mount.control(&format!("at/time/{time}"));
    let last: Vec<&String> = times.iter().rev().take(2).collect();
    assert_eq!(fs::read(tree(last[0]).join("x/c/0")).unwrap(), chunk(2));
    assert_eq!(fs::read(tree(last[1]).join("x/c/0")).unwrap(), chunk(1));
    assert_eq!(fs::read(tree("2199-12-31T00:00Z").join("x/c/0")).unwrap(), chunk(2));
    for none in ["2000-01-01", "yesterday", "2199"] {
        assert_eq!(fs::metadata(tree(none)).unwrap_err().kind(), ErrorKind::NotFound, "{none}");
    }
}

#[test]
fn names_that_are_no_files_do_not_exist() {
    let mount = two_commits();
    for name in [
        "at/tag/v%31",
        "at/tag/%76%31",
        "at/tag/..%2F",
        "at/snapshot/x",
        "at/snapshot/00000000000000000000",
        "at/other",
        "view/zarr3",
        "view/zarr,",
        "view/zarr,shard=0",
        "view/netcdf,unshard",
        "at/branch/main/.icechunk/at",
        "at/branch/main/.icechunk/view/zarr/.icechunk/view/x",
    ] {
        assert_eq!(fs::metadata(mount.control(name)).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }
    let long = "x".repeat(256);
    assert!(fs::metadata(mount.control(&format!("at/tag/{long}"))).is_err());
}

#[test]
fn a_read_only_mount_has_the_past_and_views_but_no_commands() {
    let mount = two_commits();
    let fixed = Mount::new(mount.repository(), &["--tag", "v1"]);
    assert_eq!(names(&fixed.path()), ["x"], "it is not listed");
    let facts = ["HEAD", "at", "errors", "info.json", "log", "stats", "status", "view"];
    assert_eq!(names(&fixed.control("")), facts);
    assert_eq!(fs::read(fixed.control("at/branch/main/x/c/0")).unwrap(), chunk(2));
    assert_eq!(fs::read(fixed.control("view/zarr2/x/0")).unwrap(), chunk(1));
    assert_eq!(fs::metadata(fixed.control("commit")).unwrap_err().kind(), ErrorKind::NotFound);
    let view = Mount::new(mount.repository(), &["--view", "netcdf"]);
    let mut with_report = facts.to_vec();
    with_report.insert(5, "netcdf");
    assert_eq!(names(&view.control("")), with_report);
    assert_eq!(fs::read(view.control("view/zarr/x/c/1")).unwrap(), chunk(3));
    drop(icechunkfs(["--version"]));
}

#[test]
fn many_snapshots_take_turns_in_memory() {
    let mount = Writable::new(&[]);
    for n in 0..40_u8 {
        put(&mount.root().join(format!("g{n}/zarr.json")), br#"{"zarr_format":3,"node_type":"group"}"#).unwrap();
        mount.commit("one more").unwrap();
        run_on(mount.repository(), &["tag", "create", &format!("v{n}")]).success();
    }
    let fixed = Mount::new(mount.repository(), &["--read-only", "--memory", "16M"]);
    let count = |n: u8| fs::read_dir(fixed.control(&format!("at/tag/v{n}"))).unwrap().count();
    for round in 0..2 {
        for n in 0..40 {
            assert_eq!(count(n), usize::from(n) + 1, "tag v{n} in round {round}");
        }
    }
}
