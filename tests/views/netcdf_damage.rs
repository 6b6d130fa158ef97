//! Chunks that cannot be read: each takes nothing else of a NetCDF file with it, in any layout.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Mount, project, run};
use crate::netcdf::{array, group, import, int16s, python_code, zstd};
use crate::netcdf_numbers::has_programs;

/// Bytes of a damaged chunk, which `read_damaged.py` knows, too.
const DAMAGED: &[u8] = b"no zstd frame";

/// Files of a Zarr tree.
type Files = Vec<(String, Vec<u8>)>;

/// Adds an array of one group by itself, with bad bytes for the chunks in `bad` and bytes of
/// `chunk` for the others.
fn add(
    files: &mut Files,
    name: &str,
    document: Vec<u8>,
    chunks: &[&str],
    bad: &[&str],
    chunk: impl Fn(usize) -> Vec<u8>,
) {
    files.push((format!("{name}/zarr.json"), group(&json!({}))));
    files.push((format!("{name}/v/zarr.json"), document));
    for (number, key) in chunks.iter().enumerate() {
        let bytes = if bad.contains(key) { DAMAGED.to_vec() } else { zstd(&chunk(number)) };
        files.push((format!("{name}/v/c/{key}"), bytes));
    }
}

/// Returns `count` numbers that tell the chunk.
fn numbers(number: usize, count: usize) -> Vec<u8> {
    int16s(&vec![number as i16 + 1; count])
}

/// Returns the codecs of compressed numbers.
fn codecs() -> Value {
    json!([{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1, "checksum": false}}])
}

fn keys(counts: &[usize]) -> Vec<String> {
    let mut keys = vec![String::new()];
    for count in counts {
        keys = keys.iter().flat_map(|key| (0..*count).map(move |n| format!("{key}/{n}"))).collect();
    }
    keys.into_iter().map(|key| key[1..].to_owned()).collect()
}

/// Returns a shard of inner chunks with its index at the end.
fn shard(inner: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut index = Vec::new();
    for inner in inner {
        index.extend([bytes.len() as u64, inner.len() as u64].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(inner);
    }
    [bytes, index].concat()
}

/// Returns arrays of each layout, in which one chunk is damaged.
fn layouts() -> Files {
    let mut files = vec![("zarr.json".to_owned(), group(&json!({})))];
    let compressed = |more: Value| {
        let mut members = json!({"codecs": codecs()});
        members.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        members
    };
    let mut grid = |name: &str, shape: &[u64], chunks: &[u64], more: Value, bad: &[&str]| {
        let counts: Vec<usize> =
            shape.iter().zip(chunks).map(|(length, chunk)| length.div_ceil(*chunk) as usize).collect();
        let keys = keys(&counts);
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let elements = chunks.iter().product::<u64>() as usize;
        add(&mut files, name, array("int16", shape, chunks, &compressed(more)), &keys, bad, |number| {
            numbers(number, elements)
        });
    };
    // Rows of a page, less and more than one, and one that is no multiple of it.
    grid("page", &[20, 2048], &[1, 2048], json!({}), &["5/0", "11/0"]);
    grid("bytes", &[40], &[2], json!({}), &["7"]);
    grid("maps", &[10, 37, 36], &[1, 37, 36], json!({}), &["5/0/0"]);
    grid("rows", &[10, 30], &[3, 30], json!({}), &["1/0"]);
    grid("tiles", &[7, 50], &[2, 20], json!({}), &["1/1", "3/2"]);
    grid("halves", &[9, 10], &[4, 5], json!({"data_type": "float16", "fill_value": 0.0}), &["0/1"]);
    // Units of 2 MiB, of which a chunk of the file has several: more than 64 MiB in all.
    grid("joined", &[90, 512, 1024], &[2, 512, 1024], json!({}), &["20/0/0"]);
    let lengths = [2, 4, 6];
    let edges = json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [lengths, [700, 1400]]}}});
    let document = array("int16", &[12, 2100], &[], &compressed(edges));
    let keys = keys(&[3, 2]);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    add(&mut files, "edges", document, &keys, &["1/0"], |number| {
        numbers(number, lengths[number / 2] * [700, 1400][number % 2])
    });
    let sharding = json!({"codecs": [{"name": "sharding_indexed", "configuration": {
        "chunk_shape": [4], "codecs": codecs(), "index_codecs": [codecs()[0]]}}]});
    let inner: Vec<Vec<u8>> =
        (0..4).map(|number| if number == 2 { DAMAGED.to_vec() } else { zstd(&numbers(number, 4)) }).collect();
    files.push(("shards/zarr.json".to_owned(), group(&json!({}))));
    files.push(("shards/v/zarr.json".to_owned(), array("int16", &[32], &[16], &sharding)));
    files.extend(["0", "1"].map(|key| (format!("shards/v/c/{key}"), shard(&inner))));
    files
}

