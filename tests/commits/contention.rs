//! Commits of writers beside many others: the round trips that they take, and the line of those
//! that wait for their turn.
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::distant::{Distant, Trip, depth};
use crate::common::lab::{Lab, Model, history, new_lab, reference_keys, request};
use crate::common::{all_together, block_on};
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions};
use icechunkfs::storage::{self, Storage};

/// Long enough for operations of a local disk to overlap.
const ROUND_TRIP: Duration = Duration::from_millis(25);
/// Time after which tickets of dead writers are ignored.
const LEASE: Duration = Duration::from_secs(8);

fn distant(place: &std::path::Path, refused: &'static str) -> (Arc<Distant>, Lab) {
    let storage = Arc::new(Distant::new(storage::open_directory(place).unwrap(), ROUND_TRIP).refusing(refused));
    (Arc::clone(&storage), Lab::over(storage as Arc<dyn Storage>, EngineOptions::default()))
}

/// Creates a repository with arrays `/a0`, `/a1` and so on.
async fn arrays(version: SpecVersionBin, count: usize) -> (tempfile::TempDir, Lab, Model) {
    let (place, lab) = new_lab(version).await;
    let mut model = Model::default();
    for n in 0..count {
        model.array(&format!("/a{n}"), &[200]);
    }
    lab.commit_first(&model).await;
    (place, lab, model)
}

fn of_kind<'a>(trips: &'a [Trip], kind: &'a str) -> impl Iterator<Item = &'a Trip> {
    trips.iter().filter(move |trip| trip.what.starts_with(kind))
}

#[tokio::test]
async fn a_commit_takes_few_round_trips_and_reads_nothing_back() {
    // In version 1 a migration may have begun meanwhile: `repo` is looked for once more.
    for (version, read, more) in [
        (SpecVersionBin::V1, &["repo", "repo", "refs/branch.main/ref.json", "config.yaml"][..], 1),
        (SpecVersionBin::V2, &["repo"], 0),
    ] {
        let (place, _, model) = arrays(version, 2).await;
        let (storage, lab) = distant(place.path(), "none");
        let mut before = model.clone();
        // The first commit finds out the version.
        before.chunk("/a1", &[0], "first");
        let base = lab.tip().await;
        lab.commit(&base, &before.changes_since(&model, &lab.scratch)).await.unwrap();
        for (chunk, most) in [("inline".to_owned(), 4), ("packed".repeat(1000), 5), ("large".repeat(100_000), 5)] {
            let base = lab.tip().await;
            let mut after = before.clone();
            after.chunk("/a0", &[7], chunk.clone());
            let changes = after.changes_since(&before, &lab.scratch);
            storage.take();
            let outcome = lab.commit(&base, &changes).await.unwrap();
            let CommitOutcome::Committed { snapshot, .. } = outcome else { panic!("{outcome:?}") };
            let (repository, written) = lab.engine.take_written(snapshot).await.unwrap();
            let mut trips = storage.take();
            // The time of the store's clock is another operation only where the store's answers do
            // not tell it.
            trips.retain(|trip| !trip.what.starts_with("read transactions/"));
            let what = format!("{version:?}, {} bytes", chunk.len());
            assert!(depth(&trips) <= most + more, "{what}: {} of {most}: {trips:#?}", depth(&trips));
            let mut found: Vec<&str> = of_kind(&trips, "read ").filter_map(|trip| trip.what.get(5..)).collect();
            found.sort_by_key(|key| read.iter().position(|known| known == key));
            assert_eq!(found, read, "{what}");
            assert_eq!(repository.branch_tip("main").await.unwrap(), Some(snapshot));
            let stored = lab.tip().await;
            assert_eq!((written.id(), written.nodes().count()), (stored.id(), stored.nodes().count()));
            assert_eq!((written.message(), written.flushed_at()), (stored.message(), stored.flushed_at()));
            before = after;
        }
    }
}

