//! Exports: their content, existing files, and interruptions.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::trees::{command, json, one_array, random, repository};
use crate::common::failing::run_with_failing_calls;
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, array};
use crate::common::{
    Files, FixtureSet, Mount, block_on, is_root, program, project, python, read_files, run, visit_files,
};

const MARKER: &str = ".icechunkfs-export";

/// Returns the files of a mount, except unreadable ones.
fn mounted(repo: &Path, id: &str, words: &[&str]) -> Files {
    let mount = Mount::new(repo, &[&["--snapshot", id], words].concat());
    let mut files = Files::new();
    visit_files(&mount.path(), "", &mut |name, path| {
        fs::read(path).into_iter().for_each(|bytes| drop(files.insert(name.clone(), bytes)));
    });
    files
}

/// Checks the first branch and the first tag of each repository, or only one of them.
fn check(set: &FixtureSet, refs_of_each: usize) {
    for fixture in set.all() {
        let branches = fixture.expected["branches"].as_object().unwrap();
        let tags = fixture.expected["tags"].as_object().unwrap();
        let refs = branches.values().next().into_iter().chain(tags.values().next());
        for id in refs.take(refs_of_each).map(|id| id.as_str().unwrap()) {
            let place = tempfile::tempdir().unwrap();
            let dest = place.path().join("new/tree");
            let output = json(&[&"export", &fixture.repository, &dest, &id, &"--skip-unreadable"]);
            let shown = mounted(&fixture.repository, id, &[]);
            let exported = read_files(&dest);
            let what = format!("{} {id}", fixture.name);
            assert!(shown.keys().eq(exported.keys()), "{what}: {:?}\n{:?}", shown.keys(), exported.keys());
            assert!(shown == exported, "{what}");
            assert_eq!(output["files"].as_u64().unwrap() as usize, exported.len(), "{what}");
            assert_eq!(output["bytes"].as_u64().unwrap() as usize, exported.values().map(Vec::len).sum::<usize>());
        }
    }
}

#[test]
fn an_export_has_the_files_of_a_mount() {
    check(&FixtureSet::own(), 2);
    if let Some(set) = FixtureSet::shared() {
        check(&set, 1);
    }
}

#[test]
fn virtual_chunks_are_exported_where_allowed() {
    let Some(set) = FixtureSet::shared() else { return };
    for name in ["v1-virtual", "v2-virtual"] {
        let fixture = set.get(name);
        let id = fixture.expected["branches"]["main"].as_str().unwrap();
        let place = tempfile::tempdir().unwrap();
        let dest = place.path().join("tree");
        let without = place.path().join("without");
        let files = fixture.repository.parent().unwrap().join("virtual-src");
        let map = format!("file:///icechunkfs-virtual/={}", files.display());
        let words = ["--virtual-map", &map];
        let output = json(&[&"export", &fixture.repository, &dest, &"--skip-unreadable", &words[0], &words[1]]);
        let less = json(&[&"export", &fixture.repository, &without, &"--skip-unreadable"]);
        let left_out = |output: &serde_json::Value| output["left_out_count"].as_u64().unwrap();
        assert!(left_out(&output) < left_out(&less), "{name}: {} {}", left_out(&output), left_out(&less));
        let shown = mounted(&fixture.repository, id, &words);
        assert!(shown == read_files(&dest), "{name}: {} files", shown.len());
    }
}

#[test]
fn zarr_python_reads_an_export() {
    let Some(python) = python() else { return };
    let script = project("tests/python/read_tools.py");
    let set = FixtureSet::own();
    for name in ["own-v2-basic", "own-v2-encodings", "own-v1-basic"] {
        let fixture = set.get(name);
        let id = fixture.expected["branches"]["main"].as_str().unwrap();
        let place = tempfile::tempdir().unwrap();
        let dest = place.path().join("tree");
        command(&[&"export", &fixture.repository, &dest]).success();
        let mut read = Command::new(&python);
        read.arg(&script).arg(&dest).arg(set.expected_path(name)).arg(id);
        let output = run(&mut read);
        assert!(output.status.success(), "{name}: {}{}", String::from_utf8_lossy(&output.stdout), output.stderr);
    }
}

