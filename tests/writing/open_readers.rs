//! Programs that have files open while a writable mount moves to another snapshot: each reads one
//! version to its end.

mod conflicts;
mod during;
mod names;
mod random;
mod restored;
mod untracked;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::lengths::length;
use crate::common::mapping::Mapping;
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{entries, io_modes, read_files, wait_until, watchdog};

/// Bytes of a chunk: more than a page, and more than the kernel reads ahead at first.
const LENGTH: usize = 300_000;

/// Returns the bytes of version `version`; its length differs from those of its neighbors if
/// `is_even` is false.
fn bytes(version: usize, is_even: bool) -> Vec<u8> {
    let length = if is_even { LENGTH } else { [LENGTH, LENGTH / 3, LENGTH + 70_000, 9][version % 4] };
    vec![(version % 251) as u8 + 1; length]
}

/// Moves the mount to the newest commit.
#[derive(Clone, Copy, Debug)]
enum Way {
    Refresh,
    /// By a commit of a chunk of another array.
    Commit,
}

impl Way {
    #[track_caller]
    fn take(self, mount: &Writable, version: usize) {
        let moved = match self {
            Way::Refresh => mount.touch("refresh"),
            Way::Commit => {
                put(&mount.root().join("other/c/0"), version.to_string()).unwrap();
                mount.commit("other")
            }
        };
        moved.unwrap_or_else(|e| panic!("{self:?}: {e}: {}\n{}", mount.read_control("commit"), mount.log()));
    }
}

/// Mounts a repository with arrays `a` and `other`.
fn mounted(words: &[&str]) -> Writable {
    let mount = Writable::new(words);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    for name in ["a", "other"] {
        put(&mount.root().join(name).join("zarr.json"), array(&[9], &[1])).unwrap();
    }
    put(&mount.root().join("a/c/0"), bytes(0, true)).unwrap();
    put(&mount.root().join("a/c/1"), "stays").unwrap();
    mount.commit("made").unwrap();
    mount
}

/// Checks that names, numbers and sizes are the same by listing, by name and by an open file.
#[track_caller]
fn assert_agrees(root: &Path) {
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            let found = entry.path().symlink_metadata().unwrap();
            assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), found.ino(), "{:?}", entry.path());
            if found.is_dir() {
                pending.push(entry.path());
                continue;
            }
            let file = File::open(entry.path()).unwrap();
            let open = file.metadata().unwrap();
            assert_eq!((open.ino(), open.len()), (found.ino(), found.len()), "{:?}", entry.path());
            assert_eq!(fs::read(entry.path()).unwrap().len() as u64, found.len(), "{:?}", entry.path());
        }
    }
}

/// A file that is open, of which a part was read.
struct Reader {
    file: File,
    mapping: Mapping,
    expected: Vec<u8>,
}

impl Reader {
    fn open(path: &Path, expected: Vec<u8>) -> Reader {
        let file = File::open(path).unwrap();
        let mut some = [0; 5];
        file.read_exact_at(&mut some, 0).unwrap();
        assert!(expected.starts_with(&some), "{path:?}");
        let mapping = Mapping::read_only(&file);
        Reader { file, mapping, expected }
    }

    #[track_caller]
    fn check(&self, what: &str) {
        assert_eq!(self.file.metadata().unwrap().len(), self.expected.len() as u64, "{what}: another length");
        let mut bytes = vec![0; self.expected.len() + 10];
        let mut at = 0;
        let step = 50_000;
        while let count @ 1.. =
            self.file.read_at(&mut bytes[at..][..step.min(self.expected.len() + 10 - at)], at as u64).unwrap()
        {
            at += count;
        }
        assert_eq!(at, self.expected.len(), "{what}: as many bytes as before");
        assert!(bytes[..at] == self.expected, "{what}: other bytes");
        assert!(self.mapping.bytes() == self.expected, "{what}: other bytes in a mapping");
    }
}

#[test]
fn an_open_file_keeps_its_bytes_when_the_mount_moves() {
    watchdog();
    for (io, way) in io_modes().into_iter().flat_map(|io| [(io, Way::Refresh), (io, Way::Commit)]) {
        let mount = mounted(&["--io", io]);
        let root = mount.root();
        let reference = Reference::open(mount.repository());
        let [chunk, document, same] = ["a/c/0", "a/zarr.json", "a/c/1"].map(|name| root.join(name));
        // Round 0 has what was made in the mount; from round 2 on, it is only in the repository.
        for (round, remounts) in [false, true, false].into_iter().enumerate() {
            if remounts {
                mount.remount();
            }
            let unchanged = File::open(&same).unwrap();
            let number_of = |path| fs::metadata(path).unwrap().ino();
            let number_before = number_of(&same);
            let mut readers = Vec::new();
            for step in 0..5 {
                let what = format!("{io}, {way:?}, round {round}, step {step}");
                let version = 1 + round * 10 + step;
                // In the last step the array grows, so that all its files get other numbers.
                let grows = step == 4;
                let text = format!("{}{}", array(&[9 + round as u64 + u64::from(grows)], &[1]), " ".repeat(version));
                readers.push(Reader::open(&chunk, fs::read(&chunk).unwrap()));
                readers.push(Reader::open(&document, fs::read(&document).unwrap()));
                let new = bytes(version, step == 0);
                reference.commit(&[("a/c/0", &new), ("a/zarr.json", text.as_bytes())], "theirs");
                way.take(&mount, version);
                // A file that is opened afterwards is of the new version.
                assert!(fs::read(&chunk).unwrap() == new, "{what}");
                assert_eq!(fs::metadata(&chunk).unwrap().len(), new.len() as u64, "{what}");
                assert_eq!(fs::read_to_string(&document).unwrap(), text, "{what}");
                readers.iter().for_each(|reader| reader.check(&what));
                assert_agrees(&root);
                assert_eq!(unchanged.metadata().unwrap().ino(), number_before, "{what}");
                assert!(grows || number_of(&same) == number_before, "{what}");
            }
            drop(readers);
            let wanted = reference.keys();
            assert!(read_files(&root) == wanted && mount.fresh() == wanted, "{io}, {way:?}, round {round}");
        }
        assert!(mount.control_json("status.json")["changed"].as_array().unwrap().is_empty());
    }
}

