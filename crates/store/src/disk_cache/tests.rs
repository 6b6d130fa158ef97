#![allow(clippy::unwrap_used)]
use super::*;
use std::os::unix::fs::PermissionsExt;

fn cache(directory: &Path, size: u64) -> Arc<DiskCache> {
    Arc::new(DiskCache::open(directory, size, "repository").unwrap())
}

fn name(n: u64) -> Name {
    Name::range("chunks/X", n, 1)
}

/// Returns the bytes of all files in `directory`, in whole blocks.
fn taken(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        let counts = !matches!(entry.file_name().to_str(), Some("used" | "lock" | "CACHEDIR.TAG"));
        bytes += if metadata.is_dir() {
            taken(&entry.path())
        } else {
            u64::from(counts) * metadata.len().div_ceil(4096) * 4096
        };
    }
    bytes
}

fn used_long_ago(cache: &DiskCache, name: &Name) {
    let file = File::options().write(true).open(cache.place.path_of(name)).unwrap();
    file.set_modified(std::time::SystemTime::now() - 2 * USE_COUNTS_FOR).unwrap();
}

#[test]
fn entries_are_what_was_put() {
    let place = tempfile::tempdir().unwrap();
    let first = cache(place.path(), 1 << 30);
    for (n, length) in [(0, 0), (1, 1), (2, 4096), (3, 3 << 20)] {
        let bytes = vec![n as u8; length];
        assert!(!first.has(&name(n)) && first.get(&name(n), u64::MAX).is_none());
        first.put(&name(n), &bytes);
        // Another process sees the same.
        for cache in [&first, &cache(place.path(), 1 << 30)] {
            assert!(cache.has(&name(n)));
            assert_eq!(cache.get(&name(n), u64::MAX).unwrap(), bytes);
            let file = cache.file(&name(n), length as u64).unwrap();
            assert_eq!(file.metadata().unwrap().len(), length as u64);
            assert!(cache.file_now(&name(n), length as u64).is_some(), "its bytes were right a moment ago");
            assert!(cache.file_now(&name(n), length as u64 + 1).is_none());
        }
    }
    assert!(first.get(&name(3), 1 << 20).is_none(), "more than is wanted");
    let other = DiskCache::open(place.path(), 1 << 30, "another repository").unwrap();
    assert!(!other.has(&name(1)));
}

#[test]
fn damage_is_noticed_and_removed() {
    let place = tempfile::tempdir().unwrap();
    let cache = cache(place.path(), 1 << 30);
    let damages: [fn(&File); 4] = [
        |file| file.write_all_at(b"x", 5000).unwrap(),
        |file| file.set_len(100).unwrap(),
        |file| file.set_len(0).unwrap(),
        |file| rustix::fs::fremovexattr(file, "user.icechunkfs.sum").unwrap(),
    ];
    for (n, damage) in damages.into_iter().enumerate() {
        for by_file in [true, false] {
            let name = name(n as u64);
            cache.put(&name, &[7; 10_000]);
            // The entry was read before and is remembered as verified.
            assert!(cache.file(&name, 10_000).is_some());
            let file = File::options().write(true).open(cache.place.path_of(&name)).unwrap();
            damage(&file);
            assert!(cache.file_now(&name, 10_000).is_none(), "{n}");
            let found =
                if by_file { cache.file(&name, 10_000).is_some() } else { cache.get(&name, u64::MAX).is_some() };
            assert!(!found && !cache.has(&name), "{n}");
        }
    }
}

#[test]
fn the_bound_is_kept_and_what_is_used_stays() {
    let place = tempfile::tempdir().unwrap();
    let bound = 100 * 4096;
    let first = cache(place.path(), bound);
    let second = cache(place.path(), bound);
    first.put(&name(1000), &[1; 4096]);
    for n in 0..500 {
        let cache = if n % 2 == 0 { &first } else { &second };
        cache.put(&name(n), &[n as u8; 4000]);
        assert!(taken(place.path()) <= bound, "{n}: {} of {bound}", taken(place.path()));
        // An entry that was added long ago and is used now counts as new.
        used_long_ago(&second, &name(n));
        assert!(second.get(&name(1000), u64::MAX).is_some(), "{n}");
    }
    let kept = (0..500).filter(|n| first.has(&name(*n))).count();
    assert!((80..100).contains(&kept), "{kept}");
    first.put(&name(2000), &vec![0; bound as usize / 2]);
    assert!(!first.has(&name(2000)), "one entry for which half of all others would go");
}

#[test]
fn room_is_shared_with_other_layouts() {
    let place = tempfile::tempdir().unwrap();
    let cache = cache(place.path(), 100 * 4096);
    let other = place.path().join("v7/x/y");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("old"), vec![0; 50 * 4096]).unwrap();
    std::fs::write(place.path().join("v1/used"), "").unwrap();
    std::fs::create_dir(place.path().join("mine")).unwrap();
    std::fs::write(place.path().join("mine/thesis"), "").unwrap();
    for n in 0..200 {
        cache.put(&name(n), &[1; 4096]);
        assert!(taken(place.path()) <= 100 * 4096 + 4096, "{n}");
    }
    assert!(!other.join("old").exists() && place.path().join("mine/thesis").exists());
}

#[test]
fn what_goes_wrong_with_it_costs_nothing_but_time() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cache");
    let first = cache(&directory, 1 << 30);
    first.put(&name(1), b"1");
    // A user deletes the cache.
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(first.get(&name(1), u64::MAX).is_none());
    first.put(&name(1), b"1");
    assert_eq!(first.get(&name(1), u64::MAX).unwrap(), "1", "it is made again");
    // An invalid count is corrected, and the file of a writer that died is removed.
    std::fs::write(directory.join("v1/used"), "nonsense!").unwrap();
    std::fs::write(directory.join("v1/new/left"), "x").unwrap();
    first.put(&name(2), b"2");
    assert!(first.has(&name(2)) && !directory.join("v1/new/left").exists());
    // A file where a directory should be.
    std::fs::remove_dir_all(directory.join("v1/new")).unwrap();
    std::fs::write(directory.join("v1/new"), "x").unwrap();
    first.put(&name(3), b"3");
    assert!(!first.has(&name(3)) && first.is_paused());
    assert_eq!(first.get(&name(2), u64::MAX).unwrap(), "2");
}

#[test]
fn other_directories_are_refused() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("thesis"), "x").unwrap();
    let refused = DiskCache::open(place.path(), 1 << 30, "r").unwrap_err();
    assert_eq!(refused.kind(), icechunkfs_base::error::ErrorKind::InvalidInput);
    assert!(DiskCache::open(&place.path().join("thesis"), 1 << 30, "r").is_err());
    let made = place.path().join("a/b");
    cache(&made, 1 << 30).put(&name(1), b"1");
    assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700, "for its owner alone");
    assert!(made.join("CACHEDIR.TAG").exists());
}

#[test]
fn documents_that_change_are_replaced() {
    let place = tempfile::tempdir().unwrap();
    let cache = cache(place.path(), 1 << 30);
    assert!(cache.document("repo", 100).is_none());
    for document in [
        CachedDocument { state: "{\"e_tag\": \"x y\"}".into(), bytes: Some("one".into()) },
        CachedDocument { state: String::new(), bytes: Some("\ntwo\n".into()) },
        CachedDocument { state: String::new(), bytes: None },
    ] {
        cache.record_document("repo", &document);
        assert_eq!(cache.document("repo", 100), Some(document));
    }
}
