//! A storage whose owner changes it while others read it.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use icechunkfs::error::Result;
use icechunkfs::storage::{
    Capabilities, Content, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};

/// Called with the key before an object is read, which fails if this fails.
type BeforeRead = Box<dyn FnMut(&str) -> Result<()> + Send>;

/// A storage that calls a function before each read of an object.
pub struct Changing {
    inner: Arc<dyn Storage>,
    before_read: Mutex<BeforeRead>,
}

impl Changing {
    pub fn new(inner: Arc<dyn Storage>, before_read: impl FnMut(&str) -> Result<()> + Send + 'static) -> Arc<Self> {
        Arc::new(Changing { inner, before_read: Mutex::new(Box::new(before_read)) })
    }
}

impl fmt::Debug for Changing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Storage for Changing {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        (self.before_read.lock().unwrap())(key)?;
        self.inner.read(key, limit, mode).await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        self.inner.store(key, content).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.inner.sync(folders).await
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        self.inner.walk(prefix, mode, visit).await
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        self.inner.remove(removal).await
    }

    async fn locate(&self, key: &str) -> Result<Option<ObjectSource>> {
        self.inner.locate(key).await
    }

    async fn check_conditions(&self, key: &str, limit: u64) -> Result<()> {
        self.inner.check_conditions(key, limit).await
    }
}
