//! The numbers that programs compute of packed variables and of times in a NetCDF view, beside the
//! arithmetic of numpy.

use std::path::Path;
use std::process::Command;

use super::netcdf::python_code;
use crate::common::writing::needed;
use crate::common::{Mount, icechunkfs, project, run};

/// Programs, and the numbers of arrays that each of them reads rightly: all but those of its known
/// limits.
const PROGRAMS: [(&str, u64); 9] = [
    ("netCDF4", 107),
    ("h5py", 107),
    ("xarray", 107),
    ("xarray h5netcdf", 107),
    ("ncdump", 19),
    ("NCO", 64),
    ("CDO", 88),
    ("GDAL", 102),
    ("R", 101),
];

/// Returns true if the programs that are not in Python's environment are installed.
pub fn has_programs() -> bool {
    const CHECK: &str = "cdo --version && ncks --version && which ncdump && Rscript -e 'library(ncdf4)' && \
        /usr/bin/python3 -c 'from osgeo import gdal'";
    let installed = Command::new("sh").args(["-c", CHECK]).output();
    let is_there = installed.is_ok_and(|output| output.status.success());
    needed(is_there, "programs: scripts/setup --programs installs them")
}

#[test]
#[ignore = "needs CDO, NCO, GDAL, R: scripts/test --full"]
fn programs_compute_the_numbers_of_packed_variables_and_times() {
    if !has_programs() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let repository = work.path().join("numbers");
    let cases = work.path().join("cases.json");
    let script = |name: &str| {
        let mut command = Command::new(project("target/venv/bin/python"));
        command.arg("-B").arg(project("tests/views/programs").join(name));
        command
    };
    run(script("make_numbers.py").arg(&repository).arg(&cases)).success();
    let native = Mount::new(&repository, &["--read-only"]);
    let view = Mount::new(&repository, &["--view", "netcdf"]);
    let read = run(script("read_numbers.py").arg(&cases).args([native.path(), view.path()]).arg(work.path())).json();
    for (program, right) in PROGRAMS {
        let found = &read[program];
        assert!(found["wrong"].as_array().unwrap().is_empty(), "{program}: {:#}", found["wrong"]);
        assert_eq!(found["right"].as_u64(), Some(right), "{program}");
    }
}

/// Programs such as GDAL take the fill value of a variable for missing data.
#[test]
fn zeros_are_missing_only_if_an_attribute_says_so() {
    const MAKE: &str = "
import sys, zarr
root = zarr.create_group(sys.argv[1], zarr_format=3)
for name, fill, attributes in [('plain', 0, {}), ('marked', 0, {'_FillValue': 0}), ('other', -9, {})]:
    root.create_array(name, shape=(4,), chunks=(2,), dtype='i4', fill_value=fill, attributes=attributes, dimension_names=['x'])[1] = 7
";
    const READ: &str = "
import sys, netCDF4
with netCDF4.Dataset(sys.argv[1]) as file:
    file.set_auto_mask(False)
    print([(name, str(file[name].get_fill_value()), file[name][:].tolist()) for name in ('plain', 'marked', 'other')])
";
    let work = tempfile::tempdir().unwrap();
    let [tree, repository] = [work.path().join("tree"), work.path().join("repo")];
    run(python_code(MAKE).arg(&tree)).success();
    icechunkfs([Path::new("import"), &tree, &repository]).success();
    let view = Mount::new(&repository, &["--view", "netcdf"]);
    let read = run(python_code(READ).arg(view.path().join("repo.nc"))).text();
    let expected = "[('plain', 'None', [0, 7, 0, 0]), ('marked', '0', [0, 7, 0, 0]), ('other', '-9', [-9, 7, -9, -9])]";
    assert_eq!(read.trim(), expected);
}
