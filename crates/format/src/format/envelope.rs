//! Reads and writes the 39-byte header and the compressed payload that every metadata file has
//! (spec, "Binary File Format").
//!
//! The version byte applies to one file: a repository migrated from version 1 keeps its old
//! snapshots and manifests under a version 2 `repo`. Version byte 1 does not imply a flatbuffer:
//! releases 0.1.0a10 to 0.1.3 wrote MessagePack behind the same header, which [`super::verified`]
//! reports.

use std::io::{Read, Write};

use parking_lot::Mutex;

use super::frame;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::{self, ReservedBytes};

/// Length of the header, in bytes: magic, implementation name, version, type, compression.
pub const HEADER_LEN: usize = 39;
/// Magic bytes: `ICE🧊CHUNK` in UTF-8.
pub const MAGIC: &[u8; 12] = b"ICE\xF0\x9F\xA7\x8ACHUNK";
/// Length of the implementation name, in bytes, padded with spaces.
const NAME_LEN: usize = 24;
/// Largest payload, in bytes: flatbuffer offsets are 32 bits and signed in places.
pub const MAX_PAYLOAD: u64 = (1 << 31) - 1;
/// Identifier at bytes 4..8 of every flatbuffer that releases from 0.2.0 on wrote.
pub const FILE_IDENTIFIER: &str = "Ichk";
/// Smallest first reservation for a payload of unstated size, and extra room whenever the payload
/// grows, in bytes.
const MIN_RESERVATION: u64 = 64 << 10;
/// Most bytes that a byte of a frame may expand to if it is decompressed in one go. Manifests
/// expand to 11 times their length, while a frame of tiny blocks only pretends to.
const MAX_DIRECT: u64 = 64;
/// Limit of decompressors that are kept, of some 100 kB each.
const MAX_UNUSED: usize = 4;
/// Compression level of zstd for metadata files, if the configuration sets none; the reference
/// implementation's default.
const DEFAULT_LEVEL: u8 = 3;
/// Highest level of zstd.
const MAX_LEVEL: u64 = 22;
/// Size, in bytes, from which several threads compress a payload; below it, starting them takes
/// longer.
const MULTITHREADED_FROM: usize = 4 << 20;
/// Limit of compression threads: a mount shares its machine with other programs.
const MAX_THREADS: usize = 8;

/// Version byte of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpecVersion {
    /// Libraries 0.2 to 1.x, and files that a migration kept.
    V1 = 1,
    /// Libraries from 2.0 on.
    V2 = 2,
}

impl SpecVersion {
    /// Returns the number that the header and `info` show.
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// File type byte of the header. No release wrote types 3 (attributes) and 5 (chunks); type 3 is
/// read nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// File below `snapshots/`.
    Snapshot = 1,
    /// File below `manifests/`.
    Manifest = 2,
    /// File below `attributes/`, before 0.2.
    Attributes = 3,
    /// File below `transactions/`.
    TransactionLog = 4,
    /// `repo` or one of its backups.
    RepoInfo = 6,
}

impl FileType {
    fn name(self) -> &'static str {
        match self {
            FileType::Snapshot => "snapshot",
            FileType::Manifest => "manifest",
            FileType::Attributes => "attributes",
            FileType::TransactionLog => "transaction log",
            FileType::RepoInfo => "repo info",
        }
    }
}

/// Decoded header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Program that wrote the file, such as `ic-2.3.0`; padding is removed.
    pub implementation: String,
    /// Format version of the payload.
    pub version: SpecVersion,
    /// Type of the file.
    pub file_type: FileType,
    /// True if zstd compressed the payload (1), false if it is plain (0).
    pub compressed: bool,
}

