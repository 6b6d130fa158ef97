"""zarr-python 2 on the Zarr version 2 view, plain and consolidated. Runs in the Python that has it.

    read_zarr2.py PLAN
"""

import common
import zarr

VERSION = f"zarr-python {zarr.__version__}"


def arrays(group):
    """Yields all arrays of a group and below, and the groups themselves."""
    yield group
    for _, array in group.arrays():
        yield array
    for _, below in group.groups():
        yield from arrays(below)


def main():
    plan = common.plan()
    results = common.Results("zarr-python 2", "zarr2", VERSION)
    for repository in plan["repositories"]:
        for root in [zarr.open_group(repository["zarr2"], mode="r"), zarr.open_consolidated(repository["zarr2"], mode="r")]:
            for node in arrays(root):
                attributes = dict(node.attrs)
                if isinstance(node, zarr.Group):
                    results.groups[repository["name"], node.path] = attributes
                    continue
                dimensions = attributes.pop("_ARRAY_DIMENSIONS", None)
                try:
                    results.add(repository["name"], node.path, node[...], dimensions, attributes)
                except Exception as error:
                    results.fail(repository["name"], node.path, error)
    results.save(plan["work"])


main()
