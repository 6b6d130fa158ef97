//! A commit links scratch files into the repository. If it then fails, programs still write to
//! them: the objects must not change.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::common::mapping::Mapping;
use crate::common::writing::{GROUP, Reference, Writable, array, put};
use crate::common::{io_modes, read_files, run, run_on, wait_until, watchdog};

const SIZE: usize = 300_000;
const CHUNKS: u8 = 10;

fn hashes(repository: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = read_files(&repository.join("chunks"));
    files.into_iter().map(|(name, bytes)| (name, Sha256::digest(bytes).to_vec())).collect()
}

/// Creates chunks whose files a failed commit has linked into the repository, and a mount that
/// continues.
fn after_a_failed_commit(io: &str) -> Writable {
    let mount = Writable::new(&["--io", io]);
    let root = mount.root();
    put(&root.join("zarr.json"), GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[u64::from(CHUNKS)], &[1])).unwrap();
    for n in 0..CHUNKS {
        put(&root.join(format!("a/c/{n}")), vec![n; SIZE]).unwrap();
    }
    mount.unmount();
    mount.mount_again(Some("commit.publish=eio")).success();
    assert_eq!(mount.commit("fails").unwrap_err().raw_os_error(), Some(libc::EIO));
    let data = std::fs::read_dir(mount.scratch().join("data")).unwrap();
    let linked = data.filter(|entry| entry.as_ref().unwrap().metadata().unwrap().nlink() > 1).count();
    assert_eq!(linked, usize::from(CHUNKS), "nothing was linked: the test would show nothing");
    mount
}

#[test]
fn writing_after_a_failed_commit_changes_no_object() {
    watchdog();
    for io in io_modes() {
        let mount = after_a_failed_commit(io);
        let chunk = |n: u8| mount.root().join(format!("a/c/{n}"));
        let objects = hashes(mount.repository());
        assert!(objects.len() >= usize::from(CHUNKS));
        let open = |n: u8| OpenOptions::new().read(true).write(true).open(chunk(n)).unwrap();
        // Readers that were there before.
        let readers: Vec<File> = (0..CHUNKS).map(|n| File::open(chunk(n)).unwrap()).collect();
        let mut buffer = [0; 100];
        readers.iter().for_each(|reader| reader.read_exact_at(&mut buffer, 1000).unwrap());
        let mut wanted: Vec<Vec<u8>> = (0..CHUNKS).map(|n| vec![n; SIZE]).collect();

        open(0).write_all_at(b"in the middle", 1000).unwrap();
        wanted[0][1000..1013].copy_from_slice(b"in the middle");
        std::fs::write(chunk(1), "anew").unwrap();
        wanted[1] = b"anew".to_vec();
        open(2).set_len(500).unwrap();
        wanted[2].truncate(500);
        std::io::Write::write_all(&mut OpenOptions::new().append(true).open(chunk(3)).unwrap(), b"more").unwrap();
        wanted[3].extend_from_slice(b"more");
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(open(4), flags, 0, 4096).unwrap();
        wanted[4][..4096].fill(0);
        let file = open(5);
        let mapping = Mapping::shared(&file);
        drop(file);
        mapping.fill(0x55);
        wanted[5].fill(0x55);
        let source = open(7);
        let target = open(6);
        rustix::fs::copy_file_range(&source, Some(&mut 0), &target, Some(&mut 0), 1000).unwrap();
        wanted[6][..1000].fill(7);
        drop((source, target));
        std::os::unix::fs::chown(chunk(7), None, None).unwrap();
        run(std::process::Command::new("truncate").args(["-s", "100"]).arg(chunk(8))).success();
        wanted[8].truncate(100);
        // New and old readers see the written bytes.
        for (n, reader) in readers.iter().enumerate() {
            assert!(std::fs::read(chunk(n as u8)).unwrap() == wanted[n], "{io}: chunk {n}");
            let mut bytes = vec![0; SIZE + 10];
            let count = reader.read_at(&mut bytes, 0).unwrap();
            assert!(bytes[..count.min(100)] == wanted[n][..count.min(100)] && count > 0, "{io}: reader of {n}");
        }
        assert!(hashes(mount.repository()) == objects, "{io}: an object was changed");

        // A remaining mapping counts as a file open for writing.
        let refused = mount.commit("mapped").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "{io}: {refused}");
        assert!(mount.read_control("commit").contains("a/c/5"), "{io}: {}", mount.read_control("commit"));
        mapping.fill(0x56);
        wanted[5].fill(0x56);
        drop(mapping);
        mount.commit("again").unwrap();
        let keys = Reference::open(mount.repository()).keys();
        assert!((0..usize::from(CHUNKS)).all(|n| keys[&format!("a/c/{n}")] == wanted[n]), "{io}");
        // Objects of the failed commit may be there, and are unchanged.
        let now = hashes(mount.repository());
        assert!(objects.iter().all(|(name, hash)| now.get(name) == Some(hash)), "{io}: an object was changed");
        // Writes after the successful commit must not change any object either.
        let objects = hashes(mount.repository());
        for n in 0..CHUNKS {
            let file = open(n);
            let mapping = Mapping::shared(&file);
            mapping.fill(0x77);
            assert_eq!(std::fs::read(chunk(n)).unwrap(), vec![0x77; wanted[usize::from(n)].len()], "{io}: {n}");
        }
        assert!(hashes(mount.repository()) == objects, "{io}: an object was changed");
    }
}

