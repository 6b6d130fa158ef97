//! The scratch disk is full, or the journal cannot be rewritten.

use std::io::Write;
use std::path::Path;

use crate::common::disk::Disk;
use crate::common::writing::{GROUP, Reference, Writable, array, create, put};
use crate::common::{Files, errno, read_files, wait_until, watchdog};

/// Creates a repository with an array `a` of 64 chunks of which `c/0` to `c/7` exist, on another
/// disk than the scratch directory.
fn repository() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    create(&place);
    let document = array(&[64], &[1]);
    let chunks: Vec<(String, Vec<u8>)> = (0..8).map(|n| (format!("a/c/{n}"), vec![n; 100_000])).collect();
    let mut keys: Vec<(&str, &[u8])> = vec![("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes())];
    keys.extend(chunks.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())));
    Reference::open(&place).commit(&keys, "the array");
    directory
}

/// Makes files until there is no room even for their names. Returns the errno of the first that was
/// refused.
fn until_refused(root: &Path) -> i32 {
    for n in 0..100_000 {
        if let Err(error) = std::fs::write(root.join(format!("filling-{n}")), "x".repeat(300)) {
            return error.raw_os_error().unwrap();
        }
    }
    panic!("the disk never gets full");
}

/// Returns all keys of `files`, without the names that only filled the disk.
fn keys(files: &Files) -> Files {
    files.iter().filter(|(name, _)| !name.starts_with("filling")).map(|(n, b)| (n.clone(), b.clone())).collect()
}

fn disks() -> Vec<Disk> {
    [Disk::tmpfs(4), Disk::ext4(8)].into_iter().flatten().collect()
}

/// Returns a mount whose scratch disk is full to the last byte, with uncommitted changes; and its
/// files.
fn full(disk: &Disk, repository: &Path) -> (Writable, Files) {
    let mount = Writable::placed(repository, &disk.path().join("scratch"), &[]);
    let root = mount.root();
    put(&root.join("a/c/10"), vec![10; 200_000]).unwrap();
    put(&root.join("a/c/1"), vec![11; 100_000]).unwrap();
    std::fs::remove_file(root.join("a/c/2")).unwrap();
    // More than the whole disk: a partial file is no torn chunk, since the program got the error.
    assert_eq!(errno(std::fs::write(root.join("a/c/11"), vec![1; 16 << 20])), libc::ENOSPC);
    std::fs::remove_file(root.join("a/c/11")).unwrap();
    // Its bytes are freed soon after: the disk must not be filled before.
    let data = mount.scratch().join("data");
    wait_until("the data file is removed", || std::fs::read_dir(&data).unwrap().count() == 2);
    disk.fill(0);
    assert_eq!(until_refused(&root), libc::ENOSPC);
    let shown = read_files(&root);
    assert_eq!(shown["a/c/10"], vec![10; 200_000]);
    (mount, shown)
}

#[test]
fn a_full_scratch_disk_is_enospc_and_tears_nothing() {
    watchdog();
    for disk in disks() {
        let repository = repository();
        let (mount, _) = full(&disk, &repository.path().join("repo"));
        let root = mount.root();
        // A write in the middle of a chunk that must be fetched first, one behind the end, and a
        // new file.
        let in_the_middle = |name: &str, offset: u64, length: usize| {
            let file = std::fs::OpenOptions::new().write(true).open(root.join(name))?;
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![9; length], offset)
        };
        let before = read_files(&root);
        assert_eq!(errno(in_the_middle("a/c/5", 50_000, 10)), libc::ENOSPC);
        assert_eq!(errno(in_the_middle("a/c/10", 4 << 20, 100_000)), libc::ENOSPC);
        assert_eq!(errno(std::fs::write(root.join("a/c/12"), vec![1; 100_000])), libc::ENOSPC);
        // As on any disk, a write that was refused may have lengthened the file.
        let after = read_files(&root);
        let same = |name: &&String| after.get(*name).is_some_and(|bytes| bytes.starts_with(&before[*name]));
        assert_eq!(before.keys().filter(|name| !same(name)).count(), 0);
        assert!(mount.read_control("errors").contains("a/c/5"), "{}", mount.read_control("errors"));
        // Repeated: a failed write leaves nothing on the disk.
        let data = || std::fs::read_dir(mount.scratch().join("data")).unwrap().count();
        let files = data();
        for _ in 0..5 {
            assert_eq!(errno(in_the_middle("a/c/5", 50_000, 10)), libc::ENOSPC);
        }
        assert_eq!(data(), files);

        disk.empty();
        // ext4 gives blocks back after a commit of its journal, which `sync` may not have waited
        // for.
        wait_until("there is space again", || in_the_middle("a/c/5", 50_000, 10).is_ok());
        put(&root.join("a/c/12"), vec![12; 100]).unwrap();
        let wanted = keys(&read_files(&root));
        mount.commit("there is space again").unwrap();
        assert!(keys(&mount.fresh()) == wanted);
        assert!(Reference::open(mount.repository()).keys() == wanted);
    }
}

