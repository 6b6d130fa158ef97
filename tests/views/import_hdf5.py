"""Writes NetCDF-4 and HDF5 files with their own libraries, and compares them with what `icechunkfs import` made of them.

    import_hdf5.py make DIRECTORY SEED COUNT
    import_hdf5.py compare DIRECTORY MOUNTPOINT
    import_hdf5.py circles FILE
    import_hdf5.py greedy DIRECTORY
    import_hdf5.py odd DIRECTORY

Files with even numbers are written by netCDF-C, the others by h5py. File `N.h5` is compared with the group `fN`, of which `N.json` is the
report. Variables that Zarr has no place for have names that begin with `no_`: these and no others must be in its list `left_out`.
Everything else is compared: files of netCDF-C by xarray, decoded and as
stored, the others element by element. Prints one line for each difference, then the number of variables that were compared.
"""

import ctypes
import json
import pathlib
import shutil
import struct
import sys
import warnings

import h5py
import netCDF4
import numpy as np
import xarray
import zarr
from import_netcdf import add_attributes, plain, same, values_of

KINDS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
# Attributes by which the formats say what Zarr says by other means.
OF_THE_FORMAT = {"REFERENCE_LIST", "CLASS", "DIMENSION_LIST", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates", "_NCProperties", "_nc3_strict"}


def compression(random, shape):
    """Returns how netCDF-C is to store a variable of `shape`."""
    if not shape or random.random() < 0.2:
        return {}
    # netCDF-C takes no longer chunks than a dimension that has an end.
    options = {"chunksizes": [int(random.integers(1, (length or 5) + 1)) for length in shape]} if random.random() < 0.7 else {}
    if random.random() < 0.7:
        options |= {"zlib": True, "complevel": int(random.integers(1, 9)), "shuffle": bool(random.random() < 0.6)}
    if random.random() < 0.3:
        options |= {"fletcher32": True}
    return options


def add_variable(random, group, name, dimensions, lengths):
    """Adds a variable to a group of netCDF-C, and writes some of it."""
    kind = str(random.choice(KINDS + ["S1"]))
    chosen = [one for one in dimensions if random.random() < 0.6]
    # netCDF-C reads wrong values of a variable that is shorter than a dimension that is not its first one.
    chosen = [one for one in chosen if lengths[one] is None][:1] + [one for one in chosen if lengths[one] is not None]
    shape = [lengths[one] for one in chosen]
    fill = values_of(random, kind, 1)[0] if kind != "S1" and random.random() < 0.4 else None
    options = compression(random, shape)
    endian = "native" if kind == "S1" else str(random.choice(["native", "little", "big"]))
    made = group.createVariable(name, kind, chosen, fill_value=fill, endian=endian, **options)
    add_attributes(random, made, KINDS + ["S1"])
    if random.random() < 0.2:
        made.setncattr_string("words", ["one", "zwei", "трі"])
    written = [int(random.integers(1, 9)) if length is None else length for length in shape]
    if kind == "S1":
        made.set_auto_chartostring(False)
    if random.random() < 0.9 and all(written):
        part = tuple(slice(0, length if lengths[one] is None else int(random.integers(1, length + 1))) for one, length in zip(chosen, written))
        made[part] = values_of(random, kind, [one.stop for one in part])


TEXTS = ["", "a", "grüße", "Потсдам", "two\nlines", "x" * 70, "y" * 5000]


def add_texts(random, place, name, chosen, lengths):
    """Adds a variable of texts of any length, with filters or without, of which sometimes only a part is written."""
    shape = [lengths[one] for one in chosen]
    options = {"zlib": True, "shuffle": bool(random.random() < 0.5)} if chosen and random.random() < 0.4 else {}
    made = place.createVariable(name, str, chosen, **options)
    if not chosen:
        made[...] = random.choice(TEXTS)
    elif random.random() < 0.9 and all(shape):
        written = [int(random.integers(1, length + 1)) for length in shape]
        made[tuple(slice(0, length) for length in written)] = random.choice(np.array(TEXTS, object), written)
    made.long_name = "names of things"


def with_netcdf(file, random):
    """Writes a NetCDF-4 file with groups."""
    with netCDF4.Dataset(file, "w", format="NETCDF4") as made:
        places = [made]
        if random.random() < 0.6:
            places.append(made.createGroup("inner"))
        if random.random() < 0.3:
            places.append(places[-1].createGroup("below it"))
        lengths = {}
        for depth, place in enumerate(places):
            for number in range(random.integers(1, 4)):
                name = f"d{depth}{number}"
                lengths[name] = None if random.random() < 0.3 else int(random.integers(1, 14))
                place.createDimension(name, lengths[name])
                if random.random() < 0.4 and lengths[name]:
                    place.createVariable(name, "f8", [name])[:] = np.arange(lengths[name]) * 0.5
            add_attributes(random, place, KINDS + ["S1"])
            dimensions = list(lengths)
            for number in range(random.integers(1, 7)):
                add_variable(random, place, f"v{depth}{number}", dimensions, lengths)
            if random.random() < 0.5:
                # netCDF-C 4.9 reads any bytes where texts are shorter than a dimension without an end.
                ended = [one for one in dimensions if lengths[one] is not None]
                add_texts(random, place, f"texts{depth}", ended[: int(random.integers(0, 3))], lengths)
            # A variable that has the name of a dimension, and is along another one.
            if len(dimensions) > 1 and random.random() < 0.2 and dimensions[-1] not in place.variables:
                place.createVariable(dimensions[-1], "i4", [dimensions[0]])


def add_dataset(random, group, name):
    """Adds a dataset with h5py, in one of its layouts."""
    shape = tuple(int(random.integers(1, 12)) for _ in range(random.integers(0, 4)))
    kind = str(random.choice(KINDS + ["S1", "S7", "bool", "enum", "text", "f2", "c8", "c16"])) if random.random() < 0.9 else "f4"
    order = str(random.choice(["<", ">"]))
    if kind == "bool":
        data = random.random(shape) < 0.5
    elif kind == "enum":
        data = random.integers(0, 3, shape).astype("i2")
    elif kind == "text":
        data = random.choice(np.array(TEXTS, object), shape) if shape else np.array(random.choice(TEXTS), object)
    elif kind[0] == "c":
        data = np.empty(shape, "c16")
        data.real, data.imag = values_of(random, "f4", shape), values_of(random, "f8", shape)
        data = np.asarray(data).astype(np.dtype(kind).newbyteorder(order))
    elif kind == "S7":
        data = random.choice(np.array([b"", b"text", b"longer!"], "S7"), shape)
    else:
        data = values_of(random, kind, shape)
        data = np.asarray(data).astype(np.dtype(kind).newbyteorder(order)) if kind != "S1" else np.asarray(data, "S1")
    options = {"dtype": h5py.enum_dtype({"RAIN": 0, "SNOW": 1, "HAIL": 2}, "i2")} if kind == "enum" else {}
    options |= {"dtype": h5py.string_dtype()} if kind == "text" else {}
    if shape and random.random() < 0.7:
        options["chunks"] = tuple(int(random.integers(1, length + 1)) for length in shape)
        if random.random() < 0.5:
            # Longer than it is, in some dimensions without an end.
            options["maxshape"] = tuple(None if random.random() < 0.5 else length + int(random.integers(0, 9)) for length in shape)
        if random.random() < 0.6:
            options |= {"compression": "gzip", "compression_opts": int(random.integers(0, 10))}
        options |= {"shuffle": bool(random.random() < 0.5), "fletcher32": bool(random.random() < 0.3) and kind != "text"}
    if kind in KINDS + ["f2", "c8"] and random.random() < 0.4:
        options["fillvalue"] = 1.5 + 2j if kind == "c8" else values_of(random, kind, 1)[0]
    if random.random() < 0.3 and shape:
        # Some chunks are never written. Elements that lie in no chunks then have any bytes, of which h5py makes true.
        if kind == "bool":
            options["fillvalue"] = False
        made = group.create_dataset(name, shape, options.pop("dtype", np.asarray(data).dtype), **options)
        made[: shape[0] // 2] = data[: shape[0] // 2]
    else:
        made = group.create_dataset(name, data=data, **options)
    if made.chunks and kind != "text" and random.random() < 0.2:
        add_with_properties(random, group, f"{name} other", data, made)
    if made.maxshape != made.shape and random.random() < 0.4:
        # A larger shape that was given up leaves chunks behind.
        made.resize([length if most is not None else length + 5 for length, most in zip(made.shape, made.maxshape)])
        made[...] = "longer" if kind == "text" else np.zeros(made.shape, made.dtype)
        made.resize(shape)
        made[...] = data
    made.attrs["units"] = "K"
    if kind[0] == "c":
        made.attrs["no_number"] = np.complex64(1 + 2j)
    made.attrs["numbers"] = np.array([1.5, -2.0], order + "f4")
    made.attrs["words"] = np.array([b"one", b"two"])
    made.attrs["variable words"] = ["eins", "zwei"]
    made.attrs["nothing"] = ""


def library():
    """Returns the HDF5 library that h5py has loaded."""
    return ctypes.CDLL(str(next((pathlib.Path(h5py.__file__).parents[1] / "h5py.libs").glob("libhdf5-*"))))


def add_with_properties(random, group, name, data, like):
    """Adds a dataset whose chunks have not all passed the filters."""
    properties = like.id.get_create_plist().copy()
    if random.random() < 0.5:
        # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS, which h5py has no function for.
        assert library().H5Pset_chunk_opts(ctypes.c_int64(properties.id), ctypes.c_uint(2)) >= 0
    place = h5py.h5d.create(group.id, name.encode(), like.id.get_type(), like.id.get_space(), properties)
    made = h5py.Dataset(place)
    made[...] = data
    if random.random() < 0.5 and properties.get_nfilters() and all(like.shape):
        # One chunk as it is, which says so.
        first = np.zeros(like.chunks, like.dtype)
        first[tuple(slice(0, min(length, chunk)) for length, chunk in zip(like.shape, like.chunks))] = made[tuple(slice(0, chunk) for chunk in like.chunks)]
        place.write_direct_chunk((0,) * len(like.shape), first.tobytes(), filter_mask=(1 << properties.get_nfilters()) - 1)


def add_others(random, group):
    """Adds what Zarr has no place for."""
    group.create_dataset("no_lists", shape=(2,), dtype=h5py.vlen_dtype("i4"))
    group.create_dataset("no_members", data=np.zeros(3, [("a", "i4"), ("b", "f8")]))
    group.create_dataset("no_complex", data=np.zeros(3, [("i", "f4"), ("r", "f4")]))
    group.create_dataset("no_codec", data=np.arange(100), chunks=(10,), compression="lzf")
    group.create_dataset("no_bits", data=np.zeros(2, "V5"))
    group.create_dataset("no_data", dtype="f4", shape=None)
    group["no_link"] = h5py.SoftLink("/x0")
    group["no_other_file"] = h5py.ExternalLink("other.h5", "/x0")


def with_h5py(file, random):
    """Writes an HDF5 file of the oldest or the newest form."""
    options = {"libver": str(random.choice(["earliest", "latest", "v108", "v110"]))}
    if random.random() < 0.2:
        options["userblock_size"] = 1024
    if random.random() < 0.2:
        options |= {"fs_strategy": "page", "fs_page_size": 4096}
        options.pop("userblock_size", None)
    with h5py.File(file, "w", track_order=bool(random.random() < 0.3), **options) as made:
        made.attrs["title"] = "a file"
        places = [made]
        for name in ["g", "h"]:
            if random.random() < 0.5:
                places.append(places[-1].create_group(name))
        for place in places:
            # Sometimes so many that their names are in a heap.
            for number in range(40 if random.random() < 0.1 else int(random.integers(1, 6))):
                add_dataset(random, place, f"x{number}")
            for number in range(20 if random.random() < 0.2 else 1):
                place.attrs[f"number{number}"] = number
        if random.random() < 0.3:
            add_others(random, places[-1])
        if random.random() < 0.3:
            # Dimensions as HDF5 has them.
            made["scale"] = np.arange(4.0)
            made["scale"].make_scale("scale")
            made["scaled"] = np.zeros((4, 2))
            made["scaled"].dims[0].attach_scale(made["scale"])


def make(directory, seed, count):
    """Writes `count` files."""
    for number in range(count):
        random = np.random.default_rng([seed, number])
        (with_h5py if number % 2 else with_netcdf)(directory / f"{number}.h5", random)


def difference(here, there):
    """Returns the first elements that differ, or the shapes."""
    here, there = np.asarray(here), np.asarray(there)
    if here.shape != there.shape:
        return f"shape {there.shape}, not {here.shape}"
    pairs = [(place, one, other) for place, one, other in zip(np.ndindex(here.shape), here.ravel(), there.ravel()) if not same(one, other)]
    return f"{len(pairs)} of {here.size} differ, first at {pairs[:1]}"


def groups_of(file):
    """Returns the paths of all groups of a file."""
    with h5py.File(file) as opened:
        found = [""]
        opened.visititems(lambda path, one: found.append(path) if isinstance(one, h5py.Group) else None)
        return found


def compare_netcdf(file, directory, wrong):
    """Compares a file of netCDF-C by xarray."""
    count = 0
    for group in groups_of(file):
        for options in [{"decode_cf": False}, {}]:
            opened = xarray.open_dataset(file, engine="netcdf4", group=f"/{group}", decode_cf=False)
            other = xarray.open_zarr(directory / group, consolidated=False, **options)
            with opened, other:
                # xarray joins characters along a dimension, unless a variable of another kind has it, too.
                original = opened.drop_vars([name for name in opened.variables if str(name).startswith("no_")])
                original = original if options else xarray.decode_cf(original)
                shown = set(original.variables)
                if shown != set(other.variables):
                    wrong.append(f"{group} {options}: {sorted(shown ^ set(other.variables))}")
                for name in sorted(shown & set(other.variables)):
                    count += 1
                    here, there = original.variables[name], other.variables[name]
                    where = f"{group}/{name} {options}"
                    is_text = here.dtype.kind in "OUT" and there.dtype.kind in "OUT"
                    if here.dims != there.dims or not options and not is_text and here.dtype != there.dtype.newbyteorder("="):
                        wrong.append(f"{where}: {there.dims} {there.dtype}, not {here.dims} {here.dtype}")
                    elif not same(here.values, there.values):
                        wrong.append(f"{where}: {difference(here.values, there.values)}")
                    attributes = [sorted((key, plain(value)) for key, value in one.attrs.items()) for one in [here, there]]
                    if str(attributes[0]) != str(attributes[1]):
                        wrong.append(f"{where}: attributes {attributes[1]}, not {attributes[0]}")
                attributes = [sorted((key, plain(value)) for key, value in one.attrs.items()) for one in [original, other]]
                if str(attributes[0]) != str(attributes[1]):
                    wrong.append(f"{group}: attributes {attributes[1]}, not {attributes[0]}")
    return count


def text(value):
    """Returns an attribute of h5py as JSON has it."""
    if isinstance(value, np.ndarray):
        values = [text(one) for one in value.tolist()]
        return values[0] if len(values) == 1 else values
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value


def compare_hdf5(file, directory, wrong):
    """Compares a file of h5py element by element."""
    count = 0
    with h5py.File(file) as original:

        def look(path, one):
            nonlocal count
            if path.rsplit("/", 1)[-1].startswith("no_"):
                return
            found = zarr.open(store=directory / path, mode="r")
            there, here = dict(found.attrs), {key: text(value) for key, value in one.attrs.items() if key not in OF_THE_FORMAT and not key.startswith("no_")}
            if isinstance(one, h5py.Dataset):
                count += 1
                enumeration = h5py.check_enum_dtype(one.dtype) or ({"FALSE": 0, "TRUE": 1} if one.dtype == bool else None)
                if enumeration:
                    here |= {"flag_values": list(enumeration.values()), "flag_meanings": " ".join(enumeration)}
                values = np.asarray(one[()], one.dtype)
                values = values.astype("i1") if one.dtype == bool else values
                is_text = one.dtype.kind == "O"
                kind = "string" if is_text else values.dtype.newbyteorder("=")
                found_kind = found.metadata.data_type.to_json(zarr_format=3) if is_text else found.dtype.newbyteorder("=")
                if found.shape != one.shape or found_kind != kind:
                    wrong.append(f"{path}: {found.shape} {found.dtype}, not {one.shape} {one.dtype}")
                elif not same(values, np.asarray(found[...])):
                    wrong.append(f"{path}: {difference(values, found[...])}")
                if one.chunks and found.chunks != one.chunks and not is_text:
                    wrong.append(f"{path}: chunks {found.chunks}, not {one.chunks}")
                scales = [next(iter(axis.keys()), None) for axis in one.dims]
                for name, scale in zip(found.metadata.dimension_names or [], scales):
                    if scale is not None and name != scale:
                        wrong.append(f"{path}: dimension {name}, not {scale}")
            if {key: there.get(key) for key in here} != here or set(there) != set(here):
                wrong.append(f"{path}: attributes {there}, not {here}")

        original.visititems(look)
    return count


def circles(file):
    """Writes a file that leads in circles, has many names for one thing, and is very deep."""
    with h5py.File(file, "w") as made:
        made["x"] = np.arange(10)
        made.create_group("g")["again"] = made["/"]
        for number in range(500):
            made[f"name{number}"] = made["x"]
        place = made
        for _ in range(100):
            place = place.create_group("deep")
        place["never"] = 1
        made.create_dataset("wide", (1 << 40, 1 << 20), "u1", chunks=(1 << 20, 1))
        made.create_dataset("long", (1 << 60,), "f8", chunks=(1 << 10,))


def greedy(directory):
    """Writes files that make gigabytes of a reader that believes them: 4,000 references to one long text, and an index that has twenty
    million chunks without a byte of its own."""
    text, file = "x" * (1 << 20), directory / "texts.h5"
    with h5py.File(file, "w") as made:
        made["x"] = np.arange(10)
        made["x"].attrs.create("texts", [text] + ["y"] * 3999, dtype=h5py.string_dtype())
    # A reference is the length, the place of the heap and a number there; the first one takes the place of all.
    contents = bytearray(file.read_bytes())
    long, short = struct.pack("<I", len(text)), struct.pack("<I", 1)
    at = next(at for at in range(len(contents)) if contents[at:at + 4] == long and contents[at + 16:at + 20] == short)
    contents[at:at + 4000 * 16] = contents[at:at + 16] * 4000
    file.write_bytes(contents)
    with h5py.File(directory / "implicit.h5", "w", libver="latest") as made:
        made["x"] = np.arange(10)
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((1,))
        properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((20_000_000,))
        h5py.h5d.create(made.id, b"implicit", h5py.h5t.NATIVE_INT8, space, dcpl=properties)


def odd(directory):
    """Writes a file with two lengths along one dimension, and one that its writer has not closed."""
    with h5py.File(directory / "uneven.h5", "w") as made:
        made["time"] = np.arange(24)
        made["time"].make_scale("time")
        for name, length in [("whole", 24), ("short", 23)]:
            made[name] = np.arange(length)
            made[name].dims[0].attach_scale(made["time"])
    with h5py.File(directory / "open.h5", "w", libver="latest") as made:
        made.create_dataset("x", (4,), maxshape=(None,), chunks=(2,))
        made.swmr_mode = True
        made["x"][...] = 1
        shutil.copy(directory / "open.h5", directory / "left.h5")


def compare(file, directory, left_out):
    """Compares a file with what was made of it. Returns what is wrong, and the number of variables."""
    wrong = []
    left_out = {one["path"] for one in left_out if "@" not in one["path"]}
    expected = set()
    with h5py.File(file) as opened:
        # Not all names: what a link leads to has another one.
        def names(path, group):
            for name in group:
                if name.startswith("no_"):
                    expected.add(f"{path}{name}")
                elif isinstance(group.get(name, getlink=True), h5py.HardLink) and isinstance(group[name], h5py.Group):
                    names(f"{path}{name}/", group[name])

        names("", opened)
    if left_out != expected:
        wrong.append(f"left out: {sorted(left_out)}, not {sorted(expected)}")
    is_netcdf = int(file.stem) % 2 == 0
    return wrong, (compare_netcdf if is_netcdf else compare_hdf5)(file, directory, wrong)


def compare_all(directory, mountpoint):
    """Compares all files of a directory, and prints what is wrong."""
    warnings.simplefilter("ignore")
    total, is_wrong = 0, False
    for file in sorted(directory.glob("*.h5"), key=lambda file: int(file.stem)):
        report = json.loads(file.with_suffix(".json").read_text())
        wrong, count = compare(file, mountpoint / f"f{file.stem}", report["left_out"])
        total += count
        for line in wrong:
            is_wrong = True
            print(f"{file.stem}: {line}")
    print(total, "variables")
    sys.exit(is_wrong)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1] == "circles":
        circles(sys.argv[2])
    elif sys.argv[1] == "greedy":
        greedy(pathlib.Path(sys.argv[2]))
    elif sys.argv[1] == "odd":
        odd(pathlib.Path(sys.argv[2]))
    else:
        compare_all(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]))
