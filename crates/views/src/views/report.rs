//! Report of a view: what it leaves out or shows otherwise than the native tree, and why.
//!
//! A mount shows it as the file `.icechunk/NAME`, where NAME is that of the view: one line per
//! finding, with the path, what was done, and the reason. The directory is not listed at the root,
//! as programs take every directory for a group; it exists all the same.

use std::collections::HashSet;

use bytes::Bytes;

use crate::control_directory::NAME;
use icechunkfs_base::printable;
use icechunkfs_tree::inodes::{Ino, REPORT, REPORT_DIRECTORY};
use icechunkfs_tree::tree::directory::Entry;
use icechunkfs_tree::tree::nodes::MAX_NAME;
use icechunkfs_tree::tree::{Attributes, Kind, Tree};

/// Returns true if `inode` belongs to a report.
pub fn is_report(inode: Ino) -> bool {
    matches!(inode, REPORT_DIRECTORY | REPORT)
}

/// Findings of a view, as a file in the directory `.icechunk`.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    text: Bytes,
    findings: usize,
}

impl Report {
    /// Creates the report of view `name` from lines of path, deed and reason, each once.
    pub fn new(name: &'static str, findings: &[Finding]) -> Self {
        let mut seen = HashSet::new();
        let findings: Vec<&Finding> = findings.iter().filter(|finding| seen.insert(*finding)).collect();
        let text: String = findings
            .iter()
            .map(|finding| {
                let [path, deed, reason] =
                    [&finding.path, &finding.deed, &finding.reason].map(|part| printable::line(part));
                format!("{path}\t{deed}\t{reason}\n")
            })
            .collect();
        Report { name, text: text.into(), findings: findings.len() }
    }

    /// Returns the number of findings.
    pub fn count(&self) -> usize {
        self.findings
    }

    /// Returns the entry `name` of `parent` if it belongs to the report.
    pub fn lookup(&self, parent: Ino, name: &str) -> Option<Attributes> {
        match (parent, name) {
            (Ino::ROOT, NAME) => self.attributes(REPORT_DIRECTORY),
            (REPORT_DIRECTORY, name) if name == self.name => self.attributes(REPORT),
            _ => None,
        }
    }

    /// Returns the attributes of `inode` if it belongs to the report.
    pub fn attributes(&self, inode: Ino) -> Option<Attributes> {
        match inode {
            REPORT_DIRECTORY => Some(Attributes { inode, kind: Kind::Directory, size: 0 }),
            REPORT => Some(Attributes { inode, kind: Kind::File, size: self.text.len() as u64 }),
            _ => None,
        }
    }

    /// Lists the directory of the report after `offset`. Returns false if `inode` is another
    /// directory.
    pub fn list(&self, inode: Ino, offset: u64, sink: &mut super::Sink<'_>) -> bool {
        if inode != REPORT_DIRECTORY {
            return false;
        }
        let entries = [(1, ".", REPORT_DIRECTORY), (2, "..", Ino::ROOT), (3, self.name, REPORT)];
        for (at, name, inode) in entries.into_iter().filter(|(at, ..)| *at > offset) {
            let directory = Attributes { inode, kind: Kind::Directory, size: 0 };
            let attributes = self.attributes(inode).unwrap_or(directory);
            if !sink(Entry::new(name, attributes, at)) {
                break;
            }
        }
        true
    }

    /// Reads the report if `inode` is its own.
    pub fn read(&self, inode: Ino, offset: u64, size: u32) -> Option<Bytes> {
        (inode == REPORT).then(|| super::part(&self.text, offset, size))
    }
}

/// Returns the nodes of the snapshot that no view of `tree` can show, because of names that are too
/// long for files.
pub fn nodes_with_long_names(tree: &Tree) -> Vec<Finding> {
    let root = tree.table().root();
    let is_long = |path: &str| path.split('/').any(|name| name.len() > MAX_NAME);
    let below = |path: &str| {
        let rest = path.trim_start_matches('/').strip_prefix(root)?;
        let is_below = root.is_empty() || rest.starts_with('/');
        is_below.then(|| format!("/{}", rest.trim_start_matches('/')))
    };
    let paths = tree.snapshot().nodes().map(|node| node.path).filter(|path| is_long(path)).filter_map(below);
    let reason = format!("a name in its path has more than {MAX_NAME} bytes");
    paths.map(|path| Finding { path, deed: "left out".to_owned(), reason: reason.clone() }).collect()
}

/// Most findings of one node in a report.
const MAX_OF_NODE: usize = 100;

/// Cuts the findings after the first `from`, those of the node at `path`: a node may have very many
/// attributes.
pub fn cut_findings(findings: &mut Vec<Finding>, from: usize, path: &str) {
    let more = (findings.len() - from.min(findings.len())).saturating_sub(MAX_OF_NODE);
    if more > 0 {
        findings.truncate(from + MAX_OF_NODE);
        findings.shrink_to_fit();
        let deed = format!("{more} more of its attributes left out or shown otherwise");
        let reason = format!("a report has {MAX_OF_NODE} for each node");
        findings.push(Finding { path: path.to_owned(), deed, reason });
    }
}

/// Part of a node that a view leaves out or shows otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Path of the node, or of one of its attributes or dimensions.
    pub path: String,
    /// Deed of the view: `left out`, `renamed to NAME`, `widened to float32` and others.
    pub deed: String,
    /// The reason.
    pub reason: String,
}
