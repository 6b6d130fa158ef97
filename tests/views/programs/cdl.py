"""Parses the text that ncdump prints of a file without groups: CDL."""

import re

import numpy as np

TYPES = {"byte": "i1", "short": "i2", "int": "i4", "int64": "i8", "ubyte": "u1", "ushort": "u2", "uint": "u4", "uint64": "u8",
         "float": "f4", "double": "f8", "char": "S1"}
# What ncdump prints as `_` if a variable has no _FillValue; for bytes it prints the number.
FILL = {"i2": -32767, "i4": -2147483647, "i8": -9223372036854775806, "u2": 65535, "u4": 4294967295, "u8": 18446744073709551614,
        "f4": 9.9692099683868690e+36, "f8": 9.9692099683868690e+36}
SUFFIXES = {"b": "i1", "s": "i2", "": "i4", "LL": "i8", "UB": "u1", "US": "u2", "U": "u4", "ULL": "u8"}
STATEMENT = re.compile(r'((?:"(?:[^"\\]|\\.)*"|\\.|[^";\\])*);', re.S)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^,\s]+', re.S)
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "b": b"\b", "f": b"\f", "v": b"\v"}


def plain(name):
    # A reserved word has a space behind it.
    return re.sub(r"\\(.)", r"\1", name.strip())


def text(token):
    """Returns the bytes of a quoted text."""
    def replaced(match):
        code = match[1].decode()
        return bytes([int(code, 8)]) if code[0].isdigit() else ESCAPES.get(code, code.encode())

    return re.sub(rb"\\([0-7]{1,3}|.)", replaced, token[1:-1].encode("utf8", "surrogateescape"), flags=re.S)


def number(token, kind=None):
    """Returns a number; without a type the type follows from its suffix."""
    if kind in (None, "f4", "f8") and (match := re.fullmatch(r"(-?)(NaN|Infinity|inf)(f?)", token)):
        return np.dtype("f4" if match[3] else "f8").type(f"{match[1]}{match[2]}")
    if kind:
        return np.dtype(kind).type(float(token.removesuffix("f")) if kind[0] == "f" else int(token.rstrip("ULBbs")))
    digits, suffix = re.fullmatch(r"(.*?)([a-zA-Z]*)", token).groups()
    if re.fullmatch(r"-?\d+", digits) and suffix in SUFFIXES:
        return np.dtype(SUFFIXES[suffix]).type(int(digits))
    return np.dtype("f4" if suffix == "f" else "f8").type(float(digits))


def attribute(values):
    """Returns the value of an attribute; ncdump splits a text after each line."""
    is_list = values.startswith("string ")
    tokens = TOKEN.findall(values.removeprefix("string "))
    if tokens and tokens[0].startswith('"'):
        texts = [text(token).decode("utf8", "surrogateescape") for token in tokens]
        return texts if is_list else "".join(texts)
    numbers = [number(token) for token in tokens]
    return numbers[0] if len(numbers) == 1 else np.array(numbers)


def parse(source):
    """Returns {variable: {"values", "dimensions", "attributes"}} and the attributes of the file."""
    sizes, variables, own, section = {}, {}, {}, None
    body = source[source.index("{\n") + 2:]
    for statement in STATEMENT.findall(body):
        statement = re.sub(r"^\s*// global attributes:$", "", statement, flags=re.M)
        # Sections begin at the start of a line, names do not.
        while match := re.match(r"\n*(dimensions|variables|data):\n", statement):
            section, statement = match[1], statement[match.end():]
        statement = statement.strip()
        left, _, right = statement.partition(" =")
        right = right.strip()
        if section == "dimensions":
            sizes[plain(left)] = int(right)
        elif section == "data":
            variable = variables[plain(left)]
            variable["values"] = data(TOKEN.findall(right), variable, [sizes[name] for name in variable["dimensions"]])
        elif not right:
            kind, _, rest = statement.partition(" ")
            name, _, dimensions = re.fullmatch(r"((?:\\.|[^\\(])*)(\((.*)\))?", rest, re.S).groups()
            dimensions = [plain(name) for name in dimensions.split(", ")] if dimensions else []
            variables[plain(name)] = {"kind": TYPES[kind], "dimensions": dimensions, "attributes": {}}
        else:
            # The type comes first where the values do not tell it.
            name, key = re.fullmatch(r"(?:string )?((?:\\.|[^\\:])*):(.*)", left, re.S).groups()
            of = variables[plain(name)]["attributes"] if name else own
            of[plain(key)] = attribute(("string " if left.startswith("string ") else "") + right)
    return variables, own


def data(tokens, variable, shape):
    kind = variable["kind"]
    if kind == "S1":
        width = shape[-1] if shape else 1
        rows = b"".join(text(token).ljust(width, b"\0") for token in tokens)
        return np.frombuffer(rows, "S1").reshape(shape)
    fill = np.atleast_1d(variable["attributes"].get("_FillValue", FILL.get(kind)))[0]
    return np.array([np.dtype(kind).type(fill) if token == "_" else number(token, kind) for token in tokens], kind).reshape(shape)
