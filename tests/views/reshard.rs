//! Shared by the tests of other chunk units: plain Zarr trees as repositories, and the values that
//! programs read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::writing::needed;
use crate::common::{icechunkfs, project, run};

pub const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;

/// Files by path.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Imports a plain Zarr tree. Returns the repository.
pub fn import(directory: &Path, plain: &Path) -> PathBuf {
    let repo = directory.join("repo");
    icechunkfs(["init", text(&repo)]).success();
    icechunkfs(["import", text(plain), text(&repo), "-m", "made"]).success();
    repo
}

/// Writes `files` as a plain Zarr tree and imports it. Returns the repository.
pub fn made(directory: &Path, files: &Files) -> PathBuf {
    let plain = directory.join("plain");
    for (key, bytes) in files {
        let path = plain.join(key);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    import(directory, &plain)
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the Python of zarr-python 2, if it is installed.
pub fn old_python() -> Option<PathBuf> {
    let path = project("target/venv-zarr2/bin/python");
    needed(path.exists(), &format!("{}: scripts/setup --python --zarr2 makes it", path.display())).then_some(path)
}

/// Runs a script of this directory, which prints JSON.
pub fn script(python: &Path, name: &str, words: &[&str]) -> Value {
    let printed = run(Command::new(python).arg(project("tests/views").join(name)).args(words)).success();
    // icechunk logs to the standard output, too.
    let printed = String::from_utf8(printed).unwrap();
    serde_json::from_str(printed.lines().last().unwrap()).unwrap()
}

/// Compares two outputs of `dump.py`, but for the shapes of chunks. Returns the number of arrays.
pub fn assert_same_values(found: &Value, expected: &Value, is_shown: impl Fn(&str) -> bool) -> usize {
    let arrays = |dump: &Value| -> BTreeMap<String, Value> {
        let all = dump["arrays"].as_object().unwrap().clone().into_iter();
        all.filter(|(path, _)| is_shown(path)).collect()
    };
    let found = arrays(found);
    let expected = arrays(expected);
    let missing: Vec<_> = expected.keys().filter(|path| !found.contains_key(*path)).collect();
    assert!(missing.is_empty() && found.len() == expected.len(), "{} arrays, without {missing:?}", found.len());
    for (path, array) in &expected {
        assert!(array.get("error").is_none(), "{path}: {array}");
        for member in ["shape", "kind", "values", "attributes"] {
            assert_eq!(found[path][member], array[member], "{path}: {member}: {}", found[path]);
        }
    }
    expected.len()
}

/// Returns the document of an array of bytes.
pub fn array(shape: &[u64], chunks: &[u64], encoding: &Value, codecs: &Value) -> Vec<u8> {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": encoding, "codecs": codecs
    })
    .to_string()
    .into_bytes()
}

/// Returns the four usual encodings of chunk keys.
pub fn encodings() -> Vec<Value> {
    let encoding = |(name, separator)| json!({"name": name, "configuration": {"separator": separator}});
    [("default", "/"), ("default", "."), ("v2", "/"), ("v2", ".")].into_iter().map(encoding).collect()
}

/// Returns the key of the chunk at `coords`, as the specification has it.
pub fn key(encoding: &Value, coords: &[u64]) -> String {
    let separator = encoding["configuration"]["separator"].as_str().unwrap();
    let numbers: Vec<String> = coords.iter().map(u64::to_string).collect();
    let prefix = if encoding["name"] == "default" { vec!["c".to_owned()] } else { vec![] };
    let parts = [prefix, numbers].concat();
    if parts.is_empty() { "0".to_owned() } else { parts.join(separator) }
}

/// Returns all coordinates in `grid`, in C order.
pub fn all_coords(grid: &[u64]) -> Vec<Vec<u64>> {
    grid.iter().fold(vec![vec![]], |all, length| {
        all.iter().flat_map(|coords| (0..*length).map(move |coord| [&coords[..], &[coord]].concat())).collect()
    })
}
