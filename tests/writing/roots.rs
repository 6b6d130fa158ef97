//! Mounts whose root is one group, or shows the hierarchy as a directory.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::writing::{Reference, Writable, array, put, touch};
use crate::common::{Files, Mount, assert_same, errno, python, read_files, run, run_on, wait_until};

const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

/// A repository with the array `g/h/x`, the array `y` and a tag; another commit changes a chunk of `g/h/x`.
fn nested() -> Writable {
    let mount = Writable::new(&[]);
    for group in ["", "g/", "g/h/"] {
        put(&mount.root().join(format!("{group}zarr.json")), GROUP).unwrap();
    }
    for name in ["g/h/x", "y"] {
        put(&mount.root().join(name).join("zarr.json"), array(&[4], &[2])).unwrap();
        put(&mount.root().join(name).join("c/0"), [1, 2]).unwrap();
    }
    mount.commit("one").unwrap();
    run_on(mount.repository(), &["tag", "create", "v1"]).success();
    put(&mount.root().join("g/h/x/c/1"), [3, 4]).unwrap();
    mount.commit("two").unwrap();
    mount
}

/// Returns the files below `folder`.
fn below(files: &Files, folder: &str) -> Files {
    let inner = |(key, bytes): (&String, &Vec<u8>)| Some((key.strip_prefix(folder)?.to_owned(), bytes.clone()));
    files.iter().filter_map(inner).collect()
}

