"""Shared by all comparisons: the place, the sizes, the data made so far, and alternating samples."""
import functools
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import data
from data import ChunkedArray, ReferenceArray
from harness import Mount, User, Workspace
from report import Report

KIB, MEGA = 1 << 10, 1 << 20
SMALL_CHUNK = 4 * KIB
LARGE_CHUNK = 4 * MEGA

PLAIN_WARM = "plain tree (warm)"
PLAIN_FIND = "plain tree, find (warm)"
NATIVE = "icechunk's own store"


@dataclass(frozen=True)
class Sizes:
    """Amounts of data."""

    small_chunks: int  # of SMALL_CHUNK, read by readers.c
    native_small_chunks: int  # of SMALL_CHUNK, read by zarr
    large_chunks: int  # of LARGE_CHUNK
    # Grids of chunk references, few to many. All have the same first two dimensions (about), so that random files lie in
    # about as many different folders in each: else the folders that have to be looked up on the way would be
    # more in the larger ones, and hide whether a single lookup takes longer.
    grids: tuple[tuple[int, int, int], ...]
    written_small_chunks: int  # of SMALL_CHUNK, written by zarr
    copied_chunks: int  # of SMALL_CHUNK, copied by cp
    # Grids of chunk references with a manifest for each first index, few and many: the manifests are of one size.
    split_grids: tuple[tuple[int, int, int], tuple[int, int, int]]
    transferred_small: int  # of 4 KiB, by export and import
    transferred_medium: int  # of 64 KiB, by the same
    netcdf: tuple[int, int, int]  # shape of the variable of float32 in a NetCDF file
    imported_files: tuple[int, int]  # NetCDF files of an import, few for a comparison and many
    imported_bytes: int  # of chunks of one file


FULL = Sizes(16_384, 4_096, 128, ((100, 10, 1), (100, 100, 10), (100, 100, 100)), 100_000, 10_000,
             ((10, 100, 100), (100, 100, 100)), 100_000, 5_000, (248, 721, 1440), (50, 1_000), 10_000_000_000)
QUICK = Sizes(512, 128, 16, ((100, 10, 1), (100, 10, 10), (100, 10, 20)), 1_000, 200, ((5, 10, 20), (50, 10, 20)),
              1_000, 500, (36, 361, 480), (3, 6), 100_000_000)


@dataclass
class Bench:
    """The place, the sizes, and the data made so far."""

    space: Workspace
    sizes: Sizes
    runs: int
    user: User | None  # a user without privilege; none if the benchmark already runs as one
    report: Report
    full_scale: bool = True
    pictures: Path | None = None

    @functools.cached_property
    def small(self) -> ChunkedArray:
        return self._array("4k", self.sizes.small_chunks, SMALL_CHUNK)

    @functools.cached_property
    def native_small(self) -> ChunkedArray:
        return self._array("native-4k", self.sizes.native_small_chunks, SMALL_CHUNK)

    @functools.cached_property
    def large(self) -> ChunkedArray:
        return self._array("4m", self.sizes.large_chunks, LARGE_CHUNK)

    def _array(self, name: str, chunks: int, chunk_bytes: int) -> ChunkedArray:
        say(f"making {chunks} chunks of {chunk_bytes // KIB} KiB")
        return data.make_chunked_array(self.space, name, chunks, chunk_bytes)

    @functools.cached_property
    def references(self) -> list[ReferenceArray]:
        return [self.reference_array(grid) for grid in self.sizes.grids]

    def reference_array(self, grid: tuple[int, int, int], split: bool = False) -> ReferenceArray:
        say(f"making {grid[0] * grid[1] * grid[2]} references" + (f" in {grid[0]} manifests" if split else ""))
        return data.make_reference_array(self.space, grid, split)

    def mount(self, array: ChunkedArray | ReferenceArray, io: str = "auto", user: User | None = None) -> Mount:
        return Mount(self.space, array.repo, f"{array.repo.name}-{io}", io, user)


def say(words: str) -> None:
    """Prints progress to standard error, apart from the results."""
    print(f"# {words}", file=sys.stderr, flush=True)


def in_turn(runs: int, sides: dict[str, Callable[[], float]], before: Callable[[], object] = lambda: None) -> dict[str, list[float]]:
    """One sample of each side, then the next of each, and so on. Calls `before` before each round."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs):
        before()
        for name, measure in sides.items():
            samples[name].append(measure())
    return samples


def seconds_of(action: Callable[[], object]) -> float:
    """Returns the duration of `action`, without the time to free its result."""
    begin = time.perf_counter()
    result = action()
    end = time.perf_counter()
    del result
    return end - begin


def gigabytes_per_second(size: int, seconds: list[float]) -> list[float]:
    return [size / 1e9 / taken for taken in seconds]


def scaled(factor: float, samples: list[float]) -> list[float]:
    return [factor * sample for sample in samples]


def end_with(main: Callable[[], int]) -> NoReturn:
    """Runs `main` and ends with what it returns, without the interpreter's own end: icechunk has been seen to crash there."""
    try:
        status = main()
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
