//! Arguments for the form in which a snapshot is shown.

use clap::Args;

use super::values::choice;
use icechunkfs_base::error::Result;
use icechunkfs_views::views::kind::ViewKind;
use icechunkfs_views::views::options::{NetcdfOptions, RecordDimension, Sharding, ViewOptions, parse_shape};

#[derive(Clone, Debug, Args)]
pub(super) struct ViewArgs {
    /// Form in which the snapshot is shown: zarr (version 3, as stored), zarr2 (version 2) or
    /// netcdf (a NetCDF-4 file for each group). Views other than zarr are read-only.
    #[arg(long, value_name = "VIEW", default_value = "zarr", hide_possible_values = true, value_parser = choice::<ViewKind>())]
    view: ViewKind,
    /// Show the inner chunks of shards as chunks. Read-only.
    #[arg(long, conflicts_with = "shard")]
    unshard: bool,
    /// Show chunks in shards of this many chunks for each dimension, such as 64,64. Read-only.
    #[arg(long, value_name = "SHAPE", value_parser = parse_shape)]
    shard: Option<Box<[u64]>>,
    /// Show fresh consolidated metadata in every group. Read-only.
    #[arg(long)]
    consolidated: bool,
    /// Unlimited dimension of NetCDF files: auto (time, if it is the first one), none, or a name.
    #[arg(long, value_name = "DIMENSION", default_value = "none")]
    netcdf_record_dimension: RecordDimension,
    /// Show 64-bit integers of NetCDF files as double, for programs that have no others.
    #[arg(long)]
    netcdf_classic_types: bool,
    /// NetCDF files: files (one for each group with arrays), or nested (one file, whose groups are
    /// those of the repository).
    #[arg(long, value_name = "LAYOUT", default_value = "files")]
    netcdf_groups: GroupLayout,
}

/// Groups of NetCDF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum GroupLayout {
    Files,
    Nested,
}

impl ViewArgs {
    /// Returns the options, which fit one another.
    pub(super) fn options(&self) -> Result<ViewOptions> {
        let shards = match (&self.shard, self.unshard) {
            (Some(shape), _) => Sharding::Shard(shape.clone()),
            (None, true) => Sharding::Unshard,
            (None, false) => Sharding::AsStored,
        };
        let netcdf = NetcdfOptions {
            record_dimension: self.netcdf_record_dimension.clone(),
            classic_types: self.netcdf_classic_types,
            nested_groups: self.netcdf_groups == GroupLayout::Nested,
        };
        let options = ViewOptions { kind: self.view, shards, consolidated: self.consolidated, netcdf };
        options.check()?;
        Ok(options)
    }
}
