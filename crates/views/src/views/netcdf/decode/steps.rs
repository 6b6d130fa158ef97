//! Decoding of a zstd frame block by block, so that its beginning can be used before, or without,
//! the rest.
//!
//! Only of frames that say beforehand what they have: one frame that is all of the stored bytes,
//! with the length that the chunk must have, and without a checksum, which needs all of it. Any
//! other is decoded at once. Blocks are decoded to their place in the chunk, as they are when a
//! frame is decoded at once; that takes no longer.

use parking_lot::Mutex;
use rustix::thread::sched_getcpu;
use zstd::zstd_safe::{
    DCtx, DParameter, InBuffer, OutBuffer, ResetDirective, WriteBuf, get_error_name, get_frame_content_size,
};

use super::super::stored::Stored;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::growing::Grower;

/// Bytes of a frame that its decoder needs first, to know the length of its header
/// (`ZSTD_FRAMEHEADERSIZE_MIN`).
const START: usize = 5;
/// Most bytes of the header of a frame (RFC 8878, 3.1.1.1).
const MAX_HEADER: usize = 18;
/// Bytes of the header of a block.
const BLOCK_HEADER: usize = 3;
/// Bits of the byte after the magic number of a frame: a checksum at its end, and the length of the
/// number of a dictionary (RFC 8878, 3.1.1.1.1).
const CHECKSUM_OR_DICTIONARY: u8 = 0b111;
/// Bit of the same byte: no window descriptor follows.
const SINGLE_SEGMENT: u8 = 0b10_0000;
/// Fewest decoded bytes of a block, on average, of frames that are decoded block by block.
const MIN_BLOCK: usize = 1024;
/// Largest window, as a power of two: there is none beside the chunk itself, whose length is
/// bounded.
const MAX_WINDOW_LOG: u32 = 31;

/// Decoders whose memory is used again, at most one for each thread that decodes. New ones would
/// have page faults.
static UNUSED: Mutex<Vec<Decoder>> = Mutex::new(Vec::new());
/// Most of them.
const MAX_UNUSED: usize = 16;

/// Memory of a decoder.
struct Decoder {
    context: DCtx<'static>,
    /// Processor that used it last. Others would have to fetch it from its caches.
    processor: usize,
    /// Stored bytes of a file.
    buffer: Vec<u8>,
}

/// Decoder of one frame.
pub(in super::super) struct Steps {
    stored: Stored,
    /// Bytes of the frame that are decoded.
    at: u64,
    /// Bytes that the decoder takes next.
    next: usize,
    /// Made when it is needed, and gone when the frame is decoded.
    decoder: Option<Decoder>,
}

impl Decoder {
    fn new() -> Result<Self> {
        let here = sched_getcpu();
        let mut unused = UNUSED.lock();
        let last = unused.iter().rposition(|decoder| decoder.processor == here).or(unused.len().checked_sub(1));
        if let Some(last) = last {
            return Ok(unused.remove(last));
        }
        drop(unused);
        let no_memory = || Error::new(ErrorKind::OutOfMemory, "no memory for a decoder of compressed data");
        let mut context = DCtx::try_create().ok_or_else(no_memory)?;
        for setting in [DParameter::StableOutBuffer(true), DParameter::WindowLogMax(MAX_WINDOW_LOG)] {
            context.set_parameter(setting).map_err(damaged)?;
        }
        Ok(Decoder { context, processor: here, buffer: Vec::new() })
    }

    /// Leaves the decoder to others.
    fn recycle(mut self) {
        if self.context.reset(ResetDirective::SessionOnly).is_ok() {
            self.processor = sched_getcpu();
            let mut unused = UNUSED.lock();
            if unused.len() < MAX_UNUSED {
                unused.push(self);
            }
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(decoder) = self.decoder.take() {
            decoder.recycle();
        }
    }
}

fn damaged(code: usize) -> Error {
    Error::corrupt(format!("damaged compressed data: {}", get_error_name(code)))
}

impl Steps {
    /// Begins to decode `stored` to `length` bytes; none if it has to be decoded at once, also for
    /// its errors. On a thread that may block.
    pub(super) fn new(stored: Stored, length: usize) -> Result<Option<Self>> {
        let mut buffer = Vec::new();
        let header = stored.part(0, MAX_HEADER, &mut buffer)?;
        let is_as_long = get_frame_content_size(header).is_ok_and(|found| found == Some(length as u64));
        let Some(blocks) = header_length(header).filter(|_| is_as_long && length > 0) else { return Ok(None) };
        if !is_one_frame(&stored, blocks, length / MIN_BLOCK + 1)? {
            return Ok(None);
        }
        Ok(Some(Steps { stored, at: 0, next: START, decoder: None }))
    }

