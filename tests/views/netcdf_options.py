"""Writes a repository for the options of the NetCDF view, and checks what programs read of the view.

    netcdf_options.py write REPOSITORY
    netcdf_options.py record|classic|nested REPOSITORY MOUNTPOINT DIRECTORY

DIRECTORY is for files that programs write. Prints one line for each difference, then the number of checks. Programs of netcdf-bin,
nco, cdo and hdf5-tools are run where they are installed.
"""

import pathlib
import shutil
import subprocess
import sys

import h5py
import icechunk
import netCDF4
import numpy as np
import zarr

WRONG, DONE = [], []


def check(name, is_right, found=""):
    DONE.append(name)
    if not is_right:
        WRONG.append(f"{name}: {found!r}")


def program(*words):
    """Returns what a program prints; none if it is not installed."""
    if shutil.which(words[0]) is None:
        return None
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=100)
    check(" ".join(str(word) for word in words), done.returncode == 0, done.stderr[-600:])
    return done.stdout


def write(path):
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    root = zarr.create_group(store=session.store, attributes={"title": "options", "big": 2**40, "words": ["a", "b"]})

    def add(group, name, data, names, chunks=None, **more):
        data = np.asarray(data)
        array = group.create_array(name, shape=data.shape, dtype=data.dtype, chunks=chunks or data.shape, dimension_names=names, **more)
        array[...] = data

    random = np.random.default_rng(3)
    since = {"units": "days since 2000-01-01", "calendar": "standard"}
    add(root, "time", np.arange(5, dtype="i8") * 10, ["time"], (2,), attributes=since)
    add(root, "lat", np.linspace(-60, 60, 3), ["lat"])
    add(root, "lon", np.arange(4, dtype="f4"), ["lon"])
    add(root, "t", random.normal(size=(5, 3, 4)).astype("f4"), ["time", "lat", "lon"], (2, 2, 4), attributes={"units": "K"})
    add(root, "whole", random.normal(size=(5, 4)), ["time", "bare"])
    attributes = {"_FillValue": 7, "valid_range": [0, 2**40], "missing_value": 9}
    add(root, "count", random.integers(0, 2**53, (5, 3)), ["time", "lat"], (1, 3), attributes=attributes)
    add(root, "huge", np.array([0, 2**64 - 1, 2**53 + 1], "u8"), ["lat"])
    for dtype in ["u1", "u2", "u4", "i1", "i2", "i4"]:
        info = np.iinfo(dtype)
        values = np.array([info.min, 1, info.max], dtype)
        add(root, dtype, values, ["lat"], attributes={"_FillValue": int(info.max), "valid_min": int(info.min)})
    add(root, "flag", np.array([True, False, True]), ["lat"])
    add(root, "when", np.array(["2000-01-01", "NaT", "2001-01-01"], "M8[s]"), ["lat"])
    add(root, "scalar", np.float64(2.5), [])
    a = root.create_group("a", attributes={"note": "größe", "level": 1})
    add(a, "v", random.normal(size=(5, 3)), ["time", "lat"], (2, 3))
    add(a, "w", np.arange(6, dtype="i2").reshape(2, 3), ["x", "lat"], (1, 3))
    b = a.create_group("b")
    add(b, "x", np.arange(2, dtype="i4"), ["x"])
    add(b, "w", np.arange(4, dtype="i2").reshape(2, 2), ["x", "y"])
    root.create_group("empty", attributes={"only": "attributes"})
    # A dimension with the name of a group.
    add(root, "named", np.arange(6, dtype="i4"), ["empty"])
    other = root.create_group("other")
    add(other, "time", np.arange(3), ["time"], (2,))
    add(other, "v", np.arange(6, dtype="f4").reshape(3, 2), ["time", "z"])
    add(other, "turned", np.arange(8, dtype="f4").reshape(2, 4), ["z", "late"])
    session.commit("options")


def stored(path):
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(path))
    return zarr.open_group(repository.readonly_session("main").store, mode="r")


def plain(array):
    values = np.asarray(array[...])
    return values.view("i8") if values.dtype.kind == "M" else values.astype("i1") if values.dtype.kind == "b" else values


