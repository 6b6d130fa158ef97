//! Branches, tags and the operations log: the reference sees our changes, we see its changes, and
//! concurrent changes lose nothing.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::lab::{Lab, Model, create, reference_id, reopen, request, set};
use crate::common::moto;
use crate::common::random::Random;
use crate::common::{self, FixtureSet, block_on, project, run_on};
use futures_util::TryStreamExt;
use icechunk::RepositoryConfig;
use icechunk::format::SnapshotId;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::repo_info::{RepoAvailability, RepoStatus, UpdateType};
use icechunkfs::error::{ErrorKind, Result};
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::operations_log::DisplayedEntry;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::Operation;
use icechunkfs::repo::Repository;
use icechunkfs::repo::change_refs::RefKind::{self, Branch, Tag};
use icechunkfs::storage;
use icechunkfs::times::system_clock;
use object_store::path::PathPart;
use serde_json::{Value, json};

const BOTH: [SpecVersionBin; 2] = [SpecVersionBin::V1, SpecVersionBin::V2];
const BRANCH_NAMES: [&str; 9] = ["dev", "a b", "-x", "..", "a%20b", "ветка", "a#1", "UP", "~"];

async fn open(place: &Path) -> Repository {
    Repository::open(storage::open_directory(place).unwrap()).await.unwrap()
}

/// Creates a repository of some commits, which are returned oldest first.
async fn history(place: &Path, version: SpecVersionBin) -> Vec<ObjectId> {
    create(place, version, RepositoryConfig::default()).await;
    for n in 0..3 {
        let group = br#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;
        set(place, &[(&format!("g{n}/zarr.json"), group)], &format!("commit {n}")).await;
    }
    let repository = open(place).await;
    let tip = repository.branch_tip("main").await.unwrap().unwrap();
    let commits = repository.history(tip, usize::MAX).await.unwrap();
    commits.iter().rev().map(|commit| commit.id).collect()
}

/// Returns all refs as the reference has them.
async fn their_refs(place: &Path) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let repository = reopen(place).await;
    let mut branches = BTreeMap::new();
    let mut tags = BTreeMap::new();
    for name in repository.list_branches().await.unwrap() {
        // The reference lists names as they are encoded in files, and finds them by their decoded
        // form.
        let spelled = percent_encoding::percent_decode_str(&name).decode_utf8().unwrap().into_owned();
        let found = match repository.lookup_branch(&name).await {
            Ok(id) => (name, id),
            Err(_) => (spelled.clone(), repository.lookup_branch(&spelled).await.unwrap()),
        };
        branches.insert(found.0, found.1.to_string());
    }
    for name in repository.list_tags().await.unwrap() {
        let id = repository.lookup_tag(&name).await.unwrap();
        tags.insert(name, id.to_string());
    }
    (branches, tags)
}

async fn our_refs(place: &Path) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let refs = open(place).await.refs().await.unwrap();
    let spelled =
        |refs: BTreeMap<String, ObjectId>| refs.into_iter().map(|(name, id)| (name, id.to_string())).collect();
    (spelled(refs.branches), spelled(refs.tags))
}

