//! The Zarr view of a plain directory tree: the rules of the product, implemented a second time and
//! independently.

use std::collections::BTreeMap;

use serde_json::Value;

use super::tree::{Content, Tree};

#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The name by which the reference lists it: `c/0/1`, whatever the array's encoding.
    pub canonical: String,
    pub bytes: Vec<u8>,
}

/// By their names in the tree.
pub type Keys = BTreeMap<String, Key>;

#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub grid: Vec<u64>,
    pub encoding: Encoding,
}

/// Prefix of the coordinates, and their separator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Encoding {
    DefaultSlash,
    DefaultDot,
    V2Slash,
    V2Dot,
}

impl Encoding {
    pub const ALL: [Encoding; 4] = [Encoding::DefaultSlash, Encoding::DefaultDot, Encoding::V2Slash, Encoding::V2Dot];

    pub fn json(self) -> Value {
        let (name, separator) = match self {
            Encoding::DefaultSlash => ("default", "/"),
            Encoding::DefaultDot => ("default", "."),
            Encoding::V2Slash => ("v2", "/"),
            Encoding::V2Dot => ("v2", "."),
        };
        serde_json::json!({"name": name, "configuration": {"separator": separator}})
    }

    fn of(value: &Value) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|encoding| encoding.json() == *value)
    }

    /// Returns the name of a chunk below its array.
    pub fn name(self, coordinates: &[u64]) -> String {
        let join = |separator: &str| coordinates.iter().map(u64::to_string).collect::<Vec<_>>().join(separator);
        match self {
            Encoding::DefaultSlash if coordinates.is_empty() => "c".into(),
            Encoding::DefaultDot if coordinates.is_empty() => "c".into(),
            Encoding::DefaultSlash => format!("c/{}", join("/")),
            Encoding::DefaultDot => format!("c.{}", join(".")),
            _ if coordinates.is_empty() => "0".into(),
            Encoding::V2Slash => join("/"),
            Encoding::V2Dot => join("."),
        }
    }
}

/// Reason for which a chunk cannot be judged; it is corrected with the document.
pub const BELOW_BAD: &str = "below a document that is none";

#[derive(Default)]
pub struct View {
    pub keys: Keys,
    pub arrays: BTreeMap<String, Array>,
    /// For these a commit is refused.
    pub faults: BTreeMap<String, &'static str>,
    /// Names that the contract does not define: a commit may refuse or ignore them, but never store
    /// them.
    pub unclear: BTreeMap<String, &'static str>,
}

enum Document {
    Group,
    Array(Array),
    Bad,
    /// Stored as it is; the names of its chunks are outside this model.
    Strange,
}

pub fn array_document(shape: &[u64], chunks: &[u64], encoding: Encoding, note: u64) -> String {
    serde_json::json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": encoding.json(), "codecs": [{"name": "bytes"}, {"name": "zstd"}], "attributes": {"note": note}
    })
    .to_string()
}

pub fn group_document(note: u64) -> String {
    format!("{{\"zarr_format\": 3, \"node_type\": \"group\", \"attributes\": {{\"note\": {note}}}}}\n")
}

fn read(document: &[u8]) -> Document {
    let Ok(value) = serde_json::from_slice::<Value>(document) else { return Document::Bad };
    if value["zarr_format"] != 3 {
        return Document::Bad;
    }
    match value["node_type"].as_str() {
        Some("group") => Document::Group,
        Some("array") => {
            let numbers = |value: &Value| -> Option<Vec<u64>> { value.as_array()?.iter().map(Value::as_u64).collect() };
            let shape = numbers(&value["shape"]);
            let chunks = numbers(&value["chunk_grid"]["configuration"]["chunk_shape"]);
            let (Some(shape), Some(chunks)) = (shape, chunks) else { return Document::Bad };
            if shape.len() != chunks.len() || chunks.contains(&0) {
                return Document::Bad;
            }
            let Some(encoding) = Encoding::of(&value["chunk_key_encoding"]) else { return Document::Strange };
            let grid = shape.iter().zip(&chunks).map(|(length, chunk)| length.div_ceil(*chunk)).collect();
            Document::Array(Array { grid, encoding })
        }
        _ => Document::Bad,
    }
}

