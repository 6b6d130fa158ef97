//! Branches, tags and settings, changed over a storage of which each operation fails in turn: the
//! reported outcome is the real one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::failing::{Faulty, When};
use crate::common::faulty::{Fault, Line};
use crate::common::lab::{self, create, reopen, set};
use crate::common::{self, moto, project};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::format::config_edit;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::repo::Repository;
use icechunkfs::repo::change_refs::RefKind::{Branch, Tag};
use icechunkfs::storage;
use icechunkfs::times::system_clock;

/// Changes to test.
const ACTIONS: [&str; 6] =
    ["make a branch", "make a tag", "delete a branch", "delete a tag", "reset a branch", "set something"];

async fn act(action: &str, repository: &Repository, tip: ObjectId) -> Result<()> {
    match action {
        "make a branch" => repository.create_ref(Branch, "new", tip, system_clock).await,
        "make a tag" => repository.create_ref(Tag, "new", tip, system_clock).await,
        "delete a branch" => repository.delete_ref(Branch, "old", tip, system_clock).await,
        "delete a tag" => repository.delete_ref(Tag, "old", tip, system_clock).await,
        "reset a branch" => repository.reset_branch("old", ObjectId::INITIAL, tip, system_clock).await,
        _ => {
            let change = |stored: &icechunkfs::format::config::RepoConfig| {
                config_edit::set(stored.members(), "compression.level", "5")
            };
            repository.change_config(system_clock, change).await.map(drop)
        }
    }
}

/// Reads all state that an action can change.
async fn state(place: &Path) -> String {
    let repository = Repository::open(storage::open_directory(place).unwrap()).await.unwrap();
    let refs = repository.refs().await.unwrap();
    let config = repository.config().await.unwrap();
    format!("{refs:?} {:?} {config:?}", repository.deleted_tags().await.unwrap())
}

async fn prepare(place: &Path, version: SpecVersionBin) -> ObjectId {
    create(place, version, RepositoryConfig::default()).await;
    set(place, &[("zarr.json", lab::GROUP.as_bytes())], "a commit").await;
    let repository = Repository::open(storage::open_directory(place).unwrap()).await.unwrap();
    let tip = repository.branch_tip("main").await.unwrap().unwrap();
    repository.create_ref(Branch, "old", tip, system_clock).await.unwrap();
    repository.create_ref(Tag, "old", tip, system_clock).await.unwrap();
    tip
}

#[tokio::test]
async fn ref_commands_report_their_outcome_under_storage_faults() {
    let timeout = When::Before(ErrorKind::Timeout);
    let ways = [
        (When::Before(ErrorKind::PermissionDenied), false),
        (timeout, true),
        (When::After, false),
        (When::After, true),
    ];
    let mut uncertain = 0;
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let original = tempfile::tempdir().unwrap();
        let tip = prepare(original.path(), version).await;
        for action in ACTIONS {
            for (when, for_good) in ways {
                for operation in 1.. {
                    let place = tempfile::tempdir().unwrap();
                    common::copy_tree(original.path(), place.path());
                    let before = state(place.path()).await;
                    let inner = storage::open_directory(place.path()).unwrap();
                    let faulty = Arc::new(Faulty::new(inner, 1_000_000, when, for_good));
                    let repository = Repository::open(Arc::clone(&faulty) as Arc<dyn storage::Storage>).await.unwrap();
                    let asked = faulty.log.lock().unwrap().len();
                    faulty.left.store(operation, std::sync::atomic::Ordering::Relaxed);
                    let what = format!("{version:?}: {action}, {when:?} {for_good}, operation {operation}");
                    let done = act(action, &repository, tip).await;
                    let is_done = state(place.path()).await != before;
                    match &done {
                        Ok(()) => assert!(is_done, "{what}: it is said to be done"),
                        Err(error) if error.to_string().contains("may or may not have changed") => uncertain += 1,
                        Err(error) => assert!(!is_done, "{what}: {error}"),
                    }
                    // The action can be repeated, and the reference opens the result.
                    let fine = Repository::open(storage::open_directory(place.path()).unwrap()).await.unwrap();
                    let again = act(action, &fine, tip).await;
                    assert!(is_done || again.is_ok(), "{what}: {again:?}");
                    assert_ne!(state(place.path()).await, before, "{what}");
                    if operation == 1 {
                        reopen(place.path()).await;
                    }
                    let count = faulty.log.lock().unwrap().len() - asked;
                    if (count as u64) < operation {
                        assert!(done.is_ok(), "{what}: nothing failed, {done:?}");
                        break;
                    }
                    assert!(operation < 50, "{what}");
                }
            }
        }
    }
    assert!(uncertain > 0, "no outcome was unknown after a storage failure");
}

/// The store carries out a conditional write whose answer is lost, and refuses the repetition. A
/// proxy before it answers no HEAD, so that the metadata of the object does not tell whose write it
/// was.
#[test]
fn a_write_whose_answer_was_lost_is_recognized_without_metadata() {
    let Some(server) = moto::s3() else { return };
    let line = Line::to(server.port);
    let fixture = project("tests/fixtures/repos/own-v1-basic");
    let old = moto::upload(server.port, &fixture, "old");
    let new = moto::repository("new");
    let run = |words: &[&str], is_read: bool| {
        let was_lost = AtomicBool::new(false);
        line.decide(move |_, request| {
            let is_ref = request.contains("/repo ") || request.contains("/ref.json") || request.contains("/repo?");
            match request.split(' ').next() {
                Some("PUT") if is_ref && !was_lost.swap(true, Ordering::Relaxed) => Fault::Lost,
                Some("HEAD") if is_ref => Fault::Says("403 Forbidden", "AccessDenied"),
                Some("GET") if is_ref && !is_read && was_lost.load(Ordering::Relaxed) => {
                    Fault::Says("403 Forbidden", "AccessDenied")
                }
                _ => Fault::Pass,
            }
        });
        let output = moto::icechunkfs(line.port, words);
        line.release();
        output
    };
    run(&["init", &new], true).success();
    for repo in [&old, &new] {
        for action in [
            &["branch", repo, "create", "made"][..],
            &["tag", repo, "create", "made"],
            &["branch", repo, "delete", "made", "--yes"],
            &["tag", repo, "delete", "made", "--yes"],
        ] {
            let output = run(action, true);
            assert!(output.status.success(), "{action:?}: {}", output.all());
        }
        let why = run(&["branch", repo, "create", "unknown"], false).failure();
        assert!(why.contains("may or may not have changed"), "{why}");
        let refs = moto::icechunkfs(server.port, &["refs", repo]).all();
        assert!(refs.contains("unknown") && !refs.contains("made"), "{refs}");
    }
}
