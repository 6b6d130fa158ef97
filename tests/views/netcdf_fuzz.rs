//! Random inputs for the fuzz target of the HDF5 writer, and mutated `zarr.json` documents through
//! the view.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use icechunk::RepositoryConfig;
use icechunk::format::manifest::ChunkPayload;
use icechunk::format::snapshot::ArrayShape;
use icechunk::format::{ChunkIndices, format_constants::SpecVersionBin};
use netcdf_reader::NcFile;
use serde_json::{Value, json};

use crate::common::random::Random;
use crate::common::{Mount, lab, run};
use crate::netcdf::{array, group, int16s};

#[allow(dead_code)]
#[path = "../../fuzz/targets/hdf5_file.rs"]
mod hdf5_file;

#[test]
fn files_of_any_contents_are_read_by_another_reader() {
    let begin = Instant::now();
    let mut random = Random::new(20_261_122);
    let mut whole = 0;
    let directory = tempfile::tempdir().unwrap();
    for round in 0..150 {
        let length = 20 + random.below(300);
        let bytes = random.bytes(length);
        let Some((model, file)) = hdf5_file::make(&bytes) else { continue };
        whole += 1;
        hdf5_file::check(&model, file.clone());
        if round % 20 != 0 || !Path::new("/usr/bin/h5dump").exists() {
            continue;
        }
        let path = directory.path().join("file.h5");
        let dumped = directory.path().join("dumped");
        fs::write(&path, &file).unwrap();
        run(Command::new("/usr/bin/h5dump").arg("-H").arg(&path)).success();
        for (number, dataset) in model.datasets.iter().enumerate().filter(|(_, dataset)| dataset.name.starts_with('n'))
        {
            let name = hdf5_file::path(&model, dataset);
            let mut dump = Command::new("/usr/bin/h5dump");
            run(dump.args(["-b", "LE", "-d", &name, "-o"]).arg(&dumped).arg(&path)).success();
            assert!(fs::read(&dumped).unwrap() == hdf5_file::elements(number, dataset), "round {round}: {name}");
        }
    }
    assert!(whole > 40, "{whole} files");
    println!("{whole} files: {:?}", begin.elapsed());
}

/// Adds the pointers of all values in `value` to `pointers`.
fn collect_pointers(value: &Value, at: &str, pointers: &mut Vec<String>) {
    pointers.push(at.to_owned());
    let members: Vec<(String, &Value)> = match value {
        Value::Array(list) => list.iter().enumerate().map(|(n, value)| (n.to_string(), value)).collect(),
        Value::Object(members) => members.iter().map(|(name, value)| (name.clone(), value)).collect(),
        _ => Vec::new(),
    };
    members.iter().for_each(|(name, value)| collect_pointers(value, &format!("{at}/{name}"), pointers));
}

/// Returns `document` with one or two values changed, or a byte.
fn mutated(document: &[u8], random: &mut Random) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(document).unwrap();
    for _ in 0..=random.below(2) {
        let mut pointers = Vec::new();
        collect_pointers(&json, "", &mut pointers);
        let words = [
            json!(null),
            json!(-1),
            json!(0),
            json!(u64::MAX),
            json!(1_u64 << 40),
            json!(1e308),
            json!([]),
            json!({}),
            json!(""),
            json!(true),
            json!([[[[1]]]]),
            json!("zstd"),
            json!("sharding_indexed"),
            json!("complex64"),
            json!("string"),
            json!("uint8"),
            json!("\u{0}\u{202e}/"),
            json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}),
            json!(1),
            json!(2),
            json!([1, 1]),
            json!(["bytes"]),
            json!(["x", "x"]),
        ];
        let pointer = &pointers[1 + random.below(pointers.len() - 1)];
        *json.pointer_mut(pointer).unwrap() = words[random.below(words.len())].clone();
    }
    let mut mutated = json.to_string().into_bytes();
    if random.below(10) == 0 {
        let at = random.below(mutated.len());
        mutated[at] = random.next() as u8;
    }
    mutated
}

#[test]
fn mutated_documents_neither_stop_the_view_nor_spoil_good_arrays() {
    const DOCUMENTS: usize = 1_500;
    // Elements of a good array: a page, which it shares with none.
    const GOOD: u64 = 2_048;
    let inner = json!({"chunk_shape": [1, 2], "codecs": ["bytes", "zstd"], "index_codecs": ["bytes", "crc32c"]});
    let originals = [
        array(
            "int16",
            &[4, 6],
            &[2, 3],
            &json!({"dimension_names": ["y", "x"], "attributes": {"units": "K", "_FillValue": 3}}),
        ),
        array(
            "float32",
            &[4, 6],
            &[2, 4],
            &json!({"codecs": [{"name": "sharding_indexed", "configuration": inner}], "fill_value": "NaN"}),
        ),
        array(
            "int64",
            &[4, 6],
            &[2, 3],
            &json!({"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[1, 3], [[2, 3]]]}},
            "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes", "gzip"]}),
        ),
    ];
    let mut random = Random::new(7);
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("ocean");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let repository = lab::create(&place, SpecVersionBin::V2, RepositoryConfig::default()).await;
        let mut session = repository.writable_session("main").await.unwrap();
        session.add_group(icechunk::format::Path::root(), group(&json!({})).into()).await.unwrap();
        for number in 0..DOCUMENTS {
            let is_good = number % 100 == 0;
            let document = if is_good {
                array("int16", &[GOOD, 1], &[GOOD, 1], &json!({}))
            } else {
                mutated(&originals[number % 3], &mut random)
            };
            let path: icechunk::format::Path = format!("/v{number:04}").as_str().try_into().unwrap();
            let shape = ArrayShape::new([(4, 2), (6, 2)]).unwrap();
            session.add_array(path.clone(), shape, None, document.into()).await.unwrap();
            let values = if is_good { vec![number as i16; GOOD as usize] } else { vec![1, 2] };
            let payload = Some(ChunkPayload::Inline(int16s(&values).into()));
            session.set_chunk_ref(path, ChunkIndices(vec![0, 0]), payload).await.unwrap();
        }
        session.commit("mutated").execute().await.unwrap();
    });
    for words in
        [&[][..], &["--netcdf-groups", "nested", "--netcdf-classic-types", "--netcdf-record-dimension", "auto"]]
    {
        let begin = Instant::now();
        let mount = Mount::new(&place, &[&["--view", "netcdf", "-o", "memory=64M"], words].concat());
        let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
        let report = fs::read_to_string(mount.path().join(".icechunk/netcdf")).unwrap();
        let mut shown = 0;
        for number in 0..DOCUMENTS {
            let name = format!("v{number:04}");
            match file.variable(&name) {
                Ok(variable) => {
                    shown += 1;
                    let elements: u64 = variable.shape().iter().product();
                    // A chunk of four bytes does not fit most shapes: an error, as for any damaged
                    // chunk.
                    let read = (elements <= GOOD).then(|| file.read_variable_raw_bytes(&name));
                    if number % 100 == 0 {
                        assert_eq!(read.unwrap().unwrap(), int16s(&vec![number as i16; GOOD as usize]), "{name}");
                    }
                }
                Err(_) => assert!(report.contains(&format!("/{name}\tleft out\t")), "{name}"),
            }
        }
        assert!(shown > DOCUMENTS / 10 && shown < DOCUMENTS, "{shown}");
        println!("{shown} of {DOCUMENTS} shown: {:?}", begin.elapsed());
        assert!(!mount.log().contains("panicked"), "{}", mount.log());
    }
}
