//! Trees out of repositories and into them, without a mount: `icechunkfs export` and `import`.

mod export;
mod import;
pub mod trees;
