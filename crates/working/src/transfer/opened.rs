//! Files that are imported, open: of this machine, or objects of a store or a web server.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Handle;

use icechunkfs_base::error::{Context, Error, ErrorKind, Result};
use icechunkfs_format::format::chunk_payload::Checksum;
use icechunkfs_ingest::source::{LocalFile, Source};
use icechunkfs_store::storage::virtuals::VirtualChunks;
use icechunkfs_store::storage::virtuals::address::Address;
use icechunkfs_store::storage::virtuals::named::NamedObject;

/// First bytes of an object that are read when it is opened, and kept until its plan is made: all
/// of small files, whose plans need no other request.
const HEAD: u64 = 256 << 10;
/// Ranges of one file that are read at the same time, where many are known: as many requests as
/// servers answer side by side.
const AT_ONCE: usize = 32;
/// Longest time for which the end of a second is waited for: three seconds, and what clocks of
/// servers may differ by.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// File that is imported, as it was when it was opened: each read of another state fails.
#[derive(Debug)]
pub(super) enum OpenFile {
    Local(LocalFile),
    Object(Box<ObjectFile>),
}

impl OpenFile {
    /// Opens the file of this machine at `path`.
    ///
    /// Errors: [`ErrorKind::InvalidInput`] if it is none; others as for opening.
    pub(super) fn local(path: &Path) -> Result<Self> {
        let shown = path.display();
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| Error::io(&shown, e.into()))?;
        let file = File::from(opened);
        if !file.metadata().map_err(|e| Error::io(&shown, e))?.is_file() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{shown} is not a file")));
        }
        LocalFile::new(file).map(OpenFile::Local).context(|| shown)
    }

    /// Opens the object at `address`, on a thread that may block.
    ///
    /// Errors: as for [`VirtualChunks::open`].
    pub(super) fn object(address: &Address, virtuals: &Arc<VirtualChunks>, runtime: &Handle) -> Result<Self> {
        let mut opened = runtime.block_on(open_settled(address, virtuals)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let next = "name a NetCDF or HDF5 file; copy a directory or a Zarr tree to this machine first";
                Error::new(ErrorKind::NotFound, format!("{error}: {next}"))
            }
            _ => error,
        })?;
        let head = Mutex::new(std::mem::take(&mut opened.head));
        let virtuals = Arc::clone(virtuals);
        Ok(OpenFile::Object(Box::new(ObjectFile { opened, head, virtuals, runtime: runtime.clone() })))
    }

    /// Forgets what is kept for making the plan.
    pub(super) fn forget_head(&self) {
        if let OpenFile::Object(object) = self {
            drop(std::mem::take(&mut *object.head.lock()));
        }
    }
}

impl Source for OpenFile {
    fn length(&self) -> u64 {
        match self {
            OpenFile::Local(file) => file.length(),
            OpenFile::Object(object) => object.opened.length,
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match self {
            OpenFile::Local(file) => file.read(offset, into),
            OpenFile::Object(object) => object.read(offset, into),
        }
    }

    fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        match self {
            OpenFile::Local(file) => file.read_ranges(ranges),
            OpenFile::Object(object) => object.read_ranges(ranges),
        }
    }

    fn is_distant(&self) -> bool {
        matches!(self, OpenFile::Object(_))
    }

    fn local(&self) -> Option<&LocalFile> {
        match self {
            OpenFile::Local(file) => Some(file),
            OpenFile::Object(_) => None,
        }
    }
}

/// Each file is open until it is committed: the limit that users have is for programs that wait for
/// one of many descriptors. As far as the limit cannot be raised, opening them fails.
pub(super) fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::debug!("the limit of open files stays as it is: {error}");
    }
}

/// Opens the object at `address`, once a change of it would have another time: servers tell whole
/// seconds, and many make their entity tags of those.
async fn open_settled(address: &Address, virtuals: &VirtualChunks) -> Result<NamedObject> {
    loop {
        let opened = virtuals.open(address, HEAD).await?;
        let is_by_time = address.is_web() || matches!(opened.checksum, Checksum::LastModified(_));
        let modified = opened.modified.and_then(|second| u64::try_from(second).ok()).filter(|_| is_by_time);
        // The server's clock may go a second before ours.
        let rest = modified.map(|second| time_until_after(second.saturating_add(2))).unwrap_or_default();
        if rest.is_zero() {
            return Ok(opened);
        }
        if rest > LONGEST {
            return match opened.checksum {
                Checksum::Etag(_) => Ok(opened),
                Checksum::LastModified(_) => Err(Error::invalid(format!(
                    "{address}: its time lies in the future, so that no later change could be noticed: download it first"
                ))),
            };
        }
        tokio::time::sleep(rest).await;
    }
}

/// Returns the time until a change of a file would have a later time than `second`, in seconds
/// since 1970-01-01 UTC.
pub(super) fn time_until_after(second: u64) -> Duration {
    /// The kernel takes the time of a change from a clock that goes in steps of up to 10 ms.
    const STEP: Duration = Duration::from_millis(20);
    // A server may tell any number. All beyond 2106 lie in the future.
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(second.min(u32::MAX.into())) + STEP;
    end.duration_since(SystemTime::now()).unwrap_or_default()
}

/// Object of a store or a web server.
#[derive(Debug)]
pub(super) struct ObjectFile {
    pub(super) opened: NamedObject,
    /// First bytes, until the plan is made.
    head: Mutex<Bytes>,
    virtuals: Arc<VirtualChunks>,
    runtime: Handle,
}

impl ObjectFile {
    /// Fills `into` with the bytes from `offset` on. The thread may block.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let found = self.runtime.block_on(self.range(offset, into.len() as u64))?;
        into.copy_from_slice(
            found.get(..into.len()).ok_or_else(|| Error::corrupt("another number of bytes was received"))?,
        );
        Ok(())
    }

    /// Returns the bytes of each of `ranges`. The thread may block.
    fn read_ranges(&self, ranges: &[Range<u64>]) -> Result<Vec<Vec<u8>>> {
        let reads = ranges.iter().map(|range| self.range(range.start, range.end.saturating_sub(range.start)));
        let reads = futures_util::stream::iter(reads).buffered(AT_ONCE).map_ok(|bytes| bytes.to_vec());
        self.runtime.block_on(reads.try_collect())
    }

    /// Returns `length` bytes at `offset`.
    async fn range(&self, offset: u64, length: u64) -> Result<Bytes> {
        if let Some(found) = self.in_head(offset, length) {
            return Ok(found);
        }
        let bytes = self.virtuals.read_named(&self.opened, offset, length).await?;
        if bytes.len() as u64 == length {
            Ok(bytes)
        } else {
            Err(Error::corrupt("another number of bytes was received"))
        }
    }

    /// Returns the bytes if they are among the first ones, or are none.
    fn in_head(&self, offset: u64, length: u64) -> Option<Bytes> {
        if length == 0 {
            return Some(Bytes::new());
        }
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(length).ok()?)?;
        let head = self.head.lock();
        (end <= head.len()).then(|| head.slice(start..end))
    }
}
