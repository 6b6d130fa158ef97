//! Commands that read virtual chunks without a mount.

use std::collections::BTreeMap;

use super::mounts::with_shard;
use super::web::{INNER, TAG, Web, content};
use crate::common::made::{reference, repository};
use crate::common::moto::plain;
use crate::common::{Output, run};

/// `verify --chunks` checks objects with virtual chunks where it may, once for each, and names the
/// problem and the object.
#[test]
fn verify_checks_virtual_objects_where_allowed() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let references = [
        reference(web.url("data/a"), 0, 10),
        reference(web.url("data/a"), 500, 10),
        reference(web.url("data/b"), 0, 10).tagged(TAG),
        reference(web.url("data/c"), 0, 10).tagged("\"another\""),
        reference(web.url("gone"), 0, 10),
        reference(web.url("broken"), 0, 10),
        reference(web.url("data/d"), 1 << 20, 10),
        reference("s3://elsewhere/x", 0, 10),
    ];
    let repository = repository(&directory.path().join("repo"), Vec::new(), &references);
    let verify = |words: &[&str]| -> Output {
        run(&mut plain(&[&["verify", repository.to_str().unwrap(), "--json", "--timeout", "1"], words].concat()))
    };
    let rules = |output: &Output| -> BTreeMap<String, Vec<u64>> {
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut rules: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        let findings = report["findings"].as_array().unwrap().iter();
        for finding in findings.filter(|finding| finding["rule"].as_str().unwrap().starts_with("virtual")) {
            let chunks = finding["chunks"].as_array().unwrap().iter().map(|coords| coords[0].as_u64().unwrap());
            rules.entry(finding["rule"].as_str().unwrap().to_owned()).or_default().extend(chunks);
        }
        rules.values_mut().for_each(|chunks| chunks.sort_unstable());
        rules
    };
    let not_checked = |words: &[&str]| {
        let report: serde_json::Value = serde_json::from_slice(&verify(words).stdout).unwrap();
        report["checked"]["virtual_chunks_not_checked"].as_u64().unwrap()
    };
    // A server without permission gets no request.
    assert_eq!((not_checked(&[]), not_checked(&["--chunks"])), (0, 8));
    assert!(rules(&verify(&["--chunks"])).is_empty() && rules(&verify(&["--allow-virtual", &web.url("")])).is_empty());
    assert!(web.take().is_empty());
    let found = verify(&["--chunks", "--allow-virtual", &web.url("")]);
    let asked = web.take().iter().filter(|request| request.target == "/data/a").count();
    assert_eq!(asked, 1, "once for each object");
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(report["checked"]["virtual_objects"], 2);
    assert_eq!(report["checked"]["virtual_chunks_not_checked"], 1);
    let expected = [("virtual-chunk", vec![3, 4, 6]), ("virtual-not-reached", vec![5])];
    assert_eq!(rules(&found), expected.map(|(rule, chunks)| (rule.to_owned(), chunks)).into());
    assert_eq!(found.status.code(), Some(4));
}

/// An export reads allowed virtual chunks, neighbors together.
#[test]
fn an_export_has_the_bytes_of_virtual_chunks() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let references: Vec<_> = (0..200).map(|n| reference(web.url("well"), n * 1000, 1000)).collect();
    let repository = repository(&directory.path().join("repo"), Vec::new(), &references);
    let export = |name: &str, words: &[&str]| {
        let place = directory.path().join(name);
        let words = [&["export", repository.to_str().unwrap(), place.to_str().unwrap()], words].concat();
        (run(&mut plain(&words)), place)
    };
    assert!(export("denied", &[]).0.failure().contains("--allow-virtual"));
    let (output, without) = export("without", &["--skip-unreadable", "--json"]);
    assert_eq!(output.json()["left_out_count"], 200);
    assert!(without.join("v/zarr.json").exists() && !without.join("v/c/0").exists());
    assert!(web.take().is_empty());
    let (output, with) = export("with", &["--allow-virtual", &web.url("")]);
    output.success();
    for n in 0..200 {
        assert_eq!(std::fs::read(with.join(format!("v/c/{n}"))).unwrap(), content(n * 1000, 1000), "{n}");
    }
    let requests = web.take().len();
    assert!(requests <= 8, "{requests} requests for 200 neighbors");
}

#[test]
fn inner_chunks_of_virtual_shards_are_listed() {
    let web = Web::new("");
    let directory = tempfile::tempdir().unwrap();
    let repository = with_shard(&web, &directory.path().join("repo"));
    let words = ["ls", repository.to_str().unwrap(), "v", "--shards", "--json"];
    assert!(run(&mut plain(&words)).failure().contains("--allow-virtual"));
    let listed = run(&mut plain(&[&words[..], &["--allow-virtual", &web.url("shard")]].concat())).json();
    assert!(listed.to_string().matches("offset").count() >= INNER.0, "{listed}");
    // As files, too.
    let words = ["ls", repository.to_str().unwrap(), "-r", "--unshard", "--json"];
    let sizes = |words: &[&str]| {
        let rows = run(&mut plain(words)).json();
        let files = rows.as_array().unwrap().iter().filter(|row| row["path"].as_str().unwrap().contains("/c/"));
        files.filter(|row| row["bytes"].is_u64()).count()
    };
    assert_eq!(sizes(&words), 0);
    assert!(sizes(&[&words[..], &["--allow-virtual", &web.url("shard")]].concat()) >= INNER.0);
}
