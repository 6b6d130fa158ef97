//! Mounts that follow their branch: new commits show atomically, open files stay as they were, and
//! unchanged files stay in the kernel's caches.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::faulty::{Fault, Line};
use crate::common::lab::{self};
use crate::common::lengths::length;
use crate::common::mapping::Mapping;
use crate::common::moto;
use crate::common::random::Random;
use crate::common::writing::{self, GROUP, Reference, Writable, array, put};
use crate::common::{self, Mount, block_on, io_modes, read_files, run_on};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

/// Polling interval of the mounts, in seconds.
const EVERY: &str = "0.2";

/// Mounts branch `main`, following it.
fn follow(repo: &Path, words: &[&str]) -> Mount {
    Mount::new(repo, &[&["--follow", EVERY], words].concat())
}

/// Waits until `file` has `content` when it is opened.
#[track_caller]
fn wait_for_content(file: &Path, content: &[u8]) {
    common::wait_until(&file.display().to_string(), || std::fs::read(file).is_ok_and(|bytes| bytes == content));
}

fn bytes(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|n| (n % 249) as u8 ^ salt).collect()
}

/// Returns the ways to open files on this machine.
fn modes() -> Vec<&'static str> {
    if common::place::is_local() { io_modes() } else { vec!["cached"] }
}