impl Header {
    /// Reads the header at the start of `file` and returns it with the bytes after it.
    pub fn parse(file: &[u8]) -> Result<(Header, &[u8])> {
        let Some((magic, rest)) = file.split_first_chunk::<12>() else {
            return Err(Error::corrupt(format!("{} bytes are too few for an Icechunk file", file.len())));
        };
        if magic != MAGIC {
            return Err(Error::corrupt("wrong magic: this is not an Icechunk file"));
        }
        let rest = rest.split_first_chunk::<NAME_LEN>();
        let rest = rest.and_then(|(name, rest)| Some((name, rest.split_first_chunk::<3>()?)));
        let Some((name, (&[version, file_type, compression], payload))) = rest else {
            return Err(Error::corrupt(format!("truncated: {} of {HEADER_LEN} bytes of the header", file.len())));
        };
        let unsupported = |why: String| Error::new(ErrorKind::Unsupported, why);
        let version = match version {
            1 => SpecVersion::V1,
            2 => SpecVersion::V2,
            other => {
                let why = "this program reads versions 1 and 2; a newer one may read it";
                return Err(unsupported(format!("Icechunk format version {other}: {why}")));
            }
        };
        use FileType::{Attributes, Manifest, RepoInfo, Snapshot, TransactionLog};
        let types = [Snapshot, Manifest, Attributes, TransactionLog, RepoInfo];
        let known = types.into_iter().find(|known| *known as u8 == file_type);
        let file_type = known.ok_or_else(|| Error::corrupt(format!("unknown file type {file_type}")))?;
        let compressed = match compression {
            0 => false,
            1 => true,
            other => return Err(unsupported(format!("unknown compression algorithm {other}"))),
        };
        let implementation = String::from_utf8_lossy(name).trim_end_matches([' ', '\0']).to_owned();
        Ok((Header { implementation, version, file_type, compressed }, payload))
    }
}

/// Reads a file of type `expected`, and returns its header and its decompressed payload of at most
/// `limit` bytes.
///
/// Fails with [`ErrorKind::OutOfMemory`] if the payload exceeds the caller's limit, and with
/// [`ErrorKind::Corrupt`] if it exceeds the format's limit ([`MAX_PAYLOAD`]).
pub fn decode(file: &[u8], expected: FileType, limit: u64) -> Result<(Header, ReservedBytes)> {
    let (header, body) = Header::parse(file)?;
    if header.file_type != expected {
        return Err(Error::corrupt(format!(
            "a {} file where a {} is expected",
            header.file_type.name(),
            expected.name()
        )));
    }
    let payload = decompress(body, header.compressed, expected, limit)?;
    Ok((header, payload))
}

/// Decompresses the payload of a file of type `expected`, like [`decode`]. Memory is reserved first
/// ([`icechunkfs_base::memory`]): as much as the file claims or its blocks can hold; where that is
/// too much to believe, the reservation doubles whenever the payload outgrows it.
pub(super) fn decompress(body: &[u8], is_compressed: bool, expected: FileType, limit: u64) -> Result<ReservedBytes> {
    let limit = limit.min(MAX_PAYLOAD);
    let what = format!("a {}", expected.name());
    if !is_compressed {
        let held = memory::reserve_blocking(check_length(body.len() as u64, expected, limit)?, &what)?;
        return Ok(ReservedBytes::new(body.to_vec(), held));
    }
    let damaged = |e| Error::with_source(ErrorKind::Corrupt, "the compressed payload is damaged", e);
    // Check the claim before any reservation: a few bytes may claim gigabytes.
    let claimed = frame::content_size(body);
    if claimed.is_some_and(|claimed| claimed > frame::max_expansion(body.len())) {
        return Err(Error::corrupt("the compressed payload claims to expand to more than its length allows"));
    }
    let bound = frame::bound(body)
        .filter(|bound| *bound <= limit.min(body.len() as u64 * MAX_DIRECT + frame::MAX_BLOCK_CONTENT));
    if let Some(bound) = bound {
        let mut held = memory::reserve_blocking(bound, &what)?;
        let mut payload = Vec::new();
        reserve(&mut payload, bound)?;
        decompress_frame(body, &mut payload).map_err(damaged)?;
        payload.shrink_to_fit();
        held.resize(payload.len() as u64, &what)?;
        return Ok(ReservedBytes::new(payload, held));
    }
    // Concatenated frames, checksums and absent content sizes are all in use: the streaming decoder
    // reads them all.
    let mut decoder = zstd::stream::read::Decoder::with_buffer(body)
        .map_err(|e| Error::with_source(ErrorKind::Corrupt, "zstd", e))?;
    let window = frame::window(body);
    let _window = memory::reserve_blocking(window, &what)?;
    decoder.window_log_max(window.next_power_of_two().ilog2()).map_err(damaged)?;
    let length = match claimed {
        Some(claimed) => check_length(claimed, expected, limit)?,
        None => (body.len() as u64).max(MIN_RESERVATION).min(limit),
    };
    let mut held = memory::reserve_blocking(length, &what)?;
    let mut payload = Vec::new();
    reserve(&mut payload, length)?;
    loop {
        let room = (payload.capacity() - payload.len()) as u64;
        decoder.by_ref().take(room).read_to_end(&mut payload).map_err(damaged)?;
        let mut next = [0];
        if (payload.len() as u64) < held.bytes() || decoder.read(&mut next).map_err(damaged)? == 0 {
            break;
        }
        let length = payload.len() as u64;
        check_length(length + 1, expected, limit)?;
        held.resize((2 * length + MIN_RESERVATION).min(limit), &what)?;
        reserve(&mut payload, held.bytes() - length)?;
        payload.extend(next);
    }
    payload.shrink_to_fit();
    held.resize(payload.len() as u64, &what)?;
    Ok(ReservedBytes::new(payload, held))
}

