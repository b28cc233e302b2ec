"""Read tables (NumPy, pandas, polars, Arrow, CSV, Parquet) into typed columns with missing values."""

import csv
import datetime
import decimal
import itertools
import math
import re
import reprlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from evidentia.errors import InputError, InputTypeError

__all__ = [
    "Column",
    "Content",
    "Kind",
    "OpenTable",
    "RefusedError",
    "Table",
    "boolean_text",
    "kind_of",
    "moment_text",
    "number_text",
    "open_table",
    "read_column",
    "read_file",
    "read_table",
    "refuse",
    "to_text",
]

Kind = Literal["number", "boolean", "category", "date"]

# What the values of a column were, where the kind leaves it open. A number is a plain number or a duration; a category
# was made of text, numbers, booleans, dates or a mixture ("object"). Empty: not known, as in files of older versions.
Content = Literal["", "text", "number", "boolean", "date", "duration", "object"]


@dataclass(frozen=True)
class Column:
    """One column. Numbers, booleans (0, 1) and dates (seconds since 1970) are float64 with NaN where missing.

    Categories are text with None where missing. Durations are numbers, in seconds.
    """

    name: str
    kind: Kind
    values: NDArray[Any]
    content: Content = ""


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


@dataclass(frozen=True)
class OpenTable:
    """A table whose columns are not yet typed: pandas series, or arrays of one numeric dtype."""

    names: list[str]
    columns: list[Any]
    rows: int
    named: bool
    index: Any = None


def read_table(x: Any) -> Table:
    """Return the table of a 2-D array, a pandas, polars or Arrow table, and decide what each column is.

    A refusal names the column, the first value that is in the way and its row.

    >>> read_table(np.array([[1.0, 2.0], [3.0, np.nan]])).names
    ['x0', 'x1']
    """
    opened = open_table(x)
    columns = tuple(
        read_column(name, values, *_decide(name, values))
        for name, values in zip(opened.names, opened.columns, strict=True)
    )
    return Table(columns, opened.rows, opened.named, opened.index)


def open_table(x: Any) -> OpenTable:
    """Return the names and the untyped columns of whatever :func:`read_table` accepts."""
    if hasattr(x, "toarray"):
        raise InputTypeError("sparse tables are not supported; pass a dense one, as in x.toarray()")
    frame = _as_frame(x)
    if frame is None:
        return _open_array(x)
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"column names must be unique; {', '.join(map(repr, repeated))} stands more than once")
    if not names:
        raise InputError("the table has no columns")
    return OpenTable(names, [frame.iloc[:, k] for k in range(len(names))], len(frame), True, frame.index)


def _as_frame(x: Any) -> Any:
    """Return x as a pandas frame, or None if it comes without names of columns."""
    import pandas as pd

    if isinstance(x, pd.DataFrame):
        return x
    if isinstance(x, pd.Series):
        raise InputError("x must have two dimensions; a single column is x.to_frame()")
    # a library that x does not come from need not be imported
    libraries = {cls.__module__.partition(".")[0] for cls in type(x).__mro__}
    if "polars" in libraries:
        return _from_polars(x)
    if "pyarrow" in libraries:
        return _from_arrow(x)
    return None


def _from_polars(x: Any) -> Any:
    import pandas as pd
    import polars

    if isinstance(x, polars.LazyFrame):
        raise InputTypeError("x is a polars LazyFrame; collect() it first")
    if not isinstance(x, polars.DataFrame):
        raise InputTypeError(f"x is a polars {type(x).__name__}; a table is a polars DataFrame")
    columns = {
        # otherwise categories that look like numbers would become numbers
        name: pd.Categorical(x[name].to_list()) if dtype in (polars.Categorical, polars.Enum) else x[name].to_list()
        for name, dtype in x.schema.items()
    }
    return pd.DataFrame(columns, columns=x.columns, index=range(x.height))


def _from_arrow(x: Any) -> Any:
    pyarrow: Any = sys.modules["pyarrow"]  # has no types of its own
    if not isinstance(x, pyarrow.Table | pyarrow.RecordBatch):
        raise InputTypeError(f"x is an Arrow {type(x).__name__}; a table is an Arrow Table or RecordBatch")
    try:
        return x.to_pandas()
    except (pyarrow.ArrowException, ValueError, TypeError) as error:
        raise InputError(f"the Arrow table cannot be converted: {error}") from error