#[test]
fn follow_shows_commits_of_others() {
    let writer = Writable::new(&[]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[9], &[1])).unwrap();
    put(&root.join("a/c/0"), "zero").unwrap();
    put(&root.join("deep/b/zarr.json"), array(&[2, 2], &[1, 1])).unwrap();
    put(&root.join("deep/b/c/1/1"), "eleven").unwrap();
    writer.commit("first").unwrap();
    let mount = follow(writer.repository(), &[]);
    let seen = mount.path();
    assert!(mount.mounted_as().unwrap().contains(" ro,"), "{:?}", mount.mounted_as());
    assert!(std::fs::write(seen.join("x"), "x").is_err());
    assert!(!seen.with_file_name("scratch").exists());
    // The kernel has cached all names, negative entries, listings and sizes.
    let before = read_files(&seen);
    assert_eq!(before, read_files(&root));
    for missing in ["a/c/1", "new", "new/zarr.json", "deep/b/c/0", "deep/b/c/0/0", "c"] {
        assert!(std::fs::metadata(seen.join(missing)).is_err(), "{missing}");
    }

    put(&root.join("a/c/0"), "zero, and more of it").unwrap();
    put(&root.join("a/c/1"), "one").unwrap();
    put(&root.join("deep/b/c/0/0"), "nothing").unwrap();
    std::fs::remove_dir_all(root.join("deep/b/c/1")).unwrap();
    put(&root.join("new/zarr.json"), array(&[2], &[1])).unwrap();
    put(&root.join("new/c/0"), "new").unwrap();
    writer.commit("second").unwrap();
    wait_for_content(&seen.join("a/c/1"), b"one");
    // From then on all of the new snapshot is visible: the move is atomic.
    assert_eq!(std::fs::metadata(seen.join("a/c/0")).unwrap().len(), 20);
    assert_eq!(std::fs::read(seen.join("new/c/0")).unwrap(), b"new");
    assert_eq!(std::fs::read(seen.join("deep/b/c/0/0")).unwrap(), b"nothing");
    assert!(std::fs::metadata(seen.join("deep/b/c/1")).is_err());
    assert_eq!(read_files(&seen), read_files(&root));

    // Nodes are renamed, resized, given other chunk names, and deleted.
    std::fs::rename(root.join("deep"), root.join("high")).unwrap();
    std::fs::remove_dir_all(root.join("new")).unwrap();
    put(&root.join("a/zarr.json"), array(&[300], &[1])).unwrap();
    put(&root.join("a/c/299"), "last").unwrap();
    writer.commit("third").unwrap();
    wait_for_content(&seen.join("a/c/299"), b"last");
    assert_eq!(read_files(&seen), read_files(&root));
    assert!(std::fs::metadata(seen.join("new")).is_err() && std::fs::metadata(seen.join("deep")).is_err());
    let dots = array(&[300], &[1]).replace(r#""separator":"/""#, r#""separator":".""#);
    assert!(dots.contains(r#"".""#), "{dots}");
    let old = read_files(&root.join("a/c"));
    std::fs::remove_dir_all(root.join("a")).unwrap();
    put(&root.join("a/zarr.json"), dots).unwrap();
    for (name, content) in old {
        put(&root.join(format!("a/c.{name}")), content).unwrap();
    }
    writer.commit("fourth").unwrap();
    wait_for_content(&seen.join("a/c.299"), b"last");
    assert_eq!(read_files(&seen), read_files(&root));
}

#[test]
fn a_follow_keeps_the_bytes_of_open_files_until_they_are_closed() {
    const LENGTH: usize = 5 << 20;
    for mode in modes() {
        let writer = Writable::new(&[]);
        let root = writer.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        for name in ["a", "gone"] {
            put(&root.join(name).join("zarr.json"), array(&[9], &[1])).unwrap();
            put(&root.join(name).join("c/0"), bytes(LENGTH, 1)).unwrap();
        }
        put(&root.join("a/c/1"), bytes(LENGTH, 7)).unwrap();
        writer.commit("first").unwrap();
        let mount = follow(writer.repository(), &["--io", mode]);
        let chunk = mount.path().join("a/c/0");
        // A little of each is read before, so that the rest has to be requested after the move.
        let begin = |path: &Path| {
            let mut file = File::open(path).unwrap();
            let mut some = [0; 100];
            file.read_exact(&mut some).unwrap();
            (file, some.to_vec())
        };
        let (mut open, mut read) = begin(&chunk);
        let (mut gone, mut read_gone) = begin(&mount.path().join("gone/c/0"));
        let document = File::open(mount.path().join("a/zarr.json")).unwrap();
        let mapped = Mapping::read_only(&File::open(&chunk).unwrap());
        let first = std::fs::read(root.join("a/zarr.json")).unwrap();

        for (n, salt) in [2, 3].into_iter().enumerate() {
            let length = LENGTH - 7 + 20 * n;
            put(&root.join("a/c/0"), bytes(length, salt)).unwrap();
            put(&root.join("a/zarr.json"), array(&[10 + n as u64], &[1])).unwrap();
            let _ = std::fs::remove_dir_all(root.join("gone"));
            writer.commit("next").unwrap();
            wait_for_content(&chunk, &bytes(length, salt));
            assert_eq!(
                std::fs::read(mount.path().join("a/zarr.json")).unwrap(),
                array(&[10 + n as u64], &[1]).as_bytes()
            );
            assert!(File::open(mount.path().join("gone/c/0")).is_err());
            // Meanwhile it is open twice, as two files.
            let mut part = [0; 50];
            open.read_exact_at(&mut part, 3 << 20).unwrap();
            assert!(bytes(LENGTH, 1)[3 << 20..].starts_with(&part), "{mode}");
            assert_eq!(open.metadata().unwrap().len(), LENGTH as u64, "{mode}");
        }
        open.read_to_end(&mut read).unwrap();
        assert!(read == bytes(LENGTH, 1), "{mode}: a file that was open is another one now");
        gone.read_to_end(&mut read_gone).unwrap();
        assert!(read_gone == bytes(LENGTH, 1), "{mode}: a file that was open has vanished");
        assert!(mapped.bytes() == bytes(LENGTH, 1), "{mode}: a mapping shows other bytes");
        let mut text = vec![0; first.len()];
        document.read_exact_at(&mut text, 0).unwrap();
        assert!(text == first, "{mode}: an open zarr.json is another one now");
        assert!(std::fs::read(mount.path().join("a/c/1")).unwrap() == bytes(LENGTH, 7));
        drop((open, gone, document, mapped));
        put(&root.join("a/c/0"), "short").unwrap();
        writer.commit("last").unwrap();
        wait_for_content(&chunk, b"short");
        assert_eq!(read_files(&mount.path()), read_files(&root));
    }
}

/// Only changed files are dropped from the kernel's cache.
#[test]
fn a_follow_keeps_unchanged_files_in_the_page_cache() {
    const LENGTH: usize = 1 << 20;
    let writer = Writable::new(&[]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    for name in ["a", "b"] {
        put(&root.join(name).join("zarr.json"), array(&[4], &[1])).unwrap();
        (0..4).for_each(|n| put(&root.join(format!("{name}/c/{n}")), bytes(LENGTH, n)).unwrap());
    }
    writer.commit("first").unwrap();
    let mount = follow(writer.repository(), &["--io", "cached"]);
    let before = read_files(&mount.path());
    let cached = |name: &str| Mapping::read_only(&File::open(mount.path().join(name)).unwrap()).cached_pages();
    let all = LENGTH.div_ceil(4096);
    let chunks: Vec<String> = before.keys().filter(|name| name.contains("/c/")).cloned().collect();
    for name in &chunks {
        assert_eq!(cached(name), all, "{name}");
    }
    // A chunk, and one more at the end of an array that grows.
    put(&root.join("a/c/1"), bytes(LENGTH, 77)).unwrap();
    put(&root.join("a/zarr.json"), array(&[40], &[1])).unwrap();
    put(&root.join("a/c/39"), bytes(LENGTH, 78)).unwrap();
    writer.commit("second").unwrap();
    common::wait_until("the new chunk", || mount.path().join("a/c/39").exists());
    for name in &chunks {
        let still = cached(name);
        // The kernel may drop a page at any time.
        assert!(if name == "a/c/1" { still == 0 } else { still > all / 10 * 9 }, "{name}: {still} of {all} pages");
    }
    assert_eq!(read_files(&mount.path()), read_files(&root));
}

/// Programs that open one file after the other, while commits change them all, never see an older
/// snapshot after a newer one.
#[test]
fn readers_see_no_older_snapshot_after_a_newer_one() {
    const FILES: usize = 12;
    const COMMITS: usize = 25;
    let writer = Writable::new(&[]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[FILES as u64], &[1])).unwrap();
    let fill = |version: usize| {
        for n in 0..FILES {
            // Names also appear and vanish, and sizes differ.
            let file = root.join(format!("a/c/{n}"));
            put(&file, format!("{version} ").repeat(1 + (version * 7 + n) % 900)).unwrap();
        }
        let _ = std::fs::remove_dir_all(root.join(format!("g{}", version.wrapping_sub(1))));
        put(&root.join(format!("g{version}/zarr.json")), GROUP).unwrap();
        writer.commit(&version.to_string()).unwrap();
    };
    fill(0);
    let mount = Mount::new(writer.repository(), &["--follow", "0.1"]);
    let over = AtomicBool::new(false);
    let newest = |text: &str| -> usize {
        let versions: Vec<&str> = text.split_whitespace().collect();
        assert!(versions.iter().all(|version| *version == versions[0]), "torn: {text}");
        versions[0].parse().unwrap()
    };
    let looks = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|reader| {
                let seen = mount.path();
                let over = &over;
                scope.spawn(move || {
                    let mut last = 0;
                    let mut looks = 0;
                    let mut at = reader;
                    while !over.load(Ordering::Relaxed) {
                        at = (at * 5 + 3) % FILES;
                        let text = std::fs::read_to_string(seen.join(format!("a/c/{at}"))).unwrap();
                        let version = newest(&text);
                        assert!(version >= last, "file {at} is of commit {version}, after one of {last} was read");
                        last = version;
                        // The files of this commit are there, unless the mount has moved on since.
                        let group = seen.join(format!("g{version}"));
                        if !group.exists() {
                            let again = newest(&std::fs::read_to_string(seen.join("a/c/0")).unwrap());
                            assert!(again > version, "{} is not there, of commit {version}", group.display());
                        }
                        looks += 1;
                    }
                    looks
                })
            })
            .collect();
        for version in 1..=COMMITS {
            fill(version);
            // However fast commits are, the mount moves several times between the first and the
            // last.
            if version % 5 == 0 {
                common::wait_until("a commit", || mount.path().join(format!("g{version}")).exists());
            }
        }
        over.store(true, Ordering::Relaxed);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum::<usize>()
    });
    let moves = mount.log().matches("is followed to").count();
    println!("{looks} looks at {moves} moves");
    assert!(moves > 3 && looks > 100, "{looks} looks at {moves} moves: this tested nothing");
    assert_eq!(read_files(&mount.path()), read_files(&root));
}

