//! `icechunkfs resolve`: conflicts are settled by the commands that the conflicts themselves name,
//! and the reference reads the result.

use icechunk::format::format_constants::SpecVersionBin;
use serde_json::{Value, json};

use super::restore::empty;
use crate::common::writing::{GROUP, Reference, Writable, array};
use crate::common::{program, run_on};

fn document(length: u64, attributes: &Value) -> Vec<u8> {
    let mut document: Value = serde_json::from_str(&array(&[length], &[1])).unwrap();
    document["attributes"] = attributes.clone();
    document.to_string().into_bytes()
}

/// Runs the first command that `text` names, with `side`.
fn run_named(text: &str, side: &str) {
    let command = text.split("icechunkfs resolve ").nth(1).unwrap().split(" --ours").next().unwrap();
    let script = format!("{} resolve {command} {side}", program());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success(), "{script}");
}

/// Two people append to the same series, and both set its title.
#[test]
fn an_append_to_the_same_array_is_settled_and_the_reference_reads_it() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, reference) = empty(version);
        let at_first = document(4, &json!({"title": "a series"}));
        reference.commit(&[("zarr.json", GROUP.as_bytes()), ("it's/zarr.json", &at_first)], "the array");
        let mount = Writable::of(&place, &[]);
        let root = mount.root();
        let theirs = document(6, &json!({"title": "of theirs", "by": "them"}));
        reference.commit(&[("it's/zarr.json", &theirs), ("it's/c/5", b"5"), ("it's/c/0", b"t")], "theirs");
        std::fs::write(root.join("it's/zarr.json"), document(8, &json!({"title": "of mine", "on": "disk"}))).unwrap();
        std::fs::create_dir_all(root.join("it's/c")).unwrap();
        std::fs::write(root.join("it's/c/7"), b"7").unwrap();
        std::fs::write(root.join("it's/c/0"), b"m").unwrap();
        let refused = run_on(&root, &["commit", "-m", "mine"]).failure();
        assert!(refused.contains("2 conflicts: /it's)") && refused.contains("nothing was committed"), "{refused}");
        let conflicts = mount.read_control("conflicts");
        let [chunk, document_of] = conflicts.split("to settle it").take(2).collect::<Vec<_>>()[..] else { panic!() };
        assert!(chunk.contains("ChunkDoubleUpdate") || document_of.contains("ChunkDoubleUpdate"), "{conflicts}");
        assert!(conflicts.contains("attributes/title") && conflicts.contains("shape"), "{conflicts}");
        run_on(&root, &["resolve", "it's/c/0", "--theirs"]).success();
        // A message about one conflict names its command.
        let refused = run_on(&root, &["commit", "-m", "mine"]).failure();
        assert!(refused.contains("1 conflict:"), "{refused}");
        run_named(&refused, "--ours");
        run_on(&root, &["commit", "-m", "mine"]).success();
        let keys = Reference::open(&place).keys();
        let merged: Value = serde_json::from_slice(&keys["it's/zarr.json"]).unwrap();
        assert_eq!(merged["attributes"], json!({"title": "of mine", "by": "them", "on": "disk"}));
        assert_eq!(merged["shape"], json!([8]));
        assert_eq!([&keys["it's/c/0"], &keys["it's/c/5"], &keys["it's/c/7"]], [b"t", b"5", b"7"]);
        assert_eq!(mount.read_control("conflicts"), "no conflicts\n");
        assert_eq!(std::fs::read(root.join("it's/c/0")).unwrap(), b"t");
    }
}

#[test]
fn what_cannot_be_settled_is_told() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let array = document(4, &json!({}));
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", &array), ("b/zarr.json", &array)], "arrays");
    let mount = Writable::of(&place, &[]);
    let root = mount.root();
    assert!(run_on(&root, &["resolve", "a", "--ours"]).failure().contains("no conflicts"));
    let no_side = run_on(&root, &["resolve", "a"]).failure();
    assert!(no_side.contains("--ours"), "{no_side}");
    reference.commit(&[("a/c/0", b"0"), ("b/c/0", b"0")], "theirs");
    std::fs::remove_dir_all(root.join("a")).unwrap();
    std::fs::create_dir_all(root.join("b/c")).unwrap();
    std::fs::write(root.join("b/c/0"), b"1").unwrap();
    run_on(&root, &["commit"]).failure();
    let told = run_on(&root, &["resolve", "b", "a", "--ours"]).failure();
    assert!(told.contains("icechunkfs discard") && told.contains("Nothing was settled"), "{told}");
    let told = run_on(&root, &["resolve", "b", "c", "--theirs"]).failure();
    assert!(told.contains("/c"), "{told}");
    let report = run_on(&root, &["resolve", "b", "--theirs", "--json"]).json();
    assert_eq!(report, json!({"settled": 1}));
    let told = run_on(&place, &["resolve", "a", "--ours"]).failure();
    assert!(told.contains("which is mounted at"), "{told}");
}
