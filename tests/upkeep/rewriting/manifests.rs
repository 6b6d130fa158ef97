//! Rewritten manifests: split as by the reference, and with no other change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::ops::manifests::rewrite_manifests;
use icechunk::session::CommitMethod;
use icechunkfs::commit::changes::ChangeSet;
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, Request, Rewrite, Sizes};
use icechunkfs::format::snapshot::NodeData;
use icechunkfs::repack::repack;
use serde_json::json;

use super::{command, fsck, three};
use crate::common::lab::{
    Lab, Model, collect_by_reference, create, expire_before, history, reference_keys, reopen, request, split_config,
    splitting,
};
use crate::common::random::Random;
use crate::common::reference_diff::reference_logs;
use crate::common::scramble::scramble;
use icechunkfs::times::system_clock;

/// Grids are split as by the reference, and the commit names the rules, as the reference's does.
#[tokio::test]
async fn manifests_are_rewritten_as_by_the_reference() {
    let extents = async |place: &Path| {
        let tip = Lab::open(place).tip().await;
        let mut all = BTreeMap::new();
        for node in tip.nodes() {
            if let NodeData::Array(array) = &node.data {
                let list: BTreeSet<_> = array.manifests().into_iter().map(|manifest| manifest.extents).collect();
                all.insert(node.path.to_owned(), list);
            }
        }
        all
    };
    for seed in 1..12 {
        for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
            let mut random = Random::new(seed * 77 + 1);
            let old_rules = splitting(&mut random);
            let new_rules = splitting(&mut random);
            let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let mut model = Model::default();
            (0..20).for_each(|_| scramble(&mut model, &mut random, false));
            // A model without an array has no manifest to rewrite.
            while !model.nodes.values().any(|node| node.grid.is_some()) {
                scramble(&mut model, &mut random, false);
            }
            let mut repositories = Vec::new();
            for place in &places {
                create(place.path(), spec, split_config(old_rules.clone())).await;
                Lab::open(place.path()).commit_first(&model).await;
                let repository =
                    reopen(place.path()).await.reopen(Some(split_config(new_rules.clone())), None).await.unwrap();
                repository.save_config().await.unwrap();
                repositories.push(repository);
            }
            let output = command("rewrite-manifests", places[0].path(), ["--json"]).json();
            let theirs = &repositories[1];
            rewrite_manifests(theirs, "main", "theirs", None, None, CommitMethod::NewCommit).await.unwrap();
            let ours = places[0].path();
            let theirs = places[1].path();
            assert_eq!(extents(ours).await, extents(theirs).await, "seed {seed}: {old_rules:?} {new_rules:?}");
            assert_eq!(reference_keys(ours).await, model.keys());
            let metadata = |place: &Path| command("log", place, ["--json"]).json()[0]["metadata"].clone();
            assert_eq!(metadata(ours), metadata(theirs), "seed {seed}");
            assert_eq!(output["manifests"]["after"], json!(Lab::open(ours).tip().await.manifests().len()));
            fsck::check(ours, spec);
        }
    }
}

/// New rules apply to this rewrite only, and may be for some arrays only.
#[tokio::test]
async fn split_rules_apply_to_one_rewrite() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let model = three(place, SpecVersionBin::V2).await;
    let count = async || Lab::open(place).tip().await.manifests().len();
    assert_eq!(count().await, 1);
    for (rules, expected) in
        [(&["0=2"][..], 3), (&["dim0=2,dim1=3"], 6), (&["/h:*=1", "x$:1=1"], 6), (&["*=1"], 36), (&["none"], 1)]
    {
        let words = rules.iter().flat_map(|rule| ["--split", rule]);
        command("rewrite-manifests", place, words).success();
        assert_eq!(count().await, expected, "{rules:?}");
        assert_eq!(reference_keys(place).await, model.keys(), "{rules:?}");
    }
    command("rewrite-manifests", place, ["--split", "*=3", "--amend", "--yes", "-m", "amended"]).success();
    assert_eq!(count().await, 4);
    assert_eq!(history(place).await.iter().filter(|message| *message == "Manifests rewritten").count(), 4);
    assert_eq!(reference_keys(place).await, model.keys());
    fsck::check(place, SpecVersionBin::V2);
    // More parts than fit into memory.
    let before = model.clone();
    let mut model = model;
    model.array("/vast", &[1 << 30, 1 << 30]);
    model.chunk("/vast", &[0, 0], "a");
    model.chunk("/vast", &[(1 << 30) - 1, (1 << 30) - 1], "b");
    Lab::open(place).commit_model(&before, &model).await;
    let refused = command("rewrite-manifests", place, ["--split", "*=1"]).failure();
    assert!(refused.contains("/vast") && refused.contains("choose larger"), "{refused}");
}

fn objects(place: &Path) -> usize {
    std::fs::read_dir(place.join("chunks")).unwrap().count()
}

