//! Storage classes and user metadata of new objects, as the repository's configuration sets them.
//!
//! The configuration is stored in the repository itself, so that the storage learns it only once
//! that is opened. Objects that the store copies by itself have the store's default class, as with
//! the reference implementation.

use std::sync::atomic::{AtomicBool, Ordering};

use object_store::{Attribute, Attributes};
use parking_lot::RwLock;

use super::object::BULK;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_format::format::config::{RepoConfig, StorageClasses};

/// Longest name of a storage class, in bytes. Those of all stores have less than 30.
const MAX_NAME: usize = 64;

/// Rules for new objects; at first those of an empty configuration.
#[derive(Debug)]
pub struct NewObjectRules {
    classes: RwLock<StorageClasses>,
    uses_metadata: AtomicBool,
}

impl Default for NewObjectRules {
    fn default() -> Self {
        let config = RepoConfig::default();
        NewObjectRules {
            classes: RwLock::new(config.storage_classes()),
            uses_metadata: AtomicBool::new(config.uses_metadata()),
        }
    }
}

impl NewObjectRules {
    /// Applies the rules of `config` to the objects that are written from now on.
    pub fn set(&self, config: &RepoConfig) {
        self.uses_metadata.store(config.uses_metadata(), Ordering::Relaxed);
        let classes = config.storage_classes();
        if *self.classes.read() != classes {
            *self.classes.write() = classes;
        }
    }

    /// Returns true if new objects may have user metadata.
    pub(super) fn uses_metadata(&self) -> bool {
        self.uses_metadata.load(Ordering::Relaxed)
    }

    /// Returns the attributes of the new object `key`.
    ///
    /// Fails with [`ErrorKind::Unsupported`] if the configured class cannot be the name of one: it
    /// becomes part of a request.
    pub(super) fn attributes(&self, key: &str) -> Result<Attributes> {
        let classes = self.classes.read();
        let Some(class) = (if key.starts_with(BULK) { &classes.chunks } else { &classes.metadata }) else {
            return Ok(Attributes::new());
        };
        if class.len() > MAX_NAME || !class.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_ ".contains(&byte)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the storage class in the repository's configuration is not valid: see `icechunkfs config REPO get`, \
                 storage.storage_class, storage.metadata_storage_class and storage.chunks_storage_class",
            ));
        }
        Ok(Attributes::from_iter([(Attribute::StorageClass, class.clone())]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn chunks_and_the_rest_have_classes_of_their_own() {
        let rules = NewObjectRules::default();
        let set = |storage| {
            let config = flexbuffers::to_vec(json!({ "storage": storage })).unwrap();
            rules.set(&RepoConfig::from_flexbuffer(&config).unwrap());
        };
        assert_eq!(rules.attributes("chunks/A").unwrap().len(), 0);
        set(json!({"chunks_storage_class": "GLACIER_IR"}));
        let class = |key: &str| {
            rules.attributes(key).unwrap().get(&Attribute::StorageClass).map(|class| class.as_ref().to_owned())
        };
        assert_eq!(
            (class("chunks/A").as_deref(), class("manifests/A"), class("repo")),
            (Some("GLACIER_IR"), None, None)
        );
        for bad in ["A\r\nx-amz-acl: public-read", "\u{e9}", &"A".repeat(65)] {
            set(json!({ "metadata_storage_class": bad }));
            assert_eq!(rules.attributes("repo").unwrap_err().kind(), ErrorKind::Unsupported);
            assert!(rules.attributes("chunks/A").is_ok());
        }
    }
}
