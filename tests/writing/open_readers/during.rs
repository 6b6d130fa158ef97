//! Programs that open files while the mount moves: each sees one version, by reading and in memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;

use crate::common::mapping::Mapping;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{io_modes, watchdog};

const CHUNKS: usize = 3;
const DURATION: Duration = Duration::from_secs(6);

/// Returns the bytes of a version: its length follows from its number, which is repeated.
fn version(number: usize) -> Vec<u8> {
    (number as u32).to_le_bytes().repeat((1 + number * 7 % 40) * 1024)
}

/// Checks that `bytes` are all of one version.
fn assert_is_whole(bytes: &[u8], how: &str) {
    let number = bytes.first_chunk::<4>().map_or(0, |number| u32::from_le_bytes(*number) as usize);
    let is = bytes.len();
    let expected = version(number).len();
    assert!(
        bytes == version(number),
        "{how}: {is} bytes of version {number}, which has {expected}, or parts of others"
    );
}

/// Opens the file once and reads it in both ways.
fn read_once(path: &std::path::Path, copy: &File) {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let mut read = vec![0; length + 4096];
    let count = file.read_at(&mut read, 0).unwrap();
    assert_is_whole(&read[..count], "read");
    assert_eq!(count, length, "the length of an open file");
    // The kernel refuses to copy pages beyond the end of a file, where a program would be ended.
    let mapping = Mapping::read_only(&file);
    let copied = copy.write_at(mapping.bytes(), 0).unwrap_or_else(|error| panic!("mapped {length} bytes: {error}"));
    assert_eq!(copied, length);
    assert_is_whole(mapping.bytes(), "mapped");
}

#[test]
fn a_file_that_is_opened_during_a_move_is_of_one_version() {
    watchdog();
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        put(&root.join("a/zarr.json"), array(&[CHUNKS as u64], &[1])).unwrap();
        (0..CHUNKS).for_each(|n| put(&root.join(format!("a/c/{n}")), version(n)).unwrap());
        mount.commit("made").unwrap();
        let reference = Reference::open(mount.repository());
        let stop = AtomicBool::new(false);
        let opens = AtomicUsize::new(0);
        let mut moves = 0;
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let stop = &stop;
                let opens = &opens;
                let root = &root;
                scope.spawn(move || {
                    let copy = File::from(rustix::fs::memfd_create("copy", MemfdFlags::CLOEXEC).unwrap());
                    // A reader that fails ends the test.
                    let _ended = Stop(stop);
                    let mut n = reader;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        read_once(&root.join(format!("a/c/{}", n % CHUNKS)), &copy);
                        opens.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let begin = Instant::now();
            while begin.elapsed() < DURATION && !stop.load(Ordering::Relaxed) {
                let contents: Vec<_> =
                    (0..CHUNKS).map(|n| (format!("a/c/{n}"), version(CHUNKS * (moves + 1) + n))).collect();
                let keys: Vec<(&str, &[u8])> =
                    contents.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
                reference.commit(&keys, "theirs");
                mount.touch("refresh").unwrap();
                moves += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        let opens = opens.load(Ordering::Relaxed);
        assert!(moves > 20 && opens > 200, "{io}: {moves} moves, {opens} opens");
        // The kernel asks again once. Programs would see it when two moves follow one another
        // directly.
        assert!(!mount.log().contains("is gone"), "{io}: opens were refused");
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
