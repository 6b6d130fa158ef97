//! Commits onto a branch that has moved: disjoint changes are merged, conflicts are reported, and
//! no race loses a commit.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::lab::{
    self, Lab, Model, expire_before, history, main_branch, new_lab, reference_keys, reopen, request, request_with,
    session_on,
};
use crate::common::lengths::length;
use crate::common::{all_together, block_on, fsck};
use bytes::Bytes;
use icechunk::conflicts::detector::ConflictDetector;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::changes::ChangeSet;
use icechunkfs::commit::conflict::{Conflict, ConflictKind};
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, OnConflict, Request};
use icechunkfs::commit::rebase;
use icechunkfs::commit::settlements::Settlements;
use icechunkfs::error::ErrorKind;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::snapshot::Snapshot;
use icechunkfs::repo::history::commits_after;
use icechunkfs::repo::update;
use icechunkfs::times::system_clock;

/// A repository with a few nodes that two sides change.
struct Table {
    place: tempfile::TempDir,
    base: Arc<Snapshot>,
    model: Model,
    lab: Lab,
}

async fn table(version: SpecVersionBin) -> Table {
    let (place, lab) = new_lab(version).await;
    let mut model = Model::default();
    model.group("/");
    model.group("/g");
    model.group("/g/h");
    model.array("/g/x", &[8]);
    model.array("/g/h/y", &[8]);
    model.array("/z", &[8]);
    model.group("/other");
    for path in ["/g/x", "/g/h/y", "/z"] {
        (0..6).for_each(|n| model.chunk(path, &[n], format!("{path} {n}")));
    }
    lab.commit_first(&model).await;
    let base = lab.tip().await;
    Table { place, base, model, lab }
}

type Edit = fn(&mut Model);

/// Returns the result of two edits: both sides commit from one base, `theirs` first.
async fn both(
    version: SpecVersionBin,
    theirs: Edit,
    ours: Edit,
    on_conflict: OnConflict,
) -> (Table, CommitOutcome, Model) {
    after(version, &[theirs], ours, on_conflict).await
}

/// Commits each of `theirs`, one after another, and then `ours`, made for the commit before all of
/// them.
async fn after(
    version: SpecVersionBin,
    theirs: &[Edit],
    ours: Edit,
    on_conflict: OnConflict,
) -> (Table, CommitOutcome, Model) {
    let table = table(version).await;
    let mut their_model = table.model.clone();
    for edit in theirs {
        let before = their_model.clone();
        edit(&mut their_model);
        table.lab.commit_model(&before, &their_model).await;
        their_model.take_ids(&*table.lab.tip().await);
    }
    let mut our_model = table.model.clone();
    ours(&mut our_model);
    let lab = Lab::open(table.place.path());
    let changes = our_model.changes_since(&table.model, &lab.scratch);
    let settlements = Settlements::from(on_conflict);
    let compared = lab.engine.check(&table.base, "main", &changes, &settlements).await.unwrap().unwrap();
    assert_eq!(compared.commits.len(), theirs.len());
    let request = Request { settlements, ..request("ours") };
    let outcome = lab.commit_as(&table.base, &changes, request).await.unwrap();
    match &outcome {
        CommitOutcome::Conflicts(conflicts) => {
            assert_eq!(conflicts, &compared.conflicts);
            assert_eq!(reference_keys(table.place.path()).await, their_model.keys(), "nothing was committed");
        }
        CommitOutcome::Committed { rebased_over, .. } => {
            assert_eq!(rebased_over, &compared.commits);
            fsck::check(table.place.path(), version);
        }
        CommitOutcome::Nothing => {}
    }
    (table, outcome, their_model)
}

async fn conflicts(theirs: Edit, ours: Edit) -> Vec<(ConflictKind, String)> {
    conflicts_in(SpecVersionBin::V2, theirs, ours).await
}

