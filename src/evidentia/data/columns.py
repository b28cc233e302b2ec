"""Decide what a column of a table is, and read it as that: numbers, booleans, categories or dates."""

import decimal
import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from evidentia.data.dates import DateOrder, Writing, choose_order, parse_date, writing_of
from evidentia.data.numbers import number_template
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
    to_compact_moment,
    to_moment,
    to_number,
    to_number_or_seconds,
    to_seconds,
    to_text,
    to_time,
    to_written_number,
)
from evidentia.errors import InputError, InputTypeError

__all__ = ["Column", "Content", "Kind", "check_unique", "decide_kind", "name_parts", "read_column"]

Kind = Literal["number", "boolean", "category", "date"]

# What the values of a column were, where the kind leaves it open. A number is a plain number or a duration; a category
# was made of text, numbers, booleans, dates or a mixture ("object"). A date was text that is clear by itself ("text"),
# text with the day, month or two-digit year first, a month, a time of day, or a number such as 20201231 ("compact").
# Empty: of a type for dates, or not known, as in files of older versions.
# Numbers that are written with units or separators have a template instead, see `evidentia.data.numbers`.
Content = str
_ORDERS = ("day first", "month first", "year first")


@dataclass(frozen=True)
class Column:
    """One typed column of a table.

    Attributes:
        name: of the column.
        kind: how a network sees it.
        values: one per row. Numbers, booleans (0, 1), durations (seconds), dates (seconds since 1970) and times of day
            (seconds since midnight) are float64 with NaN where missing. Categories are text with None where missing.
        content: what the values were, where the kind leaves that open.
        declared: whether its owner made it a category, which is then kept whatever its values are.
    """

    name: str
    kind: Kind
    values: NDArray[Any]
    content: Content = ""
    declared: bool = False


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
        return ("date", "compact") if _are_compact_dates(name, values) else ("number", "number")
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
        return "category", one if len(kinds) == 1 and one in ("number", "boolean", "date") else "object"
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
    import pandas as pd

    rows = np.flatnonzero(~_missing(name, series))
    if len(rows) and isinstance(series.dtype, pd.StringDtype):
        return _decide_text(name, series.to_numpy(object)[rows].tolist(), rows)
    present = list(series if len(rows) == len(series) else series.iloc[rows])
    found = [kind_of(value) for value in present]
    kinds = set(found)
    if kinds == {"text"}:
        return _decide_text(name, present, rows)
    if kinds in ({"boolean"}, {"date"}):
        return cast(Kind, found[0]), ""
    if kinds == {"time"}:
        return "date", "time"
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


def _decide_text(name: str, present: list[str], rows: NDArray[np.int64]) -> tuple[Kind, Content]:
    """Return what a column of text is: numbers, dates, times of day or a category."""
    texts = list(dict.fromkeys(present))
    numbers = {text for text in texts if parse_number(text) is not None}
    if numbers and _are_codes(numbers):
        return "category", "text"
    if len(numbers) == len(texts):
        compact = all(text.isdigit() for text in texts) and _are_compact_dates(name, np.array(texts).astype(float))
        return ("date", "compact") if compact else ("number", "number")
    if len(texts) == 1:  # one date may be a category, and its order remains open
        return "category", "text"
    writings = {text: writing_of(text) for text in texts if text not in numbers}
    template = None if any(writings.values()) else number_template(texts)
    if template is not None:
        return "number", template
    is_text = np.array([text not in numbers for text in present])
    if is_text.mean() < 0.5:
        _refuse_mixture(name, present, rows, is_text, "numbers")
    return _decide_dates(name, present, rows, writings)


def _are_codes(numbers: set[str]) -> bool:
    """Return whether texts that spell numbers are codes such as 01000: nothing but digits, and zeros before others."""
    return all(n.isdigit() for n in numbers) and any(len(n) > 1 and n[0] == "0" for n in numbers)


_DATE_NAMES = frozenset(("date", "dates", "day", "datum", "fecha", "dt", "ymd", "yyyymmdd", "datetime", "timestamp"))


