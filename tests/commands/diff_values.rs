//! `diff --values` against numpy, and as people read it.

use std::collections::BTreeSet;
use std::process::Command;

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::Value;

use super::restore::empty;
use crate::common::writing::{GROUP, touch};
use crate::common::{self, Mount, project, python, run_on};

#[test]
fn values_that_differ_are_those_that_numpy_finds() {
    let Some(python) = python() else { return };
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, _) = empty(version);
        let mount = Mount::new(&place, &["--ephemeral"]);
        let run = |stage: &str| {
            let mut script = Command::new(&python);
            common::run(script.arg("-B").arg(project("tests/python/change_values.py")).arg(stage).arg(mount.path()))
        };
        run("write").success();
        touch(&mount.control("commit")).unwrap();
        let expected = run("change").json();
        touch(&mount.control("commit")).unwrap();
        let found = run_on(&place, &["diff", "main~1", "main", "--values", "--json"]).json();
        let mut seen = BTreeSet::new();
        for node in found["nodes"].as_array().unwrap() {
            let Some(values) = node.get("values") else { continue };
            let name = node["path"].as_str().unwrap().trim_start_matches('/');
            let expected = &expected[name];
            assert_eq!(values["differing"], expected["differing"], "{name}: {values:#}");
            let index = |one: &Value| one["index"].clone();
            let first: Vec<Value> = values["first"].as_array().unwrap().iter().map(index).collect();
            assert_eq!(Value::from(first), expected["first"], "{name}: {values:#}");
            let [found, wanted] = [&values["largest"], &expected["largest"]].map(Value::as_f64);
            let is_near = |(found, wanted): (f64, f64)| (found - wanted).abs() <= wanted.abs() * 1e-12;
            assert_eq!(found.is_some(), wanted.is_some(), "{name}: {values:#}");
            assert!(found.zip(wanted).is_none_or(is_near), "{name}: {found:?} and {wanted:?}");
            seen.insert(name.to_owned());
        }
        let all: BTreeSet<String> = expected.as_object().unwrap().keys().cloned().collect();
        assert_eq!(seen, all);
    }
}

#[test]
fn values_are_shown_with_their_places() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let array = |data_type: &str, codecs: &str| {
        format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[20],"data_type":"{data_type}","chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[16]}}}},"chunk_key_encoding":{{"name":"default"}},"fill_value":0,"codecs":[{codecs}]}}"#
        )
    };
    let bytes = r#"{"name":"bytes"}"#;
    let known = array("uint8", bytes);
    let unknown = array("uint8", r#"{"name":"bytes"},{"name":"secret"}"#);
    let keys = ["a/c/0", "b/c/0", "c/c/0"];
    let mut first = vec![("zarr.json", GROUP.as_bytes())];
    first.extend([("a/zarr.json", known.as_bytes()), ("b/zarr.json", unknown.as_bytes())]);
    first.push(("c/zarr.json", known.as_bytes()));
    first.extend(keys.map(|key| (key, &[1_u8; 16][..])));
    reference.commit(&first, "the first");
    let other = array("int8", bytes);
    let one = [&[4_u8, 1, 2][..], &[1; 13]].concat();
    reference.commit(
        &[
            ("a/c/0", &one),
            ("a/c/1", &[9; 16]),
            ("b/c/0", &[2; 16]),
            ("c/zarr.json", other.as_bytes()),
            ("c/c/0", &[2; 16]),
        ],
        "the second",
    );
    let text = run_on(&place, &["diff", "main~1", "main", "--values"]).text();
    for line in [
        // Of chunk 1 the array has four elements.
        "values   /a  6 of 20 elements of these chunks differ by at most 9",
        "  [0]  1 -> 4",
        "  [2]  1 -> 2",
        "  [19]  0 -> 9",
        "values   /b  not compared: ",
        "values   /c  not compared: the data type differs",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    // Chunks that only one of them has are not read, whatever they are.
    let longer = known.replace("\"shape\":[20]", "\"shape\":[64]");
    reference.commit(&[("a/zarr.json", longer.as_bytes()), ("a/c/3", b"short")], "longer");
    let text = run_on(&place, &["diff", "main~1", "main", "--values"]).text();
    assert!(text.contains("values   /a  only one side has elements of these chunks\n"), "{text}");
    let filled = longer.replace("\"fill_value\":0", "\"fill_value\":7");
    reference.commit(&[("a/zarr.json", filled.as_bytes())], "another fill value");
    let text = run_on(&place, &["diff", "main~1", "main", "--values"]).text();
    assert!(text.contains("; so does the fill value of chunks that are not stored"), "{text}");
    // Damage is told with the chunk, and takes no other array with it.
    reference.commit(&[("a/c/0", b"short"), ("c/c/0", &[3; 16])], "the third");
    let text = run_on(&place, &["diff", "main~1", "main", "--values"]).text();
    assert!(text.contains("values   /a  not compared: chunk 0: a chunk of 5 bytes where its shape needs 16"), "{text}");
    assert!(text.contains("values   /c  16 of 16 elements of these chunks differ by at most 1"), "{text}");
    assert!(text.contains("  [9]  2 -> 3\n  and 6 more"), "{text}");
}
