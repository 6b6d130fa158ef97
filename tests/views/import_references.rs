//! `icechunkfs import` of files of kerchunk references: the elements that other readers of the
//! references read, copied and virtual, and no file that the user does not allow.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::import_virtual::{ALL, mount, reference_with};
use super::netcdf::{compared, python};
use crate::common::damage::mutate;
use crate::common::lengths::{length, number};
use crate::common::random::Random;
use crate::common::{Output, copy_tree, icechunkfs, project, read_files, run, run_on};

/// Files in the ordinary run, and in a full one.
const QUICK: usize = 10;
const FULL: usize = 200;

fn import(references: &Path, repo: &Path, options: &[&str]) -> Output {
    icechunkfs([&["import", references.to_str().unwrap(), repo.to_str().unwrap()], options].concat())
}

#[test]
fn references_are_what_zarr_python_reads_of_them() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("files");
    fs::create_dir(&directory).unwrap();
    let files = length("ICECHUNKFS_IMPORTS", QUICK, FULL);
    let words = [number("ICECHUNKFS_SEED", 1).to_string(), files.to_string()];
    run(python("import_references.py").arg("make").arg(&directory).args(words)).success();
    for options in [&[][..], &ALL] {
        let repo = place.path().join(format!("repo{}", options.len()));
        let mut referred = 0;
        for number in 0..files {
            let [json, parquet] = ["json", "parq"].map(|ending| directory.join(format!("{number}.{ending}")));
            let references = if parquet.exists() { parquet } else { json };
            let path = format!("r{number}");
            let report = import(&references, &repo, &[options, &["--path", &path, "--json"]].concat()).json();
            referred += report["chunks_virtual"].as_u64().unwrap();
            fs::write(references.with_extension("report"), report.to_string()).unwrap();
        }
        assert_eq!(referred > files as u64, !options.is_empty(), "{referred}");
        run_on(&repo, &["verify", "--chunks", "--allow-virtual", directory.to_str().unwrap()]).success();
        let mounted = mount(&repo, &directory);
        let mut compare = python("import_references.py");
        let all = compared(compare.arg("compare").args([&directory, &mounted.path()]), &format!("{options:?}"));
        assert!(all > 3 * files, "{all}");
        let prefix = format!("file://{}/", directory.display());
        let credentials = icechunk::config::Credentials::LocalFileSystemAccess;
        assert_eq!(reference_with(&repo, prefix, credentials).unwrap(), read_files(&mounted.path()));
    }
}

/// Two chunks of four bytes in a file beside the references.
struct References {
    place: tempfile::TempDir,
}

