//! Migrations in place beside programs that have the repository open as version 1: they commit,
//! make tags, and make and delete branches. Whatever was reported as done is in the migrated
//! repository.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, OnConflict, Request};
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::RepoState;
use icechunkfs::repo::change_refs::RefKind;
use icechunkfs::repo::migrate::in_place::{MigrationProgress, Summary, migrate};
use icechunkfs::repo::{MAX_SNAPSHOT, Repository};
use icechunkfs::storage::settings::Settings;
use icechunkfs::storage::{self, Condition, Storage};
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;

use crate::common::distant::Distant;
use crate::common::lab::{Lab, Model, create};
use crate::common::lengths::number;
use crate::common::place::{is_local, place};
use crate::common::random::Random;
use crate::common::{copy_tree, read_files, watchdog};
use crate::life::world::fast_place;

/// Changes that were reported as done.
#[derive(Default)]
struct Acknowledged {
    /// Commits, by branch.
    commits: Vec<(String, ObjectId)>,
    /// The last target of each ref: none for one that was deleted last, nothing where a failure
    /// leaves it open.
    refs: BTreeMap<(RefKind, String), Option<Option<ObjectId>>>,
}

/// Runs `future` for one of the programs. All have one runtime: a connection to a store ends with
/// the runtime that has begun it.
fn run_program<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> =
        LazyLock::new(|| tokio::runtime::Builder::new_multi_thread().worker_threads(5).enable_all().build().unwrap());
    RUNTIME.block_on(future)
}

/// Commits chunks on `branch` until the end, from the tip as it is each time.
async fn commit_repeatedly(storage: &Arc<dyn Storage>, branch: &str, ended: &AtomicBool) -> Acknowledged {
    let lab = Lab::over(Arc::clone(storage), EngineOptions { inline_threshold: Some(50), ..EngineOptions::default() });
    let mut done = Acknowledged::default();
    // The operations log and its copies stay small.
    for number in 0_u32..40 {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let Ok(repository) = Repository::open(Arc::clone(storage)).await else { continue };
        let Ok(Some(tip)) = repository.branch_tip(branch).await else { continue };
        let Ok(base) = repository.snapshot(tip, MAX_SNAPSHOT).await else { continue };
        let node = base.nodes().find(|node| node.path == "/a").unwrap().id;
        let mut changes = ChangeSet::default();
        let bytes = ChunkChange::File(lab.scratch.file(&[number as u8; 20]));
        changes.chunks.entry(node).or_default().insert(Coords::from_slice(&[number % 64]), bytes);
        let request = Request {
            branch: branch.to_owned(),
            message: format!("{number}"),
            settlements: OnConflict::Ours.into(),
            ..Request::default()
        };
        if let Ok(CommitOutcome::Committed { snapshot, .. }) = lab.commit_as(&Arc::new(base), &changes, request).await {
            done.commits.push((branch.to_owned(), snapshot));
        }
    }
    done
}

/// Makes tags and branches until the end, and deletes some of them.
async fn change_refs(storage: &Arc<dyn Storage>, kind: RefKind, seed: u64, ended: &AtomicBool) -> Acknowledged {
    let mut random = Random::new(seed);
    let mut done = Acknowledged::default();
    for number in 0..60 {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        let Ok(repository) = Repository::open(Arc::clone(storage)).await else { continue };
        let Ok(Some(tip)) = repository.branch_tip("main").await else { continue };
        let name = format!("made{number}");
        let made = repository.create_ref(kind, &name, tip, system_clock).await;
        done.refs.insert((kind, name.clone()), made.is_ok().then_some(Some(tip)));
        if made.is_ok() && random.chance(60) {
            tokio::time::sleep(Duration::from_micros(random.next() % 2000)).await;
            let deleted = repository.delete_ref(kind, &name, tip, system_clock).await;
            done.refs.insert((kind, name), deleted.is_ok().then_some(None));
        }
    }
    done
}

/// Fails unless the migrated repository has all that was acknowledged, or the migration said which
/// old ref has it.
fn check(state: &RepoState, summary: &Summary, done: &Acknowledged, what: &str) {
    let history =
        |tip: ObjectId| std::iter::successors(Some(tip), |id| state.snapshots.get(id).and_then(|record| record.parent));
    for (branch, commit) in &done.commits {
        let left = summary.unmigrated_refs.get(&format!("refs/branch.{branch}/ref.json")).map(|left| left.target);
        let mut tips = [Some(state.branches[branch]), left].into_iter().flatten();
        assert!(tips.any(|tip| history(tip).any(|id| id == *commit)), "{what}: commit {commit} of {branch} is lost");
    }
    for ((kind, name), target) in &done.refs {
        let Some(target) = target else { continue };
        let refs = if *kind == RefKind::Branch { &state.branches } else { &state.tags };
        let key = format!("refs/{kind}.{name}/ref.json");
        if summary.unmigrated_refs.contains_key(&key) {
            continue;
        }
        let left = &summary.unmigrated_refs;
        assert_eq!(refs.get(name), target.as_ref(), "{what}: {kind} {name}; {left:?}; {:?}", state.updates);
    }
}

