"""Writes an Icechunk repository with arrays of every type, codec and shape that Zarr version 2 has, and some that it has not.

    python make.py DIRECTORY

Needs icechunk and zarr-python 3. Prints {"left_out": [path, ...], "arrays": number} as JSON.
"""
import asyncio
import json
import sys
import warnings

import icechunk
import numcodecs.zarr3 as n3
import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.core.buffer import cpu, default_buffer_prototype

warnings.filterwarnings("ignore")
RANDOM = np.random.default_rng(7)
LEFT_OUT = []
COUNT = 0


def array(group, name, data, chunks=None, left_out=False, write=True, **settings):
    """Adds an array; `write` is False for no chunks, or a selection to write only."""
    global COUNT
    data = np.asarray(data)
    settings.setdefault("compressors", None)
    settings.setdefault("filters", None)
    dtype = settings.pop("dtype", data.dtype)
    made = group.create_array(name=name, shape=data.shape, chunks=chunks or tuple(max(n, 1) for n in data.shape), dtype=dtype, **settings)
    if write is True:
        made[...] = data
    elif write is not False:
        made[write] = data[write]
    COUNT += 1
    if left_out:
        LEFT_OUT.append(made.path)
    return made


def set_key_encoding(made, name, separator):
    """Gives an array other chunk keys: icechunk takes chunks only by its own."""
    store, key = made.store_path.store, f"{made.path}/zarr.json"
    document = json.loads(asyncio.run(store.get(key, default_buffer_prototype())).to_bytes())
    document["chunk_key_encoding"] = {"name": name, "configuration": {"separator": separator}}
    asyncio.run(store.set(key, cpu.Buffer.from_bytes(json.dumps(document).encode())))


def numbers(dtype, shape):
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return RANDOM.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return RANDOM.integers(0, 100, shape).astype(dtype)
    if dtype.kind == "c":
        return (RANDOM.normal(size=shape) + 1j * RANDOM.normal(size=shape)).astype(dtype)
    return RANDOM.normal(size=shape).astype(dtype)


def types(root):
    group = root.create_group("types")
    for dtype in ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]:
        for order, mark in [("little", "<"), ("big", ">")]:
            name = f"{dtype}_{order}"
            array(group, name, numbers(dtype, (7, 5)), (3, 2), serializer=BytesCodec(endian=order))
            array(group, name + "_missing", numbers(dtype, (7, 5)), (3, 2), serializer=BytesCodec(endian=order),
                  write=(slice(0, 3), slice(0, 2)), fill_value=np.dtype(dtype).type(1))
    for fill in [float("nan"), float("inf"), float("-inf"), 0.1, -0.0, 1e300]:
        array(group, f"f8_fill_{fill}", numbers("f8", (4,)), (2,), fill_value=fill, write=slice(0, 2))
    array(group, "i8_limits", np.array([np.iinfo("i8").min, 0, np.iinfo("i8").max]), fill_value=np.iinfo("i8").min, write=False)
    array(group, "u8_limits", np.array([0, np.iinfo("u8").max], dtype="u8"), fill_value=np.iinfo("u8").max, write=False)
    for unit in ["D", "s", "ns", "10us", "m"]:
        for kind in "Mm":
            data = np.arange(6).astype(f"{kind}8[{unit}]")
            data[2] = "NaT"
            array(group, f"{kind}8_{unit}", data, (4,))
            array(group, f"{kind}8_{unit}_missing", data, (4,), write=slice(0, 4), fill_value=np.array("NaT", dtype=data.dtype)[()])
    array(group, "text_fixed", np.array(["a", "\u00e9\u4e2d", "", "\U0001f600"], dtype="U3"), (2,))
    array(group, "text_fixed_big", np.array(["a", "\u00e9\u4e2d"], dtype="U3"), serializer=BytesCodec(endian="big"))
    array(group, "text_fixed_missing", np.array(["a", "b"], dtype="U3"), (1,), fill_value="xy", write=slice(0, 1))
    array(group, "bytes_fixed", np.array([b"a", b"bc", b""], dtype="S3"), (2,), fill_value=b"zz", write=slice(0, 2))
    array(group, "raw", np.array([b"\0\1\2", b"\3\4\5"], dtype="V3"), fill_value=np.void(b"\7\0\1"))
    array(group, "raw_missing", np.array([b"\0\1\2", b"\3\4\5"], dtype="V3"), (1,), fill_value=np.void(b"\7\0\1"), write=slice(0, 1))
    record = np.dtype([("a", "i4"), ("b", "u1"), ("c", "f8")])
    array(group, "record", np.array([(1, 2, 3.5), (4, 5, 6.5)], dtype=record), (1,))
    array(group, "record_missing", np.array([(1, 2, 3.5), (4, 5, 6.5)], dtype=record), (1,), write=slice(0, 1),
          fill_value=np.array((7, 8, 9.5), dtype=record)[()])
    text = np.array(["a", "", "\u4e2d\u6587 \U0001f600", "x" * 1000], dtype=object)
    array(group, "text", text, (3,), dtype=str)
    array(group, "text_zstd", text, (3,), dtype=str, compressors=ZstdCodec(level=3))
    array(group, "text_missing", text, (1,), dtype=str, write=slice(0, 2), fill_value="none")


