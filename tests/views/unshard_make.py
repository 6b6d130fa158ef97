"""Writes a plain Zarr tree with sharded arrays of many ranks, types, codecs and indexes, some of them with missing chunks.

    python unshard_make.py DIRECTORY

Needs zarr-python 3. Prints {"stored": [path, ...], "arrays": number} as JSON: the arrays whose shards cannot be taken off.
"""
import json
import sys
import warnings

import numpy as np
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec, ZstdCodec

warnings.filterwarnings("ignore")
RANDOM = np.random.default_rng(11)
STORED = []
COUNT = 0
INDEX = [BytesCodec(endian="little"), Crc32cCodec()]


def numbers(dtype, shape):
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return RANDOM.integers(0, 100, shape).astype(dtype)
    return RANDOM.normal(size=shape).astype(dtype)


def array(root, path, data, chunks, codecs, write=(...,), stored=False, fill_value=7, separator="/", encoding="default", **settings):
    """Adds an array with chunks `chunks`, and writes the selections `write` of `data`."""
    global COUNT
    COUNT += 1
    made = zarr.create(store=root.store, path=path, shape=data.shape, chunks=chunks, dtype=data.dtype, codecs=codecs, zarr_format=3,
                       fill_value=fill_value, chunk_key_encoding={"name": encoding, "separator": separator}, **settings)
    for selection in write:
        made[selection] = data[selection]
    if stored:
        STORED.append("/" + path)


def shards(inner, codecs, index=INDEX, location="end"):
    return ShardingCodec(chunk_shape=inner, codecs=codecs, index_codecs=index, index_location=location)


def ranks(root):
    for rank in range(1, 5):
        shape, inner, outer = (7, 10, 5, 4)[:rank], (2, 3, 1, 2)[:rank], (4, 6, 3, 4)[:rank]
        data = numbers("i4", shape)
        part = tuple(slice(0, max(1, n // 2)) for n in shape)
        for name, write in [("whole", (...,)), ("missing", (part,)), ("nothing", ())]:
            for separator in "/.":
                for encoding in ["default", "v2"]:
                    word = {"/": "slash", ".": "dot"}[separator]
                    array(root, f"ranks/rank{rank}_{name}_{encoding}_{word}", data, outer, [shards(inner, [BytesCodec()])], write,
                          separator=separator, encoding=encoding)


def codecs(root):
    data = numbers("i2", (24, 20))
    holes = ((slice(0, 5), slice(0, 3)), (slice(9, 20), slice(12, 20)))
    each = {"none": [], "gzip": [GzipCodec(level=1)], "zstd": [ZstdCodec(level=3)], "crc32c": [Crc32cCodec()], "zstd_crc32c": [ZstdCodec(), Crc32cCodec()],
            "blosc": [BloscCodec(cname="lz4", clevel=3, shuffle="shuffle", typesize=2)]}
    for name, compressors in each.items():
        array(root, f"codecs/{name}", data, (8, 10), [shards((4, 5), [BytesCodec(endian="big"), *compressors])], holes)
    turn = TransposeCodec(order=(1, 0))
    array(root, "codecs/turned_within", data, (8, 10), [shards((4, 5), [turn, BytesCodec()])], holes)
    # zarr-python wants inner chunks that divide the chunks both before and after they are turned.
    array(root, "codecs/turned_before", data, (8, 8), [turn, shards((4, 2), [BytesCodec()])], holes)
    cube = numbers("f4", (6, 9, 8))
    array(root, "codecs/cube_turned_before", cube, (6, 6, 12), [TransposeCodec(order=(2, 0, 1)), shards((3, 2, 6), [BytesCodec()])],
          ((slice(0, 3), slice(2, 5), slice(0, 7)),))
    array(root, "codecs/checked_behind", data, (8, 10), [shards((4, 5), [BytesCodec()]), Crc32cCodec()], holes)
    array(root, "codecs/zipped_behind", data, (8, 10), [shards((4, 5), [BytesCodec()]), GzipCodec(level=1)], holes, stored=True)


def indexes(root):
    data = numbers("u1", (40,))
    holes = (slice(0, 3), slice(11, 30))
    for location in ["start", "end"]:
        for order in ["little", "big"]:
            for checked in [True, False]:
                index = [BytesCodec(endian=order)] + ([Crc32cCodec()] if checked else [])
                name = f"indexes/{location}_{order}{'_checked' if checked else ''}"
                array(root, name, data, (8,), [shards((2,), [BytesCodec()], index, location)], holes)


def nested(root):
    data = numbers("i4", (30, 26))
    holes = ((slice(0, 5), slice(0, 3)), (slice(13, 30), slice(12, 26)))
    two = shards((8, 6), [shards((4, 3), [BytesCodec(), ZstdCodec()])])
    array(root, "nested/two", data, (16, 12), [two], holes)
    three = shards((8, 6), [shards((4, 6), [shards((2, 1), [BytesCodec()])], location="start")])
    array(root, "nested/three", data, (16, 12), [three], holes)
    turned = shards((8, 6), [TransposeCodec(order=(1, 0)), shards((3, 4), [BytesCodec()])])
    array(root, "nested/turned", data, (16, 12), [turned], holes)
    zipped = shards((8, 6), [shards((4, 3), [BytesCodec()]), GzipCodec(level=1)])
    array(root, "nested/zipped", data, (16, 12), [zipped], holes)


def types(root):
    for dtype in ["bool", "i1", "u2", "i8", "f2", "f8", "c16"]:
        array(root, f"types/{dtype}", numbers("i4", (9, 7)).astype(dtype), (6, 4), [shards((3, 2), [BytesCodec(), ZstdCodec()])],
              ((slice(0, 7), slice(0, 2)),), fill_value=1)
    data = np.arange(12).astype("M8[s]")
    array(root, "types/times", data, (6,), [shards((2,), [BytesCodec()])], (slice(0, 3),), fill_value=np.datetime64("NaT", "s"))
    array(root, "types/plain", np.arange(12), (3,), [BytesCodec()], (slice(0, 5),))


def main(directory):
    root = zarr.group(store=directory, attributes={"title": "shards"})
    for part in [ranks, codecs, indexes, nested, types]:
        part(root)
    print(json.dumps({"stored": STORED, "arrays": COUNT}))


main(sys.argv[1])
