//! The numbers that programs compute of packed variables and of times in a NetCDF view, beside the
//! arithmetic of numpy.

use std::process::Command;

use crate::common::writing::needed;
use crate::common::{Mount, project, run};

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
