//! The report of the NetCDF view: what programs do not see is in it, for each node.

use std::fs;

use netcdf_reader::NcFile;
use serde_json::{Value, json};

use crate::common::{Mount, run};
use crate::netcdf::{array, group, import, int16s, python_code};

/// Returns the lines of the report, sorted, without the reasons.
fn deeds(mount: &Mount) -> Vec<String> {
    let text = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    let mut deeds: Vec<String> =
        text.lines().map(|line| line.rsplit_once('\t').unwrap().0.replace('\t', ": ")).collect();
    deeds.sort();
    deeds
}

#[test]
fn each_array_with_a_renamed_dimension_has_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let named = |length: u64, name: &str| array("int16", &[length], &[length], &json!({"dimension_names": [name]}));
    let files = [
        ("zarr.json", group(&json!({}))),
        ("x/zarr.json", named(3, "x")),
        ("v4/zarr.json", named(4, "x")),
        ("w4/zarr.json", named(4, "x")),
        ("g/zarr.json", named(2, "a/b")),
        ("h/zarr.json", named(2, "a\\b")),
        ("i/zarr.json", named(2, "a_b")),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let expected = [
        // Three dimensions, one of which has the name that the others would have.
        "/g: dimension a/b renamed to a_b_2",
        "/h: dimension a\\b renamed to a_b_2_2",
        "/v4: dimension x renamed to x_4",
        "/w4: dimension x renamed to x_4",
    ];
    assert_eq!(deeds(&mount), expected);
}

#[test]
fn attributes_that_no_file_has_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let files = [
        ("zarr.json", group(&json!({"title": "lost"}))),
        ("g/zarr.json", group(&json!({"title": "shown", "long": [1, 0.5, (1_u64 << 53) + 1]}))),
        ("g/v/zarr.json", array("int16", &[2], &[2], &json!({}))),
        ("empty/zarr.json", group(&json!({}))),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    assert_eq!(deeds(&mount), ["/: attributes left out", "/g@long: shown as double"]);
    // With groups in groups, the file has them.
    let mount = Mount::new(&repo, &["--view", "netcdf", "--netcdf-groups", "nested"]);
    assert_eq!(deeds(&mount), ["/g@long: shown as double"]);
}

#[test]
fn a_renamed_array_never_takes_the_name_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let one = || array("int16", &[1], &[1], &json!({"attributes": {"t/u": "bad", "t_u": "good"}}));
    let files = [
        ("zarr.json", group(&json!({}))),
        // In the order of names the bad one is the first.
        ("t /zarr.json", one()),
        ("t /c/0", int16s(&[1])),
        ("t_/zarr.json", one()),
        ("t_/c/0", int16s(&[2])),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    assert_eq!(file.read_variable::<i16>("t_").unwrap().iter().copied().collect::<Vec<_>>(), [2]);
    let attribute = file.variable("t_").unwrap().attribute("t_u").unwrap().value.as_string().unwrap();
    assert_eq!(attribute, "good");
    assert_eq!(deeds(&mount), ["/t : left out", "/t_@t/u: left out"]);
}

/// Compares the values of nested groups by all programs that look for dimensions by name.
const READ_HIDDEN: &str = "
import sys, netCDF4, xarray
file = sys.argv[1]
with netCDF4.Dataset(file) as dataset:
    assert dataset['a/b/u'][:].tolist() == [7, 8, 9], dataset['a/b/u']
for engine in ['netcdf4', 'h5netcdf']:
    with xarray.open_dataset(file, group='a/b', engine=engine) as dataset:
        assert dataset['u'].values.tolist() == [7, 8, 9], (engine, dataset)
";

#[test]
fn a_dimension_that_a_nearer_group_hides_keeps_its_size() {
    let directory = tempfile::tempdir().unwrap();
    let named = |length: u64| array("int16", &[length], &[length], &json!({"dimension_names": ["z"]}));
    let files = [
        ("zarr.json", group(&json!({}))),
        ("r/zarr.json", named(3)),
        ("a/zarr.json", group(&json!({}))),
        ("a/v/zarr.json", named(2)),
        ("a/b/zarr.json", group(&json!({}))),
        ("a/b/u/zarr.json", named(3)),
        ("a/b/u/c/0", int16s(&[7, 8, 9])),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf", "--netcdf-groups", "nested"]);
    run(python_code(READ_HIDDEN).arg(mount.path().join("ocean.nc"))).success();
}

#[test]
fn nan_is_marked_as_missing_only_where_chunks_are() {
    let directory = tempfile::tempdir().unwrap();
    let float = |length: u64, more: Value| {
        let mut members = json!({"fill_value": "NaN", "codecs": ["bytes"]});
        members.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        array("float32", &[length], &[2], &members)
    };
    let dimension = json!({"dimension_names": ["x"]});
    let bounds = json!({"attributes": {"bounds": "x_bounds"}});
    let files = [
        ("zarr.json", group(&json!({}))),
        ("complete/zarr.json", float(2, json!({}))),
        ("complete/c/0", vec![0; 8]),
        ("partial/zarr.json", float(4, json!({}))),
        ("partial/c/0", vec![0; 8]),
        ("marked/zarr.json", float(4, json!({"attributes": {"missing_value": 7}}))),
        ("x/zarr.json", float(4, dimension)),
        ("height/zarr.json", float(4, bounds)),
        ("x_bounds/zarr.json", float(4, json!({}))),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let marked = ["complete", "partial", "marked", "x", "height", "x_bounds"]
        .into_iter()
        .filter(|name| file.variable(name).unwrap().attribute("_FillValue").is_some());
    assert_eq!(marked.collect::<Vec<_>>(), ["partial", "height"]);
}
