"""The input of an exported model: the meaning of its columns, and a row of numbers from named values."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any

import pandas as pd

from howsure.errors import InputError
from howsure.tables.numbers import PLAIN
from howsure.tables.schema import Encoder

__all__ = ["describe_column", "encode_row"]

MEANINGS = {
    "number": "a number",
    "duration": "seconds",
    "boolean": "1 for true, 0 for false",
    "date": "seconds since 1970-01-01 00:00 UTC",
    "category": "the code of its text in codes; −1 for any other text",
    "ignored": "any number: the model leaves this column out",
}


def describe_column(encoder: Encoder) -> dict[str, Any]:
    """Return the name of a column, the meaning of its number, and for a category the code of each text."""
    kind: str = encoder.kind
    if encoder.left_out:
        kind = "ignored"
    elif encoder.content == "duration":
        kind = "duration"
    found: dict[str, Any] = {"name": encoder.name, "kind": kind, "number": MEANINGS[kind]}
    if kind in ("number", "date") and encoder.content != PLAIN:
        found["written"] = encoder.content  # how texts of the column were read: "1000,0", "%d.%m.%Y", "ISO8601"
    if kind == "category":
        found["codes"] = {category: code for code, category in enumerate(encoder.categories)}
    return found


def encode_row(columns: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[float]:
    """Return the input row of an exported model from named values.

    Args:
        columns: of the model, as :func:`columns_of` returns them.
        values: by name. A column without an entry, with None or with NaN is missing.

    Raises:
        InputError: for a name that is not a column, or a value that has no number.

    >>> columns = [{"name": "size", "kind": "number"}, {"name": "town", "kind": "category", "codes": {"Rome": 0}}]
    >>> encode_row(columns, {"town": "Rome", "size": 70})
    [70.0, 0.0]
    """
    unknown = sorted(set(values) - {column["name"] for column in columns})
    if unknown:
        raise InputError(f"the model has no column {unknown[0]!r}", column=unknown[0])
    return [_number(column, values.get(column["name"])) for column in columns]


def _number(column: Mapping[str, Any], value: Any) -> float:
    kind = column["kind"]
    if kind == "ignored":
        return 0.0
    if value is None or value != value:  # NaN is not equal to itself
        return float("nan")
    try:
        if kind == "category":
            return float(column["codes"].get(str(value), -1))
        if kind == "date":
            return _seconds(value)
        if isinstance(value, timedelta):
            return value // timedelta(microseconds=1) / 1e6  # tables are read to microseconds
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        name = column["name"]
        raise InputError(f"column {name!r} is a {kind}, got {value!r}", column=name, value=value) from error


def _seconds(moment: Any) -> float:
    """Return the seconds since 1970 of a date or time; one without a time zone is in UTC."""
    if isinstance(moment, Real):
        return float(moment)
    stamp = pd.Timestamp(moment)
    return float((stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp).timestamp())
