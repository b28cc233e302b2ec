"""From the columns of a table to what a network sees, learned from training rows only."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evidentia.data.table import Column, Kind, Table
from evidentia.errors import InputError

__all__ = ["Encoding", "Scaling"]

Array = NDArray[np.float64]

MOST_CATEGORIES = 50  # the rarer ones of a column share what an unseen one gets: zeros


@dataclass(frozen=True)
class _Encoder:
    """What is known of one column: its kind, what stands in for a missing value, and its categories."""

    name: str
    kind: Kind
    fill: float = 0.0
    flags_missing: bool = False
    categories: tuple[str, ...] = ()

    @classmethod
    def fit(cls, column: Column) -> Self:
        if column.kind == "category":
            present, counts = np.unique([v for v in column.values if v is not None], return_counts=True)
            frequent = sorted(zip(-counts, present, strict=True))[:MOST_CATEGORIES]
            missing = any(v is None for v in column.values)
            return cls(
                column.name, "category", flags_missing=missing, categories=tuple(sorted(str(v) for _, v in frequent))
            )
        absent = np.isnan(column.values)
        fill = 0.0 if absent.all() else float(np.median(column.values[~absent]))
        return cls(column.name, column.kind, fill, bool(absent.any()))

    @property
    def features(self) -> list[str]:
        names = {
            "number": [self.name],
            "boolean": [self.name],
            "category": [f"{self.name}={c}" for c in self.categories],
            "date": [self.name, *(f"{self.name}:{part}" for part in _CYCLES)],
        }[self.kind]
        return [*names, f"{self.name} missing"] if self.flags_missing else names

    def encode(self, column: Column) -> list[Array]:
        if self.kind == "category":
            if column.kind != "category":
                column = Column(column.name, "category", _as_text(column.values))
            missing = np.array([v is None for v in column.values], dtype=float)
            encoded = [np.array([v == c for v in column.values], dtype=float) for c in self.categories]
        else:
            if column.kind == "category" and any(v is not None for v in column.values):
                first = next(k for k, v in enumerate(column.values) if v is not None)
                raise InputError(
                    f"column {self.name!r} held {self.kind}s in training, but has text now "
                    f"(first: {column.values[first]!r} in row {first})"
                )
            if column.kind == "category":  # nothing but missing values
                column = Column(column.name, self.kind, np.full(len(column.values), np.nan))
            absent = np.isnan(column.values)
            missing = absent.astype(float)
            values = np.where(absent, self.fill, column.values)
            encoded = [values, *_cycles(values)] if self.kind == "date" else [values]
        return [*encoded, missing] if self.flags_missing else encoded


_CYCLES = {
    "sin year": 31_556_952,
    "cos year": 31_556_952,
    "sin week": 604_800,
    "cos week": 604_800,
    "sin day": 86_400,
    "cos day": 86_400,
}


def _cycles(seconds: Array) -> list[Array]:
    """Where in the year, the week and the day a moment lies."""
    waves = {"sin": np.sin, "cos": np.cos}
    return [waves[part.split()[0]](2 * np.pi * (seconds % period) / period) for part, period in _CYCLES.items()]


def _as_text(values: NDArray[Any]) -> NDArray[Any]:
    """Numbers where categories were, as pandas would write them: 3.0 is the category '3' as well as '3.0'."""
    return np.array(
        [None if np.isnan(v) else str(int(v)) if float(v).is_integer() else str(v) for v in values], dtype=object
    )


@dataclass(frozen=True)
class Encoding:
    """A table as numbers: missing values filled and flagged, categories as zeros and ones, dates with their cycles.

    Numbers and booleans stay as they are, with the median of the training rows where they are missing, and a column
    that says so if any were missing in training. A category gets a column of zeros and ones; one not seen in training
    has zeros in all of them. A date is its seconds and where it lies in the year, the week and the day.
    """

    encoders: tuple[_Encoder, ...]
    named: bool

    @classmethod
    def fit(cls, table: Table) -> Self:
        """Learn from training rows: hand in those only."""
        if table.rows == 0:
            raise InputError("the table has no rows to learn from")
        return cls(tuple(_Encoder.fit(column) for column in table.columns), table.named)

    @property
    def names(self) -> list[str]:
        """Of the columns of the table."""
        return [encoder.name for encoder in self.encoders]

    @property
    def features(self) -> list[str]:
        """Of the columns of numbers that come out."""
        return [feature for encoder in self.encoders for feature in encoder.features]

    def transform(self, table: Table) -> Array:
        """(rows, features). A named table may have its columns in any order, but no others."""
        columns = self._match(table)
        encoded = [
            part for encoder, column in zip(self.encoders, columns, strict=True) for part in encoder.encode(column)
        ]
        return np.stack(encoded, axis=1) if encoded else np.empty((table.rows, 0))

    def _match(self, table: Table) -> list[Column]:
        if not (self.named and table.named):
            if len(table.columns) != len(self.encoders):
                raise InputError(
                    f"the table has {len(table.columns)} columns, but {len(self.encoders)} were there in training"
                )
            return list(table.columns)
        by_name = {column.name: column for column in table.columns}
        for problem, names in (
            ("lacks", [n for n in self.names if n not in by_name]),
            ("has, beyond those of training,", [n for n in table.names if n not in self.names]),
        ):
            if names:
                shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                raise InputError(f"the table {problem} the column{'s' if len(names) > 1 else ''} {shown}")
        return [by_name[name] for name in self.names]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a model file."""
        return {"named": self.named, "columns": [vars(encoder) for encoder in self.encoders]}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """The encoding that :meth:`to_dict` wrote down."""
        columns = ({**c, "categories": tuple(c["categories"])} for c in state["columns"])
        return cls(tuple(_Encoder(**c) for c in columns), state["named"])


@dataclass(frozen=True)
class Scaling:
    """Zero mean and unit deviation for each column, one pair per member of a population: both (M, 1, F).

    A column that does not vary is only centred.
    """

    loc: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, table: Tensor, rows: Sequence[Tensor]) -> Self:
        """From each member's rows of a table (N, F), in float64, answered in the dtype of the table."""
        loc, scale = [], []
        for r in rows:
            part = table[r.to(table.device)].double()
            mean, std = part.mean(0), part.std(0, correction=0)
            loc.append(mean)
            # the deviation of a constant column is rounding, not spread
            scale.append(torch.where(std > 1e-12 * part.abs().amax(0), std, 1.0))
        return cls(torch.stack(loc).unsqueeze(1).to(table.dtype), torch.stack(scale).unsqueeze(1).to(table.dtype))

    @classmethod
    def none(cls, table: Tensor, rows: Sequence[Tensor]) -> Self:
        """Every column as it is."""
        blank = table.new_zeros(len(rows), 1, table.shape[1])
        return cls(blank, torch.ones_like(blank))

    def __call__(self, x: Tensor) -> Tensor:
        """(M, N, F) or (N, F) → (M, N, F)."""
        return (x - self.loc) / self.scale

    def select(self, members: Sequence[int]) -> "Scaling":
        """The scaling of some members."""
        chosen = list(members)
        return Scaling(self.loc[chosen], self.scale[chosen])
