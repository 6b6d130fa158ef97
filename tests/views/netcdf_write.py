"""Writes a repository with arrays of each data type, codec and rank, for the tests of the views.

    netcdf_write.py REPOSITORY
"""

import sys
import warnings

import icechunk
import numpy as np
import zarr
import zarr.codecs.numcodecs as n3
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

warnings.filterwarnings("ignore")
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


def add_numcodecs(group, add):
    """Adds an array of each codec of numcodecs, and of some of them together."""
    data, whole = values("f4", (20, 30)), (values("i4", (20, 30)) >> 12).astype("i4")
    chunks = {"chunks": (8, 7)}
    for name, codec in {
        "zlib": n3.Zlib(level=1), "bz2": n3.BZ2(level=1), "lz4": n3.LZ4(acceleration=1), "lzma": n3.LZMA(), "lzma_preset": n3.LZMA(preset=9),
        "lzma_alone": n3.LZMA(format=2), "zstd": n3.Zstd(level=1), "gzip": n3.GZip(level=1), "blosc": n3.Blosc(cname="lz4", clevel=3, shuffle=1),
        "crc32": n3.CRC32(), "crc32_end": n3.CRC32(location="end"), "crc32c": n3.CRC32C(), "adler32": n3.Adler32(),
        "adler32_end": n3.Adler32(location="end"), "fletcher32": n3.Fletcher32(), "jenkins": n3.JenkinsLookup3(), "jenkins_7": n3.JenkinsLookup3(initval=7),
    }.items():
        add(group, name, data, compressors=codec, **chunks)
    add(group, "shuffle_fletcher32", data, compressors=[n3.Shuffle(elementsize=4), n3.Zlib(level=1), n3.Fletcher32()], **chunks)
    for dtype in ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]:
        of = values(dtype, (20, 30)) if dtype[0] != "f" else np.arange(600, dtype=dtype).reshape(20, 30) / 7
        add(group, f"delta_{dtype}", of.astype(dtype), filters=n3.Delta(dtype=f"<{dtype}"), compressors=n3.LZ4(), **chunks)
    add(group, "delta_astype", np.arange(600, dtype="i8").reshape(20, 30), filters=n3.Delta(dtype="<i8", astype="<i2"), **chunks)
    for dtype in ["f2", "f4", "f8"]:
        add(group, f"bitround_{dtype}", values(dtype, (20, 30)), filters=n3.BitRound(keepbits=5), compressors=n3.Zstd(level=1), **chunks)
        add(group, f"quantize_{dtype}", values(dtype, (20, 30)), filters=n3.Quantize(digits=2, dtype=f"<{dtype}"), **chunks)
    for dtype, astype in [("f8", "i2"), ("f8", "u1"), ("f4", "i4"), ("f4", "f4"), ("i4", "u1")]:
        of = (np.arange(600).reshape(20, 30) / (10 if dtype[0] == "f" else 3) + 0.3).astype(dtype)
        scale = n3.FixedScaleOffset(offset=0.3, scale=2.5, dtype=f"<{dtype}", astype=f"<{astype}")
        add(group, f"scale_{dtype}_{astype}", of, filters=scale, **chunks)
    for stored, dtype in [("f4", "f8"), ("f2", "f4"), ("i2", "i8"), ("u4", "f8"), ("i8", "u2"), ("f8", "i4")]:
        of = np.arange(600, dtype=dtype).reshape(20, 30)
        add(group, f"astype_{stored}_{dtype}", of, filters=n3.AsType(encode_dtype=f"<{stored}", decode_dtype=f"<{dtype}"), **chunks)
    add(group, "packbits", values("?", (20, 30)), filters=n3.PackBits(), compressors=n3.LZMA(), **chunks)
    twice = [n3.FixedScaleOffset(offset=0, scale=10, dtype="<f8", astype="<i4"), n3.Delta(dtype="<i4", astype="<i2")]
    add(group, "scale_delta", np.round(np.arange(600).reshape(20, 30) / 10, 1), filters=twice, compressors=n3.Zlib(level=1), **chunks)
    add(group, "transpose_bitround", data, filters=[TransposeCodec(order=(1, 0)), n3.BitRound(keepbits=9)], **chunks)
    inner = ShardingCodec(chunk_shape=(4, 5), codecs=[n3.Delta(dtype="<i4"), BytesCodec(), n3.LZ4(), n3.Adler32()])
    add(group, "in_shards", whole, chunks=(8, 10), compressors=None, serializer=inner)
    try:
        import pcodec  # noqa: F401
    except ImportError:
        print("pcodec is missing: scripts/setup --python installs it", file=sys.stderr)
        return
    for dtype in ["f2", "f4", "f8", "i2", "i4", "i8", "u2", "u4", "u8"]:
        add(group, f"pcodec_{dtype}", values(dtype, (20, 30)), compressors=None, serializer=n3.PCodec(), **chunks)
    add(group, "pcodec_lookback", np.arange(600, dtype="i4").reshape(20, 30) % 13, compressors=None, serializer=n3.PCodec(delta_spec="try_lookback"), **chunks)
    add(group, "pcodec_delta", whole, compressors=n3.CRC32(), filters=n3.Delta(dtype="<i4"), serializer=n3.PCodec(level=12), **chunks)


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
    add_numcodecs(root.create_group("numcodecs"), add)

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