#[tokio::test]
async fn ref_changes_are_visible_to_the_reference_and_to_us() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let commits = history(place, version).await;
        let ours = open(place).await;
        for (n, name) in BRANCH_NAMES.iter().enumerate() {
            ours.create_ref(Branch, name, commits[n % 4], system_clock).await.unwrap();
        }
        for name in ["v1", "v 2", "..", "gone"] {
            ours.create_ref(Tag, name, commits[1], system_clock).await.unwrap();
        }
        ours.delete_ref(Tag, "gone", commits[1], system_clock).await.unwrap();
        ours.delete_ref(Branch, "UP", commits[3], system_clock).await.unwrap();
        ours.reset_branch("dev", commits[2], commits[0], system_clock).await.unwrap();
        let (branches, tags) = their_refs(place).await;
        assert_eq!((branches.clone(), tags.clone()), our_refs(place).await);
        let names: BTreeSet<&str> = BRANCH_NAMES.into_iter().filter(|name| *name != "UP").chain(["main"]).collect();
        assert_eq!(branches.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
        assert_eq!(tags.keys().collect::<Vec<_>>(), ["..", "v 2", "v1"]);
        assert_eq!(branches["dev"], commits[2].to_string());

        // The reference continues with them: a commit to our branch, a deletion, a reset, and no
        // tag of a deleted name.
        let reference = reopen(place).await;
        let mut session = reference.writable_session("dev").await.unwrap();
        session.add_group("/theirs".try_into().unwrap(), bytes::Bytes::from_static(b"{}")).await.unwrap();
        let theirs_on_dev = session.commit("theirs").execute().await.unwrap();
        reference.delete_branch("a b").await.unwrap();
        reference.reset_branch("..", &reference_id(commits[1]), None).await.unwrap();
        reference.delete_tag("v 2").await.unwrap();
        reference.create_tag("theirs", &reference_id(commits[0])).await.unwrap();
        reference.create_branch("theirs", &reference_id(commits[0])).await.unwrap();
        assert!(reference.create_tag("gone", &reference_id(commits[0])).await.is_err());
        let seen = our_refs(place).await;
        assert_eq!(seen, their_refs(place).await);
        assert_eq!((&seen.0["dev"], &seen.0[".."]), (&theirs_on_dev.to_string(), &commits[1].to_string()));
        let ours = open(place).await;
        let mut deleted = ours.deleted_tags().await.unwrap();
        deleted.sort();
        assert_eq!(*deleted, ["gone", "v 2"]);
        // With an outdated view of the branch our command does not remove their commit.
        let stale = ours.reset_branch("dev", commits[0], commits[2], system_clock).await.unwrap_err();
        assert_eq!(stale.kind(), ErrorKind::Stale, "{stale}");
        let stale = ours.delete_ref(Branch, "dev", commits[2], system_clock).await.unwrap_err();
        assert_eq!(stale.kind(), ErrorKind::Stale, "{stale}");
        assert_eq!(our_refs(place).await.0["dev"], theirs_on_dev.to_string());
        if version == SpecVersionBin::V2 {
            same_operations(place).await;
        }
    }
}

#[tokio::test]
async fn forbidden_ref_changes_are_refused_and_change_nothing() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let commits = history(place, version).await;
        let ours = open(place).await;
        let at = commits[1];
        ours.create_ref(Branch, "dev", at, system_clock).await.unwrap();
        ours.create_ref(Tag, "v1", at, system_clock).await.unwrap();
        ours.create_ref(Tag, "gone", at, system_clock).await.unwrap();
        ours.delete_ref(Tag, "gone", at, system_clock).await.unwrap();
        let before = common::read_files(place);
        let kind = |done: Result<()>| done.unwrap_err().kind();
        let unknown = ObjectId::random().unwrap();
        for name in ["", "a\nb", "\u{7}", "a\0"] {
            assert_eq!(kind(ours.create_ref(Branch, name, at, system_clock).await), ErrorKind::InvalidInput);
            assert_eq!(kind(ours.create_ref(Tag, name, at, system_clock).await), ErrorKind::InvalidInput);
        }
        for ref_kind in [Branch, Tag] {
            let name = if ref_kind == Branch { "dev" } else { "v1" };
            assert_eq!(kind(ours.create_ref(ref_kind, name, at, system_clock).await), ErrorKind::AlreadyExists);
            assert_eq!(kind(ours.create_ref(ref_kind, "new", unknown, system_clock).await), ErrorKind::NotFound);
            assert_eq!(kind(ours.delete_ref(ref_kind, "none", at, system_clock).await), ErrorKind::NotFound);
            assert_eq!(kind(ours.delete_ref(ref_kind, name, unknown, system_clock).await), ErrorKind::Stale);
        }
        let reused = ours.create_ref(Tag, "gone", at, system_clock).await.unwrap_err();
        assert!(reused.kind() == ErrorKind::AlreadyExists && reused.to_string().contains("deleted"), "{reused}");
        assert_eq!(kind(ours.delete_ref(Tag, "gone", at, system_clock).await), ErrorKind::NotFound);
        assert_eq!(kind(ours.delete_ref(Branch, "main", commits[3], system_clock).await), ErrorKind::NotPermitted);
        assert_eq!(kind(ours.reset_branch("none", at, at, system_clock).await), ErrorKind::NotFound);
        assert_eq!(kind(ours.reset_branch("dev", unknown, at, system_clock).await), ErrorKind::NotFound);
        assert_eq!(kind(ours.reset_branch("dev", at, unknown, system_clock).await), ErrorKind::Stale);
        let slash = ours.create_ref(Branch, "a/b", at, system_clock).await;
        match version {
            SpecVersionBin::V1 => assert_eq!(kind(slash), ErrorKind::InvalidInput),
            _ => {
                slash.unwrap();
                ours.delete_ref(Branch, "a/b", at, system_clock).await.unwrap();
                continue;
            }
        }
        assert!(common::read_files(place) == before, "nothing was written");
    }
}

