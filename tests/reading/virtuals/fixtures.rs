//! The repositories of both versions that have all kinds of references, compared with the reference
//! implementation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::moto::{self, Server, plain};
use crate::common::{Fixture, FixtureSet, Mount, read_files, run, sha256};

const FILES: &str = "file:///icechunkfs-virtual/";
const BUCKET: &str = "s3://icechunkfs-virtual/data/";

fn sources() -> Option<(FixtureSet, PathBuf)> {
    let set = FixtureSet::shared()?;
    let sources = set.expected_path("x").parent()?.parent()?.join("virtual-src");
    Some((set, sources))
}

/// Returns the files in a bucket, below `data/`.
fn served(server: &Server, sources: &Path) {
    moto::request(server.port, "PUT", "/icechunkfs-virtual", b"");
    for (key, bytes) in read_files(sources) {
        if !key.contains(['#', '?']) {
            moto::request(server.port, "PUT", &format!("/icechunkfs-virtual/data/{key}"), &bytes);
        }
    }
}

/// Checks every key of every snapshot: its bytes, or the right error. Returns the number of keys
/// and errors.
fn check(fixture: &Fixture, mount: impl Fn(&str) -> Mount) -> (usize, usize) {
    let mut keys = 0;
    let mut failures = 0;
    for (id, snapshot) in fixture.expected["snapshots"].as_object().unwrap() {
        let mount = mount(id);
        let errors = snapshot.get("errors").and_then(Value::as_object).cloned().unwrap_or_default();
        let readable = snapshot["keys"].as_object().unwrap();
        let unreadable = errors.keys().filter(|key| !readable.contains_key(*key)).map(|key| (key, &Value::Null));
        for (key, expected) in readable.iter().chain(unreadable) {
            let found = std::fs::read(mount.path().join(key));
            keys += 1;
            let what = format!("{} {id} {key}", fixture.name);
            if errors.contains_key(key) {
                failures += 1;
                let errno = found.expect_err(&what).raw_os_error();
                // Not allowed, or changed.
                let expected = if key.starts_with("other/unknown/") { libc::EACCES } else { libc::EIO };
                assert_eq!(errno, Some(expected), "{what}");
                continue;
            }
            assert_eq!(sha256(&found.expect(&what)), expected[1], "{what}");
        }
        if !errors.is_empty() {
            let log = mount.log();
            for told in ["has changed", "is gone", "too short", "--allow-virtual 's3://icechunkfs-no-such-bucket/x/'"] {
                assert!(log.contains(told), "{told}: {log}");
            }
        }
    }
    (keys, failures)
}

#[test]
fn every_virtual_chunk_that_the_reference_reads_is_read() {
    let Some((set, sources)) = sources() else { return };
    for name in ["v2-virtual", "v1-virtual"] {
        let fixture = set.get(name);
        let files = format!("{FILES}={}", sources.display());
        let bucket = format!("{BUCKET}={}", sources.display());
        let counts = check(&fixture, |id| {
            Mount::new(&fixture.repository, &["--snapshot", id, "--virtual-map", &files, "--virtual-map", &bucket])
        });
        assert!(counts.0 > 6000 && counts.1 == 12, "{counts:?}");
    }
}

/// The same from a bucket, with the options in mount(8)'s form.
#[test]
fn virtual_chunks_in_buckets_are_read_with_mount_options() {
    let (Some((set, sources)), Some(server)) = (sources(), moto::s3()) else { return };
    served(&server, &sources);
    for name in ["v2-virtual", "v1-virtual"] {
        let fixture = set.get(name);
        let tip = fixture.expected["branches"]["main"].as_str().unwrap().to_owned();
        let only = Fixture {
            expected: serde_json::json!({"snapshots": {&tip: fixture.expected["snapshots"][&tip]}}),
            name: fixture.name.clone(),
            repository: fixture.repository.clone(),
        };
        let options = format!("ro,allow_virtual={BUCKET},virtual_map={FILES}={}", sources.display());
        check(&only, |_| moto::mount(server.port, fixture.repository.to_str().unwrap(), &["-o", &options]));
    }
}

/// Nothing is read without permission, and the message names the option.
#[test]
fn virtual_chunks_without_permission_are_refused() {
    let Some((set, sources)) = sources() else { return };
    for name in ["v2-virtual", "v1-virtual"] {
        let fixture = set.get(name);
        let repository = fixture.repository.to_str().unwrap();
        let tip = fixture.expected["branches"]["main"].as_str().unwrap();
        let snapshot = &fixture.expected["snapshots"][tip];
        let mut keys: Vec<&String> = snapshot["keys"].as_object().unwrap().keys().collect();
        keys.extend(snapshot["errors"].as_object().unwrap().keys());
        keys.sort();
        keys.dedup();
        let mount = Mount::new(&fixture.repository, &["--read-only"]);
        let mut denied = BTreeMap::new();
        for key in keys {
            // Listings make no request.
            assert!(mount.path().join(key).metadata().is_ok(), "{key}");
            if let Err(error) = std::fs::read(mount.path().join(key)) {
                assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{key}");
                *denied.entry(key.split('/').next().unwrap().to_owned()).or_insert(0) += 1;
            }
        }
        assert!(
            denied["many"] == 2000 && denied["raw"] == 6 && denied["s3"] == 4 && denied["other"] == 6,
            "{denied:?}"
        );
        let output = run(&mut plain(&["cat", repository, "raw/c/1"])).failure();
        let option = output.split("--allow-virtual '").nth(1).unwrap().split('\'').next().unwrap();
        assert_eq!(option, FILES, "{output}");
        let map = output.split("--virtual-map '").nth(1).unwrap().split("=PLACE").next().unwrap();
        let map = format!("{map}={}", sources.display());
        let bytes = run(&mut plain(&["cat", repository, "raw/c/1", "--virtual-map", &map])).success();
        assert_eq!(bytes, std::fs::read(sources.join("raw.bin")).unwrap()[1032..2056]);
        // A name with the same beginning is another place.
        for wrong in [
            "file:///icechunkfs-virtua",
            "file:///icechunkfs-virtual2",
            "/icechunkfs-virtual/raw",
            "http://icechunkfs-virtual/",
        ] {
            let map = format!(
                "{}={}",
                if wrong.contains("://") { wrong.to_owned() } else { format!("file://{wrong}") },
                sources.display()
            );
            assert!(
                run(&mut plain(&["cat", repository, "raw/c/1", "--virtual-map", &map]))
                    .failure()
                    .contains("no such location")
            );
        }
    }
}
