//! `icechunkfs import` of classic NetCDF files: equal to the original in xarray, in a mount and in
//! the NetCDF view.

use std::fs;

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;

use super::import_virtual;
use super::netcdf::{compared, python};
use crate::common::lengths::{length, number};
use crate::common::{Mount, block_on, icechunkfs, lab, run, run_on};

/// Files in the ordinary run, and in a full one.
const QUICK: usize = 12;
const FULL: usize = 300;

#[test]
fn files_of_netcdf_c_are_equal_in_the_mount_and_in_the_view() {
    let directory = tempfile::tempdir().unwrap();
    let files = length("ICECHUNKFS_IMPORTS", QUICK, FULL);
    let seed = number("ICECHUNKFS_SEED", 1).to_string();
    let made = directory.path().join("made");
    fs::create_dir(&made).unwrap();
    run(python("import_netcdf.py").arg("make").arg(&made).args([&seed, &files.to_string()])).success();
    let repo = directory.path().join("repo");
    for number in 0..files {
        let file = made.join(format!("{number}.nc"));
        let path = format!("f{number}");
        let words = ["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--path", &path, "--json"];
        let report = icechunkfs(words).json();
        let is_of_text = |one: &serde_json::Value| one["why"].as_str().unwrap().contains("xarray cannot open a group");
        let is_unused = |one: &serde_json::Value| one["why"].as_str().unwrap().contains("no variable has");
        let left_out = report["left_out"].as_array().unwrap();
        assert!(left_out.iter().all(|one| is_of_text(one) || is_unused(one)), "{number}: {report}");
        // The same once more changes nothing.
        if number % 4 == 0 {
            assert_eq!(icechunkfs(words).json()["snapshot"], serde_json::Value::Null, "{number}");
        }
    }
    run_on(&repo, &["verify", "--chunks"]).success();
    let zarr = Mount::new(&repo, &[]);
    let netcdf = Mount::new(&repo, &["--view", "netcdf"]);
    let mut all = 0;
    for number in 0..files {
        let file = made.join(format!("{number}.nc"));
        let here = zarr.path().join(format!("f{number}"));
        let view = netcdf.path().join(format!("f{number}.nc"));
        let what = format!("seed {seed}, file {number}");
        all += compared(python("import_netcdf.py").arg("compare").args([&file, &here, &view]), &what);
    }
    assert!(all > 5 * files, "{all}");
}

#[test]
fn what_is_no_whole_file_is_refused_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let made = directory.path().join("made");
    fs::create_dir(&made).unwrap();
    run(python("import_netcdf.py").arg("make").arg(&made).args(["7", "6"])).success();
    let repo = directory.path().join("repo");
    for number in 0..6 {
        let bytes = fs::read(made.join(format!("{number}.nc"))).unwrap();
        for part in [8, bytes.len() / 3, bytes.len() / 2] {
            let file = directory.path().join("part.nc");
            fs::write(&file, &bytes[..part]).unwrap();
            let why = icechunkfs(["import", file.to_str().unwrap(), repo.to_str().unwrap()]).failure();
            assert!(why.contains("part.nc: "), "{number}, {part}: {why}");
            assert!(!repo.exists(), "{number}, {part}");
        }
    }
}

/// Writes the arrays `names` with so many records, and returns the file.
fn records(directory: &std::path::Path, count: usize, names: &str) -> std::path::PathBuf {
    let file = directory.join(format!("{count}.nc"));
    run(python("import_netcdf.py").arg("records").arg(&file).args([&count.to_string(), names])).success();
    file
}

#[test]
fn a_file_that_has_grown_or_shrunk_takes_the_place_of_the_old_one() {
    for names in ["one", "one two"] {
        let directory = tempfile::tempdir().unwrap();
        let repo = directory.path().join("repo");
        let mount_of = |count: usize| {
            let file = records(directory.path(), count, names);
            let words = ["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--path", "g", "--json"];
            let report = icechunkfs(words).json();
            let mount = Mount::new(&repo, &[]);
            let netcdf = Mount::new(&repo, &["--view", "netcdf"]);
            let view = netcdf.path().join("g.nc");
            let mut compare = python("import_netcdf.py");
            compared(
                compare.arg("compare").args([&file, &mount.path().join("g"), &view]),
                &format!("{names}, {count}"),
            );
            report
        };
        mount_of(200_000);
        // Most chunks are as before.
        let grown = mount_of(200_010);
        let unchanged = grown["chunks_unchanged"].as_u64().unwrap();
        assert!(unchanged > 0 && grown["chunks_deleted"] == 0, "{grown}");
        let shrunk = mount_of(70_000);
        assert!(shrunk["chunks_deleted"].as_u64().unwrap() > 0, "{shrunk}");
        mount_of(3);
        run_on(&repo, &["verify", "--chunks"]).success();
    }
}

