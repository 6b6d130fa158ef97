//! `icechunkfs import` of files of kerchunk references: the elements that other readers of the
//! references read, copied and virtual, and no file that the user does not allow.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::import_virtual::{ALL, mount, reference_with};
use super::netcdf::{compared, python};
use crate::common::lengths::{length, number};
use crate::common::{Output, icechunkfs, read_files, run, run_on};

/// Files in the ordinary run, and in a full one.
const QUICK: usize = 20;
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
            let references = directory.join(format!("{number}.json"));
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
