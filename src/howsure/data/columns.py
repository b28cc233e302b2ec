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

from howsure.data.dates import DateOrder, Writing, are_seasons, choose_order, parse_date, writing_of
from howsure.data.numbers import dominant_template, number_template, parse_with_template, without_unit
from howsure.data.values import (
    VALUE_KINDS,
    RefusedError,
    conversion_hint,
    convert_unit,
    is_marker,
    kind_of,
    parse_number,
    seconds_of,
    shorten,
    to_boolean,
    to_compact_moment,
    to_moment,
    to_number_or_seconds,
    to_plain_number,
    to_seconds,
    to_text,
    to_time,
    to_written_number,
)
from howsure.errors import InputError, InputTypeError

__all__ = [
    "MOST_MIXED",
    "Column",
    "Content",
    "Kind",
    "check_unique",
    "decide_kind",
    "is_missing_text",
    "name_parts",
    "read_column",
]

Kind = Literal["number", "boolean", "category", "date"]

# What the values of a column were, where the kind leaves it open. A number is a plain number or a duration; a category
# was made of text, numbers, booleans, dates or a mixture ("object"). A date was text that is clear by itself ("text"),
# text with the day, month or two-digit year first, a month, quarter or week, a time of day, or a number such as
# 20201231 ("compact").
# Empty: of a type for dates, or not known, as in files of older versions.
# Numbers that are written with units or separators have a template instead, see `howsure.data.numbers`.
Content = str
_ORDERS = ("day first", "month first", "year first")

