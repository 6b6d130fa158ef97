//! Mounts and commands with little memory: what does not fit fails, or waits for its turn, and
//! shows nothing else in its place.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::random::Random;
use crate::common::writing::{Writable, put};
use crate::common::{Mount, errno, icechunkfs, run_on};

fn array(grid: &Value, attributes: &Value) -> Vec<u8> {
    json!({
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "uint8", "fill_value": 0, "chunk_grid": grid,
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}}, "codecs": ["bytes"], "attributes": attributes,
    })
    .to_string()
    .into_bytes()
}

fn regular() -> Value {
    json!({"name": "regular", "configuration": {"chunk_shape": [2]}})
}

/// Imports an array `big` with the chunks `0` and `1`.
fn import(directory: &Path, document: &[u8]) -> PathBuf {
    let plain = directory.join("plain");
    let repo = directory.join("repo");
    put(&plain.join("zarr.json"), br#"{"zarr_format":3,"node_type":"group"}"#).unwrap();
    put(&plain.join("big/zarr.json"), document).unwrap();
    put(&plain.join("big/0"), [1, 2]).unwrap();
    put(&plain.join("big/1"), [3, 4]).unwrap();
    run_on(&repo, &["init"]).success();
    icechunkfs(["import", plain.to_str().unwrap(), repo.to_str().unwrap(), "-m", "made"]).success();
    repo
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn long_attributes_leave_chunks_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let repo = import(directory.path(), &array(&regular(), &json!({"history": "x".repeat(300 << 10)})));
    for words in [&[][..], &["--consolidated"], &["--unshard"], &["--view", "zarr2"]] {
        let mount = Mount::new(&repo, &[&["--read-only", "--memory", "16M"], words].concat());
        let found = names(&mount.path().join("big"));
        assert_eq!(found.iter().filter(|name| !name.contains('z')).collect::<Vec<_>>(), ["0", "1"], "{words:?}");
        assert_eq!(fs::read(mount.path().join("big/1")).unwrap(), [3, 4], "{words:?}");
        if words == ["--consolidated"] {
            let document: Value = serde_json::from_slice(&fs::read(mount.path().join("zarr.json")).unwrap()).unwrap();
            assert!(document["consolidated_metadata"]["metadata"]["big"].is_object());
        }
    }
    // A working tree knows what is a chunk by the same document.
    let mount = Writable::of(&repo, &["--memory", "16M"]);
    fs::write(mount.root().join("big/1"), [5, 6]).unwrap();
    mount.commit("one chunk").unwrap();
    mount.unmount();
    let mount = Mount::new(&repo, &["--read-only"]);
    assert_eq!(fs::read(mount.path().join("big/1")).unwrap(), [5, 6]);
}

#[test]
fn an_array_whose_document_does_not_fit_is_not_shown_as_another() {
    // A document of which most must be looked into.
    let lengths: Vec<u32> =
        std::iter::once(2).chain(std::iter::once(2)).chain(std::iter::repeat_n(0, 150_000)).collect();
    let grid = json!({"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [lengths]}});
    let directory = tempfile::tempdir().unwrap();
    let repo = import(directory.path(), &array(&grid, &json!({})));
    let text = repo.to_str().unwrap();
    assert!(
        names(&Mount::new(&repo, &["--read-only", "--memory", "64M"]).path().join("big")).contains(&"1".to_owned())
    );
    for words in [&[][..], &["--consolidated"], &["--unshard"]] {
        let words = [&["--read-only", "--memory", "16M"], words].concat();
        let refused = Mount::prepare().command(&repo, &words).failure();
        assert!(refused.contains("array \"/big\"") && refused.contains("--memory"), "{words:?}: {refused}");
    }
    let copy = directory.path().join("copy");
    let refused = icechunkfs(["export", text, copy.to_str().unwrap(), "--memory", "16M"]).failure();
    assert!(refused.contains("--memory"), "{refused}");
    // It is not at fault: the check cannot be carried out.
    let refused = icechunkfs(["verify", text, "--memory", "16M"]);
    assert!(refused.status.code() == Some(1) && refused.all().contains("--memory"), "{}", refused.all());
}

#[test]
fn a_view_does_not_leave_out_an_array_for_want_of_memory() {
    let directory = tempfile::tempdir().unwrap();
    let repo = import(directory.path(), &array(&regular(), &json!({"levels": vec![0; 700_000]})));
    let mount = Mount::new(&repo, &["--view", "zarr2", "--memory", "16M"]);
    for _ in 0..2 {
        assert_eq!(errno(fs::read(mount.path().join("big/.zarray"))), libc::ENOMEM);
        assert_eq!(errno(fs::read(mount.path().join(".zmetadata"))), libc::ENOMEM);
    }
    let copy = directory.path().join("copy");
    let words = ["export", repo.to_str().unwrap(), copy.to_str().unwrap(), "--view", "zarr2", "--memory", "16M"];
    assert!(icechunkfs(words).failure().contains("--memory"));
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn snapshots_that_do_not_fit_beside_others_take_turns() {
    const COUNT: u8 = 8;
    let mount = Writable::new(&[]);
    let mut random = Random::new(5);
    for n in 0..12 {
        let letters: String = random.bytes(200_000).iter().map(|byte| char::from(b'0' + byte % 64)).collect();
        put(&mount.root().join(format!("x{n}/zarr.json")), array(&regular(), &json!({"h": letters}))).unwrap();
    }
    for n in 0..COUNT {
        put(&mount.root().join("x3/0"), [n, n]).unwrap();
        mount.commit("one more").unwrap();
        run_on(mount.repository(), &["tag", "create", &format!("t{n}")]).success();
    }
    let repo = mount.repository().to_str().unwrap();
    for words in [&["verify", repo][..], &["stats", repo], &["gc", repo, "--older-than", "7d", "--dry-run"]] {
        let ran = icechunkfs([words, &["--memory", "24M"]].concat());
        // The names of chunks, which the Icechunk library cannot read, are a warning.
        let has_warned = words.starts_with(&["verify"]) && ran.status.code() == Some(3);
        assert!(ran.status.success() || has_warned, "{words:?}: {}", ran.all());
    }
    let fixed = Mount::new(mount.repository(), &["--read-only", "--memory", "24M"]);
    std::thread::scope(|scope| {
        for n in 0..COUNT {
            let path = fixed.control(&format!("at/tag/t{n}/x3/0"));
            scope.spawn(move || assert_eq!(fs::read(path).unwrap(), [n, n], "tag t{n}"));
        }
    });
}

#[cfg(feature = "netcdf")]
mod netcdf {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::netcdf::{array, group, import, zstd};

    const MIB: u64 = 1 << 20;

    /// Reads a few bytes in the middle of each of `count` parts of the file of the view, of
    /// `length` bytes, at the same time. Returns the peak of the daemon's own memory.
    fn read_at_once(mount: &Mount, count: u64, length: u64) -> u64 {
        let file = fs::File::open(mount.path().join("ocean.nc")).unwrap();
        let end = file.metadata().unwrap().len();
        let status = format!("/proc/{}/status", mount.daemon());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut peak = 0;
                while !ended.load(Ordering::Relaxed) {
                    let status = fs::read_to_string(&status).unwrap();
                    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
                    peak = peak.max(own.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10);
                    std::thread::sleep(Duration::from_millis(2));
                }
                peak
            });
            let file = &file;
            let readers: Vec<_> = (1..=count)
                .map(|n| scope.spawn(move || file.read_exact_at(&mut [0; 4096], end - n * length + length / 2)))
                .collect();
            let results: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            ended.store(true, Ordering::Relaxed);
            assert!(results.iter().all(Result::is_ok), "{results:?}");
            sampler.join().unwrap()
        })
    }

    #[test]
    fn units_of_several_chunks_take_turns() {
        // Chunks of 4 MiB, the first of which is half as long: each unit is made of two.
        let lengths = json!([[MIB / 2, [MIB, 9]]]);
        let more = json!({
            "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": lengths}},
            "codecs": ["bytes", "zstd"],
        });
        let mut random = Random::new(3);
        let keys: Vec<String> = (0..10).map(|n| format!("r/c/{n}")).collect();
        let mut files =
            vec![("zarr.json", group(&json!({}))), ("r/zarr.json", array("float32", &[MIB / 2 + 9 * MIB], &[], &more))];
        for (n, key) in keys.iter().enumerate() {
            files.push((key, zstd(&random.bytes(if n == 0 { 2 << 20 } else { 4 << 20 }))));
        }
        let directory = tempfile::tempdir().unwrap();
        let repo = import(directory.path(), &files);
        let mount = Mount::new(&repo, &["--view", "netcdf", "--memory", "32M"]);
        read_at_once(&mount, 8, 4 << 20);
    }

    #[test]
    fn stored_bytes_count_before_they_are_read() {
        const COUNT: u64 = 20;
        let codecs = json!([{"name": "transpose", "configuration": {"order": [0, 2, 1]}}, "bytes", "zstd"]);
        let more = json!({ "codecs": codecs });
        let keys: Vec<String> = (0..COUNT).map(|n| format!("t/c/{n}/0/0")).collect();
        let mut random = Random::new(4);
        let mut files = vec![
            ("zarr.json", group(&json!({}))),
            ("t/zarr.json", array("float32", &[COUNT, 1024, 1024], &[1, 1024, 1024], &more)),
        ];
        for key in &keys {
            files.push((key, zstd(&random.bytes(4 << 20))));
        }
        let directory = tempfile::tempdir().unwrap();
        let repo = import(directory.path(), &files);
        let mount = Mount::new(&repo, &["--view", "netcdf", "--memory", "32M"]);
        let peak = read_at_once(&mount, COUNT, 4 << 20);
        assert!(peak < 45 << 20, "{} MiB", peak >> 20);
    }
}