#[tokio::test]
async fn feature_flags_and_a_read_only_status_refuse_ref_changes() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let commits = history(place, SpecVersionBin::V2).await;
    let stale_view = open(place).await;
    stale_view.create_ref(Tag, "v1", commits[0], system_clock).await.unwrap();
    let reference = reopen(place).await;
    reference.set_feature_flag("create_tag", Some(false)).await.unwrap();
    reference.set_feature_flag("delete_tag", Some(false)).await.unwrap();
    // This also holds for a program that has opened the repository before.
    let made = stale_view.create_ref(Tag, "v2", commits[0], system_clock).await.unwrap_err();
    assert!(made.kind() == ErrorKind::NotPermitted && made.to_string().contains("create_tag"), "{made}");
    let deleted = stale_view.delete_ref(Tag, "v1", commits[0], system_clock).await.unwrap_err();
    assert_eq!(deleted.kind(), ErrorKind::NotPermitted, "{deleted}");
    stale_view.create_ref(Branch, "b", commits[0], system_clock).await.unwrap();
    reference.set_feature_flag("create_tag", None).await.unwrap();
    stale_view.create_ref(Tag, "v2", commits[0], system_clock).await.unwrap();
    let status = RepoStatus {
        availability: RepoAvailability::ReadOnly,
        set_at: std::time::SystemTime::now().into(),
        limited_availability_reason: Some("moving house".into()),
    };
    reference.set_status(&status).await.unwrap();
    for repository in [&stale_view, &open(place).await] {
        let refused = repository.create_ref(Branch, "c", commits[0], system_clock).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::ReadOnly && refused.to_string().contains("moving house"), "{refused}");
        let refused = repository.reset_branch("b", commits[1], commits[0], system_clock).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        let refused = repository.delete_ref(Branch, "b", commits[0], system_clock).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    }
    same_operations(place).await;
}

async fn operations(place: &Path) -> Vec<DisplayedEntry> {
    let mut operations = open(place).await.operations().unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = operations.next().await.unwrap() {
        entries.push(entry);
    }
    assert_eq!(operations.missing(), None);
    entries
}

/// Returns an operation of the reference in the form of our output.
fn in_our_format(update: UpdateType) -> Value {
    let id = |id: SnapshotId| id.to_string();
    match update {
        UpdateType::RepoInitializedUpdate => json!({"operation": "repo_initialized"}),
        UpdateType::RepoMigratedUpdate { .. } => {
            json!({"operation": "repo_migrated", "from_version": 1, "to_version": 2})
        }
        UpdateType::RepoStatusChangedUpdate { status } => json!({
            "operation": "status_changed",
            "status": if status.availability == RepoAvailability::ReadOnly { "read_only" } else { "online" },
            "reason": status.limited_availability_reason,
        }),
        UpdateType::ConfigChangedUpdate => json!({"operation": "config_changed"}),
        UpdateType::MetadataChangedUpdate => json!({"operation": "metadata_changed"}),
        UpdateType::TagCreatedUpdate { name } => json!({"operation": "tag_created", "tag": name}),
        UpdateType::TagDeletedUpdate { name, previous_snap_id } => {
            json!({"operation": "tag_deleted", "tag": name, "previous": id(previous_snap_id)})
        }
        UpdateType::BranchCreatedUpdate { name } => json!({"operation": "branch_created", "branch": name}),
        UpdateType::BranchDeletedUpdate { name, previous_snap_id } => {
            json!({"operation": "branch_deleted", "branch": name, "previous": id(previous_snap_id)})
        }
        UpdateType::BranchResetUpdate { name, previous_snap_id } => {
            json!({"operation": "branch_reset", "branch": name, "previous": id(previous_snap_id)})
        }
        UpdateType::NewCommitUpdate { branch, new_snap_id } => {
            json!({"operation": "new_commit", "branch": branch, "snapshot": id(new_snap_id)})
        }
        UpdateType::CommitAmendedUpdate { branch, previous_snap_id, new_snap_id } => json!({
            "operation": "commit_amended", "branch": branch, "previous": id(previous_snap_id), "snapshot": id(new_snap_id)
        }),
        UpdateType::NewDetachedSnapshotUpdate { new_snap_id } => {
            json!({"operation": "new_detached_snapshot", "snapshot": id(new_snap_id)})
        }
        UpdateType::GCRanUpdate => json!({"operation": "gc_ran"}),
        UpdateType::ExpirationRanUpdate => json!({"operation": "expiration_ran"}),
        UpdateType::FeatureFlagChanged { id, new_value } => {
            json!({"operation": "feature_flag_changed", "flag": id, "value": new_value})
        }
    }
}

