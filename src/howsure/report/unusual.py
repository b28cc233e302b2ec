"""Values that no training row had, by the ranges and categories that a fitted regressor keeps of each column."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from howsure.report.words import clip, counted, show
from howsure.tables.schema import Encoder
from howsure.tables.table import Table

__all__ = ["UnusualColumn", "later_rows", "reasons", "unusual_columns"]

NOTABLE = 3.0  # standard deviations from the training mean: the value of one row in 370, if it is normal


class UnusualColumn(NamedTuple):
    """A column with values that no training row had."""

    name: str
    known: str  # the range or the values of the training rows
    found: str  # of these rows
    rows: int  # with such a value


def unusual_columns(encoders: tuple[Encoder, ...], table: Table, most: int = 10) -> list[UnusualColumn]:
    """Return the columns of a table with values that no training row had, the most such rows first."""
    found = []
    for encoder, column in zip(encoders, table.columns, strict=True):
        odd = _is_new(encoder, column.values)
        if odd.any():
            values = _in_words(encoder, column.values[odd])
            found.append(UnusualColumn(column.name, _known(encoder), values, int(odd.sum())))
    return sorted(found, key=lambda column: -column.rows)[:most]


def later_rows(encoders: tuple[Encoder, ...], table: Table) -> list[str]:
    """Return a warning for each column of dates with rows after the last training date."""
    found = []
    for encoder, column in zip(encoders, table.columns, strict=True):
        date = encoder.kind == "date" and not encoder.left_out
        later = int((column.values.astype(float) > encoder.high).sum()) if date else 0
        if later:
            after = f"{counted(later, 'row')} after the last training date, {_show(encoder, encoder.high)}"
            found.append(f"{column.name}: {after}. These predictions extrapolate in time.")
    return found


def reasons(encoders: tuple[Encoder, ...], table: Table, row: int, most: int = 3) -> list[tuple[str, str]]:
    """Return the columns in which a row is unusual, with the reason: new values first, then the farthest numbers."""
    found = []
    for encoder, column in zip(encoders, table.columns, strict=True):
        value = column.values[row]
        far = _distance(encoder, value)
        if _is_new(encoder, column.values[row : row + 1])[0]:
            text = f"{_in_words(encoder, [value])} ({_known(encoder)} in training)"
            found.append((np.inf, far, column, text))
        elif far >= NOTABLE:
            side = "above" if value > encoder.mean else "below"
            text = f"{_show(encoder, value)}, far {side} the training mean of {_show(encoder, encoder.mean)}"
            found.append((far, far, column, text))
    found.sort(key=lambda each: (-each[0], -each[1]))
    return [(column.name, text) for _, _, column, text in found[:most]]


def _is_new(encoder: Encoder, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each value lies outside the training values; missing ones do if none was missing in training."""
    if encoder.left_out:
        return np.zeros(len(values), dtype=bool)
    if encoder.kind == "category":
        missing = np.array([value is None for value in values], dtype=bool)
        all_kept = encoder.distinct == len(encoder.categories)  # rare ones of many categories are not
        known = set(encoder.categories)
        new = np.array([all_kept and value not in known for value in values], dtype=bool) & ~missing
    else:
        missing = np.isnan(values.astype(float))
        new = (values < encoder.low) | (values > encoder.high) if encoder.distinct else np.zeros(len(values), bool)
    result: NDArray[np.bool_] = new | (missing & (encoder.missing == 0))
    return result


def _distance(encoder: Encoder, value: Any) -> float:
    """Return how many standard deviations of the training rows a number lies from their mean; 0 for other columns."""
    if encoder.kind != "number" or encoder.left_out or not encoder.std or np.isnan(value):
        return 0.0
    return float(abs(value - encoder.mean) / encoder.std)


def _known(encoder: Encoder) -> str:
    """Return the training values in words."""
    if encoder.kind == "category":
        return counted(len(encoder.categories), "other value")
    if not encoder.distinct:
        return "no value"
    low, high = _show(encoder, encoder.low), _show(encoder, encoder.high)
    return f"always {low}" if low == high else f"{low} to {high}"


def _in_words(encoder: Encoder, values: Any) -> str:
    """Return values in words: a few categories, or the lowest and the highest number."""
    if encoder.kind == "category":
        texts = sorted({"missing" if value is None else f'"{clip(value)}"' for value in values})
        return ", ".join(texts[:3]) + (f" and {len(texts) - 3} more" if len(texts) > 3 else "")
    numbers = [value for value in values if not np.isnan(value)]
    parts = []
    if numbers:
        low, high = _show(encoder, min(numbers)), _show(encoder, max(numbers))
        parts.append(low if low == high else f"{low} to {high}")
    if len(numbers) < len(values):
        parts.append("missing")
    return ", ".join(parts)


def _show(encoder: Encoder, value: float) -> str:
    """Return a value of a column of numbers as a person writes it."""
    if encoder.kind == "boolean" and value in (0.0, 1.0):
        return "true" if value else "false"
    if encoder.kind == "date":
        return str(np.datetime64(round(value), "s")).replace("T", " ").removesuffix(" 00:00:00")
    return show(value)
