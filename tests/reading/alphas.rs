//! Repositories of releases before 0.2: the real ones beside the project, the first layout by its
//! specification, and mixtures of both that are made here. All of it through real mounts and the
//! real command line.
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::writing::put;
use crate::common::{self, Fixture, FixtureSet, Mount, place, project, python, read_hashes, run, run_on};
use serde_json::{Value, json};

/// Files of a mount: size and hash; the hash is absent for those that give `EACCES`.
type Shown = BTreeMap<String, (u64, Option<String>)>;

fn all() -> Vec<Fixture> {
    FixtureSet::each().flat_map(|set| set.alphas()).collect()
}

#[test]
fn refs_and_log_show_what_alpha_releases_recorded() {
    for fixture in all() {
        check_refs(&fixture);
    }
}

fn check_refs(fixture: &Fixture) {
    let listed = run_on(&fixture.repository, &["refs", "--json"]).json();
    for kind in ["branches", "tags"] {
        assert_eq!(listed[kind], fixture.expected[kind], "{}: {kind}", fixture.name);
    }
    for (name, expected) in fixture.expected["refs"].as_object().unwrap() {
        let (kind, name) = name.split_once('/').unwrap();
        let option = format!("--{kind}={name}");
        let log = run_on(&fixture.repository, &["log", "--json", &option]).json();
        let ids: Vec<&Value> = log.as_array().unwrap().iter().map(|commit| &commit["id"]).collect();
        assert_eq!(ids, expected["history"].as_array().unwrap().iter().collect::<Vec<_>>(), "{}: {name}", fixture.name);
        for commit in log.as_array().unwrap() {
            let expected = &fixture.expected["snapshots"][commit["id"].as_str().unwrap()];
            assert_eq!(commit["message"], expected["message"]);
            assert_eq!(commit["parent_id"], expected["parent_id"]);
            // The releases kept nanoseconds.
            let micros = "2026-11-20T07:36:31.492897".len();
            assert_eq!(
                commit["written_at"].as_str().unwrap()[..micros],
                expected["written_at"].as_str().unwrap()[..micros]
            );
            if let Some(metadata) = expected.get("metadata") {
                assert_eq!(&commit["metadata"], metadata);
            }
        }
    }
}

#[test]
fn every_key_of_every_snapshot_is_shown() {
    let mut keys = 0;
    for fixture in all() {
        for id in fixture.expected["snapshots"].as_object().unwrap().keys() {
            keys += check_snapshot(&fixture, id);
        }
    }
    println!("{keys} keys");
    assert!(keys > 30);
}

/// Only the first snapshot may lack its file: one that no other snapshot lists, or that has a
/// parent, is missing.
#[test]
fn a_snapshot_without_its_file_is_missing_and_not_empty() {
    let Some(set) = FixtureSet::shared() else { return };
    let fixture = set.get("v0-alpha-a");
    let lost = tempfile::tempdir().unwrap();
    common::copy_tree(&fixture.repository, lost.path());
    let snapshots = fixture.expected["snapshots"].as_object().unwrap();
    let (id, _) = snapshots.iter().find(|(_, snapshot)| !snapshot["parent_id"].is_null()).unwrap();
    std::fs::remove_file(lost.path().join("snapshots").join(id)).unwrap();
    for id in [id.as_str(), "00000000000000000000"] {
        let output = Mount::prepare().command(lost.path(), &["--snapshot", id]).failure();
        assert!(output.contains("missing") || output.contains("no snapshot"), "{id}: {output}");
    }
}