/// Checks that the command and the reference list the same operations of a repository. Returns
/// their number.
pub(super) async fn same_operations(place: &Path) -> usize {
    let told = run_on(place, &["ops", "--json"]).json();
    let (log, ..) = reopen(place).await.ops_log().await.unwrap();
    let log: Vec<_> = log.try_collect().await.unwrap();
    let expected: Vec<Value> = log
        .into_iter()
        .map(|(at, update, file)| {
            let mut out = in_our_format(update);
            let micros = u64::try_from(at.timestamp_micros()).unwrap();
            out["at"] = icechunkfs::times::format_time(micros).into();
            out["file"] = file.into();
            out
        })
        .collect();
    let told = told.as_array().unwrap();
    assert_eq!(told.len(), expected.len(), "{}", place.display());
    for (ours, theirs) in told.iter().zip(&expected) {
        assert_eq!(ours, theirs, "{}", place.display());
    }
    let text = run_on(place, &["ops"]).text();
    assert_eq!(text.lines().count(), told.len());
    told.len()
}

#[tokio::test]
async fn ops_reads_the_operations_log_across_its_files() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let config = RepositoryConfig { num_updates_per_repo_info_file: Some(3), ..Default::default() };
    create(place, SpecVersionBin::V2, config).await;
    let initial = ObjectId::INITIAL;
    for n in 0..8 {
        open(place).await.create_ref(Branch, &format!("b{n}"), initial, system_clock).await.unwrap();
        reopen(place).await.create_tag(&format!("t{n}"), &reference_id(initial)).await.unwrap();
    }
    assert!(same_operations(place).await >= 17);
    let all = operations(place).await;
    let files: Vec<&String> = all.iter().filter_map(|entry| entry.backup_path.as_ref()).collect();
    assert_eq!(files.len(), all.len() - 1, "each but the newest has a file");
    let newest = run_on(place, &["ops", "-n", "2", "--json"]).json();
    assert_eq!((newest.as_array().unwrap().len(), &newest[0]["tag"]), (2, &json!("t7")));

    // Where a file is missing, the log ends there with a message.
    let info = RepoInfo::decode(&std::fs::read(place.join("repo")).unwrap()).unwrap();
    let before = icechunkfs::format::operations_log::previous_file(&info).unwrap();
    let file = place.join("overwritten").join(before);
    let content = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let short = run_on(place, &["ops", "--json"]);
    assert!(short.stderr.contains(before), "{}", short.stderr);
    assert!(short.json().as_array().unwrap().len() < all.len());
    // Where it is damaged, the part before is shown, and the command fails.
    std::fs::write(&file, &content[..content.len() / 2]).unwrap();
    let damaged = run_on(place, &["ops"]);
    assert!(!damaged.stdout.is_empty() && damaged.failure().contains(before));
    // A chain that leads back to itself ends.
    std::fs::copy(place.join("repo"), &file).unwrap();
    let cycle = run_on(place, &["ops"]).failure();
    assert!(cycle.contains("a cycle"), "{cycle}");
}

