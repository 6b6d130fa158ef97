//! The cache on a disk: cached chunks are not fetched again, others are, and no failure of the
//! cache affects readers. Over a real server.
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::disk::Disk;
use crate::common::faulty::{Fault, Line};
use crate::common::moto::{commit, free_port, icechunkfs, made, mount, s3, try_to_mount, upload};
use crate::common::writing;
use crate::common::{self, Mount, io_modes, is_root, project, read_files, signal};

/// A cache for one test.
struct CacheDir {
    path: PathBuf,
    _parent: Option<tempfile::TempDir>,
}

impl CacheDir {
    fn new() -> Self {
        let parent = tempfile::tempdir().unwrap();
        CacheDir { path: parent.path().join("cache"), _parent: Some(parent) }
    }

    fn on(disk: &Disk) -> Self {
        CacheDir { path: disk.path().join("cache"), _parent: None }
    }

    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    fn words(&self) -> [String; 2] {
        ["--cache".into(), self.path().display().to_string()]
    }

    /// Mounts `repo` read-only with this cache.
    fn mount(&self, port: u16, repo: &str, words: &[&str]) -> Mount {
        let cache = self.words();
        mount(port, repo, &[&["-o", "ro", &cache[0], &cache[1]], words].concat())
    }

    /// Entries with the bytes of chunks, or of all.
    fn entries(&self, chunks: bool) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.path().join("v1"), &mut found);
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        found.retain(|path| !matches!(name(path).as_str(), "used" | "lock"));
        found.retain(|path| !chunks || name(path).starts_with("chunks"));
        found
    }

    fn bytes(&self) -> u64 {
        self.entries(false).iter().filter_map(|path| Some(path.metadata().ok()?.len().div_ceil(4096) * 4096)).sum()
    }
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    // Entries may appear and vanish meanwhile.
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() { walk(&path, found) } else { found.push(path) }
    }
}

/// Reads a file. Each mount has its own page cache, so that nothing is cached there yet.
fn read(mount: &Mount) -> BTreeMap<String, Vec<u8>> {
    read_files(&mount.path())
}

#[test]
fn a_second_mount_makes_one_request() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "warm");
    let cache = CacheDir::new();
    let first = cache.mount(line.port, &repo, &[]);
    let expected = read(&first);
    assert_eq!(expected.len(), 42);
    first.end();
    line.decide(|_, _| Fault::Pass);
    let second = cache.mount(line.port, &repo, &[]);
    assert_eq!(line.counts().0, 1, "whether the repository has changed");
    assert!(read(&second) == expected);
    assert_eq!(line.counts().0, 1);
    // Two mounts at a time share it.
    let third = cache.mount(line.port, &repo, &[]);
    assert!(read(&third) == expected);
    assert_eq!(line.counts().0, 2);
    // Concurrent commits are detected, and only their objects are fetched.
    let writer = mount(server.port, &repo, &["--ephemeral"]);
    writing::put(&writer.path().join("a/c/3"), "new").unwrap();
    commit(&writer).unwrap();
    let fourth = cache.mount(line.port, &repo, &[]);
    let seen = read(&fourth);
    assert_eq!(seen["a/c/3"], b"new");
    assert!(seen.iter().all(|(name, bytes)| name == "a/c/3" || *bytes == expected[name]));
    // The repository, the snapshot, its manifest, the chunk.
    assert!(line.counts().0 <= 2 + 4, "{:?}", line.counts());
    assert!(read(&second) == expected, "the second mount must stay on its snapshot");
    // This machine's own commits need not be fetched, except for the chunk.
    let words = cache.words();
    let own = mount(line.port, &repo, &["--ephemeral", &words[0], &words[1]]);
    writing::put(&own.path().join("a/c/7"), vec![7; 600_000]).unwrap();
    commit(&own).unwrap();
    own.end();
    line.decide(|_, _| Fault::Pass);
    let fifth = cache.mount(line.port, &repo, &[]);
    assert!(read(&fifth)["a/c/7"] == vec![7; 600_000]);
    assert_eq!(line.counts().0, 2, "the repository and the chunk");
}

