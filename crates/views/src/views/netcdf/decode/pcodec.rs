//! Numbers that pcodec has compressed, in its standalone form.
//!
//! The outer form is read here, and the rest by the `pco` crate: so a claimed length is known
//! before memory is allocated for it.

use pco::data_types::{Number, NumberType as PcoType};
use pco::metadata::DeltaEncoding;
use pco::wrapped::FileDecompressor;

use super::number::NumberType;
use icechunkfs_base::error::{Error, Result};

/// First bytes of standalone data.
const MAGIC: &[u8] = b"pco!";
/// First version with an outer form of its own, and the first one that names the type of all
/// numbers.
const OWN_FORM: u8 = 2;
const WITH_TYPE: u8 = 3;
/// Newest version.
const LATEST: u8 = 3;
/// Type of a chunk that ends the data.
const END: u8 = 0;
/// Bytes before the metadata of a chunk: the type of its numbers, and their count.
const CHUNK_HEADER: usize = 4;
/// Bits of the mode of a chunk, and of the length of its dictionary, in the first bytes of its
/// metadata.
const MODE_BITS: u32 = 4;
const DICTIONARY_BITS: u32 = 25;
/// Mode with a dictionary.
const DICTIONARY: u32 = 4;
/// Largest window in which numbers are repeated, as a power of two: encoders make none larger.
const MAX_WINDOW_LOG: u32 = 15;
/// Fewest numbers that are read at once, unless they are the last ones.
const BATCH: usize = 256;

/// Most bytes of memory beside the numbers: windows of repeated numbers, tables, and a dictionary,
/// which is no longer than the stored bytes.
pub(super) const MEMORY: usize = 4 << 20;

/// Decompresses `stored` to exactly `length` bytes of numbers, little-endian.
pub(super) fn decompress(stored: &[u8], of: NumberType, length: usize) -> Result<Vec<u8>> {
    match of {
        NumberType::Int { size: 1, signed: true } => numbers(stored, length, i8::to_le_bytes),
        NumberType::Int { size: 2, signed: true } => numbers(stored, length, i16::to_le_bytes),
        NumberType::Int { size: 4, signed: true } => numbers(stored, length, i32::to_le_bytes),
        NumberType::Int { signed: true, .. } => numbers(stored, length, i64::to_le_bytes),
        NumberType::Int { size: 1, .. } => numbers(stored, length, u8::to_le_bytes),
        NumberType::Int { size: 2, .. } => numbers(stored, length, u16::to_le_bytes),
        NumberType::Int { size: 4, .. } => numbers(stored, length, u32::to_le_bytes),
        NumberType::Int { .. } => numbers(stored, length, u64::to_le_bytes),
        NumberType::Float16 => numbers(stored, length, half::f16::to_le_bytes),
        NumberType::Float32 => numbers(stored, length, f32::to_le_bytes),
        NumberType::Float64 => numbers(stored, length, f64::to_le_bytes),
        NumberType::Bool => Err(Error::corrupt("compressed booleans")),
    }
}

fn damaged(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("damaged compressed data: {error}"))
}

/// Decompresses numbers of one type.
fn numbers<T: Number + Default, const N: usize>(
    stored: &[u8],
    length: usize,
    to_bytes: fn(T) -> [u8; N],
) -> Result<Vec<u8>> {
    let (file, mut rest) = FileDecompressor::new(header(stored)?).map_err(damaged)?;
    let mut decoded = Vec::with_capacity(length);
    let mut batch = vec![T::default(); BATCH];
    loop {
        let (kind, after) = rest.split_first().ok_or_else(|| damaged("it ends early"))?;
        if *kind == END {
            break;
        }
        if *kind != PcoType::new::<T>() as u8 {
            return Err(damaged("numbers of another type"));
        }
        let count = after.first_chunk::<3>().ok_or_else(|| damaged("it ends early"))?;
        let [low, middle, high] = *count;
        let mut left = u32::from_le_bytes([low, middle, high, 0]) as usize + 1;
        if left * N > length - decoded.len() {
            return Err(damaged(format!("more than {length} bytes")));
        }
        let metadata = rest.get(CHUNK_HEADER..).unwrap_or_default();
        check_dictionary(metadata, N)?;
        let (mut chunk, after) = file.chunk_decompressor::<T, _>(metadata).map_err(damaged)?;
        if let DeltaEncoding::Lookback { config, .. } = &chunk.meta().delta_encoding
            && config.window_n_log > MAX_WINDOW_LOG
        {
            return Err(damaged("a window that no encoder makes"));
        }
        let mut page = chunk.page_decompressor(after, left).map_err(damaged)?;
        while left > 0 {
            let progress = page.read(&mut batch).map_err(damaged)?;
            let read = progress.n_processed.min(left);
            if read == 0 {
                return Err(damaged("it ends early"));
            }
            batch.iter().take(read).for_each(|number| decoded.extend(to_bytes(*number)));
            left -= read;
        }
        rest = page.into_src();
    }
    if decoded.len() == length {
        Ok(decoded)
    } else {
        Err(damaged(format!("{} bytes instead of {length}", decoded.len())))
    }
}

