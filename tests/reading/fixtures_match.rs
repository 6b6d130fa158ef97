//! Every repository, every branch, tag and snapshot, as the reference implementation reads it:
//! keys, sizes, bytes, refs, history. All of it through real mounts and the real command line.
use std::collections::BTreeMap;

use crate::common::{self, Fixture, FixtureSet, Mount, read_hashes, run_on};
use serde_json::Value;

/// A key's size, and the hash of its bytes where it can be read.
type Keys = BTreeMap<String, (u64, Option<String>)>;

#[test]
fn own_fixtures_show_what_the_reference_reads() {
    check_all(&FixtureSet::own());
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn shared_fixtures_show_what_the_reference_reads() {
    if let Some(set) = FixtureSet::shared() {
        check_all(&set);
    }
}

fn check_all(set: &FixtureSet) {
    let mut snapshots = 0;
    let mut keys = 0;
    let mut unreadable = 0;
    for fixture in set.all() {
        check_refs(&fixture);
        for id in fixture.expected["snapshots"].as_object().unwrap().keys() {
            let counts = check_snapshot(&fixture, id, snapshots % 2 == 1);
            snapshots += 1;
            keys += counts.0;
            unreadable += counts.1;
        }
        check_named_mounts(&fixture);
    }
    println!("{}: {snapshots} snapshots, {keys} keys, of them {unreadable} virtual", set.name);
    assert!(snapshots > 50 && keys > 1000 && unreadable > 10);
}

fn check_refs(fixture: &Fixture) {
    let listed = run_on(&fixture.repository, &["refs", "--json"]).json();
    for kind in ["branches", "tags"] {
        let expected = fixture.expected[kind].as_object().unwrap();
        let listed = listed[kind].as_object().unwrap();
        for (name, id) in expected {
            assert_eq!(listed.get(name), Some(id), "{}: {kind} {name}", fixture.name);
        }
        if fixture.name.ends_with("v1-refnames") {
            // The reference cannot look up the names that it lists here, or lists none: ours are
            // the real ones.
            assert!(listed.contains_key("ветка"), "{}: {kind}: {listed:?}", fixture.name);
            assert!(!listed.keys().any(|name| name.contains("%D0")), "{}: {kind}: {listed:?}", fixture.name);
        } else {
            assert_eq!(listed.len(), expected.len(), "{}: {kind}: {listed:?}", fixture.name);
        }
    }
    for (name, expected) in fixture.expected["refs"].as_object().unwrap() {
        let (kind, name) = name.split_once('/').unwrap();
        let option = format!("--{kind}={name}");
        let log = run_on(&fixture.repository, &["log", "--json", &option]).json();
        let log = log.as_array().unwrap();
        let ids: Vec<&Value> = log.iter().map(|commit| &commit["id"]).collect();
        let history: Vec<&Value> = expected["history"].as_array().unwrap().iter().collect();
        assert_eq!(ids, history, "{}: {kind} {name}", fixture.name);
        for commit in log {
            let expected = &fixture.expected["snapshots"][commit["id"].as_str().unwrap()];
            for member in ["id", "parent_id", "message", "written_at", "metadata"] {
                assert_eq!(commit[member], expected[member], "{}: {member} of {}", fixture.name, commit["id"]);
            }
        }
    }
}

/// Compares one snapshot's tree; returns the number of its keys and of the virtual ones.
fn check_snapshot(fixture: &Fixture, id: &str, passthrough: bool) -> (usize, usize) {
    let snapshot = &fixture.expected["snapshots"][id];
    let io = if passthrough && !common::has_rings() && common::is_root() && common::place::is_local() {
        "passthrough"
    } else {
        "cached"
    };
    let mount = Mount::new(&fixture.repository, &["--snapshot", id, "--io", io]);
    let shown = read_hashes(&mount.path());
    let expected = expected_keys(snapshot);
    let what = format!("{} {id} ({io})", fixture.name);

    let names = |keys: &Keys| keys.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&shown), names(&expected), "{what}: keys");
    let errors = snapshot.get("errors").and_then(Value::as_object);
    let mut unreadable = 0;
    for (key, (size, hash)) in &shown {
        let (expected_size, expected_hash) = &expected[key];
        // Where the reference gives no size the file has none.
        if *expected_size != u64::MAX {
            assert_eq!(size, expected_size, "{what}: size of {key}");
        }
        match hash {
            Some(hash) if expected_hash.is_some() => assert_eq!(Some(hash), expected_hash.as_ref(), "{what}: {key}"),
            Some(_) => {}
            None => unreadable += 1,
        }
    }
    let with_virtual = fixture.name.contains("virtual") || errors.is_some_and(|e| format!("{e:?}").contains("virtual"));
    assert!(unreadable == 0 || with_virtual, "{what}: {unreadable} keys give EACCES");
    if unreadable > 0 {
        let log = mount.log();
        assert!(log.contains("no such location is allowed") && log.contains("://"), "{what}: {log}");
    }
    (shown.len(), unreadable)
}

