//! Mounts with virtual chunks: requests to servers, caching, and commits.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::web::{INNER, TAG, Web, content, inner, shard};
use crate::common::made::{Reference, location_of, reference, repository, with_document};
use crate::common::moto::{self};
use crate::common::shard::{USUAL, array};
use crate::common::writing::{Reference as Oracle, touch};
use crate::common::{Mount, read_files, run, wait_until};

/// Returns `count` references to adjacent ranges of `length` bytes in one object.
fn neighbors(web: &Web, path: &str, count: u64, length: u64) -> Vec<Reference> {
    (0..count).map(|n| reference(web.url(path), n * length, length)).collect()
}

#[test]
fn neighboring_virtual_chunks_are_fetched_together_and_listings_fetch_nothing() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"), Vec::new(), &neighbors(&web, "well", 256, 4096));
    let mount = Mount::new(&repository, &["--read-only", "--allow-virtual", &web.url("")]);
    let listed = std::fs::read_dir(mount.path().join("v/c")).unwrap();
    let sizes: u64 = listed.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(sizes, 256 * 4096);
    rustix::fs::statvfs(mount.path()).unwrap();
    assert!(web.take().is_empty(), "a server was asked for names");
    for n in 0..256 {
        assert_eq!(std::fs::read(mount.path().join(format!("v/c/{n}"))).unwrap(), content(n * 4096, 4096), "{n}");
    }
    let requests = web.take().len();
    assert!(requests < 48, "{requests} requests for 256 neighbors");
    // A second read comes from memory.
    for n in [0, 100, 255] {
        let file = std::fs::File::open(mount.path().join(format!("v/c/{n}"))).unwrap();
        let mut part = [0; 10];
        file.read_exact_at(&mut part, 7).unwrap();
        assert_eq!(part[..], content(n * 4096 + 7, 10));
    }
    assert_eq!(web.take().len(), 0);
}

/// Creates a repository whose array is one virtual shard.
pub fn with_shard(web: &Web, place: &Path) -> PathBuf {
    let (count, length) = INNER;
    let all = count * length;
    let codec = USUAL.codec(json!([length]), json!([{"name": "bytes"}]));
    let document = array(json!([all]), json!([all]), json!([codec])).to_string();
    let references = [reference(web.url("shard"), 0, shard().len() as u64)];
    with_document(place, Vec::new(), &references, (all as u64, document))
}

/// A virtual shard is read in parts by its index.
#[test]
fn a_virtual_shard_is_read_by_its_index() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let (count, length) = INNER;
    let repository = with_shard(&web, &directory.path().join("repo"));
    let mount = Mount::new(&repository, &["--read-only", "--allow-virtual", &web.url("")]);
    let file = std::fs::File::open(mount.path().join("v/c/0")).unwrap();
    let index = shard().len() - 16 * count - 4;
    let read = |offset: usize, length: usize| {
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        bytes
    };
    assert!(read(index, 16 * count + 4) == shard()[index..]);
    for number in [200, 17] {
        let entry = &shard()[index + 16 * number..];
        let offset = u64::from_le_bytes(entry[..8].try_into().unwrap()) as usize;
        assert!(read(offset, length) == inner(number), "{number}");
    }
    let asked = web.take();
    assert!(asked.len() <= 3, "{asked:?}");
    assert!(std::fs::read(mount.path().join("v/c/0")).unwrap() == shard());
}

#[test]
fn a_refused_virtual_chunk_is_reported_in_the_mount() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let references = [reference(web.url("data/x"), 0, 10), reference(web.url("less"), 0, 10)];
    let repository = repository(&directory.path().join("repo"), Vec::new(), &references);
    let mount = Mount::new(&repository, &["--allow-virtual", &web.url("less")]);
    let read = |n: usize| std::fs::read(mount.path().join(format!("v/c/{n}"))).unwrap_err().raw_os_error();
    assert_eq!((read(0), read(1)), (Some(libc::EACCES), Some(libc::EIO)));
    let errors = mount.read_control("errors");
    let option = format!("--allow-virtual '{}'", web.url("data/"));
    assert!(errors.contains(&option) && errors.contains("v/c/0") && errors.contains("too short"), "{errors}");
    let info = mount.read_control("info.json");
    assert!(info.contains(&web.url("less")), "the options must list the allowed prefix: {info}");
}

