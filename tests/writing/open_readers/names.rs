//! Names of files that are open while the mount moves: what programs do to them, by path, during
//! the move and after it.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{io_modes, read_files, watchdog};

/// Files that are not committed, so that a move takes some tenths of a second.
const UNCOMMITTED: usize = 1500;

fn mounted(io: &str, chunks: usize) -> Writable {
    let mount = Writable::new(&["--io", io]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    for name in ["a", "b"] {
        put(&mount.root().join(name).join("zarr.json"), array(&[10_000], &[1])).unwrap();
    }
    (0..chunks).for_each(|n| put(&chunk(&mount, n), format!("made {n}")).unwrap());
    mount.commit("made").unwrap();
    mount
}

fn chunk(mount: &Writable, n: usize) -> PathBuf {
    mount.root().join(format!("a/c/{n}"))
}

/// Others change the first `count` chunks.
fn change(mount: &Writable, count: usize, text: &str) {
    let changed: Vec<(String, String)> = (0..count).map(|n| (format!("a/c/{n}"), format!("{text} {n}"))).collect();
    let keys: Vec<(&str, &[u8])> = changed.iter().map(|(name, bytes)| (name.as_str(), bytes.as_bytes())).collect();
    Reference::open(mount.repository()).commit(&keys, "theirs");
}

fn drop_caches() {
    let _ = fs::write("/proc/sys/vm/drop_caches", "2");
}

/// Returns the path of what a descriptor has, which is opened by its number and not by its name.
fn by_number(file: &impl AsRawFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Readers close files, and the kernel forgets them, while the mount moves: the next program writes
/// to the name.
#[test]
fn what_is_written_after_a_reader_has_closed_during_a_move_is_kept() {
    const COUNT: usize = 40;
    watchdog();
    for io in io_modes() {
        let mount = mounted(io, COUNT);
        for round in 0..3 {
            let uncommitted = |n: usize| put(&mount.root().join(format!("b/c/{n}")), format!("{round}")).unwrap();
            (0..UNCOMMITTED).for_each(uncommitted);
            let readers: Vec<File> = (0..COUNT).map(|n| File::open(chunk(&mount, n)).unwrap()).collect();
            change(&mount, COUNT, &format!("theirs {round}"));
            let has_moved = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !has_moved.load(Ordering::Relaxed) {
                        drop_caches();
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
                let moving = scope.spawn(|| mount.touch("refresh"));
                for reader in readers {
                    std::thread::sleep(Duration::from_millis(6));
                    drop(reader);
                }
                moving.join().unwrap().unwrap();
                has_moved.store(true, Ordering::Relaxed);
            });
            let mine = |n: usize| format!("mine {round} {n}");
            (0..COUNT).for_each(|n| fs::write(chunk(&mount, n), mine(n)).unwrap());
            let lost: Vec<usize> =
                (0..COUNT).filter(|n| fs::read(chunk(&mount, *n)).unwrap() != mine(*n).as_bytes()).collect();
            assert!(lost.is_empty(), "{io}, round {round}: {lost:?}");
            mount.commit("mine").unwrap();
            assert!(mount.fresh() == read_files(&mount.root()), "{io}, round {round}");
        }
    }
}

/// Programs that wait for the move to end, having looked up the name before: the kernel has the old
/// file by it.
#[test]
fn what_waits_for_a_move_is_done_to_the_new_files() {
    watchdog();
    for io in io_modes() {
        // On a busy machine a call may come before the move, and is then a change of the mount.
        let tries = 10;
        assert!((0..tries).any(|_| waits_for_a_move(io)), "{io}: the calls came first {tries} times");
    }
}

/// Returns false if one of the calls came before the move, which it conflicts with.
fn waits_for_a_move(io: &str) -> bool {
    let mount = mounted(io, 6);
    mount.remount();
    (0..UNCOMMITTED).for_each(|n| put(&mount.root().join(format!("b/c/{n}")), "x").unwrap());
    let path = |n| chunk(&mount, n);
    let readers: Vec<File> = (0..6).map(|n| File::open(path(n)).unwrap()).collect();
    change(&mount, 6, "theirs is longer");
    let wanted = |n: usize| format!("theirs is longer {n}").into_bytes();
    let calls: [&(dyn Fn() + Sync); 5] = [
        &|| fs::rename(path(0), path(7)).unwrap(),
        &|| fs::hard_link(path(1), mount.root().join("link")).unwrap(),
        &|| fs::set_permissions(path(2), fs::Permissions::from_mode(0o600)).unwrap(),
        &|| File::open(path(3)).map(drop).unwrap(),
        &|| OpenOptions::new().write(true).open(path(4)).unwrap().set_len(3).unwrap(),
    ];
    let moved = std::thread::scope(|scope| {
        let moving = scope.spawn(|| mount.touch("refresh"));
        for call in calls {
            std::thread::sleep(Duration::from_millis(10));
            scope.spawn(call);
        }
        moving.join().unwrap()
    });
    match moved {
        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => return false,
        moved => moved.unwrap(),
    }
    let same = |one: &Path, n: usize| assert!(fs::read(one).unwrap() == wanted(n), "{io}: {one:?}");
    same(&path(7), 0);
    same(&path(1), 1);
    same(&mount.root().join("link"), 1);
    assert_eq!(fs::metadata(path(2)).unwrap().mode() & 0o777, 0o600, "{io}");
    same(&path(3), 3);
    assert!(fs::read(path(4)).unwrap() == b"the" && !path(0).exists(), "{io}");
    same(&path(5), 5);
    for (n, reader) in readers.iter().enumerate() {
        let mut bytes = [0; 40];
        let count = reader.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..count], format!("made {n}").as_bytes(), "{io}");
    }
    drop(readers);
    same(&path(7), 0);
    fs::remove_file(mount.root().join("link")).unwrap();
    mount.commit("moved").unwrap();
    assert!(mount.fresh() == read_files(&mount.root()), "{io}");
    true
}

