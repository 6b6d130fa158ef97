"""The repositories that are measured, written with the reference implementation."""
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import icechunk
import numpy as np
import zarr

from harness import BenchError, Mount, Workspace, run

INLINE_BYTES = 64  # far below every chunk that is to be a file of its own
ARRAY = "data"
SEED = 20
REF_BATCH = 100_000  # virtual references that are given to icechunk at a time: bounds the memory of their objects


# ---------------------------------------------------------------- arrays with native chunks

@dataclass(frozen=True)
class ChunkedArray:
    """A one-dimensional array of uncompressed bytes: a chunk file has exactly the chunk's bytes."""

    name: str
    chunks: int
    chunk_bytes: int
    repo: Path
    plain: Path

    @property
    def total_bytes(self) -> int:
        return self.chunks * self.chunk_bytes

    def files(self, tree: Path) -> list[str]:
        return [f"{tree}/{ARRAY}/c/{index}" for index in range(self.chunks)]

    def values(self) -> np.ndarray:
        """Returns the array's values: noise, so that no layer can compress it."""
        return np.frombuffer(np.random.default_rng(SEED).bytes(self.total_bytes), dtype="int8")


def make_chunked_array(space: Workspace, name: str, chunks: int, chunk_bytes: int) -> ChunkedArray:
    """Writes the repository, copies the plain tree out of a mount of it, and checks that both have the right values."""
    array = ChunkedArray(name, chunks, chunk_bytes, space.repo(name), space.plain(name))
    repo = create_repository(array.repo)
    session = repo.writable_session("main")
    target = zarr.create_group(session.store).create_array(
        ARRAY, shape=(array.total_bytes,), chunks=(chunk_bytes,), dtype="int8", compressors=None, fill_value=0)
    target[:] = array.values()
    session.commit("values")
    with Mount(space, array.repo, f"{name}-copy") as mount:
        run(["cp", "-r", f"{mount.path}/.", array.plain])
    check_values(array)
    os.sync()  # or the disk would be written to while the first comparison runs
    return array


def check_values(array: ChunkedArray) -> None:
    """The plain tree came through a mount, so this checks the mount as well."""
    values = array.values()
    for way, read in {"the mount": open_path(array.plain), "icechunk": open_native(array.repo)}.items():
        if not np.array_equal(read[:], values):
            raise BenchError(f"{array.name}: what was read through {way} is not what was written")


def create_repository(path: Path, split: bool = False) -> icechunk.Repository:
    """A new repository; with `split`, arrays have a manifest for each index of their first dimension."""
    config = icechunk.RepositoryConfig.default()
    config.inline_chunk_threshold_bytes = INLINE_BYTES
    if split:
        every = {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Axis(0): 1}}
        config.manifest = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig.from_dict(every))
    # Both releases can write version 1 of the format; it is the default of 1.x.
    version = {} if icechunk.__version__.startswith("1.") else {"spec_version": 1}
    return icechunk.Repository.create(icechunk.local_filesystem_storage(str(path)), config, **version)


def open_path(tree: Path) -> zarr.Array:
    """The array in a tree of files, as users of plain paths do."""
    return zarr.open_array(f"{tree}/{ARRAY}", mode="r")


def open_native(repo: Path) -> zarr.Array:
    """The array through icechunk's own store."""
    repository = icechunk.Repository.open(icechunk.local_filesystem_storage(str(repo)))
    return zarr.open_array(repository.readonly_session(branch="main").store, path=ARRAY, mode="r")


# ---------------------------------------------------------------- arrays with very many references

@dataclass(frozen=True)
class ReferenceArray:
    """A three-dimensional array of one-byte chunks that are virtual references: nothing reads them, all is about names.

    Virtual ones are made in seconds, while a million inline chunks go through zarr one by one.
    """

    grid: tuple[int, int, int]
    repo: Path

    @property
    def references(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def files(self) -> int:
        return self.references + 2  # a zarr.json for the array and one for the group around it

    def file(self, tree: Path, position: int) -> str:
        row, last = divmod(position, self.grid[2])
        first, second = divmod(row, self.grid[1])
        return f"{tree}/{ARRAY}/c/{first}/{second}/{last}"


def make_reference_array(space: Workspace, grid: tuple[int, int, int], split: bool = False) -> ReferenceArray:
    array = ReferenceArray(grid, space.repo(("split-" if split else "refs-") + "x".join(map(str, grid))))
    session = create_repository(array.repo, split).writable_session("main")
    zarr.create_group(session.store).create_array(
        ARRAY, shape=grid, chunks=(1, 1, 1), dtype="int8", compressors=None, fill_value=0)
    specs = (virtual_chunk(index, grid) for index in itertools.product(*map(range, grid)))
    while batch := list(itertools.islice(specs, REF_BATCH)):
        session.store.set_virtual_refs(f"/{ARRAY}", batch, validate_containers=False)
    session.commit("references")
    os.sync()
    return array


def virtual_chunk(index: tuple[int, ...], grid: tuple[int, int, int]) -> icechunk.VirtualChunkSpec:
    """One byte of a file per first index, as of a data set with a file per day. The files do not exist."""
    first, second, third = index
    return icechunk.VirtualChunkSpec(list(index), f"s3://nowhere/{first:03}.nc", second * grid[2] + third, 1)


def make_plain_references(space: Workspace, array: ReferenceArray) -> Path:
    """Creates the files of the array on disk, as many names for a few empty files, to be walked only.

    A walk with find takes names and types from the folders and never looks at a file, so that these names cost it what
    names of a million separate files would. But those would take minutes to make on an ext4 where many files were removed
    a short while ago, as this benchmark does at its end: it takes care not to use their inodes again too soon.
    """
    tree = space.plain(array.repo.name)
    chunks = tree / ARRAY / "c"
    chunks.mkdir(parents=True)
    for document in (tree / "zarr.json", tree / ARRAY / "zarr.json"):
        document.touch()
    for first in range(array.grid[0]):
        # One file for each: a file can have 65,000 names on ext4, and there are 10,000 here.
        content = chunks / str(first) / "0" / "0"
        for second in range(array.grid[1]):
            folder = f"{chunks}/{first}/{second}"
            os.makedirs(folder)
            for third in range(array.grid[2]):
                name = f"{folder}/{third}"
                if second == third == 0:
                    content.touch()
                else:
                    os.link(content, name)
    os.sync()
    return tree
