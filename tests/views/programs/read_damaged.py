"""Reads each chunk of each array of a repository by itself: what can be read natively can be read in the NetCDF view, and has the same values; the rest is
an error there, too.

    read_damaged.py NATIVE VIEW

Prints JSON: {"problems": [TEXT, ...], "readable": {ARRAY: NUMBER}, "unreadable": {ARRAY: NUMBER}}.
"""

import itertools
import json
import os
import pathlib
import sys
import warnings

import expected
import h5py
import netCDF4
import numpy as np
import xarray
import zarr

sys.path.append(str(pathlib.Path(__file__).parents[2] / "python"))
import read_tools

warnings.filterwarnings("ignore")


def edges(document):
    """Returns the bounds of the chunks along each dimension; of shards, those of their inner chunks."""
    grid = document["chunk_grid"]["configuration"]
    for codec in document["codecs"]:
        if isinstance(codec, dict) and codec["name"] == "sharding_indexed":
            grid = codec["configuration"]
    shapes = grid.get("chunk_shapes") or [[length] * -(-size // length) for length, size in zip(grid["chunk_shape"], document["shape"])]
    for lengths, size in zip(shapes, document["shape"]):
        ends = np.minimum(np.cumsum(lengths), size).tolist()
        yield list(zip([0, *ends], ends))


def by_h5py(path, name, selection):
    with h5py.File(path) as file:
        return file[name][selection]


def by_netcdf4(path, name, selection):
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        return file[name][selection]


def by_xarray(path, name, selection):
    with xarray.open_dataset(path, decode_cf=False, cache=False) as dataset:
        return dataset[name][selection].values


def native_reader(directory, document):
    """Returns a function of a chunk's number, key and selection that reads it natively."""
    array = attempt(lambda: zarr.open_array(directory, mode="r"))
    if array is not None:
        return lambda number, key, selection: np.asarray(array[selection])

    def read(number, key, selection):
        # Some versions of zarr-python know no chunks of several shapes. These have the number of the chunk, counted from 1.
        assert (directory / "c" / key).read_bytes() != b"no zstd frame"
        return np.full([part.stop - part.start for part in selection], number + 1, document["data_type"])

    return read


READERS = [by_h5py, by_netcdf4, by_xarray]


def attempt(read, *arguments):
    try:
        return read(*arguments)
    except Exception:
        return None


def main():
    native, view = map(pathlib.Path, sys.argv[1:3])
    read_tools.teach_zarr()
    problems, readable, unreadable = [], {}, {}
    for metadata in sorted(native.glob("*/*/zarr.json")):
        document = json.loads(metadata.read_text())
        group, name = metadata.parts[-3:-1]
        read_native = native_reader(metadata.parent, document)
        for number, place in enumerate(itertools.product(*map(enumerate, edges(document)))):
            bounds = [bound for _, bound in place]
            selection = tuple(slice(*bound) for bound in bounds)
            wanted = attempt(read_native, number, "/".join(str(coord) for coord, _ in place), selection)
            counted = unreadable if wanted is None else readable
            counted[f"{group}/{name}"] = counted.get(f"{group}/{name}", 0) + 1
            for reader in READERS:
                found = attempt(reader, view / f"{group}.nc", name, selection)
                if (found is None) != (wanted is None):
                    problems.append(f"{reader.__name__} {group}/{name} {bounds}: {'unreadable' if found is None else 'read'}")
                elif found is not None:
                    # The unit of times and the length of texts are those of the whole array.
                    is_alike = wanted.dtype.kind not in "MTUO"
                    if is_alike and not np.array_equal(found, expected.netcdf_values(wanted), equal_nan=found.dtype.kind in "fc"):
                        problems.append(f"{reader.__name__} {group}/{name} {bounds}: other values")
    print(json.dumps({"problems": problems, "readable": readable, "unreadable": unreadable}))


main()
sys.stdout.flush()
# Failed reads leave tasks of zarr behind.
os._exit(0)
