"""GDAL's multidimensional drivers on the NetCDF and the Zarr version 2 view. Runs in the Python that has `osgeo`.

    read_gdal.py PLAN
"""

import common
import numpy as np
from osgeo import gdal

gdal.UseExceptions()
gdal.PushErrorHandler("CPLQuietErrorHandler")
VERSION = f"GDAL {gdal.VersionInfo('RELEASE_NAME')}"


def texts(array):
    """Returns an array of texts, which GDAL gives as a list."""
    read = array.Read()
    return np.array(read, dtype=object).reshape([dimension.GetSize() for dimension in array.GetDimensions()])


def add(results, repository, path, array):
    try:
        is_text = array.GetDataType().GetClass() == gdal.GEDTC_STRING
        values = texts(array) if is_text else array.ReadAsArray()
        dimensions = [dimension.GetName() for dimension in array.GetDimensions()]
        attributes = {attribute.GetName(): attribute.Read() for attribute in array.GetAttributes()}
        # The driver makes members of these attributes.
        members = {"units": array.GetUnit() or None, "_FillValue": array.GetNoDataValue(), "scale_factor": array.GetScale(), "add_offset": array.GetOffset()}
        attributes.update({name: value for name, value in members.items() if value is not None})
        results.add(repository["name"], path, values, dimensions, attributes)
    except Exception as error:
        results.fail(repository["name"], path, error)


def groups(group, name=""):
    yield name, group
    for child in group.GetGroupNames() or []:
        yield from groups(group.OpenGroup(child), common.under(name, child))


def read(results, repository, group, source):
    try:
        root = gdal.OpenEx(str(source), gdal.OF_MULTIDIM_RASTER).GetRootGroup()
    except Exception as error:
        results.groups[repository["name"], group] = {"error": str(error)}
        return
    for below, opened in groups(root, group):
        results.groups[repository["name"], below] = {attribute.GetName(): attribute.Read() for attribute in opened.GetAttributes()}
        for name in opened.GetMDArrayNames(["SHOW_ALL=YES"]) or []:
            path = common.under(below, name)
            try:
                array = opened.OpenMDArray(name)
            except Exception as error:
                results.fail(repository["name"], path, error)
                continue
            add(results, repository, path, array)


def main():
    plan = common.plan()
    netcdf, zarr2 = (common.Results("GDAL", view, VERSION) for view in ["netcdf", "zarr2"])
    for repository in plan["repositories"]:
        for group, path in common.files(repository):
            read(netcdf, repository, group, path)
        read(zarr2, repository, "", repository["zarr2"])
    netcdf.save(plan["work"])
    zarr2.save(plan["work"])


main()
