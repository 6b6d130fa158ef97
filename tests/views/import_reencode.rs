//! `icechunkfs import --reencode`: files of one collection that are encoded differently have the
//! values in the archive that xarray reads of each of them.

use std::fs;
use std::path::Path;

use super::import_virtual;
use super::netcdf::{python, python_code};
use crate::common::lengths::{length, number};
use crate::common::{Output, icechunkfs, run, run_on};

/// Collections in the ordinary run, and in a full one.
const QUICK: usize = 12;
const FULL: usize = 300;

fn import(files: &[&str], repo: &Path, options: &[&str]) -> Output {
    let words = [&["import"], files, &[repo.to_str().unwrap(), "--append-dim", "time", "--json"], options];
    icechunkfs(words.concat())
}

#[test]
fn values_are_those_that_xarray_reads_of_each_file() {
    let first = number("ICECHUNKFS_SEED", 1);
    let mut refused = 0;
    for seed in first..first + length("ICECHUNKFS_COLLECTIONS", QUICK, FULL) {
        let directory = tempfile::tempdir().unwrap();
        let repo = directory.path().join("repo");
        let made = directory.path().join("made");
        fs::create_dir(&made).unwrap();
        let made = run(python("import_reencode.py").arg("make").arg(&made).arg(seed.to_string())).json();
        let files: Vec<&str> = made["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
        let (before, after) = files.split_at(1 + seed % (files.len() - 1));
        let referring = if seed % 2 == 0 { &import_virtual::ALL[..] } else { &[] };
        let options = [&["--reencode"], referring].concat();
        import(before, &repo, &options).success();
        let plain = import(after, &repo, &["--dry-run"]);
        if !plain.status.success() {
            let why = plain.failure();
            assert!(why.contains("--reencode converts"), "seed {seed}: {why}");
            refused += 1;
        }
        import(after, &repo, &options).success();
        let again = import(&files, &repo, &["--reencode", "--skip-existing"]).json();
        assert_eq!(again["skipped_count"].as_u64(), Some(files.len() as u64), "seed {seed}: {made}");
        import(&files[..1], &repo, &["--reencode"]).failure();
        run_on(&repo, &["verify", "--chunks"]).success();
        let mount = import_virtual::mount(&repo, directory.path());
        let check = run(python("import_reencode.py").arg("check").arg(mount.path()).args(&files));
        assert!(check.status.success(), "seed {seed}: {made} {}", check.stderr);
    }
    assert!(refused > 0, "no collection needed it");
}

/// Nothing is committed of a file with a value that the archive's type has no number for.
#[test]
fn a_value_that_does_not_fit_refuses_the_import() {
    const FILES: &str = "
import sys, netCDF4
for name, scale, value, time in (('a', 0.01, 1.5, 0), ('b', 1.0, 400.0, 1), ('c', 0.25, 2.0, 2)):
    with netCDF4.Dataset(f'{sys.argv[1]}/{name}.nc', 'w', format='NETCDF3_CLASSIC') as file:
        file.createDimension('time', None)
        stored = file.createVariable('time', 'i4', ['time'])
        stored.units = 'days since 2026-01-01'
        stored[:] = [time]
        packed = file.createVariable('v', 'i2', ['time'])
        packed.scale_factor = scale
        packed[:] = [value]
";
    let directory = tempfile::tempdir().unwrap();
    run(python_code(FILES).arg(directory.path())).success();
    let repo = directory.path().join("repo");
    let [a, b, c] = ["a.nc", "b.nc", "c.nc"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    import(&[&a], &repo, &[]).success();
    let before = fs::read(repo.join("repo")).unwrap();
    for options in [&["--reencode", "--dry-run"][..], &["--reencode"]] {
        let why = import(&[&b, &c], &repo, options).failure();
        assert!(why.contains("b.nc: v: the value 400 cannot be written as the archive has it"), "{why}");
    }
    assert_eq!(fs::read(repo.join("repo")).unwrap(), before);
    import(&[&c], &repo, &["--reencode", "--allow-gaps"]).success();
}