impl References {
    fn new() -> Self {
        let references = References { place: tempfile::tempdir().unwrap() };
        fs::create_dir_all(references.at("here")).unwrap();
        fs::create_dir_all(references.at("elsewhere")).unwrap();
        fs::write(references.at("here/data"), b"abcdefgh").unwrap();
        fs::write(references.at("elsewhere/secret"), b"ABCDEFGH").unwrap();
        references
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    /// Imports references to two chunks, the second one as `second` says.
    fn import(&self, second: &Value, options: &[&str]) -> Output {
        let array = json!({"zarr_format": 2, "shape": [8], "chunks": [4], "dtype": "|u1", "compressor": null,
            "fill_value": 0, "order": "C", "filters": null});
        let refs = json!({".zgroup": {"zarr_format": 2}, "a/.zarray": array, "a/0": ["data", 0, 4], "a/1": second});
        fs::write(self.at("here/refs.json"), json!({"version": 1, "refs": refs}).to_string()).unwrap();
        let _ = fs::remove_dir_all(self.at("repo"));
        import(&self.at("here/refs.json"), &self.at("repo"), options)
    }

    fn second_chunk(&self) -> Vec<u8> {
        run_on(self.at("repo"), &["cat", "a/c/1", "--allow-virtual", self.place.path().to_str().unwrap()]).success()
    }
}

#[test]
fn references_read_only_what_the_user_allows() {
    let references = References::new();
    references.import(&json!(["data", 4, 4]), &[]).success();
    assert_eq!(references.second_chunk(), b"efgh");
    let secret = references.at("elsewhere/secret").to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(&secret, references.at("here/link")).unwrap();
    for named in [&secret, "../elsewhere/secret", "link", &format!("file://{secret}")] {
        let second = json!([named, 0, 4]);
        for options in [&[][..], &ALL] {
            let why = references.import(&second, options).failure();
            assert!(why.contains("not in the directory of the references"), "{named}: {why}");
            assert!(!references.at("repo").exists());
            let allowed = references.at("elsewhere");
            references.import(&second, &[options, &["--allow-virtual", allowed.to_str().unwrap()]].concat()).success();
            assert_eq!(references.second_chunk(), b"ABCD", "{named}");
        }
    }
    let why = references.import(&json!(["http://127.0.0.1:9/secret", 0, 4]), &[]).failure();
    assert!(why.contains("--allow-virtual"), "{why}");
}

#[test]
fn references_that_lead_nowhere_are_refused_and_nothing_is_imported() {
    let references = References::new();
    for (second, why) in [
        (json!(["data", 5, 4]), "has 8 bytes"),
        (json!(["data", 4, 0]), "has 8 bytes"),
        (json!(["data", u64::MAX, 2]), "range of no file"),
        (json!(["gone", 0, 4]), "gone"),
        (json!("base64:?"), "base64"),
        (json!(7), "not a file of kerchunk references"),
    ] {
        let refused = references.import(&second, &[]).failure();
        assert!(refused.contains(why) && refused.contains("refs.json"), "{second}: {refused}");
        assert!(!references.at("repo").exists(), "{second}");
    }
    // A changed file is an error, and not other numbers.
    references.import(&json!(["data", 4, 4]), &ALL).success();
    assert_eq!(references.second_chunk(), b"efgh");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    fs::write(references.at("here/data"), b"ABCDEFGH").unwrap();
    let words = ["cat", "a/c/1", "--allow-virtual", references.place.path().to_str().unwrap()];
    run_on(references.at("repo"), &words).failure();
    let words = ["--append-dim", "x"];
    assert!(references.import(&json!(["data", 4, 4]), &words).failure().contains("only those are appended"));
}

/// Programs that write references in Parquet.
const WRITERS: [&str; 2] = ["fastparquet", "pyarrow"];

/// References in Parquet of each program, beside the file that they name.
fn in_parquet() -> References {
    let references = References { place: tempfile::tempdir().unwrap() };
    copy_tree(&project("tests/fixtures/references"), references.place.path());
    references
}

#[test]
fn references_in_parquet_are_rows_in_the_order_of_the_grid() {
    let references = in_parquet();
    for writer in WRITERS {
        let repo = references.at(writer);
        import(&references.at(&format!("{writer}.parq")), &repo, &[]).success();
        let read = |key: &str| run_on(&repo, &["cat", key]);
        let found = ["a/c/0/0", "a/c/0/1", "a/c/1/0", "a/c/1/1", "a/c/1/2", "s/c"].map(|key| read(key).success());
        assert_eq!(found, [&b"c"[..], b"x", b"h", b"\0", b"a", b"abcdefgh"], "{writer}");
        // A row without anything is a chunk that is not there.
        read("a/c/0/2").failure();
        assert_eq!(read("zarr.json").json()["attributes"], json!({"limit": "-Infinity", "text": "NaN"}), "{writer}");
    }
}

#[test]
fn references_in_parquet_that_lead_nowhere_are_refused() {
    let references = in_parquet();
    let directory = references.at("pyarrow.parq");
    let refused = |why: &str| {
        let said = import(&directory, &references.at("repo"), &[]).failure();
        assert!(said.contains(why) && said.contains("pyarrow.parq"), "{said}");
        assert!(!references.at("repo").exists());
    };
    fs::write(references.at("data"), b"abcdefg").unwrap();
    refused("data has 7 bytes");
    fs::rename(references.at("data"), references.at("other")).unwrap();
    refused("data");
    fs::rename(directory.join("a/refs.1.parq"), directory.join("a/refs.2.parq")).unwrap();
    refused("a/refs.2.parq: it has no kerchunk references: row 0 is of a chunk that the array lacks");
    fs::write(directory.join("a/refs.1.parq"), b"<html>").unwrap();
    refused("a/refs.1.parq: it is not a file of references in Parquet");
    fs::remove_file(directory.join("a/refs.1.parq")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", directory.join("a/refs.1.parq")).unwrap();
    refused("is not a file");
    fs::write(directory.join(".zmetadata"), r#"{"record_size": 4}"#).unwrap();
    refused("no kerchunk references");
}

/// The reader of Parquet was not made for hostile files: whatever it does, the import lives.
#[test]
fn damaged_parquet_ends_no_import_but_its_own() {
    let references = in_parquet();
    let mut random = Random::new(number("ICECHUNKFS_SEED", 1) as u64);
    let [mut read, mut refused] = [0, 0];
    for number in 0..length("ICECHUNKFS_DAMAGED_REFERENCES", 40, 1000) {
        let directory = references.at(&format!("{}.parq", WRITERS[number % WRITERS.len()]));
        let file = directory.join("a/refs.0.parq");
        let whole = fs::read(&file).unwrap();
        fs::write(&file, mutate(&whole, &mut random)).unwrap();
        let _ = fs::remove_dir_all(references.at("repo"));
        let output = import(&directory, &references.at("repo"), &[]);
        fs::write(&file, whole).unwrap();
        if output.status.success() {
            read += 1;
            run_on(references.at("repo"), &["verify", "--chunks"]).success();
        } else {
            refused += 1;
            let why = output.failure();
            assert!(why.starts_with("icechunkfs: ") && why.contains(".parq"), "{why}");
            assert!(!references.at("repo").exists(), "{why}");
        }
    }
    assert!(read > 0 && refused > read, "{read} {refused}");
}