#[test]
fn export_keeps_replaces_or_removes_existing_files_as_requested() {
    let place = tempfile::tempdir().unwrap();
    let files = random(&mut Random::new(7));
    let repo = repository(place.path(), &files);
    let dest = place.path().join("tree");
    fs::create_dir(&dest).unwrap();
    fs::write(dest.join("mine"), "x").unwrap();

    // A nonempty directory protects from a wrong DEST.
    let output = command(&[&"export", &repo, &dest]).failure();
    assert!(output.contains("is not empty") && output.contains("--force"), "{output}");
    let before = read_files(&dest);
    let planned = json(&[&"export", &repo, &dest, &"--delete", &"-n"]);
    assert_eq!((planned["written"].as_u64(), planned["removed"][0].as_str()), (Some(files.len() as u64), Some("mine")));
    assert_eq!(read_files(&dest), before, "a dry run changes nothing");

    let first = json(&[&"export", &repo, &dest, &"--force"]);
    assert_eq!(first["written"].as_u64().unwrap() as usize, files.len());
    let mut expected = files.clone();
    expected.insert("mine".into(), b"x".to_vec());
    assert_eq!(read_files(&dest), expected);
    let time = fs::metadata(dest.join("zarr.json")).unwrap().mtime();
    assert!(
        read_files(&dest)
            .keys()
            .filter(|key| *key != "mine")
            .all(|key| { fs::metadata(dest.join(key)).unwrap().mtime() == time })
    );

    // Repeated: existing files are kept, and a file that a user changed is not.
    let edited = files.keys().nth(1).unwrap();
    let longer = files.keys().nth(2).unwrap();
    let mut wrong = files[edited].clone();
    wrong[0] ^= 1;
    fs::write(dest.join(edited), &wrong).unwrap();
    fs::write(dest.join(longer), [&files[longer][..], b"more"].concat()).unwrap();
    let inode = |key: &str| fs::metadata(dest.join(key)).unwrap().ino();
    let kept = inode("zarr.json");
    let again = json(&[&"export", &repo, &dest, &"--force"]);
    assert_eq!((again["written"].as_u64(), again["unchanged"].as_u64()), (Some(2), Some(files.len() as u64 - 2)));
    assert_eq!((read_files(&dest), inode("zarr.json")), (expected.clone(), kept));

    // By bytes: a file with only another time is kept, one with the same size and time and other
    // bytes is not.
    let touch = |key: &str, time: std::time::SystemTime| {
        fs::File::options().write(true).open(dest.join(key)).unwrap().set_modified(time).unwrap();
    };
    let committed = fs::metadata(dest.join(edited)).unwrap().modified().unwrap();
    fs::write(dest.join(edited), &wrong).unwrap();
    touch(edited, committed);
    touch(longer, std::time::SystemTime::now());
    let checked = json(&[&"export", &repo, &dest, &"--force", &"--checksum"]);
    assert_eq!(checked["written"].as_u64(), Some(1), "{checked}");
    assert_eq!(read_files(&dest), expected);
    assert_eq!(fs::metadata(dest.join(longer)).unwrap().modified().unwrap(), committed);

    // A mirror needs `--delete`.
    fs::create_dir_all(dest.join("g/deep/er")).unwrap();
    fs::write(dest.join("g/deep/er/x"), "x").unwrap();
    let output = command(&[&"export", &repo, &dest, &"--delete"]).failure();
    assert!(output.contains("mine") && output.contains("g/deep") && output.contains("--yes"), "{output}");
    assert!(dest.join("mine").exists() && dest.join(MARKER).exists());
    let mirrored = json(&[&"export", &repo, &dest, &"--delete", &"--yes"]);
    assert_eq!(mirrored["removed_count"].as_u64(), Some(2), "{mirrored}");
    assert_eq!(read_files(&dest), files);
    assert!(!dest.join("g/deep").exists());
}