#[test]
fn an_import_into_what_is_there_says_so_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("repo");
    let file = records(directory.path(), 4, "one");
    let import = |words: &[&str]| {
        icechunkfs([&["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--json"], words].concat())
    };
    let dry = import(&["--dry-run"]).json();
    assert!(!repo.exists() && dry["nodes_created"] == 2, "{dry}");
    assert_eq!(import(&[]).json()["created_repository"], true);
    // `one` is an array: no group can be there.
    let clash = import(&["--path", "one"]).failure();
    assert!(clash.contains("/one: the branch has an array here"), "{clash}");
    assert_eq!(run_on(&repo, &["log", "--json"]).json().as_array().unwrap().len(), 2);
    let deleted = import(&["--path", "other", "--delete"]).json();
    assert_eq!((&deleted["nodes_created"], &deleted["nodes_deleted"]), (&2.into(), &0.into()), "{deleted}");
}

/// Collections in the ordinary run, and in a full one.
const QUICK_COLLECTIONS: usize = 10;
const FULL_COLLECTIONS: usize = 300;

/// For any collection, in any steps: the arrays have what numpy puts together, or a file that does
/// not fit is refused, and nothing is changed.
#[test]
fn files_along_time_are_what_numpy_puts_together_or_are_refused() {
    let cases = length("ICECHUNKFS_COLLECTIONS", QUICK_COLLECTIONS, FULL_COLLECTIONS);
    let first = number("ICECHUNKFS_SEED", 1);
    let mut refused = 0;
    let mut referred = 0;
    for seed in first..first + cases {
        let directory = tempfile::tempdir().unwrap();
        let repo = directory.path().join("repo");
        let version = if seed % 3 == 0 { SpecVersionBin::V1 } else { SpecVersionBin::V2 };
        block_on(lab::create(&repo, version, RepositoryConfig::default()));
        let made = run(python("import_netcdf.py").arg("collection").arg(directory.path()).arg(seed.to_string())).json();
        let files: Vec<&str> = made["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
        let bad = made["bad"].as_u64().map(|bad| usize::try_from(bad).unwrap());
        let without_bad = |range: std::ops::Range<usize>| -> Vec<&str> {
            range.filter(|at| Some(*at) != bad).map(|at| files[at]).collect()
        };
        // Every second archive is one of references, as far as chunks can be.
        let referring = if seed % 2 == 0 { &import_virtual::ALL[..] } else { &[] };
        let import = |mut files: Vec<&str>, options: &[&str]| {
            // Names and their order say nothing.
            files.reverse();
            let words =
                [&["import"], files.as_slice(), &[repo.to_str().unwrap(), "--append-dim", "time", "--json"], options];
            icechunkfs([&words.concat()[..], referring].concat())
        };
        let history = || run_on(&repo, &["log", "--json"]).json().as_array().unwrap().len();
        let split = 1 + seed % (files.len() - 1);
        let mut expected = without_bad(0..split);
        let first = import(expected.clone(), &["--allow-gaps"]).json();
        assert_eq!(history(), 2, "seed {seed}");
        referred += first["chunks_virtual"].as_u64().unwrap();
        let mut rest = without_bad(split..files.len());
        if let Some(bad) = bad {
            let tried = if bad < split { vec![files[bad]] } else { files[split..].to_vec() };
            let why = import(tried.clone(), &[]).failure();
            assert!(why.contains("nothing was imported") || why.contains("one direction"), "seed {seed}: {made} {why}");
            assert_eq!(history(), 2, "seed {seed}");
            refused += 1;
            if made["defect"] == "gap" && bad >= split {
                rest = tried;
            }
        }
        if !rest.is_empty() {
            // Sometimes with a commit for each file.
            let each: &[&str] = if seed % 4 < 2 { &["--commit-each", "1"] } else { &[] };
            let report = directory.path().join("report.json");
            let words = [&["--allow-gaps", "--report", report.to_str().unwrap()], each].concat();
            let done = import(rest.clone(), &words).json();
            assert_eq!(done, serde_json::from_slice::<serde_json::Value>(&fs::read(report).unwrap()).unwrap());
            assert_eq!(history(), if each.is_empty() { 3 } else { 2 + rest.len() }, "seed {seed}");
            assert_eq!(done["commits"], history() - 2, "seed {seed}");
            expected.extend(&rest);
        }
        let before = history();
        let again = import(expected.clone(), &["--skip-existing", "--allow-gaps"]).json();
        assert_eq!((again["skipped"].as_array().unwrap().len(), history()), (expected.len(), before), "seed {seed}");
        import(vec![expected[0]], &[]).failure();
        run_on(&repo, &["verify", "--chunks"]).success();
        let mount = import_virtual::mount(&repo, directory.path());
        let what = format!("seed {seed}, {made}");
        compared(python("import_netcdf.py").arg("joined").arg(mount.path()).args(&expected), &what);
    }
    assert!(cases < 10 || (refused > cases / 4 && referred > cases as u64), "{refused}, {referred}");
}

/// An archive of records 0 to 3 of `time` and `one`, and a file with records from 4 on.
struct Archive {
    directory: tempfile::TempDir,
    repo: std::path::PathBuf,
}

impl Archive {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let archive = Archive { repo: directory.path().join("repo"), directory };
        archive.append(&archive.file("first.nc", 4, "time one", 0), &[]).success();
        archive
    }

    fn file(&self, name: &str, count: usize, names: &str, first: usize) -> std::path::PathBuf {
        let file = self.directory.path().join(name);
        let words = [&count.to_string(), names, &first.to_string()];
        run(python("import_netcdf.py").arg("records").arg(&file).args(words)).success();
        file
    }

    fn append(&self, file: &std::path::Path, options: &[&str]) -> crate::common::Output {
        let words = [&["import", file.to_str().unwrap(), self.repo.to_str().unwrap(), "--append-dim", "time"], options];
        icechunkfs(words.concat())
    }

    fn history(&self) -> usize {
        run_on(&self.repo, &["log", "--json"]).json().as_array().unwrap().len()
    }
}

