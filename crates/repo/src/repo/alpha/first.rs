//! Objects of the first layout, presented under the keys of today's layout.
//!
//! Folders had names of one letter, and ids had 16 bytes. Today's ids are the first 12 of those, so
//! that an object is found by the beginning of its name; the end of a name, after the id, was never
//! specified. Each folder is therefore listed once, when an object in it is first needed. Two
//! objects whose ids begin alike, which chance does not produce, are an error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_store::storage::{
    Capabilities, Content, ListMode, ObjectInfo, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};

/// Today's folders, and those of the first layout.
const FOLDERS: [(&str, &str); 4] =
    [("snapshots/", "s/"), ("manifests/", "m/"), ("attributes/", "a/"), ("chunks/", "c/")];
/// Maximum number of names kept per folder. A name takes some 100 bytes.
const MAX_NAMES: usize = 4 << 20;

/// Names of a folder's objects by the beginning of their ids; none for an ambiguous beginning.
type Names = HashMap<ObjectId, Option<Box<str>>>;

#[derive(Debug)]
struct FirstLayout {
    storage: Arc<dyn Storage>,
    capabilities: Capabilities,
    names: [OnceCell<Names>; FOLDERS.len()],
}

/// Presents the objects of `storage` under today's keys.
pub(super) fn present_current_keys(storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
    let base = storage.capabilities().clone();
    let capabilities = Capabilities {
        read_only: Some("it is of an Icechunk release before 0.2".into()),
        // The names of the files are not today's keys.
        local_files: None,
        with_slash: None,
        ..base
    };
    Arc::new(FirstLayout { storage, capabilities, names: Default::default() })
}

impl FirstLayout {
    /// Returns the stored key of the object whose key is `key` today.
    async fn key(&self, key: &str) -> Result<String> {
        let found = std::iter::zip(FOLDERS, &self.names)
            .find_map(|((today, then), names)| Some((key.strip_prefix(today)?.parse::<ObjectId>().ok()?, then, names)));
        let Some((id, folder, names)) = found else { return Ok(key.to_owned()) };
        let names = names.get_or_try_init(|| self.list_folder(folder)).await?;
        match names.get(&id) {
            Some(Some(name)) => Ok(format!("{folder}{name}")),
            Some(None) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("two objects in {folder} have ids that begin with the same 12 bytes ({id})"),
            )),
            None => Err(Error::new(ErrorKind::NotFound, format!("{folder}: no object whose id begins as {id}"))),
        }
    }

    async fn list_folder(&self, folder: &str) -> Result<Names> {
        let objects = self.storage.list(folder).await.context(|| self.storage.location().to_owned())?;
        if objects.len() > MAX_NAMES {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!(
                    "{folder} has {} objects; at most {MAX_NAMES} are supported in the first layout",
                    objects.len()
                ),
            ));
        }
        let mut names = Names::with_capacity(objects.len());
        for object in objects {
            let Some(name) = object.key.strip_prefix(folder) else { continue };
            let Some(id) = id_of(name) else { continue };
            match names.entry(id) {
                Entry::Vacant(place) => drop(place.insert(Some(name.into()))),
                Entry::Occupied(mut place) => drop(place.insert(None)),
            }
        }
        Ok(names)
    }

    fn closed(&self) -> Error {
        super::read_only(self.storage.location())
    }
}

/// Returns today's id of the object with this name.
fn id_of(name: &str) -> Option<ObjectId> {
    ObjectId::from_wide_text(name.split('.').next().unwrap_or_default())
}

#[async_trait]
impl Storage for FirstLayout {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        self.storage.read(&self.key(key).await?, limit, mode).await
    }

    async fn store(&self, _key: &str, _content: Content<'_>) -> Result<()> {
        Err(self.closed())
    }

    async fn sync(&self, _folders: &[&str]) -> Result<()> {
        Ok(())
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        let Some((today, then)) = FOLDERS.into_iter().find(|(today, _)| *today == prefix) else {
            return self.storage.walk(prefix, mode, visit).await;
        };
        let mut visit_named = |object: ObjectInfo| match object.key.strip_prefix(then).and_then(id_of) {
            Some(id) => visit(ObjectInfo { key: format!("{today}{id}"), ..object }),
            None => ControlFlow::Continue(()),
        };
        self.storage.walk(then, mode, &mut visit_named).await
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        let Removal::Cached(key) = removal else { return Err(self.closed()) };
        self.storage.remove(Removal::Cached(&self.key(key).await?)).await
    }

    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>> {
        self.storage.locate(&self.key(key).await?).await
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use icechunkfs_store::storage::{Condition, empty_storage};

    #[tokio::test]
    async fn objects_are_found_by_the_beginning_of_their_names() {
        let storage = empty_storage("memory");
        // 12 zero bytes, then 1 and 2 in the last four.
        let one = "00000000000000000000000004";
        let two = "0000000000000000000000000G";
        let id = ObjectId([0; 12]);
        storage.put(&format!("s/{one}.json"), "snapshot".into(), Condition::Always).await.unwrap();
        storage.put(&format!("c/{one}"), "chunk".into(), Condition::Always).await.unwrap();
        storage.put(&format!("m/{one}"), "one".into(), Condition::Always).await.unwrap();
        storage.put(&format!("m/{two}"), "two".into(), Condition::Always).await.unwrap();
        storage.put("m/notes.txt", "none".into(), Condition::Always).await.unwrap();
        let today = present_current_keys(storage);
        assert_eq!(today.get(&format!("snapshots/{id}"), 100).await.unwrap(), "snapshot");
        assert_eq!(today.get_range(&format!("chunks/{id}"), 1, 2).await.unwrap(), "hu");
        let twice = today.get(&format!("manifests/{id}"), 100).await.unwrap_err();
        assert_eq!(twice.kind(), ErrorKind::Unsupported);
        let none = today.get(&format!("chunks/{}", ObjectId([1; 12])), 100).await.unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        assert_eq!(today.put("s/x", "x".into(), Condition::Always).await.unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}
