"""Writes a repository with packed numbers of each type and times of each unit, for `read_numbers.py`.

    make_numbers.py REPOSITORY CASES

CASES becomes JSON: {GROUP: {"kind": "packed" or "time" or "span", "wanted": [VALUE, ...]}}: the numbers that `v` of each group means, by the arithmetic
of numpy, or its times as text; null for a missing one.
"""

import json
import sys
import warnings

import icechunk
import numpy as np
import zarr

warnings.filterwarnings("ignore")
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
# The marks of missing values are 5.
PACKING = {
    "scale": {"scale_factor": 100_000},
    "offset": {"add_offset": 2_000_000_000},
    "both": {"scale_factor": 1000, "add_offset": -7},
    "listed": {"scale_factor": [1000]},
    "fraction": {"scale_factor": 0.25, "add_offset": 3},
    "fill": {"scale_factor": 1000, "_FillValue": 5},
    "mark": {"add_offset": 1000, "missing_value": 5},
    "marks": {"scale_factor": 2, "missing_value": [5, 1e9, 0.5]},
    "plain": {"_FillValue": 5},
}
# Of stored bytes 0, 1, 127, 128 and 255: what `_Unsigned` makes of them, and a mark that is written as one and as the other.
UNSIGNED = {
    "u1_signed": ("u1", {"_Unsigned": "false", "_FillValue": -1}, [0, 1, 127, -128, None]),
    "u1_signed_bits": ("u1", {"_Unsigned": "false", "_FillValue": 255}, [0, 1, 127, -128, None]),
    "i1_unsigned": ("i1", {"_Unsigned": "true", "_FillValue": -1, "scale_factor": 2}, [0, 2, 254, 256, None]),
    "i1_unsigned_mark": ("i1", {"_Unsigned": "true", "missing_value": 255, "add_offset": 1}, [1, 2, 128, 129, None]),
}
DAYS = ["2020-01-15", "2020-02-29", "1899-12-31", "2100-03-01"]
SECONDS = ["2020-01-15T12:30:45", "1969-12-31T23:59:59", "2100-03-01T00:00:01"]
FRACTIONS = ["2020-01-15T12:30:45.500", "1969-12-31T23:59:59.250"]
TIMES = {
    **{f"days_{unit}": (f"M8[{unit}]", DAYS) for unit in ["D", "h", "m", "s", "ms", "us", "ns"]},
    **{f"seconds_{unit}": (f"M8[{unit}]", SECONDS) for unit in ["s", "ms", "us", "ns"]},
    **{f"fractions_{unit}": (f"M8[{unit}]", FRACTIONS) for unit in ["ms", "us", "ns"]},
    "weeks": ("M8[W]", ["2020-01-16", "1969-12-25"]),
    "months": ("M8[M]", ["2020-03-01", "1969-12-01"]),
    "years": ("M8[Y]", ["2020-01-01", "1900-01-01"]),
    "tens": ("M8[10us]", DAYS),
    "missing": ("M8[ns]", ["2020-01-15", None, "2020-02-29"]),
}
SPANS = {f"spans_{unit}": (f"m8[{unit}]", [1, 48, -24, None]) for unit in ["h", "s", "ms", "us", "ns"]}


def main():
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(sys.argv[1]))
    session = repository.writable_session("main")
    root, cases = zarr.create_group(store=session.store), {}

    def add(name, kind, data, wanted, attributes):
        dimensions = ["time"] if kind == "time" else ["x"]
        array = root.create_group(name).create_array(
            "time" if kind == "time" else "v", shape=data.shape, chunks=(2,), dtype=data.dtype, dimension_names=dimensions, attributes=attributes)
        array[...] = data
        cases[name] = {"kind": kind, "wanted": wanted}
        if kind == "time":
            # cdo shows the times of a variable.
            shape = (*data.shape, 1, 2)
            root[name].create_array("w", shape=shape, chunks=shape, dtype="f4", dimension_names=["time", "lat", "lon"])[...] = 1
            for axis, values, units in [("lat", [5.0], "degrees_north"), ("lon", [0.0, 9.0], "degrees_east")]:
                root[name].create_array(axis, data=np.array(values), dimension_names=[axis], attributes={"units": units})

    for dtype in [*INTEGERS, "f4"]:
        for name, attributes in PACKING.items():
            if dtype == "f4" and name in ("fill", "plain"):
                # xarray has another form for these of floats.
                continue
            # netCDF4-python takes the largest number for a missing one.
            largest = 30_000.0 if dtype == "f4" else min(int(np.iinfo(dtype).max) - 1, 2**40)
            data = np.array([0, 1, 5, 100, largest], dtype)
            factor, offset = np.ravel(attributes.get("scale_factor", 1)).item(), attributes.get("add_offset", 0)
            marks = np.ravel([attributes.get(mark, []) for mark in ["_FillValue", "missing_value"] if mark in attributes])
            wanted = [None if value in marks else float(value) * factor + offset for value in data.tolist()]
            add(f"{dtype}_{name}", "packed", data, wanted, attributes)
    for name, (dtype, attributes, wanted) in UNSIGNED.items():
        add(name, "packed", np.array([0, 1, 127, 128, 255], "u1").view(dtype), wanted, attributes)
    for name, (dtype, texts) in TIMES.items():
        data = np.array(["NaT" if text is None else text for text in texts], "M8[ms]").astype(dtype)
        add(name, "time", data, texts, {})
    for name, (dtype, hours) in SPANS.items():
        data = np.array(["NaT" if number is None else np.timedelta64(number, "h") for number in hours], "m8[h]").astype(dtype)
        add(name, "span", data, hours, {})
    session.commit("numbers")
    with open(sys.argv[2], "w") as file:
        json.dump(cases, file)


main()
