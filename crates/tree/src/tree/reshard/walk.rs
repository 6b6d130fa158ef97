//! Names in a directory of chunks that are not stored ones, page by page and in grid order.
//!
//! A name is the next coordinate after those of its directory. With one file name for all
//! coordinates, a page goes through directories that do not show: depth first, one coordinate after
//! another.

use super::super::chunks::Chunks;
use super::ChunkForm;
use icechunkfs_base::error::Result;
use icechunkfs_format::zarr::Coords;

impl Chunks<'_> {
    /// Returns a page of chunks or directories like [`Chunks::page`].
    pub(in crate::tree) async fn walk(
        &self,
        form: &ChunkForm,
        prefix: &[u32],
        depth: usize,
        after: Option<&[u32]>,
        limit: usize,
    ) -> Result<Vec<(Coords, u64)>> {
        let mut page = Vec::new();
        if depth == 0 {
            let only = self.find(&[]).await?.filter(|_| after.is_none());
            page.extend(only.map(|chunk| (Coords::new(), chunk.length)));
            return Ok(page);
        }
        let mut at = Coords::from_slice(after.unwrap_or(prefix));
        let mut from = Some(0);
        if after.is_some() {
            from = at.pop().and_then(|last| last.checked_add(1));
        }
        loop {
            let is_last = at.len() + 1 >= depth;
            let names = match (from, form) {
                (None, _) => Vec::new(),
                (Some(from), form) => {
                    let limit = if is_last { limit - page.len() } else { 1 };
                    match form {
                        ChunkForm::Inner(inner) => self.inner_names(inner, &at, from, limit).await?,
                        ChunkForm::Packed(packed) => self.packed_names(packed, &at, from, limit).await?,
                    }
                }
            };
            if let (false, Some((name, _))) = (is_last, names.first()) {
                at.push(*name);
                from = Some(0);
                continue;
            }
            page.extend(names.into_iter().map(|(name, size)| {
                let coords: Coords = at.iter().copied().chain([name]).collect();
                (coords, size)
            }));
            if page.len() >= limit || at.len() <= prefix.len() {
                return Ok(page);
            }
            from = at.pop().and_then(|last| last.checked_add(1));
        }
    }
}