def _open_array(x: Any) -> OpenTable:
    import pandas as pd

    array = _as_array(x)
    if array.dtype.kind == "c":
        raise InputError("complex data is not supported")  # scikit-learn's own words
    if array.dtype.kind not in "biufO":
        raise InputTypeError(f"x must hold numbers, not {array.dtype}; for text use a pandas frame or an object array")
    if array.ndim != 2:
        hint = "; a single column is x.reshape(-1, 1), a single row x.reshape(1, -1)" if array.ndim == 1 else ""
        raise InputError(f"x must have two dimensions (rows, columns), got shape {array.shape}{hint}")
    if array.shape[1] == 0:
        raise InputError(f"the table has no columns: shape {array.shape}")
    columns = [pd.Series(column, dtype=object) for column in array.T] if array.dtype == object else list(array.T)
    return OpenTable([f"x{k}" for k in range(array.shape[1])], columns, len(array), named=False)


def _as_array(x: Any) -> NDArray[Any]:
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


# What a column is -----------------------------------------------------------------------------------------------------


def _decide(name: str, values: Any) -> tuple[Kind, Content]:
    """Return what a column of training rows is, by its dtype or by what its values are."""
    import pandas as pd

    types = pd.api.types
    if types.is_bool_dtype(values.dtype) and not isinstance(values.dtype, pd.CategoricalDtype):
        return "boolean", ""
    if types.is_complex_dtype(values.dtype):
        raise InputError(f"column {name!r}: complex data is not supported")
    if types.is_numeric_dtype(values.dtype):
        return "number", "number"
    if isinstance(values.dtype, pd.DatetimeTZDtype) or getattr(values.dtype, "kind", "") == "M":
        return "date", ""
    if getattr(values.dtype, "kind", "") == "m":
        return "number", "duration"
    categories = _declared_categories(values)
    if categories is not None:
        kinds = {kind_of(value) for value in categories}
        if kinds <= {"text"}:
            return "category", "text"
        if kinds == {"boolean", "number"}:
            return "category", "number"
        one = next(iter(kinds))
        return "category", one if len(kinds) == 1 and one in ("number", "boolean", "date") else "object"  # type: ignore[return-value]
    return _decide_objects(name, values)


def _declared_categories(values: Any) -> Any:
    """Return the categories of a categorical column (pandas, or a dictionary of Arrow), None for any other."""
    import pandas as pd

    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.categories
    if str(values.dtype).startswith("dictionary<"):
        return values.dropna().unique()
    return None


def _decide_objects(name: str, series: Any) -> tuple[Kind, Content]:
    """Decide by the values. A mixture of numbers and text is refused: which of them are mistakes cannot be known."""
    rows = np.flatnonzero(~_missing(name, series))
    present = [series.iloc[int(row)] for row in rows] if len(rows) < len(series) else list(series)
    found = [kind_of(value) for value in present]
    kinds = set(found)
    if kinds == {"text"}:
        is_text = np.array([parse_number(value) is None for value in present])
        if not is_text.any():
            return "number", "number"
        if is_text.mean() >= 0.5:
            return "category", "text"
        _refuse_mixture(name, present, rows, is_text, "numbers")
    if kinds in ({"boolean"}, {"date"}):
        return found[0], ""  # type: ignore[return-value]
    if kinds <= {"number", "boolean"}:  # also where every value is missing
        return "number", "number"
    if kinds == {"duration"}:
        return "number", "duration"
    if "text" in kinds:
        others = " and ".join(f"{kind}s" for kind in sorted(kinds - {"text"}))
        _refuse_mixture(name, present, rows, np.array([kind == "text" for kind in found]), others)
    odd = next((k for k, kind in enumerate(found) if kind not in _VALUES), 0)
    raise InputTypeError(
        f"column {name!r} holds {' and '.join(sorted(kinds))} values (first: {short(present[odd])} in row "
        f"{rows[odd]}); columns are numbers, booleans, text or dates{_hint(found[odd])}"
    )


