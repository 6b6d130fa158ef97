//! Inner chunks of shards as chunks.

use std::fs;

use serde_json::{Value, json};

use super::reshard::{
    Files, GROUP, all_coords, array, assert_same_values, encodings, import, key, made, old_python, script, text,
};
use crate::common::random::Random;
use crate::common::shard::{Form, USUAL, shuffled};
use crate::common::writing::Writable;
use crate::common::{Mount, errno, icechunkfs, python, read_files, run};

const VIEW: [&str; 3] = ["--view", "zarr", "--unshard"];

fn document(files: &Files, path: &str) -> Value {
    serde_json::from_slice(&files[&format!("{path}/zarr.json")]).unwrap()
}

#[test]
#[ignore = "needs zarr-python 2: scripts/test --full"]
fn programs_read_inner_chunks_as_they_read_shards() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let plain = directory.path().join("plain");
    let written = script(&python, "unshard_make.py", &[text(&plain)]);
    let repo = import(directory.path(), &plain);
    let expected = script(&python, "dump.py", &[text(&plain)]);

    let mount = Mount::new(&repo, &VIEW);
    let found = script(&python, "dump.py", &[text(&mount.path())]);
    let count = assert_same_values(&found, &expected, |_| true);
    assert_eq!(count as u64, written["arrays"].as_u64().unwrap());

    let stored: Vec<&str> = written["stored"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    let files = read_files(&mount.path());
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr")).unwrap();
    let mut unsharded = 0;
    for path in found["arrays"].as_object().unwrap().keys() {
        let is_stored = stored.contains(&format!("/{path}").as_str());
        assert_eq!(report.contains(&format!("/{path}\tshown as stored\t")), is_stored, "{path}: {report}");
        if !is_stored && path != "nested/zipped" {
            let codecs = document(&files, path)["codecs"].to_string();
            assert!(!codecs.contains("sharding_indexed"), "{path}: {codecs}");
            unsharded += 1;
        }
    }
    assert!(unsharded > 70, "{unsharded}");
    assert!(report.contains("/codecs/checked_behind\tshown with losses\tchecksum"), "{report}");

    let Some(old) = old_python() else { return };
    let mount = Mount::new(&repo, &["--view", "zarr2", "--unshard"]);
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr2")).unwrap();
    assert!(report.contains("/codecs/zipped_behind\tleft out\tcodec `gzip` behind its shards"), "{report}");
    let left_out: Vec<&str> = report.lines().filter(|line| line.contains("\tleft out\t")).collect();
    assert_eq!(left_out.len(), 3, "{report}");
    let is_shown = |path: &str| !left_out.iter().any(|line| line.starts_with(&format!("/{path}\t")));
    for words in [&[][..], &["--consolidated"]] {
        let found = script(&old, "dump.py", &[&[text(&mount.path())], words].concat());
        assert_eq!(assert_same_values(&found, &expected, is_shown), count - 3);
    }
}

