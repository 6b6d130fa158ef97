//! Feature flags of a repository (format notes 1.4).

use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::repo_state::RepoState;

/// Feature that a repository may switch off. All are on unless it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureFlag {
    /// Moves of groups and arrays.
    MoveNode,
    /// Creation of tags.
    CreateTag,
    /// Deletion of tags.
    DeleteTag,
}

impl FeatureFlag {
    /// All flags, in the order of their ids.
    pub const ALL: [FeatureFlag; 3] = [FeatureFlag::MoveNode, FeatureFlag::CreateTag, FeatureFlag::DeleteTag];

    /// Returns the number in the format.
    pub fn id(self) -> u16 {
        match self {
            FeatureFlag::MoveNode => 3,
            FeatureFlag::CreateTag => 4,
            FeatureFlag::DeleteTag => 5,
        }
    }

    /// Returns the name, which is also the reference implementation's.
    pub fn name(self) -> &'static str {
        match self {
            FeatureFlag::MoveNode => "move_node",
            FeatureFlag::CreateTag => "create_tag",
            FeatureFlag::DeleteTag => "delete_tag",
        }
    }

    /// Returns the flag called `name`.
    pub fn named(name: &str) -> Option<Self> {
        FeatureFlag::ALL.into_iter().find(|flag| flag.name() == name)
    }

    /// Returns true if the repository has not switched the flag off.
    pub fn is_on(self, state: &RepoState) -> bool {
        self.set_to(state).unwrap_or(true)
    }

    /// Returns what the repository sets the flag to; none if its default applies.
    pub fn set_to(self, state: &RepoState) -> Option<bool> {
        let is_in = |list: &Option<Vec<u16>>| list.iter().flatten().any(|id| *id == self.id());
        // The order of the reference implementation, for a flag in both lists.
        let on = is_in(&state.enabled_feature_flags).then_some(true);
        on.or_else(|| is_in(&state.disabled_feature_flags).then_some(false))
    }

    /// Fails with [`ErrorKind::NotPermitted`] if the repository has switched the flag off; `action`
    /// is what it allows.
    pub fn check(self, state: &RepoState, action: &str) -> Result<()> {
        if self.is_on(state) {
            return Ok(());
        }
        let name = self.name();
        Err(Error::new(
            ErrorKind::NotPermitted,
            format!(
                "{action} is switched off in this repository (feature flag {name}; `config REPO flags --on {name}` allows it)"
            ),
        ))
    }
}