/// References survive copies, moves and commits; written bytes are the repository's own.
#[test]
fn virtual_references_are_kept_until_they_are_written_to() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let references = [
        reference(web.url("x"), 0, 3000),
        reference(web.url("x"), 3000, 3000).tagged(TAG),
        reference(web.url("x"), 6000, 3000),
        reference(web.url("x"), 9000, 3000),
    ];
    let repository = repository(&directory.path().join("repo"), Vec::new(), &references);
    let mount = Mount::new(&repository, &["--allow-virtual", &web.url("")]);
    let at = |name: &str| mount.path().join(name);
    run(Command::new("cp").arg("-r").arg(at("v")).arg(at("copy"))).success();
    run(Command::new("mv").arg(at("copy/c/0")).arg(at("copy/c/3"))).success();
    assert!(web.take().is_empty(), "a copy is a reference");
    let file = std::fs::File::options().write(true).open(at("v/c/2")).unwrap();
    file.write_all_at(b"written", 100).unwrap();
    drop(file);
    assert_eq!(web.take().len(), 1, "a partial write must read the rest once");
    touch(&at(".icechunk/commit")).unwrap();
    let mut changed = content(6000, 3000);
    changed[100..107].copy_from_slice(b"written");
    assert_eq!(std::fs::read(at("v/c/2")).unwrap(), changed);
    assert_eq!(std::fs::read(at("copy/c/3")).unwrap(), content(0, 3000));
    mount.unmount();
    let x = || Some(web.url("x"));
    let locations =
        |array: &str| -> Vec<Option<String>> { (0..4).map(|n| location_of(&repository, array, n)).collect() };
    assert_eq!(locations("/v"), [x(), x(), None, x()]);
    assert_eq!(locations("/copy"), [None, x(), x(), x()]);
    let again = Mount::new(&repository, &["--read-only", "--allow-virtual", &web.url("")]);
    let shown = read_files(&again.path());
    assert_eq!((&shown["v/c/2"], &shown["copy/c/3"]), (&changed, &content(0, 3000)));
    assert_eq!(shown["copy/c/1"], content(3000, 3000));
}

#[test]
fn a_followed_branch_shows_virtual_chunks() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"), Vec::new(), &neighbors(&web, "well", 3, 100));
    let mount = Mount::new(&repository, &["--follow", "0.1", "--allow-virtual", &web.url("")]);
    assert_eq!(std::fs::read(mount.path().join("v/c/0")).unwrap(), content(0, 100));
    Oracle::open(&repository).commit(&[("v/c/1", b"native")], "one more");
    wait_until("the mount does not follow", || std::fs::read(mount.path().join("v/c/1")).unwrap() == b"native");
    assert_eq!(std::fs::read(mount.path().join("v/c/2")).unwrap(), content(200, 100));
}

/// Only chunks whose reference has a checksum are cached on the disk.
#[test]
fn only_chunks_with_a_checksum_are_cached_on_disk() {
    let Some(server) = moto::s3() else { return };
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let local = repository(
        &directory.path().join("repo"),
        Vec::new(),
        &[
            reference(web.url("x"), 0, 500).tagged(TAG),
            reference(web.url("x"), 500, 500),
            reference(web.url("y"), 0, 9 << 10).tagged(TAG),
        ],
    );
    let repo = moto::upload(server.port, &local, "virtual");
    let cache = directory.path().join("cache").display().to_string();
    let url = web.url("");
    let words = ["-o", "ro", "--cache", &cache, "--allow-virtual", &url];
    let read = |mount: &Mount, n: usize| std::fs::read(mount.path().join(format!("v/c/{n}")));
    let first = moto::mount(server.port, &repo, &words);
    for (n, offset, length) in [(0, 0, 500), (1, 500, 500), (2, 0, 9 << 10)] {
        assert_eq!(read(&first, n).unwrap(), content(offset, length));
    }
    assert_eq!(web.take().len(), 3);
    first.unmount();
    let offline = moto::mount(server.port, &repo, &[&words[..], &["--offline"]].concat());
    assert_eq!(read(&offline, 0).unwrap(), content(0, 500));
    assert_eq!(read(&offline, 2).unwrap(), content(0, 9 << 10));
    assert_eq!(read(&offline, 1).unwrap_err().raw_os_error(), Some(libc::ENETDOWN));
    offline.unmount();
    assert!(web.take().is_empty(), "a server got a request");
    // A cached chunk still needs permission.
    let denied = moto::mount(server.port, &repo, &words[..4]);
    assert_eq!(read(&denied, 0).unwrap_err().raw_os_error(), Some(libc::EACCES));
}