fn check_snapshot(fixture: &Fixture, id: &str) -> usize {
    let expected = &fixture.expected["snapshots"][id];
    let what = format!("{} {id}", fixture.name);
    if expected.get("error").is_some() {
        // Alpha 2 wrote no file for the first snapshot of a repository, which is empty.
        assert_eq!(expected["parent_id"], Value::Null, "{what}");
        let mount = Mount::new(&fixture.repository, &["--snapshot", id]);
        assert_eq!(read_hashes(&mount.path()), Shown::new(), "{what}");
        return 0;
    }
    let mount = Mount::new(&fixture.repository, &["--snapshot", id]);
    let shown = read_hashes(&mount.path());
    let documents = expected["zarr_json"].as_object().unwrap();
    let members = ["keys", "errors", "zarr_json"].map(|member| expected.get(member).and_then(Value::as_object));
    let keys: BTreeSet<&String> = members.iter().flatten().flat_map(|keys| keys.keys()).collect();
    assert_eq!(shown.keys().collect::<BTreeSet<_>>(), keys, "{what}");
    for (key, (size, hash)) in &shown {
        if let Some(document) = documents.get(key) {
            let bytes = std::fs::read(mount.path().join(key)).unwrap();
            let shown: Value = serde_json::from_slice(&bytes).unwrap();
            assert!(!has_null_configuration(&shown), "{what}: {key}: {shown}");
            assert_eq!(meaning(&shown), meaning(document), "{what}: {key}");
        } else if let Some(expected) = expected["keys"].get(key) {
            assert_eq!((Some(*size), hash.as_deref()), (expected[0].as_u64(), expected[1].as_str()), "{what}: {key}");
        } else {
            assert!(hash.is_none(), "{what}: {key} is virtual, and nothing of the kind is allowed");
        }
    }
    if shown.values().any(|(_, hash)| hash.is_none()) {
        assert!(mount.log().contains("s3://icechunkfs-virtual/data/raw.bin"), "{what}: {}", mount.log());
    }
    shown.len()
}

/// Removes members with default values from a document.
fn meaning(document: &Value) -> Value {
    let mut document = document.clone();
    let members = document.as_object_mut().unwrap();
    for (name, nothing) in [("dimension_names", Value::Null), ("storage_transformers", json!([]))] {
        if members.get(name) == Some(&nothing) {
            members.remove(name);
        }
    }
    for codec in members.get_mut("codecs").and_then(Value::as_array_mut).into_iter().flatten() {
        let codec = codec.as_object_mut().unwrap();
        if codec.get("configuration") == Some(&Value::Null) {
            codec.remove("configuration");
        }
    }
    document
}

fn has_null_configuration(document: &Value) -> bool {
    let codecs = document.get("codecs").and_then(Value::as_array);
    codecs.into_iter().flatten().any(|codec| codec.get("configuration") == Some(&Value::Null))
}

#[test]
fn zarr_reads_the_values_that_the_release_read() {
    let Some(python) = python() else { return };
    let script = project("tests/python/read_tools.py");
    let mut compared = 0;
    for (set, fixture) in [Some(FixtureSet::own()), FixtureSet::shared()]
        .into_iter()
        .flatten()
        .flat_map(|set| set.alphas().into_iter().map(move |fixture| (set.expected_path(&fixture.name), fixture)))
    {
        let main = fixture.expected["branches"]["main"].as_str().unwrap();
        let mount = Mount::new(&fixture.repository, &["--snapshot", main]);
        let mut command = Command::new(&python);
        command.arg(&script).arg(mount.path()).arg(set).arg(main).arg("--virtual-unreadable");
        let output = run(&mut command);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}: {text}{}", fixture.name, output.stderr);
        println!("{}: {}", fixture.name, text.lines().last().unwrap());
        compared += text.lines().last().unwrap().split(' ').find_map(|word| word.parse::<usize>().ok()).unwrap();
    }
    assert!(compared >= 6, "{compared} arrays");
}

#[test]
fn virtual_chunks_are_read_where_allowed() {
    let Some(shared) = FixtureSet::shared() else { return };
    let folder = project("../shared/fixtures/virtual-src").canonicalize().unwrap();
    let file = std::fs::read(folder.join("raw.bin")).unwrap();
    let map = format!("s3://icechunkfs-virtual/data/={}/", folder.display());
    let words = ["--read-only", "--allow-virtual", "s3://icechunkfs-virtual/data/", "--virtual-map", &map];
    // Locations of each spelling, and their form after a migration.
    let directory = tempfile::tempdir().unwrap();
    let migrated = place::place(directory.path());
    let old = shared.get("v0-alpha-a5");
    run_on(&old.repository, &["migrate", "--to", migrated.to_str().unwrap()]).success();
    let all = ["v0-alpha-a", "v0-alpha-a5", "v0-alpha-a10", "v0-0.1.0"].map(|name| (shared.get(name), None));
    for (fixture, instead) in all.into_iter().chain([(old, Some(migrated))]) {
        let mount = Mount::new(instead.as_deref().unwrap_or(&fixture.repository), &words);
        for reference in fixture.expected["notes"]["virtual"]["refs"].as_array().unwrap() {
            let offset = reference[2].as_u64().unwrap() as usize;
            let length = reference[3].as_u64().unwrap() as usize;
            let read = std::fs::read(mount.path().join(reference[0].as_str().unwrap())).unwrap();
            assert!(read == file[offset..offset + length], "{}: {reference}", fixture.name);
        }
    }
}

