//! Layouts of files, as programs may have seen them.
//!
//! The kernel keeps the header of a file for as long as it likes, and the daemon makes it anew when
//! it has not been looked at for a time. Both must be the same: a program finds data by the header
//! that it has. A layout follows from the documents of the arrays, but for texts of any length,
//! whose chunks are read for it: one that cannot be decoded leaves the array out, and may have been
//! damaged on its way only. So what a file looked like is remembered, and another layout is
//! refused.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::LazyLock;

use lru::LruCache;
use parking_lot::Mutex;

use super::hdf5::plan::Plan;
use crate::views::options::NetcdfOptions;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_tree::tree::nodes::NodeIndex;

/// Files whose layouts are remembered, the last ones that were made: about a megabyte.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();

/// Fingerprints of layouts. Of the process, as a view that is not used for a time is made anew,
/// too.
static SEEN: LazyLock<Mutex<LruCache<Layout, u64>>> = LazyLock::new(|| Mutex::new(LruCache::new(REMEMBERED)));

/// File of a snapshot, and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    snapshot: ObjectId,
    node: NodeIndex,
    options: u64,
}

impl Layout {
    /// Names the file of `node` in `snapshot`, which is called `name` and shown with `options`.
    pub(super) fn of(snapshot: ObjectId, node: NodeIndex, name: &str, options: &NetcdfOptions) -> Self {
        let mut hasher = DefaultHasher::new();
        (name, format!("{options:?}")).hash(&mut hasher);
        Layout { snapshot, node, options: hasher.finish() }
    }

    /// Remembers `plan`. Fails if the file had another layout before.
    pub(super) fn check(self, plan: &Plan) -> Result<()> {
        let now = plan.fingerprint();
        let before = *SEEN.lock().get_or_insert(self, || now);
        if before == now {
            Ok(())
        } else {
            Err(Error::corrupt(
                "its header would differ from the one that programs have read, as some texts can be read only at \
                 times: programs would read wrong data. `icechunkfs verify` tells whether the repository is damaged. \
                 If this persists, mount again",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::hdf5::model::{FileModel, Group};
    use super::*;
    use icechunkfs_format::format::testing::id;

    fn plan(name: &str) -> Plan {
        let group = |name: &str| Group { name: name.to_owned(), parent: 0, attributes: Vec::new() };
        Plan::new(&FileModel { groups: vec![group(""), group(name)], datasets: Vec::new() }).unwrap()
    }

    #[test]
    fn a_file_has_one_layout() {
        let options = NetcdfOptions::default();
        let of = |node, name, options: &NetcdfOptions| Layout::of(id(77), node, name, options);
        of(1, "/a.nc", &options).check(&plan("one")).unwrap();
        of(1, "/a.nc", &options).check(&plan("one")).unwrap();
        let error = of(1, "/a.nc", &options).check(&plan("two")).unwrap_err();
        assert!(error.to_string().contains("mount again"), "{error}");
        // Another file, and the same one shown otherwise.
        of(2, "/b.nc", &options).check(&plan("two")).unwrap();
        of(1, "/a.nc", &NetcdfOptions { classic_types: true, ..options.clone() }).check(&plan("two")).unwrap();
        // The first layout stays the right one.
        of(1, "/a.nc", &options).check(&plan("one")).unwrap();
    }
}
