"""Decide what a column of a table is, and read it as that: numbers, booleans, categories or dates."""

import decimal
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from evidentia.data.values import (
    VALUE_KINDS,
    RefusedError,
    conversion_hint,
    convert_unit,
    kind_of,
    parse_number,
    seconds_of,
    shorten,
    to_boolean,
    to_moment,
    to_number,
    to_number_or_seconds,
    to_seconds,
    to_text,
)
from evidentia.errors import InputError, InputTypeError

__all__ = ["Column", "Content", "Kind", "check_unique", "decide_kind", "read_column"]

Kind = Literal["number", "boolean", "category", "date"]

# What the values of a column were, where the kind leaves it open. A number is a plain number or a duration; a category
# was made of text, numbers, booleans, dates or a mixture ("object"). Empty: not known, as in files of older versions.
Content = Literal["", "text", "number", "boolean", "date", "duration", "object"]


@dataclass(frozen=True)
class Column:
    """One typed column of a table.

    Attributes:
        name: of the column.
        kind: how a network sees it.
        values: one per row. Numbers, booleans (0, 1), durations (seconds) and dates (seconds since 1970) are float64
            with NaN where missing. Categories are text with None where missing.
        content: what the values were, where the kind leaves that open.
    """

    name: str
    kind: Kind
    values: NDArray[Any]
    content: Content = ""


def check_unique(names: list[str], prefix: str = "") -> None:
    """Raise if a name of a column is repeated; ``prefix`` is the start of the error."""
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        shown = ", ".join(map(repr, repeated))
        raise InputError(f"{prefix}column names must be unique; {shown} stands more than once")


def decide_kind(name: str, values: Any) -> tuple[Kind, Content]:
    """Return what a column of training rows is, by its dtype or by its values.

    Raises:
        InputError: if its values are a mixture, naming the first that is in the way.
    """
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
    """Return what a column is by its values. A mixture of numbers and text is refused: either may be the mistake."""
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
    odd = next((k for k, kind in enumerate(found) if kind not in VALUE_KINDS), 0)
    raise InputTypeError(
        f"column {name!r} holds {' and '.join(sorted(kinds))} values (first: {shorten(present[odd])} in row "
        f"{rows[odd]}); columns are numbers, booleans, text or dates{conversion_hint(found[odd])}"
    )


def _refuse_mixture(
    name: str, present: list[Any], rows: NDArray[np.int64], is_text: NDArray[np.bool_], others: str
) -> NoReturn:
    count, first = int(is_text.sum()), int(np.argmax(is_text))
    example = f"first: {shorten(present[first])} in row {rows[first]}"
    raise InputError(
        f"column {name!r} has {count} text value{'' if count == 1 else 's'} ({example}) among {len(present) - count} "
        f"{others}; replace them by {others} or by missing values, or make the column a category with "
        ".astype('category')"
    )


def _missing(name: str, series: Any) -> NDArray[np.bool_]:
    try:
        missing: NDArray[np.bool_] = series.isna().to_numpy(bool)
    except decimal.InvalidOperation as error:  # Decimal('sNaN') cannot be compared with anything
        raise InputError(f"column {name!r} has a signalling NaN; use None for missing values") from error
    return missing


# what a column held in training, for errors; any other pair is called by its kind
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
    """Return a column read as a kind.

    Args:
        name: of the column.
        values: a pandas series or an array, one value per row.
        kind: what the column is.
        content: what its values are.
        spell: returns the category of a value; needed for categories only.
        training: whether these are training rows; otherwise the error says that they differ from those.

    Raises:
        InputError: for the first value that cannot be read as this kind, naming its row.
    """
    column = _read_at_once(name, values, kind, content)
    if column is None:
        column = _read_each(name, values, kind, content, spell or to_text, training)
    if kind == "number":
        _check_finite(name, column.values)
    return column


def _read_at_once(name: str, values: Any, kind: Kind, content: Content) -> Column | None:
    """Return the column if its dtype ensures that every value can be read, else None."""
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
            return Column(name, kind, seconds_of(convert_unit(moments.to_numpy(), "us")), content)
        except OverflowError:
            return None  # reading value by value finds the row
    if content == "duration" and isinstance(dtype, np.dtype) and dtype.kind == "m":
        return Column(name, kind, seconds_of(values.to_numpy()), content)
    return None


def _read_each(
    name: str, values: Any, kind: Kind, content: Content, spell: Callable[[Any], str], training: bool
) -> Column:
    """Return the column, read value by value, so that a row never depends on the others."""
    import pandas as pd

    series = values if isinstance(values, pd.Series) else pd.Series(values)
    ways: dict[Kind, tuple[Callable[[Any], Any], Any, Any]] = {
        "number": (
            to_seconds if content == "duration" else to_number if content else to_number_or_seconds,
            np.nan,
            float,
        ),
        "boolean": (to_boolean, np.nan, float),
        "date": (to_moment, np.datetime64("NaT"), "datetime64[us]"),
        "category": (spell, None, object),
    }
    convert, blank, dtype = ways[kind]
    read = np.full(len(series), blank, dtype=dtype)
    known: dict[int, Any] = {}  # by code, so that each category that occurs is converted once
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
                f"column {name!r} {has} {error.found}{now} (first: {shorten(value)} in row {row}); {error.advice}"
            ) from None
        if code >= 0:
            known[code] = read[row]
    return Column(name, kind, seconds_of(read) if kind == "date" else read, content)


def _floats(values: Any) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # beyond float64 is infinite, and refused as that
        if isinstance(values, np.ndarray):
            return values.astype(np.float64)
        floats: NDArray[np.float64] = values.to_numpy(np.float64, na_value=np.nan)
        return floats


def _check_finite(name: str, values: NDArray[np.float64]) -> None:
    bad = np.flatnonzero(np.isinf(values))
    if len(bad):
        count = f"{len(bad)} infinite value{'' if len(bad) == 1 else 's'}"
        raise InputError(
            f"column {name!r} has {count} (first in row {bad[0]}); infinity cannot be scaled, "
            "replace it by a number or a missing value"
        )