#[test]
fn an_alpha_repository_is_mounted_read_only_with_a_reason() {
    for fixture in all() {
        let mount = Mount::prepare();
        let output = run_on(&fixture.repository, &["mount", mount.path().to_str().unwrap()]).all();
        assert!(output.contains("mounted read-only") && output.contains("icechunkfs migrate"), "{output}");
        assert!(mount.mounted_as().unwrap().contains(" ro,"), "{:?}", mount.mounted_as());
        assert!(std::fs::write(mount.path().join("zarr.json"), "{}").is_err());
        mount.unmount();
        let refused = mount.command(&fixture.repository, &["--scratch", "/nowhere"]).failure();
        assert!(refused.contains("before 0.2") && refused.contains("icechunkfs migrate"), "{refused}");
        let refused = mount.command(&fixture.repository, &["--ephemeral"]).failure();
        assert!(refused.contains("icechunkfs migrate"), "{refused}");
    }
}

#[test]
fn log_as_of_selects_a_commit_and_unknown_names_are_errors() {
    for fixture in all() {
        let main = &fixture.expected["refs"]["branch/main"]["history"];
        let parent = main[1].as_str().unwrap();
        let time = fixture.expected["snapshots"][parent]["written_at"].as_str().unwrap();
        let log = |words: &[&str]| run_on(&fixture.repository, &[&["log"], words].concat());
        assert_eq!(log(&["--json", "--as-of", time]).json()[0]["id"], parent, "{}", fixture.name);
        assert!(log(&["--branch=mian"]).failure().contains("did you mean `main`?"));
        assert!(log(&["--tag=dev"]).failure().contains("there is a branch of that name"));
        assert!(log(&["--snapshot=00000000000000000000"]).failure().contains("missing"));
    }
}

/// Returns a copy of the shared fixture `name` in which `change` was applied to every file, by its
/// key.
fn changed(name: &str, change: impl Fn(&str, Vec<u8>) -> (String, Vec<u8>)) -> Option<(tempfile::TempDir, Fixture)> {
    let mut fixture = FixtureSet::shared().filter(|_| place::needs_directory())?.get(name);
    let copy = tempfile::tempdir().unwrap();
    for (key, bytes) in common::read_files(&fixture.repository) {
        let (key, bytes) = change(&key, bytes);
        put(&copy.path().join(key), bytes).unwrap();
    }
    fixture.repository = copy.path().to_owned();
    Some((copy, fixture))
}

#[test]
fn repositories_of_mixed_releases_are_read() {
    // Alpha 1 had a colon in the names of folders.
    let colon = |key: &str, bytes| (key.replacen("branch.", "branch:", 1).replacen("tag.", "tag:", 1), bytes);
    // Alpha 9 compressed manifests and nothing else.
    let compressed = |key: &str, bytes: Vec<u8>| {
        let is_manifest = key.starts_with("manifests/");
        (key.to_owned(), if is_manifest { zstd::encode_all(bytes.as_slice(), 3).unwrap() } else { bytes })
    };
    // Today's readers accept a header without compression, though no release writes one.
    let plain = |key: &str, bytes: Vec<u8>| {
        if bytes.starts_with(b"ICE") {
            (key.to_owned(), [&bytes[..38], &[0], &zstd::decode_all(&bytes[39..]).unwrap()].concat())
        } else {
            (key.to_owned(), bytes)
        }
    };
    for made in [changed("v0-alpha-a", colon), changed("v0-alpha-a5", compressed), changed("v0-0.1.0", plain)] {
        let Some((_copy, fixture)) = made else { return };
        check_refs(&fixture);
        let main = fixture.expected["branches"]["main"].as_str().unwrap();
        check_snapshot(&fixture, main);
    }
}

