//! Shards: requests to a store for parts of them, and their listings.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::common::faulty::{Fault, Line};
use crate::common::moto::{commit, icechunkfs, mount, repository, s3};
use crate::common::random::Random;
use crate::common::shard::{Form, USUAL, array, shuffled, with_checksum};
use crate::common::writing::{self, Reference, Writable, put};
use crate::common::{self, python, run, signal};
use serde_json::{Value, json};

/// Number of inner chunks of the large shard, and bytes of each before its checksum: 64 MiB.
const COUNT: usize = 4096;
const INNER: usize = 16 << 10;

/// Returns inner chunk `number` of the large shard, without its checksum.
fn inner(number: usize) -> Vec<u8> {
    (0..INNER).map(|at| (at * 7 + number * 13 + number / 256) as u8).collect()
}

/// Returns the large shard: its inner chunks are in random order, and not at the beginnings of
/// pages.
fn large() -> Vec<u8> {
    let chunks: Vec<Option<Vec<u8>>> = (0..COUNT).map(|number| Some(with_checksum(inner(number)))).collect();
    USUAL.shard(&chunks, shuffled(COUNT))
}

/// Returns the offset of inner chunk `number`.
fn place(shard: &[u8], number: usize) -> (u64, usize) {
    let index = shard.len() - 16 * COUNT - 4;
    let at = |at: usize| u64::from_le_bytes(shard[at..at + 8].try_into().unwrap());
    (at(index + 16 * number), at(index + 16 * number + 8) as usize)
}

/// Creates a repository with files, in a store.
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

/// A proxy that counts requests for chunks.
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

    /// Returns requests for chunks, and bytes of all answers, since it began.
    fn end(&self) -> (usize, u64) {
        // Prefetched bytes may still be in transit.
        self.line.wait_until_quiet();
        (*self.asked.lock().unwrap(), self.line.received())
    }
}

fn read_at(file: &File, (offset, length): (u64, usize)) -> Vec<u8> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

/// 64 MiB take a while to be stored: one test does all reads of them.
#[test]
#[ignore = "takes long: scripts/test --full"]
fn a_large_shard_is_read_in_parts_or_as_a_whole() {
    let Some(server) = s3() else { return };
    let shard = large();
    let repo = large_repository(server.port, "large", &shard);
    an_inner_chunk_costs_two_requests_and_each_further_one(server.port, &repo, &shard);
    reading_a_whole_shard_takes_few_requests(server.port, &repo, &shard);
    a_cached_shard_is_available_offline(server.port, &repo, &shard);
}

