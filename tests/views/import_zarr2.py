"""Writes trees of Zarr 2 with zarr-python and xarray, and compares them with what `icechunkfs import` made of them.

    import_zarr2.py make DIRECTORY SEED
    import_zarr2.py compare DIRECTORY MOUNTPOINT

Arrays that version 3 does not have begin with `no_`. Prints one line for each difference, then the number of arrays that were compared.
"""

import json
import pathlib
import sys
import warnings

import numcodecs
import numpy as np
import xarray
import zarr
from import_netcdf import plain, same, values_of

KINDS = ["b1", "i1", "u1", "<i2", ">i2", "<i4", ">u4", "<i8", "<u8", "<f2", "<f4", ">f4", "<f8", ">f8", "<c8", ">c16", "S5", "<U3", ">U2", "<M8[s]", "<m8[25us]", "T"]


def compressor(random):
    """Returns a compressor, or none."""
    return [
        None,
        numcodecs.Zlib(int(random.integers(0, 10))),
        numcodecs.GZip(int(random.integers(0, 10))),
        numcodecs.BZ2(int(random.integers(1, 10))),
        numcodecs.LZ4(),
        numcodecs.LZMA(preset=1),
        numcodecs.Zstd(int(random.integers(-3, 12))),
        numcodecs.Blosc(str(random.choice(["lz4", "zstd", "blosclz", "lz4hc", "zlib"])), int(random.integers(0, 10)), int(random.integers(-1, 3))),
    ][random.integers(0, 8)]


def filters(random, kind, size):
    """Returns filters for elements of a type, and whether they need the order of C."""
    found = []
    plain_number = kind[0] == "<" and kind[1] in "iuf"
    if plain_number and kind[1] in "iu" and random.random() < 0.3:
        found.append(numcodecs.Delta(kind))
    elif kind in ["<f4", "<f8"] and random.random() < 0.3:
        found.append(numcodecs.FixedScaleOffset(offset=0, scale=10, dtype=kind, astype="<i4"))
        size = 4
    elif kind in ["<f4", "<f8"] and random.random() < 0.3:
        found.append(numcodecs.BitRound(9))
    of_numbers = bool(found)
    if random.random() < 0.3:
        found.append(numcodecs.Shuffle(size))
    if random.random() < 0.2:
        found.append(random.choice([numcodecs.Fletcher32(), numcodecs.CRC32(), numcodecs.Adler32()]))
    return found, of_numbers


def array(random, group, name, kind):
    """Writes an array, some of whose chunks may be missing."""
    shape = tuple(int(random.integers(0 if random.random() < 0.05 else 1, 9)) for _ in range(random.integers(0, 4)))
    chunks = tuple(int(random.integers(1, length + 2)) for length in shape)
    dtype = np.dtypes.StringDType() if kind == "T" else np.dtype(kind)
    size = 1 if kind == "T" else dtype.itemsize
    chosen, of_numbers = ([], False) if kind == "T" else filters(random, kind, size)
    fill = None
    if random.random() < 0.6:
        if dtype.kind == "f":
            fill = float(random.choice([np.nan, np.inf, 0.0, -9.5]))
        elif dtype.kind in "iu":
            fill = int(random.integers(0, 99))
        elif dtype.kind == "b":
            fill = bool(random.random() < 0.5)
    options = {} if fill is None else {"fill_value": fill}
    made = group.create_array(
        name,
        shape=shape,
        chunks=chunks or "auto",
        dtype=str if kind == "T" else dtype,
        compressors=compressor(random),
        filters=chosen or ("auto" if kind == "T" else None),
        order="F" if not of_numbers and random.random() < 0.3 else "C",
        chunk_key_encoding={"name": "v2", "separator": str(random.choice([".", "/"]))},
        **options,
    )
    if kind == "T":
        data = np.array(random.choice(["", "plain", "grüße"], shape), dtype=object)
    elif dtype.kind in "SU":
        data = random.choice(np.array(["", "ab", "x"], dtype), shape)
    elif dtype.kind in "Mm":
        data = random.integers(0, 10**6, shape).astype("i8").view(dtype) if shape else np.array(5, "i8").view(dtype)
    elif dtype.kind == "b":
        data = random.random(shape) < 0.5
    elif dtype.kind == "c":
        data = (random.random(shape) + 1j * random.random(shape)).astype(dtype)
    elif chosen and dtype.kind == "f":
        data = np.asarray(random.integers(-99, 99, shape) / 10).astype(dtype)
    else:
        data = np.asarray(values_of(random, dtype.newbyteorder("=").str[1:], shape)).astype(dtype)
    part = tuple(slice(0, int(random.integers(1, length + 1)) if length else 0) for length in shape) if random.random() < 0.3 else ...
    if all(shape):
        made[part] = data[part]
    if shape and random.random() < 0.6:
        made.attrs["_ARRAY_DIMENSIONS"] = [f"{name}_{axis}" for axis in range(len(shape))]
    made.attrs["units"] = "K"
    if random.random() < 0.3:
        made.attrs["numbers"] = [1, 2.5]
    return made


