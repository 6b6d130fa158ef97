"""Reads each chunk of each array of a repository by itself: what can be read natively can be read in the NetCDF view, and has the same values; the rest is
an error there, too.

    read_damaged.py NATIVE VIEW [WORK]

With WORK, a directory, NCO, GDAL, R, ncdump and CDO read, too. Programs that read whole variables (ncdump, CDO) must fail where one has a damaged chunk: values that are made up would be worse.
Prints JSON: {"problems": [TEXT, ...], "readable": {ARRAY: NUMBER}, "unreadable": {ARRAY: NUMBER}}.
"""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import warnings

import common
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


def by_nco(path, name, selection):
    """Reads what `ncks` copies."""
    target = f"{sys.argv[3]}/part.nc"
    with h5py.File(path) as file:
        dimensions = [scales[0].name.removeprefix("/") for scales in file[name].dims]
    limits = [f"-d{dimension},{part.start},{part.stop - 1}" for dimension, part in zip(dimensions, selection)]
    status, text = common.output("ncks", "-O", "-C", "-v", name, *limits, path, target)
    if status:
        raise OSError(text)
    return by_netcdf4(target, name, ...)


def sums(command, parts, first, is_reversed):
    """Returns the sum of each part that a program reads, or none."""
    listed = pathlib.Path(sys.argv[3]) / "parts"
    order = slice(None, None, -1 if is_reversed else 1)
    numbers = lambda values: " ".join(str(value) for value in list(values)[order])
    lines = [f"{path}\t{numbers(part.start + first for part in selection)}\t{numbers(part.stop - part.start for part in selection)}\n"
             for path, selection, _ in parts]
    listed.write_text("".join(lines))
    printed = subprocess.run([*command, listed], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    # R prints its errors, too.
    printed = [line.removeprefix("sum ") for line in printed.splitlines() if line.startswith("sum ")]
    assert len(printed) == len(parts), printed
    return [None if word == "error" else float(word) for word in printed]


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


READERS = [by_h5py, by_netcdf4, by_xarray, *([by_nco] if sys.argv[3:] else [])]
HERE = pathlib.Path(__file__).parent
# Programs that add up a part: their command, the number of the first element, and whether they have the last dimension first.
ADDERS = {"GDAL": (["/usr/bin/python3", HERE / "damaged_gdal.py"], 0, False), "R": (["Rscript", HERE / "damaged.R"], 1, True)}
# Programs that read all of a variable.
WHOLE = {"ncdump": lambda path: ["ncdump", "-v", "v", path], "CDO": lambda path: ["cdo", "-s", "-O", "-f", "nc4", "copy", path, f"{sys.argv[3]}/copy.nc"]}


def attempt(read, *arguments):
    try:
        return read(*arguments)
    except Exception:
        return None


def read_by_programs(view, parts, unreadable):
    """Returns the problems of programs that are not in Python."""
    problems = []
    for program, (command, first, is_reversed) in ADDERS.items():
        for (path, selection, wanted), found in zip(parts, sums(command, parts, first, is_reversed)):
            if (found is None) != (wanted is None):
                problems.append(f"{program} {path.name} {selection}: {'unreadable' if found is None else 'read'}")
            elif found is not None and wanted.dtype.kind not in "MT" and found != float(np.sum(wanted, dtype="f8")):
                problems.append(f"{program} {path.name} {selection}: other values")
    for program, command in WHOLE.items():
        for path in sorted({view / f"{array.partition('/')[0]}.nc" for array in unreadable}):
            # CDO skips texts.
            if not (program == "CDO" and path.name == "texts.nc") and common.output(*map(str, command(path)))[0] == 0:
                problems.append(f"{program} {path.name}: no failure")
    return problems


def main():
    native, view = map(pathlib.Path, sys.argv[1:3])
    read_tools.teach_zarr()
    problems, readable, unreadable, parts = [], {}, {}, []
    for metadata in sorted(native.glob("*/*/zarr.json")):
        document = json.loads(metadata.read_text())
        group, name = metadata.parts[-3:-1]
        read_native = native_reader(metadata.parent, document)
        for number, place in enumerate(itertools.product(*map(enumerate, edges(document)))):
            bounds = [bound for _, bound in place]
            selection = tuple(slice(*bound) for bound in bounds)
            wanted = attempt(read_native, number, "/".join(str(coord) for coord, _ in place), selection)
            # The unit of times and the length of texts are those of the whole array.
            is_alike = wanted is None or wanted.dtype.kind not in "MTUO"
            counted = unreadable if wanted is None else readable
            counted[f"{group}/{name}"] = counted.get(f"{group}/{name}", 0) + 1
            if document["data_type"] != "string":
                values = expected.netcdf_values(wanted) if wanted is not None and is_alike else wanted
                parts.append((view / f"{group}.nc", selection, values))
            for reader in READERS:
                found = attempt(reader, view / f"{group}.nc", name, selection)
                if (found is None) != (wanted is None):
                    problems.append(f"{reader.__name__} {group}/{name} {bounds}: {'unreadable' if found is None else 'read'}")
                elif found is not None and is_alike:
                    if not np.array_equal(found, expected.netcdf_values(wanted), equal_nan=found.dtype.kind in "fc"):
                        problems.append(f"{reader.__name__} {group}/{name} {bounds}: other values")
    if sys.argv[3:]:
        problems += read_by_programs(view, parts, unreadable)
    print(json.dumps({"problems": problems, "readable": readable, "unreadable": unreadable}))


main()
sys.stdout.flush()
# Failed reads leave tasks of zarr behind.
os._exit(0)
