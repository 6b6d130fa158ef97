//! Files in the format HDF5: a plan whose chunks can be read, or none.
//!
//! Most parts of such a file have a checksum, behind which no change would be seen. The reader says
//! which one it has found and which one it wants: that one is put in, and the file read again.

use super::input::Input;
use icechunkfs::error::Result;
use icechunkfs::ingest::apart;
use icechunkfs::ingest::plan::Plan;
use icechunkfs::ingest::source::Source as _;

/// Most bytes of chunks that are made of one file: a file may have thousands of the same one.
const MOST_MADE: u64 = 1 << 20;
/// Most checksums that are put right in one file. The samples have about forty.
const REPAIRS: usize = 64;

/// Returns the checksums of the first complaint in `text`: that of the file, and the right one.
fn complaint(text: &str) -> Option<(u32, u32)> {
    let (_, rest) = text.split_once("checksum mismatch: expected 0x")?;
    let (found, rest) = rest.split_once(", got 0x")?;
    let parse = |digits: &str| u32::from_str_radix(digits.get(..8)?, 16).ok();
    Some((parse(found)?, parse(rest)?))
}

/// Returns what the reader says of checksums: in its error, or of parts that it left out.
fn complaints(result: &Result<impl std::ops::Deref<Target = Plan>>) -> Vec<(u32, u32)> {
    match result {
        Ok(plan) => plan.omissions.list.iter().filter_map(|omission| complaint(&omission.why)).collect(),
        Err(error) => complaint(&error.to_string()).into_iter().collect(),
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut file = Input(bytes.to_vec());
    let mut result = apart::plan_unconfined(file.clone());
    for _ in 0..REPAIRS {
        let mut is_repaired = false;
        for (found, right) in complaints(&result) {
            let found = found.to_le_bytes();
            if let Some(at) = file.0.windows(4).position(|bytes| bytes == found) {
                file.0[at..at + 4].copy_from_slice(&right.to_le_bytes());
                is_repaired = true;
            }
        }
        if !is_repaired {
            break;
        }
        result = apart::plan_unconfined(file.clone());
    }
    let Ok(plan) = result else { return };
    plan.check(file.length()).expect("data in the file");
    for array in &plan.arrays {
        let document: serde_json::Value = serde_json::from_slice(&array.document().expect("a document")).expect("JSON");
        assert_eq!(document["shape"].as_array().map(Vec::len), Some(array.shape().len()), "{}", array.name);
        let Ok(grid) = array.grid() else { continue };
        let Some(last) = grid.iter().map(|count| count.checked_sub(1)).collect::<Option<Vec<u32>>>() else { continue };
        if array.chunk_bytes().saturating_add(array.workspace()) > MOST_MADE {
            continue;
        }
        // A damaged chunk is an error of the one who decodes it.
        let mut chunk = Vec::new();
        if array.read_chunk(&file, &last, &mut chunk).is_ok() && !array.is_stored() {
            // Texts have any length, and each chunk the one that is listed.
            let listed = array.stored_chunks(&file).expect("the lengths of chunks");
            let length = listed.map_or(Some(array.chunk_bytes()), |all| {
                all.iter().find(|(coords, _)| coords[..] == last[..]).map(|(_, length)| *length)
            });
            assert_eq!(Some(chunk.len() as u64), length, "{}", array.name);
        }
    }
}
