"""How each view must show what the reference has read. Written from docs/views.md, not from the view's source."""

import base64
import json
import unicodedata

import numpy as np

# Units of times in files, in seconds.
UNITS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
# Seconds of the units of numpy, as a fraction.
STORED = {"W": (604_800, 1), "D": (86_400, 1), "h": (3600, 1), "m": (60, 1), "s": (1, 1), "ms": (1, 10**3), "us": (1, 10**6), "ns": (1, 10**9)}
NOT_A_TIME = -2**63
NUMBERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
TIMES = ["numpy.datetime64", "numpy.timedelta64"]
# Data types that the NetCDF view shows.
NETCDF_TYPES = [*NUMBERS, *TIMES, "bool", "float16", "bfloat16", "complex64", "complex128", "null_terminated_bytes", "fixed_length_utf32", "string"]
NETCDF_CODECS = {"bytes", "transpose", "sharding_indexed", "zstd", "gzip", "blosc", "crc32c", "vlen-utf8",
                 *(f"numcodecs.{name}" for name in [
                     "zlib", "bz2", "zstd", "gzip", "blosc", "lz4", "lzma", "shuffle", "crc32c", "crc32", "adler32", "fletcher32", "jenkins_lookup3",
                     "delta", "bitround", "quantize", "fixedscaleoffset", "astype", "packbits", "pcodec"])}
RESERVED = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS", "_NCProperties", "_nc3_strict", "_NCCOPY", "_ARRAY_DIMENSIONS",
            "_IsNetcdf4", "_SuperblockVersion", "_Format", "_Codecs"}
# Attributes by which programs make other numbers of stored ones, which booleans and times do not have.
OF_NUMBERS = {"missing_value", "scale_factor", "add_offset", "_Unsigned"}
TYPED = {"_FillValue", "missing_value", "valid_min", "valid_max", "valid_range", "actual_range", "flag_values", "flag_masks"}


def type_name(document):
    data_type = document["data_type"]
    return data_type if isinstance(data_type, str) else data_type["name"]


def codec_names(codecs):
    """Yields the names of codecs, also of those in shards."""
    for codec in codecs:
        yield codec if isinstance(codec, str) else codec["name"]
        settings = {} if isinstance(codec, str) else codec.get("configuration") or {}
        yield from codec_names(settings.get("codecs", []))


def netcdf_shows(document):
    """Returns true if the NetCDF view must show an array."""
    codecs = set(codec_names(document["codecs"]))
    text_in_shard = type_name(document) == "string" and "sharding_indexed" in codecs
    grid = document["chunk_grid"]["name"]
    has_grid = grid == "regular" or grid == "rectilinear" and "sharding_indexed" not in codecs
    return (type_name(document) in NETCDF_TYPES and codecs <= NETCDF_CODECS and has_grid
            and 0 not in document["shape"] and len(document["shape"]) <= 32 and not text_in_shard)


def times(values):
    """Returns times as numbers, with their unit: the longest in which all are whole numbers, or double seconds; none if there is no such unit."""
    stored = values.astype(values.dtype.newbyteorder("=")).view("i8")
    unit, multiple = np.datetime_data(values.dtype)
    if unit in ("M", "Y") and values.dtype.kind == "M":
        return values.astype("M8[D]").view("i8"), "days"
    if unit not in STORED:
        return stored, None
    factor, parts = STORED[unit][0] * multiple, STORED[unit][1]
    numbers = [int(number) for number in stored.reshape(-1)]
    for name, seconds in UNITS.items():
        # Of a unit of at least a second, the same for all values.
        whole = factor % (seconds * parts) == 0 if factor >= parts else all(number == NOT_A_TIME or number * factor % (seconds * parts) == 0 for number in numbers)
        if whole:
            shown = [number if number == NOT_A_TIME else number * factor // (seconds * parts) for number in numbers]
            return np.array(shown, "i8").reshape(stored.shape), name
    shown = [np.nan if number == NOT_A_TIME else number * factor // parts + number * factor % parts / parts for number in numbers]
    return np.array(shown, "f8").reshape(stored.shape), "seconds"


def netcdf_values(values):
    """Returns values as NetCDF has them."""
    kind = values.dtype.kind
    if kind in "mM":
        return times(values)[0]
    if kind == "b":
        return values.view("i1")
    if values.dtype.itemsize == 2 and kind in "fV":
        return values.astype("f4")
    if kind == "c":
        values = np.ascontiguousarray(values)
        return values.reshape(*values.shape, 1).view(values.real.dtype)
    if kind == "S":
        return np.frombuffer(values.tobytes(), "S1").reshape(*values.shape, values.dtype.itemsize)
    if kind in "UTO":
        texts = [str(text).encode() for text in values.reshape(-1)]
        width = values.dtype.itemsize if kind == "U" else max(1, *(len(text) for text in texts))
        return np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), "S1").reshape(*values.shape, width)
    return values.astype(values.dtype.newbyteorder("="))


