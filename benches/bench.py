"""Measure icechunkfs against its alternatives. `scripts/bench` calls this in its environment.

Every comparison measures its sides in turn (A, B, A, B, ...), so that a slow minute of the machine hits both, and
prints the medians. "Ratio" is always our speed as a part of the baseline's: 1.0 is as fast, below is slower.

The plain tree is the mount's files, copied with `cp -r` to the local disk. "Warm" means read before, so that the
disk plays no part.

Exit status: 0, or 1 if a target was missed (not with --quick: small data says nothing), or 2 if something failed.
"""
import argparse
import json
import os
import platform
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("ICECHUNK_LOG", "error")  # read when icechunk is imported

import importing  # noqa: E402
import netcdf  # noqa: E402
import reading  # noqa: E402
import scale  # noqa: E402
import transfer  # noqa: E402
import tree  # noqa: E402
import writing  # noqa: E402
from common import FULL, QUICK, Bench, end_with, say  # noqa: E402
from harness import BenchError, Skipped, User, Workspace, file_system, run, workspace  # noqa: E402
from report import Report  # noqa: E402

warnings.filterwarnings("ignore")

FREE_MEMORY = 6 << 30  # bytes: everything warm at once, page cache and inodes
FREE_DISK = 4 << 30  # bytes
FREE_INODES = 500_000
LOAD_LIMIT = 0.5  # of the machine before we begin; more disturbs
DEFAULT_RUNS, QUICK_RUNS = 5, 3


COMPARISONS: dict[str, Callable[[Bench], None]] = {comparison.__name__: comparison for comparison in (
    reading.open4k, reading.stat4k, reading.zarr4m, reading.tensorstore4m, reading.first4m_pass, reading.first4m_user,
    reading.native4m, reading.native4k, reading.million,
    writing.write4m, writing.write4k, writing.commit_one, writing.move, writing.copy,
    transfer.transfer4k, transfer.transfer64k, importing.importing, netcdf.netcdf, tree.tree, scale.scale)}
MILLION = {"million", "commit_one", "move"}  # those that need the million references
ASKED_FOR = {"scale"}  # those that take long, and are measured only by name


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", type=Path, required=True, help=argparse.SUPPRESS)  # scripts/bench knows it
    parser.add_argument("--only", action="append", choices=COMPARISONS, metavar="NAME",
                        help=f"only this comparison; may be repeated: {', '.join(COMPARISONS)}")
    parser.add_argument("--no-million", action="store_true", help="leave out the million references, which take longest")
    parser.add_argument("--quick", action="store_true", help="small data: to see that it works, not to measure")
    parser.add_argument("--runs", type=int, metavar="N", help=f"runs per comparison [{DEFAULT_RUNS}]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here too")
    parser.add_argument("--dir", type=Path, help="folder on a local disk for the data [a temporary one]")
    parser.add_argument("--pictures", type=Path, metavar="DIR", help="folder for the curves of `scale`")
    parser.add_argument("--user", default="nobody", help="who has no privilege, where we are root [nobody]")
    chosen = parser.parse_args()
    if chosen.runs is None:
        chosen.runs = QUICK_RUNS if chosen.quick else DEFAULT_RUNS
    if chosen.runs < 1:
        parser.error("--runs must be 1 or more")
    if chosen.dir and not chosen.dir.is_dir():
        parser.error(f"--dir {chosen.dir}: no such folder")
    if not os.access(chosen.binary, os.X_OK):
        parser.error(f"{chosen.binary} is no program: build it, or name another with BENCH_BINARY")
    return chosen


def about(chosen: argparse.Namespace, space: Workspace) -> dict:
    """Returns the facts that are needed to compare these numbers with others."""
    processors = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in processors if line.startswith("model name")), "unknown")
    packages = ("icechunk", "zarr", "numpy", "tensorstore", "netCDF4", "xarray", "virtualizarr")
    return {
        "program": run([space.binary, "--version"]).strip(),
        "quick": chosen.quick,
        "runs": chosen.runs,
        "root": os.geteuid() == 0,
        "kernel": platform.release(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "file_system": file_system(space.root),
        "load_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
    }


def warn_of_surroundings(space: Workspace) -> None:
    """Warns of conditions that make the numbers unreliable."""
    if os.getloadavg()[0] > LOAD_LIMIT:
        say(f"warning: the machine is busy (load {os.getloadavg()[0]:.1f})")
    available = next(int(line.split()[1]) * 1024 for line in Path("/proc/meminfo").read_text().splitlines()
                     if line.startswith("MemAvailable"))
    if available < FREE_MEMORY:
        say(f"warning: {available >> 30} GiB of memory are free; what should be warm may not stay so")
    disk = os.statvfs(space.root)
    if disk.f_bavail * disk.f_frsize < FREE_DISK or 0 < disk.f_files and disk.f_favail < FREE_INODES:
        say("warning: the disk may be too small: name another with --dir")


def measure(chosen: argparse.Namespace, space: Workspace) -> int:
    user = User.named(chosen.user) if os.geteuid() == 0 else None
    bench = Bench(space, QUICK if chosen.quick else FULL, chosen.runs, user, Report(), not chosen.quick, chosen.pictures)
    facts = about(chosen, space)
    say(json.dumps(facts))
    if not chosen.quick:
        warn_of_surroundings(space)
    failed = {}
    for name, comparison in selected(chosen).items():
        say(f"{name}: {comparison.__doc__.splitlines()[0]}")
        try:
            comparison(bench)
        except Skipped as why:
            bench.report.skip(name, str(why))
        except Exception as error:  # the others may still work
            failed[name] = f"{type(error).__name__}: {error}"
            print(f"{name:<28} FAILED: {error}", flush=True)
            if not isinstance(error, BenchError):
                traceback.print_exc()
    problems = space.problems + space.log_problems()
    for problem in problems:
        print(f"problem: {problem}", flush=True)
    if chosen.json:
        bench.report.write_json(chosen.json, {**facts, "failed": failed, "problems": problems})
    if missed := bench.report.missed():
        print(f"missed: {', '.join(missed)}" + (" (--quick: small data says nothing)" if chosen.quick else ""))
    return 2 if failed else 1 if missed and not chosen.quick else 0


def selected(chosen: argparse.Namespace) -> dict[str, Callable[[Bench], None]]:
    left_out = MILLION if chosen.no_million else set()
    names = chosen.only or [name for name in COMPARISONS if name not in left_out | ASKED_FOR]
    return {name: COMPARISONS[name] for name in names}


def end_politely(number: int, _frame: object) -> None:
    """A signal becomes an exception, so that mounts and data are removed."""
    raise SystemExit(128 + number)


def main() -> int:
    chosen = arguments()
    os.umask(0o022)  # the unprivileged user has to read what we write
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants it ignored
            signal.signal(number, end_politely)
    try:
        with workspace(chosen.dir, chosen.binary) as space:
            return measure(chosen, space)
    except BenchError as error:
        print(f"scripts/bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    end_with(main)