def open_file(file):
    dataset = netCDF4.Dataset(file)
    dataset.set_auto_maskandscale(False)
    return dataset


def record(root, mount, directory):
    file, out = mount / "options.nc", directory / "out.nc"
    with open_file(file) as dataset, h5py.File(file) as hdf5:
        check("unlimited", dataset.dimensions["time"].isunlimited())
        check("limited", not dataset.dimensions["lat"].isunlimited())
        check("maxshape", hdf5["t"].maxshape == (None, 3, 4), hdf5["t"].maxshape)
        for name, array in root.arrays():
            check(name, np.array_equal(dataset[name][...], plain(array), equal_nan=plain(array).dtype.kind == "f"))
        compared = directory / "plain.nc"
        with netCDF4.Dataset(compared, "w") as made:
            made.createDimension("x", 2)
            made.createVariable("x", "f4", ("x",))
            made.createVariable("v", "f4", ("x",))
        with h5py.File(compared) as made:
            kind = made["x"].attrs["REFERENCE_LIST"].dtype
        for name in ["t", "whole", "count", "flag"]:
            for at, dimension in enumerate(dataset[name].dimensions):
                check(f"{name} {dimension}", h5py.h5ds.is_attached(hdf5[name].id, hdf5[dimension].id, at))
                uses = hdf5[dimension].attrs["REFERENCE_LIST"]
                check(f"{dimension} uses", (hdf5[name].name, at) in [(hdf5[use].name, position) for use, position in uses], uses)
                check(f"{dimension} type", uses.dtype == kind, (uses.dtype, kind))
        # Only numbers of one element, and what ties datasets to dimensions, are no lists in files of netCDF.
        for name, variable in hdf5.items():
            for key, value in variable.attrs.items():
                is_list = isinstance(value, np.ndarray) or isinstance(value, (bytes, str, h5py.Empty))
                check(f"{name}@{key} is a list", is_list or key == "_Netcdf4Dimid", value)
    if (text := program("ncdump", "-h", file)) is not None:
        check("ncdump", "time = UNLIMITED ; // (5 currently)" in text, text[:400])
    if program("ncra", "-O", "-v", "t,whole", file, out) is not None:
        with open_file(out) as dataset:
            check("ncra", np.allclose(dataset["t"][0], root["t"][...].mean(axis=0), atol=1e-6), dataset["t"][...])
            check("ncra whole", np.allclose(dataset["whole"][0], root["whole"][...].mean(axis=0)))
    if program("ncrcat", "-O", "-v", "t", file, file, out) is not None:
        with open_file(out) as dataset:
            check("ncrcat", np.array_equal(dataset["t"][...], np.concatenate([root["t"][...]] * 2)))
    if program("cdo", "-s", "timmean", "-selname,t", file, out) is not None:
        with open_file(out) as dataset:
            check("cdo", np.allclose(dataset["t"][0], root["t"][...].mean(axis=0), atol=1e-6))
    # A dimension of another group, first of its variables only there.
    with open_file(mount / "other.nc") as dataset:
        check("other", dataset.dimensions["time"].isunlimited())


CLASSIC = {"u1": "i2", "u2": "i4", "u4": "f8", "i8": "f8", "u8": "f8", "M8[s]": "f8", "b1": "i1"}


def classic(root, mount, directory):
    file, out = mount / "options.nc", directory / "classic.nc"

    def compare(file, how):
        with open_file(file) as dataset:
            for name, array in root.arrays():
                kind = str(array.dtype).replace("datetime64", "M8") if array.dtype.kind == "M" else array.dtype.str[1:]
                wanted = plain(array).astype(CLASSIC.get(kind, plain(array).dtype))
                found = dataset[name][...]
                is_same = found.dtype == wanted.dtype and np.array_equal(found, wanted)
                check(f"{how} {name}", is_same, (found.dtype, found))
                if "_FillValue" in array.attrs:
                    fill = dataset[name]._FillValue
                    check(f"{how} {name}@_FillValue", fill.dtype == wanted.dtype and fill == array.attrs["_FillValue"], fill)
            check(how, np.array_equal(dataset["count"].valid_range, [0.0, 2.0**40]), dataset["count"].valid_range)
            check(how, dataset.big == 2.0**40 and dataset.words == '["a","b"]', (dataset.big, dataset.words))

    compare(file, "view")
    with netCDF4.Dataset(file) as dataset:
        check("model", dataset.data_model == "NETCDF4_CLASSIC", dataset.data_model)
    # Closing it fails: it has the file twice.
    check("MFDataset", netCDF4.MFDataset([file, file])["t"].shape[0] == 10)
    if (text := program("ncdump", "-k", file)) is not None:
        check("ncdump -k", text.strip() == "netCDF-4 classic model", text)
    for kind in ["classic", "64-bit offset"]:
        if program("nccopy", "-k", kind, file, out) is not None:
            check(kind, out.read_bytes()[:3] == b"CDF")
            compare(out, kind)


