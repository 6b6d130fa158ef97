//! The NetCDF view of arrays whose stored chunks are no HDF5 chunks: of different shapes, or very
//! long.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use netcdf_reader::{NcFile, NcSliceInfo, NcSliceInfoElem};
use serde_json::{Value, json};

use crate::common::Mount;
use crate::common::made::{reference, with_document};
use crate::netcdf::{array, group, import, peak_memory, zstd};

/// Lengths of the chunks of a rectilinear grid along two dimensions of 7 and 10 elements: the last
/// chunk is longer than the rest.
const ROWS: [u64; 3] = [3, 1, 3];
const COLUMNS: [u64; 3] = [4, 4, 5];
const SHAPE: [u64; 2] = [7, 10];

/// Keys of chunks with their stored bytes.
type Files = Vec<(String, Vec<u8>)>;

fn value(row: u64, column: u64) -> i16 {
    (row * 100 + column) as i16 - 300
}

/// Returns the elements of each chunk of the grid with its key; chunk 1/1 is missing. `encode`
/// makes the stored bytes of a chunk of its shape.
fn chunks(encode: impl Fn(Vec<i16>, [u64; 2]) -> Vec<u8>) -> Files {
    let mut chunks = Vec::new();
    for (i, height) in ROWS.into_iter().enumerate() {
        for (j, width) in COLUMNS.into_iter().enumerate().filter(|(j, _)| (i, *j) != (1, 1)) {
            let (top, left): (u64, u64) = (ROWS[..i].iter().sum(), COLUMNS[..j].iter().sum());
            let elements = (0..height * width).map(|n| value(top + n / width, left + n % width)).collect();
            chunks.push((format!("c/{i}/{j}"), encode(elements, [height, width])));
        }
    }
    chunks
}

