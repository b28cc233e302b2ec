"""What a single value of a table is, and how it is read as a number, boolean, date, duration or category."""

import datetime
import decimal
import math
import re
import reprlib
from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from howsure.data.dates import DateOrder, parse_date, parse_time
from howsure.data.numbers import parse_with_template

__all__ = [
    "VALUE_KINDS",
    "RefusedError",
    "boolean_text",
    "conversion_hint",
    "convert_unit",
    "is_marker",
    "kind_of",
    "moment_text",
    "number_text",
    "parse_number",
    "refuse",
    "seconds_of",
    "shorten",
    "to_boolean",
    "to_compact_moment",
    "to_moment",
    "to_number",
    "to_number_or_seconds",
    "to_plain_number",
    "to_seconds",
    "to_text",
    "to_time",
    "to_written_number",
]

VALUE_KINDS = frozenset(("text", "number", "boolean", "date", "duration"))  # the kinds of values of columns


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


def conversion_hint(kind: str) -> str:
    """Return how to convert values of a kind that no column has, as the end of an error message."""
    hints = {
        "Period": "; convert periods to dates with .dt.to_timestamp()",
        "Interval": "; convert intervals to a category with .astype('category'), or to their middles",
        "bytes": "; decode bytes to text",
        "complex": "; give the real and the imaginary part a column each",
        "time": "; keep times of day apart from other values",
        "list": "; give every element a column",
        "tuple": "; give every element a column",
        "ndarray": "; give every element a column",
        "dict": "; give every key a column",
    }
    return hints.get(kind, "; convert them to one of these, for example with .astype(str)")


class RefusedError(Exception):
    """Raised where a value cannot be read as what its column is.

    Attributes:
        found: what the column has, such as "plain numbers".
        advice: what to do about it.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.found, self.advice = found, advice


def refuse(value: Any, advice: str) -> NoReturn:
    """Raise `RefusedError` for a value of the wrong kind."""
    kind = kind_of(value)
    several = f"{kind}s" if kind in VALUE_KINDS else f"{kind} values"
    raise RefusedError({"text": "text", "number": "plain numbers"}.get(kind, several), advice)


_MARKERS = frozenset(
    [
        "?",
        "??",
        "-",
        "--",
        "---",
        "–",
        "—",
        ".",
        "..",
        "...",
        "na",
        "n/a",
        "n.a.",
        "#n/a",
        "#na",
        "<na>",
        "nan",
        "nat",
        "null",
        "none",
        "nil",
        "missing",
        "unknown",
        "unavailable",
        "#value!",
        "#div/0!",
        "#ref!",
        "0000-00-00",
    ]
) | {"", "not available", "0000-00-00 00:00:00"}


def is_marker(text: str) -> bool:
    """Return whether a text stands for a missing value where all others are numbers, dates or times: "?" or "n/a"."""
    return text.strip().lower() in _MARKERS


def parse_number(text: str) -> float | None:
    """Return the number that a text spells, or None. Unlike pandas' inference, it never depends on other texts."""
    text = text.replace("\u2212", "-")  # the minus of typesetters
    if "_" in text or not text.isascii():
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return None if number != number else number  # "nan" is text, as for pandas


def to_number(value: Any) -> float:
    """Return the float of a number, of a boolean or of a text that spells a number."""
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


def to_plain_number(value: Any) -> float:
    """Return the float of a number or of a text that spells one; separators of thousands are allowed, as in 1,250.0."""
    number = parse_with_template(value, "1000.0") if kind_of(value) == "text" and parse_number(value) is None else None
    return to_number(value) if number is None else number


def to_written_number(value: Any, template: str) -> float:
    """Return the float of a number, or of a text that is written as the template is, with its unit or without."""
    if kind_of(value) != "text":
        return to_number(value)
    number = parse_with_template(value, template)
    if number is None:
        refuse(value, f"write numbers as in {template}")
    return number


def to_duration(value: Any) -> np.timedelta64:
    """Return a duration as NumPy's type; plain numbers have no unit and are refused."""
    import pandas as pd

    if kind_of(value) != "duration":
        refuse(value, "convert them to durations, for example with pandas.to_timedelta and their unit")
    if isinstance(value, pd.Timedelta):
        return value.to_timedelta64()
    return np.timedelta64(value, "us") if isinstance(value, datetime.timedelta) else value