#[test]
fn an_array_takes_the_place_of_no_group() {
    let archive = Archive::new();
    let file = archive.file("group.nc", 3, "inner", 0);
    icechunkfs(["import", file.to_str().unwrap(), archive.repo.to_str().unwrap(), "--path", "two"]).success();
    let before = archive.history();
    let file = archive.file("array.nc", 3, "two", 0);
    let why = icechunkfs(["import", file.to_str().unwrap(), archive.repo.to_str().unwrap()]).failure();
    assert!(why.contains("has a group here"), "{why}");
    assert_eq!(archive.history(), before);
    let file = archive.file("grows.nc", 3, "time inner", 0);
    icechunkfs(["import", file.to_str().unwrap(), archive.repo.to_str().unwrap(), "--path", "g/time"]).success();
    let why = archive.append(&file, &["--path", "g"]).failure();
    assert!(why.contains("time: the branch has a group here"), "{why}");
    assert_eq!(archive.history(), before + 1);
}

/// Files are looked at together before the first commit, with the steps of all of them.
#[test]
fn files_may_be_committed_one_after_another() {
    let archive = Archive::new();
    let repo = archive.repo.with_file_name("single");
    let files: Vec<_> =
        [0, 1, 4, 7, 10].map(|at| archive.file(&format!("{at}.nc"), 1, "time one", at)).into_iter().collect();
    let import = |files: &[&std::path::PathBuf], options: &[&str]| {
        let mut words: Vec<&str> = vec!["import"];
        words.extend(files.iter().rev().map(|file| file.to_str().unwrap()));
        words.extend([repo.to_str().unwrap(), "--append-dim", "time", "--commit-each", "2"]);
        icechunkfs([&words[..], options].concat())
    };
    let history = || run_on(&repo, &["log", "--json"]).json().as_array().unwrap().len();
    import(&[&files[0]], &[]).success();
    // Of the first two, one is behind a gap. Of all, none is.
    let next: Vec<_> = files.iter().skip(1).collect();
    import(&next[..2], &[]).failure();
    for bad in [archive.file("other.nc", 1, "time two", 13), archive.file("far.nc", 1, "time one", 40)] {
        let report = archive.directory.path().join("report.json");
        let why = import(&[next.as_slice(), &[&bad]].concat(), &["--report", report.to_str().unwrap()]).failure();
        assert_eq!(history(), 2, "{bad:?}");
        let report = serde_json::from_slice::<serde_json::Value>(&fs::read(report).unwrap()).unwrap();
        assert!(why.contains(report["error"].as_str().unwrap()), "{report} {why}");
    }
    // A report takes the place of nothing else, and each commit would have another first file.
    for report in [files[1].as_path(), &repo.join("repo"), archive.directory.path()] {
        let why = import(&next, &["--report", report.to_str().unwrap()]).failure();
        assert!(why.contains("--report: ") && history() == 2, "{why}");
    }
    import(&next, &["--reencode"]).failure();
    let text = import(&next, &["--dry-run"]).text();
    assert!(text.starts_with("would commit") && history() == 2, "{text}");
    let text = import(&next, &[]).text();
    assert!(text.contains(", the last of 2 commits: ") && history() == 4, "{text}");
    let text = import(&next, &["--skip-existing"]).text();
    assert!(text.contains("nothing to commit") && text.contains("10.nc") && history() == 4, "{text}");
}

