//! Manifests that small arrays share: both implementations commit, rewrite, expire and collect, and
//! see the same.
//!
//! `ICECHUNKFS_SHARING_CASES` sets the number of random histories of each version (default 10).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common::lab::{
    self, Lab, Model, ancestry, collect_by_reference, create, expire_before, main_branch, new_lab, reference_keys,
    reopen, request, session_on, set, set_model,
};
use crate::common::lengths::{is_full, length};
use crate::common::random::Random;
use crate::common::{block_on, fsck, run_on};
use bytes::Bytes;
use icechunk::conflicts::detector::ConflictDetector;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::ops::manifests::rewrite_manifests;
use icechunk::session::CommitMethod;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use icechunkfs::commit::engine::{CommitOutcome, Request};
use icechunkfs::format::chunk_payload::ChunkPayload;
use icechunkfs::format::envelope::{self, FileType};
use icechunkfs::format::ids::NodeId;
use icechunkfs::format::snapshot::{NodeData, Snapshot};
use icechunkfs::repo::verify;
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;

/// Returns the key of a chunk.
fn key(path: &str, coords: &[u32]) -> String {
    let coords: String = coords.iter().map(|c| format!("/{c}")).collect();
    format!("{}/c{coords}", path.trim_start_matches('/'))
}

/// Returns an array of the model that has places for chunks, and one of them.
fn some_chunk(model: &Model, random: &mut Random) -> Option<(String, Vec<u32>)> {
    let arrays: Vec<_> =
        model.nodes.values().filter(|node| node.grid.as_ref().is_some_and(|g| !g.contains(&0))).collect();
    if arrays.is_empty() {
        return None;
    }
    let array = random.pick(&arrays);
    let coords = array.grid.iter().flatten().map(|n| random.below(*n as usize) as u32).collect();
    Some((array.path.clone(), coords))
}

fn bytes(random: &mut Random) -> Vec<u8> {
    let length = *random.pick(&[1, 100, 512, 513, 3000]);
    (0..length).map(|_| random.below(256) as u8).collect()
}

/// Changes the model as a commit with many small arrays does.
fn change(model: &mut Model, random: &mut Random, is_v2: bool) {
    for _ in 0..random.below(25) {
        let path = format!("/g{}/a{}", random.below(3), random.below(200));
        if model.at(&path).is_none() {
            let rank = random.below(3);
            let grid: Vec<u32> = (0..rank).map(|_| *random.pick(&[1, 2, 5, 30])).collect();
            model.array(&path, &grid);
            for _ in 0..random.below(4) {
                let coords: Vec<u32> = grid.iter().map(|n| random.below(*n as usize) as u32).collect();
                let bytes = bytes(random);
                model.chunk(&path, &coords, bytes);
            }
        }
    }
    for _ in 0..random.below(6) {
        let Some((path, coords)) = some_chunk(model, random) else { break };
        match random.below(8) {
            0 => model.delete(&path),
            1 => {
                model.get(&path).chunks.remove(&coords);
            }
            2 if !coords.is_empty() => {
                let grid: Vec<u32> = coords.iter().map(|c| c + random.below(3) as u32).collect();
                model.resize(&path, &grid);
            }
            3 if is_v2 && model.at(&format!("{path}-moved")).is_none() => model.rename(&path, &format!("{path}-moved")),
            _ => {
                let bytes = bytes(random);
                model.chunk(&path, &coords, bytes);
            }
        }
    }
}

