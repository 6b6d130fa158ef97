//! Status, metadata and feature flags of a repository: the reference sees what we set, obeys it,
//! and we what it sets.

use std::path::Path;

use crate::common::lab::{create, reopen, session_on};
use crate::common::{Mount, Output, block_on, run_on};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::repo_info::{RepoAvailability, RepoStatus};
use icechunk::format::snapshot::SnapshotProperties;
use icechunkfs::error::ErrorKind;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::{RepoState, Status};
use serde_json::{Value, json};

fn config(place: &Path, words: &[&str]) -> Output {
    run_on(place, &[&["config"], words].concat())
}

async fn new_repository(version: SpecVersionBin) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    create(place.path(), version, RepositoryConfig::default()).await;
    place
}

#[tokio::test]
async fn a_read_only_repository_takes_no_changes_from_anyone() {
    let directory = new_repository(SpecVersionBin::V2).await;
    let place = directory.path();
    assert_eq!(config(place, &["status", "--json"]).json()["status"], "online");
    let (session, store) = session_on(&reopen(place).await, "main").await;
    store.set("zarr.json", r#"{"zarr_format":3,"node_type":"group"}"#.into()).await.unwrap();

    let shown = config(place, &["status", "read-only", "--reason", "moved to s3://new"]).text();
    assert!(shown.starts_with("read-only since 20"), "{shown:?}");
    let status = reopen(place).await.get_status().await.unwrap();
    assert_eq!(status.availability, RepoAvailability::ReadOnly);
    assert_eq!(status.limited_availability_reason.as_deref(), Some("moved to s3://new"));
    // Neither a session that was open, nor a new one, nor we.
    assert!(session.write().await.commit("late").execute().await.is_err());
    assert!(reopen(place).await.writable_session("main").await.is_err());
    let before = std::fs::read(place.join("repo")).unwrap();
    for words in [
        &["branch", "create", "other"][..],
        &["tag", "create", "v1"],
        &["config", "set", "inline_chunk_threshold_bytes", "7"],
        &["config", "metadata", "--set", "a=1"],
        &["config", "flags", "--off", "create_tag"],
        &["gc", "--older-than", "0s", "--yes"],
    ] {
        let refused = run_on(place, words).failure();
        assert!(refused.contains("moved to s3://new"), "{words:?}: {refused:?}");
    }
    assert_eq!(std::fs::read(place.join("repo")).unwrap(), before);
    config(place, &["metadata", "--set", "title=Ocean"]).failure();
    let mount = Mount::new(place, &["--read-only"]);
    assert!(std::fs::write(mount.path().join("new"), "x").is_err());
    let info: Value = serde_json::from_slice(&std::fs::read(mount.control("info.json")).unwrap()).unwrap();
    let expected = json!({"status": "read_only", "reason": "moved to s3://new", "metadata": {}, "flags": {}});
    assert_eq!(info["properties"], expected);
    drop(mount);

    config(place, &["status", "online"]).success();
    let status = reopen(place).await.get_status().await.unwrap();
    assert_eq!((status.availability, status.limited_availability_reason), (RepoAvailability::Online, None));
    session.write().await.commit("now").execute().await.unwrap();
    // The same again writes nothing.
    let before = std::fs::read(place.join("repo")).unwrap();
    config(place, &["status", "online"]).success();
    assert_eq!(std::fs::read(place.join("repo")).unwrap(), before);
    let operations = run_on(place, &["ops", "--json"]).json();
    let kinds: Vec<&Value> = operations.as_array().unwrap().iter().map(|one| &one["operation"]).collect();
    assert_eq!(kinds, ["new_commit", "status_changed", "status_changed", "repo_initialized"]);

    // A status that the reference sets is shown.
    let theirs = RepoStatus {
        availability: RepoAvailability::ReadOnly,
        set_at: "2026-01-02T03:04:05Z".parse().unwrap(),
        limited_availability_reason: Some("theirs".to_owned()),
    };
    reopen(place).await.set_status(&theirs).await.unwrap();
    let ours = config(place, &["status", "--json"]).json();
    assert_eq!((&ours["status"], &ours["reason"]), (&json!("read_only"), &json!("theirs")));
    assert!(ours["set_at"].as_str().unwrap().starts_with("2026-01-02T03:04:05"), "{ours}");
}

/// The reference takes an offline repository for online. A state that only newer programs know is
/// none in which to write.
#[tokio::test]
async fn a_repository_that_is_not_online_is_read_only() {
    for (availability, name) in [(2, "offline"), (9, "unknown")] {
        let directory = new_repository(SpecVersionBin::V2).await;
        let place = directory.path();
        let file = place.join("repo");
        let info = RepoInfo::decode(&std::fs::read(&file).unwrap()).unwrap();
        let mut state = RepoState::from_info(&info).unwrap();
        state.status = Status { availability, set_at: 5, reason: Some("moving".to_owned()) };
        std::fs::write(&file, state.encode().unwrap()).unwrap();
        let before = std::fs::read(&file).unwrap();
        for words in [&["branch", "create", "other"][..], &["gc", "--older-than", "0s", "--yes"]] {
            let refused = run_on(place, words).failure();
            assert!(refused.contains(&format!("is set {name}: moving")), "{refused}");
        }
        drop(Mount::new(place, &["--read-only"]));
        assert_eq!(std::fs::read(&file).unwrap(), before);
        assert_eq!(config(place, &["status", "--json"]).json()["status"], name);
        run_on(place, &["log"]).success();
        config(place, &["status", "online"]).success();
        run_on(place, &["branch", "create", "other"]).success();
    }
}

#[tokio::test]
async fn metadata_is_that_of_the_reference() {
    let directory = new_repository(SpecVersionBin::V2).await;
    let place = directory.path();
    assert_eq!(config(place, &["metadata", "--json"]).json(), json!({}));
    let nested = r#"people={"owner": ["A", 1, 2.5, null, true]}"#;
    config(place, &["metadata", "--set", "title=Ocean, daily", "--set", nested, "--set", "z=-3"]).success();
    let theirs = reopen(place).await.get_metadata().await.unwrap();
    let expected = json!({"title": "Ocean, daily", "people": {"owner": ["A", 1, 2.5, null, true]}, "z": -3});
    assert_eq!(serde_json::to_value(&theirs).unwrap(), expected);
    assert_eq!(config(place, &["metadata", "--json"]).json(), expected);

    let more: SnapshotProperties = [("b".to_owned(), json!("theirs")), ("z".to_owned(), json!(4))].into();
    reopen(place).await.update_metadata(&more).await.unwrap();
    config(place, &["metadata", "--unset", "people", "--unset", "absent"]).success();
    let expected = json!({"title": "Ocean, daily", "b": "theirs", "z": 4});
    assert_eq!(config(place, &["metadata", "--json"]).json(), expected);
    assert_eq!(serde_json::to_value(reopen(place).await.get_metadata().await.unwrap()).unwrap(), expected);
    // Nothing to change, nothing written.
    let before = std::fs::read(place.join("repo")).unwrap();
    config(place, &["metadata", "--unset", "absent", "--set", "z=4"]).success();
    assert_eq!(std::fs::read(place.join("repo")).unwrap(), before);
    config(place, &["metadata", "--set", "z=1", "--unset", "z"]).failure();
    let long = format!("{}=1", "n".repeat(5000));
    config(place, &["metadata", "--set", &long]).failure();
    assert_eq!(std::fs::read(place.join("repo")).unwrap(), before);
}

#[test]
fn concurrent_changes_of_metadata_all_take_effect() {
    let directory = block_on(new_repository(SpecVersionBin::V2));
    std::thread::scope(|scope| {
        for n in 0..8 {
            let place = directory.path();
            scope.spawn(move || config(place, &["metadata", "--set", &format!("n{n}={n}")]).success().len());
        }
    });
    let found = config(directory.path(), &["metadata", "--json"]).json();
    let expected: serde_json::Map<String, Value> = (0..8).map(|n| (format!("n{n}"), json!(n))).collect();
    assert_eq!(found, Value::Object(expected));
}

#[tokio::test]
async fn flags_hold_for_both_programs() {
    let directory = new_repository(SpecVersionBin::V2).await;
    let place = directory.path();
    let defaults = json!({"on": true, "is_set": false});
    let all = json!({"move_node": defaults, "create_tag": defaults, "delete_tag": defaults});
    assert_eq!(config(place, &["flags", "--json"]).json(), all);
    let tip = reopen(place).await.lookup_branch("main").await.unwrap();

    config(place, &["flags", "--off", "create_tag", "--on", "delete_tag"]).success();
    let shown = config(place, &["flags"]).text();
    assert_eq!(shown, "move_node on (not set)\ncreate_tag off\ndelete_tag on\n");
    assert!(reopen(place).await.create_tag("theirs", &tip).await.is_err());
    let refused = run_on(place, &["tag", "create", "ours"]).failure();
    assert!(refused.contains("flags --on create_tag"), "{refused:?}");
    let repository = reopen(place).await;
    let theirs: Vec<_> = repository.disabled_feature_flags().await.unwrap().map(|flag| flag.name()).collect();
    assert_eq!(theirs, ["create_tag"]);

    config(place, &["metadata", "--set", "title=Ocean"]).success();
    let mount = Mount::new(place, &[]);
    let info: Value = serde_json::from_slice(&std::fs::read(mount.control("info.json")).unwrap()).unwrap();
    let flags = json!({"create_tag": false, "delete_tag": true});
    let expected = json!({"status": "online", "reason": null, "metadata": {"title": "Ocean"}, "flags": flags});
    assert_eq!(info["properties"], expected);
    drop(mount);
    config(place, &["flags", "--unset", "create_tag", "--unset", "delete_tag"]).success();
    assert_eq!(config(place, &["flags", "--json"]).json(), all);
    reopen(place).await.create_tag("theirs", &tip).await.unwrap();
    reopen(place).await.set_feature_flag("delete_tag", Some(false)).await.unwrap();
    assert_eq!(config(place, &["flags", "--json"]).json()["delete_tag"], json!({"on": false, "is_set": true}));
    run_on(place, &["tag", "delete", "theirs", "--yes"]).failure();
    config(place, &["flags", "--on", "delete_tag"]).success();
    run_on(place, &["tag", "delete", "theirs", "--yes"]).success();
    config(place, &["flags", "--on", "nonsense"]).failure();
    config(place, &["flags", "--on", "move_node", "--off", "move_node"]).failure();
}

#[tokio::test]
async fn version_1_has_none_of_them() {
    let directory = new_repository(SpecVersionBin::V1).await;
    for words in
        [&["status"][..], &["status", "read-only"], &["metadata", "--set", "a=1"], &["flags", "--off", "move_node"]]
    {
        let refused = config(directory.path(), words).failure();
        assert!(refused.contains("icechunkfs migrate"), "{words:?}: {refused:?}");
    }
    let repository =
        icechunkfs::repo::Repository::open(crate::common::lab::Lab::open(directory.path()).storage).await.unwrap();
    assert_eq!(repository.properties().unwrap_err().kind(), ErrorKind::Unsupported);
}
