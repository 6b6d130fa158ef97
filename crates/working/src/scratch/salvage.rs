//! Saves the data files whose names were lost in a power cut.
//!
//! A data file whose line had not reached the disk belongs to no inode any more. Its bytes may be
//! all that is left of a user's work, so it is not deleted but moved to `lost+found`, as after a
//! file system check.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use super::data::Stat;
use super::record::{DataFileId, Time};
use super::requirements::{make_directory, open_file};
use icechunkfs_base::error::{Error, Result};

/// Folder of the scratch directory for saved files.
pub const FOLDER: &str = "lost+found";
/// Bytes of a journal's torn end that are saved.
const MOST: u64 = 64 << 20;

/// Moves data files whose lines were lost to [`FOLDER`].
#[derive(Debug)]
pub struct Salvage<'a> {
    directory: &'a OwnedFd,
    data: &'a OwnedFd,
    /// Time of the journal's last rewrite: that journal knew every older data file.
    journal_born: Time,
    /// Number of saved files.
    pub count: u64,
}

impl<'a> Salvage<'a> {
    /// Prepares saving data files from `data` for the scratch directory `directory`.
    pub fn new(directory: &'a OwnedFd, data: &'a OwnedFd) -> Self {
        let born = rustix::fs::statx(directory, "journal", AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME);
        let journal_born = born
            .ok()
            .filter(|stat| StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME))
            .map_or(Time(0, 0), |stat| Time(stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        Salvage { directory, data, journal_born, count: 0 }
    }

    /// Saves data file `id`, which no line names. Returns false if there is nothing to save.
    pub fn keep(&mut self, id: DataFileId, stat: &Stat) -> Result<bool> {
        if stat.size == 0 || stat.ctime < self.journal_born {
            return Ok(false);
        }
        let failed = |e: Errno| Error::io(format!("{id}, which a power cut left without a name"), e.into());
        let folder = make_directory(self.directory, FOLDER).map_err(failed)?;
        rustix::fs::renameat(self.data, id.file_name(), &folder, free_name(&folder, &id.file_name()))
            .map_err(failed)?;
        self.count += 1;
        Ok(true)
    }
}

/// Saves the bytes of `journal` from byte `begin` on.
pub(super) fn keep_tail(directory: &OwnedFd, journal: &File, begin: u64) -> Result<()> {
    let failed = |e: std::io::Error| Error::io("the torn end of the scratch journal", e);
    let length = journal.metadata().map_err(failed)?.len().saturating_sub(begin).min(MOST);
    let mut tail = vec![0; usize::try_from(length).unwrap_or(0)];
    journal.read_exact_at(&mut tail, begin).map_err(failed)?;
    if tail.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let folder = make_directory(directory, FOLDER).map_err(|e| failed(e.into()))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_file(&folder, free_name(&folder, "journal"), flags).map_err(|e| failed(e.into()))?;
    file.write_all_at(&tail, 0).and_then(|()| file.sync_all()).map_err(failed)
}

/// Returns `name`, with a number appended if it is taken.
fn free_name(folder: &OwnedFd, name: &str) -> String {
    let is_free = |name: &String| {
        matches!(rustix::fs::statat(folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    };
    let names = std::iter::once(name.to_owned()).chain((1_u64..).map(|n| format!("{name}.{n}")));
    names.into_iter().find(is_free).unwrap_or_default()
}
