//! Ranges of a file for a process that does not have it: it asks for them over a socket.
//!
//! First comes the length of the file. A request has the number of ranges, and of each the position
//! and the number of bytes; it gets exactly those, one after another. Numbers have eight bytes, the
//! least one first.

#[cfg(feature = "apart")]
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;

use icechunkfs_base::error::{Error, ErrorKind, Result};
#[cfg(feature = "apart")]
use parking_lot::Mutex;

use crate::source::Source;

/// Bytes that are read and sent at a time: a request may be for more than memory has.
const PIECE: usize = 8 << 20;
/// Most ranges of one request.
const MAX_RANGES: usize = 512;
/// Most bytes that are sent for one file, in all. The index of ten million chunks has less; the
/// file says what is asked for, and the store may cost by the byte.
const MOST: u64 = 4 << 30;

/// File that another process has: that one answers.
#[cfg(feature = "apart")]
#[derive(Debug)]
pub(crate) struct Asked {
    /// Used as a file: of all calls for sockets it needs only `read` and `write`.
    socket: Mutex<File>,
    length: u64,
}

#[cfg(feature = "apart")]
impl Asked {
    /// Takes the socket, from which the length is read.
    ///
    /// Errors: as for reading.
    pub(crate) fn new(mut socket: File) -> Result<Self> {
        let length = number(&mut socket).map_err(lost)?;
        Ok(Asked { socket: Mutex::new(socket), length })
    }
}

#[cfg(feature = "apart")]
impl Source for Asked {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let request = [1, offset, into.len() as u64].map(u64::to_le_bytes).concat();
        let mut socket = self.socket.lock();
        socket.write_all(&request).and_then(|()| socket.read_exact(into)).map_err(lost)
    }

    fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::with_capacity(ranges.len());
        let mut socket = self.socket.lock();
        for some in batches(ranges) {
            let numbers = some.iter().flat_map(|range| [range.start, range.end.saturating_sub(range.start)]);
            let numbers = [some.len() as u64].into_iter().chain(numbers);
            socket.write_all(&numbers.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).map_err(lost)?;
            for range in some {
                let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
                let mut bytes = vec![0; length];
                socket.read_exact(&mut bytes).map_err(lost)?;
                found.push(bytes);
            }
        }
        Ok(found)
    }

    fn is_distant(&self) -> bool {
        true
    }
}

/// Divides `ranges` into requests that are answered as a whole.
#[cfg(feature = "apart")]
fn batches(ranges: &[Range<u64>]) -> Vec<&[Range<u64>]> {
    let mut left = ranges;
    let mut found = Vec::new();
    while !left.is_empty() {
        let mut bytes = 0_u64;
        let fits = |range: &&Range<u64>| {
            bytes = bytes.saturating_add(range.end.saturating_sub(range.start));
            bytes <= PIECE as u64
        };
        let count = left.iter().take(MAX_RANGES).take_while(fits).count().max(1);
        let (some, rest) = left.split_at(count);
        found.push(some);
        left = rest;
    }
    found
}

#[cfg(feature = "apart")]
fn lost(error: io::Error) -> Error {
    Error::io("the file, from the process that has it", error)
}

/// Answers the requests for ranges of `source` until the other process has ended.
///
/// Errors: as for reading; [`ErrorKind::Corrupt`] for bytes that the file does not have,
/// [`ErrorKind::Unsupported`] for more than a file needs.
pub(crate) fn answer(mut socket: UnixStream, source: &dyn Source) -> Result<()> {
    let mut left = MOST;
    let mut buffer = Vec::new();
    // If the socket fails, the other process has ended: its status says why.
    if socket.write_all(&source.length().to_le_bytes()).is_err() {
        return Ok(());
    }
    while let Ok(count) = number(&mut socket) {
        let count = usize::try_from(count).ok().filter(|count| *count <= MAX_RANGES);
        let count = count.ok_or_else(|| Error::corrupt("more ranges than one request has"))?;
        let mut ranges = Vec::with_capacity(count);
        for _ in 0..count {
            let Some((offset, length)) = request(&mut socket) else { return Ok(()) };
            let end = offset.checked_add(length).filter(|end| *end <= source.length());
            ranges.push(offset..end.ok_or_else(|| Error::corrupt("its parts are not in the file"))?);
            left = left.checked_sub(length).ok_or_else(|| {
                Error::new(ErrorKind::Unsupported, format!("more than {} GiB tell where its chunks are", MOST >> 30))
            })?;
        }
        let sent = match ranges.as_slice() {
            [range] => send(&mut socket, source, range.clone(), &mut buffer)?,
            ranges => send_together(&mut socket, source, ranges)?,
        };
        if !sent {
            return Ok(());
        }
    }
    Ok(())
}

