//! Random damage to files, from a seed.

use crate::common::random::Random;

/// Strings that are inserted into text.
const WORDS: [&str; 16] = [
    "-1",
    "0",
    "18446744073709551616",
    "9223372036854775807",
    "1e400",
    "null",
    "\"\"",
    "[[[[[[[[",
    "{\"a\":",
    "\\u0000",
    "\u{202e}",
    "../../",
    "/",
    "\u{1b}[2J",
    "\n",
    "%",
];

/// Returns true if an object of a repository is a chunk, which has no structure to damage.
pub fn is_chunk(key: &str) -> bool {
    key.starts_with("chunks/") || key.starts_with("c/")
}

/// Makes one change to a file: in the stored bytes, or, more often, in the payload that they
/// compress.
pub fn mutate(file: &[u8], random: &mut Random) -> Vec<u8> {
    let inside = file.len() > 39 && file.starts_with(b"ICE") && random.below(4) != 0;
    if inside && let Ok(mut payload) = zstd::decode_all(&file[39..]) {
        for _ in 0..=random.below(3) {
            change(&mut payload, random);
        }
        let mut out = file[..39].to_vec();
        out.extend(zstd::encode_all(payload.as_slice(), 1).unwrap());
        return out;
    }
    let mut out = file.to_vec();
    change(&mut out, random);
    out
}

pub fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return bytes.push(random.next() as u8);
    }
    let at = random.below(bytes.len());
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => bytes.truncate(at),
        3 => {
            // Lengths and offsets: extreme values where four bytes are.
            let value = [0, 1, 4, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff_u32, 0x0100_0000][random.below(7)];
            let at = at & !3;
            for (slot, byte) in bytes.iter_mut().skip(at).zip(value.to_le_bytes()) {
                *slot = byte;
            }
        }
        4 => {
            let end = (at + 1 + random.below(32)).min(bytes.len());
            let part: Vec<u8> = bytes[at..end].to_vec();
            let to = random.below(bytes.len());
            for (slot, byte) in bytes.iter_mut().skip(to).zip(part) {
                *slot = byte;
            }
        }
        5 => {
            let end = (at + 1 + random.below(16)).min(bytes.len());
            bytes.drain(at..end);
        }
        6 => {
            let extra: Vec<u8> = (0..=random.below(16)).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, extra);
        }
        7 => {
            // Text that parsers and terminals interpret.
            let word = WORDS[random.below(WORDS.len())];
            let end = (at + random.below(1 + word.len())).min(bytes.len());
            bytes.splice(at..end, word.bytes());
        }
        _ => bytes[at] = bytes[at].wrapping_add(1),
    }
}
