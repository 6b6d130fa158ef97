//! Views of a repository in a store that fails for a time.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use crate::common::errno;
use crate::common::faulty::{Fault, Line};
use crate::common::moto::{icechunkfs, mount, repository, s3};
use crate::common::writing::{array, put};

/// Makes a repository with an array of texts, called `labels`.
fn labels(line: &Line, directory: &Path) -> String {
    let plain = directory.join("plain");
    let repo = repository("labels");
    put(&plain.join("zarr.json"), br#"{"zarr_format":3,"node_type":"group"}"#).unwrap();
    put(&plain.join("numbers/zarr.json"), array(&[4], &[4])).unwrap();
    let labels = json!({
        "zarr_format": 3, "node_type": "array", "shape": [200], "data_type": "string", "fill_value": "", "codecs": ["vlen-utf8"],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [200]}}, "chunk_key_encoding": {"name": "default"},
    });
    put(&plain.join("names/zarr.json"), labels.to_string()).unwrap();
    let texts: Vec<u8> = (0..200).flat_map(|n| [&[9, 0, 0, 0], format!("label {n:03}").as_bytes()].concat()).collect();
    put(&plain.join("names/c/0"), [&200_u32.to_le_bytes()[..], &texts].concat()).unwrap();
    icechunkfs(line.port, &["init", &repo]).success();
    icechunkfs(line.port, &["import", plain.to_str().unwrap(), &repo, "-m", "made"]).success();
    repo
}

/// The texts of an array are read to make the header of a NetCDF file. A file without the array
/// would look complete.
#[test]
fn a_file_is_not_made_without_an_array_that_cannot_be_read_now() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let directory = tempfile::tempdir().unwrap();
    let repo = labels(&line, directory.path());
    let is_chunk = |request: &str| request.contains("/chunks/");
    for (fault, expected) in
        [(Fault::Says("403 Forbidden", "AccessDenied"), libc::EACCES), (Fault::Silent, libc::ETIMEDOUT)]
    {
        for words in [&["--view", "netcdf"][..], &["--read-only"]] {
            let words = [&["--timeout", "1"], words].concat();
            let mount = mount(line.port, &repo, &words);
            let root = if words.contains(&"netcdf") { mount.path() } else { mount.control("view/netcdf") };
            line.decide(move |_, request| if is_chunk(request) { fault } else { Fault::Pass });
            let found = errno(fs::metadata(root.join("labels.nc")));
            assert_eq!(found, expected, "{fault:?}");
            // A listing with attributes must not make an empty file of it, nor may it hide what
            // failed.
            let listed: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(listed.iter().any(|name| name == "labels.nc"), "{listed:?}");
            assert_eq!(errno(fs::read(root.join("labels.nc"))), expected, "{fault:?}");
            assert!(mount.read_control("errors").contains("names"), "{}", mount.read_control("errors"));
            let listed: Vec<_> =
                fs::read_dir(mount.control("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(listed.iter().any(|name| name == "errors"), "{listed:?}");

            line.release();
            let read = fs::read(root.join("labels.nc")).unwrap();
            assert!(read.windows(9).any(|part| part == b"label 199"), "{fault:?}");
            assert_eq!(fs::read_to_string(root.join(".icechunk/netcdf")).unwrap(), "");
        }
        let out = directory.path().join("out");
        line.decide(move |_, request| if is_chunk(request) { fault } else { Fault::Pass });
        let words = ["export", &repo, out.to_str().unwrap(), "--view", "netcdf", "--timeout", "1"];
        let refused = icechunkfs(line.port, &words).failure();
        assert!(refused.contains("/names"), "{refused}");
        assert!(!out.join("labels.nc").exists());
        line.release();
    }
}

#[test]
fn a_short_answer_leaves_no_array_out() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let directory = tempfile::tempdir().unwrap();
    let repo = labels(&line, directory.path());
    let mount = mount(line.port, &repo, &["--view", "netcdf"]);
    let asked = AtomicUsize::new(0);
    line.decide(move |_, request| {
        let is_first = request.contains("/chunks/") && asked.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Fault::Short } else { Fault::Pass }
    });
    let read = fs::read(mount.path().join("labels.nc")).unwrap();
    assert!(read.windows(9).any(|part| part == b"label 199"));
    assert_eq!(line.counts().1, 1, "one answer was short");
    assert_eq!(fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap(), "");
}

/// The store refuses while the file is listed, and no longer when it is read.
#[test]
fn an_export_has_no_empty_file_in_the_place_of_one_that_could_not_be_listed() {
    let Some(server) = s3() else { return };
    let line = Line::to(server.port);
    let directory = tempfile::tempdir().unwrap();
    let repo = labels(&line, directory.path());
    let out = directory.path().join("out");
    let asked = AtomicUsize::new(0);
    line.decide(move |_, request| {
        let is_first = request.contains("/chunks/") && asked.fetch_add(1, Ordering::Relaxed) == 0;
        if is_first { Fault::Says("403 Forbidden", "AccessDenied") } else { Fault::Pass }
    });
    icechunkfs(line.port, &["export", &repo, out.to_str().unwrap(), "--view", "netcdf"]).success();
    assert_eq!(line.counts().1, 1);
    let exported = fs::read(out.join("labels.nc")).unwrap();
    assert!(exported.windows(9).any(|part| part == b"label 199"), "{} bytes", exported.len());
}
