//! The Zarr version 2 view of hostile repositories: bad arrays are left out, each with a reason,
//! and spoil no others.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use icechunk::RepositoryConfig;
use icechunk::format::format_constants::SpecVersionBin;
use serde_json::{Value, json};

use crate::common::{Mount, lab, read_files};

fn array(changes: &Value) -> Vec<u8> {
    let mut document = json!({
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int16", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "attributes": {},
    });
    for (name, value) in changes.as_object().unwrap() {
        document[name] = value.clone();
    }
    document.to_string().into_bytes()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates a repository with `files` by the reference.
pub fn create(place: &Path, files: &[(String, Vec<u8>)]) {
    runtime().block_on(async {
        lab::create(place, SpecVersionBin::V2, RepositoryConfig::default()).await;
        let pairs: Vec<(&str, &[u8])> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.as_slice())).collect();
        lab::set(place, &pairs, "files").await;
    });
}

fn report(mount: &Mount) -> BTreeMap<String, (String, String)> {
    let text = std::fs::read_to_string(mount.path().join(".icechunk/zarr2")).unwrap();
    let lines = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    lines.map(|parts| (parts[0].clone(), (parts[1].clone(), parts[2].clone()))).collect()
}

#[test]
fn bad_arrays_are_left_out_with_a_reason() {
    let deep = (0..100).fold(json!(1), |value, _| json!([value]));
    let bad = [
        ("type_unknown", json!({"data_type": "bfloat16"})),
        ("type_object", json!({"data_type": {"name": "x", "configuration": {"y": [1, 2]}}})),
        ("type_long", json!({"data_type": "x".repeat(100_000)})),
        ("type_raw_huge", json!({"data_type": "r18446744073709551608", "fill_value": [0]})),
        (
            "type_time",
            json!({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "]", "scale_factor": 1}}}),
        ),
        ("fill_text", json!({"fill_value": "\u{1b}[2J\n\u{202e}"})),
        ("fill_range", json!({"fill_value": 40000})),
        ("fill_list", json!({"fill_value": [1, 2]})),
        (
            "codec_unknown",
            json!({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "\n"}]}),
        ),
        (
            "codec_level",
            json!({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1_000_000}}]}),
        ),
        (
            "codec_setting",
            json!({"codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1, "os": "system"}}]}),
        ),
        (
            "codec_dtype",
            json!({"codecs": [{"name": "numcodecs.delta", "configuration": {"dtype": "O"}}, {"name": "bytes", "configuration": {"endian": "little"}}]}),
        ),
        ("codec_none", json!({"codecs": []})),
        (
            "sharded",
            json!({"codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]}),
        ),
        (
            "suffix",
            json!({"chunk_key_encoding": {"name": "suffix", "configuration": {"suffix": ".x", "base_encoding": {"name": "v2"}}}}),
        ),
        ("member", json!({"unknown": {"must_understand": true}})),
        (
            "rank64",
            json!({"shape": vec![1; 64], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": vec![1; 64]}}}),
        ),
    ];
    let mut files = vec![("zarr.json".to_owned(), lab::GROUP.as_bytes().to_vec())];
    for (name, changes) in &bad {
        files.push((format!("{name}/zarr.json"), array(changes)));
    }
    let good = [
        ("good".to_owned(), json!({})),
        ("deep_attribute".to_owned(), json!({"attributes": {"deep": deep, "units": "m"}})),
        ("\u{5e9}\u{5dc}\u{5d5}\u{5dd} \u{1f600}".to_owned(), json!({"attributes": {"\u{4e2d}": "\u{6587}"}})),
        ("-".to_owned(), json!({"fill_value": 7})),
        (
            "huge".to_owned(),
            json!({"shape": [1_000_000_000_000_u64], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1000]}}}),
        ),
    ];
    for (name, changes) in &good {
        files.push((format!("{name}/zarr.json"), array(changes)));
        files.push((format!("{name}/c/0"), vec![1, 0, 2, 0]));
    }
    let place = tempfile::tempdir().unwrap();
    create(place.path(), &files);
    let mount = Mount::new(place.path(), &["--view", "zarr2"]);
    let report = report(&mount);
    let shown = read_files(&mount.path());
    let metadata: Value = serde_json::from_slice(&shown[".zmetadata"]).unwrap();
    for (name, _) in &bad {
        let (deed, reason) = &report[&format!("/{name}")];
        assert_eq!(deed, "left out", "{name}");
        assert!(!reason.is_empty() && reason.len() < 400 && !reason.contains('\u{1b}'), "{name}: {reason}");
        assert!(!mount.path().join(name).exists(), "{name}");
        assert!(metadata["metadata"].get(format!("{name}/.zarray")).is_none(), "{name}");
    }
    for (name, _) in &good {
        assert_eq!(shown[&format!("{name}/0")], [1, 0, 2, 0], "{name}");
        let zarray: Value = serde_json::from_slice(&shown[&format!("{name}/.zarray")]).unwrap();
        assert_eq!((&zarray["dtype"], &metadata["metadata"][format!("{name}/.zarray")]), (&json!("<i2"), &zarray));
        // One of at least two chunks exists: the fill value counts.
        assert!(zarray["fill_value"].is_number(), "{name}");
    }
    let zattrs: Value = serde_json::from_slice(&shown["deep_attribute/.zattrs"]).unwrap();
    assert_eq!(zattrs, json!({"units": "m"}));
    assert_eq!(report["/deep_attribute"].0, "attribute left out");
    assert_eq!(report.len(), bad.len() + 1, "{report:?}");
    let warnings = mount.log().lines().filter(|line| line.contains("leaves out")).count();
    assert_eq!(warnings, 1, "{}", mount.log());
}

#[test]
fn documents_and_chunks_win_over_nodes_with_their_names() {
    let group = lab::GROUP.as_bytes().to_vec();
    let groups =
        ["", ".zarray/", ".zgroup/", "g/", "g/.zattrs/", "g/.zattrs/below/", "g/zarr.json/", ".icechunk/", "g/0/"];
    let mut files: Vec<_> = groups.map(|group_path| (format!("{group_path}zarr.json"), group.clone())).into();
    files.retain(|(key, _)| !key.starts_with("g/zarr.json"));
    files.push(("g/a/zarr.json".to_owned(), array(&json!({}))));
    files.push(("g/a/c/0".to_owned(), vec![1, 0, 2, 0]));
    let place = tempfile::tempdir().unwrap();
    create(place.path(), &files);
    let mount = Mount::new(place.path(), &["--view", "zarr2"]);
    let shown: Vec<String> = read_files(&mount.path()).into_keys().collect();
    let expected = [
        ".zattrs",
        ".zgroup",
        ".zmetadata",
        "g/.zattrs",
        "g/.zgroup",
        "g/0/.zattrs",
        "g/0/.zgroup",
        "g/a/.zarray",
        "g/a/.zattrs",
        "g/a/0",
    ];
    assert_eq!(shown, expected);
    let report = report(&mount);
    let paths: Vec<&str> = report.keys().map(String::as_str).collect();
    assert_eq!(paths, ["/.icechunk", "/.zarray", "/.zgroup", "/g/.zattrs", "/g/.zattrs/below"]);
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn a_view_of_many_arrays_answers_soon_and_within_its_memory() {
    const ARRAYS: usize = 20_000;
    let place = tempfile::tempdir().unwrap();
    let mut files = vec![("zarr.json".to_owned(), lab::GROUP.as_bytes().to_vec())];
    files.extend((0..ARRAYS).map(|n| {
        let bad = if n % 10 == 0 { json!({"data_type": "bfloat16"}) } else { json!({"attributes": {"n": n}}) };
        (format!("g{}/a{n}/zarr.json", n % 7), array(&bad))
    }));
    create(place.path(), &files);
    let mount = Mount::new(place.path(), &["--view", "zarr2"]);
    let begin = Instant::now();
    let listed: usize =
        (0..7).map(|g| std::fs::read_dir(mount.path().join(format!("g{g}"))).unwrap().count() - 2).sum();
    assert_eq!(listed, ARRAYS / 10 * 9);
    let metadata: Value = serde_json::from_slice(&std::fs::read(mount.path().join(".zmetadata")).unwrap()).unwrap();
    assert_eq!(metadata["metadata"].as_object().unwrap().len(), 2 * (ARRAYS / 10 * 9 + 7 + 1));
    assert_eq!(report(&mount).len(), ARRAYS / 10);
    println!("{ARRAYS} arrays: {:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    let status = std::fs::read_to_string(format!("/proc/{}/status", mount.daemon())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    println!("at most {peak} KiB of memory");
    assert!(peak < 300 << 10, "{peak} KiB");
}
