"""Programs that take a NetCDF file as a whole: ncks of NCO and cdo, whose copies netCDF4-python reads, and ncdump.

    read_copies.py PLAN [PROGRAM ...]

Variables that cannot be read at all are left out of a copy.
"""

import concurrent.futures
import os
import pathlib
import shutil
import sys

import cdl
import common
import read_netcdf4


def ncks(source, target, readable, unreadable):
    without = ["-C", "-x", "-v", ",".join(unreadable)] if unreadable else []
    return common.output("ncks", "-O", "-4", *without, source, target)


def cdo(source, target, readable, unreadable):
    # cdo splits its arguments at spaces.
    link = target.removesuffix(".nc") + "-of.nc"
    os.symlink(source, link)
    operators = [f"-selname,{','.join(readable)}"] if unreadable else []
    return common.output("cdo", "-s", "-O", "-f", "nc4", "copy", *operators, link, target)


def ncdump(source, target, readable, unreadable):
    words = ["-v", ",".join(readable)] if unreadable else []
    return common.output("ncdump", "-p", "9,17", *words, source)


def add_text(results, repository, group, text):
    """Adds what ncdump has printed."""
    variables, results.groups[repository["name"], group] = cdl.parse(text)
    for name, variable in variables.items():
        if "values" in variable:
            results.add(repository["name"], common.under(group, name), variable["values"], variable["dimensions"], variable["attributes"])


def version(*words, of):
    _, text = common.output(*words)
    return next((line.strip() for line in text.splitlines() if of in line), text.strip())


def main():
    plan = common.plan()
    shown = common.load(plan["work"], "netCDF4-python", "netcdf")["arrays"]
    programs = {
        "ncdump": (ncdump, lambda: version("ncdump", of="library version").removeprefix("netcdf library version ").split(" of ")[0]),
        "NCO": (ncks, lambda: version("ncks", "--version", of="ncks version").split()[-1]),
        "CDO": (cdo, lambda: version("cdo", "--version", of="version").split("version ")[-1].split()[0]),
    }
    for program in sys.argv[2:] or programs:
        copy, of = programs[program]
        results = common.Results(program, "netcdf", f"{program} {of()}")
        copies = pathlib.Path(plan["work"]) / program
        shutil.rmtree(copies, ignore_errors=True)
        copies.mkdir()
        jobs = []
        for repository in plan["repositories"]:
            for group, path in common.files(repository):
                variables = [(key.rpartition("/")[2], "error" in variable) for (name, key), variable in shown.items()
                             if name == repository["name"] and key.rpartition("/")[0] == group]
                readable, unreadable = ([name for name, fails in variables if fails == one] for one in [False, True])
                if not readable:
                    continue
                target = copies / f"{len(jobs)}.nc"
                jobs.append((repository, group, target, (str(path), str(target), readable, unreadable)))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(lambda job: copy(*job[3]), jobs))
        for (repository, group, target, _), (status, text) in zip(jobs, ended):
            if status == 0 and program == "ncdump":
                add_text(results, repository, group, text)
            elif status == 0 and target.exists():
                read_netcdf4.read(results, repository, group, target)
            else:
                results.groups[repository["name"], group] = {"error": text or f"exit status {status}"}
        results.save(plan["work"])


if __name__ == "__main__":
    main()