/// Returns values that are looked at for the header: texts and times.
fn looked_at() -> Files {
    let mut files = Vec::new();
    let time = json!({"data_type": {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 1}},
                      "codecs": codecs(), "dimension_names": ["t"], "fill_value": "NaT"});
    let document = array("", &[8], &[2], &time);
    let day = |number: usize| {
        [86_400_000_000_000_i64 * number as i64; 2].iter().flat_map(|time| time.to_le_bytes()).collect()
    };
    add(&mut files, "times", document, &["0", "1", "2", "3"], &["2"], day);
    let document =
        array("string", &[8], &[2], &json!({"codecs": [{"name": "vlen-utf8"}, codecs()[1]], "fill_value": ""}));
    let texts = |number: usize| {
        let mut bytes = 2_u32.to_le_bytes().to_vec();
        for text in ["x".repeat(number + 1), String::new()] {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    };
    add(&mut files, "texts", document, &["0", "1", "2", "3"], &["1"], texts);
    files
}

fn borrowed(files: &Files) -> Vec<(&str, Vec<u8>)> {
    files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect()
}

#[test]
fn a_damaged_chunk_takes_nothing_else_with_it_in_any_layout() {
    let directory = tempfile::tempdir().unwrap();
    let files = [layouts(), looked_at()].concat();
    let repo = import(directory.path(), &borrowed(&files));
    let native = Mount::new(&repo, &["--read-only"]);
    let view = Mount::new(&repo, &["--view", "netcdf"]);
    let mut command = std::process::Command::new(project("target/venv/bin/python"));
    command.arg("-B").arg(project("tests/views/programs/read_damaged.py")).arg(native.path()).arg(view.path());
    if has_programs() {
        command.arg(directory.path());
    }
    let read = run(&mut command).json();
    assert!(read["problems"].as_array().unwrap().is_empty(), "{read:#}");
    let unreadable = json!({"bytes/v": 1, "edges/v": 1, "halves/v": 1, "joined/v": 1, "maps/v": 1, "page/v": 2, "rows/v": 1, "shards/v": 2,
        "texts/v": 1, "tiles/v": 2, "times/v": 1});
    assert_eq!(read["unreadable"], unreadable, "{read:#}");
    // Each error names its chunk.
    let errors = fs::read_to_string(view.path().join(".icechunk/errors")).unwrap();
    for chunk in [
        "page/v/c/5/0",
        "bytes/v/c/7",
        "maps/v/c/5/0/0",
        "joined/v/c/20/0/0",
        "edges/v/c/1/0",
        "shards/v/c/0: inner chunk 2",
        "texts/v/c/1",
        "times/v/c/2",
    ] {
        assert!(errors.contains(chunk), "{chunk} is not in\n{errors}");
    }
    let report = fs::read_to_string(view.path().join(".icechunk/netcdf")).unwrap();
    assert!(report.contains("/texts/v\tshown without some texts\t/texts/v/c/1: "), "{report}");
}

/// Reads all of a variable, and prints whether that fails.
const READ: &str = "
import sys, netCDF4
with netCDF4.Dataset(sys.argv[1]) as file:
    print(float(file[sys.argv[2]][:].sum()))
";

#[test]
fn a_variable_shares_no_page_with_an_unreadable_neighbor() {
    let directory = tempfile::tempdir().unwrap();
    let large = [3, 37, 36];
    let small = [4];
    let mut files: Vec<(String, Vec<u8>)> = vec![("zarr.json".to_owned(), group(&json!({})))];
    let compressed = json!({"codecs": codecs()});
    for (name, bytes) in [("a", zstd(&numbers(0, 3996))), ("b", DAMAGED.to_vec()), ("d", zstd(&numbers(0, 3996)))] {
        files.push((format!("{name}/zarr.json"), array("int16", &large, &large, &compressed)));
        files.push((format!("{name}/c/0/0/0"), bytes));
    }
    for (name, bytes) in [("c", DAMAGED.to_vec()), ("e", zstd(&numbers(0, 4)))] {
        files.push((format!("{name}/zarr.json"), array("int16", &small, &small, &compressed)));
        files.push((format!("{name}/c/0"), bytes));
    }
    let repo = import(directory.path(), &borrowed(&files));
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    for (name, sum) in [("a", Some("3996.0")), ("b", None), ("c", None), ("d", Some("3996.0")), ("e", Some("4.0"))] {
        let read = run(python_code(READ).arg(mount.path().join("ocean.nc")).arg(name));
        let printed = String::from_utf8_lossy(&read.stdout).trim().to_owned();
        assert_eq!(read.status.success().then_some(printed.as_str()), sum, "{name}: {}", read.stderr);
    }
}