/// Decompresses one frame into the room that `payload` has. Without a window in between, this takes
/// two thirds of a stream's time.
fn decompress_frame(body: &[u8], payload: &mut Vec<u8>) -> std::io::Result<usize> {
    /// Decompressors to use again: to make one takes as long as to decompress 100 kB.
    static UNUSED: Mutex<Vec<zstd::bulk::Decompressor<'static>>> = Mutex::new(Vec::new());
    let unused = UNUSED.lock().pop();
    let mut decompressor = unused.map_or_else(zstd::bulk::Decompressor::new, Ok)?;
    let decompressed = decompressor.decompress_to_buffer(body, payload);
    let mut unused = UNUSED.lock();
    if unused.len() < MAX_UNUSED {
        unused.push(decompressor);
    }
    decompressed
}

/// Makes room for `more` bytes, which the machine may not have although the memory budget does.
fn reserve(payload: &mut Vec<u8>, more: u64) -> Result<()> {
    let reserved = payload.try_reserve_exact(usize::try_from(more).unwrap_or(usize::MAX));
    reserved.map_err(|e| Error::with_source(ErrorKind::OutOfMemory, format!("room for {more} bytes"), e))
}

/// Returns `length`, or fails if it exceeds `limit`.
fn check_length(length: u64, expected: FileType, limit: u64) -> Result<u64> {
    if length <= limit {
        return Ok(length);
    }
    if limit == MAX_PAYLOAD {
        return Err(Error::corrupt("the payload expands to more than the 2 GiB that the format allows"));
    }
    let name = expected.name();
    let left = limit >> 20;
    Err(Error::new(
        ErrorKind::OutOfMemory,
        format!("this {name} expands to more than the {left} MiB that the memory bound leaves for it; raise --memory"),
    ))
}

/// Compression level of zstd for the payloads of a repository's metadata files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression(u8);

impl Default for Compression {
    fn default() -> Self {
        Compression(DEFAULT_LEVEL)
    }
}

impl Compression {
    /// Returns the setting for `level`, of which zstd has 22; 0 is its default.
    pub fn of_level(level: u64) -> Self {
        Compression(level.min(MAX_LEVEL) as u8)
    }
}

