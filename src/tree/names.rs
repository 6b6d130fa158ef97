//! Places and their names, whether anything exists there or not.
//!
//! A working tree on top of a snapshot has to record places of the snapshot by names that mean the same in the next mount, and to
//! find the place of a name; the existence of a chunk is another question, whose answer may need a manifest.

use super::nodes::{TreePlace, ZARR_JSON};
use super::{NodeIndex, Tree};
use crate::zarr::chunk_key::{Separator, parse_number};
use crate::zarr::{Coords, is_prefix_in_grid};

impl Tree {
    /// Returns the absolute path of a place.
    pub fn path_of(&self, place: &TreePlace) -> String {
        match place {
            TreePlace::Directory(node) => format!("/{}", self.table().path(*node)),
            TreePlace::Metadata(node) => self.join(*node, ZARR_JSON),
            TreePlace::Chunk(node, coords) => self.join(*node, &self.relative(*node, coords)),
        }
    }

    fn join(&self, node: NodeIndex, name: &str) -> String {
        let path = self.table().path(node);
        if path.is_empty() { format!("/{name}") } else { format!("/{path}/{name}") }
    }

    /// Returns the path of a chunk or chunk directory below its array.
    fn relative(&self, node: NodeIndex, coords: &[u32]) -> String {
        let Some(array) = self.table().array(node) else { return String::new() };
        if coords.len() == array.grid.len() {
            return array.encoding.key(coords);
        }
        let prefix = array.encoding.prefixed.then(|| "c".to_owned());
        let parts: Vec<String> = prefix.into_iter().chain(coords.iter().map(u32::to_string)).collect();
        parts.join("/")
    }

    /// Returns the place at absolute path `path`, if one can be there.
    pub fn place_of(&self, path: &str) -> Option<TreePlace> {
        let mut at = TreePlace::Directory(0);
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.child_place(&at, name)?;
        }
        Some(at)
    }

    /// Returns the place that `name` can have in directory `parent`. A document or a node exists there; a chunk or chunk
    /// directory may not.
    pub fn child_place(&self, parent: &TreePlace, name: &str) -> Option<TreePlace> {
        match parent {
            TreePlace::Metadata(_) => None,
            TreePlace::Chunk(node, prefix) => self.child_in_chunks(*node, prefix, name),
            TreePlace::Directory(node) => {
                let table = self.table();
                if name == ZARR_JSON && table.is_stored(*node) {
                    return Some(TreePlace::Metadata(*node));
                }
                if let Some(child) = table.child(*node, name) {
                    return Some(TreePlace::Directory(child));
                }
                self.child_in_array(*node, name).or_else(|| {
                    let (owner, prefix) = table.shared_chunk_dir(*node)?;
                    self.child_in_chunks(*owner, prefix, name)
                })
            }
        }
    }

    fn child_in_array(&self, node: NodeIndex, name: &str) -> Option<TreePlace> {
        let array = self.table().array(node)?;
        let rank = array.grid.len();
        match array.encoding.separator {
            Separator::Slash if rank > 0 && array.encoding.prefixed => {
                (name == "c").then(|| TreePlace::Chunk(node, Coords::new()))
            }
            Separator::Slash if rank > 0 => self.child_in_chunks(node, &[], name),
            _ => {
                let coords = array.encoding.parse_flat(name, rank)?;
                self.in_grid(node, Coords::from_vec(coords))
            }
        }
    }

    fn child_in_chunks(&self, node: NodeIndex, prefix: &[u32], name: &str) -> Option<TreePlace> {
        let array = self.table().array(node)?;
        if prefix.len() >= array.grid.len() {
            return None;
        }
        let is_file = prefix.len() + 1 == array.grid.len();
        let coord = if is_file { array.encoding.parse_last(name) } else { parse_number(name) }?;
        let mut coords = Coords::from_slice(prefix);
        coords.push(coord);
        self.in_grid(node, coords)
    }

    /// Returns the place of `coords` if they lie in the grid: only those places have numbers.
    fn in_grid(&self, node: NodeIndex, coords: Coords) -> Option<TreePlace> {
        let is_inside = is_prefix_in_grid(&coords, &self.table().array(node)?.grid);
        is_inside.then_some(TreePlace::Chunk(node, coords))
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
                let relative = self.relative(*node, coords);
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
            TreePlace::Chunk(node, coords) => self.is_directory(*node, coords),
        }
    }
}