#[test]
fn a_file_with_an_open_reader_is_copied_and_not_linked() {
    watchdog();
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        put(&mount.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
        let chunk = mount.root().join("a/c/0");
        put(&chunk, vec![1; SIZE]).unwrap();
        let reader = File::open(&chunk).unwrap();
        let mut buffer = vec![0; SIZE];
        reader.read_exact_at(&mut buffer, 0).unwrap();
        mount.commit("with a reader").unwrap();
        let objects = hashes(mount.repository());
        let writer = OpenOptions::new().write(true).open(&chunk).unwrap();
        writer.write_all_at(&[2; 1000], 0).unwrap();
        writer.write_all_at(&[3; 1000], 200_000).unwrap();
        drop(writer);
        assert!(hashes(mount.repository()) == objects, "{io}: an object was changed");
        let written = std::fs::read(&chunk).unwrap();
        assert!(written[0] == 2 && written[1000] == 1 && written[200_000] == 3, "{io}");
        drop(reader);
        mount.commit("again").unwrap();
        assert!(Reference::open(mount.repository()).keys()["a/c/0"] == written, "{io}");
    }
}

#[test]
fn an_open_reader_survives_a_discard_and_a_refresh() {
    watchdog();
    for (io, way) in io_modes().into_iter().flat_map(|io| [(io, "discard"), (io, "refresh")]) {
        let mount = Writable::new(&["--io", io]);
        let chunk = mount.root().join("a/c/0");
        put(&mount.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
        put(&chunk, vec![1; SIZE]).unwrap();
        mount.commit("first").unwrap();
        if way == "discard" {
            put(&chunk, vec![2; SIZE]).unwrap();
        }
        let reader = File::open(&chunk).unwrap();
        let mut buffer = vec![0; SIZE];
        reader.read_exact_at(&mut buffer, 0).unwrap();
        let wanted = if way == "discard" { vec![1; SIZE] } else { vec![3; SIZE] };
        if way == "refresh" {
            Reference::open(mount.repository()).commit(&[("a/c/0", &wanted)], "theirs");
        }
        mount.touch(way).unwrap();
        assert!(std::fs::read(&chunk).unwrap() == wanted, "{io}, {way}");
        OpenOptions::new().write(true).open(&chunk).unwrap().write_all_at(&[4; 10], 100).unwrap();
        let written = std::fs::read(&chunk).unwrap();
        assert!(written[99] == wanted[0] && written[100] == 4 && written[110] == wanted[0], "{io}, {way}");
        drop(reader);
        mount.commit("second").unwrap();
        assert!(Reference::open(mount.repository()).keys()["a/c/0"] == written, "{io}, {way}");
    }
}

#[test]
fn an_open_reader_survives_a_commit_over_commits_of_others() {
    watchdog();
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let chunk = mount.root().join("a/c/0");
        put(&mount.root().join("a/zarr.json"), array(&[2], &[1])).unwrap();
        put(&chunk, vec![1; SIZE]).unwrap();
        let reader = File::open(&chunk).unwrap();
        mount.commit("first").unwrap();
        // A concurrent commit changes the chunk that a program here still has open with its own
        // bytes.
        let theirs = vec![3; SIZE];
        Reference::open(mount.repository()).commit(&[("a/c/0", &theirs)], "theirs");
        mount.touch("refresh").unwrap();
        assert_shows(&chunk, &theirs, reader, (io, "refreshed"));
    }
}

/// Checks that `chunk` has the bytes `new` for a program that opens it, though `reader` has it open
/// as it was. With passthrough, it may be busy until `reader` is closed.
#[track_caller]
fn assert_shows(chunk: &Path, new: &[u8], reader: File, (io, way): (&str, &str)) {
    match std::fs::read(chunk) {
        Err(error) if io == "passthrough" => assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{io}, {way}"),
        seen => assert!(seen.unwrap() == new, "{io}, {way}: wrong bytes"),
    }
    drop(reader);
    // The kernel reports a close a moment later.
    wait_until("the chunk cannot be read", || std::fs::read(chunk).is_ok());
    assert!(std::fs::read(chunk).unwrap() == new, "{io}, {way}");
}

