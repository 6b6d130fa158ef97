//! `chmod`, `chown`, `utimens`, `truncate`.
//!
//! Modes, owners and times last until the commit, because Icechunk does not store them. Changing
//! them copies no bytes.

use super::Ino;
use super::attributes::Attributes;
use super::content::FileContents;
use super::node::Inode;
use crate::scratch::record::{Record, Time};
use icechunkfs_base::error::Result;

/// Attributes to set; the rest stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttrs {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the bytes.
    pub mtime: Option<Time>,
}

impl FileContents {
    /// Sets attributes of inode `number`.
    pub async fn set_attributes(&self, number: Ino, settings: SetAttrs) -> Result<Attributes> {
        let guard = self.upper.enter().await?;
        let id = {
            let mut locked = self.upper.lock();
            locked.kernel.may_change(number)?;
            locked.promote(&guard, number)?
        };
        if let Some(size) = settings.size {
            self.resize(id, size).await?;
        }
        let before = self.upper.attributes_of(id).await?;
        let mut meta = before.meta;
        meta.mode = settings.mode.unwrap_or(meta.mode);
        meta.uid = settings.uid.unwrap_or(meta.uid);
        meta.gid = settings.gid.unwrap_or(meta.gid);
        meta.atime = settings.atime.unwrap_or(meta.atime);
        meta.mtime = settings.mtime.unwrap_or(meta.mtime);
        meta.ctime = Time::now();
        if settings == (SetAttrs { size: settings.size, ..SetAttrs::default() }) {
            return Ok(before);
        }
        {
            let mut locked = self.upper.lock();
            if settings.mtime.is_some()
                && let Some(data) = locked.state.get(id).and_then(Inode::data_file)
            {
                self.upper.files.set_times(data, meta.atime, meta.mtime)?;
                // An upload depends on the file's times too.
                self.upper.uploads.enqueue_closed(id);
            }
            locked.record(Record::Attributes { id, meta })?;
        }
        self.upper.attributes_of(id).await
    }
}
