//! A cache on a disk to which other users have access.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use icechunkfs::disk_cache::{DiskCache, Name};
use icechunkfs::error::{ErrorKind, Result};

use crate::common;
use crate::common::users::{Commons, NOBODY, by_nobody, fifo, mode, set_mode, set_owner};

const SIZE: u64 = 100 * 4096;

fn open(directory: &Path) -> Result<DiskCache> {
    DiskCache::open(directory, SIZE, "repository")
}

fn name(n: u64) -> Name {
    Name::range("chunks/X", n, 1)
}

fn get(cache: &DiskCache, n: u64) -> Option<Vec<u8>> {
    cache.get(&name(n), u64::MAX).map(|bytes| bytes.to_vec())
}

/// Creates a cache of root's with one entry in it.
fn filled(commons: &Commons, bits: u32) -> PathBuf {
    let directory = commons.directory("cache", 0, bits);
    open(&directory).unwrap().put(&name(1), b"right");
    assert_eq!(get(&open(&directory).unwrap(), 1).unwrap(), b"right");
    directory
}

/// Returns the files in the folders of a cache's entries.
fn entries(directory: &Path) -> Vec<PathBuf> {
    common::entries(&directory.join("v1/repository")).iter().flat_map(|folder| common::entries(folder)).collect()
}

#[track_caller]
fn refused(directory: &Path, why: &str) {
    let error = open(directory).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains(why), "{error}");
}

#[test]
fn a_cache_that_others_may_write_to_is_refused() {
    let commons = Commons::new();
    for bits in [0o777, 0o1777, 0o702] {
        let directory = commons.directory("open", 0, bits);
        refused(&directory, "may write");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "nothing is made there");
    }
    let directory = commons.directory("group", 0, 0o770);
    std::os::unix::fs::chown(&directory, None, Some(NOBODY)).unwrap();
    refused(&directory, "may write");
    refused(&commons.directory("hers", NOBODY, 0o755), "nobody");
    let parent = commons.directory("parent", NOBODY, 0o755);
    commons.directory("parent/cache", 0, 0o700);
    refused(&parent.join("cache"), "nobody");
    // A part of it, from a time when it was shared.
    let directory = filled(&commons, 0o700);
    let folder = entries(&directory)[0].parent().unwrap().to_owned();
    for part in [directory.join("v1"), directory.join("v1/new"), directory.join("v1/repository"), folder] {
        let before = mode(&part);
        set_mode(&part, 0o777);
        refused(&directory, "may write");
        set_mode(&part, before);
        set_owner(&part, NOBODY);
        refused(&directory, "nobody");
        set_owner(&part, 0);
    }
    assert_eq!(get(&open(&directory).unwrap(), 1).unwrap(), b"right");
}

