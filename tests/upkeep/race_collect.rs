//! Garbage collection with a cut-off of now, while others commit, copy chunks by reference, make
//! branches and expire: no reachable object is ever removed.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::lab::{Lab, Model, create, keys_at, main_branch, reopen};
use crate::life::world::{check, fast_place, nothing_uncommitted};
use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange};
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, OnConflict, Request};
use icechunkfs::error::ErrorKind;
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::snapshot::NodeData;
use icechunkfs::repo::change_refs::RefKind;
use icechunkfs::repo::collect::{self, GcOptions};
use icechunkfs::repo::expire;
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;

/// Committers, each with an array of its own.
const COMMITTERS: usize = 3;
/// Commits of each.
const COMMITS: u32 = 25;

#[test]
fn nothing_needed_is_collected_beside_writers() {
    let place = tempfile::Builder::new().prefix("race").tempdir_in(fast_place()).unwrap();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let ended = AtomicBool::new(false);
    let collections = AtomicUsize::new(0);
    let mut first = Model::default();
    for n in 0..COMMITTERS {
        first.array(&format!("/a{n}"), &[64]);
    }
    runtime().block_on(async {
        create(place.path(), SpecVersionBin::V2, RepositoryConfig::default()).await;
        Lab::open(place.path()).commit_first(&first).await;
    });
    let expected: Vec<BTreeMap<u32, Vec<u8>>> = std::thread::scope(|scope| {
        let committers: Vec<_> = (0..COMMITTERS)
            .map(|n| {
                let path = place.path();
                scope.spawn(move || runtime().block_on(commit_repeatedly(path, n)))
            })
            .collect();
        let collector = scope.spawn(|| {
            runtime().block_on(async {
                while !ended.load(Ordering::Relaxed) {
                    collect_all(place.path()).await;
                    collections.fetch_add(1, Ordering::Relaxed);
                }
            });
        });
        let brancher = scope.spawn(|| {
            runtime().block_on(async {
                let mut n = 0;
                while !ended.load(Ordering::Relaxed) {
                    n += 1;
                    branch_and_delete(place.path(), n).await;
                }
            });
        });
        let expected = committers.into_iter().map(|committer| committer.join().unwrap()).collect();
        ended.store(true, Ordering::Relaxed);
        collector.join().unwrap();
        brancher.join().unwrap();
        expected
    });
    runtime().block_on(async {
        let lab = Lab::open(place.path());
        check(&lab).await;
        let main = main_branch();
        let keys = keys_at(&reopen(place.path()).await, &main).await;
        for (n, chunks) in expected.iter().enumerate() {
            for (at, bytes) in chunks {
                assert_eq!(keys.get(&format!("a{n}/c/{at}")), Some(bytes), "chunk {at} of array {n}");
            }
        }
        collect_all(place.path()).await;
        check(&lab).await;
    });
    eprintln!("{} collections beside {} commits", collections.load(Ordering::Relaxed), COMMITTERS as u32 * COMMITS);
    assert!(collections.load(Ordering::Relaxed) > 2);
}

