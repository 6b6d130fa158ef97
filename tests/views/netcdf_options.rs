//! Options of the NetCDF view: the unlimited dimension, types of classic programs, groups in one
//! file.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use netcdf_reader::{NcFile, NcType};
use serde_json::json;

use crate::common::{Mount, run};
use crate::netcdf::{array, group, import, int16s, python, python_code};

#[test]
fn programs_read_each_option() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("options");
    run(python("netcdf_options.py").arg("write").arg(&repo)).success();
    let options = [
        ("record", &["--netcdf-record-dimension", "auto"][..]),
        ("classic", &["--netcdf-classic-types", "--netcdf-record-dimension", "auto"]),
        ("nested", &["--netcdf-groups", "nested"]),
    ];
    for (mode, words) in options {
        let mount = Mount::new(&repo, &[&["--view", "netcdf"], words].concat());
        let written = directory.path().join(mode);
        fs::create_dir(&written).unwrap();
        let checked = run(python("netcdf_options.py").arg(mode).arg(&repo).arg(mount.path()).arg(&written));
        let text = String::from_utf8_lossy(&checked.stdout).into_owned();
        assert!(checked.status.success(), "{mode}: {text}{}", checked.stderr);
        let count: usize = text.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(count > 20, "{mode}: {text}");
    }
}

