//! Stored chunks as inner chunks of shards.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::reshard::{Files, GROUP, all_coords, array, assert_same_values, encodings, key, made, script, text};
use crate::common::faulty::{Fault, Line};
use crate::common::random::Random;
use crate::common::shard::USUAL;
use crate::common::writing::put;
use crate::common::{Mount, errno, io_modes, moto, python, read_files, run};

#[test]
#[ignore = "needs zarr-python 2, takes long: scripts/test --full"]
fn programs_read_shards_as_they_read_chunks() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    script(&python, "make.py", &[text(&repo)]);
    let native = Mount::new(&repo, &["--read-only"]);
    let expected = script(&python, "dump.py", &[text(&native.path())]);
    for shape in ["2,3", "64,64"] {
        let mount = Mount::new(&repo, &["--view", "zarr", "--shard", shape]);
        let found = script(&python, "dump.py", &[text(&mount.path())]);
        assert!(assert_same_values(&found, &expected, |_| true) > 200);
        let copy = directory.path().join(shape);
        run(Command::new("cp").arg("-r").arg(mount.path()).arg(&copy)).success();
        let found = script(&python, "dump.py", &[text(&copy)]);
        assert_same_values(&found, &expected, |_| true);
        let report = fs::read_to_string(mount.path().join(".icechunk/zarr")).unwrap();
        let reasons: Vec<&str> = report.lines().map(|line| line.split('\t').next_back().unwrap()).collect();
        let known = ["it has no dimensions", "its chunks are shards already"];
        let is_known = |reason: &&str| known.contains(reason) || reason.starts_with("zarr-python does not read shards");
        assert!(reasons.iter().all(is_known), "{report}");
        let arrays = expected["arrays"].as_object().unwrap();
        let sharded = arrays.keys().filter(|path| {
            let document: Value =
                serde_json::from_slice(&fs::read(copy.join(path).join("zarr.json")).unwrap()).unwrap();
            document["codecs"][0]["name"] == "sharding_indexed"
        });
        // The array that has shards already is one of them.
        assert_eq!(sharded.count(), arrays.len() - reasons.len() + 1);
    }
}

/// Reads a shard as the specification has it: the chunks by number, missing ones as none. Checks
/// what this layout promises besides.
fn read_shard(bytes: &[u8], count: usize) -> Vec<Option<Vec<u8>>> {
    let at = bytes.len() - 4 - 16 * count;
    let (index, checksum) = bytes[at..].split_at(16 * count);
    assert_eq!(checksum, crc32c::crc32c(index).to_le_bytes());
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let mut next = 0;
    let chunks: Vec<_> = index
        .chunks_exact(16)
        .map(|entry| match (number(&entry[..8]), number(&entry[8..])) {
            (u64::MAX, u64::MAX) => None,
            (offset, length) => {
                assert_eq!(offset, next, "in C order, without gaps");
                next += length;
                Some(bytes[offset as usize..next as usize].to_vec())
            }
        })
        .collect();
    assert_eq!(next, at as u64, "nothing between the chunks and the index");
    chunks
}