def make(directory, seed):
    """Writes `plain`, a tree of all kinds of arrays, and `xarray`, one that xarray writes."""
    random = np.random.default_rng(seed)
    root = zarr.open_group(directory / "plain", mode="w", zarr_format=2)
    root.attrs["title"] = "grüße"
    groups = [root, root.create_group("inner"), root.create_group("inner/below it")]
    for number, kind in enumerate(random.permutation(KINDS)):
        array(random, groups[random.integers(0, 3)], f"a{number}", str(kind))
    groups[1].create_array("no_structure", shape=(3,), dtype=[("a", "<i4"), ("b", "<f8")], chunks=(2,))[...] = np.zeros(3, [("a", "<i4"), ("b", "<f8")])
    times = np.datetime64("2001-01-01", "ns") + np.arange(5) * np.timedelta64(6, "h")
    values = np.where(random.random((5, 4)) < 0.2, np.nan, random.random((5, 4)) * 90)
    dataset = xarray.Dataset(
        {
            "t": (("time", "x"), values.astype("f4"), {"units": "K"}),
            "packed": (("time", "x"), np.round(values), {}),
            "n": (("x",), np.arange(4, dtype="i2"), {"flag_meanings": "a b"}),
            "name": (("x",), np.array(["one", "zwei", "три", ""])),
            "flag": ((), True),
            "tenth": (("x",), np.array([0.1, 1, 0.1, 2], "f4")),
            "half": (("x",), np.array([0.1, 1, 0.1, 2], "f2")),
            "marked": (("x",), np.arange(4, dtype="i4")),
        },
        {"time": times, "x": [0.5, 1.5, 2.5, 3.5]},
        {"title": "made", "history": "none"},
    )
    encoding = {"packed": {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -999}}
    encoding |= {"tenth": {"_FillValue": 0.1}, "half": {"_FillValue": 0.1}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset.to_zarr(directory / "xarray", zarr_format=2, mode="w", encoding=encoding, consolidated=bool(random.random() < 0.5))
    # Without a fill value, xarray takes the attribute.
    for name, members in [(".zarray", {"fill_value": None}), (".zattrs", {"_FillValue": 2})]:
        path = directory / "xarray" / "marked" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | members))
    if random.random() < 0.7:
        # Python writes numbers that JSON does not have.
        for path, name in [(directory / "xarray" / "t" / ".zattrs", "valid_max"), (directory / "xarray" / ".zattrs", "missing")]:
            attributes = json.loads(path.read_text())
            path.write_text(json.dumps(attributes | {name: float("nan")}))


def arrays_of(group, prefix=""):
    """Returns all arrays of a group and of those below it, by path."""
    found = {prefix + name: one for name, one in group.arrays()}
    for name, inner in group.groups():
        found |= arrays_of(inner, f"{prefix}{name}/")
    return found


def is_equal(one, other):
    """Returns true if both arrays have the same elements."""
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype.kind in "SUOT":
        return same(one.astype(object), other.astype(object))
    if one.dtype.kind == "c":
        return one.shape == other.shape and np.array_equal(one, other, equal_nan=True)
    return same(one, other)


def compare(directory, mount):
    """Compares both trees."""
    warnings.simplefilter("ignore")
    wrong, count = [], 0
    before, after = [zarr.open_group(one, mode="r") for one in [directory / "plain", mount / "plain"]]
    if dict(before.attrs) != dict(after.attrs):
        wrong.append(f"attributes {dict(after.attrs)}, not {dict(before.attrs)}")
    wanted, found = arrays_of(before), arrays_of(after)
    if {path for path in wanted if "no_" not in path} != set(found):
        wrong.append(f"{sorted(found)}, not {sorted(wanted)}")
    for path in sorted(set(wanted) & set(found)):
        count += 1
        here, there = wanted[path], found[path]
        if here.dtype != there.dtype and here.dtype.newbyteorder("=") != there.dtype.newbyteorder("="):
            wrong.append(f"{path}: {there.dtype}, not {here.dtype}")
        one, other = here[...], there[...]
        if np.asarray(one).dtype.kind in "Mm":
            one, other = np.asarray(one).astype("i8"), np.asarray(other).astype("i8")
        if here.fill_value is not None and not is_equal(one, other):
            wrong.append(f"{path}: {other!r}, not {one!r}")
        expected = {key: value for key, value in dict(here.attrs).items() if key != "_ARRAY_DIMENSIONS"}
        attributes = {key: value for key, value in dict(there.attrs).items() if key not in ["_FillValue"]}
        if expected != attributes or (there.metadata.dimension_names and list(there.metadata.dimension_names) != here.attrs.get("_ARRAY_DIMENSIONS")):
            wrong.append(f"{path}: attributes {attributes} {there.metadata.dimension_names}, not {dict(here.attrs)}")
    for options in [{"decode_cf": False}, {}]:
        one = xarray.open_zarr(directory / "xarray", consolidated=False, zarr_format=2, chunks=None, **options)
        other = xarray.open_zarr(mount / "xarray", consolidated=False, chunks=None, **options)
        if set(one.variables) != set(other.variables):
            wrong.append(f"{sorted(other.variables)}, not {sorted(one.variables)}")
        for name in set(one.variables) & set(other.variables):
            count += 1
            here, there = one.variables[name], other.variables[name]
            attributes = [{key: plain(value) for key, value in one.attrs.items() if key != "valid_max"} for one in [here, there]]
            if here.dims != there.dims or not same(here.values, there.values) or str(attributes[0]) != str(attributes[1]):
                wrong.append(f"{options} {name}: {there!r}, not {here!r}")
    for line in wrong:
        print(line)
    print(count, "arrays")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    else:
        compare(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
