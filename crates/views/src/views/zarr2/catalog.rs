//! Nodes that a Zarr version 2 view has, and their documents.
//!
//! Nothing is mapped before it is asked for. A byte per node records what the mapping of its
//! `zarr.json` said, and the documents that were used last stay in a small cache: a program asks
//! for the size of a document, and then reads it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tracing::warn;

use super::document::{self, ArrayDocuments, GROUP, GroupDocuments, encoding, separator};
use super::files::{DocumentFile, DocumentKind};
use crate::control_directory::NAME;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_base::memory::Meter;
use icechunkfs_format::zarr::chunk_key::{KeyEncoding, Separator, parse_number};
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::array::Array;
use icechunkfs_tree::tree::nodes::{NodeIndex, ZARR_JSON};

/// Bytes of documents that are kept.
const MAX_CACHED: usize = 4 << 20;
/// Most bytes of a `zarr.json` that is mapped on a thread that answers requests: some milliseconds.
const MAX_INLINE: usize = 256 << 10;
/// Most bytes of a node's path. Linux has no longer ones.
pub(super) const MAX_PATH: usize = 4000;

/// Bits of a node's state.
mod state {
    /// The other bits are valid.
    pub(super) const KNOWN: u8 = 1;
    pub(super) const LEFT_OUT: u8 = 2;
    pub(super) const HAS_CHECKSUM: u8 = 4;
    /// The bit `IS_COMPLETE` is valid.
    pub(super) const COUNTED: u8 = 8;
    pub(super) const IS_COMPLETE: u8 = 16;
}

/// Node that the view has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeForm {
    /// Group; also a path that only has nodes below it.
    Group,
    /// Array.
    Array {
        /// True if the view trims a checksum from every chunk.
        has_checksum: bool,
    },
}

/// Nodes and documents of a view.
#[derive(Debug)]
pub(super) struct Catalog {
    tree: Arc<Tree>,
    states: Box<[AtomicU8]>,
    documents: Mutex<DocumentCache>,
    has_warned: AtomicBool,
}

#[derive(Debug)]
struct DocumentCache {
    documents: LruCache<Ino, Bytes>,
    bytes: usize,
}

impl Catalog {
    pub(super) fn new(tree: Arc<Tree>) -> Self {
        let states = std::iter::repeat_with(AtomicU8::default).take(tree.table().len()).collect();
        let documents = Mutex::new(DocumentCache { documents: LruCache::unbounded(), bytes: 0 });
        Catalog { tree, states, documents, has_warned: AtomicBool::new(false) }
    }

    pub(super) fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    fn state(&self, node: NodeIndex) -> u8 {
        self.states.get(node as usize).map_or(state::KNOWN | state::LEFT_OUT, |state| state.load(Ordering::Relaxed))
    }

    fn set_state(&self, node: NodeIndex, bits: u8) {
        if let Some(state) = self.states.get(node as usize) {
            state.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Returns the form of `node`; none if the view leaves it out. Its parent must be in the view.
    pub(super) async fn form(self: &Arc<Self>, node: NodeIndex) -> Result<Option<NodeForm>> {
        if self.state(node) & state::KNOWN == 0 && self.tree.zarr_json(node).is_some_and(|json| json.len() > MAX_INLINE)
        {
            let catalog = Arc::clone(self);
            return blocking(move || catalog.form_now(node)).await;
        }
        self.form_now(node)
    }

    /// Returns the form of `node` like [`Catalog::form`], and maps its `zarr.json` on this thread
    /// if need be. A failure is not recorded.
    pub(super) fn form_now(&self, node: NodeIndex) -> Result<Option<NodeForm>> {
        let mut bits = self.state(node);
        if bits & state::KNOWN == 0 {
            bits = state::KNOWN;
            match self.reason(node)? {
                Ok(None) => {}
                Ok(Some(documents)) => bits |= if documents.has_checksum { state::HAS_CHECKSUM } else { 0 },
                Err(reason) => {
                    bits |= state::LEFT_OUT;
                    self.warn_once(node, &reason);
                }
            }
            self.set_state(node, bits);
        }
        if bits & state::LEFT_OUT != 0 {
            return Ok(None);
        }
        let has_checksum = bits & state::HAS_CHECKSUM != 0;
        let is_array = self.tree.table().array(node).is_some();
        Ok(Some(if is_array { NodeForm::Array { has_checksum } } else { NodeForm::Group }))
    }

    /// Returns the documents of `node` if it is an array, or the reason why the view leaves the
    /// node out. The outer error is that of a lack of memory.
    pub(super) fn reason(&self, node: NodeIndex) -> Result<Result<Option<ArrayDocuments>, String>> {
        let table = self.tree.table();
        if let Some(reason) = self.reason_of_name(node) {
            return Ok(Err(reason));
        }
        Ok(match (table.array(node), self.tree.zarr_json(node)) {
            (Some(_), Some(zarr_json)) => {
                let mut room = self.reserve(node, zarr_json)?;
                let mapped = document::map_array(zarr_json, &mut room).map(Some);
                // An array whose shards could not be taken off has a reason of its own.
                let why = || self.tree.resharded().and_then(|resharded| resharded.reason(node));
                mapped.map_err(|reason| why().map_or(reason, str::to_owned))
            }
            _ => Ok(None),
        })
    }

    /// Reserves the memory for mapping `zarr_json`, the document of `node`.
    fn reserve(&self, node: NodeIndex, zarr_json: &[u8]) -> Result<Meter> {
        document::reserve(zarr_json).context(|| format!("/{}", self.tree.table().path(node)))
    }

    /// Returns the reason why the view leaves `node` out whatever it is.
    fn reason_of_name(&self, node: NodeIndex) -> Option<String> {
        let table = self.tree.table();
        let name = table.name(node);
        let parent = table.get(node)?.parent;
        if node == 0 {
            return None;
        }
        if name == ZARR_JSON || DocumentKind::from_name(name).is_some() {
            return Some(format!("`{name}` is the name of a document"));
        }
        if parent == 0 && name == NAME {
            return Some("the directory of the report has this name".to_owned());
        }
        if table.array(parent).is_some_and(|array| is_chunk_name(array, name)) {
            return Some("chunks of the array that it is in have this name".to_owned());
        }
        (self.path_length(node) > MAX_PATH).then(|| format!("its path is longer than {MAX_PATH} bytes"))
    }

    fn path_length(&self, node: NodeIndex) -> usize {
        let table = self.tree.table();
        let mut at = node;
        let mut length = 0;
        while let Some(entry) = table.get(at).filter(|_| at != 0 && length <= MAX_PATH) {
            length += table.name(at).len() + 1;
            at = entry.parent;
        }
        length
    }

    /// Notes that the user has been warned of what the view leaves out.
    pub(super) fn mark_as_warned(&self) {
        self.has_warned.store(true, Ordering::Relaxed);
    }

    fn warn_once(&self, node: NodeIndex, reason: &str) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let path = self.tree.table().path(node);
            warn!(
                "the view zarr2 leaves out {path:?}: {reason}; {NAME}/zarr2 in the mount lists all that it leaves out"
            );
        }
    }

