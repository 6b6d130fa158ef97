//! Commits that fail or are killed: they have no visible effect, and the same changes can be
//! committed again.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::failing::{Faulty, When};
use crate::common::lab::{Lab, Model, create, history, reference_keys, request_with};
use crate::common::users::{by_nobody, set_mode};
use crate::common::{block_on, fsck, is_root};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::ChangeSet;
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions};
use icechunkfs::error::{Error, ErrorKind};
use icechunkfs::failpoints;
use icechunkfs::storage::{self, Storage};

fn start() -> Model {
    let mut model = Model::default();
    model.group("/");
    model.array("/a", &[10]);
    model.array("/b", &[10]);
    (0..5).for_each(|n| model.chunk("/a", &[n], format!("{n}").repeat(600)));
    model
}

/// Makes changes of every kind: inline, packed and large chunks, new and deleted nodes.
fn change(model: &mut Model) {
    model.chunk("/a", &[0], "inline");
    model.chunk("/a", &[1], vec![1; 5000]);
    model.chunk("/a", &[2], vec![2; 300_000]);
    model.group("/new");
    model.delete("/b");
}

async fn prepare(place: &Path, version: SpecVersionBin) -> Model {
    create(place, version, RepositoryConfig::default()).await;
    let model = start();
    Lab::open(place).commit_first(&model).await;
    model
}

/// Every storage operation fails in turn, in each way.
#[tokio::test]
async fn a_commit_may_fail_at_any_storage_operation() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        for when in [When::Before(ErrorKind::Io), When::Before(ErrorKind::NoSpace), When::After] {
            for for_good in [false, true] {
                let mut failures = 0;
                for operation in 1.. {
                    let place = tempfile::tempdir().unwrap();
                    let model = prepare(place.path(), version).await;
                    let mut changed = model.clone();
                    change(&mut changed);
                    let whole = Lab::open(place.path());
                    let base = whole.tip().await;
                    let changes = changed.changes_since(&model, &whole.scratch);
                    let inner = storage::open_directory(place.path()).unwrap();
                    let faulty = Arc::new(Faulty::new(inner, operation, when, for_good));
                    let lab = Lab::over(Arc::clone(&faulty) as Arc<dyn Storage>, EngineOptions::default());
                    let outcome = lab.commit(&base, &changes).await;
                    let what = format!("{version:?}, {when:?}, for good: {for_good}, operation {operation}");
                    let is_visible = history(place.path()).await.len() == 3;
                    match &outcome {
                        Ok(CommitOutcome::Committed { .. }) => assert!(is_visible, "{what}"),
                        Ok(other) => panic!("{what}: {other:?}"),
                        Err(error) => {
                            failures += 1;
                            let text = error.to_string();
                            let unsure = text.contains("is not known");
                            assert!(text.contains("made to fail") || text.contains("is lost"), "{what}: {text}");
                            assert!(!is_visible || unsure, "{what}: {text}");
                        }
                    }
                    if is_visible {
                        assert_eq!(reference_keys(place.path()).await, changed.keys(), "{what}");
                    } else {
                        assert_eq!(reference_keys(place.path()).await, model.keys(), "{what}");
                        let again = whole.commit(&base, &changes).await.unwrap();
                        assert!(matches!(again, CommitOutcome::Committed { .. }), "{what}: {again:?}");
                        assert_eq!(reference_keys(place.path()).await, changed.keys(), "{what}");
                    }
                    fsck::check(place.path(), version);
                    // The commit ended before the operation that was to fail.
                    if outcome.is_ok() && faulty.left.load(Ordering::Relaxed) > u64::from(for_good) {
                        break;
                    }
                }
                // The look for waiting writers, which comes in any order with others, may fail
                // without harm.
                assert!(failures > 6, "{failures}");
            }
        }
    }
}

const REPOSITORY: &str = "ICECHUNKFS_TEST_REPOSITORY";

#[tokio::test]
#[ignore = "no test by itself: the next one runs it in a separate process"]
async fn commit_in_a_separate_process() {
    let place = std::env::var_os(REPOSITORY).expect("the repository");
    let place = Path::new(&place);
    let lab = Lab::open(place);
    let base = lab.tip().await;
    let mut model = start();
    model.take_ids(&base);
    let mut changed = model.clone();
    change(&mut changed);
    let changes: ChangeSet = changed.changes_since(&model, &lab.scratch);
    let written = place.with_extension("published");
    let about = move |id: icechunkfs::format::ids::ObjectId| {
        std::fs::write(&written, id.to_string()).map_err(|e| Error::io("writing it down", e))
    };
    match lab.commit_as(&base, &changes, request_with("a commit", about)).await {
        Ok(outcome) => println!("outcome: {outcome:?}"),
        Err(error) => println!("failed: {error}"),
    }
}

