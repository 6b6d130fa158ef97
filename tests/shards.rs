//! Shards: what reading parts of them asks of a store, and how they are shown.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "common/faulty.rs"]
mod faulty;
#[path = "common/moto.rs"]
mod moto;
#[path = "common/shard.rs"]
mod shard;
#[path = "common/writing.rs"]
mod writing;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::run;
use faulty::{Fault, Line};
use moto::{commit, icechunkfs, mount, repository, s3};
use serde_json::json;
use shard::{USUAL, array, shuffled, with_checksum};
use writing::{needed, put};

/// Inner chunks of the large shard, and bytes of each before its checksum: 64 MiB.
const COUNT: usize = 4096;
const INNER: usize = 16 << 10;

/// Inner chunk `number` of the large shard, without its checksum.
fn inner(number: usize) -> Vec<u8> {
    (0..INNER).map(|at| (at * 7 + number * 13 + number / 256) as u8).collect()
}

/// The large shard: its inner chunks lie in no order, and not at the beginnings of pages.
fn large() -> Vec<u8> {
    let chunks: Vec<Option<Vec<u8>>> = (0..COUNT).map(|number| Some(with_checksum(inner(number)))).collect();
    USUAL.shard(&chunks, shuffled(COUNT))
}

/// Where inner chunk `number` lies.
fn place(shard: &[u8], number: usize) -> (u64, usize) {
    let index = shard.len() - 16 * COUNT - 4;
    let at = |at: usize| u64::from_le_bytes(shard[at..at + 8].try_into().unwrap());
    (at(index + 16 * number), at(index + 16 * number + 8) as usize)
}

/// A repository with files, in a store.
fn stored(port: u16, name: &str, files: &[(&str, Vec<u8>)]) -> String {
    let repo = repository(name);
    icechunkfs(port, &["init", &repo, "--zarr-group"]).success();
    let mount = mount(port, &repo, &["--ephemeral"]);
    for (path, bytes) in files {
        put(&mount.path().join(path), bytes).unwrap();
    }
    commit(&mount).unwrap();
    mount.unmount();
    repo
}

fn large_repository(port: u16, name: &str, shard: &[u8]) -> String {
    let codec = USUAL.codec(json!([INNER]), json!([{"name": "bytes"}, {"name": "crc32c"}]));
    let document = array(json!([COUNT * INNER]), json!([COUNT * INNER]), json!([codec]));
    let files = [("a/zarr.json", document.to_string().into_bytes()), ("a/c/0", shard.to_vec())];
    stored(port, name, &files)
}

/// A line that says what was asked of chunks.
struct Counted {
    line: Line,
    asked: Arc<Mutex<usize>>,
}

impl Counted {
    fn to(port: u16) -> Counted {
        Counted { line: Line::to(port), asked: Arc::default() }
    }

    fn begin(&self) {
        let asked = Arc::clone(&self.asked);
        *asked.lock().unwrap() = 0;
        self.line.decide(move |_, request| {
            *asked.lock().unwrap() += usize::from(request.contains("/chunks/"));
            Fault::Pass
        });
    }

    /// Requests for chunks, and bytes of all answers, since it began.
    fn end(&self) -> (usize, u64) {
        // What nobody waits for may still be on its way.
        std::thread::sleep(std::time::Duration::from_millis(300));
        (*self.asked.lock().unwrap(), self.line.received())
    }
}

fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/venv/bin/python");
    needed(python.exists(), "target/venv: scripts/setup --python makes it").then_some(python)
}