/// The kernel keeps pages that it could not write as if they were on the disk: after a failed
/// flush, neither sizes nor bytes tell.
#[test]
fn an_export_after_a_failed_flush_writes_every_file_again() {
    let place = tempfile::tempdir().unwrap();
    let files = one_array((0..5).map(|n| vec![n; 5000]).collect::<Vec<_>>());
    let repo = repository(place.path(), &files);
    let dest = place.path().join("tree");
    let [named, below] = [&repo, &dest].map(|path| path.to_str().unwrap());
    let count = Some(files.len() as u64);
    for faults in [&["syncfs:error=EIO"][..], &["syncfs:signal=SIGKILL"], &["syncfs:error=EIO"]] {
        let words = ["export", named, below, "--json"];
        let Some(failed) = run_with_failing_calls(faults, &words) else { return };
        assert!(!failed.status.success(), "{}", failed.all());
        assert!(failed.stderr.contains("export again") || faults[0].contains("KILL"), "{}", failed.all());
        // One that is killed before its first file changes nothing about that.
        let killed = run_with_failing_calls(&["linkat:signal=SIGKILL"], &words).unwrap();
        assert!(!killed.status.success(), "{}", killed.all());
        let planned = json(&[&"export", &repo, &dest, &"-n"]);
        assert_eq!(planned["written"].as_u64(), count, "{faults:?}: {planned}");
    }
    let output = json(&[&"export", &repo, &dest]);
    assert_eq!((output["written"].as_u64(), output["unchanged"].as_u64()), (count, Some(0)), "{output}");
    assert_eq!(read_files(&dest), files);
    // The files of an export of something else are not compared either.
    let other = tempfile::tempdir().unwrap();
    let other = repository(other.path(), &files);
    run_with_failing_calls(&["syncfs:error=EIO"], &["export", named, below, "--force"]).unwrap().failure();
    let output = json(&[&"export", &other, &dest, &"--force"]);
    assert_eq!(output["written"].as_u64(), count, "{output}");
    let output = json(&[&"export", &other, &dest, &"--force"]);
    assert_eq!(output["written"].as_u64(), Some(0), "{output}");
}

/// All files of a snapshot have the commit's time, and chunks of two arrays often the same size.
#[test]
fn a_forced_export_replaces_the_bytes_of_another_array() {
    let place = tempfile::tempdir().unwrap();
    let mut files = Files::from([("zarr.json".into(), GROUP.into())]);
    for (name, byte) in [("a", 1), ("b", 2)] {
        files.insert(format!("{name}/zarr.json"), array(&[3], &[1]).into());
        (0..3).for_each(|at| drop(files.insert(format!("{name}/c/{at}"), vec![byte; 100])));
    }
    let repo = repository(place.path(), &files);
    for (round, more) in [&["--force"][..], &["--delete", "--yes"]].into_iter().enumerate() {
        let dest = place.path().join(format!("tree{round}"));
        let export = |path: &str, more: &[&str]| {
            let mut child = Command::new(program());
            run(child.arg("export").arg(&repo).arg(&dest).args(["--json", "--path", path]).args(more)).json()
        };
        export("a", &[]);
        let planned = export("b", &[more, &["-n"]].concat());
        assert_eq!((planned["written"].as_u64(), planned["files"].as_u64()), (Some(3), Some(4)), "{planned}");
        let forced = export("b", more);
        assert_eq!((forced["written"].as_u64(), forced["unchanged"].as_u64()), (Some(3), Some(1)), "{forced}");
        let found = read_files(&dest);
        assert!((0..3).all(|at| found[&format!("c/{at}")] == vec![2; 100]), "{found:?}");
    }
}

