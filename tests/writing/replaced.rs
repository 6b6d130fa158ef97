//! Files that one program replaces by renames, as zarr-python writes chunks, while others open
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{io_modes, read_files, wait_until};

const LENGTH: usize = 5000;

fn replace(path: &Path, byte: u8) {
    let new = path.with_extension("new");
    fs::write(&new, vec![byte; LENGTH]).unwrap();
    fs::rename(&new, path).unwrap();
}

/// Returns the number of data files in the scratch directory.
fn data_files(mount: &Writable) -> usize {
    fs::read_dir(mount.scratch().join("data")).unwrap().count()
}

/// A name that is always there is found by every open, and has the bytes of one of its files: a
/// program that finds no chunk reads fill values.
#[test]
fn a_name_that_is_replaced_is_there_all_the_time() {
    for words in [&[][..], &["--io", "cached"]] {
        let mount = Writable::new(words);
        put(&mount.root().join("a/zarr.json"), array(&[LENGTH as u64], &[LENGTH as u64])).unwrap();
        let path = mount.root().join("a/c/0");
        put(&path, vec![1; LENGTH]).unwrap();
        // Of the base, and of the working tree from the first replacement on.
        mount.commit("made").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let read = || {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    let size = fs::metadata(&path).unwrap().len();
                    assert_eq!(size, LENGTH as u64);
                    let mut bytes = vec![0; LENGTH + 1];
                    let length = fs::File::open(&path).unwrap().read_at(&mut bytes, 0).unwrap();
                    let first = bytes.first().copied().unwrap();
                    assert!(length == LENGTH && first != 0, "{length} bytes, the first is {first}");
                    assert!(bytes.iter().take(LENGTH).all(|byte| *byte == first));
                    count += 1;
                }
                count
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            let begin = Instant::now();
            let mut written = 0_usize;
            while begin.elapsed() < Duration::from_secs(4) {
                written += 1;
                replace(&path, (written % 200 + 1) as u8);
            }
            stop.store(true, Ordering::Relaxed);
            let counts = readers.map(|reader| reader.join().unwrap());
            assert!(written > 100 && counts.iter().all(|count| *count > 100), "{written} {counts:?}");
        });
        // The replaced files are not kept.
        wait_until("replaced files are removed", || data_files(&mount) <= 2);
        mount.commit("replaced").unwrap();
    }
}

/// A program that copies or archives a directory must not miss a chunk because another program
/// replaces it at that time.
#[test]
fn a_listing_shows_each_name_that_is_replaced_meanwhile_once() {
    const COUNT: u64 = 3000;
    let mount = Writable::new(&[]);
    let chunks = mount.root().join("a/c");
    put(&mount.root().join("a/zarr.json"), array(&[COUNT], &[1])).unwrap();
    (0..COUNT).for_each(|n| put(&chunks.join(n.to_string()), b"1").unwrap());
    let expected: BTreeSet<String> = (0..COUNT).map(|n| n.to_string()).collect();
    mount.commit("made").unwrap();
    // Chunks of the base, and in the second round of the working tree.
    for round in 0..2 {
        let mut listing = fs::read_dir(&chunks).unwrap();
        let mut listed: Vec<String> = Vec::new();
        let take = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        listed.extend(listing.by_ref().take(10).map(take));
        for n in 0..COUNT {
            let path = chunks.join(n.to_string());
            let new = path.with_extension("new");
            fs::write(&new, b"2").unwrap();
            fs::rename(&new, &path).unwrap();
        }
        listed.extend(listing.map(take));
        // The new files were made after the listing began.
        let found: BTreeSet<String> = listed.iter().cloned().collect();
        assert_eq!(found.len(), listed.len(), "round {round}: names are listed twice");
        assert!(found == expected, "round {round}: {:?} are missing", expected.difference(&found).count());
    }
}

/// The kernel keeps a removed directory as long as a program is in it, and shows it empty. What
/// comes back is another directory.
#[test]
fn a_directory_that_comes_back_while_a_program_is_in_it_has_its_files() {
    let mount = Writable::new(&[]);
    let chunks = mount.root().join("a/c");
    put(&mount.root().join("a/zarr.json"), array(&[3], &[1])).unwrap();
    (0..3).for_each(|n| put(&chunks.join(n.to_string()), b"1").unwrap());
    mount.commit("made").unwrap();
    mount.remount();
    let listed = || fs::read_dir(&chunks).unwrap().count();
    for _ in 0..2 {
        let inside = fs::File::open(&chunks).unwrap();
        fs::remove_dir_all(&chunks).unwrap();
        assert!(!chunks.exists());
        mount.touch("discard").unwrap();
        assert_eq!(listed(), 3);
        assert_eq!(fs::read(chunks.join("1")).unwrap(), b"1");
        drop(inside);
        assert_eq!(listed(), 3);
    }
}

