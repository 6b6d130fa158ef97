"""Measure reading over a network: a server of Amazon's protocol behind a line with a round trip and a bandwidth.

`scripts/bench-remote` calls this in its environment. One program opens one chunk after another, as legacy programs do, through a
mount; beside it, in the same run, the same without fetching ahead, and icechunk's own client chunk by chunk and all at once.
Sides take turns; medians are printed; "ratio" is our speed as a part of the baseline's.

The line is a program of this folder and runs on the same machine: at a gigabit a second it takes a good part of a core.
"""
import argparse
import itertools
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("ICECHUNK_LOG", "error")

import icechunk  # noqa: E402
import numpy as np  # noqa: E402
import zarr  # noqa: E402

from common import in_turn, say  # noqa: E402
from report import Baseline, Report, Target, Unit, at_least  # noqa: E402

GRID = (16, 16)
CHUNK = 1 << 20
SLOW = 48  # chunks for sides that wait for each
MB_PER_S = Unit("MB/s", 1, more_is_better=True)
OF_LINE = Unit("of the line", 2, more_is_better=True)
BUCKET, ARRAY = "bench", "a"
KEYS = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "only-a-benchmark", "AWS_REGION": "us-east-1"}
HERE = Path(__file__).resolve().parent
SERVER = HERE.parent / "target" / "tools" / "bin" / "s3s-fs"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def program(*words: object):
    """Runs until the end of the block."""
    process = subprocess.Popen([str(word) for word in words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing answers at port {port}")


def native(port: int) -> icechunk.Storage:
    return icechunk.s3_storage(
        bucket=BUCKET, prefix="repo", endpoint_url=f"http://127.0.0.1:{port}", allow_http=True, force_path_style=True,
        region=KEYS["AWS_REGION"], access_key_id=KEYS["AWS_ACCESS_KEY_ID"], secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"])


def make(port: int) -> None:
    say(f"writing {GRID[0] * GRID[1]} chunks of {CHUNK >> 20} MiB")
    repository = icechunk.Repository.create(native(port))
    session = repository.writable_session("main")
    array = zarr.create_array(session.store, name=ARRAY, shape=(*GRID, CHUNK), chunks=(1, 1, CHUNK), dtype="u1", compressors=None)
    values = np.frombuffer(np.random.default_rng(1).bytes(CHUNK), dtype="u1")
    for row in range(GRID[0]):
        array[row] = np.stack([np.roll(values, row * GRID[1] + column) for column in range(GRID[1])])
    session.commit("values")


def orders() -> dict[str, list[tuple[int, int]]]:
    rows_first = list(itertools.product(range(GRID[0]), range(GRID[1])))
    by_columns = [(row, column) for column in range(GRID[1]) for row in range(GRID[0])]
    return {"one after another": rows_first, "along the other axis": by_columns, "every second": rows_first[::2],
            "in no order": random.Random(7).sample(rows_first, SLOW)}


def through_mount(binary: Path, port: int, order: list[tuple[int, int]], *words: str) -> float:
    """Megabytes a second, the mount's beginning not counted."""
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as place:
        environment = os.environ | KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        subprocess.run([binary, "mount", f"s3://{BUCKET}/repo", place, "--read-only", *words], env=environment, check=True,
                       stdout=subprocess.DEVNULL)
        try:
            begin, count = time.perf_counter(), 0
            for row, column in order:
                with open(f"{place}/{ARRAY}/c/{row}/{column}/0", "rb", buffering=0) as chunk:
                    count += len(chunk.read())
            taken = time.perf_counter() - begin
        finally:
            subprocess.run([binary, "unmount", place], check=True, stdout=subprocess.DEVNULL)
    if count != len(order) * CHUNK:
        raise SystemExit(f"{count} bytes were read, not {len(order) * CHUNK}")
    return count / taken / 1e6


def through_client(port: int, order: list[tuple[int, int]] | None) -> float:
    """icechunk's own client: chunk by chunk, or the whole array at once."""
    session = icechunk.Repository.open(native(port)).readonly_session("main")
    array = zarr.open_array(session.store, path=ARRAY, mode="r")
    begin = time.perf_counter()
    count = array[:].size if order is None else sum(array[row, column].size for row, column in order)
    return count / (time.perf_counter() - begin) / 1e6


def compare(report: Report, binary: Path, port: int, round_trip: float, gbit: float, runs: int) -> None:
    line = gbit * 1e9 / 8 / 1e6
    for name, order in orders().items():
        ordered = name != "in no order"
        sides = {"ours": lambda order=order: through_mount(binary, port, order),
                 "alone": lambda order=order: through_mount(binary, port, order[:SLOW], "--ahead", "0")}
        if name == "one after another":
            sides["client"] = lambda order=order: through_client(port, order[:SLOW])
            sides["whole"] = lambda: through_client(port, None)
        samples = in_turn(runs, sides)
        label = f"{round_trip:g} ms, {name}"
        at_30 = round_trip == 30
        target = at_least(4.0 if ordered else 0.95) if at_30 else None
        report.add(label, MB_PER_S, samples["ours"], Baseline("without --ahead", samples["alone"]), target)
        if "client" in samples:
            report.add(label, MB_PER_S, samples["ours"], Baseline("icechunk, chunk by chunk", samples["client"]),
                       at_least(4.0) if at_30 else None)
            report.add(label, MB_PER_S, samples["ours"], Baseline("icechunk, all at once", samples["whole"]))
        if ordered:
            report.add(label, OF_LINE, [sample / line for sample in samples["ours"]], None,
                       Target("ours", 0.85) if at_30 else None)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench-remote", description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--round-trip", type=float, action="append", metavar="MS", help="repeatable [0, 10, 30, 100]")
    parser.add_argument("--gbit", type=float, default=1.0, help="bandwidth of each direction, Gbit/s [1]")
    parser.add_argument("--runs", type=int, default=5, help="runs per comparison [5]")
    chosen = parser.parse_args()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as root:
        (Path(root) / BUCKET).mkdir()
        port = free_port()
        with program(SERVER, "--access-key", KEYS["AWS_ACCESS_KEY_ID"], "--secret-key", KEYS["AWS_SECRET_ACCESS_KEY"],
                     "--host", "127.0.0.1", "--port", port, root):
            wait_for(port)
            make(port)
            for round_trip in chosen.round_trip or [0, 10, 30, 100]:
                far = free_port()
                with program(sys.executable, HERE / "line.py", far, port, round_trip, chosen.gbit):
                    wait_for(far)
                    compare(report, chosen.binary, far, round_trip, chosen.gbit, chosen.runs)
    sys.exit(1 if any(result.verdict == "MISSED" for result in report.results) else 0)


if __name__ == "__main__":
    main()
