//! Values of arguments that are types of lower layers: their names on the command line. No other
//! layer knows of clap.

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};

use crate::fuse::io_mode::IoOption;
use crate::fuse::mount::Flag;
use icechunkfs_repo::commit::engine::OnConflict;
use icechunkfs_views::views::kind::ViewKind;
use icechunkfs_working::operations::UploadMode;

/// Type whose values have names on the command line.
pub(super) trait Choice: Clone + Send + Sync + 'static {
    /// Values that an argument can have.
    const ALL: &'static [Named<Self>];

    /// Returns the name, with a line of help; none for what no argument sets.
    fn name(&self) -> Option<PossibleValue>;
}

/// Value as clap knows it.
#[derive(Clone)]
pub(super) struct Named<T>(T);

impl<T: Choice> ValueEnum for Named<T> {
    fn value_variants<'a>() -> &'a [Self] {
        T::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        self.0.name()
    }
}

/// Returns the parser of an argument with values of type `T`.
pub(super) fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    EnumValueParser::<Named<T>>::new().map(|named| named.0)
}

/// Returns true if `name` is one of `T`.
pub(super) fn is_name<T: Choice>(name: &str) -> bool {
    Named::<T>::from_str(name, false).is_ok()
}

/// Implements [`Choice`] by the variants of a type, their names, and a line of help for each.
macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal $help:literal),+) => {
        impl Choice for $type {
            const ALL: &'static [Named<Self>] = &[$(Named($type::$variant)),+];

            #[allow(unreachable_patterns, reason = "some types have variants that no argument sets")]
            fn name(&self) -> Option<PossibleValue> {
                match self {
                    $($type::$variant => Some(PossibleValue::new($name).help($help)),)+
                    _ => None,
                }
            }
        }
    };
}

names! { IoOption: Auto = "auto" "Mode chosen by the data", Cached = "cached" "Never ask the daemon on open",
Passthrough = "passthrough" "The kernel reads chunk files" }
names! { UploadMode: Eager = "eager" "On close, if storage is reached over a network", Commit = "commit" "At the commit" }
names! { Flag: Exec = "exec" "Programs may be run", NoExec = "noexec" "Programs may not be run",
Dev = "dev" "Device files work", Suid = "suid" "Set-user-id bits work" }
names! { OnConflict: Ours = "ours" "Keep those of the change set",
Theirs = "theirs" "Keep those of the concurrent commits" }
names! { ViewKind: Zarr = "zarr" "Version 3, as stored", Zarr2 = "zarr2" "Zarr version 2",
Netcdf = "netcdf" "A NetCDF-4 file for each group with arrays" }
