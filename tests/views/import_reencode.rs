//! `icechunkfs import --reencode`: files of one collection that are encoded differently have the
//! values in the archive that xarray reads of each of them.

use std::fs;
use std::path::Path;

use super::import_virtual;
use super::netcdf::{python, python_code};
use crate::common::lengths::{length, number};
use crate::common::{Output, icechunkfs, run, run_on};

/// Collections in the ordinary run, and in a full one.
const QUICK: usize = 6;
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

/// Zarr compresses by Zstandard if nobody says anything else, also texts.
#[test]
fn an_archive_that_xarray_has_written_takes_files() {
    const FILES: &str = "
import sys, netCDF4, numpy as np, xarray as xr, zarr
place, codec = sys.argv[1:]
for number, length in enumerate((3, 2)):
    with netCDF4.Dataset(f'{place}/{number}.nc', 'w') as file:
        file.createDimension('time', None)
        file.createDimension('x', 4)
        time = file.createVariable('time', 'i8', ['time'])
        time.units = 'days since 2026-01-01'
        time[:] = np.arange(length) + 3 * number
        file.createVariable('v', 'f4', ['time', 'x'], zlib=True, shuffle=True, chunksizes=[1, 4])[:] = np.random.rand(length, 4)
        file.createVariable('name', str, ['time'])[:] = np.array([f'{number} \\u00fc' * n for n in range(length)], dtype=object)
first = xr.open_dataset(f'{place}/0.nc', decode_cf=False).drop_encoding()
first['name'] = 'time', first['name'].values.astype(np.dtypes.StringDType())
codecs = {} if codec == 'zstd' else {name: {'compressors': [zarr.codecs.GzipCodec(level=3)]} for name in first.variables}
first.to_zarr(f'{place}/tree', zarr_format=3, consolidated=False, encoding=codecs)
";
    const COMPARE: &str = "
import sys, json, numpy as np, xarray as xr
place, mount, codec = sys.argv[1:]
found = xr.open_zarr(mount, consolidated=False, decode_cf=False)
files = [xr.open_dataset(f'{place}/{number}.nc', decode_cf=False) for number in range(2)]
for name in ('time', 'v', 'name'):
    wanted = np.concatenate([file[name].values for file in files])
    assert (found[name].values == wanted).all(), (name, found[name].values, wanted)
    codecs = [one['name'] for one in json.load(open(f'{mount}/{name}/zarr.json'))['codecs']]
    assert codecs[1:] == [codec], codecs
";
    for codec in ["zstd", "gzip"] {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        run(python_code(FILES).arg(place).arg(codec)).success();
        let [tree, next] = ["tree", "1.nc"].map(|name| place.join(name).to_str().unwrap().to_owned());
        let repo = place.join("repo");
        icechunkfs(["import", &tree, repo.to_str().unwrap()]).success();
        let why = import(&[&next], &repo, &[]).failure();
        assert!(why.contains("1.nc: v: codecs are") && !why.contains("name: codecs"), "{why}");
        import(&[&next], &repo, &["--reencode"]).success();
        run_on(&repo, &["verify", "--chunks"]).success();
        let mount = import_virtual::mount(&repo, place);
        run(python_code(COMPARE).arg(place).arg(mount.path()).arg(codec)).success();
    }
}