/// A file whose chunk, array or directory is gone, or was replaced by another one of its name.
#[test]
fn an_open_file_that_others_delete_can_be_read_to_its_end() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(&["--io", io]);
        let root = mount.root();
        for name in ["gone", "anew"] {
            put(&root.join(name).join("zarr.json"), array(&[9], &[1])).unwrap();
            put(&root.join(name).join("c/0"), bytes(3, true)).unwrap();
        }
        put(&root.join("a/c/2"), bytes(4, true)).unwrap();
        mount.commit("more").unwrap();
        mount.remount();
        let names = ["gone/c/0", "gone/zarr.json", "anew/c/0", "a/c/2"];
        let readers = names.map(|name| Reader::open(&root.join(name), fs::read(root.join(name)).unwrap()));
        let other = Writable::of(mount.repository(), &[]);
        for name in ["gone", "anew"] {
            fs::remove_dir_all(other.root().join(name)).unwrap();
        }
        fs::remove_file(other.root().join("a/c/2")).unwrap();
        other.commit("removed").unwrap();
        put(&other.root().join("anew/zarr.json"), array(&[9], &[1])).unwrap();
        put(&other.root().join("anew/c/0"), "another").unwrap();
        other.commit("made anew").unwrap();
        mount.touch("refresh").unwrap();
        let check = |what: &str| {
            readers.iter().zip(names).for_each(|(reader, name)| reader.check(&format!("{io}, {what}, {name}")));
            assert_agrees(&root);
            assert!(read_files(&root) == read_files(&other.root()), "{io}, {what}");
        };
        check("removed");
        assert!(!root.join("gone").exists() && !root.join("a/c/2").exists(), "{io}");
        // It comes back under the same name, and number of the snapshot.
        put(&other.root().join("a/c/2"), "back").unwrap();
        other.commit("back").unwrap();
        mount.touch("refresh").unwrap();
        assert_eq!(fs::read(root.join("a/c/2")).unwrap(), b"back");
        check("back");
    }
}

/// Others change a chunk that was changed and committed here, and one that was made anew after it
/// was removed while open.
#[test]
fn an_open_file_that_was_changed_here_keeps_its_bytes() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(&["--io", io]);
        let root = mount.root();
        let reference = Reference::open(mount.repository());
        let chunk = root.join("a/c/0");
        mount.remount();
        let mut readers = Vec::new();
        for version in 1..7 {
            // By writing into the file, or by replacing it.
            let mine = bytes(version, false);
            match version % 2 {
                0 => fs::write(&chunk, &mine).unwrap(),
                _ => {
                    put(&root.join("a/c/0.new"), &mine).unwrap();
                    fs::rename(root.join("a/c/0.new"), &chunk).unwrap();
                }
            }
            readers.retain(|_| version % 2 == 1);
            readers.push(Reader::open(&chunk, mine.clone()));
            mount.commit("mine").unwrap();
            readers.iter().for_each(|reader: &Reader| reader.check(&format!("{io}, committed, {version}")));
            assert!(fs::read(&chunk).unwrap() == mine, "{io}, {version}");
            let theirs = bytes(version + 100, false);
            reference.commit(&[("a/c/0", &theirs)], "theirs");
            mount.touch("refresh").unwrap();
            assert!(fs::read(&chunk).unwrap() == theirs, "{io}, {version}");
            readers.iter().for_each(|reader| reader.check(&format!("{io}, refreshed, {version}")));
            assert_agrees(&root);
        }
        assert!(read_files(&root) == reference.keys(), "{io}");
    }
}