#[test]
fn shards_have_exactly_the_stored_chunks() {
    let mut random = Random::new(23);
    let mut files = Files::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    let mut arrays = Vec::new();
    for number in 0..40 {
        let rank = 1 + random.below(4);
        let most = [40, 9, 5, 4][rank - 1];
        let grid: Vec<u64> = (0..rank).map(|_| 1 + random.below(most) as u64).collect();
        let chunk: Vec<u64> = grid.iter().map(|_| 1 + random.below(3) as u64).collect();
        let shape: Vec<u64> = std::iter::zip(&grid, &chunk)
            .map(|(count, length)| count * length - random.below(*length as usize) as u64)
            .collect();
        let encoding = random.pick(&encodings()).clone();
        let path = format!("a{number}");
        files.insert(
            format!("{path}/zarr.json"),
            array(&shape, &chunk, &encoding, &json!([{"name": "bytes"}, {"name": "crc32c"}])),
        );
        let density = *random.pick(&[0, 5, 60, 100]);
        for coords in all_coords(&grid) {
            if random.chance(density) {
                // Some in manifests, some in objects.
                let length = *random.pick(&[1, 3, 200, 700, 5000]);
                files.insert(format!("{path}/{}", key(&encoding, &coords)), random.bytes(length));
            }
        }
        arrays.push((path, grid, chunk, encoding));
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    let mut shards = 0;
    for wanted in [&[3_u64][..], &[2, 3], &[4, 1, 2], &[7, 5, 3, 2]] {
        let words: Vec<String> = wanted.iter().map(u64::to_string).collect();
        let mount = Mount::new(&repo, &["--view", "zarr", "--shard", &words.join(",")]);
        let mut shown = read_files(&mount.path());
        for (path, grid, chunk, encoding) in &arrays {
            let rank = grid.len();
            let per_shard: Vec<u64> =
                (0..rank).map(|axis| (axis + wanted.len()).checked_sub(rank).map_or(1, |at| wanted[at])).collect();
            let document: Value = serde_json::from_slice(&shown.remove(&format!("{path}/zarr.json")).unwrap()).unwrap();
            let shape: Vec<u64> = std::iter::zip(chunk, &per_shard).map(|(length, count)| length * count).collect();
            assert_eq!(document["chunk_grid"]["configuration"]["chunk_shape"], json!(shape), "{path}");
            assert_eq!(document["codecs"][0]["configuration"]["chunk_shape"], json!(chunk), "{path}");
            let counts: Vec<u64> = std::iter::zip(grid, &per_shard).map(|(all, one)| all.div_ceil(*one)).collect();
            for shard in all_coords(&counts) {
                let slots = all_coords(&per_shard);
                let stored = slots.iter().map(|slot| {
                    let coords: Vec<u64> = std::iter::zip(std::iter::zip(&shard, &per_shard), slot)
                        .map(|((shard, count), slot)| shard * count + slot)
                        .collect();
                    let is_inside = std::iter::zip(&coords, grid).all(|(coord, count)| coord < count);
                    files.get(&format!("{path}/{}", key(encoding, &coords))).filter(|_| is_inside).cloned()
                });
                let stored: Vec<Option<Vec<u8>>> = stored.collect();
                let name = format!("{path}/{}", key(encoding, &shard));
                let Some(bytes) = shown.remove(&name) else {
                    assert!(stored.iter().all(Option::is_none), "{wanted:?}: {name} is missing");
                    continue;
                };
                assert!(stored.iter().any(Option::is_some), "{wanted:?}: {name} has no chunks");
                assert!(read_shard(&bytes, slots.len()) == stored, "{wanted:?}: {name}");
                shards += 1;
            }
        }
        assert_eq!(shown.keys().collect::<Vec<_>>(), ["zarr.json"], "{wanted:?}");
    }
    assert!(shards > 500, "{shards}");
}

#[test]
fn any_part_of_a_shard_can_be_read() {
    let mut random = Random::new(31);
    let mut files = Files::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    files.insert("a/zarr.json".to_owned(), array(&[40, 30], &[1, 1], &encodings()[0], &json!([{"name": "bytes"}])));
    // The first shard must have these chunks, and their index.
    let mut whole = Vec::new();
    let mut entries = vec![(u64::MAX, u64::MAX); 1024];
    for coords in all_coords(&[40, 30]) {
        if random.chance(20) {
            continue;
        }
        let length = 1 + random.below(4000);
        let chunk = random.bytes(length);
        if coords[0] < 32 {
            entries[(coords[0] * 32 + coords[1]) as usize] = (whole.len() as u64, chunk.len() as u64);
            whole.extend_from_slice(&chunk);
        }
        files.insert(format!("a/c/{}/{}", coords[0], coords[1]), chunk);
    }
    whole.extend(USUAL.index(&entries));
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    for io in io_modes() {
        let mount = Mount::new(&repo, &["--view", "zarr", "--shard", "32,32", "--io", io]);
        let file = File::open(mount.path().join("a/c/0/0")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), whole.len() as u64);
        for _ in 0..200 {
            let start = random.below(whole.len());
            let length = random.below(30_000);
            let end = (start + length).min(whole.len());
            let mut part = vec![0; end - start];
            file.read_exact_at(&mut part, start as u64).unwrap();
            assert!(part == whole[start..end], "{start}..{end}");
        }
        assert_eq!(file.read_at(&mut [0; 10], whole.len() as u64).unwrap(), 0);
    }
}