    /// Returns the documents that `node` has, in the order of listings.
    pub(super) fn kinds(&self, node: NodeIndex, form: NodeForm) -> &'static [DocumentKind] {
        match (form, node) {
            (NodeForm::Group, 0) => &[DocumentKind::Group, DocumentKind::Attributes, DocumentKind::Consolidated],
            (NodeForm::Group, _) => &[DocumentKind::Group, DocumentKind::Attributes],
            (NodeForm::Array { .. }, 0) => &[DocumentKind::Array, DocumentKind::Attributes, DocumentKind::Consolidated],
            (NodeForm::Array { .. }, _) => &[DocumentKind::Array, DocumentKind::Attributes],
        }
    }

    /// Returns the document `file`, which must not be `.zmetadata`; none if the node does not have
    /// it.
    pub(super) async fn document(self: &Arc<Self>, file: DocumentFile) -> Result<Option<Bytes>> {
        if let Some(document) = self.documents.lock().documents.get(&file.inode()) {
            return Ok(Some(document.clone()));
        }
        let Some(form) = self.form(file.node).await? else { return Ok(None) };
        if !self.kinds(file.node, form).contains(&file.kind) {
            return Ok(None);
        }
        let needs_count = file.kind == DocumentKind::Array && self.state(file.node) & state::COUNTED == 0;
        let catalog = Arc::clone(self);
        let is_long = self.tree.zarr_json(file.node).is_some_and(|json| json.len() > MAX_INLINE);
        let make = move |catalog: &Catalog| -> Result<(Bytes, bool)> {
            let (text, depends) = catalog.make(file)?;
            Ok((text.into(), depends))
        };
        let (mut document, depends) = if is_long {
            let catalog = Arc::clone(&catalog);
            blocking(move || make(&catalog)).await?
        } else {
            make(&catalog)?
        };
        if needs_count && depends {
            self.count(file.node).await?;
            let catalog = Arc::clone(self);
            document = if is_long { blocking(move || make(&catalog)).await?.0 } else { make(&catalog)?.0 };
        }
        self.documents.lock().insert(file.inode(), document.clone());
        Ok(Some(document))
    }

    /// Makes the document `file`. Returns true with it if it depends on the existence of every
    /// chunk.
    fn make(&self, file: DocumentFile) -> Result<(String, bool)> {
        if file.kind == DocumentKind::Group {
            return Ok((GROUP.to_owned(), false));
        }
        match (self.documents_of(file.node)?, file.kind) {
            (Some(array), DocumentKind::Array) => {
                Ok((array.zarray(self.is_counted_complete(file.node)), array.depends_on_chunks()))
            }
            (Some(array), _) => Ok((array.zattrs, false)),
            (None, _) => Ok((self.group_attributes(file.node)?.zattrs, false)),
        }
    }

    /// Returns the documents of `node`, which the view has, if it is an array.
    fn documents_of(&self, node: NodeIndex) -> Result<Option<ArrayDocuments>> {
        // The mapping of a document that the view has gives the same again.
        self.reason(node)?.map_err(|why| Error::new(ErrorKind::Io, why))
    }

    /// Returns the documents of a group: empty ones if its attributes cannot be read.
    pub(super) fn group_attributes(&self, node: NodeIndex) -> Result<GroupDocuments> {
        let mapped = self.group(node)?.and_then(Result::ok);
        Ok(mapped.unwrap_or_else(|| GroupDocuments { zattrs: "{}".to_owned(), changed: Vec::new() }))
    }

    /// Returns the documents of a group, or the reason why its attributes cannot be read; none if
    /// it has no `zarr.json`.
    pub(super) fn group(&self, node: NodeIndex) -> Result<Option<Result<GroupDocuments, String>>> {
        let Some(zarr_json) = self.tree.zarr_json(node) else { return Ok(None) };
        let _held = self.reserve(node, zarr_json)?;
        Ok(Some(document::map_group(zarr_json)))
    }

    /// Returns true if every chunk of array `node` is known to exist.
    pub(super) fn is_counted_complete(&self, node: NodeIndex) -> bool {
        self.state(node) & state::IS_COMPLETE != 0
    }

    /// Finds out if every chunk of array `node` exists.
    pub(super) async fn count(&self, node: NodeIndex) -> Result<()> {
        if self.state(node) & state::COUNTED != 0 {
            return Ok(());
        }
        let is_complete = match self.is_complete(node).await {
            Ok(is_complete) => is_complete,
            // A damaged manifest is an error for the chunks that it lists, and not for the array's
            // documents.
            Err(error) if error.is_permanent() => false,
            Err(error) => return Err(error),
        };
        self.set_state(node, state::COUNTED | if is_complete { state::IS_COMPLETE } else { 0 });
        Ok(())
    }

    async fn is_complete(&self, node: NodeIndex) -> Result<bool> {
        let Some(chunks) = self.tree.chunks(node) else { return Ok(false) };
        chunks.has_all().await.context(|| format!("/{}", self.tree.table().path(node)))
    }

    /// Calls `visit` for every node with its form: none for nodes that the view leaves out. Nodes
    /// below those are skipped.
    pub(super) fn walk(&self, mut visit: impl FnMut(NodeIndex, Option<NodeForm>) -> Result<()>) -> Result<()> {
        let table = self.tree.table();
        let mut node = 0;
        let end = table.len() as u64;
        while u64::from(node) < end {
            let form = self.form_now(node)?;
            visit(node, form)?;
            let next = if form.is_some() { node } else { *table.subtree(node).end() };
            let Some(next) = next.checked_add(1) else { break };
            node = next;
        }
        Ok(())
    }

    /// Appends the members of all documents of `node` in `.zmetadata` to `text`.
    pub(super) fn append_documents(&self, node: NodeIndex, form: NodeForm, text: &mut String) -> Result<()> {
        let mut path = self.tree.table().path(node);
        if !path.is_empty() {
            path.push('/');
        }
        let (first, document, attributes) = match form {
            NodeForm::Group => (DocumentKind::Group, GROUP.to_owned(), self.group_attributes(node)?.zattrs),
            NodeForm::Array { .. } => {
                let Some(documents) = self.documents_of(node)? else { return Ok(()) };
                (DocumentKind::Array, documents.zarray(self.is_counted_complete(node)), documents.zattrs)
            }
        };
        for (kind, document) in [(first, document), (DocumentKind::Attributes, attributes)] {
            let key = serde_json::Value::from(format!("{path}{}", kind.name()));
            // Writing into a string cannot fail.
            let _ = write!(text, "{}{key}:{document}", if text.ends_with('{') { "" } else { "," });
        }
        Ok(())
    }
}

impl DocumentCache {
    fn insert(&mut self, inode: Ino, document: Bytes) {
        self.bytes += document.len();
        if let Some(replaced) = self.documents.put(inode, document) {
            self.bytes -= replaced.len();
        }
        // The newest one stays whatever its size: a program reads it in parts.
        while self.bytes > MAX_CACHED && self.documents.len() > 1 {
            let Some((_, oldest)) = self.documents.pop_lru() else { break };
            self.bytes -= oldest.len();
        }
    }
}

/// Returns the key encoding of `array` in the view.
pub(super) fn encoding_of(array: &Array) -> KeyEncoding {
    encoding(separator(&array.encoding, array.grid.len()))
}

/// Returns true if `name` can be that of a chunk of `array`, or of a directory of chunks.
fn is_chunk_name(array: &Array, name: &str) -> bool {
    let encoding = encoding_of(array);
    match encoding.separator {
        Separator::Slash => {
            parse_number(name).is_some_and(|number| array.grid.first().is_some_and(|length| number < *length))
        }
        Separator::Dot => encoding
            .parse_flat(name, array.grid.len())
            .is_some_and(|coords| icechunkfs_format::zarr::is_in_grid(&coords, &array.grid)),
    }
}