#[test]
fn a_subtree_is_exported_by_its_path() {
    let place = tempfile::tempdir().unwrap();
    let mut files = random(&mut Random::new(11));
    files.insert("x/zarr.json".into(), GROUP.into());
    files.insert("x/y/zarr.json".into(), array(&[2], &[1]).into());
    files.insert("x/y/c/1".into(), b"one".to_vec());
    let repo = repository(place.path(), &files);
    for (path, key) in [("x", "y/c/1"), ("/x/y/", "c/1")] {
        let dest = tempfile::tempdir().unwrap();
        command(&[&"export", &repo, &dest.path(), &"--path", &path]).success();
        let found = read_files(dest.path());
        let prefix = format!("{}/", path.trim_matches('/'));
        let below = files.iter().filter_map(|(k, v)| Some((k.strip_prefix(&prefix)?.to_owned(), v.clone())));
        assert_eq!(found, below.collect::<Files>());
        assert_eq!(found[key], b"one");
    }
    let missing = place.path().join("missing");
    let output = command(&[&"export", &repo, &missing, &"--path", &"nothing"]).failure();
    assert!(output.contains("nothing") && !missing.exists(), "{output}");
    assert!(command(&[&"export", &repo, &missing, &"--path", &"x/zarr.json"]).failure().contains("one file"));
    assert!(!missing.exists());
    assert!(command(&[&"export", &repo, &"s3://somewhere/x"]).failure().contains("directory of this machine"));
    assert!(command(&[&"export", &repo, &repo.join("x")]).failure().contains("the repository is at, above or below"));
}

/// Every file that has its name is complete, whenever the export was ended; and the next one
/// resumes.
#[test]
fn nodes_with_the_names_of_the_exports_own_files_are_exported() {
    let place = tempfile::tempdir().unwrap();
    let mut files = one_array([vec![1; 3000], vec![2; 3000]]);
    let less = files.clone();
    for name in [MARKER, ".icechunkfs-export-1", ".icechunkfs-.icechunkfs-export-2~", ".icechunkfs-zarr.json~"] {
        files.insert(format!("{name}/zarr.json"), GROUP.into());
    }
    files.insert(format!("{MARKER}/x/zarr.json"), array(&[2], &[1]).into());
    files.insert(format!("{MARKER}/x/c/1"), vec![3; 3000]);
    let repo = repository(place.path(), &files);
    let dest = place.path().join("tree");
    json(&[&"export", &repo, &dest]);
    assert_eq!(read_files(&dest), files);
    for how in ["--force", "--delete"] {
        let again = json(&[&"export", &repo, &dest, &how, &"--yes"]);
        assert_eq!((again["written"].as_u64(), read_files(&dest) == files), (Some(0), true), "{how}: {again}");
    }
    // One that was not finished.
    let id = json(&[&"log", &repo])[0]["id"].as_str().unwrap().to_owned();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let note = serde_json::json!({
        "repository": repo.display().to_string(), "snapshot": id, "path": "", "boot": boot.trim(), "flush": true
    });
    let marker = dest.join(".icechunkfs-export-2");
    fs::write(&marker, note.to_string()).unwrap();
    let other = place.path().join("other");
    let third = place.path().join("third");
    assert!(command(&[&"import", &dest, &other]).failure().contains("was not finished"));
    let again = json(&[&"export", &repo, &dest]);
    assert_eq!((again["written"].as_u64(), read_files(&dest) == files), (Some(files.len() as u64), true), "{again}");
    assert!(!marker.exists());
    command(&[&"import", &dest, &other]).success();
    assert_eq!(Reference::open(&other).keys(), files);
    // A tree without these names replaces it.
    let source = place.path().join("less");
    crate::common::copy_tree(&dest, &source);
    for name in files.keys().filter(|key| !less.contains_key(*key)) {
        let _ = fs::remove_dir_all(source.join(name.split('/').next().unwrap()));
    }
    command(&[&"import", &source, &third]).success();
    json(&[&"export", &third, &dest, &"--delete", &"--yes"]);
    assert_eq!(read_files(&dest), less);
}

