//! A whole directory tree, and the differences between two.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::apply::describe;
use super::ops::{MARKED, MARKED_SPAN};

#[derive(PartialEq)]
pub enum Content {
    Directory,
    File(Vec<u8>),
    Link(String),
}

pub struct Entry {
    pub content: Content,
    described: String,
    modified: (i64, i64),
    pub inode: u64,
}

pub type Tree = BTreeMap<String, Entry>;

/// Reads everything, except the control directory, which no listing shows.
pub fn scan(root: &Path) -> Result<Tree, String> {
    let mut tree = Tree::new();
    below(root, "", &mut tree).map_err(|error| format!("while reading {}: {error}", root.display()))?;
    Ok(tree)
}

fn below(directory: &Path, prefix: &str, tree: &mut Tree) -> Result<(), String> {
    let told = |error: std::io::Error| format!("{}: {error}", directory.display());
    for entry in std::fs::read_dir(directory).map_err(told)? {
        let entry = entry.map_err(told)?;
        let name = entry.file_name().to_str().ok_or("a name that is not UTF-8")?.to_owned();
        let key = format!("{prefix}{name}");
        let told = |error: std::io::Error| format!("{key}: {error}");
        let kind = entry.file_type().map_err(told)?;
        let metadata = entry.metadata().map_err(told)?;
        if metadata.file_type() != kind {
            return Err(format!("{key}: the listing says {kind:?}, stat {:?}", metadata.file_type()));
        }
        let content = if kind.is_dir() {
            Content::Directory
        } else if kind.is_symlink() {
            Content::Link(std::fs::read_link(entry.path()).map_err(told)?.to_string_lossy().into_owned())
        } else {
            let bytes = std::fs::read(entry.path()).map_err(told)?;
            if bytes.len() as u64 != metadata.len() {
                return Err(format!("{key}: {} bytes read of a file of {}", bytes.len(), metadata.len()));
            }
            Content::File(bytes)
        };
        let directory = matches!(content, Content::Directory);
        let found = Entry {
            described: describe(&metadata),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: metadata.ino(),
            content,
        };
        if tree.insert(key.clone(), found).is_some() {
            return Err(format!("{key}: listed twice"));
        }
        if directory {
            below(&entry.path(), &format!("{key}/"), tree)?;
        }
    }
    Ok(())
}

/// Returns differences between the mount and the model, in readable lines.
pub fn differences(mount: &Tree, model: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, ours) in mount {
        match model.get(name) {
            None => lines.push(format!("{name}: only in the mount ({})", ours.described)),
            Some(theirs) => compare(name, ours, theirs, &mut lines),
        }
    }
    for (name, theirs) in model {
        if !mount.contains_key(name) {
            lines.push(format!("{name}: not in the mount ({})", theirs.described));
        }
    }
    if lines.is_empty() {
        same_inodes(mount, model, &mut lines);
    }
    lines
}

fn compare(name: &str, ours: &Entry, theirs: &Entry, lines: &mut Vec<String>) {
    if ours.described != theirs.described {
        lines.push(format!("{name}: the mount has {}, the model {}", ours.described, theirs.described));
        return;
    }
    match (&ours.content, &theirs.content) {
        (Content::File(a), Content::File(b)) if a != b => {
            let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(0);
            lines.push(format!("{name}: bytes differ from {at} on: {:?} and {:?}", a.get(at), b.get(at)));
        }
        (Content::Link(a), Content::Link(b)) if a != b => lines.push(format!("{name}: links to {a} and {b}")),
        _ => {}
    }
    if is_marked(theirs) && ours.modified != theirs.modified {
        lines.push(format!("{name}: modified at {:?}, should be {:?}", ours.modified, theirs.modified));
    }
}

/// Returns true if `utimens` set the model's time and nothing changed since.
fn is_marked(entry: &Entry) -> bool {
    !matches!(entry.content, Content::Link(_)) && (MARKED..MARKED + i64::from(MARKED_SPAN)).contains(&entry.modified.0)
}

/// Checks that names share an inode on one side only if they do so on the other.
fn same_inodes(mount: &Tree, model: &Tree, lines: &mut Vec<String>) {
    let mut ours: HashMap<u64, u64> = HashMap::new();
    let mut theirs: HashMap<u64, u64> = HashMap::new();
    for (name, entry) in mount {
        let Some(other) = model.get(name) else { continue };
        let forth = *ours.entry(entry.inode).or_insert(other.inode);
        let back = *theirs.entry(other.inode).or_insert(entry.inode);
        if forth != other.inode || back != entry.inode {
            lines.push(format!("{name}: inode {} is shared with other names than in the model", entry.inode));
        }
    }
}