/// Returns what follows the outer header: a hint at the count of numbers, which is only a hint.
fn header(stored: &[u8]) -> Result<&[u8]> {
    let rest = stored.strip_prefix(MAGIC).ok_or_else(|| damaged("it is not data of pcodec"))?;
    let early = || damaged("it ends early");
    let version = *rest.first().ok_or_else(early)?;
    if version > LATEST {
        return Err(damaged(format!("version {version} of pcodec")));
    }
    if version < OWN_FORM {
        // The number is that of the inner form.
        return Ok(rest);
    }
    let hint = rest.get(if version >= WITH_TYPE { 2 } else { 1 }..).ok_or_else(early)?;
    // Six bits tell how many bits follow, less one.
    let bits = 6 + 1 + usize::from(*hint.first().ok_or_else(early)? & 0x3F);
    hint.get(bits.div_ceil(8)..).ok_or_else(early)
}

/// Checks that a dictionary of numbers of `size` bytes can be in `metadata`, before there is memory
/// for it.
fn check_dictionary(metadata: &[u8], size: usize) -> Result<()> {
    let bits = metadata.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let count = (bits >> MODE_BITS) & ((1 << DICTIONARY_BITS) - 1);
    if bits & ((1 << MODE_BITS) - 1) == DICTIONARY && (count as usize).saturating_mul(size) > metadata.len() {
        return Err(damaged("a dictionary that is longer than the data"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use pco::standalone::simple_compress;
    use pco::{ChunkConfig, DeltaSpec, ModeSpec};

    const FLOAT: NumberType = NumberType::Float32;

    fn compressed(numbers: &[f32], config: &ChunkConfig) -> Vec<u8> {
        simple_compress(numbers, config).unwrap()
    }

    fn bytes(numbers: &[f32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn sample() -> Vec<f32> {
        (0..1000_u32).map(|n| (n * n % 977) as f32 / 4.0).collect()
    }

    #[test]
    fn numbers_of_each_form_are_decompressed() {
        let numbers = sample();
        for config in [
            ChunkConfig::default(),
            ChunkConfig::default().with_delta_spec(DeltaSpec::TryLookback),
            ChunkConfig::default().with_delta_spec(DeltaSpec::TryConsecutive(2)),
            ChunkConfig::default().with_mode_spec(ModeSpec::Classic),
            ChunkConfig::default().with_paging_spec(pco::PagingSpec::EqualPagesUpTo(100)),
        ] {
            let stored = compressed(&numbers, &config);
            assert_eq!(decompress(&stored, FLOAT, 4000).unwrap(), bytes(&numbers), "{config:?}");
            // Neither more nor less than the chunk has, nor other numbers.
            assert!(decompress(&stored, FLOAT, 3996).is_err() && decompress(&stored, FLOAT, 4004).is_err());
            assert!(decompress(&stored, NumberType::Int { size: 4, signed: true }, 4000).is_err());
        }
        let half: Vec<half::f16> = [1.0, -2.5].map(half::f16::from_f32).to_vec();
        let stored = simple_compress(&half, &ChunkConfig::default()).unwrap();
        assert_eq!(decompress(&stored, NumberType::Float16, 4).unwrap(), [0, 0x3C, 0, 0xC1]);
        let stored = simple_compress(&[7_i8, -7], &ChunkConfig::default().with_enable_8_bit(true)).unwrap();
        assert_eq!(decompress(&stored, NumberType::Int { size: 1, signed: true }, 2).unwrap(), [7, 0xF9]);
    }

    #[test]
    fn damaged_data_are_an_error() {
        let numbers = sample();
        let lookback = ChunkConfig::default().with_delta_spec(DeltaSpec::TryLookback);
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for config in [ChunkConfig::default(), lookback] {
            let stored = compressed(&numbers, &config);
            for length in 0..stored.len() {
                assert!(decompress(&stored[..length], FLOAT, 4000).is_err(), "{length}");
            }
            for round in 0..3000 {
                let mut damaged = stored.clone();
                let within = if round % 2 == 0 { 60 } else { stored.len() };
                damaged[next(within)] = next(256) as u8;
                // Other numbers, or an error: no panic.
                if let Ok(decoded) = decompress(&damaged, FLOAT, 4000) {
                    assert_eq!(decoded.len(), 4000);
                }
            }
        }
        // A dictionary of 2^25 - 1 numbers.
        let bomb =
            [b"pco!\x03\x05\x00\x04\x01".as_slice(), &[5, 1, 0, 0], &[0xF4, 0xFF, 0xFF, 0x1F], &[0; 40]].concat();
        assert!(decompress(&bomb, NumberType::Float64, 16).is_err());
    }
}
