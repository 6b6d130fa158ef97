//! `icechunkfs stats` against the fixtures' records, the reference's counts, and the files on the
//! disk.

use std::collections::BTreeMap;
use std::fs;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

use crate::common::random::Random;
use crate::common::writing::{Reference, array};
use crate::common::{Files, Fixture, FixtureSet, block_on, lab, read_files};
use crate::transfer::trees::{command, json, one_array, random, repository, write};
use icechunk::ops::stats::{ChunkStorageStats, repo_chunks_storage};
use icechunkfs::repo::progress::Progress;
use icechunkfs::stats::{self, MemoryBounds};
use serde_json::Value;

/// Returns the reference's counts.
fn by_reference(repo: &Path) -> ChunkStorageStats {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let repository = lab::reopen(repo).await;
        let one = NonZeroU16::new(4).unwrap();
        let much = NonZeroUsize::new(1 << 26).unwrap();
        repo_chunks_storage(Arc::clone(repository.asset_manager()), one, much, much, one).await.unwrap()
    })
}

/// Returns bytes and number of the files below a folder.
fn on_disk(repo: &Path, folder: &str) -> (u64, u64) {
    let folder = repo.join(folder);
    let files = if folder.exists() { read_files(&folder) } else { Files::new() };
    (files.len() as u64, files.values().map(|bytes| bytes.len() as u64).sum())
}

fn size(value: &Value) -> (u64, u64) {
    (value["objects"].as_u64().unwrap(), value["bytes"].as_u64().unwrap())
}

fn plus(one: (u64, u64), other: (u64, u64)) -> (u64, u64) {
    (one.0 + other.0, one.1 + other.1)
}

/// Checks rules that hold for every repository.
fn check_sums(repo: &Path, stats: &Value) {
    for kind in ["chunks", "manifests", "snapshots", "transactions"] {
        let [stored, used, unused] = ["stored", "reachable", "unreachable"].map(|part| size(&stats[part][kind]));
        assert_eq!(stored, on_disk(repo, kind), "{kind}");
        assert_eq!(stored, plus(used, unused), "{kind}");
    }
    let alone = stats["refs"].as_array().unwrap().iter().map(|one| size(&one["only_here"])).fold((0, 0), plus);
    let used = ["chunks", "manifests", "snapshots", "transactions"].map(|kind| size(&stats["reachable"][kind]));
    assert_eq!(plus(alone, size(&stats["shared"])), used.into_iter().fold((0, 0), plus), "of one ref, or of several");
}

fn check(fixture: &Fixture) {
    let repo = &fixture.repository;
    let branches = fixture.expected["branches"].as_object().unwrap();
    let main = branches["main"].as_str().unwrap();
    let stats = json(&[&"stats", repo]);
    let name = &fixture.name;
    check_sums(repo, &stats);
    assert_eq!(stats["snapshot"], main, "{name}");
    let snapshot = &fixture.expected["snapshots"][main];
    let shown: BTreeMap<&str, u64> = stats["arrays"]
        .as_array()
        .unwrap()
        .iter()
        .map(|array| (array["path"].as_str().unwrap(), array["chunks"].as_u64().unwrap()))
        .collect();
    if let Some(counts) = snapshot["chunk_counts"].as_object() {
        for (path, count) in counts {
            let path = format!("/{}", path.trim_matches('/'));
            // The reference counts duplicates twice, and chunks outside the grid.
            let listed_oddly = snapshot.get("keys_listed_twice").is_some() || name.contains("by-0.2.18");
            assert!(
                listed_oddly || shown.get(path.as_str()) == count.as_u64().as_ref(),
                "{name}: {path}: {count} {shown:?}"
            );
        }
    }
    let refs = stats["refs"].as_array().unwrap();
    let tags = fixture.expected["tags"].as_object().unwrap();
    // The reference does not list all of them there.
    assert!(name.ends_with("v1-refnames") || refs.len() == branches.len() + tags.len(), "{name}");
    for one in refs {
        let kind = one["kind"].as_str().unwrap();
        let named = one["name"].as_str().unwrap();
        let history = &fixture.expected["refs"][format!("{kind}/{named}")]["history"];
        if let Some(history) = history.as_array() {
            assert_eq!(one["commits"].as_u64().unwrap() as usize, history.len(), "{name}: {kind} {named}");
        }
    }
    for kind in ["chunks", "manifests", "snapshots", "transactions"] {
        assert_eq!(stats["missing"][kind]["objects"], 0, "{name}: {kind}");
    }
    assert_eq!(stats["spec_version"], if repo.join("repo").exists() { 2 } else { 1 }, "{name}");
}