/// Sends a range of any length. Returns false if the socket fails.
fn send(socket: &mut UnixStream, source: &dyn Source, range: Range<u64>, buffer: &mut Vec<u8>) -> Result<bool> {
    let mut at = range.start;
    while at < range.end {
        let piece = usize::try_from(range.end - at).unwrap_or(PIECE).min(PIECE);
        buffer.resize(piece, 0);
        source.read(at, buffer)?;
        if socket.write_all(buffer).is_err() {
            return Ok(false);
        }
        at += piece as u64;
    }
    Ok(true)
}

/// Sends ranges that are read at the same time. Returns false if the socket fails.
fn send_together(socket: &mut UnixStream, source: &dyn Source, ranges: &[Range<u64>]) -> Result<bool> {
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
    if bytes > PIECE as u64 {
        return Err(Error::corrupt("more bytes than one request has"));
    }
    let found = source.read_ranges(ranges)?;
    Ok(found.iter().all(|bytes| socket.write_all(bytes).is_ok()))
}

/// Returns the next range; none at the end.
fn request(socket: &mut impl Read) -> Option<(u64, u64)> {
    Some((number(socket).ok()?, number(socket).ok()?))
}

/// Reads a number as the processes write them to each other.
///
/// Errors: as for reading.
pub(crate) fn number(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
}

#[cfg(all(test, feature = "apart"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::source::testing::Bytes;

    /// Returns what `ask` returns, and what the process that answers has to say.
    fn asking<T>(source: &(impl Source + Sync), ask: impl FnOnce(Asked) -> T) -> (T, Result<()>) {
        let (own, theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| answer(own, source));
            let said = ask(Asked::new(OwnedFd::from(theirs).into()).unwrap());
            (said, answering.join().unwrap())
        })
    }

    #[test]
    fn any_range_comes_and_nothing_else() {
        let bytes = Bytes((0..=255).cycle().take(3 * PIECE + 7).collect());
        let read = |asked: Asked| {
            assert_eq!(asked.length(), bytes.length());
            [(0, 0), (3, 5), (100, PIECE), (7, 3 * PIECE), (bytes.0.len(), 0)].map(|(offset, length)| {
                let mut into = vec![0; length];
                asked.read(offset as u64, &mut into).unwrap();
                into == bytes.0.get(offset..offset + length).unwrap()
            })
        };
        let (same, answered) = asking(&bytes, read);
        assert_eq!((same, answered.is_ok()), ([true; 5], true));
    }

    #[test]
    fn ranges_come_together_in_their_order() {
        let bytes = Bytes((0..=255).cycle().take(2 * PIECE + 7).collect());
        let short = (0..2000).map(|number| 3 * number..3 * number + number % 40);
        let long = [0..PIECE as u64, 5..PIECE as u64 + 9, 7..7];
        let ranges: Vec<Range<u64>> = short.chain(long).collect();
        let (found, answered) = asking(&bytes, |asked: Asked| asked.read_ranges(&ranges).unwrap());
        answered.unwrap();
        assert_eq!(found, bytes.read_ranges(&ranges).unwrap());
        assert!(asking(&bytes, |asked: Asked| asked.read_ranges(&[]).unwrap()).0.is_empty());
    }

    #[test]
    fn requests_for_too_much_at_a_time_are_refused() {
        let file = Bytes(vec![0; PIECE + 1]);
        let many = [&[513][..], &[0; 1026]].concat();
        let long = [2, 0, 1, 0, PIECE as u64 + 1];
        let outside = [2, 0, 1, PIECE as u64, 2];
        for request in [many, long.to_vec(), outside.to_vec()] {
            let ask = |asked: Asked| {
                let bytes: Vec<u8> = request.iter().copied().flat_map(u64::to_le_bytes).collect();
                asked.socket.lock().write_all(&bytes).unwrap();
                asked.socket.lock().read_exact(&mut [0])
            };
            let (read, answered) = asking(&file, ask);
            assert_eq!(
                (read.is_err(), answered.unwrap_err().kind()),
                (true, ErrorKind::Corrupt),
                "{:?}",
                request.first()
            );
        }
    }

    #[test]
    fn what_the_file_lacks_and_more_than_it_needs_is_refused() {
        let file = Bytes(vec![0; 10]);
        for (offset, length) in [(8, 3), (u64::MAX, 1)] {
            let (read, answered) = asking(&file, |asked| asked.read(offset, &mut vec![0; length]));
            assert_eq!((read.unwrap_err().kind(), answered.unwrap_err().kind()), (ErrorKind::Io, ErrorKind::Corrupt));
        }
        /// File of any length, of zeros.
        struct Zeros;
        impl Source for Zeros {
            fn length(&self) -> u64 {
                u64::MAX
            }
            fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
                Ok(())
            }
        }
        let ask = |asked: Asked| {
            let mut into = vec![0; 1 << 30];
            (0..5).map(|_| asked.read(0, &mut into).is_ok()).collect::<Vec<bool>>()
        };
        let (read, answered) = asking(&Zeros, ask);
        assert_eq!(read, [true, true, true, true, false]);
        assert_eq!(answered.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
