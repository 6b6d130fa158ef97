//! Changes to a snapshot become a commit.
//!
//! [`changes`] says what changed, in terms of nodes and chunk coordinates and without any file system in it.
//! [`engine::Engine`] makes a commit of it, in stages of which only the last one is visible to anybody:
//!
//! | stage | what it does | where |
//! |---|---|---|
//! | chunks | stores chunk files: inline, packed or one object each | [`upload`], [`pack`] |
//! | manifests | writes those that change | [`manifests`], [`splitting`] |
//! | log, snapshot | what changed, and the whole hierarchy as it is then | [`log`], [`hierarchy`], [`nodes`] |
//! | publish | the branch points to the snapshot, if it still points to its parent | [`publish`] |
//!
//! If the branch has moved on, the changes are compared with what others committed ([`conflicts`]) and, if nobody touched the
//! same things, applied to the branch's newest commit; the chunks are stored already. A commit that fails at any step leaves
//! objects behind that nothing refers to, and the change set as it was: it can be committed again.
//!
//! Chunks that were copied by reference, and what is stored for the commit, could be taken by a collection of garbage: [`keep`] and the
//! moment of publishing ([`crate::repo::collect`]) see to it that they are not.
//!
//! [`mod@squash`] makes one commit of several, or of one with another message: nothing changes but the history.

pub mod changes;
pub mod conflicts;
pub mod engine;
mod hierarchy;
mod keep;
mod landed;
mod log;
mod manifests;
pub mod membership;
mod moves;
mod nodes;
mod pack;
pub mod progress;
mod publish;
pub mod rebase;
mod references;
pub mod request;
mod resolve;
mod splitting;
pub mod squash;
mod times;
mod upload;
mod without_moves;
