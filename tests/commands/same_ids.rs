//! Objects of two repositories that have one id and other bytes: ids are random numbers, and a
//! stranger chooses those of a fork.

use std::path::{Path, PathBuf};

use icechunk::format::format_constants::SpecVersionBin;

use super::sync::{add_chunks, clone, objects, push, refs, repository};
use crate::common::faulty::{Fault, Line};
use crate::common::random::Random;
use crate::common::writing::Reference;
use crate::common::{Output, assert_same, copy_tree, icechunkfs, moto, place, read_files, run_on};

const VERSIONS: [SpecVersionBin; 2] = [SpecVersionBin::V1, SpecVersionBin::V2];

/// Changes of an object that keep its id: longer, shorter, and as long as before.
const CHANGES: [fn(&mut Vec<u8>); 3] =
    [|bytes| bytes.push(b'E'), |bytes| bytes.truncate(bytes.len() - 1), |bytes| bytes.fill(b'E')];

/// A repository and a clone of it, after which the original has gone on by one commit of new
/// chunks.
struct Family {
    upstream: PathBuf,
    mine: PathBuf,
    /// Chunk objects that the clone lacks.
    new: Vec<String>,
    directory: tempfile::TempDir,
}

impl Family {
    fn new(version: SpecVersionBin) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let upstream = repository(directory.path(), version);
        let mine = directory.path().join("mine");
        clone(&upstream, &mine).success();
        add_chunks(&Reference::open(&upstream), 9);
        let known = chunks(&mine);
        let new: Vec<String> = chunks(&upstream).into_iter().filter(|name| !known.contains(name)).collect();
        assert!(new.len() > 3);
        Family { upstream, mine, new, directory }
    }

    /// Makes a fork of `original` in which `object` is changed.
    fn fork(&self, original: &Path, object: &str, change: fn(&mut Vec<u8>)) -> PathBuf {
        let fork = self.directory.path().join("fork");
        let _ = std::fs::remove_dir_all(&fork);
        copy_tree(original, &fork);
        let mut bytes = std::fs::read(fork.join(object)).unwrap();
        change(&mut bytes);
        std::fs::write(fork.join(object), bytes).unwrap();
        fork
    }
}

fn chunks(place: &Path) -> Vec<String> {
    objects(place).into_keys().filter(|name| name.starts_with("chunks/")).collect()
}

fn pull(place: &Path, from: &Path, words: &[&str]) -> Output {
    run_on(place, &[&["pull", from.to_str().unwrap()], words].concat())
}

/// Fails unless the output is an error that names the object and both repositories.
fn assert_names_both(output: Output, object: &str, one: &Path, other: &Path) {
    let why = output.failure();
    for name in [object, one.to_str().unwrap(), other.to_str().unwrap()] {
        assert!(why.contains(name), "{name} in: {why}");
    }
}

/// The stranger's branch brings a chunk under the id that a commit of upstream uses.
#[test]
fn a_pull_from_upstream_does_not_keep_the_bytes_of_a_fork() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        let family = Family::new(version);
        let object = &family.new[0];
        let fork = family.fork(&family.upstream, object, CHANGES[2]);
        icechunkfs(["branch", fork.to_str().unwrap(), "create", "feature", "--at", "main"]).success();
        pull(&family.mine, &fork, &["feature"]).success();
        let before = refs(&family.mine);
        assert_names_both(pull(&family.mine, &family.upstream, &["main"]), object, &family.mine, &family.upstream);
        assert_eq!(refs(&family.mine), before);
        // Without the fork's branch and what it brought, the same pull succeeds.
        run_on(&family.mine, &["branch", "delete", "feature", "--yes"]).success();
        run_on(&family.mine, &["gc", "--older-than", "0s", "--yes"]).success();
        pull(&family.mine, &family.upstream, &["main"]).success();
        assert_eq!(
            std::fs::read(family.mine.join(object)).unwrap(),
            std::fs::read(family.upstream.join(object)).unwrap()
        );
    }
}

/// A clone of a fork, in which every commit has the id that it has upstream.
#[test]
fn a_pull_compares_commits_that_came_from_elsewhere() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        for folder in ["chunks/", "manifests/", "transactions/", "snapshots/"] {
            let family = Family::new(version);
            let newest = objects(&family.upstream).into_keys().filter(|name| name.starts_with(folder)).max().unwrap();
            // The file stays readable: another compression of the same, or other bytes of a chunk.
            let fork = family.fork(&family.upstream, &newest, |bytes| bytes.push(0));
            let copy = family.directory.path().join("copy");
            if !clone(&fork, &copy).status.success() {
                assert_ne!(folder, "chunks/");
                continue;
            }
            assert_names_both(pull(&copy, &family.upstream, &[]), &newest, &copy, &family.upstream);
            // With the place that it came from, it agrees.
            pull(&copy, &fork, &[]).success();
        }
    }
}

