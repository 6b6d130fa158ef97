"""Stores of the zarr-vectors package: written, extended and looked at.

    vectors.py write STORE KIND     a new store: points, polylines, mesh or graph
    vectors.py pyramid STORE        coarser levels for it
    vectors.py check STORE EXPECT   it says what EXPECT (JSON) says; with --levels N it has so many of them

With release 0.2.0 on PYTHONPATH, which has another interface:

    vectors.py old-write STORE      a new store of points, with a pyramid
    vectors.py old-graph STORE      a new store of a graph
    vectors.py old-check STORE N    it has N points or vertices, whose sum is that of `positions`
"""
import json
import sys

import numpy as np

BOX = ([0.0, 0.0, 0.0], [50.0, 50.0, 50.0])
BOUNDS = ([0.0, 0.0, 0.0], [100.0, 100.0, 100.0])


def positions(count: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(0, 100, size=(count, 3)).astype("float32")


def write(store: str, kind: str) -> None:
    import zarr_vectors as zv

    of = {"points": "point_cloud", "polylines": "polyline", "mesh": "mesh", "graph": "graph"}
    dataset = zv.create(store, schema=zv.Schema(bounds=BOUNDS, kind=of[kind], layout=zv.Layout(cells=2)))
    points = positions(120)
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


def check(store: str, expect: str, levels: str | None = None) -> None:
    import zarr_vectors as zv

    dataset, expected = zv.open(store), json.loads(expect)
    read = dataset.read()
    said = {"kind": read.kind, "levels": list(dataset.levels), "n": len(read.positions)}
    said["sum"] = read.positions.astype("float64").sum(axis=0)
    said["box_n"] = len(dataset.select(bbox=BOX).read().positions)
    if levels is not None:
        expected["levels"] = list(range(int(levels)))
    for key, value in expected.items():
        assert np.allclose(said[key], value, rtol=1e-6) if key == "sum" else said[key] == value, (key, said[key], value)
    for level in dataset.levels:
        assert len(dataset.level(level).read().positions) > 0, level
    assert not (faults := dataset.validate().errors), faults


def old_write(store: str) -> None:
    from zarr_vectors.multiresolution.coarsen import build_pyramid
    from zarr_vectors.types.points import write_points

    points = positions(120)
    attributes = {"weight": points[:, 0]}
    write_points(store, points, chunk_shape=(50.0,) * 3, bounds=BOUNDS, vertex_attributes=attributes,
                 object_ids=np.repeat(np.arange(12), 10), groups={0: [0, 1], 1: [2, 3]})
    build_pyramid(store, factors=[(2.0, 1.0)])


def old_graph(store: str) -> None:
    from zarr_vectors.types.graphs import write_graph

    edges = np.stack([np.arange(119), np.arange(1, 120)], axis=1)
    write_graph(store, positions(120), edges, chunk_shape=(50.0,) * 3, bounds=BOUNDS)


def old_check(store: str, count: str) -> None:
    from zarr_vectors.types.graphs import read_graph
    from zarr_vectors.types.points import read_points

    try:
        read = read_points(store)
    except Exception:
        read = read_graph(store)
    found = np.asarray(read["positions"] if "positions" in read else read["vertices"])
    assert len(found) == int(count), len(found)
    assert np.allclose(found.astype("float64").sum(axis=0), positions(int(count)).astype("float64").sum(axis=0))


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if "--levels" in words:
        words.remove("--levels")
    {"write": write, "pyramid": pyramid, "check": check, "old-write": old_write, "old-graph": old_graph,
     "old-check": old_check}[command](*words)
