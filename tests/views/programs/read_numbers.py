"""Compares what programs compute of packed numbers and times of a NetCDF view with the arithmetic of numpy.

    read_numbers.py CASES NATIVE VIEW WORK [PROGRAM ...]

CASES is what `make_numbers.py` has written, NATIVE a native mount, VIEW one of NetCDF files, and WORK a directory. Prints JSON: {PROGRAM: {"right": NUMBER,
"wrong": [TEXT, ...]}}, without what is known of a program.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import warnings

import common
import h5py
import netCDF4
import numpy as np
import xarray

warnings.filterwarnings("ignore")
EPOCH = datetime.datetime(1970, 1, 1)
SECONDS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
HERE = os.path.dirname(__file__)
VIEW, WORK = sys.argv[3:5]


def number(value):
    """Returns a number of Python, or None for a missing one."""
    value = value.item() if hasattr(value, "item") else value
    return None if value is np.ma.masked or value is None or value != value else float(value)


def numbers(values):
    return [number(value) for value in np.ma.filled(np.ma.asarray(values, dtype="f8"), np.nan).reshape(-1)]


def since_epoch(value, units):
    """Returns the time of a number with `units`, as a program does that knows days, hours, minutes and seconds only."""
    unit, text = re.fullmatch(r"(\w+) since (.*)", units).groups()
    if value is None:
        return None
    assert text == "1970-01-01 00:00:00", units
    return EPOCH + datetime.timedelta(seconds=value * SECONDS[unit])


def hours(value, units):
    return None if value is None else value * SECONDS[units] / 3600


class ByNetcdf4:
    """Numbers that netCDF4-python makes by itself, and the times of cftime."""

    def packed(self, path):
        with netCDF4.Dataset(path) as file:
            return numbers(file["v"][:])

    def time(self, path):
        with netCDF4.Dataset(path) as file:
            time = file["time"]
            return [None if value is np.ma.masked else value for value in
                    netCDF4.num2date(time[:], time.units, time.calendar, only_use_cftime_datetimes=False)]

    def span(self, path):
        with netCDF4.Dataset(path) as file:
            return [hours(value, file["v"].units) for value in numbers(file["v"][:])]


class ByH5py:
    """A program that reads each attribute as a list, and computes itself."""

    def read(self, path, name):
        with h5py.File(path) as file:
            variable = file[name]
            values = variable[...].astype("f8")
            for key in ["_FillValue", "missing_value"]:
                if key in variable.attrs:
                    assert variable.attrs[key].dtype == variable.dtype, key
                    values[variable[...] == variable.attrs[key][0]] = np.nan
            factor, offset = variable.attrs.get("scale_factor", [1])[0], variable.attrs.get("add_offset", [0])[0]
            return values * factor + offset, variable.attrs.get("units", b"").decode()

    def packed(self, path):
        return numbers(self.read(path, "v")[0])

    def time(self, path):
        values, units = self.read(path, "time")
        return [since_epoch(value, units) for value in numbers(values)]

    def span(self, path):
        values, units = self.read(path, "v")
        return [hours(value, units) for value in numbers(values)]


class ByXarray:
    def __init__(self, engine):
        self.engine = engine

    def read(self, path, name):
        with xarray.open_dataset(path, engine=self.engine, decode_timedelta=True) as dataset:
            found = dataset[name].values
        try:
            with xarray.open_zarr(path.replace(VIEW, sys.argv[2]).removesuffix(".nc"), consolidated=False, chunks=None, decode_timedelta=True) as native:
                wanted = native[name].values
        except (ValueError, OverflowError):
            # It cannot compute with whole factors where values are missing, nor read all units.
            return found
        if found.dtype.kind in "mM":
            assert found.dtype.kind == wanted.dtype.kind, found.dtype
            close = np.abs(found - wanted) < np.timedelta64(1, "us")
            assert np.all(close | (np.isnat(found) & np.isnat(wanted))), f"{found} instead of {wanted}"
        else:
            # It has float32 for some.
            assert np.allclose(found.astype("f8"), wanted.astype("f8"), rtol=1e-6, equal_nan=True), f"{found} instead of {wanted}"
        return found

    def packed(self, path):
        return numbers(self.read(path, "v"))

    def time(self, path):
        return [None if np.isnat(value) else value.astype("M8[us]").item() for value in self.read(path, "time")]

    def span(self, path):
        values = self.read(path, "v")
        assert values.dtype.kind == "m", values.dtype
        return [None if np.isnat(value) else value / np.timedelta64(1, "h") for value in values]


class ByCopy:
    """A program whose copy has unpacked numbers, which netCDF4-python reads."""

    def packed(self, path):
        target = f"{WORK}/{type(self).__name__}.nc"
        status, text = common.output(*self.command(path, target))
        assert status == 0, text
        with netCDF4.Dataset(target) as file:
            # That it is unpacked.
            assert not {"scale_factor", "add_offset"} & set(file["v"].ncattrs())
            return numbers(file["v"][:])


class ByNco(ByCopy):
    def command(self, path, target):
        return "ncpdq", "-O", "-4", "-P", "upk", path, target


class ByCdo(ByCopy):
    def command(self, path, target):
        return "cdo", "-s", "-O", "-f", "nc4", "-b", "F64", "copy", path, target

    def time(self, path):
        status, text = common.output("cdo", "-s", "showtimestamp", path)
        assert status == 0, text
        return [datetime.datetime.fromisoformat(word) for word in text.split()]


class ByGdal:
    def __init__(self):
        self.read = json.loads(subprocess.run(["/usr/bin/python3", f"{HERE}/numbers_gdal.py", sys.argv[1], VIEW], check=True, stdout=subprocess.PIPE).stdout)

    def packed(self, path):
        return [number(value) for value in self.read[path]["values"]]

    def time(self, path):
        return [since_epoch(number(value), self.read[path]["units"]) for value in self.read[path]["values"]]

    def span(self, path):
        return [hours(number(value), self.read[path]["units"]) for value in self.read[path]["values"]]


class ByR(ByGdal):
    def __init__(self):
        printed = subprocess.run(["Rscript", f"{HERE}/numbers.R", VIEW], check=True, stdout=subprocess.PIPE).stdout.decode()
        self.read = {}
        # It prints notes, too.
        for line in filter(lambda line: line.startswith(VIEW), printed.splitlines()):
            path, units, *values = line.split("\t")
            self.read[path] = {"units": units, "values": [None if value in ("NA", "NaN") else float(value) for value in values if value != "error"]}


class ByNcdump:
    """The times that ncdump prints."""

    def time(self, path):
        status, text = common.output("ncdump", "-i", "-v", "time", path)
        assert status == 0, text
        found = re.search(r"data:\s+time = (.*?) ;", text, re.S)[1].split(",")
        texts = [item.strip().strip('"') for item in found]
        return [None if text == "_" else datetime.datetime.fromisoformat(text) for text in texts]


PROGRAMS = {"netCDF4": ByNetcdf4, "h5py": ByH5py, "xarray": lambda: ByXarray("netcdf4"), "xarray h5netcdf": lambda: ByXarray("h5netcdf"), "ncdump": ByNcdump,
            "NCO": ByNco, "CDO": ByCdo, "GDAL": ByGdal, "R": ByR}


def has_marks(*names):
    return lambda group: group.partition("_")[2] in names


def has_two_marks(group):
    return group.endswith("_marks") and not group.startswith(("i1", "i2", "u1", "u2"))


# What programs do not do, with the groups where it shows: each of these must be wrong.
LIMITS = [
    ("NCO", "knows `_FillValue` only", lambda group: has_marks("mark", "marks", "unsigned_mark")(group)),
    ("CDO", "knows no marks of integers of 64 bits", lambda group: group[:2] in ("i8", "u8") and has_marks("fill", "mark", "marks", "plain")(group)),
    ("CDO", "computes with `float` in `float`", lambda group: group in ("f4_offset", "f4_both")),
    ("CDO", "shows whole seconds", lambda group: group.startswith("fractions")),
    ("CDO", "knows no missing times", lambda group: group == "missing"),
    ("GDAL", "knows one mark only", has_two_marks),
    ("R", "refuses two marks", has_two_marks),
    ("R", "knows no marks of coordinates", lambda group: group == "missing"),
]


def is_right(kind, found, wanted):
    if len(found) != len(wanted):
        return False
    if kind == "packed":
        return found == wanted
    for one, other in zip(found, wanted):
        if one is None or other is None:
            if one is not other:
                return False
        elif kind == "span":
            if one != other:
                return False
        # Times of calendars, and of double seconds.
        elif abs(datetime.datetime.fromisoformat(str(one)[:26]) - datetime.datetime.fromisoformat(other)) > datetime.timedelta(microseconds=1):
            return False
    return True


def main():
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    results = {}
    for name in sys.argv[5:] or PROGRAMS:
        program, right, wrong = PROGRAMS[name](), 0, []
        for group, case in cases.items():
            read = getattr(program, case["kind"], None)
            if read is None:
                continue
            try:
                found = read(f"{VIEW}/{group}.nc")
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            limits = [text for of, text, applies in LIMITS if of == name and applies(group)]
            if found and not isinstance(found[0], str) and is_right(case["kind"], found, case["wanted"]):
                right += 1
                wrong += [f"{group}: no longer {text}" for text in limits]
            elif not limits:
                wrong.append(f"{group}: {str(list(map(str, found)))[:300]} instead of {case['wanted']}")
        results[name] = {"right": right, "wrong": wrong}
    print(json.dumps(results, indent=1))


main()