/// A commit of the stranger refers to a chunk by an id that the user's own commits have.
#[test]
fn a_pull_leaves_the_chunks_of_the_user_as_they_are() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        for change in CHANGES {
            let family = Family::new(version);
            add_chunks(&Reference::open(&family.mine), 11);
            let theirs = chunks(&family.upstream);
            let own = chunks(&family.mine).into_iter().find(|name| !theirs.contains(name)).unwrap();
            let fork = family.fork(&family.mine, &own, change);
            icechunkfs(["branch", fork.to_str().unwrap(), "create", "feature", "--at", "main~1"]).success();
            icechunkfs(["restore", fork.to_str().unwrap(), "a", "--from", "main", "--branch", "feature"]).success();
            let before = read_files(&family.mine);
            let pulled = pull(&family.mine, &fork, &["feature"]);
            assert!(!pulled.status.success(), "{}", pulled.all());
            assert_same(
                "after the pull",
                &objects_in(&read_files(&family.mine), &before),
                &objects_in(&before, &before),
            );
            run_on(&family.mine, &["verify", "--chunks"]).success();
        }
    }
}

/// Returns those of `files` that are in `known`.
fn objects_in(files: &crate::common::Files, known: &crate::common::Files) -> crate::common::Files {
    files
        .iter()
        .filter(|(name, _)| known.contains_key(*name))
        .map(|(name, bytes)| (name.clone(), bytes.clone()))
        .collect()
}

/// Another user made the directory, and put a chunk there.
#[test]
fn a_clone_does_not_take_what_lies_there_for_its_own() {
    if !place::needs_directory() {
        return;
    }
    for version in VERSIONS {
        for change in CHANGES {
            let family = Family::new(version);
            let object = &family.new[0];
            let copy = family.directory.path().join("copy");
            std::fs::create_dir_all(copy.join("chunks")).unwrap();
            let mut bytes = std::fs::read(family.upstream.join(object)).unwrap();
            change(&mut bytes);
            std::fs::write(copy.join(object), &bytes).unwrap();
            clone(&family.upstream, &copy).success();
            assert_eq!(std::fs::read(copy.join(object)).unwrap(), std::fs::read(family.upstream.join(object)).unwrap());
        }
    }
}

/// A clone that goes on compares what it left by the checksum of the store, which is much shorter
/// than the chunks.
#[test]
fn a_store_tells_whether_large_chunks_are_the_same() {
    if !place::needs_directory() {
        return;
    }
    let Some(server) = moto::s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let source = repository(directory.path(), SpecVersionBin::V2);
    let mut random = Random::new(1);
    let large: Vec<u8> = (0..3_000_000).map(|_| random.next() as u8).collect();
    Reference::open(&source).commit(&[("a/c/300", &large), ("a/c/301", &large[1..])], "large chunks");
    let url = moto::repository("large");
    let line = Line::to(server.port);
    moto::icechunkfs(server.port, &["clone", source.to_str().unwrap(), &url]).success();
    let copy = directory.path().join("copy");
    line.decide(|_, _| Fault::Pass);
    moto::icechunkfs(line.port, &["clone", &url, copy.to_str().unwrap()]).success();
    assert!(line.received() > 6_000_000);
    std::fs::remove_file(copy.join("repo")).unwrap();
    line.decide(|_, _| Fault::Pass);
    moto::icechunkfs(line.port, &["clone", &url, copy.to_str().unwrap()]).success();
    assert!(line.received() < 3_000_000, "{} bytes", line.received());
    // From store to store, and from here to the store.
    let second = moto::repository("second");
    let other = [format!("--other=endpoint-url=http://127.0.0.1:{}", line.port), "--other=region=us-east-1".to_owned()];
    let clone_there = || moto::icechunkfs(line.port, &["clone", &url, &second, &other[0], &other[1]]);
    clone_there().success();
    moto::remove(server.port, &format!("/{}/second/repo", moto::BUCKET));
    line.decide(|_, _| Fault::Pass);
    clone_there().success();
    // The small ones come from both.
    assert!(line.received() < 5_000_000, "{} bytes", line.received());
    moto::remove(server.port, &format!("/{}/second/repo", moto::BUCKET));
    line.decide(|_, _| Fault::Pass);
    moto::icechunkfs(line.port, &["clone", source.to_str().unwrap(), &second]).success();
    assert!(line.received() < 3_000_000, "{} bytes", line.received());
    // Other bytes of the same length are seen and fetched.
    let object = chunks(&copy).into_iter().find(|name| std::fs::read(copy.join(name)).unwrap() == large).unwrap();
    std::fs::write(copy.join(&object), [&large[1..], b"E"].concat()).unwrap();
    std::fs::remove_file(copy.join("repo")).unwrap();
    moto::icechunkfs(line.port, &["clone", &url, copy.to_str().unwrap()]).success();
    assert!(std::fs::read(copy.join(&object)).unwrap() == large);
}

/// Notes of earlier copies spare the comparison.
#[test]
fn a_push_reads_no_chunk_that_was_compared_before() {
    if !place::needs_directory() {
        return;
    }
    let family = Family::new(SpecVersionBin::V2);
    push(&family.upstream, &family.mine, &[]).success();
    let object = &family.new[0];
    std::fs::write(family.upstream.join(object), "damaged").unwrap();
    push(&family.upstream, &family.mine, &[]).success();
    add_chunks(&Reference::open(&family.upstream), 12);
    push(&family.upstream, &family.mine, &[]).success();
}
