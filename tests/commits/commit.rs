//! Commits by the engine, without a mount, read by the reference implementation.

use crate::common::fsck;
use crate::common::lab::{
    self, GROUP, Lab, Model, Node, create, history, new_lab, random_config, reference_keys, reopen, set, splitting,
};
use crate::common::lengths::length;
use crate::common::random::Random;
use crate::common::scramble::scramble;
use bytes::Bytes;
use icechunk::config::ManifestConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, Request};
use icechunkfs::commit::rebase;
use icechunkfs::error::ErrorKind;
use icechunkfs::format::ids::NodeId;
use icechunkfs::repo::verify;
use icechunkfs::times::system_clock;
use icechunkfs::zarr::Coords;

#[tokio::test]
async fn the_reference_reads_back_a_commit() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.group("/");
    model.group("/a");
    model.array("/a/b", &[4, 5]);
    model.array("/a-b", &[]);
    model.chunk("/a-b", &[], "scalar");
    for i in 0..4 {
        for j in 0..5 {
            let size = [1, 512, 513, 5000, 300_000][j as usize];
            model.chunk("/a/b", &[i, j], vec![(i * 16 + j) as u8; size]);
        }
    }
    lab.commit_first(&model).await;
    assert_eq!(reference_keys(place.path()).await, model.keys());
    assert_eq!(fsck::check(place.path(), SpecVersionBin::V2), 1);
    // 4 large ones, and one object for 8 small ones.
    assert_eq!(std::fs::read_dir(place.path().join("chunks")).unwrap().count(), 5);

    let before = model.clone();
    model.chunk("/a/b", &[1, 1], "new");
    model.get("/a/b").chunks.remove(&vec![3, 4]);
    model.rename("/a", "/moved");
    model.delete("/a-b");
    lab.commit_model(&before, &model).await;
    assert_eq!(reference_keys(place.path()).await, model.keys());
    assert_eq!(fsck::check(place.path(), SpecVersionBin::V2), 2);
    assert_eq!(history(place.path()).await, ["a commit", "a commit", "Repository initialized"]);
}

/// A log may record a node's move only to a free place, or to one that another move left, below a
/// group.
#[tokio::test]
async fn moves_onto_deleted_nodes_are_stored_as_deletions_and_new_nodes() {
    type Edit = fn(&mut Model);
    let cases: [(&str, Edit, &[&str]); 6] = [
        (
            "onto a deleted array",
            |m| {
                m.delete("/b");
                m.rename("/a", "/b");
            },
            &[],
        ),
        (
            "one after another",
            |m| {
                m.delete("/b");
                m.rename("/a", "/b");
                m.rename("/c", "/a");
            },
            &[],
        ),
        (
            "exchanged",
            |m| {
                m.rename("/a", "/aside");
                m.rename("/b", "/a");
                m.rename("/aside", "/b");
            },
            &["/a", "/b"],
        ),
        (
            "a group onto a deleted one",
            |m| {
                m.delete("/g");
                m.rename("/h", "/g");
            },
            // The deleted group had no such array.
            &["/g/y"],
        ),
        ("below a directory that is no group", |m| m.rename("/a", "/nothing/a"), &[]),
        (
            "with the group made in the same commit",
            |m| {
                m.group("/new");
                m.rename("/a", "/new/a");
            },
            &["/new/a"],
        ),
    ];
    for (name, edit, moved) in cases {
        let (place, lab) = new_lab(SpecVersionBin::V2).await;
        let mut model = Model::default();
        for group in ["/", "/g", "/h"] {
            model.group(group);
        }
        for array in ["/a", "/b", "/c", "/g/x", "/h/x", "/h/y"] {
            model.array(array, &[4]);
            model.chunk(array, &[1], array);
        }
        lab.commit_first(&model).await;
        let before = model.clone();
        edit(&mut model);
        let id = lab.commit_model(&before, &model).await;
        assert_eq!(reference_keys(place.path()).await, model.keys(), "{name}");
        fsck::check(place.path(), SpecVersionBin::V2);
        let moves = rebase::read_log(&*lab.storage, id).await.unwrap().moves().unwrap();
        let to: Vec<&str> = moves.iter().map(|one| one.to.as_str()).collect();
        assert_eq!(to, moved, "{name}");
        let report = verify::verify(&lab.storage, Default::default(), system_clock(), &Default::default()).await;
        assert_eq!(report.unwrap().warnings, 0, "{name}");
        // The reference continues from there.
        set(place.path(), &[("c2/zarr.json", GROUP.as_bytes())], "on top").await;
    }
}

