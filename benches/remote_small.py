"""Chunks of 4 KiB over a network, which we pack, one after another; beside rclone on the same chunks as plain files."""
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import icechunk
import obstore

import far
import peers
from common import SMALL_CHUNK, in_turn, say
from harness import BenchError
from peers import ours
from report import Baseline, Unit, at_least
from scale import chunked_document, put

CHUNKS_PER_S = Unit("chunks/s", 0, more_is_better=True)
PREFIX = "small"
FEW = 60  # chunks that rclone reads, at some 13 a second
TIMES_AS_FAST = 300.0


def measure(bench, count: int) -> None:
    """Chunks a second of one program that opens, reads and closes them in order."""
    say(f"writing {count} chunks of 4 KiB")
    noise = os.urandom(count * SMALL_CHUNK)

    def chunk(number: int) -> bytes:
        return noise[number * SMALL_CHUNK:(number + 1) * SMALL_CHUNK]

    # By way of the server itself: nobody waits for the line.
    icechunk.Repository.create(far.storage(bench.server.port, PREFIX))
    with tempfile.TemporaryDirectory(prefix="icechunkfs-bench-") as folder:
        tree = Path(folder, "tree")
        put(tree / far.ARRAY / "zarr.json", chunked_document(count * SMALL_CHUNK, SMALL_CHUNK))
        (tree / far.ARRAY / "c").mkdir()
        for number in range(count):
            (tree / far.ARRAY / "c" / str(number)).write_bytes(chunk(number))
        subprocess.run([bench.binary, "import", tree, f"s3://{far.BUCKET}/{PREFIX}"], env=far.environment(bench.server.port),
                       check=True, stdout=subprocess.DEVNULL)
    plain = far.objects(bench.server.port, far.PLAIN)
    for number in range(FEW):
        obstore.put(plain, f"{PREFIX}/c/{number}", chunk(number))

    def read(array: Path, chunks: int) -> float:
        begin = time.perf_counter()
        for number in range(chunks):
            with open(f"{array}/c/{number}", "rb", buffering=0) as file:
                if file.read(SMALL_CHUNK + 1) != chunk(number):
                    raise BenchError(f"{array}/c/{number}: other bytes than were written")
        return chunks / (time.perf_counter() - begin)

    def mounted() -> float:
        with ours(bench.binary, bench.line.port, prefix=PREFIX) as tree:
            return read(tree / far.ARRAY, count)

    def by_rclone() -> float:
        with peers.rclone(bench.line.port) as tree:
            return read(tree / PREFIX, min(count, FEW))

    sides: dict[str, Callable[[], float]] = {"ours": mounted}
    if peers.installed("rclone"):
        sides["rclone"] = by_rclone
    else:
        bench.report.skip(bench.name("rclone"), "not installed (apt-get install rclone)")
    samples = in_turn(bench.runs, sides)
    baseline = Baseline("rclone", samples["rclone"]) if "rclone" in samples else None
    bench.add("small chunks, one after another", CHUNKS_PER_S, samples["ours"], baseline,
              at_least(TIMES_AS_FAST) if baseline else None)
