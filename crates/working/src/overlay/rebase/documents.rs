//! Documents that both sides changed: on the new base they have the changes of both.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;

use super::super::invalidation::Invalidation;
use super::super::state::State;
use super::TreeMoves;
use super::merge::Merge;
use crate::scratch::record::{Body, DataFileId, EntryId, Name, Source, Time};
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::nodes::{TreePlace, ZARR_JSON};

impl TreeMoves {
    /// Gives the documents of `merge` their new bytes, in data files whose numbers are added to
    /// `new_data`. No program has them open.
    ///
    /// Fails with [`ErrorKind::Stale`] if such a file has other names, which would show the bytes,
    /// too.
    pub(super) fn write_documents(&self, merge: &mut Merge<'_>, new_data: &mut Vec<DataFileId>) -> Result<()> {
        for (parent, name, document) in std::mem::take(&mut merge.documents) {
            let state = &mut merge.out.state;
            let entry = state.get(parent).and_then(|inode| inode.directory()?.get(&name)).and_then(|entry| entry.id);
            let Some(inode) = entry.and_then(|id| state.get_mut(id)).filter(|inode| inode.names.len() == 1) else {
                return Err(Error::new(
                    ErrorKind::Stale,
                    "a concurrent commit changed a zarr.json that has hard links here: remove the links, then try \
                     again; nothing was changed",
                ));
            };
            let now = Time::now();
            let data = self.upper.lock().state.fresh.next_data_file();
            let file = self.upper.files.create(data)?;
            new_data.push(data);
            file.write_all_at(&document, 0).map_err(|e| Error::io("writing a merged zarr.json", e))?;
            self.upper.files.set_times(data, now, now)?;
            // The journal that names the file is durable at once.
            file.sync_data().map_err(|e| Error::io("flushing a scratch file", e))?;
            inode.body = Body::File(Source::Data(data));
            (inode.meta.mtime, inode.meta.ctime) = (now, now);
            let number = inode.number;
            merge.out.invalidations.push(Invalidation::Inode(number));
        }
        Ok(())
    }

    /// Returns the data files of those documents of `old`, among the published `names`, that have
    /// other bytes in `tree`: they were merged with those of concurrent commits.
    pub(super) fn merged_documents(
        &self,
        old: &State,
        names: &HashSet<(EntryId, Name)>,
        tree: &Tree,
    ) -> HashSet<DataFileId> {
        let documents = names.iter().filter(|(_, name)| name.text() == Some(ZARR_JSON));
        let merged = |(parent, name): &(EntryId, Name)| {
            let id = old.get(*parent)?.directory()?.get(name)?.id?;
            let data = old.get(id)?.data_file()?;
            let there = match tree.place_of(&old.path(id)?) {
                Some(TreePlace::Metadata(node)) => tree.zarr_json(node),
                _ => None,
            };
            let is_same = there.is_some_and(|there| self.has_bytes(data, there));
            (!is_same).then_some(data)
        };
        documents.filter_map(merged).collect()
    }

    fn has_bytes(&self, data: DataFileId, bytes: &[u8]) -> bool {
        let Ok(file) = self.upper.files.open_to_read(data) else { return false };
        let mut own = vec![0; bytes.len()];
        file.metadata().is_ok_and(|metadata| metadata.len() == bytes.len() as u64)
            && file.read_exact_at(&mut own, 0).is_ok()
            && own == bytes
    }
}
