//! Wrong clocks: permission to write, the times of commits, and the reference's behavior.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::failing::{Faulty, When};
use crate::common::fsck;
use crate::common::lab::{Lab, Model, history, new_lab, reference_keys, reopen, request, session_on};
use bytes::Bytes;
use futures_util::TryStreamExt;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::ops::expiration::{ExpiredRefAction, expire};
use icechunkfs::commit::engine::{CommitOutcome, Engine};
use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::repo::Repository;
use icechunkfs::repo::change_refs::RefKind;
use icechunkfs::storage::{Storage, open_directory};
use icechunkfs::times::{Clock, system_clock};

const HOUR: u64 = 3_600_000_000;

fn ahead() -> u64 {
    system_clock() + 2 * HOUR
}

fn behind() -> u64 {
    system_clock() - 2 * HOUR
}

/// Creates a repository with an array, and returns its content.
async fn repository(version: SpecVersionBin) -> (tempfile::TempDir, Model) {
    let (place, lab) = new_lab(version).await;
    let mut model = Model::default();
    model.group("/");
    model.array("/a", &[100]);
    lab.commit_first(&model).await;
    (place, model)
}

/// Commits chunk `n` of the array, from a machine whose clock is `clock`, to a storage whose clock
/// is `stored` if it gives one.
async fn commit(place: &Path, model: &mut Model, n: u32, clock: Clock, stored: Option<u64>) -> Result<ObjectId> {
    let storage = Faulty::new(open_directory(place).unwrap(), 0, When::After, false);
    storage.clock.store(stored.unwrap_or_default(), Ordering::Relaxed);
    commit_to(Arc::new(storage), model, n, clock).await
}

async fn commit_to(storage: Arc<dyn Storage>, model: &mut Model, n: u32, clock: Clock) -> Result<ObjectId> {
    let lab = Lab::over(storage, Default::default());
    let engine = Engine::new(Arc::clone(&lab.storage), Arc::clone(&lab.reader), clock, Default::default());
    let before = model.clone();
    model.chunk("/a", &[n], format!("{n}"));
    let changes = model.changes_since(&before, &lab.scratch);
    let outcome = engine.commit(&lab.tip().await, &changes, &request("a commit"), &Default::default()).await;
    match outcome {
        Ok(CommitOutcome::Committed { snapshot, .. }) => Ok(snapshot),
        Ok(other) => panic!("{other:?}"),
        Err(error) => {
            *model = before;
            Err(error)
        }
    }
}

#[tokio::test]
async fn a_machine_with_a_wrong_clock_writes_nothing() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, mut model) = repository(version).await;
        let before = history(place.path()).await;
        for (clock, side) in [(ahead as Clock, "2 h ahead of"), (behind, "2 h behind")] {
            // On a local disk, a file's time is the storage's clock.
            let local = commit_to(open_directory(place.path()).unwrap(), &mut model, 1, clock).await.unwrap_err();
            assert!(local.kind() == ErrorKind::Io && local.to_string().contains(side), "{local}");
            let message = commit(place.path(), &mut model, 1, clock, Some(system_clock())).await.unwrap_err();
            assert!(message.to_string().contains(side), "{message}");
            if version == SpecVersionBin::V2 {
                let storage = open_directory(place.path()).unwrap();
                let repository = Repository::open(storage).await.unwrap();
                let tip = repository.branch_tip("main").await.unwrap().unwrap();
                let refused = repository.create_ref(RefKind::Branch, "new", tip, clock).await.unwrap_err();
                assert!(refused.to_string().contains(side), "{refused}");
            }
        }
        assert_eq!(history(place.path()).await, before);
        // The reference tolerates ten minutes.
        commit(place.path(), &mut model, 2, system_clock, Some(system_clock() + HOUR / 10)).await.unwrap();
        assert_eq!(reference_keys(place.path()).await, model.keys());
    }
}

/// After a commit from the future, machines with a correct clock continue, with times right after
/// it.
#[tokio::test]
async fn a_commit_from_the_future_blocks_no_correct_clock() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, mut model) = repository(version).await;
        // A store that gives no time accepts it.
        commit(place.path(), &mut model, 0, ahead, None).await.unwrap();
        let future = Lab::open(place.path()).tip().await.flushed_at();
        assert!(future > system_clock() + HOUR);
        // Such a store does not show which clock is wrong, so no machine continues.
        let unsure = commit(place.path(), &mut model, 1, system_clock, None).await.unwrap_err();
        assert!(unsure.to_string().contains("behind the last change"), "{unsure}");
        // The storage's clock is that of the slow machine: the other one was right.
        let wrong = commit(place.path(), &mut model, 1, system_clock, Some(ahead())).await.unwrap_err();
        assert!(wrong.to_string().contains("clock is 2 h behind the storage's"), "{wrong}");
        for n in 1..4 {
            commit(place.path(), &mut model, n, system_clock, Some(system_clock())).await.unwrap();
            assert_eq!(Lab::open(place.path()).tip().await.flushed_at(), future + u64::from(n));
        }
        fsck::check(place.path(), version);
        if version == SpecVersionBin::V2 {
            let repository = Lab::open(place.path()).repository().await;
            let tip = repository.branch_tip("main").await.unwrap().unwrap();
            repository.create_ref(RefKind::Branch, "new", tip, system_clock).await.unwrap();
        }
        assert_eq!(reference_keys(place.path()).await, model.keys());
        assert_eq!(history(place.path()).await.len(), 6);
    }
}

/// In a repository whose newest commit is from the future the reference reads, and refuses to write
/// until then.
#[tokio::test]
async fn the_reference_reads_commits_from_the_future_and_refuses_writes() {
    let (place, mut model) = repository(SpecVersionBin::V2).await;
    commit(place.path(), &mut model, 0, ahead, None).await.unwrap();
    commit(place.path(), &mut model, 1, system_clock, Some(system_clock())).await.unwrap();
    let repository = reopen(place.path()).await;
    let (session, store) = session_on(&repository, "main").await;
    store.set("a/c/7", Bytes::from_static(b"theirs")).await.unwrap();
    let refused = session.write().await.commit("theirs").execute().await.unwrap_err();
    assert!(refused.to_string().contains("timestamp"), "{refused}");
    let tip = session.read().await.snapshot_id().clone();
    let refused = repository.create_branch("theirs", &tip).await.unwrap_err();
    assert!(refused.to_string().contains("timestamp"), "{refused}");
    let assets = Arc::clone(repository.asset_manager());
    let now = std::time::SystemTime::now().into();
    let expired = expire(assets, now, ExpiredRefAction::Ignore, ExpiredRefAction::Ignore, None, 1000).await;
    let refused = expired.unwrap_err();
    assert!(refused.to_string().contains("timestamp"), "{refused}");
    // It still lists the operations, and shows the content.
    let (log, ..) = repository.ops_log().await.unwrap();
    let log: Vec<_> = log.try_collect().await.unwrap();
    let info = RepoInfo::decode(&std::fs::read(place.path().join("repo")).unwrap()).unwrap();
    assert!(log.len() == 4 && info.snapshot_count() == 4, "{}", log.len());
    assert_eq!(reference_keys(place.path()).await, model.keys());
}
