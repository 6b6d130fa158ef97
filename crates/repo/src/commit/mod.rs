//! Makes commits: turns a change set into a new snapshot and publishes it.
//!
//! [`changes`] describes what changed, in terms of nodes and chunk coordinates, without any file
//! system. [`engine::Engine`] commits it in stages, of which only the last one is visible to
//! readers:
//!
//! | stage | work | where |
//! |---|---|---|
//! | chunks | stores chunk files: inline, packed or one object each | [`upload`], [`pack`] |
//! | manifests | writes the manifests that change | [`manifests`], [`splitting`] |
//! | log, snapshot | writes what changed, and the whole new hierarchy | [`log`], [`hierarchy`], [`nodes`] |
//! | publish | points the branch to the snapshot, if it still points to the parent | [`publish`], [`queue`] |
//!
//! If the branch has moved, the change set is compared with the concurrent commits ([`conflicts`])
//! and, without a conflict, rebased onto the branch tip; its chunks are already stored. A commit
//! that fails at any step leaves unreferenced objects behind and the change set as it was, so it
//! can be committed again.
//!
//! Garbage collection must not remove chunks that were copied by reference, nor what is stored for
//! the commit: [`gc_guard`] and publication ([`crate::repo::collect`]) guard them.
//!
//! [`chain`] stores several commits that become visible together. [`mod@squash`] replaces several
//! commits by one, or gives one commit another message; only the history changes.

mod attempts;
pub mod chain;
pub mod changes;
pub mod conflict;
pub mod conflicts;
mod detached;
pub mod documents;
pub mod engine;
pub mod gc_guard;
mod hierarchy;
mod late_commit;
pub mod log;
mod manifests;
pub mod membership;
pub mod merge_record;
pub mod moves;
mod nodes;
mod pack;
pub mod progress;
mod publish;
mod queue;
pub mod rebase;
mod references;
mod replace_moves;
pub mod replace_record;
pub mod request;
pub mod settlements;
mod splitting;
pub mod squash;
pub mod three_way;
mod times;
pub mod unchanged;
mod upload;
pub mod warnings;
