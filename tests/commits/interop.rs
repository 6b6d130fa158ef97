//! Repositories with commits of the reference implementation and of this program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common;
use crate::common::lab::{
    Lab, Model, ancestry, array_json, collect_by_reference, create, expire_before, history, main_branch, names_in,
    new_lab, reference_keys, reopen, request, session_on, set, set_model, split_config, splitting, store_at,
};
use crate::common::random::Random;
use crate::common::{fsck, project};
use bytes::Bytes;
use icechunk::RepositoryConfig;
use icechunk::conflicts::detector::ConflictDetector;
use icechunk::format::ChunkIndices;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::manifest::{Checksum, ChunkPayload, SecondsSinceEpoch, VirtualChunkLocation, VirtualChunkRef};
use icechunk::repository::VersionInfo;
use icechunkfs::commit::changes::{ChangeSet, ChunkChange, WrittenNode};
use icechunkfs::commit::engine::{CommitOutcome, EngineOptions, Request};
use icechunkfs::format::chunk_payload;
use icechunkfs::format::envelope::SpecVersion::V1;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::snapshot::{NodeData, Snapshot};
use icechunkfs::zarr::Coords;
use icechunkfs::zarr::array::ArrayMetadata;

/// Operations of the reference in a repository in which we commit.
#[tokio::test]
async fn the_reference_commits_on_top_of_our_commits() {
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, lab) = new_lab(spec).await;
        let mut model = Model::default();
        model.array("/x", &[4]);
        model.array("/y", &[4]);
        (0..4).for_each(|n| model.chunk("/x", &[n], vec![n as u8 + 1; 2000]));
        let first = lab.commit_first(&model).await;

        // It has a session open, we commit, and it rebases over our commit.
        let (session, store) = session_on(&reopen(place.path()).await, "main").await;
        store.set("y/c/1", Bytes::from_static(b"theirs")).await.unwrap();
        let before = model.clone();
        model.chunk("/x", &[2], "ours");
        model.group("/new");
        let second = lab.commit_model(&before, &model).await;
        session.write().await.commit("rebased").rebase(&ConflictDetector, 3).execute().await.unwrap();
        model.chunk("/y", &[1], "theirs");
        assert_eq!(reference_keys(place.path()).await, model.keys());

        // It detects that both touched one chunk.
        let (session, store) = session_on(&reopen(place.path()).await, "main").await;
        store.set("x/c/0", Bytes::from_static(b"theirs")).await.unwrap();
        let before = model.clone();
        model.chunk("/x", &[0], "ours too");
        lab.commit_model(&before, &model).await;
        let refused = session.write().await.commit("no").rebase(&ConflictDetector, 3).execute().await;
        assert!(refused.is_err());

        // Its diff has our changes.
        let repository = reopen(place.path()).await;
        let id = |ours: ObjectId| VersionInfo::SnapshotId(ours.to_string().as_str().try_into().unwrap());
        let diff = repository.diff(&id(first), &id(second)).await.unwrap();
        let text = |path: &icechunk::format::Path| path.to_string();
        assert_eq!(diff.new_groups.iter().map(text).collect::<Vec<_>>(), ["/new"]);
        let chunks: Vec<_> = diff.updated_chunks.iter().map(|(path, c)| (text(path), c.len())).collect();
        assert_eq!(chunks, [("/x".to_owned(), 1)]);

        // It replaces our newest commit, and we replace its.
        if spec == SpecVersionBin::V2 {
            let (session, store) = session_on(&repository, "main").await;
            store.set("y/c/3", Bytes::from_static(b"amended")).await.unwrap();
            session.write().await.commit("amended by them").amend().execute().await.unwrap();
            model.chunk("/y", &[3], "amended");
            let before = model.clone();
            model.chunk("/y", &[2], "by us");
            let changes = model.changes_since(&before, &lab.scratch);
            let request = Request { amend: true, ..request("amended by us") };
            let outcome = lab.commit_as(&lab.tip().await, &changes, request).await.unwrap();
            let CommitOutcome::Committed { snapshot, .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!(reference_keys(place.path()).await, model.keys());
            let messages = history(place.path()).await;
            assert_eq!(messages, ["amended by us", "rebased", "a commit", "a commit", "Repository initialized"]);
            // Its log has the changes of all three.
            let repository = reopen(place.path()).await;
            let infos = ancestry(&repository, &id(snapshot)).await;
            let from = VersionInfo::SnapshotId(infos[1].id.clone());
            let diff = repository.diff(&from, &id(snapshot)).await.unwrap();
            let chunks: Vec<_> = diff.updated_chunks.iter().map(|(path, c)| (text(path), c.len())).collect();
            assert_eq!(chunks, [("/x".to_owned(), 1), ("/y".to_owned(), 2)]);
        }

        // It expires old commits and removes their objects; the rest is unchanged, and we continue.
        expire_before(place.path(), 0).await;
        let newest = ancestry(&reopen(place.path()).await, &main_branch()).await[0].flushed_at;
        let summary = collect_by_reference(place.path(), newest.timestamp_micros() as u64).await;
        assert!(summary.snapshots_deleted > 0, "{summary:?}");
        assert_eq!(reference_keys(place.path()).await, model.keys());
        let lab = Lab::open(place.path());
        let before = model.clone();
        model.chunk("/x", &[3], "after all");
        lab.commit_model(&before, &model).await;
        assert_eq!(reference_keys(place.path()).await, model.keys());
        fsck::check(place.path(), spec);
    }
}