#[tokio::test]
async fn every_fixture_lists_its_refs_and_operations() {
    for set in FixtureSet::each() {
        let mut with_operations = 0;
        for fixture in set.all() {
            let repo = fixture.repository.as_os_str();
            for kind in ["branch", "tag"] {
                let listed = run_on(repo, &[kind, "list", "--json"]).json();
                let listed: BTreeMap<&str, &str> = listed
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|one| (one["name"].as_str().unwrap(), one["snapshot"].as_str().unwrap()))
                    .collect();
                let plural = if kind == "branch" { "branches" } else { "tags" };
                let expected = fixture.expected[plural].as_object().unwrap();
                let expected: BTreeMap<&str, &str> =
                    expected.iter().map(|(name, id)| (name.as_str(), id.as_str().unwrap())).collect();
                // The reference lists some names of version 1 as they are encoded in files, or
                // leaves them out, and finds none of them by the listed name.
                let mut more = listed.keys().filter(|name| !expected.contains_key(*name));
                assert!(more.all(|name| PathPart::from(*name).as_ref() != *name), "{} {kind}", fixture.name);
                assert!(expected.iter().all(|(name, id)| listed.get(name) == Some(id)), "{} {kind}", fixture.name);
                let long = run_on(repo, &[kind, "list", "--long"]).success();
                assert_eq!(String::from_utf8(long).unwrap().lines().count(), listed.len(), "{}", fixture.name);
            }
            if fixture.repository.join("repo").exists() {
                // The reference as it is built here does not support every store that a
                // configuration may name.
                if !fixture.name.contains("virtual") {
                    same_operations(&fixture.repository).await;
                }
                with_operations += 1;
            } else {
                let none = run_on(repo, &["ops"]).failure();
                assert!(none.contains("does not have an operations log"), "{none}");
            }
        }
        assert!(with_operations >= 3, "{}: {with_operations}", set.name);
    }
}

/// A change of a ref by a thread: from one state to another.
type Transition = (RefKind, String, Option<ObjectId>, Option<ObjectId>);

/// Lets six threads make, delete and reset refs of the same few names, while two commit to `main`,
/// which is reset too.
fn race(place: &Path, commits: &[ObjectId], resets_main: bool) -> (Vec<Transition>, Vec<ObjectId>) {
    const ROUNDS: usize = 12;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    std::thread::scope(|scope| {
        let changers: Vec<_> = (0..6)
            .map(|thread| {
                let runtime = &runtime;
                scope.spawn(move || {
                    let mut random = Random::new(0x9e37_79b9 + thread as u64);
                    let mut done = Vec::new();
                    for n in 0..ROUNDS {
                        runtime.block_on(async {
                            let repository = open(place).await;
                            let name = ["one", "two"][random.below(2)].to_owned();
                            let at = *random.pick(commits);
                            let tip = repository.branch_tip(&name).await.unwrap();
                            let (did, outcome) = match (random.below(4), tip) {
                                (0, _) => {
                                    let name = format!("t{}", (thread * ROUNDS + n) / 2);
                                    let made = repository.create_ref(Tag, &name, at, system_clock).await;
                                    ((Tag, name, None, Some(at)), made)
                                }
                                (1, Some(tip)) => {
                                    let gone = repository.delete_ref(Branch, &name, tip, system_clock).await;
                                    ((Branch, name, Some(tip), None), gone)
                                }
                                (2, _) if resets_main => {
                                    let tip = repository.branch_tip("main").await.unwrap().unwrap();
                                    let Ok(to) = repository.resolve_revision("main~").await.map(|found| found.id)
                                    else {
                                        return;
                                    };
                                    let reset = repository.reset_branch("main", to, tip, system_clock).await;
                                    ((Branch, "main".to_owned(), Some(tip), Some(to)), reset)
                                }
                                (_, Some(tip)) if tip != at => {
                                    let reset = repository.reset_branch(&name, at, tip, system_clock).await;
                                    ((Branch, name, Some(tip), Some(at)), reset)
                                }
                                _ => {
                                    let made = repository.create_ref(Branch, &name, at, system_clock).await;
                                    ((Branch, name, None, Some(at)), made)
                                }
                            };
                            match outcome {
                                Ok(()) => done.push(did),
                                Err(error) => assert!(
                                    matches!(
                                        error.kind(),
                                        ErrorKind::AlreadyExists
                                            | ErrorKind::Contended
                                            | ErrorKind::Stale
                                            | ErrorKind::NotFound
                                    ),
                                    "{error}"
                                ),
                            }
                        });
                    }
                    done
                })
            })
            .collect();
        let committers: Vec<_> = (0..2)
            .map(|thread| {
                let runtime = &runtime;
                scope.spawn(move || {
                    let mut published = Vec::new();
                    for n in 0..ROUNDS {
                        runtime.block_on(async {
                            let lab = Lab::open(place);
                            let mut model = Model::default();
                            model.group(&format!("/w{thread}-{n}"));
                            let changes = model.changes_since(&Model::default(), &lab.scratch);
                            let base = lab.tip().await;
                            match lab.commit_as(&base, &changes, request("racing")).await {
                                Ok(icechunkfs::commit::engine::CommitOutcome::Committed { snapshot, .. }) => {
                                    published.push(snapshot);
                                }
                                Err(error) if resets_main && error.kind() == ErrorKind::Stale => {}
                                other => panic!("{other:?}"),
                            }
                        });
                    }
                    published
                })
            })
            .collect();
        let changed = changers.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        (changed, committers.into_iter().flat_map(|thread| thread.join().unwrap()).collect())
    })
}