#[test]
fn stats_match_the_manifests_and_the_stored_objects() {
    for fixture in FixtureSet::each().flat_map(|set| set.all()) {
        check(&fixture);
    }
}

#[test]
fn stats_match_the_reference() {
    let mut virtuals = 0;
    for fixture in FixtureSet::each().flat_map(|set| set.all()).filter(|fixture| !fixture.name.starts_with("ref-")) {
        // The reference does not find the branches that it lists there.
        if fixture.name.ends_with("v1-refnames") {
            continue;
        }
        let theirs = by_reference(&fixture.repository);
        let ours = json(&[&"stats", &fixture.repository])["chunks"].clone();
        let number = |name: &str| ours[name].as_u64().unwrap();
        let counted = ChunkStorageStats::new(number("native_bytes"), number("virtual_bytes"), number("inline_bytes"));
        assert_eq!(counted, theirs, "{}", fixture.name);
        virtuals += theirs.virtual_bytes;
    }
    assert!(virtuals > 0);
}

#[test]
fn stats_distinguish_shared_exclusive_and_dead_bytes() {
    let place = tempfile::tempdir().unwrap();
    let mut numbers = Random::new(8);
    let mut files = one_array((0..4).map(|_| numbers.bytes(1000)));
    files.insert("b/zarr.json".to_owned(), array(&[4], &[1]).into());
    (0..4).for_each(|at| drop(files.insert(format!("b/c/{at}"), numbers.bytes(300_000))));
    let repo = repository(place.path(), &files);
    let first = json(&[&"stats", &repo]);
    check_sums(&repo, &first);
    assert_eq!(size(&first["shared"]), (0, 0));
    assert_eq!(size(&first["reachable"]["chunks"]), (5, 4 * 301_000));
    assert_eq!((first["dead_bytes"].as_u64(), first["chunks"]["native"].as_u64()), (Some(0), Some(8)));

    // A branch with its own chunk, and half of the pack replaced on it.
    Reference::open(&repo).create_branch("side");
    let mut more = one_array((0..4).map(|_| numbers.bytes(1000)));
    more.retain(|name, _| !["a/c/2", "a/c/3"].contains(&name.as_str()));
    let source = place.path().join("more");
    write(&source, &more);
    command(&[&"import", &source, &repo, &"--branch", &"side"]).success();
    let second = json(&[&"stats", &repo, &"side"]);
    check_sums(&repo, &second);
    let refs = second["refs"].as_array().unwrap();
    let alone = |name: &str| size(&refs.iter().find(|one| one["name"] == name).unwrap()["only_here"]);
    assert_eq!(alone("main"), (0, 0));
    // A pack, a manifest, a snapshot and a log.
    assert_eq!(alone("side").0, 4);
    assert!(alone("side").1 > 2000 && alone("side").1 < 20_000);
    assert_eq!(second["dead_bytes"], 0);

    // Without `main`'s state half of a pack is dead; without the branch all of it is garbage.
    let reference = Reference::open(&repo);
    let first_of_all = reference.history().last().unwrap().0.clone();
    drop(reference);
    let reset = |branch: &'static str, to: String| {
        block_on(async {
            let repository = lab::reopen(&repo).await;
            repository.reset_branch(branch, &to.as_str().try_into().unwrap(), None).await.unwrap();
        });
    };
    reset("main", first_of_all.clone());
    let third = json(&[&"stats", &repo, &"side"]);
    check_sums(&repo, &third);
    assert_eq!(size(&third["unreachable"]["chunks"]), (0, 0), "the branch's history has all of it");
    reset("side", first_of_all);
    let fourth = json(&[&"stats", &repo]);
    check_sums(&repo, &fourth);
    assert_eq!(size(&fourth["unreachable"]["chunks"]).0, 6);
    assert_eq!(fourth["reachable"]["chunks"]["objects"], 0);

    // Text output has no progress bars without a terminal.
    let said = command(&[&"stats", &repo]).text();
    assert!(said.contains("no ref leads to") && said.contains("branch side") && !said.contains('█'), "{said}");
}