    /// Decodes the next block, of at most 128 KiB. `output` must be the one of the calls before.
    pub(in super::super) fn step(&mut self, output: &mut Grower) -> Result<()> {
        let before = output.made().len();
        let decoder = match &mut self.decoder {
            Some(decoder) => decoder,
            none => none.insert(Decoder::new()?),
        };
        // A frame and its blocks have headers, which yield no bytes.
        while output.made().len() == before {
            let input = self.stored.part(self.at, self.next, &mut decoder.buffer)?;
            if input.is_empty() {
                return Err(Error::corrupt("damaged compressed data: it ends early"));
            }
            let mut input = InBuffer::around(input);
            let mut block = Output(output);
            let mut block = OutBuffer::around_pos(&mut block, before);
            let next = decoder.context.decompress_stream(&mut block, &mut input);
            self.next = next.map_err(damaged)?;
            self.at += input.pos() as u64;
        }
        Ok(())
    }
}

/// Returns the length of the header of a frame; none if it has a checksum or a dictionary.
fn header_length(header: &[u8]) -> Option<u64> {
    let descriptor = *header.get(4)?;
    if descriptor & CHECKSUM_OR_DICTIONARY != 0 {
        return None;
    }
    let is_single = descriptor & SINGLE_SEGMENT != 0;
    let content_size = match descriptor >> 6 {
        0 => u64::from(is_single),
        flag => 1 << flag,
    };
    Some(START as u64 + u64::from(!is_single) + content_size)
}

/// Returns true if the frame whose blocks begin at `at` is all of `stored`, and has at most `most`
/// blocks.
fn is_one_frame(stored: &Stored, mut at: u64, most: usize) -> Result<bool> {
    let mut buffer = Vec::new();
    for _ in 0..most {
        let [first, second, third] = *stored.part(at, BLOCK_HEADER, &mut buffer)? else { return Ok(false) };
        let header = u32::from_le_bytes([first, second, third, 0]);
        let is_last = header & 1 == 1;
        let kind = header >> 1 & 0b11;
        let size = u64::from(header >> 3);
        // Raw, one repeated byte, compressed (RFC 8878, 3.1.1.2.2).
        at += BLOCK_HEADER as u64
            + match kind {
                1 => 1,
                0 | 2 => size,
                _ => return Ok(false),
            };
        if is_last {
            return Ok(at == stored.len());
        }
    }
    Ok(false)
}

/// Output of the decoder: all bytes of the chunk, as it refers to those that it has decoded.
struct Output<'a>(&'a mut Grower);

