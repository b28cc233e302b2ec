"""Which columns make rows unlike the training rows, by what a fitted regressor keeps of these.

A model keeps no training rows. It keeps the mean, the spread and the range of every number, the values of every
category, and whether a column had missing values (:class:`howsure.tables.schema.Encoder`). A value is *unusual* if it
lies outside the range, if its category was not among those kept, or if it is missing and never was in training.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from howsure.estimators import Regressor
from howsure.report.words import percent, show
from howsure.tables.model import TableModel
from howsure.tables.schema import Encoder
from howsure.tables.table import Column, Table

__all__ = ["FAR", "ColumnShare", "Reason", "TrainingColumns"]

Array = NDArray[np.float64]
FAR = 3.0  # spreads: a column whose mean moved by these is ranked like one with unusual values in all rows
MOVED = 0.5  # spreads by which the mean of a column has moved if that is worth a line
NOTABLE = 2.0  # spreads from which a number is named as a reason for one row
MOST_COLUMNS = 50  # of a row whose familiarity is computed with a usual value in their place


@dataclass(frozen=True)
class Reason:
    """Why a row is unusual: a column, what is odd about its value, and what the familiarity would be otherwise."""

    column: str
    text: str
    size: float  # spreads from the mean; infinite for what has no distance
    outside: bool  # whether it is unusual in itself, not merely notable
    otherwise: float | None = None  # familiarity of the row with a usual value in this column


@dataclass(frozen=True)
class ColumnShare:
    """How a column of the rows differs from that of the training rows."""

    column: str
    known: str  # what is kept of the training rows
    found: str  # what the rows have
    shift: float | None  # of the mean, in spreads of the training rows; None of what is no number
    count: int  # of rows with an unusual value
    share: float


class TrainingColumns:
    """What a fitted regressor keeps of its training rows, column by column."""

    def __init__(self, model: Regressor) -> None:
        self.model: TableModel = model.model_
        self.encoders: tuple[Encoder, ...] = model.encoding_.encoders
        counts = [len(encoder.features) for encoder in self.encoders]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        # features of a usual row, as networks see them
        self._typical = self.model.scale_x.loc[:, 0, : self._first[-1]].double().cpu().numpy().mean(0)

    def unusual(self, table: Table) -> list[NDArray[np.bool_]]:
        """Return for each column whether the value of each row is unusual."""
        return [self._unusual(k, column) for k, column in enumerate(table.columns)]

    def shares(self, table: Table, most: int = 10) -> list[ColumnShare]:
        """Return the columns that differ most from those of the training rows, the worst first.

        Named are columns with unusual values, and numbers whose mean has moved by half a spread or more.
        """
        found = []
        for k, (column, odd) in enumerate(zip(table.columns, self.unusual(table), strict=True)):
            count, shift = int(odd.sum()), self._shift(k, column)
            if count or (shift is not None and abs(shift) >= MOVED):
                known, has = self._describe(k, column, odd)
                found.append(ColumnShare(column.name, known, has, shift, count, count / len(odd)))
        return sorted(found, key=lambda each: -max(each.share, min(abs(each.shift or 0.0) / FAR, 1.0)))[:most]

    def _shift(self, k: int, column: Column) -> float | None:
        """Return how many spreads the mean of a column of numbers lies from that of the training rows."""
        encoder = self.encoders[k]
        if not _has_range(encoder) or not encoder.std or encoder.kind == "date" or np.isnan(column.values).all():
            return None
        return float((np.nanmean(column.values) - encoder.mean) / encoder.std)

    def reasons(self, table: Table, x: Array, row: int, familiarity: float | None, most: int = 3) -> list[Reason]:
        """Return why a row is unusual, the strongest reasons first.

        Where the familiarity of the row is below 1, columns are ordered by what it would be if this column alone had a
        usual value; otherwise by how far their value is from the mean.

        Args:
            table: the rows, read by the model's encoding.
            x: their features.
            row: position of the row in both.
            familiarity: of the row; None if the model has none.
            most: number of reasons.
        """
        found = [(k, self._reason(k, column, row)) for k, column in enumerate(table.columns)]
        known = sorted(((k, r) for k, r in found if r is not None), key=lambda each: (-each[1].outside, -each[1].size))
        known = known[:MOST_COLUMNS]
        if familiarity is None or familiarity >= 1 or not known:
            return [reason for _, reason in known[:most]]
        usual = np.repeat(x[row : row + 1], len(known), axis=0)
        for line, (k, _) in zip(usual, known, strict=True):
            line[self._slice(k)] = self._typical[self._slice(k)]
        keep = self.model.predict(usual, encoded=True).familiarity
        assert keep is not None
        rated = [Reason(r.column, r.text, r.size, r.outside, float(w)) for (_, r), w in zip(known, keep, strict=True)]
        helpful = [r for r in rated if r.outside or (r.otherwise or 0) > 1.05 * familiarity]
        return sorted(helpful, key=lambda r: -(r.otherwise or 0))[:most]

    # One column -------------------------------------------------------------------------------------------------------

    def _slice(self, k: int) -> slice:
        return slice(self._first[k], self._first[k + 1])

    def _unusual(self, k: int, column: Column) -> NDArray[np.bool_]:
        encoder = self.encoders[k]
        if encoder.left_out:
            return np.zeros(len(column.values), dtype=bool)
        if encoder.kind == "category":
            missing = np.array([value is None for value in column.values], dtype=bool)
            seen = {None, *encoder.categories}
            odd = np.array([value not in seen for value in column.values], dtype=bool)
            odd &= encoder.distinct == len(encoder.categories)  # rare categories of many are not kept
        else:
            missing = np.isnan(column.values)
            odd = _has_range(encoder) & ((column.values < encoder.low) | (column.values > encoder.high))
        found: NDArray[np.bool_] = odd | (missing & (encoder.missing == 0))
        return found

    def _reason(self, k: int, column: Column, row: int) -> Reason | None:
        encoder, value = self.encoders[k], column.values[row]
        if encoder.left_out:
            return None
        odd = bool(self._unusual(k, Column(column.name, column.kind, column.values[row : row + 1], column.content))[0])
        if encoder.kind == "category":
            if not odd:
                return None
            text = "missing, which it never was in training" if value is None else f"«{value}» was not in training"
            return Reason(column.name, text, np.inf, True)
        if np.isnan(value):
            return Reason(column.name, "missing, which it never was in training", np.inf, True) if odd else None
        if not _has_range(encoder):
            return None
        size = abs(value - encoder.mean) / encoder.std if encoder.std else np.inf
        if not odd and (not encoder.std or encoder.kind != "number" or size < NOTABLE):
            return None
        return Reason(column.name, _describe_value(encoder, value, odd), float(size), odd)

    def _describe(self, k: int, column: Column, odd: NDArray[np.bool_]) -> tuple[str, str]:
        """Return what is kept of a column, and what the rows have, in words."""
        encoder = self.encoders[k]
        if encoder.kind == "category":
            values = column.values[odd]
            new = sorted({str(value) for value in values if value is not None})
            found = ", ".join(f"«{value}»" for value in new[:3]) + (
                f" and {len(new) - 3} others" if len(new) > 3 else ""
            )
            missing = "missing values" if any(value is None for value in values) else ""
            return f"{len(encoder.categories)} values", ", ".join(part for part in (found, missing) if part)
        present = column.values[~np.isnan(column.values)]
        known = _describe_range(encoder) if _has_range(encoder) else "no values"
        found = ""
        if len(present):
            found = _span(encoder, float(present.min()), float(present.max()))
            found += "" if encoder.kind == "date" else f", mean {show(float(present.mean()), 3)}"
        gone = len(column.values) - len(present)
        missing = f"missing in {gone:,}" if gone else ""
        return known, ", ".join(part for part in (found, missing) if part)


def _has_range(encoder: Encoder) -> bool:
    """Return whether an encoder has the range of a column: of numbers or dates that had values in training."""
    return encoder.kind != "category" and not encoder.left_out and encoder.distinct > 0


# Numbers in words -----------------------------------------------------------------------------------------------------


def show_value(encoder: Encoder, value: float) -> str:
    """Return a value of a column of numbers as a person writes it."""
    if encoder.kind == "boolean" and value in (0.0, 1.0):
        return "true" if value else "false"
    if encoder.kind == "date":
        return str(np.datetime64(round(value), "s")).replace("T", " ").removesuffix(" 00:00:00")
    return show(value)


def _describe_range(encoder: Encoder) -> str:
    """Return the range of the training rows in words."""
    if encoder.low == encoder.high:
        return f"always {show_value(encoder, encoder.low)}"
    mean = "" if encoder.kind == "date" else f", mean {show(encoder.mean, 3)}"
    return _span(encoder, encoder.low, encoder.high) + mean


def _describe_value(encoder: Encoder, value: float, odd: bool) -> str:
    """Return what is unusual about one number."""
    side = "above" if value > encoder.mean else "below"
    said = show_value(encoder, value)
    if encoder.low == encoder.high:
        return f"{said}; it was always {show_value(encoder, encoder.low)} in training, and the model ignores it"
    if odd:
        return f"{said}, {side} all training rows ({_span(encoder, encoder.low, encoder.high)})"
    if encoder.distinct == 2:
        share = (encoder.mean - encoder.low) / (encoder.high - encoder.low)
        return f"{said}, which {percent(share if value > encoder.mean else 1 - share)} of the training rows had"
    distance = show(abs(value - encoder.mean) / encoder.std, 2)
    return f"{said}, {distance} spreads {side} the training mean of {show_value(encoder, encoder.mean)}"


def _span(encoder: Encoder, low: float, high: float) -> str:
    first, last = show_value(encoder, low), show_value(encoder, high)
    return first if first == last else f"{first} to {last}"