#[test]
fn a_killed_export_resumes() {
    let place = tempfile::tempdir().unwrap();
    let mut files = Files::new();
    let mut numbers = Random::new(3);
    files.insert("zarr.json".into(), GROUP.into());
    for (name, length) in [("small", 3000), ("large", 150_000)] {
        let chunks = if name == "small" { 1500 } else { 20 };
        files.insert(format!("{name}/zarr.json"), array(&[chunks], &[1]).into());
        for at in 0..chunks {
            files.insert(format!("{name}/c/{at}"), numbers.bytes(8).repeat(length / 8));
        }
    }
    let repo = repository(place.path(), &files);
    let mut interrupted = 0;
    for round in 0..2_u64 {
        let dest = place.path().join(format!("tree{round}"));
        for attempt in 0..60 {
            let mut child = Command::new(program());
            child.arg("export").arg(&repo).arg(&dest).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = child.spawn().unwrap();
            // At a random moment, and later every time: one that is killed while it flushes begins
            // anew.
            let later = 10.0 * 1.15_f64.powi(attempt);
            std::thread::sleep(Duration::from_millis(3 + numbers.below(25) as u64 + later as u64));
            let _ = child.kill();
            let ended = child.wait().unwrap();
            if dest.exists() {
                let mut there = read_files(&dest);
                let is_marked = there.remove(MARKER).is_some();
                there.retain(|path, _| !path.contains(".icechunkfs-"));
                assert!(there.iter().all(|(path, bytes)| files[path] == *bytes), "half a file has a name");
                if ended.success() {
                    assert!(!is_marked && there == files, "round {round}: {} of {} files", there.len(), files.len());
                    break;
                }
                interrupted += usize::from(!there.is_empty());
            }
        }
        command(&[&"export", &repo, &dest, &"--force"]).success();
        assert_eq!(read_files(&dest), files);
    }
    assert!(interrupted > 1, "{interrupted}");

    // The machine was restarted meanwhile: names alone are not trusted.
    let dest = place.path().join("booted");
    command(&[&"export", &repo, &dest]).success();
    let victim = dest.join("small/c/17");
    let committed = fs::metadata(dest.join("zarr.json")).unwrap();
    fs::write(&victim, vec![0; 3000]).unwrap();
    fs::File::options().write(true).open(&victim).unwrap().set_modified(committed.modified().unwrap()).unwrap();
    let id = json(&[&"log", &repo])[0]["id"].as_str().unwrap().to_owned();
    let location = repo.display().to_string();
    let note = |id: &str, boot: &str| {
        serde_json::json!({"repository": location, "snapshot": id, "path": "", "boot": boot}).to_string()
    };
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(dest.join(MARKER), note(&id, boot.trim())).unwrap();
    let output = json(&[&"export", &repo, &dest]);
    assert_eq!((output["written"].as_u64(), fs::read(&victim).unwrap()[0]), (Some(0), 0), "{output}");
    fs::write(dest.join(MARKER), note(&id, "another")).unwrap();
    let output = json(&[&"export", &repo, &dest]);
    assert_eq!((output["written"].as_u64(), read_files(&dest) == files), (Some(1), true), "{output}");

    // Another export was begun there.
    fs::write(dest.join(MARKER), note("1CECHNKREP0F1RSTCMT0", boot.trim())).unwrap();
    let output = command(&[&"export", &repo, &dest]).failure();
    assert!(output.contains("1CECHNKREP0F1RSTCMT0") && output.contains("--force"), "{output}");
    fs::write(dest.join(MARKER), "nonsense").unwrap();
    assert!(command(&[&"export", &repo, &dest]).failure().contains("not a valid export marker"));
}

#[test]
fn an_export_follows_no_link_out_of_its_destination() {
    let place = tempfile::tempdir().unwrap();
    let files = one_array([b"inside".to_vec()]);
    let repo = repository(place.path(), &files);
    let outside = place.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "untouched").unwrap();
    let dest = place.path().join("tree");
    fs::create_dir(&dest).unwrap();
    // A directory that is a link, and a file that is one.
    symlink(&outside, dest.join("a")).unwrap();
    let output = command(&[&"export", &repo, &dest, &"--force"]).failure();
    assert!(output.contains("a symbolic link is in the way"), "{output}");
    fs::remove_file(dest.join("a")).unwrap();
    fs::remove_file(dest.join("zarr.json")).ok();
    symlink(outside.join("file"), dest.join("zarr.json")).unwrap();
    command(&[&"export", &repo, &dest, &"--force"]).success();
    assert_eq!(read_files(&dest), files);
    assert!(!fs::symlink_metadata(dest.join("zarr.json")).unwrap().is_symlink());
    assert_eq!(read_files(&outside).len(), 1);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"untouched");
    // Files in the place of directories, and the other way round.
    let dest = place.path().join("clash");
    fs::create_dir_all(dest.join("zarr.json/x")).unwrap();
    fs::write(dest.join("a"), "").unwrap();
    let output = command(&[&"export", &repo, &dest, &"--force"]).failure();
    assert!(output.contains("--delete"), "{output}");
    command(&[&"export", &repo, &dest, &"--delete", &"--yes"]).success();
    assert_eq!(read_files(&dest), files);
}

