"""What the scripts in this folder share: the plan of a run, and the form in which each program's results are kept.

A plan is JSON: {"work": DIRECTORY, "repositories": [{"name": NAME, "zarr": PATH, "zarr2": PATH, "netcdf": PATH}, ...]}, where each
path is a mount in that view. A program's results are a pickle in DIRECTORY:

    {"version": TEXT, "arrays": {(NAME, ARRAY): {"values", "dimensions", "attributes"} or {"error"}}, "groups": {(NAME, GROUP): ATTRIBUTES}}

Values are a numpy array as the program gives it, dimensions a list of names, or None if the program does not know them.
"""

import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile

import numpy as np


def plan():
    """Returns the plan that the first argument names."""
    return json.loads(pathlib.Path(sys.argv[1]).read_text())


class Results:
    """What a program has read of a view."""

    def __init__(self, program, view, version):
        self.program, self.view, self.version = program, view, version
        self.arrays, self.groups, self.decoded = {}, {}, {}

    def add(self, repository, path, values, dimensions, attributes):
        dimensions = None if dimensions is None else list(dimensions)
        self.arrays[repository, path] = {"values": np.asarray(values), "dimensions": dimensions, "attributes": attributes}

    def fail(self, repository, path, error):
        """Records that the program could not read an array, with the reason."""
        self.arrays[repository, path] = {"error": str(error) or repr(error)}

    def save(self, work):
        content = {"version": self.version, "arrays": self.arrays, "groups": self.groups, "decoded": self.decoded}
        with open(pathlib.Path(work) / f"{self.program}.{self.view}.pickle", "wb") as file:
            pickle.dump(content, file)


def load(work, program, view):
    path = pathlib.Path(work) / f"{program}.{view}.pickle"
    return pickle.loads(path.read_bytes()) if path.exists() else None


def files(repository):
    """Yields the group of each NetCDF file of a mount, and its path. The root's file is the one that no group has the name of."""
    mount = pathlib.Path(repository["netcdf"])
    native = pathlib.Path(repository["zarr"])
    for directory, directories, names in os.walk(mount):
        directories.sort()
        for name in sorted(names):
            path = pathlib.Path(directory) / name
            group = path.relative_to(mount).as_posix().removesuffix(".nc")
            is_root = directory == str(mount) and not (native / group).is_dir()
            yield "" if is_root else group, path


def single_arrays(plan, repository):
    """Yields groups of one array each, of links to the arrays of the view: one that a program does not read makes it refuse the group."""
    for directory, _, names in os.walk(repository["zarr2"]):
        if ".zarray" not in names:
            continue
        path = pathlib.Path(directory)
        group = path.relative_to(repository["zarr2"]).parent.as_posix().removeprefix(".")
        alone = pathlib.Path(tempfile.mkdtemp(dir=plan["work"]))
        (alone / ".zgroup").write_text('{"zarr_format": 2}')
        (alone / path.name).symlink_to(path)
        yield group, path.name, alone


def under(group, name):
    return f"{group}/{name}" if group else name


def output(*words, **more):
    """Returns what a command prints, also one that fails."""
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, **more)
    return ended.returncode, ended.stdout.decode(errors="surrogateescape")