/// The kernel reads and writes the data file of a chunk by itself in one of the modes, and goes on
/// with it after the commit.
#[test]
fn a_chunk_that_is_open_is_opened_again_after_moves_that_do_not_change_it() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(&["--io", io]);
        let root = mount.root();
        let reference = Reference::open(mount.repository());
        let chunk = root.join("a/c/0");
        fs::write(&chunk, bytes(1, false)).unwrap();
        let reader = Reader::open(&chunk, bytes(1, false));
        mount.commit("mine").unwrap();
        for version in 2..4 {
            reference.commit(&[("a/c/1", &bytes(version, false))], "theirs");
            mount.touch("refresh").unwrap();
            assert!(fs::read(&chunk).unwrap() == bytes(1, false), "{io}");
            assert_agrees(&root);
        }
        fs::OpenOptions::new().write(true).open(&chunk).unwrap().write_all_at(&[77], 0).unwrap();
        let mut first = [0];
        reader.file.read_exact_at(&mut first, 0).unwrap();
        assert_eq!(first, [77], "{io}");
        drop(reader);
        wait_until("the file is closed", || mount.commit("again").is_ok());
        assert!(mount.fresh() == read_files(&root), "{io}");
        wait_until("data files are removed", || entries(&mount.scratch().join("data")).is_empty());
    }
}

/// Programs that read in several steps, with pauses, while the mount moves again and again.
#[test]
fn a_read_in_several_steps_is_of_one_version() {
    watchdog();
    let moves = length("ICECHUNKFS_READER_MOVES", 25, 60);
    for (io, way) in io_modes().into_iter().flat_map(|io| [(io, Way::Refresh), (io, Way::Commit)]) {
        let mount = mounted(&["--io", io]);
        if matches!(way, Way::Refresh) {
            mount.remount();
        }
        let root = mount.root();
        let reference = Reference::open(mount.repository());
        let stop = AtomicBool::new(false);
        let newest = AtomicUsize::new(0);
        let counts = std::thread::scope(|scope| {
            let stop = &stop;
            let newest = &newest;
            let root = &root;
            let read = |seed| {
                let mut random = Random::new(seed);
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let least = newest.load(Ordering::SeqCst);
                    let file = File::open(root.join("a/c/0")).unwrap();
                    let mut all = Vec::new();
                    let mut part = vec![0; LENGTH / 20 + random.below(LENGTH)];
                    while let read @ 1.. = file.read_at(&mut part, all.len() as u64).unwrap() {
                        all.extend_from_slice(&part[..read]);
                        std::thread::sleep(Duration::from_micros(random.below(4000) as u64));
                    }
                    let version = usize::from(all[0]) - 1;
                    assert!(all == bytes(version, version < moves / 2), "{io}, {way:?}: parts of several versions");
                    assert!(version >= least, "{io}, {way:?}: {version}, opened after the move to {least}");
                    assert_eq!(file.metadata().unwrap().len(), all.len() as u64, "{io}, {way:?}");
                    count += 1;
                }
                count
            };
            let readers: Vec<_> = (0..3).map(|seed| scope.spawn(move || read(seed))).collect();
            for version in 1..=moves.min(250) {
                let new = bytes(version, version < moves / 2);
                reference.commit(&[("a/c/0", &new)], "theirs");
                way.take(&mount, version);
                newest.store(version, Ordering::SeqCst);
                assert!(fs::read(root.join("a/c/0")).unwrap() == new, "{io}, {way:?}: {version}");
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<i32>>()
        });
        assert!(counts.iter().all(|count| *count > 10), "{io}, {way:?}: {counts:?}");
        assert_agrees(&root);
        assert!(read_files(&root) == reference.keys(), "{io}, {way:?}");
    }
}

/// The mount keeps nothing of files that nobody has open any more, however often it moves.
#[test]
fn numbers_of_closed_files_are_dropped() {
    for io in io_modes() {
        let mount = mounted(&["--io", io]);
        mount.remount();
        let root = mount.root();
        let reference = Reference::open(mount.repository());
        let chunk = root.join("a/c/0");
        let lines = || fs::read_to_string(mount.scratch().join("journal")).unwrap().lines().count();
        let old_versions = || {
            let stats = mount.read_control("stats");
            let value = stats.lines().find_map(|line| line.strip_prefix("icechunkfs_old_versions "));
            value.unwrap().parse::<usize>().unwrap()
        };
        let mut versions = 1..;
        let mut change = || {
            let bytes = bytes(versions.next().unwrap(), false);
            reference.commit(&[("a/c/0", &bytes)], "theirs");
            mount.touch("refresh").unwrap();
            assert!(fs::read(&chunk).unwrap() == bytes, "{io}");
        };
        change();
        let begin = lines();
        let mut readers = Vec::new();
        for _ in 0..30 {
            readers.push(File::open(&chunk).unwrap());
            change();
            readers.truncate(3);
            assert!(lines() < begin + 10, "{io}: {} lines", lines());
            // The kernel forgets those that are closed, as no name has them.
            assert!(old_versions() <= 5, "{io}: {} old versions", old_versions());
        }
        drop(readers);
        // The kernel forgets files that nobody uses when it needs their memory.
        wait_until("the tree has only what it had", || {
            let _ = fs::write("/proc/sys/vm/drop_caches", "2");
            change();
            lines() <= begin && old_versions() == 0
        });
        assert!(entries(&mount.scratch().join("data")).is_empty(), "{io}");
    }
}