async fn conflicts_in(version: SpecVersionBin, theirs: Edit, ours: Edit) -> Vec<(ConflictKind, String)> {
    match both(version, theirs, ours, OnConflict::Fail).await.1 {
        CommitOutcome::Conflicts(all) => {
            for conflict in &all {
                assert!(conflict.message == "a commit" && !conflict.path.is_empty(), "{conflict:?}");
            }
            all.into_iter().map(|conflict| (conflict.kind, conflict.path)).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// Checks that both edits are merged into the tree that `theirs` and then `ours` make of the base.
async fn merges(theirs: Edit, ours: Edit) {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        commits(version, &[theirs], ours, OnConflict::Fail, ours).await;
    }
}

/// Checks that `ours` is committed over `theirs`, and that the branch then has `expected` on top of
/// theirs.
async fn commits(version: SpecVersionBin, theirs: &[Edit], ours: Edit, on_conflict: OnConflict, expected: Edit) {
    let (table, outcome, mut tree) = after(version, theirs, ours, on_conflict).await;
    assert!(matches!(outcome, CommitOutcome::Committed { .. }), "{outcome:?}");
    expected(&mut tree);
    assert_eq!(reference_keys(table.place.path()).await, tree.keys(), "{version:?}");
}

#[tokio::test]
async fn disjoint_changes_are_merged() {
    merges(|m| m.chunk("/z", &[0], "theirs"), |m| m.chunk("/z", &[1], "ours")).await;
    merges(|m| m.chunk("/z", &[0], "theirs"), |m| m.chunk("/g/x", &[0], "ours")).await;
    merges(|m| m.group("/a").0.fill(0), |m| m.group("/b").0.fill(0)).await;
    merges(|m| m.delete("/z"), |m| m.chunk("/g/x", &[0], "ours")).await;
    merges(|m| m.chunk("/g/x", &[0], "theirs"), |m| m.delete("/z")).await;
    merges(|m| m.resize("/z", &[4]), |m| m.resize("/g/x", &[3])).await;
    // They wrote a chunk that stays, we changed the shape.
    merges(|m| m.chunk("/z", &[1], "theirs"), |m| m.resize("/z", &[4])).await;
    // Both deleted the same: nothing or less is left to commit.
    let delete_g = |m: &mut Model| m.delete("/g");
    let (_, outcome, _) = both(SpecVersionBin::V2, delete_g, delete_g, OnConflict::Fail).await;
    assert_eq!(outcome, CommitOutcome::Nothing);
    merges(
        |m| m.delete("/g/h"),
        |m| {
            m.delete("/g");
            m.delete("/z");
        },
    )
    .await;
    // Different arrays, and a new one in a group that they only wrote into.
    merges(|m| m.chunk("/g/x", &[0], "theirs"), |m| m.array("/g/new", &[2]).0.fill(0)).await;
}

#[tokio::test]
async fn moved_nodes_keep_concurrent_writes() {
    // We move, they write below: nodes keep their ids, so their chunks are found at the new place.
    merges(|m| m.chunk("/g/h/y", &[0], "theirs"), |m| m.rename("/g", "/moved")).await;
    merges(|m| m.resize("/g/x", &[4]), |m| m.rename("/g", "/moved")).await;
    // They move, we work elsewhere.
    merges(|m| m.rename("/g", "/moved"), |m| m.chunk("/z", &[0], "ours")).await;
    merges(|m| m.rename("/g/h", "/h"), |m| m.array("/g/new", &[2]).0.fill(0)).await;
    merges(|m| m.rename("/g/h", "/h"), |m| m.rename("/z", "/other/z")).await;
    // They move a node away, we move one into its place.
    merges(|m| m.rename("/z", "/a"), |m| m.rename("/other", "/b")).await;
}

#[tokio::test]
async fn every_kind_of_conflict_is_detected() {
    use ConflictKind::*;
    let one = |kind, path: &str| vec![(kind, path.to_owned())];
    let z0 = |m: &mut Model| m.chunk("/z", &[0], "theirs");
    assert_eq!(conflicts(z0, |m| m.chunk("/z", &[0], "ours")).await, one(ChunkDoubleUpdate, "/z"));
    assert_eq!(conflicts(z0, |m| drop(m.get("/z").chunks.remove(&vec![0]))).await, one(ChunkDoubleUpdate, "/z"));
    assert_eq!(conflicts(z0, |m| m.delete("/z")).await, one(DeleteOfUpdatedArray, "/z"));
    let touch_g = |m: &mut Model| set(m, "/g", "x", 1);
    let touch_g_too = |m: &mut Model| set(m, "/g", "x", 2);
    let touch_z = |m: &mut Model| set(m, "/z", "x", 1);
    let touch_z_too = |m: &mut Model| set(m, "/z", "x", 2);
    assert_eq!(conflicts(touch_z, touch_z_too).await, one(ZarrMetadataDoubleUpdate, "/z"));
    assert_eq!(conflicts(touch_g, touch_g_too).await, one(ZarrMetadataDoubleUpdate, "/g"));
    assert_eq!(conflicts(touch_z, |m| m.delete("/z")).await, one(DeleteOfUpdatedArray, "/z"));
    assert_eq!(conflicts(touch_g, |m| m.delete("/g")).await, one(DeleteOfUpdatedGroup, "/g"));
    let del_z = |m: &mut Model| m.delete("/z");
    assert_eq!(conflicts(del_z, touch_z).await, one(ZarrMetadataUpdateOfDeletedArray, "/z"));
    assert_eq!(conflicts(del_z, |m| m.chunk("/z", &[7], "ours")).await, one(ChunksUpdatedInDeletedArray, "/z"));
    assert_eq!(conflicts(|m| m.delete("/g"), touch_g).await, one(ZarrMetadataUpdateOfDeletedGroup, "/g"));
    let new = |m: &mut Model| m.group("/new").0.fill(0);
    assert_eq!(conflicts(new, new).await, one(NewNodeConflictsWithExistingNode, "/new"));
    assert_eq!(
        conflicts(|m| m.group("/new/below").0.fill(0), |m| m.array("/new", &[2]).0.fill(0)).await,
        one(NewNodeInInvalidGroup, "/new/below")
    );
    assert_eq!(
        conflicts(|m| m.array("/new", &[2]).0.fill(0), |m| m.group("/new/below").0.fill(0)).await,
        one(NewNodeInInvalidGroup, "/new/below")
    );
    // Conflicts that the reference does not detect: changes in a group that the other side removed.
    let new_in_g = |m: &mut Model| m.group("/g/h/new").0.fill(0);
    assert_eq!(conflicts(new_in_g, |m| m.delete("/g")).await, one(NewNodeInDeletedGroup, "/g/h/new"));
    assert_eq!(conflicts(|m| m.delete("/g"), new_in_g).await, one(NewNodeInDeletedGroup, "/g/h/new"));
    // Deleted and made again is another group.
    let again = |m: &mut Model| {
        m.delete("/g");
        m.group("/g");
    };
    assert_eq!(conflicts(new_in_g, again).await, one(NewNodeInDeletedGroup, "/g/h/new"));
    assert_eq!(conflicts(again, new_in_g).await, one(NewNodeInDeletedGroup, "/g/h/new"));
    // Chunks for which the new shape has no place, or another meaning.
    let last = |m: &mut Model| m.chunk("/z", &[7], "theirs");
    assert_eq!(conflicts(last, |m| m.resize("/z", &[7])).await, one(ChunksUpdatedOutsideNewShape, "/z"));
    let recoded = |m: &mut Model| {
        let document = m.get("/z").zarr_json.replace("\"uint8\"", "\"int8\"");
        m.get("/z").zarr_json = document;
    };
    assert_eq!(conflicts(last, recoded).await, one(ChunksUpdatedOutsideNewShape, "/z"));
    let last = |m: &mut Model| m.chunk("/z", &[7], "ours");
    assert_eq!(conflicts(|m| m.resize("/z", &[7]), last).await, one(ChunksUpdatedInUpdatedArray, "/z"));
    assert_eq!(conflicts(recoded, last).await, one(ChunksUpdatedInUpdatedArray, "/z"));
    assert_eq!(conflicts(recoded, |m| m.chunk("/z", &[0], "ours")).await, one(ChunksUpdatedInUpdatedArray, "/z"));
    // Each appended something else.
    let grown = |m: &mut Model| grow(m, "/z", &[9]);
    assert_eq!(conflicts(grown, |m| grow(m, "/z", &[10])).await, one(ZarrMetadataDoubleUpdate, "/z"));
    let appended = |m: &mut Model| {
        grow(m, "/z", &[9]);
        m.chunk("/z", &[8], "ours");
    };
    let other = |m: &mut Model| {
        grow(m, "/z", &[9]);
        m.chunk("/z", &[8], "theirs");
    };
    assert_eq!(conflicts(other, appended).await, one(ChunkDoubleUpdate, "/z"));
}

/// Sets an attribute, as the last one.
fn set(model: &mut Model, path: &str, name: &str, value: u32) {
    let node = model.get(path);
    let mut document: serde_json::Value = serde_json::from_str(&node.zarr_json).unwrap();
    document["attributes"][name] = value.into();
    node.zarr_json = document.to_string();
}

/// Gives an array another shape, and leaves the rest of its document as it is.
fn grow(model: &mut Model, path: &str, grid: &[u32]) {
    let node = model.get(path);
    let mut document: serde_json::Value = serde_json::from_str(&node.zarr_json).unwrap();
    document["shape"] = grid.into();
    node.zarr_json = document.to_string();
    node.grid = Some(grid.to_vec());
}

#[tokio::test]
async fn chunks_go_with_a_document_that_leaves_them_their_places_and_meaning() {
    let first = |m: &mut Model| m.chunk("/z", &[0], "first");
    let append = |m: &mut Model| {
        grow(m, "/z", &[9]);
        m.chunk("/z", &[8], "appended");
    };
    merges(append, first).await;
    merges(first, append).await;
    let shrink = |m: &mut Model| m.resize("/z", &[4]);
    merges(shrink, first).await;
    merges(|m| set(m, "/z", "units", 1), first).await;
    // A chunk that one side deletes may be beyond the shape of the other.
    merges(shrink, |m| drop(m.get("/z").chunks.remove(&vec![5]))).await;
}

#[tokio::test]
async fn changes_of_different_members_of_a_document_are_merged() {
    merges(|m| set(m, "/z", "x", 1), |m| set(m, "/z", "y", 2)).await;
    merges(|m| set(m, "/g", "x", 1), |m| set(m, "/g", "y", 2)).await;
    merges(|m| grow(m, "/z", &[9]), |m| set(m, "/z", "y", 2)).await;
    merges(|m| set(m, "/z", "x", 1), |m| grow(m, "/z", &[9])).await;
    let append = |m: &mut Model| {
        grow(m, "/z", &[9]);
        m.chunk("/z", &[8], "appended");
    };
    let correct = |m: &mut Model| {
        set(m, "/z", "y", 2);
        m.chunk("/z", &[0], "corrected");
    };
    merges(append, correct).await;
    merges(correct, append).await;
    // The same on both sides, and something else on one.
    let more = |m: &mut Model| {
        set(m, "/z", "x", 1);
        set(m, "/z", "y", 2);
    };
    merges(|m| set(m, "/z", "x", 1), more).await;
    let (_, outcome, _) = both(SpecVersionBin::V2, more, |m| set(m, "/z", "x", 1), OnConflict::Fail).await;
    assert_eq!(outcome, CommitOutcome::Nothing);
}

#[tokio::test]
async fn moves_that_collide_are_conflicts() {
    use ConflictKind::*;
    let one = |kind, path: &str| vec![(kind, path.to_owned())];
    let mv = |m: &mut Model| m.rename("/g/h", "/h");
    assert_eq!(conflicts(mv, |m| m.chunk("/g/h/y", &[0], "ours")).await, one(MoveOperationCannotBeRebased, "/g/h/y"));
    assert_eq!(conflicts(mv, |m| m.get("/g/h").zarr_json += " ").await, one(MoveOperationCannotBeRebased, "/g/h"));
    assert!(conflicts(mv, |m| m.delete("/g")).await.contains(&(MoveOperationCannotBeRebased, "/g/h".into())));
    assert!(conflicts(mv, |m| m.rename("/g/h", "/k")).await.contains(&(MoveOperationCannotBeRebased, "/g/h".into())));
    assert_eq!(conflicts(mv, |m| m.group("/g/h/new").0.fill(0)).await, one(NewNodeInDeletedGroup, "/g/h/new"));
    assert_eq!(conflicts(mv, |m| m.group("/h").0.fill(0)).await, one(NewNodeConflictsWithExistingNode, "/h"));
    assert_eq!(conflicts(|m| m.group("/h").0.fill(0), mv).await, one(NewNodeConflictsWithExistingNode, "/h"));
    assert_eq!(conflicts(|m| m.group("/g/h/new").0.fill(0), mv).await, one(NewNodeInDeletedGroup, "/g/h/new"));
    assert_eq!(conflicts(|m| m.delete("/g/h/y"), mv).await, one(MoveOperationCannotBeRebased, "/g/h/y"));
    assert_eq!(
        conflicts(|m| m.delete("/other"), |m| m.rename("/z", "/other/z")).await,
        one(NewNodeInDeletedGroup, "/other/z")
    );
    assert_eq!(
        conflicts(|m| m.rename("/z", "/other/z"), |m| m.delete("/other")).await,
        one(NewNodeInDeletedGroup, "/other/z")
    );
}

#[tokio::test]
async fn moves_conflict_with_deletions_and_moves_in_both_versions() {
    use ConflictKind::*;
    let moved = |path: &str| (MoveOperationCannotBeRebased, path.to_owned());
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let move_z: Edit = |m| m.rename("/z", "/other/z");
        let move_g: Edit = |m| m.rename("/g", "/moved");
        let found = conflicts_in(version, |m| m.delete("/z"), move_z).await;
        assert_eq!(found, [moved("/z")], "{version:?}");
        let found = conflicts_in(version, |m| m.delete("/g/h/y"), move_g).await;
        assert!(found.contains(&moved("/g/h/y")), "{version:?}: {found:?}");
        let found = conflicts_in(version, |m| m.rename("/z", "/elsewhere"), move_z).await;
        assert!(found.contains(&moved("/z")), "{version:?}: {found:?}");
        let found = conflicts_in(version, |m| m.rename("/g/h", "/h"), move_g).await;
        assert!(found.contains(&moved("/g/h/y")), "{version:?}: {found:?}");
        let exchange: Edit = |m| {
            m.rename("/z", "/aside");
            m.rename("/g/x", "/z");
            m.rename("/aside", "/g/x");
        };
        let found = conflicts_in(version, exchange, move_z).await;
        assert!(found.contains(&moved("/z")), "{version:?}: {found:?}");
        let found = conflicts_in(version, exchange, move_g).await;
        assert!(found.contains(&moved("/g/x")), "{version:?}: {found:?}");
        // Deleted and made anew is another array.
        let again: Edit = |m| {
            m.delete("/z");
            m.array("/z", &[8]);
        };
        let found = conflicts_in(version, again, move_z).await;
        assert!(found.contains(&moved("/z")), "{version:?}: {found:?}");
    }
}

/// Version 1 stores every move as a deletion and a new node, version 2 one that the format does not
/// allow.
#[tokio::test]
async fn a_deletion_conflicts_with_a_move_that_is_stored_as_a_new_node() {
    let moved = |path: &str| (ConflictKind::MoveOperationCannotBeRebased, path.to_owned());
    let into_plain: Edit = |m| m.rename("/z", "/plain/z");
    let onto_deleted: Edit = |m| {
        m.delete("/g/x");
        m.rename("/z", "/g/x");
    };
    let delete_z: Edit = |m| m.delete("/z");
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        for theirs in [into_plain, onto_deleted] {
            assert_eq!(conflicts_in(version, theirs, delete_z).await, [moved("/z")], "{version:?}");
        }
        let found = conflicts_in(version, |m| m.rename("/g/h", "/plain/h"), |m| m.delete("/g")).await;
        assert!([moved("/g/h"), moved("/g/h/y")].iter().all(|one| found.contains(one)), "{version:?}: {found:?}");
        // Each of several commits moves it.
        let again: Edit = |m| m.rename("/plain/z", "/other directory/z");
        let (_, outcome, _) = after(version, &[into_plain, again], delete_z, OnConflict::Theirs).await;
        let CommitOutcome::Conflicts(all) = outcome else { panic!("{version:?}: {outcome:?}") };
        assert_eq!(all.iter().map(|one| (one.kind, one.path.clone())).collect::<Vec<_>>(), [moved("/z")]);
        // In the end it is deleted on both sides, whatever has its name now.
        let anew: Edit = |m| {
            m.delete("/plain/z");
            m.array("/z", &[8]);
            m.array("/plain/z", &[8]);
        };
        let (_, outcome, _) = after(version, &[into_plain, anew], delete_z, OnConflict::Fail).await;
        assert_eq!(outcome, CommitOutcome::Nothing, "{version:?}");
    }
}

