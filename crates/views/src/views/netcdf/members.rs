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
        let mut members = Members { groups: vec![root], list: Vec::new() };
        let mut group = 0;
        while let Some((node, depth)) = members.groups.get(group).map(|it| (it.node, it.depth)) {
            let mut taken = HashSet::new();
            let own = (node == 0 && tree.table().array(0).is_some()).then_some(0);
            for child in own.into_iter().chain(tree.table().children(node).iter().copied()) {
                let is_array = tree.table().array(child).is_some();
                if !is_array && !nested {
                    continue;
                }
                if nested && child != node && is_array {
                    // A variable and a group cannot have one name.
                    for &below in tree.table().children(child) {
                        findings.push(Finding {
                            path: format!("/{}", tree.table().path(below)),
                            deed: "left out".to_owned(),
                            reason: BELOW_ARRAY.to_owned(),
                        });
                    }
                }
                let path = format!("/{}", tree.table().path(child));
                let mut found = |deed: String, reason: &str| {
                    findings.push(Finding { path: path.clone(), deed, reason: reason.to_owned() });
                };
                let stored = if child == node {
                    file.trim_start_matches('/').trim_end_matches(".nc")
                } else {
                    tree.table().name(child)
                };
                let Some(name) = names::allowed_member(stored) else {
                    found("left out".to_owned(), LONG_NAME);
                    continue;
                };
                if !is_array && depth >= MAX_DEPTH {
                    found("left out".to_owned(), "groups are nested more than 64 deep");
                    continue;
                }
                let mut notes = Vec::new();
                let variable = if is_array {
                    match parse(tree, child, classic, &mut notes).await {
                        Ok(variable) => Some(variable),
                        Err(Obstacle::OfArray(reason)) => {
                            found("left out".to_owned(), &shortened(&reason));
                            continue;
                        }
                        Err(Obstacle::OfAccess(error)) => return Err(error).context(|| path),
                    }
                } else {
                    None
                };
                // A renamed member must not take the name of another one.
                let is_shown = |other: &NodeIndex| nested || tree.table().array(*other).is_some();
                let has_owner = || tree.table().child(node, &name).filter(is_shown).is_some();
                if (name != stored && has_owner()) || !taken.insert(name.clone()) {
                    found("left out".to_owned(), "another member of its group has its name");
                    continue;
                }
                if name != stored {
                    found(format!("renamed to {name}"), "programs do not accept the name");
                }
                let stored_name = stored.to_owned();
                let Some((variable, stored)) = variable else {
                    members.groups.push(FileGroup { node: child, name, parent: group, depth: depth + 1 });
                    continue;
                };
                notes.extend(change(&variable));
                for Note { deed, reason } in notes {
                    found(deed.to_owned(), &shortened(&reason));
                }
                let others = findings.len();
                let mut attributes = attributes::convert(&stored, Some(&variable.element), classic, &path, findings);
                report::cut_findings(findings, others, &path);
                for name in own_attributes::add(&variable, &mut attributes) {
                    findings.push(Finding {
                        path: format!("{path}@{name}"),
                        deed: "left out".to_owned(),
                        reason: "programs would read other values: the data type says what they mean".to_owned(),
                    });
                }
                members.list.push(Member { group, name, stored_name, path, variable, attributes });
            }
            group += 1;
        }
        own_attributes::add_marks(tree, &mut members.list).await?;
        // Coordinate variables name their dimensions first, so that these keep the plain names.
        members.list.sort_by_cached_key(|member| {
            let is_own = member.is_coordinate();
            (member.group, !(is_own && member.variable.shape.len() == 1), !is_own)
        });
        Ok(members)
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
