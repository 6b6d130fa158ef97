//! Chunks that change their places by a commit, one by one and by directories, while programs have them open: each program reads the file that it
//! has opened, and each name has its own bytes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, CWD, RenameFlags, fadvise, renameat_with};

use crate::common::writing::{GROUP, Writable, array, put};
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

#[test]
fn chunks_that_change_their_places_have_their_bytes_after_the_commit() {
    watchdog();
    for io in io_modes() {
        for (what, change) in CHANGES {
            for opened in ["before", "after"] {
                let how = format!("{io}, {what}, opened {opened}");
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