/// Opened again by number: the old version, as long as a program has it open, and then the new one,
/// whatever else keeps the kernel's inode.
#[test]
fn an_old_version_is_opened_by_its_number_until_it_is_closed() {
    watchdog();
    for (io, grows) in io_modes().into_iter().flat_map(|io| [(io, false), (io, true)]) {
        let mount = mounted(io, 3);
        mount.remount();
        let pinned: Vec<OwnedFd> =
            (0..2).map(|n| rustix::fs::open(chunk(&mount, n), OFlags::PATH, Mode::empty()).unwrap()).collect();
        let readers: Vec<File> = (0..2).map(|n| File::open(chunk(&mount, n)).unwrap()).collect();
        let read_all = |path: PathBuf| fs::read(path).unwrap();
        (0..2).for_each(|n| assert_eq!(read_all(by_number(&readers[n])), format!("made {n}").as_bytes()));
        let other = Writable::of(mount.repository(), &[]);
        fs::write(chunk(&other, 0), "theirs, longer").unwrap();
        fs::remove_file(chunk(&other, 1)).unwrap();
        if grows {
            put(&other.root().join("a/zarr.json"), array(&[10_001], &[1])).unwrap();
        }
        other.commit("theirs").unwrap();
        mount.touch("refresh").unwrap();
        for (n, reader) in readers.iter().enumerate() {
            assert_eq!(read_all(by_number(reader)), format!("made {n}").as_bytes(), "{io}, {grows}");
        }
        assert_eq!(read_all(chunk(&mount, 0)), b"theirs, longer", "{io}, {grows}");
        drop(readers);
        if !grows {
            crate::common::wait_until("the new version is read", || {
                fs::read(by_number(&pinned[0])).unwrap() == b"theirs, longer"
            });
        }
    }
}