async fn random_history(spec: SpecVersionBin, seed: u64) {
    let mut random = Random::new(seed * 31 + 7);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    create(place, spec, lab::random_config(&mut random)).await;
    let is_v2 = spec == SpecVersionBin::V2;
    let mut model = Model::default();
    for n in 0..3 {
        model.group(&format!("/g{n}"));
    }
    Lab::open(place).commit_first(&model).await;
    let mut commits = 0;
    for round in 0..25 {
        let what = format!("{spec:?}, seed {seed}, round {round}");
        let lab = Lab::open(place);
        match random.below(20) {
            // A session of the reference is open while we commit, and is rebased over our commit.
            0..=2 => {
                let Some((path, coords)) = some_chunk(&model, &mut random) else { continue };
                let (session, store) = session_on(&reopen(place).await, "main").await;
                store.set(&key(&path, &coords), Bytes::from_static(b"theirs")).await.unwrap();
                let before = model.clone();
                for n in 0..20 {
                    let new = format!("/g0/beside-{round}-{n}");
                    model.array(&new, &[2]);
                    model.chunk(&new, &[1], new.clone());
                }
                lab.commit_model(&before, &model).await;
                session.write().await.commit("theirs").rebase(&ConflictDetector, 3).execute().await.unwrap();
                model.chunk(&path, &coords, "theirs");
                commits += 2;
            }
            3..=5 => {
                let Some((path, coords)) = some_chunk(&model, &mut random) else { continue };
                let bytes = bytes(&mut random);
                set(place, &[(key(&path, &coords).as_str(), bytes.as_slice())], "theirs").await;
                model.chunk(&path, &coords, bytes);
                commits += 1;
            }
            6 => {
                let repository = reopen(place).await;
                rewrite_manifests(&repository, "main", "theirs", None, None, CommitMethod::NewCommit).await.unwrap();
                commits += 1;
            }
            7 => {
                run_on(place, &["rewrite-manifests", "--branch", "main"]).success();
                commits += 1;
            }
            8 | 9 if commits > 4 => {
                expire_before(place, 1 + random.below(3)).await;
                commits = 0;
                let newest = ancestry(&reopen(place).await, &main_branch()).await[0].flushed_at;
                match random.below(2) {
                    0 => drop(collect_by_reference(place, newest.timestamp_micros() as u64).await),
                    _ => drop(run_on(place, &["gc", "--older-than", "0s", "--yes"]).success()),
                }
            }
            // Commits of chunks leave all nodes as they are.
            10..=14 => {
                for _ in 0..1 + random.below(4) {
                    let before = model.clone();
                    for _ in 0..1 + random.below(10) {
                        let Some((path, coords)) = some_chunk(&model, &mut random) else { break };
                        let bytes = bytes(&mut random);
                        match random.below(5) {
                            0 => drop(model.get(&path).chunks.remove(&coords)),
                            _ => model.chunk(&path, &coords, bytes),
                        }
                    }
                    let changes = model.changes_since(&before, &lab.scratch);
                    let outcome = lab.commit_as(&lab.tip().await, &changes, request("chunks")).await.unwrap();
                    assert!(!matches!(outcome, CommitOutcome::Conflicts(_)), "{what}: {outcome:?}");
                    commits += usize::from(matches!(outcome, CommitOutcome::Committed { .. }));
                }
            }
            _ => {
                let before = model.clone();
                change(&mut model, &mut random, is_v2);
                let changes = model.changes_since(&before, &lab.scratch);
                let outcome = lab.commit_as(&lab.tip().await, &changes, request("ours")).await.unwrap();
                assert!(!matches!(outcome, CommitOutcome::Conflicts(_)), "{what}: {outcome:?}");
                commits += 1;
            }
        }
        let tip = Lab::open(place).tip().await;
        model.take_ids(&tip);
        assert_eq!(reference_keys(place).await, model.keys(), "{what}");
        assert_eq!(ours(place, &tip).await, stored(&model), "{what}");
    }
    fsck::check(place, spec);
    let storage = Lab::open(place).storage;
    let report = verify::verify(&storage, Default::default(), system_clock(), &Default::default()).await.unwrap();
    assert_eq!((report.errors, report.warnings), (0, 0), "{spec:?}, seed {seed}: {report:?}");
}

type Chunks = BTreeMap<(String, Vec<u32>), usize>;

/// Returns the lengths of the model's chunks.
fn stored(model: &Model) -> Chunks {
    let chunks = |node: &lab::Node| -> Vec<_> {
        node.chunks.iter().map(|(coords, bytes)| ((node.path.clone(), coords.clone()), bytes.len())).collect()
    };
    model.nodes.values().flat_map(chunks).collect()
}