def _refuse_mixture(
    name: str, present: list[Any], rows: NDArray[np.int64], is_text: NDArray[np.bool_], others: str
) -> NoReturn:
    count, first = int(is_text.sum()), int(np.argmax(is_text))
    raise InputError(
        f"column {name!r} has {count} text value{'' if count == 1 else 's'} "
        f"(first: {short(present[first])} in row {rows[first]}) among {len(present) - count} {others}; replace them by "
        f"{others} or by missing values, or make the column a category with .astype('category')"
    )


def _missing(name: str, series: Any) -> NDArray[np.bool_]:
    try:
        missing: NDArray[np.bool_] = series.isna().to_numpy(bool)
    except decimal.InvalidOperation as error:  # Decimal('sNaN') cannot be compared with anything
        raise InputError(f"column {name!r} has a signalling NaN; use None for missing values") from error
    return missing


def short(value: Any) -> str:
    """Return the repr of a value, cut where it is too long for a message."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


# What a value is ------------------------------------------------------------------------------------------------------

_VALUES = {"text", "number", "boolean", "date", "duration"}  # the kinds of values that columns are made of


def kind_of(value: Any) -> str:
    """Return "number", "boolean", "text", "date" or "duration", or the name of the type of anything else."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, datetime.timedelta | np.timedelta64):  # NumPy's is also an integer
        return "duration"
    if isinstance(value, Real | decimal.Decimal):
        return "number"
    if isinstance(value, datetime.date | np.datetime64):
        return "date"
    return type(value).__name__


def _hint(kind: str) -> str:
    hints = {
        "Period": "; convert periods to dates with .dt.to_timestamp()",
        "Interval": "; convert intervals to a category with .astype('category'), or to their middles",
        "bytes": "; decode bytes to text",
        "complex": "; give the real and the imaginary part a column each",
        "time": "; convert times of day to seconds",
        "list": "; give every element a column",
        "tuple": "; give every element a column",
        "ndarray": "; give every element a column",
        "dict": "; give every key a column",
    }
    return hints.get(kind, "; convert them to one of these, for example with .astype(str)")


class RefusedError(Exception):
    """A value cannot be read as what its column is: what was found, and what to do."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.found, self.advice = found, advice


def refuse(value: Any, advice: str) -> NoReturn:
    """Raise for a value of the wrong kind."""
    kind = kind_of(value)
    found = {"text": "text", "number": "plain numbers"}.get(kind, f"{kind}s" if kind in _VALUES else f"{kind} values")
    raise RefusedError(found, advice)


def parse_number(text: str) -> float | None:
    """Return the number that a text spells, or None. It never depends on other texts, as pandas' inference does."""
    if "_" in text or not text.isascii():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number  # "nan" is text, as for pandas


def to_number(value: Any) -> float:
    """Return a number, a boolean or a text that spells a number as float."""
    kind = kind_of(value)
    if kind == "text":
        number = parse_number(value)
        if number is None:
            refuse(value, "replace it by a number or a missing value")
        return number
    if kind not in ("number", "boolean"):
        refuse(value, "pass numbers")
    try:
        return float(value)
    except (OverflowError, ValueError):
        raise RefusedError("a number beyond the range of float64", "use smaller numbers, such as logarithms") from None


def to_duration(value: Any) -> np.timedelta64:
    """Return a duration as NumPy's; plain numbers have no unit and are refused."""
    import pandas as pd

    if kind_of(value) != "duration":
        refuse(value, "convert them to durations, for example with pandas.to_timedelta and their unit")
    if isinstance(value, pd.Timedelta):
        return value.to_timedelta64()
    return np.timedelta64(value, "us") if isinstance(value, datetime.timedelta) else value


def to_boolean(value: Any) -> bool:
    """Return a boolean, 0 or 1, or a text that spells one of them ("True", "false", "0", "1") as boolean."""
    kind = kind_of(value)
    if kind == "text" and value.strip().lower() in ("true", "false"):
        return bool(value.strip().lower() == "true")
    number = to_number(value) if kind in ("boolean", "number") else parse_number(value) if kind == "text" else None
    if number not in (0, 1):
        if kind == "number":
            raise RefusedError("numbers other than 0 and 1", "pass booleans")
        refuse(value, "pass booleans")
    return number == 1