/// B1, B2 in two commits and A1, A2, A3.
#[tokio::test]
async fn theirs_resolves_conflicts_with_every_newer_commit() {
    let theirs: [Edit; 2] = [|m| m.chunk("/z", &[1], "B1"), |m| m.chunk("/z", &[2], "B2")];
    let ours: Edit = |m| (1..4).for_each(|n| m.chunk("/z", &[n], format!("A{n}")));
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (table, outcome, _) = after(version, &theirs, ours, OnConflict::Fail).await;
        let CommitOutcome::Conflicts(all) = outcome else { panic!("{outcome:?}") };
        let repository = table.lab.repository().await;
        let newer = commits_after(&repository, table.base.id(), table.lab.tip().await.id()).await.unwrap();
        let newer: Vec<ObjectId> = newer.unwrap().into_iter().map(|commit| commit.id).collect();
        let told: Vec<_> = all.iter().map(|conflict| (conflict.other, conflict.coords.clone())).collect();
        assert_eq!(told, [(newer[0], vec![vec![1]]), (newer[1], vec![vec![2]])]);

        commits(version, &theirs, ours, OnConflict::Theirs, |m| m.chunk("/z", &[3], "A3")).await;
        commits(version, &theirs, ours, OnConflict::Ours, ours).await;
    }
}

