//! One function for each kind of untrusted input. A panic, or more memory than
//! [`crate::MOST_MEMORY`], is a failure.

mod addresses;
mod alpha_manifest;
mod alpha_rest;
mod alpha_snapshot;
mod compressed;
mod config_edit;
mod config_yaml;
mod file;
mod flexbuffer;
mod hdf5_file;
mod hdf5_plan;
mod input;
mod manifest;
mod message_pack;
mod netcdf3;
mod operations_log;
mod printed;
mod repo_info;
mod shard;
mod snapshot;
mod transaction_log;
mod virtual_location;
mod zarr_json;

/// A target: it processes some bytes.
pub(crate) type Target = fn(&[u8]);

/// All targets by their names.
pub(crate) const ALL: [(&str, Target); 21] = [
    ("addresses", addresses::run),
    ("alpha_manifest", alpha_manifest::run),
    ("alpha_rest", alpha_rest::run),
    ("alpha_snapshot", alpha_snapshot::run),
    ("compressed", compressed::run),
    ("config_edit", config_edit::run),
    ("config_yaml", config_yaml::run),
    ("flexbuffer", flexbuffer::run),
    ("hdf5_file", hdf5_file::run),
    ("hdf5_plan", hdf5_plan::run),
    ("manifest", manifest::run),
    ("message_pack", message_pack::run),
    ("netcdf3", netcdf3::run),
    ("operations_log", operations_log::run),
    ("printed", printed::run),
    ("repo_info", repo_info::run),
    ("shard", shard::run),
    ("snapshot", snapshot::run),
    ("transaction_log", transaction_log::run),
    ("virtual_location", virtual_location::run),
    ("zarr_json", zarr_json::run),
];
