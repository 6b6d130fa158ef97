//! The NetCDF view of generated repositories, read by a reader that shares no code with it: every
//! array has the elements that the test encoded.

use std::path::Path;

use netcdf_reader::NcFile;
use serde_json::{Value, json};

use crate::common::Mount;
use crate::common::random::Random;
use crate::netcdf::{array, group, import, zstd};

/// Types whose elements are in the file as they are stored, little-endian: the name, bytes of an
/// element, bytes of a number.
const TYPES: [(&str, usize, usize); 13] = [
    ("int8", 1, 1),
    ("int16", 2, 2),
    ("int32", 4, 4),
    ("int64", 8, 8),
    ("uint8", 1, 1),
    ("uint16", 2, 2),
    ("uint32", 4, 4),
    ("uint64", 8, 8),
    ("float32", 4, 4),
    ("float64", 8, 8),
    ("complex64", 8, 4),
    ("complex128", 16, 8),
    ("bool", 1, 1),
];

/// Codecs of a chunk or an inner chunk.
#[derive(Clone, Copy, Debug)]
struct Codecs {
    big_endian: bool,
    transposed: bool,
    compressor: Compressor,
}

#[derive(Clone, Copy, Debug)]
enum Compressor {
    None,
    Zstd,
    Crc32c,
}

impl Codecs {
    fn random(random: &mut Random) -> Self {
        let compressor = [Compressor::None, Compressor::Zstd, Compressor::Crc32c][random.below(3)];
        Codecs { big_endian: random.below(2) == 0, transposed: random.below(3) == 0, compressor }
    }

    fn json(self, rank: usize) -> Vec<Value> {
        let endian = if self.big_endian { "big" } else { "little" };
        let mut codecs = vec![json!({"name": "bytes", "configuration": {"endian": endian}})];
        if self.transposed {
            let order: Vec<usize> = (0..rank).rev().collect();
            codecs.insert(0, json!({"name": "transpose", "configuration": {"order": order}}));
        }
        match self.compressor {
            Compressor::None => {}
            Compressor::Zstd => codecs.push(json!({"name": "zstd", "configuration": {"level": 1}})),
            Compressor::Crc32c => codecs.push(json!("crc32c")),
        }
        codecs
    }

    /// Encodes elements in C order.
    fn encode(self, elements: Vec<Vec<u8>>, shape: &[u64], number: usize) -> Vec<u8> {
        let mut elements = elements;
        if self.transposed {
            let turned: Vec<u64> = shape.iter().rev().copied().collect();
            elements = (0..elements.len() as u64)
                .map(|n| {
                    let place: Vec<u64> = position(n, &turned).into_iter().rev().collect();
                    elements[index(&place, shape) as usize].clone()
                })
                .collect();
        }
        let mut bytes = elements.concat();
        if self.big_endian {
            bytes.chunks_mut(number).for_each(<[u8]>::reverse);
        }
        match self.compressor {
            Compressor::None => bytes,
            Compressor::Zstd => zstd(&bytes),
            Compressor::Crc32c => [bytes.as_slice(), &crc32c::crc32c(&bytes).to_le_bytes()].concat(),
        }
    }
}

fn position(mut number: u64, shape: &[u64]) -> Vec<u64> {
    let mut position: Vec<u64> = shape.iter().rev().map(|length| (number % length, number /= length).0).collect();
    position.reverse();
    position
}

fn index(position: &[u64], shape: &[u64]) -> u64 {
    position.iter().zip(shape).fold(0, |index, (at, length)| index * length + at)
}

/// Array with the bytes that a file must have.
struct Generated {
    name: String,
    files: Vec<(String, Vec<u8>)>,
    wanted: Vec<u8>,
}

