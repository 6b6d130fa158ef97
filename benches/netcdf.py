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
VARIABLES = 100
HEADER_MS = 100
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
    middle = tuple(length // 2 for length in shape)
    slices = {"time slice": (middle[0], slice(None), slice(None)), "time series": (slice(None), *middle[1:])}

    def by(reader: str, key) -> Callable[[Path], np.ndarray]:
        return lambda tree: netcdf_reader.READERS[reader](tree, VARIABLE, key)

    compare(bench, repo, "netcdf whole", ZARR, by("netcdf", ...),
            lambda tree: zarr.open_array(f"{tree}/{VARIABLE}", mode="r")[:], 0.7, check=shape)
    for name, key in slices.items():
        compare(bench, repo, f"netcdf {name}", XARRAY, by("netcdf", key), by("xarray", key), 1.0)
    for name, key in slices.items():
        in_new_programs(bench, repo, f"netcdf {name}, new program", key)
    in_use(bench, repo, "netcdf time series, mount in use", shape)
    header(bench)


def in_new_programs(bench: Bench, repo: Path, name: str, key: tuple) -> None:
    """Times reading by programs that are new, as the daemon is: a program that has read much before has its memory ready."""
    indices = [":" if isinstance(index, slice) else str(index) for index in key]
    example = bench.space.plain("netcdf-example")
    if not example.exists():
        example.mkdir()
        write_examples(example)
    sums: dict[str, str] = {}

    def side(reader: str, view: str) -> Callable[[], float]:
        def measure() -> float:
            with Mount(bench.space, repo, f"netcdf-{view}", view=view) as mount:
                command = [sys.executable, "-B", netcdf_reader.__file__, reader, example / view, mount.path, VARIABLE, *indices]
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                seconds, sums[reader] = printed.split()
                return float(seconds)
        return measure

    time_sides(bench, name, MS, XARRAY, {"ours": side("netcdf", "netcdf"), "theirs": side("xarray", "zarr")}, 1.0,
               is_same=lambda: len(set(sums.values())) == 1)


def in_use(bench: Bench, repo: Path, name: str, shape: tuple[int, int, int]) -> None:
    """Times series in mounts that have been read from, by a program that has: of points in different chunks, in the order of these."""
    rows, columns = (range(length // 2, end, length) for length, end in zip(CHUNKS[1:], shape[1:]))
    points = [(slice(None), row, column) for row in rows for column in columns]
    read: dict[str, list[np.ndarray]] = {"netcdf": [], "xarray": []}

    def side(reader: str, tree: Path) -> Callable[[], float]:
        left = iter(points)
        return lambda: seconds_of(lambda: read[reader].append(netcdf_reader.READERS[reader](tree, VARIABLE, next(left))))

    # The first point is read before the clock runs.
    runs = min(bench.runs, len(points) - 1)
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


def compare(bench: Bench, repo: Path, name: str, baseline: str, ours: Callable[[Path], np.ndarray],
            theirs: Callable[[Path], np.ndarray], target: float, check=None) -> None:
    """Times both sides, each on a mount of its own for each sample, and compares what they read."""
    read: dict[str, np.ndarray] = {}

    def side(view: str, action: Callable[[Path], np.ndarray]) -> Callable[[], float]:
        def measure() -> float:
            with Mount(bench.space, repo, f"netcdf-{view}", view=view) as mount:
                return seconds_of(lambda: read.__setitem__(view, action(mount.path)))
        return measure

    def is_same() -> bool:
        same = np.array_equal(read["netcdf"], read["zarr"]) and (not check or read["netcdf"].shape == check)
        read.clear()
        return same

    time_sides(bench, name, S if check else MS, baseline, {"ours": side("netcdf", ours), "theirs": side("zarr", theirs)}, target,
               is_same)


def time_sides(bench: Bench, name: str, unit: Unit, baseline: str, sides: dict[str, Callable[[], float]], target: float,
               is_same: Callable[[], bool], runs: int = 0) -> None:
    """Runs both sides once, checks that they read the same, and then times them in turn, `runs` times if given."""
    for measure in sides.values():
        measure()
    if not is_same():
        raise BenchError(f"{name}: the two sides read different values")
    far: list[bool] = []
    samples = in_turn(runs or bench.runs, sides, before=lambda: far.append(processors_are_far(bench.space)))
    if any(far):
        say(f"{name}: in {sum(far)} of {len(far)} rounds the processors shared no cache (docs/performance.md)")
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
