"""The numbers that GDAL computes of the files of a NetCDF view. Runs in the Python that has `osgeo`.

    numbers_gdal.py CASES VIEW

Prints JSON: {PATH: {"units": TEXT, "values": [NUMBER or null, ...]}}.
"""

import json
import sys

import numpy as np
from osgeo import gdal

gdal.UseExceptions()
gdal.PushErrorHandler("CPLQuietErrorHandler")


def main():
    with open(sys.argv[1]) as file:
        cases = json.load(file)
    found = {}
    for group, case in cases.items():
        path = f"{sys.argv[2]}/{group}.nc"
        array = gdal.OpenEx(path, gdal.OF_MULTIDIM_RASTER).GetRootGroup().OpenMDArray("time" if case["kind"] == "time" else "v")
        raw = array.ReadAsArray()
        missing = array.GetNoDataValueAsInt64() if raw.dtype == "i8" else array.GetNoDataValueAsUInt64() if raw.dtype == "u8" else array.GetNoDataValue()
        values = raw.astype("f8") * (array.GetScale() or 1.0) + (array.GetOffset() or 0.0)
        if missing is not None:
            values[raw == np.array(missing).astype(raw.dtype)] = np.nan
        found[path] = {"units": array.GetUnit(), "values": [None if value != value else float(value) for value in values]}
    print(json.dumps(found))


main()