/// Shards made by hand, and the files that the view must have, found without the code under test.
#[test]
fn the_view_has_exactly_the_inner_chunks() {
    let mut random = Random::new(5);
    let mut files = Files::new();
    let mut expected = Files::new();
    for (file, set) in [(&mut files, "zarr.json"), (&mut expected, "zarr.json")] {
        file.insert(set.to_owned(), GROUP.as_bytes().to_vec());
    }
    let mut arrays = Vec::new();
    for number in 0..60 {
        let rank = 1 + random.below(3);
        let form = Form { at_start: random.chance(50), big_endian: random.chance(50), checksum: random.chance(50) };
        let mut some = |most: usize| -> Vec<u64> { (0..rank).map(|_| 1 + random.below(most) as u64).collect() };
        let inner = some(3);
        let grid = some(4);
        let chunk: Vec<u64> = std::iter::zip(&inner, &grid).map(|(inner, count)| inner * count).collect();
        let shape: Vec<u64> = chunk.iter().map(|length| length * 2 + random.below(*length as usize) as u64).collect();
        let encoding = random.pick(&encodings()).clone();
        let path = format!("a{number}");
        let codec = form.codec(json!(inner), json!([{"name": "bytes"}]));
        files.insert(format!("{path}/zarr.json"), array(&shape, &chunk, &encoding, &json!([codec])));
        arrays.push((path.clone(), inner.clone()));
        let counts = |length: &[u64]| -> Vec<u64> {
            std::iter::zip(&shape, length).map(|(all, one)| all.div_ceil(*one)).collect()
        };
        let within = counts(&inner);
        for shard in all_coords(&counts(&chunk)) {
            if random.chance(30) {
                continue;
            }
            let slots = all_coords(&grid);
            let chunks: Vec<Option<Vec<u8>>> = slots
                .iter()
                .map(|_| {
                    random.chance(70).then(|| {
                        let length = random.below(900);
                        random.bytes(length)
                    })
                })
                .collect();
            let bytes = form.shard(&chunks, shuffled(chunks.len()));
            files.insert(format!("{path}/{}", key(&encoding, &shard)), bytes);
            for (slot, chunk) in std::iter::zip(slots, chunks) {
                let coords: Vec<u64> = std::iter::zip(std::iter::zip(&shard, &grid), &slot)
                    .map(|((shard, count), slot)| shard * count + slot)
                    .collect();
                let is_inside = std::iter::zip(&coords, &within).all(|(coord, count)| coord < count);
                if let Some(chunk) = chunk.filter(|_| is_inside) {
                    expected.insert(format!("{path}/{}", key(&encoding, &coords)), chunk);
                }
            }
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    let mount = Mount::new(&repo, &VIEW);
    let mut found = read_files(&mount.path());
    for (path, inner) in &arrays {
        let document = document(&found, path);
        assert_eq!(document["chunk_grid"]["configuration"]["chunk_shape"], json!(inner), "{path}");
        assert_eq!(document["codecs"], json!([{"name": "bytes"}]), "{path}");
        found.remove(&format!("{path}/zarr.json"));
    }
    assert!(expected.len() > 500, "{}", expected.len());
    assert!(found.keys().eq(expected.keys()), "{:?}", crate::common::differences(&found, &expected));
    for (key, bytes) in &expected {
        assert!(found[key] == *bytes, "{key}");
        let path = mount.path().join(key);
        assert_eq!(fs::metadata(path).unwrap().len(), bytes.len() as u64, "{key}");
    }
    // Chunks that no listing has do not exist.
    for (path, _) in arrays {
        for coords in [vec![999], vec![999, 0], vec![0, 0, 999]] {
            for encoding in encodings() {
                assert!(!mount.path().join(&path).join(key(&encoding, &coords)).exists());
            }
        }
    }
    // The same without a mount.
    let rows = icechunkfs(["ls", text(&repo), "--unshard", "--recursive", "--json"]).json();
    let listed = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["kind"] == "file" && !row["path"].as_str().unwrap().ends_with("zarr.json"));
    assert_eq!(listed.count(), expected.len() - 1);
}

#[test]
fn a_damaged_index_costs_only_the_chunks_of_its_shard() {
    let slash = &encodings()[0];
    let codec = USUAL.codec(json!([2]), json!([{"name": "bytes"}]));
    let chunk = |number: u8| Some(vec![number; 2]);
    let good = USUAL.shard(&[chunk(1), None, chunk(2), chunk(3)], 0..4);
    let mut damaged = good.clone();
    *damaged.last_mut().unwrap() ^= 1;
    // The second entry is beyond the shard, the third has half of a mark.
    let outside = [vec![7, 7], USUAL.index(&[(0, 2), (1, 1 << 40), (u64::MAX, 2), (u64::MAX, u64::MAX)])].concat();
    let files = Files::from([
        ("zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        ("a/zarr.json".to_owned(), array(&[32], &[8], slash, &json!([codec]))),
        ("a/c/0".to_owned(), good),
        ("a/c/1".to_owned(), damaged),
        ("a/c/2".to_owned(), outside),
        ("a/c/3".to_owned(), vec![1, 2, 3]),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    for view in [&VIEW[..], &["--view", "zarr2", "--unshard"]] {
        let mount = Mount::new(&repo, view);
        let chunks = mount.path().join(if view.contains(&"zarr2") { "a" } else { "a/c" });
        let mut names: Vec<u32> = fs::read_dir(&chunks)
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().ok())
            .collect();
        names.sort_unstable();
        // Chunks that may be there are listed: a copy without them would have fill values in their
        // place.
        assert_eq!(names, [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15], "{view:?}");
        for (number, expected) in [(0, [1, 1]), (2, [2, 2]), (3, [3, 3]), (8, [7, 7])] {
            assert_eq!(fs::read(chunks.join(number.to_string())).unwrap(), expected, "{view:?} {number}");
        }
        assert!(!chunks.join("1").exists() && !chunks.join("11").exists());
        for number in [4, 5, 6, 7, 9, 10, 12, 13, 14, 15] {
            assert_eq!(errno(fs::read(chunks.join(number.to_string()))), libc::EIO, "{view:?} {number}");
        }
        let log = mount.log();
        assert!(log.contains("CRC-32C"), "{log}");
    }
    let printed = icechunkfs(["cat", text(&repo), "a/c/9", "--unshard"]).failure();
    assert!(printed.contains("/a/c: `9`") && printed.contains("not within its shard"), "{printed}");
    let printed = icechunkfs(["cat", text(&repo), "a/c/15", "--unshard"]).failure();
    assert!(printed.contains("no room for an index"), "{printed}");
}

/// Shards that would be huge, deep or contradictory are shown as stored, each with a reason, and
/// the rest is not.
#[test]
fn hostile_shards_are_shown_as_stored() {
    let slash = &encodings()[0];
    let bytes = json!([{"name": "bytes"}]);
    let mut deep = bytes.clone();
    for _ in 0..12 {
        deep = json!([USUAL.codec(json!([8]), deep)]);
    }
    let bad = [
        ("deep", array(&[64], &[8], slash, &deep)),
        ("divide", array(&[64], &[8], slash, &json!([USUAL.codec(json!([3]), bytes.clone())]))),
        ("zero", array(&[64], &[8], slash, &json!([USUAL.codec(json!([0]), bytes.clone())]))),
        ("many", array(&[1 << 40], &[1 << 40], slash, &json!([USUAL.codec(json!([1]), bytes.clone())]))),
        ("grid", array(&[1 << 40], &[1 << 20], slash, &json!([USUAL.codec(json!([1]), bytes.clone())]))),
        ("rank", array(&[64], &[8], slash, &json!([USUAL.codec(json!([2, 2]), bytes.clone())]))),
        ("codecs", array(&[64], &[8], slash, &json!([USUAL.codec(json!([2]), json!(7))]))),
        (
            "index",
            array(
                &[64],
                &[8],
                slash,
                &json!([{"name": "sharding_indexed", "configuration":
            {"chunk_shape": [2], "codecs": bytes, "index_codecs": ["bytes", "gzip"]}}]),
            ),
        ),
        (
            "order",
            array(
                &[64],
                &[8],
                slash,
                &json!([{"name": "transpose", "configuration": {"order": [1]}},
            USUAL.codec(json!([2]), bytes.clone())]),
            ),
        ),
        (
            "delta",
            array(&[64], &[8], slash, &json!([{"name": "numcodecs.delta"}, USUAL.codec(json!([2]), bytes.clone())])),
        ),
    ];
    let good = array(&[64], &[8], slash, &json!([USUAL.codec(json!([2]), bytes.clone())]));
    let mut files = Files::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    files.insert("good/zarr.json".to_owned(), good);
    files.insert("good/c/0".to_owned(), USUAL.shard(&[Some(vec![1, 2]), None, None, Some(vec![3, 4])], 0..4));
    for (name, document) in &bad {
        files.insert(format!("{name}/zarr.json"), document.clone());
        files.insert(format!("{name}/c/0"), b"stored".to_vec());
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    let mount = Mount::new(&repo, &[&VIEW[..], &["-o", "memory=64M"]].concat());
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr")).unwrap();
    let shown = read_files(&mount.path());
    for (name, document) in bad {
        let line = report.lines().find(|line| line.starts_with(&format!("/{name}\tshown as stored\t")));
        let line = line.unwrap_or_else(|| panic!("{name} is not in\n{report}"));
        assert!(line.len() < 300, "{line}");
        assert!(
            shown[&format!("{name}/zarr.json")] == document && shown[&format!("{name}/c/0")] == b"stored",
            "{name}"
        );
    }
    assert_eq!((shown["good/c/0"].as_slice(), shown["good/c/3"].as_slice()), (&[1, 2][..], &[3, 4][..]));
    assert!(!report.contains("/good\t"), "{report}");
    // The mount is a view: it takes no writes.
    assert_eq!(errno(fs::write(mount.path().join("new"), "x")), libc::EROFS);
    let listed = run(std::process::Command::new("ls").arg("-a").arg(mount.path())).text();
    assert!(!listed.contains(".icechunk"), "{listed}");
}

/// Arrays may have the same shard, copied by reference, and say different things of its index.
#[test]
fn the_index_of_a_shard_is_that_of_each_array() {
    let slash = &encodings()[0];
    let codec = |form: Form, inner: u64| form.codec(json!([inner]), json!([{"name": "bytes"}]));
    let shard = USUAL.shard(&[Some(vec![1; 300]), Some(vec![2; 300])], 0..2);
    let at_start = Form { at_start: true, checksum: false, ..USUAL };
    let of = |codec: Value| array(&[600], &[600], slash, &json!([codec]));
    let files = Files::from([
        ("zarr.json".to_owned(), GROUP.as_bytes().to_vec()),
        ("good/zarr.json".to_owned(), of(codec(USUAL, 300))),
        ("good/c/0".to_owned(), shard),
        ("start/zarr.json".to_owned(), of(codec(at_start, 300))),
        ("other/zarr.json".to_owned(), of(codec(USUAL, 150))),
    ]);
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    let writer = Writable::of(&repo, &[]);
    for name in ["start", "other"] {
        fs::create_dir_all(writer.root().join(name).join("c")).unwrap();
        fs::copy(writer.root().join("good/c/0"), writer.root().join(name).join("c/0")).unwrap();
    }
    writer.commit("copies").unwrap();
    writer.unmount();
    for first in ["start", "other", "good"] {
        let mount = Mount::new(&repo, &VIEW);
        let _ = fs::read_dir(mount.path().join(first).join("c")).unwrap().count();
        let names = fs::read_dir(mount.path().join("good/c")).unwrap().count();
        assert_eq!(names, 2, "{first}");
        for (number, value) in [(0, 1), (1, 2)] {
            assert_eq!(fs::read(mount.path().join(format!("good/c/{number}"))).unwrap(), vec![value; 300], "{first}");
        }
    }
}
