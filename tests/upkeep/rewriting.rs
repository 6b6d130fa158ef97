//! Rewritten history and manifests: no readable content changes, and no race, fault or refusal
//! loses anything.

mod manifests;
mod mounts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::fsck;
use crate::common::lab::{
    GROUP, Lab, Model, create, expire_before, history, keys_at, new_lab, random_config, reference_keys, reopen,
    request, session_on, set,
};
use crate::common::lengths::length;
use crate::common::random::Random;
use crate::common::reference_diff::reference_logs;
use crate::common::scramble::scramble;
use crate::common::writing::array;
use crate::common::{Output, block_on, run_on, run_with_fault};
use futures_util::TryStreamExt;
use icechunk::RepositoryConfig;
use icechunk::conflicts::detector::ConflictDetector;
use icechunk::format::SnapshotId;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::repo_info::UpdateType;
use icechunk::ops::manifests::rewrite_manifests;
use icechunk::repository::VersionInfo;
use icechunk::session::CommitMethod;
use icechunkfs::commit::engine::CommitOutcome;
use icechunkfs::commit::squash::{SquashOptions, squash};
use icechunkfs::error::ErrorKind;
use icechunkfs::failpoints;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::transaction_log::{NodeChange, TransactionLog};
use icechunkfs::times::system_clock;
use serde_json::{Value, json};

/// Runs command `name` on a repository.
fn command<S: AsRef<str>>(name: &str, repo: &Path, words: impl IntoIterator<Item = S>) -> Output {
    let words: Vec<S> = words.into_iter().collect();
    run_on(repo, &[name].into_iter().chain(words.iter().map(S::as_ref)).collect::<Vec<_>>())
}

async fn ids(lab: &Lab) -> Vec<ObjectId> {
    let repository = lab.repository().await;
    let tip = repository.branch_tip("main").await.unwrap().unwrap();
    repository.history(tip, usize::MAX).await.unwrap().into_iter().map(|commit| commit.id).collect()
}

/// Returns the reference's view of the logs, without moves: those of several commits become one. A
/// node is in one list only, as in the log of one commit.
async fn touched(place: &Path, from: ObjectId, to: ObjectId) -> Value {
    let mut output = reference_logs(&reopen(place).await, from, to).await.unwrap();
    output.as_object_mut().unwrap().remove("moved_nodes");
    for kind in ["groups", "arrays"] {
        let listed = |name: &str| output[format!("{name}_{kind}")].as_array().unwrap().clone();
        let others = [listed("new"), listed("deleted")].concat();
        output[format!("updated_{kind}")].as_array_mut().unwrap().retain(|path| !others.contains(path));
    }
    let deleted = output["deleted_arrays"].clone();
    let new = output["new_arrays"].clone();
    let is_in = |list: &Value, path: &str| list.as_array().unwrap().iter().any(|one| one == path);
    output["updated_chunks"].as_object_mut().unwrap().retain(|path, _| !is_in(&deleted, path) || is_in(&new, path));
    output
}

/// Returns true if a path stands for two nodes in these logs: the reference then has one of them,
/// by chance.
fn is_ambiguous(output: &Value) -> bool {
    let deleted: BTreeSet<String> = output["deleted_arrays"].as_array().unwrap().iter().map(Value::to_string).collect();
    output["new_arrays"].as_array().unwrap().iter().any(|path| deleted.contains(&path.to_string()))
}

