//! Reads the memory that a zstd frame needs from its header (RFC 8878, 3.1.1).

/// Smallest window, in bytes; also that of a damaged frame, which will fail to decompress.
const MIN_WINDOW: u64 = 1 << 10;
/// Largest window that the decoder accepts by default, in bytes.
const MAX_WINDOW: u64 = 1 << 27;

/// Smallest block, in bytes: its header (RFC 8878, 3.1.1.2).
const MIN_BLOCK: u64 = 3;
/// Most bytes that a block expands to.
pub(super) const MAX_BLOCK_CONTENT: u64 = 128 << 10;

/// Returns the most bytes that a frame of `length` bytes can expand to, whatever its header claims.
pub(super) fn max_expansion(length: usize) -> u64 {
    (length as u64 / MIN_BLOCK).saturating_mul(MAX_BLOCK_CONTENT)
}

/// Returns the size to which the first frame of `body` expands, in bytes, if its header states it.
pub(super) fn content_size(body: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(body).ok().flatten()
}

/// Returns the most bytes that `body` expands to, if it is one frame and nothing else: the size
/// that its header states, or what its blocks can hold. The reference implementation states no
/// size, and fills all blocks but the last.
pub(super) fn bound(body: &[u8]) -> Option<u64> {
    let &descriptor = body.get(4)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let dictionary_id = [0, 1, 2, 4].get(usize::from(descriptor & 3))?;
    let content_size = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        flag => 1 << flag,
    };
    let checksum = if descriptor & 4 != 0 { 4 } else { 0 };
    let mut at = 5 + usize::from(!is_single_segment) + dictionary_id + content_size;
    let mut blocks = 0;
    loop {
        let header = body.get(at..)?.first_chunk::<3>()?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let length = match header >> 1 & 3 {
            // One byte, repeated.
            1 => 1,
            _ => usize::try_from(header >> 3).ok()?,
        };
        at = at.checked_add(3 + length)?;
        blocks += 1;
        if header & 1 != 0 {
            break;
        }
    }
    (at + checksum == body.len()).then(|| self::content_size(body).unwrap_or(blocks * MAX_BLOCK_CONTENT))
}

/// Returns the size of the window that decompressing the first frame of `body` needs, in bytes.
pub(super) fn window(body: &[u8]) -> u64 {
    let stated = match body.get(4..6) {
        // The window of a single segment is all of its content.
        Some(&[descriptor, _]) if descriptor & 0x20 != 0 => content_size(body).unwrap_or_default(),
        Some(&[_, window]) => {
            let base = 1_u64 << (10 + (window >> 3));
            base + base / 8 * u64::from(window & 7)
        }
        _ => 0,
    };
    stated.clamp(MIN_WINDOW, MAX_WINDOW)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use std::io::Write;

    use super::*;

    fn compressed(level: i32, length: usize, says_size: bool) -> Vec<u8> {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), level).unwrap();
        if says_size {
            encoder.set_pledged_src_size(Some(length as u64)).unwrap();
        }
        encoder.write_all(&vec![7; length]).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn no_frame_expands_to_more_than_its_blocks_allow() {
        for length in [0, 1, 1000, 10 << 20, 200 << 20] {
            for level in [1, 3, 19] {
                assert!(length as u64 <= max_expansion(compressed(level, length, false).len()), "{length}");
            }
        }
    }

    #[test]
    fn the_bound_holds_and_is_of_one_frame() {
        for length in [0, 1, 1000, 200_000, 10 << 20] {
            for (level, says_size) in [(1, true), (3, false), (19, true), (19, false)] {
                let mut body = compressed(level, length, says_size);
                let expected = length as u64;
                let most = if says_size { expected } else { expected + 2 * MAX_BLOCK_CONTENT };
                let found = bound(&body).unwrap();
                assert!((expected..=most).contains(&found), "{length}: {found}");
                assert_eq!(bound(&body[..body.len() - 1]), None);
                body.push(0);
                assert_eq!(bound(&body), None);
                body.pop();
                body.extend(compressed(level, length, says_size));
                assert_eq!(bound(&body), None, "two frames");
            }
        }
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(&[7; 1000]).unwrap();
        assert_eq!(bound(&encoder.finish().unwrap()), Some(MAX_BLOCK_CONTENT));
    }

    #[test]
    fn content_size_and_window_are_read() {
        assert_eq!(content_size(&compressed(3, 1000, true)), Some(1000));
        assert_eq!(content_size(&compressed(3, 1000, false)), None);
        assert_eq!(window(&compressed(3, 10 << 20, false)), 2 << 20);
        let mut widest = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        widest.window_log(27).unwrap();
        widest.write_all(&[7; 1000]).unwrap();
        widest.flush().unwrap();
        assert_eq!(window(&widest.finish().unwrap()), 128 << 20);
        assert_eq!((window(b""), window(&[0xff; 40])), (MIN_WINDOW, MIN_WINDOW));
    }
}
