"""Choose the type of a column of a table and read it: numbers, booleans, categories or dates.

A column of text is a column of numbers, booleans, durations or dates if at least 95% of its cells and more than half of
its different texts can be read as such. Its other cells are then missing, and a warning counts them. Texts such as "?"
or "n/a" (`howsure.tables.values.MISSING_TEXTS`) do not count at all. If more than half of the different texts can be
read, but too few cells, the column raises an `InputError`, unless it has few different texts and is a category.
"""

import datetime
import decimal
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.errors import InputError, InputTypeError, UnreadableCellsWarning
from howsure.tables.dates import ISO, date_forms, parse_dates, parse_durations, seconds_of
from howsure.tables.numbers import PLAIN, are_quantities, number_form, parse_numbers, warn_of_rounding
from howsure.tables.values import CONVERT, is_marker, kind_of, number_text, shorten, to_text

__all__ = ["Column", "Kind", "check_unique", "decide_kind", "name_parts", "read_column"]

Array = NDArray[np.float64]
Kind = Literal["number", "boolean", "category", "date"]

MIN_READABLE_CELLS = 0.95  # share of the cells of a text column that make it a column of numbers or dates
MIN_READABLE_TEXTS = 0.5  # share of its different texts, which must be exceeded
MAX_TEXTS_OF_CODES = 20  # different values of a column of numbers, text and units that is a category
SAMPLE = 1000  # different texts, at equal distances, by which the way to read a column of text is chosen
ONE_KIND: dict[str, tuple[Kind, str]] = {  # kind and content of a column whose values are all of a kind
    "boolean": ("boolean", ""),
    "number": ("number", PLAIN),
    "date": ("date", ISO),
    "duration": ("number", "duration"),
}
CATEGORY: tuple[Kind, str] = ("category", "")
AS_CATEGORY = "make the column a category with .astype('category')"


@dataclass(frozen=True)
class Column:
    """One typed column of a table.

    Attributes:
        name: of the column.
        kind: how a network sees it.
        values: one per row. Numbers, booleans (0, 1), durations (seconds) and dates (seconds since 1970) are float64
            with NaN where missing. Categories are text with None where missing.
        content: how the values are written. A number has "duration" or the form of `howsure.tables.numbers`, a date the
            form of `howsure.tables.dates`. Booleans and categories have none.
        declared: whether the caller made it a category.
        unreadable: a warning about texts that cannot be read and count as missing, None if there are none.
    """

    name: str
    kind: Kind
    values: NDArray[Any]
    content: str = ""
    declared: bool = False
    unreadable: UnreadableCellsWarning | None = None


def check_unique(names: list[str]) -> None:
    """Raise if a column name is repeated."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise InputError(f"duplicate column name: {', '.join(map(repr, repeated))}", column=repeated[0])


def name_parts(name: str) -> list[str]:
    """Return the words of a name in small letters: ["customer", "id"] for "CustomerId" and "customer_id"."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [part.lower() for part in re.split(r"[^A-Za-z0-9]+", spaced) if part]


# Type of a column -----------------------------------------------------------------------------------------------------


def decide_kind(name: str, values: "pd.Series[Any]") -> tuple[Kind, str]:
    """Return the kind and the content of a column of training rows, by its dtype or by its values.

    Raises:
        InputError: if the column mixes numbers or dates with other text, or if its numbers have units.
        InputTypeError: if its values are of a type that no column can have.
    """
    types, dtype = pd.api.types, values.dtype
    if _is_declared_category(values):
        return CATEGORY
    if types.is_bool_dtype(dtype):
        return ONE_KIND["boolean"]
    if types.is_numeric_dtype(dtype) and not types.is_complex_dtype(dtype):
        return ONE_KIND["number"]
    if isinstance(dtype, pd.DatetimeTZDtype) or getattr(dtype, "kind", "") == "M":
        return ONE_KIND["date"]
    if getattr(dtype, "kind", "") == "m":
        return ONE_KIND["duration"]
    return _decide_objects(name, values)


