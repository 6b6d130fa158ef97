//! Chunks that change their places by a commit, one by one and by directories, while programs have
//! them open: each program reads the file that it has opened, and each name has its own bytes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, CWD, RenameFlags, fadvise, renameat_with};

use crate::common::writing::{GROUP, Writable, array, echo, put};
use crate::common::{Files, io_modes, read_files, watchdog};

/// Bytes of a chunk: more than the kernel reads at once for the first of them.
const LENGTH: usize = 600_000;

fn exchange(root: &Path, one: &str, other: &str) {
    renameat_with(CWD, root.join(one), CWD, root.join(other), RenameFlags::EXCHANGE).unwrap();
}

/// Renames within the arrays `a` and `b`, of 3 x 2 chunks each.
type Change = fn(&Path);

const CHANGES: [(&str, Change); 7] = [
    ("chunks", |root| exchange(root, "a/c/0/0", "a/c/1/1")),
    ("rows", |root| exchange(root, "a/c/0", "a/c/1")),
    ("rows of two arrays", |root| exchange(root, "a/c/2", "b/c/0")),
    ("all chunks of two arrays", |root| exchange(root, "a/c", "b/c")),
    ("the first row goes", |root| {
        fs::remove_dir_all(root.join("a/c/0")).unwrap();
        fs::rename(root.join("a/c/1"), root.join("a/c/0")).unwrap();
        fs::rename(root.join("a/c/2"), root.join("a/c/1")).unwrap();
    }),
    ("onto another", |root| fs::rename(root.join("a/c/0/0"), root.join("a/c/0/1")).unwrap()),
    ("one of them written", |root| {
        exchange(root, "b/c/0/0", "b/c/0/1");
        put(&root.join("new"), vec![99; LENGTH]).unwrap();
        fs::rename(root.join("new"), root.join("b/c/0/0")).unwrap();
    }),
];

/// Program that has read the beginning of a file.
struct Reader {
    name: String,
    file: File,
    expected: u8,
}

impl Reader {
    fn open(root: &Path, name: &str) -> Reader {
        let file = File::open(root.join(name)).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let mut first = [0];
        file.read_exact_at(&mut first, 0).unwrap();
        Reader { name: name.to_owned(), file, expected: first[0] }
    }

    fn assert_reads_to_the_end(&self, how: &str) {
        let mut bytes = vec![0; LENGTH + 1];
        for at in (0..LENGTH).step_by(100_000) {
            let length = self.file.read_at(&mut bytes[..50_000], at as u64).unwrap();
            let is_same = bytes[..length].iter().all(|byte| *byte == self.expected);
            assert!(length == 50_000 && is_same, "{how}: {} has other bytes at {at}", self.name);
        }
    }
}

/// Returns the contents in short: lengths and different bytes.
fn brief(files: &Files) -> Vec<(String, usize, Vec<u8>)> {
    let brief = |(name, bytes): (&String, &Vec<u8>)| {
        let mut different = bytes.clone();
        different.dedup();
        different.truncate(4);
        (name.clone(), bytes.len(), different)
    };
    files.iter().filter(|(name, _)| name.contains("/c/")).map(brief).collect()
}