#[tokio::test]
async fn a_writer_that_is_behind_reads_logs_and_snapshot_at_the_same_time() {
    let (place, direct, model) = arrays(SpecVersionBin::V2, 2).await;
    let (storage, lab) = distant(place.path(), "none");
    let base = lab.tip().await;
    let mut others = model.clone();
    for n in 0..20 {
        let before = others.clone();
        others.chunk("/a1", &[n], format!("{n}"));
        direct.commit_model(&before, &others).await;
    }
    let mut mine = model.clone();
    mine.chunk("/a0", &[1], "mine");
    let changes = mine.changes_since(&model, &lab.scratch);
    storage.take();
    lab.commit(&base, &changes).await.unwrap();
    let trips = storage.take();
    let logs = of_kind(&trips, "read transactions").count();
    assert!((20..=21).contains(&logs), "{logs}: each log is read once");
    assert_eq!(of_kind(&trips, "read snapshots").count(), 1);
    // `repo`; logs, snapshot and line; manifest; log, snapshot, copy (and the clock); `repo`.
    assert!(depth(&trips) <= 6, "{}: {trips:#?}", depth(&trips));
    others.chunk("/a0", &[1], "mine");
    assert_eq!(reference_keys(place.path()).await, others.keys());
}

/// In version 1 a commit is found in the snapshot after it, so that one round trip for each is the
/// least.
#[tokio::test]
async fn a_writer_of_version_1_reads_each_commit_in_one_round_trip() {
    let (place, direct, model) = arrays(SpecVersionBin::V1, 2).await;
    let (storage, lab) = distant(place.path(), "none");
    let base = lab.tip().await;
    let mut others = model.clone();
    let mut mine = model.clone();
    // The first commit finds out the version.
    let mut first = model.clone();
    first.chunk("/a0", &[0], "first");
    lab.commit(&base, &first.changes_since(&model, &lab.scratch)).await.unwrap();
    others.chunk("/a0", &[0], "first");
    for n in 0..6 {
        let before = others.clone();
        others.chunk("/a1", &[n], format!("{n}"));
        direct.commit_model(&before, &others).await;
    }
    mine.chunk("/a0", &[1], "mine");
    storage.take();
    lab.commit(&base, &mine.changes_since(&model, &lab.scratch)).await.unwrap();
    let trips = storage.take();
    for kind in ["read snapshots", "read transactions"] {
        let count = of_kind(&trips, kind).count();
        assert!((7..=8).contains(&count), "{kind}: {count}: each of the seven is read once: {trips:#?}");
    }
    // Branch; seven commits; manifest; log and snapshot (and the clock); branch; `repo`, which a
    // migration may have made.
    assert!(depth(&trips) <= 13, "{}: {trips:#?}", depth(&trips));
    others.chunk("/a0", &[1], "mine");
    assert_eq!(reference_keys(place.path()).await, others.keys());
}

/// A writer that died in the line delays others by its lease, and once: those that are behind the
/// branch, and those that are not.
#[tokio::test]
async fn a_dead_writer_in_the_line_delays_others_by_its_lease() {
    for is_behind in [false, true] {
        let (place, direct, model) = arrays(SpecVersionBin::V2, 2).await;
        let base = direct.tip().await;
        let mut others = model.clone();
        if is_behind {
            others.chunk("/a1", &[0], "theirs");
            direct.commit_model(&model, &others).await;
        }
        let line = place.path().join("queue");
        std::fs::create_dir(&line).unwrap();
        // One has a clock that is far behind, one a clock far ahead, and one wrote something else.
        for name in ["00000000000000000001-DEAD", "99999999999999999999-DEAD", "00-not-a-ticket"] {
            std::fs::write(line.join(name), "").unwrap();
        }
        let begin = Instant::now();
        let mut mine = model.clone();
        mine.chunk("/a0", &[0], "mine");
        direct.commit(&base, &mine.changes_since(&model, &direct.scratch)).await.unwrap();
        let waited = begin.elapsed();
        assert!(waited >= LEASE && waited < LEASE + Duration::from_secs(4), "{waited:?}");
        let left: Vec<_> = std::fs::read_dir(&line).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["99999999999999999999-DEAD"], "those ahead are removed, and the writer's own ticket");
        others.chunk("/a0", &[0], "mine");
        assert_eq!(reference_keys(place.path()).await, others.keys());
    }
}

/// A ticket that nobody waits for, since its time is in the future, does not let every writer line
/// up without end.
#[tokio::test]
async fn a_forgotten_ticket_is_removed() {
    let (place, direct, model) = arrays(SpecVersionBin::V2, 1).await;
    let line = place.path().join("queue");
    std::fs::create_dir(&line).unwrap();
    for name in ["99999999999999999999-DEAD", "00000000000000000001-DEAD"] {
        let ticket = std::fs::File::create(line.join(name)).unwrap();
        ticket.set_modified(std::time::SystemTime::now() - Duration::from_secs(130)).unwrap();
    }
    let begin = Instant::now();
    let base = direct.tip().await;
    let mut mine = model.clone();
    mine.chunk("/a0", &[0], "mine");
    direct.commit(&base, &mine.changes_since(&model, &direct.scratch)).await.unwrap();
    assert!(begin.elapsed() < LEASE, "{:?}", begin.elapsed());
    assert_eq!(std::fs::read_dir(&line).unwrap().count(), 0);
}

