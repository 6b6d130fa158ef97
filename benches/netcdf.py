"""The NetCDF view: programs that read NetCDF files, against zarr-python and xarray on the native view of the same mount.

Every sample has a new mount, or reads chunks that nobody has read in its mount before, so that no page of it is in the kernel's cache and no
chunk in the daemon's; the objects of the repository are in the page cache. Both sides decode the same 4 MiB chunks, the one in the daemon, the
other in the program.
"""
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import EllipsisType

import numpy as np
import zarr

import data
import netcdf_reader
from common import Bench, in_turn, say, scaled, seconds_of
from data import create_repository
from harness import BenchError, Mount, Skipped, Workspace, processors_are_far
from report import MS, S, Baseline, Target, Unit, at_least

VARIABLE = "sst"
CHUNKS = (12, 361, 240)  # of float32: 4 MiB
EVERY = slice(None)
VARIABLES = 100
HEADER_MS = 100
Key = tuple[int | slice, ...] | EllipsisType
ZARR, XARRAY = "zarr-python, native view", "xarray over Zarr, native view"


def netcdf(bench: Bench) -> None:
    """NetCDF files: a variable read whole, a time slice, a time series, and the header of a file of 100 variables."""
    try:
        import netCDF4  # noqa: F401
        import xarray  # noqa: F401
    except ImportError as missing:
        raise Skipped(str(missing)) from missing
    shape = bench.sizes.netcdf
    repo = make_variable(bench.space, shape)

    compare(bench, repo, "netcdf whole", ZARR, {"netcdf": netcdf_reader.read_netcdf, "zarr": read_zarr}, lambda _: ..., 0.7, shape)
    for name, choose in slices(shape).items():
        in_new_programs(bench, repo, f"netcdf {name}", choose)
    for name, keys in in_different_chunks(shape).items():
        in_use(bench, repo, f"netcdf {name}, in use", keys)
    for name, choose in slices(shape).items():
        compare(bench, repo, f"netcdf {name}, new mount", XARRAY, netcdf_reader.READERS, choose, 1.0)
    header(bench)


def read_zarr(tree: Path, variable: str, key: Key) -> np.ndarray:
    return zarr.open_array(f"{tree}/{variable}", mode="r")[key]


def slices(shape: tuple[int, int, int]) -> dict[str, Callable[[np.random.Generator], Key]]:
    """What is read of the variable in a round: where in its chunks it lies decides how much of them the view decodes."""
    return {
        "time slice": lambda random: (int(random.integers(shape[0])), EVERY, EVERY),
        "time series": lambda random: (EVERY, *map(int, random.integers(shape[1:]))),
    }


def in_different_chunks(shape: tuple[int, int, int]) -> dict[str, list[Key]]:
    """Time slices and time series of which no two have a chunk in common, anywhere within their chunks, in the order of these."""
    random = np.random.default_rng(data.SEED)
    times, rows, columns = (
        [int(random.integers(begin, min(begin + length, end))) for begin in range(0, end, length)]
        for length, end in zip(CHUNKS, shape)
    )
    return {
        "time slice": [(time, EVERY, EVERY) for time in times],
        "time series": [(EVERY, row, column) for row in rows for column in columns],
    }


def in_new_programs(bench: Bench, repo: Path, name: str, choose: Callable[[np.random.Generator], Key]) -> None:
    """Times reading by programs that are new, as the daemon is: a program that has read much before has its memory ready."""
    example = bench.space.plain("netcdf-example")
    if not example.exists():
        example.mkdir()
        write_examples(example)
    sums: dict[str, str] = {}
    chosen = Chosen(choose)

    def side(reader: str, view: str) -> Callable[[], float]:
        def measure() -> float:
            with Mount(bench.space, repo, f"netcdf-{view}", view=view) as mount:
                indices = [":" if isinstance(index, slice) else str(index) for index in chosen.key]
                command = [sys.executable, "-B", netcdf_reader.__file__, reader, example / view, mount.path, VARIABLE, *indices]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                seconds, sums[reader] = printed.split()
                return float(seconds)
        return measure

    time_sides(bench, name, MS, XARRAY, {"ours": side("netcdf", "netcdf"), "theirs": side("xarray", "zarr")}, 1.0,
               is_same=lambda: len(set(sums.values())) == 1, before=chosen.next)


def in_use(bench: Bench, repo: Path, name: str, keys: list[Key]) -> None:
    """Times reading in mounts that have been read from, by a program that has."""
    read: dict[str, list[np.ndarray]] = {"netcdf": [], "xarray": []}

    def side(reader: str, tree: Path) -> Callable[[], float]:
        left = iter(keys)
        return lambda: seconds_of(lambda: read[reader].append(netcdf_reader.READERS[reader](tree, VARIABLE, next(left))))

    # The first one is read before the clock runs.
    runs = min(bench.runs, len(keys) - 1)
    with Mount(bench.space, repo, "netcdf-in-use", view="netcdf") as ours, Mount(bench.space, repo, "zarr-in-use") as theirs:
        sides = {"ours": side("netcdf", ours.path), "theirs": side("xarray", theirs.path)}
        is_same = lambda: all(map(np.array_equal, read["netcdf"], read["xarray"]))
        time_sides(bench, name, MS, XARRAY, sides, 1.0, is_same, runs)
    if not is_same():
        raise BenchError(f"{name}: the two sides read different values")


