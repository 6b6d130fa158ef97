//! Manifests written anew: cut as the reference cuts them, and with nothing else changed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use icechunk::RepositoryConfig;
use icechunk::config::{ManifestConfig, ManifestSplittingConfig};
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::ops::manifests::rewrite_manifests;
use icechunk::session::CommitMethod;
use icechunkfs::format::envelope::SpecVersion;
use icechunkfs::format::snapshot::NodeData;
use serde_json::json;

use crate::lab::{Lab, Model, Random, create, history, reference_keys, reopen, splitting};
use crate::scramble::scramble;
use crate::{command, fsck, three, version};

/// Grids are cut as the reference cuts them, and the commit says by which rules, as the reference's does.
#[tokio::test]
async fn manifests_are_rewritten_as_the_reference_does() {
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
            let mut random = Random(seed * 77 + 1);
            let (old_rules, new_rules) = (splitting(&mut random), splitting(&mut random));
            let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let config = |rules: &Option<ManifestSplittingConfig>| RepositoryConfig {
                manifest: Some(ManifestConfig { splitting: rules.clone(), ..ManifestConfig::default() }),
                ..RepositoryConfig::default()
            };
            let mut model = Model::default();
            (0..20).for_each(|_| scramble(&mut model, &mut random, false));
            let mut repositories = Vec::new();
            for place in &places {
                create(place.path(), spec, config(&old_rules)).await;
                Lab::open(place.path()).commit_model(&Model::default(), &model).await;
                let repository = reopen(place.path()).await.reopen(Some(config(&new_rules)), None).await.unwrap();
                repository.save_config().await.unwrap();
                repositories.push(repository);
            }
            let said = command("rewrite-manifests", places[0].path(), ["--json"]).json();
            let theirs = &repositories[1];
            rewrite_manifests(theirs, "main", "theirs", None, None, CommitMethod::NewCommit).await.unwrap();
            let (ours, theirs) = (places[0].path(), places[1].path());
            assert_eq!(extents(ours).await, extents(theirs).await, "seed {seed}: {old_rules:?} {new_rules:?}");
            assert_eq!(reference_keys(ours).await, model.keys());
            let metadata = |place: &Path| command("log", place, ["--json"]).json()[0]["metadata"].clone();
            assert_eq!(metadata(ours), metadata(theirs), "seed {seed}");
            let manifests: usize = extents(ours).await.values().map(BTreeSet::len).sum();
            assert_eq!(said["manifests"]["after"], json!(manifests));
            fsck::check(ours, version(spec));
        }
    }
}

/// New rules are for this once, and may be for some arrays only.
#[tokio::test]
async fn rules_are_given_for_once() {
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
    fsck::check(place, SpecVersion::V2);
    // More parts than anybody has memory for.
    let before = model.clone();
    let mut model = model;
    model.array("/vast", &[1 << 30, 1 << 30]);
    model.chunk("/vast", &[0, 0], "a");
    model.chunk("/vast", &[(1 << 30) - 1, (1 << 30) - 1], "b");
    Lab::open(place).commit_model(&before, &model).await;
    let refused = command("rewrite-manifests", place, ["--split", "*=1"]).failure();
    assert!(refused.contains("/vast") && refused.contains("choose larger"), "{refused}");
}