#[tokio::test]
async fn theirs_keeps_chunks_deleted_that_several_commits_deleted() {
    let theirs: [Edit; 2] = [
        |m| m.get("/z").chunks.retain(|coords, _| coords[0] > 2),
        |m| m.get("/z").chunks.retain(|coords, _| coords[0] > 5),
    ];
    let ours: Edit = |m| {
        m.chunk("/z", &[0], "A0");
        m.chunk("/z", &[4], "A4");
        m.chunk("/z", &[7], "A7");
    };
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        commits(version, &theirs, ours, OnConflict::Theirs, |m| m.chunk("/z", &[7], "A7")).await;
    }
}

#[tokio::test]
async fn a_chunk_deleted_on_both_sides_is_no_conflict() {
    let delete: Edit = |m| drop(m.get("/z").chunks.remove(&vec![0]));
    let write: Edit = |m| m.chunk("/z", &[0], "B0");
    let ours: Edit = |m| {
        m.get("/z").chunks.retain(|coords, _| coords[0] > 1);
        m.chunk("/z", &[7], "A7");
    };
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        for theirs in [vec![delete], vec![write, delete]] {
            let (table, outcome, mut expected) = after(version, &theirs, ours, OnConflict::Fail).await;
            let CommitOutcome::Committed { snapshot, .. } = outcome else { panic!("{version:?}: {outcome:?}") };
            ours(&mut expected);
            assert_eq!(reference_keys(table.place.path()).await, expected.keys(), "{version:?}");
            // A chunk that was already deleted is no change of the new commit.
            let log = rebase::read_log(&*table.lab.storage, snapshot).await.unwrap();
            let changed: Vec<Vec<u32>> =
                log.updated_chunks().flat_map(|(_, chunks)| chunks.map(|one| one.coords().collect())).collect();
            assert_eq!(changed, [[1], [7]]);
        }
        let (_, outcome, _) = both(version, delete, delete, OnConflict::Fail).await;
        assert_eq!(outcome, CommitOutcome::Nothing);
        // A chunk that was deleted and written again exists.
        let (_, outcome, _) = after(version, &[delete, write], ours, OnConflict::Fail).await;
        let CommitOutcome::Conflicts(all) = outcome else { panic!("{outcome:?}") };
        assert!(all.iter().all(|conflict| conflict.coords == [[0]]), "{all:?}");
    }
}