def codecs(root):
    group = root.create_group("codecs")
    data = RANDOM.integers(0, 50, (9, 10)).astype("i4")
    each = {"gzip": GzipCodec(level=5), "zstd": ZstdCodec(level=3), "zstd_checked": ZstdCodec(level=-2, checksum=True),
            "crc32c": Crc32cCodec(), "zlib": n3.Zlib(level=1), "bz2": n3.BZ2(level=1), "lz4": n3.LZ4(acceleration=1),
            "lzma": n3.LZMA(), "n_zstd": n3.Zstd(level=1), "n_gzip": n3.GZip(level=1),
            "n_blosc": n3.Blosc(cname="lz4", clevel=3, shuffle=1), "crc32": n3.CRC32(), "adler32": n3.Adler32(),
            "fletcher32": n3.Fletcher32(), "jenkins": n3.JenkinsLookup3()}
    for cname in ["lz4", "lz4hc", "zlib", "zstd", "blosclz"]:
        for shuffle in ["noshuffle", "shuffle", "bitshuffle"]:
            each[f"blosc_{cname}_{shuffle}"] = BloscCodec(cname=cname, clevel=5, shuffle=shuffle, typesize=4)
    for name, codec in each.items():
        array(group, name, data, (4, 5), compressors=codec)
    array(group, "zstd_crc32c", data, (4, 5), compressors=[ZstdCodec(level=1), Crc32cCodec()])
    array(group, "shuffle_zlib", data, (4, 5), compressors=[n3.Shuffle(elementsize=4), n3.Zlib(level=5)])
    array(group, "crc32c_zstd", data, (4, 5), left_out=True, compressors=[Crc32cCodec(), ZstdCodec(level=1)])
    array(group, "delta_zlib", data, (4, 5), filters=n3.Delta(dtype="int32"), compressors=n3.Zlib(level=1))
    scaled = RANDOM.integers(0, 50, (9, 10)) / 10 + 0.3
    array(group, "scale", scaled, (4, 5), filters=n3.FixedScaleOffset(offset=0.3, scale=10, dtype="float64", astype="int16"))
    array(group, "quantize", numbers("f4", (9, 10)), (4, 5), filters=n3.Quantize(digits=2, dtype="float32"))
    array(group, "astype", numbers("f8", (9, 10)), (4, 5), filters=n3.AsType(encode_dtype="float32", decode_dtype="float64"))
    # zarr-python 3 does not read back what it writes with the other filters in this order.
    array(group, "bitround_big", numbers("f4", (9, 10)), (4, 5), filters=n3.BitRound(keepbits=5), serializer=BytesCodec(endian="big"))
    array(group, "scale_byte", scaled, (4, 5), filters=n3.FixedScaleOffset(offset=0.3, scale=10, dtype="float64", astype="uint8"))
    array(group, "transposed", data, (4, 5), filters=TransposeCodec(order=(1, 0)), compressors=GzipCodec(level=1))
    array(group, "transposed_delta", data, (4, 5), filters=[TransposeCodec(order=(1, 0)), n3.Delta(dtype="int32")])
    array(group, "transposed_not", data, (4, 5), filters=TransposeCodec(order=(0, 1)))
    cube = numbers("i2", (3, 4, 5))
    array(group, "transposed_cube", cube, (2, 2, 2), filters=TransposeCodec(order=(2, 1, 0)))
    array(group, "transposed_other", cube, (2, 2, 2), left_out=True, filters=TransposeCodec(order=(2, 0, 1)))
    array(group, "sharded", data, (2, 5), left_out=True, shards=(4, 10))


