//! Options of a view: its kind and modifiers, and how it is made.
//!
//! The options have a name of one word, which is the name of the view's directory below
//! `.icechunk/view`: the kind, followed by the modifiers, such as `zarr2,unshard` or
//! `netcdf,classic-types`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::ViewTree;
use super::kind::ViewKind;
use super::modified::ModifiedView;
use super::native::NativeView;
use super::zarr2::Zarr2View;
use icechunkfs_base::error::{Error, Result};
use icechunkfs_tree::tree::Tree;
use icechunkfs_tree::tree::reshard::Resharding;

/// Options of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ViewOptions {
    /// Form of the snapshot.
    pub kind: ViewKind,
    /// Resharding of arrays.
    pub shards: Sharding,
    /// True if groups have fresh consolidated metadata.
    pub consolidated: bool,
    /// Options of NetCDF files.
    pub netcdf: NetcdfOptions,
}

/// Resharding of arrays by a view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharding {
    /// Chunks as stored.
    #[default]
    AsStored,
    /// Inner chunks of shards as files.
    Unshard,
    /// Chunks in shards of this many chunks per dimension. For an array of another rank, the last
    /// numbers count; missing ones are 1.
    Shard(Box<[u64]>),
}

/// Options of NetCDF files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetcdfOptions {
    /// Dimension that is unlimited.
    pub record_dimension: RecordDimension,
    /// True to show types that classic programs lack as others: `int64` as `double`.
    pub classic_types: bool,
    /// True for one file in which groups are groups.
    pub nested_groups: bool,
}

/// Unlimited dimension of NetCDF files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum RecordDimension {
    /// A dimension that names time, if it is the first one of its variables.
    Auto,
    /// None.
    #[default]
    None,
    /// The dimension with this name.
    Name(String),
}

impl ViewOptions {
    /// Returns true if the view is the native tree.
    pub fn is_native(&self) -> bool {
        *self == ViewOptions::default()
    }

    /// Checks that the modifiers fit the kind.
    pub fn check(&self) -> Result<()> {
        let zarr = self.kind != ViewKind::Netcdf;
        let of_netcdf = self.netcdf != NetcdfOptions::default();
        match &self.shards {
            Sharding::Shard(_) if self.kind != ViewKind::Zarr => {
                Err(Error::invalid(format!("the view {} cannot have shards: leave out --shard", self.kind)))
            }
            Sharding::Unshard if !zarr => {
                Err(Error::invalid("NetCDF files have the chunks of shards in any case: leave out --unshard"))
            }
            _ if self.consolidated && self.kind != ViewKind::Zarr => Err(Error::invalid(format!(
                "consolidated metadata of Zarr version 3 do not fit the view {}: leave out --consolidated",
                self.kind
            ))),
            _ if of_netcdf && zarr => Err(Error::invalid("options of NetCDF files need --view netcdf")),
            _ => Ok(()),
        }
    }

    /// Makes the view of `tree`, a snapshot of the repository at `location`.
    pub async fn make(&self, tree: Arc<Tree>, location: &str) -> Result<Arc<dyn ViewTree>> {
        self.check()?;
        let tree = match &self.shards {
            Sharding::AsStored => tree,
            Sharding::Unshard => tree.reshard(Resharding::Unshard).await?,
            Sharding::Shard(shape) => tree.reshard(Resharding::Pack(shape.clone())).await?,
        };
        // Only one view has a file that is named after the repository.
        let name = location.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        match self.kind {
            ViewKind::Zarr if self.is_native() => Ok(Arc::new(NativeView(tree))),
            ViewKind::Zarr => Ok(Arc::new(ModifiedView::new(tree, self.consolidated))),
            ViewKind::Zarr2 => Ok(Arc::new(Zarr2View::new(tree).await?)),
            #[cfg(feature = "netcdf")]
            ViewKind::Netcdf => Ok(Arc::new(super::netcdf::NetcdfView::new(tree, name, self.netcdf.clone()))),
            #[cfg(not(feature = "netcdf"))]
            ViewKind::Netcdf => Err(Error::new(
                icechunkfs_base::error::ErrorKind::Unsupported,
                format!("{name}: this program was built without the feature `netcdf`"),
            )),
        }
    }
}

