//! Trees out of repositories and into them, without a mount: `icechunkfs export` and `import`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;
#[path = "transfer/export.rs"]
mod export;
#[path = "transfer/import.rs"]
mod import;
#[path = "transfer/trees.rs"]
mod trees;
#[path = "common/writing.rs"]
mod writing;
