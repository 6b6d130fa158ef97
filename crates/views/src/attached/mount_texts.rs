//! Texts of the control files of a read-only mount, which says what it shows.
//!
//! In a mount whose files the kernel opens without asking, a read sees the length that the kernel
//! knows from the last `stat`. So the text is made when attributes are asked for, and stays for
//! [`BRIEF`], so that a program that reads to the end sees one text.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;

use super::BRIEF;
use super::refs::FreshRefs;
use crate::control_directory::files::ControlFile;
use crate::control_directory::state::{self, MountState};
use icechunkfs_base::error::Result;
use icechunkfs_base::memory::Metered;
use icechunkfs_base::metrics;
use icechunkfs_base::recent_errors::RecentErrors;
use icechunkfs_format::format::ids::ObjectId;
use icechunkfs_tree::mount_facts::{MountFacts, log_text};
use icechunkfs_tree::tree::Tree;

/// Commits that `log` has if each is a request, as in version 1.
const FEW_COMMITS: usize = 100;

/// Texts of the files.
#[derive(Debug)]
pub(super) struct MountTexts {
    facts: Arc<MountFacts>,
    errors: RecentErrors,
    /// Text of each file as it was made last, for a snapshot.
    texts: Mutex<HashMap<ControlFile, Text>>,
}

#[derive(Clone, Debug)]
struct Text {
    made: Instant,
    snapshot: ObjectId,
    bytes: Bytes,
}

impl MountTexts {
    pub(super) fn new(facts: Arc<MountFacts>) -> Self {
        MountTexts { facts, errors: RecentErrors::default(), texts: Mutex::default() }
    }

    pub(super) fn facts(&self) -> &MountFacts {
        &self.facts
    }

    pub(super) fn errors(&self) -> &RecentErrors {
        &self.errors
    }

    /// Returns the text if it is there: for listings, which must not wait for a store.
    pub(super) fn text_now(&self, file: ControlFile, tree: &Tree) -> Option<Bytes> {
        if file == ControlFile::RecentErrors {
            return Some(self.errors.render().into());
        }
        let snapshot = tree.snapshot().id();
        let texts = self.texts.lock();
        let text = texts.get(&file)?;
        // The history of a snapshot stays as it is.
        let is_fresh = text.snapshot == snapshot && (file == ControlFile::Log || text.made.elapsed() < BRIEF);
        is_fresh.then(|| text.bytes.clone())
    }

    /// Returns the text of `file` while the mount shows `tree`.
    pub(super) async fn text(&self, file: ControlFile, tree: &Tree, refs: &FreshRefs) -> Result<Bytes> {
        if let Some(text) = self.text_now(file, tree) {
            return Ok(text);
        }
        let text = state::render(file, &ShownState { texts: self, tree, refs }).await?;
        let text = Text { made: Instant::now(), snapshot: tree.snapshot().id(), bytes: text.into_bytes() };
        let bytes = text.bytes.clone();
        self.texts.lock().insert(file, text);
        Ok(bytes)
    }
}

/// State of a mount that shows `tree`.
struct ShownState<'a> {
    texts: &'a MountTexts,
    tree: &'a Tree,
    refs: &'a FreshRefs,
}

#[async_trait]
impl MountState for ShownState<'_> {
    fn facts(&self) -> &MountFacts {
        &self.texts.facts
    }

    fn snapshot(&self) -> ObjectId {
        self.tree.snapshot().id()
    }

    fn errors(&self) -> &RecentErrors {
        &self.texts.errors
    }

    async fn status(&self) -> Result<String> {
        Ok(self.texts.facts.status(self.snapshot(), self.tree.snapshot().flushed_at()))
    }

    async fn log(&self) -> Result<Metered<String>> {
        let repository = self.refs.repository().await?;
        let limit = if repository.log_position().is_some() { usize::MAX } else { FEW_COMMITS };
        log_text(&repository, self.snapshot(), limit).await
    }

    async fn stats(&self) -> Result<String> {
        Ok(metrics::render(&self.tree.reader().gauges().metrics()))
    }
}