/// Repositories of every release: each array is touched, and all other content is still there.
#[tokio::test]
async fn repositories_of_older_releases_survive_our_commits() {
    let own = project("tests/fixtures/repos");
    let shared = project("../shared/fixtures");
    let all = [own, shared].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut seen = 0;
    for fixture in all.flatten().map(|entry| entry.path()) {
        let name = fixture.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("v0-") || !(fixture.join("repo").exists() || fixture.join("refs").exists()) {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        common::copy_tree(&fixture, place.path());
        let lab = Lab::with(place.path(), EngineOptions { inline_threshold: Some(512), ..EngineOptions::default() });
        let repository = lab.repository().await;
        let base = lab.tip().await;
        // Two ways to touch an array: a chunk (which rewrites its manifests) and attributes.
        let before = all_refs(&lab, &base).await;
        let mut changes = ChangeSet::default();
        let mut expected = before.clone();
        for (number, node) in base.nodes().enumerate() {
            let Ok(metadata) = ArrayMetadata::parse(node.zarr_json) else { continue };
            if number % 3 == 0 {
                let mut document: serde_json::Value = serde_json::from_slice(node.zarr_json).unwrap();
                document["attributes"]["touched"] = true.into();
                changes.updated.push(WrittenNode {
                    id: node.id,
                    path: node.path.to_owned(),
                    zarr_json: document.to_string().into(),
                    is_array: true,
                });
            } else if !metadata.grid.contains(&0) {
                let coords = Coords::from_elem(0, metadata.grid.len());
                let change = ChunkChange::File(lab.scratch.file(name.as_bytes()));
                changes.chunks.entry(node.id).or_default().insert(coords.clone(), change);
                let new = chunk_payload::ChunkPayload::Inline(Bytes::from(name.clone().into_bytes()));
                expected.insert((node.path.to_owned(), coords.to_vec()), new);
            }
        }
        let outcome = lab.commit(&base, &changes).await.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(changes.is_empty() || matches!(outcome, CommitOutcome::Committed { .. }), "{name}: {outcome:?}");
        let lab = Lab::open(place.path());
        let found = all_refs(&lab, &lab.tip().await).await;
        let wrong = found.iter().find(|(chunk, payload)| expected.get(chunk) != Some(payload));
        assert!(wrong.is_none() && found.len() == expected.len(), "{name}: {wrong:?}");
        fsck::check(place.path(), if repository.version() == V1 { SpecVersionBin::V1 } else { SpecVersionBin::V2 });
        // The reference as it is built here does not support every store that a configuration may
        // name.
        let config = repository.config().await.unwrap();
        let unknown = ["azure", "gcs"].iter().any(|store| {
            config.members().get("virtual_chunk_containers").is_some_and(|c| c.to_string().contains(store))
        });
        if !unknown {
            reference_names(place.path()).await;
        }
        seen += 1;
    }
    assert!(seen >= 13, "{seen} fixtures");
}

/// Returns every chunk that a reader finds, and its location.
async fn all_refs(lab: &Lab, snapshot: &Arc<Snapshot>) -> BTreeMap<(String, Vec<u32>), chunk_payload::ChunkPayload> {
    let mut found = BTreeMap::new();
    let infos: BTreeMap<ObjectId, _> = snapshot.manifests().into_iter().map(|info| (info.id, info)).collect();
    for node in snapshot.nodes() {
        let NodeData::Array(array) = &node.data else { continue };
        let grid = ArrayMetadata::parse(node.zarr_json).map(|metadata| metadata.grid).unwrap_or_default();
        for reference in array.manifests() {
            let manifest = lab.reader.manifest(infos[&reference.id]).await.unwrap();
            let Some(refs) = manifest.array(node.id).unwrap() else { continue };
            for at in 0..refs.len() {
                let coords: Vec<u32> = refs.coords(at).iter().collect();
                if coords.len() == grid.len() && coords.iter().zip(&grid).all(|(c, n)| c < n) {
                    let payload = refs.payload(at).unwrap().into();
                    found.entry((node.path.to_owned(), coords)).or_insert(payload);
                }
            }
        }
    }
    found
}

/// Checks that the reference lists all keys without an error.
async fn reference_names(place: &Path) -> Vec<String> {
    names_in(&store_at(&reopen(place).await, &main_branch()).await).await
}

/// Virtual references keep their checksums, and their compression if any.
#[tokio::test]
async fn virtual_references_survive_commits_unchanged() {
    let place = tempfile::tempdir().unwrap();
    let repository = create(place.path(), SpecVersionBin::V2, RepositoryConfig::default()).await;
    let mut session = repository.writable_session("main").await.unwrap();
    let shape = icechunk::format::snapshot::ArrayShape::new([(3000, 3000)]).unwrap();
    let path: icechunk::format::Path = "/v".try_into().unwrap();
    session.add_array(path.clone(), shape, None, array_json(&[3000], &[1], "").into()).await.unwrap();
    for n in 0..3000 {
        let checksum = match n % 3 {
            0 => None,
            1 => Some(Checksum::LastModified(SecondsSinceEpoch(n + 1))),
            _ => Some(Checksum::ETag(icechunk::storage::ETag(format!("tag-{n}")))),
        };
        let location = VirtualChunkLocation::from_url(&format!("s3://bucket/some/long/prefix/file-{n}.nc")).unwrap();
        let chunk = VirtualChunkRef { location, offset: u64::from(n), length: 10, checksum };
        let payload = Some(ChunkPayload::Virtual(chunk));
        session.set_chunk_ref(path.clone(), ChunkIndices(vec![n]), payload).await.unwrap();
    }
    session.commit("virtual").execute().await.unwrap();
    let lab = Lab::open(place.path());
    let base = lab.tip().await;
    let mut expected = all_refs(&lab, &base).await;
    let id = base.nodes().next().unwrap().id;
    let mut changes = ChangeSet::default();
    let copied = expected[&("/v".to_owned(), vec![8])].clone();
    expected.insert(("/v".to_owned(), vec![7]), copied.clone());
    expected.remove(&("/v".to_owned(), vec![9]));
    let chunks = changes.chunks.entry(id).or_default();
    chunks.insert(Coords::from_slice(&[7]), ChunkChange::Stored(copied));
    chunks.insert(Coords::from_slice(&[9]), ChunkChange::Delete);
    lab.commit(&base, &changes).await.unwrap();
    let lab = Lab::open(place.path());
    let tip = lab.tip().await;
    assert_eq!(all_refs(&lab, &tip).await, expected);
    let old = base.manifests()[0];
    let new = tip.manifests()[0];
    assert!(new.id != old.id && new.size < old.size * 5 / 4, "{} and {} bytes: still compressed", old.size, new.size);
    assert!(lab.reader.manifest(new).await.unwrap().location_dictionary().is_some());
    // The reference reads them.
    let repository = reopen(place.path()).await;
    let session = repository.readonly_session(&main_branch()).await.unwrap();
    for n in [6, 7, 8, 10, 2999] {
        let read = session.get_chunk_ref(&path, &ChunkIndices(vec![n])).await.unwrap();
        let Some(ChunkPayload::Virtual(read)) = read else { panic!("{read:?}") };
        let n = if n == 7 { 8 } else { n };
        assert_eq!(read.location.url(), format!("s3://bucket/some/long/prefix/file-{n}.nc"));
        assert_eq!((read.offset, read.checksum.is_some()), (u64::from(n), n % 3 != 0));
    }
    assert!(session.get_chunk_ref(&path, &ChunkIndices(vec![9])).await.unwrap().is_none());
}

/// The grid is split exactly as by the reference.
#[tokio::test]
async fn manifests_are_split_as_by_the_reference() {
    let extents = async |place: &Path| {
        let tip = Lab::open(place).tip().await;
        let mut all = BTreeMap::new();
        for node in tip.nodes() {
            if let NodeData::Array(array) = &node.data {
                let list: Vec<_> = array.manifests().into_iter().map(|manifest| manifest.extents).collect();
                all.insert(node.path.to_owned(), list);
            }
        }
        all
    };
    for seed in 1..40 {
        let mut random = Random::new(seed * 77 + 1);
        let splitting = splitting(&mut random);
        let shapes: Vec<Vec<u32>> =
            (0..4).map(|_| (0..random.below(4)).map(|_| random.below(7) as u32).collect()).collect();
        let mut places = Vec::new();
        let mut model = Model::default();
        for (n, shape) in shapes.iter().enumerate() {
            let path = ["/a", "/b", "/x/ab", "/x/y"][n];
            model.array(path, shape);
            let total: u32 = shape.iter().product();
            for number in (0..total).filter(|_| random.below(3) > 0) {
                let mut rest = number;
                let coords: Vec<u32> = shape.iter().map(|n| (rest % n, rest /= n).0).collect();
                model.chunk(path, &coords, "x");
            }
        }
        for _ in 0..2 {
            let place = tempfile::tempdir().unwrap();
            create(place.path(), SpecVersionBin::V2, split_config(splitting.clone())).await;
            places.push(place);
        }
        Lab::open(places[0].path()).commit_first(&model).await;
        set_model(places[1].path(), &model).await;
        assert_eq!(extents(places[0].path()).await, extents(places[1].path()).await, "seed {seed}: {splitting:?}");
    }
}

/// The reference reads the message and metadata of a commit, in both encodings.
#[tokio::test]
async fn the_reference_reads_commit_metadata() {
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, lab) = new_lab(spec).await;
        let mut model = Model::default();
        model.group("/");
        let changes = model.changes_since(&Model::default(), &lab.scratch);
        let output = serde_json::json!({"who": {"b": [1, -2, 2.5, null, "x", true], "a": {}}, "n": [1, 2, 3], "": "é"});
        let metadata = output.as_object().unwrap().clone();
        let request = Request { metadata, ..request("with métadata") };
        lab.commit_as(&lab.tip().await, &changes, request.clone()).await.unwrap();
        let repository = reopen(place.path()).await;
        let infos = ancestry(&repository, &main_branch()).await;
        assert_eq!(infos[0].message, "with métadata");
        let mut expected = output.clone();
        expected["__icechunk"] = serde_json::json!({"rebase_attempts": 0});
        assert_eq!(serde_json::to_value(&infos[0].metadata).unwrap(), expected, "{spec:?}");
        // Its internal metadata is not for users.
        let mut reserved = request;
        reserved.metadata.insert("__icechunk".into(), serde_json::json!({}));
        let refused = lab.commit_as(&lab.tip().await, &changes, reserved).await.unwrap_err();
        assert!(refused.to_string().contains("reserved"), "{refused}");
    }
}

