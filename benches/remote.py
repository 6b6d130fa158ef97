"""Measure icechunkfs over a network against its alternatives. `scripts/bench-remote` calls this in its environment.

A server of Amazon's protocol is behind a line with a round trip and a bandwidth. One array of chunks of 1 MiB is in its bucket
twice: in a repository, and as plain Zarr for those that know no other. One program opens one chunk after another, as legacy
programs do: through our mount, through rclone's and s3fs's, and chunk by chunk through zarr-python's stores. All go
over the same line to the same server in the same run and take turns; medians are printed. "Ratio" is our speed as a part of the
baseline's. Slow sides read fewer chunks, fewer times, and what has no target is measured fewer times. A mount is new for each
sample; how long it takes to mount is measured apart.

Server, line, mount and reader share this machine. "the line itself" is what parallel requests get over it here, the most that any
side can have; if that is below the line's bandwidth, the machine is what is measured.

Exit status: 0, or 1 if a target was missed (not with --quick), or 2 if something failed.
"""
import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("ICECHUNK_LOG", "error")  # read when icechunk is imported

import icechunk  # noqa: E402
import numpy as np  # noqa: E402
import obstore  # noqa: E402
import zarr  # noqa: E402

import contention  # noqa: E402
import far  # noqa: E402
import peers  # noqa: E402
import remote_small  # noqa: E402
import remote_writing  # noqa: E402
from common import SMALL_CHUNK, end_with, in_turn, say  # noqa: E402
from far import ARRAY, CHUNK, Line, Request, Server, depth  # noqa: E402
from harness import BenchError, run  # noqa: E402
from peers import Order, arrays, ours, read_chunks, read_files, read_rows, read_whole  # noqa: E402
from report import MIB, MS, S, Baseline, Report, Target, Unit, at_least  # noqa: E402

warnings.filterwarnings("ignore")

MB_PER_S = Unit("MB/s", 1, more_is_better=True)
OF_LINE = Unit("of the line", 2, more_is_better=True)
DEEP = Unit("requests deep", 0)
REQUESTS = Unit("requests", 0)

HELD_AT = 30.0  # ms: the round trip for which there are targets
OF_LINE_BOUND = 0.85
OF_LINE_NETCDF = 0.8
TIMES_AS_FAST = 4.0
NO_WORSE = 0.95  # of the speed without fetching ahead, where nothing can be foreseen
MORE_BYTES = 1.10
FIRST_BYTE_MS, FIRST_BYTE_DEEP = 250, 4
WRITE_TIMES = 10.0
CACHED = 0.85

ALONE = "--ahead 0"
NATIVE, OBSTORE = "icechunk, chunk by chunk", "zarr over obstore, chunk by chunk"
CHECKED = 200  # chunks of those written that are looked at again
PARALLEL = 32  # requests at once, to see what the line can carry


@dataclass(frozen=True)
class Sizes:
    grid: tuple[int, int]
    slow: dict[float, int]  # chunks that a side reads that waits for each, by the round trip up to which
    random: int
    written: int  # chunks of SMALL_CHUNK
    references: bool


FULL = Sizes((16, 32), {5: 96, 20: 48, 50: 32, 1000: 12}, 64, 20_000, True)
QUICK = Sizes((4, 8), {1000: 6}, 6, 200, False)


@dataclass
class Bench:
    """Everything that a comparison needs."""

    binary: Path
    server: Server
    line: Line
    sizes: Sizes
    runs: int
    slow_runs: int
    report: Report
    held: bool  # whether targets count here
    writers: list[int]
    failed: dict[str, str] = field(default_factory=dict)

    def name(self, what: str) -> str:
        return f"{self.line.round_trip:g} ms, {what}"

    @property
    def slow(self) -> int:
        return next(count for most, count in self.sizes.slow.items() if self.line.round_trip <= most)

    def target(self, target: Target) -> Target | None:
        return target if self.held else None

    def add(self, what: str, unit: Unit, our: list[float], baseline: Baseline | None = None, target: Target | None = None):
        self.report.add(self.name(what), unit, our, baseline, target and self.target(target))

    def ours(self, order: Order, *words: str) -> float:
        with ours(self.binary, self.line.port, *words) as tree:
            return read_files(tree, order)

    def orders(self) -> dict[str, Order]:
        rows, columns = self.sizes.grid
        by_rows = list(itertools.product(range(rows), range(columns)))
        by_columns = [(row, column) for column in range(columns) for row in range(rows)]
        return {"rows": by_rows, "columns": by_columns, "second": by_rows[::2],
                "random": random.Random(7).sample(by_rows, self.sizes.random)}


