//! Version 1 becomes version 2: the reference's view of the result, every fixture, kills at every
//! step, and concurrent commits of old programs.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::common::lab::{self, ancestry, create, keys_at, main_branch, ref_version, reopen, set};
use crate::common::{Fixture, FixtureSet, Output, copy_tree, read_files, run_on, run_with_fault};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::failpoints;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::{Operation, RepoState};
use serde_json::Value;

fn migrate(place: &Path, words: &[&str]) -> Output {
    run_on(place, &[&["migrate"], words].concat())
}

fn state(place: &Path) -> RepoState {
    RepoState::from_info(&RepoInfo::decode(&std::fs::read(place.join("repo")).unwrap()).unwrap()).unwrap()
}

fn all_of_version_1() -> Vec<Fixture> {
    let fixtures = FixtureSet::each().flat_map(|set| set.all());
    fixtures
        .filter(|fixture| fixture.repository.join("refs").is_dir() && !fixture.repository.join("repo").exists())
        .collect()
}

/// Returns true if the reference lists the name as it is (fixtures' README); it is not asked about
/// others.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || " -_.!".contains(c))
}

#[tokio::test]
async fn the_reference_sees_the_same_after_a_migration() {
    let fixtures = all_of_version_1();
    assert!(fixtures.len() > 5);
    for fixture in fixtures {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        copy_tree(&fixture.repository, place);
        let before = read_files(place);
        let output = migrate(place, &["--dry-run", "--json"]).json();
        assert_eq!(read_files(place), before, "{}: a dry run writes nothing", fixture.name);
        let done = migrate(place, &["--json", "--yes"]).json();
        for member in ["branches", "tags", "deleted_tags", "commits", "config", "removed"] {
            assert_eq!(output[member], done[member], "{}: {member}", fixture.name);
        }
        let mut after = read_files(place);
        after.retain(|key, _| !key.contains('#'));
        let is_old = |key: &str| key.starts_with("refs/") || key == "config.yaml";
        for (key, bytes) in before.iter().filter(|(key, _)| !is_old(key)) {
            assert!(after.get(key) == Some(bytes), "{}: {key} has changed", fixture.name);
        }
        assert_eq!(after.len(), before.keys().filter(|key| !is_old(key)).count() + 1, "{}", fixture.name);

        let repository = reopen(place).await;
        for (member, listed) in
            [("branches", repository.list_branches().await.unwrap()), ("tags", repository.list_tags().await.unwrap())]
        {
            let expected: BTreeSet<String> = fixture.expected[member].as_object().unwrap().keys().cloned().collect();
            let plain = |names: &BTreeSet<String>| names.iter().filter(|n| is_plain(n)).cloned().collect::<Vec<_>>();
            assert_eq!(plain(&listed), plain(&expected), "{}: {member}", fixture.name);
        }
        for (name, expected) in fixture.expected["refs"].as_object().unwrap() {
            let (kind, name) = name.split_once('/').unwrap();
            let history = ancestry(&repository, &ref_version(kind, name)).await;
            let ids: Vec<Value> = history.iter().map(|info| Value::from(info.id.to_string())).collect();
            assert_eq!(&ids, expected["history"].as_array().unwrap(), "{}: {name}", fixture.name);
            for info in &history {
                let expected = &fixture.expected["snapshots"][info.id.to_string()];
                assert_eq!(info.message, expected["message"].as_str().unwrap(), "{}", fixture.name);
                assert_eq!(serde_json::to_value(&info.metadata).unwrap(), expected["metadata"], "{}", fixture.name);
            }
        }
        // It can continue with the repository.
        let plain = ["v1-basic", "v1-split"].contains(&fixture.name.as_str());
        if plain {
            let main = main_branch();
            let keys: BTreeSet<String> = keys_at(&repository, &main).await.into_keys().collect();
            let tip = fixture.expected["branches"]["main"].as_str().unwrap();
            let expected = fixture.expected["snapshots"][tip]["keys"].as_object().unwrap();
            assert_eq!(keys, expected.keys().cloned().collect(), "{}", fixture.name);
            set(place, &[("new/zarr.json", br#"{"zarr_format":3,"node_type":"group"}"#)], "goes on").await;
            assert!(keys_at(&reopen(place).await, &main).await.contains_key("new/zarr.json"));
        }
        let again = migrate(place, &["--yes"]).failure();
        assert!(again.contains("of version 2 already"), "{again}");
    }
}

#[test]
fn the_migrated_repo_file_matches_the_reference() {
    let mut compared = 0;
    for set in FixtureSet::each() {
        for (old, migrated) in [
            ("v1-basic", "v1-basic-migrated"),
            ("ref-test-repo-v1", "ref-test-repo-v2-migrated"),
            ("ref-split-repo-v1", "ref-split-repo-v2-migrated"),
        ] {
            if !set.expected_path(old).exists() || !set.expected_path(migrated).exists() {
                continue;
            }
            let directory = tempfile::tempdir().unwrap();
            copy_tree(&set.get(old).repository, directory.path());
            migrate(directory.path(), &["--yes"]).success();
            let ours = state(directory.path());
            let mut theirs = state(&set.get(migrated).repository);
            // Some were written by other programs than the ones that were migrated for the fixture:
            // other ids.
            if ours.branches != theirs.branches {
                continue;
            }
            compared += 1;
            // Only the time of the migration differs; and old releases invented no log.
            assert!(matches!(theirs.updates[0].operation, Operation::RepoMigrated { .. }));
            theirs.updates[0].updated_at = ours.updates[0].updated_at;
            if theirs.updates.len() > 2 {
                assert_eq!(ours.updates, theirs.updates, "{old}");
            }
            for (ours, theirs) in std::iter::zip(ours.snapshots.values(), theirs.snapshots.values()) {
                assert_eq!((ours.parent, &ours.message), (theirs.parent, &theirs.message), "{old}");
                assert_eq!((ours.flushed_at, &ours.metadata), (theirs.flushed_at, &theirs.metadata), "{old}");
            }
            assert_eq!((ours.tags, ours.deleted_tags), (theirs.tags, theirs.deleted_tags), "{old}");
            assert_eq!((ours.status, ours.metadata), (theirs.status, theirs.metadata), "{old}");
            assert_eq!(ours.snapshots.keys().collect::<Vec<_>>(), theirs.snapshots.keys().collect::<Vec<_>>(), "{old}");
        }
    }
    assert!(compared >= 1);
}

/// Creates a repository of version 1 with two branches, a tag, a deleted tag and a configuration.
async fn old_repository(place: &Path) {
    let config = RepositoryConfig { inline_chunk_threshold_bytes: Some(77), ..RepositoryConfig::default() };
    let repository = create(place, SpecVersionBin::V1, config).await;
    repository.save_config().await.unwrap();
    let group: &[u8] = br#"{"zarr_format":3,"node_type":"group"}"#;
    let first = set(place, &[("zarr.json", group)], "one").await;
    set(place, &[("a/zarr.json", group)], "two").await;
    repository.create_branch("dev", &first).await.unwrap();
    repository.create_tag("v1", &first).await.unwrap();
    repository.create_tag("gone", &first).await.unwrap();
    repository.delete_tag("gone").await.unwrap();
}

#[tokio::test]
async fn a_killed_migration_is_finished_by_the_next() {
    for step in failpoints::MIGRATION {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        old_repository(place).await;
        let killed = run_with_fault(place, &["migrate", "--yes"], &format!("{step}=abort"));
        assert!(!killed.status.success(), "{step}");
        // It can be read at all times, by every program.
        let repository = reopen(place).await;
        assert_eq!(repository.list_branches().await.unwrap(), BTreeSet::from(["dev".to_owned(), "main".to_owned()]));
        let is_done = !place.join("config.yaml").exists();
        let next = migrate(place, &["--yes"]);
        assert_eq!(next.status.success(), !is_done, "{step}: {}", next.stderr);
        assert!(!has_refs(place) && !place.join("config.yaml").exists(), "{step}");
        let repository = reopen(place).await;
        assert_eq!(repository.config().inline_chunk_threshold_bytes, Some(77), "{step}");
        assert_eq!(repository.list_tags().await.unwrap(), BTreeSet::from(["v1".to_owned()]));
        let first = repository.lookup_branch("dev").await.unwrap();
        repository.create_tag("gone", &first).await.unwrap_err();
        assert_eq!(lab::history(place).await, ["two", "one", "Repository initialized"]);
    }
}

fn has_refs(place: &Path) -> bool {
    place.join("refs").is_dir() && read_files(&place.join("refs")).keys().any(|key| key.contains("ref.json"))
}

/// Returns a repository whose migration was ended as soon as it was of version 2, and its state
/// before.
async fn interrupted() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("repo");
    let elsewhere = directory.path().join("old");
    std::fs::create_dir(&place).unwrap();
    old_repository(&place).await;
    copy_tree(&place, &elsewhere);
    let killed = run_with_fault(&place, &["migrate", "--yes"], "migrate.repo.done=abort");
    assert!(!killed.status.success());
    (directory, place, elsewhere)
}

#[tokio::test]
async fn commits_of_old_programs_during_a_migration_are_kept() {
    let (_directory, place, elsewhere) = interrupted().await;
    // A program that had the repository open as version 1 continues as before.
    let group: &[u8] = br#"{"zarr_format":3,"node_type":"group"}"#;
    set(&elsewhere, &[("b/zarr.json", group)], "three").await;
    set(&elsewhere, &[("c/zarr.json", group)], "four").await;
    copy_tree(&elsewhere, &place);
    migrate(&place, &["--yes"]).success();
    assert_eq!(lab::history(&place).await, ["four", "three", "two", "one", "Repository initialized"]);
    assert!(!has_refs(&place));
}

#[tokio::test]
async fn commits_that_do_not_follow_the_branch_are_named_and_stay() {
    let (_directory, place, elsewhere) = interrupted().await;
    let group: &[u8] = br#"{"zarr_format":3,"node_type":"group"}"#;
    set(&elsewhere, &[("b/zarr.json", group)], "by an old program").await;
    // And a newer program commits to the same branch.
    set(&place, &[("c/zarr.json", group)], "by a new one").await;
    let lost: BTreeMap<String, Vec<u8>> = read_files(&elsewhere);
    for (key, bytes) in lost.iter().filter(|(key, _)| !place.join(key).exists() || key.ends_with("main/ref.json")) {
        std::fs::write(place.join(key), bytes).unwrap();
    }
    let output = migrate(&place, &["--yes"]).failure();
    assert!(output.contains("refs/branch.main/ref.json") && output.contains("--snapshot"), "{output}");
    // The commits that it leads to are kept, and the advice can be followed.
    let refused = run_on(&place, &["gc", "--older-than", "0s", "--yes"]).failure();
    assert!(refused.contains("refs/branch.main/ref.json") && refused.contains("icechunkfs migrate"), "{refused}");
    assert!(place.join("refs/branch.main/ref.json").exists());
    assert!(!place.join("refs/branch.dev/ref.json").exists());
    assert_eq!(lab::history(&place).await[0], "by a new one");
    let old = lost["refs/branch.main/ref.json"].clone();
    let id = serde_json::from_slice::<Value>(&old).unwrap()["snapshot"].as_str().unwrap().to_owned();
    assert!(output.contains(&format!("create 'main-v1' --at {id}`")), "{output}");
    run_on(&place, &["branch", "create", "main-v1", "--at", &id]).success();
    migrate(&place, &["--yes"]).success();
    assert!(!has_refs(&place));
    assert_eq!(lab::history(&place).await[0], "by a new one");
    run_on(&place, &["gc", "--older-than", "0s", "--yes"]).success();
    let kept = ancestry(&reopen(&place).await, &ref_version("branch", "main-v1")).await;
    assert_eq!(kept[0].message, "by an old program");
    run_on(&place, &["verify", "--chunks"]).success();
}

#[tokio::test]
async fn refs_that_old_programs_make_during_a_migration_are_kept() {
    let (_directory, place, elsewhere) = interrupted().await;
    let old = reopen(&elsewhere).await;
    let history = ancestry(&old, &main_branch()).await;
    let tip = &history[0].id;
    let first = &history[1].id;
    old.create_tag("known", first).await.unwrap();
    old.create_branch("known", first).await.unwrap();
    old.reset_branch("dev", tip, None).await.unwrap();
    old.create_branch("work", first).await.unwrap();
    let (session, store) = lab::session_on(&old, "work").await;
    let group = br#"{"zarr_format":3,"node_type":"group"}"#;
    store.set("w/zarr.json", bytes::Bytes::from_static(group)).await.unwrap();
    let work = session.write().await.commit("on a new branch").execute().await.unwrap();
    old.create_tag("of-work", &work).await.unwrap();
    copy_tree(&elsewhere, &place);
    let refused = run_on(&place, &["gc", "--older-than", "0s", "--yes"]).failure();
    assert!(refused.contains("work/ref.json"), "{refused}");
    let done = migrate(&place, &["--yes", "--json"]).json();
    assert_eq!(done["left"], serde_json::json!([]));
    assert!(!has_refs(&place));
    run_on(&place, &["gc", "--older-than", "0s", "--yes"]).success();
    let new = reopen(&place).await;
    let branches = ["dev", "known", "main", "work"].map(str::to_owned);
    assert_eq!(new.list_branches().await.unwrap(), BTreeSet::from(branches));
    assert_eq!(new.list_tags().await.unwrap(), BTreeSet::from(["known", "of-work", "v1"].map(str::to_owned)));
    for (name, target) in [("dev", tip), ("known", first), ("main", tip), ("work", &work)] {
        assert_eq!(&new.lookup_branch(name).await.unwrap(), target, "{name}");
    }
    for (name, target) in [("known", first), ("of-work", &work)] {
        assert_eq!(&new.lookup_tag(name).await.unwrap(), target, "{name}");
    }
    run_on(&place, &["verify", "--chunks"]).success();
}

#[tokio::test]
async fn refs_that_version_2_has_moved_or_deleted_stay_so() {
    let (_directory, place, _) = interrupted().await;
    run_on(&place, &["branch", "reset", "main", "--to", "main~1", "--yes"]).success();
    run_on(&place, &["branch", "delete", "dev", "--yes"]).success();
    run_on(&place, &["tag", "delete", "v1", "--yes"]).success();
    run_on(&place, &["gc", "--older-than", "0s", "--yes"]).success();
    migrate(&place, &["--yes"]).success();
    assert!(!has_refs(&place));
    let new = reopen(&place).await;
    assert_eq!(new.list_branches().await.unwrap(), BTreeSet::from(["main".to_owned()]));
    assert_eq!(new.list_tags().await.unwrap(), BTreeSet::new());
    assert_eq!(lab::history(&place).await, ["one", "Repository initialized"]);
}

#[tokio::test]
async fn a_damaged_ref_ends_a_migration_before_anything_is_written() {
    for damaged in ["refs/branch.dev/ref.json", "refs/tag.v1/ref.json"] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("repo");
        let new = directory.path().join("new");
        std::fs::create_dir(&place).unwrap();
        old_repository(&place).await;
        let file = std::fs::read(place.join(damaged)).unwrap();
        std::fs::write(place.join(damaged), "").unwrap();
        let before = read_files(&place);
        for words in [&["--yes"][..], &["--dry-run"], &["--yes", "--to", new.to_str().unwrap()]] {
            let said = migrate(&place, words).failure();
            assert!(said.contains(damaged) && said.contains("put the file back"), "{words:?}: {said}");
        }
        let said = run_on(&place, &["expire", "--older-than", "0s", "--yes"]).failure();
        assert!(said.contains(damaged), "{said}");
        assert_eq!(read_files(&place), before);
        assert!(!new.exists() || read_files(&new).is_empty());
        // Neither does one that is damaged when the migration is killed.
        std::fs::write(place.join(damaged), &file).unwrap();
        assert!(!run_with_fault(&place, &["migrate", "--yes"], "migrate.repo.done=abort").status.success());
        std::fs::write(place.join(damaged), "").unwrap();
        let said = migrate(&place, &["--yes"]).failure();
        assert!(said.contains(damaged), "{said}");
        let said = run_on(&place, &["gc", "--older-than", "0s", "--yes"]).failure();
        assert!(said.contains(damaged), "{said}");
        std::fs::write(place.join(damaged), &file).unwrap();
        migrate(&place, &["--yes"]).success();
        assert!(!has_refs(&place));
    }
}
