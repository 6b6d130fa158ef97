//! Owner and modes that a mount shows instead of those that its files have: `uid=`, `gid=`,
//! `umask=`, `fmask=` and `dmask=`, with the meaning that mount(8) gives them for file systems
//! without owners.
//!
//! With them a mount of root can be a group's: what any member writes, all members can read, change
//! and commit. Icechunk stores no owners and modes, so nothing is lost; `chmod` and `chown` succeed
//! without an effect, as `tar` and `rsync -a` call them for each file and would otherwise fail on
//! all.

use fuser::{FileAttr, FileType};

use super::control_parts::ControlParts;
use icechunkfs_views::control_directory;

/// Permissions of a file before a mask; files of Zarr are no programs.
const FILE: u16 = 0o666;
/// Permissions of a directory before a mask.
const DIRECTORY: u16 = 0o777;

/// Owner and modes that all files of a mount show; none shows the file's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presentation {
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Permissions that no file has.
    pub fmask: Option<u16>,
    /// Permissions that no directory has.
    pub dmask: Option<u16>,
    /// Parts of `.icechunk` that other users may read.
    pub shared: ControlParts,
}

/// Permissions for the owner alone.
const OWNER: u16 = 0o700;

impl Presentation {
    /// Returns the attributes as they are shown.
    pub(super) fn apply(&self, attr: FileAttr) -> FileAttr {
        let perm = match attr.kind {
            FileType::Directory => self.dmask.map(|mask| DIRECTORY & !mask),
            FileType::Symlink => None,
            _ => self.fmask.map(|mask| FILE & !mask),
        };
        FileAttr {
            perm: perm.unwrap_or(attr.perm),
            uid: self.uid.unwrap_or(attr.uid),
            gid: self.gid.unwrap_or(attr.gid),
            ..attr
        }
    }

    /// Returns the attributes of `.icechunk`, or of the part of it called `part`, as they are
    /// shown: for the owner alone, unless masks give other modes, or that part is open to others.
    pub(super) fn apply_control(&self, part: &str, attr: FileAttr) -> FileAttr {
        let shown = self.apply(FileAttr { perm: attr.perm & OWNER, ..attr });
        let opened = match attr.kind {
            // To be entered, not to be listed.
            FileType::Directory if part == control_directory::NAME && !self.shared.is_empty() => 0o011,
            FileType::Directory if self.shared.has(part) => 0o055,
            FileType::RegularFile if self.shared.has(part) => 0o044,
            _ => 0,
        };
        FileAttr { perm: shown.perm | opened, ..shown }
    }

    /// Returns true if the modes that programs set are not shown.
    pub(super) fn hides_modes(&self) -> bool {
        self.fmask.is_some() || self.dmask.is_some()
    }
}

/// Parses a mask, an octal number.
pub fn parse_mask(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mask| *mask <= 0o777)
        .ok_or_else(|| format!("`{text}` is not a valid mask: write an octal number up to 777, such as 002"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::UNIX_EPOCH;

    use fuser::INodeNo;

    use super::*;

    #[test]
    fn masks_and_owners_replace_what_files_have() {
        let attr = |kind, perm| FileAttr {
            ino: INodeNo(2),
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 1,
            gid: 2,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        let shown = |presentation: Presentation, kind, perm| {
            let shown = presentation.apply(attr(kind, perm));
            (shown.perm, shown.uid, shown.gid)
        };
        let plain = Presentation::default();
        assert_eq!(shown(plain, FileType::RegularFile, 0o640), (0o640, 1, 2));
        let masks = (Some(0o007), Some(0o027));
        let group = Presentation { gid: Some(50), fmask: masks.0, dmask: masks.1, ..plain };
        assert_eq!(shown(group, FileType::RegularFile, 0o600), (0o660, 1, 50));
        assert_eq!(shown(group, FileType::Directory, 0o700), (0o750, 1, 50));
        assert_eq!(shown(group, FileType::Symlink, 0o777), (0o777, 1, 50));
        let control =
            |presentation: Presentation, part, kind, perm| presentation.apply_control(part, attr(kind, perm)).perm;
        let directory = FileType::Directory;
        let file = FileType::RegularFile;
        assert_eq!(control(plain, ".icechunk", directory, 0o755), 0o700);
        assert_eq!((control(plain, "at", directory, 0o755), control(plain, "log", file, 0o644)), (0o700, 0o600));
        assert_eq!((control(group, "at", directory, 0o755), control(group, "log", file, 0o644)), (0o750, 0o660));
        let open = Presentation { shared: ControlParts::named("at").unwrap(), ..plain };
        assert_eq!(
            (control(open, ".icechunk", directory, 0o755), control(open, "at", directory, 0o755)),
            (0o711, 0o755)
        );
        assert_eq!((control(open, "view", directory, 0o755), control(open, "log", file, 0o644)), (0o700, 0o600));
        let log = Presentation { shared: ControlParts::named("log").unwrap(), ..group };
        assert_eq!((control(log, "log", file, 0o644), control(log, ".icechunk", directory, 0o755)), (0o664, 0o751));
        assert!(parse_mask("027") == Ok(0o027) && ["8", "1000", "-1", ""].iter().all(|text| parse_mask(text).is_err()));
    }
}