#[test]
fn stats_report_dead_bytes_of_packs_and_missing_objects() {
    let place = tempfile::tempdir().unwrap();
    let mut numbers = Random::new(9);
    let mut files = one_array((0..4).map(|_| numbers.bytes(1000)));
    let repo = repository(place.path(), &files);
    let keep = json(&[&"log", &repo])[0]["id"].as_str().unwrap().to_owned();
    files.insert("a/c/3".to_owned(), numbers.bytes(1000));
    write(&place.path().join("source"), &files);
    command(&[&"import", &place.path().join("source"), &repo]).success();
    // The commit that had all four is removed: one of them is in a pack that the other three keep.
    let pack = fs::read_dir(repo.join("chunks")).unwrap().count();
    assert_eq!(pack, 2);
    block_on(lab::expire_before(&repo, 0));
    let stats = json(&[&"stats", &repo]);
    check_sums(&repo, &stats);
    assert_eq!((stats["dead_bytes"].as_u64(), stats["dead_in"].as_u64()), (Some(1000), Some(1)), "{keep}: {stats}");
    // A missing object is reported, and the rest is counted.
    let chunk = fs::read_dir(repo.join("chunks")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(chunk).unwrap();
    let stats = json(&[&"stats", &repo]);
    assert_eq!(stats["missing"]["chunks"]["objects"], 1);
}

#[test]
fn stats_are_exact_under_a_small_memory_bound() {
    let place = tempfile::tempdir().unwrap();
    let mut files = random(&mut Random::new(12));
    // More distinct chunks than the least list holds.
    files.insert("many/zarr.json".into(), array(&[6000], &[1]).into());
    for at in 0..6000_u32 {
        files.insert(format!("many/c/{at}"), at.to_be_bytes().repeat(200));
    }
    let repo = repository(place.path(), &files);
    let source = place.path().join("source");
    // Each is a separate object.
    command(&[&"import", &source, &repo, &"-W", &"--pack-below", &"1", &"-m", &"again"]).success();
    let much = json(&[&"stats", &repo]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let little = runtime.block_on(async {
        use icechunkfs::repo::refs::RefSpec;
        let storage = icechunkfs::storage::open_directory(&repo).unwrap();
        let repository = icechunkfs::repo::Repository::open(storage).await.unwrap();
        let limits = icechunkfs::library::open::MemoryLimits::default();
        let tree = icechunkfs::library::open::tree(&repository, &RefSpec::default(), limits).await.unwrap();
        let bounds = MemoryBounds { chunks: 300 << 10, manifests: 64 << 20 };
        let progress = Progress::default();
        let stats = stats::collect(&repository, &tree, bounds, 4, &progress).await.unwrap();
        // Two manifests, several times.
        assert!(progress.files().0 > 10, "{:?}", progress.files());
        serde_json::to_value(stats).unwrap()
    });
    assert_eq!(much, little);
    check_sums(&repo, &much);
    assert!(much["reachable"]["chunks"]["objects"].as_u64().unwrap() > 6000);
}
