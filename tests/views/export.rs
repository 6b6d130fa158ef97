//! Exports of views: the files of a view without a mount.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::attached::two_commits;
use crate::common::{Mount, assert_same, icechunkfs, read_files};

#[test]
fn an_export_of_a_view_has_the_files_of_its_mount() {
    let writable = two_commits();
    let directory = tempfile::tempdir().unwrap();
    let views: [&[&str]; 4] = [&["zarr"], &["zarr2"], &["netcdf"], &["zarr", "--shard", "2"]];
    for options in views {
        let view = &options.join(" ");
        let out = directory.path().join(view);
        let words = |more: &[&str]| {
            let repo = writable.repository().to_str().unwrap();
            let out = out.to_str().unwrap();
            [&["export", repo, out, "v1", "--json", "--view"][..], options, more].concat().join("\0")
        };
        let export = |more: &[&str]| icechunkfs(words(more).split('\0')).json();
        let first = export(&[]);
        let mount = Mount::new(writable.repository(), &[&["--tag", "v1", "--view"], options].concat());
        let expected = read_files(&mount.path());
        assert_eq!(first["written"], expected.len(), "{view}");
        assert_same(view, &read_files(&out), &expected);
        // Complete files are not written again, changed ones are.
        assert_eq!(export(&["--force"])["unchanged"], expected.len(), "{view}");
        let (key, _) = expected.first_key_value().unwrap();
        fs::write(out.join(key), "x").unwrap();
        fs::write(out.join("extra"), "x").unwrap();
        let third = export(&["--delete", "--yes"]);
        assert_eq!((&third["written"], &third["removed_count"]), (&1.into(), &1.into()), "{view}");
        assert_same(view, &read_files(&out), &expected);
    }
    let file = fs::read_dir(directory.path().join("netcdf")).unwrap().next().unwrap().unwrap();
    let metadata = file.metadata().unwrap();
    assert!(metadata.blocks() * 512 < metadata.len() / 2, "parts without bytes are holes");
}

#[test]
fn another_view_does_not_continue_an_unfinished_export() {
    let writable = two_commits();
    let directory = tempfile::tempdir().unwrap();
    let repo = writable.repository().to_str().unwrap();
    let out = directory.path().to_str().unwrap();
    icechunkfs(["export", repo, out, "--view", "zarr2"]).success();
    let failure = icechunkfs(["export", repo, out, "--view", "netcdf"]).failure();
    assert!(failure.contains("is not empty"), "{failure}");
    let failure = icechunkfs(["export", repo, &format!("{out}/x"), "--view", "netcdf", "--path", "none"]).failure();
    assert!(failure.contains("none"), "{failure}");
    assert!(!directory.path().join("none").exists());
}