#[test]
fn offline_mounts_show_what_was_cached() {
    let Some(server) = s3() else { return };
    let repo = made(server.port, "offline");
    let cache = CacheDir::new();
    let old = upload(server.port, &project("tests/fixtures/repos/own-v1-basic"), "own-v1-basic");
    let nobody = free_port();
    let refused = |repo: &str, words: &[&str]| try_to_mount(nobody, repo, words).1.failure();
    let output = refused(&repo, &["--offline"]);
    assert!(output.contains("--cache"), "{output}");
    let words = cache.words();
    let output = refused(&repo, &["--offline", &words[0], &words[1]]);
    assert!(output.contains("not in the cache") && output.contains("repo"), "{output}");

    for repo in [&repo, &old] {
        // The address is the same in both cases: it is part of the repository's identity.
        let online = cache.mount(server.port, repo, &[]);
        let expected = read(&online);
        online.end();
        let line = Line::to(server.port);
        line.decide(|_, _| Fault::Reset);
        let offline = cache.mount(server.port, repo, &["--offline"]);
        assert!(read(&offline) == expected);
        let refused = std::fs::write(offline.path().join("x"), "x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        offline.end();
        let shown = |offline: &[&str]| {
            icechunkfs(server.port, &[&["log", repo, "--json", &words[0], &words[1]], offline].concat()).json()
        };
        assert_eq!(shown(&[]), shown(&["--offline"]));
    }
    // A missing chunk is an error with a message, and not an absence.
    for entry in cache.entries(true) {
        std::fs::remove_file(entry).unwrap();
    }
    let offline = cache.mount(server.port, &repo, &["--offline"]);
    let chunk = offline.path().join("a/c/3");
    assert_eq!(chunk.metadata().unwrap().len(), 1_000_000);
    let missing = std::fs::read(&chunk).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENETDOWN));
    assert!(offline.log().contains("not in the cache"), "{}", offline.log());
    // The server got no request.
    drop(server);
    assert!(std::fs::read(offline.path().join("a/zarr.json")).is_ok());
}

#[test]
fn prefetched_chunks_are_cached_on_disk() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "prefetch");
    let cache = CacheDir::new();
    let first = cache.mount(line.port, &repo, &["--ahead", "0"]);
    let place = first.path().display().to_string();
    let prefetch = |words: &[&str]| icechunkfs(line.port, &[&["prefetch", &place], words].concat()).text();
    line.decide(|_, _| Fault::Pass);
    let output = prefetch(&["a", "--slice", "3:12"]);
    assert!(output.starts_with("9 files"), "{output}");
    let wanted: u64 = (3..12).map(|n: usize| [100, 5_000, 300_000, 1_000_000][n % 4]).sum();
    assert!(output.contains(&format!("{wanted} bytes")), "{output}");
    let counted = line.counts().0;
    assert_eq!(counted, 8, "the manifest, which has two of the chunks in it, and the other seven");
    prefetch(&["a", "--slice", "3:12"]);
    assert_eq!(line.counts().0, counted, "they are there");
    let words = |slice: &str| icechunkfs(line.port, &["prefetch", &place, "a", "--slice", slice]).failure();
    assert!(words("x").contains("not a valid slice"));
    assert!(words("1,1").contains("2 slices for an array of 1 dimensions"));
    let group = icechunkfs(line.port, &["prefetch", &place, "--slice", "1"]).failure();
    assert!(group.contains("needs an array"), "{group}");
    let output = prefetch(&[]);
    assert!(output.starts_with("42 files"), "{output}");
    let expected = read(&first);
    first.end();
    let offline = cache.mount(line.port, &repo, &["--offline"]);
    assert!(read(&offline) == expected);
}

#[test]
fn damaged_cache_entries_are_fetched_again() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let repo = made(server.port, "damaged");
    let cache = CacheDir::new();
    let first = cache.mount(line.port, &repo, &[]);
    let expected = read(&first);
    first.end();
    let entries = cache.entries(false);
    assert!(entries.len() > 30, "{}", entries.len());
    for (n, entry) in entries.iter().enumerate() {
        let file = File::options().write(true).open(entry).unwrap();
        match n % 3 {
            0 => file.set_len(file.metadata().unwrap().len() / 2).unwrap(),
            1 => file.write_all_at(b"\0damage\0", 0).unwrap(),
            _ => {}
        }
    }
    line.decide(|_, _| Fault::Pass);
    for mode in io_modes() {
        let second = cache.mount(line.port, &repo, &["--io", mode]);
        assert!(read(&second) == expected, "{mode}");
        assert!(mode != "cached" || second.log().contains("changed since it was written"), "{}", second.log());
    }
    let fetched = line.counts().0;
    assert!((10..=entries.len()).contains(&fetched), "{fetched} of {}", entries.len());
    // Also while it is mounted: an entry is checked again after a change.
    let third = cache.mount(line.port, &repo, &[]);
    assert!(std::fs::read(third.path().join("a/c/3")).unwrap() == expected["a/c/3"]);
    for entry in cache.entries(true) {
        File::options().write(true).open(entry).unwrap().write_all_at(b"\0damage\0", 0).unwrap();
    }
    assert!(read(&third) == expected);
}

