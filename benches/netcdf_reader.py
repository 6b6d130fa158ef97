"""A program that reads part of a variable and ends: `netcdf_reader.py netcdf|xarray EXAMPLE TREE VARIABLE INDEX...`.

It reads EXAMPLE first, a small file or tree, so that everything it needs is imported, and prints the seconds that it takes to open TREE and
read. An INDEX is a number, or `:` for all of a dimension.
"""
import sys
import time
from pathlib import Path

import numpy as np


def read_netcdf(tree: Path, variable: str, key: tuple) -> np.ndarray:
    import netCDF4

    with netCDF4.Dataset(next(tree.glob("*.nc"))) as opened:
        opened.set_auto_maskandscale(False)
        return opened[variable][key]


def read_xarray(tree: Path, variable: str, key: tuple) -> np.ndarray:
    import xarray

    with xarray.open_zarr(tree, consolidated=False, chunks=None, mask_and_scale=False) as opened:
        return opened[variable][key].values


READERS = {"netcdf": read_netcdf, "xarray": read_xarray}


def main() -> None:
    name, example, tree, variable, *indices = sys.argv[1:]
    read = READERS[name]
    read(Path(example), variable, ())
    begin = time.perf_counter()
    values = read(Path(tree), variable, tuple(slice(None) if index == ":" else int(index) for index in indices))
    print(time.perf_counter() - begin, float(values.astype("float64").sum()))


if __name__ == "__main__":
    main()
