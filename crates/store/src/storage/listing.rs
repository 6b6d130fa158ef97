//! Validation of listings: in order, below their prefix, and finite.
//!
//! Stores list by name, in pages. Repeated pages, names of other folders and endless pages are lies
//! or defects of the store; a garbage collection that trusts them would wait, or remove objects,
//! forever.

use super::ObjectInfo;
use super::settings::Settings;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory;

/// Bytes per object in the tables of callers that keep a listing.
const TABLE_ENTRY: u64 = 64;
/// Maximum number of objects in one listing, whatever the memory: some 30 GB of responses, which
/// take hours.
const MAX_OBJECTS: u64 = 100_000_000;
/// Maximum size of a list of refs, in bytes: half a million refs.
const MAX_REFS: u64 = 64 << 20;
/// Folders of refs, in the current and in former layouts.
const REFS: [&str; 2] = ["refs", "r"];

#[derive(Clone, Copy, Debug)]
pub(super) struct ListingLimits {
    objects: u64,
    /// True if the store lists by name.
    is_ordered: bool,
}

impl ListingLimits {
    /// Returns the limits that the user sets, or those of the machine; `is_ordered` is true for a
    /// store that lists by name.
    pub(super) fn of(settings: &Settings, is_ordered: bool) -> Self {
        let objects = settings.max_listed.unwrap_or_else(default_objects);
        ListingLimits { objects, is_ordered }
    }

    /// Returns the maximum size of a list of the objects below `folder`, in bytes.
    pub(super) fn list_size(&self, folder: &str) -> u64 {
        let all = self.objects.saturating_mul(TABLE_ENTRY);
        if REFS.contains(&folder.split('/').next().unwrap_or_default()) { all.min(MAX_REFS) } else { all }
    }
}

/// Returns the number of objects that fit into half of the user's memory limit, or else into a
/// quarter of this machine's memory.
fn default_objects() -> u64 {
    let machine = || memory::available_memory().map(|bytes| bytes / 4);
    let bytes = memory::explicit_bound().map(|bytes| bytes / 2).or_else(machine);
    bytes.map_or(MAX_OBJECTS, |bytes| bytes / TABLE_ENTRY).min(MAX_OBJECTS)
}

#[derive(Debug)]
pub(super) struct ListingValidator<'a> {
    /// Prefix without a trailing slash.
    prefix: &'a str,
    limits: ListingLimits,
    seen: u64,
    previous: Option<String>,
    /// True while names have come in the order of their bytes, or of their components.
    by_bytes: bool,
    by_components: bool,
}

impl<'a> ListingValidator<'a> {
    pub(super) fn new(prefix: &'a str, limits: ListingLimits) -> Self {
        ListingValidator { prefix, limits, seen: 0, previous: None, by_bytes: true, by_components: true }
    }

    /// Returns true if `object` is part of the listing; a folder marker is not. Fails if it cannot
    /// be here, or if there are too many objects.
    pub(super) fn accept(&mut self, object: &ObjectInfo) -> Result<bool> {
        self.seen += 1;
        if self.seen > self.limits.objects {
            return Err(too_many(self.prefix, self.limits.objects));
        }
        let rest = object.key.strip_prefix(self.prefix);
        let is_below = self.prefix.is_empty() || rest.is_some_and(|rest| rest.starts_with('/'));
        if !is_below {
            // Graphical tools create empty objects that stand for folders; the client cuts off the
            // slash.
            return if rest == Some("") { Ok(false) } else { Err(self.invalid(&object.key, "is not below it")) };
        }
        if self.limits.is_ordered && object.size > 0 {
            self.check_order(&object.key)?;
        }
        Ok(true)
    }

    /// Checks the order of names: by bytes, or by components in stores that keep directories.
    fn check_order(&mut self, key: &str) -> Result<()> {
        if let Some(previous) = &mut self.previous {
            self.by_bytes &= previous.as_str() < key;
            self.by_components &= previous.split('/').lt(key.split('/'));
            if !self.by_bytes && !self.by_components {
                return Err(self.invalid(key, "is repeated, or out of order"));
            }
            key.clone_into(previous);
        } else {
            self.previous = Some(key.to_owned());
        }
        Ok(())
    }

    fn invalid(&self, key: &str, why: &str) -> Error {
        Error::corrupt(format!("listing `{}`: the store's listing is not valid: {key:?} {why}", self.prefix))
    }
}

pub(super) fn too_many(prefix: &str, most: u64) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "listing `{prefix}`: the store lists more objects than the limit allows ({most}): if the repository is that large, raise \
             --max-listed"
        ),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn listed(prefix: &str, keys: &[&str]) -> Result<usize> {
        let mut listing = ListingValidator::new(prefix, ListingLimits { objects: 5, is_ordered: true });
        let objects = keys.iter().map(|key| ObjectInfo { key: (*key).to_owned(), size: 1, modified: 0 });
        let mut count = 0;
        for object in objects {
            count += usize::from(listing.accept(&object)?);
        }
        Ok(count)
    }

    #[test]
    fn names_come_in_order() {
        assert_eq!(listed("refs", &["refs/a-b/x", "refs/a/x", "refs/b/x"]).unwrap(), 3, "by bytes");
        assert_eq!(listed("refs", &["refs/a/x", "refs/a-b/x", "refs/b/x"]).unwrap(), 3, "by components");
        for keys in [["c/b", "c/a"], ["c/a", "c/a"]] {
            assert_eq!(listed("c", &keys).unwrap_err().kind(), ErrorKind::Corrupt);
        }
        // Each step is right in one of the orders, but the steps form a cycle.
        assert!(listed("c", &["c/a-b/x", "c/a/x", "c/a-b/x"]).is_err());
    }

    #[test]
    fn names_are_below_the_prefix() {
        assert_eq!(listed("chunks", &["chunks", "chunks/A"]).unwrap(), 1, "a folder's mark is left out");
        assert!(listed("chunks", &["snapshots/A"]).is_err());
        assert!(listed("chunks", &["chunks2/A"]).is_err());
        assert_eq!(listed("", &["repo"]).unwrap(), 1);
    }

    #[test]
    fn a_listing_has_an_end() {
        let error = listed("c", &["c/1", "c/2", "c/3", "c/4", "c/5", "c/6"]).unwrap_err();
        assert!(error.to_string().contains("--max-listed"), "{error}");
        let limits = ListingLimits::of(&Settings::default(), false);
        assert!(limits.list_size("refs/") <= MAX_REFS && limits.list_size("chunks") > 0);
    }
}
