"""Prints what zarr-python, of version 2 or 3, reads below a directory: {path: {"shape", "values", "attributes", ...}} as JSON.

    python dump.py DIRECTORY [--consolidated | --xarray GROUP [--consolidated]]
"""
import argparse
import hashlib
import json
import sys
import warnings

import numpy as np
import zarr

warnings.filterwarnings("ignore")
MAJOR = int(zarr.__version__.split(".")[0])


def values(data):
    """Returns something that is equal for equal values, whatever the version of numpy."""
    data = np.asarray(data)
    if data.dtype.kind in "OTU":
        return [str(value) for value in data.reshape(-1)]
    if data.dtype.names:
        return [[str(value) for value in record.tolist()] for record in data.reshape(-1)]
    if data.dtype.kind in "Mm":
        data = data.view(data.dtype.newbyteorder("=")).astype("i8")
    little = np.ascontiguousarray(data.astype(data.dtype.newbyteorder("<")))
    # All NaNs are one.
    if little.dtype.kind == "f":
        little[np.isnan(little)] = np.nan
    return hashlib.sha256(little.tobytes()).hexdigest()


def kind(dtype):
    dtype = np.dtype(dtype)
    if dtype.kind in "OT":
        return "text"
    return dtype.newbyteorder("=").str if not dtype.names else str(dtype.newbyteorder("="))


def arrays(group, prefix=""):
    """Yields all arrays below a group by the means of the group, which must not fail."""
    for name, array in group.arrays():
        yield prefix + name, array
    for name, below in group.groups():
        yield from arrays(below, f"{prefix}{name}/")


def groups(group, prefix=""):
    yield prefix, dict(group.attrs)
    for name, below in group.groups():
        yield from groups(below, f"{prefix}{name}/")


def open_group(directory, consolidated):
    if MAJOR >= 3:
        return zarr.open_group(directory, mode="r", zarr_format=3, use_consolidated=False)
    return zarr.open_consolidated(directory, mode="r") if consolidated else zarr.open_group(directory, mode="r")


def dump(directory, consolidated):
    root = open_group(directory, consolidated)
    found = {}
    for path, array in arrays(root):
        try:
            read = array[...]
        except Exception as error:
            found[path] = {"error": repr(error)}
            continue
        found[path] = {"shape": list(array.shape), "chunks": list(array.chunks), "kind": kind(array.dtype), "values": values(read),
                       "attributes": dict(array.attrs)}
        if MAJOR >= 3:
            found[path]["dimension_names"] = array.metadata.dimension_names
    return {"arrays": found, "groups": dict(groups(root))}


def dump_xarray(directory, group, consolidated):
    import xarray
    version = {"zarr_format": 3} if MAJOR >= 3 else {}
    data = xarray.open_zarr(directory, group=group, consolidated=consolidated, **version)
    return {name: {"dimensions": list(variable.dims), "kind": kind(variable.dtype), "values": values(variable.values),
                   "attributes": {key: str(value) for key, value in variable.attrs.items()}}
            for name, variable in data.variables.items()}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--consolidated", action="store_true")
    parser.add_argument("--xarray")
    arguments = parser.parse_args()
    if arguments.xarray:
        found = dump_xarray(arguments.directory, arguments.xarray, arguments.consolidated)
    else:
        found = dump(arguments.directory, arguments.consolidated)
    json.dump(found, sys.stdout)


main()
