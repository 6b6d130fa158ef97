//! `chmod`, `chown`, `utimens`, `truncate`.
//!
//! Modes, owners and times last until the commit, because Icechunk does not store them. Changing
//! them copies no bytes.

use super::attributes::Attributes;
use super::node::Inode;
use super::{Ino, WorkingTree};
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

impl WorkingTree {
    /// Sets attributes of inode `number`.
    pub async fn set_attributes(&self, number: Ino, settings: SetAttrs) -> Result<Attributes> {
        let guard = self.enter().await?;
        let id = {
            let mut locked = self.lock();
            locked.kernel.may_change(number)?;
            locked.promote(&guard, number)?
        };
        if let Some(size) = settings.size {
            self.resize(id, size).await?;
        }
        let before = self.attributes_of(id).await?;
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
            let mut locked = self.lock();
            if settings.mtime.is_some()
                && let Some(data) = locked.state.get(id).and_then(Inode::data_file)
            {
                self.files().set_times(data, meta.atime, meta.mtime)?;
                // An upload depends on the file's times too.
                self.uploads().enqueue_closed(id);
            }
            locked.record(Record::Attributes { id, meta })?;
        }
        self.attributes_of(id).await
    }
}
