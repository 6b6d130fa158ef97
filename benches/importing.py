"""Comparisons of `import` of NetCDF files: by reference against VirtualiZarr, copied against `cp`, and over a network."""
import http.server
import os
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from common import KIB, MEGA, Bench, in_turn, say, seconds_of
from harness import BenchError, Skipped, run
from report import S, Baseline, Target, at_least

VARIABLES = 100
OF_VIRTUALIZARR = 10.0
OF_CP = 0.8
CHUNKS = 100_000
ROUND_TRIP = 0.03  # seconds
REFERENCE = ["--virtual", "--set-container", "--copy-below", "0"]
VIRTUALIZARR = "VirtualiZarr"


def importing(bench: Bench) -> None:
    """NetCDF files by reference and copied: many of them, one of many chunks, one of many bytes, one behind a network."""
    try:
        import h5py  # noqa: F401
        import virtualizarr  # noqa: F401
    except ImportError as missing:
        raise Skipped(str(missing)) from missing
    warnings.filterwarnings("ignore")
    compared, more = bench.sizes.imported_files
    along_time(bench, compared)
    many_files(bench, more)
    many_chunks(bench)
    distant(bench)
    many_bytes(bench)


def write_days(place: Path, count: int) -> list[Path]:
    """Writes files of one time each, with variables of a deflated chunk."""
    import netCDF4

    place.mkdir()
    values = np.arange(4096, dtype="f4").reshape(1, -1)
    for day in range(count):
        with netCDF4.Dataset(place / f"{day:05}.nc", "w") as file:
            file.createDimension("time", None)
            file.createDimension("x", values.shape[1])
            time_of = file.createVariable("time", "i4", ["time"])
            time_of.units = "days since 2026-01-01"
            time_of[:] = [day]
            for number in range(VARIABLES):
                made = file.createVariable(f"v{number:03}", "f4", ["time", "x"], zlib=True, complevel=1, chunksizes=values.shape)
                made[:] = values + day
    return sorted(place.iterdir())


def ours(bench: Bench, files: list[Path], options: list[str]) -> float:
    """Returns the seconds of an import into a new repository."""
    repo = bench.space.repo("imported")
    shutil.rmtree(repo, ignore_errors=True)
    os.sync()
    taken = seconds_of(lambda: run([bench.space.binary, "import", *files, repo, *options]))
    shutil.rmtree(repo)
    return taken


def along_time(bench: Bench, count: int) -> None:
    say(f"making {count} files of {VARIABLES} variables")
    files = write_days(bench.space.plain("days"), count)
    sides = {"ours": lambda: ours(bench, files, ["--append-dim", "time", *REFERENCE]),
             "serial": lambda: seconds_of(lambda: by_virtualizarr(files, False)),
             "dask": lambda: seconds_of(lambda: by_virtualizarr(files, "dask"))}
    samples = in_turn(bench.runs, sides)
    name = f"import --virtual, {count:,} files of {VARIABLES} variables"
    for side in ("serial", "dask"):
        baseline = Baseline(f"{VIRTUALIZARR} ({side})", samples[side])
        bench.report.add(name, S, samples["ours"], baseline, at_least(OF_VIRTUALIZARR))


def by_virtualizarr(files: list[Path], parallel: str | bool) -> None:
    """Does what our import does: the files along time, their references in one commit."""
    import icechunk
    import virtualizarr
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import HDFParser

    prefix = f"file://{files[0].parent}/"
    dataset = virtualizarr.open_virtual_mfdataset(
        [f"file://{file}" for file in files], registry=ObjectStoreRegistry({"file://": LocalStore()}), parser=HDFParser(),
        combine="nested", concat_dim="time", parallel=parallel, loadable_variables=["time"], coords="minimal", compat="override",
        data_vars="minimal")
    config = icechunk.RepositoryConfig.default()
    config.set_virtual_chunk_container(icechunk.VirtualChunkContainer(prefix, icechunk.local_filesystem_store(prefix[len("file://"):])))
    session = icechunk.Repository.create(icechunk.in_memory_storage(), config).writable_session("main")
    dataset.vz.to_icechunk(session.store)
    session.commit("by reference")


def many_files(bench: Bench, count: int) -> None:
    say(f"making {count} files of {VARIABLES} variables")
    files = write_days(bench.space.plain("more-days"), count)
    samples = [ours(bench, files, ["--append-dim", "time", *REFERENCE]) for _ in range(bench.runs)]
    bench.report.add(f"import --virtual, {count:,} files of {VARIABLES} variables", S, samples)


