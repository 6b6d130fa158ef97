//! The table of the control files. A new file is one line in it, at the end, and one arm: of
//! [`render`](super::state::render) if every mount has it, otherwise of the writable mount's.

use super::MountKind;
use crate::attached;
use crate::views::kind::ViewKind;
use icechunkfs_tree::inodes::{self, Ino};

/// Use of a control file, and the mounts that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Takes commands of a writable mount.
    Command,
    /// Takes commands of this program in a writable mount, and is not listed.
    Request,
    /// Shows a writable mount's changes.
    Changes,
    /// Shows what every mount has; it is at this place among the files of a read-only mount.
    Every(u64),
}

macro_rules! control_files {
    ($($(#[$doc:meta])* $file:ident = $name:literal, $use:expr;)*) => {
        /// A control file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ControlFile {
            $($(#[$doc])* $file,)*
        }

        impl ControlFile {
            const ALL: &[ControlFile] = &[$(ControlFile::$file),*];

            /// Returns the names of those that are listed in a writable mount.
            pub fn names() -> impl Iterator<Item = &'static str> {
                Self::ALL.iter().filter(|file| file.purpose() != Use::Request).map(|file| file.name())
            }

            /// Returns the name.
            pub fn name(self) -> &'static str {
                match self {
                    $(ControlFile::$file => $name,)*
                }
            }

            fn purpose(self) -> Use {
                match self {
                    $(ControlFile::$file => $use,)*
                }
            }
        }
    };
}

// The order is that of numbers and listings in a writable mount.
control_files! {
    /// Writing commits; reading returns the outcome.
    Commit = "commit", Use::Command;
    /// Summary of the uncommitted changes, or of what a read-only mount shows, as text.
    Status = "status", Use::Every(3);
    /// Summary of the uncommitted changes, as JSON.
    StatusJson = "status.json", Use::Changes;
    /// Uncommitted changes of each node.
    Diff = "diff", Use::Changes;
    /// Commits that led to the base, or to the snapshot that is shown.
    Log = "log", Use::Every(2);
    /// Conflicts of the last commit or refresh.
    Conflicts = "conflicts", Use::Changes;
    /// Recent failures that programs met.
    RecentErrors = "errors", Use::Every(4);
    /// Facts about the mount, as JSON.
    Info = "info.json", Use::Every(0);
    /// Writing discards changes.
    Discard = "discard", Use::Command;
    /// Writing rebases the working tree onto the branch tip.
    Refresh = "refresh", Use::Command;
    /// Progress of a running commit.
    Progress = "progress", Use::Changes;
    /// A command of `icechunkfs` as JSON; reading the same handle returns the answer. Not listed.
    Request = "request", Use::Request;
    /// Ref, and the snapshot that is shown or is the base.
    Head = "HEAD", Use::Every(1);
    /// Counts of what the daemon has done.
    Stats = "stats", Use::Every(5);
    /// Writing cancels the running commit.
    Cancel = "cancel", Use::Command;
}

impl ControlFile {
    /// Returns the file with inode number `number`, in a mount of any kind.
    pub fn at(number: Ino) -> Option<Self> {
        if let Some(place) = inodes::CONTROL.position(number) {
            return Self::ALL.get(usize::try_from(place.checked_sub(1)?).ok()?).copied();
        }
        let place = attached::in_tree_0(number).and_then(|inode| inodes::MOUNT_FILES.position_from_end(inode))?;
        Self::ALL.iter().copied().find(|file| file.purpose() == Use::Every(place))
    }

    /// Returns the inode number in mounts of `kind`; none if they do not have the file.
    pub fn number(self, kind: MountKind) -> Option<Ino> {
        match (kind, self.purpose()) {
            (MountKind::Writable, _) => Some(inodes::CONTROL.at(self as u64 + 1)),
            (MountKind::ReadOnly, Use::Every(place)) => inodes::attach(0, inodes::MOUNT_FILES.from_end(place)),
            (MountKind::ReadOnly, Use::Command | Use::Request | Use::Changes) => None,
        }
    }

    /// Returns the file called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|file| file.name() == name)
    }

    /// Returns the files that listings show in mounts of `kind`, in their order.
    pub(super) fn listed(kind: MountKind) -> impl Iterator<Item = Self> {
        let mut files: Vec<ControlFile> = Self::ALL.iter().copied().filter(|file| file.is_listed(kind)).collect();
        if kind == MountKind::ReadOnly {
            files.sort_by_key(|file| match file.purpose() {
                Use::Every(place) => place,
                Use::Command | Use::Request | Use::Changes => u64::MAX,
            });
        }
        files.into_iter()
    }

    fn is_listed(self, kind: MountKind) -> bool {
        self.purpose() != Use::Request && self.number(kind).is_some()
    }

    fn is_for_reading(self) -> bool {
        matches!(self.purpose(), Use::Changes | Use::Every(_))
    }
}

