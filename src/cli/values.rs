//! Values of arguments that are types of lower layers: their names on the command line. No other layer knows of clap.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::commit::engine::OnConflict;
use crate::fuse::io_mode::IoOption;
use crate::fuse::mount::Flag;
use crate::operations::UploadMode;
use crate::views::kind::ViewKind;

/// Implements [`ValueEnum`] by the variants of a type, their names, and a line of help for each.
macro_rules! names {
    ($type:ident: $($variant:ident = $name:literal $help:literal),+) => {
        impl ValueEnum for $type {
            fn value_variants<'a>() -> &'a [Self] {
                &[$($type::$variant),+]
            }

            #[allow(unreachable_patterns, reason = "some types have variants that no argument sets")]
            fn to_possible_value(&self) -> Option<PossibleValue> {
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
names! { OnConflict: Ours = "ours" "Keep the chunks of the change set",
Theirs = "theirs" "Keep the chunks of the concurrent commits" }
names! { ViewKind: Zarr = "zarr" "Version 3, as stored", Zarr2 = "zarr2" "Zarr version 2",
Netcdf = "netcdf" "A NetCDF-4 file for each group with arrays" }
