//! Documents of groups with consolidated metadata: the documents of all nodes below, by relative
//! path, as zarr-python 3 writes them.
//!
//! A document is made when a program first asks for it or for its size, and is never stored: it
//! always describes what the view shows. Groups among the nodes have empty consolidated metadata,
//! which keeps programs from looking for them again. A stored one is replaced.
//!
//! One entry that is not valid spoils the whole document for every program, so entries that are no
//! Zarr documents are left out, each with all nodes below it. Directories without a document that
//! have nodes below get one: programs look for each component of a path.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tracing::warn;

use super::DOCUMENT_OF_MANY;
use super::report::Finding;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_base::memory::{self, EvictLocked, Reservation};
use icechunkfs_format::zarr::document;
use icechunkfs_format::zarr::members::{Members, check_portable_within, must_understand, quoted, shorten, string};
use icechunkfs_format::zarr::reshard::rewrite;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, ZARR_JSON};

/// Member of a group's document.
const MEMBER: &str = "consolidated_metadata";
/// Members of a group's `zarr.json` that zarr-python knows.
const GROUP_MEMBERS: [&str; 4] = ["zarr_format", "node_type", "attributes", MEMBER];
/// Consolidated metadata of a group within others.
const EMPTY: &str = r#"{"kind":"inline","must_understand":false,"metadata":{}}"#;
/// Most bytes of a document: a few hundred thousand arrays. Programs hold several times as many in
/// memory.
const MAX_BYTES: usize = 512 << 20;
/// Bytes of documents that are kept.
const MAX_KEPT: usize = 64 << 20;
/// Bytes that are reserved at a time.
const STEP: usize = 1 << 20;
/// Most levels of lists and objects in a node's document: readers of Zarr take ten times as many.
const MAX_DEPTH: usize = 100;
const WHAT: &str = "consolidated metadata";

/// Documents of groups with consolidated metadata.
#[derive(Debug)]
pub(super) struct Consolidated {
    tree: Arc<Tree>,
    kept: Arc<Mutex<Kept>>,
    /// Held while a document is made.
    turn: tokio::sync::Mutex<()>,
}

/// Documents that were asked for last.
#[derive(Debug)]
struct Kept {
    documents: LruCache<NodeIndex, Bytes>,
    bytes: usize,
    /// Sizes of all documents that were made.
    sizes: HashMap<NodeIndex, u64>,
}

impl EvictLocked for Kept {
    fn evict(&mut self, bytes: u64) {
        let most = self.bytes.saturating_sub(usize::try_from(bytes).unwrap_or(usize::MAX));
        self.evict_to(most, 0);
    }
}

impl Kept {
    /// Drops the oldest documents until at most `bytes` bytes or `least` documents are left.
    fn evict_to(&mut self, bytes: usize, least: usize) {
        while self.bytes > bytes && self.documents.len() > least {
            let Some((_, oldest)) = self.documents.pop_lru() else { break };
            self.bytes -= oldest.len();
        }
    }

    fn insert(&mut self, node: NodeIndex, document: Bytes) {
        self.sizes.insert(node, document.len() as u64);
        self.bytes += document.len();
        if let Some(replaced) = self.documents.put(node, document) {
            self.bytes -= replaced.len();
        }
        // The newest one stays whatever its size: a program reads it in parts.
        self.evict_to(MAX_KEPT, 1);
    }
}

