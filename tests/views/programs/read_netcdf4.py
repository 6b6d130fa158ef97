"""netCDF4-python on the NetCDF view, and its NCZarr on the Zarr version 2 view.

    read_netcdf4.py PLAN
"""

import common
import netCDF4

VERSION = f"netCDF4-python {netCDF4.__version__} (netCDF-C {netCDF4.__netcdf4libversion__}, HDF5 {netCDF4.__hdf5libversion__})"


def read(results, repository, group, source, only=None):
    """Adds all variables of a file as they are stored. If it cannot be opened, the group has failed, or its only array."""
    try:
        dataset = netCDF4.Dataset(source)
    except Exception as error:
        # Without the path, which differs in each run.
        reason = str(error).partition(": '")[0]
        if only:
            results.fail(repository["name"], common.under(group, only), reason)
        else:
            results.groups[repository["name"], group] = {"error": reason}
        return
    with dataset:
        dataset.set_auto_maskandscale(False)
        dataset.set_auto_chartostring(False)
        results.groups[repository["name"], group] = {key: dataset.getncattr(key) for key in dataset.ncattrs()}
        for name, variable in dataset.variables.items():
            path = common.under(group, name)
            try:
                attributes = {key: variable.getncattr(key) for key in variable.ncattrs()}
                results.add(repository["name"], path, variable[...], variable.dimensions, attributes)
            except Exception as error:
                results.fail(repository["name"], path, error)


def main():
    plan = common.plan()
    results = common.Results("netCDF4-python", "netcdf", VERSION)
    for repository in plan["repositories"]:
        for group, path in common.files(repository):
            read(results, repository, group, path)
    results.save(plan["work"])
    results = common.Results("netCDF4-python", "zarr2", VERSION)
    for repository in plan["repositories"]:
        for group, name, directory in common.single_arrays(plan, repository):
            read(results, repository, group, f"file://{directory}#mode=zarr,file", name)
    # These groups are none of the view.
    results.groups.clear()
    results.save(plan["work"])


if __name__ == "__main__":
    main()