#[test]
fn concurrent_ref_changes_are_all_kept_in_version_2() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let commits = block_on(history(place, SpecVersionBin::V2));
    let before = block_on(operations(place)).len();
    let (mut changed, published) = race(place, &commits, true);
    assert!(changed.len() > 15 && !published.is_empty(), "{} {}", changed.len(), published.len());
    // Each entry of the log has the repository of that time: from one to the next, exactly that
    // operation was done.
    let entries = block_on(operations(place));
    let state = |entry: &DisplayedEntry| {
        let file = entry.backup_path.as_ref().map_or(place.join("repo"), |name| place.join("overwritten").join(name));
        let info = RepoInfo::decode(&std::fs::read(file).unwrap()).unwrap();
        let pair = |(name, id): (&str, Result<ObjectId>)| (name.to_owned(), id.unwrap());
        let branches: BTreeMap<String, ObjectId> = info.branches().map(pair).collect();
        let tags: BTreeMap<String, ObjectId> = info.tags().map(pair).collect();
        (branches, tags)
    };
    let mut committed = Vec::new();
    for pair in entries[..=entries.len() - before].windows(2) {
        let entry = &pair[0];
        let old = state(&pair[1]);
        let mut new = state(&pair[0]);
        let what = entry.operation.as_ref().unwrap();
        let (kind, name) = match what {
            Operation::BranchCreated { name }
            | Operation::BranchDeleted { name, .. }
            | Operation::BranchReset { name, .. } => (Branch, name.clone()),
            Operation::TagCreated { name } => (Tag, name.clone()),
            Operation::NewCommit { branch, new } => {
                committed.push(*new);
                (Branch, branch.clone())
            }
            other => panic!("{other:?}"),
        };
        let (old_refs, new_refs) = if kind == Branch { (&old.0, &mut new.0) } else { (&old.1, &mut new.1) };
        let transition = (kind, name.clone(), old_refs.get(&name).copied(), new_refs.get(&name).copied());
        match what {
            Operation::BranchDeleted { previous, .. } | Operation::BranchReset { previous, .. } => {
                assert_eq!(Some(*previous), transition.2, "{what:?}");
            }
            _ => {}
        }
        if !matches!(what, Operation::NewCommit { .. }) {
            let at = changed.iter().position(|one| *one == transition);
            changed.remove(at.unwrap_or_else(|| panic!("no thread did {transition:?}")));
        }
        // All other settings stayed.
        match transition.2 {
            Some(id) => new_refs.insert(name, id),
            None => new_refs.remove(&name),
        };
        assert_eq!(old, new, "{what:?}");
    }
    assert!(changed.is_empty(), "done, and not in the log: {changed:?}");
    committed.sort();
    let mut published = published;
    published.sort();
    assert_eq!(committed, published);
    block_on(async {
        same_operations(place).await;
        assert_eq!(their_refs(place).await, our_refs(place).await);
    });
}

