//! Names of the views.

use std::fmt;

/// View of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
    /// All views.
    pub const ALL: [ViewKind; 3] = [ViewKind::Zarr, ViewKind::Zarr2, ViewKind::Netcdf];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            ViewKind::Zarr => "zarr",
            ViewKind::Zarr2 => "zarr2",
            ViewKind::Netcdf => "netcdf",
        }
    }

    /// Returns the view with a name.
    pub fn from_name(name: &str) -> Option<Self> {
        ViewKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for ViewKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
