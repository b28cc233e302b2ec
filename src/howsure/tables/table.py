"""Read tables (NumPy, pandas, polars, Arrow) into typed columns with missing values."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.errors import InputError, InputTypeError
from howsure.tables.columns import Column, check_unique, decide_kind, read_column

__all__ = ["Column", "Table", "as_array", "open_table", "read_table"]


@dataclass(frozen=True)
class Table:
    """Typed columns of one length.

    Attributes:
        columns: the columns.
        rows: their number of rows.
        named: whether the names came with the data, or were made up here.
        index: of a pandas frame, so that predictions can carry it.
    """

    columns: tuple[Column, ...]
    rows: int
    named: bool
    index: Any = None

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def select(self, rows: NDArray[np.int64]) -> "Table":
        """Return some of the rows, without the index."""
        columns = tuple(replace(column, values=column.values[rows]) for column in self.columns)
        return Table(columns, len(rows), self.named)


def read_table(x: Any) -> Table:
    """Return the table of a 2-D array, a pandas, polars or Arrow table, and choose the type of each column.

    An error names the column, the first value that is in the way and its row.

    >>> read_table(np.array([[1.0, 2.0], [3.0, np.nan]])).names
    ['x0', 'x1']
    """
    frame, named = open_table(x)
    columns = tuple(read_column(str(name), values, *decide_kind(str(name), values)) for name, values in frame.items())
    return Table(columns, len(frame), named, frame.index if named else None)


def open_table(x: Any) -> tuple[pd.DataFrame, bool]:
    """Return whatever :func:`read_table` accepts as a frame with unique names, and whether these are the names of x."""
    if hasattr(x, "toarray"):
        raise InputTypeError("sparse tables are not supported; pass a dense one, as in x.toarray()")
    if isinstance(x, pd.Series):
        raise InputError("x must have two dimensions: use x.to_frame() for a single column")
    if isinstance(x, pd.DataFrame):
        frame = x
    elif type(x).__module__.startswith(("polars.", "pyarrow.")):
        frame = _from_library(x)
    else:
        return _from_array(x), False
    names = [str(name) for name in frame.columns]
    check_unique(names)
    if not names:
        raise InputError("the table has no columns")
    return frame.set_axis(names, axis=1), True


def _from_library(x: Any) -> pd.DataFrame:
    """Return a polars or Arrow table as a frame of pandas."""
    try:
        frame = x.to_pandas()
    except Exception as error:  # of either library, and for lack of the method
        raise InputTypeError(
            f"x is a {type(x).__name__}: {error}", hint="collect() lazy frames; install pyarrow"
        ) from error
    if not isinstance(frame, pd.DataFrame):
        raise InputTypeError(f"x is a {type(x).__name__}, not a table")
    return frame


def _from_array(x: Any) -> pd.DataFrame:
    array = as_array(x)
    if array.dtype.kind == "c":
        raise InputError("complex data is not supported")  # scikit-learn's own words
    if array.dtype.kind not in "biufO":
        raise InputTypeError(f"x must hold numbers, not {array.dtype}; for text use a pandas frame or an object array")
    if array.ndim != 2:
        hint = ": use x.reshape(-1, 1) for one column, x.reshape(1, -1) for one row" if array.ndim == 1 else ""
        raise InputError(f"x must have two dimensions (rows, columns), got shape {array.shape}{hint}")
    if array.shape[1] == 0:
        raise InputError(f"the table has no columns: shape {array.shape}")
    names = [f"x{k}" for k in range(array.shape[1])]
    return pd.DataFrame(array, columns=names, dtype=object if array.dtype == object else None)


def as_array(x: Any) -> NDArray[Any]:
    """Return x as an array: masked values are missing, and lists with text in them stay objects."""
    if isinstance(x, np.ma.MaskedArray):
        if x.dtype.kind in "iuf":
            return np.ma.filled(x.astype(np.float64), np.nan)
        filled: NDArray[Any] = x.data.astype(object)
        filled[np.ma.getmaskarray(x)] = None
        return filled
    has_text = isinstance(x, list | tuple) and any(
        isinstance(value, str) for row in x if isinstance(row, list | tuple) for value in row
    )
    try:
        # as fixed-width text, every cell would take as much memory as the longest
        return np.array(x, dtype=object) if has_text else np.asarray(x)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"x cannot be read as a table of rows and columns: {error}") from error