/// Makes commits by both sides, and lets both rewrite history and manifests, in any order.
async fn random_history(spec: SpecVersionBin, seed: u64) {
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let config = random_config(&mut random);
    create(place, spec, config).await;
    let lab = Lab::open(place);
    let mut model = Model::default();
    // Oldest first, without the initial commit.
    let mut messages: Vec<String> = Vec::new();
    let mut tags: BTreeMap<String, Model> = BTreeMap::new();
    for round in 0..14 {
        let what = format!("{spec:?}, seed {seed}, round {round}");
        match random.below(8) {
            0..=2 => {
                let before = model.clone();
                (0..1 + random.below(10)).for_each(|_| scramble(&mut model, &mut random, true));
                let changes = model.changes_since(&before, &lab.scratch);
                let message = format!("ours {round}");
                let outcome = lab.commit_as(&lab.tip().await, &changes, request(&message)).await.unwrap();
                if matches!(outcome, CommitOutcome::Committed { .. }) {
                    messages.push(message);
                }
                model.take_ids(&*lab.tip().await);
            }
            3 => {
                let full = |grid: &Vec<u32>| !grid.contains(&0);
                let array = model.nodes.values().find(|node| node.grid.as_ref().is_some_and(full)).cloned();
                let Some(array) = array else { continue };
                let coords: Vec<u32> = array.grid.iter().flatten().map(|n| n - 1).collect();
                let key: String = coords.iter().map(|c| format!("/{c}")).collect();
                let key = format!("{}/c{key}", array.path.trim_start_matches('/'));
                let bytes = format!("theirs {round}").into_bytes();
                let message = format!("theirs {round}");
                set(place, &[(key.as_str(), bytes.as_slice())], &message).await;
                model.chunk(&array.path, &coords, bytes);
                messages.push(message);
            }
            4 if messages.len() >= 2 && spec == SpecVersionBin::V2 => {
                let last = 2 + random.below(messages.len() - 1);
                let all = ids(&lab).await;
                let base = all[last];
                let before = touched(place, base, all[0]).await;
                if random.below(2) == 0 {
                    let name = format!("t{round}");
                    reopen(place).await.create_tag(&name, &SnapshotId::from(all[1].0)).await.unwrap();
                    let repository = reopen(place).await;
                    let version = VersionInfo::TagRef(name.clone());
                    let keys = keys_at(&repository, &version).await;
                    tags.insert(name, model.clone());
                    assert_eq!(keys_at(&reopen(place).await, &version).await, keys);
                }
                let output = command("squash", place, ["--last", &last.to_string(), "--yes", "--json"]).json();
                let replaced: Vec<String> = all[..last].iter().map(ObjectId::to_string).collect();
                assert_eq!(output["replaced"], json!(replaced), "{what}");
                assert_eq!(output["parent"], json!(base.to_string()), "{what}");
                let tip = ids(&lab).await[0];
                assert_eq!(output["snapshot"], json!(tip.to_string()), "{what}");
                let joined = messages.split_off(messages.len() - last).join("\n\n");
                messages.push(joined);
                let after = touched(place, base, tip).await;
                assert!(before == after || is_ambiguous(&before), "{what}: {before:#} {after:#}");
                // A difference across it does not depend on the number of commits.
                let origin = *all.last().unwrap();
                if origin != base {
                    let before = touched(place, origin, all[0]).await;
                    let after = touched(place, origin, tip).await;
                    assert!(before == after || is_ambiguous(&before), "{what}");
                }
                let (ops, ..) = reopen(place).await.ops_log().await.unwrap();
                let ops: Vec<_> = ops.try_collect().await.unwrap();
                let amended = UpdateType::CommitAmendedUpdate {
                    branch: "main".into(),
                    previous_snap_id: SnapshotId::from(all[0].0),
                    new_snap_id: SnapshotId::from(tip.0),
                };
                assert_eq!(ops[0].1, amended, "{what}");
            }
            5 if !messages.is_empty() && spec == SpecVersionBin::V2 => {
                let message = format!("amended {round}");
                command("amend", place, ["-m", &message, "--metadata", "n=1", "--yes"]).success();
                *messages.last_mut().unwrap() = message;
            }
            6 => {
                let all: [&[&str]; 6] = [
                    &[],
                    &["--split", "none"],
                    &["--split", "*=2"],
                    &["--split", "a:1=1", "--split", "dim0=3,*=1"],
                    &["--repack"],
                    &["--repack", "--pack-below", "600", "--split", "*=3"],
                ];
                let rules: &[&str] = random.pick::<&[&str]>(&all);
                let words = ["--message", "rewritten", "--json"].into_iter().chain(rules.iter().copied());
                let output = command("rewrite-manifests", place, words).json();
                assert_eq!(output["snapshot"], json!(ids(&lab).await[0].to_string()), "{what}");
                messages.push("rewritten".to_owned());
            }
            7 => {
                let repository = reopen(place).await;
                rewrite_manifests(&repository, "main", "theirs", None, None, CommitMethod::NewCommit).await.unwrap();
                messages.push("theirs".to_owned());
            }
            _ => continue,
        }
        assert_eq!(reference_keys(place).await, model.keys(), "{what}");
        let all = history(place).await;
        assert!(all[..all.len() - 1].iter().eq(messages.iter().rev()), "{what}: {all:?} {messages:?}");
    }
    fsck::check(place, spec);
    command("verify", place, ["--chunks"]).success();
}