/// The log of an amended commit is relative to the parent of the one that it replaces.
#[tokio::test]
async fn an_amend_stores_no_move_onto_a_node_that_the_amended_commit_deleted() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.group("/");
    for array in ["/a", "/b"] {
        model.array(array, &[4]);
        model.chunk(array, &[1], array);
    }
    lab.commit_first(&model).await;
    let before = model.clone();
    model.delete("/b");
    lab.commit_model(&before, &model).await;
    let before = model.clone();
    model.rename("/a", "/b");
    let changes = model.changes_since(&before, &lab.scratch);
    let request = Request { amend: true, ..lab::request("amended") };
    let outcome = lab.commit_as(&lab.tip().await, &changes, request).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed { .. }));
    assert_eq!(reference_keys(place.path()).await, model.keys());
    fsck::check(place.path(), SpecVersionBin::V2);
}

/// A way to create a repository, and the files that are then written into it.
#[derive(Clone, Copy, Debug)]
enum Kind {
    V1,
    V2,
    Migrated,
}

async fn random_history(kind: Kind, seed: u64) {
    let mut random = Random::new(seed);
    let place = tempfile::tempdir().unwrap();
    let config = random_config(&mut random);
    let spec = if matches!(kind, Kind::V2) { SpecVersionBin::V2 } else { SpecVersionBin::V1 };
    let repository = create(place.path(), spec, config).await;
    let options =
        EngineOptions { pack_below: *random.pick(&[0, 1000, 1 << 20]), pack_size: 4000, ..EngineOptions::default() };
    let mut model = Model::default();
    let mut ours = 0;
    for round in 0..6 {
        if round == 3 && matches!(kind, Kind::Migrated) {
            icechunk::migrations::migrate_1_to_2(reopen(place.path()).await, false, true, None).await.unwrap();
        }
        let is_v2 = matches!(kind, Kind::V2) || round >= 3 && matches!(kind, Kind::Migrated);
        if round == 4 && is_v2 {
            // Other rules from here on: manifests of the old ones are split again where they are
            // touched.
            let mut config = repository.config().clone();
            config.manifest = Some(ManifestConfig { splitting: splitting(&mut random), ..ManifestConfig::default() });
            reopen(place.path()).await.reopen(Some(config), None).await.unwrap().save_config().await.unwrap();
        }
        let lab = Lab::with(place.path(), options);
        let before = model.clone();
        for _ in 0..random.below(12) {
            scramble(&mut model, &mut random, true);
        }
        let base = lab.tip().await;
        let changes = model.changes_since(&before, &lab.scratch);
        match lab.commit(&base, &changes).await.unwrap() {
            CommitOutcome::Nothing => assert_eq!(model, before),
            CommitOutcome::Committed { .. } => ours += 1,
            CommitOutcome::Conflicts(conflicts) => panic!("conflicts without another writer: {conflicts:?}"),
        }
        model.take_ids(&*lab.tip().await);
        assert_eq!(reference_keys(place.path()).await, model.keys(), "{kind:?}, seed {seed}, round {round}");
        // The reference continues from there.
        let arrays: Vec<Node> = model.nodes.values().filter(|n| n.grid.is_some()).cloned().collect();
        let full = |node: &Node| !node.grid.as_ref().unwrap().contains(&0);
        if let Some(array) = arrays.iter().find(|node| full(node)) {
            let coords: Vec<u32> = array.grid.iter().flatten().map(|n| n - 1).collect();
            let bytes = format!("theirs {round}").into_bytes();
            let key: String = coords.iter().map(|c| format!("/{c}")).collect();
            let key = format!("{}/c{key}", array.path.trim_start_matches('/'));
            set(place.path(), &[(key.as_str(), bytes.as_slice())], "theirs").await;
            model.chunk(&array.path.clone(), &coords, bytes);
            assert_eq!(reference_keys(place.path()).await, model.keys(), "{kind:?}, seed {seed}, round {round}");
        }
    }
    if !matches!(kind, Kind::Migrated) {
        assert_eq!(fsck::check(place.path(), spec), ours);
    }
}

