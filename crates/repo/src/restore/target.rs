//! Finds what a path means in the source of a restore: as it is named now, or as it was named then.
//!
//! A name that the source has is taken first. Otherwise the node that has the name now is looked
//! for in the source by its id, so that a path whose group or array was moved since is found where
//! it was. A path below an array is its `zarr.json`, a chunk, or a directory of chunks.

use crate::compare::scope::is_below;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::snapshot::{Node, Snapshot};
use icechunkfs_format::zarr::array::ArrayMetadata;
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use icechunkfs_format::zarr::{Coords, is_in_grid};

/// Name of a node's document.
const ZARR_JSON: &str = "zarr.json";

/// Part of a hierarchy that a restore replaces, and its counterpart in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Path of the node that is restored, or that has the restored file.
    pub node: String,
    /// Path of the node in the source.
    pub source: String,
    /// The part of the node.
    pub scope: Scope,
}

/// Part of a node that a restore replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The node and everything below it.
    Subtree,
    /// Its `zarr.json`.
    Document,
    /// Some of its chunks.
    Chunks(ChunkRange),
}

/// A chunk, or all chunks below a directory of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// First coordinates of all the chunks.
    pub prefix: Coords,
}

impl ChunkRange {
    /// Returns true if the chunk at `coords` is in the range.
    pub fn contains(&self, coords: &Coords) -> bool {
        coords.starts_with(&self.prefix)
    }

    /// Returns the chunks that `key`, relative to an array with `metadata`, names.
    fn parse(metadata: &ArrayMetadata, key: &str) -> Option<Self> {
        let encoding = &metadata.key_encoding;
        let rank = metadata.grid.len();
        if let Some(coords) = encoding.parse_flat(key, rank).filter(|_| is_flat(encoding, rank)) {
            let coords = Coords::from_slice(&coords);
            return is_in_grid(&coords, &metadata.grid).then_some(ChunkRange { prefix: coords });
        }
        if is_flat(encoding, rank) {
            return None;
        }
        let mut parts = key.split('/');
        if encoding.prefixed && parts.next() != Some("c") {
            return None;
        }
        let parts: Vec<&str> = parts.collect();
        let (last, above) = parts.split_last().map_or((None, &[][..]), |(last, above)| (Some(*last), above));
        let mut prefix: Coords = above.iter().map(|part| parse_number(part)).collect::<Option<_>>()?;
        if let Some(last) = last {
            prefix.push(if parts.len() == rank { encoding.parse_last(last)? } else { parse_number(last)? });
        }
        let is_inside = prefix.len() <= rank && prefix.iter().zip(&metadata.grid).all(|(at, count)| at < count);
        is_inside.then_some(ChunkRange { prefix })
    }
}

/// Returns true if every key is one name.
fn is_flat(encoding: &KeyEncoding, rank: usize) -> bool {
    encoding.separator == Separator::Dot || rank == 0
}

impl Target {
    /// Finds `path`, absolute, of snapshot `now` in `source`.
    ///
    /// Fails with [`ErrorKind::NotFound`] if the source has no such thing.
    pub fn find(now: &Snapshot, source: &Snapshot, path: &str) -> Result<Self> {
        if path == "/" {
            return Ok(Target { node: path.to_owned(), source: path.to_owned(), scope: Scope::Subtree });
        }
        let mut above = path;
        loop {
            let rest = path.get(above.len()..).unwrap_or_default().trim_start_matches('/');
            let named = node_at(source, above);
            let here = node_at(now, above);
            // The node of that name, wherever the source has it.
            let same = here.as_ref().and_then(|here| source.nodes().find(|node| node.id == here.id));
            for found in named.iter().chain(&same) {
                if let Some(target) = within(found, here.as_ref(), source, above, rest) {
                    return Ok(target);
                }
            }
            match above.rsplit_once('/') {
                Some((parent, _)) if !parent.is_empty() => above = parent,
                Some(_) if above != "/" => above = "/",
                _ => break,
            }
        }
        let is_here = now.nodes().any(|node| is_below(node.path, path));
        let remedy = if is_here {
            "it was created later: remove it with rm, or name another --from"
        } else {
            "name a path that it has (`icechunkfs ls REPO`), or another --from"
        };
        Err(Error::new(
            ErrorKind::NotFound,
            format!("{path}: snapshot {} does not have this path, nor an older name of it; {remedy}", source.id()),
        ))
    }

