"""Write into a mount with common tools, stage by stage, and read each stage back from three places.

    python write_tools.py SCENARIO DIRECTORY

DIRECTORY is inside a writable mount. After each stage the script prints `stage NAME` and waits for a line: the paths at
which the stage, committed by then, is to be found (the mount itself, a fresh mount, a copy of what the reference
implementation stored), with tabs between. In each of them the scenario's checks must hold.
"""
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np

warnings.filterwarnings("ignore")


# ---------------------------------------------------------------- zarr-python

def zarr_python(root):
    import zarr

    def values(group, name):
        return zarr.open_group(group, mode="r")[name][...]

    numbers = np.arange(60, dtype="int32").reshape(6, 10)

    def create():
        group = zarr.create_group(root)
        group.create_array("a/plain", shape=(6, 10), chunks=(2, 5), dtype="int32")[...] = numbers
        group.create_array("a/large", shape=(1 << 20,), chunks=(1 << 19,), dtype="uint8", compressors=None)[...] = 7
        group.create_array("scalar", shape=(), dtype="float64")[...] = 2.5
        sharded = group.create_array("sharded", shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="uint16")
        sharded[...] = np.arange(64 * 64).reshape(64, 64)
        group.create_array("sparse", shape=(100,), chunks=(10,), dtype="uint8", fill_value=3)[55] = 9

    def created(path):
        assert (values(path, "a/plain") == numbers).all()
        assert (values(path, "a/large") == 7).all() and values(path, "scalar") == 2.5
        assert (values(path, "sharded") == np.arange(64 * 64).reshape(64, 64)).all()
        sparse = values(path, "sparse")
        assert sparse[55] == 9 and sparse.sum() == 99 * 3 + 9
        assert len(list((path / "sparse/c").iterdir())) == 1

    yield "create", create, created

    def append():
        zarr.open_group(root)["a/plain"].append(numbers[:3] + 100)
        zarr.open_group(root)["sharded"][1, 1] = 60000

    def appended(path):
        plain = values(path, "a/plain")
        assert plain.shape == (9, 10) and (plain[:6] == numbers).all() and (plain[6:] == numbers[:3] + 100).all()
        assert values(path, "sharded")[1, 1] == 60000 and values(path, "sharded")[1, 2] == 66

    yield "append", append, appended

    def resize():
        group = zarr.open_group(root)
        group["a/plain"].resize((3, 5))
        group["sparse"].resize((200,))
        group["sparse"][55] = 3

    def resized(path):
        assert (values(path, "a/plain") == numbers[:3, :5]).all()
        # Cut away, not hidden: growing it again would show the fill value.
        assert sorted(p.name for p in (path / "a/plain/c").glob("*/*")) == ["0", "0"]
        assert values(path, "sparse").shape == (200,) and (values(path, "sparse") == 3).all()
        assert not [p for p in (path / "sparse").rglob("*") if p.is_file() and p.name != "zarr.json"]

    yield "resize", resize, resized

    def attributes():
        group = zarr.open_group(root)
        group.attrs.update({"title": "Überschrift", "n": [1, 2, {"x": None}]})
        group["a/plain"].attrs["units"] = "m"
        group["a/plain"].attrs.put({"units": "km"})

    def attributed(path):
        group = zarr.open_group(path, mode="r")
        assert group.attrs["title"] == "Überschrift" and group.attrs["n"] == [1, 2, {"x": None}]
        assert dict(group["a/plain"].attrs) == {"units": "km"}

    yield "attributes", attributes, attributed

    def consolidate():
        zarr.consolidate_metadata(root)

    def consolidated(path):
        group = zarr.open_consolidated(path, mode="r")
        assert {"a", "a/plain", "a/large", "scalar", "sharded", "sparse"} <= {name for name, _ in group.members(None)}
        assert (group["a/plain"][...] == numbers[:3, :5]).all()

    yield "consolidate", consolidate, consolidated

    def delete():
        group = zarr.open_group(root, use_consolidated=False)
        del group["scalar"]
        del group["a"]

    def deleted(path):
        group = zarr.open_group(path, mode="r", use_consolidated=False)
        assert sorted(name for name, _ in group.members(None)) == ["sharded", "sparse"]

    yield "delete", delete, deleted

    def overwrite():
        group = zarr.open_group(root / "sub", mode="w")
        group.create_array("x", shape=(4,), chunks=(2,), dtype="uint8")[...] = 1
        group = zarr.open_group(root / "sub", mode="w")
        group.create_array("y", shape=(4,), chunks=(2,), dtype="uint8")[...] = 2
        zarr.open_group(root, use_consolidated=False).create_array(
            "sharded", shape=(4,), chunks=(2,), dtype="uint8", overwrite=True)[...] = 5

    def overwritten(path):
        assert [name for name, _ in zarr.open_group(path / "sub", mode="r").members()] == ["y"]
        assert (values(path / "sub", "y") == 2).all() and not (path / "sub/x").exists()
        assert (zarr.open_array(path / "sharded", mode="r")[...] == 5).all()
        assert not (path / "sharded/c/0/0").exists()

    yield "overwrite", overwrite, overwritten