impl fmt::Display for ViewOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        match &self.shards {
            Sharding::AsStored => {}
            Sharding::Unshard => f.write_str(",unshard")?,
            Sharding::Shard(shape) => {
                let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
                write!(f, ",shard={}", shape.join("x"))?;
            }
        }
        if self.consolidated {
            f.write_str(",consolidated")?;
        }
        match &self.netcdf.record_dimension {
            RecordDimension::None => {}
            name => write!(f, ",record-dimension={name}")?,
        }
        if self.netcdf.classic_types {
            f.write_str(",classic-types")?;
        }
        if self.netcdf.nested_groups {
            f.write_str(",groups=nested")?;
        }
        Ok(())
    }
}

impl FromStr for ViewOptions {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut words = text.split(',');
        let kind = words.next().and_then(ViewKind::from_name);
        let kind =
            kind.ok_or_else(|| Error::invalid(format!("`{text}` is not a valid view: use zarr, zarr2 or netcdf")))?;
        let mut options = ViewOptions { kind, ..ViewOptions::default() };
        for word in words {
            match word.split_once('=') {
                None if word == "unshard" => options.shards = Sharding::Unshard,
                Some(("shard", shape)) => options.shards = Sharding::Shard(parse_shape(shape)?),
                None if word == "consolidated" => options.consolidated = true,
                Some(("record-dimension", name)) => options.netcdf.record_dimension = name.parse()?,
                None if word == "classic-types" => options.netcdf.classic_types = true,
                Some(("groups", "nested")) => options.netcdf.nested_groups = true,
                _ => return Err(Error::invalid(format!("`{word}` is not a valid modifier of a view"))),
            }
        }
        options.check()?;
        Ok(options)
    }
}

/// Parses the chunks per dimension of a shard: positive numbers, separated by `x` or commas.
pub fn parse_shape(text: &str) -> Result<Box<[u64]>> {
    let number = |part: &str| part.trim().parse().ok().filter(|n| *n > 0);
    let numbers: Option<Box<[u64]>> = text.split(['x', ',']).map(number).collect();
    numbers.filter(|numbers| numbers.len() <= MAX_RANK).ok_or_else(|| {
        Error::invalid(format!(
            "`{text}` is not a valid number of chunks per dimension: write numbers as in 64,64 or 64x64"
        ))
    })
}

/// Most dimensions of a shape that is given by hand: more than any array has.
const MAX_RANK: usize = 64;

impl fmt::Display for RecordDimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RecordDimension::Auto => "auto",
            RecordDimension::None => "none",
            RecordDimension::Name(name) => name,
        })
    }
}

impl FromStr for RecordDimension {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(RecordDimension::Auto),
            "none" => Ok(RecordDimension::None),
            "" => Err(Error::invalid("the record dimension has no name: write `none` for no dimension")),
            name => Ok(RecordDimension::Name(name.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_and_options_are_inverse() {
        for name in [
            "zarr",
            "zarr2",
            "netcdf",
            "zarr,unshard",
            "zarr2,unshard",
            "zarr,shard=64x1,consolidated",
            "netcdf,record-dimension=auto,classic-types,groups=nested",
        ] {
            assert_eq!(name.parse::<ViewOptions>().unwrap().to_string(), name);
        }
        for wrong in
            ["", "x", "zarr,", "zarr,shard", "zarr,shard=0", "zarr2,shard=2", "zarr,classic-types", "netcdf,unshard"]
        {
            assert!(wrong.parse::<ViewOptions>().is_err(), "{wrong}");
        }
    }
}
