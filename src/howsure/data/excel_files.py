"""Read the first sheet of an Excel file."""

import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from howsure.data.arrow_files import first_line
from howsure.data.columns import check_unique
from howsure.data.values import shorten
from howsure.errors import InputError, install_hint

__all__ = ["ExcelReader"]

_MISSING = frozenset(("", "#N/A", "#NULL!", "NA", "N/A", "n/a", "nan", "NaN", "null", "NULL", "None"))


class ExcelReader:
    """Reader of the first sheet of an Excel file (.xlsx), whose first row has the names of the columns.

    A sheet has at most 1,048,576 rows, so that it is read whole.

    Attributes:
        path: of the file.
        names: of the columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows, self._first_row = self._read()
        head = ["" if value is None else str(value).strip() for value in self._rows.pop(0)]
        nameless = [k for k, name in enumerate(head) if not name]
        self.names = [name or f"Unnamed: {k}" for k, name in enumerate(head)]
        if nameless not in ([], [0]):
            called = ", ".join(repr(self.names[k]) for k in nameless[:5])
            warnings.warn(f"{path}: {len(nameless)} columns have no name and are called {called}", stacklevel=2)
        check_unique(self.names, f"{path}, row {self._first_row}: ")

    def count(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def frames(self, rows: int) -> Iterator[Any]:
        """Yield pandas frames of ``rows`` rows each."""
        import pandas as pd

        columns = zip(*self._rows, strict=True) if self._rows else []
        frame = pd.DataFrame({name: _column(values) for name, values in zip(self.names, columns, strict=False)})
        for start in range(0, len(frame), rows):
            yield frame.iloc[start : start + rows].reset_index(drop=True)

    def _read(self) -> tuple[list[tuple[Any, ...]], int]:
        """Return the rows of the first sheet from its first one that is not empty, and the number of that one."""
        try:
            import openpyxl
        except ImportError as error:
            raise InputError(
                f"{self.path} cannot be read without openpyxl; install it with {install_hint('excel')}, or save "
                "the table as .csv"
            ) from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of styles and extensions that openpyxl leaves out
                book = openpyxl.load_workbook(self.path, read_only=True, data_only=True)
                rows = [tuple(row) for row in book.worksheets[0].iter_rows(values_only=True)] if book.worksheets else []
                title, others = (book.worksheets[0].title, book.sheetnames) if rows else ("", [])
                book.close()
                self._check_formulas(openpyxl, rows)
        except InputError:
            raise
        except Exception as error:  # whatever zip, XML and openpyxl raise about a damaged file
            raise InputError(f"{self.path} is not a readable Excel file: {first_line(error)}") from error
        if len(others) > 1:
            rest = ", ".join(repr(name) for name in others if name != title)
            warnings.warn(f"{self.path}: the first sheet, {title!r}, is read; not {rest}", stacklevel=2)
        return self._trimmed(rows)

    def _trimmed(self, rows: list[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], int]:
        filled = [k for k, row in enumerate(rows) if any(value is not None for value in row)]
        if not filled:
            raise InputError(f"{self.path} is empty")
        first, last = filled[0], filled[-1]
        if first == last:
            raise InputError(f"{self.path} has names of columns, but no rows")
        width = max(k + 1 for row in rows for k, value in enumerate(row) if value is not None)
        return [(*row, *[None] * width)[:width] for row in rows[first : last + 1]], first + 1

    def _check_formulas(self, openpyxl: Any, rows: list[tuple[Any, ...]]) -> None:
        """Raise if a cell has a formula whose result is not in the file: it would look like a missing value."""
        with zipfile.ZipFile(self.path) as archive:
            sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
            if not any(re.search(rb"<f[\s>/]", archive.read(name)) for name in sheets):
                return
        book = openpyxl.load_workbook(self.path, read_only=True)
        for k, row in enumerate(book.worksheets[0].iter_rows(values_only=True)):
            for place, value in enumerate(row):
                if isinstance(value, str) and value.startswith("=") and rows[k][place] is None:
                    raise InputError(
                        f"{self.path}, row {k + 1}: the formula {shorten(value)} has no result in the file; open and "
                        "save it in Excel, or save it as .csv"
                    )
        book.close()


def _column(values: tuple[Any, ...]) -> Any:
    """Return the values of a column as a pandas series of the type that they all have."""
    import pandas as pd

    present = [None if isinstance(v, str) and v.strip() in _MISSING else v for v in values]
    kinds = {type(value) for value in present if value is not None}
    gaps = any(value is None for value in present)
    if not kinds:
        return pd.Series([float("nan")] * len(present))
    if kinds == {bool}:
        return pd.Series(present, dtype="boolean" if gaps else bool)
    if kinds == {int} and all(value is None or abs(value) < 2**63 for value in present):
        return pd.Series(present, dtype="Int64" if gaps else "int64")
    if kinds <= {int, float}:
        return pd.Series([float("nan") if value is None else float(value) for value in present])
    return pd.Series(present) if len(kinds) == 1 else pd.Series(present, dtype=object)
