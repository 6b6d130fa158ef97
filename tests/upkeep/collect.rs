//! Expiration and collection, compared with the reference's result for the same repository at every
//! step, and with uncommitted work.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::FileTimes;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use crate::common::lab::{self, Lab, Model, collect_by_reference, new_lab, reopen};
use crate::common::random::Random;
use crate::common::writing::{self, Writable, array, put};
use crate::common::{self, copy_tree, read_files, run_on, run_with_fault};
use crate::life::world::{Actor, World, check, expire_by_reference, nothing_uncommitted};
use futures_util::TryStreamExt;
use icechunk::format::format_constants::SpecVersionBin;
use icechunkfs::commit::engine::CommitOutcome;
use icechunkfs::error::{Error, ErrorKind};
use icechunkfs::failpoints;
use icechunkfs::format::ids::ObjectId;
use icechunkfs::format::repo_info::RepoInfo;
use icechunkfs::format::repo_state::RepoState;
use icechunkfs::repo::collect::{self, GcOptions};
use icechunkfs::repo::expire;
use icechunkfs::times::system_clock;
use serde_json::Value;

/// Creates a repository with commits of both implementations, and with a few branches and tags.
async fn with_a_past(seed: u64, version: SpecVersionBin) -> World {
    let mut world = World::new(seed, version).await;
    let log = Mutex::new(Vec::new());
    let mut done = 0;
    while done < 18 {
        let actor = if world.random.below(2) == 0 { Actor::Ours } else { Actor::Reference };
        done += usize::from(world.step(actor, &log).await);
    }
    world
}

/// Describes refs, histories and, in version 2, the commits in `repo`.
async fn described(place: &Path) -> (Value, BTreeMap<ObjectId, (Option<ObjectId>, Vec<ObjectId>)>) {
    let repository = Lab::open(place).repository().await;
    let refs = repository.refs().await.unwrap();
    let mut histories = BTreeMap::new();
    for (name, tip) in refs.branches.iter().chain(&refs.tags) {
        let history = repository.history(*tip, usize::MAX).await.unwrap();
        histories.insert(name.clone(), history.iter().map(|commit| commit.id.to_string()).collect::<Vec<_>>());
    }
    let deleted = repository.deleted_tags().await.unwrap();
    let Ok(file) = std::fs::read(place.join("repo")) else {
        return (serde_json::json!([histories, *deleted]), BTreeMap::new());
    };
    let state = RepoState::from_info(&RepoInfo::decode(&file).unwrap()).unwrap();
    let commits = state.snapshots.into_iter().map(|(id, r)| (id, (r.parent, r.pruned_ancestor_tx_logs))).collect();
    (serde_json::json!([histories, *deleted]), commits)
}

/// The same repository, expired by the reference and by us, has the same result.
#[tokio::test]
async fn expiration_matches_the_reference() {
    for seed in 0..24 {
        let version = if seed % 3 == 2 { SpecVersionBin::V1 } else { SpecVersionBin::V2 };
        let world = with_a_past(1000 + seed, version).await;
        let mut random = Random::new(seed + 77);
        let times: Vec<u64> = world.times();
        for _ in 0..2 {
            let older_than = if random.below(4) == 0 { system_clock() } else { *random.pick(&times) };
            let tags = random.below(2) == 0;
            let branches = random.below(2) == 0;
            let theirs = tempfile::tempdir().unwrap();
            let ours = tempfile::tempdir().unwrap();
            copy_tree(world.place(), theirs.path());
            copy_tree(world.place(), ours.path());
            expire_by_reference(theirs.path(), older_than, tags, branches).await;
            let wanted =
                expire::ExpireOptions { older_than, delete_tags: tags, delete_branches: branches, dry_run: true };
            let lab = Lab::open(ours.path());
            let before = read_files(ours.path());
            let would = expire::expire(&lab.repository().await, wanted, system_clock).await.unwrap();
            assert!(read_files(ours.path()) == before, "a dry run changes nothing");
            let wanted = expire::ExpireOptions { dry_run: false, ..wanted };
            let expired = expire::expire(&lab.repository().await, wanted, system_clock).await.unwrap();
            assert_eq!(would, expired, "a dry run tells what would be done");
            let what = described(ours.path()).await;
            let expected = described(theirs.path()).await;
            assert_eq!(what, expected, "seed {seed}: before {older_than}, tags {tags}, branches {branches}");
            check(&lab).await;
            // Once more, there is nothing to do.
            let again = expire::expire(&lab.repository().await, wanted, system_clock).await.unwrap();
            assert!(again.edited.is_empty() && again.branches.is_empty() && again.tags.is_empty(), "{again:?}");
        }
    }
}