#[test]
fn concurrent_ref_changes_are_all_kept_in_version_1() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let commits = block_on(history(place, SpecVersionBin::V1));
    let (changed, published) = race(place, &commits, false);
    assert!(changed.len() > 15, "{}", changed.len());
    block_on(async {
        let repository = open(place).await;
        let tip = repository.branch_tip("main").await.unwrap().unwrap();
        let history: BTreeSet<ObjectId> =
            repository.history(tip, usize::MAX).await.unwrap().into_iter().map(|commit| commit.id).collect();
        assert_eq!(published.len(), 24);
        assert!(published.iter().all(|id| history.contains(id)), "a commit is lost");
        let refs = repository.refs().await.unwrap();
        for name in changed.iter().map(|(kind, name, ..)| (*kind, name)).collect::<BTreeSet<_>>() {
            // Each change was made to the result of the one before: each target was entered and
            // left equally often.
            let mut balance: BTreeMap<Option<ObjectId>, i32> = BTreeMap::new();
            for (_, _, from, to) in changed.iter().filter(|(kind, other, ..)| (*kind, other) == name) {
                *balance.entry(*from).or_default() -= 1;
                *balance.entry(*to).or_default() += 1;
            }
            let names = if name.0 == Branch { &refs.branches } else { &refs.tags };
            *balance.entry(None).or_default() += 1;
            *balance.entry(names.get(name.1).copied()).or_default() -= 1;
            assert!(balance.values().all(|count| *count == 0), "{name:?}: {balance:?}");
        }
        assert_eq!(their_refs(place).await, our_refs(place).await);
    });
}

#[tokio::test]
async fn ref_commands_report_what_they_changed() {
    for version in BOTH {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let commits = history(place, version).await;
        let id = |n: usize| commits[n].to_string();
        let run = |words: &[&str]| run_on(place, words);
        let text = |words: &[&str]| run(words).text();
        assert_eq!(text(&["branch", "create", "dev"]), format!("branch `dev` points to {}\n", id(3)));
        let made = run(&["branch", "create", "old", "--at", "main~2", "--json"]).json();
        assert_eq!(made, json!({"name": "old", "snapshot": id(1)}));
        run(&["tag", "create", "v1", "--at", "branch/old"]).success();
        let listed = text(&["branch", "list"]);
        assert_eq!(listed, format!("{}  dev\n{}  main\n{}  old\n", id(3), id(3), id(1)));
        let long = text(&["tag", "list", "--long"]);
        assert!(long.starts_with(&format!("{}  v1  20", id(1))) && long.ends_with("  commit 0\n"), "{long}");
        let unknown = run(&["branch", "create", "x", "--at", "mian"]).failure();
        assert!(unknown.contains("did you mean `main`"), "{unknown}");

        // Destructive commands ask; without a terminal they need `--yes`.
        let refused = run(&["branch", "reset", "dev", "--to", "old"]);
        if version == SpecVersionBin::V2 {
            // Nothing is lost, as `main` has the commits.
            assert_eq!(
                refused.success(),
                format!("branch `dev` points to {}; before it was {}\n", id(1), id(3)).as_bytes()
            );
        } else {
            assert_eq!(refused.status.code(), Some(2));
            assert!(refused.stderr.contains("pass --yes"), "{}", refused.stderr);
            run(&["branch", "reset", "dev", "--to", "old", "-y"]).success();
        }
        let refused = run(&["branch", "reset", "main", "--to", "old"]);
        assert_eq!(refused.status.code(), Some(2));
        assert!(refused.stderr.contains(&id(3)) && refused.stderr.contains("commit 2"), "{}", refused.stderr);
        if version == SpecVersionBin::V2 {
            assert!(refused.stderr.contains("2 commits are then on no branch"), "{}", refused.stderr);
        }
        let stale = run(&["branch", "reset", "main", "--to", "old", "--yes", "--expect", &id(2)]).failure();
        assert!(stale.contains("nothing was done"), "{stale}");
        let reset = run(&["branch", "reset", "main", "--to", "old", "--yes", "--expect", &id(3), "--json"]).json();
        assert_eq!(reset, json!({"name": "main", "previous": id(3), "snapshot": id(1)}));
        assert!(text(&["branch", "reset", "main", "--to", "v1"]).contains("already"));
        for words in [["branch", "delete", "dev"], ["tag", "delete", "v1"]] {
            let refused = run(&words);
            assert_eq!(refused.status.code(), Some(2));
            assert!(refused.stderr.contains("will be deleted"), "{}", refused.stderr);
        }
        assert!(run(&["branch", "delete", "main", "--yes"]).failure().contains("cannot be deleted"));
        let deleted = text(&["branch", "delete", "dev", "--yes"]);
        assert_eq!(deleted, format!("deleted branch `dev`, which pointed to {}\n", id(1)));
        run(&["tag", "delete", "v1", "-y"]).success();
        assert_eq!(run(&["tag", "list", "--deleted", "--json"]).json(), json!(["v1"]));
        assert_eq!(text(&["tag", "list", "--deleted"]), "v1\n");
        let again = run(&["tag", "create", "v1"]).failure();
        assert!(again.contains("names of deleted tags"), "{again}");
        let (branches, tags) = their_refs(place).await;
        assert_eq!((branches.len(), branches["main"].clone(), tags.len()), (2, id(1), 0));
    }
}