def shapes(root):
    group = root.create_group("shapes")
    for separator in "/.":
        word = {"/": "slash", ".": "dot"}[separator]
        for rank in range(5):
            for encoding in ["default", "v2"]:
                data = numbers("i4", (3,) * rank) + 1
                name = f"rank{rank}_{encoding}_{word}"
                whole = array(group, name, data, (2,) * rank, dimension_names=[f"x{n}" for n in range(rank)] or None)
                part = array(group, name + "_missing", data, (2,) * rank, fill_value=7, write=(slice(0, 2),) * rank if rank else False)
                for made in [whole, part]:
                    set_key_encoding(made, encoding, separator)
    array(group, "empty", np.zeros((0, 5), "f4"), (1, 5))
    array(group, "nothing_written", np.zeros((4, 4), "f4"), (2, 2), write=False, fill_value=3.5)
    array(group, "rank32", np.ones((1,) * 32, "u1"))
    array(group, "rank33", np.ones((1,) * 33, "u1"), left_out=True, write=False)
    set_key_encoding(array(group, "many_chunks", np.arange(3000), (1,)), "default", ".")
    array(group, "wide", np.arange(3000).reshape(3, 1000), (1, 1))


def attributes(root):
    group = root.create_group("attributes", attributes={"title": "\u4e2d\u6587 \U0001f600", "n": 0.1, "big": 2**70, "list": [1, {"a": None}]})
    array(group, "some", np.arange(3), attributes={"units": "days since 2000-01-01", "scale_factor": 0.1, "x": [1, 2.5, "z", True, None]})
    array(group, "names", np.zeros((2, 3)), dimension_names=["lat\u00e9", "lon"])
    array(group, "no_names", np.zeros((2, 3)))
    array(group, "some_names", np.zeros((2, 3)), dimension_names=["lat", None])
    array(group, "own_names", np.zeros((2, 3)), attributes={"_ARRAY_DIMENSIONS": ["p", "q"]}, dimension_names=["lat", "lon"])
    for name in ["\u4e2d\u6587", "\u05e9\u05dc\u05d5\u05dd", "\U0001f600", "a b", "0", "0.0", "c", "%2F", "-", "A", "\u00e9", "e\u0301", "x" * 200]:
        array(root.create_group(f"names/{name}"), name, np.arange(4), (2,))


def dataset(root):
    """What xarray writes: coordinates, missing values, packed numbers, times, text."""
    import xarray
    values = np.arange(12, dtype="f8").reshape(3, 4)
    values[1, 1] = np.nan
    data = xarray.Dataset(
        {"t": (("y", "x"), values), "n": (("y", "x"), np.arange(12, dtype="i4").reshape(3, 4)), "f": (("x",), np.arange(4, dtype="f4")),
         "s": ((), 7), "b": (("x",), np.array([True, False, True, True])), "packed": (("x",), np.array([1.0, np.nan, 2.0, 3.0]))},
        {"x": np.arange(4), "y": [10.0, 20.0, 30.0], "time": (("y",), np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "M8[ns]"))},
        {"title": "a dataset"})
    encoding = {"n": {"_FillValue": -1}, "packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -99}}
    data.to_zarr(root.store, group="dataset", mode="w", zarr_format=3, consolidated=False, encoding=encoding)
    global COUNT
    COUNT += 9


def main(directory):
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(directory))
    session = repository.writable_session("main")
    root = zarr.group(store=session.store, attributes={"conventions": "CF-1.8"})
    for part in [types, codecs, shapes, attributes, dataset]:
        part(root)
    session.commit("arrays of every kind")
    print(json.dumps({"left_out": LEFT_OUT, "arrays": COUNT}))


main(sys.argv[1])