/// Migrates beside writers. Returns the result and what the writers were told.
fn race(storage: &Arc<dyn Storage>, seed: u64) -> (Summary, Vec<Acknowledged>) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let committers = ["main", "dev"].map(|branch| {
            let ended = &ended;
            scope.spawn(move || run_program(commit_repeatedly(storage, branch, ended)))
        });
        let changers = [RefKind::Branch, RefKind::Tag].map(|kind| {
            let ended = &ended;
            scope.spawn(move || run_program(change_refs(storage, kind, seed, ended)))
        });
        let summary = run_program(async {
            // The moment is random: it is a part of the race.
            tokio::time::sleep(Duration::from_micros(Random::new(seed).next() % 30_000)).await;
            let repository = Repository::open(Arc::clone(storage)).await.unwrap();
            migrate(&repository, system_clock, false, &MigrationProgress::default()).await
        });
        // Some go on after the migration.
        std::thread::sleep(Duration::from_millis(5));
        ended.store(true, Ordering::Relaxed);
        let threads = committers.into_iter().chain(changers);
        let done = threads.map(|thread| thread.join().unwrap()).collect();
        (summary.unwrap(), done)
    })
}

/// Makes a repository of version 1 with branches `main` and `dev`.
fn original() -> tempfile::TempDir {
    let place = tempfile::Builder::new().prefix("migrate").tempdir_in(fast_place()).unwrap();
    let mut first = Model::default();
    first.array("/a", &[64]);
    run_program(async {
        create(place.path(), SpecVersionBin::V1, RepositoryConfig::default()).await;
        let lab = Lab::open(place.path());
        let tip = lab.commit_first(&first).await;
        lab.repository().await.create_ref(RefKind::Branch, "dev", tip, system_clock).await.unwrap();
    });
    place
}

fn state(storage: &Arc<dyn Storage>) -> RepoState {
    let file = run_program(async { storage.get("repo", 1 << 24).await.unwrap() });
    RepoState::from_info(&RepoInfo::decode(&file).unwrap()).unwrap()
}

/// Makes some migrations. On a store, an old ref may stay where version 2 has gone on from an older
/// commit before the migration had moved the newest one: no lock keeps one from the other.
fn run(name: &str, rounds: usize, open: impl Fn() -> (Option<tempfile::TempDir>, Arc<dyn Storage>)) {
    let seed = number("ICECHUNKFS_SEED", 1) as u64;
    let mut commits = 0;
    let mut refs = 0;
    let mut stay = 0;
    for round in 0..rounds as u64 {
        let (_directory, storage) = open();
        let (summary, done) = race(&storage, seed + round);
        let what = format!("{name}, seed {}", seed + round);
        if storage.local_path().is_some() {
            assert_eq!(summary.unmigrated_refs, BTreeMap::new(), "{what}");
        }
        let state = state(&storage);
        for done in &done {
            check(&state, &summary, done, &what);
            commits += done.commits.len();
            refs += done.refs.len();
        }
        let left: Vec<String> =
            run_program(async { storage.list("refs/").await.unwrap() }).into_iter().map(|object| object.key).collect();
        assert!(left.iter().all(|key| summary.unmigrated_refs.contains_key(key)), "{what}: {left:?}");
        stay += summary.unmigrated_refs.len();
    }
    println!("{name}: {commits} commits and {refs} refs in {rounds} migrations, {stay} old refs stay");
    assert!(commits > rounds && refs > rounds);
}

#[test]
fn a_migration_on_a_disk_loses_nothing_that_was_acknowledged() {
    watchdog();
    let original = original();
    run("local", number("ICECHUNKFS_MIGRATIONS", 40), || {
        let directory = tempfile::Builder::new().prefix("migrate").tempdir_in(fast_place()).unwrap();
        copy_tree(original.path(), directory.path());
        let storage = storage::open_directory(directory.path()).unwrap();
        (Some(directory), storage)
    });
}

/// The store compares before it writes, and has no lock and no conditional removal. It is the one
/// of this run, or memory behind a network.
#[test]
fn a_migration_in_a_store_loses_nothing_that_was_acknowledged() {
    watchdog();
    let original = original();
    let files = read_files(original.path());
    run("store", number("ICECHUNKFS_MIGRATIONS", 15), || {
        let directory = tempfile::tempdir().unwrap();
        let url = place(directory.path());
        let settings = Settings::default();
        run_program(async {
            let storage: Arc<dyn Storage> = if is_local() {
                Arc::new(Distant::new(storage::empty_storage("memory"), Duration::from_micros(300)))
            } else {
                storage::open_new(url.to_str().unwrap(), &settings).await.unwrap()
            };
            for (key, bytes) in &files {
                storage.put(key, bytes.clone().into(), Condition::Always).await.unwrap();
            }
            (None, storage)
        })
    });
}
