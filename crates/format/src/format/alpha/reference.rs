//! Reads the file of a branch or tag: `{"snapshot": ...}`, with the id as text or, in the first
//! layout, as numbers.

use serde::Deserialize;

use super::super::ids::ObjectId;
use super::super::json;
use super::values::AlphaObjectId;
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Meter;

/// Returns the snapshot that the file points to. Ignores other members: a time, and properties that
/// no release set.
pub fn parse(file: &[u8]) -> Result<ObjectId> {
    #[derive(Deserialize)]
    struct Reference {
        snapshot: AlphaObjectId,
    }
    let reference: Reference =
        json::parse(file, &mut Meter::brief("a ref")).map_err(|e| super::unknown_document("branch or tag", e))?;
    Ok(reference.snapshot.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;

    #[test]
    fn both_spellings_are_read() {
        let text = parse(br#"{"snapshot":"VY76P925PRY57WFEK410"}"#).unwrap();
        assert_eq!(text.to_string(), "VY76P925PRY57WFEK410");
        let numbers = br#"{"properties":{},"snapshot":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,255],"timestamp":"x"}"#;
        assert_eq!(parse(numbers).unwrap(), ObjectId([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]));
        for wrong in [&b"{}"[..], b"", br#"{"snapshot":[1]}"#, br#"{"snapshot":[256,0,0,0,0,0,0,0,0,0,0,0]}"#, b"[[[["]
        {
            assert!(parse(wrong).is_err());
        }
    }
}