/// One log cannot delete a node and move another one to its place.
#[tokio::test]
async fn commits_that_replace_a_node_by_a_move_are_not_squashed() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut model = Model::default();
    for path in ["/a", "/b", "/c"] {
        model.group(path);
    }
    lab.commit_first(&model).await;
    for edit in [|m: &mut Model| m.delete("/b"), |m: &mut Model| m.rename("/a", "/b"), |m: &mut Model| m.delete("/c")] {
        let before = model.clone();
        edit(&mut model);
        lab.commit_model(&before, &model).await;
    }
    let output = command("squash", place.path(), ["--last", "3", "--yes"]).failure();
    assert!(output.contains("squash the commits before and after"), "{output}");
    command("squash", place.path(), ["--last", "2", "--yes"]).success();
    fsck::check(place.path(), SpecVersionBin::V2);
    assert_eq!(reference_keys(place.path()).await, model.keys());
}

#[test]
fn squash_and_amend_keep_the_trees_of_random_histories() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for seed in 1..=length("ICECHUNKFS_COMMIT_CASES", 3, 8) as u64 {
        for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
            runtime.block_on(random_history(spec, seed));
        }
    }
}

/// Three commits of one array and a group, and their model.
async fn three(place: &Path, spec: SpecVersionBin) -> Model {
    create(place, spec, RepositoryConfig::default()).await;
    let lab = Lab::open(place);
    let mut model = Model::default();
    for n in 0..3 {
        let before = model.clone();
        match n {
            0 => {
                model.group("/g");
                model.array("/g/x", &[6, 6]);
            }
            1 => (0..6).for_each(|i| (0..6).for_each(|j| model.chunk("/g/x", &[i, j], format!("{i} {j}")))),
            _ => model.chunk("/g/x", &[0, 0], "again"),
        }
        let changes = model.changes_since(&before, &lab.scratch);
        lab.commit_as(&lab.tip().await, &changes, request(&format!("commit {n}"))).await.unwrap();
    }
    model
}

/// The reference's amend makes the union of two logs. Ours has the net changes, which the reference
/// reads, and rebases over.
#[tokio::test]
async fn logs_of_amends_and_squashes_have_each_node_in_one_list() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let place = place.path();
    let text = |shape: &[u64]| array(shape, &vec![1; shape.len()]);
    set(place, &[("zarr.json", GROUP.as_bytes()), ("old/zarr.json", text(&[4]).as_bytes())], "first").await;
    let first = ids(&lab).await[0];
    let repository = reopen(place).await;
    let before = (session_on(&repository, "main").await, session_on(&repository, "main").await);
    set(
        place,
        &[("a/zarr.json", text(&[4]).as_bytes()), ("a/c/0", b"x"), ("b/zarr.json", text(&[4]).as_bytes())],
        "second",
    )
    .await;
    let (session, store) = session_on(&reopen(place).await, "main").await;
    store.set("a/zarr.json", text(&[5]).into()).await.unwrap();
    store.set("old/zarr.json", text(&[5]).into()).await.unwrap();
    store.delete_dir("b").await.unwrap();
    session.write().await.commit("amended by them").amend().execute().await.unwrap();
    let noted = async || {
        let tip = ids(&lab).await[0];
        let report = command("verify", place, ["--json"]).json();
        assert_eq!((report["errors"].as_u64(), report["warnings"].as_u64()), (Some(0), Some(0)), "{report:#}");
        let of_tip = |found: &&Value| found["rule"] == "log-lists" && found["object"] == format!("transactions/{tip}");
        report["findings"].as_array().unwrap().iter().find(of_tip).map(|found| found["times"].clone())
    };
    assert_eq!(noted().await, Some(json!(2)));

    let lists = async || {
        let tip = ids(&lab).await[0];
        let file = lab.storage.get(&format!("transactions/{tip}"), 1 << 20).await.unwrap();
        TransactionLog::decode(&file, 1 << 20).unwrap().changed_nodes().map(|(change, _)| change).collect::<Vec<_>>()
    };
    assert_eq!(lists().await.len(), 5);
    command("amend", place, ["-m", "amended by us", "--yes"]).success();
    assert_eq!(lists().await, [NodeChange::NewArrays, NodeChange::UpdatedArrays]);
    set(place, &[("a/zarr.json", text(&[6]).as_bytes())], "third").await;
    command("squash", place, ["--last", "2", "--yes"]).success();
    assert_eq!(lists().await, [NodeChange::NewArrays, NodeChange::UpdatedArrays]);
    assert_eq!(noted().await, None);
    let tip = ids(&lab).await[0];
    let read = reference_logs(&reopen(place).await, first, tip).await.unwrap();
    assert_eq!((&read["new_arrays"], &read["updated_arrays"]), (&json!(["/a"]), &json!(["/old"])));
    assert_eq!(read["updated_chunks"], json!({"/a": [[0]]}));
    // The reference rebases over it, and finds conflicts by it.
    for (key, conflicts) in [("c/zarr.json", false), ("old/zarr.json", true)] {
        let (session, store) = if conflicts { &before.0 } else { &before.1 };
        store.set(key, text(&[7]).into()).await.unwrap();
        let done = session.write().await.commit("rebased").rebase(&ConflictDetector, 3).execute().await;
        assert_eq!(done.is_err(), conflicts, "{key}: {done:?}");
    }
}

