//! Several mounts and the reference implementation work on one branch: a move to another snapshot
//! loses no change of any side.
//!
//! [`scenarios`] has one test for each way in which work was once lost, [`growth`] series that
//! several people work on. [`random`] lets mounts and
//! the reference do random operations; the expected result is an independent three-way merge over
//! plain maps of keys ([`oracle`]), which knows nothing of inodes, whiteouts or journals.

pub mod growth;
pub mod oracle;
pub mod random;
pub mod scenarios;
pub mod world;