/// A hostile snapshot has names that no file can have.
#[test]
fn export_reports_hostile_names_and_writes_nothing_outside() {
    use icechunkfs::format::draft::{NodeDraft, SnapshotDraft, TransactionLogDraft};
    use icechunkfs::format::envelope::{Compression, SpecVersion};
    use icechunkfs::format::ids::{NodeId, ObjectId};
    use icechunkfs::format::repo_state::{Operation, SnapshotRecord};
    use icechunkfs::repo::update::update;
    use icechunkfs::storage::{self, Condition};
    use icechunkfs::times::system_clock;
    let place = tempfile::tempdir().unwrap();
    let repo = place.path().join("repo");
    command(&[&"init", &repo]).success();
    let paths =
        ["/", "/good", "/../escaped", "/a/../../escaped", "/nul\0l", "/./x", "/a//b", "/g/.icechunkfs-zarr.json~"];
    block_on(async {
        let storage = storage::open_directory(&repo).unwrap();
        let id = ObjectId::random().unwrap();
        let node = |path: &&str| NodeDraft {
            id: NodeId::random().unwrap(),
            path: (*path).to_owned(),
            zarr_json: GROUP.into(),
            array: None,
            extra: None,
        };
        let nodes = paths.iter().map(node).collect();
        let snapshot = SnapshotDraft { nodes, ..SnapshotDraft::new(id, system_clock(), "hostile") };
        storage.put(&format!("snapshots/{id}"), snapshot.encode().unwrap().into(), Condition::Always).await.unwrap();
        let log = TransactionLogDraft::default().encode(id, SpecVersion::V2, Compression::default()).unwrap();
        storage.put(&format!("transactions/{id}"), log.into(), Condition::Always).await.unwrap();
        let insert = |state: &mut icechunkfs::format::repo_state::RepoState| {
            let record = SnapshotRecord {
                parent: Some(ObjectId::INITIAL),
                flushed_at: snapshot.flushed_at,
                message: "hostile".into(),
                metadata: Vec::new(),
                pruned_ancestor_tx_logs: Vec::new(),
            };
            state.snapshots.insert(id, record);
            state.branches.insert("main".into(), id);
            Ok(Operation::NewCommit { branch: "main".into(), new: id })
        };
        update(&*storage, system_clock, insert).await.unwrap();
    });
    let dest = place.path().join("below/tree");
    let output = command(&[&"export", &repo, &dest]).failure();
    assert!(output.contains("no file can have that name") && output.contains("--skip-unreadable"), "{output}");
    let output = json(&[&"export", &repo, &dest, &"--skip-unreadable"]);
    assert_eq!(output["left_out_count"].as_u64(), Some(5), "{output}");
    let found: Vec<String> = read_files(place.path().join("below").as_path()).into_keys().collect();
    assert_eq!(found, ["tree/g/.icechunkfs-zarr.json~/zarr.json", "tree/good/zarr.json", "tree/zarr.json"]);
}

