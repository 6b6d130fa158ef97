//! Flag of a dataset whose chunks at the edges have passed no filter.
//!
//! The library does not show it, so that the header of the dataset is read once more, as far as the
//! message of the layout (HDF5 specification, "Data Object Headers" and "Data Layout
//! Message", version 4).

use hdf5_reader::Hdf5File;
use hdf5_reader::error::Error as LibraryError;
use hdf5_reader::io::Cursor;

/// Types of messages.
const LAYOUT: u16 = 8;
const CONTINUATION: u16 = 16;
/// Flag of a header: messages have the order in which they were made.
const HAS_ORDER: u8 = 0x04;
/// Flag of a header: it has numbers that say when attributes are stored elsewhere.
const HAS_LIMITS: u8 = 0x10;
/// Flag of a header: it has four times.
const HAS_TIMES: u8 = 0x20;
/// Flag of a layout.
const EDGES_ARE_PLAIN: u8 = 0x01;
/// Class of a layout with chunks.
const CHUNKED: u8 = 2;
/// Most parts of a header. The library takes no more.
const MAX_PARTS: usize = 1024;
/// Bytes of the checksum of a part.
const CHECKSUM: u64 = 4;

/// Form of the parts of a header.
#[derive(Clone, Copy)]
enum Form {
    /// Version 1: heads of eight bytes, and no checksums.
    Old,
    /// Version 2, with the order of messages or without.
    New { has_order: bool },
}

/// Returns true if the chunks of the dataset with the header at `address` that reach beyond its
/// shape have passed no filter; none if the header does not say how its chunks lie.
pub(super) fn are_plain(file: &Hdf5File, address: u64) -> Result<Option<bool>, LibraryError> {
    /// Bytes in which the length of the first part is.
    const HEAD: u64 = 34;
    let superblock = file.superblock();
    let left = file.storage().len().saturating_sub(address);
    let head = file.storage().read_range(address, usize::try_from(HEAD.min(left)).unwrap_or_default())?;
    let (form, begin, length) = first_part(&head)?;
    let mut parts = vec![(address.saturating_add(begin), length)];
    let mut next = 0;
    while let Some((at, length)) = parts.get(next).copied().filter(|_| next < MAX_PARTS) {
        next += 1;
        let part = file.storage().read_range(at, usize::try_from(length).unwrap_or(usize::MAX))?;
        let mut cursor = Cursor::new(&part);
        while let Some((kind, message)) = message(form, &mut cursor)? {
            match (kind, message) {
                (LAYOUT, [4 | 5, CHUNKED, flags, ..]) => return Ok(Some(flags & EDGES_ARE_PLAIN != 0)),
                (CONTINUATION, message) => {
                    let mut cursor = Cursor::new(message);
                    let at = cursor.read_offset(superblock.offset_size)?;
                    let length = cursor.read_length(superblock.length_size)?;
                    parts.push(match form {
                        Form::Old => (at, length),
                        Form::New { .. } => (at.saturating_add(4), length.saturating_sub(4 + CHECKSUM)),
                    });
                }
                _ => {}
            }
        }
    }
    Ok(None)
}

/// Returns the form of a header that begins with `head`, and where its first part begins in it,
/// with its length.
fn first_part(head: &[u8]) -> Result<(Form, u64, u64), LibraryError> {
    let mut cursor = Cursor::new(head);
    if cursor.peek_bytes(4)? != b"OHDR" {
        cursor.skip(8)?;
        // Padded to a multiple of eight bytes.
        return Ok((Form::Old, 16, cursor.read_u32_le()?.into()));
    }
    cursor.skip(5)?;
    let flags = cursor.read_u8()?;
    cursor.skip(if flags & HAS_TIMES == 0 { 0 } else { 16 })?;
    cursor.skip(if flags & HAS_LIMITS == 0 { 0 } else { 4 })?;
    let length = cursor.read_uvar(1 << (flags & 3))?;
    Ok((Form::New { has_order: flags & HAS_ORDER != 0 }, cursor.position(), length))
}

/// Returns the next message of a part, with its type; none at the end.
fn message<'a>(form: Form, cursor: &mut Cursor<'a>) -> Result<Option<(u16, &'a [u8])>, LibraryError> {
    let head = match form {
        Form::Old => 8,
        Form::New { has_order: false } => 4,
        Form::New { has_order: true } => 6,
    };
    // Less than the head of a message is a gap.
    if cursor.remaining() < head {
        return Ok(None);
    }
    let (kind, rest) = match form {
        Form::Old => (cursor.read_u16_le()?, 4),
        Form::New { has_order } => (cursor.read_u8()?.into(), if has_order { 3 } else { 1 }),
    };
    let size = cursor.read_u16_le()?;
    cursor.skip(rest)?;
    cursor.read_bytes(size.into()).map(|message| Some((kind, message)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_both_forms() {
        let found = |form, bytes: &[u8]| {
            let mut cursor = Cursor::new(bytes);
            let mut all = Vec::new();
            while let Some((kind, message)) = message(form, &mut cursor).unwrap() {
                all.push((kind, message.to_vec()));
            }
            all
        };
        let expected = [(8, vec![4, 2, 1]), (16, vec![])];
        assert_eq!(found(Form::Old, &[8, 0, 3, 0, 0, 0, 0, 0, 4, 2, 1, 16, 0, 0, 0, 0, 0, 0, 0, 9]), expected);
        assert_eq!(found(Form::New { has_order: false }, &[8, 3, 0, 0, 4, 2, 1, 16, 0, 0, 0, 9, 9]), expected);
        assert_eq!(found(Form::New { has_order: true }, &[8, 3, 0, 0, 7, 0, 4, 2, 1, 16, 0, 0, 0, 8, 0]), expected);
        assert!(message(Form::Old, &mut Cursor::new(&[8, 0, 3, 0, 0, 0, 0, 0, 4])).is_err());
    }

    #[test]
    fn the_first_part_begins_behind_what_flags_say() {
        let first = |head: &[u8]| first_part(head).map(|(_, begin, length)| (begin, length)).unwrap();
        assert_eq!(first(b"OHDR\x02\x00\x20"), (7, 32));
        assert_eq!(first(&[b"OHDR\x02\x31".as_slice(), &[0; 20], &[0, 1]].concat()), (28, 256));
        assert_eq!(first(&[1, 0, 5, 0, 1, 0, 0, 0, 200, 0, 0, 0, 0, 0, 0, 0]), (16, 200));
        assert!(first_part(b"OHDR\x02\x31").is_err());
    }
}