/// Returns the lengths of the chunks that this program finds in a snapshot.
async fn ours(place: &Path, tip: &Arc<Snapshot>) -> Chunks {
    let lab = Lab::open(place);
    let infos = tip.manifest_infos();
    let mut found = Chunks::new();
    for node in tip.nodes() {
        let NodeData::Array(array) = &node.data else { continue };
        for reference in array.manifests() {
            let manifest = lab.reader.manifest(infos[&reference.id]).await.unwrap();
            let refs = manifest.array(node.id).unwrap().unwrap();
            let grid = array.grid().unwrap();
            for at in 0..refs.len() {
                let coords: Vec<u32> = refs.coords(at).iter().collect();
                if coords.iter().zip(&grid).all(|(c, n)| c < n) {
                    found.insert((node.path.to_owned(), coords), refs.length(at) as usize);
                }
            }
        }
    }
    found
}

#[test]
fn both_implementations_see_the_same_in_random_histories() {
    for seed in 1..=length("ICECHUNKFS_SHARING_CASES", 2, 10) as u64 {
        for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
            block_on(random_history(spec, seed));
        }
    }
}

/// Creates `count` arrays of one chunk each, all in one commit.
fn many_arrays(count: u32) -> ChangeSet {
    let mut changes = ChangeSet::default();
    for n in 0..count {
        let mut id = [0; 8];
        // The order of the ids is not that of the paths.
        id[..4].copy_from_slice(&n.wrapping_mul(2_654_435_761).to_be_bytes());
        let id = NodeId(id);
        let zarr_json = lab::array_json(&[4], &[4], "").into();
        changes.created.push(WrittenNode { id, path: format!("/{:03}/{n}", n / 100), zarr_json, is_array: true });
        let change = ChunkChange::Stored(ChunkPayload::Inline(Bytes::from(n.to_le_bytes().to_vec())));
        changes.chunks.entry(id).or_default().insert(Coords::from_slice(&[0]), change);
    }
    changes
}

#[tokio::test]
#[ignore = "takes long: scripts/test --full"]
async fn fifty_thousand_arrays_have_few_manifests_and_a_change_writes_a_small_one() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    const ARRAYS: u32 = 50_000;
    lab.commit(&lab.tip().await, &many_arrays(ARRAYS)).await.unwrap();
    let tip = lab.tip().await;
    let before = tip.manifests();
    assert!(before.len() <= 100, "{} manifests", before.len());
    assert_eq!(before.iter().map(|info| info.chunk_refs).sum::<u32>(), ARRAYS);
    // Neighbors in the tree are neighbors in the manifests: a walk reads each of them once.
    let mut walk = Vec::new();
    for node in tip.nodes() {
        if let NodeData::Array(array) = &node.data {
            walk.extend(array.manifests().into_iter().map(|manifest| manifest.id));
        }
    }
    walk.dedup();
    assert_eq!(walk.len(), before.len());

    let changed = tip.nodes().find(|node| node.path == "/300/30021").unwrap().id;
    let mut changes = ChangeSet::default();
    let new = ChunkChange::Stored(ChunkPayload::Inline(Bytes::from_static(b"new")));
    changes.chunks.entry(changed).or_default().insert(Coords::from_slice(&[0]), new);
    lab.commit(&tip, &changes).await.unwrap();
    let after = lab.tip().await.manifests();
    let written: Vec<_> = after.iter().filter(|info| !before.contains(info)).collect();
    let [written] = written.as_slice() else { panic!("{written:?}") };
    assert!(written.chunk_refs == 1 && written.size < 300 && after.len() == before.len() + 1, "{written:?}");

    let repository = reopen(place.path()).await;
    let store = lab::store_at(&repository, &main_branch()).await;
    for n in [0_u32, 30_020, 30_021, 30_022, 49_999] {
        let found = store.get(&format!("{:03}/{n}/c/0", n / 100), &icechunk::format::ByteRange::ALL).await.unwrap();
        let expected = if n == 30_021 { b"new".to_vec() } else { n.to_le_bytes().to_vec() };
        assert_eq!(found, expected, "{n}");
    }
}

