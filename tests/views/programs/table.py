"""The tables of docs/views.md: which program reads which feature of a view."""

from cases import ROWS

# What the heads of columns say; versions are in a table of their own.
HEADS = {"netCDF4-python": "netCDF4", "xarray, h5netcdf": "xarray h5netcdf", "R": "R ncdf4", "zarr-python 2": "zarr 2"}
ZARR2_HEADS = {"netCDF4-python": "NCZarr"}


def sections():
    """Returns lists of rows, each begun by a heading."""
    found = []
    for row in ROWS:
        if row.startswith("**"):
            found.append([row])
        else:
            found[-1].append(row)
    return found


def cell(column, row, numbers):
    notes = ", ".join(str(number) for number in sorted({numbers[limit.text] for limit in column.notes.get(row, [])}))
    equal = "yes" if column.equal[row] else ""
    return ", ".join(filter(None, [equal, notes and f"[{notes}]"])) or "–"


def features(columns):
    """Returns the table of one view, with its notes below."""
    numbers, programs = {}, {}
    for row in ROWS:
        for column in columns:
            for limit in column.notes.get(row, []):
                numbers.setdefault(limit.text, len(numbers) + 1)
                programs.setdefault(limit.text, []).append(column.program)
    heads = {**HEADS, **(ZARR2_HEADS if columns[0].view == "zarr2" else {})}
    names = [heads.get(column.program, column.program) for column in columns]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for heading, *rows in sections():
        cells = {row: [cell(column, row, numbers) for column in columns] for row in rows}
        shown = [row for row in rows if any(cell != "–" for cell in cells[row])]
        lines.append(f"| {heading} |{' |' * len(names)}")
        while shown:
            # Rows that say the same are one.
            alike = [row for row in shown if cells[row] == cells[shown[0]]]
            shown = [row for row in shown if row not in alike]
            lines.append(f"| {', '.join(alike)} | {' | '.join(cells[alike[0]])} |")
    notes = []
    for text, number in numbers.items():
        of = sorted(set(programs[text]), key=programs[text].index)
        notes.append(f"{number}. {', '.join(heads.get(program, program) for program in of)}: {text}.")
    return "\n".join([*lines, "", *notes])


def versions(columns):
    """Returns the table of the programs, with the arrays that each read as they are, and those that needed a note."""
    lines = ["| program | NetCDF view | Zarr version 2 view |", "|---|---|---|"]
    for name in dict.fromkeys(column.version for column in columns):
        shown = {column.view: f"{column.equal_arrays} arrays equal" + (f", {column.noted_arrays} with a note" if column.noted_arrays else "")
                 for column in columns if column.version == name}
        lines.append(f"| {name} | {shown.get('netcdf', '')} | {shown.get('zarr2', '')} |")
    return "\n".join(lines)
