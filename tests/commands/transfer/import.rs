//! Imports: files that are taken, files that are not, and the result as the reference reads it.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::trees::{command, json, one_array, random, repository, write};
use crate::common::random::Random;
use crate::common::writing::{GROUP, Reference, array};
use crate::common::{Files, FixtureSet, Mount, program, read_files};

/// Imports random trees, one over the other, and reads them with the reference.
#[test]
fn the_reference_reads_imported_trees() {
    for seed in [1, 2, 3, 4, 5] {
        let place = tempfile::tempdir().unwrap();
        let mut numbers = Random::new(seed * 77);
        let source = place.path().join("source");
        let repo = place.path().join("repo");
        let mut files = random(&mut numbers);
        write(&source, &files);
        let planned = json(&[&"import", &source, &repo, &"-n"]);
        assert!(!repo.exists() && planned["snapshot"].is_null());
        let output = json(&[&"import", &source, &repo]);
        assert_eq!(output["created_repository"], true);
        for member in ["nodes_created", "chunks_written", "bytes_written"] {
            assert_eq!(output[member], planned[member], "{member}");
        }
        assert_eq!(Reference::open(&repo).keys(), files, "seed {seed}");
        assert_eq!(read_files(&source), files, "the files stay");
        assert!(read_files(&source).keys().all(|key| fs::metadata(source.join(key)).unwrap().nlink() == 1));

        // Repeated, the import makes no commit, and stores nothing.
        let objects = || fs::read_dir(repo.join("chunks")).map(Iterator::count).unwrap_or(0);
        let before = objects();
        let again = json(&[&"import", &source, &repo]);
        assert!(again["snapshot"].is_null() && again["chunks_unchanged"] == output["chunks_written"], "{again}");
        assert_eq!(objects(), before);

        // Some are removed, some have other bytes, some are new.
        let mut after = files.clone();
        let keys: Vec<String> = files.keys().filter(|key| !key.ends_with("zarr.json")).cloned().collect();
        for key in &keys {
            match numbers.below(4) {
                0 => drop(after.remove(key)),
                1 => {
                    let length = 1 + numbers.below(3000);
                    after.insert(key.clone(), numbers.bytes(length));
                }
                _ => {}
            }
        }
        after.insert("g/new/zarr.json".into(), array(&[2], &[1]).into());
        after.insert("g/new/c/0".into(), b"new".to_vec());
        fs::remove_dir_all(&source).unwrap();
        write(&source, &after);
        // Over existing nodes: nothing is removed.
        json(&[&"import", &source, &repo, &"-m", &"over", &"--metadata", &"by=me"]);
        files.extend(after.clone());
        assert_eq!(Reference::open(&repo).keys(), files, "seed {seed}");
        // As a mirror.
        let gone = files.len() - after.len();
        let output = json(&[&"import", &source, &repo, &"--delete", &"-m", &"mirror"]);
        assert_eq!(output["chunks_deleted"].as_u64().unwrap() as usize, gone, "{output}");
        assert_eq!(Reference::open(&repo).keys(), after, "seed {seed}");
        let history: Vec<String> = Reference::open(&repo).history().into_iter().map(|(_, message)| message).collect();
        let expected: &[&str] = if gone > 0 { &["mirror", "over"] } else { &["over"] };
        assert_eq!(&history[..expected.len()], expected);
        // And out again.
        let dest = place.path().join("tree");
        command(&[&"export", &repo, &dest]).success();
        assert_eq!(read_files(&dest), after);
    }
}

