//! The NetCDF view, read by a NetCDF reader that shares no code with it, and by real programs.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use netcdf_reader::NcFile;
use serde_json::{Value, json};

use crate::common::{Mount, icechunkfs, project, run};

/// Writes `files` as a Zarr tree and imports it. Returns the repository.
pub(super) fn import(directory: &Path, files: &[(&str, Vec<u8>)]) -> PathBuf {
    let plain = directory.join("plain");
    let repo = directory.join("ocean");
    for (key, bytes) in files {
        let path = plain.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    icechunkfs(["init", repo.to_str().unwrap()]).success();
    icechunkfs(["import", plain.to_str().unwrap(), repo.to_str().unwrap(), "-m", "made"]).success();
    repo
}

pub(super) fn group(attributes: &Value) -> Vec<u8> {
    json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}).to_string().into_bytes()
}

/// Returns the `zarr.json` of an array with members of `more` besides those that it needs.
pub(super) fn array(data_type: &str, shape: &[u64], chunks: &[u64], more: &Value) -> Vec<u8> {
    let mut document = json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": data_type, "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
    });
    for (key, value) in more.as_object().unwrap() {
        document[key] = value.clone();
    }
    document.to_string().into_bytes()
}

pub(super) fn int16s(values: &[i16]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

#[test]
fn a_group_shows_as_a_file_with_its_values_dimensions_and_attributes() {
    let directory = tempfile::tempdir().unwrap();
    let compressed = json!({
        "codecs": ["bytes", "zstd"], "dimension_names": ["time", "x"], "fill_value": -1,
        "attributes": {"units": "K", "levels": [1, 2]},
    });
    let files = [
        ("zarr.json", group(&json!({"title": "a test"}))),
        ("time/zarr.json", array("int16", &[3], &[3], &json!({"dimension_names": ["time"]}))),
        ("time/c/0", int16s(&[10, 20, 30])),
        ("t/zarr.json", array("int16", &[3, 3], &[2, 2], &compressed)),
        ("t/c/0/0", zstd(&int16s(&[1, 2, 4, 5]))),
        // Chunk 0/1 is missing, and the edge chunks reach beyond the array.
        ("t/c/1/0", zstd(&int16s(&[7, 8, 99, 99]))),
        ("t/c/1/1", zstd(&int16s(&[9, 99, 99, 99]))),
        ("deep/er/zarr.json", group(&json!({}))),
        ("deep/er/v/zarr.json", array("int16", &[], &[], &json!({}))),
        ("deep/er/v/c", int16s(&[5])),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let names = |path: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&mount.path()), ["deep", "ocean.nc"]);
    assert_eq!(names(&mount.path().join("deep")), ["er.nc"]);

    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let values = file.read_variable::<i16>("t").unwrap();
    assert_eq!(values.shape(), [3, 3]);
    assert_eq!(values.iter().copied().collect::<Vec<_>>(), [1, 2, -1, 4, 5, -1, 7, 8, 9]);
    assert_eq!(file.read_variable::<i16>("time").unwrap().iter().copied().collect::<Vec<_>>(), [10, 20, 30]);
    let dimensions: Vec<(String, u64)> =
        file.dimensions().unwrap().iter().map(|dimension| (dimension.name.clone(), dimension.size)).collect();
    assert_eq!(dimensions, [("time".to_owned(), 3), ("x".to_owned(), 3)]);
    assert!(file.global_attribute("title").is_ok());
    let variable = file.variable("t").unwrap();
    assert!(variable.attribute("units").is_some() && variable.attribute("levels").is_some());

    let deep = NcFile::open(mount.path().join("deep/er.nc")).unwrap();
    assert_eq!(deep.read_variable::<i16>("v").unwrap().iter().copied().collect::<Vec<_>>(), [5]);

    // The same bytes without a mount.
    let printed = icechunkfs(["cat", repo.to_str().unwrap(), "ocean.nc", "--view", "netcdf"]).success();
    assert!(printed == fs::read(mount.path().join("ocean.nc")).unwrap());
    // Read-only, even for root.
    let denied = fs::OpenOptions::new().write(true).open(mount.path().join("ocean.nc")).unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::metadata(mount.path().join("ocean.nc")).unwrap().permissions().mode() & 0o222, 0o200);
}