/// Commits chunks, and copies of committed chunks, and returns the content of its array.
async fn commit_repeatedly(place: &std::path::Path, n: usize) -> BTreeMap<u32, Vec<u8>> {
    let options =
        EngineOptions { pack_below: 600, pack_size: 900, inline_threshold: Some(50), ..EngineOptions::default() };
    let lab = Lab::with(place, options);
    let mut shown: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut base = lab.tip().await;
    for number in 0..COMMITS {
        // Sometimes it stays on an old base, which may expire meanwhile.
        if number % 3 == 0 {
            base = lab.tip().await;
        }
        let path = format!("/a{n}");
        let node = base.nodes().find(|node| node.path == path).unwrap();
        let id = node.id;
        let mut changes = ChangeSet::default();
        let chunks = changes.chunks.entry(id).or_default();
        let length = [20, 400, 500, 2000][number as usize % 4];
        let mut now = shown.clone();
        for at in [number * 2 % 64, (number * 2 + 1) % 64] {
            let bytes: Vec<u8> = (0..length).map(|i| (i as u32 * 31 + number * 7 + at) as u8).collect();
            chunks.insert(Coords::from_slice(&[at]), ChunkChange::File(lab.scratch.file(&bytes)));
            now.insert(at, bytes);
        }
        // A chunk of the base is copied to another place.
        if let NodeData::Array(array) = node.data {
            let infos: BTreeMap<_, _> = base.manifests().into_iter().map(|info| (info.id, info)).collect();
            for reference in array.manifests() {
                let Ok(manifest) = lab.reader.manifest(infos[&reference.id]).await else { continue };
                let refs = manifest.array(id).unwrap().unwrap();
                let at = number as usize % refs.len();
                let payload: ChunkPayload = refs.payload(at).unwrap().into();
                let from = refs.coords(at).get(0);
                if let (ChunkPayload::Native { .. }, Some(bytes)) = (&payload, shown_at(&lab, &payload).await) {
                    let to = 63 - number % 8;
                    assert_ne!(from, 64);
                    chunks.insert(Coords::from_slice(&[to]), ChunkChange::Stored(payload));
                    now.insert(to, bytes);
                }
            }
        }
        let request = Request {
            branch: "main".into(),
            message: format!("{n}/{number}"),
            settlements: OnConflict::Ours.into(),
            ..Request::default()
        };
        match lab.commit_as(&base, &changes, request).await {
            Ok(CommitOutcome::Committed { .. }) => shown = now,
            Ok(other) => panic!("{other:?}"),
            // Its base has expired, or a chunk that it copied was removed with it. It begins again.
            Err(error) if matches!(error.kind(), ErrorKind::Stale) => base = lab.tip().await,
            // The base itself was collected before it was read to its end.
            Err(error) if error.kind() == ErrorKind::Corrupt && error.to_string().contains("missing") => {
                base = lab.tip().await;
            }
            Err(error) => panic!("{error}"),
        }
        // A pause is a part of the race: it lets the others in at different moments, and nothing is
        // waited for.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    shown
}

/// Returns the bytes of a chunk, if they are still there.
async fn shown_at(lab: &Lab, payload: &ChunkPayload) -> Option<Vec<u8>> {
    let ChunkPayload::Native { chunk, offset, length } = payload else { return None };
    lab.storage.get_range(&format!("chunks/{chunk}"), *offset, *length).await.ok().map(|bytes| bytes.to_vec())
}

async fn collect_all(place: &std::path::Path) {
    let repository = Lab::open(place).repository().await;
    let now = system_clock();
    let wanted = expire::ExpireOptions { older_than: now, delete_tags: false, delete_branches: false, dry_run: false };
    expire::expire(&repository, wanted, system_clock).await.unwrap();
    let wanted = GcOptions { older_than: system_clock(), dry_run: false };
    let progress = icechunkfs::repo::progress::Progress::default();
    match collect::collect(&repository, wanted, system_clock, &nothing_uncommitted(), &progress).await {
        // All its attempts lost the race.
        Err(error) if error.kind() == ErrorKind::Contended => {}
        other => drop(other.unwrap()),
    }
}

/// Makes a branch at some commit, which may be about to expire, and deletes it a moment later.
async fn branch_and_delete(place: &std::path::Path, n: u32) {
    let lab = Lab::open(place);
    let repository = lab.repository().await;
    let tip = repository.branch_tip("main").await.unwrap().unwrap();
    let history = repository.history(tip, 4).await.unwrap();
    let target = history.last().unwrap().id;
    let name = format!("branch{n}");
    // Pauses as in `commit_repeatedly`.
    tokio::time::sleep(Duration::from_millis(u64::from(n % 5))).await;
    match repository.create_ref(RefKind::Branch, &name, target, system_clock).await {
        Ok(()) => {}
        // It has expired meanwhile.
        Err(error) if error.kind() == ErrorKind::NotFound => return,
        Err(error) => panic!("{error}"),
    }
    tokio::time::sleep(Duration::from_millis(4)).await;
    // A ref never dangles, whatever is collected.
    let repository = Lab::open(place).repository().await;
    let snapshot = repository.snapshot(target, icechunkfs::repo::MAX_SNAPSHOT).await.unwrap();
    let reader = Arc::clone(&lab.reader);
    for info in snapshot.manifests() {
        reader.manifest(info).await.unwrap();
    }
    repository.delete_ref(RefKind::Branch, &name, target, system_clock).await.unwrap();
}