/// A writer that commits again and again lets those go first that wait, however long that takes.
#[tokio::test]
async fn a_writer_that_is_not_behind_waits_for_those_in_the_line() {
    let (place, direct, model) = arrays(SpecVersionBin::V2, 1).await;
    let line = place.path().join("queue");
    std::fs::create_dir(&line).unwrap();
    let ticket = line.join("00000000000000000001-ALIVE");
    std::fs::write(&ticket, "0").unwrap();
    let waits = LEASE + Duration::from_secs(2);
    let other = std::thread::spawn(move || {
        let begin = Instant::now();
        for n in 1.. {
            if begin.elapsed() > waits {
                break;
            }
            std::fs::write(&ticket, n.to_string()).unwrap();
            std::thread::sleep(Duration::from_millis(500));
        }
        std::fs::remove_file(&ticket).unwrap();
    });
    let begin = Instant::now();
    let base = direct.tip().await;
    let mut mine = model.clone();
    mine.chunk("/a0", &[0], "mine");
    direct.commit(&base, &mine.changes_since(&model, &direct.scratch)).await.unwrap();
    let waited = begin.elapsed();
    assert!(waited >= waits && waited < waits + Duration::from_secs(3), "{waited:?}");
    other.join().unwrap();
    assert_eq!(reference_keys(place.path()).await, mine.keys());
}

/// A folder full of tickets that no writer stored is no line, and neither is one that cannot be
/// listed or written.
#[tokio::test]
async fn a_line_that_cannot_be_used_is_ignored() {
    for refused in ["none", "queue/"] {
        let (place, direct, model) = arrays(SpecVersionBin::V2, 2).await;
        if refused == "none" {
            let line = place.path().join("queue");
            std::fs::create_dir(&line).unwrap();
            (0..10_001).for_each(|n| std::fs::write(line.join(format!("{n:020}-X")), "").unwrap());
        }
        let (_, lab) = distant(place.path(), refused);
        let base = lab.tip().await;
        let mut others = model.clone();
        others.chunk("/a1", &[0], "theirs");
        direct.commit_model(&model, &others).await;
        let mut mine = model.clone();
        mine.chunk("/a0", &[0], "mine");
        let begin = Instant::now();
        lab.commit(&base, &mine.changes_since(&model, &lab.scratch)).await.unwrap();
        assert!(begin.elapsed() < LEASE, "{:?}", begin.elapsed());
    }
}

/// Many writers over a network, of which some may not use the line: each commits all that it has.
#[test]
#[ignore = "takes long: scripts/test --full"]
fn writers_in_the_line_and_beside_it_all_commit() {
    const WRITERS: usize = 24;
    const COMMITS: u32 = 4;
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, _, model) = block_on(arrays(version, WRITERS));
        all_together(&[(); WRITERS], |writer, ()| {
            block_on(async {
                let refused = if writer % 6 == 0 { "queue/" } else { "none" };
                let (_, lab) = distant(place.path(), refused);
                let mut mine = model.clone();
                for n in 0..COMMITS {
                    let before = mine.clone();
                    mine.chunk(&format!("/a{writer}"), &[n], format!("{writer} {n}"));
                    let changes = mine.changes_since(&before, &lab.scratch);
                    let base = lab.tip().await;
                    let outcome = lab.commit_as(&base, &changes, request(&format!("{writer}.{n}"))).await.unwrap();
                    assert!(matches!(outcome, CommitOutcome::Committed { .. }), "{outcome:?}");
                }
            });
        });
        let mut expected = model;
        for writer in 0..WRITERS {
            (0..COMMITS).for_each(|n| expected.chunk(&format!("/a{writer}"), &[n], format!("{writer} {n}")));
        }
        block_on(async {
            assert_eq!(reference_keys(place.path()).await, expected.keys());
            assert_eq!(history(place.path()).await.len(), WRITERS * COMMITS as usize + 2);
        });
        let left = std::fs::read_dir(place.path().join("queue")).map(Iterator::count).unwrap_or(0);
        assert_eq!(left, 0, "tickets that stayed");
    }
}