#[test]
fn random_histories_read_back_the_same() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for seed in 1..=length("ICECHUNKFS_COMMIT_CASES", 6, 20) as u64 {
        for kind in [Kind::V1, Kind::V2, Kind::Migrated] {
            runtime.block_on(random_history(kind, seed));
        }
    }
}

/// Chunk objects are links to scratch files, where the file system allows; nothing is stored twice.
#[tokio::test]
async fn large_chunks_are_linked_and_small_ones_packed() {
    use std::os::unix::fs::MetadataExt;
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.array("/a", &[3]);
    model.array("/b", &[2000]);
    (0..3).for_each(|n| model.chunk("/a", &[n], vec![n as u8; 300_000]));
    (0..2000).for_each(|n| model.chunk("/b", &[n], vec![n as u8; 10_000]));
    lab.commit_first(&model).await;
    assert_eq!(reference_keys(place.path()).await, model.keys());
    let objects: Vec<_> = std::fs::read_dir(place.path().join("chunks")).unwrap().flatten().collect();
    let linked = objects.iter().filter(|object| object.metadata().unwrap().nlink() == 2).count();
    assert_eq!((objects.len(), linked), (3 + 3, 3), "3 linked, 20 MB in 3 packs");
    // A commit that only moves stores nothing but a snapshot and its log.
    let before = model.clone();
    model.rename("/b", "/moved");
    let manifests = std::fs::read_dir(place.path().join("manifests")).unwrap().count();
    lab.commit_model(&before, &model).await;
    assert_eq!(std::fs::read_dir(place.path().join("manifests")).unwrap().count(), manifests);
    assert_eq!(std::fs::read_dir(place.path().join("chunks")).unwrap().count(), objects.len());
    assert_eq!(reference_keys(place.path()).await, model.keys());
}

#[tokio::test]
async fn change_sets_that_would_break_a_snapshot_are_refused() {
    let (_place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.array("/a", &[3]);
    lab.commit_first(&model).await;
    let base = lab.tip().await;
    let id = model.at("/a").unwrap();
    let refused = async |change: &dyn Fn(&mut ChangeSet)| {
        let mut changes = ChangeSet::default();
        change(&mut changes);
        lab.commit(&base, &changes).await.unwrap_err()
    };
    let written = |path: &str, id, zarr_json: &'static str, is_array| WrittenNode {
        id,
        path: path.into(),
        zarr_json: Bytes::from_static(zarr_json.as_bytes()),
        is_array,
    };
    let fresh = NodeId([9; 8]);
    let file = || ChunkChange::File(lab.scratch.file(b"x"));
    let kinds = [
        refused(&|c| c.created.push(written("/a", fresh, GROUP, false))).await,
        refused(&|c| c.created.push(written("/b/", fresh, GROUP, false))).await,
        refused(&|c| c.created.push(written("/b//c", fresh, GROUP, false))).await,
        refused(&|c| c.created.push(written("/b", fresh, "{}", true))).await,
        refused(&|c| c.updated.push(written("/a", id, "{", true))).await,
        refused(&|c| c.updated.push(written("/a", id, GROUP, false))).await,
        refused(&|c| c.updated.push(written("/a", fresh, GROUP, false))).await,
        refused(&|c| drop(c.chunks.entry(id).or_default().insert(Coords::from_slice(&[3]), file()))).await,
        refused(&|c| drop(c.chunks.entry(id).or_default().insert(Coords::from_slice(&[0, 0]), file()))).await,
        refused(&|c| drop(c.chunks.entry(fresh).or_default().insert(Coords::from_slice(&[0]), file()))).await,
    ];
    for error in &kinds {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(lab.tip().await.id(), base.id());
    // A file that does not have the stated length.
    let mut changes = ChangeSet::default();
    let mut wrong = lab.scratch.file(b"four");
    wrong.length = 3;
    changes.chunks.entry(id).or_default().insert(Coords::from_slice(&[0]), ChunkChange::File(wrong));
    assert_eq!(lab.commit(&base, &changes).await.unwrap_err().kind(), ErrorKind::Busy);
    // Nothing changed.
    let mut nothing = ChangeSet::default();
    let node = base.nodes().next().unwrap();
    nothing.updated.push(WrittenNode {
        id,
        path: "/a".into(),
        zarr_json: Bytes::copy_from_slice(node.zarr_json),
        is_array: true,
    });
    assert_eq!(lab.commit(&base, &nothing).await.unwrap(), CommitOutcome::Nothing);
}
