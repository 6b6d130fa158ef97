//! Files of the NetCDF view that cannot be made, for want of memory: nobody reads an empty file, or
//! one without a variable, in their place.

use std::fs;
use std::path::Path;

use netcdf_reader::NcFile;
use serde_json::json;

use crate::common::{Mount, errno, icechunkfs};
use crate::netcdf::{array, group, import, int16s, peak_memory, zstd};

/// Returns a chunk of texts as the codec `vlen-utf8` writes it.
fn texts(texts: &[String]) -> Vec<u8> {
    let mut bytes = (texts.len() as u32).to_le_bytes().to_vec();
    for text in texts {
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

fn labels(count: u64) -> Vec<u8> {
    array("string", &[count], &[count], &json!({"codecs": ["vlen-utf8", "zstd"], "fill_value": ""}))
}

/// Asserts that `file`, which does not fit into memory, is listed, and that its directory can be
/// listed with attributes, as `ls -l` does.
#[track_caller]
fn assert_listed(file: &Path) {
    let directory = fs::read_dir(file.parent().unwrap()).unwrap();
    let listed: Vec<_> = directory.map(Result::unwrap).filter(|entry| entry.path() == file).collect();
    assert_eq!(listed.len(), 1);
    for entry in listed {
        assert_eq!(errno(entry.metadata()), libc::ENOMEM);
    }
    assert_eq!(errno(fs::read(file)), libc::ENOMEM);
}

#[test]
fn a_file_that_does_not_fit_is_no_empty_file() {
    let directory = tempfile::tempdir().unwrap();
    let arrays = (0..3000).map(|n| (format!("v{n}/zarr.json"), array("int16", &[2], &[2], &json!({}))));
    let files: Vec<(String, Vec<u8>)> =
        std::iter::once(("zarr.json".to_owned(), group(&json!({})))).chain(arrays).collect();
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf", "--memory", "16M"]);
    assert_listed(&mount.path().join("ocean.nc"));
    // The report has it, and is itself no reason to fail.
    let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    assert!(report.starts_with("/ocean.nc\tleft out\t") && report.contains("--memory"), "{report}");
    let native = Mount::new(&repo, &["--read-only", "--memory", "16M"]);
    assert_listed(&native.control("view/netcdf/ocean.nc"));
    let listed = icechunkfs(["ls", repo.to_str().unwrap(), "--view", "netcdf", "--memory", "16M", "--json"]).json();
    assert_eq!(listed, json!([{"path": "/ocean.nc", "kind": "file"}]));
}

#[test]
fn texts_take_no_more_memory_than_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..500).map(|n| format!("name {n}")).collect();
    let bomb = vec!["x".repeat(60_000); 1000];
    let repo = import(
        directory.path(),
        &[
            ("zarr.json", group(&json!({}))),
            ("good/zarr.json", array("int16", &[2], &[2], &json!({}))),
            ("good/c/0", int16s(&[1, 2])),
            ("names/zarr.json", labels(500)),
            ("names/c/0", zstd(&texts(&names))),
            ("bomb/zarr.json", labels(1000)),
            ("bomb/c/0", zstd(&texts(&bomb))),
        ],
    );
    let mount = Mount::new(&repo, &["--view", "netcdf", "--memory", "24M"]);
    let path = mount.path().join("ocean.nc");
    let variables = |path: &Path| -> Vec<String> {
        let mut found: Vec<String> =
            NcFile::open(path).unwrap().variables().unwrap().iter().map(|it| it.name().to_owned()).collect();
        found.sort();
        found
    };
    assert_eq!(variables(&path), ["good", "names"]);
    // Behind the header and the room for it.
    let read = fs::read(&path).unwrap().split_off(12 << 20);
    assert!(names.iter().all(|name| read.windows(name.len()).any(|part| part == name.as_bytes())));
    assert!(peak_memory(&mount) < 24 << 20, "{} bytes", peak_memory(&mount));
    let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    assert!(report.starts_with("/bomb\tleft out\t") && report.lines().count() == 1, "{report}");
    mount.unmount();
    // With room for it, it is shown.
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    assert_eq!(variables(&mount.path().join("ocean.nc")), ["bomb", "good", "names"]);
}
