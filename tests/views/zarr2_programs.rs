//! zarr-python 2 and xarray on the Zarr version 2 view, compared with zarr-python 3 and xarray on
//! the native mount.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::reshard::{Files, GROUP, made};
use crate::common::{Mount, run};

/// Pythons of `scripts/setup`: with zarr-python 3 and icechunk, and with zarr-python 2.
struct Pythons {
    new: PathBuf,
    old: PathBuf,
}

fn pythons() -> Option<Pythons> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
    let new = target.join("venv/bin/python");
    let old = target.join("venv-zarr2/bin/python");
    if new.exists() && old.exists() {
        return Some(Pythons { new, old });
    }
    assert!(std::env::var_os("CI").is_none(), "CI must have {}: scripts/setup makes it", old.display());
    eprintln!(
        "NOT RUN: {} or {} does not exist; scripts/setup --python --zarr2 makes both",
        new.display(),
        old.display()
    );
    None
}

fn script(python: &Path, name: &str, words: &[&str]) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/views").join(name);
    let output = run(Command::new(python).arg(path).args(words)).success();
    // icechunk logs to the standard output, too.
    let text = String::from_utf8(output).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// Repository with arrays of every kind.
struct Repository {
    directory: tempfile::TempDir,
    made: Value,
}

fn repository(pythons: &Pythons) -> &'static Repository {
    static REPOSITORY: OnceLock<Repository> = OnceLock::new();
    REPOSITORY.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let made = script(&pythons.new, "make.py", &[directory.path().to_str().unwrap()]);
        Repository { directory, made }
    })
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns the attributes that version 2 must have for those of version 3.
fn expected_attributes(array: &Value) -> Value {
    let mut attributes = array["attributes"].clone();
    let names = array["dimension_names"].as_array().filter(|names| names.iter().all(Value::is_string));
    let names = if array["shape"] == json!([]) { Some(json!([])) } else { names.map(|names| json!(names)) };
    if let Some(names) = names {
        attributes["_ARRAY_DIMENSIONS"] = names;
    }
    attributes
}

#[test]
#[ignore = "needs zarr-python 2: scripts/test --full"]
fn zarr_python_2_reads_what_zarr_python_3_reads() {
    let Some(pythons) = pythons() else { return };
    let repository = repository(&pythons);
    let place = repository.directory.path();
    let native = Mount::new(place, &["--read-only"]);
    let view = Mount::new(place, &["--view", "zarr2"]);
    let expected = script(&pythons.new, "dump.py", &[text(&native.path())]);
    let arrays = expected["arrays"].as_object().unwrap();
    let left_out: Vec<&str> =
        repository.made["left_out"].as_array().unwrap().iter().map(|p| p.as_str().unwrap()).collect();
    assert_eq!(arrays.len() as u64, repository.made["arrays"].as_u64().unwrap());
    assert!(arrays.len() > 200, "{}", arrays.len());
    let failed: Vec<_> = arrays.iter().filter(|(_, array)| array.get("error").is_some()).collect();
    assert!(failed.is_empty(), "zarr-python 3: {failed:?}");
    let report = std::fs::read_to_string(view.path().join(".icechunk/zarr2")).unwrap();
    for path in &left_out {
        assert!(report.lines().any(|line| line.starts_with(&format!("/{path}\tleft out\t"))), "{path}: {report}");
    }
    for words in [&[][..], &["--consolidated"]] {
        let place = view.path();
        let read = script(&pythons.old, "dump.py", &[&[text(&place)], words].concat());
        let found = read["arrays"].as_object().unwrap();
        let mut wrong = Vec::new();
        for (path, array) in arrays.iter().filter(|(path, _)| !left_out.contains(&path.as_str())) {
            let Some(found) = found.get(path) else {
                wrong.push(format!("{path}: is missing"));
                continue;
            };
            for member in ["shape", "chunks", "kind", "values"] {
                if found[member] != array[member] {
                    wrong.push(format!(
                        "{path}: {member} {} instead of {} ({})",
                        found[member], array[member], found["error"]
                    ));
                }
            }
            let mut shown = found["attributes"].clone();
            let mut attributes = expected_attributes(array);
            // Base64 in version 3, a number in version 2: xarray's reading of both is compared
            // elsewhere.
            for attributes in [&mut shown, &mut attributes] {
                attributes.as_object_mut().map(|attributes| attributes.remove("_FillValue"));
            }
            if shown != attributes {
                wrong.push(format!("{path}: attributes {shown} instead of {attributes}"));
            }
        }
        assert!(wrong.is_empty(), "{words:?}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
        assert_eq!(found.len(), arrays.len() - left_out.len(), "{words:?}");
        assert_eq!(read["groups"], expected["groups"], "{words:?}");
        println!("{words:?}: {} arrays equal", found.len());
    }
}

#[test]
#[ignore = "needs zarr-python 2: scripts/test --full"]
fn xarray_reads_the_same_dataset() {
    let Some(pythons) = pythons() else { return };
    let place = repository(&pythons).directory.path();
    let native = Mount::new(place, &["--read-only"]);
    let view = Mount::new(place, &["--view", "zarr2"]);
    let expected = script(&pythons.new, "dump.py", &[text(&native.path()), "--xarray", "dataset"]);
    assert!(expected.as_object().unwrap().len() >= 9, "{expected}");
    for words in [&["--xarray", "dataset"][..], &["--xarray", "dataset", "--consolidated"]] {
        let read = script(&pythons.old, "dump.py", &[&[text(&view.path())], words].concat());
        assert_eq!(read, expected, "{words:?}");
    }
}

/// Prints the elements of an array.
const READ: &str = "import sys, zarr; print(zarr.open(sys.argv[1], mode='r')[...].tolist())";

#[test]
#[ignore = "needs zarr-python 2: scripts/test --full"]
fn zarr_python_2_reads_structures_with_a_fill_value_for_each_field() {
    let Some(pythons) = pythons() else { return };
    let directory = tempfile::tempdir().unwrap();
    let field = |name: &str, data_type: Value| json!({"name": name, "data_type": data_type});
    let text = json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}});
    let fields = [field("a", json!("int16")), field("b", json!("float32")), field("c", text)];
    let element = [&7_i16.to_le_bytes()[..], &2.5_f32.to_le_bytes(), b"x\0\0\0y\0\0\0"].concat();
    let document = json!({
        "zarr_format": 3, "node_type": "array", "shape": [3], "attributes": {},
        "data_type": {"name": "struct", "configuration": {"fields": fields}},
        "fill_value": {"a": -1, "b": "-Infinity", "c": "z"},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    });
    let files = Files::from([
        ("zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        ("s/zarr.json".to_owned(), document.to_string().into_bytes()),
        ("s/c/1".to_owned(), element),
    ]);
    let mount = Mount::new(&made(directory.path(), &files), &["--view", "zarr2"]);
    let read = run(Command::new(&pythons.old).args(["-c", READ]).arg(mount.path().join("s"))).success();
    let missing = "(-1, -inf, 'z')";
    assert_eq!(String::from_utf8(read).unwrap().trim(), format!("[{missing}, (7, 2.5, 'xy'), {missing}]"));
}