/// Kind of a path below an array.
enum Name {
    Chunk(Vec<u64>),
    Fault(&'static str),
    Unclear(&'static str),
    Untracked,
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn name_in(array: &Array, rest: &str) -> Name {
    let rank = array.grid.len();
    let (parts, prefixed): (Vec<&str>, bool) = match array.encoding {
        Encoding::DefaultSlash => {
            let mut parts: Vec<&str> = rest.split('/').collect();
            let prefixed = parts.first() == Some(&"c");
            parts.drain(..usize::from(prefixed));
            (parts, prefixed)
        }
        Encoding::DefaultDot => {
            let mut parts: Vec<&str> = rest.split('.').collect();
            let prefixed = parts.first() == Some(&"c");
            parts.drain(..usize::from(prefixed));
            (parts, prefixed)
        }
        Encoding::V2Slash => (rest.split('/').collect(), true),
        Encoding::V2Dot => (rest.split('.').collect(), true),
    };
    if !prefixed || !parts.iter().all(|part| is_number(part)) {
        // A chunk's name in another encoding.
        let other = rest.strip_prefix("c/").or_else(|| rest.strip_prefix("c.")).unwrap_or(rest);
        if other.split(['/', '.']).all(is_number) || rest == "c" {
            return Name::Unclear("a chunk's name in another encoding");
        }
        return Name::Untracked;
    }
    let v2 = matches!(array.encoding, Encoding::V2Slash | Encoding::V2Dot);
    if rank == 0 && v2 && parts == ["0"] {
        return Name::Chunk(Vec::new());
    }
    let definite = array.encoding == Encoding::DefaultSlash && rank > 0 && !parts.is_empty();
    let either = |text| if definite { Name::Fault(text) } else { Name::Unclear(text) };
    if parts.iter().any(|part| part.len() > 1 && part.starts_with('0')) {
        return either("digits that are not canonical");
    }
    let Ok(coordinates) = parts.iter().map(|part| part.parse()).collect::<Result<Vec<u64>, _>>() else {
        return either("beyond every number");
    };
    if coordinates.len() != rank {
        return either("of the wrong rank");
    }
    if coordinates.iter().zip(&array.grid).any(|(at, length)| at >= length) {
        return Name::Fault("outside the grid");
    }
    Name::Chunk(coordinates)
}

/// Applies the rules to a tree. `before` are the keys of the last commit.
pub fn view(tree: &Tree, before: &Keys) -> View {
    let mut view = View::default();
    // A tree is sorted by name, but the documents decide the kinds, so they come first.
    let mut strange = Vec::new();
    let mut bad = Vec::new();
    for (name, entry) in tree {
        let Some(node) = node_of(name) else { continue };
        let Content::File(bytes) = &entry.content else {
            view.unclear.insert(name.clone(), "a zarr.json that is no file");
            continue;
        };
        match read(bytes) {
            Document::Bad => {
                view.faults.insert(name.clone(), "not a valid zarr.json");
                bad.push(node.to_owned());
            }
            Document::Strange => strange.push(node.to_owned()),
            Document::Group => {}
            Document::Array(array) => {
                view.arrays.insert(node.to_owned(), array);
            }
        }
        view.keys.insert(name.clone(), Key { canonical: name.clone(), bytes: bytes.clone() });
    }
    for (name, entry) in tree {
        let above = ancestors(name).find(|path| view.arrays.contains_key(*path));
        if let Some(node) = node_of(name) {
            let parent = ancestors(name).skip(1).find(|path| view.arrays.contains_key(*path));
            if let Some(array) = parent {
                let inner = node.strip_prefix(array).unwrap_or(node).trim_start_matches('/');
                if inner == "c" || inner.starts_with("c/") {
                    view.unclear.insert(name.clone(), "a document where chunks are");
                } else {
                    view.faults.insert(name.clone(), "a node below an array");
                }
            }
            continue;
        }
        let Content::File(bytes) = &entry.content else { continue };
        let below = |nodes: &[String]| ancestors(name).any(|path| nodes.iter().any(|node| node == path));
        let reason = if below(&bad) { Some(BELOW_BAD) } else { below(&strange).then_some("below a strange document") };
        if let Some(reason) = reason {
            if looks_like_chunk(name) {
                view.unclear.insert(name.clone(), reason);
            }
            continue;
        }
        match above {
            Some(array) => {
                let rest = if array.is_empty() { name } else { &name[array.len() + 1..] };
                match name_in(&view.arrays[array], rest) {
                    Name::Chunk(_) if bytes.is_empty() => {
                        view.faults.insert(name.clone(), "an empty chunk");
                    }
                    Name::Chunk(coordinates) => {
                        let plain = Encoding::DefaultSlash.name(&coordinates);
                        let canonical = if array.is_empty() { plain } else { format!("{array}/{plain}") };
                        view.keys.insert(name.clone(), Key { canonical, bytes: bytes.clone() });
                    }
                    Name::Fault(text) => {
                        view.faults.insert(name.clone(), text);
                    }
                    Name::Unclear(text) => {
                        view.unclear.insert(name.clone(), text);
                    }
                    Name::Untracked => {}
                }
            }
            None => outside_arrays(name, before, &mut view),
        }
    }
    view
}

/// Returns true for a chunk's name where no array is.
fn outside_arrays(name: &str, before: &Keys, view: &mut View) {
    let orphan = before.get(name).is_some_and(|key| {
        let array = ancestors(&key.canonical).find(|path| before.contains_key(&join(path, "zarr.json")));
        array.is_some_and(|array| !view.keys.contains_key(&join(array, "zarr.json")))
    });
    let mut parts = name.rsplit('/');
    let one = parts.next().is_some_and(is_number) && parts.next() == Some("c");
    if orphan {
        view.faults.insert(name.to_owned(), "a chunk whose array has lost its zarr.json");
    } else if one && !view.keys.contains_key(&format!("{}/zarr.json", name.rsplit_once('/').map_or("", |(c, _)| c))) {
        view.faults.insert(name.to_owned(), "a chunk where no array is");
    } else if looks_like_chunk(name) {
        view.unclear.insert(name.to_owned(), "it may have been a chunk");
    }
}

fn looks_like_chunk(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    last == "c" || last.trim_start_matches("c.").split('.').all(is_number)
}

fn join(node: &str, name: &str) -> String {
    if node.is_empty() { name.to_owned() } else { format!("{node}/{name}") }
}

/// Returns the node of this `zarr.json`.
fn node_of(name: &str) -> Option<&str> {
    if name == "zarr.json" { Some("") } else { name.strip_suffix("/zarr.json") }
}

/// Returns the directories above a name, from the nearest to the root.
fn ancestors(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(name), |path| match path.rsplit_once('/') {
        Some((parent, _)) => Some(parent),
        None if !path.is_empty() => Some(""),
        None => None,
    })
    .skip(1)
}