#[test]
fn a_damaged_chunk_spoils_its_own_bytes_only() {
    let directory = tempfile::tempdir().unwrap();
    let compressed = json!({"codecs": ["bytes", "zstd"]});
    // A frame of 2 GiB of zeros, which the array's chunks do not have.
    let bomb = zstd(&vec![0; 64 << 20]);
    let wrong_length = zstd(&int16s(&[1]));
    let files = [
        ("zarr.json", group(&json!({}))),
        ("t/zarr.json", array("int16", &[8], &[2], &compressed)),
        ("t/c/0", zstd(&int16s(&[1, 2]))),
        ("t/c/1", b"no zstd frame".to_vec()),
        ("t/c/2", wrong_length),
        ("t/c/3", bomb),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=48M"]);
    let path = mount.path().join("ocean.nc");
    let size = fs::metadata(&path).unwrap().len();
    let file = fs::File::open(&path).unwrap();
    // Each of the four chunks has a page of its own, at the end of the file.
    let mut read = [0_u8; 4];
    for (chunk, is_readable) in [(0, true), (1, false), (2, false), (3, false)] {
        let result = file.read_exact_at(&mut read, size - (4 - chunk) * 4096);
        if is_readable {
            assert_eq!((result.is_ok(), read), (true, [1, 0, 2, 0]))
        } else {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO), "{chunk}")
        }
    }
    let printed = icechunkfs(["cat", repo.to_str().unwrap(), "ocean.nc", "--view", "netcdf"]).failure();
    assert!(printed.contains("t/c/1"), "{printed}");
    // The mount goes on.
    assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(libc::EIO));
    let mut head = [0_u8; 8];
    file.read_exact_at(&mut head, 0).unwrap();
    assert_eq!(&head, b"\x89HDF\r\n\x1a\n");
}

#[test]
fn a_file_takes_the_blocks_of_its_stored_chunks() {
    let directory = tempfile::tempdir().unwrap();
    let raw = json!({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]});
    let chunk = vec![1; 64 << 10];
    let files = [
        ("zarr.json", group(&json!({}))),
        // 2^40 elements, one chunk of which is stored.
        ("sparse/zarr.json", array("uint8", &[1 << 20, 1 << 20], &[256, 256], &raw)),
        ("sparse/c/7/9", chunk.clone()),
        ("whole/zarr.json", group(&json!({}))),
        ("whole/full/zarr.json", array("uint8", &[1 << 16], &[1 << 16], &raw)),
        ("whole/full/c/0", chunk),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    for (base, name) in [("", "ocean.nc"), ("", "whole.nc"), (".icechunk/view/netcdf", "ocean.nc")] {
        let attributes = fs::metadata(mount.path().join(base).join(name)).unwrap();
        let allocated = attributes.blocks() * 512;
        // The header has less than 8 KiB.
        assert!((64 << 10..72 << 10).contains(&allocated), "{base}/{name}: {allocated}");
        assert!(attributes.len() > if name == "ocean.nc" { 1 << 40 } else { 1 << 16 }, "{name}: {}", attributes.len());
    }
}

