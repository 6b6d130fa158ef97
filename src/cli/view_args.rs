//! Arguments for the form in which a snapshot is shown.

use clap::Args;

use icechunkfs_base::error::Result;
use icechunkfs_views::views::options::{RecordDimension, Sharding, ViewOptions, parse_shape};

#[derive(Clone, Debug, Args)]
pub(super) struct ViewArgs {
    /// Form of the snapshot: zarr (version 3, as stored), zarr2 (version 2) or netcdf (a NetCDF-4
    /// file for each group), with modifiers after commas. Of zarr and zarr2: unshard (inner chunks
    /// of shards as chunks). Of zarr: shard=64x64 (shards of 64x64 chunks), consolidated
    /// (consolidated metadata in each group). Of netcdf: record-dimension=NAME (the unlimited
    /// dimension; auto: time, if it is the first), classic-types (64-bit integers as double),
    /// groups=nested (one file). All but zarr alone are read-only.
    #[arg(long, value_name = "VIEW[,MODIFIER...]", default_value = "zarr")]
    view: ViewOptions,
    /// The same as the modifier unshard.
    #[arg(long, hide = true, conflicts_with = "shard")]
    unshard: bool,
    /// The same as the modifier shard.
    #[arg(long, hide = true, value_name = "SHAPE", value_parser = parse_shape)]
    shard: Option<Box<[u64]>>,
    /// The same as the modifier consolidated.
    #[arg(long, hide = true)]
    consolidated: bool,
    /// The same as the modifier record-dimension.
    #[arg(long, hide = true, value_name = "DIMENSION")]
    netcdf_record_dimension: Option<RecordDimension>,
    /// The same as the modifier classic-types.
    #[arg(long, hide = true)]
    netcdf_classic_types: bool,
    /// The same as the modifier groups.
    #[arg(long, hide = true, value_name = "LAYOUT", hide_possible_values = true)]
    netcdf_groups: Option<GroupLayout>,
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
        let mut options = self.view.clone();
        match (&self.shard, self.unshard) {
            (Some(shape), _) => options.shards = Sharding::Shard(shape.clone()),
            (None, true) => options.shards = Sharding::Unshard,
            (None, false) => {}
        }
        options.consolidated |= self.consolidated;
        options.netcdf.classic_types |= self.netcdf_classic_types;
        if let Some(name) = &self.netcdf_record_dimension {
            options.netcdf.record_dimension = name.clone();
        }
        if let Some(layout) = self.netcdf_groups {
            options.netcdf.nested_groups = layout == GroupLayout::Nested;
        }
        options.check()?;
        Ok(options)
    }
}
