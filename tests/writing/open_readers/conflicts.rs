//! Files that are open while a commit gives way to those of others: the names lead to what the
//! branch has.

use std::fs::{self, File};

use super::{Reader, bytes};
use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{io_modes, read_files, run_on, wait_until, watchdog};

#[test]
fn chunks_that_do_not_give_way_can_be_opened_beside_their_readers() {
    watchdog();
    for (io, keeps) in io_modes().into_iter().flat_map(|io| [(io, "theirs"), (io, "ours")]) {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        put(&root.join("a/zarr.json"), array(&[9], &[1])).unwrap();
        put(&root.join("a/c/0"), bytes(0, true)).unwrap();
        mount.commit("made").unwrap();
        let other = Writable::of(mount.repository(), &[]);
        put(&other.root().join("a/c/0"), bytes(1, true)).unwrap();
        other.commit("theirs").unwrap();
        put(&root.join("a/c/0"), bytes(2, true)).unwrap();
        put(&root.join("a/c/1"), bytes(3, true)).unwrap();
        put(&root.join("new/zarr.json"), array(&[9], &[1])).unwrap();
        put(&root.join("new/c/0"), bytes(4, true)).unwrap();
        let names = ["a/c/0", "a/c/1", "new/c/0", "new/zarr.json"];
        let readers = names.map(|name| Reader::open(&root.join(name), fs::read(root.join(name)).unwrap()));
        run_on(&root, &["commit", "-m", "ours", "--on-conflict", keeps]).success();
        other.touch("refresh").unwrap();
        for (name, reader) in names.iter().zip(&readers) {
            let what = format!("{io}, {keeps}, {name}");
            let has_given_way = (*name, keeps) == ("a/c/0", "theirs");
            // Bytes that were written here and are dropped are read from the snapshot.
            if !has_given_way {
                reader.check(&what);
            }
            let opened = File::open(root.join(name));
            // All passthrough handles of a file have one backing, and that of a chunk that has
            // given way is the one from here.
            if has_given_way && io == "passthrough" {
                assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::EBUSY), "{what}");
                continue;
            }
            opened.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(fs::read(root.join(name)).unwrap() == fs::read(other.root().join(name)).unwrap(), "{what}");
        }
        drop(readers);
        // The kernel tells later that a file is closed.
        wait_until("a closed file is busy", || File::open(root.join("a/c/0")).is_ok());
        assert!(read_files(&root) == mount.fresh(), "{io}, {keeps}");
        assert!(fs::read(root.join("a/c/0")).unwrap() == bytes(if keeps == "theirs" { 1 } else { 2 }, true));
    }
}

/// Names of one file become files of their own: one that gives way, and one that does not.
#[test]
fn names_of_a_chunk_that_gives_way_lead_to_their_own_bytes() {
    watchdog();
    for (io, keeps) in io_modes().into_iter().flat_map(|io| [(io, "theirs"), (io, "ours")]) {
        for linked in ["a/c/1", "a/c/8", "0/c/0", "z/c/0"] {
            let mount = Writable::new(&["--io", io]);
            let root = mount.root();
            for name in ["0", "a", "z"] {
                put(&root.join(name).join("zarr.json"), array(&[9], &[1])).unwrap();
            }
            put(&root.join("a/c/5"), bytes(0, true)).unwrap();
            mount.commit("made").unwrap();
            let other = Writable::of(mount.repository(), &[]);
            put(&other.root().join("a/c/5"), bytes(1, true)).unwrap();
            other.commit("theirs").unwrap();
            fs::remove_file(root.join("a/c/5")).unwrap();
            put(&root.join("a/c/5"), bytes(2, true)).unwrap();
            fs::create_dir_all(root.join(linked).parent().unwrap()).unwrap();
            fs::hard_link(root.join("a/c/5"), root.join(linked)).unwrap();
            let readers = ["a/c/5", linked].map(|name| File::open(root.join(name)).unwrap());
            run_on(&root, &["commit", "-m", "ours", "--on-conflict", keeps]).success();
            other.touch("refresh").unwrap();
            let is_busy = |name: &str| match fs::read(root.join(name)) {
                Ok(bytes) => {
                    let wanted = fs::read(other.root().join(name)).unwrap();
                    assert!(bytes == wanted, "{io}, {keeps}, {linked}: other bytes in {name}");
                    false
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{io}, {keeps}, {linked}: {name}");
                    true
                }
            };
            let busy = ["a/c/5", linked].map(is_busy);
            assert!(
                busy == [false; 2] || (io == "passthrough" && keeps == "theirs"),
                "{io}, {keeps}, {linked}: {busy:?}"
            );
            drop(readers);
            wait_until("closed files are busy", || ["a/c/5", linked].map(is_busy) == [false; 2]);
        }
    }
}