/// Commits of few arrays each: their manifests are put together as their number grows.
#[tokio::test]
async fn manifests_of_many_small_commits_are_gathered() {
    let arrays = if is_full() { 100 } else { 60 };
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, lab) = new_lab(spec).await;
        let mut model = Model::default();
        model.group("/");
        lab.commit_first(&model).await;
        let mut most = 0;
        for n in 0..arrays {
            let before = model.clone();
            let path = format!("/a{}", n * 7 % arrays);
            model.array(&path, &[3]);
            model.chunk(&path, &[n % 3], n.to_le_bytes());
            lab.commit_model(&before, &model).await;
            most = most.max(lab.tip().await.manifests().len());
        }
        assert!(most <= 2 * 15 + 2, "{most} manifests");
        // Changed one by one, the arrays leave the manifests that they shared, and are gathered
        // again.
        for n in 0..arrays {
            let before = model.clone();
            model.chunk(&format!("/a{n}"), &[n % 3], b"again");
            lab.commit_model(&before, &model).await;
            most = most.max(lab.tip().await.manifests().len());
        }
        assert!(most <= 3 * 16, "{most} manifests");
        assert_eq!(reference_keys(place.path()).await, model.keys());
        fsck::check(place.path(), spec);
    }
}

/// Manifests of old repositories are put together by `rewrite-manifests`.
#[tokio::test]
async fn manifests_of_the_reference_are_put_together_on_request() {
    let (place, _) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.group("/");
    for n in 0..100 {
        let path = format!("/a{n}");
        model.array(&path, &[10]);
        (0..=n % 10).for_each(|c| model.chunk(&path, &[c], vec![n as u8; 700]));
    }
    model.array("/large", &[600]);
    (0..600).for_each(|c| model.chunk("/large", &[c], c.to_le_bytes()));
    set_model(place.path(), &model).await;
    let output = run_on(place.path(), &["rewrite-manifests", "--json"]).json();
    assert_eq!(output["manifests"], serde_json::json!({"before": 101, "after": 2}));
    assert_eq!(reference_keys(place.path()).await, model.keys());
    fsck::check(place.path(), SpecVersionBin::V2);
}

/// Damage of arrays that a commit did not change does not prevent it.
#[tokio::test]
async fn a_damaged_manifest_is_not_gathered() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.group("/");
    for n in 0..20 {
        let path = format!("/a{n}");
        model.array(&path, &[10]);
        model.chunk(&path, &[1], path.clone());
    }
    set_model(place.path(), &model).await;
    let tip = lab.tip().await;
    model.take_ids(&tip);
    let damaged = tip.manifests()[3].id;
    let path = place.path().join("manifests").join(damaged.to_string());
    std::fs::write(&path, b"damaged").unwrap();
    let owner = tip.nodes().find(|node| matches!(&node.data, NodeData::Array(a) if a.manifests()[0].id == damaged));
    let owner = owner.unwrap().path.to_owned();
    let changed = if owner == "/a0" { "/a1" } else { "/a0" };
    let before = model.clone();
    model.chunk(changed, &[2], "new");
    lab.commit_model(&before, &model).await;
    let after = lab.tip().await;
    let manifests =
        |path: &str, snapshot: &Snapshot| match snapshot.nodes().find(|node| node.path == path).unwrap().data {
            NodeData::Array(array) => array.manifests(),
            _ => panic!("{path} is no array"),
        };
    for node in tip.nodes().filter(|node| node.is_array()) {
        let is_same = manifests(node.path, &tip) == manifests(node.path, &after);
        assert_eq!(is_same, node.path != changed, "{}", node.path);
    }
}