/// Descriptions of arrays in a snapshot match the reference's.
#[tokio::test]
async fn snapshots_describe_arrays_as_the_reference_does() {
    let regular = |shape: &[u32], chunks: &[u32], names: serde_json::Value| {
        let mut document: serde_json::Value = serde_json::from_str(&array_json(shape, chunks, "")).unwrap();
        document["dimension_names"] = names;
        document
    };
    let mut without = regular(&[3], &[2], serde_json::json!(null));
    without.as_object_mut().unwrap().remove("dimension_names");
    let mut rectilinear = regular(&[10, 6], &[1, 1], serde_json::json!(null));
    rectilinear["chunk_grid"] = serde_json::json!({
        "name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[[3, 3], 1], [4, 2]]}
    });
    let documents = [
        regular(&[], &[], serde_json::json!([])),
        regular(&[10, 7], &[4, 7], serde_json::json!(["x", null])),
        regular(&[5, 0], &[3, 2], serde_json::json!(["", "y"])),
        regular(&[7], &[20], serde_json::json!(null)),
        without,
        rectilinear,
    ];
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let places = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        for place in &places {
            create(place.path(), spec, RepositoryConfig::default()).await;
        }
        let lab = Lab::open(places[0].path());
        let mut changes = ChangeSet::default();
        let mut pairs = Vec::new();
        for (n, document) in documents.iter().enumerate() {
            let is_rectilinear = document["chunk_grid"]["name"] == "rectilinear";
            let node = WrittenNode {
                id: icechunkfs::format::ids::NodeId([n as u8 + 1; 8]),
                path: format!("/a{n}"),
                zarr_json: document.to_string().into(),
                is_array: true,
            };
            if is_rectilinear && spec == SpecVersionBin::V1 {
                let refused = ChangeSet { created: vec![node], ..ChangeSet::default() };
                let refused = lab.commit(&lab.tip().await, &refused).await.unwrap_err();
                assert_eq!(refused.kind(), icechunkfs::error::ErrorKind::Unsupported, "{refused}");
                continue;
            }
            pairs.push((format!("a{n}/zarr.json"), document.to_string().into_bytes()));
            changes.created.push(node);
        }
        lab.commit(&lab.tip().await, &changes).await.unwrap();
        let pairs: Vec<_> = pairs.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
        set(places[1].path(), &pairs, "theirs").await;
        let described = async |place: &Path| {
            let tip = Lab::open(place).tip().await;
            let arrays = tip.nodes().map(|node| {
                let NodeData::Array(array) = &node.data else { panic!("an array") };
                let shape: Vec<_> =
                    array.dimensions().unwrap().iter().map(|d| (d.array_length, d.num_chunks)).collect();
                (node.path.to_owned(), shape, array.copied_names())
            });
            arrays.collect::<Vec<_>>()
        };
        assert_eq!(described(places[0].path()).await, described(places[1].path()).await, "{spec:?}");
    }
}