/// The journal has lines of limited length.
#[test]
fn an_old_version_of_a_large_document_can_be_copied() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(io, 1);
        let document = mount.root().join("a/zarr.json");
        let large = format!("{}{}", array(&[10_000], &[1]), " ".repeat(700_000));
        put(&document, &large).unwrap();
        mount.commit("large").unwrap();
        mount.remount();
        let reader = File::open(&document).unwrap();
        Reference::open(mount.repository()).commit(&[("a/zarr.json", array(&[10_000], &[1]).as_bytes())], "theirs");
        mount.touch("refresh").unwrap();
        let copy = mount.root().join("copy");
        let target = File::create(&copy).unwrap();
        let mut copied = 0;
        while let count @ 1.. = rustix::fs::copy_file_range(&reader, None, &target, None, 1 << 20).unwrap() {
            copied += count;
        }
        assert_eq!(copied, large.len(), "{io}");
        drop((reader, target));
        mount.kill_and_remount();
        assert!(fs::read(&copy).unwrap() == large.as_bytes(), "{io}");
    }
}

/// Files that were removed or replaced while they were open, and whose names come back.
#[test]
fn a_discard_leaves_open_files_as_they_are() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(io, 4);
        mount.remount();
        let readers: Vec<File> = (0..4).map(|n| File::open(chunk(&mount, n)).unwrap()).collect();
        let check = |what: &str| {
            for (n, reader) in readers.iter().enumerate() {
                let mut bytes = [0; 20];
                let count = reader.read_at(&mut bytes, 0).unwrap_or_else(|e| panic!("{io}, {what}, {n}: {e}"));
                assert_eq!(&bytes[..count], format!("made {n}").as_bytes(), "{io}, {what}");
            }
        };
        let replace = |n: usize, text: &str| {
            put(&mount.root().join("new"), text).unwrap();
            fs::rename(mount.root().join("new"), chunk(&mount, n)).unwrap();
        };
        fs::remove_file(chunk(&mount, 0)).unwrap();
        replace(1, "mine");
        mount.commit("mine").unwrap();
        check("committed");
        fs::remove_file(chunk(&mount, 2)).unwrap();
        replace(3, "not committed");
        let old = File::open(chunk(&mount, 3)).unwrap();
        mount.touch("discard").unwrap();
        check("discarded");
        let found: BTreeMap<usize, Vec<u8>> = (1..4).map(|n| (n, fs::read(chunk(&mount, n)).unwrap())).collect();
        assert_eq!(found[&1], b"mine", "{io}");
        assert!(found[&2] == b"made 2" && found[&3] == b"made 3", "{io}");
        let mut bytes = [0; 20];
        let count = old.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..count], b"not committed", "{io}");
        // Written to the name, not to what was discarded.
        fs::write(chunk(&mount, 3), "again").unwrap();
        mount.commit("again").unwrap();
        assert_eq!(mount.fresh()["a/c/3"], b"again", "{io}");
        drop((readers, old));
        crate::common::wait_until("data files are removed", || {
            crate::common::entries(&mount.scratch().join("data")).is_empty()
        });
    }
}

/// A listing that is under way while names get other numbers, and the base's again.
#[test]
fn a_listing_shows_each_name_once_while_the_mount_moves() {
    const COUNT: usize = 3000;
    watchdog();
    let mount = mounted("cached", COUNT);
    mount.remount();
    let directory = mount.root().join("a/c");
    let names = || {
        let found = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        found.collect::<Vec<String>>()
    };
    let mut readers: Vec<File> = (0..5).map(|n| File::open(chunk(&mount, n)).unwrap()).collect();
    for round in 0..4 {
        // The kernel has the beginning of the listing.
        names();
        names();
        let mut listing = rustix::fs::Dir::read_from(File::open(&directory).unwrap()).unwrap();
        let mut listed: Vec<String> = Vec::new();
        let name = |entry: rustix::fs::DirEntry| entry.file_name().to_str().unwrap().to_owned();
        // Before the names or behind them.
        let first = if round % 2 == 0 { 1 } else { COUNT };
        listed.extend(listing.by_ref().take(first).map(|entry| name(entry.unwrap())));
        if round == 1 {
            readers.clear();
            drop_caches();
        }
        change(&mount, 5, &format!("round {round}"));
        mount.touch("refresh").unwrap();
        listed.extend(listing.map(|entry| name(entry.unwrap())));
        listed.retain(|name| !matches!(name.as_str(), "." | ".."));
        let mut once = listed.clone();
        once.sort();
        once.dedup();
        assert_eq!((listed.len(), once.len()), (COUNT, COUNT), "round {round}");
        if round == 2 {
            readers.extend((0..5).map(|n| File::open(chunk(&mount, n)).unwrap()));
        }
    }
}