# ---------------------------------------------------------------- reading

def the_line(bench: Bench) -> None:
    """Measures parallel requests over the line: the maximum rate."""
    store = far.objects(bench.line.port, far.PLAIN)
    paths = [f"{ARRAY}/c/{row}/{column}/0" for row, column in bench.orders()["rows"]]

    async def fetch() -> int:
        turn = asyncio.Semaphore(PARALLEL)

        async def one(path: str) -> int:
            async with turn:
                return len(await obstore.get_range_async(store, path, start=0, length=CHUNK))
        return sum(await asyncio.gather(*map(one, paths)))

    def once() -> float:
        begin = time.perf_counter()
        return asyncio.run(fetch()) / (time.perf_counter() - begin) / 1e6
    samples = [once() for _ in range(bench.slow_runs)]
    bench.add("the line itself", OF_LINE, [sample / bench.line.megabytes_per_second for sample in samples])


def rows(bench: Bench) -> None:
    """One chunk after another, in stored order."""
    one_by_one(bench, "rows", "one after another", everybody=True)


def columns(bench: Bench) -> None:
    """One chunk after another along the other axis."""
    one_by_one(bench, "columns", "along the other axis", everybody=bench.held)


def second(bench: Bench) -> None:
    """Every second chunk."""
    one_by_one(bench, "second", "every second", everybody=bench.held)


def netcdf(bench: Bench) -> None:
    """The array as a variable of a NetCDF file, read by netCDF4-python from its beginning to its end."""
    import netCDF4  # netCDF-C brings a libcurl of its own
    rows, columns = bench.sizes.grid

    def once() -> float:
        with ours(bench.binary, bench.line.port, "--view", "netcdf") as tree, netCDF4.Dataset(next(tree.glob("*.nc"))) as file:
            variable = file[ARRAY]
            variable.set_auto_maskandscale(False)
            begin = time.perf_counter()
            read = sum(variable[row].nbytes for row in range(rows))
            taken = time.perf_counter() - begin
            if read != rows * columns * CHUNK:
                raise BenchError("the variable has another size")
            return read / taken / 1e6 / bench.line.megabytes_per_second
    bench.add("netcdf file, one after another", OF_LINE, [once() for _ in range(bench.runs)], None,
              Target("ours", OF_LINE_NETCDF))


def one_by_one(bench: Bench, which: str, words: str, everybody: bool) -> None:
    """`everybody`: or else only our own way without fetching ahead is the baseline."""
    order = bench.orders()[which]
    few, port = order[:bench.slow], bench.line.port
    slow: dict[str, Callable[[], float]] = {ALONE: lambda: bench.ours(few, "--ahead", "0")}
    if everybody:
        for name, mount in peers.MOUNTS.items():
            if peers.installed(name):
                slow[name] = lambda mount=mount: through(mount, port, few)
            else:
                bench.report.skip(bench.name(name), "not installed (apt-get install rclone s3fs)")
        slow[NATIVE] = lambda: read_chunks(arrays(port)["icechunk"], few)
        slow[OBSTORE] = lambda: read_chunks(arrays(port)["obstore"], few)
    samples = {name: [] for name in slow} | {"ours": []}
    for turn in range(bench.runs if bench.held else bench.slow_runs):
        sides = {"ours": lambda: bench.ours(order)} | (slow if turn < bench.slow_runs else {})
        for name, values in in_turn(1, sides).items():
            samples[name] += values
    line = bench.line.megabytes_per_second
    bench.add(words, OF_LINE, [sample / line for sample in samples["ours"]], None, Target("ours", OF_LINE_BOUND))
    for name in slow:
        bench.add(words, MB_PER_S, samples["ours"], Baseline(name, samples[name]), at_least(TIMES_AS_FAST))


def through(mount, port: int, order: Order) -> float:
    with mount(port) as tree:
        return read_files(tree, order)


def no_order(bench: Bench) -> None:
    """Chunks in random order: prefetch cannot predict them, and must not cost much."""
    order = bench.orders()["random"]
    moved: dict[str, list[float]] = {"ours": [], ALONE: []}

    def counted(name: str, *words: str) -> float:
        bench.line.take()
        speed = bench.ours(order, *words)
        moved[name].append(sum(request.down for request in bench.line.take()) / (1 << 20))
        return speed
    samples = in_turn(bench.runs, {"ours": lambda: counted("ours"), ALONE: lambda: counted(ALONE, "--ahead", "0")})
    bench.add("in no order", MB_PER_S, samples["ours"], Baseline(ALONE, samples[ALONE]), at_least(NO_WORSE))
    bench.add("in no order, moved", MIB, moved["ours"], Baseline(ALONE, moved[ALONE]), at_least(1 / MORE_BYTES))