# ---------------------------------------------------------------- xarray and dask

def xarray_dask(root):
    import dask
    import dask.array
    import xarray

    def dataset(start, count, lazy=False):
        times = np.datetime64("2026-01-01", "ns") + np.arange(start, start + count) * np.timedelta64(1, "D")
        values = np.arange(start * 40, (start + count) * 40, dtype="float32").reshape(count, 5, 8)
        data = dask.array.from_array(values, chunks=(2, 5, 8)) if lazy else values
        return xarray.Dataset({"t2m": (("time", "y", "x"), data, {"units": "K"})},
                              {"time": times, "x": np.arange(8.0), "y": np.arange(5)}, {"title": "weather"})

    encoding = {"t2m": {"chunks": (2, 5, 8)}, "time": {"chunks": (2,), "units": "hours since 2026-01-01"}}

    def new():
        with dask.config.set(scheduler="processes", num_workers=2):
            dataset(0, 8, lazy=True).to_zarr(root, mode="w", encoding=encoding, zarr_format=3)

    def check(count, change=None):
        def checked(path):
            expected = dataset(0, count)
            if change:
                change(expected)
            with xarray.open_zarr(path) as found:
                xarray.testing.assert_identical(found.load().drop_encoding(), expected)
        return checked

    yield "new", new, check(8)

    def append():
        with dask.config.set(scheduler="processes", num_workers=2):
            dataset(8, 4, lazy=True).to_zarr(root, append_dim="time")

    yield "append_dim", append, check(12)

    def region():
        with dask.config.set(scheduler="processes", num_workers=2):
            part = -dataset(4, 4, lazy=True)[["t2m"]].drop_vars(["time", "x", "y"])
            part.to_zarr(root, region={"time": slice(4, 8), "x": slice(0, 8), "y": slice(0, 5)})

    def changed(expected):
        expected["t2m"][4:8] = -expected["t2m"][4:8]

    yield "region", region, check(12, changed)

    def again():
        with dask.config.set(scheduler="processes", num_workers=2):
            dataset(0, 2, lazy=True).to_zarr(root, mode="w", encoding=encoding, zarr_format=3)

    yield "again", again, check(2)


# ---------------------------------------------------------------- tensorstore