#[test]
fn resets_and_expirations_are_followed_in_both_versions() {
    if !common::place::needs_directory() {
        return;
    }
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        block_on(lab::create(&place, version, RepositoryConfig::default()));
        let reference = Reference::open(&place);
        let document = array(&[9], &[1]);
        reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes())], "first");
        reference.create_branch("side");
        let main = follow(&place, &[]);
        let side = follow(&place, &["--branch", "side"]);
        reference.commit(&[("a/c/0", b"one"), ("a/c/1", b"old")], "second");
        wait_for_content(&main.path().join("a/c/0"), b"one");
        let open = File::open(main.path().join("a/c/0")).unwrap();
        reference.commit(&[("a/c/0", b"two"), ("b/zarr.json", GROUP.as_bytes())], "third");
        wait_for_content(&main.path().join("a/c/0"), b"two");
        assert!(!side.path().join("a/c").exists());
        // Reset, and continued with other commits.
        reference.reset_branch("main");
        wait_for_content(&main.path().join("a/c/0"), b"one");
        assert!(!main.path().join("b").exists());
        let mut text = [0; 3];
        open.read_exact_at(&mut text, 0).unwrap();
        assert_eq!(&text, b"one");
        reference.commit(&[("a/c/1", b"new"), ("a/c/0", b"three")], "another third");
        wait_for_content(&main.path().join("a/c/0"), b"three");
        assert_eq!(std::fs::read(main.path().join("a/c/1")).unwrap(), b"new");
        // Deleted, and created again at another commit.
        reference.delete_branch("side");
        common::wait_until("a word in the log", || side.log().contains("the branch no longer exists"));
        assert!(side.path().join("a/zarr.json").exists());
        // In this time the mount looks several times: it must not log any of them.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(side.log().matches("the branch no longer exists").count(), 1, "{}", side.log());
        reference.create_branch("side");
        wait_for_content(&side.path().join("a/c/0"), b"three");
        // The line is written after the mount has moved.
        common::wait_until("a line in the log", || side.log().contains("following branch side again"));
        assert_eq!(read_files(&main.path()), reference.keys());
    }
}