#[tokio::test]
async fn on_conflict_resolves_chunk_conflicts() {
    let theirs: Edit = |m| {
        m.chunk("/z", &[0], "theirs");
        m.chunk("/z", &[1], "theirs");
    };
    let ours: Edit = |m| {
        m.chunk("/z", &[1], "ours");
        m.chunk("/z", &[2], "ours");
    };
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        commits(version, &[theirs], ours, OnConflict::Ours, ours).await;
        commits(version, &[theirs], ours, OnConflict::Theirs, |m| m.chunk("/z", &[2], "ours")).await;
        // All of our changes yield: nothing is left to commit.
        let (table, outcome, expected) =
            both(version, theirs, |m| m.chunk("/z", &[1], "ours"), OnConflict::Theirs).await;
        assert_eq!(outcome, CommitOutcome::Nothing);
        assert_eq!(reference_keys(table.place.path()).await, expected.keys());
        // Other conflicts are not resolved.
        let (_, outcome, _) = both(version, theirs, |m| m.delete("/z"), OnConflict::Ours).await;
        let CommitOutcome::Conflicts(all) = outcome else { panic!("{outcome:?}") };
        assert!(matches!(all.as_slice(), [Conflict { coords, .. }] if *coords == [[0], [1]]), "{all:?}");
    }
}

