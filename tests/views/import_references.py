"""Writes files with references of kerchunk, and compares what `icechunkfs import` made of them with the originals.

    import_references.py make DIRECTORY SEED COUNT
    import_references.py compare DIRECTORY MOUNTPOINT

File `N.nc` is one of netCDF-C; `N.json` are its references by kerchunk's own library, in different forms, the directory `N.parq` has the same
ones in Parquet if `N` is odd, and the group `rN` of the mount is what was made of them, with its report in `N.report`. zarr-python has to read the same elements from the mount and, by fsspec, from the
references. Prints one line for each difference, then the number of variables that were compared.
"""

import base64
import json
import os
import pathlib
import sys
import warnings

import numpy as np
import zarr
from fsspec.implementations.reference import ReferenceFileSystem
from import_hdf5 import with_netcdf
from kerchunk.df import refs_to_dataframe
from kerchunk.hdf import SingleHdf5ToZarr


def other_form(random, found, directory):
    """Returns the same references as other programs write them."""
    refs = dict(found["refs"])
    for key, value in refs.items():
        if isinstance(value, str) and key.rpartition("/")[2].startswith(".") and random.random() < 0.5:
            # NaN is not JSON.
            if "NaN" not in value and "Infinity" not in value:
                refs[key] = json.loads(value)
        elif isinstance(value, list) and len(value) == 3 and random.random() < 0.2:
            with open(value[0], "rb") as file:
                file.seek(value[1])
                refs[key] = "base64:" + base64.b64encode(file.read(value[2])).decode()
    choice = random.integers(3)
    if choice == 0:
        return refs
    if choice == 1:
        return {"version": 1, "refs": refs}
    short = {key: ["{{u}}" + value[0].removeprefix(f"{directory}/"), *value[1:]] if isinstance(value, list) else value
             for key, value in refs.items()}
    return {"version": 1, "templates": {"u": str(random.choice(["", f"{directory}/", f"file://{directory}/"]))}, "refs": short}


def make(directory, seed, count):
    random = np.random.default_rng(seed)
    for number in range(count):
        file = directory / f"{number}.nc"
        with_netcdf(file, random)
        with file.open("rb") as opened:
            found = SingleHdf5ToZarr(opened, str(file), inline_threshold=int(random.choice([0, 100, 1000])), error="ignore").translate()
        (directory / f"{number}.json").write_text(json.dumps(other_form(random, found, directory)))
        if number % 2 == 1:
            refs_to_dataframe(found, str(directory / f"{number}.parq"), record_size=int(random.choice([1, 3, 10, 10_000])))


def reader(references):
    """Returns the group of the references as zarr-python reads it by fsspec."""
    form = references if "refs" in references else {"version": 1, "refs": references}
    files = ReferenceFileSystem(fo=form, remote_protocol="file", remote_options={"asynchronous": True}, asynchronous=True)
    return zarr.open_group(zarr.storage.FsspecStore(files, read_only=True, path=""), zarr_format=2, mode="r", use_consolidated=False)


def attributes_of(array):
    """Returns the attributes that are the same in both versions: those that xarray makes of the fill value are not."""
    return {name: value for name, value in array.attrs.items() if name not in ("_ARRAY_DIMENSIONS", "_FillValue")}


def stored(elements):
    """Returns numbers as their bytes, in one order, and texts as they are."""
    if elements.dtype.kind in "TOUSV":
        return [one if isinstance(one, (str, bytes)) else bytes(one) for one in elements.ravel().tolist()]
    return elements.astype(elements.dtype.newbyteorder("=")).tobytes()


def compare_one(references, group, left_out, wrong):
    """Compares all arrays. Those that Zarr has no place for have names that begin with `no_`."""
    count = 0
    for path, one in reader(json.loads(references.read_text())).members(max_depth=None):
        if not isinstance(one, zarr.Array):
            continue
        if not (group / path / "zarr.json").exists():
            if path not in left_out:
                wrong.append(f"{references.name}: {path} is not there")
            continue
        count += 1
        # A text alone is no array.
        here, there = np.asarray(one[...]), np.asarray(zarr.open_array(group / path, mode="r")[...])
        if here.shape != there.shape or stored(here) != stored(there):
            wrong.append(f"{references.name}: {path}: {there.ravel()[:4]}, not {here.ravel()[:4]}")
        known, found = attributes_of(one), attributes_of(zarr.open_array(group / path, mode="r"))
        if str(known) != str(found):
            wrong.append(f"{references.name}: {path}: attributes {found}, not {known}")
    return count


def compare(directory, mountpoint):
    # fsspec looks for relative names where the program is.
    os.chdir(directory)
    wrong, count = [], 0
    for references in sorted(directory.glob("*.json")):
        left_out = {one["path"] for one in json.loads((directory / f"{references.stem}.report").read_text())["left_out"]}
        count += compare_one(references, mountpoint / f"r{references.stem}", left_out, wrong)
    print("\n".join([*wrong, f"{count} variables"]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        compare(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
