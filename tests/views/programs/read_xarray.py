"""xarray on the NetCDF view, or with zarr-python 2 on the Zarr version 2 view.

    read_xarray.py PLAN VIEW

Everything is read twice: as stored, and decoded as programs do by default, with missing values, scales, times and coordinates. Decoded
datasets must equal what xarray makes of the native view.
"""

import functools
import os
import pathlib
import sys
import warnings

import common
import numpy as np
import xarray

warnings.filterwarnings("ignore")


def add(results, repository, group, dataset):
    results.groups[repository["name"], group] = dict(dataset.attrs)
    for name, variable in dataset.variables.items():
        path = common.under(group, name)
        try:
            results.add(repository["name"], path, variable.values, variable.dims, dict(variable.attrs))
        except Exception as error:
            results.fail(repository["name"], path, error)


def plain(values):
    """Returns values in a form that is the same for equal ones, whatever form texts have."""
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf8")
    if values.dtype.kind in "UOT":
        return np.array([str(value) for value in values.reshape(-1)], dtype=object).reshape(values.shape)
    return values


@functools.cache
def native(directory):
    """Returns the dataset of a group in the native view, or None if xarray cannot make one."""
    documents = list(pathlib.Path(directory).glob("*/zarr.json"))
    if not any("dimension_names" in document.read_text() for document in documents):
        return None
    try:
        return xarray.open_zarr(directory, zarr_format=3, consolidated=False, chunks=None).load()
    except Exception:
        return None


def compare_decoded(results, repository, group, path, engine):
    """Compares a dataset as programs get it by default with that of the native view."""
    wanted = native(os.path.join(repository["zarr"], group))
    if wanted is None:
        return
    try:
        shown = xarray.open_dataset(path, engine=engine)
    except Exception as error:
        results.decoded[repository["name"], group] = f"cannot be decoded: {error}"
        return
    with shown:
        for name, variable in wanted.variables.items():
            where = repository["name"], common.under(group, name)
            found = shown.variables.get(name)
            if found is None:
                results.decoded[where] = "is missing"
                continue
            one, other = plain(variable.values), plain(found.values)
            has_no_number = one.dtype.kind in "fcmM" and one.dtype == other.dtype
            same = one.shape == other.shape and np.array_equal(one, other, equal_nan=has_no_number)
            # Dimensions without name get one in NetCDF.
            dimensions = tuple(name or other for name, other in zip(variable.dims, found.dims))
            is_same = same and dimensions == found.dims and (name in wanted.coords) == (name in shown.coords)
            results.decoded[where] = "equal" if is_same else f"{found} instead of {variable}"


def netcdf(plan):
    for engine in ["netcdf4", "h5netcdf"]:
        program = "xarray" if engine == "netcdf4" else "xarray, h5netcdf"
        results = common.Results(program, "netcdf", f"xarray {xarray.__version__}, engine {engine}")
        for repository in plan["repositories"]:
            for group, path in common.files(repository):
                with xarray.open_dataset(path, engine=engine, decode_cf=False, cache=False) as dataset:
                    add(results, repository, group, dataset)
                compare_decoded(results, repository, group, path, engine)
        results.save(plan["work"])


def zarr2(plan):
    results = common.Results("xarray", "zarr2", f"xarray {xarray.__version__} with zarr-python 2")
    for repository in plan["repositories"]:
        for group, name, directory in common.single_arrays(plan, repository):
            try:
                with xarray.open_zarr(directory, decode_cf=False, consolidated=False, chunks=None) as dataset:
                    add(results, repository, group, dataset)
            except Exception as error:
                results.fail(repository["name"], common.under(group, name), error)
    # These groups are none of the view.
    results.groups.clear()
    results.save(plan["work"])


if __name__ == "__main__":
    {"netcdf": netcdf, "zarr2": zarr2}[sys.argv[2]](common.plan())
