//! Files that programs create exclusively (`O_EXCL`), as `cp`, `tar` and `rsync` do. They have no
//! data file before the first write, of which nothing may be seen.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::FallocateFlags;

use crate::common::mapping::Mapping;
use crate::common::writing::{GROUP, Writable, array, put};
use crate::common::{io_modes, watchdog};

fn exclusively(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

/// Actions of a program that begin with a new file, in a directory. They leave the file `f` there,
/// or none.
type Action = (&'static str, fn(&Path));

const FIRST: &[Action] = &[
    ("nothing", |at| drop(exclusively(&at.join("f")))),
    ("write", |at| exclusively(&at.join("f")).write_all_at(b"bytes", 0).unwrap()),
    ("write beyond the end", |at| exclusively(&at.join("f")).write_all_at(b"bytes", 5000).unwrap()),
    ("many writes", |at| {
        let file = exclusively(&at.join("f"));
        (0..300_u64).for_each(|n| file.write_all_at(&[n as u8; 1000], n * 1000).unwrap());
    }),
    ("append", |at| {
        drop(exclusively(&at.join("f")));
        let mut file = OpenOptions::new().append(true).open(at.join("f")).unwrap();
        std::io::Write::write_all(&mut file, b"appended").unwrap();
    }),
    ("empty it again", |at| {
        drop(exclusively(&at.join("f")));
        fs::write(at.join("f"), "anew").unwrap();
    }),
    ("lengthen", |at| exclusively(&at.join("f")).set_len(10_000).unwrap()),
    ("lengthen by path, then write", |at| {
        let file = exclusively(&at.join("f"));
        rustix::fs::ftruncate(OpenOptions::new().write(true).open(at.join("f")).unwrap(), 100).unwrap();
        file.write_all_at(b"x", 50).unwrap();
    }),
    ("allocate", |at| {
        rustix::fs::fallocate(exclusively(&at.join("f")), FallocateFlags::empty(), 100, 5000).unwrap();
    }),
    ("map", |at| {
        let file = exclusively(&at.join("f"));
        file.set_len(9000).unwrap();
        Mapping::shared(&file).write(4000, b"mapped");
        file.sync_all().unwrap();
    }),
    ("rename, then write", |at| {
        let file = exclusively(&at.join("g"));
        fs::rename(at.join("g"), at.join("f")).unwrap();
        file.write_all_at(b"renamed", 0).unwrap();
    }),
    ("replace by one without bytes", |at| {
        fs::write(at.join("f"), "old").unwrap();
        drop(exclusively(&at.join("g")));
        fs::rename(at.join("g"), at.join("f")).unwrap();
    }),
    ("link, then write", |at| {
        let file = exclusively(&at.join("g"));
        fs::hard_link(at.join("g"), at.join("f")).unwrap();
        file.write_all_at(b"linked", 0).unwrap();
    }),
    ("remove, then write and read", |at| {
        let file = exclusively(&at.join("f"));
        fs::remove_file(at.join("f")).unwrap();
        file.write_all_at(b"gone", 3).unwrap();
        let mut bytes = [1; 7];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0gone");
        assert_eq!(file.metadata().unwrap().nlink(), 0);
    }),
    ("two handles", |at| {
        let file = exclusively(&at.join("f"));
        let other = OpenOptions::new().read(true).write(true).open(at.join("f")).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        other.write_all_at(b"second", 5).unwrap();
        let mut bytes = [0; 11];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"firstsecond");
    }),
    ("attributes, then write", |at| {
        let file = exclusively(&at.join("f"));
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        file.write_all_at(b"0640", 0).unwrap();
    }),
    ("copy a part", |at| {
        fs::write(at.join("g"), vec![7; 9000]).unwrap();
        let from = File::open(at.join("g")).unwrap();
        let to = exclusively(&at.join("f"));
        rustix::fs::copy_file_range(&from, Some(&mut 100), &to, Some(&mut 50), 8000).unwrap();
    }),
];

fn described(file: &Path) -> Option<(Vec<u8>, u32, u64)> {
    let metadata = fs::metadata(file).ok()?;
    Some((fs::read(file).unwrap(), metadata.mode(), metadata.nlink()))
}

#[test]
fn new_files_are_as_on_a_local_disk_whatever_a_program_does_first() {
    watchdog();
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let plain = tempfile::tempdir().unwrap();
        let mut wanted = Vec::new();
        for (number, (what, act)) in FIRST.iter().enumerate() {
            let places = [plain.path(), &mount.root()].map(|root| root.join(number.to_string()));
            let [expected, found] = places.each_ref().map(|place| {
                fs::create_dir(place).unwrap();
                act(place);
                described(&place.join("f"))
            });
            assert_eq!(found, expected, "{what} with {io}");
            wanted.push((*what, places[1].join("f"), expected));
        }
        // The daemon is killed: everything was acknowledged.
        mount.kill_and_remount();
        for (what, file, expected) in &wanted {
            assert_eq!(&described(file), expected, "{what} with {io}, after a crash");
        }
    }
}

#[test]
fn a_file_is_as_empty_after_a_crash_as_its_program_left_it() {
    watchdog();
    let mount = Writable::new(&[]);
    let root = mount.root();
    let held: Vec<File> = (0..20).map(|n| exclusively(&root.join(format!("f{n}")))).collect();
    for (n, file) in held.iter().enumerate().filter(|(n, _)| n % 2 == 1) {
        file.write_all_at(&vec![n as u8; 3000], 0).unwrap();
    }
    let daemon = mount.daemon();
    mount.kill(daemon);
    drop(held);
    mount.remove_dead_mount();
    mount.mount_again(None).success();
    for n in 0..20 {
        let length = if n % 2 == 1 { 3000 } else { 0 };
        assert_eq!(fs::read(root.join(format!("f{n}"))).unwrap(), vec![n as u8; length], "{n}");
    }
}

/// A copy of a stored chunk costs a line of the journal, and no data file, not even for a moment.
#[test]
fn copies_by_reference_make_no_data_files() {
    watchdog();
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        put(&root.join("zarr.json"), GROUP).unwrap();
        put(&root.join("a/zarr.json"), array(&[50], &[1])).unwrap();
        for n in 0..50_u8 {
            put(&root.join(format!("a/c/{n}")), vec![n; 5000]).unwrap();
        }
        mount.commit("chunks").unwrap();
        put(&root.join("b/zarr.json"), array(&[50], &[1])).unwrap();
        fs::create_dir(root.join("b/c")).unwrap();
        let files = || -> BTreeSet<_> {
            fs::read_dir(mount.scratch().join("data")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        // Some of these may still go: the kernel tells of a closed file whenever it likes.
        let before = files();
        let made = || files().difference(&before).count();
        for n in 0..50 {
            let from = File::open(root.join(format!("a/c/{n}"))).unwrap();
            let to = exclusively(&root.join(format!("b/c/{n}")));
            assert_eq!(made(), 0, "{n} with {io}: a data file of a new file");
            let copied = rustix::fs::copy_file_range(&from, None, &to, None, 1 << 20).unwrap();
            assert_eq!((copied, made()), (5000, 0), "{n} with {io}");
            assert!(to.as_raw_fd() >= 0);
        }
        mount.commit("copies").unwrap();
        let fresh = mount.fresh();
        for n in 0..50_u8 {
            assert_eq!(fresh[&format!("b/c/{n}")], vec![n; 5000], "{n} with {io}");
        }
    }
}
