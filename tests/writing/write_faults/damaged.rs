//! A scratch directory with missing or changed files.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::strace::Faults;
use crate::common::writing::{GROUP, Reference, Writable, array, echo, put, with_waiting_work};
use crate::common::{errno, io_modes, read_files, watchdog};

/// Mounts an array whose `c/0` is committed, and whose `c/1`, `c/2` and `notes` are uncommitted.
fn mount(words: &[&str]) -> Writable {
    let mount = Writable::new(words);
    with_waiting_work(&mount, [1000, 300_000, 1000]);
    mount
}

/// Returns the data file with these bytes.
fn data_file(mount: &Writable, bytes: &[u8]) -> PathBuf {
    let files = std::fs::read_dir(mount.scratch().join("data")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = files.filter(|path| std::fs::read(path).unwrap() == bytes).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Repairs `a/c/1`, and returns its content afterwards.
type Heal<'a> = &'a dyn Fn(&Writable) -> Option<Vec<u8>>;

#[test]
fn a_missing_data_file_is_an_error_until_discarded_or_rewritten() {
    watchdog();
    let io = io_modes();
    // Ways to repair it, and its content afterwards.
    let heal: [(&str, Heal); 6] = [
        ("discard", &|mount| {
            echo(&mount.control("discard"), "a/c/1").unwrap();
            None
        }),
        ("discard all", &|mount| {
            mount.touch("discard").unwrap();
            None
        }),
        ("remove", &|mount| {
            std::fs::remove_file(mount.root().join("a/c/1")).unwrap();
            None
        }),
        ("rewrite", &|mount| {
            std::fs::write(mount.root().join("a/c/1"), "again").unwrap();
            Some(b"again".to_vec())
        }),
        ("replace", &|mount| {
            put(&mount.root().join("new"), "again").unwrap();
            std::fs::rename(mount.root().join("new"), mount.root().join("a/c/1")).unwrap();
            Some(b"again".to_vec())
        }),
        ("truncate", &|mount| {
            let file = std::fs::OpenOptions::new().write(true).truncate(true).open(mount.root().join("a/c/1")).unwrap();
            file.write_all_at(b"again", 0).unwrap();
            Some(b"again".to_vec())
        }),
    ];
    let cases = io.iter().flat_map(|io| heal.iter().map(move |heal| (io, heal)));
    for (n, (io, (way, heal))) in cases.enumerate() {
        let mount = mount(&["--io", io]);
        let root = mount.root();
        let live = n % 2 == 0;
        if live {
            std::fs::remove_file(data_file(&mount, &[2; 300_000])).unwrap();
            // The kernel may show cached bytes; it drops them with the mount.
            std::fs::write("/proc/sys/vm/drop_caches", "1").unwrap_or_default();
        } else {
            mount.unmount();
            std::fs::remove_file(data_file(&mount, &[2; 300_000])).unwrap();
            mount.mount_again(None).success();
            // The others are as they were.
            assert_eq!(errno(std::fs::read(root.join("a/c/1"))), libc::EIO, "{way}");
            let errors = mount.read_control("errors");
            assert!(errors.contains("/a/c/1") && errors.contains("discard the path"), "{way}: {errors}");
            assert_eq!(
                errno(
                    std::fs::OpenOptions::new()
                        .append(true)
                        .open(root.join("a/c/1"))
                        .and_then(|file| { file.write_all_at(b"x", 5) })
                ),
                libc::EIO,
                "{way}"
            );
        }
        assert_eq!(std::fs::read(root.join("a/c/2")).unwrap(), vec![3; 1000]);
        let history = Reference::open(mount.repository()).history();
        let refused = mount.commit("refused");
        assert_eq!(errno(refused), libc::EINVAL, "{way}");
        assert!(
            mount.read_control("commit").contains("/a/c/1: its bytes were removed"),
            "{way}: {}",
            mount.read_control("commit")
        );
        assert!(mount.read_control("status").contains("a/c/1"), "{}", mount.read_control("status"));
        assert_eq!(Reference::open(mount.repository()).history(), history);
        let healed = heal(&mount);
        assert_eq!(std::fs::read(root.join("a/c/1")).ok(), healed, "{way}");
        let mut wanted = read_files(&root);
        assert_eq!(wanted.contains_key("a/c/2"), *way != "discard all");
        mount.commit("healed").unwrap();
        assert_eq!(wanted.remove("notes").unwrap(), b"mine");
        assert!(mount.fresh() == wanted, "{way}");
        assert!(Reference::open(mount.repository()).keys() == wanted, "{way}");
    }
}

#[test]
fn a_missing_document_or_untracked_file_is_an_error() {
    watchdog();
    let mount = mount(&[]);
    let root = mount.root();
    let document = array(&[9], &[1]);
    put(&root.join("a/zarr.json"), &document).unwrap();
    mount.unmount();
    std::fs::remove_file(data_file(&mount, document.as_bytes())).unwrap();
    std::fs::remove_file(data_file(&mount, b"mine")).unwrap();
    mount.mount_again(None).success();
    assert_eq!(errno(std::fs::read(root.join("a/zarr.json"))), libc::EIO);
    assert_eq!(errno(std::fs::read(root.join("notes"))), libc::EIO);
    assert_eq!(errno(mount.commit("refused")), libc::EINVAL);
    assert!(
        mount.read_control("commit").contains("/a/zarr.json: its bytes were removed"),
        "{}",
        mount.read_control("commit")
    );
    echo(&mount.control("discard"), "a/zarr.json").unwrap();
    assert_eq!(std::fs::read(root.join("a/zarr.json")).unwrap(), array(&[8], &[1]).as_bytes());
    // A missing untracked file refuses no commit.
    mount.commit("healed").unwrap();
    assert_eq!(mount.fresh()["a/c/1"], vec![2; 300_000]);
    std::fs::remove_file(root.join("notes")).unwrap();
    assert!(read_files(&root) == mount.fresh());
}

#[test]
fn a_torn_last_line_of_the_journal_is_cut_off() {
    watchdog();
    let mount = mount(&[]);
    let root = mount.root();
    let before = read_files(&root);
    std::fs::create_dir(root.join("late")).unwrap();
    mount.kill(mount.daemon());
    mount.remove_dead_mount();
    let journal = mount.scratch().join("journal");
    let length = std::fs::metadata(&journal).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&journal).unwrap().set_len(length - 3).unwrap();
    mount.mount_again(None).success();
    assert!(read_files(&root) == before && !root.join("late").exists());
    assert!(mount.log().contains("torn"), "{}", mount.log());
    std::fs::create_dir(root.join("late")).unwrap();
    mount.kill_and_remount();
    assert!(root.join("late").is_dir() && read_files(&root) == before);
    mount.commit("all").unwrap();
}

#[test]
fn a_damaged_journal_refuses_the_mount() {
    watchdog();
    let mount = mount(&[]);
    mount.unmount();
    let journal = mount.scratch().join("journal");
    let whole = std::fs::read(&journal).unwrap();
    let lines = whole.iter().filter(|&&byte| byte == b'\n').count();
    assert!(lines > 5, "{lines}");
    let mut in_the_middle = whole.clone();
    in_the_middle[whole.len() / 2] ^= 1;
    let without_a_line: Vec<u8> = whole.split_inclusive(|&byte| byte == b'\n').skip(1).flatten().copied().collect();
    let no_journal = vec![0; 5000];
    let empty = Vec::new();
    for damaged in [in_the_middle, without_a_line, [no_journal.clone(), whole.clone()].concat()] {
        std::fs::write(&journal, &damaged).unwrap();
        let output = mount.mount_again(None).failure();
        assert!(output.contains("--discard") && output.contains(mount.scratch().to_str().unwrap()), "{output}");
        // Nothing is guessed, and nothing is dropped.
        assert!(std::fs::read(&journal).unwrap() == damaged);
    }
    let bytes = std::fs::read_dir(mount.scratch().join("data")).unwrap().count();
    assert_eq!(bytes, 3);
    // A file without a whole line states nothing about the changes either, except their place.
    for damaged in [no_journal, empty] {
        std::fs::write(&journal, &damaged).unwrap();
        let output = mount.mount_again(None).failure();
        assert!(output.contains("--discard"), "{output}");
    }
    assert_eq!(std::fs::read_dir(mount.scratch().join("data")).unwrap().count(), 3);

    std::fs::write(&journal, &whole).unwrap();
    mount.mount_again(None).success();
    assert_eq!(std::fs::read(mount.root().join("a/c/1")).unwrap(), vec![2; 300_000]);
    mount.unmount();
    std::fs::write(&journal, &whole[10..]).unwrap();
    mount.mount_with(None, &["--discard"]).success();
    assert!(read_files(&mount.root()) == mount.fresh());
    put(&mount.root().join("a/c/3"), "anew").unwrap();
    mount.remount();
    assert_eq!(std::fs::read(mount.root().join("a/c/3")).unwrap(), b"anew");
    mount.commit("anew").unwrap();
}

#[test]
fn a_missing_journal_is_an_error_and_deletes_nothing() {
    watchdog();
    let mount = mount(&[]);
    let shown = read_files(&mount.root());
    mount.unmount();
    let journal = mount.scratch().join("journal");
    let saved = mount.scratch().with_file_name("journal.saved");
    std::fs::rename(&journal, &saved).unwrap();
    let before = read_files(&mount.scratch().join("data"));
    let refused = mount.mount_again(None).failure();
    assert!(refused.contains("journal") && refused.contains("--discard") && refused.contains("--scratch"), "{refused}");
    assert!(read_files(&mount.scratch().join("data")) == before && !journal.exists());
    std::fs::rename(&saved, &journal).unwrap();
    mount.mount_again(None).success();
    assert!(read_files(&mount.root()) == shown);
}

#[test]
fn the_next_mount_shows_what_a_discard_showed_whose_journal_could_not_be_flushed() {
    watchdog();
    let mount = mount(&[]);
    let chunk = mount.root().join("a/c/1");
    // Otherwise the flush of the data files fails, before the new journal has its name.
    std::fs::File::open(&chunk).unwrap().sync_all().unwrap();
    let Some(faults) = Faults::of(mount.daemon(), "fsync:error=EIO") else { return };
    let discarded = mount.touch("discard");
    let shown = read_files(&mount.root());
    assert_eq!(shown.contains_key("a/c/1"), discarded.is_err());
    // It is done, and the user learns that it may be undone.
    let said = mount.read_control("commit");
    assert!(discarded.is_err() || said.contains("could not be flushed"), "{said}");
    drop(faults);
    mount.kill_and_remount();
    assert!(read_files(&mount.root()) == shown, "{discarded:?}");
    // The scratch directory takes changes again.
    put(&chunk, "again").unwrap();
    mount.remount();
    assert_eq!(std::fs::read(&chunk).unwrap(), b"again");
}

/// Nothing tells whether the bytes are those that were there: they are stored.
#[test]
fn a_chunk_that_the_repository_has_lost_can_be_written_again() {
    let mount = Writable::new(&[]);
    put(&mount.root().join("zarr.json"), GROUP).unwrap();
    put(&mount.root().join("a/zarr.json"), array(&[4], &[1])).unwrap();
    put(&mount.root().join("a/c/0"), [1; 5000]).unwrap();
    mount.commit("first").unwrap();
    mount.remount();
    for object in std::fs::read_dir(mount.repository().join("chunks")).unwrap() {
        std::fs::remove_file(object.unwrap().path()).unwrap();
    }
    put(&mount.root().join("new"), [2; 5000]).unwrap();
    std::fs::rename(mount.root().join("new"), mount.root().join("a/c/0")).unwrap();
    mount.commit("again").unwrap_or_else(|e| panic!("{e}: {}", mount.read_control("commit")));
    assert_eq!(Reference::open(mount.repository()).keys()["a/c/0"], [2; 5000]);
}
