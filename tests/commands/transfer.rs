//! `icechunkfs export` and `import`: trees of files, without a mount.

mod export;
mod import;
pub mod trees;
