//! Reads the memory that a zstd frame needs from its header (RFC 8878, 3.1.1).

/// Smallest window, in bytes; also that of a damaged frame, which will fail to decompress.
const MIN_WINDOW: u64 = 1 << 10;
/// Largest window that the decoder accepts by default, in bytes.
const MAX_WINDOW: u64 = 1 << 27;

/// Smallest block, in bytes: its header (RFC 8878, 3.1.1.2).
const MIN_BLOCK: u64 = 3;
/// Most bytes that a block expands to.
const MAX_BLOCK_CONTENT: u64 = 128 << 10;

/// Returns the most bytes that a frame of `length` bytes can expand to, whatever its header claims.
pub(super) fn max_expansion(length: usize) -> u64 {
    (length as u64 / MIN_BLOCK).saturating_mul(MAX_BLOCK_CONTENT)
}

/// Returns the size to which the first frame of `body` expands, in bytes, if its header states it.
pub(super) fn content_size(body: &[u8]) -> Option<u64> {
    zstd::zstd_safe::get_frame_content_size(body).ok().flatten()
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
    #![allow(clippy::unwrap_used)]
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
    fn content_size_and_window_are_read() {
        assert_eq!(content_size(&compressed(3, 1000, true)), Some(1000));
        assert_eq!(content_size(&compressed(3, 1000, false)), None);
        assert_eq!(window(&compressed(3, 10 << 20, false)), 2 << 20);
        assert_eq!(window(&compressed(22, 200 << 20, false)), 128 << 20);
        assert_eq!((window(b""), window(&[0xff; 40])), (MIN_WINDOW, MIN_WINDOW));
    }
}