#[tokio::test]
async fn a_commit_rebases_over_commits_of_the_reference() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let table = table(version).await;
        let (session, store) = session_on(&reopen(table.place.path()).await, "main").await;
        store.set("z/c/0", Bytes::from_static(b"theirs")).await.unwrap();
        store.set("new/zarr.json", Bytes::from_static(lab::GROUP.as_bytes())).await.unwrap();
        session.write().await.commit("theirs").execute().await.unwrap();
        let mut ours = table.model.clone();
        ours.chunk("/z", &[1], "ours");
        let changes = ours.changes_since(&table.model, &table.lab.scratch);
        let outcome = table.lab.commit(&table.base, &changes).await.unwrap();
        assert!(matches!(outcome, CommitOutcome::Committed { rebased_over, .. } if rebased_over.len() == 1));
        let mut expected = ours.clone();
        expected.chunk("/z", &[0], "theirs");
        expected.group("/new");
        assert_eq!(reference_keys(table.place.path()).await, expected.keys());
        // The same bytes once more are no change, and others a conflict.
        let outcome = table.lab.commit(&table.base, &changes).await.unwrap();
        assert_eq!(outcome, CommitOutcome::Nothing);
        ours.chunk("/z", &[1], "ours again");
        let changes = ours.changes_since(&table.model, &table.lab.scratch);
        let outcome = table.lab.commit(&table.base, &changes).await.unwrap();
        let CommitOutcome::Conflicts(all) = outcome else { panic!("{outcome:?}") };
        assert_eq!((all[0].kind, all[0].coords.as_slice()), (ConflictKind::ChunkDoubleUpdate, [vec![1]].as_slice()));
    }
}

#[tokio::test]
async fn commits_to_a_deleted_or_reset_branch_are_refused() {
    let table = table(SpecVersionBin::V2).await;
    let repository = reopen(table.place.path()).await;
    let mut ours = table.model.clone();
    ours.chunk("/z", &[1], "ours");
    let changes = ours.changes_since(&table.model, &table.lab.scratch);
    let infos = repository.resolve_version(&main_branch()).await;
    let tip = infos.unwrap();
    repository.create_branch("side", &tip).await.unwrap();
    let on_side = Request { branch: "side".into(), ..request("side") };
    let amend = Request { amend: true, ..on_side.clone() };
    repository.delete_branch("side").await.unwrap();
    let gone = table.lab.commit_as(&table.base, &changes, on_side.clone()).await.unwrap_err();
    assert!(gone.kind() == ErrorKind::Stale && gone.to_string().contains("has been deleted"), "{gone}");
    repository.create_branch("side", &tip).await.unwrap();
    let first = "1CECHNKREP0F1RSTCMT0".try_into().unwrap();
    repository.reset_branch("side", &first, None).await.unwrap();
    let reset = table.lab.commit_as(&table.base, &changes, on_side).await.unwrap_err();
    assert!(reset.kind() == ErrorKind::Stale && reset.to_string().contains("has been reset"), "{reset}");
    let compared = table.lab.engine.check(&table.base, "side", &changes, &Settlements::default()).await;
    assert_eq!(compared.unwrap_err().kind(), ErrorKind::Stale);
    let reset = table.lab.commit_as(&table.base, &changes, amend).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::Stale);
    // Amending anything but the newest commit, or the first, is refused.
    table.lab.commit(&table.base, &changes).await.unwrap();
    let amend = Request { amend: true, ..request("amend") };
    let moved = table.lab.commit_as(&table.base, &changes, amend.clone()).await.unwrap_err();
    assert!(moved.kind() == ErrorKind::Stale && moved.to_string().contains("newer commit"), "{moved}");
    let (_fresh, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    model.group("/");
    let changes = model.changes_since(&Model::default(), &lab.scratch);
    let refused = lab.commit_as(&lab.tip().await, &changes, amend).await.unwrap_err();
    assert!(refused.to_string().contains("first commit"), "{refused}");
}

/// As after a merge of the same commits.
#[tokio::test]
async fn a_node_whose_id_is_there_already_is_not_made_again() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        for is_deleted in [false, true] {
            let table = table(version).await;
            let mut theirs = table.model.clone();
            theirs.array("/n", &[2]);
            let changes = theirs.changes_since(&table.model, &table.lab.scratch);
            table.lab.commit(&table.base, &changes).await.unwrap();
            let before = theirs.clone();
            if is_deleted {
                theirs.delete("/n")
            } else {
                theirs.rename("/n", "/m")
            }
            table.lab.commit_model(&before, &theirs).await;
            let lab = Lab::open(table.place.path());
            let outcome = lab.commit(&table.base, &changes).await.unwrap();
            let CommitOutcome::Conflicts(all) = outcome else { panic!("{version}: {outcome:?}") };
            let found: Vec<_> = all.iter().map(|conflict| (conflict.kind, conflict.path.as_str())).collect();
            assert_eq!(found, [(ConflictKind::NewNodeConflictsWithExistingNode, "/n")], "{version}");
        }
    }
}