fn little(elements: &[i16]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

#[test]
fn chunks_of_different_shapes_make_one_variable() {
    let grid = json!({"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [ROWS, [[4, 2], 5]]}});
    let bytes = |endian: &str| json!({"name": "bytes", "configuration": {"endian": endian}});
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    let turned = |elements: Vec<i16>, [height, width]: [u64; 2]| {
        let columns = (0..height * width).map(|n| elements[(n % height * width + n / height) as usize]);
        little(&columns.collect::<Vec<_>>())
    };
    let kinds: [(&str, Value, Files); 4] = [
        ("raw", json!([bytes("little")]), chunks(|elements, _| little(&elements))),
        ("big", json!([bytes("big")]), chunks(|elements, _| elements.iter().flat_map(|it| it.to_be_bytes()).collect())),
        ("zstd", json!([bytes("little"), "zstd"]), chunks(|elements, _| zstd(&little(&elements)))),
        (
            "turned",
            json!([transpose, bytes("little"), "zstd"]),
            chunks(|elements, shape| zstd(&turned(elements, shape))),
        ),
    ];
    let mut files = vec![("zarr.json".to_owned(), group(&json!({})))];
    for (name, codecs, chunks) in kinds.clone() {
        let more = json!({"chunk_grid": grid, "codecs": codecs, "fill_value": 99, "dimension_names": ["time", "x"]});
        files.push((format!("{name}/zarr.json"), array("int16", &SHAPE, &[], &more)));
        files.extend(chunks.into_iter().map(|(key, bytes)| (format!("{name}/{key}"), bytes)));
    }
    let short = json!({"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[3], [[4, 2], 5]]}}});
    files.push(("short/zarr.json".to_owned(), array("int16", &SHAPE, &[], &short)));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let directory = tempfile::tempdir().unwrap();
    let repo = import(directory.path(), &files);
    let wanted: Vec<i16> =
        (0..70).map(|n| if n / 10 == 3 && (4..8).contains(&(n % 10)) { 99 } else { value(n / 10, n % 10) }).collect();
    for words in [&[][..], &["--netcdf-record-dimension", "time"]] {
        let mount = Mount::new(&repo, &[&["--view", "netcdf"], words].concat());
        let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
        for (name, ..) in &kinds {
            let found = file.read_variable::<i16>(name).unwrap();
            assert_eq!(
                (found.shape(), found.iter().copied().collect::<Vec<_>>()),
                (&[7, 10][..], wanted.clone()),
                "{name}"
            );
        }
        let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
        assert_eq!(report, "/short\tleft out\tchunks that do not cover the array\n");
    }
}

/// ZEP 2's draft: the stored objects are shards, the chunk grid has their inner chunks.
#[test]
fn shards_of_a_storage_transformer_make_one_variable() {
    let transformers = |key: &str| json!([{key: "indexed", "configuration": {"chunks_per_shard": [2, 1]}}]);
    let codecs = json!([{"name": "bytes", "configuration": {"endian": "little"}}, "zstd"]);
    let [first, second, third] = [[1, 2, 3], [4, 5, 6], [7, 8, 9]].map(|row: [i16; 3]| zstd(&little(&row)));
    let shard = |chunks: [Option<&Vec<u8>>; 2]| {
        let mut bytes = Vec::new();
        let mut index = Vec::new();
        for chunk in chunks {
            let entry = chunk.map_or([u64::MAX; 2], |chunk| [bytes.len() as u64, chunk.len() as u64]);
            index.extend(entry.into_iter().flat_map(u64::to_le_bytes));
            bytes.extend(chunk.into_iter().flatten());
        }
        [bytes, index].concat()
    };
    let mut files = vec![("zarr.json".to_owned(), group(&json!({})))];
    for key in ["type", "name"] {
        let more = json!({"codecs": codecs, "fill_value": -1, "storage_transformers": transformers(key)});
        files.push((format!("{key}/zarr.json"), array("int16", &[4, 3], &[1, 3], &more)));
        files.push((format!("{key}/c/0/0"), shard([Some(&first), Some(&second)])));
        files.push((format!("{key}/c/1/0"), shard([Some(&third), None])));
    }
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let directory = tempfile::tempdir().unwrap();
    let mount = Mount::new(&import(directory.path(), &files), &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    for key in ["type", "name"] {
        let found: Vec<i16> = file.read_variable(key).unwrap().iter().copied().collect();
        assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1, -1], "{key}");
    }
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn long_raw_chunks_are_read_in_parts() {
    // Chunks of 75 MiB, which are cut into parts of whole rows; the array is no multiple of them.
    let shape = [5_000_u64, 9_000];
    let chunk = [4_900_u64, 8_000];
    let element = |row: u64, column: u64| (row * 31 + column * 7) as i16;
    let stored = |top: u64, left: u64| -> Vec<u8> {
        let rows = top..top + chunk[0];
        rows.flat_map(|row| (left..left + chunk[1]).flat_map(move |column| element(row, column).to_be_bytes()))
            .collect()
    };
    let big = json!({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}], "fill_value": -1});
    let files = [
        ("zarr.json", group(&json!({}))),
        ("v/zarr.json", array("int16", &shape, &chunk, &big)),
        ("v/c/0/0", stored(0, 0)),
        ("v/c/1/1", stored(4_900, 8_000)),
        // Not as long as its shape.
        ("v/c/1/0", vec![1, 2]),
    ];
    let directory = tempfile::tempdir().unwrap();
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=64M"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let read = |row: u64, columns: std::ops::Range<u64>| {
        let selections = vec![
            NcSliceInfoElem::Index(row),
            NcSliceInfoElem::Slice { start: columns.start, end: columns.end, step: 1 },
        ];
        file.read_variable_slice::<i16>("v", &NcSliceInfo { selections })
    };
    for (row, columns) in [(0, 0..9_000), (123, 7_990..8_010), (4_899, 1..5), (4_950, 8_000..9_000)] {
        let found: Vec<i16> = read(row, columns.clone()).unwrap().iter().copied().collect();
        let is_stored = |column: u64| (row < chunk[0]) == (column < chunk[1]);
        let wanted = columns.map(|column| if is_stored(column) { element(row, column) } else { -1 });
        assert!(found == wanted.collect::<Vec<_>>(), "row {row}");
    }
    assert!(read(4_999, 0..10).is_err());
    assert!(mount.log().contains("v/c/1/0"), "{}", mount.log());
    let peak = peak_memory(&mount);
    println!("peak memory: {peak} KiB");
    assert!(peak < 120 << 10, "{peak} KiB");
}

#[test]
fn one_value_of_a_virtual_chunk_of_five_gigabytes_costs_a_part_of_it() {
    const LENGTH: u64 = 5 << 30;
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    let file = fs::File::create(data.join("long")).unwrap();
    file.set_len(8 + 2 * LENGTH).unwrap();
    for (at, value) in [(0, 1_i16), (LENGTH / 2 - 1, 2), (LENGTH / 2, 3), (LENGTH - 1, 4)] {
        file.write_all_at(&value.to_le_bytes(), 8 + 2 * at).unwrap();
    }
    let location = format!("file://{}/long", data.display());
    let references = [reference(&*location, 8, LENGTH), reference(&*location, 8 + LENGTH, LENGTH)];
    let document = array("int16", &[LENGTH], &[LENGTH / 2], &json!({}));
    let repo = with_document(
        &directory.path().join("ocean"),
        Vec::new(),
        &references,
        (LENGTH, String::from_utf8(document).unwrap()),
    );
    let allow = format!("{}/", data.display());
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=64M", "--allow-virtual", &allow]);
    let begin = Instant::now();
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    for (at, wanted) in [(0, 1), (LENGTH / 2 - 1, 2), (LENGTH / 2, 3), (LENGTH - 1, 4), (77, 0)] {
        let selections = vec![NcSliceInfoElem::Index(at)];
        let found = file.read_variable_slice::<i16>("v", &NcSliceInfo { selections }).unwrap();
        assert_eq!(found.iter().copied().collect::<Vec<_>>(), [wanted], "element {at}");
    }
    println!("values of 10 GiB: {:?}, {} KiB", begin.elapsed(), peak_memory(&mount));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert!(peak_memory(&mount) < 120 << 10);
}

/// Chunks of 2 MiB: 35 of them along the first dimension are one chunk of the file, as libraries
/// would copy smaller ones through their caches. Those that have all of the other dimensions are
/// one run of bytes.
#[test]
fn chunks_that_follow_one_another_are_one_chunk_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let compressed = json!({"codecs": ["bytes", "zstd"], "fill_value": -1});
    let chunk = |value: i16| zstd(&value.to_le_bytes().repeat(1 << 20));
    let files = [
        ("zarr.json", group(&json!({}))),
        ("v/zarr.json", array("int16", &[70, 1024, 2048], &[1, 1024, 1024], &compressed)),
        ("v/c/0/0/0", chunk(1)),
        ("v/c/34/0/1", chunk(2)),
        ("v/c/35/0/0", chunk(3)),
        ("v/c/69/0/1", chunk(4)),
        ("run/zarr.json", array("int16", &[7, 1024, 1024], &[2, 1024, 1024], &compressed)),
        ("run/c/0/0/0", zstd(&[5_i16.to_le_bytes().repeat(1 << 20), 6_i16.to_le_bytes().repeat(1 << 20)].concat())),
        ("run/c/3/0/0", zstd(&7_i16.to_le_bytes().repeat(2 << 20))),
    ];
    let repo = import(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    let read = |name: &str, at: [u64; 3]| {
        let selections = at.into_iter().map(NcSliceInfoElem::Index).collect();
        let found = file.read_variable_slice::<i16>(name, &NcSliceInfo { selections }).unwrap();
        found.iter().copied().collect::<Vec<_>>()
    };
    for (at, wanted) in [
        ([0, 0, 0], 1),
        ([0, 1023, 1023], 1),
        ([0, 0, 1024], -1),
        ([1, 0, 0], -1),
        ([34, 7, 2047], 2),
        ([34, 7, 0], -1),
        ([35, 0, 0], 3),
        ([35, 0, 1024], -1),
        ([69, 1023, 2047], 4),
        ([69, 0, 0], -1),
    ] {
        assert_eq!(read("v", at), [wanted], "{at:?}");
    }
    for (at, wanted) in [([0, 9, 9], 5), ([1, 9, 9], 6), ([2, 0, 0], -1), ([5, 0, 0], -1), ([6, 1023, 1023], 7)] {
        assert_eq!(read("run", at), [wanted], "{at:?}");
    }
    // The file has the variables' bytes and no more than a chunk beyond.
    let length = std::fs::metadata(mount.path().join("ocean.nc")).unwrap().len();
    assert!((294 << 20..330 << 20).contains(&length), "{length}");
}
