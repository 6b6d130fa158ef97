//! The line in which `mount` says what a view leaves out.

use serde_json::{Value, json};

use super::reshard::{Files, GROUP, array, encodings, made};
use crate::common::Mount;

/// Mounts arrays with `codecs`, called `a`, `b` and so on, with `options`. Returns what the command
/// says.
fn said(codecs: &[Value], options: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let mut files = Files::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    for (name, codecs) in ('a'..).zip(codecs) {
        files.insert(format!("{name}/zarr.json"), array(&[4], &[2], &encodings()[0], codecs));
    }
    let repo = made(directory.path(), &files);
    let mount = Mount::prepare();
    let mounted = mount.command(&repo, options);
    assert!(mounted.status.success(), "{}", mounted.stderr);
    assert_eq!(mount.log().lines().filter(|line| line.contains("leaves out")).count(), mounted.stderr.lines().count());
    let view = mounted.stderr.split_whitespace().nth(3).unwrap_or("").to_owned();
    if !view.is_empty() {
        let report = std::fs::read_to_string(mount.path().join(".icechunk").join(&view)).unwrap();
        let listed = report.lines().filter(|line| line.contains("\tleft out\t")).count();
        assert_eq!(listed, codecs.iter().filter(|codecs| **codecs == unknown()).count(), "{report}");
    }
    mounted.stderr
}

fn plain() -> Value {
    json!([{"name": "bytes"}])
}

fn unknown() -> Value {
    json!([{"name": "bytes"}, {"name": "unheard-of"}])
}

#[test]
fn mount_says_in_one_line_what_a_view_leaves_out() {
    let views: &[&str] = if cfg!(feature = "netcdf") { &["zarr2", "netcdf"] } else { &["zarr2"] };
    for view in views {
        let options = ["--view", view];
        assert_eq!(said(&[plain(), plain()], &options), "");
        let one = said(&[plain(), unknown()], &options);
        let begin = format!("icechunkfs: the view {view} leaves out /b: ");
        assert!(one.starts_with(&begin) && one.contains("unheard-of"), "{one}");
        assert!(one.ends_with(&format!("; .icechunk/{view} in the mount has the list\n")), "{one}");
        let two = said(&[unknown(), plain(), unknown()], &options);
        assert!(two.starts_with(&format!("icechunkfs: the view {view} leaves out 2 arrays, first /a: ")), "{two}");
        assert_eq!(two.lines().count(), 1, "{two}");
    }
}

#[test]
fn mount_says_in_one_line_which_arrays_get_no_shards() {
    let directory = tempfile::tempdir().unwrap();
    let files = Files::from([
        ("zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        ("a/zarr.json".to_owned(), array(&[4], &[2], &encodings()[0], &plain())),
        ("b/zarr.json".to_owned(), array(&[], &[], &encodings()[0], &plain())),
    ]);
    let repo = made(directory.path(), &files);
    let mounted = Mount::prepare().command(&repo, &["--view", "zarr", "--shard", "2"]);
    let line = "icechunkfs: the view zarr shows as stored /b: it has no dimensions; .icechunk/zarr in the mount has the list\n";
    assert_eq!(mounted.stderr, line);
}