def to_moment(value: Any) -> np.datetime64:
    """Return a date, or the date that an ISO text spells, in microseconds of UTC. Without a zone it counts as UTC."""
    import pandas as pd

    kind, moment = kind_of(value), value
    if kind not in ("date", "text"):
        refuse(value, "convert them to dates, for example with pandas.to_datetime and their unit")
    try:
        if kind == "text":
            moment = datetime.datetime.fromisoformat(value.strip())
        if isinstance(moment, pd.Timestamp):
            moment = (moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None)).to_datetime64()
        elif isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        if not isinstance(moment, np.datetime64):
            return np.datetime64(moment, "us")
        result: np.datetime64 = _in_unit(np.array([moment]), "us")[0]
        return result
    except (ValueError, OverflowError):
        if kind == "text":
            refuse(value, "write dates as in 2020-12-31 or 2020-12-31T18:30:00")
        raise RefusedError("dates out of range", "use dates within the years 1 to 9999") from None


def to_text(value: Any) -> str:
    """Return the text that stands for a category, the same for equal values: 3, 3.0 and Decimal(3) are "3"."""
    kind = kind_of(value)
    if kind == "number":
        return number_text(value)
    if kind == "boolean":
        return str(bool(value))
    return moment_text(value) if kind == "date" else str(value)


def number_text(value: Any) -> str:
    """Return the text of a number, or of a text that spells one. Whole numbers keep all of their digits."""
    number = to_number(value)
    if not math.isfinite(number):
        return repr(number)
    if isinstance(value, str):
        # longer ones have more digits than the largest float64, and Python refuses to convert the longest
        value = int(value) if re.fullmatch(r"\s*[+-]?[0-9]{1,400}\s*", value) else number
    whole = int(value)
    return str(whole) if whole == value else repr(number)


def boolean_text(value: Any) -> str:
    """Return "True" or "False" for what counts as a boolean."""
    return str(to_boolean(value))


def moment_text(value: Any) -> str:
    """Return the text of a moment, the same for every spelling of it."""
    moment = to_moment(value).item()
    if not isinstance(moment, datetime.datetime):  # Python's end with the year 9999
        raise RefusedError("dates out of range", "use dates within the years 1 to 9999")
    return str(moment)


# A column as what it is ---------------------------------------------------------------------------------------------

_HELD = {
    ("number", "duration"): "durations",
    ("category", "number"): "categories that are numbers",
    ("category", "boolean"): "categories that are booleans",
    ("category", "date"): "categories that are dates",
    ("category", "text"): "text",
    ("category", "object"): "categories",
    ("category", ""): "categories",
}


def read_column(
    name: str,
    values: Any,
    kind: Kind,
    content: Content = "",
    spell: Callable[[Any], str] | None = None,
    training: bool = True,
) -> Column:
    """Return a column as the kind that it is, or refuse its first value that cannot be read so.

    Args:
        name: of the column.
        values: a pandas series or an array, one value per row.
        kind: what the column is.
        content: what its values are.
        spell: returns the category of a value; needed for categories only.
        training: whether the refusal is about training rows, or about rows that differ from them.
    """
    column = _read_at_once(name, values, kind, content)
    if column is None:
        column = _read_each(name, values, kind, content, spell or to_text, training)
    if kind == "number":
        _check_finite(name, column.values)
    return column


def _read_at_once(name: str, values: Any, kind: Kind, content: Content) -> Column | None:
    """Return the column where its dtype says that every value can be read, else None."""
    import pandas as pd

    types, dtype = pd.api.types, values.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_complex_dtype(dtype):
        return None
    is_bool = types.is_bool_dtype(dtype)
    if (kind, content) in (("number", "number"), ("number", "")) and (is_bool or types.is_numeric_dtype(dtype)):
        return Column(name, kind, _floats(values), content)
    if kind == "boolean" and is_bool:
        return Column(name, kind, _floats(values), content)
    if kind == "date" and isinstance(dtype, np.dtype | pd.DatetimeTZDtype) and types.is_datetime64_any_dtype(dtype):
        zoned = isinstance(dtype, pd.DatetimeTZDtype)
        moments = values.dt.tz_convert("UTC").dt.tz_localize(None) if zoned else values
        try:
            return Column(name, kind, _seconds(_in_unit(moments.to_numpy(), "us")), content)
        except OverflowError:
            return None  # the slow way finds the row
    if content == "duration" and isinstance(dtype, np.dtype) and dtype.kind == "m":
        return Column(name, kind, _seconds(values.to_numpy()), content)
    return None