def _is_declared_category(values: Any) -> bool:
    """Return whether a column has the dtype of a category, of pandas or as a dictionary of Arrow."""
    return isinstance(values.dtype, pd.CategoricalDtype) or str(values.dtype).startswith("dictionary<")


def _decide_objects(name: str, series: "pd.Series[Any]") -> tuple[Kind, str]:
    """Return the kind and the content of a column of Python objects. A mixture with text is decided by its texts."""
    rows = np.flatnonzero(~_missing(name, series))
    present = series.astype(object).iloc[rows].to_numpy(object)
    kept = np.array([not (isinstance(value, str) and is_marker(value)) for value in present], dtype=bool)
    rows, present = rows[kept], present[kept]
    kinds, known = {kind_of(value) for value in present}, {"text", *ONE_KIND}
    if not kinds:
        return CATEGORY if len(kept) else ONE_KIND["number"]
    if kinds == {"number", "boolean"}:
        return ONE_KIND["number"]
    if len(kinds) == 1 and kinds <= ONE_KIND.keys():
        return ONE_KIND[kinds.pop()]
    if "text" in kinds and kinds <= known:
        return _decide_texts(name, [to_text(value) for value in present], rows)
    odd = next((k for k, value in enumerate(present) if kind_of(value) not in known), 0)
    raise InputTypeError(
        f"column {name!r} holds {' and '.join(sorted(kinds))} values, such as {shorten(present[odd])}",
        column=name,
        row=int(rows[odd]),
        value=present[odd],
        hint=CONVERT,
    )