def to_boolean(value: Any) -> bool:
    """Return the boolean of a boolean, of 0 or 1, or of a text that spells one ("True", "false", "0", "1")."""
    kind = kind_of(value)
    if kind == "text" and value.strip().lower() in ("true", "false"):
        return bool(value.strip().lower() == "true")
    number = to_number(value) if kind in ("boolean", "number") else parse_number(value) if kind == "text" else None
    if number not in (0, 1):
        if kind == "number":
            raise RefusedError("numbers other than 0 and 1", "pass booleans")
        refuse(value, "pass booleans")
    return number == 1


def to_moment(value: Any, order: DateOrder = "") -> np.datetime64:
    """Return the moment of a date or of a text that writes one, in microseconds of UTC.

    Without a zone it counts as UTC. The order says what 03/04/2021 means; without one, such text is refused.
    """
    import pandas as pd

    kind, moment = kind_of(value), value
    if kind not in ("date", "text"):
        refuse(value, "convert them to dates, for example with pandas.to_datetime and their unit")
    try:
        if kind == "text":
            moment = _parse_moment(value, order)
        if isinstance(moment, pd.Timestamp):
            moment = (moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None)).to_datetime64()
        elif isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
            moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
        if not isinstance(moment, np.datetime64):
            return np.datetime64(moment, "us")
        result: np.datetime64 = convert_unit(np.array([moment]), "us")[0]
        return result
    except (ValueError, OverflowError):
        if kind == "text":
            refuse(value, "write dates as in 2020-12-31 or 2020-12-31T18:30:00")
        raise RefusedError("dates out of range", "use dates within the years 1 to 9999") from None


def _parse_moment(text: str, order: DateOrder) -> datetime.datetime:
    """Return the moment that a text means, or raise ValueError."""
    found = parse_date(text, order)
    return datetime.datetime.fromisoformat(text.strip()) if found is None else found


def to_compact_moment(value: Any) -> np.datetime64:
    """Return the moment of a date, or of a number or text such as 20201231."""
    kind = kind_of(value)
    number = to_number(value) if kind == "number" else parse_number(value) if kind == "text" else None
    if number is None:
        return to_moment(value)
    day = parse_date(f"{number:.0f}T000000", "") if number == number // 1 else None
    if day is None:
        refuse(value, "write dates as in 20201231")
    return np.datetime64(day, "us")


def to_time(value: Any) -> float:
    """Return the seconds since midnight of a time of day, or of a text such as 18:30."""
    if isinstance(value, datetime.time):
        return (value.hour * 60 + value.minute) * 60 + value.second + value.microsecond / 1e6
    seconds = parse_time(value) if isinstance(value, str) else None
    if seconds is None:
        refuse(value, "write times of day as in 18:30 or 18:30:15")
    return seconds


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


def to_seconds(value: Any) -> float:
    """Return the seconds of a duration."""
    try:
        return float(seconds_of(np.array([to_duration(value)]))[0])
    except OverflowError:
        raise RefusedError("durations without a length in seconds", "convert them to days or seconds") from None


def to_number_or_seconds(value: Any) -> float:
    """Return the seconds of a duration or the float of a number.

    Models saved by earlier versions do not say which of the two a column held.
    """
    return to_seconds(value) if kind_of(value) == "duration" else to_plain_number(value)


def convert_unit(values: NDArray[Any], unit: str) -> NDArray[Any]:
    """Return an array of dates or durations in a unit.

    Raises:
        OverflowError: if one is out of range, which NumPy passes over in silence.
    """
    converted = values.astype(f"{values.dtype.kind}8[{unit}]")
    finer = np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as")
    if not finer and (~np.isnat(values) & (converted.astype(values.dtype) != values)).any():
        raise OverflowError
    return converted


def seconds_of(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the seconds of an array of dates or durations as float64, NaN for NaT; the unit makes no difference.

    Raises:
        OverflowError: if one is out of range, or if the unit is a month or a year, which have no fixed length.
    """
    units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    unit = np.datetime_data(values.dtype)[0]
    if unit in ("Y", "M", "generic"):  # NumPy would take the mean length of a year or month
        raise OverflowError
    if unit not in units or np.datetime_data(values.dtype)[1] != 1:
        unit = "ns" if unit in ("ps", "fs", "as") else "s"
        values = convert_unit(values, unit)
    # whole seconds and the rest are added last, so that every unit is rounded alike
    whole, rest = np.divmod(values.astype(np.int64), units[unit])
    return np.where(np.isnat(values), np.nan, whole + rest / units[unit])


def shorten(value: Any) -> str:
    """Return the repr of a value, shortened to fit into a message."""
    return _SHORT.repr(value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