#[tokio::test]
async fn a_squash_range_is_given_by_last_from_or_since() {
    for (words, expected) in [
        (["--last", "2"], &["commit 1\n\ncommit 2", "commit 0"][..]),
        (["--from", "main~1"], &["commit 1\n\ncommit 2", "commit 0"]),
        (["--since", "main~2"], &["commit 1\n\ncommit 2", "commit 0"]),
        (["--since", "first"], &["commit 0\n\ncommit 1\n\ncommit 2"]),
        (["--from", "main~2"], &["commit 0\n\ncommit 1\n\ncommit 2"]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let model = three(directory.path(), SpecVersionBin::V2).await;
        let first = *ids(&Lab::open(directory.path())).await.last().unwrap();
        reopen(directory.path()).await.create_tag("first", &SnapshotId::from(first.0)).await.unwrap();
        command("squash", directory.path(), words.into_iter().chain(["--yes"])).success();
        let all = history(directory.path()).await;
        assert_eq!(all[..all.len() - 1], *expected, "{words:?}");
        assert_eq!(reference_keys(directory.path()).await, model.keys());
    }
}

#[tokio::test]
async fn invalid_rewrites_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    three(place, SpecVersionBin::V2).await;
    let lab = Lab::open(place);
    let before = std::fs::read(place.join("repo")).unwrap();
    let refused = |name: &str, words: &[&str], why: &str| {
        let output = command(name, place, words).failure();
        assert!(output.contains(why), "{name} {words:?}: {output}");
        assert_eq!(std::fs::read(place.join("repo")).unwrap(), before, "{name} {words:?}");
    };
    refused("squash", &["--last", "2"], "pass --yes");
    refused("squash", &["--yes"], "--last");
    refused("squash", &["--last", "1", "--yes"], "--last");
    refused("squash", &["--last", "2", "--from", "main", "--yes"], "cannot be used with");
    refused("squash", &["--from", "main", "--yes"], "icechunkfs amend");
    refused("squash", &["--last", "4", "--yes"], "begins with");
    refused("squash", &["--last", "9", "--yes"], "has only 4 commits");
    refused("squash", &["--last", "2", "--branch", "mian", "--yes"], "did you mean `main`");
    refused("amend", &["-m", "x"], "pass --yes");
    refused("amend", &["--yes"], "nothing to amend");
    refused("amend", &["--unset", "x", "--yes"], "does not have this metadata");
    refused("amend", &["--metadata", "__icechunk={}", "--yes"], "reserved");
    refused("rewrite-manifests", &["--split", "x"], "is not DIM=N");
    refused("rewrite-manifests", &["--amend"], "pass --yes");
    let other = lab.repository().await.history(ids(&lab).await[0], 9).await.unwrap();
    let initial = SnapshotId::from(other.last().unwrap().id.0);
    reopen(place).await.create_branch("empty", &initial).await.unwrap();
    let output = command("amend", place, ["--branch", "empty", "-m", "x", "--yes"]).failure();
    assert!(output.contains("first commit"), "{output}");
    // Version 1 has the parent in files that expiration rewrites.
    let old = tempfile::tempdir().unwrap();
    three(old.path(), SpecVersionBin::V1).await;
    for words in [&["squash", "--last", "2"][..], &["amend", "-m", "x"], &["rewrite-manifests", "--amend"]] {
        let output = command(words[0], old.path(), words[1..].iter().chain(&["--yes"])).failure();
        assert!(output.contains("version 1") && output.contains("migrate"), "{output}");
    }
    assert_eq!(history(old.path()).await.len(), 4);
}

