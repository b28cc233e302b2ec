"""Tables as people have them (NumPy, pandas, polars, Arrow, CSV, Parquet) as typed columns with missing values."""

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from evidentia.errors import InputError, InputTypeError

__all__ = ["Column", "Kind", "Table", "read_file", "read_table"]

Kind = Literal["number", "boolean", "category", "date"]


@dataclass(frozen=True)
class Column:
    """One column. Numbers, booleans (0, 1) and dates (seconds since 1970) are float64 with NaN where missing.

    Categories are text with None where missing.
    """

    name: str
    kind: Kind
    values: NDArray[Any]


@dataclass(frozen=True)
class Table:
    """Columns of one length. ``named`` says whether the names came with the data or were made up here."""

    columns: tuple[Column, ...]
    rows: int
    named: bool
    index: Any = None  # of a pandas frame, so that predictions can carry it

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def read_table(x: Any) -> Table:
    """A table from a 2-D array, a pandas, polars or Arrow table; every refusal says which column and row it is about.

    >>> read_table(np.array([[1.0, 2.0], [3.0, np.nan]])).names
    ['x0', 'x1']
    """
    if hasattr(x, "toarray"):
        raise InputTypeError("sparse tables are not supported; pass a dense one, as in x.toarray()")
    frame = _as_frame(x)
    if frame is None:
        return _from_array(x)
    names = [str(name) for name in frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"column names must be unique; {', '.join(map(repr, repeated))} stands more than once")
    columns = tuple(_from_series(name, frame.iloc[:, k]) for k, name in enumerate(names))
    if not columns:
        raise InputError("the table has no columns")
    return Table(columns, len(frame), named=True, index=frame.index)


