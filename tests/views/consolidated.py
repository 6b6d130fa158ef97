"""Compares the consolidated metadata of a view with those that zarr-python makes of the same tree, and reads through them.

    python consolidated.py VIEW COPY

COPY is a writable copy of VIEW without consolidated metadata. Prints {"nodes": number, "groups": number} as JSON, or fails.
"""
import json
import pathlib
import sys
import warnings

import numpy as np
import xarray
import zarr

warnings.filterwarnings("ignore")


def document(path):
    return json.loads((pathlib.Path(path) / "zarr.json").read_text())


def plain(node):
    members = node.metadata.to_dict()
    members.pop("consolidated_metadata", None)
    return repr(members)


def parsed(metadata):
    """Returns the metadata of all nodes as zarr-python understands them: it writes some members otherwise than it reads them."""
    group = zarr.core.group.ConsolidatedMetadata.from_dict(metadata)
    return {path: repr(node) for path, node in group.flattened_metadata.items()}


def main(view, copy):
    root = zarr.open_consolidated(view, mode="r")
    again = zarr.open_group(view, mode="r", use_consolidated=True)
    assert repr(again.metadata) == repr(root.metadata)
    without = dict(zarr.open_group(view, mode="r", use_consolidated=False).members(max_depth=None))
    found = dict(root.members(max_depth=None))
    assert found.keys() == without.keys(), found.keys() ^ without.keys()
    for path, node in found.items():
        assert plain(node) == plain(without[path]), path
        # The others take long to read.
        if isinstance(node, zarr.Array) and node.nchunks < 20:
            assert repr(node[...]) == repr(without[path][...]), path
    groups = [path for path, node in without.items() if isinstance(node, zarr.Group)]
    for path in ["", *groups]:
        zarr.consolidate_metadata(copy, path=path)
        shown, made = document(f"{view}/{path}"), document(f"{copy}/{path}")
        shown, made = shown.pop("consolidated_metadata"), made.pop("consolidated_metadata")
        assert [shown["kind"], shown["must_understand"]] == [made["kind"], made["must_understand"]], path
        assert shown["metadata"].keys() == made["metadata"].keys(), path
        assert parsed(shown) == parsed(made), path
        for name, node in made["metadata"].items():
            if node["node_type"] == "group":
                assert shown["metadata"][name]["consolidated_metadata"] == node["consolidated_metadata"], name
        # The next ones are made of documents without.
        json_path = pathlib.Path(copy) / path / "zarr.json"
        members = document(f"{copy}/{path}")
        del members["consolidated_metadata"]
        json_path.write_text(json.dumps(members))
    data = xarray.open_zarr(f"{view}/dataset", consolidated=True)
    other = xarray.open_zarr(f"{view}/dataset", consolidated=False)
    xarray.testing.assert_identical(data.load(), other.load())
    print(json.dumps({"nodes": len(found), "groups": len(groups)}))


main(sys.argv[1], sys.argv[2])