MOST_MIXED = 20  # different values of a mixture of numbers and text that is a category
STRAYS = 0.05  # the share of texts in the way of numbers or dates that count as missing values


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
        strays: the texts among numbers, booleans or dates that count as missing values, and how often each occurs.
    """

    name: str
    kind: Kind
    values: NDArray[Any]
    content: Content = ""
    declared: bool = False
    strays: tuple[tuple[str, int], ...] = ()


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
    """Return what a column is by its values.

    A mixture of numbers and text is a category if it has few different values, and is refused otherwise: either may be
    the mistake.
    """
    import pandas as pd

    rows = np.flatnonzero(~_missing(name, series))
    if len(rows) and isinstance(series.dtype, pd.StringDtype):
        return _decide_text(name, series.to_numpy(object)[rows].tolist(), rows)
    present = list(series if len(rows) == len(series) else series.iloc[rows])
    found = [kind_of(value) for value in present]
    kinds = set(found)
    if kinds == {"text"}:
        return _decide_text(name, present, rows)
    if "text" in kinds:
        if kinds <= {"text", "number", "boolean"} and not _are_numbers(present) and _are_few(present):
            return "category", "object"
        kept = np.array([not _spells_value(value, kinds) for value in present])
        present, found = list(itertools.compress(present, kept)), list(itertools.compress(found, kept))
        rows, kinds = rows[kept], set(found)
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


def _are_numbers(values: list[Any]) -> bool:
    """Return whether all texts among the values spell numbers that are no codes, or stand for missing values."""
    texts = {value for value in values if isinstance(value, str) and not is_marker(value)}
    return all(parse_number(text) is not None for text in texts) and not (texts and _are_codes(texts))


def _spells_value(value: Any, kinds: set[str]) -> bool:
    """Return whether a text among values of other kinds is a number as those are, or stands for a missing value."""
    if not isinstance(value, str):
        return False
    return is_marker(value) or ("number" in kinds and parse_number(value) is not None and not _are_codes({value}))


def _are_few(values: list[Any]) -> bool:
    """Return whether the values repeat, and few of them are different."""
    try:
        distinct = len(set(map(to_text, values)))
    except RefusedError:  # a number beyond float64
        return False
    return distinct <= MOST_MIXED and 2 * distinct <= len(values)


def _decide_text(name: str, present: list[str], rows: NDArray[np.int64]) -> tuple[Kind, Content]:
    """Return what a column of text is: numbers, dates, times of day or a category.

    Texts such as "?" are missing values where all others are numbers, dates or times, and values of a category.
    """
    marks = {text for text in set(present) if is_marker(text)}
    if marks:
        kept = np.array([text not in marks for text in present])
        present, rows = list(itertools.compress(present, kept)), rows[kept]
    counts = Counter(present)  # in the order of the rows
    texts = list(counts)
    numbers = {text for text in texts if parse_number(text) is not None}
    if not texts or (numbers and _are_codes(numbers)):
        return "category", "text"
    if len(numbers) == len(texts):
        compact = all(text.isdigit() for text in texts) and _are_compact_dates(name, np.array(texts).astype(float))
        return ("date", "compact") if compact else ("number", "number")
    if len(texts) == 1 or are_seasons(texts):  # one date may be a category, and its order remains open
        return "category", "text"
    writings = {text: writing_of(text) for text in texts if text not in numbers}
    template = _template_of(counts, writings)
    if template is not None:
        return "number", template
    is_text = np.array([text not in numbers for text in present])
    if is_text.mean() < 0.5:
        if _are_few(present):
            return "category", "text"
        if not _are_strays(counts, is_text):
            _refuse_mixture(name, present, rows, is_text, "numbers")
        return "number", "number"
    return _decide_dates(name, present, rows, writings)


def _template_of(counts: Counter[str], writings: dict[str, Writing | None]) -> str | None:
    """Return how texts write numbers with units or separators; None if they are not such, or too few of them are.

    One text in twenty may be in the way: one without a digit, such as "null km", always, another one only beside many
    different numbers.
    """
    most = STRAYS * counts.total()
    dates = sum(counts[text] for text, writing in writings.items() if writing is not None)
    template = None if dates else number_template(counts)
    if template is not None or dates > most:
        return template
    template = dominant_template(counts, most)
    if template is None or template == "1000.0":  # the latter are plain numbers and text
        return None
    strays = [text for text in counts if parse_with_template(text, template) is None]
    if sum(counts[text] for text in strays) > most:
        return None
    harmless = not any(re.search(r"\d", text) for text in strays) or len(counts) - len(strays) > MOST_MIXED
    return template if harmless else None


def _are_strays(counts: Counter[str], is_other: NDArray[np.bool_]) -> bool:
    """Return whether what is in the way of numbers or dates is missing: little of it, where nearly all texts differ."""
    return bool(is_other.mean() <= STRAYS and len(counts) > 0.9 * len(is_other))


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
    forms = Counter(w.form for w in known.values())
    if len(known) < len(set(present)) or ("time" in forms and len(forms) > 1):
        form = forms.most_common(1)[0][0] if forms else "date"
        is_stray = np.array([(w := known.get(t)) is None or w.form != form for t in present])
        if not _are_strays(Counter(present), is_stray):
            is_other = np.array([(w := known.get(t)) is None or w.form != "date" or w.short_year for t in present])
            if is_other.mean() >= 0.5:
                return "category", "text"
            _refuse_mixture(name, present, rows, is_other, "dates")
        known = {text: w for text, w in known.items() if w.form == form}
        forms = Counter(w.form for w in known.values())
    form, *others = forms
    if form != "date" and not others:
        return "date", form
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
    forgiving: bool = False,
) -> Column:
    """Return a column read as a kind. Texts such as "?" among numbers, booleans or dates are missing values.

    Args:
        name: of the column.
        values: a pandas series or an array, one value per row.
        kind: what the column is.
        content: what its values are.
        spell: returns the category of a value; needed for categories only.
        training: whether these are training rows, of which :func:`decide_kind` has allowed all text; otherwise the
            error says that they differ from those.
        forgiving: whether all text that cannot be read is missing, in later rows as in training rows.

    Raises:
        InputError: for the first value that cannot be read as this kind, naming its row.
    """
    forgiving = forgiving or training
    column = _read_at_once(name, values, kind, content, forgiving)
    if column is None:
        column = _read_each(name, values, kind, content, spell or to_text, training, forgiving)
    if kind == "number":
        _check_finite(name, column.values)
    return replace(column, declared=True) if kind == "category" and _declared_categories(values) is not None else column


def _read_at_once(name: str, values: Any, kind: Kind, content: Content, forgiving: bool) -> Column | None:
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
    if kind != "category" and not types.is_numeric_dtype(dtype) and types.infer_dtype(values, skipna=True) == "string":
        return _read_texts(name, values, kind, content, forgiving)
    if content == "duration" and isinstance(dtype, np.dtype) and dtype.kind == "m":
        return Column(name, kind, seconds_of(values.to_numpy()), content)
    return None


def _read_texts(name: str, values: Any, kind: Kind, content: Content, forgiving: bool) -> Column | None:
    """Return a column of numbers, booleans or dates that are text, each text read once; None if one cannot be read."""
    codes, texts = values.factorize()
    convert, _, dtype = _way(kind, content)
    read: list[Any] = []
    strays = []
    for k, text in enumerate(texts.to_numpy(object)):
        value = None
        try:
            if is_missing_text(text, kind, content):
                strays.append(k)
            else:
                value = convert(text)
        except RefusedError:
            if not forgiving:
                return None
            strays.append(k)
        read.append(value)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    result = np.array([*read, None], dtype=dtype)[codes]  # missing values have the code -1
    numbers = seconds_of(result) if result.dtype.kind == "M" else result
    return Column(name, kind, numbers, content, strays=tuple((str(texts[k]), int(counts[k])) for k in strays))


def _order_of(content: Content) -> DateOrder:
    return cast(DateOrder, content) if content in _ORDERS else ""


def _read_each(
    name: str,
    values: Any,
    kind: Kind,
    content: Content,
    spell: Callable[[Any], str],
    training: bool,
    forgiving: bool,
) -> Column:
    """Return the column, read value by value, so that a row never depends on the others."""
    import pandas as pd

    series = values if isinstance(values, pd.Series) else pd.Series(values)
    convert, blank, dtype = (spell, None, object) if kind == "category" else _way(kind, content)
    strays: Counter[str] = Counter()
    read = np.full(len(series), blank, dtype=dtype)
    known: dict[int, Any] = {}  # by code, so that each category that occurs is converted once
    codes = series.cat.codes if isinstance(series.dtype, pd.CategoricalDtype) else itertools.repeat(-1)
    for row, (value, missing, code) in enumerate(zip(series, _missing(name, series), codes, strict=False)):
        is_text = kind != "category" and isinstance(value, str)
        if missing or (is_text and is_missing_text(value, kind, content)):
            strays.update([] if missing else [value])
            continue
        try:
            read[row] = known[code] if code in known else convert(value)
        except RefusedError as error:
            if is_text and forgiving:
                strays[value] += 1
                continue
            held = _HELD.get((kind, content), f"{kind}s")
            has = "has" if training else f"held {held} in training, but has"
            now = "" if training else " now"
            raise InputError(
                f"column {name!r} {has} {error.found}{now} (first: {shorten(value)} in row {row}); {error.advice}"
            ) from None
        if code >= 0:
            known[code] = read[row]
    numbers = seconds_of(read) if read.dtype.kind == "M" else read
    return Column(name, kind, numbers, content, strays=tuple(strays.items()))


def is_missing_text(text: str, kind: Kind, content: Content) -> bool:
    """Return whether a text stands for a missing value in a column that is no category: "?", or "null km" among km."""
    if is_marker(text):
        return True
    has_unit = kind == "number" and content not in ("", "number", "duration") and not any(map(str.isdigit, text))
    return has_unit and is_marker(without_unit(text, content))


def _way(kind: Kind, content: Content) -> tuple[Callable[[Any], Any], Any, str]:
    """Return the function that reads a value, what a missing one is, and the dtype of both."""
    if kind == "number":
        return _number_reader(content), np.nan, "float64"
    if kind == "boolean":
        return to_boolean, np.nan, "float64"
    if content == "time":
        return to_time, np.nan, "float64"
    read = to_compact_moment if content == "compact" else partial(_moment, order=_order_of(content))
    return read, np.datetime64("NaT"), "datetime64[us]"


def _moment(value: Any, order: DateOrder) -> Any:
    """Return the moment of a date or of a text that writes one; the way of most texts is the quick one."""
    moment = parse_date(value, order) if isinstance(value, str) else None
    return to_moment(value, order) if moment is None else moment


def _number_reader(content: Content) -> Callable[[Any], float]:
    """Return the function that reads a number, by what numbers were in training."""
    known: dict[str, Callable[[Any], float]] = {
        "": to_number_or_seconds,
        "number": to_plain_number,
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