def name_parts(name: str) -> list[str]:
    """Return the words of a name in small letters: ["customer", "id"] for "CustomerId" and "customer_id"."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [part.lower() for part in re.split(r"[^A-Za-z0-9]+", spaced) if part]


def _are_compact_dates(name: str, values: Any) -> bool:
    """Return whether numbers are dates such as 20201231: by the name of the column, and by every value."""
    if not _DATE_NAMES & set(name_parts(name)):
        return False
    numbers = np.unique(_floats(values))
    numbers = numbers[~np.isnan(numbers)]
    if len(numbers) < 2 or numbers[0] < 1900_01_01 or numbers[-1] > 2100_12_31 or (numbers % 1).any():
        return False
    return all(parse_date(f"{number:.0f}T000000", "") is not None for number in numbers)


def _decide_dates(
    name: str, present: list[str], rows: NDArray[np.int64], writings: dict[str, Writing | None]
) -> tuple[Kind, Content]:
    """Return whether text is dates, and how they are written. Both mixtures and dates in doubt are refused.

    Text with two-digit years may be something else, such as 1.2.10: it is a category where not all of it is dates.
    """
    known = {text: w for text, w in writings.items() if w is not None}
    forms = {w.form for w in known.values()}
    if len(known) < len(writings) or ("time" in forms and len(forms) > 1):
        is_other = np.array([(w := known.get(t)) is None or w.form != "date" or w.short_year for t in present])
        if is_other.mean() >= 0.5:
            return "category", "text"
        _refuse_mixture(name, present, rows, is_other, "dates")
    if forms == {"time"} or forms == {"month"}:
        return "date", "time" if "time" in forms else "month"
    order = choose_order(list(known), list(known.values()))
    if not isinstance(order, str):
        _refuse_order(name, *order)
    return "date", order or "text"


_ORDER_NAMES = {"day first": "day/month/year", "month first": "month/day/year", "year first": "year/month/day"}


def _refuse_order(name: str, first: DateOrder, one: str, second: DateOrder, other: str) -> NoReturn:
    others = "dayfirst=False or yearfirst=True" if "year first" in (first, second) else "dayfirst=False"
    convert = f"pandas.to_datetime(X[{name!r}], dayfirst=True) or {others}"
    advice = f"convert the column with {convert}, or make it a category with .astype('category')"
    a, b = _ORDER_NAMES[first], _ORDER_NAMES[second]
    if one == other:
        raise InputError(f"column {name!r} has dates such as {shorten(one)} that could be {a} or {b}; {advice}")
    raise InputError(
        f"column {name!r} has dates in two orders, {shorten(one)} ({a}) and {shorten(other)} ({b}); {advice}"
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
    ("date", "time"): "times of day",
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
    return replace(column, declared=True) if kind == "category" and _declared_categories(values) is not None else column


def _read_at_once(name: str, values: Any, kind: Kind, content: Content) -> Column | None:
    """Return the column if its dtype ensures that every value can be read, else None."""
    import pandas as pd

    types, dtype = pd.api.types, values.dtype
    if isinstance(dtype, pd.CategoricalDtype) or types.is_complex_dtype(dtype):
        return None
    is_bool = types.is_bool_dtype(dtype)
    if kind == "number" and content != "duration" and (is_bool or types.is_numeric_dtype(dtype)):
        return Column(name, kind, _floats(values), content)
    if kind == "boolean" and is_bool:
        return Column(name, kind, _floats(values), content)
    moments_fit = kind == "date" and content != "time"
    if moments_fit and isinstance(dtype, np.dtype | pd.DatetimeTZDtype) and types.is_datetime64_any_dtype(dtype):
        zoned = isinstance(dtype, pd.DatetimeTZDtype)
        moments = values.dt.tz_convert("UTC").dt.tz_localize(None) if zoned else values
        try:
            return Column(name, kind, seconds_of(convert_unit(moments.to_numpy(), "us")), content)
        except OverflowError:
            return None  # reading value by value finds the row
    if moments_fit and content != "compact" and types.infer_dtype(values, skipna=True) == "string":
        return _read_texts(name, values, content)
    if content == "duration" and isinstance(dtype, np.dtype) and dtype.kind == "m":
        return Column(name, kind, seconds_of(values.to_numpy()), content)
    return None


def _read_texts(name: str, values: Any, content: Content) -> Column | None:
    """Return a column of dates that are text, each text read once; None if one is no date."""
    codes, texts = values.factorize()
    order = _order_of(content)
    moments = [parse_date(text, order) for text in texts.to_numpy(object)]
    if None in moments:
        return None
    read = np.array([*moments, None], dtype="datetime64[us]")[codes]  # missing values have the code -1
    return Column(name, "date", seconds_of(read), content)


def _order_of(content: Content) -> DateOrder:
    return cast(DateOrder, content) if content in _ORDERS else ""


def _read_each(
    name: str, values: Any, kind: Kind, content: Content, spell: Callable[[Any], str], training: bool
) -> Column:
    """Return the column, read value by value, so that a row never depends on the others."""
    import pandas as pd

    series = values if isinstance(values, pd.Series) else pd.Series(values)
    ways: dict[Kind, tuple[Callable[[Any], Any], Any, Any]] = {
        "number": (
            _number_reader(content),
            np.nan,
            float,
        ),
        "boolean": (to_boolean, np.nan, float),
        "date": (
            to_compact_moment if content == "compact" else partial(to_moment, order=_order_of(content)),
            np.datetime64("NaT"),
            "datetime64[us]",
        ),
        "category": (spell, None, object),
    }
    convert, blank, dtype = (to_time, np.nan, float) if content == "time" else ways[kind]
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
    return Column(name, kind, seconds_of(read) if read.dtype.kind == "M" else read, content)


def _number_reader(content: Content) -> Callable[[Any], float]:
    """Return the function that reads a number, by what numbers were in training."""
    known: dict[str, Callable[[Any], float]] = {
        "": to_number_or_seconds,
        "number": to_number,
        "duration": to_seconds,
    }
    return known.get(content, partial(to_written_number, template=content))


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