def tensorstore(root):
    import tensorstore as ts

    def spec(path, driver="zarr3"):
        return {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}

    def opened(path, **more):
        return ts.open(spec(path), **more).result()

    metadata = {"shape": [100, 60], "data_type": "float32",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [25, 30]}}}
    values = np.arange(6000, dtype="float32").reshape(100, 60)

    def create():
        ts.open({**spec(root / "a"), "metadata": metadata, "create": True}).result()[...] = values
        inner = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 1}}]
        shards = {"name": "sharding_indexed", "configuration": {"chunk_shape": [5, 5], "codecs": inner}}
        ts.open({**spec(root / "s"), "metadata": {**metadata, "codecs": [shards]}, "create": True}).result()[...] = values

    def created(path):
        for name in "as":
            assert (opened(path / name).read().result() == values).all()

    yield "create", create, created

    def overwrite():
        array = opened(root / "a")
        array[10:40, 10:40] = 1
        # Read, change, write: the chunk's inode and time must show that it is a new one.
        for n in range(20):
            array[0, 0] = n
            array[0, 1] = array[0, 0].read().result() + 1
        with ts.Transaction() as transaction:
            opened(root / "s").with_transaction(transaction)[30:40, 30:40] = 2

    def overwritten(path):
        wanted = values.copy()
        wanted[10:40, 10:40] = 1
        wanted[0, 0], wanted[0, 1] = 19, 20
        assert (opened(path / "a").read().result() == wanted).all()
        wanted = values.copy()
        wanted[30:40, 30:40] = 2
        assert (opened(path / "s").read().result() == wanted).all()

    yield "overwrite", overwrite, overwritten

    def resize():
        opened(root / "a").resize(exclusive_max=[25, 30]).result()
        ts.open(spec(root / "s") | {"metadata": metadata, "create": True, "delete_existing": True}).result()[0, 0] = 5

    def resized(path):
        assert opened(path / "a").shape == (25, 30)
        assert sorted(p.name for p in (path / "a/c").glob("*/*") if p.is_file()) == ["0"]
        found = opened(path / "s").read().result()
        assert found[0, 0] == 5 and found.sum() == 5

    yield "resize", resize, resized


# ---------------------------------------------------------------- zarrs

def zarrs(root):
    """zarrs writes chunks under their own names, in place."""
    import zarr
    import zarrs as _

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    values = np.arange(4096, dtype="uint16").reshape(64, 64)

    def write():
        group = zarr.create_group(root)
        group.create_array("plain", shape=(64, 64), chunks=(16, 16), dtype="uint16")[...] = values
        group.create_array("sharded", shape=(64, 64), chunks=(8, 8), shards=(32, 32), dtype="uint16")[...] = values

    def written(path):
        for name in ("plain", "sharded"):
            assert (zarr.open_array(path / name, mode="r")[...] == values).all()

    yield "write", write, written

    def change():
        group = zarr.open_group(root)
        for name in ("plain", "sharded"):
            group[name][16:48, 16:48] = 9
        group["plain"].append(values)

    def changed(path):
        wanted = values.copy()
        wanted[16:48, 16:48] = 9
        assert (zarr.open_array(path / "sharded", mode="r")[...] == wanted).all()
        plain = zarr.open_array(path / "plain", mode="r")[...]
        assert (plain[:64] == wanted).all() and (plain[64:] == values).all()

    yield "change", change, changed


# ---------------------------------------------------------------- Python's own files

def plain_python(root):
    import json
    import mmap

    document = {"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8", "fill_value": 0,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
                "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}]}

    def write():
        (root / "c").mkdir(parents=True)
        with open(root / "zarr.json", "w") as file:
            json.dump(document, file, indent=2)
        (root / "c/0").write_bytes(b"abcd")
        with open(root / "c/1", "wb") as file:
            for letter in b"efgh":
                file.write(bytes([letter]))
                file.flush()

    def written(path):
        assert json.loads((path / "zarr.json").read_text()) == document
        assert (path / "c/0").read_bytes() + (path / "c/1").read_bytes() == b"abcdefgh"

    yield "write", write, written

    def change():
        with open(root / "c/0", "r+b") as file:
            with mmap.mmap(file.fileno(), 0) as mapped:
                mapped[1:3] = b"BC"
        with open(root / "c/1", "r+b") as file:
            file.seek(1)
            file.write(b"FG")
        shutil.copyfile(root / "c/0", root / "copy")
        (root / "copy").replace(root / "c/1")

    def changed(path):
        assert (path / "c/0").read_bytes() == (path / "c/1").read_bytes() == b"aBCd"

    yield "change", change, changed


def main():
    scenario, root = sys.argv[1], Path(sys.argv[2])
    for name, write, check in globals()[scenario](root):
        write()
        check(root)
        print(f"stage {name}", flush=True)
        for place in sys.stdin.readline().rstrip("\n").split("\t"):
            try:
                check(Path(place))
            except Exception as error:
                raise AssertionError(f"stage {name}, read from {place}") from error
        print("read", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()
