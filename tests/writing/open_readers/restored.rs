//! Files that are open while their names get others by a restore, and the base these by the commit
//! of it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::{Reader, assert_agrees, bytes};
use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{io_modes, read_files, run_on, watchdog};

/// Names that the older commit has not, that it has with other bytes, or with the same.
const NAMES: [&str; 8] =
    ["a/c/0", "a/c/1", "a/c/2", "a/zarr.json", "added/c/0", "added/zarr.json", "made/c/0", "made/zarr.json"];

/// Event between the restore and its commit.
#[derive(Clone, Copy, Debug)]
enum Between {
    Nothing,
    /// A program writes to a restored name.
    Write,
    /// A program puts another file in the place of a restored name.
    Replace,
    Refresh,
    /// The restored state is discarded, and restored again.
    Again,
}

/// A mount with commits of which none was made in it, behind the one that made them.
///
/// If `only_chunks`, the newest commit changes chunks of `a` alone: all numbers stay as they are.
fn mounted(io: &str, only_chunks: bool) -> (Writable, Writable) {
    let made = Writable::new(&[]);
    let root = made.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[9], &[1])).unwrap();
    put(&root.join("a/c/1"), bytes(1, false)).unwrap();
    put(&root.join("a/c/2"), "stays").unwrap();
    put(&root.join("made/zarr.json"), array(&[9], &[1])).unwrap();
    put(&root.join("made/c/0"), bytes(2, false)).unwrap();
    made.commit("older").unwrap();
    if !only_chunks {
        fs::remove_dir_all(root.join("made")).unwrap();
        made.commit("removed").unwrap();
        put(&root.join("a/zarr.json"), array(&[10], &[1])).unwrap();
        for name in ["added", "made"] {
            put(&root.join(name).join("zarr.json"), array(&[9], &[1])).unwrap();
            put(&root.join(name).join("c/0"), bytes(6, false)).unwrap();
        }
    }
    put(&root.join("a/c/0"), bytes(4, false)).unwrap();
    put(&root.join("a/c/1"), bytes(5, false)).unwrap();
    made.commit("newer").unwrap();
    made.unmount();
    let mount = Writable::of(made.repository(), &["--io", io]);
    (made, mount)
}

#[test]
fn an_open_file_keeps_its_bytes_when_a_restore_is_committed() {
    watchdog();
    let steps = [Between::Nothing, Between::Write, Between::Replace, Between::Refresh, Between::Again];
    let ways = steps.into_iter().flat_map(|between| [true, false].map(|only_chunks| (between, only_chunks)));
    for ((between, only_chunks), io) in ways.flat_map(|way| io_modes().into_iter().map(move |io| (way, io))) {
        let what = |step: &str| format!("{io}, {between:?}, only chunks: {only_chunks}, {step}");
        let (_made, mount) = mounted(io, only_chunks);
        let older = if only_chunks { "main~1" } else { "main~2" };
        let root = mount.root();
        let is_there = |name: &&&str| root.join(name).exists();
        let open = |name: &&'static str| (*name, Reader::open(&root.join(name), fs::read(root.join(name)).unwrap()));
        let readers: Vec<(&str, Reader)> = NAMES.iter().filter(is_there).map(open).collect();
        assert_eq!(readers.len(), if only_chunks { 6 } else { NAMES.len() });
        let check = |step: &str| {
            for (name, reader) in &readers {
                reader.check(&what(&format!("{step}, {name}")));
            }
            assert_agrees(&root);
        };
        run_on(&root, &["restore", "/", "--from", older]).success();
        check("restored");
        match between {
            Between::Nothing => {}
            Between::Write => {
                File::options().write(true).open(root.join("a/c/1")).unwrap().write_all_at(b"another", 3).unwrap();
            }
            Between::Replace => {
                put(&root.join("a/c/.new"), "new").unwrap();
                fs::rename(root.join("a/c/.new"), root.join("a/c/1")).unwrap();
            }
            Between::Refresh => mount.touch("refresh").unwrap(),
            Between::Again => {
                run_on(&root, &["discard", "/"]).success();
                check("discarded");
                run_on(&root, &["restore", "/", "--from", older]).success();
            }
        }
        check("between");
        for step in 0..3 {
            if step > 0 {
                put(&root.join("a/c/8"), step.to_string()).unwrap();
            }
            let wanted = read_files(&root);
            mount.commit("restored").unwrap();
            assert!(read_files(&root) == wanted && mount.fresh() == wanted, "{}", what("committed"));
            for (name, reader) in &readers {
                reader.check(&what(&format!("commit {step}, {name}")));
            }
            assert_agrees(&root);
        }
        // The names lead to what was committed, and the numbers of the closed files are free.
        drop(readers);
        put(&root.join("a/c/8"), "again").unwrap();
        let wanted = read_files(&root);
        mount.commit("again").unwrap();
        assert!(read_files(&root) == wanted, "{}", what("closed"));
        mount.remount();
        assert!(read_files(&root) == wanted, "{}", what("mounted again"));
    }
}
