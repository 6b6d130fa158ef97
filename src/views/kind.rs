//! Names of the views, and how each is made.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::ViewTree;
use super::native::NativeView;
use super::zarr2::Zarr2View;
use crate::error::{Error, Result};
use crate::tree::Tree;

/// View of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViewKind {
    /// Zarr version 3, as stored.
    #[default]
    Zarr,
    /// Zarr version 2.
    Zarr2,
}

impl ViewKind {
    /// Makes the view of `tree`.
    pub async fn make(self, tree: Arc<Tree>) -> Result<Arc<dyn ViewTree>> {
        match self {
            ViewKind::Zarr => Ok(Arc::new(NativeView(tree))),
            ViewKind::Zarr2 => Ok(Arc::new(Zarr2View::new(tree).await?)),
        }
    }
}

impl FromStr for ViewKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "zarr" => Ok(ViewKind::Zarr),
            "zarr2" => Ok(ViewKind::Zarr2),
            _ => Err(Error::invalid(format!("`{text}` is no view: zarr and zarr2 are"))),
        }
    }
}

impl fmt::Display for ViewKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ViewKind::Zarr => "zarr",
            ViewKind::Zarr2 => "zarr2",
        })
    }
}