/// Encodes a file of `version`. The payload is compressed, because the reference implementation
/// cannot read an uncompressed one; several threads compress a large payload, still as one frame.
pub fn encode(
    version: SpecVersion,
    file_type: FileType,
    payload: &[u8],
    Compression(level): Compression,
) -> Result<Vec<u8>> {
    let mut file = MAGIC.to_vec();
    let name = concat!("icechunkfs-", env!("CARGO_PKG_VERSION"));
    file.extend(name.bytes().chain(std::iter::repeat(b' ')).take(NAME_LEN));
    file.extend([version.number(), file_type as u8, 1]);
    let failed = |e| Error::with_source(ErrorKind::Io, "compressing", e);
    let mut encoder = zstd::stream::write::Encoder::new(file, i32::from(level)).map_err(failed)?;
    // For a small payload, zstd then takes small tables, of which the usual ones take a megabyte
    // and longer to clear than to use.
    encoder.set_pledged_src_size(Some(payload.len() as u64)).map_err(failed)?;
    if payload.len() >= MULTITHREADED_FROM {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
        encoder.multithread(threads as u32).map_err(failed)?;
    }
    encoder.write_all(payload).map_err(failed)?;
    encoder.finish().map_err(failed)
}

/// Returns true if `payload` has Icechunk's file identifier.
pub(super) fn has_identifier(payload: &[u8]) -> bool {
    payload.get(4..8) == Some(FILE_IDENTIFIER.as_bytes())
}

/// Returns the error for a payload that is not a valid flatbuffer; `detail` is the verifier's
/// message.
pub(super) fn unverified_error(payload: &[u8], detail: impl std::fmt::Display) -> Error {
    if has_identifier(payload) {
        Error::corrupt(format!("not a valid flatbuffer: {detail}"))
    } else {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "not a flatbuffer of a released format: it is damaged, or an Icechunk release before 0.2 wrote it into \
                 a repository of a later one ({detail})"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::super::testing::file_of as file;
    use super::*;

    #[test]
    fn files_survive_the_round_trip() {
        let file = encode(SpecVersion::V2, FileType::TransactionLog, b"payload", Compression::default()).unwrap();
        let (header, payload) = decode(&file, FileType::TransactionLog, 100).unwrap();
        assert!(header.implementation.starts_with("icechunkfs-") && header.compressed);
        assert_eq!((header.version, &*payload), (SpecVersion::V2, b"payload".as_slice()));
    }

    #[test]
    fn a_higher_level_makes_smaller_files() {
        let payload: Vec<u8> = (0..100_000_u32).flat_map(|n| n.wrapping_mul(n).to_le_bytes()).collect();
        let length = |level| {
            let file = encode(SpecVersion::V2, FileType::Snapshot, &payload, Compression::of_level(level)).unwrap();
            assert_eq!(*decode(&file, FileType::Snapshot, 1 << 20).unwrap().1, payload[..]);
            file.len()
        };
        assert!(length(19) < length(3) && length(3) == length(0) && length(22) == length(255));
    }

    #[test]
    fn expansion_is_bounded() {
        let bomb = zstd::encode_all(std::io::repeat(0).take(10 << 20), 3).unwrap();
        let bytes = file(2, 2, 1, &bomb);
        let error = decode(&bytes, FileType::Manifest, 1 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(decode(&bytes, FileType::Manifest, 10 << 20).unwrap().1.len(), 10 << 20);
        assert!(
            decode(&bytes, FileType::Snapshot, 10 << 20).unwrap_err().to_string().contains("a manifest file where")
        );
    }

    #[test]
    fn several_frames_are_one_payload() {
        // A frame that is not the only one is read as a stream, any other at once.
        let mut body = zstd::encode_all(&b"one "[..], 3).unwrap();
        assert_eq!(decode(&file(1, 1, 1, &body), FileType::Snapshot, 100).unwrap().1[..], *b"one ");
        assert_eq!(decode(&file(1, 1, 1, &body), FileType::Snapshot, 1 << 20).unwrap().1[..], *b"one ");
        body.extend(zstd::encode_all(&b"two"[..], 3).unwrap());
        assert_eq!(decode(&file(1, 1, 1, &body), FileType::Snapshot, 100).unwrap().1[..], *b"one two");
    }
}