    /// Returns the name that the source has for `path`, the path of the restore.
    pub fn source_of(&self, path: &str) -> String {
        let rest = path.get(self.node.trim_end_matches('/').len()..).unwrap_or_default();
        let name = format!("{}{rest}", self.source.trim_end_matches('/'));
        if name.is_empty() { "/".to_owned() } else { name }
    }

    /// Returns true if the restore replaces the `zarr.json` of the node at `path`.
    pub fn has_document(&self, path: &str) -> bool {
        match self.scope {
            Scope::Subtree => is_below(path, &self.node),
            Scope::Document => path == self.node,
            Scope::Chunks(_) => false,
        }
    }

    /// Returns true if the restore replaces the chunk at `coords` of the array at `path`.
    pub fn has_chunk(&self, path: &str, coords: &Coords) -> bool {
        match &self.scope {
            Scope::Subtree => is_below(path, &self.node),
            Scope::Document => false,
            Scope::Chunks(range) => path == self.node && range.contains(coords),
        }
    }

    /// Returns true if the source has the node under another name.
    pub fn is_renamed(&self) -> bool {
        self.node != self.source
    }
}

/// Returns the target for `rest`, a path relative to `found` of the source, which is at `above`
/// now.
fn within(found: &Node<'_>, here: Option<&Node<'_>>, source: &Snapshot, above: &str, rest: &str) -> Option<Target> {
    let target = |node: &str, path: &str, scope| Target { node: node.to_owned(), source: path.to_owned(), scope };
    if rest.is_empty() {
        return Some(target(above, found.path, Scope::Subtree));
    }
    let below = if found.path == "/" { format!("/{rest}") } else { format!("{}/{rest}", found.path) };
    if node_at(source, &below).is_some() {
        let path = if above == "/" { format!("/{rest}") } else { format!("{above}/{rest}") };
        return Some(target(&path, &below, Scope::Subtree));
    }
    if rest == ZARR_JSON {
        return Some(target(above, found.path, Scope::Document));
    }
    // Names of chunks are those of today, if the array is there today.
    let metadata = [here, Some(found)].into_iter().flatten().filter(|node| node.is_array());
    let range = metadata.filter_map(|node| ArrayMetadata::parse(node.zarr_json).ok());
    let range = range.filter(|_| found.is_array()).find_map(|metadata| ChunkRange::parse(&metadata, rest))?;
    Some(target(above, found.path, Scope::Chunks(range)))
}

/// Returns the node at `path`.
pub(super) fn node_at<'a>(snapshot: &'a Snapshot, path: &str) -> Option<Node<'a>> {
    snapshot.nodes().find(|node| node.path == path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn range(encoding: &str, key: &str) -> Option<Vec<u32>> {
        let document = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[4,6],"data_type":"uint8","fill_value":0,"codecs":[{{"name":"bytes"}}],
            "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[1,1]}}}},"chunk_key_encoding":{encoding}}}"#
        );
        let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
        ChunkRange::parse(&metadata, key).map(|range| range.prefix.to_vec())
    }

    #[test]
    fn chunks_and_their_directories_are_named_as_the_array_names_them() {
        let default = r#"{"name":"default"}"#;
        let v2 = r#"{"name":"v2"}"#;
        for (encoding, key, expected) in [
            (default, "c/3/5", Some(vec![3, 5])),
            (default, "c/3", Some(vec![3])),
            (default, "c", Some(vec![])),
            (default, "c/4/0", None),
            (default, "c/03/5", None),
            (default, "c/3/5/0", None),
            (default, "c.3.5", None),
            (default, "3/5", None),
            (default, "note", None),
            (v2, "3.5", Some(vec![3, 5])),
            (v2, "3", None),
            (v2, "3.6", None),
            (v2, "c", None),
        ] {
            assert_eq!(range(encoding, key), expected, "{key}");
        }
    }
}