/// Returns the names of the parts of the directory that other users may be let read: directories,
/// files for reading, and reports of views.
pub fn readable_parts() -> impl Iterator<Item = &'static str> {
    let files = ControlFile::ALL.iter().filter(|file| file.is_for_reading()).map(|file| file.name());
    let directories = [super::AT_NAME, super::VIEWS_NAME].into_iter();
    directories.chain(files).chain(ViewKind::ALL.into_iter().map(ViewKind::name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_directory::{entries, entry, part_of};

    /// Returns the names and the last digits of the numbers of a listing.
    fn listed(kind: MountKind, base: u64) -> Vec<(&'static str, i64)> {
        let files = entries(kind).into_iter().filter(|entry| entry.file.is_some());
        files.map(|entry| (entry.name, entry.number.0.wrapping_sub(base).cast_signed())).collect()
    }

    #[test]
    fn names_numbers_and_order_stay() {
        let writable = [
            ("commit", 1),
            ("status", 2),
            ("status.json", 3),
            ("diff", 4),
            ("log", 5),
            ("conflicts", 6),
            ("errors", 7),
            ("info.json", 8),
            ("discard", 9),
            ("refresh", 10),
            ("progress", 11),
            ("HEAD", 13),
            ("stats", 14),
            ("cancel", 15),
        ];
        assert_eq!(listed(MountKind::Writable, (1 << 62) - 64), writable);
        let last = 1 << 63 | ((1 << 43) - 5);
        let read_only = [("info.json", 0), ("HEAD", -1), ("log", -2), ("status", -3), ("errors", -4), ("stats", -5)];
        assert_eq!(listed(MountKind::ReadOnly, last), read_only);
        let ends = |kind| [entries(kind).first().map(|entry| entry.name), entries(kind).last().map(|entry| entry.name)];
        assert_eq!(ends(MountKind::Writable), [Some("commit"), Some("view")]);
        assert_eq!(ends(MountKind::ReadOnly), [Some("at"), Some("stats")]);
    }

    #[test]
    fn names_and_numbers_belong_together() {
        for kind in [MountKind::ReadOnly, MountKind::Writable] {
            for file in ControlFile::ALL.iter().copied() {
                let Some(number) = file.number(kind) else { continue };
                assert_eq!(ControlFile::at(number), Some(file));
                assert_eq!(part_of(number), Some(file.name()));
                assert_eq!(entry(kind, file.name()).map(|entry| entry.number), Some(number));
            }
            assert_eq!(ControlFile::at(kind.directory()), None);
            assert_eq!(part_of(kind.directory()), Some(super::super::NAME));
            assert_eq!(entry(kind, "x"), None);
        }
        assert_eq!(entry(MountKind::ReadOnly, "commit"), None);
        assert!(entry(MountKind::Writable, "request").is_some());
        assert!((ControlFile::ALL.len() as u64) < inodes::CONTROL.count());
    }

    #[test]
    fn parts_for_others_take_no_commands() {
        let parts: Vec<&str> = readable_parts().collect();
        assert!(["at", "view", "HEAD", "errors", "diff", "netcdf"].iter().all(|part| parts.contains(part)));
        assert!(["commit", "discard", "refresh", "request", "cancel"].iter().all(|part| !parts.contains(part)));
    }
}
