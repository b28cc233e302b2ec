"""Turn one column of a table into the numbers that a network sees, as learned from training rows."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure.tables.columns import Column, Kind, read_column
from howsure.tables.dates import DATE_FORMS, ISO
from howsure.tables.numbers import PLAIN, is_number_form

__all__ = ["CYCLES", "DIGITS", "MAX_CATEGORIES", "PERIODS", "Encoder"]

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
        low, high: the lowest and the highest number of the training rows.
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

    def __post_init__(self) -> None:
        known = {"boolean": ("",), "date": DATE_FORMS, "category": ("",), "number": ("duration",)}
        fits = self.content in known[self.kind] or (self.kind == "number" and is_number_form(self.content))
        shown, sizes = self.frequent or self.categories, {len(row) for row in self.means}
        whole = not sizes or (len(sizes) == 1 and 0 not in sizes and len(self.means) == len(self.categories) + 2)
        among = set(shown) <= set(self.categories) and set(self.cycles) <= set(CYCLES)
        if not (fits and whole and among and self.low <= self.high):
            raise InputError(f"inconsistent encoding of column {self.name!r}", column=self.name)

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

    def read(self, values: "pd.Series[Any]") -> Column:
        """Return a column of a table, read with the type of this column in training, or raise."""
        if self.left_out:
            return Column(self.name, self.kind, np.full(len(values), None), self.content)
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