/// The same repository, collected by the reference and by us, has the same objects.
#[tokio::test]
async fn collection_matches_the_reference() {
    for seed in 0..16 {
        let version = if seed % 3 == 2 { SpecVersionBin::V1 } else { SpecVersionBin::V2 };
        let world = with_a_past(2000 + seed, version).await;
        expire_by_reference(world.place(), world.times()[world.times().len() / 2], false, false).await;
        std::fs::write(world.place().join("chunks/notes"), "not ours").unwrap();
        let theirs = tempfile::tempdir().unwrap();
        let ours = tempfile::tempdir().unwrap();
        copy_tree(world.place(), theirs.path());
        copy_tree(world.place(), ours.path());
        let older_than = system_clock();
        collect_by_reference(theirs.path(), older_than).await;
        let lab = Lab::open(ours.path());
        let before = read_files(ours.path());
        let collect = async |dry_run| collect_before(ours.path(), older_than, dry_run).await;
        let would = collect(true).await;
        assert!(read_files(ours.path()) == before, "a dry run changes nothing");
        let collected = collect(false).await;
        assert_eq!(would, collected, "a dry run tells what would be done");
        assert_eq!(collected.unknown, 1);
        let left = read_files(ours.path());
        let expected = read_files(theirs.path());
        let gone = before.iter().filter(|(key, _)| !left.contains_key(*key));
        let bytes = gone.fold((0, 0), |sum, (_, bytes)| (sum.0 + 1, sum.1 + bytes.len() as u64));
        assert_eq!((collected.total().objects, collected.total().bytes), bytes, "seed {seed}: it is counted");
        let names = |files: &BTreeMap<String, Vec<u8>>| {
            files.keys().filter(|key| !is_record(key)).cloned().collect::<BTreeSet<_>>()
        };
        assert_eq!(names(&left), names(&expected), "seed {seed}");
        assert_eq!(described(ours.path()).await, described(theirs.path()).await, "seed {seed}");
        check(&lab).await;
    }
}

/// Returns true if the file is a copy of `repo`, or tells that a collection has ended.
fn is_record(key: &str) -> bool {
    ["overwritten/", "collected/"].iter().any(|folder| key.starts_with(folder))
}

/// Killed at any point, a collection leaves a valid repository, and a repetition finishes it.
#[tokio::test]
async fn an_interrupted_collection_is_finished_by_the_next() {
    let world = with_a_past(3003, SpecVersionBin::V2).await;
    // Something for each step: commits that no ref leads to any more.
    let lab = Lab::open(world.place());
    let repository = lab.repository().await;
    let tip = repository.branch_tip("main").await.unwrap().unwrap();
    let mut model = Model::default();
    let base = lab.tip().await;
    model.array("/more", &[4]);
    (0..4).for_each(|n| model.chunk("/more", &[n], vec![n as u8; 2000]));
    lab.commit(&base, &model.changes_since(&Model::default(), &lab.scratch)).await.unwrap();
    let newest = repository_tip(world.place()).await;
    lab.repository().await.reset_branch("main", tip, newest, system_clock).await.unwrap();
    let whole = tempfile::tempdir().unwrap();
    copy_tree(world.place(), whole.path());
    let gc = ["gc", "--older-than", "0s", "--yes", "--json"];
    run_on(whole.path(), &gc).success();
    let names = |place: &Path| read_files(place).into_keys().filter(|key| !is_record(key)).collect::<BTreeSet<_>>();
    let finished = names(whole.path());
    for point in failpoints::COLLECTION {
        for how in ["abort", "eio"] {
            let place = tempfile::tempdir().unwrap();
            copy_tree(world.place(), place.path());
            let output = run_with_fault(place.path(), &gc, &format!("{point}={how}"));
            assert!(!output.status.success(), "{point}");
            check(&Lab::open(place.path())).await;
            reopen(place.path()).await.list_branches().await.unwrap();
            run_on(place.path(), &gc).success();
            assert_eq!(names(place.path()), finished, "{point}={how}");
            check(&Lab::open(place.path())).await;
        }
    }
}

async fn repository_tip(place: &Path) -> ObjectId {
    Lab::open(place).repository().await.branch_tip("main").await.unwrap().unwrap()
}