def read_file(path: str | Path) -> Any:
    """A pandas frame from a CSV (``,``, ``;`` or tab separated) or Parquet file."""
    import pandas as pd

    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist")
    if path.suffix.lower() in (".parquet", ".pq"):
        return pd.read_parquet(path)
    if path.suffix.lower() not in (".csv", ".tsv", ".txt"):
        raise InputError(
            f"{path}: a table is a .csv, .tsv, .txt or .parquet file, not {path.suffix or 'without ending'}"
        )
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty")
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline()
        separator = max(",;\t", key=head.count)
        return pd.read_csv(path, sep=separator, encoding="utf-8-sig")
    except (pd.errors.ParserError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from error


def _as_frame(x: Any) -> Any:
    """As a pandas frame, or None for arrays. Libraries that are not imported cannot have made x."""
    import pandas as pd

    if isinstance(x, pd.DataFrame):
        return x
    if isinstance(x, pd.Series):
        raise InputError("x must have two dimensions; a single column is x.to_frame()")
    polars, arrow = sys.modules.get("polars"), sys.modules.get("pyarrow")
    if polars is not None and isinstance(x, polars.LazyFrame):
        raise InputTypeError("x is a polars LazyFrame; collect() it first")
    if polars is not None and isinstance(x, polars.DataFrame):
        return pd.DataFrame(x.to_dict(as_series=False), columns=x.columns)
    if arrow is not None and isinstance(x, arrow.Table | arrow.RecordBatch):
        return x.to_pandas()
    if isinstance(x, np.ndarray | Sequence) and np.asarray(x).dtype == object:
        array = np.asarray(x)
        _check_two_dimensions(array)
        return pd.DataFrame(array, columns=[f"x{k}" for k in range(array.shape[1])])
    return None


def _from_array(x: Any) -> Table:
    array = np.asarray(x)
    if array.dtype.kind == "c":
        raise InputError("complex data is not supported")  # scikit-learn's own words
    if array.dtype.kind not in "biuf":
        raise InputTypeError(f"x must hold numbers, not {array.dtype}; for text use a pandas frame or an object array")
    _check_two_dimensions(array)
    kind: Kind = "boolean" if array.dtype.kind == "b" else "number"
    values = array.astype(np.float64)
    names = [f"x{k}" for k in range(array.shape[1])]
    for name, column in zip(names, values.T, strict=True):
        _check_finite(name, column)
    columns = tuple(Column(name, kind, column) for name, column in zip(names, values.T, strict=True))
    return Table(columns, len(array), named=False)


def _check_two_dimensions(array: NDArray[Any]) -> None:
    if array.ndim != 2:
        hint = "; a single column is x.reshape(-1, 1), a single row x.reshape(1, -1)" if array.ndim == 1 else ""
        raise InputError(f"x must have two dimensions (rows, columns), got shape {array.shape}{hint}")
    if array.shape[1] == 0:
        raise InputError(f"the table has no columns: shape {array.shape}")


def _from_series(name: str, series: Any) -> Column:
    import pandas as pd

    types = pd.api.types
    if types.is_bool_dtype(series.dtype):
        return Column(name, "boolean", series.astype("Float64").to_numpy(np.float64, na_value=np.nan))
    if types.is_complex_dtype(series.dtype):
        raise InputError(f"column {name!r}: complex data is not supported")
    if types.is_numeric_dtype(series.dtype):
        values = series.to_numpy(np.float64, na_value=np.nan)
        _check_finite(name, values)
        return Column(name, "number", values)
    if types.is_datetime64_any_dtype(series.dtype):
        return Column(name, "date", _seconds(series))
    if types.is_timedelta64_dtype(series.dtype):
        return Column(name, "number", series.dt.total_seconds().to_numpy(np.float64))
    if isinstance(series.dtype, pd.CategoricalDtype):
        return Column(name, "category", _texts(series))
    return _from_objects(name, series)


def _from_objects(name: str, series: Any) -> Column:
    """A column of Python objects: what they are decides, and a mixture of numbers and text is refused."""
    import pandas as pd

    present = series.dropna()
    kinds = {_kind_of(value) for value in present}
    if not kinds:
        return Column(name, "number", np.full(len(series), np.nan))
    if kinds == {"text"}:
        numbers = pd.to_numeric(present, errors="coerce")
        if numbers.notna().all():
            return _from_series(name, pd.to_numeric(series, errors="coerce"))
        if numbers.notna().mean() <= 0.5:
            return Column(name, "category", _texts(series))
        _refuse_mixture(name, series, numbers.isna(), len(present))
    if kinds == {"boolean"}:
        return Column(name, "boolean", series.map(float, na_action="ignore").to_numpy(np.float64, na_value=np.nan))
    if kinds == {"date"}:
        return Column(name, "date", _seconds(pd.to_datetime(series)))
    if kinds <= {"number", "boolean"}:
        values = series.map(float, na_action="ignore").to_numpy(np.float64, na_value=np.nan)
        _check_finite(name, values)
        return Column(name, "number", values)
    if "text" in kinds:
        _refuse_mixture(name, series, present.map(lambda v: _kind_of(v) == "text"), len(present))
    raise InputTypeError(
        f"column {name!r} holds {' and '.join(sorted(kinds))} values; columns are numbers, booleans, text or dates"
    )


def _refuse_mixture(name: str, series: Any, is_text: Any, present: int) -> None:
    texts = series.dropna()[is_text.to_numpy()]
    row = int(np.flatnonzero((series == texts.iloc[0]).to_numpy())[0])
    count = len(texts)
    raise InputError(
        f"column {name!r} has {count} text value{'' if count == 1 else 's'} (first: {texts.iloc[0]!r} in row {row}) "
        f"among {present - count} numbers; replace them by numbers or by missing values, or make the whole column text"
    )


def _kind_of(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, int | float | Decimal | np.number):
        return "number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, datetime.date | np.datetime64):
        return "date"
    return type(value).__name__


def _texts(series: Any) -> NDArray[Any]:
    return np.array(
        [None if missing else str(v) for v, missing in zip(series, series.isna(), strict=True)], dtype=object
    )


def _seconds(series: Any) -> NDArray[np.float64]:
    if series.dt.tz is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    values = series.to_numpy("datetime64[us]")
    seconds = values.astype(np.int64) / 1e6
    return np.where(np.isnat(values), np.nan, seconds)


def _check_finite(name: str, values: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        count = f"{len(bad)} infinite value{'' if len(bad) == 1 else 's'}"
        raise InputError(f"column {name!r} has {count} (first in row {bad[0]}); infinity cannot be scaled")
