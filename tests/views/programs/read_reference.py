"""The reference: what zarr-python 3 reads on the native view, with the `zarr.json` of each array and group.

    read_reference.py PLAN
"""

import json
import os
import pathlib
import sys
import warnings

import common
import zarr

sys.path.append(str(pathlib.Path(__file__).parents[2] / "python"))
import read_tools

warnings.filterwarnings("ignore")


def main():
    plan = common.plan()
    read_tools.teach_zarr()
    results = common.Results("reference", "zarr", f"zarr-python {zarr.__version__}")
    for repository in plan["repositories"]:
        native = pathlib.Path(repository["zarr"])
        for directory, _, names in os.walk(native):
            if "zarr.json" not in names:
                continue
            path = pathlib.Path(directory)
            name = path.relative_to(native).as_posix().removeprefix(".")
            document = json.loads((path / "zarr.json").read_text())
            if document["node_type"] == "group":
                results.groups[repository["name"], name] = document.get("attributes", {})
                continue
            try:
                array = zarr.open_array(path, mode="r", zarr_format=3)
                # Values first: reading decides whether the array counts.
                results.add(repository["name"], name, array[...], None, dict(array.attrs))
            except Exception as error:
                results.fail(repository["name"], name, error)
            results.arrays[repository["name"], name]["document"] = document
            results.arrays[repository["name"], name]["chunks"] = chunks(path, document)
    results.save(plan["work"])


def chunks(path, document):
    """Returns the number of chunks that are stored, and of those that the array can have."""
    grid = document["chunk_grid"]["configuration"].get("chunk_shape", [])
    if not all(isinstance(length, int) and length for length in grid):
        return None
    possible = 1
    for length, chunk in zip(document["shape"], grid):
        possible *= -(-length // chunk)
    # Other arrays may be below an array; they have documents of their own.
    stored = sum(not name.startswith(("zarr.json", ".")) for directory, _, names in os.walk(path)
                 for name in names if directory == str(path) or "zarr.json" not in names)
    return stored, possible


main()
sys.stdout.flush()
# A failed read leaves zarr tasks behind, which fill the screen when the interpreter ends.
os._exit(0)
