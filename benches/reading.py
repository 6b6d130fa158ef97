"""Comparisons of reading, through read-only mounts."""
import contextlib
import functools
import gc
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorstore

import data
from common import (
    MEGA, NATIVE, PLAIN_FIND, PLAIN_WARM, Bench, gigabytes_per_second, in_turn, say, scaled, seconds_of)
from data import ChunkedArray, ReferenceArray
from harness import BenchError, Mount, Skipped, User, read_files, run, same_trees
from report import GB_PER_S, MIB, MS, S, US, US_PER_FILE, Baseline, Target, Unit, at_least

WARM_SECONDS = 0.5  # how long one run of warm passes over small files lasts at least
LOOKUPS = 1000  # files that are looked up right after a mount


# ---------------------------------------------------------------- small files, warm

def open4k(bench: Bench) -> None:
    """open, read and close of small chunk files, in every I/O mode."""
    modes = ["auto", "cached"] + (["passthrough"] if os.geteuid() == 0 else [])
    samples = small_files(bench, "read", modes)
    baseline = Baseline(PLAIN_WARM, samples.pop("plain"))
    for mode in modes:
        # Only the default mode has a target.
        bench.report.add(f"open4k --io {mode}", US_PER_FILE, samples[mode], baseline,
                         at_least(0.75) if mode == "auto" else None)
    if "passthrough" not in modes:
        bench.report.skip("open4k --io passthrough", "it needs root")


def stat4k(bench: Bench) -> None:
    """stat of small chunk files."""
    samples = small_files(bench, "stat", ["auto"])
    bench.report.add("stat4k", US_PER_FILE, samples["auto"], Baseline(PLAIN_WARM, samples["plain"]), at_least(0.9))


def small_files(bench: Bench, operation: str, modes: list[str]) -> dict[str, list[float]]:
    """Microseconds per file for each mode and for the plain tree, in turn, all mounted at the same time."""
    array = bench.small
    with contextlib.ExitStack() as mounts:
        trees = {mode: mounts.enter_context(bench.mount(array, mode)).path for mode in modes}
        trees["plain"] = array.plain

        def side(name: str, tree: Path) -> Callable[[], float]:
            files = bench.space.list_file(f"{array.name}-{name}", array.files(tree))

            def measure() -> float:
                passes = read_files(bench.space, operation, files, array.chunk_bytes, warm=1, seconds=WARM_SECONDS)
                return statistics.median(a_pass.whole for a_pass in passes) / array.chunks * 1e6

            return measure

        samples = in_turn(bench.runs, {name: side(name, tree) for name, tree in trees.items()})
        for mode in modes:
            same_trees(trees[mode], array.plain)
    return samples


# ---------------------------------------------------------------- Python programs, warm

# These read in this process, all sides in the same one: after one reading of each side that does not count, what
# is left of start-up (imports, threads, event loops, pools of memory) is the same for all of them.

def zarr4m(bench: Bench) -> None:
    """zarr-python reads large chunks by path."""
    with bench.mount(bench.large) as mount:
        samples = read_in_turn(bench, bench.large, whole_by_path(bench.large, mount))
    report_large(bench, "zarr4m", samples, at_least(0.95))


def tensorstore4m(bench: Bench) -> None:
    """tensorstore reads large chunks by path."""
    with bench.mount(bench.large) as mount:
        sides = {"ours": whole_of_tensorstore(mount.path), "plain": whole_of_tensorstore(bench.large.plain)}
        samples = read_in_turn(bench, bench.large, sides)
    report_large(bench, "tensorstore4m", samples, at_least(0.9))


def native4m(bench: Bench) -> None:
    """zarr-python reads large chunks: through the mount against icechunk's own store."""
    compare_with_native(bench, "native4m", GB_PER_S, bench.large, 1.3)


def native4k(bench: Bench) -> None:
    """zarr-python reads small chunks: through the mount against icechunk's own store.

    Once chunk after chunk, as a program that knows nothing of concurrency does, and once all at once, where zarr-python
    has ten chunks under way and its own threads are the bottleneck.
    """
    compare_with_native(bench, "native4k one by one", MS, bench.native_small, 1.1, one_by_one)
    compare_with_native(bench, "native4k all at once", MS, bench.native_small, 1.1)


def report_large(bench: Bench, name: str, seconds: dict[str, list[float]], target: Target) -> None:
    speeds = {side: gigabytes_per_second(bench.large.total_bytes, taken) for side, taken in seconds.items()}
    bench.report.add(name, GB_PER_S, speeds["ours"], Baseline(PLAIN_WARM, speeds["plain"]), target)


