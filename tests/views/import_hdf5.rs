//! `icechunkfs import` of HDF5 and NetCDF-4 files: equal to the original by their own libraries,
//! and harmless whatever a file says.

use std::fs;
use std::path::Path;

use super::netcdf::{compared, python};
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::{Mount, icechunkfs, run, run_on};

/// Files in the ordinary run, and in a full one.
const QUICK: usize = 40;
const FULL: usize = 400;
/// Files that are compared by one command, which has two minutes.
const AT_ONCE: usize = 100;
/// Damaged files, likewise.
const QUICK_DAMAGED: usize = 60;
const FULL_DAMAGED: usize = 2000;

fn make(directory: &Path, seed: usize, files: usize) {
    let words = [seed.to_string(), files.to_string()];
    run(python("import_hdf5.py").arg("make").arg(directory).args(words)).success();
}

#[test]
fn files_are_equal_to_the_original_in_a_mount() {
    let files = length("ICECHUNKFS_IMPORTS", QUICK, FULL);
    let first = number("ICECHUNKFS_SEED", 1);
    // A seed for each hundred.
    for (number, begin) in (0..files).step_by(AT_ONCE).enumerate() {
        files_are_equal(first + number, AT_ONCE.min(files - begin));
    }
}

fn files_are_equal(seed: usize, files: usize) {
    let directory = tempfile::tempdir().unwrap();
    make(directory.path(), seed, files);
    let repo = directory.path().join("repo");
    for number in 0..files {
        let file = directory.path().join(format!("{number}.h5"));
        let path = format!("f{number}");
        let words = ["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--path", &path, "--json"];
        let report = icechunkfs(words).json();
        // The same once more changes nothing.
        if number % 5 == 0 {
            assert_eq!(icechunkfs(words).json()["snapshot"], serde_json::Value::Null, "{number}");
        }
        fs::write(file.with_extension("json"), report.to_string()).unwrap();
    }
    run_on(&repo, &["verify", "--chunks"]).success();
    let mount = Mount::new(&repo, &[]);
    let mut compare = python("import_hdf5.py");
    let all = compared(compare.arg("compare").args([directory.path(), &mount.path()]), &format!("seed {seed}"));
    assert!(all > 3 * files, "{all}");
}

/// Other readers overflow their stack on such a file, or read one thing thousands of times.
#[test]
fn files_that_lead_in_circles_are_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("circles.h5");
    run(python("import_hdf5.py").arg("circles").arg(&file)).success();
    let repo = directory.path().join("repo");
    let report = icechunkfs(["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--json"]).json();
    // The group with its array, the one that has the first again, 64 deep ones, and the wide one.
    assert_eq!(report["nodes_created"], 1 + 1 + 1 + 64 + 1, "{report}");
    assert!(report["left_out_count"].as_u64().unwrap() > 500, "{report}");
    let left_out = report["left_out"].as_array().unwrap();
    let why = |path: &str| left_out.iter().find(|one| one["path"] == path).unwrap()["why"].as_str().unwrap().to_owned();
    assert_eq!(why("g/again"), "left out: another name of /");
    assert!(why("long").contains("2^32"), "{report}");
    run_on(&repo, &["verify", "--chunks"]).success();
}

/// Parts that would take too much memory are left out, and the rest of the file is imported.
#[test]
fn files_that_ask_for_gigabytes_get_none() {
    let directory = tempfile::tempdir().unwrap();
    run(python("import_hdf5.py").arg("greedy").arg(directory.path())).success();
    for (name, path, why) in
        [("texts", "x@texts", "more text than a file"), ("implicit", "implicit", "more chunks than")]
    {
        let file = directory.path().join(name).with_extension("h5");
        let repo = directory.path().join(name);
        let report = icechunkfs(["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--json"]).json();
        assert_eq!((&report["nodes_created"], &report["left_out_count"]), (&2.into(), &1.into()), "{report}");
        assert_eq!(report["left_out"][0]["path"], path, "{report}");
        assert!(report["left_out"][0]["why"].as_str().unwrap().contains(why), "{report}");
    }
}

#[test]
fn a_file_that_would_give_wrong_values_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    run(python("import_hdf5.py").arg("odd").arg(directory.path())).success();
    let repo = directory.path().join("repo");
    let import = |name: &str, options: &[&str]| {
        let file = directory.path().join(name);
        let words = ["import", file.to_str().unwrap(), repo.to_str().unwrap()];
        icechunkfs([words.as_slice(), options].concat()).failure()
    };
    // The rows of the next file would be put beside others.
    let uneven = import("uneven.h5", &["--append-dim", "time"]);
    assert!(uneven.contains("along time, and"), "{uneven}");
    // Chunks that its writer has not written yet would be fill values.
    let open = import("left.h5", &[]);
    assert!(open.contains("open for writing") && open.contains("h5clear"), "{open}");
    assert!(!repo.exists());
}

/// Whatever a file says, an import of it ends, with success or an error of one line, and neither a
/// file that is cut nor one that is damaged makes it take more than its bounds.
#[test]
fn damaged_files_end_in_an_import_or_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let seed = number("ICECHUNKFS_SEED", 1);
    make(directory.path(), seed, 8);
    let originals: Vec<Vec<u8>> =
        (0..8).map(|number| fs::read(directory.path().join(format!("{number}.h5"))).unwrap()).collect();
    let mut random = Random::new(seed as u64);
    let mut failed = 0;
    let count = length("ICECHUNKFS_IMPORTS", QUICK_DAMAGED, FULL_DAMAGED);
    for round in 0..count {
        let mut bytes = random.pick(&originals).clone();
        for _ in 0..1 + random.below(8) {
            let at = random.below(bytes.len().min(6000));
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = 0xff,
                2 => {
                    let end = (at + 8).min(bytes.len());
                    bytes[at..end].fill(0xff);
                }
                _ => bytes[at] = bytes[at].wrapping_add(1),
            }
        }
        if random.chance(10) {
            bytes.truncate(random.below(bytes.len()));
        }
        let file = directory.path().join("damaged.h5");
        fs::write(&file, bytes).unwrap();
        let repo = directory.path().join(format!("repo{round}"));
        let import = icechunkfs(["import", file.to_str().unwrap(), repo.to_str().unwrap(), "--jobs", "1"]);
        if !import.status.success() {
            failed += 1;
            assert_eq!(import.status.code(), Some(1), "{round}: {}", import.stderr);
            assert!(import.stderr.starts_with("icechunkfs: "), "{round}: {}", import.stderr);
            assert!(!import.stderr.contains("panicked"), "{round}: {}", import.stderr);
        } else {
            run_on(&repo, &["verify"]).success();
        }
        let _ = fs::remove_dir_all(repo);
    }
    assert!(failed > count / 20, "{failed} of {count}");
}
