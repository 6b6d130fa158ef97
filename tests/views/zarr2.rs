//! The Zarr version 2 view of the fixtures: documents by an independent reading of `zarr.json`,
//! chunks by their native bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_json::Value;

use crate::common::{self, FixtureSet, Mount, icechunkfs, read_files};

type Files = BTreeMap<String, Vec<u8>>;

/// Mounts a snapshot of `repo` in both forms and returns the files of each, and the report.
fn both(repo: &Path, id: &str) -> (Files, Files, String) {
    let native = Mount::new(repo, &["--snapshot", id]);
    let view = Mount::new(repo, &["--snapshot", id, "--view", "zarr2"]);
    let report = std::fs::read_to_string(view.path().join(".icechunk/zarr2")).unwrap();
    (readable_files(&native.path()), readable_files(&view.path()), report)
}

/// Reads all files below a directory like [`read_files`]; those that cannot be read, as virtual
/// chunks here, are empty.
fn readable_files(root: &Path) -> Files {
    let mut files = Files::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                open.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap_or_default();
                files.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned(), bytes);
            }
        }
    }
    files
}

fn json(files: &Files, key: &str) -> Value {
    let bytes = files.get(key).unwrap_or_else(|| panic!("no {key}"));
    serde_json::from_slice(bytes).unwrap_or_else(|error| panic!("{key}: {error}"))
}

fn under(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") }
}

/// Returns the arrays that the report leaves out.
fn left_out(report: &str) -> BTreeMap<String, String> {
    let parts = report.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    parts.filter(|parts| parts[1] == "left out").map(|parts| (parts[0][1..].to_owned(), parts[2].to_owned())).collect()
}

/// Returns the key in the view of the chunk with native key `key`, both relative to the array; none
/// if the array has no such chunk: nodes and other arrays' chunks may be below an array, too.
fn view_key(document: &Value, key: &str) -> Option<String> {
    let rank = document["shape"].as_array().unwrap().len();
    let encoding = &document["chunk_key_encoding"];
    let is_v2 = encoding["name"] == "v2" || encoding == "v2";
    let separator = encoding["configuration"]["separator"].as_str().unwrap_or(if is_v2 { "." } else { "/" });
    let numbers = match (is_v2, rank) {
        (true, 0) => return (key == "0").then(|| "0".to_owned()),
        (false, 0) => return (key == "c").then(|| "0".to_owned()),
        (true, _) => key,
        (false, _) => key.strip_prefix('c')?.strip_prefix(separator)?,
    };
    let parts: Vec<&str> = numbers.split(separator).collect();
    let is_chunk = parts.len() == rank && parts.iter().all(|part| part.parse::<u32>().is_ok());
    is_chunk.then(|| numbers.to_owned())
}

/// Compares the two forms of one snapshot. Returns the arrays in the view and the chunks compared.
fn compare(native: &Files, view: &Files, report: &str, what: &str) -> (usize, usize) {
    let left_out = left_out(report);
    let mut expected: BTreeSet<String> = BTreeSet::from([".zmetadata".to_owned()]);
    let mut arrays = 0;
    let mut chunks = 0;
    let consolidated = json(view, ".zmetadata");
    assert_eq!(consolidated["zarr_consolidated_format"], 1, "{what}");
    let mut consolidated_keys = BTreeSet::new();
    for key in native.keys().filter(|key| key.ends_with("zarr.json")) {
        let path = key.strip_suffix("zarr.json").unwrap().trim_end_matches('/');
        let document = json(native, key);
        if left_out.contains_key(path) {
            assert!(!view.keys().any(|key| key.starts_with(&under(path, "."))), "{what}: {path}");
            continue;
        }
        let zattrs = json(view, &under(path, ".zattrs"));
        for (name, value) in document["attributes"].as_object().into_iter().flatten() {
            if name != "_FillValue" {
                assert_eq!(&zattrs[name], value, "{what}: {path} {name}");
            }
        }
        if document["node_type"] == "group" {
            assert_eq!(json(view, &under(path, ".zgroup"))["zarr_format"], 2, "{what}: {path}");
            consolidated_keys.extend([".zgroup", ".zattrs"].map(|name| under(path, name)));
            continue;
        }
        consolidated_keys.extend([".zarray", ".zattrs"].map(|name| under(path, name)));
        let zarray = json(view, &under(path, ".zarray"));
        assert_eq!(zarray["zarr_format"], 2, "{what}: {path}");
        assert_eq!(zarray["shape"], document["shape"], "{what}: {path}");
        assert_eq!(zarray["chunks"], document["chunk_grid"]["configuration"]["chunk_shape"], "{what}: {path}");
        if let Some(names) = document["dimension_names"].as_array().filter(|names| names.iter().all(Value::is_string)) {
            assert_eq!(zattrs["_ARRAY_DIMENSIONS"].as_array(), Some(names), "{what}: {path}");
        }
        arrays += 1;
        let prefix = under(path, "");
        let has_checksum = document["codecs"].as_array().unwrap().last().unwrap()["name"] == "crc32c";
        let inside = native.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(&prefix)?, bytes)));
        for (own, bytes) in inside.filter_map(|(key, bytes)| Some((view_key(&document, key)?, bytes))) {
            let own = under(path, &own);
            let trimmed = bytes.len().saturating_sub(if has_checksum { 4 } else { 0 });
            assert_eq!(view.get(&own).map(Vec::as_slice), Some(&bytes[..trimmed]), "{what}: {own}");
            expected.insert(own);
            chunks += 1;
        }
    }
    // Documents of groups that exist only by their names are there, too.
    for key in view.keys().filter(|key| key.ends_with(".zgroup")) {
        consolidated_keys.extend([key.clone(), key.replace(".zgroup", ".zattrs")]);
    }
    let listed: BTreeSet<String> = consolidated["metadata"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(listed, consolidated_keys, "{what}");
    for key in &listed {
        assert_eq!(consolidated["metadata"][key], json(view, key), "{what}: {key}");
    }
    expected.extend(listed);
    let shown: BTreeSet<String> = view.keys().cloned().collect();
    assert_eq!(shown, expected, "{what}");
    (arrays, chunks)
}