/// Expiration has removed the base and all commits up to the tip: their logs still have the
/// changes.
#[tokio::test]
async fn a_commit_rebases_over_expired_commits_by_their_logs() {
    let table = table(SpecVersionBin::V2).await;
    let mut theirs = table.model.clone();
    for n in 0..3 {
        let before = theirs.clone();
        theirs.chunk("/z", &[n], format!("theirs {n}"));
        table.lab.commit_model(&before, &theirs).await;
    }
    expire_before(table.place.path(), 0).await;
    assert_eq!(history(table.place.path()).await.len(), 2);
    let lab = Lab::open(table.place.path());
    let mut ours = table.model.clone();
    ours.chunk("/z", &[1], "ours");
    let changes = ours.changes_since(&table.model, &lab.scratch);
    let outcome = lab.commit(&table.base, &changes).await.unwrap();
    let CommitOutcome::Conflicts(all) = outcome else { panic!("{outcome:?}") };
    assert_eq!(all[0].coords, [[1]]);
    let mut ours = table.model.clone();
    ours.chunk("/z", &[5], "ours");
    let changes = ours.changes_since(&table.model, &lab.scratch);
    let outcome = lab.commit(&table.base, &changes).await.unwrap();
    assert!(matches!(outcome, CommitOutcome::Committed { .. }), "{outcome:?}");
    theirs.chunk("/z", &[5], "ours");
    assert_eq!(reference_keys(table.place.path()).await, theirs.keys());
}

/// Another writer is always faster.
#[tokio::test]
async fn losing_every_race_is_contended_and_not_already_exists() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let table = table(version).await;
        let lab = Lab::with(table.place.path(), EngineOptions { max_rebases: 2, ..EngineOptions::default() });
        let place = table.place.path().to_owned();
        let theirs = Arc::new(Mutex::new(table.model.clone()));
        let faster = move |_| {
            let place = place.clone();
            let theirs = Arc::clone(&theirs);
            let commit = move || {
                let mut theirs = theirs.lock().unwrap();
                let before = theirs.clone();
                let n = theirs.nodes.len();
                theirs.group(&format!("/theirs{n}"));
                block_on(Lab::open(&place).commit_model(&before, &theirs));
            };
            std::thread::spawn(commit).join().unwrap();
            Ok(())
        };
        let mut ours = table.model.clone();
        ours.chunk("/z", &[1], "ours");
        let changes = ours.changes_since(&table.model, &lab.scratch);
        let lost = lab.commit_as(&table.base, &changes, request_with("slow", faster)).await.unwrap_err();
        assert_eq!((lost.kind(), lost.errno()), (ErrorKind::Contended, libc::EBUSY), "{lost}");
    }
}

const WRITERS: u32 = 8;

/// Lets each of `WRITERS` threads, which share nothing, run `work` with its number.
fn race<T: Send>(place: &Path, work: impl AsyncFn(u32, Lab) -> T + Sync) -> Vec<T> {
    all_together(&[(); WRITERS as usize], |n, ()| block_on(work(n as u32, Lab::open(place))))
}

async fn arena(version: SpecVersionBin) -> (tempfile::TempDir, Model) {
    let (place, lab) = new_lab(version).await;
    let mut model = Model::default();
    for writer in 0..WRITERS {
        model.array(&format!("/a{writer}"), &[200]);
    }
    model.array("/shared", &[20]);
    model.array("/common", &[WRITERS * 200]);
    lab.commit_first(&model).await;
    (place, model)
}

/// Disjoint arrays, and disjoint chunks of one: all commits are in the history, and no chunk is
/// lost.
#[test]
fn no_disjoint_commit_is_lost_in_a_race() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, model) = runtime.block_on(arena(version));
        let start = model.clone();
        let count = length("ICECHUNKFS_RACE_COMMITS", 8, 25) as u32;
        race(place.path(), async |writer, lab: Lab| {
            let mut mine = start.clone();
            for n in 0..count {
                // Each continues from its own last commit, which is long outdated.
                let before = mine.clone();
                mine.chunk(&format!("/a{writer}"), &[n], format!("{writer} {n}").repeat(200));
                // One array of all, in which each has its own chunks: all share its one manifest.
                mine.chunk("/common", &[n * WRITERS + writer], format!("{writer} {n}"));
                let changes = mine.changes_since(&before, &lab.scratch);
                let base = lab.tip().await;
                let outcome = lab.commit_as(&base, &changes, request(&format!("{writer}.{n}"))).await.unwrap();
                assert!(matches!(outcome, CommitOutcome::Committed { .. }), "{outcome:?}");
            }
        });
        let mut expected = model.clone();
        for (writer, n) in (0..WRITERS).flat_map(|writer| (0..count).map(move |n| (writer, n))) {
            expected.chunk(&format!("/a{writer}"), &[n], format!("{writer} {n}").repeat(200));
            expected.chunk("/common", &[n * WRITERS + writer], format!("{writer} {n}"));
        }
        runtime.block_on(async {
            assert_eq!(reference_keys(place.path()).await, expected.keys());
            let messages: BTreeSet<String> = history(place.path()).await.into_iter().collect();
            assert_eq!(messages.len(), (WRITERS * count) as usize + 2);
        });
        fsck::check(place.path(), version);
    }
}

