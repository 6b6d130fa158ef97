//! Large chunks in NetCDF files: they are decoded only as far as programs read them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use netcdf_reader::NcFile;
use serde_json::json;

use super::netcdf::{array, group, import};
use crate::common::Mount;

/// Numbers with noise, of which zstd makes blocks of all kinds, at `(row, column)`.
fn value(row: u64, column: u64) -> i32 {
    let noise = (row * 92_821 + column * 68_917) % 1009;
    match column / 700 % 3 {
        0 => (noise * noise) as i32,
        1 => row as i32,
        _ => (noise % 7) as i32 - 3,
    }
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(bytes, 3).unwrap()
}

/// Array of two dimensions of `shape` whose chunks of `chunk` are zstd frames, or shards of inner
/// chunks that are.
#[derive(Clone, Copy)]
struct Large {
    shape: [u64; 2],
    chunk: [u64; 2],
    is_big_endian: bool,
    is_sharded: bool,
}

impl Large {
    /// Returns the encoded chunk at `(row, column)` of the grid, elements beyond the array
    /// included.
    fn chunk(&self, row: u64, column: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for i in 0..self.chunk[0] {
            for j in 0..self.chunk[1] {
                let value = value(row * self.chunk[0] + i, column * self.chunk[1] + j);
                bytes.extend(if self.is_big_endian { value.to_be_bytes() } else { value.to_le_bytes() });
            }
        }
        frame(&bytes)
    }

    fn files(&self, name: &str) -> Vec<(String, Vec<u8>)> {
        let grid = [0, 1].map(|axis| self.shape[axis].div_ceil(self.chunk[axis]));
        let endian = if self.is_big_endian { "big" } else { "little" };
        let inner = json!([{"name": "bytes", "configuration": {"endian": endian}}, "zstd"]);
        let mut files = Vec::new();
        let (chunks, codecs) = if self.is_sharded {
            // One shard, its index at the end.
            let mut shard = Vec::new();
            let mut index = Vec::new();
            for number in 0..grid[0] * grid[1] {
                let chunk = self.chunk(number / grid[1], number % grid[1]);
                index.extend([shard.len() as u64, chunk.len() as u64].map(u64::to_le_bytes).concat());
                shard.extend(chunk);
            }
            shard.extend(index);
            files.push((format!("{name}/c/0/0"), shard));
            let plain = json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
            let configuration =
                json!({"chunk_shape": self.chunk, "codecs": inner, "index_codecs": plain, "index_location": "end"});
            let codecs = json!([{"name": "sharding_indexed", "configuration": configuration}]);
            ([0, 1].map(|axis| grid[axis] * self.chunk[axis]), codecs)
        } else {
            for row in 0..grid[0] {
                for column in 0..grid[1] {
                    files.push((format!("{name}/c/{row}/{column}"), self.chunk(row, column)));
                }
            }
            (self.chunk, inner)
        };
        files.push((format!("{name}/zarr.json"), array("int32", &self.shape, &chunks, &json!({"codecs": codecs}))));
        files
    }
}

fn imported(directory: &Path, files: &[(String, Vec<u8>)]) -> PathBuf {
    let mut all: Vec<(&str, Vec<u8>)> = vec![("zarr.json", group(&json!({})))];
    all.extend(files.iter().map(|(key, bytes)| (key.as_str(), bytes.clone())));
    import(directory, &all)
}

#[test]
fn large_chunks_have_the_right_values_in_any_order_of_reads() {
    let directory = tempfile::tempdir().unwrap();
    let plain = Large { shape: [900, 1800], chunk: [300, 1000], is_big_endian: false, is_sharded: false };
    let variants = [
        ("plain", Large { shape: [900, 2000], ..plain }),
        // Edge chunks reach beyond the array in both dimensions.
        ("cut", Large { shape: [850, 1800], ..plain }),
        ("big", Large { shape: [900, 2000], is_big_endian: true, ..plain }),
        ("bigcut", Large { shape: [850, 1999], is_big_endian: true, ..plain }),
        ("shards", Large { is_sharded: true, ..plain }),
    ];
    let files: Vec<_> = variants.iter().flat_map(|(name, large)| large.files(name)).collect();
    let repo = imported(directory.path(), &files);
    let whole = {
        let mount = Mount::new(&repo, &["--view", "netcdf"]);
        let path = mount.path().join("ocean.nc");
        let file = NcFile::open(&path).unwrap();
        for (name, large) in &variants {
            let found = file.read_variable::<i32>(name).unwrap();
            assert_eq!(found.shape(), large.shape.map(|length| length as usize), "{name}");
            let wrong = found.indexed_iter().find(|(at, found)| **found != value(at[0] as u64, at[1] as u64));
            assert!(wrong.is_none(), "{name} {wrong:?}");
        }
        fs::read(&path).unwrap()
    };
    // Reads at random places of a new mount, by several threads, with and without much memory.
    for memory in ["512M", "32M"] {
        let mount = Mount::new(&repo, &["--view", "netcdf", "-o", &format!("memory={memory}")]);
        let file = fs::File::open(mount.path().join("ocean.nc")).unwrap();
        std::thread::scope(|scope| {
            for seed in 1..=3_u64 {
                let file = &file;
                let whole = &whole;
                scope.spawn(move || {
                    let mut random = seed;
                    for _ in 0..150 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let length = 1 + (random >> 33) as usize % 200_000;
                        let at = (random >> 20) as usize % (whole.len() - length);
                        let mut read = vec![0; length];
                        file.read_exact_at(&mut read, at as u64).unwrap();
                        assert!(read == whole[at..at + length], "{length} bytes at {at} with {memory}");
                    }
                });
            }
        });
    }
}