#[test]
fn amended_commits_are_followed() {
    let writer = Writable::new(&[]);
    let root = writer.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[9], &[1])).unwrap();
    put(&root.join("a/c/0"), "one").unwrap();
    writer.commit("first").unwrap();
    let mount = follow(writer.repository(), &[]);
    assert_eq!(std::fs::read(mount.path().join("a/c/0")).unwrap(), b"one");
    put(&root.join("a/c/0"), "amended").unwrap();
    run_on(&root, &["commit", "--amend"]).success();
    wait_for_content(&mount.path().join("a/c/0"), b"amended");
    assert_eq!(read_files(&mount.path()), read_files(&root));
}

/// A poll costs one request for the one object, and unchanged objects are not fetched again.
#[test]
fn a_poll_is_one_request_and_survives_an_unreachable_store() {
    let Some(server) = moto::s3() else { return };
    let line = Line::to(server.port);
    let repo = moto::made(server.port, "followed");
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |line: &Line| {
        let asked = Arc::clone(&asked);
        asked.lock().unwrap().clear();
        line.decide(move |_, request| {
            asked.lock().unwrap().push(request.to_owned());
            Fault::Pass
        });
    };
    let mount = moto::mount(line.port, &repo, &["--follow", EVERY, "--ahead", "0", "--timeout", "3"]);
    let before = read_files(&mount.path());
    note(&line);
    common::wait_until("five looks", || asked.lock().unwrap().len() >= 5);
    // The first poll may be one without a condition.
    let answers = line.answers();
    assert!(answers.iter().skip(1).all(|answer| answer.contains(" 304 ")) && answers.len() >= 4, "{answers:?}");
    let requests = asked.lock().unwrap().clone();
    assert!(
        requests.iter().all(|request| request.starts_with("GET ") && request.contains("followed/repo ")),
        "{requests:?}"
    );

    let writer = moto::mount(server.port, &repo, &["--ephemeral"]);
    let chunk = "a/c/2";
    note(&line);
    std::fs::write(writer.path().join(chunk), bytes(400_000, 9)).unwrap();
    moto::commit(&writer).unwrap();
    wait_for_content(&mount.path().join(chunk), &bytes(400_000, 9));
    let after = read_files(&mount.path());
    assert!(before.iter().all(|(name, content)| name == chunk || after[name] == *content));
    let requests = asked.lock().unwrap().clone();
    let chunks: Vec<&String> = requests.iter().filter(|request| request.contains("/chunks/")).collect();
    assert_eq!(chunks.len(), 1, "{requests:?}");

    line.decide(|_, _| Fault::Reset);
    common::wait_until("a word in the log", || mount.log().contains("following branch main: "));
    assert_eq!(std::fs::read(mount.path().join(chunk)).unwrap(), bytes(400_000, 9));
    std::fs::write(writer.path().join(chunk), bytes(300_000, 5)).unwrap();
    moto::commit(&writer).unwrap();
    line.release();
    wait_for_content(&mount.path().join(chunk), &bytes(300_000, 5));
    assert_eq!(mount.log().matches("following branch main: ").count(), 1, "{}", mount.log());
}

