"""Files of one collection that are encoded differently, and what xarray reads of them.

make DIRECTORY SEED     writes files along time; prints JSON with their names, in the order of time
check ARCHIVE FILE...   compares an archive with the files, as xarray decodes both
"""
import json
import sys
from pathlib import Path

import netCDF4
import numpy as np
import xarray as xr

LENGTH = 3
PACKINGS = [
    {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768},
    {"dtype": "i2", "scale_factor": 0.0078125, "add_offset": 275.5, "_FillValue": 32767, "missing_value": np.int16(32767)},
    {"dtype": "i4", "scale_factor": 0.001, "_FillValue": -1},
    {"dtype": "u2", "scale_factor": np.float32(0.005), "add_offset": np.float32(200), "_FillValue": 0},
    {"dtype": "f4", "_FillValue": np.float32(1e20)},
    {"dtype": "f8", "_FillValue": np.float64("nan")},
    {"dtype": "f8", "missing_value": np.float64(-999.0), "_FillValue": np.float64(-999.0)},
]
TIMES = [
    ("f8", "days since 2026-01-01"),
    ("f8", "hours since 2025-12-30 18:00:00"),
    ("i4", "hours since 1900-01-01"),
    ("i8", "seconds since 1970-01-01T00:00:00Z"),
    ("i4", "minutes since 2000-01-01 00:00:0.0"),
]


def make(place: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    calendar = random.choice(["standard", "proleptic_gregorian", "noleap", "360_day"])
    with_bounds = bool(random.integers(2))
    count = int(random.integers(2, 6))
    names = []
    for number in range(count):
        packing = dict(PACKINGS[random.integers(len(PACKINGS))])
        kind, units = TIMES[random.integers(len(TIMES))]
        name = place / f"{random.integers(1 << 30):010}-{number}.nc"
        names.append(str(name))
        # Hours of a year: each kind of time has them but days as whole numbers.
        hours = np.arange(LENGTH) * 6 + number * LENGTH * 6
        is_classic = kind != "i8" and packing["dtype"] != "u2" and random.integers(2)
        with netCDF4.Dataset(name, "w", format="NETCDF3_64BIT_OFFSET" if is_classic else "NETCDF4") as file:
            file.createDimension("time", None)
            file.createDimension("x", 5)
            file.createDimension("nv", 2)
            stored = file.createVariable("time", kind, ["time"])
            stored.units = units
            if calendar != "standard" or random.integers(2):
                stored.calendar = calendar
            first = netCDF4.date2num(netCDF4.num2date(0, "hours since 2026-01-01", calendar), units, calendar)
            step = {"d": 1 / 24, "h": 1, "s": 3600, "m": 60}[units[0]]
            stored[:] = first + hours * step
            if with_bounds:
                stored.bounds = "time_bnds"
                bounds = file.createVariable("time_bnds", kind, ["time", "nv"])
                bounds[:] = np.stack([first + hours * step, first + (hours + 6) * step], axis=1)
            dtype = packing.pop("dtype")
            fill = packing.pop("_FillValue")
            compression = {"zlib": bool(random.integers(2)), "shuffle": bool(random.integers(2))}
            data = file.createVariable("t2m", dtype, ["time", "x"], fill_value=fill, chunksizes=[1, 5], **compression)
            data.setncatts({**packing, "units": "K"})
            values = random.uniform(250, 320, (LENGTH, 5))
            data[:] = np.ma.masked_array(values, random.integers(0, 4, values.shape) == 0)
            same = file.createVariable("x", "f4", ["x"])
            same[:] = np.arange(5)
    print(json.dumps({"files": names, "calendar": str(calendar), "bounds": with_bounds}))


def opened(source: str) -> xr.Dataset:
    coder = xr.coders.CFDatetimeCoder(use_cftime=True)
    if source.endswith(".nc"):
        return xr.open_dataset(source, decode_times=coder)
    return xr.open_zarr(source, consolidated=False, decode_times=coder)


def check(archive: str, files: list[str]) -> None:
    found = opened(archive)
    raw = xr.open_zarr(archive, consolidated=False, decode_cf=False)
    how = {"data_vars": "minimal", "coords": "minimal", "compat": "override", "join": "override"}
    wanted = xr.concat([opened(file) for file in files], "time", **how)

    def moments(values: np.ndarray) -> list[str]:
        return [str(moment) for moment in values.ravel()]

    assert moments(found.time.values) == moments(wanted.time.values), (found.time.values, wanted.time.values)
    if "time_bnds" in wanted:
        assert moments(found.time_bnds.values) == moments(wanted.time_bnds.values), (found.time_bnds.values, wanted.time_bnds.values)
    here, there = found.t2m.values.astype("f8"), wanted.t2m.values.astype("f8")
    assert (np.isnan(here) == np.isnan(there)).all(), (here, there)
    step = raw.t2m.attrs.get("scale_factor", 0.0)
    # Half a step by rounding; xarray decodes most packed values in single precision.
    most = step / 2 + 320 * 2 * np.finfo("f4").eps
    worst = np.nanmax(np.abs(here - there))
    assert worst <= most, (worst, most)
    print("equal")


if sys.argv[1] == "make":
    make(Path(sys.argv[2]), int(sys.argv[3]))
else:
    check(sys.argv[2], sys.argv[3:])