/// The same over Amazon's protocol, where nothing is locked and every change is a conditional
/// request.
#[test]
fn refs_and_settings_of_a_store_are_changed_by_conditional_writes() {
    let Some(server) = moto::s3() else { return };
    let port = server.port;
    for name in ["own-v1-basic", "own-v2-basic"] {
        let fixture = FixtureSet::own().get(name);
        let repo = moto::upload(port, &project("tests/fixtures/repos").join(name), name);
        let run = |words: &[&str]| {
            let (command, rest) = words.split_first().unwrap();
            moto::icechunkfs(port, &[&[*command, &repo], rest].concat())
        };
        let names = |kind: &str| -> BTreeSet<String> {
            let listed = run(&[kind, "list", "--json"]).json();
            listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
        };
        // The server answers some of several requests at a time with 500.
        run(&["config", "set", "storage.retries.max_tries", "10"]).success();
        let before = names("branch");
        let expected = fixture.expected["branches"].as_object().unwrap();
        assert!(expected.keys().all(|name| before.contains(name)));
        std::thread::scope(|scope| {
            for n in 0..4 {
                let run = &run;
                scope.spawn(move || {
                    run(&["branch", "create", &format!("b {n}")]).success();
                    run(&["tag", "create", &format!("t{n}")]).success();
                    let setting = ["compression.level", "caching.num_chunk_refs", "max_concurrent_requests"][n % 3];
                    run(&["config", "set", setting, &(n + 1).to_string()]).success();
                    run(&["branch", "reset", &format!("b {n}"), "--to", "main~", "--yes"]).success();
                    run(&["tag", "delete", &format!("t{n}"), "--yes"]).success();
                    if n > 0 {
                        run(&["branch", "delete", &format!("b {n}"), "--yes"]).success();
                    }
                });
            }
        });
        let mut after = before.clone();
        after.insert("b 0".to_owned());
        assert_eq!(names("branch"), after);
        let deleted = run(&["tag", "list", "--deleted", "--json"]).json();
        let deleted: Vec<&str> = deleted.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert!((0..4).all(|n| deleted.contains(&format!("t{n}").as_str())), "{deleted:?}");
        assert_eq!(run(&["config", "get", "caching.num_chunk_refs", "--json"]).json(), 2);
        assert_eq!(run(&["config", "get", "max_concurrent_requests", "--json"]).json(), 3);
        let stale = run(&["branch", "delete", "b 0", "--yes", "--expect", "1CECHNKREP0F1RSTCMT0"]);
        assert!(stale.failure().contains("nothing was done"));
        if name.contains("v2") {
            let told = run(&["ops", "--json"]).json();
            let count = |kind: &str| told.as_array().unwrap().iter().filter(|one| one["operation"] == kind).count();
            assert!(count("tag_deleted") >= 4 && count("config_changed") >= 4 && count("branch_deleted") >= 3);
        }
    }
}
