//! `icechunkfs show`: one group or array, as the repository has it.

use icechunk::format::format_constants::SpecVersionBin;

use super::restore::empty;
use crate::common::run_on;
use crate::common::writing::{GROUP, array};

#[test]
fn a_node_is_described_with_its_last_change() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (_directory, place, reference) = empty(version);
        let mut document: serde_json::Value = serde_json::from_str(&array(&[4, 6], &[2, 6])).unwrap();
        document["attributes"] = serde_json::json!({"units": "K", "long": "x".repeat(500), "odd\n": [1]});
        document["dimension_names"] = serde_json::json!(["lat", null]);
        let document = document.to_string();
        let files: [(&str, &[u8]); 4] = [
            ("zarr.json", GROUP.as_bytes()),
            ("g/zarr.json", GROUP.as_bytes()),
            ("g/a/zarr.json", document.as_bytes()),
            ("g/a/c/0/0", b"123456789012"),
        ];
        reference.commit(&files, "the array");
        reference.commit(&[("other/zarr.json", GROUP.as_bytes())], "another group");
        let array = run_on(&place, &["show", "g/a"]).text();
        for words in [
            "/g/a",
            "array of",
            "[4, 6]  [lat, null]",
            "[2, 6]  1 of 2 chunks stored, 12 bytes",
            "units: K",
            "odd\\n: [1]",
            "the array",
        ] {
            assert!(array.contains(words), "{words}: {array}");
        }
        assert!(!array.contains("another group") && array.lines().all(|line| line.len() < 150), "{array}");
        let json = run_on(&place, &["show", "g/a", "--json"]).json();
        assert_eq!((&json["kind"], &json["chunks"], &json["bytes"]), (&"array".into(), &1.into(), &12.into()));
        assert_eq!(json["last_change"]["message"], "the array");
        assert_eq!(json["zarr_json"]["attributes"]["units"], "K");
        let root = run_on(&place, &["show"]).text();
        assert!(root.contains("group of      2 groups, 0 arrays") && root.contains("another group"), "{root}");
        assert!(run_on(&place, &["show", "g/b"]).failure().contains("g/b"));
        run_on(&place, &["show", "g/a/c/0/0"]).failure();
    }
}

/// The modifiers of a view are those of `.icechunk/view`, and the separate options work as before.
#[test]
fn a_view_takes_modifiers() {
    let (_directory, place, reference) = empty(SpecVersionBin::V2);
    let document = array(&[4], &[1]);
    let files: [(&str, &[u8]); 3] =
        [("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes()), ("a/c/0", b"1")];
    reference.commit(&files, "the array");
    let listed = |words: &[&str]| run_on(&place, &[&["ls", "--recursive"], words].concat()).text();
    assert_eq!(listed(&["--view", "zarr,shard=2"]), listed(&["--shard", "2"]));
    assert_eq!(listed(&["--view=zarr,consolidated"]), listed(&["--consolidated"]));
    assert_ne!(listed(&["--view", "zarr,shard=2"]), listed(&[]));
    for wrong in ["zarr3", "zarr,classic-types", "netcdf,unshard", "zarr,"] {
        let refused = run_on(&place, &["ls", "--view", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {}", refused.stderr);
    }
}
