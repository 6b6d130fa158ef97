//! Places and their names, whether anything exists there or not.
//!
//! A working tree on top of a snapshot has to record places of the snapshot by names that mean the
//! same in the next mount, and to find the place of a name; the existence of a chunk is another
//! question, whose answer may need a manifest.

use super::nodes::{NodeTable, TreePlace, ZARR_JSON};
use super::{NodeIndex, Tree};

impl Tree {
    /// Returns the absolute path of a place.
    pub fn path_of(&self, place: &TreePlace) -> String {
        match place {
            TreePlace::Directory(node) => format!("/{}", self.table().path(*node)),
            TreePlace::Metadata(node) => join(self.table(), *node, ZARR_JSON),
            TreePlace::Chunk(node, coords) => join(self.table(), *node, &relative(self.table(), *node, coords)),
        }
    }

    /// Returns the place at absolute path `path`, if one can be there.
    pub fn place_of(&self, path: &str) -> Option<TreePlace> {
        let mut at = TreePlace::Directory(0);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.child_place(&at, name)?;
        }
        Some(at)
    }

    /// Returns the place that `name` can have in directory `parent`. A document or a node exists
    /// there; a chunk or chunk directory may not.
    pub fn child_place(&self, parent: &TreePlace, name: &str) -> Option<TreePlace> {
        self.child_places(parent, name).next()
    }

    /// Returns the places that `name` can have in directory `parent`: the first one at which
    /// something exists counts.
    pub(super) fn child_places(&self, parent: &TreePlace, name: &str) -> impl Iterator<Item = TreePlace> {
        let table = self.table();
        let (own, node) = match parent {
            TreePlace::Metadata(_) => (None, None),
            TreePlace::Chunk(node, prefix) => (table.child_in_chunks(*node, prefix, name), None),
            TreePlace::Directory(node) if name == ZARR_JSON && table.is_stored(*node) => {
                (Some(TreePlace::Metadata(*node)), None)
            }
            TreePlace::Directory(node) => match table.child(*node, name) {
                Some(child) => (Some(TreePlace::Directory(child)), None),
                None => (table.child_in_array(*node, name), Some(*node)),
            },
        };
        let shared = move || {
            let (owner, prefix) = table.shared_chunk_dir(node?)?;
            table.child_in_chunks(*owner, prefix, name)
        };
        own.into_iter().chain(std::iter::once_with(shared).flatten())
    }

    /// Returns the directory that holds `place`, and its name there. None for the root.
    pub fn parent_of(&self, place: &TreePlace) -> Option<(TreePlace, String)> {
        let table = self.table();
        match place {
            TreePlace::Directory(0) => None,
            TreePlace::Directory(node) => {
                let parent = table.get(*node)?.parent;
                Some((TreePlace::Directory(parent), table.name(*node).to_owned()))
            }
            TreePlace::Metadata(node) => Some((TreePlace::Directory(*node), ZARR_JSON.to_owned())),
            TreePlace::Chunk(node, coords) => {
                // A node may stand where a directory of chunks is: the node is then the parent.
                let relative = relative(table, *node, coords);
                let (above, name) = relative.rsplit_once('/').unwrap_or(("", &relative));
                let mut at = TreePlace::Directory(*node);
                for part in above.split('/').filter(|part| !part.is_empty()) {
                    at = self.child_place(&at, part)?;
                }
                Some((at, name.to_owned()))
            }
        }
    }

    /// Returns true if a place is a directory.
    pub fn is_directory_place(&self, place: &TreePlace) -> bool {
        match place {
            TreePlace::Directory(_) => true,
            TreePlace::Metadata(_) => false,
            TreePlace::Chunk(node, coords) => self.table().is_chunk_directory(*node, coords),
        }
    }
}

fn join(table: &NodeTable, node: NodeIndex, name: &str) -> String {
    let path = table.path(node);
    if path.is_empty() { format!("/{name}") } else { format!("/{path}/{name}") }
}

/// Returns the path of a chunk or chunk directory below its array.
fn relative(table: &NodeTable, node: NodeIndex, coords: &[u32]) -> String {
    let Some(array) = table.array(node) else { return String::new() };
    if coords.len() == array.grid.len() {
        return array.encoding.key(coords);
    }
    let prefix = array.encoding.prefixed.then(|| "c".to_owned());
    let parts: Vec<String> = prefix.into_iter().chain(coords.iter().map(u32::to_string)).collect();
    parts.join("/")
}