def nested(root, mount, directory):
    file = mount / "options.nc"
    check("one file", sorted(path.name for path in mount.iterdir()) == ["options.nc"], sorted(mount.iterdir()))
    groups = {"": root, **{path: node for path, node in root.members(max_depth=None) if isinstance(node, zarr.Group)}}
    with open_file(file) as dataset, h5py.File(file) as hdf5:
        check("groups", sorted(dataset.groups) == ["a", "empty", "other"], list(dataset.groups))
        for path, group in groups.items():
            found, stored = (dataset[path], hdf5[path]) if path else (dataset, hdf5)
            check(path, sorted(found.variables) == sorted(name for name, _ in group.arrays()), list(found.variables))
            for key, value in group.attrs.items():
                check(f"{path}@{key}", np.array_equal(found.getncattr(key), value), found.getncattr(key))
            for name, array in group.arrays():
                is_float = plain(array).dtype.kind == "f"
                check(f"{path}/{name}", np.array_equal(found[name][...], plain(array), equal_nan=is_float), found[name][...])
                check(f"{path}/{name} h5py", np.array_equal(stored[name][()], plain(array), equal_nan=is_float))
                names = list(array.metadata.dimension_names or [])
                if name != "named":
                    check(f"{path}/{name} dimensions", list(found[name].dimensions) == names, found[name].dimensions)
        check("shared", "time" not in dataset["a"].dimensions and dataset["a/v"].get_dims()[0].group().path == "/")
        check("own", dataset["a/b/w"].get_dims()[0].group().path == "/a/b", dataset["a/b"].dimensions)
        check("renamed", dataset["named"].dimensions == ("empty_6",), dataset["named"].dimensions)
        check("other size", len(dataset["other"].dimensions["time"]) == 3)
    if (text := program("ncdump", "-h", file)) is not None:
        check("ncdump", "group: a {" in text and "group: b {" in text, text)
    program("h5dump", "-H", file)
    program("h5ls", "-r", file)
    if program("ncks", "-O", "-G", "copy", file, directory / "nco.nc") is not None:
        with open_file(directory / "nco.nc") as dataset:
            check("ncks", np.array_equal(dataset["copy/a/v"][...], root["a/v"][...]))
    import xarray

    for engine in ["netcdf4", "h5netcdf"]:
        try:
            opened = xarray.open_groups(file, engine=engine, decode_times=False)
        except (ImportError, ValueError) as error:
            if "h5netcdf" in str(error):
                continue
            raise
        check(f"{engine} groups", sorted(opened) == ["/", "/a", "/a/b", "/empty", "/other"], list(opened))
        with xarray.open_dataset(file, group="a/b", engine=engine) as b:
            check(f"{engine} group", np.array_equal(b["w"], root["a/b/w"][...]) and "x" in b.coords)
    with xarray.open_groups(file, engine="netcdf4")["/a"] as a:
        check("open_groups", np.array_equal(a["v"], root["a/v"][...]))


def main():
    mode, repository, *rest = sys.argv[1:]
    if mode == "write":
        return write(repository)
    {"record": record, "classic": classic, "nested": nested}[mode](stored(repository), *map(pathlib.Path, rest))
    print(*WRONG, f"{len(DONE)} checks", sep="\n")
    sys.exit(bool(WRONG) or not DONE)


main()