/// A chunk gets into the cache while it is open: the kernel requires that all its opens are of one
/// kind.
#[test]
fn cached_chunks_are_passed_through_to_the_kernel() {
    let Some(server) = s3() else { return };
    if !writing::needed(is_root(), "passthrough needs root") {
        return;
    }
    let line = Line::to(server.port);
    let repo = made(server.port, "handed");
    let cache = CacheDir::new();
    let mount = cache.mount(line.port, &repo, &["--io", "passthrough", "--ahead", "0"]);
    let path = mount.path().join("a/c/7");
    let before = File::open(&path).unwrap();
    let mut bytes = vec![0; 1_000_000];
    before.read_exact_at(&mut bytes, 0).unwrap();
    // By now, or soon, it is in the cache.
    for _ in 0..50 {
        assert!(std::fs::read(&path).unwrap() == bytes);
    }
    drop(before);
    common::wait_until("the cache is empty", || !cache.entries(true).is_empty());
    line.decide(|_, _| Fault::Reset);
    let handed = File::open(&path).unwrap();
    let entry = cache.entries(true).remove(0);
    let accessed = |path: &Path| std::fs::read(path).unwrap() == bytes;
    assert!(accessed(&entry) && accessed(&path));
    // An open file stays open, whatever happens to the entry.
    std::fs::remove_file(&entry).unwrap();
    let mut again = vec![0; 1_000_000];
    handed.read_exact_at(&mut again, 0).unwrap();
    assert!(again == bytes && accessed(&path));
    assert_eq!(line.counts().0, 0);
}

#[test]
fn the_cache_stays_within_its_size() {
    let Some(server) = s3() else { return };
    let repo = made(server.port, "bound");
    let cache = CacheDir::new();
    let mounts: Vec<Mount> =
        (0..3).map(|_| cache.mount(server.port, &repo, &["--cache-size", "6M", "--memory", "32M"])).collect();
    let expected = read(&mounts[0]);
    std::thread::scope(|scope| {
        let readers: Vec<_> = mounts.iter().map(|mount| scope.spawn(|| assert!(read(mount) == expected))).collect();
        while !readers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            let bytes = cache.bytes();
            assert!(bytes <= 6 << 20, "{bytes}");
        }
    });
    assert!(cache.bytes() > 3 << 20, "the cache must be used: {}", cache.bytes());
}

/// The disk is full, or nearly; the directory vanishes; another version has written there. Readers
/// are not affected.
#[test]
fn cache_failures_do_not_affect_readers() {
    let Some(server) = s3() else { return };
    let repo = made(server.port, "troubles");
    let plain = mount(server.port, &repo, &["-o", "ro"]);
    let expected = read(&plain);
    for disk in [Disk::tmpfs(6), Disk::ext4(6)].into_iter().flatten() {
        let cache = CacheDir::on(&disk);
        let first = cache.mount(server.port, &repo, &[]);
        assert!(read(&first) == expected);
        assert!(!cache.entries(true).is_empty(), "the cache must be used while there is space");
        disk.fill(0);
        let full = cache.mount(server.port, &repo, &[]);
        assert!(read(&full) == expected);
        disk.empty();
        // Nobody may be writing there now.
        first.end();
        full.end();
        disk.remount("ro");
        let closed = cache.mount(server.port, &repo, &[]);
        assert!(read(&closed) == expected);
        assert!(closed.log().contains("nothing is added to it"), "{}", closed.log());
    }
    let cache = CacheDir::new();
    let mount = cache.mount(server.port, &repo, &["--ahead", "0"]);
    assert!(std::fs::read(mount.path().join("a/c/3")).unwrap() == expected["a/c/3"]);
    // An entry may be written there at this moment.
    common::wait_until("the cache cannot be removed", || std::fs::remove_dir_all(cache.path()).is_ok());
    assert!(read(&mount) == expected);
    let cache = CacheDir::new();
    let before = cache.mount(server.port, &repo, &[]);
    let newer = cache.path().join("v2/x");
    std::fs::create_dir_all(&newer).unwrap();
    std::fs::write(newer.join("entry"), "x").unwrap();
    let other = cache.mount(server.port, &repo, &[]);
    assert!(read(&other) == expected && read(&before) == expected);
}

/// Every entry that a killed daemon leaves in the cache is valid.
#[test]
fn a_killed_daemon_leaves_no_wrong_cache_entry() {
    let Some(server) = s3() else { return };
    let repo = made(server.port, "killed");
    let cache = CacheDir::new();
    let plain = mount(server.port, &repo, &["-o", "ro"]);
    let expected = read(&plain);
    for round in 0..4 {
        let line = Line::to(server.port);
        let mount = cache.mount(line.port, &repo, &[]);
        let daemon = mount.daemon();
        // The kill comes at a certain request, in the middle of the others.
        line.decide(move |n, _| {
            if n == 4 + 7 * round {
                signal(daemon, "-9");
            }
            Fault::Pass
        });
        let root = mount.path();
        let reading = std::thread::spawn(move || (0..40).all(|n| std::fs::read(root.join(format!("a/c/{n}"))).is_ok()));
        let _ = reading.join();
    }
    let words = cache.words();
    let offline = mount(server.port, &repo, &["-o", "ro", &words[0], &words[1]]);
    assert!(read(&offline) == expected);
}