/// 1,024 chunks of 4 KiB in an object store.
#[test]
fn copying_a_shard_takes_few_requests() {
    let Some(server) = moto::s3() else { return };
    let repo = moto::repository("packed");
    moto::icechunkfs(server.port, &["init", &repo, "--zarr-group"]).success();
    let writing = moto::mount(server.port, &repo, &["--ephemeral"]);
    put(
        &writing.path().join("a/zarr.json"),
        array(&[1024 * 4096], &[4096], &encodings()[0], &json!([{"name": "bytes"}])),
    )
    .unwrap();
    let mut expected = Vec::new();
    for number in 0..1024 {
        let chunk = Random::new(number).bytes(4096);
        put(&writing.path().join(format!("a/c/{number}")), &chunk).unwrap();
        expected.extend(chunk);
    }
    moto::commit(&writing).unwrap();
    writing.unmount();

    let line = Line::to(server.port);
    let asked = Arc::new(Mutex::new(0));
    let count = |asked: &Arc<Mutex<usize>>| {
        let asked = Arc::clone(asked);
        line.decide(move |_, request| {
            *asked.lock().unwrap() += usize::from(request.contains("/chunks/"));
            Fault::Pass
        });
    };
    count(&asked);
    let mount = moto::mount(line.port, &repo, &["-o", "ro", "--view", "zarr", "--shard", "1024"]);
    let path = mount.path().join("a/c/0");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1024 * 4096 + 16 * 1024 + 4);
    assert_eq!(*asked.lock().unwrap(), 0, "the size follows from manifests");
    let found = fs::read(&path).unwrap();
    assert!(found[..expected.len()] == expected);
    line.wait_until_quiet();
    let all = *asked.lock().unwrap();
    assert!(all <= 40, "{all} requests for 1,024 chunks");

    // A program that wants one chunk gets it, and not the shard.
    let mount = moto::mount(line.port, &repo, &["-o", "ro", "--view", "zarr", "--shard", "1024"]);
    let before = line.received();
    let file = File::open(mount.path().join("a/c/0")).unwrap();
    let mut chunk = vec![0; 4096];
    file.read_exact_at(&mut chunk, 700 * 4096).unwrap();
    assert!(chunk == expected[700 * 4096..701 * 4096]);
    line.wait_until_quiet();
    let bytes = line.received() - before;
    assert!(bytes < 512 << 10, "{bytes} bytes for a chunk of 4096");
}

#[test]
fn arrays_that_cannot_have_shards_are_shown_as_stored() {
    let slash = &encodings()[0];
    let bytes = json!([{"name": "bytes"}]);
    let changed = |changes: Value| {
        let mut document: Value = serde_json::from_slice(&array(&[64], &[8], slash, &bytes)).unwrap();
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        document.to_string().into_bytes()
    };
    let bad = [
        ("scalar", array(&[], &[], slash, &bytes)),
        ("sharded", array(&[64], &[8], slash, &json!([USUAL.codec(json!([2]), bytes.clone())]))),
        (
            "rectilinear",
            changed(
                json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[8, 56]]}}}),
            ),
        ),
        ("transformed", changed(json!({"storage_transformers": [{"name": "x"}]}))),
        ("zero", array(&[0], &[0], slash, &bytes)),
        ("codecs", changed(json!({"codecs": []}))),
        ("elements", array(&[1 << 62], &[1 << 61], slash, &bytes)),
        ("record", changed(json!({"data_type": "r24"}))),
    ];
    let mut files = Files::from([("zarr.json".to_owned(), GROUP.as_bytes().to_vec())]);
    files.insert("good/zarr.json".to_owned(), array(&[64], &[8], slash, &bytes));
    files.insert("good/c/7".to_owned(), vec![9; 8]);
    for (name, document) in &bad {
        files.insert(format!("{name}/zarr.json"), document.clone());
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = made(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "zarr", "--shard", "4", "-o", "memory=64M"]);
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr")).unwrap();
    let shown = read_files(&mount.path());
    for (name, document) in bad {
        assert!(report.contains(&format!("/{name}\tshown as stored\t")), "{name} is not in\n{report}");
        assert!(shown[&format!("{name}/zarr.json")] == document, "{name}");
    }
    assert_eq!(report.lines().count(), 8, "{report}");
    assert_eq!(shown["good/c/1"].len(), 8 + 4 * 16 + 4);
    // More chunks than an index may have, for every array.
    let mount = Mount::new(&repo, &["--view", "zarr", "--shard", "2000000"]);
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr")).unwrap();
    assert!(report.contains("/good\tshown as stored\ta shard would have more than"), "{report}");
    assert!(read_files(&mount.path()).contains_key("good/c/7"));
    assert_eq!(errno(fs::write(mount.path().join("new"), "x")), libc::EROFS);
}
