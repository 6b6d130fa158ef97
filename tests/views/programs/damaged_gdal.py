"""Parts of variables that GDAL reads. Runs in the Python that has `osgeo`.

    damaged_gdal.py PARTS

PARTS has lines of a path, starts from 0 and counts. Prints a line `sum` for each with the sum, or "error".
"""

import sys

import numpy as np
from osgeo import gdal

gdal.UseExceptions()
gdal.PushErrorHandler("CPLQuietErrorHandler")

with open(sys.argv[1]) as parts:
    for line in parts:
        path, starts, counts = line.rstrip("\n").split("\t")
        try:
            array = gdal.OpenEx(path, gdal.OF_MULTIDIM_RASTER).GetRootGroup().OpenMDArray("v")
            values = array.ReadAsArray(array_start_idx=list(map(int, starts.split())), count=list(map(int, counts.split())))
            print("sum", float(np.sum(values, dtype="f8")) if values is not None else "error")
        except (RuntimeError, AttributeError):
            print("sum error")