/// Programs can open a file that another one has open, whatever is discarded or restored elsewhere,
/// also after a commit.
#[test]
fn a_discard_elsewhere_leaves_open_files_alone() {
    watchdog();
    for io in io_modes() {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        let chunk = |n: u8| root.join(format!("a/c/{n}"));
        put(&root.join("a/zarr.json"), array(&[4], &[1])).unwrap();
        put(&root.join("b/zarr.json"), array(&[4], &[1])).unwrap();
        put(&chunk(0), vec![1; SIZE]).unwrap();
        let reader = File::open(chunk(0)).unwrap();
        let mut buffer = vec![0; SIZE];
        reader.read_exact_at(&mut buffer, 0).unwrap();
        for way in ["before the commit", "after the commit"] {
            put(&chunk(1), vec![2; SIZE]).unwrap();
            run_on(&root, &["discard", "a/c/1"]).success();
            assert!(std::fs::read(chunk(0)).unwrap() == vec![1; SIZE], "{io}: {way}");
            if way == "before the commit" {
                mount.commit("first").unwrap();
            }
        }
        put(&chunk(2), vec![3; SIZE]).unwrap();
        run_on(&root, &["discard"]).success();
        assert!(std::fs::read(chunk(0)).unwrap() == vec![1; SIZE], "{io}: everything");
        std::fs::remove_dir_all(root.join("b")).unwrap();
        run_on(&root, &["restore", "b", "--from", "main"]).success();
        assert!(std::fs::read(chunk(0)).unwrap() == vec![1; SIZE], "{io}: restore");
        // Other commits change something else.
        Reference::open(mount.repository()).commit(&[("b/c/0", b"theirs")], "theirs");
        mount.touch("refresh").unwrap();
        assert!(std::fs::read(chunk(0)).unwrap() == vec![1; SIZE], "{io}: refresh");
        let mut again = vec![0; SIZE];
        reader.read_exact_at(&mut again, 0).unwrap();
        assert!(again == buffer, "{io}");
    }
}

/// A program that opens a chunk gets no old bytes because another program still has the chunk open
/// as it was.
#[test]
fn an_open_reader_shows_no_old_bytes_to_others() {
    watchdog();
    for (io, way) in io_modes().into_iter().flat_map(|io| [(io, "committed"), (io, "theirs"), (io, "all theirs")]) {
        let mount = Writable::new(&["--io", io]);
        let root = mount.root();
        let chunk = root.join("a/c/0");
        put(&root.join("a/zarr.json"), array(&[4], &[1])).unwrap();
        mount.commit("first").unwrap();
        put(&chunk, vec![1; SIZE]).unwrap();
        let reader = File::open(&chunk).unwrap();
        let mut buffer = vec![0; SIZE];
        reader.read_exact_at(&mut buffer, 0).unwrap();
        if way == "committed" {
            mount.commit("second").unwrap();
        }
        let theirs = vec![3; SIZE];
        Reference::open(mount.repository()).commit(&[("a/c/0", &theirs)], "theirs");
        if way != "all theirs" {
            put(&root.join("a/c/1"), vec![2; SIZE]).unwrap();
        }
        let words: &[&str] = if way == "committed" { &["commit"] } else { &["commit", "--on-conflict", "theirs"] };
        run_on(&root, words).success();
        assert_shows(&chunk, &theirs, reader, (io, way));
    }
}

/// A name of a chunk that no commit takes keeps the bytes, although the program that has the chunk
/// open closes it.
#[test]
fn a_link_keeps_its_bytes_when_the_last_reader_of_the_committed_chunk_closes_it() {
    watchdog();
    for io in io_modes() {
        for is_new in [true, false] {
            let mount = Writable::new(&["--io", io]);
            let root = mount.root();
            let chunk = root.join("a/c/0");
            let note = root.join("note");
            let document = array(&[4], &[1]);
            let old = vec![1; SIZE];
            let others: &[(&str, &[u8])] = &[("a/zarr.json", document.as_bytes()), ("a/c/0", &old)];
            Reference::open(mount.repository()).commit(&others[..2 - usize::from(is_new)], "theirs");
            mount.touch("refresh").unwrap();
            put(&chunk, vec![2; SIZE]).unwrap();
            std::fs::hard_link(&chunk, &note).unwrap();
            let reader = File::open(&chunk).unwrap();
            mount.commit("second").unwrap();
            let mut read = vec![0; SIZE];
            reader.read_exact_at(&mut read, 0).unwrap();
            drop(reader);
            // The kernel reports a close a moment later.
            wait_until("the chunk cannot be read", || std::fs::read(&chunk).is_ok());
            std::thread::sleep(std::time::Duration::from_millis(200));
            for file in [&chunk, &note] {
                assert!(std::fs::read(file).unwrap() == vec![2; SIZE], "{io}, {is_new}: {}", file.display());
            }
            assert!(read == vec![2; SIZE]);
        }
    }
}