fn read_at(file: &File, (offset, length): (u64, usize)) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn an_inner_chunk_costs_two_requests_and_each_further_one() {
    let Some(server) = s3() else { return };
    let shard = large();
    let repo = large_repository(server.port, "large", &shard);
    let counted = Counted::to(server.port);
    let mebibyte = 1 << 20;

    // As a program does that knows the format: the index, then the chunk.
    let mounted = mount(counted.line.port, &repo, &["-o", "ro"]);
    let file = File::open(mounted.path().join("a/c/0")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), shard.len() as u64);
    counted.begin();
    let index = 16 * COUNT + 4;
    assert!(read_at(&file, ((shard.len() - index) as u64, index)) == shard[shard.len() - index..]);
    let wanted = place(&shard, 1234);
    assert!(read_at(&file, wanted) == with_checksum(inner(1234)));
    let (asked, bytes) = counted.end();
    assert!(asked <= 2 && bytes < mebibyte, "{asked} requests, {bytes} bytes");
    for number in [0, 4095, 77, 2048, 1235, 1233, 3000] {
        counted.begin();
        assert!(read_at(&file, place(&shard, number)) == with_checksum(inner(number)), "{number}");
        let (asked, bytes) = counted.end();
        assert!(asked <= 1 && bytes < mebibyte / 2, "inner chunk {number}: {asked} requests, {bytes} bytes");
    }
    drop((file, mounted));

    // The chunk at once, as if the index were known: wherever it lies.
    for number in [1, place_first(&shard)] {
        let mounted = mount(counted.line.port, &repo, &["-o", "ro"]);
        let file = File::open(mounted.path().join("a/c/0")).unwrap();
        counted.begin();
        assert!(read_at(&file, place(&shard, number)) == with_checksum(inner(number)));
        let (asked, bytes) = counted.end();
        assert!(asked <= 2 && bytes < mebibyte, "inner chunk {number}: {asked} requests, {bytes} bytes");
    }

    // zarr-python, in a process for each chunk; and in a mount that can be written to.
    let Some(python) = python() else { return };
    for words in [["-o", "ro"].as_slice(), &["--ephemeral"]] {
        let mounted = mount(counted.line.port, &repo, words);
        for (number, most) in [(1234, 2), (17, 1), (4000, 1)] {
            let script = format!(
                "import sys, zarr, numpy as np\n\
                 n = {number}\n\
                 got = zarr.open_array(sys.argv[1], mode='r')[n * {INNER}:(n + 1) * {INNER}]\n\
                 at = np.arange({INNER})\n\
                 assert (got == ((at * 7 + n * 13 + n // 256) & 255).astype('uint8')).all()"
            );
            counted.begin();
            run(Command::new(&python).arg("-c").arg(script).arg(mounted.path().join("a"))).success();
            let (asked, bytes) = counted.end();
            assert!(asked <= most && bytes < mebibyte, "{number} {words:?}: {asked} requests, {bytes} bytes");
        }
    }
}

/// The inner chunk that lies at the beginning.
fn place_first(shard: &[u8]) -> usize {
    (0..COUNT).find(|number| place(shard, *number).0 == 0).unwrap()
}

#[test]
fn who_wants_all_of_a_shard_gets_it_in_few_requests() {
    let Some(server) = s3() else { return };
    let shard = large();
    let repo = large_repository(server.port, "whole", &shard);
    let counted = Counted::to(server.port);
    let mounted = mount(counted.line.port, &repo, &["-o", "ro"]);
    counted.begin();
    assert!(std::fs::read(mounted.path().join("a/c/0")).unwrap() == shard);
    let (asked, bytes) = counted.end();
    assert!(asked <= 34 && bytes < shard.len() as u64 + (1 << 20), "{asked} requests, {bytes} bytes");
    drop(mounted);

    // With the index known, inner chunk by inner chunk as they lie there.
    let mounted = mount(counted.line.port, &repo, &["-o", "ro"]);
    let file = File::open(mounted.path().join("a/c/0")).unwrap();
    counted.begin();
    let index = 16 * COUNT + 4;
    read_at(&file, ((shard.len() - index) as u64, index));
    let mut places: Vec<(u64, usize)> = (0..COUNT).map(|number| place(&shard, number)).collect();
    places.sort_unstable();
    for at in places {
        assert!(read_at(&file, at) == shard[at.0 as usize..][..at.1]);
    }
    let (asked, bytes) = counted.end();
    assert!(asked <= 60 && bytes < shard.len() as u64 + (4 << 20), "{asked} requests, {bytes} bytes");
}