fn an_inner_chunk_costs_two_requests_and_each_further_one(server: u16, repo: &str, shard: &[u8]) {
    let counted = Counted::to(server);
    let mebibyte = 1 << 20;

    // As a program does that knows the format: the index, then the chunk.
    let mounted = mount(counted.line.port, repo, &["-o", "ro"]);
    let file = File::open(mounted.path().join("a/c/0")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), shard.len() as u64);
    counted.begin();
    let index = 16 * COUNT + 4;
    assert!(read_at(&file, ((shard.len() - index) as u64, index)) == shard[shard.len() - index..]);
    let wanted = place(shard, 1234);
    assert!(read_at(&file, wanted) == with_checksum(inner(1234)));
    let (asked, bytes) = counted.end();
    assert!(asked <= 2 && bytes < mebibyte, "{asked} requests, {bytes} bytes");
    for number in [0, 4095, 77, 2048, 1235, 1233, 3000] {
        counted.begin();
        assert!(read_at(&file, place(shard, number)) == with_checksum(inner(number)), "{number}");
        let (asked, bytes) = counted.end();
        assert!(asked <= 1 && bytes < mebibyte / 2, "inner chunk {number}: {asked} requests, {bytes} bytes");
    }
    drop((file, mounted));

    // The chunk at once, as if the index were known: wherever it lies.
    for number in [1, place_first(shard)] {
        let mounted = mount(counted.line.port, repo, &["-o", "ro"]);
        let file = File::open(mounted.path().join("a/c/0")).unwrap();
        counted.begin();
        assert!(read_at(&file, place(shard, number)) == with_checksum(inner(number)));
        let (asked, bytes) = counted.end();
        assert!(asked <= 2 && bytes < mebibyte, "inner chunk {number}: {asked} requests, {bytes} bytes");
    }

    let Some(python) = python() else { return };
    for (name, program) in PROGRAMS {
        let mounted = mount(counted.line.port, repo, &["-o", "ro"]);
        let script = format!(
            "import sys, numpy as np\n\
             place, n, size = sys.argv[1], 2345, {INNER}\n\
             {program}\n\
             assert (np.asarray(got) == ((np.arange(size) * 7 + n * 13 + n // 256) & 255).astype('uint8')).all()"
        );
        counted.begin();
        run(Command::new(&python).arg("-c").arg(script).arg(mounted.path().join("a"))).success();
        let (asked, bytes) = counted.end();
        assert!(asked <= 2 && bytes < mebibyte, "{name}: {asked} requests, {bytes} bytes");
    }
    // zarr-python, in a process for each chunk; and in a writable mount.
    let runs = [(["-o", "ro"].as_slice(), [(1234, 2), (4000, 1)].as_slice()), (&["--ephemeral"], &[(1234, 2)])];
    for (words, numbers) in runs {
        let mounted = mount(counted.line.port, repo, words);
        for &(number, most) in numbers {
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

/// Scripts to read inner chunk `n` of the array at `place`, for each kind of program.
const PROGRAMS: [(&str, &str); 2] = [
    (
        "tensorstore",
        "import tensorstore as ts\n\
         spec = {'driver': 'zarr3', 'kvstore': {'driver': 'file', 'path': place}}\n\
         got = ts.open(spec, read=True, open=True).result()[n * size:(n + 1) * size].read().result()",
    ),
    (
        "zarrs",
        "import zarr, zarrs\n\
         zarr.config.set({'codec_pipeline.path': 'zarrs.ZarrsCodecPipeline'})\n\
         got = zarr.open_array(place, mode='r')[n * size:(n + 1) * size]",
    ),
];

/// Returns the inner chunk at the beginning of the shard.
fn place_first(shard: &[u8]) -> usize {
    (0..COUNT).find(|number| place(shard, *number).0 == 0).unwrap()
}

fn reading_a_whole_shard_takes_few_requests(server: u16, repo: &str, shard: &[u8]) {
    let counted = Counted::to(server);
    let mounted = mount(counted.line.port, repo, &["-o", "ro"]);
    counted.begin();
    assert!(std::fs::read(mounted.path().join("a/c/0")).unwrap() == shard);
    let (asked, bytes) = counted.end();
    assert!(asked <= 60 && bytes < shard.len() as u64 + (8 << 20), "{asked} requests, {bytes} bytes");
    drop(mounted);

    // With the index known, inner chunk by inner chunk in stored order.
    let mounted = mount(counted.line.port, repo, &["-o", "ro"]);
    let file = File::open(mounted.path().join("a/c/0")).unwrap();
    counted.begin();
    let index = 16 * COUNT + 4;
    read_at(&file, ((shard.len() - index) as u64, index));
    let mut places: Vec<(u64, usize)> = (0..COUNT).map(|number| place(shard, number)).collect();
    places.sort_unstable();
    for at in places.into_iter().take(1500) {
        assert!(read_at(&file, at) == shard[at.0 as usize..][..at.1]);
    }
    let (asked, bytes) = counted.end();
    assert!(asked <= 40 && bytes < 40 << 20, "{asked} requests, {bytes} bytes");
}

fn a_cached_shard_is_available_offline(server: u16, repo: &str, shard: &[u8]) {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache").display().to_string();
    let online = ["-o", "ro", "--cache", &cache];
    let offline = [&online[..], &["--offline"]].concat();
    let index = ((shard.len() - 16 * COUNT - 4) as u64, 16 * COUNT + 4);
    let file = |mount: &common::Mount| File::open(mount.path().join("a/c/0")).unwrap();
    let is_right = |file: &File, number: usize| read_at(file, place(shard, number)) == with_checksum(inner(number));

    let mounted = mount(server, repo, &online);
    read_at(&file(&mounted), index);
    assert!(is_right(&file(&mounted), 5));
    mounted.end();
    let mounted = mount(server, repo, &offline);
    assert!(read_at(&file(&mounted), index) == shard[index.0 as usize..] && is_right(&file(&mounted), 5));
    let error = file(&mounted).read_exact_at(&mut [0; 16], place(shard, far_from(shard, 5)).0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENETDOWN));
    drop(mounted);

    // Bytes fetched as a whole are available in parts.
    let mounted = mount(server, repo, &online);
    assert!(std::fs::read(mounted.path().join("a/c/0")).unwrap() == shard);
    mounted.end();
    let mounted = mount(server, repo, &offline);
    for number in [5, 4095, 1, 2222, place_first(shard)] {
        assert!(is_right(&file(&mounted), number), "{number}");
    }
    assert!(read_at(&file(&mounted), index) == shard[index.0 as usize..]);
}

/// Returns an inner chunk that is not near inner chunk `number`.
fn far_from(shard: &[u8], number: usize) -> usize {
    (0..COUNT).find(|other| place(shard, *other).0.abs_diff(place(shard, number).0) > 4 << 20).unwrap()
}

/// Creates a repository on this machine with committed files.
fn with_files(files: &[(&str, Vec<u8>)]) -> Writable {
    let mount = Writable::new(&[]);
    for (path, bytes) in files {
        put(&mount.root().join(path), bytes).unwrap();
    }
    mount.commit("shards").unwrap();
    mount
}

fn listed(mount: &Writable, words: &[&str]) -> common::Output {
    let repository = mount.repository().to_str().unwrap();
    common::icechunkfs([&["ls", repository, "--shards"], words].concat())
}

/// Checks that the listed inner chunks of a shard are the bytes of `chunks` in `file`.
fn check(listed: &Value, file: &[u8], chunks: &[Option<Vec<u8>>]) {
    let found: Vec<&Value> = listed["inner_chunks"].as_array().unwrap().iter().collect();
    assert_eq!(found.len(), chunks.iter().flatten().count(), "{listed}");
    let grid: Vec<usize> = listed["grid"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
    for entry in found {
        let number = entry["coords"]
            .as_array()
            .unwrap()
            .iter()
            .zip(&grid)
            .fold(0, |number, (coord, length)| number * length + coord.as_u64().unwrap() as usize);
        let at = |key: &str| entry[key].as_u64().unwrap() as usize;
        assert_eq!(Some(&file[at("offset")..at("offset") + at("bytes")]), chunks[number].as_deref(), "{entry}");
    }
    assert_eq!(listed["faults"], json!([]));
}

#[test]
fn shards_of_every_form_are_listed() {
    let chunks: Vec<Option<Vec<u8>>> =
        (0..6).map(|n: u8| (n != 4).then(|| vec![n + 1; 100 + 30 * usize::from(n)])).collect();
    let mut files = Vec::new();
    let mut expected = Vec::new();
    for (n, (at_start, big_endian, checksum)) in
        [(false, false, true), (true, false, true), (false, true, false), (true, true, true)].into_iter().enumerate()
    {
        let form = Form { at_start, big_endian, checksum };
        let codec =
            form.codec(json!([4, 2]), json!([{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]));
        // The dimensions of the document have another order than the shard's: 2 by 3 inner chunks.
        let order = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
        let document = array(json!([12, 16]), json!([6, 8]), json!([order, codec, {"name": "crc32c"}]));
        let shard = with_checksum(form.shard(&chunks, [3, 0, 5, 1, 2, 4]));
        files.push((format!("g/a{n}/zarr.json"), document.to_string().into_bytes()));
        files.push((format!("g/a{n}/c/1/1"), shard.clone()));
        let place = if at_start { "start" } else { "end" };
        let order = if big_endian { "big" } else { "little" };
        expected.push((shard, place, order, if checksum { "right" } else { "none" }));
    }
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())).collect();
    let mount = with_files(&files);
    let all = listed(&mount, &["g", "--json"]).json();
    for (n, (shard, place, order, checksum)) in expected.iter().enumerate() {
        assert_eq!(all[n]["path"], json!(format!("/g/a{n}/c/1/1")));
        assert_eq!((&all[n]["bytes"], &all[n]["grid"]), (&json!(shard.len()), &json!([2, 3])));
        let index = &all[n]["index"];
        assert_eq!((&index["location"], &index["byte_order"]), (&json!(place), &json!(order)));
        assert_eq!(index["checksum"], json!(checksum));
        check(&all[n], shard, &chunks);
        assert_eq!(listed(&mount, &[&format!("g/a{n}"), "--json"]).json()[0], all[n]);
        assert_eq!(listed(&mount, &[&format!("g/a{n}/c/1/1"), "--json"]).json()[0], all[n]);
    }
    assert_eq!(listed(&mount, &["-r", "--json"]).json(), all);
    let text = listed(&mount, &["g/a0"]).text();
    assert!(text.starts_with("/g/a0/c/1/1  ") && text.contains("CRC-32C right") && text.lines().count() == 6, "{text}");
    assert!(listed(&mount, &["g/a0/c/0/0"]).failure().contains("no `g/a0/c/0/0`"));
    put(&mount.root().join("plain/zarr.json"), writing::array(&[1], &[1])).unwrap();
    mount.commit("plain").unwrap();
    assert!(listed(&mount, &["plain"]).failure().contains("/plain: its chunks are not shards"));
}

#[test]
fn shards_in_shards_are_listed() {
    let inner = Form { checksum: false, ..USUAL };
    let leaves = |salt: u8| -> Vec<Option<Vec<u8>>> { (0..4).map(|n| Some(vec![10 * salt + n; 50])).collect() };
    let chunks: Vec<Option<Vec<u8>>> = (0..3).map(|n| Some(inner.shard(&leaves(n), [2, 1, 3, 0]))).collect();
    let shard = USUAL.shard(&chunks, [1, 2, 0]);
    let codec = USUAL.codec(json!([4]), json!([inner.codec(json!([1]), json!([{"name": "bytes"}]))]));
    let document = array(json!([12]), json!([12]), json!([codec])).to_string();
    let mount = with_files(&[("a/zarr.json", document.into_bytes()), ("a/c/0", shard.clone())]);
    let all = listed(&mount, &["a", "--json"]).json();
    check(&all[0], &shard, &chunks);
    for (n, nested) in all[0]["inner_chunks"].as_array().unwrap().iter().enumerate() {
        check(nested, &shard, &leaves(n as u8));
    }
    let text = listed(&mount, &["a"]).text();
    assert_eq!(text.lines().count(), 1 + 3 * 5, "{text}");
}

#[test]
fn shard_errors_name_the_shard_and_the_problem() {
    let codec = USUAL.codec(json!([1]), json!([{"name": "bytes"}]));
    let document = array(json!([9]), json!([3]), json!([codec])).to_string();
    let good = USUAL.shard(&[Some(vec![1; 10]), None, Some(vec![2; 20])], 0..3);
    let mut torn = good.clone();
    torn[31] ^= 1;
    let wrong = [vec![0; 100], USUAL.index(&[(90, 20), (95, 500), (0, 50)])].concat();
    let mount = with_files(&[
        ("a/zarr.json", document.clone().into_bytes()),
        ("a/c/0", good),
        ("a/c/1", torn),
        ("a/c/2", wrong),
        ("b/zarr.json", document.clone().into_bytes()),
        ("b/c/0", vec![7; 20]),
    ]);
    listed(&mount, &["a/c/0"]).success();
    let output = listed(&mount, &["a/c/1"]);
    assert!(
        output.stderr.contains("/a/c/1") && output.stderr.contains("index at offset 30") && !output.status.success()
    );
    let output = listed(&mount, &["a/c/2", "--json"]);
    let text = &output.stderr;
    assert!(
        text.contains("/a/c/2: inner chunk [0], 20 bytes at offset 90") && text.contains("over the index"),
        "{text}"
    );
    assert!(text.contains("1 more"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(all[0]["faults"].as_array().unwrap().len(), 2);
    assert!(all[0]["faults"][1].as_str().unwrap().contains("inner chunk [1], 500 bytes at offset 95, is outside"));
    let output = listed(&mount, &["b"]).failure();
    assert!(output.contains("/b/c/0") && output.contains("no room for an index of 52 bytes"), "{output}");
    // The files are there all the same.
    assert_eq!(std::fs::read(mount.root().join("b/c/0")).unwrap(), vec![7; 20]);
}

/// ZEP 2's draft: the chunk grid is that of inner chunks, and the stored objects are shards of
/// them.
#[test]
fn shards_of_a_storage_transformer_are_files() {
    let mount = Writable::new(&[]);
    let mut document = array(json!([10, 7]), json!([2, 2]), json!([{"name": "bytes"}]));
    document["storage_transformers"] = json!([{"extension": "", "type": "indexed",
        "configuration": {"chunks_per_shard": [2, 3]}}]);
    let form = Form { checksum: false, ..USUAL };
    let chunks: Vec<Option<Vec<u8>>> = (0..6).map(|n| (n != 2).then(|| vec![n; 4])).collect();
    let shard = form.shard(&chunks, [5, 0, 1, 3, 2, 4]);
    // The reference counts the chunks of the grid, and accepts these keys.
    let reference = Reference::open(mount.repository());
    let text = document.to_string();
    let keys = [("a/zarr.json", text.as_bytes()), ("a/c/2/1", &shard), ("a/c/0/0", &shard), ("a/c/4/3", &shard)];
    reference.commit(&keys, "theirs");
    mount.touch("refresh").unwrap();
    let root = mount.root();
    let names: Vec<String> = common::read_files(&root.join("a")).into_keys().collect();
    assert_eq!(names, ["c/0/0", "c/2/1", "zarr.json"], "the grid has three by two shards");
    let all = listed(&mount, &["a", "--json"]).json();
    assert_eq!((all.as_array().unwrap().len(), &all[1]["path"]), (2, &json!("/a/c/2/1")));
    check(&all[1], &shard, &chunks);

    put(&root.join("a/c/1/1"), &shard).unwrap();
    put(&root.join("b/zarr.json"), &text).unwrap();
    put(&root.join("b/c/0/1"), &shard).unwrap();
    mount.commit("ours").unwrap();
    put(&root.join("a/c/3/1"), &shard).unwrap();
    let refused = mount.commit("no such shard").unwrap_err();
    assert!(refused.raw_os_error().is_some(), "{refused}");
    std::fs::remove_file(root.join("a/c/3/1")).unwrap();
    let keys = reference.keys();
    for key in ["a/c/1/1", "b/c/0/1", "a/c/2/1"] {
        assert_eq!(keys[key], shard, "{key}");
    }
    assert_eq!(keys["b/zarr.json"], text.as_bytes());
    // Their commit is on top of ours, and a fresh mount shows our files.
    reference.commit(&[("b/c/2/0", &shard)], "theirs again");
    assert_eq!(mount.fresh()["b/c/2/0"], shard);
}

/// Listed inner chunks have the values that zarr-python wrote into a mount.
#[test]
fn shards_written_by_zarr_python_are_listed() {
    let Some(python) = python() else { return };
    let mount = Writable::new(&[]);
    let script = "import sys, zarr, numpy as np\n\
        from zarr.codecs import BytesCodec, ShardingCodec, Crc32cCodec\n\
        for place in ['start', 'end']:\n\
        \x20   codec = ShardingCodec(chunk_shape=(2, 4), codecs=[BytesCodec()], index_location=place)\n\
        \x20   a = zarr.create_array(sys.argv[1] + '/' + place, shape=(8, 16), chunks=(4, 16), dtype='uint8', serializer=codec,\n\
        \x20       compressors=None, fill_value=255)\n\
        \x20   a[:6, :12] = np.arange(72, dtype='uint8').reshape(6, 12)\n";
    run(Command::new(python).args(["-c", script]).arg(mount.root())).success();
    mount.commit("by zarr-python").unwrap();
    let inner = |shard: usize| -> Vec<Option<Vec<u8>>> {
        let value = |row: usize, column: usize| if row < 6 && column < 12 { (row * 12 + column) as u8 } else { 255 };
        let chunk = |n: usize| {
            let top = 4 * shard + n / 4 * 2;
            let left = n % 4 * 4;
            let bytes: Vec<u8> = (0..8).map(|at| value(top + at / 4, left + at % 4)).collect();
            // Chunks that only have the fill value are not stored.
            bytes.iter().any(|byte| *byte != 255).then_some(bytes)
        };
        (0..8).map(chunk).collect()
    };
    for place in ["start", "end"] {
        let all = listed(&mount, &[place, "--json"]).json();
        assert_eq!(all.as_array().unwrap().len(), 2, "{all}");
        for (shard, listed) in all.as_array().unwrap().iter().enumerate() {
            assert_eq!((&listed["index"]["location"], &listed["index"]["checksum"]), (&json!(place), &json!("right")));
            let file =
                std::fs::read(mount.root().join(listed["path"].as_str().unwrap().trim_start_matches('/'))).unwrap();
            check(listed, &file, &inner(shard));
        }
    }
}

/// A writable mount that can be killed and made again.
struct Writer {
    scratch: tempfile::TempDir,
    port: u16,
    repo: String,
}

impl Writer {
    fn mount(&self) -> common::Mount {
        mount(self.port, &self.repo, &["--scratch", &self.scratch.path().join("s").display().to_string()])
    }
}

fn open_to_write(mount: &common::Mount, path: &str) -> File {
    File::options().read(true).write(true).open(mount.path().join(path)).unwrap()
}

/// A write to a large chunk transfers nothing, and a commit fetches the unwritten ranges.
#[test]
fn a_write_into_a_large_chunk_fetches_nothing_before_the_commit() {
    let Some(server) = s3() else { return };
    let chunks: Vec<Option<Vec<u8>>> = (0..512).map(|number| Some(with_checksum(inner(number)))).collect();
    let shard = USUAL.shard(&chunks, shuffled(512));
    let codec = USUAL.codec(json!([INNER]), json!([{"name": "bytes"}, {"name": "crc32c"}]));
    let document = |codecs| array(json!([512 * INNER * 3]), json!([512 * INNER]), codecs).to_string().into_bytes();
    let plain: Vec<u8> = (0..6 << 20).map(|at: u32| ((at * 31) >> 7) as u8).collect();
    let files = [
        ("a/zarr.json", document(json!([codec]))),
        ("a/c/0", shard.clone()),
        ("a/c/1", shard.clone()),
        ("b/zarr.json", document(json!([{"name": "bytes"}]))),
        ("b/c/0", plain.clone()),
        ("b/c/1", plain.clone()),
    ];
    let repo = stored(server.port, "written", &files);
    let counted = Counted::to(server.port);
    let writer = Writer { scratch: tempfile::tempdir().unwrap(), port: counted.line.port, repo };
    let mounted = writer.mount();
    let mut first = shard.clone();
    let mut second = plain.clone();

    counted.begin();
    let file = open_to_write(&mounted, "a/c/0");
    file.write_all_at(&[7; 5000], 3_000_001).unwrap();
    first[3_000_001..3_005_001].fill(7);
    // At its end, and from its beginning.
    let end = first.len() as u64;
    file.write_all_at(&[8; 3000], end).unwrap();
    first.extend([8; 3000]);
    file.write_all_at(&[9; 100], 0).unwrap();
    first[..100].fill(9);
    assert_eq!(file.metadata().unwrap().len(), first.len() as u64);
    drop(file);
    let file = open_to_write(&mounted, "b/c/0");
    file.write_all_at(&[6; 70_000], 0).unwrap();
    second[..70_000].fill(6);
    file.set_len(5 << 20).unwrap();
    file.set_len(6 << 20).unwrap();
    second[5 << 20..].fill(0);
    file.sync_all().unwrap();
    drop(file);
    let file = open_to_write(&mounted, "b/c/1");
    file.write_all_at(&[5], 1 << 20).unwrap();
    drop(file);
    let (asked, bytes) = counted.end();
    assert!(asked == 0 && bytes < 64 << 10, "{asked} requests, {bytes} bytes");
    // The kernel reads whole pages, of which some bytes are only in the store.
    let file = File::open(mounted.path().join("a/c/0")).unwrap();
    assert!(read_at(&file, (3_000_001, 5000)) == [7; 5000] && read_at(&file, (end, 3000)) == [8; 3000]);
    let (asked, bytes) = counted.end();
    assert!(asked <= 3 && bytes < 512 << 10, "{asked} requests, {bytes} bytes");
    drop(file);

    // A read combines both, after a crash too.
    signal(mounted.daemon(), "-9");
    drop(mounted);
    let mounted = writer.mount();
    let file = File::open(mounted.path().join("a/c/0")).unwrap();
    counted.begin();
    for at in [2_990_000, 3_004_000, 0, 8_300_000] {
        assert!(read_at(&file, (at, 20_000)) == first[at as usize..at as usize + 20_000], "{at}");
    }
    let (asked, bytes) = counted.end();
    assert!(asked <= 5 && bytes < 1 << 20, "{asked} requests, {bytes} bytes");
    assert_eq!(std::fs::metadata(mounted.path().join("b/c/0")).unwrap().len(), 6 << 20);
    drop(file);

    // At random, beside a copy.
    let file = open_to_write(&mounted, "a/c/1");
    let mut model = shard.clone();
    let mut random = Random::new(17);
    let mut below = |n: u64| random.below(n as usize) as u64;
    for n in 0..150 {
        let at = below(model.len() as u64);
        let length = 1 + below(30_000);
        match below(8) {
            0..4 => {
                let end = (at + length) as usize;
                model.resize(model.len().max(end), 0);
                model[at as usize..end].fill(n as u8);
                file.write_all_at(&vec![n as u8; length as usize], at).unwrap();
            }
            4 => {
                let size = model.len() as u64 - length % 5000 + below(4000);
                model.resize(size as usize, 0);
                file.set_len(size).unwrap();
            }
            _ => {
                let end = model.len().min((at + length) as usize);
                assert!(read_at(&file, (at, end - at as usize)) == model[at as usize..end], "{n}");
            }
        }
    }
    drop(file);
    // Overwritten bytes are never fetched.
    std::fs::write(mounted.path().join("b/c/1"), "all new").unwrap();

    counted.begin();
    commit(&mounted).unwrap();
    let (_, bytes) = counted.end();
    let rest = first.len() + model.len() + (5 << 20);
    assert!(bytes < rest as u64, "{bytes} bytes");
    let fresh = mount(server.port, &writer.repo, &["-o", "ro"]);
    for (path, wanted) in [("a/c/0", &first), ("a/c/1", &model), ("b/c/0", &second), ("b/c/1", &b"all new".to_vec())] {
        assert!(std::fs::read(fresh.path().join(path)).unwrap() == *wanted, "{path}");
        assert!(std::fs::read(mounted.path().join(path)).unwrap() == *wanted, "{path}");
    }
}

/// For a program that reads shard after shard the next one's index is prefetched, or all of it if
/// it reads whole shards.
#[test]
fn prefetch_of_shards_follows_the_access_pattern() {
    let Some(server) = s3() else { return };
    const SHARDS: usize = 12;
    let chunks: Vec<Option<Vec<u8>>> = (0..100).map(|number| Some(with_checksum(inner(number)))).collect();
    let shard = USUAL.shard(&chunks, shuffled(100));
    let codec = USUAL.codec(json!([INNER]), json!([{"name": "bytes"}, {"name": "crc32c"}]));
    let document = array(json!([100 * INNER * SHARDS]), json!([100 * INNER]), json!([codec])).to_string();
    let mut files = vec![("a/zarr.json".to_owned(), document.into_bytes())];
    files.extend((0..SHARDS).map(|n| (format!("a/c/{n}"), shard.clone())));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(path, bytes)| (path.as_str(), bytes.clone())).collect();
    let repo = stored(server.port, "next", &files);
    let counted = Counted::to(server.port);
    let index = shard.len() - 16 * 100 - 4;
    let number = |at: usize| u64::from_le_bytes(shard[at..at + 8].try_into().unwrap());

    let mounted = mount(counted.line.port, &repo, &["-o", "ro"]);
    counted.begin();
    for n in 0..SHARDS {
        let file = File::open(mounted.path().join(format!("a/c/{n}"))).unwrap();
        assert!(read_at(&file, (index as u64, shard.len() - index)) == shard[index..]);
        let at = (number(index + 16 * 50), number(index + 16 * 50 + 8) as usize);
        assert!(read_at(&file, at) == with_checksum(inner(50)), "{n}");
    }
    let (asked, bytes) = counted.end();
    assert!(asked <= 2 * SHARDS && bytes < (SHARDS << 18) as u64, "{asked} requests, {bytes} bytes");
    drop(mounted);

    let mounted = mount(counted.line.port, &repo, &["-o", "ro"]);
    counted.begin();
    for n in 0..SHARDS {
        assert!(std::fs::read(mounted.path().join(format!("a/c/{n}"))).unwrap() == shard);
    }
    let (asked, bytes) = counted.end();
    assert!(asked <= 2 * SHARDS && bytes < ((SHARDS + 1) * shard.len()) as u64, "{asked} requests, {bytes} bytes");
}