/// Returns the names of the unlimited dimensions of the root's file, and the report, with this
/// record dimension.
fn unlimited(repo: &std::path::Path, name: &str) -> (Vec<String>, String) {
    let mount = Mount::new(repo, &["--view", "netcdf", "--netcdf-record-dimension", name]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let dimensions = file.dimensions().unwrap();
    let values = file.read_variable::<i16>("t").unwrap();
    assert_eq!(values.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let names = dimensions.iter().filter(|dimension| dimension.is_unlimited).map(|dimension| dimension.name.clone());
    (names.collect(), fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap())
}

#[test]
fn the_record_dimension_is_the_first_of_all_its_variables() {
    let directory = tempfile::tempdir().unwrap();
    let names = |names: &[&str]| json!({"dimension_names": names});
    let moment = json!({"dimension_names": ["moment"], "attributes": {"units": "hours since 2000-01-01"}});
    let files = [
        ("zarr.json", group(&json!({}))),
        ("moment/zarr.json", array("int16", &[3], &[3], &moment)),
        ("t/zarr.json", array("int16", &[3, 2], &[3, 2], &names(&["moment", "x"]))),
        ("t/c/0/0", int16s(&[1, 2, 3, 4, 5, 6])),
        ("time/zarr.json", array("int16", &[4], &[4], &names(&["time"]))),
        ("turned/zarr.json", array("int16", &[2, 4], &[2, 4], &names(&["x", "time"]))),
        ("y/zarr.json", array("int16", &[2], &[2], &names(&["y"]))),
    ];
    let repo = import(directory.path(), &files);
    // Units of time count more than the name.
    assert_eq!(unlimited(&repo, "auto"), (vec!["moment".to_owned()], String::new()));
    assert_eq!(unlimited(&repo, "none"), (vec![], String::new()));
    assert_eq!(unlimited(&repo, "y"), (vec!["y".to_owned()], String::new()));
    for name in ["time", "x"] {
        let (found, report) = unlimited(&repo, name);
        assert!(
            found.is_empty() && report.contains(&format!("/ocean.nc\tdimension {name} not unlimited\t")),
            "{report}"
        );
    }
    let (found, report) = unlimited(&repo, "other");
    assert!(found.is_empty() && report.contains("no dimension is called other"), "{report}");
}

#[test]
fn classic_types_hold_the_same_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let long = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let files = [
        ("zarr.json", group(&json!({}))),
        ("long/zarr.json", array("int64", &[4], &[2], &json!({"fill_value": -3, "attributes": {"_FillValue": -3}}))),
        ("long/c/0", long(&[1 << 53, -1])),
        ("small/zarr.json", array("uint8", &[2], &[2], &json!({"attributes": {"valid_range": [0, 255]}}))),
        ("small/c/0", vec![0, 255]),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf", "--netcdf-classic-types"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let values = file.read_variable::<f64>("long").unwrap();
    assert_eq!(values.iter().copied().collect::<Vec<_>>(), [9_007_199_254_740_992.0, -1.0, -3.0, -3.0]);
    assert_eq!(file.variable("long").unwrap().attribute("_FillValue").unwrap().value.as_f64(), Some(-3.0));
    assert_eq!(file.variable("small").unwrap().dtype(), &NcType::Short);
    assert_eq!(file.read_variable::<i16>("small").unwrap().iter().copied().collect::<Vec<_>>(), [0, 255]);
    let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    assert_eq!(report.lines().count(), 1, "{report}");
    assert!(report.starts_with("/long\tshown as double\t"), "{report}");
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn ten_thousand_groups_fit_into_one_file() {
    const GROUPS: usize = 10_000;
    let directory = tempfile::tempdir().unwrap();
    let mut files = BTreeMap::from([("zarr.json".to_owned(), group(&json!({"title": "many"})))]);
    for n in 0..GROUPS {
        let parent = format!("g{:02}/h{n:05}", n % 100);
        files.insert(format!("g{:02}/zarr.json", n % 100), group(&json!({})));
        files.insert(format!("{parent}/zarr.json"), group(&json!({"n": n})));
        files.insert(format!("{parent}/v/zarr.json"), array("int16", &[2], &[2], &json!({"dimension_names": ["x"]})));
        files.insert(format!("{parent}/v/c/0"), int16s(&[n as i16, 7]));
    }
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf", "--netcdf-groups", "nested", "-o", "memory=96M"]);
    let begin = Instant::now();
    let path = mount.path().join("ocean.nc");
    let names: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["ocean.nc"]);
    let file = NcFile::open(&path).unwrap();
    println!("header of {GROUPS} groups read: {:?}", begin.elapsed());
    for n in [0, 1, 5_000, 9_999] {
        let variable = format!("g{:02}/h{n:05}/v", n % 100);
        let values = file.read_variable::<i16>(&variable).unwrap();
        assert_eq!(values.iter().copied().collect::<Vec<_>>(), [n as i16, 7]);
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    let peak = crate::netcdf::peak_memory(&mount);
    println!("peak memory: {peak} KiB");
    assert!(peak < 200 << 10, "{peak} KiB");
}

/// Decodes times and time spans as programs do by default.
const READ_TIMES: &str = "
import sys, numpy as np, xarray
for engine in ['netcdf4', 'h5netcdf']:
    with xarray.open_dataset(sys.argv[1], engine=engine) as dataset:
        assert dataset['scaled'].dtype.kind == 'M', dataset['scaled']
        assert dataset['scaled'].values.astype('M8[D]').view('i8').tolist() == [1, -2**63], dataset['scaled']
        assert dataset['span'].dtype == 'm8[ms]', dataset['span']
        assert dataset['span'].values.view('i8').tolist() == [-2**63, 1], dataset['span']
        assert dataset['lead'].dtype == 'm8[s]' and dataset['flag'].dtype == bool, dataset
";

#[test]
fn attributes_of_an_array_do_not_change_what_its_numbers_mean() {
    let directory = tempfile::tempdir().unwrap();
    let typed = |data_type: serde_json::Value, fill: serde_json::Value, attributes: serde_json::Value| {
        array("int64", &[2], &[2], &json!({"data_type": data_type, "fill_value": fill, "attributes": attributes}))
    };
    let time = |name: &str, unit: &str| json!({"name": name, "configuration": {"unit": unit, "scale_factor": 1}});
    let own = json!({"units": "hours", "calendar": "noleap", "note": "kept"});
    let scaled = json!({"scale_factor": 10, "add_offset": 4, "missing_value": 1, "_Unsigned": "true", "_FillValue": 1});
    let of_flag = json!({"dtype": "int", "_FillValue": false, "missing_value": false, "scale_factor": 2, "add_offset": 1, "_Unsigned": "true"});
    let files = [
        ("zarr.json", group(&json!({}))),
        ("lead/zarr.json", typed(time("numpy.timedelta64", "s"), json!(0), own.clone())),
        ("when/zarr.json", typed(time("numpy.datetime64", "ms"), json!(0), own)),
        ("same/zarr.json", typed(time("numpy.timedelta64", "s"), json!(0), json!({"units": "seconds"}))),
        ("scaled/zarr.json", typed(time("numpy.datetime64", "D"), json!("NaT"), scaled.clone())),
        ("span/zarr.json", typed(time("numpy.timedelta64", "ms"), json!("NaT"), scaled)),
        ("flag/zarr.json", typed(json!("bool"), json!(false), of_flag)),
        ("count/zarr.json", array("int64", &[2], &[2], &json!({"attributes": {"units": "hours"}}))),
        ("scaled/c/0", [1, i64::MIN].into_iter().flat_map(i64::to_le_bytes).collect()),
        ("span/c/0", [i64::MIN, 1].into_iter().flat_map(i64::to_le_bytes).collect()),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let text = |variable: &str, name: &str| {
        let variable = file.variable(variable).unwrap();
        variable.attribute(name).map(|attribute| attribute.value.as_string().unwrap())
    };
    for (variable, name, expected) in [
        ("lead", "units", Some("seconds")),
        ("lead", "note", Some("kept")),
        ("when", "units", Some("days since 1970-01-01 00:00:00")),
        ("when", "calendar", Some("proleptic_gregorian")),
        ("same", "units", Some("seconds")),
        ("same", "dtype", Some("timedelta64[s]")),
        ("span", "dtype", Some("timedelta64[ms]")),
        ("when", "dtype", None),
        ("flag", "dtype", Some("bool")),
        ("count", "units", Some("hours")),
    ] {
        assert_eq!(text(variable, name).as_deref(), expected, "{variable} {name}");
    }
    assert!(file.variable("flag").unwrap().attribute("_FillValue").is_none());
    let wrong = ["missing_value", "scale_factor", "add_offset", "_Unsigned"];
    for variable in ["flag", "scaled", "span"] {
        assert!(wrong.iter().all(|name| file.variable(variable).unwrap().attribute(name).is_none()), "{variable}");
    }
    run(python_code(READ_TIMES).arg(mount.path().join("ocean.nc"))).success();
    let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    let mut left_out: Vec<&str> = report.lines().map(|line| line.split('\t').next().unwrap()).collect();
    left_out.sort_unstable();
    let mut expected: Vec<String> =
        ["/flag@dtype", "/lead@units", "/span", "/when@calendar", "/when@units"].map(str::to_owned).into();
    for array in ["/flag", "/scaled", "/span"] {
        expected.extend(wrong.into_iter().chain(["_FillValue"]).map(|name| format!("{array}@{name}")));
    }
    expected.sort_unstable();
    assert_eq!(left_out, expected, "{report}");
}