/// Objects that hold several chunks stay while one of them is needed, and their dead bytes are
/// reported.
#[tokio::test]
async fn packs_stay_while_one_chunk_is_needed() {
    let (place, lab) = new_lab(SpecVersionBin::V2).await;
    let mut first = Model::default();
    first.array("/a", &[8]);
    (0..8).for_each(|n| first.chunk("/a", &[n], vec![n as u8; 1000]));
    let packed = lab.commit_first(&first).await;
    assert_eq!(std::fs::read_dir(place.path().join("chunks")).unwrap().count(), 1);
    let mut second = first.clone();
    (0..7).for_each(|n| second.chunk("/a", &[n], vec![100 + n as u8; 1000]));
    lab.commit_model(&first, &second).await;
    let repository = lab.repository().await;
    let wanted = expire::ExpireOptions {
        older_than: system_clock(),
        delete_tags: false,
        delete_branches: false,
        dry_run: false,
    };
    let expired = expire::expire(&repository, wanted, system_clock).await.unwrap();
    assert_eq!(expired.released, BTreeSet::from([packed]));
    let collected = collect_before(place.path(), system_clock(), false).await;
    assert_eq!((collected.chunks.objects, collected.snapshots.objects, collected.manifests.objects), (0, 1, 1));
    assert_eq!((collected.packs.objects, collected.packs.bytes), (1, 7000));
    check(&lab).await;
    assert_eq!(lab::reference_keys(place.path()).await, second.keys());
}

/// Directories that are removed with the test.
struct Removed(Vec<PathBuf>);

