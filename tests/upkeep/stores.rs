//! Upkeep of repositories in an object store: with a cache of what was there before, and with a
//! wrong clock.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::moto::{self, BUCKET};
use crate::common::writing::{GROUP, Reference, array};
use crate::common::{Output, block_on, lab, read_files, run_on};
use crate::life::world::nothing_uncommitted;
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::repo::Repository;
use icechunkfs::repo::collect::{self, GcOptions};
use icechunkfs::repo::expire::{self, ExpireOptions};
use icechunkfs::storage::{self, settings::Settings};
use icechunkfs::times::{Clock, system_clock};

const HOUR: u64 = 3_600_000_000;

/// Creates a repository of version 1 with an array, whose chunks change with each of `commits`.
fn old_repository(place: &Path, commits: usize) {
    block_on(lab::create(place, SpecVersionBin::V1, RepositoryConfig::default()));
    let reference = Reference::open(place);
    let document = array(&[400], &[1]);
    reference.commit(&[("zarr.json", GROUP.as_bytes()), ("a/zarr.json", document.as_bytes())], "arrays");
    for n in 0..commits {
        reference.commit(&[("a/c/0", &[n as u8; 40_000]), (&format!("a/c/{}", n + 1), &[7; 3000])], &format!("{n}"));
    }
}

/// Runs the program with a cache.
fn cached(port: u16, cache: &Path, words: &[&str]) -> Output {
    moto::icechunkfs(port, &[words, &["--cache", cache.to_str().unwrap()]].concat())
}

#[test]
fn a_collection_reads_no_files_from_a_cache() {
    let Some(server) = moto::s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let (old, new, cache) =
        (directory.path().join("old"), directory.path().join("new"), directory.path().join("cache"));
    old_repository(&old, 2);
    let repo = moto::upload(server.port, &old, "moved");
    // The cache has the snapshots, whose ids stay; those of the new repository have other
    // manifests.
    cached(server.port, &cache, &["migrate", &repo, "--to", new.to_str().unwrap(), "--yes"]).success();
    for key in read_files(&old).into_keys() {
        moto::remove(server.port, &format!("/{BUCKET}/moved/{key}"));
    }
    moto::icechunkfs(server.port, &["clone", new.to_str().unwrap(), &repo]).success();
    // The store gives times in whole seconds: from then on the objects are older than a second.
    std::thread::sleep(Duration::from_millis(2100));
    let collected = cached(server.port, &cache, &["gc", &repo, "--older-than", "1s", "--yes", "--json"]).json();
    assert_eq!(collected["total"]["objects"], 0, "{collected}");
    moto::icechunkfs(server.port, &["verify", &repo, "--chunks"]).success();
}

#[test]
fn a_cache_from_before_an_expiration_brings_no_commit_back() {
    let Some(server) = moto::s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    let cache = directory.path().join("cache");
    old_repository(&old, 5);
    let repo = moto::upload(server.port, &old, "expired");
    let log = cached(server.port, &cache, &["log", &repo, "--json"]).json();
    assert_eq!(log.as_array().unwrap().len(), 7);
    for commit in log.as_array().unwrap() {
        cached(server.port, &cache, &["ls", &repo, "--snapshot", commit["id"].as_str().unwrap()]).success();
    }
    // Another machine expires commits and collects their files.
    let time = log[2]["written_at"].as_str().unwrap();
    moto::icechunkfs(server.port, &["expire", &repo, "--older-than", time, "--yes"]).success();
    // The store gives times in whole seconds: from then on the files are older than the collection.
    std::thread::sleep(Duration::from_millis(1100));
    moto::icechunkfs(server.port, &["gc", &repo, "--older-than", "0s", "--yes"]).success();

    let ids = |log: &serde_json::Value| -> Vec<String> {
        log.as_array().unwrap().iter().map(|commit| commit["id"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ids(&moto::icechunkfs(server.port, &["log", &repo, "--json"]).json());
    assert!(expected.len() < 7);
    assert_eq!(ids(&cached(server.port, &cache, &["log", &repo, "--json"]).json()), expected);
    let copy = directory.path().join("copy");
    let new = directory.path().join("new");
    cached(server.port, &cache, &["clone", &repo, copy.to_str().unwrap()]).success();
    cached(server.port, &cache, &["migrate", &repo, "--to", new.to_str().unwrap(), "--yes"]).success();
    cached(server.port, &cache, &["migrate", &repo, "--yes"]).success();
    for place in [&copy, &new] {
        run_on(place, &["verify", "--chunks"]).success();
        assert_eq!(ids(&run_on(place, &["log", "--json"]).json()), expected);
    }
    moto::icechunkfs(server.port, &["verify", &repo, "--chunks"]).success();
    assert_eq!(ids(&moto::icechunkfs(server.port, &["log", &repo, "--json"]).json()), expected);
}

#[test]
fn in_version_1_a_wrong_clock_collects_and_expires_nothing() {
    let Some(server) = moto::s3() else { return };
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("old");
    old_repository(&old, 3);
    // A chunk that a session of another program has stored and not committed yet.
    let chunk = "chunks/000000000000000000A0";
    std::fs::write(old.join(chunk), "not committed").unwrap();
    let repo = moto::upload(server.port, &old, "clocks");
    let mut settings = Settings {
        endpoint_url: Some(format!("http://127.0.0.1:{}", server.port)),
        region: Some("us-east-1".parse().unwrap()),
        access_key_id: Some("tester".to_owned()),
        ..Settings::default()
    };
    settings.secrets.secret_access_key = Some(moto::SECRET.to_owned());
    let open = async || {
        let storage = storage::open(&repo, &settings).await.unwrap();
        Repository::open(Arc::clone(&storage)).await.unwrap()
    };
    let keys = async || -> BTreeSet<String> {
        open().await.storage().list("").await.unwrap().into_iter().map(|object| object.key).collect()
    };
    let run = async |clock: Clock, dry_run| -> (Result<expire::Expired>, Result<collect::Collected>) {
        let older_than = clock() - 12 * HOUR;
        let options = ExpireOptions { older_than, delete_tags: false, delete_branches: false, dry_run };
        let repository = open().await;
        let expired = expire::expire(&repository, options, clock).await;
        let options = GcOptions { older_than, dry_run };
        (expired, collect::collect(&repository, options, clock, &nothing_uncommitted(), &Default::default()).await)
    };
    block_on(async {
        let before = keys().await;
        let (expired, collected) = run(|| system_clock() + 24 * HOUR, false).await;
        for error in [expired.unwrap_err(), collected.unwrap_err()] {
            let said = error.to_string();
            assert!(error.kind() == ErrorKind::Io && said.contains("clock is 24 h ahead of the storage's"), "{said}");
        }
        assert_eq!(keys().await, before);
        let (expired, collected) = run(system_clock, false).await;
        assert!(expired.unwrap().is_empty() && collected.unwrap().total().objects == 0);
        assert!(keys().await.contains(chunk));
    });
}