def many_chunks(bench: Bench) -> None:
    import h5py

    file = bench.space.plain("chunks").with_suffix(".h5")
    with h5py.File(file, "w") as made:
        made.create_dataset("x", (CHUNKS * 16,), "u1", chunks=(16,))[...] = 1
    samples = [ours(bench, [file], REFERENCE) for _ in range(bench.runs)]
    bench.report.add(f"import --virtual, one file of {CHUNKS:,} chunks", S, samples, target=Target("ours", 0.1, False))


def many_bytes(bench: Bench) -> None:
    import h5py

    length = bench.sizes.imported_bytes
    if (free := shutil.disk_usage(bench.space.root).free) < 4 * length:
        raise Skipped(f"it needs {4 * length >> 30} GiB of disk, and {free >> 30} are free")
    say(f"making a file of {length / 1e9:.1f} GB")
    file = bench.space.plain("bytes").with_suffix(".h5")
    chunk = MEGA
    with h5py.File(file, "w") as made:
        # Noise, so that deflating leaves its length; each chunk is written as it is.
        data = made.create_dataset("x", (length // chunk, chunk), "u1", chunks=(1, chunk), compression=1)
        noise = os.urandom(chunk + length // chunk)
        for number in range(length // chunk):
            data.id.write_direct_chunk((number, 0), noise[number:number + chunk])
    os.sync()

    def copied() -> float:
        place = bench.space.plain("copied")
        os.sync()
        taken = seconds_of(lambda: run(["bash", "-c", 'cp "$1" "$2" && sync "$2"', "bash", file, place]))
        place.unlink()
        return taken

    samples = in_turn(bench.runs, {"ours": lambda: ours(bench, [file], []), "cp": copied})
    file.unlink()
    bench.report.add(f"import, {length / 1e9:.1f} GB of deflated chunks", S, samples["ours"], Baseline("cp, sync", samples["cp"]), at_least(OF_CP))


class Distant(http.server.BaseHTTPRequestHandler):
    """Sends ranges of one file, each after a round trip."""

    protocol_version = "HTTP/1.1"
    # As servers do: the body would wait for the confirmation of the head, which takes 40 ms.
    disable_nagle_algorithm = True
    file: Path
    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        time.sleep(ROUND_TRIP)
        length = self.file.stat().st_size
        begin, end = self.headers["Range"].removeprefix("bytes=").split("-")
        last = min(int(end), length - 1)
        with self.file.open("rb") as opened:
            opened.seek(int(begin))
            found = opened.read(last + 1 - int(begin))
        self.send_response(206)
        self.send_header("Content-Length", str(len(found)))
        self.send_header("Content-Range", f"bytes {begin}-{last}/{length}")
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_words: object) -> None:
        """Says nothing."""


@contextmanager
def server(file: Path) -> Iterator[tuple[str, type[Distant]]]:
    handler = type("Handler", (Distant,), {"file": file})
    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving.daemon_threads = True
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}/{file.name}", handler
    finally:
        serving.shutdown()


def distant(bench: Bench) -> None:
    """A file whose index lies between its chunks, of which each has a mebibyte that is not on the disk."""
    import h5py

    file = bench.space.plain("scattered").with_suffix(".h5")
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((MEGA,))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    with h5py.File(file, "w") as made:
        h5py.h5d.create(made.id, b"x", h5py.h5t.NATIVE_UINT8, h5py.h5s.create_simple((CHUNKS * MEGA,)), dcpl=properties)
    options = ["--virtual", "--set-container"]
    with server(file) as (address, handler):
        samples = [ours(bench, [address], options) for _ in range(bench.runs)]
        requests = handler.requests // bench.runs
    say(f"{requests} requests")
    if requests < 1000:
        raise BenchError(f"{requests} requests: the index is in one place")
    name = f"import --virtual, {CHUNKS:,} scattered chunks over {ROUND_TRIP * 1000:.0f} ms"
    bench.report.add(name, S, samples, target=Target("ours", 3.0, False))
    small = write_days(bench.space.plain("one-day"), 1)[0]
    with server(small) as (address, handler):
        ours(bench, [address], options)
        if small.stat().st_size <= 256 * KIB and handler.requests > 1:
            raise BenchError(f"{handler.requests} requests for a small file")