#[test]
fn export_fails_at_unreadable_chunks_or_lists_them() {
    let place = tempfile::tempdir().unwrap();
    let fixture = FixtureSet::own().get("own-v2-virtual");
    let dest = place.path().join("virtual");
    let output = command(&[&"export", &fixture.repository, &dest]).failure();
    assert!(output.contains("://") && output.contains("--skip-unreadable"), "{output}");
    let output = json(&[&"export", &fixture.repository, &dest, &"--skip-unreadable"]);
    let left_out = output["left_out"].as_array().unwrap();
    let count = output["left_out_count"].as_u64().unwrap() as usize;
    assert!(count > 1000 && left_out.len() == 1000, "{count} {}", left_out.len());
    assert!(left_out.iter().all(|one| !dest.join(one["path"].as_str().unwrap()).exists()));

    // A pack that ends early: chunks before its end are there, others are reported.
    let mut files = one_array((0..9).map(|at| vec![at; 1000]));
    let repo = repository(place.path(), &files);
    let pack = fs::read_dir(repo.join("chunks")).unwrap().next().unwrap().unwrap().path();
    fs::File::options().write(true).open(&pack).unwrap().set_len(4500).unwrap();
    let dest = place.path().join("torn");
    let output = command(&[&"export", &repo, &dest]).failure();
    assert!(output.contains("too short"), "{output}");
    let output = json(&[&"export", &repo, &dest, &"--skip-unreadable"]);
    assert_eq!((output["left_out_count"].as_u64(), output["files"].as_u64()), (Some(5), Some(6)), "{output}");
    files.retain(|path, _| !("a/c/4".."a/c/9").contains(&path.as_str()));
    assert_eq!(read_files(&dest), files);
}

/// Chunks that exceed the memory, as separate files and within packs.
#[test]
fn export_copies_large_chunks_in_pieces() {
    let place = tempfile::tempdir().unwrap();
    let mut numbers = Random::new(5);
    let files = one_array((0..3).map(|at| numbers.bytes(64).repeat((5 << 20) / 64 + at)));
    for pack_below in ["256K", "64M"] {
        let place = place.path().join(pack_below);
        let source = place.join("source");
        let repo = place.join("repo");
        let dest = place.join("tree");
        super::trees::write(&source, &files);
        command(&[&"import", &source, &repo, &"--pack-below", &pack_below]).success();
        command(&[&"export", &repo, &dest]).success();
        assert!(read_files(&dest) == files, "{pack_below}");
        let objects: Vec<u64> =
            fs::read_dir(repo.join("chunks")).unwrap().map(|e| e.unwrap().metadata().unwrap().nlink()).collect();
        assert!(objects.iter().all(|links| *links == 1), "a copy shares no inode");
        assert_eq!(objects.len(), if pack_below == "256K" { 3 } else { 2 });
        // They are compared in pieces, too.
        let edited = dest.join("a/c/1");
        let mut bytes = files["a/c/1"].clone();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&edited, bytes).unwrap();
        let output = json(&[&"export", &repo, &dest, &"--force", &"--checksum"]);
        assert_eq!(output["written"].as_u64(), Some(1), "{output}");
        assert!(read_files(&dest) == files);
    }
}

#[test]
fn a_full_disk_fails_the_export_until_there_is_room() {
    if !crate::common::writing::needed(is_root(), "root, to mount a small file system") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let files = one_array((0..64).map(|at| vec![at; 32 << 10]));
    let repo = repository(place.path(), &files);
    let disk = place.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let mount = |options: &str| {
        run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&disk)).success();
    };
    mount("size=1M");
    let full = std::panic::catch_unwind(|| {
        let dest = disk.join("tree");
        let output = command(&[&"export", &repo, &dest]).failure();
        assert!(output.contains("No space left"), "{output}");
        let mut there = read_files(&dest);
        there.remove(MARKER);
        assert!(there.iter().all(|(path, bytes)| files[path] == *bytes), "{:?}", there.keys());
        mount("remount,size=8M");
        let output = json(&[&"export", &repo, &dest]);
        assert!(output["unchanged"].as_u64().unwrap() > 0, "{output}");
        assert_eq!(read_files(&dest), files);
    });
    run(Command::new("umount").arg(&disk)).success();
    full.unwrap();
}

#[test]
fn a_second_export_to_a_directory_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let repo = repository(place.path(), &random(&mut Random::new(2)));
    let dest = place.path().join("tree");
    fs::create_dir(&dest).unwrap();
    let held = fs::File::open(&dest).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    assert!(command(&[&"export", &repo, &dest]).failure().contains("another export"));
    drop(held);
    command(&[&"export", &repo, &dest]).success();
}
