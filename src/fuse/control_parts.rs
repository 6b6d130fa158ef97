//! Parts of `.icechunk` that the user who mounts opens to other users.
//!
//! `.icechunk` names all files of a mount, whatever their modes, all branches, tags and commits of
//! its repository, and commands the mount. So it is for the user who mounted alone, in every mount.
//! That user can open parts of it, by name, for reading.

use std::fmt;

/// Names of the parts: what `.icechunk` has for reading.
const NAMES: [&str; 15] = [
    "at",
    "view",
    "HEAD",
    "info.json",
    "log",
    "status",
    "status.json",
    "diff",
    "conflicts",
    "errors",
    "progress",
    "stats",
    // Reports of views.
    "zarr",
    "zarr2",
    "netcdf",
];

/// Set of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlParts(u32);

impl ControlParts {
    /// Returns the part called `name`.
    pub fn named(name: &str) -> Result<Self, String> {
        let at = NAMES.iter().position(|part| *part == name);
        let all = || NAMES.join(", ");
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

impl fmt::Display for ControlParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = NAMES.into_iter().filter(|name| self.has(name)).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use icechunkfs_views::views::kind::ViewKind;
    use icechunkfs_working::control::files::ControlFile;

    #[test]
    fn every_file_for_reading_is_a_part() {
        for file in ControlFile::listed() {
            let takes_commands = [ControlFile::Commit, ControlFile::Discard, ControlFile::Refresh].contains(&file);
            assert_eq!(ControlParts::named(file.name()).is_err(), takes_commands, "{}", file.name());
        }
        assert!(ControlParts::named(ControlFile::Request.name()).is_err());
        assert!(ViewKind::ALL.iter().all(|kind| ControlParts::named(kind.name()).is_ok()));
        assert!(ControlParts::named("").is_err() && ControlParts::named("at,view").is_err());
    }

    #[test]
    fn parts_are_kept_apart() {
        let both = ControlParts::named("view").unwrap().with(ControlParts::named("at").unwrap());
        assert!(both.has("at") && both.has("view") && !both.has("log") && !both.is_empty());
        assert_eq!(both.to_string(), "at,view");
        assert!(ControlParts::default().is_empty() && !ControlParts::default().has("at"));
    }
}