/// Only programs that write keep a commit from being made.
#[test]
fn a_reader_of_an_overwritten_chunk_keeps_no_commit_waiting() {
    for words in [&[][..], &["--io", "cached"]] {
        let mount = Writable::new(words);
        let path = mount.root().join("a/c/0");
        put(&mount.root().join("a/zarr.json"), array(&[4], &[4])).unwrap();
        put(&path, b"old0").unwrap();
        mount.commit("made").unwrap();
        mount.remount();
        // The kernel writes new files by itself: only then may there be writers that it does not
        // tell of.
        fs::write(mount.root().join("notes"), b"new").unwrap();
        let reader = fs::File::open(&path).unwrap();
        fs::write(&path, b"new0").unwrap();
        let mut bytes = [0; 4];
        reader.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"new0");
        mount.commit("with a reader").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new0");
        reader.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"new0");
    }
}

/// The number of a chunk that was replaced is that of the committed chunk in its place. While a
/// reader has the old one open, everybody else reads and writes the new one.
#[test]
fn a_replaced_chunk_that_a_reader_has_open_is_not_taken_for_the_committed_one() {
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let [one, other] = ["0", "1"].map(|name| mount.root().join("a/c").join(name));
        put(&mount.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
        put(&one, b"one").unwrap();
        put(&other, b"the other").unwrap();
        mount.commit("made").unwrap();
        mount.remount();
        let reader = fs::File::open(&other).unwrap();
        fs::rename(&one, &other).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"one");
        mount.commit("replaced").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"one", "{io}");
        assert_eq!(fs::metadata(&other).unwrap().len(), 3, "{io}");
        fs::write(&other, b"written").unwrap();
        let mut bytes = [0; 9];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"the other");
        drop(reader);
        assert_eq!(fs::read(&other).unwrap(), b"written");
        fs::write(&other, b"new").unwrap();
        mount.commit("again").unwrap();
        assert_eq!(mount.fresh()["a/c/1"], b"new");
    }
}

/// Directories that were made here, with files that only the snapshot has, exchange their names: of
/// chunks, of groups, and without a node.
#[test]
fn directories_that_exchange_their_names_have_their_files_after_a_commit() {
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        put(&root.join("a/zarr.json"), array(&[4, 4], &[1, 1])).unwrap();
        put(&root.join("a/c/0/0"), "of 0").unwrap();
        put(&root.join("a/c/1/0"), "of 1").unwrap();
        for group in ["g", "h"] {
            put(&root.join(group).join("zarr.json"), GROUP).unwrap();
        }
        for name in ["g", "h", "i", "j"] {
            put(&root.join(name).join("x/zarr.json"), array(&[4], &[1])).unwrap();
        }
        mount.commit("made").unwrap();
        let theirs =
            ["a/c/0/1", "a/c/1/1", "a/c/1/2", "g/x/c/0", "h/x/c/0", "h/x/c/1", "i/x/c/0", "j/x/c/0", "j/x/c/2"];
        let theirs = theirs.map(|name| (name, name.repeat(name.len())));
        let reference = Reference::open(mount.repository());
        let keys: Vec<(&str, &[u8])> = theirs.iter().map(|(name, bytes)| (*name, bytes.as_bytes())).collect();
        reference.commit(&keys, "theirs");
        mount.touch("refresh").unwrap();
        let before = read_files(&root);
        let pairs = [("a/c/0", "a/c/1"), ("g", "h"), ("i", "j")];
        let exchanged = |name: &str| {
            for (one, other) in pairs {
                for (from, to) in [(one, other), (other, one)] {
                    if let Some(rest) = name.strip_prefix(from).filter(|rest| rest.starts_with('/')) {
                        return format!("{to}{rest}");
                    }
                }
            }
            name.to_owned()
        };
        for (one, other) in pairs {
            let [one, other, between] = [one, other, "between"].map(|name| root.join(name));
            fs::rename(&one, &between).unwrap();
            fs::rename(&other, &one).unwrap();
            fs::rename(&between, &other).unwrap();
        }
        let expected = before.into_iter().map(|(name, bytes)| (exchanged(&name), bytes)).collect();
        let assert_is = |what: &str| assert!(read_files(&root) == expected, "{io}: {what}");
        // The kernel has all names now.
        assert_is("exchanged");
        mount.commit("exchanged").unwrap();
        assert_is("committed");
        assert!(mount.fresh() == expected, "{io}");
        // Each name still follows its chunk.
        reference.commit(&[("a/c/0/1", b"again"), ("g/x/c/0", b"again"), ("j/x/c/0", b"again")], "theirs");
        mount.touch("refresh").unwrap();
        assert!(read_files(&root) == reference.keys(), "{io}");
    }
}
