"""h5py and h5netcdf on the NetCDF view.

    read_h5py.py PLAN
"""

import common
import h5netcdf
import h5py

PREFIX = "_nc4_non_coord_"
# What ties datasets to dimensions is read as dimensions.
HIDDEN = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"}


def attributes(node):
    """Returns attributes; an empty text is stored without a value."""
    found = {key: node.attrs[key] for key in node.attrs if key not in HIDDEN}
    return {key: "" if isinstance(value, h5py.Empty) else value for key, value in found.items()}


def is_bare(dataset):
    """Returns true for a dimension without variable."""
    return dataset.attrs.get("NAME", b"").startswith(b"This is a netCDF dimension but not a netCDF variable.")


def hdf5(file, results, repository, group):
    results.groups[repository["name"], group] = attributes(file)
    numbers = {dataset.attrs["_Netcdf4Dimid"]: name for name, dataset in file.items() if "_Netcdf4Dimid" in dataset.attrs}
    for name, dataset in file.items():
        if is_bare(dataset):
            continue
        path = common.under(group, name.removeprefix(PREFIX))
        try:
            if "DIMENSION_LIST" in dataset.attrs:
                dimensions = [file[references[0]].name[1:] for references in dataset.attrs["DIMENSION_LIST"]]
            else:
                dimensions = [numbers[number] for number in dataset.attrs.get("_Netcdf4Coordinates", [])]
            results.add(repository["name"], path, dataset[()], dimensions, attributes(dataset))
        except Exception as error:
            results.fail(repository["name"], path, error)


def netcdf(path, results, repository, group):
    with h5netcdf.File(path, decode_vlen_strings=True) as file:
        results.groups[repository["name"], group] = dict(file.attrs)
        for name, variable in file.variables.items():
            path = common.under(group, name.removeprefix(PREFIX))
            try:
                results.add(repository["name"], path, variable[...], variable.dimensions, dict(variable.attrs))
            except Exception as error:
                results.fail(repository["name"], path, error)


def main():
    plan = common.plan()
    one = common.Results("h5py", "netcdf", f"h5py {h5py.__version__} (HDF5 {h5py.version.hdf5_version})")
    other = common.Results("h5netcdf", "netcdf", f"h5netcdf {h5netcdf.__version__}")
    for repository in plan["repositories"]:
        for group, path in common.files(repository):
            with h5py.File(path, "r") as file:
                hdf5(file, one, repository, group)
            netcdf(path, other, repository, group)
    one.save(plan["work"])
    other.save(plan["work"])


main()
