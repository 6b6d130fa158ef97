//! Parses human-readable sizes.

use crate::error::{Error, Result};

/// Parses a size: bytes, or a number with a suffix K, M, G, T (powers of 1024; `iB` and `B` may
/// follow).
pub fn parse(text: &str) -> Result<u64> {
    let wrong =
        || Error::invalid(format!("`{text}` is no size: write bytes, or a number with K, M, G or T as in 512M"));
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = trimmed.get(digits.len()..).unwrap_or_default().trim().to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" if !unit.starts_with('i') => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("64k", 65536), ("512M", 512 << 20), ("2GiB", 2 << 30), ("1 TB", 1 << 40)]
        {
            assert_eq!(parse(text).unwrap(), bytes, "{text}");
        }
        for wrong in ["", "M", "-1", "1.5G", "12X", "99999999999T", "1iB"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
