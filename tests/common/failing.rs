//! A storage of which one operation fails, or only its answer is lost.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use icechunkfs::error::{Error, ErrorKind, Result};
use icechunkfs::storage::{Condition, ObjectInfo, Storage, Version};

/// Time of a failure: before the operation was done, or after, so that only its answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Before(ErrorKind),
    After,
}

/// A storage of which one operation fails.
#[derive(Debug)]
pub struct Faulty {
    inner: Arc<dyn Storage>,
    pub left: AtomicU64,
    when: When,
    /// True if all later operations fail, too.
    for_good: bool,
    /// Operations, in order.
    pub log: Mutex<Vec<String>>,
    /// Time of its clock, in microseconds; 0 if it gives no time.
    pub clock: AtomicU64,
}

impl Faulty {
    /// Creates a storage that fails at the `operation`th of its operations, counted from 1; 0 for never.
    pub fn new(inner: Arc<dyn Storage>, operation: u64, when: When, for_good: bool) -> Self {
        Faulty {
            inner,
            left: AtomicU64::new(operation),
            when,
            for_good,
            log: Mutex::default(),
            clock: AtomicU64::new(0),
        }
    }

    async fn pass<T>(&self, what: &str, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.log.lock().unwrap().push(what.to_owned());
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 && !self.for_good {
            return work.await;
        }
        let fails = left == 1 || left == 0;
        if left > 0 && !(left == 1 && self.for_good) {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        match self.when {
            When::Before(kind) if fails => Err(Error::new(kind, format!("{what}: made to fail"))),
            When::After if fails => {
                work.await?;
                Err(Error::new(ErrorKind::Timeout, format!("{what}: its answer is lost")))
            }
            _ => work.await,
        }
    }
}

#[async_trait]
impl Storage for Faulty {
    fn location(&self) -> &str {
        self.inner.location()
    }

    async fn get(&self, key: &str, limit: u64) -> Result<Bytes> {
        self.pass(key, self.inner.get(key, limit)).await
    }

    async fn get_versioned(&self, key: &str, limit: u64) -> Result<(Bytes, Version)> {
        self.pass(key, self.inner.get_versioned(key, limit)).await
    }

    async fn get_range(&self, key: &str, offset: u64, length: u64) -> Result<Bytes> {
        self.pass(key, self.inner.get_range(key, offset, length)).await
    }

    async fn put(&self, key: &str, bytes: Bytes, condition: Condition) -> Result<()> {
        self.pass(&format!("put {key}"), self.inner.put(key, bytes, condition)).await
    }

    async fn put_new(&self, key: &str, bytes: Bytes) -> Result<()> {
        self.pass(&format!("new {key}"), self.inner.put_new(key, bytes)).await
    }

    async fn put_file(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        self.pass(&format!("new {key}"), self.inner.put_file(key, file, length)).await
    }

    async fn put_copy(&self, key: &str, file: std::fs::File, length: u64) -> Result<()> {
        self.pass(&format!("new {key}"), self.inner.put_copy(key, file, length)).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.pass(&format!("sync {folders:?}"), self.inner.sync(folders)).await
    }

    async fn delete(&self, keys: &[String]) -> Result<()> {
        self.pass(&format!("delete {keys:?}"), self.inner.delete(keys)).await
    }

    async fn delete_unchanged(&self, key: &str, limit: u64, version: &Version) -> Result<()> {
        self.pass(&format!("delete {key}"), self.inner.delete_unchanged(key, limit, version)).await
    }

    async fn modified(&self, _key: &str) -> Result<Option<u64>> {
        Ok(Some(self.clock.load(Ordering::Relaxed)).filter(|time| *time > 0))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        self.pass(prefix, self.inner.list(prefix)).await
    }
}
