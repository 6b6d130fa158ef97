//! A storage of which one operation fails, or only its answer is lost; and system calls that fail.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use icechunkfs::error::{Error, ErrorKind, Result};
use icechunkfs::storage::{
    Capabilities, Content, ListMode, ObjectSource, ReadMode, Removal, Storage, StoredObject, Visitor,
};

use crate::common::writing::needed;
use crate::common::{Output, program, run};

pub fn has_strace() -> bool {
    Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs the program under test with `words`, while system calls fail as `faults` say in the
/// language of strace (`syncfs:error=EIO`). Returns None, with a message, where there is no strace.
pub fn run_with_failing_calls(faults: &[&str], words: &[&str]) -> Option<Output> {
    if !needed(has_strace(), "strace") {
        return None;
    }
    let mut command = Command::new("strace");
    let calls: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').next()).collect();
    command.args(["-f", "-q", "-o", "/dev/null", "-e", &format!("trace={}", calls.join(","))]);
    command.args(faults.iter().flat_map(|fault| ["-e".to_owned(), format!("inject={fault}")]));
    Some(run(command.arg(program()).args(words)))
}

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
    capabilities: Capabilities,
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
    /// Creates a storage that fails at the `operation`th of its operations, counted from 1; 0 for
    /// never.
    pub fn new(inner: Arc<dyn Storage>, operation: u64, when: When, for_good: bool) -> Self {
        Faulty {
            capabilities: Capabilities::new(inner.location()),
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
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn read(&self, key: &str, limit: u64, mode: ReadMode<'_>) -> Result<Option<StoredObject>> {
        if let ReadMode::Head = mode {
            let modified = Some(self.clock.load(Ordering::Relaxed)).filter(|time| *time > 0);
            return Ok(Some(StoredObject { modified, ..StoredObject::default() }));
        }
        self.pass(key, self.inner.read(key, limit, mode)).await
    }

    async fn store(&self, key: &str, content: Content<'_>) -> Result<()> {
        let what = match content {
            Content::Conditional(..) | Content::Unless { .. } => format!("put {key}"),
            Content::New(_) | Content::File(..) | Content::FileCopy(..) | Content::Exclusive(_) => format!("new {key}"),
            Content::ObjectCopy(..) => return Err(Error::new(ErrorKind::Unsupported, key)),
        };
        self.pass(&what, self.inner.store(key, content)).await
    }

    async fn sync(&self, folders: &[&str]) -> Result<()> {
        self.pass(&format!("sync {folders:?}"), self.inner.sync(folders)).await
    }

    async fn walk(&self, prefix: &str, mode: ListMode, visit: Visitor<'_>) -> Result<()> {
        self.pass(prefix, self.inner.walk(prefix, mode, visit)).await
    }

    async fn remove(&self, removal: Removal<'_>) -> Result<()> {
        let what = match removal {
            Removal::Objects(keys) => format!("delete {keys:?}"),
            Removal::Unchanged { key, .. } => format!("delete {key}"),
            Removal::Cached(_) => return Ok(()),
        };
        self.pass(&what, self.inner.remove(removal)).await
    }

    async fn locate(&self, _key: &str) -> Result<Option<ObjectSource>> {
        Ok(None)
    }

    async fn check_conditions(&self, _key: &str, _limit: u64) -> Result<()> {
        Ok(())
    }
}