def _read_each(
    name: str, values: Any, kind: Kind, content: Content, spell: Callable[[Any], str], training: bool
) -> Column:
    """Return the column value by value, so that a row never depends on the others."""
    import pandas as pd

    series = values if isinstance(values, pd.Series) else pd.Series(values)
    ways: dict[Kind, tuple[Callable[[Any], Any], Any, Any]] = {
        "number": (
            _to_seconds if content == "duration" else to_number if content else _to_number_or_seconds,
            np.nan,
            float,
        ),
        "boolean": (to_boolean, np.nan, float),
        "date": (to_moment, np.datetime64("NaT"), "datetime64[us]"),
        "category": (spell, None, object),
    }
    convert, blank, dtype = ways[kind]
    read = np.full(len(series), blank, dtype=dtype)
    known: dict[int, Any] = {}  # what the categories of a categorical column are; those of no row are not asked for
    codes = series.cat.codes if isinstance(series.dtype, pd.CategoricalDtype) else itertools.repeat(-1)
    for row, (value, missing, code) in enumerate(zip(series, _missing(name, series), codes, strict=False)):
        if missing:
            continue
        try:
            read[row] = known[code] if code in known else convert(value)
        except RefusedError as error:
            held = _HELD.get((kind, content), f"{kind}s")
            has = "has" if training else f"held {held} in training, but has"
            now = "" if training else " now"
            raise InputError(
                f"column {name!r} {has} {error.found}{now} (first: {short(value)} in row {row}); {error.advice}"
            ) from None
        if code >= 0:
            known[code] = read[row]
    return Column(name, kind, _seconds(read) if kind == "date" else read, content)


def _to_seconds(value: Any) -> float:
    try:
        return float(_seconds(np.array([to_duration(value)]))[0])
    except OverflowError:
        raise RefusedError("durations without a length in seconds", "convert them to days or seconds") from None


def _to_number_or_seconds(value: Any) -> float:
    """Models saved by earlier versions do not say which of the two a column held."""
    return _to_seconds(value) if kind_of(value) == "duration" else to_number(value)


def _floats(values: Any) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # beyond float64 is infinite, and refused as that
        if isinstance(values, np.ndarray):
            return values.astype(np.float64)
        floats: NDArray[np.float64] = values.to_numpy(np.float64, na_value=np.nan)
        return floats


def _in_unit(values: NDArray[Any], unit: str) -> NDArray[Any]:
    """Return dates or durations in a unit. NumPy lets those of a coarser unit overflow in silence."""
    converted = values.astype(f"{values.dtype.kind}8[{unit}]")
    finer = np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as")
    if not finer and (~np.isnat(values) & (converted.astype(values.dtype) != values)).any():
        raise OverflowError
    return converted


def _seconds(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return seconds, the same in whichever unit the values come: the whole ones and the rest are added last."""
    units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    unit = np.datetime_data(values.dtype)[0]
    if unit in ("Y", "M", "generic"):  # NumPy would take the mean length of a year
        raise OverflowError
    if unit not in units or np.datetime_data(values.dtype)[1] != 1:
        unit = "ns" if unit in ("ps", "fs", "as") else "s"
        values = _in_unit(values, unit)
    whole, rest = np.divmod(values.astype(np.int64), units[unit])
    return np.where(np.isnat(values), np.nan, whole + rest / units[unit])


def _check_finite(name: str, values: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        count = f"{len(bad)} infinite value{'' if len(bad) == 1 else 's'}"
        raise InputError(
            f"column {name!r} has {count} (first in row {bad[0]}); infinity cannot be scaled, "
            "replace it by a number or a missing value"
        )


# Files --------------------------------------------------------------------------------------------------------------


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
    """Return what separates the fields of a file, after a look at its first rows and for NUL bytes."""
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
    names = [name for name in head if name]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: column names must be unique; {', '.join(map(repr, repeated))} stands more than once")
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
        except csv.Error:  # pandas has no limit on the length of a field, but a name of that length is none
            if not rows:
                raise
    return rows


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