/// Mounts every ref by its name: the snapshot must be the same.
fn check_named_mounts(fixture: &Fixture) {
    for (name, expected) in fixture.expected["refs"].as_object().unwrap() {
        let (kind, name) = name.split_once('/').unwrap();
        // In the form of mount(8), too.
        let words = if kind == "tag" {
            vec!["-o".to_owned(), format!("ro,tag={}", name.replace('\\', "\\\\").replace(',', "\\,"))]
        } else {
            vec![format!("--branch={name}")]
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mount = Mount::new(&fixture.repository, &words);
        let id = expected["snapshot"].as_str().unwrap();
        assert!(mount.log().contains(&format!("is snapshot {id}")), "{}: {kind} {name}", fixture.name);
    }
}

fn expected_keys(snapshot: &Value) -> Keys {
    if let Some(keys) = snapshot.get("fskeys") {
        return keys.as_object().unwrap().iter().map(|(key, value)| (key.clone(), size_and_hash(value))).collect();
    }
    let documents = snapshot["zarr_json"].as_object().unwrap();
    let keys = snapshot["keys"].as_object().unwrap();
    let mut out: Keys = keys.iter().map(|(key, value)| (file_name_of(key, documents), size_and_hash(value))).collect();
    for member in ["errors", "listed_but_not_found", "listed_but_not_there"] {
        let more: Vec<&String> = match snapshot.get(member) {
            Some(Value::Object(keys)) => keys.keys().collect(),
            _ => Vec::new(),
        };
        for key in more {
            out.entry(file_name_of(key, documents)).or_insert((u64::MAX, None));
        }
    }
    out
}

fn size_and_hash(value: &Value) -> (u64, Option<String>) {
    (value[0].as_u64().unwrap_or(u64::MAX), value[1].as_str().map(str::to_owned))
}

/// Returns the path of a key of the reference's (`a/c/0/1`) by the array's own key encoding.
fn file_name_of(key: &str, documents: &serde_json::Map<String, Value>) -> String {
    if key == "zarr.json" || key.ends_with("/zarr.json") {
        return key.to_owned();
    }
    let arrays = documents.iter().filter(|(_, document)| document["node_type"] == "array");
    let owner = arrays
        .filter_map(|(document_key, document)| {
            let folder = document_key.strip_suffix("zarr.json")?;
            let rest = key.strip_prefix(folder)?;
            (rest == "c" || rest.starts_with("c/")).then_some((folder, rest, document))
        })
        .max_by_key(|(folder, _, _)| folder.len());
    let Some((folder, rest, document)) = owner else { return key.to_owned() };
    let coords: Vec<&str> = rest.split('/').skip(1).collect();
    let encoding = &document["chunk_key_encoding"];
    let v2 = encoding["name"] == "v2";
    let separator = encoding["configuration"]["separator"].as_str().unwrap_or(if v2 { "." } else { "/" });
    let name = match (v2, coords.is_empty()) {
        (true, true) => "0".to_owned(),
        (true, false) => coords.join(separator),
        (false, _) => std::iter::once("c").chain(coords).collect::<Vec<_>>().join(separator),
    };
    format!("{folder}{name}")
}
