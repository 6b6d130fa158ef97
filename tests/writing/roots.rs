//! Mounts whose root is one group, or shows the hierarchy as a directory.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::writing::{Reference, Writable, array, echo, put, raw_array, touch};
use crate::common::{Files, Mount, Output, assert_same, errno, program, python, read_files, run, run_on, wait_until};

const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

/// A repository with the array `g/h/x`, the array `y` and a tag; another commit changes a chunk of
/// `g/h/x`.
fn nested() -> Writable {
    let mount = Writable::new(&[]);
    for group in ["", "g/", "g/h/"] {
        put(&mount.root().join(format!("{group}zarr.json")), GROUP).unwrap();
    }
    for name in ["g/h/x", "y"] {
        put(&mount.root().join(name).join("zarr.json"), raw_array(&[4], &[2])).unwrap();
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
    for root in ["g/none", "g/h/x/c", "g/h/x/c/0"] {
        for words in [&["--read-only"][..], &["--ephemeral"]] {
            let failure = Mount::prepare().command(repo, &[words, &["--root", root]].concat()).failure();
            assert!(failure.contains(&format!("has no group `{root}`")), "{words:?}: {failure}");
        }
    }
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
    let top = mount.path();
    let data = mount.path().join("data");
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

/// Runs a command in directory `at`.
fn run_at(at: &Path, words: &[&str]) -> Output {
    run(Command::new(program()).args(words).current_dir(at))
}

/// The mount that `words` describe of a branch with uncommitted changes of `y` and `g/h/x`, and
/// those two files in it; the second from its top.
fn changed_in_and_outside(words: &[&str], inner: &str) -> Writable {
    let mount = nested();
    put(&mount.root().join("y/c/0"), "hours of work").unwrap();
    put(&mount.root().join("g/h/x/c/0"), "changed").unwrap();
    mount.unmount();
    mount.mount_with(None, words).success();
    assert_eq!(fs::read(mount.root().join(inner)).unwrap(), b"changed");
    mount
}

/// Returns the uncommitted changes, wherever they are.
fn changed(mount: &Writable) -> Vec<String> {
    let status = mount.control_json("status.json");
    let arrays = status["arrays"].as_array().unwrap().iter();
    let mut paths: Vec<String> = arrays.map(|array| array["path"].as_str().unwrap().to_owned()).collect();
    paths.sort();
    paths
}

/// A path that a user names in the mount must not be taken for the node of that name at the root of
/// the repository.
#[test]
fn discard_and_restore_act_on_the_node_that_the_mount_shows_under_a_path() {
    for (words, inner) in [
        (&["--root", "g/h"][..], "x/c/0"),
        (&["--subdir", "d"], "d/g/h/x/c/0"),
        (&["--root", "g", "--subdir", "g"], "g/h/x/c/0"),
    ] {
        let array = Path::new(inner).parent().unwrap().parent().unwrap();
        let mount = changed_in_and_outside(words, inner);
        let root = mount.root();
        let outside = mount.root().with_file_name("elsewhere");
        let absolute = root.join(array);
        let link = root.with_file_name("link");
        std::os::unix::fs::symlink(root.parent().unwrap(), &link).unwrap();
        fs::create_dir(&outside).unwrap();
        let through_link = link.join(root.file_name().unwrap()).join(array);
        let mountpoint = root.to_str().unwrap();
        let named: [(&Path, &str); 5] = [
            (&outside, absolute.to_str().unwrap()),
            (&outside, through_link.to_str().unwrap()),
            (&root, array.to_str().unwrap()),
            (&absolute, "."),
            (&outside, "g/h/x"),
        ];
        for (at, path) in named {
            put(&root.join(inner), "changed").unwrap();
            run_at(at, &["discard", mountpoint, path]).success();
            assert_eq!(changed(&mount), ["/y"], "{words:?}: discard {path} in {}", at.display());
            assert_eq!(fs::read(root.join(inner)).unwrap(), [1, 2]);
            // The second commit added a chunk.
            run_at(at, &["restore", mountpoint, path, "--from", "v1"]).success();
            assert_eq!(changed(&mount), ["/g/h/x", "/y"], "{words:?}: restore {path} in {}", at.display());
            assert_eq!(errno(fs::read(absolute.join("c/1"))), libc::ENOENT);
            run_at(at, &["discard", mountpoint, path]).success();
        }
        // The control file, with the absolute path and with that of the repository.
        for path in [absolute.to_str().unwrap(), "g/h/x"] {
            put(&root.join(inner), "changed").unwrap();
            echo(&mount.control("discard"), path).unwrap();
            assert_eq!(changed(&mount), ["/y"], "{words:?}: {path}");
        }
        fs::remove_file(&link).unwrap();
        run_on(&root, &["discard"]).success();
        assert!(changed(&mount).is_empty(), "without a path, everything is discarded");
    }
}

#[test]
fn the_root_of_a_mount_bounds_discard_and_restore() {
    let mount = changed_in_and_outside(&["--root", "g/h"], "x/c/0");
    let root = mount.root();
    let outside = root.with_file_name("elsewhere");
    fs::create_dir(&outside).unwrap();
    let mountpoint = root.to_str().unwrap();
    for path in ["y", "/y", "/", "/g", "g/zarr.json", "/g/hh"] {
        for words in [&["discard", mountpoint, path][..], &["restore", mountpoint, path, "--from", "v1"]] {
            let why = run_at(&outside, words).failure();
            assert!(why.contains("is outside of /g/h, the root of this mount"), "{words:?}: {why}");
        }
        assert_eq!(errno(echo(&mount.control("discard"), path)), libc::EINVAL, "{path}");
        assert_eq!(changed(&mount), ["/g/h/x", "/y"], "{path}");
    }
    // The mountpoint is the mount's root, and so is `.` elsewhere and in it.
    for (at, path) in [(&outside, mountpoint), (&outside, "."), (&root, "."), (&root, mountpoint)] {
        put(&root.join("x/c/0"), "changed").unwrap();
        run_at(at, &["discard", mountpoint, path]).success();
        assert_eq!(changed(&mount), ["/y"], "{path}");
        run_at(at, &["restore", mountpoint, path, "--from", "v1"]).success();
        assert_eq!(changed(&mount), ["/g/h/x", "/y"], "{path}");
    }
    // A move across the border, made in a mount of the whole: one half of it is outside.
    run_on(&root, &["discard"]).success();
    mount.unmount();
    mount.mount_again(None).success();
    fs::rename(root.join("y"), root.join("g/h/y")).unwrap();
    mount.unmount();
    mount.mount_with(None, &["--root", "g/h"]).success();
    for path in ["y", "."] {
        let why = run_at(&root, &["discard", mountpoint, path]).failure();
        assert!(why.contains("the uncommitted move of /y to /g/h/y reaches outside of /g/h"), "{why}");
    }
    assert_eq!(fs::read(root.join("y/c/0")).unwrap(), [1, 2]);
}

#[test]
fn a_discard_of_an_unknown_path_fails() {
    let mount = nested();
    let root = mount.root();
    put(&root.join("y/c/0"), "changed").unwrap();
    fs::rename(root.join("g"), root.join("k")).unwrap();
    fs::remove_file(root.join("k/h/x/c/1")).unwrap();
    for path in ["typo", "y/c/3", "y/none", "k/h/none", "k/h/x/c/3", "y/zarr.json/x"] {
        let failed = run_on(&root, &["discard", path]);
        assert!(failed.all().contains(&format!("/{path}: no such name")), "{path}: {}", failed.all());
        assert_eq!(failed.status.code(), Some(1));
        assert_eq!(errno(echo(&mount.control("discard"), path)), libc::ENOENT, "{path}");
    }
    assert_eq!(changed(&mount).len(), 2);
    // Nodes that are unchanged, deleted, or moved, these by both names.
    for path in ["y/zarr.json", "y/c", "y/c/0", "k/h/x/c/1", "g/h/x/zarr.json"] {
        let discarded = run_on(&root, &["discard", path]);
        assert!(!discarded.all().contains("no such name"), "{path}: {}", discarded.all());
    }
    run_on(&root, &["discard", "g"]).success();
    assert!(changed(&mount).is_empty() && root.join("g/h/x/c/1").exists());
}

#[test]
fn a_mount_says_that_its_root_was_moved_or_made_anew() {
    for is_moved in [true, false] {
        let whole = nested();
        let mount = Writable::of(whole.repository(), &["--root", "g/h"]);
        let root = mount.root();
        let group = whole.root().join("g/h");
        let status = || run_on(&root, &["status"]).text();
        assert!(!status().contains("root of this mount"));
        if is_moved {
            fs::rename(&group, whole.root().join("g/k")).unwrap()
        } else {
            fs::remove_dir_all(&group).unwrap()
        }
        whole.commit("without").unwrap();
        put(&group.join("zarr.json"), GROUP).unwrap();
        put(&group.join("x/zarr.json"), array(&[4], &[2])).unwrap();
        put(&group.join("x/c/0"), [9, 9]).unwrap();
        whole.commit("made anew").unwrap();
        let lost = "/g/h, the root of this mount, was moved, deleted or recreated by other commits";
        let refreshed = run_on(&root, &["refresh"]).text();
        assert!(refreshed.contains("moved over 2 commits") && refreshed.contains(lost), "{refreshed}");
        assert!(status().contains(lost), "{}", status());
        assert_eq!(mount.control_json("status.json")["lost_root"], "/g/h");
        // The path in the mount is not the one in the repository.
        for words in [&["discard", "g/h/x"][..], &["restore", "g/h/x", "--from", "v1"]] {
            assert!(run_on(&root, words).failure().contains(lost), "{words:?}");
        }
        mount.remount();
        assert_eq!(fs::read(root.join("x/c/0")).unwrap(), [9, 9]);
        assert!(!status().contains("root of this mount"));
    }
}
