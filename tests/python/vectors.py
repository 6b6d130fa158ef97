"""Stores of the zarr-vectors package: written, extended and checked.

    vectors.py write FOLDER KIND..    new stores: points, polylines, mesh, graph
    vectors.py pyramid STORE          coarser levels for it
    vectors.py check EXPECT STORE..   they say what EXPECT (JSON) says

With release 0.2.0 on PYTHONPATH, which has another interface:

    vectors.py old-write FOLDER       new stores: points with a pyramid, and a graph
    vectors.py old-check N STORE..    they have N points or vertices, whose sum is that of `positions`
"""
import json
import sys

import numpy as np

BOX = ([0.0, 0.0, 0.0], [50.0, 50.0, 50.0])
BOUNDS = ([0.0, 0.0, 0.0], [100.0, 100.0, 100.0])


def positions(count: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(0, 100, size=(count, 3)).astype("float32")


def write(folder: str, *kinds: str) -> None:
    import zarr_vectors as zv

    of = {"points": "point_cloud", "polylines": "polyline", "mesh": "mesh", "graph": "graph"}
    points = positions(120)
    for kind in kinds:
        schema = zv.Schema(bounds=BOUNDS, kind=of[kind], layout=zv.Layout(cells=2))
        dataset = zv.create(f"{folder}/{kind}", schema=schema)
        if kind == "points":
            dataset.add_points(points, attributes={"weight": points[:, 0]}, object_ids=np.repeat(np.arange(12), 10))
        elif kind == "polylines":
            dataset.add_polylines(list(points.reshape(12, 10, 3)))
        elif kind == "mesh":
            dataset.add_mesh(points, np.arange(120).reshape(40, 3))
        else:
            dataset.add_graph(points, np.stack([np.arange(119), np.arange(1, 120)], axis=1))


def pyramid(store: str) -> None:
    import zarr_vectors as zv

    zv.open(store, mode="r+").build_pyramid(factors=[(2.0, 1.0), (4.0, 2.0)])


def check(expect: str, *stores: str) -> None:
    import zarr_vectors as zv

    for store in stores:
        dataset, expected = zv.open(store), json.loads(expect)
        read = dataset.read()
        said = {"kind": read.kind, "levels": list(dataset.levels), "n": len(read.positions)}
        said["sum"] = read.positions.astype("float64").sum(axis=0)
        said["box_n"] = len(dataset.select(bbox=BOX).read().positions)
        for key, value in expected.items():
            equal = np.allclose(said[key], value, rtol=1e-6) if key == "sum" else said[key] == value
            assert equal, (store, key, said[key], value)
        for level in dataset.levels:
            assert len(dataset.level(level).read().positions) > 0, (store, level)
        assert not (faults := dataset.validate().errors), (store, faults)


def old_write(folder: str) -> None:
    from zarr_vectors.multiresolution.coarsen import build_pyramid
    from zarr_vectors.types.graphs import write_graph
    from zarr_vectors.types.points import write_points

    points = positions(120)
    write_points(f"{folder}/old", points, chunk_shape=(50.0,) * 3, bounds=BOUNDS, vertex_attributes={"weight": points[:, 0]},
                 object_ids=np.repeat(np.arange(12), 10), groups={0: [0, 1], 1: [2, 3]})
    build_pyramid(f"{folder}/old", factors=[(2.0, 1.0)])
    edges = np.stack([np.arange(119), np.arange(1, 120)], axis=1)
    write_graph(f"{folder}/old graph", points, edges, chunk_shape=(50.0,) * 3, bounds=BOUNDS)


def old_check(count: str, *stores: str) -> None:
    from zarr_vectors.types.graphs import read_graph
    from zarr_vectors.types.points import read_points

    for store in stores:
        read = read_graph(store) if store.endswith("graph") else read_points(store)
        found = np.asarray(read["positions"])
        assert len(found) == int(count), (store, len(found))
        assert np.allclose(found.astype("float64").sum(axis=0), positions(int(count)).astype("float64").sum(axis=0)), store


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    {"write": write, "pyramid": pyramid, "check": check, "old-write": old_write, "old-check": old_check}[command](*words)