#[test]
fn files_of_which_nobody_knows_the_order_are_refused() {
    let archive = Archive::new();
    let file = archive.file("next.nc", 2, "one", 4);
    let other = archive.repo.with_file_name("other");
    let words = ["import", file.to_str().unwrap(), other.to_str().unwrap(), "--append-dim", "time"];
    icechunkfs(words).success();
    for options in [&[][..], &["--skip-existing"]] {
        let why = icechunkfs([&words[..], options].concat()).failure();
        assert!(why.contains("time(time)"), "{why}");
    }
    let why = archive.append(&archive.file("no.nc", 2, "time one", 4), &["--path", "x/y"]).text();
    assert!(why.contains("4 new groups and arrays"), "{why}");
    let why = icechunkfs(["import", file.to_str().unwrap(), archive.repo.to_str().unwrap(), "--append-dim", "tmie"]);
    assert!(why.failure().contains("no variable has the dimension tmie: the file has time"));
}

/// Rows belong together by their positions: an archive in which they do not is not appended to.
#[test]
fn an_archive_whose_arrays_end_at_different_places_is_left_as_it_is() {
    let archive = Archive::new();
    let mount = Mount::new(&archive.repo, &["--ephemeral"]);
    let path = mount.path().join("one/zarr.json");
    let document = fs::read_to_string(&path).unwrap().replace("\"shape\":[4]", "\"shape\":[3]");
    fs::write(&path, document).unwrap();
    run_on(mount.path(), &["commit", "-m", "one is shorter"]).success();
    let before = archive.history();
    let why = archive.append(&archive.file("next.nc", 2, "time one", 4), &[]).failure();
    assert!(why.contains("one: it ends at 3 in the archive, and time at 4"), "{why}");
    assert_eq!(archive.history(), before);
}

/// The second one sees what the first one has appended, or appends nothing.
#[test]
fn two_appends_at_the_same_time_give_rows_in_their_order() {
    for round in 0..6 {
        let archive = Archive::new();
        let files = [archive.file("a.nc", 2, "time one", 4), archive.file("b.nc", 3, "time one", 6)];
        let done = std::thread::scope(|scope| {
            let begin = |file: &std::path::PathBuf| {
                let file = file.clone();
                let archive = &archive;
                scope.spawn(move || archive.append(&file, &["--allow-gaps"]).status.success())
            };
            files.each_ref().map(begin).map(|running| running.join().unwrap())
        });
        assert!(done.contains(&true), "{round}");
        let first = archive.directory.path().join("first.nc");
        let landed = std::iter::zip(&files, done).filter(|(_, done)| *done).map(|(file, _)| file.clone());
        let mount = Mount::new(&archive.repo, &[]);
        let mut check = python("import_netcdf.py");
        check.arg("joined").arg(mount.path()).arg(first).args(landed);
        compared(&mut check, &format!("{round}, {done:?}"));
    }
}
