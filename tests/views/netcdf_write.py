"""Writes a repository with arrays of each data type, codec and rank, for the tests of the views.

    netcdf_write.py REPOSITORY
"""

import sys

import icechunk
import numpy as np
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

RANDOM = np.random.default_rng(20261122)


def values(dtype, shape):
    """Returns values of a type that leave nothing to chance: also NaN, the extremes, and letters beyond ASCII."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    if dtype.kind == "b":
        flat = RANDOM.integers(0, 2, count).astype(bool)
    elif dtype.kind in "iu":
        info = np.iinfo(dtype)
        flat = RANDOM.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    elif dtype.kind == "f":
        flat = RANDOM.normal(size=count).astype(dtype)
        flat[: count // 5] = np.nan
    elif dtype.kind == "c":
        flat = (RANDOM.normal(size=count) + 1j * RANDOM.normal(size=count)).astype(dtype)
    elif dtype.kind in "mM":
        flat = RANDOM.integers(0, 2**40, count).astype(dtype)
        flat[: count // 5] = "NaT"
    elif dtype.kind == "S":
        flat = np.array([b"abcdef"[: n % (dtype.itemsize + 1)] for n in range(count)], dtype=dtype)
    else:
        flat = np.array([f"é{n}日😀"[: n % (dtype.itemsize // 4 + 1)] for n in range(count)], dtype=dtype)
    return flat.reshape(shape)


def main():
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(sys.argv[1]))
    session = repository.writable_session("main")
    root = zarr.create_group(store=session.store, attributes={"title": "types", "Conventions": "CF-1.8", "größe": "weiß"})

    def add(group, name, data, **more):
        """Adds an array with `data`; a chunk in the middle stays missing."""
        data = np.asarray(data)
        chunks = more.pop("chunks", tuple(max(1, (length + 2) // 3) for length in data.shape))
        skip = more.pop("skip", False)
        array = group.create_array(name, shape=data.shape, dtype=data.dtype, chunks=chunks, **more)
        if skip:
            part = tuple(slice(0, chunk) for chunk in chunks)
            array[part] = data[part]
        else:
            array[...] = data
        return array

    types = root.create_group("types")
    for dtype in ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "S5", "U4"]:
        add(types, f"t_{np.dtype(dtype).name}", values(dtype, (7, 5)), dimension_names=["y", "x"])
    for unit in ["D", "h", "s", "ms", "us", "ns"]:
        add(types, f"time_{unit}", values(f"M8[{unit}]", (9,)), dimension_names=["time"])
        add(types, f"span_{unit}", values(f"m8[{unit}]", (9,)), dimension_names=["time"])
    texts = types.create_array("texts", shape=(6,), chunks=(4,), dtype=str, dimension_names=["name"])
    texts[:] = np.array(["", "a", "über", "日本語", "x" * 20, "end"], dtype=object)

    ranks = root.create_group("ranks")
    for rank in range(6):
        shape = (4, 3, 5, 2, 3)[:rank]
        add(ranks, f"r{rank}", values("i4", shape), dimension_names=[f"d{n}" for n in range(rank)])
    add(ranks, "missing", values("f8", (10, 10)), chunks=(3, 4), skip=True, fill_value=-1.5)
    add(ranks, "no_chunk", values("f4", (4,)), chunks=(2,))
    empty = ranks.create_array("empty", shape=(5, 5), chunks=(2, 2), dtype="i2", fill_value=7)
    assert empty[0, 0] == 7
    add(ranks, "long_chunk", values("i2", (3, 4)), chunks=(5, 9))
    add(ranks, "one_long", values("i2", (7, 4)), chunks=(3, 9))
    add(ranks, "many", np.arange(20_000, dtype="i4").reshape(200, 100), chunks=(3, 2))

    codecs = root.create_group("codecs")
    data = values("f4", (20, 30))
    big = {"serializer": BytesCodec(endian="big")}
    for name, more in {
        "none": {"compressors": None},
        "big": {"compressors": None, **big},
        "zstd": {"compressors": ZstdCodec(level=3, checksum=True)},
        "gzip": {"compressors": GzipCodec(level=5)},
        "crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
        "transpose": {"filters": TransposeCodec(order=(1, 0)), "compressors": ZstdCodec(), **big},
        **{
            f"blosc_{cname}_{shuffle}": {"compressors": BloscCodec(cname=cname, shuffle=shuffle, typesize=4)}
            for cname in ["lz4", "lz4hc", "zstd", "zlib", "blosclz"]
            for shuffle in ["noshuffle", "shuffle", "bitshuffle"]
        },
    }.items():
        add(codecs, name, data, chunks=(8, 7), **more)
    for name, codec in {"zlib": {"name": "numcodecs.zlib", "configuration": {"level": 1}}, "bz2": {"name": "numcodecs.bz2", "configuration": {"level": 1}}}.items():
        try:
            import numcodecs.zarr3 as z3

            add(codecs, name, data, chunks=(8, 7), compressors=getattr(z3, {"zlib": "Zlib", "bz2": "BZ2"}[name])(level=1))
        except ImportError:
            print(f"no codec {codec}", file=sys.stderr)

    shards = root.create_group("shards")
    add(shards, "plain", data, chunks=(4, 5), shards=(8, 10))
    add(shards, "missing", data, chunks=(4, 5), shards=(8, 10), skip=True, fill_value=3)
    add(shards, "start", data, chunks=(8, 10), compressors=None, serializer=ShardingCodec(chunk_shape=(4, 5), index_location="start"))
    nested = ShardingCodec(chunk_shape=(4, 10), codecs=[ShardingCodec(chunk_shape=(2, 5), codecs=[BytesCodec(), ZstdCodec()])])
    add(shards, "nested", data, chunks=(8, 20), compressors=None, serializer=nested)

    grid = root.create_group("grid", attributes={"list": [1, 2, 3], "flag": True, "half": 0.5, "names": ["a", "ü"], "nested": {"a": [1]}})
    add(grid, "lat", np.linspace(-90, 90, 7), dimension_names=["lat"], attributes={"units": "degrees_north"})
    add(grid, "lon", np.linspace(0, 350, 5), dimension_names=["lon"], attributes={"units": "degrees_east"})
    add(grid, "time", np.arange(3), dimension_names=["time"], attributes={"units": "days since 2000-01-01"})
    attributes = {"units": "K", "_FillValue": "AAAAAAAA+H8=", "valid_range": [0, 400], "long_name": "température"}
    add(grid, "t", values("f4", (3, 7, 5)), dimension_names=["time", "lat", "lon"], attributes=attributes)
    add(grid, "other_lat", values("i4", (4,)), dimension_names=["lat"])
    add(grid, "lon_2d", values("f4", (7, 5)), dimension_names=["lat", "lon"])
    add(grid, "a-b c+d", values("i4", (2,)), attributes={"CLASS": "x", "empty": "", "long": "y" * 70_000})
    add(grid, "scalar", np.float64(2.5))
    # The root group has the name of one of its groups if the repository is called `types`.
    add(root, "in_root", values("i4", (3,)))
    session.commit("types")


main()