/// Kills a commit, or makes it fail, at every fail point.
#[tokio::test]
async fn a_commit_killed_at_any_fail_point_is_complete_or_absent() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        for (point, action) in
            failpoints::COMMIT.iter().flat_map(|point| [(point, "abort"), (point, "eio"), (point, "enospc")])
        {
            let directory = tempfile::tempdir().unwrap();
            let place = directory.path().join("repo");
            std::fs::create_dir(&place).unwrap();
            let model = prepare(&place, version).await;
            let mut changed = model.clone();
            change(&mut changed);
            let fault = format!("{point}={action}");
            let run = Command::new(std::env::current_exe().unwrap())
                .args(["commit_faults::commit_in_a_separate_process", "--exact", "--ignored", "--nocapture"])
                .env(REPOSITORY, &place)
                .env("ICECHUNKFS_FAULT", &fault)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&run.stdout).into_owned();
            let passed = *point == "commit.backup.done" && version == SpecVersionBin::V1;
            let published = passed || *point == "commit.publish.done";
            match action {
                _ if passed => assert!(said.contains("outcome: Committed"), "{fault}: {said}"),
                "abort" => assert!(!run.status.success(), "{fault}: {said}"),
                // After publication an error is no failure any more.
                _ if published => assert!(said.contains("outcome: Committed"), "{fault}: {said}"),
                "enospc" => assert!(said.contains("is full: nothing was committed"), "{fault}: {said}"),
                _ => assert!(said.contains("failed: ") && said.contains(point), "{fault}: {said}"),
            }
            let history = history(&place).await;
            assert_eq!(history.len(), if published { 3 } else { 2 }, "{fault}");
            if let Ok(id) = std::fs::read_to_string(place.with_extension("published")) {
                let tip = Lab::open(&place).tip().await.id().to_string();
                assert_eq!(id == tip, published, "{fault}: what was written down tells");
            } else {
                assert!(!published, "{fault}");
            }
            if !published {
                assert_eq!(reference_keys(&place).await, model.keys(), "{fault}");
                let lab = Lab::open(&place);
                let mut base = model.clone();
                base.take_ids(&*lab.tip().await);
                let mut changed = base.clone();
                change(&mut changed);
                lab.commit_model(&base, &changed).await;
            }
            assert_eq!(reference_keys(&place).await, changed.keys(), "{fault}");
            if action == "abort" {
                fsck::remove_staging_files(&place);
            }
            fsck::check(&place, version);
        }
    }
}

/// A failed commit may have linked a scratch file already. A repeated one links it again; stored
/// objects stay unchanged.
#[tokio::test]
async fn objects_of_a_failed_commit_do_not_block_the_next() {
    let place = tempfile::tempdir().unwrap();
    let model = prepare(place.path(), SpecVersionBin::V2).await;
    let mut changed = model.clone();
    changed.chunk("/a", &[3], vec![3; 1 << 20]);
    let whole = Lab::open(place.path());
    let base = whole.tip().await;
    let changes = changed.changes_since(&model, &whole.scratch);
    for operation in [4, 5, 6, 7] {
        let inner = storage::open_directory(place.path()).unwrap();
        let when = When::Before(ErrorKind::NoSpace);
        let faulty = Faulty::new(inner, operation, when, true);
        let lab = Lab::over(Arc::new(faulty), EngineOptions::default());
        assert_eq!(lab.commit(&base, &changes).await.unwrap_err().kind(), ErrorKind::NoSpace);
    }
    whole.commit(&base, &changes).await.unwrap();
    assert_eq!(reference_keys(place.path()).await, changed.keys());
}

/// Every object that `repo` refers to, and its copy, has been flushed before `repo` is replaced,
/// and nothing is stored after.
#[tokio::test]
async fn every_object_is_durable_before_publication() {
    let place = tempfile::tempdir().unwrap();
    let model = prepare(place.path(), SpecVersionBin::V2).await;
    let mut changed = model.clone();
    change(&mut changed);
    let inner = storage::open_directory(place.path()).unwrap();
    let recorder = Arc::new(Faulty::new(inner, 0, When::After, false));
    let lab = Lab::over(Arc::clone(&recorder) as Arc<dyn Storage>, EngineOptions::default());
    let base = lab.tip().await;
    let changes = changed.changes_since(&model, &lab.scratch);
    recorder.log.lock().unwrap().clear();
    lab.commit(&base, &changes).await.unwrap();
    let log = recorder.log.lock().unwrap().clone();
    let writes: Vec<&str> = log
        .iter()
        .filter_map(|what| what.strip_prefix("new ").or(what.strip_prefix("put ")).or(what.strip_prefix("sync ")))
        .collect();
    let kinds: Vec<&str> = writes.iter().map(|key| key.split('/').next().unwrap()).collect();
    let flushed = r#"["chunks", "manifests", "transactions", "snapshots"]"#;
    let expected = ["chunks", "chunks", "manifests", "transactions", "snapshots", "overwritten", flushed, "repo"];
    assert_eq!(kinds, expected);
}

/// A directory without write permission: an error that names the reason, and later the same commit.
#[test]
fn a_commit_to_an_unwritable_repository_fails_and_can_be_repeated() {
    let test = || {
        block_on(async {
            let place = tempfile::tempdir().unwrap();
            let model = prepare(place.path(), SpecVersionBin::V2).await;
            let mut changed = model.clone();
            change(&mut changed);
            let lab = Lab::open(place.path());
            let base = lab.tip().await;
            let changes = changed.changes_since(&model, &lab.scratch);
            let chunks = place.path().join("chunks");
            set_mode(&chunks, 0o555);
            assert_eq!(lab.commit(&base, &changes).await.unwrap_err().kind(), ErrorKind::PermissionDenied);
            set_mode(&chunks, 0o755);
            lab.commit(&base, &changes).await.unwrap();
            assert_eq!(reference_keys(place.path()).await, changed.keys());
        });
    };
    // Nothing is forbidden to root.
    if is_root() { by_nobody(test) } else { test() }
}