#[test]
fn import_of_an_export_gives_the_same_files() {
    let mut count = 0;
    for fixture in FixtureSet::each().flat_map(|set| set.all()) {
        if fixture.name.contains("virtual") || fixture.name.contains("split") || fixture.name.starts_with("ref-") {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let dest = place.path().join("tree");
        let repo = place.path().join("repo");
        command(&[&"export", &fixture.repository, &dest]).success();
        let files = read_files(&dest);
        if files.is_empty() {
            continue;
        }
        let output = command(&[&"import", &dest, &repo]);
        // Old releases accepted documents that no release accepts any more.
        if !output.status.success() {
            assert!(output.stderr.contains("nothing was imported"), "{}: {}", fixture.name, output.stderr);
            continue;
        }
        let again = place.path().join("again");
        command(&[&"export", &repo, &again]).success();
        assert!(read_files(&again) == files, "{}", fixture.name);
        count += 1;
    }
    assert!(count >= 8, "{count}");
}

#[test]
fn import_lists_untracked_files_and_refuses_violations() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source");
    let repo = place.path().join("repo");
    let mut files = Files::new();
    files.insert("zarr.json".into(), GROUP.into());
    files.insert("a/zarr.json".into(), array(&[2, 2], &[1, 1]).into());
    files.insert("a/c/0/1".into(), b"one".to_vec());
    write(&source, &files);
    fs::write(source.join("README"), "x").unwrap();
    fs::write(source.join("a/c/0/1.partial"), "x").unwrap();
    symlink("/etc/hostname", source.join("a/c/0/0")).unwrap();
    symlink(".", source.join("loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        source.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let output = json(&[&"import", &source, &repo]);
    assert_eq!(output["untracked"], serde_json::json!(["README", "a/c/0/0", "a/c/0/1.partial", "fifo", "loop"]));
    assert_eq!(Reference::open(&repo).keys(), files);

    // Violations are listed all at once.
    for (name, bytes, why) in [
        ("a/c/2/0", &b"x"[..], "outside"),
        ("a/c/0", b"x", "not a valid chunk name"),
        ("b/c/0/0", b"x", "no array above it"),
        ("a/c/1/1", b"", "the chunk file is empty"),
        ("b/zarr.json", b"{", "not JSON"),
        ("b/zarr.json", br#"{"zarr_format":2}"#, "zarr_format"),
        ("a/n/zarr.json", GROUP.as_bytes(), "below an array"),
    ] {
        let wrong = place.path().join("wrong");
        let _ = fs::remove_dir_all(&wrong);
        write(&wrong, &files);
        if name == "a/c/0" {
            fs::remove_dir_all(wrong.join("a/c/0")).unwrap();
        }
        write(&wrong, &[(name.to_owned(), bytes.to_vec())].into());
        let new = place.path().join("refused");
        let output = command(&[&"import", &wrong, &new]).failure();
        assert!(output.contains(why) && output.contains(name.rsplit_once('/').unwrap().0), "{name}: {output}");
        assert!(command(&[&"log", &new]).status.code() != Some(0), "nothing was made");
        let _ = fs::remove_dir_all(&new);
    }
    let old = place.path().join("old");
    fs::create_dir(&old).unwrap();
    fs::write(old.join(".zgroup"), "{}").unwrap();
    assert!(command(&[&"import", &old, &repo]).failure().contains(".zgroup: missing field"));
    assert!(command(&[&"import", &place.path(), &repo]).failure().contains("the repository is at, above or below"));
    fs::write(source.join(".icechunkfs-export"), "{}").unwrap();
    assert!(command(&[&"import", &source, &repo]).failure().contains("was not finished"));
    let output = command(&[&"import", &old, &place.path().join("r"), &"--branch", &"dev"]).failure();
    assert!(output.contains("dev"), "{output}");
    let occupied = place.path().join("occupied");
    write(&occupied, &[("x".to_owned(), vec![1])].into());
    assert!(command(&[&"import", &source, &occupied]).failure().contains("holds no repository"));
}

#[test]
fn an_import_into_a_group_changes_nothing_else() {
    let place = tempfile::tempdir().unwrap();
    let mut all = random(&mut Random::new(9));
    let repo = repository(place.path(), &all);
    let part = random(&mut Random::new(10));
    let source = place.path().join("part");
    write(&source, &part);
    let into = |top: &str, part: &Files| {
        part.iter().map(|(key, bytes)| (format!("{top}/{key}"), bytes.clone())).collect::<Files>()
    };
    command(&[&"import", &source, &repo, &"--path", &"x/y z"]).success();
    all.extend(into("x/y z", &part));
    all.insert("x/zarr.json".into(), br#"{"zarr_format":3,"node_type":"group","attributes":{}}"#.to_vec());
    assert_eq!(Reference::open(&repo).keys(), all);
    // A mirror of the group only.
    let less: Files = part.into_iter().filter(|(key, _)| !key.starts_with("g/")).collect();
    fs::remove_dir_all(source.join("g")).unwrap();
    command(&[&"import", &source, &repo, &"--path", &"/x/y z/", &"--delete"]).success();
    all.retain(|key, _| !key.starts_with("x/y z/"));
    all.extend(into("x/y z", &less));
    assert_eq!(Reference::open(&repo).keys(), all);
}

/// A replacement by another kind of node needs `--delete`.
#[test]
fn import_changes_the_kind_of_a_node_only_with_delete() {
    let before: Files = [
        ("zarr.json", GROUP.to_owned()),
        ("a/zarr.json", array(&[2], &[1])),
        ("a/c/0", "one".to_owned()),
        ("b/zarr.json", GROUP.to_owned()),
        ("b/d/zarr.json", GROUP.to_owned()),
        ("s/zarr.json", array(&[4], &[1])),
        ("s/c/3", "last".to_owned()),
    ]
    .into_iter()
    .map(|(key, text)| (key.to_owned(), text.into_bytes()))
    .collect();
    let cases: [(&str, &[(&str, String)]); 5] = [
        ("a", &[("a/zarr.json", array(&[2, 2], &[1, 1])), ("a/c/0/0", "two".to_owned())]),
        ("a", &[("a/zarr.json", GROUP.to_owned())]),
        ("b", &[("b/zarr.json", array(&[2], &[1]))]),
        ("s", &[("s/zarr.json", array(&[2], &[1])), ("s/c/0", "first".to_owned())]),
        ("b", &[("b", "a file".to_owned())]),
    ];
    for (top, changed) in cases {
        let place = tempfile::tempdir().unwrap();
        let repo = repository(place.path(), &before);
        let source = place.path().join("changed");
        let files: Files = changed.iter().map(|(key, text)| ((*key).to_owned(), text.clone().into_bytes())).collect();
        write(&source, &files);
        write(&source, &[("zarr.json".to_owned(), GROUP.into())].into());
        let output = command(&[&"import", &source, &repo]).failure();
        assert!(output.contains("nothing was imported") && output.contains(top), "{changed:?}: {output}");
        assert_eq!(Reference::open(&repo).keys(), before);
        command(&[&"import", &source, &repo, &"--delete"]).success();
        let mut expected: Files = files.into_iter().filter(|(key, _)| key != "b").collect();
        expected.insert("zarr.json".into(), GROUP.into());
        assert_eq!(Reference::open(&repo).keys(), expected, "{changed:?}");
    }
}

#[test]
fn concurrent_imports_are_all_committed() {
    let place = tempfile::tempdir().unwrap();
    let repo = repository(place.path(), &[("zarr.json".to_owned(), GROUP.into())].into());
    let mut expected: Files = [("zarr.json".to_owned(), GROUP.into())].into();
    let children: Vec<_> = (0..4_u64)
        .map(|n| {
            let source = place.path().join(format!("s{n}"));
            let files = random(&mut Random::new(40 + n));
            write(&source, &files);
            expected.extend(files.into_iter().map(|(key, bytes)| (format!("p{n}/{key}"), bytes)));
            let mut import = Command::new(program());
            import.arg("import").arg(&source).arg(&repo).args(["--path", &format!("p{n}")]);
            import.stdout(Stdio::null()).spawn().unwrap()
        })
        .collect();
    assert!(children.into_iter().all(|mut child| child.wait().unwrap().success()));
    assert_eq!(Reference::open(&repo).keys(), expected);
}

#[test]
fn import_commits_to_version_1_and_to_other_branches() {
    let fixture = FixtureSet::own().get("own-v1-basic");
    let place = tempfile::tempdir().unwrap();
    let repo = place.path().join("repo");
    crate::common::copy_tree(&fixture.repository, &repo);
    let before = Reference::open(&repo).keys();
    let files = random(&mut Random::new(21));
    let source = place.path().join("source");
    write(&source, &files);
    Reference::open(&repo).create_branch("side");
    command(&[&"import", &source, &repo, &"--path", &"imported", &"--branch", &"side"]).success();
    assert_eq!(Reference::open(&repo).keys(), before, "main is as it was");
    command(&[&"import", &source, &repo, &"--path", &"imported"]).success();
    let mut expected = before;
    expected.extend(files.into_iter().map(|(key, bytes)| (format!("imported/{key}"), bytes)));
    assert_eq!(Reference::open(&repo).keys(), expected);
}

#[test]
fn no_document_or_mount_is_the_place_of_an_import() {
    let place = tempfile::tempdir().unwrap();
    let [repo, source] = ["repo", "source"].map(|name| place.path().join(name));
    write(&source, &random(&mut Random::new(22)));
    command(&[&"import", &source, &repo]).success();
    let before = Reference::open(&repo).keys();
    for path in ["zarr.json", "a/zarr.json", "a/../b", "__reserved"] {
        let refused = command(&[&"import", &source, &repo, &"--path", &path]).failure();
        assert!(refused.contains("no group or array can be called"), "{refused}");
    }
    assert_eq!(Reference::open(&repo).keys(), before);
    let mount = Mount::new(&repo, &[]);
    for word in [mount.path().to_owned(), mount.path().join("new/raw")] {
        let refused = command(&[&"import", &source, &word]).failure();
        assert!(refused.contains("an import is a commit") && refused.contains("branch look"), "{refused}");
    }
    assert!(!mount.path().join("new").exists());
}

/// Ended at any moment, an import is complete or has changed nothing.
#[test]
fn a_killed_import_has_committed_all_or_nothing() {
    let place = tempfile::tempdir().unwrap();
    let mut numbers = Random::new(31);
    let mut files = one_array((0..800).map(|_| numbers.bytes(16).repeat(200)));
    let source = place.path().join("source");
    write(&source, &files);
    let repo = place.path().join("repo");
    command(&[&"init", &repo]).success();
    let mut killed = 0;
    let mut done = false;
    while !done {
        let mut child = Command::new(program());
        child.arg("import").arg(&source).arg(&repo).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.spawn().unwrap();
        // The time is so short at first that no machine is done by then, and longer every time.
        std::thread::sleep(Duration::from_millis(2 + numbers.below(4) as u64 + 3 * killed));
        let _ = child.kill();
        child.wait().unwrap();
        let keys = Reference::open(&repo).keys();
        done = !keys.is_empty();
        assert!(!done || keys == files, "{} of {} keys", keys.len(), files.len());
        killed += u64::from(!done);
    }
    assert!(killed > 2, "{killed}");
    let output = json(&[&"import", &source, &repo]);
    assert!(output["snapshot"].is_null(), "{output}");
    files.retain(|path, _| !path.starts_with("a/c/") || path.len() < "a/c/00".len());
    fs::remove_dir_all(&source).unwrap();
    write(&source, &files);
    let steps = icechunkfs::failpoints::COMMIT.iter().filter(|point| !point.contains("publish.done"));
    for step in steps.filter(|step| **step != "commit.backup.done") {
        let repo = place.path().join("step");
        let mut import = Command::new(program());
        import.arg("import").arg(&source).arg(&repo).env("ICECHUNKFS_FAULT", format!("{step}=eio"));
        let output = crate::common::run(&mut import).failure();
        assert!(output.contains(step), "{step}: {output}");
        command(&[&"import", &source, &repo]).success();
        assert_eq!(tree_of(&repo), files, "{step}");
        fs::remove_dir_all(&repo).unwrap();
    }
}

fn tree_of(repo: &Path) -> Files {
    let place = tempfile::tempdir().unwrap();
    command(&[&"export", &repo, &place.path()]).success();
    read_files(place.path())
}