def cached(bench: Bench) -> None:
    """From the cache on a disk, each time by a new mount, beside the same chunks as plain files on that disk."""
    order = bench.orders()["rows"]
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as folder:
        cache, plain = ("--cache", f"{folder}/cache"), Path(folder, "plain")
        with ours(bench.binary, bench.line.port, *cache) as tree:
            for row, column in order:
                copy = plain / ARRAY / "c" / str(row) / str(column) / "0"
                copy.parent.mkdir(parents=True)
                copy.write_bytes((tree / ARRAY / "c" / str(row) / str(column) / "0").read_bytes())
            shutil.copy(tree / ARRAY / "zarr.json", plain / ARRAY)
        bench.line.take()
        first = {"passthrough": [], "cached": []}
        again = {"passthrough": [], "cached": []}

        def by_zarr(tree: Path) -> float:
            return read_whole(zarr.open_array(f"{tree}/{ARRAY}", mode="r"))

        def zarr_cached() -> float:
            with ours(bench.binary, bench.line.port, *cache) as tree:
                return by_zarr(tree)

        def twice(mode: str) -> float:
            with ours(bench.binary, bench.line.port, *cache, "--io", mode) as tree:
                first[mode].append(read_files(tree, order))
                again[mode].append(read_files(tree, order))
            return 0
        sides = {mode: lambda mode=mode: twice(mode) for mode in first}
        samples = in_turn(bench.runs, sides | {"plain": lambda: read_files(plain, order)})
        requests = len(bench.line.take()) / bench.runs / len(first)
        bench.add("a warm mount and all chunks", REQUESTS, [requests])
        for mode in first:
            beside = Baseline("plain files", samples["plain"])
            bench.add(f"cache, {mode}, first", MB_PER_S, first[mode], beside)
            bench.add(f"cache, {mode}, again", MB_PER_S, again[mode], beside)
        samples = in_turn(bench.runs, {"ours": zarr_cached, "plain": lambda: by_zarr(plain)})
        bench.add("cache, zarr-python", MB_PER_S, samples["ours"], Baseline("plain files", samples["plain"]), at_least(CACHED))


def zarr_rows(bench: Bench) -> None:
    """zarr-python: a row of chunks at a time, and the whole array."""
    port, count = bench.line.port, min(bench.sizes.grid[0], 8)

    def mounted(read: Callable[[zarr.Array], float]) -> float:
        with ours(bench.binary, port) as tree:
            return read(zarr.open_array(f"{tree}/{ARRAY}", mode="r"))
    ways = {"zarr, row by row": lambda array: read_rows(array, count), "zarr, the whole": read_whole}
    for words, read in ways.items():
        sides = {"ours": lambda: mounted(read), "icechunk": lambda: read(arrays(port)["icechunk"]),
                 "zarr over obstore": lambda: read(arrays(port)["obstore"])}
        samples = in_turn(bench.slow_runs, sides)
        for name in ("icechunk", "zarr over obstore"):
            bench.add(words, MB_PER_S, samples["ours"], Baseline(name, samples[name]))


# ---------------------------------------------------------------- mounting

def first_byte(bench: Bench) -> None:
    """From `mount` to the first byte of a chunk, among a million references."""
    if not bench.sizes.references:
        bench.report.skip(bench.name("first byte"), "a million references take a while to make")
        return
    among_references(bench, far.REFERENCES, "first byte")
    among_references(bench, far.SPLIT, "first byte, split")


def among_references(bench: Bench, prefix: str, words: str) -> None:
    port, seen = bench.line.port, []

    def mounted() -> float:
        bench.line.take()
        begin = time.perf_counter()
        with ours(bench.binary, port, prefix=prefix) as tree:
            with open(f"{tree}/{ARRAY}/c/0/0/0", "rb", buffering=0) as chunk:
                chunk.read(1)
            taken = time.perf_counter() - begin
            seen.append(bench.line.take())
        return taken * 1e3

    def native() -> float:
        begin = time.perf_counter()
        session = icechunk.Repository.open(far.storage(port, prefix)).readonly_session("main")
        zarr.open_array(session.store, path=ARRAY, mode="r")[0, 0, 0]
        return (time.perf_counter() - begin) * 1e3
    samples = in_turn(bench.runs, {"ours": mounted, "icechunk": native})
    bench.add(words, MS, samples["ours"], Baseline("icechunk", samples["icechunk"]),
              Target("ours", FIRST_BYTE_MS, more_is_better=False))
    bench.add(f"{words}, depth", DEEP, [depth(requests) for requests in seen], None,
              Target("ours", FIRST_BYTE_DEEP + 1, more_is_better=False))
    bench.add(f"{words}, requests", REQUESTS, [len(requests) for requests in seen])
    for request in sorted(seen[-1], key=lambda request: request.begin):
        say(told(request, seen[-1]))


