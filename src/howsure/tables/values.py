"""Single values of a table: their kind, their text, and the texts that stand for missing values."""

import datetime
import decimal
import re
import reprlib
from numbers import Real
from typing import Any

import numpy as np

__all__ = ["CONVERT", "MISSING_TEXTS", "is_marker", "kind_of", "number_text", "shorten", "to_text"]

_SYMBOLS = ("", "?", "??", "-", "--", "---", "–", "—", ".", "..", "...")
_WORDS = ("na", "n/a", "n.a.", "nan", "nat", "null", "none", "nil", "missing", "unknown", "unavailable")
_WRITTEN_BY_PROGRAMS = ("#n/a", "#na", "<na>", "not available", "#value!", "#div/0!", "#ref!", "0000-00-00")
CONVERT = "convert values to numbers, booleans, text or dates, for example with .astype(str)"
MISSING_TEXTS = frozenset((*_SYMBOLS, *_WORDS, *_WRITTEN_BY_PROGRAMS))  # among numbers, booleans and dates


def is_marker(text: str) -> bool:
    """Return whether a text stands for a missing value in a column of numbers, booleans or dates."""
    return text.strip().lower() in MISSING_TEXTS


def kind_of(value: Any) -> str:
    """Return "number", "boolean", "text", "date" or "duration", or the name of the type of any other value."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, datetime.timedelta | np.timedelta64 | datetime.time):  # np.timedelta64 is also an integer
        return "duration"
    if isinstance(value, Real | decimal.Decimal):
        return "number"
    if isinstance(value, datetime.date | np.datetime64):
        return "date"
    return type(value).__name__


def to_text(value: Any) -> str:
    """Return the text of a value as a category, the same for equal values: "3" for 3, 3.0 and Decimal(3)."""
    kind = kind_of(value)
    if kind == "number":
        return number_text(value)
    if kind == "boolean":
        return str(bool(value))
    if kind == "date":
        import pandas as pd

        moment = pd.Timestamp(value)
        return str(moment if moment.tzinfo is None else moment.tz_convert("UTC").tz_localize(None))
    return str(value)


def number_text(value: Any) -> str:
    """Return the text of a number, or of the number that a text spells; another text as it is.

    Whole numbers keep all their digits.
    """
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9]{1,400}\s*", value):
        return str(int(value))
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return str(value)
    if not number.is_integer():
        return repr(number)
    return str(int(number if isinstance(value, str) else value))


def shorten(value: Any) -> str:
    """Return the repr of a value, shortened to fit into a message."""
    return _SHORT.repr(value.item() if isinstance(value, np.generic) else value)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
