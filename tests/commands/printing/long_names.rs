//! An array whose chunks have names that no file can have, beside ordinary arrays.

use std::path::{Path, PathBuf};

use icechunk::format::ChunkIndices;
use icechunk::format::format_constants::SpecVersionBin;
use icechunk::format::manifest::ChunkPayload;
use icechunk::format::snapshot::ArrayShape;

use crate::common::lab::{GROUP, array_json, create};
use crate::common::writing::Writable;
use crate::common::{block_on, icechunkfs, read_files};

/// This many coordinates of four digits, joined by dots, have more than 255 characters.
const DIMENSIONS: usize = 60;

fn repository(place: &Path) -> PathBuf {
    block_on(async {
        let repository = create(place, SpecVersionBin::V2, icechunk::RepositoryConfig::default()).await;
        let mut session = repository.writable_session("main").await.unwrap();
        session.add_group("/".try_into().unwrap(), GROUP.to_owned().into()).await.unwrap();
        let suffix = serde_json::json!({"suffix": "x".repeat(300), "base_encoding": {"name": "v2"}});
        let dots = serde_json::json!({"separator": "."});
        for (name, dimensions, encoding, configuration) in
            [("good", 1, "default", &dots), ("long", DIMENSIONS, "default", &dots), ("suffix", 1, "suffix", &suffix)]
        {
            let lengths = vec![5000; dimensions];
            let ones = vec![1; dimensions];
            let mut document: serde_json::Value = serde_json::from_str(&array_json(&lengths, &ones, "")).unwrap();
            document["chunk_key_encoding"] = serde_json::json!({"name": encoding, "configuration": configuration});
            document.as_object_mut().unwrap().remove("dimension_names");
            let shape = ArrayShape::new(vec![(5000, 5000); dimensions]).unwrap();
            let path: icechunk::format::Path = format!("/{name}").as_str().try_into().unwrap();
            session.add_array(path.clone(), shape, None, document.to_string().into()).await.unwrap();
            let payload = Some(ChunkPayload::Inline(vec![7; 10].into()));
            session.set_chunk_ref(path, ChunkIndices(vec![4000; dimensions]), payload).await.unwrap();
        }
        session.commit("long").execute().await.unwrap();
    });
    place.to_owned()
}

#[test]
fn export_skips_an_array_with_too_long_chunk_names() {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"));
    let repo = repository.to_str().unwrap();
    let dest = directory.path().join("out");
    let strict = icechunkfs(["export", repo, directory.path().join("strict").to_str().unwrap()]).failure();
    assert!(strict.contains("/long") && strict.contains("255"), "{strict}");
    let output = icechunkfs(["export", repo, dest.to_str().unwrap(), "--skip-unreadable"]);
    assert!(output.status.success() || output.status.code() == Some(1), "{output:?}");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), output.stderr);
    for array in ["/long", "/suffix"] {
        assert!(said.contains(array), "{said}");
    }
    let files = read_files(&dest);
    assert_eq!(files.get("good/c.4000"), Some(&vec![7; 10]), "{:?}", files.keys());
    assert!(files.contains_key("zarr.json") && files.contains_key("good/zarr.json"));
}

#[test]
fn a_mount_hides_too_long_chunk_names_and_logs_the_array_once() {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"));
    for words in [&["-o", "ro"][..], &[]] {
        let mount = Writable::of(&repository, words);
        let names = |path: &str| -> std::io::Result<Vec<String>> {
            std::fs::read_dir(mount.root().join(path))?
                .map(|entry| Ok(entry?.file_name().into_string().unwrap()))
                .collect()
        };
        let mut all = names("").unwrap();
        all.sort();
        assert_eq!(all, ["good", "long", "suffix", "zarr.json"]);
        for _ in 0..3 {
            for array in ["long", "suffix"] {
                assert_eq!(names(array).unwrap(), ["zarr.json"]);
            }
        }
        assert_eq!(std::fs::read(mount.root().join("good/c.4000")).unwrap(), vec![7; 10]);
        assert!(std::fs::read(mount.root().join("long/zarr.json")).unwrap().len() > 100);
        let log = mount.log();
        for array in ["/long", "/suffix"] {
            let named = log.lines().filter(|line| line.contains(array) && line.contains("255"));
            assert_eq!(named.count(), 1, "{log}");
        }
    }
}

#[test]
fn ls_stats_verify_and_cat_accept_too_long_chunk_names() {
    let directory = tempfile::tempdir().unwrap();
    let repository = repository(&directory.path().join("repo"));
    let repo = repository.to_str().unwrap();
    let rows = icechunkfs(["ls", repo, "-r", "--json"]).json();
    assert_eq!(rows.as_array().unwrap().len(), 4, "{rows}");
    icechunkfs(["stats", repo]).success();
    let verified = icechunkfs(["verify", repo]);
    // Its chunks have names that the Icechunk library does not know: warnings.
    assert_eq!(verified.status.code(), Some(3), "{}", String::from_utf8_lossy(&verified.stdout));
    assert_eq!(icechunkfs(["cat", repo, "good/c.4000"]).success(), vec![7; 10]);
}