/// Bytes that an array has left in a shared manifest are not kept for long.
#[tokio::test]
async fn chunks_of_arrays_that_left_a_manifest_are_collected() {
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, lab) = new_lab(spec).await;
        let mut model = Model::default();
        model.group("/");
        for n in 0..10 {
            let path = format!("/a{n}");
            model.array(&path, &[2]);
            model.chunk(&path, &[0], vec![n as u8; 2000]);
        }
        lab.commit_first(&model).await;
        assert_eq!(lab.tip().await.manifests().len(), 1);
        let before = model.clone();
        (0..8).for_each(|n| model.chunk(&format!("/a{n}"), &[0], vec![100 + n as u8; 2000]));
        lab.commit_model(&before, &model).await;
        assert_eq!(lab.tip().await.manifests().len(), 1, "the other two came along");
        expire_before(place.path(), 0).await;
        run_on(place.path(), &["gc", "--older-than", "0s", "--yes"]).success();
        assert_eq!(std::fs::read_dir(place.path().join("chunks")).unwrap().count(), 10, "{spec:?}");
        assert_eq!(reference_keys(place.path()).await, model.keys());
    }
}

/// Arrays of many bytes have manifests of their own: what they leave there would be kept by others.
#[tokio::test]
async fn large_chunks_are_in_manifests_of_one_array() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut changes = ChangeSet::default();
    for (n, length) in [1 << 20, 1 << 20, (1 << 20) + 1, 1 << 24].into_iter().enumerate() {
        let id = NodeId([n as u8 + 1; 8]);
        let zarr_json = lab::array_json(&[length], &[length], "").into();
        changes.created.push(WrittenNode { id, path: format!("/a{n}"), zarr_json, is_array: true });
        let change = ChunkChange::Stored(ChunkPayload::Inline(Bytes::from_static(b"compressed")));
        changes.chunks.entry(id).or_default().insert(Coords::from_slice(&[0]), change);
    }
    lab.commit(&lab.tip().await, &changes).await.unwrap();
    assert_eq!(lab.tip().await.manifests().len(), 3);
    fsck::check(place.path(), SpecVersionBin::V2);
}

/// The reference writes a message behind the nodes: what follows the first node must not be taken
/// over with it.
#[tokio::test]
async fn a_message_that_was_amended_is_not_in_the_new_snapshot() {
    const SECRET: &[u8] = b"the password is swordfish";
    let (place, _) = new_lab(SpecVersionBin::V2).await;
    let document = lab::array_json(&[4], &[1], "");
    let mut keys: Vec<(String, Vec<u8>)> =
        (0..80).map(|n| (format!("a{n}/zarr.json"), document.clone().into_bytes())).collect();
    keys.push(("a0/c/0".to_owned(), b"bytes".to_vec()));
    let keys: Vec<(&str, &[u8])> = keys.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
    set(place.path(), &keys, std::str::from_utf8(SECRET).unwrap()).await;
    let has_secret = |id: &str| {
        let file = std::fs::read(place.path().join("snapshots").join(id)).unwrap();
        let (_, payload) = envelope::decode(&file, FileType::Snapshot, 1 << 30).unwrap();
        payload.windows(SECRET.len()).any(|part| part == SECRET)
    };
    let lab = Lab::open(place.path());
    let old = lab.tip().await;
    assert!(has_secret(&old.id().to_string()), "the reference's own snapshot: the test would show nothing");
    // With another chunk, by the engine, and alone, by the command.
    let array = old.nodes().find(|node| node.path == "/a1").unwrap().id;
    let chunk = BTreeMap::from([(Coords::from_slice(&[2]), ChunkChange::File(lab.scratch.file(b"new")))]);
    let changes = ChangeSet { chunks: BTreeMap::from([(array, chunk)]), ..ChangeSet::default() };
    let amended = Request { amend: true, ..request("nothing to see") };
    lab.commit_as(&old, &changes, amended).await.unwrap();
    assert!(!has_secret(&lab.tip().await.id().to_string()));
    set(place.path(), &[("a2/c/1", b"more")], std::str::from_utf8(SECRET).unwrap()).await;
    run_on(place.path(), &["amend", "--branch", "main", "-m", "nothing to see", "--yes"]).success();
    assert!(!has_secret(&lab.tip().await.id().to_string()));
}
