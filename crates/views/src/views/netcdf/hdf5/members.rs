//! Members of groups, and checks of the names in a file.

use std::collections::HashSet;

use super::model::{Attribute, FileModel};
use super::plan::describe;
use super::storage::check_name;
use super::unsupported;
use icechunkfs_base::error::{Context, Result};

/// Datasets and groups in each group, by their indices.
#[derive(Debug)]
pub(super) struct Members {
    datasets: Vec<Vec<usize>>,
    groups: Vec<Vec<usize>>,
}

impl Members {
    /// Collects the members of the groups of `model`. Fails for groups that do not exist and names
    /// that are used twice.
    pub(super) fn new(model: &FileModel) -> Result<Self> {
        let count = model.groups.len();
        let mut members = Members { datasets: vec![Vec::new(); count], groups: vec![Vec::new(); count] };
        let mut names = HashSet::new();
        for (at, group) in model.groups.iter().enumerate() {
            let mut check = || {
                check_attribute_names(&group.attributes)?;
                if at == 0 {
                    return Ok(());
                }
                check_name(&group.name)?;
                if !names.insert((group.parent, group.name.as_str())) {
                    return Err(unsupported("the name is used twice"));
                }
                let parent = members.groups.get_mut(group.parent).filter(|_| group.parent < at);
                parent.ok_or_else(|| unsupported("a group before its parent"))?.push(at);
                Ok(())
            };
            check().context(|| describe_group(model, at))?;
        }
        for (at, dataset) in model.datasets.iter().enumerate() {
            let mut check = || {
                if !names.insert((dataset.group, dataset.name.as_str())) {
                    return Err(unsupported("the name is used twice"));
                }
                let group = members.datasets.get_mut(dataset.group);
                group.ok_or_else(|| unsupported("a dataset of no group"))?.push(at);
                check_attribute_names(&dataset.attributes)
            };
            check().context(|| describe(dataset))?;
        }
        if count == 0 {
            return Err(unsupported("a file without a root group"));
        }
        Ok(members)
    }

    /// Returns the datasets of group `group`.
    pub(super) fn datasets(&self, group: usize) -> &[usize] {
        self.datasets.get(group).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the groups in group `group`.
    pub(super) fn groups(&self, group: usize) -> &[usize] {
        self.groups.get(group).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Checks that no name occurs twice.
pub(super) fn check_attribute_names(attributes: &[Attribute]) -> Result<()> {
    let mut names = HashSet::new();
    match attributes.iter().find(|attribute| !names.insert(&attribute.name)) {
        Some(twice) => Err(unsupported(format!("attribute `{}`: the name is used twice", twice.name))),
        None => Ok(()),
    }
}

/// Returns the words for group `index` in messages.
pub(super) fn describe_group(model: &FileModel, index: usize) -> String {
    match model.groups.get(index).filter(|_| index > 0) {
        Some(group) => format!("group `{}`", group.name),
        None => "the root group".to_owned(),
    }
}