fn check(set: &FixtureSet) -> (usize, usize) {
    let mut arrays = 0;
    let mut chunks = 0;
    for fixture in set.all() {
        let id = fixture.expected["branches"]["main"].as_str().unwrap();
        let (native, view, report) = both(&fixture.repository, id);
        let (a, c) = compare(&native, &view, &report, &format!("{} {id}", fixture.name));
        (arrays, chunks) = (arrays + a, chunks + c);
    }
    println!("{}: {arrays} arrays with {chunks} chunks", set.name);
    (arrays, chunks)
}

#[test]
fn own_fixtures_have_the_same_chunks_in_both_forms() {
    let (arrays, chunks) = check(&FixtureSet::own());
    assert!(arrays > 50 && chunks > 300, "{arrays} {chunks}");
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn shared_fixtures_have_the_same_chunks_in_both_forms() {
    if let Some(set) = FixtureSet::shared() {
        let (arrays, chunks) = check(&set);
        assert!(arrays > 50 && chunks > 300, "{arrays} {chunks}");
    }
}

#[test]
fn chunks_have_their_native_inodes_and_the_mount_takes_no_writes() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let native = Mount::new(&fixture.repository, &["--read-only"]);
    let ios = common::io_modes();
    for io in ios {
        let view = Mount::new(&fixture.repository, &["--view", "zarr2", "--io", io]);
        let files = read_files(&native.path());
        let shown = read_files(&view.path());
        let mut compared = 0;
        let mut numbers = BTreeSet::new();
        for key in shown.keys() {
            let number = std::fs::metadata(view.path().join(key)).unwrap().ino();
            assert!(numbers.insert(number), "{key}: two files have inode {number}");
            let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
            let own = format!("{path}/c/{name}");
            if name.starts_with('.') || !files.contains_key(&own) {
                continue;
            }
            assert_eq!(number, std::fs::metadata(native.path().join(own)).unwrap().ino());
            compared += 1;
        }
        assert!(compared > 5, "{compared}");
        let write = std::fs::write(view.path().join("new"), "x").unwrap_err();
        assert_eq!(write.raw_os_error(), Some(30), "EROFS");
    }
}

#[test]
fn ls_and_cat_show_the_view() {
    let fixture = FixtureSet::own().get("own-v2-basic");
    let repo = fixture.repository.to_str().unwrap();
    let view = Mount::new(&fixture.repository, &["--view", "zarr2"]);
    let files = read_files(&view.path());
    let rows = icechunkfs(["ls", repo, "--view", "zarr2", "--recursive", "--json"]).json();
    let listed: BTreeMap<String, u64> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "file")
        .map(|row| (row["path"].as_str().unwrap()[1..].to_owned(), row["bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(listed, files.iter().map(|(key, bytes)| (key.clone(), bytes.len() as u64)).collect());
    for key in [".zmetadata", ".zgroup"] {
        assert_eq!(icechunkfs(["cat", repo, key, "--view", "zarr2"]).success(), files[key]);
    }
    let text = String::from_utf8(icechunkfs(["ls", repo, "--view", "zarr2"]).success()).unwrap();
    assert!(text.lines().any(|line| line.starts_with("file") && line.ends_with("/.zgroup")), "{text}");
    icechunkfs(["cat", repo, "zarr.json", "--view", "zarr2"]).failure();
    icechunkfs(["ls", repo, "--view", "zarr9"]).failure();
}