#[test]
fn the_mount_after_a_full_disk_shows_the_same_tree() {
    watchdog();
    for disk in disks() {
        let repository = repository();
        let (mount, shown) = full(&disk, &repository.path().join("repo"));
        for killed in [false, true] {
            if killed {
                mount.kill(mount.daemon());
                mount.remove_dead_mount();
            } else {
                mount.unmount();
            }
            mount.mount_again(None).success();
            assert!(read_files(&mount.root()) == shown, "killed: {killed}");
        }
        // Space is reserved for operations that free space.
        std::fs::remove_file(mount.root().join("a/c/10")).unwrap();
        let mut left = shown;
        left.remove("a/c/10");
        mount.kill_and_remount();
        assert!(read_files(&mount.root()) == left);
    }
}

#[test]
fn commit_and_discard_free_a_full_disk() {
    watchdog();
    for (disk, way) in disks().into_iter().chain(disks()).zip(["commit", "commit", "discard", "discard"]) {
        let repository = repository();
        let (mount, shown) = full(&disk, &repository.path().join("repo"));
        let committed = mount.fresh();
        mount.touch(way).unwrap();
        let wanted = if way == "commit" { keys(&shown) } else { committed };
        assert!(keys(&read_files(&mount.root())) == wanted, "{way}");
        assert!(mount.fresh() == wanted, "{way}");
        // The space of discarded changes can be used again.
        put(&mount.root().join("a/c/20"), vec![20; 100_000]).unwrap();
        mount.kill_and_remount();
        let mut wanted = wanted;
        wanted.insert("a/c/20".to_owned(), vec![20; 100_000]);
        assert!(keys(&read_files(&mount.root())) == wanted, "{way}");
        mount.commit("more").unwrap();
        assert!(mount.fresh() == wanted, "{way}");
    }
}

/// A directory in the place of a journal that is to be rewritten; root cannot overwrite it either.
struct InTheWay(std::path::PathBuf);

impl InTheWay {
    fn of(mount: &Writable) -> InTheWay {
        let place = mount.scratch().join("journal.new");
        std::fs::create_dir(&place).unwrap();
        InTheWay(place)
    }

    fn remove(self) {
        std::fs::remove_dir(self.0).unwrap();
    }
}

#[test]
fn a_journal_that_cannot_be_rewritten_after_a_commit_loses_nothing() {
    watchdog();
    for killed in [false, true] {
        let repository = repository();
        let mount = Writable::of(&repository.path().join("repo"), &[]);
        let root = mount.root();
        put(&root.join("a/c/10"), vec![10; 300_000]).unwrap();
        put(&root.join("a/c/1"), vec![11; 100]).unwrap();
        put(&root.join("notes"), "mine").unwrap();
        let shown = read_files(&root);
        let in_the_way = InTheWay::of(&mount);
        // The commit succeeds nevertheless.
        mount.commit("a commit").unwrap();
        let mut keys = shown.clone();
        keys.remove("notes");
        assert!(Reference::open(mount.repository()).keys() == keys);
        assert!(read_files(&root) == shown);
        // Changes that could not be recorded are refused.
        assert!(std::fs::write(root.join("a/c/11"), "x").is_err());
        assert!(std::fs::remove_file(root.join("a/c/1")).is_err());
        assert!(read_files(&root) == shown);
        let mut shown = shown;
        if !killed {
            in_the_way.remove();
            put(&root.join("a/c/11"), "more").unwrap();
            shown.insert("a/c/11".to_owned(), b"more".to_vec());
            mount.kill(mount.daemon());
        } else {
            mount.kill(mount.daemon());
            in_the_way.remove();
        }
        mount.remove_dead_mount();
        mount.mount_again(None).success();
        assert!(read_files(&root) == shown, "killed: {killed}");
        mount.commit("the rest").unwrap();
        shown.remove("notes");
        assert!(Reference::open(mount.repository()).keys() == shown);
        assert_eq!(Reference::open(mount.repository()).history().len(), if killed { 3 } else { 4 });
    }
}

#[test]
fn a_journal_that_cannot_be_rewritten_after_a_discard_or_refresh_loses_nothing() {
    watchdog();
    for way in ["discard", "refresh"] {
        let repository = repository();
        let mount = Writable::of(&repository.path().join("repo"), &[]);
        let root = mount.root();
        put(&root.join("a/c/10"), vec![10; 300_000]).unwrap();
        let theirs: (&str, &[u8]) = ("a/c/30", b"theirs");
        Reference::open(mount.repository()).commit(&[theirs], "theirs");
        let before = read_files(&root);
        let in_the_way = InTheWay::of(&mount);
        // It fails, and nothing changes: neither the visible files, nor the uncommitted work, nor
        // that of the next mount.
        let status = mount.read_control("status");
        let done = mount.touch(way);
        assert!(done.is_err(), "{way}");
        let files = read_files(&root);
        assert!(files == before && mount.read_control("status") == status, "{way}");
        std::fs::write(root.join("a/c/10"), vec![10; 300_000]).unwrap();
        mount.kill(mount.daemon());
        mount.remove_dead_mount();
        in_the_way.remove();
        mount.mount_again(None).success();
        let after = read_files(&root);
        assert!(after == before, "{way}: {done:?}");
        mount.touch("refresh").unwrap();
        let mut file = std::fs::File::create(root.join("a/c/11")).unwrap();
        file.write_all(b"more").unwrap();
        drop(file);
        let wanted = read_files(&root);
        mount.commit("all").unwrap();
        assert!(mount.fresh() == wanted);
    }
}