#[test]
fn a_read_only_mount_lists_the_failures_of_reads() {
    let directory = tempfile::tempdir().unwrap();
    let mut files = vec![("zarr.json", group(&json!({})))];
    let compressed = array("int16", &[2], &[2], &json!({"codecs": ["bytes", "zstd"]}));
    for (metadata, chunk) in [("a/zarr.json", "a/c/0"), ("b/zarr.json", "b/c/0")] {
        files.extend([(metadata, compressed.clone()), (chunk, b"no zstd frame".to_vec())]);
    }
    let repo = import(directory.path(), &files);
    for io in ["auto", "cached"] {
        let mount = Mount::new(&repo, &["--view", "netcdf", "--io", io]);
        let errors = mount.path().join(".icechunk/errors");
        assert_eq!(fs::read_to_string(&errors).unwrap(), "", "{io}");
        // Reading ends at the first chunk.
        fs::read(mount.path().join("ocean.nc")).unwrap_err();
        let first = fs::read_to_string(&errors).unwrap();
        assert!(first.contains("read: /ocean.nc: ") && first.contains("a/c/0"), "{io}: {first}");
        // It goes on, with a failure of another tree.
        fs::read(mount.path().join(".icechunk/view/netcdf/ocean.nc")).unwrap_err();
        let all = fs::read_to_string(&errors).unwrap();
        let (before, after) = all.split_at(first.len());
        assert!(before == first && after.contains("a/c/0") && !after.contains('\0'), "{io}: {all:?}");
        assert_eq!(fs::metadata(&errors).unwrap().len(), all.len() as u64);
        assert_eq!(fs::metadata(&errors).unwrap().permissions().mode() & 0o777, 0o600);
        let listed: Vec<_> =
            fs::read_dir(mount.path().join(".icechunk")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(listed.iter().any(|name| name == "errors"), "{listed:?}");
    }
}

#[test]
fn an_array_that_cannot_be_shown_is_reported_and_spoils_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let bad = [
        ("huge", array("int16", &[1 << 60, 1 << 60], &[1 << 40, 1 << 40], &json!({}))),
        ("codec", array("int16", &[2], &[2], &json!({"codecs": ["bytes", "unheard-of"]}))),
        ("type", array("int4", &[2], &[2], &json!({}))),
        ("fill", array("int16", &[2], &[2], &json!({"fill_value": "x"}))),
        ("zero", array("int16", &[0], &[2], &json!({}))),
        ("rank", array("int16", &[1; 33], &[1; 33], &json!({}))),
        ("x".repeat(250).leak() as &str, array("int16", &[2], &[2], &json!({"attributes": {"y".repeat(300): 1}}))),
    ];
    let mut files = vec![
        ("zarr.json".to_owned(), group(&json!({}))),
        ("good/zarr.json".to_owned(), array("int16", &[2], &[2], &json!({}))),
    ];
    files.push(("good/c/0".to_owned(), int16s(&[3, 4])));
    files.extend(bad.iter().map(|(name, document)| (format!("{name}/zarr.json"), document.clone())));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    assert_eq!(file.read_variable::<i16>("good").unwrap().iter().copied().collect::<Vec<_>>(), [3, 4]);
    let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    for name in ["huge", "codec", "type", "fill", "zero", "rank"] {
        assert!(report.contains(&format!("/{name}\tleft out\t")), "{name} is not in\n{report}");
        assert!(file.variable(name).is_err(), "{name}");
    }
    assert!(report.contains("@yyy"));
}

#[test]
fn a_group_whose_file_would_have_too_long_a_name_spoils_no_listing() {
    let directory = tempfile::tempdir().unwrap();
    let long = "g".repeat(254);
    let document = array("int16", &[1], &[1], &json!({}));
    let files = [
        ("zarr.json".to_owned(), group(&json!({}))),
        (format!("{long}/zarr.json"), group(&json!({}))),
        (format!("{long}/v/zarr.json"), document.clone()),
        ("short/zarr.json".to_owned(), group(&json!({}))),
        ("short/v/zarr.json".to_owned(), document),
    ];
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let names: Vec<_> = fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["short.nc"]);
    let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    assert!(report.contains(&format!("/{long}.nc\tleft out\t")), "{report}");
}

/// Returns the most memory that the daemon of a mount had, in KiB.
pub(super) fn peak_memory(mount: &Mount) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mount.daemon())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the command that runs a Python script of this directory.
pub(super) fn python(script: &str) -> Command {
    let mut command = interpreter();
    command.arg(project("tests/views").join(script));
    command
}

/// Runs a comparison by a script, which must find no difference, and returns how much it has
/// compared: the first word of its last line.
pub(super) fn compared(command: &mut Command, what: &str) -> usize {
    let checked = run(command);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{what}: {text}{}", checked.stderr);
    text.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Returns the command that runs Python statements.
pub(super) fn python_code(code: &str) -> Command {
    let mut command = interpreter();
    command.args(["-c", code]);
    command
}

fn interpreter() -> Command {
    let python = project("target/venv/bin/python");
    assert!(python.exists(), "target/venv is missing: run `scripts/setup --python`");
    Command::new(python)
}

#[test]
fn programs_read_what_zarr_python_reads() {
    let directory = tempfile::tempdir().unwrap();
    let repo = directory.path().join("types");
    run(python("netcdf_write.py").arg(&repo)).success();
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let compared = run(python("netcdf_compare.py").arg(&repo).arg(mount.path()));
    let text = String::from_utf8_lossy(&compared.stdout).into_owned();
    assert!(compared.status.success(), "{text}{}", compared.stderr);
    let count: usize = text.lines().last().unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!(count > 60, "{text}");
}