def _decide_texts(name: str, cells: Sequence[str], rows: NDArray[np.int64]) -> tuple[Kind, str]:
    """Return the kind and the content of a column of text, by the rule at the top of this module."""
    codes, uniques = pd.factorize(np.array(cells, dtype=object))
    texts = pd.Series(uniques, dtype=object)
    sample = texts[:: -(-len(texts) // SAMPLE)].reset_index(drop=True)
    forms = date_forms(sample)
    if len(forms) > 1:  # other texts may have a day above 12
        forms = date_forms(texts)
    ways: list[tuple[Kind, str]] = [("number", number_form(sample.tolist())), ("boolean", ""), ("number", "duration")]
    ways += [("date", form) for form in forms[:1]]
    kind, content = max(ways, key=lambda way: np.count_nonzero(~np.isnan(_read_texts(sample, *way))))
    readable = ~np.isnan(_read_texts(texts, kind, content))
    if kind == "number" and content != "duration" and _are_codes(texts[readable]):
        return CATEGORY
    is_read = readable.mean() > MIN_READABLE_TEXTS
    if is_read and readable[codes].mean() >= MIN_READABLE_CELLS:
        if kind == "date" and len(forms) > 1:
            return _refuse_order(name, cells, rows, forms) if len(texts) > 1 else CATEGORY
        return kind, content
    if len(texts) <= MAX_TEXTS_OF_CODES and 2 * len(texts) <= len(cells):
        return CATEGORY
    if is_read:
        what = "a duration" if content == "duration" else f"a {kind}"
        _refuse_cells(name, cells, rows, ~readable[codes], f"not {what}", f"write every cell as {what}")
    quantities = are_quantities(texts.tolist())
    if quantities.mean() > MIN_READABLE_TEXTS:
        _refuse_cells(name, cells, rows, quantities[codes], "numbers with a unit", "write numbers without units")
    return CATEGORY


def _are_codes(numbers: "pd.Series[str]") -> bool:
    """Return whether texts that spell numbers are codes such as 01000: digits alone, with zeros in front of some."""
    return bool(numbers.str.isdigit().all() and numbers.str.fullmatch(r"0\d+").any())


def _refuse_order(name: str, cells: Sequence[str], rows: NDArray[np.int64], forms: list[str]) -> NoReturn:
    """Raise because the dates of a column can be read with the day first and with the month first."""
    texts = pd.Series(cells, dtype=object)
    first = int((parse_dates(texts, forms[0]) != parse_dates(texts, forms[1])).argmax())
    one, other = (pd.Timestamp(2020, 12, 31).strftime(form) for form in forms[:2])
    hint = f"convert them with pandas.to_datetime(X[{name!r}], dayfirst=True) or dayfirst=False, or {AS_CATEGORY}"
    _refuse_value(name, f"has dates that may be written as {one} or as {other}", int(rows[first]), cells[first], hint)


def _refuse_cells(
    name: str, cells: Sequence[str], rows: NDArray[np.int64], wrong: NDArray[np.bool_], problem: str, remedy: str
) -> NoReturn:
    """Raise an error about the first of the cells that are wrong."""
    first, count = int(wrong.argmax()), f"{wrong.sum()} of {len(cells)} cells"
    _refuse_value(
        name, f"has {count} that are {problem}", int(rows[first]), cells[first], f"{remedy}, or {AS_CATEGORY}"
    )


# Reading --------------------------------------------------------------------------------------------------------------


def read_column(
    name: str, series: "pd.Series[Any]", kind: Kind, content: str = "", categories: Sequence[str] | None = None
) -> Column:
    """Return a column read as a kind. Training rows and later rows are read by this function alike.

    Args:
        name: of the column.
        series: one value per row.
        kind: the type of the column.
        content: the format of its values.
        categories: the categories of the training rows. None for training rows themselves.

    Raises:
        InputError: for the first value of a wrong type or out of range. Text that cannot be read is missing.
    """
    if kind == "category":
        return Column(
            name, kind, _read_categories(name, series, categories), content, declared=_is_declared_category(series)
        )
    numbers = _read_typed(name, series, kind, content)
    column = _read_objects(name, series, kind, content) if numbers is None else Column(name, kind, numbers, content)
    infinite = np.flatnonzero(np.isinf(column.values))
    if len(infinite):
        count, row = len(infinite), int(infinite[0])
        problem = f"has {count} infinite value{'' if count == 1 else 's'}"
        _refuse_value(name, problem, row, series.iloc[row], "replace infinity by a number or a missing value")
    return column


def _read_typed(name: str, series: "pd.Series[Any]", kind: Kind, content: str) -> Array | None:
    """Return the numbers of a column whose dtype ensures that every value can be read, else None."""
    types, dtype = pd.api.types, series.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_complex_dtype(dtype):
        return None
    is_bool, is_number = types.is_bool_dtype(dtype), kind == "number" and content != "duration"
    if is_bool if kind == "boolean" else is_number and types.is_numeric_dtype(dtype):
        with np.errstate(over="ignore"):  # numbers beyond float64 become infinite
            found = series.to_numpy(np.float64, na_value=np.nan)
        if types.is_integer_dtype(dtype):
            present = series.notna().to_numpy()
            warn_of_rounding(f"column {name!r}", series[present].to_numpy(dtype.kind + "8"), found[present])
        return found
    if kind == "date" and isinstance(dtype, np.dtype | pd.DatetimeTZDtype) and types.is_datetime64_any_dtype(dtype):
        try:
            moments = series.dt.as_unit("us")
        except ValueError:  # out of range; reading value by value finds the row
            return None
        return seconds_of((moments if moments.dt.tz is None else moments.dt.tz_convert(None)).to_numpy())
    if content == "duration" and isinstance(dtype, np.dtype) and dtype.kind == "m":
        return seconds_of(series.to_numpy())
    return None


def _read_objects(name: str, series: "pd.Series[Any]", kind: Kind, content: str) -> Column:
    """Return a column of numbers, booleans or dates that is read from Python objects, each different text once."""
    cells, present = series.astype(object).to_numpy(object), ~_missing(name, series)
    is_text = np.array([isinstance(cell, str) for cell in cells], dtype=bool) & present
    others, texts = np.flatnonzero(present & ~is_text), np.flatnonzero(is_text)
    numbers = np.full(len(cells), np.nan)
    if len(others):
        numbers[others] = _read_others(name, cells[others], others, kind, content)
    codes, distinct = pd.factorize(cells[texts])
    read = _read_texts(pd.Series(distinct, dtype=object), kind, content)
    numbers[texts] = read[codes]
    markers = np.array([is_marker(text) for text in distinct], dtype=bool)
    bad = texts[(np.isnan(read) & ~markers)[codes]]
    unreadable = UnreadableCellsWarning(name, len(bad), int(bad[0]), cells[bad[0]]) if len(bad) else None
    return Column(name, kind, numbers, content, unreadable=unreadable)


def _read_texts(texts: "pd.Series[str]", kind: Kind, content: str) -> Array:
    """Return the numbers of texts, NaN where a text cannot be read."""
    if kind == "boolean":
        known = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
        return np.array([known.get(text.strip().lower(), np.nan) for text in texts])
    if kind == "date":
        return seconds_of(parse_dates(texts, content))
    return parse_durations(texts) if content == "duration" else parse_numbers(texts, content)


def _read_others(name: str, cells: NDArray[Any], rows: NDArray[np.int64], kind: Kind, content: str) -> Array:
    """Return the numbers of cells that are neither text nor missing, or raise for the first that has none."""
    expected = "duration" if content == "duration" else kind
    allowed = ("number", "boolean") if kind == "boolean" or expected == "number" else (expected,)
    for cell, row in zip(cells, rows, strict=True):
        if kind_of(cell) not in allowed:
            problem = f"is a column of {expected}s, but has a value of type {kind_of(cell)}"
            _refuse_value(name, problem, int(row), cell, f"convert it to a {expected}")
    if expected == "date":
        numbers = seconds_of(pd.to_datetime(pd.Series(cells), utc=True, errors="coerce").dt.tz_convert(None).to_numpy())
    elif expected == "duration":
        durations = [str(cell) if isinstance(cell, datetime.time) else cell for cell in cells]
        numbers = seconds_of(pd.to_timedelta(pd.Series(durations, dtype=object), errors="coerce").to_numpy())
    else:
        numbers = np.array([_to_float(cell) for cell in cells])
    wrong = np.isnan(numbers) | ((kind == "boolean") & (numbers != 0) & (numbers != 1))
    if wrong.any():
        first = int(wrong.argmax())
        _refuse_value(name, f"has a value that is out of range for a {expected}", int(rows[first]), cells[first])
    return numbers


def _to_float(value: Any) -> float:
    """Return the float of a number, NaN if it is beyond the range of float64."""
    try:
        return float(value)
    except (OverflowError, ValueError):
        return math.nan


def _read_categories(name: str, series: "pd.Series[Any]", categories: Sequence[str] | None) -> NDArray[Any]:
    """Return the categories of cells as text, None where missing.

    A later row has the category with its text, or else the first that spells the same number: 3.0 finds "3", and 1000
    finds "01000".
    """
    known = dict.fromkeys(categories or ())
    spelled = {number_text(category): category for category in reversed(known)}
    cells, present = series.astype(object).to_numpy(object), ~_missing(name, series)
    found = np.full(len(cells), None, dtype=object)
    for row in np.flatnonzero(present):
        cell = cells[row]
        if isinstance(cell, list | tuple | dict | set | bytes | np.ndarray):
            problem = f"is a column of categories, but has a value of type {kind_of(cell)}"
            _refuse_value(name, problem, int(row), cell, CONVERT)
        text = to_text(cell)
        found[row] = text if text in known else spelled.get(number_text(text), text)
    return found


def _missing(name: str, series: "pd.Series[Any]") -> NDArray[np.bool_]:
    try:
        return series.isna().to_numpy(bool)
    except decimal.InvalidOperation as error:  # Decimal('sNaN') cannot be compared with anything
        raise InputError(f"column {name!r} has a signalling NaN", column=name, hint="use None") from error


def _refuse_value(name: str, problem: str, row: int, value: Any, hint: str | None = None) -> NoReturn:
    """Raise an error about one value of a column."""
    raise InputError(f"column {name!r} {problem}: {shorten(value)}", column=name, row=row, value=value, hint=hint)
