//! What a power cut left in a scratch directory without a name.
//!
//! A data file whose line was not on the disk yet belongs to nobody any more. Its bytes may be all that is left of somebody's
//! work, so that it is not deleted: it goes to `lost+found`, as after a check of a file system.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use super::data::Stat;
use super::record::Time;
use crate::error::{Error, Result};

/// The folder of a scratch directory that they go to.
pub const FOLDER: &str = "lost+found";
/// Bytes of a journal's torn end that are kept.
const MOST: u64 = 64 << 20;

/// Takes data files whose lines were lost out of the way.
#[derive(Debug)]
pub struct Salvage<'a> {
    directory: &'a OwnedFd,
    data: &'a OwnedFd,
    /// When the journal was last written anew: it knew everything that was older.
    journal_born: Time,
    /// How many were kept.
    pub count: u64,
}

impl<'a> Salvage<'a> {
    /// The scratch directory `directory` with data files in `data`.
    pub fn new(directory: &'a OwnedFd, data: &'a OwnedFd) -> Self {
        let born = rustix::fs::statx(directory, "journal", AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME);
        let journal_born = born
            .ok()
            .filter(|stat| StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME))
            .map_or(Time(0, 0), |stat| Time(stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        Salvage { directory, data, journal_born, count: 0 }
    }

    /// Keeps data file `number`, which no line names. False if there is nothing to keep.
    pub fn keep(&mut self, number: u64, stat: &Stat) -> Result<bool> {
        if stat.size == 0 || stat.ctime < self.journal_born {
            return Ok(false);
        }
        let failed =
            |e: Errno| Error::io(format!("data file {number}, which a power cut left without a name"), e.into());
        let folder = folder(self.directory).map_err(failed)?;
        rustix::fs::renameat(self.data, number.to_string(), &folder, free_name(&folder, &number.to_string()))
            .map_err(failed)?;
        self.count += 1;
        Ok(true)
    }
}

/// Copies what is in `journal` from byte `begin` on.
pub(super) fn keep_tail(directory: &OwnedFd, journal: &File, begin: u64) -> Result<()> {
    let failed = |e: std::io::Error| Error::io("the torn end of the scratch journal", e);
    let length = journal.metadata().map_err(failed)?.len().saturating_sub(begin).min(MOST);
    let mut tail = vec![0; usize::try_from(length).unwrap_or(0)];
    journal.read_exact_at(&mut tail, begin).map_err(failed)?;
    if tail.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let folder = folder(directory).map_err(|e| failed(e.into()))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&folder, free_name(&folder, "journal"), flags, Mode::from_raw_mode(0o600));
    let file = File::from(file.map_err(|e| failed(e.into()))?);
    file.write_all_at(&tail, 0).and_then(|()| file.sync_all()).map_err(failed)
}

fn folder(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    match rustix::fs::mkdirat(directory, FOLDER, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(directory, FOLDER, flags, Mode::empty())
}

/// `name`, or that with a number if it is taken.
fn free_name(folder: &OwnedFd, name: &str) -> String {
    let is_free = |name: &String| {
        matches!(rustix::fs::statat(folder, name.as_str(), AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT))
    };
    let names = std::iter::once(name.to_owned()).chain((1_u64..).map(|n| format!("{name}.{n}")));
    names.into_iter().find(is_free).unwrap_or_default()
}