impl Drop for Removed {
    fn drop(&mut self) {
        for directory in &self.0 {
            let _ = std::fs::remove_file(directory);
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// Makes a commit with a chunk, and a change that waits for the next one.
fn commit_and_change(mount: &Writable) {
    let root = mount.root();
    put(&root.join("zarr.json"), writing::GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[8], &[1])).unwrap();
    put(&root.join("a/c/7"), vec![8; 3000]).unwrap();
    mount.commit("base").unwrap();
    put(&root.join("a/c/0"), vec![99; 3000]).unwrap();
}

/// A default scratch directory, or the directory around it, was moved to another disk and replaced
/// by a link, as mounts allow.
#[test]
fn uncommitted_work_behind_a_link_protects_its_base() {
    if !writing::needed(common::is_root(), "root, whose scratch directories have a known place")
        || !common::place::needs_directory()
    {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    writing::create(&repo);
    let name = icechunkfs::file_name::encode(repo.canonicalize().unwrap().to_str().unwrap());
    let default = Path::new("/var/lib/icechunkfs").join(name);
    let _removed = Removed(vec![default.clone()]);
    let disk = directory.path().join("disk");
    std::fs::create_dir_all(&default).unwrap();
    let mount = Writable::placed(&repo, &default.join("main"), &[]);
    commit_and_change(&mount);
    mount.unmount();
    writing::Reference::open(&repo).reset_branch("main");
    let gc = |words: &[&str]| run_on(&repo, &[&["gc", "--older-than", "0s", "--json"], words].concat());
    let keeps = |what: &str| {
        let report = gc(&["--dry-run"]).json();
        let found = report["uncommitted"].as_array().unwrap().len();
        assert_eq!((&report["total"]["objects"], found), (&0.into(), 1), "{what}: {report:#}");
    };
    keeps("a directory");
    // By an absolute link, a relative one, and one in the place of the directory around it.
    std::fs::rename(default.join("main"), &disk).unwrap();
    symlink(&disk, default.join("main")).unwrap();
    keeps("a link");
    std::fs::rename(&disk, default.join("real")).unwrap();
    std::fs::remove_file(default.join("main")).unwrap();
    symlink("real", default.join("main")).unwrap();
    let report = gc(&["--dry-run"]).json();
    assert_eq!(
        (&report["total"]["objects"], report["commits"].as_array().unwrap().len()),
        (&0.into(), 0),
        "{report:#}"
    );
    std::fs::remove_file(default.join("main")).unwrap();
    std::fs::rename(default.join("real"), default.join("main")).unwrap();
    std::fs::rename(&default, &disk).unwrap();
    symlink(&disk, &default).unwrap();
    keeps("a link around it");
    // The disk is not mounted: nobody knows what the work needs.
    let away = directory.path().join("away");
    std::fs::rename(&disk, &away).unwrap();
    let refused = gc(&["--yes"]).failure();
    assert!(refused.contains("leads nowhere") && refused.contains(default.to_str().unwrap()), "{refused}");
    std::fs::remove_file(&default).unwrap();
    std::fs::create_dir(&default).unwrap();
    symlink(disk.join("main"), default.join("main")).unwrap();
    let refused = gc(&["--yes"]).failure();
    assert!(refused.contains("leads nowhere") && refused.contains("main"), "{refused}");
    // Other users could have put anything there.
    std::fs::remove_file(default.join("main")).unwrap();
    symlink(away.join("main"), default.join("main")).unwrap();
    common::users::set_owner(&away.join("main"), common::users::NOBODY);
    let report = gc(&["--dry-run"]).json();
    assert_eq!(report["not_counted"][0]["path"], default.join("main").to_str().unwrap(), "{report:#}");
    common::users::set_owner(&away.join("main"), 0);
    keeps("a link again");
}

/// Uncommitted work of a mount keeps its base, although no branch leads to that any more.
#[test]
fn uncommitted_work_protects_its_base() {
    let mount = Writable::new(&[]);
    if !common::place::needs_directory() {
        return;
    }
    let root = mount.root();
    put(&root.join("zarr.json"), writing::GROUP).unwrap();
    put(&root.join("a/zarr.json"), array(&[8], &[1])).unwrap();
    for n in 0..8 {
        put(&root.join(format!("a/c/{n}")), vec![n + 1; 3000]).unwrap();
    }
    mount.commit("base").unwrap();
    put(&root.join("a/c/0"), vec![99; 3000]).unwrap();
    // Another writer resets the branch, and nothing leads to the base.
    let place = mount.repository().to_owned();
    writing::Reference::open(&place).reset_branch("main");
    let gc = |words: &[&str]| run_on(&place, &[&["gc", "--older-than", "0s", "--json"], words].concat()).json();
    let report = gc(&["--yes"]);
    assert_eq!(
        (&report["total"]["objects"], report["uncommitted"].as_array().unwrap().len()),
        (&0.into(), 1),
        "{report:#}"
    );
    assert_eq!(report["uncommitted"][0]["scratch"], mount.scratch().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(std::fs::read(root.join("a/c/7")).unwrap(), vec![8; 3000]);
    // Unmounted, it has to be named.
    mount.unmount();
    let kept = gc(&["--yes", "--keep-scratch", mount.scratch().to_str().unwrap()]);
    assert_eq!(kept["total"]["objects"], 0, "{kept:#}");
    mount.mount_again(None).success();
    assert_eq!(std::fs::read(root.join("a/c/7")).unwrap(), vec![8; 3000]);
    mount.unmount();
    let would = gc(&["--dry-run"]);
    assert!(
        would["total"]["objects"].as_u64().unwrap() > 2 && would["commits"].as_array().unwrap().len() == 1,
        "{would:#}"
    );
    // Without a terminal, destructive commands need `--yes`.
    let refused = run_on(&place, &["gc", "--older-than", "0s"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("would remove") && refused.stderr.contains("--yes"), "{}", refused.stderr);
    let done = gc(&["--yes"]);
    assert_eq!(done["total"], would["total"]);
    let verified = run_on(&place, &["verify", "--chunks"]);
    assert!(verified.status.success(), "{}", verified.all());
}

/// The repository was mounted under a URL, and `gc` gets its path.
#[test]
fn uncommitted_work_of_a_mount_by_a_file_url_protects_its_base() {
    if !common::place::needs_directory() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().canonicalize().unwrap().join("a repo");
    writing::create(&repo);
    let url = format!("file://{}", repo.to_str().unwrap().replace(' ', "%20"));
    let mount = Writable::of(Path::new(&url), &[]);
    let root = mount.root();
    commit_and_change(&mount);
    writing::Reference::open(&repo).reset_branch("main");
    let report = run_on(&repo, &["gc", "--older-than", "0s", "--yes", "--json"]).json();
    assert_eq!(report["uncommitted"].as_array().unwrap().len(), 1, "{report:#}");
    assert_eq!(report["total"]["objects"], 0, "{report:#}");
    assert_eq!(std::fs::read(root.join("a/c/7")).unwrap(), vec![8; 3000]);
    mount.unmount();
    // The scratch directory belongs to the repository, whichever name of it is given.
    let path = repo.to_str().unwrap();
    let again =
        common::run(common::moto::plain(&["mount", path, root.to_str().unwrap(), "--scratch"]).arg(mount.scratch()));
    assert!(again.status.success() && !again.all().contains("the repository was at"), "{}", again.all());
    mount.unmount();
}

/// A URL of a store has several spellings. The default scratch directory is named after that of the
/// mount.
#[test]
fn uncommitted_work_of_a_mount_by_another_url_protects_its_base() {
    if !writing::needed(common::is_root(), "root, whose scratch directories have a known place") {
        return;
    }
    let Some(server) = common::moto::s3() else { return };
    // One whose name as a file is cut off.
    let long = format!("{}/x", "long".repeat(60));
    for (name, spellings) in
        [("spelled", ["s3a://", "S3://", "s3:///"]), (long.as_str(), ["s3a://", "S3://", "s3:///"])]
    {
        let repo = common::moto::made(server.port, name);
        let rest = repo.strip_prefix("s3://").unwrap();
        for spelling in spellings {
            let other = match spelling {
                "s3:///" => format!("s3://{}", rest.replacen('/', "//", 1)),
                scheme => format!("{scheme}{rest}"),
            };
            let work = || {
                let gc = ["gc", &repo, "--older-than", "1d", "--dry-run", "--json"];
                common::moto::icechunkfs(server.port, &gc).json()["uncommitted"].as_array().unwrap().len()
            };
            let place = Path::new("/var/lib/icechunkfs").join(icechunkfs::file_name::encode(&other));
            let _removed = Removed(vec![place.clone()]);
            let mount = common::moto::mount(server.port, &other, &[]);
            put(&mount.path().join("a/c/0"), "changed").unwrap();
            assert_eq!(work(), 1, "mounted: {other}");
            let delete = ["branch", &repo, "reset", "main", "--to", "main~1"];
            let said = common::moto::icechunkfs(server.port, &delete).failure();
            assert!(said.contains("mounted at"), "{other}: {said}");
            mount.unmount();
            assert_eq!(work(), 1, "not mounted: {other}");
            let said = common::moto::icechunkfs(server.port, &delete).failure();
            assert!(
                said.contains("uncommitted changes stay in") && said.contains(place.to_str().unwrap()),
                "{other}: {said}"
            );
        }
    }
}

/// A chunk file can have any time. The object that it becomes is new all the same, so that a
/// collection beside the commit leaves it alone, and the file keeps its times if the commit fails.
#[tokio::test]
async fn linked_chunks_are_new_objects_whatever_their_file_times() {
    for version in [SpecVersionBin::V1, SpecVersionBin::V2] {
        let (place, lab) = new_lab(version).await;
        let mut model = Model::default();
        model.group("/");
        model.array("/a", &[4]);
        (0..4).for_each(|n| model.chunk("/a", &[n], vec![n as u8; 300_000]));
        let changes = model.changes_since(&Model::default(), &lab.scratch);
        let files = || std::fs::read_dir(lab.scratch.directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
        for path in files() {
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_times(FileTimes::new().set_modified(old).set_accessed(old)).unwrap();
        }
        let base = lab.tip().await;
        let failing = lab::request_with("fails", |_| Err(Error::new(ErrorKind::Io, "not today")));
        lab.commit_as(&base, &changes, failing).await.unwrap_err();
        let times = || files().map(|path| std::fs::metadata(path).unwrap().modified().unwrap()).collect::<Vec<_>>();
        assert_eq!(times(), [old; 4], "a commit that failed changes nothing");

        let repository = place.path().to_owned();
        let collect = move |_| {
            run_on(&repository, &["gc", "--older-than", "1h", "--yes", "--json"]).success();
            Ok(())
        };
        let request = lab::request_with("beside a collection", collect);
        let outcome = lab.commit_as(&base, &changes, request).await.unwrap();
        assert!(matches!(outcome, CommitOutcome::Committed { .. }), "{outcome:?}");
        assert_eq!(lab::reference_keys(place.path()).await, model.keys(), "{version:?}");
        assert!(files().all(|path| std::fs::metadata(path).unwrap().nlink() > 1), "they were linked");
    }
}

/// Returns the operations as the reference lists them, newest first.
async fn operations(place: &Path) -> Vec<String> {
    let (log, ..) = reopen(place).await.ops_log().await.unwrap();
    log.map_ok(|(time, operation, _)| format!("{time} {operation:?}")).try_collect().await.unwrap()
}

fn copies_of_repo(place: &Path) -> u64 {
    std::fs::read_dir(place.join("overwritten")).map_or(0, |entries| entries.count() as u64)
}

async fn collect_before(place: &Path, older_than: u64, dry_run: bool) -> collect::Collected {
    let repository = Lab::open(place).repository().await;
    let wanted = GcOptions { older_than, dry_run };
    collect::collect(&repository, wanted, system_clock, &nothing_uncommitted(), &Default::default()).await.unwrap()
}

/// However many updates there were, a collection leaves the few copies in which the log continues,
/// and the whole log.
#[tokio::test]
async fn old_copies_of_repo_are_removed_and_the_operations_log_stays() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let per_file = 5;
    let config = icechunk::RepositoryConfig {
        num_updates_per_repo_info_file: Some(per_file),
        ..icechunk::RepositoryConfig::default()
    };
    lab::create(place, SpecVersionBin::V2, config).await.save_config().await.unwrap();
    let lab = Lab::open(place);
    let mut model = Model::default();
    model.group("/");
    model.array("/a", &[1000]);
    lab.commit_first(&model).await;
    let mut next = 0;
    for round in 0..4 {
        for _ in 0..13 {
            let before = model.clone();
            model.chunk("/a", &[next], format!("{next}"));
            lab.commit_model(&before, &model).await;
            next += 1;
        }
        model.chunk("/a", &[next], "theirs");
        lab::set(place, &[(&format!("a/c/{next}"), b"theirs")], "theirs").await;
        next += 1;
        let known = operations(place).await;
        let copies = copies_of_repo(place);
        let long_ago = system_clock() - 3_600_000_000;
        assert_eq!(collect_before(place, long_ago, false).await, collect::Collected::default(), "all are young");
        assert_eq!(copies_of_repo(place), copies);
        let now = system_clock();
        let would = collect_before(place, now, true).await;
        let done = collect_before(place, now, false).await;
        assert_eq!(would, done);
        assert!(done.copies.objects > 10 && done.copies.objects == done.total().objects, "{done:?}");
        // One file of the log for each time that `repo` was full, those that were rewritten, and
        // the copy of the collection.
        let left = copies_of_repo(place);
        assert!(left <= u64::from(next) / u64::from(per_file) + 2, "round {round}: {left} of {copies}");
        let after = operations(place).await;
        assert_eq!(after[1..], known, "round {round}");
        let info = RepoInfo::decode(&std::fs::read(place.join("repo")).unwrap()).unwrap();
        let entries = RepoState::from_info(&info).unwrap().updates.len();
        assert!(entries <= 2 * usize::from(per_file) + 1, "round {round}: {entries}");
        // Nothing is left for another collection, which would only leave a copy itself.
        assert_eq!(collect_before(place, system_clock(), false).await, collect::Collected::default());
        check(&lab).await;
        assert_eq!(lab::reference_keys(place).await, model.keys());
    }
    let output = run_on(place, &["stats", "--json"]).json();
    let stored = &output["stored"];
    assert_eq!(stored["backups"]["objects"], copies_of_repo(place));
    assert!(stored["removable_backups"]["objects"].as_u64().unwrap() >= 1, "{stored}");
    assert!(stored["removable_backups"]["objects"].as_u64() < stored["backups"]["objects"].as_u64(), "{stored}");
}

/// A collection with concurrent updates leaves no name without its copy.
#[tokio::test]
async fn copies_of_repo_that_the_log_names_stay_beside_commits() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let config =
        icechunk::RepositoryConfig { num_updates_per_repo_info_file: Some(3), ..icechunk::RepositoryConfig::default() };
    lab::create(place, SpecVersionBin::V2, config).await.save_config().await.unwrap();
    let lab = Lab::open(place);
    let mut model = Model::default();
    model.array("/a", &[1000]);
    lab.commit_first(&model).await;
    let committing = async {
        for n in 0..60 {
            let before = model.clone();
            model.chunk("/a", &[n], format!("{n}"));
            lab.commit_model(&before, &model).await;
        }
    };
    let done = std::sync::atomic::AtomicBool::new(false);
    let collecting = async {
        while !done.load(std::sync::atomic::Ordering::Relaxed) {
            collect_before(place, system_clock(), false).await;
            tokio::task::yield_now().await;
        }
    };
    let committing = async {
        committing.await;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    };
    tokio::join!(committing, collecting);
    let log = operations(place).await;
    assert_eq!(log.iter().filter(|entry| entry.contains("NewCommit")).count(), 61);
    check(&lab).await;
    assert_eq!(lab::reference_keys(place).await, model.keys());
}