// SAFETY: the address is that of `capacity` bytes, which live as long as the grower and do not
// move; the first ones, `as_slice`, are initialized.
unsafe impl WriteBuf for Output<'_> {
    fn as_slice(&self) -> &[u8] {
        self.0.made()
    }

    fn capacity(&self) -> usize {
        self.0.length()
    }

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    unsafe fn filled_until(&mut self, count: usize) {
        // SAFETY: the caller has written them.
        unsafe { self.0.publish(count) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::io::Write;

    use bytes::Bytes;

    use super::*;
    use icechunkfs_base::memory::Reservation;
    use icechunkfs_base::memory::growing::GrowingBytes;

    /// Numbers that repeat at distances of more than a block.
    fn sample(length: usize) -> Vec<u8> {
        (0..length as u64).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 13 ^ (n % 300_007)) as u8 & 0x3F).collect()
    }

    fn frame(data: &[u8]) -> Bytes {
        zstd::bulk::compress(data, 3).unwrap().into()
    }

    /// Returns the decoder of bytes in memory or in a file.
    fn steps(stored: &Bytes, in_file: bool, length: usize) -> Option<Steps> {
        let stored = if in_file {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"before").unwrap();
            file.write_all(stored).unwrap();
            file.write_all(b"behind").unwrap();
            Stored::File { file, offset: 6, length: stored.len() as u64 }
        } else {
            Stored::Bytes(stored.clone())
        };
        Steps::new(stored, length).unwrap()
    }

    fn decode(stored: &Bytes, in_file: bool, length: usize) -> (Vec<usize>, Result<Vec<u8>>) {
        let (_bytes, mut grower) = GrowingBytes::create(length, Reservation::default());
        let mut steps = steps(stored, in_file, length).unwrap();
        let mut made = Vec::new();
        while grower.made().len() < length {
            if let Err(error) = steps.step(&mut grower) {
                return (made, Err(error));
            }
            made.push(grower.made().len());
        }
        (made, Ok(grower.made().to_vec()))
    }

    #[test]
    fn a_frame_is_decoded_block_by_block() {
        for length in [1, 1000, 128 << 10, (128 << 10) + 1, 1_000_000, 3 << 20] {
            for data in [sample(length), vec![7; length], (0..length).map(|n| (n * n / 77) as u8).collect()] {
                for in_file in [false, true] {
                    let (made, decoded) = decode(&frame(&data), in_file, length);
                    assert!(decoded.unwrap() == data, "{length}");
                    assert!(made.is_sorted() && made.len() >= length.div_ceil(128 << 10), "{made:?}");
                    assert!(made.first().is_some_and(|first| *first <= 128 << 10));
                }
            }
        }
    }

    #[test]
    fn the_rest_of_a_frame_is_not_touched_before_it_is_needed() {
        let data = sample(1 << 20);
        let mut stored = frame(&data).to_vec();
        let mut at = header_length(&stored).unwrap() as usize;
        let last = loop {
            let header = u32::from_le_bytes([stored[at], stored[at + 1], stored[at + 2], 0]);
            if header & 1 == 1 {
                break at;
            }
            at += BLOCK_HEADER + (header >> 3) as usize;
        };
        // The literals of the last block claim to be longer than the block.
        stored[last + 3] = 0xFF;
        stored[last + 4] = 0xFF;
        let (made, decoded) = decode(&stored.into(), false, data.len());
        let error = decoded.unwrap_err();
        assert!(error.to_string().contains("damaged compressed data"), "{error}");
        assert_eq!(made.last(), Some(&(data.len() - (128 << 10))));
    }

    #[test]
    fn frames_that_promise_nothing_are_decoded_at_once() {
        let data = sample(300_000);
        let stored = frame(&data);
        for in_file in [false, true] {
            let has_steps = |stored: &Bytes, length| steps(stored, in_file, length).is_some();
            assert!(has_steps(&stored, data.len()));
            // Another length, less, or more behind it.
            assert!(!has_steps(&stored, data.len() - 1) && !has_steps(&stored, data.len() + 1));
            assert!(!has_steps(&stored.slice(..stored.len() - 1), data.len()));
            assert!(!has_steps(&[stored.as_ref(), &stored].concat().into(), data.len()));
            assert!(!has_steps(&Bytes::new(), 0) && !has_steps(&Bytes::from_static(b"no frame at all"), 15));
            // A frame without its length, as a stream is written, and one with a checksum.
            assert!(!has_steps(&zstd::encode_all(data.as_slice(), 3).unwrap().into(), data.len()));
            let mut encoder = zstd::bulk::Compressor::new(3).unwrap();
            encoder.include_checksum(true).unwrap();
            assert!(!has_steps(&encoder.compress(&data).unwrap().into(), data.len()));
        }
    }

    #[test]
    fn a_damaged_frame_yields_what_a_decoder_of_whole_frames_yields_or_an_error() {
        let data = [sample(100_000), vec![3; 60_000], sample(140_000)].concat();
        let stored = frame(&data).to_vec();
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let mut same = 0;
        let mut failed = 0;
        for round in 0..600 {
            let mut damaged = stored.clone();
            for _ in 0..1 + round % 3 {
                // Headers first: they decide about memory.
                let at = if round % 2 == 0 { next(40) } else { next(damaged.len()) };
                damaged[at] = next(256) as u8;
            }
            let whole = zstd::bulk::decompress(&damaged, data.len()).ok().filter(|whole| whole.len() == data.len());
            let damaged = Bytes::from(damaged);
            if steps(&damaged, false, data.len()).is_none() {
                continue;
            }
            match (decode(&damaged, round % 5 == 0, data.len()).1, whole) {
                (Ok(decoded), Some(whole)) => {
                    assert!(decoded == whole, "{round}");
                    same += 1;
                }
                (Err(_), None) => failed += 1,
                // What follows the last byte of the chunk is not looked at.
                (Ok(_), None) => {}
                (Err(error), Some(_)) => unreachable!("{round}: {error}"),
            }
        }
        assert!(same > 20 && failed > 20, "{same} {failed}");
    }
}