#[test]
fn follow_refuses_conflicting_options() {
    let directory = tempfile::tempdir().unwrap();
    let place = common::place::place(directory.path());
    writing::create(&place);
    let mount = Mount::prepare();
    for (words, output) in [
        (&["--follow", "--tag", "x"][..], "only a branch"),
        (&["--follow", "--as-of", "2026-01-01"], "only a branch"),
        (&["--follow", "3", "--ephemeral"], "read-only"),
        (&["--follow", "--discard"], "read-only"),
        (&["--follow", "--scratch", "/tmp/x"], "read-only"),
        (&["--follow", "0"], "from 0.1 to 86400"),
        (&["-o", "follow=never", "--ephemeral"], "from 0.1 to 86400"),
    ] {
        let failure = mount.command(&place, words).failure();
        assert!(failure.contains(output), "{words:?}: {failure}");
    }
    let unknown = mount.command(&place, &["--follow", "--branch", "maim"]).failure();
    assert!(unknown.contains("did you mean `main`"), "{unknown}");
}

/// Random commits by a writable mount; after each, the following mount shows the same, and open
/// files are as they were.
#[test]
fn random_histories_are_followed() {
    let commits = length("ICECHUNKFS_FOLLOW_COMMITS", 12, 40);
    let mut random = Random::new(0x2545_f491);
    for mode in modes() {
        let writer = Writable::new(&[]);
        let root = writer.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        writer.commit("root").unwrap();
        let mount = follow(writer.repository(), &["--io", mode]);
        let mut open: Vec<(File, Vec<u8>)> = Vec::new();
        let mut arrays: BTreeMap<String, [u32; 2]> = BTreeMap::new();
        for n in 0..commits {
            for _ in 0..=random.below(6) {
                change(&root, &mut arrays, &mut random, n);
            }
            writer.commit(&format!("commit {n}")).unwrap_or_else(|e| panic!("{e}: {}", writer.read_control("commit")));
            let expected = read_files(&root);
            // Names that do not exist are looked up, too, while it moves.
            common::wait_until(&format!("commit {n}, {mode}"), || {
                read_files_of(&mount.path()).is_some_and(|files| files == expected)
            });
            for (file, content) in &open {
                let mut bytes = vec![0; content.len()];
                file.read_exact_at(&mut bytes, 0).unwrap_or_else(|e| panic!("commit {n}, {mode}: {e}"));
                assert!(bytes == *content, "commit {n}, {mode}: an open file has other bytes");
            }
            if random.below(3) == 0 {
                let at = random.below(open.len() + 1);
                open.truncate(at);
            }
            for _ in 0..2 {
                let names: Vec<&String> = expected.keys().collect();
                let name = *random.pick(&names);
                open.push((File::open(mount.path().join(name)).unwrap(), expected[name].clone()));
            }
        }
    }
}

/// Reads as [`read_files`]; None if something vanished meanwhile.
fn read_files_of(root: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
    std::panic::catch_unwind(|| read_files(root)).ok()
}

fn change(root: &Path, arrays: &mut BTreeMap<String, [u32; 2]>, random: &mut Random, n: usize) {
    let document = |grid: [u32; 2]| array(&grid.map(u64::from), &[1, 1]);
    let names: Vec<String> = arrays.keys().cloned().collect();
    match (random.below(10), names.is_empty()) {
        (0, _) | (_, true) => {
            let name = random.pick(&["a", "b", "g/a", "g/h/b", "x"]).to_string();
            if !root.join(&name).exists() {
                let grid = [1 + random.below(4) as u32, 1 + random.below(4) as u32];
                put(&root.join(&name).join("zarr.json"), document(grid)).unwrap();
                arrays.insert(name, grid);
            }
        }
        (1, _) => {
            let name = random.pick(&names);
            std::fs::remove_dir_all(root.join(name)).unwrap();
            arrays.remove(name);
        }
        (2, _) => {
            let name = random.pick(&names);
            let to = format!("moved{}", random.below(4));
            if !root.join(&to).exists() {
                std::fs::rename(root.join(name), root.join(&to)).unwrap();
                let grid = arrays.remove(name).unwrap();
                arrays.insert(to, grid);
            }
        }
        (3, _) => {
            // Larger, sometimes much larger.
            let name = random.pick(&names);
            let grid = arrays.get_mut(name).unwrap();
            grid[random.below(2)] += [1, 1, 5, 100][random.below(4)];
            put(&root.join(name).join("zarr.json"), document(*grid)).unwrap();
        }
        (4, _) => {
            let name = random.pick(&names);
            let _ = std::fs::remove_dir_all(root.join(name).join(format!("c/{}", random.below(3))));
        }
        _ => {
            let name = random.pick(&names);
            let [rows, columns] = arrays[name];
            let at = [random.below(rows.min(5) as usize), random.below(columns.min(5) as usize)];
            let length = [5, 600, 5000, 300_000, 1 << 20][random.below(5)];
            put(&root.join(name).join(format!("c/{}/{}", at[0], at[1])), bytes(length, n as u8)).unwrap();
        }
    }
}
