//! Length of the journal, and its parts that a power cut may remove.

use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use crate::common::disk::Disk;
use crate::common::strace::Calls;
use crate::common::writing::{Writable, put};
use crate::common::{poll, read_files, wait_until, watchdog};

/// Length limit of the journal of a small state, in bytes.
const SHORT: u64 = 1 << 20;

fn length(mount: &Writable) -> u64 {
    std::fs::metadata(mount.scratch().join("journal")).unwrap().len()
}

fn replace(root: &Path, n: u32) {
    let temporary = root.join("a-file-with-a-name-of-some-length.partial");
    std::fs::write(&temporary, n.to_le_bytes()).unwrap();
    std::fs::rename(&temporary, root.join("file")).unwrap();
}

#[test]
fn a_journal_is_compacted_while_the_mount_runs() {
    watchdog();
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("notes"), "mine").unwrap();
    let deleted = std::fs::File::create(root.join("deleted")).unwrap();
    std::fs::remove_file(root.join("deleted")).unwrap();
    let mut longest = 0;
    for n in 0..8000 {
        replace(&root, n);
        longest = longest.max(length(&mount));
    }
    assert!(longest > SHORT, "{longest} bytes: the test compacts nothing");
    wait_until("the journal stays long", || length(&mount) <= SHORT);
    // Only its handle knows the file, and the journal does not.
    deleted.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
    deleted.set_len(10).unwrap();
    replace(&root, 8000);
    let shown = read_files(&root);
    assert_eq!(shown["file"], 8000_u32.to_le_bytes());
    mount.kill(mount.daemon());
    drop(deleted);
    mount.remove_dead_mount();
    mount.mount_again(None).success();
    assert!(read_files(&root) == shown);
    wait_until("replaced files stay", || std::fs::read_dir(mount.scratch().join("data")).unwrap().count() == 2);
}

/// After a power cut, a line of the journal must not lead to bytes that the disk does not have: it
/// would replace those that were there before.
#[test]
fn bytes_that_replace_others_are_on_the_disk_before_their_line() {
    watchdog();
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("file"), "before").unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let Some(calls) = Calls::of(mount.daemon(), "sync_file_range,fsync,fdatasync,syncfs", log.path()) else { return };
    for n in 0..3 {
        replace(&root, n);
        let data = std::fs::read_dir(mount.scratch().join("data")).unwrap().map(|entry| entry.unwrap().path());
        let data = data.filter(|path| std::fs::read(path).is_ok_and(|bytes| bytes == n.to_le_bytes()));
        let data: Vec<String> = data.map(|path| format!("<{}>", path.to_str().unwrap())).collect();
        assert_eq!(data.len(), 1, "{data:?}");
        let place = |seen: &[String], what: &str| seen.iter().rposition(|call| call.contains(what));
        let seen = poll(Duration::from_secs(20), || {
            let seen = calls.so_far();
            let flushed = place(&seen, "/journal>")?;
            (place(&seen, &data[0])? < flushed).then_some(seen)
        });
        let seen = seen.unwrap_or_else(|| panic!("not flushed, or not before its line: {:#?}", calls.so_far()));
        // The first flush of the journal after the change comes after the bytes and their place in
        // the file system.
        let bytes = seen.iter().position(|call| call.contains(&data[0])).unwrap();
        let after = |what: &str| seen.iter().skip(bytes).position(|call| call.contains(what)).unwrap();
        assert!(after("/data>") < after("/journal>"), "{seen:#?}");
    }
}

#[test]
fn a_long_journal_is_compacted_by_the_next_mount() {
    watchdog();
    let mount = Writable::new(&[]);
    put(&mount.root().join("file"), "mine").unwrap();
    mount.unmount();
    // An older release has left it so: the same change many times.
    let path = mount.scratch().join("journal");
    let journal = std::fs::read_to_string(&path).unwrap();
    let times = journal.lines().find(|line| line.contains("\"create\"")).unwrap();
    let id = times.split("\"id\":").nth(1).unwrap().split(',').next().unwrap();
    let meta = times.split("\"meta\":").nth(1).unwrap().split("},").next().unwrap();
    let text = format!("{{\"op\":\"attributes\",\"id\":{id},\"meta\":{meta}}}}}");
    let line = format!("{:08x} {text}\n", crc32fast::hash(text.as_bytes()));
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(line.repeat(20_000).as_bytes()).unwrap();
    drop(file);
    assert!(length(&mount) > SHORT);
    mount.mount_again(None).success();
    assert!(length(&mount) < SHORT / 100, "{}", length(&mount));
    assert_eq!(std::fs::read(mount.root().join("file")).unwrap(), b"mine");
}

