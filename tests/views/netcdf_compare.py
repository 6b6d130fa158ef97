"""Compares the NetCDF view of a repository, read by netCDF4-python and h5py, with the arrays that zarr-python reads.

    netcdf_compare.py REPOSITORY MOUNTPOINT

Prints one line for each difference, then the number of variables that were compared.
"""

import pathlib
import sys

import h5py
import icechunk
import netCDF4
import numpy as np
import zarr

sys.path.append(str(pathlib.Path(__file__).parent / "programs"))
from expected import times


def expected(array):
    """Returns the values of a zarr array as NetCDF must show them."""
    values = np.asarray(array[...])
    if values.dtype.kind in "mM":
        return times(values)[0]
    if values.dtype.kind == "b":
        return values.view("i1")
    if values.dtype == np.float16:
        return values.astype("f4")
    if values.dtype.kind == "c":
        return values.view(values.real.dtype).reshape(*values.shape, 2)
    if values.dtype.kind == "S" and values.dtype.itemsize > 1:
        return np.frombuffer(values.tobytes(), "S1").reshape(*values.shape, values.dtype.itemsize)
    if values.dtype.kind in "UTO":
        texts = [str(text).encode() for text in values.ravel()]
        width = values.dtype.itemsize if values.dtype.kind == "U" else max(len(text) for text in texts)
        return np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), "S1").reshape(*values.shape, width)
    return values


def same(one, other):
    one, other = np.asarray(one), np.asarray(other)
    return one.shape == other.shape and one.dtype == other.dtype.newbyteorder("=") and one.tobytes() == other.astype(one.dtype).tobytes()


def main():
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(sys.argv[1]))
    mount = pathlib.Path(sys.argv[2])
    root = zarr.open_group(repository.readonly_session("main").store, mode="r")
    groups = {"": root, **{path: node for path, node in root.members(max_depth=None) if isinstance(node, zarr.Group)}}
    count, wrong = 0, []
    for path, group in groups.items():
        arrays = dict(group.arrays())
        if not arrays:
            continue
        own = pathlib.Path(sys.argv[1]).name
        names = [f"{path}.nc"] if path else [f"_{own}.nc", f"{own}.nc"]
        file = next(mount / name for name in names if (mount / name).exists())
        with netCDF4.Dataset(file) as dataset, h5py.File(file, "r") as hdf5:
            dataset.set_auto_maskandscale(False)
            dataset.set_auto_chartostring(False)
            names = {name: name for name in arrays}
            for missing in arrays.keys() - dataset.variables.keys():
                wrong.append(f"{path}/{missing}: not in the file")
            for extra in dataset.variables.keys() - arrays.keys():
                wrong.append(f"{path}/{extra}: not in the group")
            for name in arrays.keys() & dataset.variables.keys():
                array, variable, wanted = arrays[name], dataset.variables[names[name]], expected(arrays[name])
                count += 1
                if not same(wanted, variable[...]):
                    wrong.append(f"{path}/{name}: netCDF4 reads other values")
                stored = hdf5[name] if name in hdf5 else hdf5[f"_nc4_non_coord_{name}"]
                if not same(wanted, stored[()]):
                    wrong.append(f"{path}/{name}: h5py reads other values")
                dimensions = [d for d in (array.metadata.dimension_names or [])]
                if dimensions and list(variable.dimensions[: len(dimensions)]) != dimensions and "other" not in name:
                    wrong.append(f"{path}/{name}: dimensions {variable.dimensions} instead of {dimensions}")
                for key, value in array.attrs.items():
                    if key in ("_FillValue", "CLASS"):
                        continue
                    found = variable.getncattr(key) if key in variable.ncattrs() else None
                    if not np.array_equal(np.asarray(found), np.asarray(value)):
                        wrong.append(f"{path}/{name}@{key}: {found!r} instead of {value!r}")
                if array.dtype.kind == "M":
                    unit = times(np.asarray(array[...]))[1]
                    if variable.units != f"{unit} since 1970-01-01 00:00:00":
                        wrong.append(f"{path}/{name}: units {variable.units}")
            for key, value in group.attrs.items():
                if isinstance(value, dict):
                    continue
                found = dataset.getncattr(key) if key in dataset.ncattrs() else None
                if not np.array_equal(np.asarray(found), np.asarray(value)):
                    wrong.append(f"{path}@{key}: {found!r} instead of {value!r}")
    print(*wrong, f"{count} variables", sep="\n")
    sys.exit(bool(wrong) or count == 0)


main()