#[test]
fn links_in_a_cache_are_not_followed() {
    let commons = Commons::new();
    let victim = commons.directory("victim", 0, 0o700);
    for name in ["file", "0", "1"] {
        std::fs::write(victim.join(name), "12345678 of root").unwrap();
    }
    let old = std::time::SystemTime::now() - Duration::from_secs(1_000_000);
    File::open(victim.join("0")).unwrap().set_modified(old).unwrap();
    for (part, target) in [
        ("v1/used", "file"),
        ("v1/used", "made"),
        ("v1/lock", "file"),
        ("v1/lock", "made"),
        ("v1/new", "."),
        ("v1/repository", "."),
        ("v1", "."),
        ("CACHEDIR.TAG", "file"),
        ("CACHEDIR.TAG", "made"),
        ("v1/other", "."),
        ("v2", "."),
    ] {
        let directory = filled(&commons, 0o700);
        let part = directory.join(part);
        if part.is_dir() {
            std::fs::remove_dir_all(&part).unwrap();
        } else {
            let _ = std::fs::remove_file(&part);
        }
        symlink(victim.join(target), &part).unwrap();
        if let Ok(cache) = open(&directory) {
            // Until space is needed.
            for n in 0..300 {
                cache.put(&name(n), &[1; 4096]);
            }
            cache.forget("chunks/X");
        }
        let mut left: Vec<_> = std::fs::read_dir(&victim).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["0", "1", "file"], "{}", part.display());
        for name in &left {
            assert_eq!(std::fs::read(victim.join(name)).unwrap(), b"12345678 of root", "{}", part.display());
            assert_eq!(mode(&victim.join(name)), 0o644);
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

#[test]
fn fifos_in_a_cache_block_no_reader() {
    let commons = Commons::new();
    for part in ["v1/used", "v1/lock", "CACHEDIR.TAG", "entry"] {
        let directory = filled(&commons, 0o700);
        let path = if part == "entry" { entries(&directory).remove(0) } else { directory.join(part) };
        std::fs::remove_file(&path).unwrap();
        fifo(&path);
        let begin = Instant::now();
        if let Ok(cache) = open(&directory) {
            cache.put(&name(2), b"two");
            cache.put(&name(1), b"right");
            assert!(get(&cache, 1).is_none_or(|bytes| bytes == b"right"));
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{part}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}

/// A user who may read a lock file may lock it.
#[test]
fn locks_of_other_users_block_no_reader() {
    let commons = Commons::new();
    let directory = filled(&commons, 0o755);
    for part in ["used", "lock"] {
        assert_eq!(mode(&directory.join("v1").join(part)), 0o600);
        // Earlier releases made them so.
        set_mode(&directory.join("v1").join(part), 0o644);
        let held = File::open(directory.join("v1").join(part)).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let begin = Instant::now();
        let cache = open(&directory).unwrap();
        cache.put(&name(7), b"seven");
        assert!(begin.elapsed() < Duration::from_secs(20), "{part}");
    }
}

#[test]
fn a_cache_of_root_is_read_by_others_and_written_by_root_alone() {
    let commons = Commons::new();
    let directory = filled(&commons, 0o755);
    let before = entries(&directory);
    by_nobody(|| {
        let cache = open(&directory).unwrap();
        assert_eq!(get(&cache, 1).unwrap(), b"right");
        assert!(cache.file(&name(1), 5).is_some() && cache.file_now(&name(1), 5).is_some());
        cache.put(&name(2), b"hers");
        cache.forget("chunks/X");
        assert!(get(&cache, 2).is_none());
    });
    assert_eq!(entries(&directory), before);
    // A cache for root alone.
    set_mode(&directory, 0o700);
    by_nobody(|| refused(&directory, "ermission"));
    // Root does not trust a cache that a user has filled.
    set_owner(&directory, NOBODY);
    refused(&directory, "nobody");
}

#[test]
fn cache_entries_of_another_owner_are_ignored() {
    let commons = Commons::new();
    let directory = filled(&commons, 0o700);
    let entry = entries(&directory).remove(0);
    let cache = open(&directory).unwrap();
    set_owner(&entry, NOBODY);
    assert!(get(&cache, 1).is_none() && cache.file(&name(1), 5).is_none() && cache.file_now(&name(1), 5).is_none());
    cache.put(&name(1), b"right");
    set_mode(&entry, 0o666);
    assert!(get(&cache, 1).is_none(), "others may write to it");
    // The bytes of one entry are under the name of another.
    cache.put(&name(3), b"three");
    let other = entries(&directory).into_iter().find(|path| *path != entry).unwrap();
    std::fs::remove_file(&entry).ok();
    std::fs::hard_link(&other, &entry).unwrap();
    assert!(get(&cache, 1).is_none());
    symlink(&other, commons.path("link")).unwrap();
    std::fs::rename(commons.path("link"), &entry).unwrap();
    assert!(get(&cache, 1).is_none());
}

/// Ends other threads when this one ends, in whatever way.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Directories become links and directories again while a cache is used.
#[test]
fn a_cache_directory_exchanged_for_a_link_is_not_followed() {
    let commons = Commons::new();
    let directory = filled(&commons, 0o700);
    let victim = commons.directory("victim", 0, 0o700);
    for n in 0..256 {
        let folder = victim.join(format!("{n:02x}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("of root"), "of root").unwrap();
    }
    std::fs::write(victim.join("of root"), "of root").unwrap();
    let state = || common::read_files(&victim);
    let before = state();
    for parts in [&["v1/new", "v1/repository"][..], &["v1"]] {
        let ended = AtomicBool::new(false);
        let first = open(&directory).unwrap();
        std::thread::scope(|scope| {
            for part in parts {
                let path = directory.join(part);
                let aside = commons.path(&part.replace('/', "-"));
                let victim = &victim;
                let ended = &ended;
                scope.spawn(move || {
                    while !ended.load(Ordering::Relaxed) {
                        if std::fs::rename(&path, &aside).is_ok() {
                            let _ = symlink(victim, &path);
                            std::thread::yield_now();
                            let _ = std::fs::remove_file(&path);
                            let _ = std::fs::rename(&aside, &path);
                        }
                        // The cache is used in both states: nothing is waited for.
                        std::thread::sleep(Duration::from_micros(100));
                    }
                });
            }
            let _end = End(&ended);
            let begin = Instant::now();
            let mut n = 10;
            while begin.elapsed() < Duration::from_secs(2) {
                // It is refused while it has a link in it.
                let again = open(&directory).ok();
                let cache = again.as_ref().unwrap_or(&first);
                for _ in 0..150 {
                    n += 1;
                    cache.put(&name(n), &[n as u8; 4096]);
                    assert!(get(cache, n).is_none_or(|bytes| bytes == [n as u8; 4096]));
                }
            }
        });
        assert!(state() == before, "{parts:?}");
    }
}
