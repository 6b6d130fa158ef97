//! Storage classes of new objects, as the repository's configuration names them.
//!
//! The configuration is stored in the repository itself, so that the storage learns it only once that is opened. Objects that the store
//! copies by itself have the store's default class, as with the reference implementation.

use object_store::{Attribute, Attributes};
use parking_lot::RwLock;

use super::object::BULK;
use crate::error::{Error, ErrorKind, Result};
use crate::format::config::StorageClasses;

/// Longest name of a storage class, in bytes. Those of all stores have less than 30.
const MAX_NAME: usize = 64;

/// Storage classes of new objects; at first the store's default.
#[derive(Debug, Default)]
pub struct ClassesOfNewObjects(RwLock<StorageClasses>);

impl ClassesOfNewObjects {
    /// Lets the objects that are written from now on have these classes.
    pub fn set(&self, classes: StorageClasses) {
        if *self.0.read() != classes {
            *self.0.write() = classes;
        }
    }

    /// Returns the attributes of the new object `key`.
    ///
    /// Fails with [`ErrorKind::Unsupported`] if the configured class cannot be the name of one: it becomes part of a request.
    pub(super) fn attributes(&self, key: &str) -> Result<Attributes> {
        let classes = self.0.read();
        let Some(class) = (if key.starts_with(BULK) { &classes.chunks } else { &classes.metadata }) else {
            return Ok(Attributes::new());
        };
        if class.len() > MAX_NAME || !class.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_ ".contains(&byte)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a storage class in the repository's configuration is no name of one: see `icechunkfs config REPO get`, storage.storage_class, \
                 storage.metadata_storage_class and storage.chunks_storage_class",
            ));
        }
        Ok(Attributes::from_iter([(Attribute::StorageClass, class.clone())]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn chunks_and_the_rest_have_classes_of_their_own() {
        let rules = ClassesOfNewObjects::default();
        assert_eq!(rules.attributes("chunks/A").unwrap().len(), 0);
        rules.set(StorageClasses { chunks: Some("GLACIER_IR".into()), metadata: None });
        let class = |key: &str| {
            rules.attributes(key).unwrap().get(&Attribute::StorageClass).map(|class| class.as_ref().to_owned())
        };
        assert_eq!(
            (class("chunks/A").as_deref(), class("manifests/A"), class("repo")),
            (Some("GLACIER_IR"), None, None)
        );
        for bad in ["A\r\nx-amz-acl: public-read", "\u{e9}", &"A".repeat(65)] {
            rules.set(StorageClasses { chunks: None, metadata: Some(bad.to_owned()) });
            assert_eq!(rules.attributes("repo").unwrap_err().kind(), ErrorKind::Unsupported);
            assert!(rules.attributes("chunks/A").is_ok());
        }
    }
}
