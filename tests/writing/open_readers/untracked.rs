//! Untracked files that were chunks, and are open while the mount moves: they are files of their
//! own, whatever takes the chunk's place.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{io_modes, watchdog};

/// Bytes of a chunk: more than the kernel reads at once for the first of them.
const LENGTH: usize = 600_000;

fn mounted(io: &str) -> Writable {
    let mount = Writable::new(&["--io", io]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    put(&mount.root().join("a/zarr.json"), array(&[4], &[1])).unwrap();
    (0..2).for_each(|n| put(&mount.root().join(format!("a/c/{n}")), vec![n; LENGTH]).unwrap());
    mount.commit("made").unwrap();
    mount.remount();
    mount
}

/// Opens a file and reads only its beginning.
fn begun(path: &Path) -> File {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    file.read_exact_at(&mut [0], 0).unwrap();
    file
}

fn assert_is(file: &File, byte: u8, how: &str) {
    let mut bytes = vec![0; LENGTH + 1];
    let length = file.read_at(&mut bytes, 0).unwrap_or_else(|e| panic!("{how}: {e}"));
    bytes.truncate(length);
    bytes.dedup();
    assert_eq!((length, bytes.as_slice()), (LENGTH, &[byte][..]), "{how}");
}

#[track_caller]
fn assert_at(path: &Path, byte: u8, how: &str) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{how}: {e}"));
    assert_is(&file, byte, how);
}

/// Changes the first chunk, or not, and makes it the file `note`, beside it or in its place.
fn set_aside(mount: &Writable, is_changed: bool, is_link: bool) {
    let chunk = mount.root().join("a/c/0");
    let note = mount.root().join("a/note");
    if is_changed {
        put(&chunk, vec![9; LENGTH]).unwrap();
    }
    if is_link { fs::hard_link(&chunk, &note).unwrap() } else { fs::rename(&chunk, &note).unwrap() }
}

/// Puts another chunk in the place of the first, and checks that it and `note`, of `byte`, are
/// files of their own, also after a crash.
#[track_caller]
fn assert_apart(mount: &Writable, byte: u8, how: &str) {
    let chunk = mount.root().join("a/c/0");
    let note = mount.root().join("a/note");
    put(&chunk, vec![8; LENGTH]).unwrap();
    mount.commit("ours").unwrap();
    assert_at(&chunk, 8, how);
    assert_at(&note, byte, how);
    assert_eq!(mount.fresh()["a/c/0"], vec![8; LENGTH], "{how}");
    mount.kill_and_remount();
    assert_at(&chunk, 8, how);
    assert_at(&note, byte, how);
}

#[test]
fn a_file_that_was_a_chunk_can_be_opened_after_commits() {
    watchdog();
    for io in io_modes() {
        for (is_changed, byte) in [(false, 0), (true, 9)] {
            let how = format!("{io}, {is_changed}");
            let mount = mounted(io);
            let chunk = mount.root().join("a/c/0");
            let note = mount.root().join("a/note");
            set_aside(&mount, is_changed, false);
            let open = begun(&note);
            mount.commit("the chunk is gone").unwrap();
            assert_at(&note, byte, &how);
            assert_is(&open, byte, &how);
            // Others put a chunk in its place.
            Reference::open(mount.repository()).commit(&[("a/c/0", &vec![7; LENGTH])], "theirs");
            mount.touch("refresh").unwrap();
            assert_at(&chunk, 7, &how);
            assert_at(&note, byte, &how);
            assert_is(&open, byte, &how);
            drop(open);
            assert_at(&note, byte, &how);
            assert_apart(&mount, byte, &how);
        }
    }
}

#[test]
fn an_open_file_that_was_a_chunk_keeps_its_bytes_when_a_discard_brings_that_back() {
    watchdog();
    for io in io_modes() {
        for (is_changed, byte) in [(false, 0), (true, 9)] {
            for is_link in [false, true] {
                let how = format!("{io}, {is_changed}, {is_link}");
                let mount = mounted(io);
                let chunk = mount.root().join("a/c/0");
                let note = mount.root().join("a/note");
                set_aside(&mount, is_changed, is_link);
                let open = begun(&note);
                mount.touch("discard").unwrap();
                assert_at(&chunk, 0, &how);
                assert_at(&note, byte, &how);
                assert_is(&open, byte, &how);
                if is_changed {
                    // The descriptor changes the file, not the chunk.
                    open.set_permissions(Permissions::from_mode(0o600)).unwrap();
                    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
                    assert_eq!([mode(&note), mode(&chunk)], [0o600, 0o644], "{how}");
                }
                drop(open);
                assert_at(&chunk, 0, &how);
                assert_at(&note, byte, &how);
                assert_apart(&mount, byte, &how);
            }
        }
    }
}