def compare_with_native(bench: Bench, name: str, unit: Unit, array: ChunkedArray, target: float,
                        how: Callable[[object], Callable[[], object]] | None = None) -> None:
    how = how or whole_of
    with bench.mount(array) as mount:
        sides = {"ours": how(data.open_path(mount.path)), "plain": how(data.open_path(array.plain)),
                 "native": how(data.open_native(array.repo))}
        seconds = read_in_turn(bench, array, sides)
    samples = {side: gigabytes_per_second(array.total_bytes, taken) if unit is GB_PER_S else scaled(1e3, taken)
               for side, taken in seconds.items()}
    baseline = Baseline(NATIVE, samples["native"])
    bench.report.add(name, unit, samples["ours"], baseline, at_least(target))
    # The limit of any mount: where this is below the target, zarr-python is slow.
    bench.report.add(f"{name} (by plain tree)", unit, samples["plain"], baseline)


def whole_by_path(array: ChunkedArray, mount: Mount) -> dict[str, Callable[[], object]]:
    return {"ours": whole_of(data.open_path(mount.path)), "plain": whole_of(data.open_path(array.plain))}


def whole_of(opened) -> Callable[[], object]:
    return lambda: opened[:]


def one_by_one(opened) -> Callable[[], object]:
    step = opened.chunks[0]

    def read():
        return np.concatenate([opened[at:at + step] for at in range(0, opened.shape[0], step)])

    return read


def whole_of_tensorstore(tree: Path) -> Callable[[], object]:
    kvstore = {"driver": "file", "path": f"{tree}/{data.ARRAY}/"}
    # No cache of its own: its context's pool has 0 bytes unless asked otherwise.
    opened = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, open=True, read=True).result()
    return lambda: opened.read().result()