def told(request: Request, among: list[Request]) -> str:
    start = min(other.begin for other in among)
    return (f"  {(request.begin - start) / 1e3:6.1f} to {(request.end - start) / 1e3:6.1f} ms  {request.down:9} bytes  "
            f"{request.words.replace(chr(9), ' ')[:100]}")


# ---------------------------------------------------------------- writing

def write(bench: Bench) -> None:
    """Small chunks written, and the commit."""
    count = bench.sizes.written
    values = np.frombuffer(np.random.default_rng(3).bytes(count * SMALL_CHUNK), dtype="u1")
    port, number = bench.line.port, itertools.count()
    parts: dict[str, list[float]] = {"commit": [], "requests": []}

    def repository() -> str:
        prefix = f"written-{bench.line.round_trip:g}-{next(number)}"
        icechunk.Repository.create(far.storage(bench.server.port, prefix))
        return prefix

    def create(store) -> zarr.Array:
        return zarr.create_array(store, name=ARRAY, shape=values.shape, chunks=(SMALL_CHUNK,), dtype="u1", compressors=None,
                                 fill_value=0)

    def mounted(by_zarr: bool) -> float:
        prefix = repository()
        with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-scratch-") as scratch, \
                ours(bench.binary, port, "--scratch", scratch, prefix=prefix) as tree:
            begin = time.perf_counter()
            array = create(str(tree))
            if by_zarr:
                array[:] = values
            else:
                (tree / ARRAY / "c").mkdir()
                for index in range(count):
                    with open(f"{tree}/{ARRAY}/c/{index}", "wb", buffering=0) as chunk:
                        chunk.write(values[index * SMALL_CHUNK:(index + 1) * SMALL_CHUNK])
            written = time.perf_counter()
            bench.line.take()
            run([bench.binary, "commit", tree, "-m", "chunks"])
            end = time.perf_counter()
            if not by_zarr:
                parts["commit"].append(end - written)
                parts["requests"].append(len(bench.line.take()))
        check(prefix)
        return end - begin

    def check(prefix: str) -> None:
        session = icechunk.Repository.open(far.storage(bench.server.port, prefix)).readonly_session("main")
        every = SMALL_CHUNK * max(count // CHECKED, 1)
        if not np.array_equal(zarr.open_array(session.store, path=ARRAY, mode="r")[::every], values[::every]):
            raise BenchError(f"{prefix}: what was committed is not what was written")

    def native() -> float:
        prefix = repository()
        begin = time.perf_counter()
        session = icechunk.Repository.open(far.storage(port, prefix)).writable_session("main")
        create(session.store)[:] = values
        session.commit("chunks")
        return time.perf_counter() - begin
    samples = in_turn(bench.slow_runs, {"ours": lambda: mounted(False)})
    samples |= in_turn(1, {"zarr": lambda: mounted(True), "icechunk": native})
    bench.add(f"write {count} chunks", S, samples["ours"], Baseline("icechunk", samples["icechunk"]), at_least(WRITE_TIMES))
    bench.add("of that, the commit", S, parts["commit"], Baseline("icechunk, all", samples["icechunk"]))
    bench.add("of that, requests", REQUESTS, parts["requests"])
    bench.add("write, by zarr-python", S, samples["zarr"], Baseline("icechunk", samples["icechunk"]))


def large_commit(bench: Bench) -> None:
    """A commit of 1 GiB in chunks of 4 MiB, which are uploaded before it or by it."""
    remote_writing.measure(bench.report, bench.binary, far.BUCKET, far.environment(bench.line.port), bench.line.round_trip,
                           bench.line.gbit, bench.slow_runs)


def small_chunks(bench: Bench) -> None:
    """Chunks of 4 KiB, packed by us, one after another."""
    remote_small.measure(bench, bench.sizes.written)


def many_writers(bench: Bench) -> None:
    """Commits of several writers to one branch, each with a mount and an array of its own."""
    contention.measure(bench.report, bench.binary, bench.server.port, bench.line.port, bench.line.round_trip, bench.writers,
                       5 if bench.sizes is QUICK else 20)


COMPARISONS: dict[str, Callable[[Bench], None]] = {
    "line": the_line, "rows": rows, "columns": columns, "second": second, "netcdf": netcdf, "random": no_order, "cache": cached, "zarr": zarr_rows,
    "first": first_byte, "write": write, "commit": large_commit, "small": small_chunks,
    "contention": many_writers}
ONCE = {"cache", "zarr", "first", "write", "commit", "small", "contention"}  # at the round trip that has targets only, unless asked for


# ---------------------------------------------------------------- the run

def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench-remote", description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help=argparse.SUPPRESS)  # scripts/bench-remote knows it
    parser.add_argument("--only", action="append", choices=COMPARISONS, metavar="NAME",
                        help=f"only this comparison; may be repeated: {', '.join(COMPARISONS)}")
    parser.add_argument("--round-trip", type=float, action="append", metavar="MS", help="repeatable [0, 10, 30, 100]")
    parser.add_argument("--gbit", type=float, default=1.0, help="bandwidth of each direction, Gbit/s [1]")
    parser.add_argument("--runs", type=int, metavar="N", help="our runs per comparison [5]")
    parser.add_argument("--slow-runs", type=int, metavar="N", help="runs of sides that wait for each chunk [3]")
    parser.add_argument("--writers", type=int, action="append", metavar="N",
                        help="writers that commit at the same time; repeatable [1, 2, 4 ... 256]")
    parser.add_argument("--quick", action="store_true", help="small data: to see that it works, not to measure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here too")
    chosen = parser.parse_args()
    chosen.runs = chosen.runs or (2 if chosen.quick else 5)
    chosen.slow_runs = chosen.slow_runs or (1 if chosen.quick else 3)
    chosen.round_trip = chosen.round_trip or ([HELD_AT] if chosen.quick else [0.0, 10.0, HELD_AT, 100.0])
    chosen.writers = chosen.writers or ([1, 4] if chosen.quick else [2 ** n for n in range(9)])
    return chosen


def about(chosen: argparse.Namespace) -> dict:
    """Returns the facts that are needed to compare these numbers with others."""
    said = {name: run([name, "--version"]).splitlines()[0] for name in peers.MOUNTS if peers.installed(name)}
    return {
        "program": run([chosen.binary, "--version"]).strip(),
        "quick": chosen.quick, "runs": chosen.runs, "slow_runs": chosen.slow_runs, "gbit": chosen.gbit,
        "kernel": platform.release(), "cores": len(os.sched_getaffinity(0)), "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(), "peers": said,
        "packages": {name: version(name) for name in ("icechunk", "zarr", "numpy", "obstore")},
    }


def measure(chosen: argparse.Namespace) -> int:
    facts, report, failed = about(chosen), Report(), {}
    sizes = QUICK if chosen.quick else FULL
    names = chosen.only or list(COMPARISONS)
    say(json.dumps(facts))
    with far.server() as server:
        if set(names) & {"line", "rows", "columns", "second", "netcdf", "random", "cache", "zarr"}:
            far.make_arrays(server, sizes.grid)
        if "first" in names and sizes.references:
            for prefix in (far.REFERENCES, far.SPLIT):
                far.make_references(server, prefix)
        os.sync()
        for round_trip in chosen.round_trip:
            with far.line(server, round_trip, chosen.gbit) as line:
                bench = Bench(chosen.binary, server, line, sizes, chosen.runs, chosen.slow_runs, report,
                              held=round_trip == HELD_AT and not chosen.quick,
                              writers=chosen.writers)
                for name in names:
                    if name in ONCE and round_trip != HELD_AT and not chosen.only:
                        continue
                    say(f"{round_trip:g} ms, {name}: {COMPARISONS[name].__doc__.splitlines()[0]}")
                    try:
                        COMPARISONS[name](bench)
                    except Exception as error:  # the others may still work
                        failed[bench.name(name)] = f"{type(error).__name__}: {error}"
                        print(f"{bench.name(name):<28} FAILED: {error}", flush=True)
                        if not isinstance(error, BenchError):
                            traceback.print_exc()
    if chosen.json:
        report.write_json(chosen.json, {**facts, "failed": failed})
    if missed := report.missed():
        print(f"missed: {', '.join(missed)}")
    return 2 if failed else 1 if missed else 0


def end_politely(number: int, _frame: object) -> None:
    """A signal becomes an exception, so that mounts, server and line are removed."""
    raise SystemExit(128 + number)


def main() -> int:
    chosen = arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants it ignored
            signal.signal(number, end_politely)
    try:
        return measure(chosen)
    except (BenchError, subprocess.SubprocessError) as error:
        print(f"scripts/bench-remote: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    end_with(main)
