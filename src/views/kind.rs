//! Names of the views, and how each is made.

use std::fmt;
use std::sync::Arc;

use super::ViewTree;
use super::native::NativeView;
use super::zarr2::Zarr2View;
use crate::error::Result;
use crate::tree::Tree;

/// View of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViewKind {
    /// Zarr version 3, as stored.
    #[default]
    Zarr,
    /// Zarr version 2.
    Zarr2,
    /// A NetCDF-4 file for each group with arrays.
    Netcdf,
}

impl ViewKind {
    /// Makes the view of `tree`, a snapshot of the repository at `location`.
    pub async fn make(self, tree: Arc<Tree>, location: &str) -> Result<Arc<dyn ViewTree>> {
        // Only one view has a file that is named after the repository.
        let name = location.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        match self {
            ViewKind::Zarr => Ok(Arc::new(NativeView(tree))),
            ViewKind::Zarr2 => Ok(Arc::new(Zarr2View::new(tree).await?)),
            #[cfg(feature = "netcdf")]
            ViewKind::Netcdf => Ok(Arc::new(super::netcdf::NetcdfView::new(tree, name))),
            #[cfg(not(feature = "netcdf"))]
            ViewKind::Netcdf => Err(crate::error::Error::new(
                crate::error::ErrorKind::Unsupported,
                format!("{name}: this program was built without the feature `netcdf`"),
            )),
        }
    }
}

impl fmt::Display for ViewKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ViewKind::Zarr => "zarr",
            ViewKind::Zarr2 => "zarr2",
            ViewKind::Netcdf => "netcdf",
        })
    }
}