/// Returns the place of the last block of a frame that says how long its content is.
fn last_block(frame: &[u8]) -> usize {
    let is_single = frame[4] & 0x20 != 0;
    let mut at = 5 + usize::from(!is_single) + [usize::from(is_single), 2, 4, 8][usize::from(frame[4] >> 6)];
    loop {
        let header = u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], 0]);
        if header & 1 == 1 {
            return at;
        }
        at += 3 + if header >> 1 & 3 == 1 { 1 } else { (header >> 3) as usize };
    }
}

#[test]
fn damage_of_a_large_chunk_spoils_only_what_comes_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let large = Large { shape: [600, 1000], chunk: [300, 1000], is_big_endian: false, is_sharded: false };
    let mut files = large.files("t");
    let damaged = &mut files.iter_mut().find(|(key, _)| key == "t/c/0/0").unwrap().1;
    let last = last_block(damaged);
    damaged[last + 3..last + 5].fill(0xFF);
    // Groups with a frame that ends early, one that has less than its chunk, and one with another
    // behind it.
    let values: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut short = frame(&values);
    short.truncate(last_block(&short));
    let less = frame(&values[..values.len() - 4]);
    let more = [frame(&values), frame(&values)].concat();
    for (name, bytes) in [("short", short), ("less", less), ("more", more)] {
        let codecs = json!({"codecs": ["bytes", "zstd"]});
        files.push((format!("{name}/zarr.json"), group(&json!({}))));
        files.push((format!("{name}/v/zarr.json"), array("int32", &[300, 1000], &[300, 1000], &codecs)));
        files.push((format!("{name}/v/c/0/0"), bytes));
    }
    let repo = imported(directory.path(), &files);
    let mount = Mount::new(&repo, &["--view", "netcdf"]);
    // Data are at the end of each file, each chunk of several on pages of its own.
    let read = |name: &str, rows: u64, row: u64| {
        let file = fs::File::open(mount.path().join(name)).unwrap();
        let slot = if rows > 300 { 1_200_000_u64.next_multiple_of(4096) } else { 1_200_000 };
        let begin = file.metadata().unwrap().len() - rows / 300 * slot;
        let mut bytes = vec![0; 4000];
        let read = file.read_exact_at(&mut bytes, begin + row / 300 * slot + row % 300 * 4000);
        read.map(|()| bytes.as_chunks::<4>().0.iter().map(|number| i32::from_le_bytes(*number)).collect::<Vec<_>>())
    };
    let wanted = |row| (0..1000).map(|column| value(row, column)).collect::<Vec<_>>();
    for row in [0, 30, 300, 599] {
        assert_eq!(read("ocean.nc", 600, row).unwrap(), wanted(row), "{row}");
    }
    let is_eio = |error: std::io::Error| error.raw_os_error() == Some(libc::EIO);
    assert!(is_eio(read("ocean.nc", 600, 299).unwrap_err()));
    // What comes before is still there, and the failure has been recorded.
    assert_eq!(read("ocean.nc", 600, 10).unwrap(), wanted(10));
    let errors = fs::read_to_string(mount.path().join(".icechunk/errors")).unwrap();
    assert!(errors.contains("t/c/0/0"), "{errors}");
    // Whether the length is right is known before the first byte is shown.
    for name in ["short", "less", "more"] {
        assert!(is_eio(read(&format!("{name}.nc"), 300, 0).unwrap_err()), "{name}");
    }
}
