//! Several mounts and the reference implementation work on one branch: whatever one of them moves to, it loses nothing of the
//! others' work and nothing of its own.
//!
//! [`scenarios`] has one test for each way in which work was once lost. [`random`] lets mounts and the reference do random
//! operations; what must come of them is said by an independent three-way merge over plain maps of keys ([`oracle`]), which
//! knows nothing of inodes, whiteouts or journals.

pub mod oracle;
pub mod random;
pub mod scenarios;
pub mod world;
