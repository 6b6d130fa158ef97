//! The NetCDF view of hostile repositories: what cannot be shown is left out with a reason, a chunk
//! that cannot be decoded spoils its own bytes only, and neither time nor memory follows from what
//! a document claims.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use icechunk::RepositoryConfig;
use icechunk::format::manifest::ChunkPayload;
use icechunk::format::snapshot::ArrayShape;
use icechunk::format::{ChunkIndices, format_constants::SpecVersionBin};
use netcdf_reader::NcFile;
use serde_json::{Value, json};

use crate::common::{Mount, lab, run};
use crate::netcdf::{array, group, int16s, peak_memory, python_code, zstd};

/// Array with any document, and its chunks.
struct Made {
    path: String,
    document: Vec<u8>,
    chunks: Vec<(Vec<u32>, Vec<u8>)>,
}

impl Made {
    fn new(path: &str, document: Vec<u8>) -> Self {
        Made { path: path.to_owned(), document, chunks: Vec::new() }
    }

    fn chunk(mut self, coords: &[u32], bytes: Vec<u8>) -> Self {
        self.chunks.push((coords.to_vec(), bytes));
        self
    }
}

/// Creates a repository called `ocean` by the reference, which takes any bytes for a `zarr.json`.
fn create(directory: &Path, arrays: &[Made]) -> PathBuf {
    create_with(directory, group(&json!({})), arrays)
}

/// Creates a repository like [`create`], with any document of the root group.
fn create_with(directory: &Path, root: Vec<u8>, arrays: &[Made]) -> PathBuf {
    let place = directory.join("ocean");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let repository = lab::create(&place, SpecVersionBin::V2, RepositoryConfig::default()).await;
        let mut session = repository.writable_session("main").await.unwrap();
        session.add_group(icechunk::format::Path::root(), root.into()).await.unwrap();
        for made in arrays {
            let rank = made.chunks.first().map_or(1, |(coords, _)| coords.len());
            let shape = ArrayShape::new(vec![(1 << 40, 1 << 20); rank]).unwrap();
            let path: icechunk::format::Path = format!("/{}", made.path).as_str().try_into().unwrap();
            session.add_array(path.clone(), shape, None, made.document.clone().into()).await.unwrap();
            for (coords, bytes) in &made.chunks {
                let payload = Some(ChunkPayload::Inline(bytes.clone().into()));
                session.set_chunk_ref(path.clone(), ChunkIndices(coords.clone()), payload).await.unwrap();
            }
        }
        session.commit("hostile").execute().await.unwrap();
    });
    place
}

/// Returns deed and reason of each path of the report.
fn report(mount: &Mount) -> BTreeMap<String, (String, String)> {
    let text = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
    let lines = text.lines().map(|line| line.split('\t').map(str::to_owned).collect::<Vec<_>>());
    lines.map(|parts| (parts[0].clone(), (parts[1].clone(), parts[2].clone()))).collect()
}

fn grid(shape: &[u64]) -> Value {
    json!({"name": "regular", "configuration": {"chunk_shape": shape}})
}

fn codec(name: &str, configuration: Value) -> Value {
    json!({"name": name, "configuration": configuration})
}

fn shard(inner: &[u64], codecs: Value) -> Value {
    codec("sharding_indexed", json!({"chunk_shape": inner, "codecs": codecs, "index_codecs": ["bytes"]}))
}