#[tokio::test]
async fn an_amend_keeps_everything_not_specified() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let model = three(place, SpecVersionBin::V2).await;
    let tip = ids(&Lab::open(place)).await[0];
    reopen(place).await.create_tag("v1", &SnapshotId::from(tip.0)).await.unwrap();
    command("amend", place, ["--metadata", "a={\"b\": [1, 2.5]}", "--metadata", "c=text", "--yes"]).success();
    let output = command("amend", place, ["-m", "new words", "--unset", "c", "--yes", "--json"]).json();
    assert_eq!(output["kept"], json!([]));
    let log = command("log", place, ["--json"]).json();
    assert_eq!(log[0]["message"], "new words");
    assert_eq!(log[0]["metadata"]["a"], json!({"b": [1, 2.5]}));
    assert_eq!(log[0]["metadata"]["__icechunk"], json!({"rebase_attempts": 0}), "a note of the commit's own stays");
    assert_eq!(log[0]["metadata"]["c"], Value::Null);
    assert_eq!(log[1]["message"], "commit 1");
    let tagged = command("log", place, ["--tag", "v1", "--json"]).json();
    assert_eq!(tagged[0]["message"], "commit 2", "a tag stays where it was");
    assert_eq!(reference_keys(place).await, model.keys());
    // A repeated argument counts once.
    let again = command("amend", place, ["-m", "new words", "--yes", "--json"]).json();
    assert_eq!(again["snapshot"], Value::Null);
    assert_eq!(command("log", place, ["--json"]).json()[0]["id"], output["snapshot"]);
    fsck::check(place, SpecVersionBin::V2);
}

/// A commit that replaces others keeps the logs of expired commits.
#[tokio::test]
async fn logs_of_expired_commits_survive_a_rewrite() {
    let (directory, lab) = new_lab(SpecVersionBin::V2).await;
    let place = directory.path();
    let mut model = Model::default();
    for n in 0..6 {
        let before = model.clone();
        model.array(&format!("/a{n}"), &[3]);
        model.chunk(&format!("/a{n}"), &[n % 3], "x");
        lab.commit_model(&before, &model).await;
    }
    let all = ids(&lab).await;
    expire_before(place, 2).await;
    let left = ids(&lab).await;
    let origin = *left.last().unwrap();
    let tip = left[0];
    assert!(left.len() < all.len());
    let before = touched(place, origin, tip).await;
    assert_eq!(before["new_arrays"].as_array().unwrap().len(), 6);
    let last = (left.len() - 1).to_string();
    command("squash", place, ["--last", &last, "-m", "one", "--yes"]).success();
    assert_eq!(history(place).await.len(), 2);
    assert_eq!(touched(place, origin, ids(&lab).await[0]).await, before);
    command("amend", place, ["-m", "another", "--yes"]).success();
    assert_eq!(touched(place, origin, ids(&lab).await[0]).await, before);
    assert_eq!(reference_keys(place).await, model.keys());
    fsck::check(place, SpecVersionBin::V2);
}

/// A commit made between the check and the rewrite is never removed.
#[tokio::test]
async fn a_lost_race_is_reported_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let mut model = three(place, SpecVersionBin::V2).await;
    let lab = Lab::open(place);
    let repository = lab.repository().await;
    let commits = repository.history(ids(&lab).await[0], 2).await.unwrap();
    let before = model.clone();
    model.chunk("/g/x", &[5, 5], "theirs");
    lab.commit_model(&before, &model).await;
    let wanted =
        SquashOptions { branch: "main", commits: &commits, message: "one".into(), metadata: Default::default() };
    let refused = squash(&repository, system_clock, &wanted).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Stale, "{refused}");
    assert_eq!(reference_keys(place).await, model.keys());
    // The tip is the same, and the commits before it have expired meanwhile.
    let repository = lab.repository().await;
    let commits = repository.history(ids(&lab).await[0], 3).await.unwrap();
    expire_before(place, 0).await;
    let wanted =
        SquashOptions { branch: "main", commits: &commits, message: "one".into(), metadata: Default::default() };
    let refused = squash(&repository, system_clock, &wanted).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Stale && refused.to_string().contains("expired"), "{refused}");
    fsck::check(place, SpecVersionBin::V2);
}