impl Consolidated {
    /// Creates the documents of the groups of `tree`; none is made yet.
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        let kept = Kept { documents: LruCache::unbounded(), bytes: 0, sizes: HashMap::new() };
        let kept = Arc::new(Mutex::new(kept));
        memory::register_cache(&kept);
        Consolidated { tree, kept, turn: tokio::sync::Mutex::new(()) }
    }

    /// Returns true if `node` has a document with consolidated metadata.
    pub(super) fn has(&self, node: NodeIndex) -> bool {
        let table = self.tree.table();
        table.is_stored(node) && table.array(node).is_none()
    }

    /// Returns the size of the document of group `node`.
    pub(super) async fn size(&self, node: NodeIndex) -> Result<u64> {
        if let Some(size) = self.kept.lock().sizes.get(&node) {
            return Ok(*size);
        }
        self.document(node).await.map(|document| document.len() as u64)
    }

    /// Returns the document of group `node`.
    pub(super) async fn document(&self, node: NodeIndex) -> Result<Bytes> {
        let kept = || self.kept.lock().documents.get(&node).cloned();
        if let Some(document) = kept() {
            return Ok(document);
        }
        let _turn = self.turn.lock().await;
        if let Some(document) = kept() {
            return Ok(document);
        }
        // The semaphore is never closed.
        let _only = DOCUMENT_OF_MANY.acquire().await;
        let tree = Arc::clone(&self.tree);
        let document = blocking(move || make(&tree, node)).await?;
        self.kept.lock().insert(node, document.clone());
        Ok(document)
    }
}

/// Text that grows within the memory bound.
struct Text {
    text: String,
    memory: Reservation,
}

impl Text {
    fn new() -> Result<Self> {
        Ok(Text { text: String::new(), memory: memory::reserve_blocking(STEP as u64, WHAT)? })
    }

    /// Appends an entry of an object.
    fn add(&mut self, key: &str, value: &str) -> Result<()> {
        let more = key.len() + value.len() + 8;
        // A string grows by doubling.
        let most = (self.text.len() + more).max(2 * self.text.capacity()) as u64;
        if self.text.len() + more > self.text.capacity() && most > self.memory.bytes() {
            self.memory.resize(most.next_multiple_of(STEP as u64), WHAT)?;
        }
        self.text.push_str(if self.text.is_empty() { "" } else { "," });
        self.text += &quoted(key);
        self.text.push(':');
        self.text += value;
        Ok(())
    }
}

/// Makes the document of group `node`: the stored one if it cannot be parsed, or would be too
/// large.
fn make(tree: &Tree, node: NodeIndex) -> Result<Bytes> {
    let stored = tree.zarr_json(node).unwrap_or_default();
    let as_stored = || Ok(Bytes::copy_from_slice(stored));
    // Released before the entries reserve theirs.
    let held = document::reserve_members(stored)?;
    let Ok(members) = parse(stored) else { return as_stored() };
    drop(held);
    let mut entries = Text::new()?;
    let mut is_too_large = false;
    let above = tree.table().path(node);
    walk(tree, node, |below, entry| {
        let Ok(entry) = entry else { return Ok(true) };
        let path = tree.table().path(below);
        let path = path.strip_prefix(&above).map_or(&*path, |path| path.trim_start_matches('/'));
        entries.add(path, &entry)?;
        is_too_large = entries.text.len() > MAX_BYTES;
        Ok(!is_too_large)
    })?;
    if is_too_large {
        warn!("/{above}: consolidated metadata would have more than {MAX_BYTES} bytes: the group does not have it");
        return as_stored();
    }
    let mut memory = memory::reserve_blocking((stored.len() + 2 * entries.text.len()) as u64, WHAT)?;
    let metadata = format!("{{\"kind\":\"inline\",\"must_understand\":false,\"metadata\":{{{}}}}}", entries.text);
    drop(entries);
    let mut document = rewrite(&members, &[(MEMBER, metadata)], &[]);
    document.shrink_to_fit();
    memory.resize(document.len() as u64, WHAT)?;
    Ok(memory::with_reservation(document.into(), memory))
}

