//! Every command that shows something of a repository, over one in which every text is hostile.

use std::path::Path;
use std::process::Command;

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::Value;

use super::hostile::{array_path, objects, repository};
use super::{FORGED, HOSTILE, assert_harmless};
use crate::common::{Output, copy_tree, program, run};

/// Runs a command with a separate home directory.
fn command(home: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(program());
    command.env("HOME", home).env("XDG_STATE_HOME", home).env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    let output = run(command.args(words));
    assert!(
        !output.stderr.contains("unexpected argument") && !output.stderr.contains("Usage:"),
        "{words:?}: {}",
        output.stderr
    );
    output
}

/// Runs it, and checks all of its output.
fn harmless(home: &Path, words: &[&str]) -> Output {
    let output = command(home, words);
    let what = format!("{words:?}");
    assert_harmless(&what, &output.stdout);
    assert_harmless(&what, output.stderr.as_bytes());
    output
}

fn look_at_everything(home: &Path, repo: &str) {
    let branch = format!("{HOSTILE} branch");
    let tag = format!("{HOSTILE} tag");
    let array = array_path();
    let dest = home.join("dest");
    let words: &[&[&str]] = &[
        &["ls", repo],
        &["ls", repo, "-r"],
        &["ls", repo, "-r", "--json"],
        &["ls", repo, "-r", "--shards"],
        &["refs", repo],
        &["refs", repo, "--json"],
        &["branch", repo, "list"],
        &["branch", repo, "list", "-l"],
        &["branch", repo, "list", "-l", "--json"],
        &["tag", repo, "list", "-l"],
        &["branch", repo, "delete", &branch],
        &["branch", repo, "create", &branch],
        &["branch", repo, "reset", &branch, "--to", "main"],
        &["tag", repo, "delete", &tag],
        &["tag", repo, "create", &tag],
        &["log", repo],
        &["log", repo, "--json"],
        &["log", repo, "--all"],
        &["log", repo, "--graph", "--all"],
        &["log", repo, "--branch", &format!("{HOSTILE} nothing")],
        &["ops", repo],
        &["ops", repo, "--json"],
        &["config", repo, "get"],
        &["config", repo, "get", "--all"],
        &["config", repo, "get", "virtual_chunk_containers"],
        &["config", repo, "get", "--json"],
        &["config", repo, "get", "x\u{1b}\nFORGED"],
        &["config", repo, "set", "x\u{1b}\nFORGED", "\u{1b}"],
        &["verify", repo],
        &["verify", repo, "--chunks"],
        &["verify", repo, "--json"],
        &["stats", repo],
        &["stats", repo, "--json"],
        &["diff", repo, "main~1", "main"],
        &["diff", repo, "main~1", "main", "--patch", "--chunks"],
        &["diff", repo, "main~1", &branch, "--json"],
        &["diff", repo, "main~1", "main", "--logs"],
        &["cat", repo, &array],
        &["cat", repo, &format!("{array}/nothing\u{1b}")],
        &["ls", repo, "/nothing\n FORGED\u{1b}"],
        &["ls", repo, &array],
        &["expire", repo, "--older-than", "0s", "--dry-run"],
        &["expire", repo, "--older-than", "0s", "--delete-expired-tags", "--delete-expired-branches"],
        &["gc", repo, "--older-than", "0s", "--dry-run"],
        &["gc", repo, "--older-than", "0s"],
        &["migrate", repo, "--dry-run"],
        &["amend", repo, "-m", "x"],
        &["amend", repo, "--branch", &branch, "-m", "x"],
        &["squash", repo, "--last", "2"],
        &["squash", repo, "--branch", &branch, "--last", "2"],
        &["export", repo, dest.to_str().unwrap(), "--json"],
        &["import", dest.to_str().unwrap(), repo, "--branch", &branch, "--delete"],
        &["import", "/nonexistent\u{1b}\nFORGED", repo],
        &["mount", repo, "/nonexistent\u{1b}\nFORGED"],
        &["refs", "/nonexistent\u{1b}\nFORGED"],
        &["refs", "s3://\u{1b}\nFORGED"],
    ];
    for words in words {
        harmless(home, words);
    }
    // A picture has marked text: a line of a message is one of its text elements.
    let picture = command(home, &["log", repo, "--svg", "--all"]).stdout;
    assert_harmless("picture", String::from_utf8(picture).unwrap().replace(FORGED, "").as_bytes());
}

#[test]
fn every_command_escapes_text_of_the_repository() {
    let home = tempfile::tempdir().unwrap();
    for (name, version) in [("v1", SpecVersionBin::V1), ("v2", SpecVersionBin::V2)] {
        let repository = repository(&home.path().join(name), version);
        look_at_everything(home.path(), repository.to_str().unwrap());
        std::fs::remove_dir_all(home.path().join("dest")).unwrap_or_default();
    }
}

/// Errors name the damaged object.
#[test]
fn errors_of_a_damaged_repository_escape_its_text() {
    let home = tempfile::tempdir().unwrap();
    let whole = repository(&home.path().join("whole"), SpecVersionBin::V2);
    for folder in ["chunks", "manifests", "snapshots", "transactions"] {
        let damaged = home.path().join(folder);
        copy_tree(&whole, &damaged);
        for (n, path) in objects(&damaged, folder).into_iter().enumerate() {
            // Some objects are removed, others truncated: the beginning still has names.
            let bytes = std::fs::read(&path).unwrap();
            if n % 2 == 0 {
                std::fs::remove_file(path).unwrap();
            } else {
                std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            }
        }
        look_at_everything(home.path(), damaged.to_str().unwrap());
        let _ = std::fs::remove_dir_all(home.path().join("dest"));
    }
}

/// JSON output has the stored values.
#[test]
fn json_output_has_the_stored_values() {
    let home = tempfile::tempdir().unwrap();
    let repository = repository(&home.path().join("repo"), SpecVersionBin::V2);
    let repo = repository.to_str().unwrap();
    let json = |words: &[&str]| -> Value { harmless(home.path(), words).json() };
    let rows = json(&["ls", repo, "-r", "--json"]);
    assert!(rows.as_array().unwrap().iter().any(|row| row["path"] == array_path()), "{rows}");
    let refs = json(&["refs", repo, "--json"]);
    assert!(refs["branches"].get(format!("{HOSTILE} branch")).is_some(), "{refs}");
    let log = json(&["log", repo, "--json"]);
    assert_eq!(log[0]["message"], format!("{HOSTILE} message 1"));
    assert_eq!(log[0]["metadata"][format!("{HOSTILE} key")], format!("{HOSTILE} value"));
    // The text output still has readable names.
    let text = harmless(home.path(), &["log", repo]).text();
    assert!(text.contains("\\u{202e}") && text.contains(&format!("\\n{FORGED}")), "{text}");
}

/// `cat` prints the bytes of a key unchanged.
#[test]
fn cat_prints_bytes_unescaped() {
    let home = tempfile::tempdir().unwrap();
    let repository = repository(&home.path().join("repo"), SpecVersionBin::V2);
    let key = format!("{}/zarr.json", array_path().trim_start_matches('/'));
    let bytes = command(home.path(), &["cat", repository.to_str().unwrap(), &key]).success();
    let document: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(document["attributes"]["note"], HOSTILE);
}