/// Mounts arrays `a` and `b` of 3 x 2 chunks, each of one byte that no other has.
fn mounted(io: &str) -> Writable {
    let mount = Writable::new(&["--io", io]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    let mut byte = 0;
    for name in ["a", "b"] {
        put(&root.join(name).join("zarr.json"), array(&[3, 2], &[1, 1])).unwrap();
        for chunk in (0..6).map(|n| format!("{name}/c/{}/{}", n / 2, n % 2)) {
            byte += 1;
            put(&root.join(chunk), vec![byte; LENGTH]).unwrap();
        }
    }
    mount.commit("made").unwrap();
    // The kernel knows none of them by the number of a new file.
    mount.remount();
    mount
}

/// Directories whose numbers the kernel keeps, with files in them that programs hold meanwhile.
#[test]
fn directories_that_change_their_places_twice_have_their_files() {
    watchdog();
    for io in io_modes() {
        for (one, other) in [("a/c/0", "a/c/2"), ("a/c/0", "b/c/2"), ("a/c", "b/c"), ("a", "b")] {
            let how = format!("{io}, {one}, {other}");
            let mount = mounted(io);
            let root = mount.root();
            let hold = |files: &Files| {
                let names = files.keys().filter(|name| name.contains("/c/"));
                let open =
                    |name: &String| OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(root.join(name));
                names.map(|name| open(name).unwrap()).collect::<Vec<_>>()
            };
            let mut held = Vec::new();
            for round in 0..3 {
                let open = Reader::open(&root, "a/c/0/1");
                exchange(&root, one, other);
                put(&root.join("a/c/1/0"), vec![100 + round; LENGTH]).unwrap();
                let expected = read_files(&root);
                held.push(hold(&expected));
                mount.commit("exchanged").unwrap();
                let found = read_files(&root);
                assert!(found == expected, "{how}, {round}: {:?}, not {:?}", brief(&found), brief(&expected));
                open.assert_reads_to_the_end(&how);
            }
            // A write goes to the file that has the name.
            put(&root.join("a/c/2/1"), vec![99; LENGTH]).unwrap();
            let expected = read_files(&root);
            mount.commit("written").unwrap();
            assert!(mount.fresh() == expected && expected["a/c/2/1"] == vec![99; LENGTH], "{how}");
        }
    }
}

/// The number of a file with an untracked name means another file in the snapshot that its other
/// name was moved to.
#[test]
fn a_moved_chunk_with_another_name_is_read_to_its_end() {
    watchdog();
    for io in io_modes() {
        for (opened, is_changed) in [("note", false), ("note", true), ("a/c/1/1", false), ("a/c/1/1", true)] {
            let how = format!("{io}, {opened}, {is_changed}");
            let mount = mounted(io);
            let root = mount.root();
            if is_changed {
                put(&root.join("a/c/0/0"), vec![50; LENGTH]).unwrap();
            }
            fs::hard_link(root.join("a/c/0/0"), root.join("note")).unwrap();
            exchange(&root, "a/c/0/0", "a/c/1/1");
            let open = Reader::open(&root, opened);
            let expected = read_files(&root);
            mount.commit("moved").unwrap();
            open.assert_reads_to_the_end(&how);
            assert!(read_files(&root) == expected, "{how}");
            drop(open);
            assert!(read_files(&root) == expected, "{how}");
        }
    }
}

#[test]
fn a_discard_elsewhere_leaves_an_open_file_that_was_a_chunk() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(io);
        let root = mount.root();
        let open = Reader::open(&root, "a/c/0/0");
        fs::rename(root.join("a/c/0/0"), root.join("note")).unwrap();
        mount.commit("the chunk is gone").unwrap();
        put(&root.join("a/c/2/0"), vec![99; LENGTH]).unwrap();
        echo(&mount.control("discard"), "/a/c/2/0").unwrap();
        open.assert_reads_to_the_end(io);
        assert!(fs::read(root.join("note")).unwrap() == vec![1; LENGTH], "{io}");
        assert!(read_files(&root)["a/c/2/0"] == vec![5; LENGTH], "{io}");
    }
}

#[test]
fn chunks_that_change_their_places_have_their_bytes_after_the_commit() {
    watchdog();
    for io in io_modes() {
        for (what, change) in CHANGES {
            for opened in ["before", "after"] {
                let how = format!("{io}, {what}, opened {opened}");
                let mount = mounted(io);
                let root = mount.root();
                let open_all = || {
                    let names = read_files(&root).into_keys().filter(|name| name.contains("/c/"));
                    names.map(|name| Reader::open(&root, &name)).collect::<Vec<_>>()
                };
                let before = if opened == "before" { open_all() } else { Vec::new() };
                change(&root);
                let expected = read_files(&root);
                if opened == "after" {
                    // Nothing of them is in the kernel's cache.
                    mount.remount();
                }
                let after = open_all();
                mount.commit("moved").unwrap();
                before.iter().chain(&after).for_each(|reader| reader.assert_reads_to_the_end(&how));
                let assert_is = |files: Files, when: &str| {
                    assert!(files == expected, "{how}, {when}: {:?}, not {:?}", brief(&files), brief(&expected));
                };
                assert_is(mount.fresh(), "stored");
                assert_is(read_files(&root), "while they are open");
                drop((before, after));
                assert_is(read_files(&root), "afterwards");
                exchange(&root, "b/c/1/0", "b/c/1/1");
                let expected = read_files(&root);
                mount.commit("once more").unwrap();
                assert!(read_files(&root) == expected && mount.fresh() == expected, "{how}, once more");
            }
        }
    }
}