/// Calls `visit` for each node below `node` with its entry, or with the reason why it has none, as
/// those below arrays. Nodes below such a node are skipped. Ends early if `visit` returns false.
fn walk(
    tree: &Tree,
    node: NodeIndex,
    mut visit: impl FnMut(NodeIndex, Result<String, String>) -> Result<bool>,
) -> Result<()> {
    let table = tree.table();
    let mut at = node.checked_add(1);
    let end = *table.subtree(node).end();
    while let Some(below) = at.filter(|below| *below <= end) {
        let entry = entry(tree, below)?;
        let is_left_out = entry.is_err();
        let is_array = table.array(below).is_some();
        if !visit(below, entry)? {
            break;
        }
        if is_array && !is_left_out {
            for child in table.children(below) {
                if !visit(*child, Err("it is below an array, where Zarr has no nodes".to_owned()))? {
                    return Ok(());
                }
            }
        }
        let is_leaf = is_array || is_left_out;
        at = if is_leaf { table.subtree(below).end().checked_add(1) } else { below.checked_add(1) };
    }
    Ok(())
}

/// Returns the document of `node` in consolidated metadata, or the reason why it has none. The
/// outer error is that of a lack of memory, which is no reason to leave a node out.
fn entry(tree: &Tree, node: NodeIndex) -> Result<Result<String, String>> {
    let zarr_json = tree.zarr_json(node).unwrap_or_default();
    let _held = document::reserve_members(zarr_json).context(|| format!("/{}", tree.table().path(node)))?;
    Ok(entry_of(tree, node))
}

fn entry_of(tree: &Tree, node: NodeIndex) -> Result<String, String> {
    let table = tree.table();
    let Some(zarr_json) = tree.zarr_json(node) else {
        return Ok(format!(r#"{{"zarr_format":3,"node_type":"group","attributes":{{}},"{MEMBER}":{EMPTY}}}"#));
    };
    if table.name(node) == ZARR_JSON && table.get(node).is_some_and(|entry| table.is_stored(entry.parent)) {
        return Err("the document of its parent has its name".to_owned());
    }
    let members = parse(zarr_json)?;
    let text = std::str::from_utf8(zarr_json).unwrap_or_default();
    check_portable_within(text, MAX_DEPTH).map_err(|reason| format!("its zarr.json cannot be read: {reason}"))?;
    let expected = if table.array(node).is_some() { "array" } else { "group" };
    if members.get("zarr_format") != Some("3") || members.get("node_type").and_then(string).as_deref() != Some(expected)
    {
        return Err(format!("its zarr.json is not that of a version 3 {expected}"));
    }
    match expected {
        "array" => Ok(text.trim().to_owned()),
        _ => {
            // zarr-python opens no group with a member that it does not know, nor one above with
            // this among its entries.
            let unknown: Vec<&str> =
                members.iter().map(|(name, _)| name).filter(|name| !GROUP_MEMBERS.contains(name)).collect();
            if let Some(name) = unknown.iter().find(|name| members.get(name).is_some_and(must_understand)) {
                return Err(format!("the unknown member `{}`, which readers must understand", shorten(name)));
            }
            Ok(rewrite(&members, &[(MEMBER, EMPTY.to_owned())], &unknown))
        }
    }
}

fn parse(zarr_json: &[u8]) -> Result<Members<'_>, String> {
    let text = std::str::from_utf8(zarr_json).map_err(|error| error.to_string());
    let members = text.and_then(Members::parse);
    members.map_err(|why| format!("its zarr.json cannot be read: {}", shorten(&why)))
}

/// Returns the nodes that consolidated metadata leave out, up to `most`, and the number of others.
pub(super) fn findings(tree: &Tree, most: usize) -> Result<(Vec<Finding>, u64)> {
    let mut findings = Vec::new();
    let mut more = 0;
    walk(tree, 0, |node, entry| {
        if let Err(reason) = entry {
            if findings.len() < most {
                let (path, deed) =
                    (format!("/{}", tree.table().path(node)), "left out of consolidated metadata".to_owned());
                findings.push(Finding { path, deed, reason });
            } else {
                more += 1;
            }
        }
        Ok(true)
    })?;
    Ok((findings, more))
}
