//! Files of `.icechunk` in a read-only mount that say what it shows. A writable mount has them
//! among its control files.
//!
//! In a mount whose files the kernel opens without asking, a read sees the length that the kernel
//! knows from the last `stat`. So the text is made when attributes are asked for, and stays for
//! [`BRIEF`], so that a program that reads to the end sees one text.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;

use super::BRIEF;
use super::refs::FreshRefs;
use icechunkfs_base::error::{Error, ErrorKind, Result};
use icechunkfs_base::memory::Metered;
use icechunkfs_base::metrics;
use icechunkfs_base::printable;
use icechunkfs_base::recent_errors::RecentErrors;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_tree::mount_facts::{MountFacts, log_text};
use icechunkfs_tree::tree::Tree;

/// Commits that `log` has if each is a request, as in version 1.
const FEW_COMMITS: usize = 100;

/// File of a read-only mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountFile {
    /// Facts about the mount, as JSON.
    Info,
    /// Ref and snapshot.
    Head,
    /// Commits that led to the snapshot.
    Log,
    /// Snapshot, its time, and whether the mount moves.
    Status,
    /// The last failures that programs met.
    Errors,
    /// Counts of what the daemon has done.
    Stats,
}

impl MountFile {
    pub(super) const ALL: [MountFile; 6] =
        [MountFile::Info, MountFile::Head, MountFile::Log, MountFile::Status, MountFile::Errors, MountFile::Stats];

    pub(super) fn name(self) -> &'static str {
        match self {
            MountFile::Info => "info.json",
            MountFile::Head => "HEAD",
            MountFile::Log => "log",
            MountFile::Status => "status",
            MountFile::Errors => "errors",
            MountFile::Stats => "stats",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name() == name)
    }
}

/// Texts of the files.
#[derive(Debug)]
pub(super) struct MountFiles {
    facts: Arc<MountFacts>,
    errors: RecentErrors,
    /// Text of each file as it was made last, for a snapshot.
    texts: Mutex<[Option<Text>; MountFile::ALL.len()]>,
}

#[derive(Clone, Debug)]
struct Text {
    made: Instant,
    snapshot: ObjectId,
    bytes: Bytes,
}

impl MountFiles {
    pub(super) fn new(facts: Arc<MountFacts>) -> Self {
        MountFiles { facts, errors: RecentErrors::default(), texts: Mutex::default() }
    }

    pub(super) fn facts(&self) -> &MountFacts {
        &self.facts
    }

    pub(super) fn errors(&self) -> &RecentErrors {
        &self.errors
    }

    /// Returns the text if it is there: for listings, which must not wait for a store.
    pub(super) fn text_now(&self, file: MountFile, tree: &Tree) -> Option<Bytes> {
        if file == MountFile::Errors {
            return Some(self.errors.render().into());
        }
        let snapshot = tree.snapshot().id();
        let texts = self.texts.lock();
        let text = texts.get(file as usize)?.as_ref()?;
        // The history of a snapshot stays as it is.
        let is_fresh = text.snapshot == snapshot && (file == MountFile::Log || text.made.elapsed() < BRIEF);
        is_fresh.then(|| text.bytes.clone())
    }

    /// Returns the text of `file` while the mount shows `tree`.
    pub(super) async fn text(&self, file: MountFile, tree: &Tree, refs: &FreshRefs) -> Result<Bytes> {
        if let Some(text) = self.text_now(file, tree) {
            return Ok(text);
        }
        let snapshot = tree.snapshot().id();
        let text = match file {
            MountFile::Info => Metered::own(json(&self.facts.info(snapshot))?),
            MountFile::Head => Metered::own(self.facts.head(snapshot)),
            MountFile::Status => Metered::own(self.facts.status(snapshot, tree.snapshot().flushed_at())),
            MountFile::Stats => Metered::own(metrics::render(&tree.reader().gauges().metrics())),
            MountFile::Log => {
                let repository = refs.repository().await?;
                let limit = if repository.log_position().is_some() { usize::MAX } else { FEW_COMMITS };
                log_text(&repository, snapshot, limit).await?
            }
            MountFile::Errors => Metered::default(),
        };
        let text = Text { made: Instant::now(), snapshot, bytes: text.into_bytes() };
        let bytes = text.bytes.clone();
        if let Some(place) = self.texts.lock().get_mut(file as usize) {
            *place = Some(text);
        }
        Ok(bytes)
    }
}

fn json(value: &impl serde::Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| printable::json(&text) + "\n").map_err(|e| Error::with_source(ErrorKind::Io, "writing JSON", e))
}
