//! Warnings about arrays that other programs cannot read as they are stored: by `status`, `commit`,
//! `import` and `verify`.

use icechunk::format::ByteRange;
use serde_json::{Value, json};

use crate::common::lab::{reopen, session_on};
use crate::common::writing::{GROUP, Writable, put};
use crate::common::{Output, block_on, icechunkfs, run_on};

/// Arrays of two chunks of two bytes, with the names that their encodings give these.
fn arrays() -> Vec<(&'static str, Value, [&'static str; 2])> {
    let of = |name: &str, separator: &str| json!({"name": name, "configuration": {"separator": separator}});
    let suffix = json!({"name": "suffix", "configuration": {"suffix": ".bin", "base-encoding": of("default", "/")}});
    vec![
        ("slash", of("default", "/"), ["c/0", "c/1"]),
        ("dot", of("default", "."), ["c.0", "c.1"]),
        ("v2", of("v2", "."), ["0", "1"]),
        ("v2-slash", of("v2", "/"), ["0", "1"]),
        ("suffix", suffix, ["c/0.bin", "c/1.bin"]),
    ]
}

fn document(encoding: &Value, codecs: &Value) -> String {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}}, "chunk_key_encoding": encoding, "codecs": codecs,
    })
    .to_string()
}

fn warned(output: &Value) -> Vec<String> {
    output["warnings"].as_array().unwrap().iter().map(|one| one["path"].as_str().unwrap().to_owned()).collect()
}

fn commit(mount: &Writable, words: &[&str]) -> Output {
    icechunkfs([&["commit", mount.root().to_str().unwrap(), "-m", "x"], words].concat())
}

/// The keys that the library asks for are the default ones: it has the documents, and no chunk of
/// the other arrays.
#[test]
fn arrays_that_the_icechunk_library_cannot_read_are_warned_of() {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    let codecs = json!(["bytes"]);
    for (name, encoding, keys) in arrays() {
        put(&mount.root().join(name).join("zarr.json"), document(&encoding, &codecs)).unwrap();
        for key in keys {
            put(&mount.root().join(name).join(key), [1, 2]).unwrap();
        }
    }
    let others = ["/dot", "/suffix", "/v2", "/v2-slash"];
    let status = run_on(mount.root(), &["status", "--json"]).json();
    assert_eq!(warned(&status), others);
    assert!(run_on(mount.root(), &["status"]).text().contains("/dot: its chunk_key_encoding"));
    let refused = commit(&mount, &["--strict"]).failure();
    assert!(refused.contains("--strict") && refused.contains("/suffix: its chunk_key_encoding"), "{refused}");
    let exported = tempfile::tempdir().unwrap();
    let said = commit(&mount, &[]).text();
    assert!(said.contains("warning: /dot: its chunk_key_encoding") && said.contains("; and 3 more"), "{said}");

    block_on(async {
        let repository = reopen(mount.repository()).await;
        let store = session_on(&repository, "main").await.1;
        for (name, _, keys) in arrays() {
            store.get(&format!("{name}/zarr.json"), &ByteRange::ALL).await.unwrap();
            let chunk = store.get(&format!("{name}/{}", keys[0]), &ByteRange::ALL).await;
            assert_eq!(chunk.is_ok(), name == "slash", "{name}: {chunk:?}");
        }
    });
    // Chunks that are written later warn, too; others do not.
    std::fs::write(mount.root().join("v2/0"), [3, 4]).unwrap();
    std::fs::write(mount.root().join("slash/c/0"), [3, 4]).unwrap();
    assert_eq!(warned(&commit(&mount, &["--json"]).json()), ["/v2"]);
    std::fs::write(mount.root().join("slash/c/0"), [5, 6]).unwrap();
    assert_eq!(warned(&commit(&mount, &["--strict", "--json"]).json()), [] as [&str; 0]);

    let verified = run_on(mount.repository(), &["verify", "--json"]);
    assert_eq!(verified.status.code(), Some(3));
    let report: Value = serde_json::from_slice(&verified.stdout).unwrap();
    let of_names = report["findings"].as_array().unwrap().iter().filter(|found| found["rule"] == "chunk-names");
    assert_eq!(of_names.count(), 4 * 3, "of each snapshot: {report:#}");
    run_on(mount.repository(), &["export", exported.path().join("new").to_str().unwrap()]).success();
    let repo = exported.path().join("repo");
    let source = exported.path().join("new");
    let imported = icechunkfs(["import", source.to_str().unwrap(), repo.to_str().unwrap()]).text();
    assert!(imported.contains("warning:\n  dot: its chunk_key_encoding"), "{imported}");
}

#[test]
fn raw_chunks_of_a_wrong_length_are_warned_of() {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    for (name, codecs) in [("raw", json!(["bytes"])), ("packed", json!(["bytes", "zstd"]))] {
        put(&mount.root().join(name).join("zarr.json"), document(&json!("default"), &codecs)).unwrap();
        put(&mount.root().join(name).join("c/0"), [1, 2]).unwrap();
        put(&mount.root().join(name).join("c/1"), [1, 2, 3]).unwrap();
    }
    let why = "chunk [1]: it has 3 bytes, but each uncompressed chunk of the array has 2";
    let expected = json!([{"path": "/raw", "why": why}]);
    assert_eq!(run_on(mount.root(), &["status", "--json"]).json()["warnings"], expected);
    assert!(commit(&mount, &["--strict"]).failure().contains(why));
    assert_eq!(commit(&mount, &["--json"]).json()["warnings"], expected);
    let verified = run_on(mount.repository(), &["verify"]);
    assert_eq!(verified.status.code(), Some(3));
    assert!(verified.all().contains("it has 3 bytes, but each uncompressed"), "{}", verified.all());
}