/// A chunk in a directory that others make a group, which the reference allows.
#[test]
fn a_chunk_beside_a_group_is_committed_while_it_is_open() {
    watchdog();
    let groups = ["x/c/zarr.json", "x/c/0/zarr.json", "x/c/0/deep/zarr.json", "x/sub/zarr.json"];
    for (io, group, changes) in
        io_modes().into_iter().flat_map(|io| groups.map(|group| [(io, group, false), (io, group, true)])).flatten()
    {
        let what = format!("{io}, {group}, {changes}");
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("x/zarr.json"), array(&[4, 4], &[1, 1])).unwrap();
        put(&root.join("x/c/0/0"), "first").unwrap();
        put(&root.join("x/c/0/1"), "other").unwrap();
        mount.commit("made").unwrap();
        let reader = File::open(root.join("x/c/0/1")).unwrap();
        let mut keys = vec![(group, GROUP.as_bytes())];
        if changes {
            keys.push(("x/c/0/1", b"changed"));
        }
        Reference::open(mount.repository()).commit(&keys, "theirs");
        put(&root.join("x/c/0/0"), "second").unwrap();
        put(&root.join("x/c/1/0"), "new").unwrap();
        mount.touch("refresh").unwrap();
        let again = File::open(root.join("x/c/0/1")).unwrap();
        let status = mount.control_json("status.json");
        assert_eq!(status["arrays"][0]["written"], 2, "{what}: {status}");
        mount.commit("mine").unwrap_or_else(|e| panic!("{what}: {e}: {}", mount.log()));
        assert!(mount.fresh() == read_files(&root), "{what}");
        drop((reader, again));
    }
}

/// A listing with attributes must not tell the kernel a length that it does not know: it would cut
/// what programs have mapped.
#[test]
fn a_listing_leaves_the_length_of_an_open_new_version() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(io, 3);
        mount.remount();
        let directory = mount.root().join("a/c");
        let list = || {
            let found = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
            assert_eq!(found.count(), 3);
        };
        list();
        let old = File::open(chunk(&mount, 0)).unwrap();
        let new = vec![7; 20_000];
        Reference::open(mount.repository()).commit(&[("a/c/0", &new)], "theirs");
        mount.touch("refresh").unwrap();
        let file = File::open(chunk(&mount, 0)).unwrap();
        let mapping = crate::common::mapping::Mapping::read_only(&file);
        for _ in 0..3 {
            list();
            assert!(mapping.bytes() == new, "{io}");
            assert_eq!(file.metadata().unwrap().len(), new.len() as u64, "{io}");
        }
        drop(old);
    }
}

/// A program has a chunk open that a restore removes: later moves go on without it.
#[test]
fn a_chunk_that_a_restore_removes_while_it_is_open_hinders_no_move() {
    watchdog();
    for io in io_modes() {
        let mount = mounted(io, 1);
        let first = Reference::open(mount.repository()).history()[0].0.clone();
        put(&chunk(&mount, 3), "later").unwrap();
        mount.commit("later").unwrap();
        mount.remount();
        let reader = File::open(chunk(&mount, 3)).unwrap();
        let root = mount.root();
        crate::common::icechunkfs(["restore", root.to_str().unwrap(), "a", "--from", &first]).success();
        mount.commit("restored").unwrap();
        put(&chunk(&mount, 0), "mine").unwrap();
        mount.touch("discard").unwrap();
        change(&mount, 1, "theirs");
        mount.touch("refresh").unwrap();
        assert!(read_files(&root) == mount.fresh(), "{io}");
        drop(reader);
    }
}
