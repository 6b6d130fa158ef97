"""Makes the small repository of the recipes: sea surface temperatures of a year, and a profile of the deep sea.

    python demo.py REPOSITORY

Needs icechunk and zarr (version 3). Tag `v1` has the group `surface`, branch `main` also the group `deep`.
"""

import sys

import icechunk
import numpy as np
import zarr

LAT = np.linspace(-88.75, 88.75, 72)
LON = np.linspace(1.25, 358.75, 144)
# Continents, roughly: latitude and longitude of the middle, and half of the extent.
LAND = [(5, 20, 30, 20), (45, 80, 28, 65), (-25, 134, 10, 18), (45, 260, 25, 30), (-15, 300, 32, 14), (-85, 180, 15, 190), (75, 320, 9, 18)]


def temperatures():
    """Returns temperatures of each month in degrees Celsius, rounded to hundredths; NaN on land."""
    month = np.arange(12)[:, None, None]
    lat, lon = LAT[None, :, None], LON[None, None, :]
    season = 4 * np.sin(np.radians(lat)) * np.cos(2 * np.pi * (month - 7) / 12)
    eddies = 0.8 * np.sin(np.radians(4 * lon + 30 * month)) * np.cos(np.radians(3 * lat))
    sst = np.maximum(30 * np.cos(np.radians(lat)) ** 2 - 2 + season + eddies, -1.8)
    for middle, east, height, width in LAND:
        away = ((lat - middle) / height) ** 2 + (((lon - east + 180) % 360 - 180) / width) ** 2
        sst = np.where(away < 1, np.nan, sst)
    return np.round(sst, 2).astype("f4")


def add(group, name, data, dimensions, attributes, **more):
    array = group.create_array(name, data=data, dimension_names=dimensions, **more)
    array.attrs.update(attributes)


def main(path):
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(path))
    session = repository.writable_session("main")
    root = zarr.create_group(session.store, attributes={"title": "A small ocean"})
    surface = root.create_group("surface", attributes={"title": "Sea surface", "Conventions": "CF-1.8"})
    middle_of_month = np.array([15, 45, 74, 105, 135, 166, 196, 227, 258, 288, 319, 349], "i4")
    add(surface, "time", middle_of_month, ["time"], {"units": "days since 2025-01-01", "standard_name": "time", "calendar": "standard"})
    add(surface, "lat", LAT, ["lat"], {"units": "degrees_north", "standard_name": "latitude"})
    add(surface, "lon", LON, ["lon"], {"units": "degrees_east", "standard_name": "longitude"})
    attributes = {"units": "degC", "long_name": "sea surface temperature", "standard_name": "sea_surface_temperature"}
    # NaN, as xarray writes it: the mark of missing values. All chunks are there, so that the fill value alone says nothing.
    attributes["_FillValue"] = "AAAAAAAA+H8="
    add(surface, "sst", temperatures(), ["time", "lat", "lon"], attributes, chunks=(4, 36, 72), fill_value=np.nan)
    first = session.commit("The surface")
    repository.create_tag("v1", snapshot_id=first)
    session = repository.writable_session("main")
    deep = zarr.open_group(session.store).create_group("deep", attributes={"title": "A profile"})
    depth = np.array([0, 10, 50, 100, 500, 1000, 4000], "f4")
    add(deep, "depth", depth, ["depth"], {"units": "m", "positive": "down", "axis": "Z"})
    profile = np.round(2 + 18 * np.exp(-depth / 300), 2)
    add(deep, "temperature", profile, ["depth"], {"units": "degC", "long_name": "temperature", "_FillValue": -999.0})
    session.commit("A profile of the deep sea")


main(sys.argv[1])
