"""Writes arrays of every type into a mount, or changes them and tells what numpy finds different.

    change_values.py write MOUNTPOINT
    change_values.py change MOUNTPOINT

Prints for `change` JSON: {ARRAY: {"differing": NUMBER, "largest": NUMBER or null, "first": [INDEX, ...]}}.
"""

import json
import sys
import warnings

import numpy
import zarr

SHAPE = (7, 9)
TYPES = [
    *("bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128 >f4 >i2".split()),
    "datetime64[s]",
    "str",
]
FIRST = 10

warnings.simplefilter("ignore")


def sample(dtype, shape, random):
    """Returns values of all kinds that the type has."""
    if dtype == "str":
        return numpy.array([f"text {n}" if n else "" for n in random.integers(0, 5, shape).flat], dtype=object).reshape(shape)
    bits = numpy.dtype(dtype).itemsize
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith("datetime64"):
        values = random.integers(-10**9, 10**9, shape).astype(dtype)
        values.flat[::4] = numpy.datetime64("NaT")
        return values
    kind = numpy.dtype(dtype).kind
    if kind in "iu":
        return numpy.frombuffer(random.bytes(bits * shape[0] * shape[1]), dtype).reshape(shape)
    values = random.normal(0, 100, shape)
    values.flat[::5] = [numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0][random.integers(5)]
    if kind == "c":
        values = values + 1j * random.normal(0, 100, shape)
    return values.astype(dtype)


def arrays():
    """Yields names, types and the options of each array."""
    for dtype in TYPES:
        name = dtype.replace(">", "big_").replace("[", "_").replace("]", "")
        yield name, dtype, {}
    yield "sharded", "float32", {"chunks": (2, 3), "shards": (4, 9)}
    yield "gzip", "float64", {"compressors": zarr.codecs.GzipCodec()}
    yield "blosc", "int32", {"compressors": zarr.codecs.BloscCodec()}
    yield "plain", "int16", {"compressors": None}


def write(place, random):
    root = zarr.open_group(place, mode="a", zarr_format=3)
    for name, dtype, options in arrays():
        options = {"chunks": (2, 4), **options}
        made = root.create_array(name, shape=SHAPE, dtype=dtype, **options)
        made[...] = sample(dtype, SHAPE, random)


def parts(value):
    """Returns the numbers of an element, with which Python counts exactly."""
    if isinstance(value, (complex, numpy.complexfloating)):
        return [float(value.real), float(value.imag)]
    if isinstance(value, (bool, numpy.bool_, int, numpy.integer)):
        return [int(value)]
    if isinstance(value, numpy.datetime64):
        return None if numpy.isnat(value) else [int(value.astype("int64"))]
    return [float(value)] if isinstance(value, (float, numpy.floating)) else None


def compare(old, new):
    overlap = tuple(slice(0, min(ends)) for ends in zip(old.shape, new.shape))
    old, new = old[overlap], new[overlap]
    found, largest = [], None
    for index in numpy.ndindex(old.shape):
        before, after = parts(old[index]), parts(new[index])
        if before is None or after is None:
            is_same = before is after if isinstance(old[index], numpy.datetime64) else old[index] == new[index]
            if not is_same:
                found.append(list(index))
            continue
        same = [a == b or (a != a and b != b) for a, b in zip(before, after)]
        if all(same):
            continue
        found.append(list(index))
        for a, b in zip(before, after):
            distance = abs(a - b)
            if distance == distance and distance != float("inf"):
                largest = float(distance) if largest is None else max(largest, float(distance))
    return {"differing": len(found), "largest": largest, "first": found[:FIRST]}


def change(place, random):
    root = zarr.open_group(place, mode="a", zarr_format=3)
    outcome = {}
    for name, dtype, _ in arrays():
        array = root[name]
        before = array[...]
        if name in ("int32", "str"):
            # Also elements that only one of them has.
            array.resize((9, 9) if name == "int32" else (5, 9))
        other = sample(dtype, array.shape, random)
        changed = array[...]
        for _ in range(25):
            index = tuple(int(random.integers(0, end)) for end in array.shape)
            changed[index] = other[index]
        array[...] = changed
        outcome[name] = compare(before, array[...])
    # A chunk that is not stored has the fill value.
    array = root["plain"]
    array[0:2, 0:4] = array.fill_value
    return outcome | {"plain": compare(numpy.asarray(before), array[...])}


if __name__ == "__main__":
    stage, place = sys.argv[1:]
    if stage == "write":
        write(place, numpy.random.default_rng(1))
    else:
        print(json.dumps(change(place, numpy.random.default_rng(2))))