#[test]
fn a_mounted_group_has_the_files_of_its_part_of_the_whole() {
    let whole = nested();
    let repo = whole.repository();
    let expected = below(&read_files(&whole.root()), "g/h/");
    assert_eq!(expected.len(), 4);
    for words in [&["--read-only"][..], &["--follow"], &["--ephemeral"], &["--ephemeral", "--io", "cached"]] {
        let mount = Mount::new(repo, &[words, &["--root", "/g/h/"]].concat());
        assert_same(&format!("{words:?}"), &read_files(&mount.path()), &expected);
        let past = below(&read_files(&whole.control("at/tag/v1")), "g/h/");
        assert_same("the past", &read_files(&mount.control("at/tag/v1")), &past);
        let mount = Mount::new(repo, &[words, &["--root", "g/h", "--subdir", "data"]].concat());
        let names: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["data"]);
        assert_same(&format!("{words:?}"), &read_files(&mount.path().join("data")), &expected);
        assert!(mount.control("at").is_dir() && fs::metadata(mount.path().join("x")).is_err());
    }
    for view in ["zarr2", "netcdf"] {
        let mount = Mount::new(repo, &["--view", view, "--root", "g/h"]);
        let seen = read_files(&mount.path());
        let inner = read_files(&Mount::new(repo, &["--view", view]).path());
        match view {
            "netcdf" => assert_eq!(seen["h.nc"], inner["g/h.nc"]),
            _ => assert_eq!(seen["x/0"], inner["g/h/x/0"]),
        }
    }
    let failure = Mount::prepare().command(repo, &["--root", "g/none"]).failure();
    assert!(failure.contains("has no group `g/none`"), "{failure}");
    for wrong in [["--root", "a//b"], ["--root", "../x"], ["--subdir", "a/b"], ["--subdir", ".icechunk"]] {
        assert_eq!(Mount::prepare().command(repo, &wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn changes_in_a_mounted_group_are_commits_of_the_whole() {
    let whole = nested();
    let repo = whole.repository();
    for io in ["auto", "cached"] {
        let mount = Mount::new(repo, &["--ephemeral", "--root", "g", "--io", io]);
        let root = mount.path();
        put(&root.join("new/zarr.json"), array(&[2], &[2])).unwrap();
        put(&root.join("new/c/0"), [7, 7]).unwrap();
        put(&root.join("zarr.json"), GROUP.replace("{}", r#"{"a":1}"#)).unwrap();
        fs::rename(root.join("new"), root.join("newer")).unwrap();
        assert_eq!(errno(fs::write(root.join(".icechunk"), "x")), libc::EISDIR);
        touch(&mount.control("commit")).unwrap();
        let keys = Reference::open(repo).keys();
        assert_eq!(keys["g/newer/c/0"], [7, 7]);
        assert!(String::from_utf8_lossy(&keys["g/zarr.json"]).contains(r#""a""#));
        assert_eq!(keys["y/c/0"], [1, 2]);
        // Remote changes at the root of the mount.
        let names = || fs::read_dir(&root).unwrap().count();
        assert_eq!(names(), 3);
        let document = array(&[2], &[2]);
        Reference::open(repo).commit(&[("g/other/zarr.json", document.as_bytes()), ("g/other/c/0", &[5, 5])], "other");
        touch(&mount.control("refresh")).unwrap();
        assert_eq!((names(), fs::read(root.join("other/c/0")).unwrap()), (4, vec![5, 5]));
        fs::remove_dir_all(root.join("newer")).unwrap();
        fs::remove_dir_all(root.join("other")).unwrap();
        touch(&mount.control("commit")).unwrap();
        assert!(Reference::open(repo).keys().keys().all(|key| !key.contains("newer")));
    }
}

#[test]
fn a_follower_of_a_group_shows_its_new_commits() {
    let whole = nested();
    for words in [&["--root", "g"][..], &["--subdir", "s"], &["--root", "g", "--subdir", "s"]] {
        let mount = Mount::new(whole.repository(), &[&["--follow", "0.2"], words].concat());
        let top = if words.contains(&"--subdir") { mount.path().join("s") } else { mount.path() };
        let group = if words.contains(&"--root") { top.clone() } else { top.join("g") };
        let name = format!("n{}", words.join(""));
        assert!(fs::metadata(group.join(&name)).is_err());
        let before = fs::read_dir(&group).unwrap().count();
        put(&whole.root().join("g").join(&name).join("zarr.json"), GROUP).unwrap();
        whole.commit("another group").unwrap();
        wait_until("the new group is there", || group.join(&name).is_dir());
        assert_eq!(fs::read_dir(&group).unwrap().count(), before + 1);
    }
}

#[test]
fn the_directory_of_the_hierarchy_can_be_removed_and_made() {
    let whole = nested();
    let mount = Mount::new(whole.repository(), &["--ephemeral", "--subdir", "data"]);
    let (top, data) = (mount.path(), mount.path().join("data"));
    assert_eq!(errno(fs::remove_dir(&data)), libc::ENOTEMPTY);
    assert_eq!(errno(fs::create_dir(&data)), libc::EEXIST);
    for outside in ["other", "zarr.json"] {
        assert_eq!(errno(fs::create_dir(top.join(outside))), libc::EPERM);
        assert_eq!(errno(fs::write(top.join(outside), "x")), libc::EPERM);
    }
    assert_eq!(errno(fs::rename(&data, top.join("other"))), libc::EPERM);
    assert_eq!(errno(fs::rename(data.join("y"), top.join("y"))), libc::EPERM);
    assert_eq!(errno(fs::create_dir(data.join(".icechunk"))), libc::EPERM);
    fs::remove_dir_all(&data).unwrap();
    assert!(fs::metadata(&data).is_err() && fs::read_dir(&top).unwrap().next().is_none());
    fs::create_dir(&data).unwrap();
    assert_eq!(fs::read_dir(&data).unwrap().count(), 0);
    put(&data.join("zarr.json"), GROUP).unwrap();
    touch(&mount.control("commit")).unwrap();
    assert_eq!(Reference::open(whole.repository()).keys().into_keys().collect::<Vec<_>>(), ["zarr.json"]);
}

#[test]
fn zarr_python_overwrites_the_hierarchy_of_a_mount() {
    let Some(python) = python() else { return };
    let whole = nested();
    let mount = Mount::new(whole.repository(), &["--ephemeral", "--subdir", "data"]);
    let script = "import sys, zarr, numpy as np
group = zarr.open_group(sys.argv[1], mode='w')
group.create_array('new', shape=(4,), chunks=(2,), dtype='i4')[:] = np.arange(4)
zarr.save_array(sys.argv[1], np.arange(6), mode='w') if len(sys.argv) > 2 else None
";
    let overwrite = |path: &Path, more: &[&str]| {
        run(Command::new(&python).args(["-c", script]).arg(path).args(more)).success();
        touch(&mount.control("commit")).unwrap();
        Reference::open(whole.repository()).keys().into_keys().collect::<Vec<_>>()
    };
    assert_eq!(overwrite(&mount.path().join("data"), &[]), ["new/c/0", "new/c/1", "new/zarr.json", "zarr.json"]);
    assert_eq!(overwrite(&mount.path().join("data"), &["array"]), ["c/0", "zarr.json"]);
}
