"""Measure how many commits a second several writers make together, each with a mount and an array of its own.

A writer changes one chunk of its array and commits, again and again. All of them commit to one branch, so that each commit of one is a
lost race for another. The reference's client does the same: one session for each commit, with its own rebase. Both kinds also commit beside
each other, half of the writers each.

benches/remote.py has the server and the line.
"""
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import icechunk
import numpy as np
import zarr

import far
from common import say
from harness import BenchError
from report import Baseline, S, Report, Target, Unit

COMMITS_PER_S = Unit("commits/s", 2, more_is_better=True)
TIMES_MEAN = Unit("x mean", 1)
CHUNK = 2000  # bytes: more than is kept inline
TOGETHER, WAIT = 5.0, 4.0  # targets: commits a second in sum, and the longest wait as a multiple of the mean
SUM_HELD_TO = range(2, 65)  # writers
OURS, OURS_1, CLIENT, BOTH = "version 2", "version 1", "icechunk", "both kinds"
CLIENTS = 64  # of the reference that are measured at most: more take hours
Commit = Callable[[int, int], None]  # by a writer, with the number of the commit
REQUESTS = "16"  # of each mount at a time: the line has two threads for each connection


@dataclass
class Waits:
    """Seconds that each commit took, with its writer."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    by_writer: list[tuple[int, float]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def taken(self) -> list[float]:
        return [seconds for _, seconds in self.by_writer]

    def of(self, writers: range) -> "Waits":
        return Waits(by_writer=[(writer, seconds) for writer, seconds in self.by_writer if writer in writers])


def make(storage: icechunk.Storage, writers: int) -> None:
    session = icechunk.Repository.create(storage).writable_session("main")
    zarr.create_group(session.store)
    for writer in range(writers):
        zarr.create_array(session.store, name=f"a{writer}", shape=(16 * CHUNK,), chunks=(CHUNK,), dtype="u1", compressors=None)
    session.commit("arrays")


def ask(binary: Path, port: int, *words: str) -> str:
    """Returns the output of a command of ours."""
    return subprocess.run([binary, *words], env=far.environment(port), check=True, capture_output=True, text=True).stdout


def document() -> str:
    return json.dumps({
        "zarr_format": 3, "node_type": "array", "shape": [16 * CHUNK], "data_type": "uint8", "fill_value": 0, "attributes": {},
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [CHUNK]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "codecs": [{"name": "bytes"}]})


def make_by_mount(binary: Path, port: int, url: str, writers: int) -> None:
    """Makes a repository of the newest version, which the client may not know."""
    ask(binary, port, "init", url, "--zarr-group")
    with mounts(binary, far.environment(port), url, 1) as (place,):
        for writer in range(writers):
            (place / f"a{writer}").mkdir()
            (place / f"a{writer}" / "zarr.json").write_text(document())
        (place / ".icechunk" / "commit").write_text("arrays\n")


def together(writers: int, seconds: float, commit: Commit) -> tuple[Waits, float]:
    """Lets each writer commit until the time is over, and once at least. Returns the waits, and the seconds it took."""
    waits, start = Waits(), threading.Barrier(writers + 1)

    def work(writer: int) -> None:
        start.wait()
        end, number = time.perf_counter() + seconds, 0
        while time.perf_counter() < end or number == 0:
            begin = time.perf_counter()
            try:
                commit(writer, number)
            except Exception as error:
                with waits.lock:
                    waits.failed.append(f"writer {writer}: {error}")
                return
            with waits.lock:
                waits.by_writer.append((writer, time.perf_counter() - begin))
            number += 1
    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return waits, time.perf_counter() - begin


@contextmanager
def mounts(binary: Path, environment: dict[str, str], url: str, writers: int) -> Iterator[list[Path]]:
    with ExitStack() as stack:
        places = []
        for _ in range(writers):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="icechunkfs-bench-")))
            subprocess.run([binary, "mount", url, place, "--ephemeral", "--memory", "64M", "--max-requests", REQUESTS], env=environment, check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(subprocess.run, [binary, "unmount", place], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            places.append(place)
        yield places


@contextmanager
def by_mounts(binary: Path, port: int, prefix: str, writers: int) -> Iterator[Commit]:
    environment = far.environment(port) | {"TOKIO_WORKER_THREADS": "2"}
    with mounts(binary, environment, f"s3://{far.BUCKET}/{prefix}", writers) as places:
        def commit(writer: int, number: int) -> None:
            folder = places[writer] / f"a{writer}" / "c"
            folder.mkdir(exist_ok=True)
            (folder / str(number % 16)).write_bytes(os.urandom(CHUNK))
            (places[writer] / ".icechunk" / "commit").write_text(f"{writer}, {number}\n")
        yield commit


@contextmanager
def by_clients(port: int, prefix: str, writers: range) -> Iterator[Commit]:
    repositories = {writer: icechunk.Repository.open(far.storage(port, prefix)) for writer in writers}

    def commit(writer: int, number: int) -> None:
        session = repositories[writer].writable_session("main")
        array = zarr.open_array(session.store, path=f"a{writer}")
        at = number % 16 * CHUNK
        array[at:at + CHUNK] = np.frombuffer(os.urandom(CHUNK), dtype="u1")
        session.commit(f"{writer}, {number}", rebase_with=icechunk.ConflictDetector(), rebase_tries=10_000)
    yield commit


@contextmanager
def by_both(binary: Path, port: int, prefix: str, writers: int) -> Iterator[Commit]:
    with_mounts, with_clients = halves(writers)
    with by_mounts(binary, port, prefix, len(with_mounts)) as ours, by_clients(port, prefix, with_clients) as theirs:
        yield lambda writer, number: (ours if writer in with_mounts else theirs)(writer, number)


def halves(writers: int) -> tuple[range, range]:
    """The writers with mounts, and those with clients, where both kinds write."""
    return range(writers // 2), range(writers // 2, writers)


def by_side(side: str, binary: Path, port: int, prefix: str, writers: int) -> AbstractContextManager[Commit]:
    if side == CLIENT:
        return by_clients(port, prefix, range(writers))
    return (by_both if side == BOTH else by_mounts)(binary, port, prefix, writers)


def history(binary: Path, port: int, prefix: str) -> int:
    """Returns the number of commits of the branch."""
    return len(json.loads(ask(binary, port, "log", f"s3://{far.BUCKET}/{prefix}", "--json")))


def measure(report: Report, binary: Path, server_port: int, port: int, round_trip: float, numbers: list[int], seconds: float) -> None:
    """`port` is that of the line to the server at `server_port`."""
    held = round_trip == 30
    for writers in numbers:
        label, sides = f"{round_trip:g} ms, {writers} writers", {}
        for side in (OURS, OURS_1, CLIENT, BOTH):
            if writers > CLIENTS and side in (CLIENT, BOTH) or writers == 1 and side == BOTH:
                continue
            prefix = f"contention-{writers}-{time.monotonic_ns()}"
            if side == OURS:
                make_by_mount(binary, server_port, f"s3://{far.BUCKET}/{prefix}", writers)
            else:
                make(far.storage(server_port, prefix), writers)
            before = history(binary, server_port, prefix)
            with by_side(side, binary, port, prefix, writers) as commit:
                waits, taken = together(writers, seconds, commit)
            for failure in waits.failed[:5]:
                say(f"  {side}: {failure}")
            if side != CLIENT and waits.failed:
                raise BenchError(f"{label}: {len(waits.failed)} writers failed")
            if (made := history(binary, server_port, prefix) - before) != len(waits.taken):
                raise BenchError(f"{label}, {side}: {len(waits.taken)} commits succeeded, and the history has {made} more")
            sides[side] = waits, taken
        tell(report, label, sides, writers, held)
        if BOTH in sides:
            tell_both(report, label, sides[BOTH], writers)


def tell_both(report: Report, label: str, side: tuple[Waits, float], writers: int) -> None:
    """Adds what each kind made beside the other."""
    waits, taken = side
    ours, theirs = map(waits.of, halves(writers))
    rates = [[len(one.taken) / taken] for one in (ours, theirs)]
    report.add(f"{label}, {BOTH}, in sum", COMMITS_PER_S, rates[0], Baseline("icechunk", rates[1]))
    longest = [[max(one.taken)] for one in (ours, theirs)]
    report.add(f"{label}, {BOTH}, longest wait", S, longest[0], Baseline("icechunk", longest[1]))


def tell(report: Report, label: str, sides: dict[str, tuple[Waits, float]], writers: int, held: bool) -> None:
    """Adds the results of one number of writers."""
    client = sides.get(CLIENT)
    for side in (OURS, OURS_1):
        waits, taken = sides[side]
        rate, mean, longest = len(waits.taken) / taken, statistics.mean(waits.taken), max(waits.taken)
        theirs = client and client[0].taken
        name = f"{label}, {side}"
        report.add(f"{name}, in sum", COMMITS_PER_S, [rate], theirs and Baseline("icechunk", [len(theirs) / client[1]]),
                   Target("ours", TOGETHER) if held and writers in SUM_HELD_TO else None)
        report.add(f"{name}, mean wait", S, [mean], theirs and Baseline("icechunk", [statistics.mean(theirs)]))
        report.add(f"{name}, longest wait", S, [longest], theirs and Baseline("icechunk", [max(theirs)]))
        report.add(f"{name}, longest wait", TIMES_MEAN, [longest / mean], None,
                   Target("ours", WAIT, more_is_better=False) if held and writers > 1 else None)