#[test]
fn deleted_tags_and_unusual_ref_names_are_recognized() {
    let Some((copy, _)) = changed("v0-0.1.0", |key, bytes| (key.to_owned(), bytes)) else { return };
    let refs = copy.path().join("refs");
    std::fs::write(refs.join("tag.third/ref.json.deleted"), "{}").unwrap();
    std::fs::rename(refs.join("branch.dev"), refs.join("branch.%D0%B2%D0%B5%D1%82")).unwrap();
    std::fs::write(refs.join("branch.main/README.txt"), "not a ref").unwrap();
    let listed = run_on(copy.path(), &["refs", "--json"]).json();
    let names = |kind: &str| listed[kind].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        (names("branches"), names("tags")),
        (vec!["main".to_owned(), "вет".to_owned()], vec!["v1.0".to_owned()])
    );
    let log = |option: &str| run_on(copy.path(), &["log", option]);
    log("--branch=вет").success();
    assert!(log("--tag=third").failure().contains("no tag `third`"));
    // One damaged ref does not hide the others.
    std::fs::write(refs.join("tag.v1.0/ref.json"), "{\"snapshot\":").unwrap();
    let listed = run_on(copy.path(), &["refs", "--json"]).json();
    assert!(listed["tags"].as_object().unwrap().is_empty() && listed["branches"].as_object().unwrap().len() == 2);
}

#[test]
fn follow_sees_a_new_ref_file_of_its_branch() {
    let Some((copy, fixture)) = changed("v0-alpha-a10", |key, bytes| (key.to_owned(), bytes)) else { return };
    let branch = copy.path().join("refs/branch.main");
    let history = &fixture.expected["refs"]["branch/main"]["history"];
    let tip = history[0].as_str().unwrap();
    let parent = history[1].as_str().unwrap();
    let newest = std::fs::read_dir(&branch).unwrap().map(|entry| entry.unwrap().file_name()).min().unwrap();
    let kept = std::fs::read(branch.join(&newest)).unwrap();
    std::fs::remove_file(branch.join(&newest)).unwrap();
    let mount = Mount::new(copy.path(), &["--follow", "0.2"]);
    assert!(mount.log().contains(&format!("is snapshot {parent}")), "{}", mount.log());
    std::fs::write(branch.join(&newest), kept).unwrap();
    common::wait_until("the mount does not follow", || mount.log().contains(tip));
    let keys = fixture.expected["snapshots"][tip]["keys"].as_object().unwrap();
    assert!(keys.keys().all(|key| mount.path().join(key).exists()));
}

#[test]
fn missing_or_damaged_objects_of_alpha_repositories_are_named() {
    if !place::is_local() {
        return;
    }
    let copy = tempfile::tempdir().unwrap();
    let repo = copy.path().join("repo");
    common::copy_tree(&FixtureSet::own().get("v0-first-json").repository, &repo);
    let ls = || run_on(&repo, &["ls"]);
    let only = |folder: &str| std::fs::read_dir(repo.join(folder)).unwrap().next().unwrap().unwrap().path();
    let attributes = only("a");
    std::fs::rename(&attributes, copy.path().join("kept")).unwrap();
    assert!(ls().failure().contains("attributes/"));
    std::fs::write(&attributes, "[1, 2").unwrap();
    assert!(ls().failure().contains("attributes"));
    std::fs::rename(copy.path().join("kept"), &attributes).unwrap();
    ls().success();
    for snapshot in std::fs::read_dir(repo.join("s")).unwrap() {
        // Claims of a billion values, and endless nesting.
        let path = snapshot.unwrap().path();
        std::fs::write(&path, [0xdd, 0x3b, 0x9a, 0xca, 0x00, 0x01]).unwrap();
    }
    assert!(ls().failure().contains("1000000000 more values"));
    for snapshot in std::fs::read_dir(repo.join("s")).unwrap() {
        std::fs::write(snapshot.unwrap().path(), "[".repeat(1 << 20).replace('[', "{\"nodes\":")).unwrap();
    }
    let start = Instant::now();
    assert!(ls().failure().contains("before 0.2"));
    assert!(start.elapsed() < Duration::from_secs(10));
}
