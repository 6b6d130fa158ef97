"""Compares what all programs have read with what zarr-python 3 reads on the native view.

    compare.py PLAN

Prints JSON: {"problems": [TEXT, ...], "versions": TABLE, "features": TABLES, "arrays": {VIEW: NUMBER}, "compared": NUMBER}.
"""

import collections
import json
import math

import cases
import common
import expected
import numpy as np
import table
from limits import GROUP_LIMITS, LIMITS

PROGRAMS = {
    "netcdf": ["netCDF4-python", "h5py", "h5netcdf", "xarray", "xarray, h5netcdf", "ncdump", "NCO", "CDO", "GDAL", "R", "Fortran"],
    "zarr2": ["zarr-python 2", "xarray", "GDAL", "netCDF4-python"],
}
# These languages have float64 and int64 for all numbers.
BY_VALUE = {"R", "Fortran"}
# What programs add to files that they write.
ADDED = {"_NCProperties", "history", "NCO", "CDI", "CDO", "history_of_appended_files"}


def plain(value):
    """Returns the value of an attribute as a list of texts or numbers."""
    if isinstance(value, np.ndarray) or isinstance(value, np.generic):
        value = value.tolist()
    items = value if isinstance(value, (list, tuple)) else [value]
    texts = [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in items]
    return [item if isinstance(item, (str, float)) else int(item) if isinstance(item, int) else json.dumps(item) for item in texts]


def same_attribute(name, one, other):
    one, other = plain(one), plain(other)
    if name == "_FillValue":
        # JSON has no NaN.
        one, other = ([float(item) if item in ("NaN", "Infinity", "-Infinity") else item for item in items] for items in [one, other])
    if len(one) != len(other):
        return False
    return all(a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)) for a, b in zip(one, other))


def same_values(found, wanted, by_value):
    if found.shape != wanted.shape:
        return False
    if wanted.dtype.kind in "OUT" or found.dtype.kind in "OUT":
        return [str(value) for value in found.reshape(-1)] == [str(value) for value in wanted.reshape(-1)]
    if by_value and wanted.dtype.kind in "iu":
        # As numbers of Python, which are not rounded.
        return bool((found.astype(object) == wanted.astype(object)).all())
    if by_value and wanted.dtype.kind == "f":
        return np.array_equal(found, wanted, equal_nan=True)
    found = found.astype(found.dtype.newbyteorder("="))
    wanted = wanted.astype(wanted.dtype.newbyteorder("="), order="C")
    if wanted.dtype.names:
        # Bytes between members are nothing.
        return found.tolist() == wanted.tolist()
    if found.dtype != wanted.dtype:
        return False
    if wanted.dtype.kind in "fc":
        return np.array_equal(found, wanted, equal_nan=True)
    return found.tobytes() == wanted.tobytes()


def attribute_differences(found, wanted):
    """Yields the names of attributes that differ."""
    for name in sorted(found.keys() | wanted.keys()):
        if name in ADDED and name not in wanted:
            continue
        if name not in found or name not in wanted or not same_attribute(name, found[name], wanted[name]):
            yield name


def differences(case, found, by_value, values, dimensions):
    """Returns what differs: {"unread"}, or members of {"values", "dimensions", "attributes"} with the details."""
    if found is None or "error" in found:
        return {"unread": (found or {}).get("error", "it is not there")}
    differing = {}
    if not same_values(found["values"], values, by_value):
        differing["values"] = f"{found['values'].dtype} {list(found['values'].shape)} instead of {values.dtype} {list(values.shape)}"
    # Version 2 has no dimensions without names: programs make them up.
    if dimensions is not None and found["dimensions"] != dimensions:
        differing["dimensions"] = f"{found['dimensions']} instead of {dimensions}"
    wrong = list(attribute_differences(found["attributes"], case.attributes))
    if wrong:
        differing["attributes"] = wrong
    return differing


def judge(case, found, program, limits):
    """Returns the problems of a case, and the limits that it needed."""
    by_value = program in BY_VALUE
    plainly = differences(case, found, by_value, case.values, case.dimensions)
    if not plainly or not limits:
        return plainly, []
    if "unread" in plainly:
        used = [limit for limit in limits if limit.unread]
        return ({}, used) if used else (plainly, [])
    values, dimensions, free, used = case.values, case.dimensions, set(), []
    for limit in limits:
        if limit.unread:
            continue
        # A limit that need not apply is tried only where values or dimensions differ.
        if not limit.may or "values" in plainly or limit.values is None:
            values = limit.values(values) if limit.values else values
        if not limit.may or "dimensions" in plainly or limit.dimensions is None:
            dimensions = limit.dimensions(dimensions) if limit.dimensions else dimensions
        free |= set(plainly.get("attributes", [])) if limit.attributes is True else set(limit.attributes)
        used.append(limit)
    differing = differences(case, found, by_value, values, dimensions)
    if any(limit.wrong for limit in used) and "values" in plainly:
        differing.pop("values", None)
    if "attributes" in differing:
        differing["attributes"] = [name for name in differing["attributes"] if name not in free]
        if not differing["attributes"]:
            del differing["attributes"]
    return differing, [limit for limit in used if not limit.may or explains(limit, plainly)]


