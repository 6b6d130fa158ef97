//! `icechunkfs import` of files that is ended at any moment, or has no room: all is committed, or
//! nothing, and the next import goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::import_virtual::ALL;
use super::netcdf::python_code;
use crate::common::disk::Disk;
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::{Files, icechunkfs, program, run, run_on, signal, wait_for_end};

/// Imports that are ended in the ordinary run, and in a full one.
const QUICK: usize = 16;
const FULL: usize = 300;

/// Writes twelve files of one time each, with 64 chunks of noise.
const FILES: &str = "
import sys, netCDF4, numpy
for day in range(12):
    with netCDF4.Dataset(f'{sys.argv[1]}/{day:02}.nc', 'w') as file:
        file.createDimension('time', None)
        file.createDimension('x', 1 << 17)
        time = file.createVariable('time', 'i4', ['time'])
        time.units = 'days since 2026-01-01'
        time[:] = [day]
        noise = file.createVariable('noise', 'i4', ['time', 'x'], zlib=True, complevel=1, chunksizes=[1, 2048])
        noise[:] = numpy.random.default_rng(day).integers(0, 1 << 20, (1, 1 << 17))
";

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::create_dir(directory).unwrap();
    run(python_code(FILES).arg(directory)).success();
    (0..12).map(|day| directory.join(format!("{day:02}.nc"))).collect()
}

fn words<'a>(files: &'a [PathBuf], repo: &'a Path, options: &[&'a str]) -> Vec<&'a str> {
    let files = files.iter().map(|file| file.to_str().unwrap());
    let rest = [repo.to_str().unwrap(), "--append-dim", "time", "--skip-existing"];
    ["import"].into_iter().chain(files).chain(rest).chain(options.iter().copied()).collect()
}

/// Returns all keys of the branch, by an export.
fn keys(repo: &Path, archive: &Path) -> Files {
    let place = tempfile::tempdir().unwrap();
    let tree = place.path().join("tree");
    let words = ["export", repo.to_str().unwrap(), tree.to_str().unwrap()];
    icechunkfs([&words[..], &["--allow-virtual", archive.to_str().unwrap()]].concat()).success();
    crate::common::read_files(&tree)
}

/// Returns the number of commits; none if there is no repository yet.
fn commits(repo: &Path) -> usize {
    if repo.join("repo").exists() { run_on(repo, &["log", "--json"]).json().as_array().unwrap().len() } else { 0 }
}

/// Returns the processes that `parent` has started, and that run.
fn children(parent: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let listed = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    listed.collect::<Vec<_>>().join(" ").split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Ends an import, or a process that reads a file for it.
fn end(child: &Child, choice: usize) {
    let id = child.id().cast_signed();
    match choice {
        0 => signal(id, "-INT"),
        1 => {
            // It may have ended meanwhile.
            for reader in children(child.id()) {
                let _ = Command::new("kill").arg("-KILL").arg(reader.to_string()).stderr(Stdio::null()).status();
            }
        }
        _ => signal(id, "-KILL"),
    }
}

#[test]
fn an_import_that_is_ended_has_committed_all_or_nothing() {
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("archive");
    let files = files(&archive);
    let mut random = Random::new(number("ICECHUNKFS_SEED", 1) as u64);
    let mut ended = [0; 3];
    for options in [&[][..], &ALL] {
        let whole = place.path().join("whole");
        let begin = Instant::now();
        icechunkfs(words(&files, &whole, options)).success();
        let usual = begin.elapsed();
        let expected = keys(&whole, &archive);
        assert!(expected.len() > 12 * 64, "{}", expected.len());
        fs::remove_dir_all(&whole).unwrap();
        for round in 0..length("ICECHUNKFS_IMPORTS", QUICK, FULL) / 2 {
            let repo = place.path().join("repo");
            let choice = round % 3;
            let mut import = Command::new(program());
            import.args(words(&files, &repo, options)).stdout(Stdio::null()).stderr(Stdio::piped());
            let child = import.spawn().unwrap();
            std::thread::sleep(usual.mul_f64(random.below(1000) as f64 / 1000.0));
            let readers = children(child.id());
            end(&child, choice);
            let output = child.wait_with_output().unwrap();
            readers.into_iter().for_each(wait_for_end);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!said.contains("panicked"), "{said}");
            let is_whole = commits(&repo) == 2;
            if output.status.success() {
                assert!(is_whole, "round {round}: {said}");
            } else {
                ended[choice] += 1;
            }
            if is_whole {
                assert_eq!(keys(&repo, &archive), expected, "round {round}");
            } else {
                icechunkfs(words(&files, &repo, options)).success();
                assert_eq!(keys(&repo, &archive), expected, "round {round}");
                assert_eq!(commits(&repo), 2, "round {round}");
            }
            run_on(&repo, &["verify"]).success();
            fs::remove_dir_all(&repo).unwrap();
        }
    }
    // A file is read in milliseconds: seldom has a reader been there to be ended.
    assert!(ended[0] + ended[2] > 0, "{ended:?}");
}

#[test]
fn a_full_disk_fails_the_import_until_there_is_room() {
    let Some(disk) = Disk::tmpfs(24) else { return };
    let place = tempfile::tempdir().unwrap();
    let archive = place.path().join("archive");
    let files = files(&archive);
    let repo = disk.path().join("repo");
    disk.fill(300);
    let why = icechunkfs(words(&files, &repo, &[])).failure();
    assert!(why.contains("full") || why.contains("No space left"), "{why}");
    assert!(commits(&repo) < 2, "{why}");
    disk.empty();
    icechunkfs(words(&files, &repo, &[])).success();
    assert_eq!(commits(&repo), 2);
    run_on(&repo, &["verify", "--chunks"]).success();
}