#[test]
fn removals_succeed_on_a_full_disk_however_long_the_journal_is() {
    watchdog();
    for (disk, way) in [Disk::tmpfs(24), Disk::ext4(32)].into_iter().flatten().zip(["remove", "discard"]) {
        let repository = tempfile::tempdir().unwrap();
        let place = repository.path().join("repo");
        crate::common::writing::create(&place);
        let mount = Writable::placed(&place, &disk.path().join("scratch"), &[]);
        let root = mount.root();
        std::fs::create_dir(root.join("directory")).unwrap();
        // A state of some MiB, all of which a discard of one path rewrites.
        for n in 0..4000 {
            let name = format!("directory/{n}-{}", "x".repeat(150));
            std::os::unix::fs::symlink("nowhere", root.join(name)).unwrap();
        }
        put(&root.join("large"), vec![1; 1 << 20]).unwrap();
        wait_until("no room is kept", || {
            std::fs::metadata(mount.scratch().join("spare")).is_ok_and(|spare| spare.len() >= length(&mount))
        });
        disk.fill(0);
        while std::fs::write(root.join("filling"), "x").is_ok() && std::fs::remove_file(root.join("filling")).is_ok() {
            std::os::unix::fs::symlink("nowhere", root.join(format!("fill-{}", length(&mount)))).ok();
            if std::fs::create_dir(root.join(format!("fill-directory-{}", length(&mount)))).is_err() {
                break;
            }
        }
        if way == "remove" {
            for entry in std::fs::read_dir(root.join("directory")).unwrap() {
                std::fs::remove_file(entry.unwrap().path()).unwrap();
            }
            std::fs::remove_file(root.join("large")).unwrap();
        } else {
            mount.touch("discard").unwrap();
            std::fs::remove_file(root.join("large")).unwrap();
        }
        // Removed files have freed their space by now.
        put(&root.join("new"), vec![2; 1 << 19]).unwrap();
    }
}

#[test]
fn everything_can_be_removed_when_the_journal_has_filled_the_disk() {
    watchdog();
    for disk in [Disk::tmpfs(6), Disk::ext4(16)].into_iter().flatten() {
        let repository = tempfile::tempdir().unwrap();
        let place = repository.path().join("repo");
        crate::common::writing::create(&place);
        let mount = Writable::placed(&place, &disk.path().join("scratch"), &[]);
        let link = |n: usize| mount.root().join(format!("{n}-{}", "x".repeat(200)));
        // Faster than the journal is flushed.
        let made = (0..).find(|&n| std::os::unix::fs::symlink("nowhere", link(n)).is_err()).unwrap();
        assert!(made > 1000, "{made}");
        for n in 0..made {
            std::fs::remove_file(link(n)).unwrap();
        }
        assert_eq!(std::fs::read_dir(mount.root()).unwrap().count(), 0);
    }
}

#[test]
fn bytes_without_a_name_after_a_power_cut_are_kept() {
    watchdog();
    let mount = Writable::new(&[]);
    let root = mount.root();
    put(&root.join("file"), "mine").unwrap();
    put(&root.join("replaced"), "old").unwrap();
    let shown = read_files(&root);
    mount.unmount();
    // Another boot id simulates a power cut; two lines were lost in the middle of writing, a third
    // is on the disk.
    let scratch = mount.scratch();
    let note = std::fs::read_to_string(scratch.join("boot")).unwrap();
    let other = note.replace(note.split(' ').next().unwrap(), "00000000-0000-0000-0000-000000000000");
    std::fs::write(scratch.join("boot"), other).unwrap();
    let whole = length(&mount);
    let journal = std::fs::OpenOptions::new().write(true).open(scratch.join("journal")).unwrap();
    journal.write_all_at(b"\0\0\0\0\0\0\0\n12345678 {\"op\":\"none\"}\n", whole).unwrap();
    std::fs::write(scratch.join("data/900"), "new").unwrap();
    std::fs::write(scratch.join("data/901"), "").unwrap();
    let message = mount.mount_again(None);
    let output = message.stderr.clone() + &mount.log();
    message.success();
    assert!(output.contains("the bytes of 1 files") && output.contains("lost+found"), "{output}");
    assert!(read_files(&root) == shown);
    assert_eq!(std::fs::read(scratch.join("lost+found/900")).unwrap(), b"new");
    assert!(std::fs::read(scratch.join("lost+found/journal")).unwrap().ends_with(b"none\"}\n"));
    assert!(!scratch.join("data/901").exists() && !scratch.join("data/900").exists());
    mount.remount();
    assert!(read_files(&root) == shown);
    // Damage of bytes that were on the disk is no power cut.
    mount.unmount();
    std::fs::OpenOptions::new().write(true).open(scratch.join("journal")).unwrap().write_all_at(b"x", 20).unwrap();
    let note = std::fs::read_to_string(scratch.join("boot")).unwrap();
    let other = note.replace(note.split(' ').next().unwrap(), "00000000-0000-0000-0000-000000000000");
    std::fs::write(scratch.join("boot"), other).unwrap();
    assert!(mount.mount_again(None).failure().contains("line 1"));
}
