//! Sizes and counts, as people write and read them.

use crate::error::{Error, Result};

/// Parses a size: bytes, or a number with a suffix K, M, G, T (powers of 1024; `iB` and `B` may
/// follow).
pub fn parse(text: &str) -> Result<u64> {
    let wrong = || {
        Error::invalid(format!("`{text}` is not a valid size: write bytes, or a number with K, M, G or T as in 512M"))
    };
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

/// Formats a number of bytes: `692 bytes`, `1.5 KiB`, `58 KiB`.
pub fn text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return counted(bytes, "byte");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        // Otherwise 1023.7 KiB would be shown as 1024 KiB.
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value < 9.95 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// Formats a count of things that `noun` names, which has a regular plural: `1 chunk`, `3,000
/// chunks`, `2 branches`.
pub fn counted(count: u64, noun: &str) -> String {
    let ending = match count {
        1 => "",
        _ if noun.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", grouped(count))
}

/// Formats a number: `3,000`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_and_counts_are_written_as_people_read_them() {
        for (bytes, expected) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (692, "692 bytes"),
            (1023, "1,023 bytes"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (58 << 10, "58 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (69 << 20, "69 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(text(bytes), expected, "{bytes}");
        }
        for (count, expected) in [(0, "0 chunks"), (1, "1 chunk"), (999, "999 chunks"), (1_234_567, "1,234,567 chunks")]
        {
            assert_eq!(counted(count, "chunk"), expected);
        }
        assert_eq!((counted(1, "branch"), counted(2, "branch")), ("1 branch".to_owned(), "2 branches".to_owned()));
    }

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
