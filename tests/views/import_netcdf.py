"""Writes classic NetCDF files with netCDF-C, and compares them with what `icechunkfs import` made of them.

    import_netcdf.py make DIRECTORY SEED COUNT
    import_netcdf.py records FILE COUNT NAMES [FIRST]
    import_netcdf.py compare FILE ZARR-DIRECTORY NETCDF-FILE
    import_netcdf.py collection DIRECTORY SEED
    import_netcdf.py joined ZARR-DIRECTORY FILE...

Compares the original, read by xarray, with the Zarr files of a mount and with the file of the NetCDF view: dimensions, types, attributes,
stored values and decoded values. Prints one line for each difference, then the number of variables that were compared.

A collection has files along `time`, of which one may not fit the others. `joined` compares the arrays of a mount with the files' numbers,
put one after another by numpy.
"""

import json
import pathlib
import sys
import warnings

import netCDF4
import numpy as np
import xarray

FORMATS = ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]
SMALL = ["i1", "i2", "i4", "f4", "f8", "S1"]
LARGE = ["u1", "u2", "u4", "i8", "u8"]


def values_of(random, kind, shape):
    """Returns random values, with extremes among them."""
    if kind == "S1":
        return random.choice(np.array([b"a", b"Z", b"", b" "], "S1"), shape)
    if kind[0] == "f":
        values = random.normal(size=shape).astype(kind)
        return np.where(random.random(shape) < 0.1, np.array(random.choice([np.nan, np.inf, 0.0]), kind), values)
    limits = np.iinfo(kind)
    return random.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)


def add_attributes(random, place, types):
    """Adds texts, numbers and lists of numbers."""
    for number in range(random.integers(0, 5)):
        kind = str(random.choice(types))
        if kind == "S1":
            place.setncattr(f"text{number}", str(random.choice(["plain", "grüße °C", "", "two\nlines"])))
        else:
            values = values_of(random, kind, random.integers(1, 4))
            finite = values[np.isfinite(values)] if kind[0] == "f" else values
            if finite.size:
                place.setncattr(f"numbers{number}", finite)


def add_variable(random, file, name, dimensions, types):
    """Adds a variable with some of `dimensions`; sometimes only a part of it is written."""
    kind = str(random.choice(types))
    wanted = [one for one in dimensions if random.random() < 0.6]
    wanted.sort(key=lambda one: not file.dimensions[one].isunlimited())
    fill = values_of(random, kind, 1)[0] if random.random() < 0.3 else None
    if isinstance(fill, bytes) and not fill:
        fill = b"x"
    variable = file.createVariable(name, kind, wanted, fill_value=fill)
    variable.set_auto_maskandscale(False)
    variable.set_auto_chartostring(False)
    add_attributes(random, variable, types)
    if kind in ["i1", "i2", "i4"] and random.random() < 0.4:
        variable.scale_factor = random.choice([0.5, 0.1, 3.0])
        variable.add_offset = random.choice([0.0, 10.25])
    if kind in ["i4", "f8"] and wanted and random.random() < 0.3 and "scale_factor" not in variable.ncattrs():
        variable.units = "hours since 2001-02-03"
        values = np.arange(int(np.prod(variable.shape))).reshape(variable.shape).astype(kind)
    else:
        values = values_of(random, kind, variable.shape)
    # Times that nobody wrote are beyond those that xarray knows.
    if (random.random() < 0.8 or "units" in variable.ncattrs()) and values.size:
        variable[...] = values


def make(directory, seed, count):
    """Writes `count` files."""
    for number in range(count):
        random = np.random.default_rng([seed, number])
        form = FORMATS[number % 3]
        types = SMALL + (LARGE if form == "NETCDF3_64BIT_DATA" else [])
        with netCDF4.Dataset(directory / f"{number}.nc", "w", format=form) as file:
            dimensions = [f"d{n}" for n in range(random.integers(0, 4))]
            for name in dimensions:
                file.createDimension(name, int(random.integers(1, 8)))
            records = 0
            if random.random() < 0.7:
                file.createDimension("time", None)
                dimensions.append("time")
                records = int(random.integers(0, 9))
            add_attributes(random, file, types)
            names = [f"v{n}" for n in range(1 if random.random() < 0.3 else random.integers(1, 7))]
            if records:
                kind = str(random.choice(["i1", "i2", "f8"]))
                # Alone, and of a short type, it has no padding.
                file.createVariable("records", kind, ["time"])[:] = np.arange(records)
                names = [] if random.random() < 0.2 else names
            for name in names:
                add_variable(random, file, name, dimensions, types)


def records(file, count, names, first=0):
    """Writes variables of doubles with `count` records, whose values go up from `first`."""
    with netCDF4.Dataset(file, "w", format="NETCDF3_64BIT_OFFSET") as made:
        made.createDimension("time", None)
        for number, name in enumerate(names.split()):
            made.createVariable(name, "f8", ["time"])[:] = np.arange(count) + number + first


DEFECTS = ["scale", "units", "missing", "extra", "type", "size", "fixed", "overlap", "gap", "unordered", "mark"]