fn generate(random: &mut Random, number: usize) -> Generated {
    let name = format!("v{number}");
    let (data_type, size, part) = TYPES[random.below(TYPES.len())];
    let shape: Vec<u64> = (0..random.below(5)).map(|_| 1 + random.below(9) as u64).collect();
    let sharded = !shape.is_empty() && random.below(3) == 0;
    let inner: Vec<u64> = shape.iter().map(|length| 1 + random.below(*length as usize + 1) as u64).collect();
    let per_shard: Vec<u64> = shape.iter().map(|_| if sharded { 1 + random.below(3) as u64 } else { 1 }).collect();
    let chunk: Vec<u64> = inner.iter().zip(&per_shard).map(|(inner, count)| inner * count).collect();
    let codecs = Codecs::random(random);
    let fill = |bytes: &[u8]| -> Value {
        match (data_type, bytes[0]) {
            ("bool", byte) => json!(byte == 1),
            ("complex64" | "complex128", byte) => json!([byte, byte]),
            (_, byte) => json!(byte),
        }
    };
    let fill_byte = random.below(2) as u8;
    let number = |value: u8| -> Vec<u8> {
        match data_type {
            "float32" | "complex64" => f32::from(value).to_le_bytes().to_vec(),
            "float64" | "complex128" => f64::from(value).to_le_bytes().to_vec(),
            _ => (0..part).map(|at| if at == 0 { value } else { 0 }).collect(),
        }
    };
    let filled = number(fill_byte).repeat(size / part);
    let seed = random.below(1000) as u64;
    let element = |index: u64| -> Vec<u8> {
        let random_byte =
            |at: usize| (index.wrapping_mul(2_654_435_761).wrapping_add(seed + at as u64 * 97) >> 7) as u8;
        match data_type {
            "bool" => vec![random_byte(0) & 1],
            _ => (0..size).map(random_byte).collect(),
        }
    };
    let grid: Vec<u64> = shape.iter().zip(&chunk).map(|(length, chunk)| length.div_ceil(*chunk)).collect();
    let mut wanted = filled.repeat(shape.iter().product::<u64>() as usize);
    let mut files = Vec::new();
    for at in 0..grid.iter().product::<u64>() {
        if random.below(5) == 0 {
            continue;
        }
        let corner: Vec<u64> = position(at, &grid).iter().zip(&chunk).map(|(at, chunk)| at * chunk).collect();
        let mut shard = Vec::new();
        let mut entries = Vec::new();
        for inner_at in 0..per_shard.iter().product::<u64>() {
            if sharded && random.below(5) == 0 {
                entries.push((u64::MAX, u64::MAX));
                continue;
            }
            let within = position(inner_at, &per_shard);
            let first: Vec<u64> =
                corner.iter().zip(&within).zip(&inner).map(|((corner, at), inner)| corner + at * inner).collect();
            let mut elements = Vec::new();
            for n in 0..inner.iter().product::<u64>() {
                let place: Vec<u64> = first.iter().zip(position(n, &inner)).map(|(first, at)| first + at).collect();
                let is_inside = place.iter().zip(&shape).all(|(at, length)| at < length);
                let bytes = if is_inside { element(index(&place, &shape)) } else { filled.clone() };
                if is_inside {
                    let start = index(&place, &shape) as usize * size;
                    wanted[start..start + size].copy_from_slice(&bytes);
                }
                elements.push(bytes);
            }
            let encoded = codecs.encode(elements, &inner, part);
            entries.push((shard.len() as u64, encoded.len() as u64));
            shard.extend(encoded);
        }
        if sharded {
            for (offset, length) in entries {
                shard.extend(offset.to_le_bytes().into_iter().chain(length.to_le_bytes()));
            }
        }
        let key: Vec<String> = position(at, &grid).iter().map(u64::to_string).collect();
        let key = std::iter::once("c".to_owned()).chain(key).collect::<Vec<_>>().join("/");
        files.push((format!("{name}/{key}"), shard));
    }
    let mut more = json!({"codecs": codecs.json(shape.len()), "fill_value": fill(&[fill_byte])});
    if sharded {
        let index_codecs = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
        let configuration =
            json!({"chunk_shape": inner, "codecs": codecs.json(shape.len()), "index_codecs": index_codecs});
        more["codecs"] = json!([{"name": "sharding_indexed", "configuration": configuration}]);
    }
    if random.below(2) == 0 {
        let names: Vec<String> = shape.iter().map(|_| format!("x{}", random.below(4))).collect();
        more["dimension_names"] = json!(names);
    }
    files.push((format!("{name}/zarr.json"), array(data_type, &shape, &chunk, &more)));
    Generated { name, files, wanted }
}

/// Compares every array of a generated repository with what the test encoded.
fn compare(directory: &Path, seed: u64, words: &[&str]) {
    let mut random = Random::new(seed);
    let arrays: Vec<Generated> = (0..60).map(|number| generate(&mut random, number)).collect();
    let mut files = vec![("zarr.json".to_owned(), group(&json!({})))];
    files.extend(arrays.iter().flat_map(|made| made.files.clone()));
    let files: Vec<(&str, Vec<u8>)> = files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())).collect();
    let repo = import(directory, &files);
    let mount = Mount::new(&repo, &[&["--view", "netcdf"], words].concat());
    let file = NcFile::open(mount.path().join("ocean.nc")).unwrap();
    for made in &arrays {
        let name = &made.name;
        let document = &made.files.last().unwrap().1;
        let found = file.read_variable_raw_bytes(name);
        let found = found.unwrap_or_else(|e| panic!("seed {seed}: {name}: {e}: {}", String::from_utf8_lossy(document)));
        assert!(found == made.wanted, "seed {seed}: {name}: {}", String::from_utf8_lossy(document));
    }
    assert_eq!(file.variables().unwrap().len(), arrays.len());
}

#[test]
fn another_reader_finds_every_element_of_generated_arrays() {
    for seed in [1, 2, 3] {
        compare(tempfile::tempdir().unwrap().path(), seed, &[]);
    }
    // The same elements along an unlimited dimension, and in a file of groups.
    compare(tempfile::tempdir().unwrap().path(), 4, &["--netcdf-record-dimension", "x1"]);
    compare(tempfile::tempdir().unwrap().path(), 5, &["--netcdf-groups", "nested"]);
}