/// Overlapping chunks: each commit is in the history or was reported as a conflict, and each chunk
/// has the bytes of the last commit in the history that wrote it.
#[test]
fn overlapping_commits_in_a_race_are_kept_or_reported() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, model) = runtime.block_on(arena(version));
        let start = model.clone();
        let count = length("ICECHUNKFS_RACE_COMMITS", 8, 25) as u32;
        let outcomes = race(place.path(), async |writer, lab: Lab| {
            let mut outcomes = BTreeMap::new();
            for n in 0..count {
                let name = format!("{writer}.{n}");
                let mut mine = start.clone();
                mine.chunk("/shared", &[(writer + n * 3) % 20], name.clone());
                mine.chunk("/shared", &[(writer + n * 5 + 1) % 20], name.clone());
                let changes = mine.changes_since(&start, &lab.scratch);
                let outcome = lab.commit_as(&lab.tip().await, &changes, request(&name)).await.unwrap();
                outcomes.insert(name, matches!(outcome, CommitOutcome::Committed { .. }));
            }
            outcomes
        });
        let outcomes: BTreeMap<String, bool> = outcomes.into_iter().flatten().collect();
        let (messages, keys) =
            runtime.block_on(async { (history(place.path()).await, reference_keys(place.path()).await) });
        let committed: BTreeSet<&String> = outcomes.iter().filter(|(_, done)| **done).map(|(name, _)| name).collect();
        let known: BTreeSet<&String> = messages.iter().filter(|message| message.contains('.')).collect();
        assert_eq!(known, committed);
        assert!(committed.len() > 20, "{} commits", committed.len());
        let mut last: BTreeMap<u32, &String> = BTreeMap::new();
        for message in messages.iter().filter(|message| message.contains('.')) {
            let (writer, n) = message.split_once('.').unwrap();
            let (writer, n): (u32, u32) = (writer.parse().unwrap(), n.parse().unwrap());
            for chunk in [(writer + n * 3) % 20, (writer + n * 5 + 1) % 20] {
                last.entry(chunk).or_insert(message);
            }
        }
        for (chunk, message) in last {
            assert_eq!(keys[&format!("shared/c/{chunk}")], message.as_bytes(), "chunk {chunk}");
        }
    }
}

/// The reference cannot be kept from overwriting `repo` on a local disk, but without such a race,
/// both can alternate.
#[tokio::test]
async fn commits_of_both_implementations_alternate_without_loss() {
    let (place, mut model) = arena(SpecVersionBin::V2).await;
    let lab = Lab::open(place.path());
    let base = lab.tip().await;
    let mut over = BTreeSet::new();
    for n in 0..10 {
        let (session, store) = session_on(&reopen(place.path()).await, "main").await;
        let key = format!("a0/c/{n}");
        store.set(&key, Bytes::from(format!("theirs {n}"))).await.unwrap();
        // Our commit is always based on the very first commit.
        let mut ours = Model::default();
        ours.nodes.insert(model.at("/a1").unwrap(), model.get("/a1").clone());
        let before = ours.clone();
        ours.chunk("/a1", &[n], format!("ours {n}"));
        let changes: ChangeSet = ours.changes_since(&before, &lab.scratch);
        let outcome = lab.commit(&base, &changes).await.unwrap();
        let CommitOutcome::Committed { snapshot, rebased_over, .. } = outcome else { panic!("{outcome:?}") };
        assert_eq!(rebased_over.len(), n as usize * 2);
        over.extend(rebased_over);
        over.insert(snapshot);
        session.write().await.commit("theirs").rebase(&ConflictDetector, 3).execute().await.unwrap();
        model.chunk("/a0", &[n], format!("theirs {n}"));
        model.chunk("/a1", &[n], format!("ours {n}"));
    }
    assert_eq!(reference_keys(place.path()).await, model.keys());
    assert_eq!(over.len(), 19);
}

/// A repository whose status is read-only takes no commit; one whose clock is ahead is reported.
#[tokio::test]
async fn a_read_only_status_and_a_clock_behind_refuse_commits() {
    let table = table(SpecVersionBin::V2).await;
    let mut ours = table.model.clone();
    ours.chunk("/z", &[1], "ours");
    let changes = ours.changes_since(&table.model, &table.lab.scratch);
    let early = || 1_000_000;
    let engine = icechunkfs::commit::engine::Engine::new(
        Arc::clone(&table.lab.storage),
        Arc::clone(&table.lab.reader),
        early,
        Default::default(),
    );
    let behind = engine.commit(&table.base, &changes, &request("early"), &Default::default()).await.unwrap_err();
    assert!(behind.to_string().contains("clock"), "{behind}");
    update::update(&*table.lab.storage, system_clock, |state| {
        state.status.availability = 1;
        state.status.reason = Some("closed".into());
        Ok(icechunkfs::format::repo_state::Operation::StatusChanged { status: Some(state.status.clone()) })
    })
    .await
    .unwrap();
    let refused = table.lab.commit(&table.base, &changes).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    let tip: ObjectId = table.lab.tip().await.id();
    assert_eq!(tip, table.base.id());
}
