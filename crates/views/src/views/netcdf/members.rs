//! The groups of a file and the arrays in them, with the names that NetCDF allows.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use super::data_type::Shown;
use super::document::StoredAttributes;
use super::hdf5::model::Attribute;
use super::look::{Note, Obstacle, look};
use super::times::{Form, Times};
use super::variable::Variable;
use super::{attributes, names, own_attributes};
use crate::views::report::{self, Finding};
use icechunkfs_base::error::{Context, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{NodeIndex, NodeTable};

/// Deepest nesting of groups in a file: programs walk groups by recursion.
const MAX_DEPTH: usize = 64;
/// Longest reason in bytes.
const MAX_REASON: usize = 200;
/// Reasons that need no look into an array.
pub(super) const LONG_NAME: &str = "the name is too long";
pub(super) const BELOW_ARRAY: &str = "it is below an array, which cannot be a group of the file";

/// Group of a file.
#[derive(Debug)]
pub(super) struct FileGroup {
    pub(super) node: NodeIndex,
    pub(super) name: String,
    pub(super) parent: usize,
    depth: usize,
}

/// Variable of a file, with its group and its name.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) group: usize,
    pub(super) name: String,
    /// Name of the array, which programs may not accept.
    pub(super) stored_name: String,
    /// Path of the array.
    pub(super) path: String,
    pub(super) variable: Variable,
    pub(super) attributes: Vec<Attribute>,
}

impl Member {
    /// Returns true if the variable bears the name of its first dimension.
    pub(super) fn is_coordinate(&self) -> bool {
        let first = self.variable.dimension_names.first().and_then(|name| name.as_deref());
        first.is_some_and(|first| first == self.stored_name)
    }
}

/// Groups of a file, each after its parent, and its variables.
#[derive(Debug)]
pub(super) struct Members {
    pub(super) groups: Vec<FileGroup>,
    pub(super) list: Vec<Member>,
}

impl Members {
    /// Collects the members of the file of `root`, which is called `file`: its arrays, and with
    /// `nested` all groups below it with theirs. What is left out or renamed is added to
    /// `findings`. An array that is the root of the hierarchy is a variable with the name of its
    /// file: no other file has it. Fails if an array cannot be looked into now.
    pub(super) async fn collect(
        tree: &Arc<Tree>,
        root: NodeIndex,
        file: &str,
        nested: bool,
        classic: bool,
        findings: &mut Vec<Finding>,
    ) -> Result<Self> {
        let root = FileGroup { node: root, name: String::new(), parent: 0, depth: 0 };
        let members = Members { groups: vec![root], list: Vec::new() };
        let mut collection = Collection { tree, file, nested, classic, members, findings };
        let mut group = 0;
        while let Some((node, depth)) = collection.members.groups.get(group).map(|it| (it.node, it.depth)) {
            let parent = Parent { group, node, depth };
            let mut taken = HashSet::new();
            let own = (node == 0 && tree.table().array(0).is_some()).then_some(0);
            for child in own.into_iter().chain(tree.table().children(node).iter().copied()) {
                collection.add(parent, child, &mut taken).await?;
            }
            group += 1;
        }
        let mut members = collection.members;
        own_attributes::add_marks(tree, &mut members.list).await?;
        // Coordinate variables name their dimensions first, so that these keep the plain names.
        members.list.sort_by_cached_key(|member| {
            let is_own = member.is_coordinate();
            (member.group, !(is_own && member.variable.shape.len() == 1), !is_own)
        });
        Ok(members)
    }
}

/// Members of a file that are being collected.
struct Collection<'a> {
    tree: &'a Arc<Tree>,
    file: &'a str,
    nested: bool,
    classic: bool,
    members: Members,
    findings: &'a mut Vec<Finding>,
}

/// Group whose children are being collected.
#[derive(Clone, Copy)]
struct Parent {
    group: usize,
    node: NodeIndex,
    depth: usize,
}