/// Chunks that have an object each, or little of one, become few objects with the same bytes; a
/// repetition does nothing.
#[tokio::test]
async fn repack_combines_small_chunks() {
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        create(place, spec, RepositoryConfig::default()).await;
        let single = Lab::with(place, EngineOptions { pack_below: 0, ..EngineOptions::default() });
        let mut model = Model::default();
        model.array("/small", &[10, 10]);
        model.array("/large", &[3]);
        model.array("/packed", &[100]);
        (0..10).for_each(|i| (0..10).for_each(|j| model.chunk("/small", &[i, j], vec![(10 * i + j) as u8; 3000])));
        (0..3).for_each(|n| model.chunk("/large", &[n], vec![n as u8; 300_000]));
        model.chunk("/small", &[5, 5], "inline");
        single.commit_first(&model).await;
        assert_eq!(objects(place), 99 + 3);
        // Well packed chunks stay, a pack of which four fifths were rewritten does not.
        let packing = Lab::open(place);
        for part in [0..100, 0..0] {
            let before = model.clone();
            part.for_each(|n| model.chunk("/packed", &[n], vec![n as u8; 30_000]));
            if before == model {
                (0..100).filter(|n| n % 5 != 0).for_each(|n| model.chunk("/packed", &[n], vec![7; 29_000]));
            }
            packing.commit_model(&before, &model).await;
        }
        let before = packing.tip().await.id();
        let output = command("rewrite-manifests", place, ["--repack", "--json"]).json();
        let expected = json!({
            "chunks": 99 + 20, "bytes": 99 * 3000 + 20 * 30_000, "objects": {"before": 99 + 1, "after": 2}, "complete": true
        });
        assert_eq!(output["repacked"], expected, "{spec:?}");
        assert_eq!(reference_keys(place).await, model.keys());
        let logged = reference_logs(&reopen(place).await, before, packing.tip().await.id()).await.unwrap();
        assert_eq!(logged["updated_chunks"], json!({}), "the bytes are the same");
        let again = command("rewrite-manifests", place, ["--repack", "--json"]).json();
        assert_eq!(again["repacked"]["chunks"], 0, "{again}");
        fsck::check(place, spec);
        command("verify", place, ["--chunks"]).success();
        // Unneeded objects are removed, and all chunks are still there.
        expire_before(place, 0).await;
        // Objects that are younger than the newest commit would be spared.
        collect_by_reference(place, system_clock() + 3_600_000_000).await;
        assert_eq!(reference_keys(place).await, model.keys());
        assert!(objects(place) < 10, "{}", objects(place));
    }
}

/// Concurrent changes of chunks that are being repacked stay.
#[tokio::test]
async fn repack_keeps_concurrent_writes() {
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        create(place, spec, RepositoryConfig::default()).await;
        let lab = Lab::with(place, EngineOptions { pack_below: 0, ..EngineOptions::default() });
        let mut model = Model::default();
        for name in ["/changed", "/deleted", "/resized", "/untouched", "/moved"] {
            model.array(name, &[20]);
            (0..20).for_each(|n| model.chunk(name, &[n], format!("{name} {n}").repeat(100)));
        }
        lab.commit_first(&model).await;
        let base = lab.tip().await;
        let sizes = Sizes { inline: 512, pack_below: 1 << 20, pack_size: 8 << 20 };
        let done = repack(&lab.storage, &lab.reader, &base, sizes, |_| ()).await.unwrap();
        assert_eq!((done.moved.chunks, done.objects_before, done.objects_after), (100, 100, 5));
        let before = model.clone();
        model.chunk("/changed", &[3], "theirs".repeat(200));
        model.get("/changed").chunks.remove(&vec![4]);
        model.delete("/deleted");
        model.resize("/resized", &[5]);
        model.rename("/moved", "/elsewhere");
        lab.commit_model(&before, &model).await;
        let changes = ChangeSet { chunks: done.chunks, ..ChangeSet::default() };
        let request = Request { rewrite: Some(Rewrite::default()), ..request("put together") };
        let outcome = lab.commit_as(&base, &changes, request).await.unwrap();
        assert!(
            matches!(&outcome, CommitOutcome::Committed { rebased_over, .. } if rebased_over.len() == 1),
            "{outcome:?}"
        );
        assert_eq!(reference_keys(place).await, model.keys(), "{spec:?}");
        assert_eq!(history(place).await[0], "put together");
        fsck::check(place, spec);
    }
}

/// Unreadable bytes are not lost by repacking.
#[tokio::test]
async fn repack_refuses_a_missing_object() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    create(place, SpecVersionBin::V2, RepositoryConfig::default()).await;
    let lab = Lab::with(place, EngineOptions { pack_below: 0, ..EngineOptions::default() });
    let mut model = Model::default();
    model.array("/a", &[5]);
    (0..5).for_each(|n| model.chunk("/a", &[n], vec![1; 2000]));
    lab.commit_first(&model).await;
    let one = std::fs::read_dir(place.join("chunks")).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&one).unwrap();
    let output = command("rewrite-manifests", place, ["--repack"]).failure();
    assert!(output.contains("/a: chunk [") && output.contains("missing"), "{output}");
    assert_eq!(history(place).await.len(), 2);
}