def read_in_turn(bench: Bench, array: ChunkedArray, sides: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds that each side takes to read the whole array. The values are checked before that."""
    values = array.values()
    for side, read in sides.items():  # this is also the reading that does not count
        if not (read() == values).all():
            raise BenchError(f"{array.name}: wrong values from {side}")
    del values
    gc.collect()
    gc.disable()
    try:
        return in_turn(bench.runs, {side: functools.partial(seconds_of, read) for side, read in sides.items()})
    finally:
        gc.enable()


# ---------------------------------------------------------------- large files, first read

def first4m_pass(bench: Bench) -> None:
    """First read of large chunks where the kernel reads the repository's files by itself."""
    if os.geteuid() != 0:
        raise Skipped("passthrough needs root")
    samples = first_reads(bench, "passthrough", None)
    bench.report.add("first4m_pass", GB_PER_S, samples["ours"], Baseline(PLAIN_WARM, samples["plain"]), at_least(0.85))


def first4m_user(bench: Bench) -> None:
    """First read of large chunks for a user without privilege: every byte is copied through the daemon."""
    if bench.user:
        check_reachable(bench.space.root, bench.user)
    samples = first_reads(bench, "auto", bench.user)
    bench.report.add("first4m_user", GB_PER_S, samples["ours"], Baseline(PLAIN_WARM, samples["plain"]),
                     Target("ours", 1.2))


def check_reachable(folder: Path, user: User) -> None:
    """Or what the mount says would be a riddle."""
    try:
        run(["test", "-x", folder], user)
    except BenchError:
        raise BenchError(f"{user.name} may not enter {folder}: name another folder with --dir") from None


def first_reads(bench: Bench, io: str, user: User | None) -> dict[str, list[float]]:
    """GB/s of the one pass over a mount that is new each time, so that the page cache has nothing of it; what it has is
    the repository's own files, which the mount reads, and the plain tree's."""
    array = bench.large
    plain = bench.space.list_file("first-plain", array.files(array.plain))
    warm_up = bench.space.list_file("first-repository", [str(file) for file in (array.repo / "chunks").iterdir()])
    for files in (plain, warm_up):
        read_files(bench.space, "read", files, array.chunk_bytes, warm=0, seconds=0)

    def once(files: Path) -> float:
        (only,) = read_files(bench.space, "read", files, array.chunk_bytes, warm=0, seconds=0, user=user)
        return array.total_bytes / 1e9 / only.whole

    checked = False

    def ours() -> float:
        nonlocal checked
        with bench.mount(array, io, user) as mount:
            speed = once(bench.space.list_file(f"first-{io}", array.files(mount.path)))
            if not checked:
                same_trees(mount.path, array.plain, user)
                checked = True
        return speed

    return in_turn(bench.runs, {"ours": ours, "plain": lambda: once(plain)})


# ---------------------------------------------------------------- a million references

def million(bench: Bench) -> None:
    """Very many references: how soon the mount is ready, walks over it, the daemon's memory, and lookups."""
    arrays = bench.references
    ready_times(bench, arrays[-1])
    lookups(bench, arrays)
    say(f"making a plain tree of {arrays[-1].files} files")
    plain = data.make_plain_references(bench.space, arrays[-1])
    walks(bench, arrays[-1], plain)


def ready_times(bench: Bench, array: ReferenceArray) -> None:
    def ready() -> float:
        with bench.mount(array) as mount:
            return mount.ready_seconds * 1e3

    ready()  # brings the program and the repository into the page cache
    bench.report.add("million mount is ready", MS, in_turn(bench.runs, {"ours": ready})["ours"], None,
                     Target("ours", 150, more_is_better=False))


def lookups(bench: Bench, arrays: list[ReferenceArray]) -> None:
    """stat of random files of a mount that was not accessed yet, with few and with many references."""
    whole: dict[int, list[float]] = {array.references: [] for array in arrays}
    rest: dict[int, list[float]] = {array.references: [] for array in arrays}
    first: list[float] = []
    for number in range(bench.runs):
        for array in arrays:
            with bench.mount(array) as mount:
                positions = random.Random(number).sample(range(array.references), LOOKUPS)
                files = bench.space.list_file("lookups", [array.file(mount.path, at) for at in positions])
                (only,) = read_files(bench.space, "stat", files, 1, warm=0, seconds=0)
            whole[array.references].append(only.whole / LOOKUPS * 1e6)
            rest[array.references].append((only.whole - only.first) / (LOOKUPS - 1) * 1e6)
            if array is arrays[-1]:
                first.append(only.first * 1e6)
    fewest, *more = whole
    for count in more:
        # At most twice the time per file, which is half the speed.
        bench.report.add(f"million lookup in {count:,}", US_PER_FILE, whole[count],
                         Baseline(f"lookup in {fewest:,}", whole[fewest]), at_least(0.5) if count == more[-1] else None)
    # The first file pays for loading the manifest, which must grow with the references. Without a target:
    bench.report.add("million first lookup", US, first)
    bench.report.add("million lookups after it", US_PER_FILE, rest[more[-1]],
                     Baseline(f"lookups in {fewest:,}", rest[fewest]))


def walks(bench: Bench, array: ReferenceArray, plain: Path) -> None:
    """find over everything, right after the mount and again; then the daemon's memory."""
    first, second, baseline = [], [], []
    memory: dict[str, list[float]] = {"VmHWM": [], "VmRSS": []}
    find(plain, array.files)
    for _ in range(bench.runs):
        with bench.mount(array) as mount:
            first.append(find(mount.path, array.files))
            second.append(find(mount.path, array.files))
            for name, size in mount.daemon_memory().items():
                memory[name].append(size / MEGA)
        baseline.append(find(plain, array.files))
    bench.report.add("million warm walk", S, second, Baseline(PLAIN_FIND, baseline), at_least(1.0))
    # A fresh mount has nothing in the kernel's caches: its like is a tree that has to come from the disk.
    bench.report.add("million first walk", S, first, Baseline(PLAIN_FIND, baseline))
    if os.geteuid() == 0:
        ours, plainly = cold_walks(bench, array, plain)
        bench.report.add("million cold walk", S, ours, Baseline("plain tree, caches dropped", plainly), at_least(1.0))
    for name, samples in memory.items():
        bench.report.add(f"million daemon {name}", MIB, samples, None, Target("ours", 150, more_is_better=False))


def cold_walks(bench: Bench, array: ReferenceArray, plain: Path) -> tuple[list[float], list[float]]:
    """The same walks when neither the repository's files nor the plain tree's are in the page cache."""
    ours, plainly = [], []
    for _ in range(bench.runs):
        drop_caches()
        with bench.mount(array) as mount:
            ours.append(find(mount.path, array.files))
        drop_caches()
        plainly.append(find(plain, array.files))
    return ours, plainly


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def find(tree: Path, files: int) -> float:
    """Seconds that a walk takes; it must find so many files."""
    begin = time.perf_counter()
    found = int(run(["sh", "-c", 'find "$1" -type f | wc -l', "sh", tree]))
    taken = time.perf_counter() - begin
    if found != files:
        raise BenchError(f"find saw {found} files instead of {files} in {tree}")
    return taken
