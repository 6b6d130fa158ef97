//! Common programs write into a mount; the result is committed, and read back with the reference.

mod control;
mod copying;
mod editing;
mod lifecycle;
pub(crate) mod scenario;
use scenario::run_scenario;

#[test]
fn zarr_python_creates_appends_resizes_and_deletes() {
    run_scenario("zarr_python", 7);
}

#[test]
fn xarray_writes_appends_and_fills_regions_with_dask_processes() {
    run_scenario("xarray_dask", 4);
}

#[test]
fn tensorstore_writes_conditionally_and_in_shards() {
    run_scenario("tensorstore", 3);
}

#[test]
fn zarrs_writes_in_place() {
    run_scenario("zarrs", 2);
}

#[test]
fn python_file_objects_write_what_is_committed() {
    run_scenario("plain_python", 2);
}
