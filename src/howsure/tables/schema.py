"""Turn one column of a table into the numbers that a network sees, as learned from training rows."""

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure.tables.columns import Column, Kind, read_column
from howsure.tables.dates import DATE_FORMS, ISO
from howsure.tables.numbers import PLAIN, is_number_form

__all__ = ["CYCLES", "DIGITS", "MAX_CATEGORIES", "PERIODS", "Encoder", "demand", "encoder_from"]

Array = NDArray[np.float64]

MAX_CATEGORIES = 50  # that have a feature each. Rarer ones have the features of an unseen one: zeros
CYCLES = ("year", "week", "day")
PERIODS = {"year": 31_556_952, "week": 604_800, "day": 86_400}  # in seconds
DIGITS = 12  # of a sine: processors and libraries differ in the last one, and trees divide whatever differs


@dataclass(frozen=True)
class Encoder:
    """Learned encoding of one column.

    Attributes:
        name: of the column.
        kind: how it is encoded.
        content: how its values are written, see :class:`howsure.tables.columns.Column`.
        fill: the number that replaces a missing one: the median of the training rows.
        low, high: the lowest and the highest number of the training rows. The time of a date is clipped to them.
        mean, std: mean and standard deviation of the numbers of the training rows.
        flags_missing: whether a feature marks missing values.
        categories: of a category: one feature each, or one row of ``means`` each.
        cycles: of a date: the `CYCLES` that are features.
        means: of a category that is encoded by its targets: their means in each category, where the value is missing,
            and where it was not seen in training, (categories + 2, targets).
        frequent: the categories that have a feature each next to the means.
        left_out: whether it is left out: it has no feature, and its values are not read.
        missing: number of training rows without a value.
        distinct: number of different values of the training rows.
        why: the reason for its type.
        unreadable: how many cells of the training table could not be read, and the first one, in words.
    """

    name: str
    kind: Kind
    content: str = ""
    fill: float = 0.0
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    flags_missing: bool = False
    categories: tuple[str, ...] = ()
    cycles: tuple[str, ...] = ()
    means: tuple[tuple[float, ...], ...] = ()
    frequent: tuple[str, ...] = ()
    left_out: bool = False
    missing: int = 0
    distinct: int = 0
    why: str = ""
    unreadable: str = ""

    @property
    def features(self) -> list[str]:
        """The names of the columns of numbers that this column becomes."""
        if self.left_out:
            return []
        if self.kind == "category":
            count = len(self.means[0]) if self.means else 0
            names = [f"{self.name}: mean target{f' {k}' if count > 1 else ''}" for k in range(count)]
            names += [f"{self.name}={c}" for c in (self.frequent if self.means else self.categories)]
        else:
            names = [self.name, *(f"{self.name}:{wave} {cycle}" for cycle in self.cycles for wave in ("sin", "cos"))]
        return [*names, f"{self.name} missing"] if self.flags_missing else names

    def read(self, values: Any, rows: int) -> Column:
        """Return a pandas series or an array, read with the type of this column in training, or raise."""
        if self.left_out:
            return Column(self.name, self.kind, np.full(rows, None), self.content)
        column = read_column(self.name, values, self.kind, self.content, self.categories)
        if column.unreadable is not None:
            warnings.warn(column.unreadable, stacklevel=2)
        return column

    def codes(self, column: Column) -> Array:
        """Return one number for each value of a column that this encoder read, NaN where it is missing.

        Categories have their position among ``categories``, and −1 if they are not there.
        """
        if self.left_out:
            return np.zeros(len(column.values))
        if self.kind != "category":
            return np.asarray(column.values, dtype=np.float64)
        position = {category: k for k, category in enumerate(self.categories)} | {None: np.nan}
        return np.array([position.get(value, -1) for value in column.values], dtype=np.float64)

    @property
    def taken_for(self) -> str:
        """The type of the column, in a few words."""
        if self.left_out:
            return "identifier, left out" if self.kind == "number" else "names or free text, left out"
        if self.kind == "category":
            return f"category, {self.distinct} value{'' if self.distinct == 1 else 's'}"
        if self.content == "duration":
            return "duration"
        if self.kind == "date" and self.content != ISO:
            return f"date (as in {pd.Timestamp(2020, 12, 31).strftime(self.content)})"
        written = self.kind == "number" and self.content != PLAIN
        return f"number (as in {self.content})" if written else self.kind


# Files ----------------------------------------------------------------------------------------------------------------


def encoder_from(position: int, state: Any) -> Encoder:
    """Return one encoder from the plain values of a model file, which are checked."""
    here = f"column {position} "
    demand(isinstance(state, dict), here + "is not a dictionary")
    names = {field.name for field in fields(Encoder)}
    demand(set(state) == names, here + f"needs the entries {', '.join(sorted(names))}")
    for name, holds in _CHECKS.items():
        demand(holds(state[name]), here + f"has a wrong entry {name!r}")
    made = {name: tuple(value) if isinstance(value, list) else value for name, value in state.items()}
    encoder = Encoder(**made | {"means": tuple(map(tuple, state["means"]))})
    is_category, rows = encoder.kind == "category", {len(row) for row in encoder.means}
    demand(_content_fits(encoder), here + "has an unknown content")
    demand(encoder.low <= encoder.high, here + "has a lowest number above the highest")
    demand(is_category or not (encoder.categories or encoder.means), here + "has categories, but is not a category")
    demand(encoder.kind == "date" or not encoder.cycles, here + "has cycles, but is not a date")
    fits = len(encoder.means) == len(encoder.categories) + 2 and len(rows) == 1 and 0 not in rows
    demand(fits or not encoder.means, here + "has means that do not fit its categories")
    among = set(encoder.frequent) <= set(encoder.categories)
    demand(among and bool(encoder.means or not encoder.frequent), here + "has frequent values that are not categories")
    return encoder


def _content_fits(encoder: Encoder) -> bool:
    """Return whether a column of this kind can have this content."""
    content = encoder.content
    if encoder.kind == "number":
        return content == "duration" or is_number_form(content)
    known = {"boolean": ("",), "date": DATE_FORMS, "category": ("text", "number")}
    return content in known[encoder.kind]


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are_texts(values: Any) -> bool:
    """Return whether the values are a list of different texts."""
    texts = isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)
    return texts and len(set(values)) == len(values)


def _are_rows(values: Any) -> bool:
    """Return whether the values are a list of lists of finite numbers."""
    lists = isinstance(values, list | tuple) and all(isinstance(row, list | tuple) for row in values)
    return lists and all(_is_finite(number) for row in values for number in row)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("name", "content", "why", "unreadable"), lambda value: isinstance(value, str)),
    "kind": lambda value: isinstance(value, str) and value in get_args(Kind),
    **dict.fromkeys(("fill", "low", "high", "mean", "std"), _is_finite),
    **dict.fromkeys(("flags_missing", "left_out"), lambda value: isinstance(value, bool)),
    **dict.fromkeys(("categories", "frequent"), _are_texts),
    "cycles": lambda value: _are_texts(value) and set(value) <= set(CYCLES),
    "means": _are_rows,
    **dict.fromkeys(("missing", "distinct"), _is_count),
}


def demand(holds: bool, problem: str) -> None:
    """Raise if something that a model file holds about a table is wrong."""
    if not holds:
        raise InputError(f"inconsistent model file: the encoding of the table: {problem}", hint="save the model again")
