"""Read CSV and Parquet files as pandas frames."""

import csv
import itertools
from pathlib import Path
from typing import Any

from evidentia.data.columns import check_unique
from evidentia.data.values import parse_number
from evidentia.errors import InputError

__all__ = ["read_file"]


def read_file(path: str | Path) -> Any:
    """Return a pandas frame from a CSV (``,``, ``;`` or tab separated, UTF-8) or Parquet file."""
    path = Path(path)
    kinds = {".parquet": _read_parquet, ".pq": _read_parquet, ".csv": _read_csv, ".tsv": _read_csv, ".txt": _read_csv}
    if path.is_dir():
        raise InputError(f"{path} is a folder; a table is a .csv, .tsv, .txt or .parquet file")
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    read = kinds.get(path.suffix.lower())
    if read is None:
        ending = path.suffix or "without ending"
        raise InputError(f"{path}: a table is a .csv, .tsv, .txt or .parquet file, not {ending}")
    try:
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty")
        frame = read(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if len(frame) == 0:
        raise InputError(f"{path} has names of columns, but no rows")
    return frame


def _read_parquet(path: Path) -> Any:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise InputError(f"{path} cannot be read without pyarrow; install it, or save the table as .csv") from error
    except Exception as error:  # pyarrow's errors have no common base but this one when pyarrow may be missing
        raise InputError(f"{path} is not a readable Parquet file: {_first_line(error)}") from error


def _read_csv(path: Path) -> Any:
    import pandas as pd

    try:
        separator = _separator(path)
        # in one piece: otherwise what a column is would be decided anew for every part of a large file
        return pd.read_csv(path, sep=separator, encoding="utf-8-sig", low_memory=False)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} cannot be read as a table: it is not UTF-8 text ({error}); save it as UTF-8"
        ) from error
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty") from error
    except (pd.errors.ParserError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table: {_first_line(error)}") from error


def _separator(path: Path) -> str:
    """Return the separator of the fields of a CSV file, judged by its first rows.

    Raises:
        InputError: if the file has NUL bytes, repeated names, rows longer than its head, or another separator.
    """
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            if b"\0" in part:
                raise InputError(f"{path} cannot be read as a table: it has NUL bytes, as binary or UTF-16 files have")
    first = {separator: _first_rows(path, separator) for separator in ",;\t|: "}
    separator = max(",;\t", key=lambda s: len(first[s][0]) if first[s] else 0)
    if not first[separator]:
        raise InputError(f"{path} is empty")
    head, *rows = first[separator]
    if any(len(row) > len(head) for row in rows):  # pandas would take the first fields for names of rows
        raise InputError(f"{path} cannot be read as a table: its rows have more fields than its first line has names")
    check_unique([name for name in head if name], f"{path}: ")
    if len(head) == 1:
        for other in "|: ":
            head, *rows = first[other]
            same = all(len(row) == len(head) for row in rows)
            if len(head) > 1 and rows and same and any(parse_number(field) is not None for field in rows[0]):
                raise InputError(f"{path} seems to be separated by {other!r}; use commas, semicolons or tabs")
    return separator


def _first_rows(path: Path, separator: str) -> list[list[str]]:
    rows: list[list[str]] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        filled = (row for row in csv.reader(file, delimiter=separator) if row)
        try:
            rows.extend(itertools.islice(filled, 6))
        except csv.Error:  # a field too long for csv, but not for pandas; in the first line it cannot be a name
            if not rows:
                raise
    return rows


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