def write_examples(folder: Path) -> None:
    """Writes a variable of one number as a NetCDF file and as Zarr."""
    import netCDF4

    (folder / "netcdf").mkdir()
    with netCDF4.Dataset(folder / "netcdf" / "example.nc", "w") as file:
        file.createVariable(VARIABLE, "f4", ())[...] = 1
    group = zarr.create_group(folder / "zarr")
    group.create_array(VARIABLE, shape=(1,), dtype="f4", dimension_names=["x"], compressors=zarr.codecs.ZstdCodec())[:] = 1


class Chosen:
    """What both sides read in a round."""

    def __init__(self, choose: Callable[[np.random.Generator], Key]) -> None:
        self.choose, self.random = choose, np.random.default_rng(data.SEED)
        self.next()

    def next(self) -> None:
        self.key = self.choose(self.random)


def compare(bench: Bench, repo: Path, name: str, baseline: str, readers: dict[str, Callable[[Path, str, Key], np.ndarray]],
            choose: Callable[[np.random.Generator], Key], target: float, check: tuple[int, ...] | None = None) -> None:
    """Times both sides, each on a mount of its own for each sample, and compares what they read: an array of shape `check`, if given.

    This program has written the variable, so that it has memory of its own to decode into, which a new daemon must get first.
    """
    read: dict[str, np.ndarray] = {}
    chosen = Chosen(choose)

    def side(view: str, reader: Callable[[Path, str, Key], np.ndarray]) -> Callable[[], float]:
        def measure() -> float:
            with Mount(bench.space, repo, f"netcdf-{view}", view=view) as mount:
                return seconds_of(lambda: read.__setitem__(view, reader(mount.path, VARIABLE, chosen.key)))
        return measure

    def is_same() -> bool:
        same = np.array_equal(read["netcdf"], read["zarr"]) and (not check or read["netcdf"].shape == check)
        read.clear()
        return same

    ours, theirs = readers.values()
    time_sides(bench, name, S if check else MS, baseline, {"ours": side("netcdf", ours), "theirs": side("zarr", theirs)}, target,
               is_same, before=chosen.next)


def time_sides(bench: Bench, name: str, unit: Unit, baseline: str, sides: dict[str, Callable[[], float]], target: float,
               is_same: Callable[[], bool], runs: int = 0, before: Callable[[], None] = lambda: None) -> None:
    """Runs both sides once, checks that they read the same, and then times them in turn, `runs` times if given.

    Calls `before` before each round.
    """
    for measure in sides.values():
        measure()
    if not is_same():
        raise BenchError(f"{name}: the two sides read different values")
    far: list[bool] = []

    def begin() -> None:
        far.append(processors_are_far(bench.space))
        before()

    samples = in_turn(runs or bench.runs, sides, before=begin)
    if any(far):
        say(f"{name}: in {sum(far)} of {len(far)} rounds the processors shared no cache (docs/contributing/performance-lessons.md)")
    factor = 1 if unit == S else 1e3
    bench.report.add(name, unit, scaled(factor, samples["ours"]), Baseline(baseline, scaled(factor, samples["theirs"])),
                     at_least(target))


def header(bench: Bench) -> None:
    """Times `ncdump -h` of a file of 100 variables on a new mount: the header is made and read."""
    if not shutil.which("ncdump"):
        bench.report.skip("netcdf header", "ncdump is not installed")
        return
    repo = make_variables(bench.space)

    def measure() -> float:
        with Mount(bench.space, repo, "netcdf-header", view="netcdf") as mount:
            file = next(mount.path.glob("*.nc"))
            dump = lambda: subprocess.run(["ncdump", "-h", str(file)], check=True, stdout=subprocess.PIPE).stdout
            found = []
            taken = seconds_of(lambda: found.append(dump()))
            if found[0].count(b"float v") != VARIABLES:
                raise BenchError("ncdump does not show all variables")
            return taken

    measure()
    samples = in_turn(bench.runs, {"ours": measure})
    bench.report.add(f"ncdump -h, {VARIABLES} variables", MS, scaled(1e3, samples["ours"]), None,
                     Target("ours", HEADER_MS, more_is_better=False))


def make_variable(space: Workspace, shape: tuple[int, int, int]) -> Path:
    """A variable of a smooth field with noise, as measurements are: zstd makes about two thirds of it.

    Its shape is that of a month of a global reanalysis: every three hours, a quarter of a degree.
    """
    repo = space.repo("netcdf")
    repository = create_repository(repo)
    session = repository.writable_session("main")
    target = zarr.create_group(session.store).create_array(
        VARIABLE, shape=shape, chunks=CHUNKS, dtype="float32", compressors=zarr.codecs.ZstdCodec(level=3),
        dimension_names=["time", "lat", "lon"])
    random = np.random.default_rng(data.SEED)
    lat, lon = np.meshgrid(np.linspace(-90, 90, shape[1]), np.linspace(0, 360, shape[2]), indexing="ij")
    field = 28 * np.cos(np.radians(lat)) + np.sin(np.radians(lon))
    for time in range(0, shape[0], CHUNKS[0]):
        noise = random.normal(0, 0.5, (min(CHUNKS[0], shape[0] - time), *shape[1:])).round(2)
        target[time:time + CHUNKS[0]] = (field.round(1) + noise).astype("float32")
    session.commit("values")
    return repo


def make_variables(space: Workspace) -> Path:
    repo = space.repo("netcdf-variables")
    repository = create_repository(repo)
    session = repository.writable_session("main")
    group = zarr.create_group(session.store, attributes={"title": "many variables"})
    for number in range(VARIABLES):
        group.create_array(f"v{number}", shape=(100, 100), chunks=(50, 50), dtype="float32", dimension_names=["y", "x"],
                           attributes={"units": "m s-1", "long_name": f"variable {number}", "scale": 0.5})
    session.commit("variables")
    return repo
