//! Ranges of a file for a process that does not have it: it asks for them over a socket.
//!
//! First comes the length of the file. A request has the position and the number of bytes, and gets
//! exactly those. Numbers have eight bytes, the least one first.

#[cfg(feature = "hdf5")]
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use icechunkfs_base::error::{Error, ErrorKind, Result};
#[cfg(feature = "hdf5")]
use parking_lot::Mutex;

use crate::source::Source;

/// Bytes that are read and sent at a time: a request may be for more than memory has.
const PIECE: usize = 8 << 20;
/// Most bytes that are sent for one file, in all. The index of ten million chunks has less; the
/// file says what is asked for, and the store may cost by the byte.
const MOST: u64 = 4 << 30;

/// File that another process has: that one answers.
#[cfg(feature = "hdf5")]
#[derive(Debug)]
pub(crate) struct Asked {
    /// Used as a file: of all calls for sockets it needs only `read` and `write`.
    socket: Mutex<File>,
    length: u64,
}

#[cfg(feature = "hdf5")]
impl Asked {
    /// Takes the socket, from which the length is read.
    ///
    /// Errors: as for reading.
    pub(crate) fn new(mut socket: File) -> Result<Self> {
        let length = number(&mut socket).map_err(lost)?;
        Ok(Asked { socket: Mutex::new(socket), length })
    }
}

#[cfg(feature = "hdf5")]
impl Source for Asked {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let request = [offset.to_le_bytes(), (into.len() as u64).to_le_bytes()].concat();
        let mut socket = self.socket.lock();
        socket.write_all(&request).and_then(|()| socket.read_exact(into)).map_err(lost)
    }
}

#[cfg(feature = "hdf5")]
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
    while let Some((offset, length)) = request(&mut socket) {
        let end = offset.checked_add(length).filter(|end| *end <= source.length());
        let end = end.ok_or_else(|| Error::corrupt("its parts are not in the file"))?;
        left = left.checked_sub(length).ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, format!("more than {} GiB tell where its chunks are", MOST >> 30))
        })?;
        let mut at = offset;
        while at < end {
            let piece = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
            buffer.resize(piece, 0);
            source.read(at, &mut buffer)?;
            if socket.write_all(&buffer).is_err() {
                return Ok(());
            }
            at += piece as u64;
        }
    }
    Ok(())
}

/// Returns the next request; none at the end.
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

#[cfg(all(test, feature = "hdf5"))]
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
