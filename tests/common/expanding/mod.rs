//! Repositories of some kilobytes, one file of which expands a thousandfold when it is decoded: by
//! sharing parts, by compression, or because a value takes more memory than its bytes.

#![allow(dead_code, unreachable_pub, clippy::type_complexity)]

pub mod documents;
pub mod files;
pub mod flat;
pub mod values;

use std::collections::BTreeMap;

/// Repository with a file that expands.
pub struct Expanding {
    /// Part that expands.
    pub what: String,
    /// Files by their keys.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Id of the newest snapshot.
pub const TIP: [u8; 12] = [0xee; 12];
/// Id of the manifest.
pub const MANIFEST: [u8; 12] = [0xdd; 12];

/// Spells an id as names of files do.
pub fn name(id: [u8; 12]) -> String {
    icechunkfs::format::ids::ObjectId(id).to_string()
}

impl Expanding {
    fn new(what: impl Into<String>, files: BTreeMap<String, Vec<u8>>) -> Self {
        Expanding { what: what.into(), files }
    }

    /// Returns the bytes of all files together.
    pub fn size(&self) -> usize {
        self.files.values().map(Vec::len).sum()
    }

    /// Writes the files below `place`.
    pub fn write(&self, place: &std::path::Path) {
        for (key, bytes) in &self.files {
            let path = place.join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
}

/// Returns the repositories whose `repo`, refs or configuration expand.
pub fn repositories() -> Vec<Expanding> {
    [files::repos(), files::configurations(), files::references()].concat_all()
}

/// Returns those whose snapshots, documents, manifests and logs expand.
pub fn snapshots() -> Vec<Expanding> {
    [files::snapshots(), documents::all(), files::manifests(), files::logs(), files::frames()].concat_all()
}

/// Returns those of releases before 0.2 and of version 1.
pub fn old() -> Vec<Expanding> {
    [files::message_pack(), files::alpha()].concat_all()
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Expanding>;
}

impl<const N: usize> ConcatAll for [Vec<Expanding>; N] {
    fn concat_all(self) -> Vec<Expanding> {
        self.into_iter().flatten().collect()
    }
}