#[test]
fn hostile_documents_are_left_out_with_a_reason() {
    let deep = (0..200).fold(json!(["bytes"]), |inner, _| json!([shard(&[1], inner)]));
    let nested = (0..100).fold(json!(1), |value, _| json!([value]));
    let rectilinear =
        |sizes: Value| json!({"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [sizes]}}});
    let bad = [
        ("type_none", json!({"data_type": null})),
        ("type_nested", json!({"data_type": {"name": {"name": "int16"}}})),
        ("type_long", json!({"data_type": "x".repeat(100_000)})),
        ("type_raw", json!({"data_type": "r18446744073709551608"})),
        ("type_chars", json!({"data_type": codec("null_terminated_bytes", json!({"length_bytes": u64::MAX}))})),
        ("type_utf32", json!({"data_type": codec("fixed_length_utf32", json!({"length_bytes": 3}))})),
        (
            "type_text",
            json!({"data_type": "string", "fill_value": "", "codecs": ["vlen-utf8"], "shape": [1_u64 << 60],
            "chunk_grid": grid(&[1 << 59])}),
        ),
        ("fill_object", json!({"fill_value": {"a": [1]}})),
        ("fill_range", json!({"fill_value": 1e300})),
        ("fill_long", json!({"fill_value": "\u{1b}[2J".repeat(50_000)})),
        ("fill_text", json!({"data_type": "string", "fill_value": "x".repeat(70_000), "codecs": ["vlen-utf8"]})),
        ("shape_zero", json!({"shape": [0]})),
        ("shape_rank", json!({"shape": [2, 2]})),
        ("rank_33", json!({"shape": vec![2; 33], "chunk_grid": grid(&[1; 33])})),
        (
            "rank_32_chars",
            json!({"data_type": "complex64", "fill_value": [0, 0], "shape": vec![1; 32], "chunk_grid": grid(&[1; 32])}),
        ),
        ("chunk_zero", json!({"chunk_grid": grid(&[0])})),
        ("chunk_huge", json!({"shape": [u64::MAX], "chunk_grid": grid(&[u64::MAX]), "codecs": ["bytes", "zstd"]})),
        ("chunk_none", json!({"chunk_grid": {"name": "regular"}})),
        ("grid_unknown", json!({"chunk_grid": {"name": "hexagonal"}})),
        ("grid_short", rectilinear(json!([1]))),
        ("grid_zero", rectilinear(json!([[0, 7]]))),
        ("grid_overflow", rectilinear(json!([[u64::MAX, u64::MAX]]))),
        (
            "grid_shards",
            json!({"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[1, 3]]}}, "codecs": [shard(&[1], json!(["bytes"]))]}),
        ),
        ("size_2_63", json!({"shape": [1_u64 << 62], "chunk_grid": grid(&[1 << 31])})),
        ("size_product", json!({"shape": [u64::MAX, u64::MAX], "chunk_grid": grid(&[1 << 32, 1 << 32])})),
        ("chunks_2_62", json!({"shape": vec![1_u64 << 31; 3], "chunk_grid": grid(&[1, 1, 1])})),
        ("codec_unknown", json!({"codecs": ["bytes", "\n\u{202e}"]})),
        ("codec_none", json!({"codecs": []})),
        ("codec_object", json!({"codecs": {"name": "bytes"}})),
        ("codec_number", json!({"codecs": ["bytes", 7]})),
        ("codec_many", json!({"codecs": std::iter::once("bytes").chain(vec!["gzip"; 10_000]).collect::<Vec<_>>()})),
        ("codec_order", json!({"codecs": ["zstd", "bytes"]})),
        ("codec_endian", json!({"codecs": [codec("bytes", json!({"endian": "middle"}))]})),
        ("codec_shuffle", json!({"codecs": ["bytes", codec("numcodecs.shuffle", json!({"elementsize": 0}))]})),
        ("transpose_order", json!({"codecs": [codec("transpose", json!({"order": [1_u64 << 40]})), "bytes"]})),
        ("shard_uneven", json!({"codecs": [shard(&[3], json!(["bytes"]))]})),
        ("shard_zero", json!({"codecs": [shard(&[0], json!(["bytes"]))]})),
        ("shard_deep", json!({"codecs": deep})),
        (
            "shard_many",
            json!({"shape": [1_u64 << 60], "chunk_grid": grid(&[1 << 60]), "codecs": [shard(&[1], json!(["bytes"]))]}),
        ),
        ("transformer", json!({"storage_transformers": [{"name": "unknown"}]})),
        ("member", json!({"thing": {"name": "x"}})),
        ("member_null", json!({"thing": null})),
    ];
    let mut arrays: Vec<Made> =
        bad.iter().map(|(name, changes)| Made::new(name, array("int16", &[4], &[2], changes))).collect();
    for (name, document) in
        [("empty", &b""[..]), ("not_json", b"{\"shape\": [1"), ("not_utf8", b"\xff\xfe"), ("list", b"[]")]
    {
        arrays.push(Made::new(name, document.to_vec()));
    }
    let good = [
        ("good", json!({})),
        (
            "attributes",
            json!({"attributes": {"nested": nested, "huge": 1e308, "list": vec![1; 100_000], "texts": vec!["x"; 10_000],
            "_FillValue": [1, 2], "CLASS": "x", "_Netcdf4Dimid": 7, "\u{0}\u{1}": 1, "": 2, "a/b": 3}}),
        ),
        ("names", json!({"dimension_names": ["../\u{202e}\u{0}"]})),
        ("no_names", json!({"dimension_names": [null]})),
        ("wrong_names", json!({"dimension_names": ["a", "b", "c"]})),
        ("members", json!({"unknown": {"must_understand": false}})),
    ];
    for (name, changes) in &good {
        let document = array("int16", &[4], &[2], changes);
        arrays.push(Made::new(name, document).chunk(&[0], int16s(&[1, 2])).chunk(&[1], int16s(&[3, 4])));
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = create(directory.path(), &arrays);
    let begin = Instant::now();
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=48M"]);
    let report = report(&mount);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    for (name, _) in &bad {
        let (deed, reason) = report.get(&format!("/{name}")).unwrap_or_else(|| panic!("{name}: {report:#?}"));
        assert_eq!(deed, "left out", "{name}");
        assert!(!reason.is_empty() && reason.len() < 400 && !reason.contains('\u{1b}'), "{name}: {reason}");
        assert!(file.variable(name).is_err(), "{name}");
    }
    for (name, _) in &good {
        let values = file.read_variable::<i16>(name).unwrap();
        assert_eq!(values.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4], "{name}");
    }
    assert_eq!(file.variables().unwrap().len(), good.len());
    println!("{} documents: {:?}, {} KiB", arrays.len(), begin.elapsed(), peak_memory(&mount));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(peak_memory(&mount) < 110 << 10);
}

#[test]
fn names_of_every_alphabet_are_accepted_by_programs() {
    let names = [
        "plain",
        "größe",
        "e\u{301}",
        "温度",
        "שלום",
        "درجة",
        "температура",
        "😀",
        "a b",
        "a ",
        "-x",
        "9",
        ".x",
        "a\\b",
        "a\tb",
        "\u{202e}x",
        "\u{200b}",
        "\u{feff}x",
        "_nc4_non_coord_plain",
        "_nc4_non_coord_x",
        "x",
        "dim_2",
        "CLASS",
        "A",
        "%2F",
        "(x)",
        "ﷺ",
        "\u{1d15e}",
        "\u{7f}",
        "ǅ",
        "ß",
        "İ",
    ];
    let long = "é".repeat(120);
    let mut arrays = Vec::new();
    for name in names.into_iter().chain([long.as_str()]) {
        // Each has the name of another as that of its dimension, and as an attribute.
        let more = json!({"dimension_names": ["x", name], "attributes": {name: name}});
        arrays.push(Made::new(name, array("int16", &[2, 2], &[2, 2], &more)).chunk(&[0, 0], int16s(&[1, 2, 3, 4])));
    }
    let directory = tempfile::tempdir().unwrap();
    let repo = create(directory.path(), &arrays);
    for words in [&[][..], &["--netcdf-groups", "nested"]] {
        let mount = Mount::new(&repo, &[&["--view", "netcdf"], words].concat());
        let path = mount.path().join("ocean.nc");
        let file = NcFile::open(&path).unwrap();
        let found = file.variables().unwrap().len();
        let report = report(&mount);
        let left_out = report.iter().filter(|(path, (deed, _))| deed == "left out" && !path.contains('@')).count();
        assert_eq!(found + left_out, arrays.len());
        assert_eq!(left_out, 1, "{report:?}");
        if Path::new("/usr/bin/ncdump").exists() {
            let printed = run(Command::new("/usr/bin/ncdump").arg(&path)).success();
            assert_eq!(String::from_utf8_lossy(&printed).matches("1, 2,").count(), found);
        }
    }
}

#[test]
fn names_of_every_length_are_accepted_by_programs() {
    let named = |shape: u64, name: &str| array("int16", &[shape], &[shape], &json!({"dimension_names": [name]}));
    let long = "x".repeat(243);
    let longest = "y".repeat(255);
    let longer = "z".repeat(256);
    let longest_array = "w".repeat(255);
    let mut arrays = vec![
        Made::new("good", named(2, "d")).chunk(&[0], int16s(&[3, 4])),
        // The name of a dimension that is not its own: the variable needs a prefix.
        Made::new(&long, named(2, "d")),
        Made::new("b", named(3, &long)),
        // Names of two sizes.
        Made::new("e", named(4, &longest)),
        Made::new("f", named(77, &longest)),
        Made::new("g", named(5, &longer)),
        Made::new(&longest_array, named(2, "d")),
        Made::new("c/v", named(2, "d")),
    ];
    arrays.extend([300, 256].map(|length| Made::new(&"n".repeat(length), named(2, "d"))));
    arrays.push(Made::new(&format!("c/{longer}/v"), named(2, "d")));
    let directory = tempfile::tempdir().unwrap();
    let repo = create(directory.path(), &arrays);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let path = mount.path().join("ocean.nc");
    run(python_code(READ_LONG_NAMES).arg(&path)).success();
    if Path::new("/usr/bin/ncdump").exists() {
        run(Command::new("/usr/bin/ncdump").arg(&path)).success();
    }
    // No file system has names of more than 255 bytes.
    let hidden = ["n".repeat(300), "n".repeat(256), format!("c/{longer}/v")];
    let report = report(&mount);
    for path in hidden.iter().chain([&long]) {
        assert_eq!(report[&format!("/{path}")].0, "left out", "{path}");
    }
    let renamed = [("/f", format!("renamed to {}_77", "y".repeat(252))), ("/g", "renamed to dim_5".to_owned())];
    for (path, deed) in renamed {
        assert!(report[path].0.ends_with(&deed), "{report:?}");
    }
    drop(mount);
    let mount = Mount::new(&repo, &["--view", "zarr2"]);
    let report = fs::read_to_string(mount.path().join(".icechunk/zarr2")).unwrap();
    for path in &hidden {
        assert!(report.contains(&format!("/{path}\tleft out\t")), "{path}: {report}");
    }
}

/// Checks the names in a file.
const READ_LONG_NAMES: &str = "
import sys, netCDF4, h5netcdf
dataset = netCDF4.Dataset(sys.argv[1])
assert sorted(dataset.variables) == sorted(['good', 'b', 'e', 'f', 'g', 'w' * 255]), list(dataset.variables)
sizes = {name: len(dimension) for name, dimension in dataset.dimensions.items()}
assert sizes == {'d': 2, 'x' * 243: 3, 'y' * 255: 4, 'y' * 252 + '_77': 77, 'dim_5': 5}, sizes
assert dataset['good'][:].tolist() == [3, 4]
assert len(h5netcdf.File(sys.argv[1]).variables) == 6
";

#[test]
fn a_bad_attribute_takes_neither_its_array_nor_others_with_it() {
    let deep = "[".repeat(1000) + &"]".repeat(1000);
    let bad = format!(r#"{{"title":"x","huge":1e400,"half":"\ud800","deep":{deep},"\udfff":1,"last":2}}"#);
    let with = |document: Vec<u8>| {
        String::from_utf8(document).unwrap().replace(r#""attributes":{}"#, &format!("\"attributes\":{bad}"))
    };
    let directory = tempfile::tempdir().unwrap();
    let array = with(array("int16", &[2], &[2], &json!({})));
    let arrays = [Made::new("v", array.into()).chunk(&[0], int16s(&[1, 2]))];
    let repo = create_with(directory.path(), with(group(&json!({}))).into(), &arrays);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    assert_eq!(file.read_variable::<i16>("v").unwrap().iter().copied().collect::<Vec<_>>(), [1, 2]);
    let report = report(&mount);
    for name in ["title", "last"] {
        assert!(file.variable("v").unwrap().attribute(name).is_some(), "{name}");
        assert!(file.global_attribute(name).is_ok(), "{name}");
    }
    for name in ["huge", "half", "deep", r#""\udfff""#] {
        for path in ["/v", "/"] {
            assert_eq!(report[&format!("{path}@{name}")].0, "left out", "{path} {name}: {report:?}");
        }
    }
    drop(mount);
    // Nor in the other view, where it once took the array.
    let mount = Mount::new(&repo, &["--view", "zarr2"]);
    for path in [".zattrs", "v/.zattrs"] {
        let attributes: Value = serde_json::from_slice(&fs::read(mount.path().join(path)).unwrap()).unwrap();
        assert_eq!((&attributes["title"], &attributes["last"]), (&json!("x"), &json!(2)), "{path}");
    }
}

#[test]
fn a_chunk_that_cannot_be_decoded_spoils_its_own_pages_only() {
    // 64 KiB: chunks have pages of their own.
    const ELEMENTS: u64 = 32 << 10;
    let zeros = vec![0_u8; 256 << 20];
    let good = vec![5_u8; ELEMENTS as usize * 2];
    let mut zstd_end = zstd(&good);
    zstd_end.truncate(zstd_end.len() - 3);
    let blosc_claim = {
        // A header that claims 2 GiB in blocks of 2 GiB.
        let mut bytes = vec![2, 1, 0x21, 2];
        for number in [0x7fff_ff00_u32, 0x7fff_ff00, 40] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.resize(40, 0xff);
        bytes
    };
    let kinds: [(&str, Value, Vec<Vec<u8>>); 4] = [
        ("zstd", json!(["bytes", "zstd"]), vec![zstd(&good), zstd(&zeros), b"none".to_vec(), zstd_end, vec![0]]),
        (
            "gzip",
            json!(["bytes", "gzip"]),
            vec![gzip(&good), gzip(&zeros), zstd(&good), b"\x1f\x8b\x08".to_vec(), vec![0]],
        ),
        (
            "raw",
            json!(["bytes"]),
            vec![good.clone(), vec![1], vec![7; good.len() + 1], vec![8; good.len() - 1], vec![0]],
        ),
        ("blosc", json!(["bytes", "blosc"]), vec![blosc(&good), blosc_claim, b"xx".to_vec(), good.clone(), vec![0]]),
    ];
    let mut arrays = Vec::new();
    for (name, codecs, chunks) in kinds {
        let document = array("int16", &[6 * ELEMENTS], &[ELEMENTS], &json!({"codecs": codecs, "fill_value": 3}));
        let made = Made::new(name, document);
        arrays.push(chunks.into_iter().enumerate().fold(made, |made, (n, bytes)| made.chunk(&[n as u32], bytes)));
    }
    let names: Vec<String> = arrays.iter().map(|made| made.path.clone()).collect();
    let directory = tempfile::tempdir().unwrap();
    let repo = create(directory.path(), &arrays);
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=32M"]);
    let path = mount.path().join("ocean.nc");
    let file = fs::File::open(&path).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    let mut sorted = names.clone();
    sorted.sort();
    for (at, name) in sorted.iter().enumerate() {
        for chunk in 0..6 {
            // Chunks are in the file in the order of the names of their arrays.
            let offset = size - 2 * ELEMENTS * (6 * (sorted.len() - at) as u64 - chunk);
            let mut bytes = vec![0; 2 * ELEMENTS as usize];
            let read = file.read_exact_at(&mut bytes, offset);
            match chunk {
                0 => assert!(read.is_ok() && bytes == good, "{name} {chunk}: {read:?}"),
                5 => assert!(read.is_ok() && bytes.chunks(2).all(|it| it == [3, 0]), "{name} {chunk}: {read:?}"),
                _ => {
                    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO), "{name} {chunk}");
                    let key = format!("/{name}/c/{chunk}");
                    assert!(mount.log().contains(&key), "{key}: {}", mount.log());
                }
            }
        }
    }
    println!("peak memory: {} KiB", peak_memory(&mount));
    assert!(peak_memory(&mount) < 90 << 10);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a Blosc buffer that has `bytes` as they are.
fn blosc(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len() as u32;
    let numbers = [length, length, length + 16].into_iter().flat_map(u32::to_le_bytes);
    [2, 1, 2, 1].into_iter().chain(numbers).chain(bytes.iter().copied()).collect()
}

/// Reads the first, middle and last elements of arrays of 2^60.
const READ_FAR_ELEMENTS: &str = "
import sys, h5py, netCDF4
file = h5py.File(sys.argv[1])
for at in [1 << 29, (1 << 59) + 3, (1 << 60) - 1]:
    assert file['b'][at] == 7, at
assert file['wide'][(1 << 40) - 1, 5] == 8
try:
    file['a'][0]
except OSError:
    pass
else:
    raise AssertionError('a chunk of 512 MiB by its shape, which has two bytes')
assert netCDF4.Dataset(sys.argv[1])['b'][(1 << 60) - 1] == 7
";

#[test]
fn an_array_of_2_to_the_60_elements_costs_what_is_read_of_it() {
    const LENGTH: u64 = 1 << 60;
    let document = |chunk: u64| array("int8", &[LENGTH], &[chunk], &json!({"fill_value": 7, "dimension_names": ["x"]}));
    let mut arrays = vec![
        Made::new("a", document(1 << 29)).chunk(&[0], b"\x01\x02".to_vec()),
        Made::new("b", document(1 << 30)),
        Made::new(
            "wide",
            array(
                "int16",
                &[1 << 40, 1 << 18],
                &[1 << 14, 1 << 10],
                &json!({"codecs": ["bytes", "zstd"], "fill_value": 8}),
            ),
        ),
    ];
    // Together they are longer than a file can be.
    arrays.extend(["c", "d", "e"].map(|name| Made::new(name, document(1 << 30))));
    let directory = tempfile::tempdir().unwrap();
    let repo = create(directory.path(), &arrays);
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=64M"]);
    let begin = Instant::now();
    let path = mount.path().join("ocean.nc");
    assert!(fs::metadata(&path).unwrap().len() > 3 << 60);
    // The reader of the other tests lists all chunks of an array first.
    run(python_code(READ_FAR_ELEMENTS).arg(&path)).success();
    let report = report(&mount);
    assert_eq!(report.keys().collect::<Vec<_>>(), ["/d", "/e"], "{report:?}");
    assert_eq!(report["/e"].1, "the file would be longer than 2^62 bytes");
    println!("values of 2^60: {:?}, {} KiB", begin.elapsed(), peak_memory(&mount));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    assert!(peak_memory(&mount) < 120 << 10);
}

#[test]
#[ignore = "takes long: scripts/test --full"]
fn a_file_of_a_hundred_thousand_variables_is_made_within_its_memory() {
    const VARIABLES: usize = 100_000;
    let document = array("int16", &[2], &[2], &json!({"dimension_names": ["x"], "attributes": {"units": "K"}}));
    let mut arrays: Vec<Made> = (0..VARIABLES).map(|n| Made::new(&format!("v{n:06}"), document.clone())).collect();
    arrays.last_mut().unwrap().chunks.push((vec![0], int16s(&[4, 5])));
    let directory = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let repo = create(directory.path(), &arrays);
    let created = begin.elapsed();
    println!("created: {created:?}");
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    let begin = Instant::now();
    let path = mount.path().join("ocean.nc");
    let size = fs::metadata(&path).unwrap().len();
    let made = begin.elapsed();
    let peak = peak_memory(&mount);
    println!("a header of {VARIABLES} variables: {made:?}, {peak} KiB");
    // The last variable is the last in the file.
    let mut last = [0; 4];
    fs::File::open(&path).unwrap().read_exact_at(&mut last, size - 4).unwrap();
    assert_eq!(last, [4, 0, 5, 0]);
    assert_eq!(fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap(), "");
    // A time would say how busy the machine is.
    assert!(made < 4 * created, "{made:?}");
    assert!(peak < 512 << 10, "{peak} KiB");
    drop(mount);
    // Without room for it, the file cannot be read; nothing else happens.
    let mount = Mount::new(&repo, &["--view", "netcdf", "-o", "memory=200M"]);
    let refused = fs::read(mount.path().join("ocean.nc")).unwrap_err();
    assert!(matches!(refused.raw_os_error(), Some(libc::EIO | libc::ENOMEM)), "{refused}");
    assert!(mount.log().contains("/ocean.nc"), "{}", mount.log());
    assert!(peak_memory(&mount) < 220 << 10, "{} KiB", peak_memory(&mount));
}