/// Several mounts commit while one program rewrites manifests and one squashes commits: all chunks
/// are there at the end.
#[test]
fn writers_continue_during_a_rewrite() {
    for spec in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_owned();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut model = Model::default();
        runtime.block_on(async {
            create(&place, spec, RepositoryConfig::default()).await;
            (0..3).for_each(|writer| model.array(&format!("/a{writer}"), &[40]).0.fill(0));
            Lab::open(&place).commit_first(&model).await;
        });
        let start = model.clone();
        let writer = |number: usize| {
            let place = place.clone();
            let mut model = start.clone();
            std::thread::spawn(move || {
                block_on(async {
                    let lab = Lab::open(&place);
                    for n in 0..20 {
                        let before = model.clone();
                        model.chunk(&format!("/a{number}"), &[n], format!("{number} {n}"));
                        // A base that was squashed is no base any more: begin with the newest.
                        loop {
                            let changes = model.changes_since(&before, &lab.scratch);
                            match lab.commit(&lab.tip().await, &changes).await {
                                Ok(CommitOutcome::Committed { .. }) => break,
                                Err(error) if error.kind() == ErrorKind::Stale => {}
                                other => panic!("{other:?}"),
                            }
                        }
                    }
                });
            })
        };
        let writers: Vec<_> = (0..3).map(writer).collect();
        let mut squashed = 0;
        while writers.iter().any(|writer| !writer.is_finished()) {
            command("rewrite-manifests", &place, ["--split", "*=7", "--repack"]).success();
            if spec == SpecVersionBin::V2 {
                let output = command("squash", &place, ["--last", "3", "--yes"]);
                if output.status.success() {
                    squashed += 1
                } else {
                    assert!(output.stderr.contains("try again") || output.stderr.contains("only"), "{}", output.stderr)
                }
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        (0..3).for_each(|a| (0..20).for_each(|n| model.chunk(&format!("/a{a}"), &[n], format!("{a} {n}"))));
        assert_eq!(runtime.block_on(reference_keys(&place)), model.keys(), "{spec:?}, {squashed} squashed");
        fsck::check(&place, spec);
    }
}

/// Killed, or failing, at every fail point: the rewrite is complete or absent, and can be repeated.
#[tokio::test]
async fn a_rewrite_killed_at_any_fail_point_is_complete_or_absent() {
    let rewriting = ["commit.chunks", "commit.chunks.done", "commit.manifests", "commit.manifests.done"];
    for (name, words) in [
        ("squash", &["--last", "2", "--yes", "-m", "one"][..]),
        ("rewrite-manifests", &["--split", "*=2", "-m", "one"]),
    ] {
        for (point, action) in failpoints::COMMIT.iter().flat_map(|point| [(*point, "abort"), (*point, "eio")]) {
            if name == "squash" && rewriting.contains(&point) {
                continue;
            }
            let directory = tempfile::tempdir().unwrap();
            let place = directory.path();
            let model = three(place, SpecVersionBin::V2).await;
            let output = run_with_fault(place, &[&[name], words].concat(), &format!("{point}={action}"));
            let done = point == "commit.publish.done";
            let what = format!("{name}, {point}={action}: {}", output.stderr);
            assert_eq!(output.status.success(), done && action == "eio", "{what}");
            assert_eq!(history(place).await[0] == "one", done, "{what}");
            assert_eq!(reference_keys(place).await, model.keys(), "{what}");
            if !done {
                command(name, place, words).success();
                assert_eq!(history(place).await[0], "one", "{what}");
                assert_eq!(reference_keys(place).await, model.keys(), "{what}");
            }
            if action == "abort" {
                fsck::remove_staging_files(place);
            }
            fsck::check(place, SpecVersionBin::V2);
        }
    }
}