def safe_name(name):
    """Returns a name as NetCDF takes it."""
    name = "".join("_" if ord(letter) < 32 or letter in "\x7f/\\" else letter for letter in unicodedata.normalize("NFC", name))
    name = name[:len(name.rstrip(" "))] + "_" * (len(name) - len(name.rstrip(" ")))
    first = name[:1]
    return name if first.isascii() and (first.isalnum() or first == "_") or not first.isascii() else "_" + name


def netcdf_dimensions(arrays):
    """Returns the dimensions of the variables of a file: {name: [dimension, ...]} for {name: (document, values as shown)}."""
    def key(item):
        name, (document, _) = item
        names = document.get("dimension_names") or [None]
        is_own = bool(names) and names[0] == name
        return not (is_own and len(document["shape"]) == 1), not is_own

    sizes, found = {}, {}
    for name, (document, values) in sorted(arrays.items(), key=key):
        names = list(document.get("dimension_names") or [None] * len(document["shape"]))
        if values.ndim > len(names):
            names.append("complex" if values.dtype.kind == "f" else f"string{values.shape[-1]}")
        found[name] = []
        for wanted, size in zip(names, values.shape):
            wanted = safe_name(wanted) if wanted else f"dim_{size}"
            # A name with another size gets the size as its ending.
            while sizes.setdefault(wanted, size) != size:
                wanted = f"{wanted}_{size}"
            found[name].append(wanted)
    return found


def plain_attribute(value):
    """Returns a JSON value as an attribute shows it."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value) or all(isinstance(item, bool) for item in value):
            return value
        if all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in value):
            return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def fill_attribute(value, kind):
    """Returns the attribute `_FillValue` as a number: xarray writes that of a float as the base 64 of a float64."""
    if isinstance(value, str) and kind.startswith(("float", "bfloat")):
        try:
            return np.frombuffer(base64.b64decode(value, validate=True), "f8")[0].item()
        except ValueError:
            return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
    return value


def is_number(value):
    items = value if isinstance(value, list) else [value]
    return bool(items) and all(isinstance(item, (int, float)) and not isinstance(item, bool) for item in items)


def netcdf_attributes(attributes, document=None, values=None, may_miss=False):
    """Returns the attributes of a group, or of an array with its `zarr.json` what the reference has read, and whether it is no coordinate and may miss
    chunks."""
    shown = {}
    kind = document and type_name(document)
    for key, value in attributes.items():
        if key in RESERVED or key.startswith("_Netcdf4") or key.lower().startswith("_nczarr"):
            continue
        if (kind == "bool" or kind in TIMES) and key in OF_NUMBERS:
            continue
        if kind and key == "_FillValue":
            value = fill_attribute(value, kind)
            if not is_number(value):
                continue
        shown[safe_name(key)] = plain_attribute(value)
    if not kind:
        return shown
    if kind == "bool":
        shown.setdefault("dtype", "bool")
    elif kind in ("fixed_length_utf32", "string"):
        shown.setdefault("_Encoding", "utf-8")
    elif kind in TIMES and times(values)[1]:
        numbers, unit = times(values)
        is_span = kind == "numpy.timedelta64"
        shown["units"] = unit if is_span else f"{unit} since 1970-01-01 00:00:00"
        if is_span:
            code = np.datetime_data(values.dtype)[0]
            shown["dtype"] = f"timedelta64[{code if code in ('ms', 'us', 'ns') else 's'}]"
        else:
            shown["calendar"] = "proleptic_gregorian"
        if bool((values != values).any()):
            shown["_FillValue"] = float("nan") if numbers.dtype.kind == "f" else NOT_A_TIME
    elif document["fill_value"] == "NaN" and "missing_value" not in shown and may_miss:
        shown.setdefault("_FillValue", float("nan"))
    return shown
