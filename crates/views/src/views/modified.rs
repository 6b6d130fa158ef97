//! The Zarr version 3 view with modifiers: other units of chunks, consolidated metadata.
//!
//! Other units of chunks are a matter of the tree ([`icechunkfs_tree::tree::reshard`]), which this
//! view shows as any other; consolidated metadata ([`super::consolidated`]) take the place of
//! groups' documents. The report lists the arrays that are shown as stored all the same.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use super::consolidated::{self, Consolidated};
use super::omissions::{Omissions, SHOWS_AS_STORED};
use super::report::{self, Finding, Report};
use super::{Sink, ViewTree, no_such, not_a_directory, part};
use crate::control_directory;
use icechunkfs_base::blocking::blocking;
use icechunkfs_base::error::{Context, Result};
use icechunkfs_repo::reader::Data;
use icechunkfs_tree::inodes::Ino;
use icechunkfs_tree::tree::directory::{Entry, Extent, METADATA};
use icechunkfs_tree::tree::nodes::{NodeIndex, TreePlace};
use icechunkfs_tree::tree::{Attributes, Tree};

/// Name of the report.
const NAME: &str = "zarr";
/// Most findings in the report.
const MAX_FINDINGS: usize = 10_000;

/// Snapshot as Zarr version 3 with modifiers.
#[derive(Debug)]
pub struct ModifiedView {
    tree: Arc<Tree>,
    consolidated: Option<Consolidated>,
    report: OnceCell<Report>,
}

impl ModifiedView {
    /// Makes the view of `tree`, with consolidated metadata if `is_consolidated`.
    pub fn new(tree: Arc<Tree>, is_consolidated: bool) -> Self {
        let consolidated = is_consolidated.then(|| Consolidated::new(Arc::clone(&tree)));
        ModifiedView { tree, consolidated, report: OnceCell::new() }
    }

    async fn report(&self) -> Result<&Report> {
        let make = || async {
            let tree = Arc::clone(&self.tree);
            let is_consolidated = self.consolidated.is_some();
            blocking(move || make_report(&tree, is_consolidated)).await
        };
        self.report.get_or_try_init(make).await
    }

    /// Returns true if `name` in the directory `parent` belongs to the report. A node of that name
    /// takes precedence.
    fn is_report(&self, parent: Ino, name: &str) -> bool {
        let is_free = || self.tree.table().child(0, control_directory::NAME).is_none();
        report::is_report(parent) || (parent == Ino::ROOT && name == control_directory::NAME && is_free())
    }

    /// Returns the group with consolidated metadata whose document is `inode`.
    fn group(&self, inode: Ino) -> Option<(&Consolidated, NodeIndex)> {
        let consolidated = self.consolidated.as_ref()?;
        match self.tree.table().place(inode)? {
            TreePlace::Metadata(node) if consolidated.has(node) => Some((consolidated, node)),
            _ => None,
        }
    }

    /// Returns `attributes` with the size of the document that the view shows.
    async fn shown(&self, attributes: Attributes) -> Result<Attributes> {
        match self.group(attributes.inode) {
            Some((consolidated, node)) => Ok(Attributes { size: consolidated.size(node).await?, ..attributes }),
            None => Ok(attributes),
        }
    }
}

#[async_trait]
impl ViewTree for ModifiedView {
    fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    async fn lookup(&self, parent: Ino, name: &str) -> Result<Option<Attributes>> {
        if self.is_report(parent, name) {
            return Ok(self.report().await?.lookup(parent, name));
        }
        match self.tree.lookup(parent, name).await? {
            Some(found) => self.shown(found).await.map(Some).context(|| self.describe(found.inode)),
            None => Ok(None),
        }
    }

    async fn attributes(&self, inode: Ino) -> Result<Attributes> {
        if report::is_report(inode) {
            return self.report().await?.attributes(inode).ok_or_else(|| no_such(inode));
        }
        let attributes = self.tree.attributes(inode).await?;
        self.shown(attributes).await.context(|| self.describe(inode))
    }

    async fn list(&self, inode: Ino, offset: u64, extent: Extent, sink: &mut Sink<'_>) -> Result<()> {
        if report::is_report(inode) {
            let is_directory = self.report().await?.list(inode, offset, sink);
            return if is_directory { Ok(()) } else { Err(not_a_directory(inode)) };
        }
        // The document of a directory follows the dots.
        let document = match self.tree.table().place(inode) {
            Some(TreePlace::Directory(node)) if offset < METADATA && extent != Extent::Names => {
                Some(self.tree.table().inode(&TreePlace::Metadata(node)))
            }
            _ => None,
        };
        let group = document.and_then(|document| Some((document, self.group(document)?)));
        let size = match group {
            Some((document, (consolidated, node))) => {
                Some(consolidated.size(node).await.context(|| self.describe(document))?)
            }
            None => None,
        };
        let mut shown = |mut entry: Entry<'_>| {
            if let Some(size) = size.filter(|_| Some(entry.attributes.inode) == document) {
                entry.attributes.size = size;
            }
            sink(entry)
        };
        self.tree.list(inode, offset, extent, &mut shown).await
    }

    async fn read(&self, inode: Ino, offset: u64, size: u32) -> Result<Data> {
        if report::is_report(inode) {
            let read = self.report().await?.read(inode, offset, size).map(Data::Bytes);
            return read.ok_or_else(|| no_such(inode));
        }
        let Some((consolidated, node)) = self.group(inode) else { return self.tree.read(inode, offset, size).await };
        let document = consolidated.document(node).await.context(|| self.describe(inode))?;
        Ok(Data::Bytes(part(&document, offset, size)))
    }

    fn native(&self, inode: Ino) -> Option<Ino> {
        (!report::is_report(inode) && self.group(inode).is_none()).then_some(inode)
    }

    fn omissions(&self) -> Omissions {
        let reason = |node| Some((node, self.tree.resharded()?.reason(node)?.to_owned()));
        Omissions::find(&self.tree, SHOWS_AS_STORED, reason)
    }

    fn describe(&self, inode: Ino) -> String {
        self.tree.describe(inode)
    }
}

/// Makes the report of the nodes that `tree` shows as stored, and of those that consolidated
/// metadata leave out.
fn make_report(tree: &Tree, is_consolidated: bool) -> Result<Report> {
    let mut findings = Vec::new();
    let mut more = 0;
    if let Some(resharded) = tree.resharded() {
        let (found, others) = resharded.findings();
        findings.extend(found.iter().map(|finding| Finding {
            path: format!("/{}", tree.table().path(finding.node)),
            deed: if finding.is_stored { "shown as stored" } else { "shown with losses" }.to_owned(),
            reason: finding.reason.clone(),
        }));
        more += others;
    }
    if is_consolidated {
        let (found, others) = consolidated::findings(tree, MAX_FINDINGS.saturating_sub(findings.len()))?;
        findings.extend(found);
        more += others;
    }
    if more > 0 {
        let path = "/".to_owned();
        let deed = "more".to_owned();
        let reason = format!("{more} findings");
        findings.push(Finding { path, deed, reason });
    }
    Ok(Report::new(NAME, &findings))
}