def explains(limit, differing):
    """Returns true if a limit is about what differs."""
    attributes = set(differing.get("attributes", []))
    of_attributes = attributes and (limit.attributes is True or attributes & set(limit.attributes))
    return bool(("values" in differing and limit.values) or ("dimensions" in differing and limit.dimensions) or of_attributes)


class Column:
    """Results of a program on a view: for each row the number of equal arrays, and the limits."""

    def __init__(self, program, view, version):
        self.program, self.view, self.version = program, view, version
        self.equal = collections.Counter()
        self.equal_arrays = self.noted_arrays = 0
        self.notes = collections.defaultdict(list)

    def note(self, row, limit):
        if limit not in self.notes[row]:
            self.notes[row].append(limit)


def is_gap(case, found, view):
    """Returns true for what the view does not do yet: an array that is smaller than a page fails with the one beside it in the file."""
    return view == "netcdf" and case.beside_unreadable and case.values.nbytes < 4096 and (found is None or "error" in found)


def check(column, all_cases, results, problems):
    """Compares all cases with the results of a program."""
    needed, met = collections.Counter(), collections.Counter()
    for case in all_cases:
        found = results["arrays"].get((case.repository, case.path))
        if is_gap(case, found, column.view):
            continue
        limits = [limit for limit in LIMITS if column.program == limit.program and limit.view == column.view and limit.applies(case)]
        differing, used = judge(case, found, column.program, limits)
        for limit in limits:
            met[id(limit)] += 1
        for limit in used:
            needed[id(limit)] += 1
            for row in limit.rows:
                column.note(row, limit)
        if differing:
            problems.append(f"{column.program} on {column.view}: {case.repository} /{case.path} ({case.kind}): {differing}")
        elif used:
            column.noted_arrays += 1
        else:
            column.equal_arrays += 1
            column.equal.update(case.features())
        for limit in limits:
            # What is not read at all needs no other limit.
            if limit not in used and not limit.may and not any(limit.unread for limit in used):
                problems.append(f"{column.program} on {column.view}: {case.repository} /{case.path} reads beyond its limit: {limit.text}")
    for limit in LIMITS:
        if column.program == limit.program and limit.view == column.view and not needed[id(limit)]:
            problems.append(f"{column.program} on {column.view} needs no longer: {limit.text} ({met[id(limit)]} arrays)")


def check_groups(column, reference, results, problems):
    """Compares the attributes of groups."""
    row = "attributes of groups"
    limits = [limit for limit in GROUP_LIMITS if (limit.program, limit.view) == (column.program, column.view)]
    noted = set()
    for (repository, path), attributes in reference["groups"].items():
        found = results["groups"].get((repository, path))
        if found is None or "error" in found:
            continue
        wanted = expected.netcdf_attributes(attributes) if column.view == "netcdf" else attributes
        wrong = list(attribute_differences(found, wanted))
        used = [limit for limit in limits if any(limit.applies(name, wanted.get(name)) for name in wrong)]
        left = [name for name in wrong if not any(limit.applies(name, wanted.get(name)) for limit in limits)]
        noted.update(id(limit) for limit in used)
        for limit in used:
            column.note(row, limit)
        if left:
            problems.append(f"{column.program} on {column.view}: {repository} /{path} (group): attributes {left}")
        elif wanted and not used:
            column.equal[row] += 1
    problems += [f"{column.program} on {column.view} needs no longer: {limit.text}" for limit in limits if id(limit) not in noted]


def check_decoded(column, results, problems):
    """Takes in what xarray has compared itself."""
    for (repository, path), text in results["decoded"].items():
        if text == "equal":
            column.equal["decoded as the native view"] += 1
        elif (repository, path) != ("generated", "types"):
            # That group has times that no calendar has.
            problems.append(f"{column.program} on {column.view}: {repository} /{path} decoded: {text}")


def check_unreadable(column, reference, results, problems):
    """What cannot be read natively must be an error in a view, not other values."""
    for (repository, path), array in reference["arrays"].items():
        found = results["arrays"].get((repository, path), {})
        # NCZarr takes a chunk without bytes for a missing one.
        is_known = column.program == "netCDF4-python" and column.view == "zarr2" and repository == "own-v1-empty-chunk"
        if "error" in array and "values" in found and not is_known and array["document"]["chunk_grid"]["name"] == "regular":
            problems.append(f"{column.program} on {column.view}: {repository} /{path} is read, but gives natively: {array['error'][:80]}")


def main():
    plan = common.plan()
    problems, columns, counts = [], [], {}
    reference = common.load(plan["work"], "reference", "zarr")
    for view, make in [("netcdf", cases.netcdf), ("zarr2", cases.zarr2)]:
        all_cases = make(plan, reference, problems)
        counts[view] = len(all_cases)
        for program in PROGRAMS[view]:
            results = common.load(plan["work"], program, view)
            if results is None:
                continue
            column = Column(program, view, results["version"])
            check(column, all_cases, results, problems)
            check_groups(column, reference, results, problems)
            check_decoded(column, results, problems)
            check_unreadable(column, reference, results, problems)
            columns.append(column)
    features = {view: table.features([column for column in columns if column.view == view]) for view in PROGRAMS}
    print(json.dumps({"problems": problems, "versions": table.versions(columns), "features": features, "arrays": counts,
                      "compared": sum(column.equal_arrays + column.noted_arrays for column in columns)}))


if __name__ == "__main__":
    main()
