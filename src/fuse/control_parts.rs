//! Parts of `.icechunk` that the user who mounts opens to other users.
//!
//! `.icechunk` names all files of a mount, whatever their modes, all branches, tags and commits of
//! its repository, and commands the mount. So it is for the user who mounted alone, in every mount.
//! That user can open parts of it, by name, for reading.

use icechunkfs_views::control_directory::files::readable_parts;

/// Set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlParts(u32);

impl ControlParts {
    /// Returns the part called `name`.
    pub fn named(name: &str) -> Result<Self, String> {
        let at = readable_parts().position(|part| part == name);
        let all = || readable_parts().collect::<Vec<_>>().join(", ");
        at.map(|at| ControlParts(1 << at))
            .ok_or_else(|| format!("`{name}` is not a part of .icechunk: one of {}", all()))
    }

    /// Returns the parts of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        ControlParts(self.0 | other.0)
    }

    /// Returns true if no part is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the part called `name` is in it.
    pub fn has(self, name: &str) -> bool {
        Self::named(name).is_ok_and(|part| self.0 & part.0 != 0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn parts_are_kept_apart() {
        let both = ControlParts::named("view").unwrap().with(ControlParts::named("at").unwrap());
        assert!(both.has("at") && both.has("view") && !both.has("log") && !both.is_empty());
        assert!(ControlParts::named("").is_err() && ControlParts::named("at,view").is_err());
        assert!(ControlParts::default().is_empty() && !ControlParts::default().has("at"));
    }
}
