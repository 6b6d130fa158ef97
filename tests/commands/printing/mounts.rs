//! The daemon's log and its control files.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use icechunk::format::format_constants::SpecVersionBin;

use super::hostile::{array_path, objects, repository};
use super::{FORGED, HOSTILE, assert_harmless};
use crate::common::icechunkfs;
use crate::common::lab::{GROUP, array_json};
use crate::common::writing::Writable;

fn hostile_name(end: &str) -> String {
    format!("{HOSTILE} {end}").replace('/', "")
}

/// Makes a change of every kind that a status lists.
fn change(root: &Path) {
    let group = root.join(hostile_name("added group"));
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("zarr.json"), GROUP).unwrap();
    let array = group.join(hostile_name("added array"));
    std::fs::create_dir_all(array.join("c")).unwrap();
    std::fs::write(array.join("zarr.json"), array_json(&[4], &[1], HOSTILE)).unwrap();
    std::fs::write(array.join("c/1"), "12").unwrap();
    // An untracked name that is not even text, and a violation.
    std::fs::write(root.join(hostile_name("notes.txt")), "x").unwrap();
    std::fs::write(root.join(std::ffi::OsStr::from_bytes(b"\xff\x1b\nFORGED")), "x").unwrap();
    let bad = root.join(hostile_name("bad"));
    std::fs::create_dir(&bad).unwrap();
    std::fs::write(bad.join("zarr.json"), "{\"zarr_format\": \"\u{1b}[31m\", \"node_type\": \"FORGED\u{202e}\"}")
        .unwrap();
    let old = root.join(array_path().trim_start_matches('/'));
    std::fs::rename(&old, root.join(hostile_name("moved"))).unwrap();
}

#[test]
fn control_files_and_mount_commands_escape_text_of_the_repository() {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"), SpecVersionBin::V2);
    let mount = Writable::of(&repository, &["-v"]);
    let place = mount.root().display().to_string();
    let look = |when: &str| {
        for name in ["status", "status.json", "diff", "log", "conflicts", "errors", "info.json", "commit"] {
            let text = std::fs::read(mount.control(name)).unwrap();
            assert_harmless(&format!("{when}: {name}"), &text);
        }
        for words in [&["status"][..], &["diff"], &["status", "--json"], &["diff", "--json"]] {
            let output = icechunkfs([words, &[&place]].concat());
            assert_harmless(&format!("{when}: {words:?}"), &output.stdout);
            assert_harmless(&format!("{when}: {words:?}"), output.stderr.as_bytes());
        }
        assert_harmless(&format!("{when}: the log"), mount.log().as_bytes());
    };
    look("before");
    change(&mount.root());
    look("changed");
    for words in [
        &["commit", &place, "-m", HOSTILE][..],
        &["discard", &place, "nothing\u{1b}\nFORGED"],
        &["discard", &place, &hostile_name("bad")],
        &["commit", &place, "-m", HOSTILE],
        &["discard", &place, &hostile_name("notes.txt")],
        &["refresh", &place],
        &["discard", &place],
    ] {
        let output = icechunkfs(words);
        assert_harmless(&format!("{words:?}"), &output.stdout);
        assert_harmless(&format!("{words:?}"), output.stderr.as_bytes());
        look(words[0]);
    }
    assert!(mount.read_control("status").contains("\\xff\\u{1b}\\n"), "{}", mount.read_control("status"));
    let status: serde_json::Value = serde_json::from_str(&mount.read_control("status.json")).unwrap();
    assert!(status["untracked"].is_array(), "{status}");
}

/// A name in a failure adds no line to the log or to the list of failures.
#[test]
fn a_name_adds_no_line_to_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"), SpecVersionBin::V2);
    for folder in ["manifests", "chunks"] {
        objects(&repository, folder).into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
    let mount = Writable::of(&repository, &["-v", "-v"]);
    let array = mount.root().join(array_path().trim_start_matches('/'));
    assert!(
        std::fs::read_dir(array.join("c")).and_then(|mut entries| entries.next().transpose()).is_err()
            || std::fs::read(array.join("c/0")).is_err()
    );
    assert!(std::fs::write(array.join("c/0/x"), "x").is_err());
    let log = mount.log();
    let errors = mount.read_control("errors");
    assert!(log.contains(FORGED) && errors.contains(FORGED), "nothing was reported: {log} {errors}");
    assert_harmless("log", log.as_bytes());
    assert_harmless("errors", errors.as_bytes());
    // Every line begins with a time.
    for line in log.lines().chain(errors.lines()) {
        assert!(line.starts_with("20"), "{line:?}");
    }
}

#[test]
fn unmount_escapes_text_of_the_repository() {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"), SpecVersionBin::V2);
    let mount = Writable::of(&repository, &["--branch", &format!("{HOSTILE} branch")]);
    std::fs::write(mount.root().join(hostile_name("notes.txt")), "x").unwrap();
    let said = icechunkfs(["unmount", mount.root().to_str().unwrap()]);
    assert_harmless("unmount", said.stderr.as_bytes());
    assert_harmless("log", mount.log().as_bytes());
}