def member(file, random, shape, place, defect):
    """Writes one file of a collection, `place` of which is the time of its first record."""
    form, kinds, unlimited, sizes, packed, float_time, options, texts = shape
    if options.get("zlib"):
        # What the writer's level was says nothing of the values.
        options = options | {"complevel": int(random.integers(1, 9)), "shuffle": options["shuffle"] != (defect == "codecs")}
    with netCDF4.Dataset(file, "w", format=form) as made:
        # The first one has a step and a direction.
        count = int(random.integers(1 if place else 2, 6))
        made.createDimension("time", None if unlimited else count)
        sizes = {name: size + (defect == "size") for name, size in sizes.items()}
        for name, size in sizes.items():
            made.createDimension(name, size)
        time = made.createVariable("time", "f8" if float_time else "i4", ["time"])
        time.units = "days since 2001-01-01" if defect == "units" else "hours since 2001-01-01"
        time.calendar = "standard"
        times = place + np.arange(count)
        time[:] = times[::-1] - 9 if defect == "unordered" else times
        if defect == "unordered" and count == 1:
            time[:] = 0
        for name, size in sizes.items():
            made.createVariable(name, "f4", [name])[:] = np.arange(size) * 0.5 + (defect == "fixed")
        made.createVariable("crs", "i4", [])[...] = 7
        made.title = file.name
        for number, kind in enumerate(kinds):
            if defect == "missing" and number == 0:
                continue
            kind = "f8" if defect == "type" and number == 0 else kind
            dimensions = ["time", *list(sizes)[: number % 3]]
            fill = -99 if defect == "mark" and number == 0 else -9
            chunks = {"chunksizes": [options["rows"], *list(sizes.values())[: number % 3]]} if "rows" in options else {}
            chunks |= {key: value for key, value in options.items() if key != "rows"}
            variable = made.createVariable(f"v{number}", kind, dimensions, fill_value=fill, **chunks)
            variable.set_auto_maskandscale(False)
            if number == packed:
                variable.scale_factor = 0.25 if defect == "scale" else 0.5
                variable.add_offset = 10.0
            variable[...] = random.integers(-100, 100, variable.shape).astype(kind)
        if texts and form == "NETCDF4":
            # Some are longer than all of the other files.
            words = ["", "grüße", "x" * int(random.integers(1, 300))]
            made.createVariable("note", str, ["time"])[:] = random.choice(np.array(words, object), count)
            made.createVariable("place", str, list(sizes)[:1])[:] = np.array([f"at {n}" + "!" * (defect == "fixed") for n in range(list(sizes.values())[0])], object)
        if defect == "extra":
            made.createVariable("extra", "i2", ["time"])[:] = 1
    return count


def collection(directory, seed):
    """Writes files whose names say nothing of their order. Prints their names by time, and the one that does not fit."""
    random = np.random.default_rng(seed)
    sizes = {"y": int(random.integers(1, 4)), "x": int(random.integers(1, 5))}
    kinds = [str(random.choice(["i1", "i2", "i4", "f4", "f8"])) for _ in range(random.integers(1, 5))]
    form = str(random.choice(FORMATS))
    packed = int(random.integers(0, len(kinds)))
    unlimited, float_time = bool(random.random() < 0.7), bool(random.random() < 0.5)
    number = int(random.integers(3, 7))
    defect = str(random.choice(DEFECTS)) if random.random() < 0.6 else None
    bad = int(random.integers(1, number)) if defect else None
    options = {}
    if random.random() < 0.5:
        form = "NETCDF4"
        if random.random() < 0.8:
            options = {"zlib": bool(random.random() < 0.8), "shuffle": bool(random.random() < 0.5), "fletcher32": bool(random.random() < 0.3)}
            if unlimited and random.random() < 0.6:
                options["rows"] = int(random.integers(1, 4))
            if options["zlib"] and not defect and random.random() < 0.5:
                kinds[0], defect, bad = "i4", "codecs", int(random.integers(1, number))
    shape = (form, kinds, unlimited, sizes, packed, float_time, options, seed % 2)
    if defect == "scale":
        kinds[packed] = "i2"
    if defect == "type":
        kinds[0] = "i2"
    place, files = 0, []
    for at, name in enumerate(random.permutation(number)):
        odd = defect if at == bad else None
        place += {"gap": 7, "overlap": -1}.get(odd, 0)
        file = directory / f"{name}.nc"
        place += member(file, random, shape, place, odd)
        files.append(str(file))
    print(json.dumps({"files": files, "bad": bad, "defect": defect}))


