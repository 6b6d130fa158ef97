"""R's package ncdf4 and a Fortran program on the NetCDF view.

    read_compiled.py PLAN [PROGRAM ...]
"""

import pathlib
import subprocess
import sys

import common
import records

HERE = pathlib.Path(__file__).parent
# Names from this length on are long.
LONG = 128


def run(listed, jobs, *words):
    """Runs a program once on some files. Returns its status, and the last line that it prints."""
    listed.write_text("".join(f"{path}\t{target}\n" for _, _, path, target in jobs))
    ended = subprocess.run([*words, listed], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
    lines = ended.stdout.decode().splitlines() or [ended.stderr.decode(errors="replace")[-500:]]
    return ended.returncode, lines[-1].strip()


def dump(plan, program, version, *words):
    """Runs a program on all files, and takes in its records. Files with long names get a process of their own: one may crash."""
    work = pathlib.Path(plan["work"])
    jobs = [(repository, group, path) for repository in plan["repositories"] for group, path in common.files(repository)]
    jobs = [(*job, work / f"{program}.{number}") for number, job in enumerate(jobs)]
    common_jobs = [job for job in jobs if len(job[2].name) < LONG]
    status, line = run(work / f"{program}.list", common_jobs, *words)
    if status:
        raise SystemExit(f"{program}: {status} {line}")
    results = common.Results(program, "netcdf", version(line))
    crashed = {}
    for job in jobs:
        if len(job[2].name) >= LONG:
            status, line = run(work / f"{program}.long", [job], *words)
            if status:
                crashed[job[2]] = f"crashed: {status} {line}"
    for repository, group, path, target in jobs:
        failed = target.with_name(target.name + ".error")
        if path in crashed or failed.exists():
            results.groups[repository["name"], group] = {"error": crashed.get(path) or failed.read_text()}
        else:
            records.add(results, repository, group, target.read_bytes())
    results.save(work)


def fortran(plan):
    program = pathlib.Path(plan["work"]) / "dump"
    flags = subprocess.run(["nf-config", "--fflags", "--flibs"], stdout=subprocess.PIPE, check=True).stdout.decode().split()
    subprocess.run(["gfortran", "-O0", HERE / "dump.f90", *flags, "-J", plan["work"], "-o", program], check=True)
    library = common.output("nf-config", "--version")[1].strip()
    dump(plan, "Fortran", lambda line: f"{library} (netCDF-C {line.split()[0]})", program)


def main():
    plan = common.plan()
    programs = {"R": lambda: dump(plan, "R", lambda line: f"ncdf4 {line}", "Rscript", HERE / "dump.R"), "Fortran": lambda: fortran(plan)}
    for program in sys.argv[2:] or programs:
        programs[program]()


main()