impl Collection<'_> {
    fn found(&mut self, path: &str, deed: impl Into<String>, reason: &str) {
        self.findings.push(Finding { path: path.to_owned(), deed: deed.into(), reason: reason.to_owned() });
    }

    /// Adds `child` of a group, in which the names `taken` are. Fails if an array cannot be looked
    /// into now.
    async fn add(&mut self, parent: Parent, child: NodeIndex, taken: &mut HashSet<String>) -> Result<()> {
        let table = self.tree.table();
        let is_array = table.array(child).is_some();
        if !is_array && !self.nested {
            return Ok(());
        }
        if self.nested && child != parent.node && is_array {
            // A variable and a group cannot have one name.
            for &below in table.children(child) {
                self.found(&format!("/{}", table.path(below)), "left out", BELOW_ARRAY);
            }
        }
        let path = format!("/{}", table.path(child));
        let stored = if child == parent.node {
            self.file.trim_start_matches('/').trim_end_matches(".nc")
        } else {
            table.name(child)
        };
        let Some(name) = names::allowed_member(stored) else {
            self.found(&path, "left out", LONG_NAME);
            return Ok(());
        };
        if !is_array && parent.depth >= MAX_DEPTH {
            self.found(&path, "left out", "groups are nested more than 64 deep");
            return Ok(());
        }
        let mut notes = Vec::new();
        let parsed = if is_array {
            match parse(self.tree, child, self.classic, &mut notes).await {
                Ok(parsed) => Some(parsed),
                Err(Obstacle::OfArray(reason)) => {
                    self.found(&path, "left out", &shortened(&reason));
                    return Ok(());
                }
                Err(Obstacle::OfAccess(error)) => return Err(error).context(|| path),
            }
        } else {
            None
        };
        // A renamed member must not take the name of another one.
        let is_shown = |other: &NodeIndex| self.nested || table.array(*other).is_some();
        let has_owner = || table.child(parent.node, &name).filter(is_shown).is_some();
        if (name != stored && has_owner()) || !taken.insert(name.clone()) {
            self.found(&path, "left out", "another member of its group has its name");
            return Ok(());
        }
        if name != stored {
            self.found(&path, format!("renamed to {name}"), "programs do not accept the name");
        }
        let Some((variable, attributes)) = parsed else {
            let group = FileGroup { node: child, name, parent: parent.group, depth: parent.depth + 1 };
            self.members.groups.push(group);
            return Ok(());
        };
        notes.extend(change(&variable));
        for Note { deed, reason } in notes {
            self.found(&path, deed, &shortened(&reason));
        }
        let attributes = self.attributes(&path, &variable, &attributes);
        let stored_name = stored.to_owned();
        self.members.list.push(Member { group: parent.group, name, stored_name, path, variable, attributes });
        Ok(())
    }

    /// Converts the attributes of the array at `path`, and adds those that its type needs.
    fn attributes(&mut self, path: &str, variable: &Variable, stored: &StoredAttributes) -> Vec<Attribute> {
        let others = self.findings.len();
        let mut attributes = attributes::convert(stored, Some(&variable.element), self.classic, path, self.findings);
        report::cut_findings(self.findings, others, path);
        for name in own_attributes::add(variable, &mut attributes) {
            let reason = "programs would read other values: the data type says what they mean";
            self.found(&format!("{path}@{name}"), "left out", reason);
        }
        attributes
    }
}

/// Returns true if `node` is below an array that is not the root.
pub(super) fn is_below_array(table: &NodeTable, node: NodeIndex) -> bool {
    let parent = |node: NodeIndex| table.get(node).map(|entry| entry.parent).filter(|parent| *parent != 0);
    std::iter::successors(parent(node), |node| parent(*node)).any(|above| table.array(above).is_some())
}

/// Cuts a reason, which may have a value of a document in it.
pub(super) fn shortened(reason: &str) -> Cow<'_, str> {
    match reason.get(..reason.floor_char_boundary(MAX_REASON)) {
        Some(start) if start.len() < reason.len() => format!("{start}...").into(),
        _ => reason.into(),
    }
}

/// Parses the array at `node`, and looks at its values as far as needed.
async fn parse(
    tree: &Arc<Tree>,
    node: NodeIndex,
    classic: bool,
    notes: &mut Vec<Note>,
) -> Result<(Variable, StoredAttributes), Obstacle> {
    let (variable, attributes) = Variable::parse(tree, node, classic)?;
    Ok((look(tree, variable, notes).await?, attributes))
}

/// Returns how the elements of a variable differ from those of its array, and why.
fn change(variable: &Variable) -> Option<Note> {
    let (deed, reason) = match &variable.element.shown {
        Shown::Widened { .. } => ("widened to float32", "programs cannot read half-precision numbers"),
        Shown::Complex(_) => ("shown with a last dimension of 2", "NetCDF has no complex numbers"),
        Shown::Time(Times { form: Form::Plain, .. }) => ("shown as plain integers", "NetCDF has no such unit of time"),
        _ if variable.element.is_inexact() => {
            ("shown as double", "classic programs have no 64-bit integers; those beyond 2^53 are rounded")
        }
        _ if variable.element.has_other_sign => {
            ("shown with the sign of _Unsigned", "few programs obey the attribute, and not all in the same way")
        }
        _ => return None,
    };
    Some(Note { deed, reason: reason.to_owned() })
}