def joined(zarr_directory, files):
    """Compares the arrays of a mount with the numbers of files, in their order."""
    import zarr

    group = zarr.open_group(zarr_directory, mode="r")
    parts = [netCDF4.Dataset(file) for file in files]
    wrong = []
    for part in parts:
        part.set_auto_maskandscale(False)
    names = set(parts[0].variables)
    if names != set(group.array_keys()):
        wrong.append(f"{sorted(group.array_keys())}, not {sorted(names)}")
    for name in sorted(names & set(group.array_keys())):
        first = parts[0].variables[name]
        values = [part.variables[name][...] for part in parts]
        wanted = np.concatenate(values) if "time" in first.dimensions else values[0]
        found = group[name][...]
        if not same(wanted, found):
            wrong.append(f"{name}: {found!r}, not {wanted!r}")
        attributes = {key: plain(first.getncattr(key)) for key in first.ncattrs() if key != "_FillValue"}
        found = {key: value for key, value in dict(group[name].attrs).items() if key != "_FillValue"}
        if attributes != found:
            wrong.append(f"{name}: attributes {found}, not {attributes}")
    for line in wrong:
        print(line)
    print(len(names), "variables")
    sys.exit(bool(wrong))


def plain(value):
    """Returns the value of an attribute as Python has it."""
    if isinstance(value, list):
        # numpy would make floats of integers of which some are beyond those of 63 bits.
        return plain(value[0]) if len(value) == 1 else [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return [plain(one) for one in np.asarray(value).ravel().tolist()] if np.size(value) != 1 else plain(np.asarray(value).ravel()[0])
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode() if isinstance(value, bytes) else value


def same(one, other):
    """Returns true if both arrays have the same values; text and bytes are the same."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return False
    if one.dtype.kind in "SUOT" or other.dtype.kind in "SUOT":
        text = lambda value: value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return [text(value) for value in one.ravel().tolist()] == [text(value) for value in other.ravel().tolist()]
    if one.dtype.kind == "f" and other.dtype.kind == "f" and one.dtype.itemsize != other.dtype.itemsize:
        # JSON does not say that a scale factor was a float32.
        return np.allclose(one.astype("f8"), other.astype("f8"), rtol=1e-6, atol=0, equal_nan=True)
    return one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=") and np.array_equal(one, other, equal_nan=one.dtype.kind in "fcmM")


def marked_text(original, name):
    """Returns true for characters with a mark of missing ones."""
    variable = original.variables[name]
    mark = variable.attrs.get("_FillValue", variable.encoding.get("_FillValue"))
    return isinstance(mark, (str, bytes))


def open_each(file, zarr, netcdf, **options):
    """Opens the original, the mount and the view."""
    return [
        xarray.open_dataset(file, engine="netcdf4", **options),
        xarray.open_zarr(zarr, consolidated=False, chunks=None, **options),
        xarray.open_dataset(netcdf, engine="netcdf4", **options),
    ]


def compare(file, zarr, netcdf):
    """Compares a file with what was made of it."""
    warnings.simplefilter("ignore")
    count = 0
    wrong = []
    # The view shows no variables without elements. xarray joins texts, also such of no characters.
    with xarray.open_dataset(file, engine="netcdf4", decode_cf=False) as stored:
        without = {name for name, variable in stored.variables.items() if not variable.size}
    for options in [{"decode_cf": False}, {}]:
        original, *others = open_each(file, zarr, netcdf, **options)
        with original:
            for kind, other in zip(["zarr", "netcdf"], others):
                with other:
                    found = set(other.variables)
                    shown = {name for name in original.variables if kind == "zarr" or name not in without}
                    if not shown <= found or (kind == "zarr" and shown != found):
                        wrong.append(f"{kind} {options}: {sorted(shown ^ found)}")
                    for name in sorted(shown & found):
                        count += 1
                        here, there = original.variables[name], other.variables[name]
                        if here.dims != there.dims:
                            wrong.append(f"{kind} {name}: dimensions {there.dims}, not {here.dims}")
                        if marked_text(original, name):
                            # Its mark is left out: xarray would open nothing.
                            attributes = [dict(here.attrs), dict(there.attrs)]
                            attributes[0].pop("_FillValue", None)
                            if options and not same(here.values, there.values):
                                wrong.append(f"{kind} {name}: {there.values!r}, not {here.values!r}")
                            continue
                        if not same(here.values, there.values):
                            wrong.append(f"{kind} {options} {name}: {there.values!r}, not {here.values!r}")
                        attributes = [{key: plain(value) for key, value in one.attrs.items()} for one in [here, there]]
                        if kind == "zarr" and str(attributes[0]) != str(attributes[1]):
                            wrong.append(f"{kind} {name}: attributes {attributes[1]}, not {attributes[0]}")
                    if kind == "zarr":
                        attributes = [{key: plain(value) for key, value in one.attrs.items()} for one in [original, other]]
                        if str(attributes[0]) != str(attributes[1]):
                            wrong.append(f"attributes {attributes[1]}, not {attributes[0]}")
    for line in wrong:
        print(line)
    print(count, "variables")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "records":
        records(sys.argv[2], int(sys.argv[3]), sys.argv[4], *map(int, sys.argv[5:]))
    elif sys.argv[1] == "collection":
        collection(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
    elif sys.argv[1] == "joined":
        joined(sys.argv[2], sys.argv[3:])
    else:
        compare(*sys.argv[2:5])
