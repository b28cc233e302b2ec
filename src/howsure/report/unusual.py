"""Which columns make rows unlike the training rows, by what a fitted regressor keeps of these.

A model keeps no training rows. It keeps the mean and the spread of every number, its range if a network sees bins of it
(:mod:`howsure.nn.embedding`), the values of every category, and whether a column had missing values. A value is
*unusual* if it lies outside of this range, or where no range is kept more than `FAR` spreads from the mean; if its
category was not among those kept; or if it is missing and never was in training.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from howsure.data.encoders import Encoder
from howsure.data.encoding import IGNORED
from howsure.data.table import Column, Table
from howsure.estimators import Regressor
from howsure.fitting import Fitted
from howsure.report.words import percent, show

__all__ = ["FAR", "ColumnShare", "Reason", "TrainingColumns"]

Array = NDArray[np.float64]
FAR = 3.0  # spreads from the mean beyond which a number is unusual, where its range is not known
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


@dataclass(frozen=True)
class _Kept:
    """What a model keeps of one column of numbers: mean and spread of the training rows, and their range if it does."""

    mean: float
    spread: float
    low: float | None
    high: float | None
    constant: bool

    def unusual(self, values: Array) -> NDArray[np.bool_]:
        """Return whether each value is unusual; a missing one is not."""
        if self.constant:
            return np.abs(values - self.mean) > 1e-6 * max(abs(self.mean), 1e-300)
        if self.low is None or self.high is None:
            return np.abs(values - self.mean) > FAR * self.spread
        slack = 1e-5 * self.spread + 1e-6 * np.abs(values)  # edges are kept in float32
        return (values < self.low - slack) | (values > self.high + slack)


class TrainingColumns:
    """What a fitted regressor keeps of its training rows, column by column."""

    def __init__(self, model: Regressor) -> None:
        self.fitted: Fitted = model.fitted_
        self.encoders: tuple[Encoder, ...] = model.encoding_.encoders
        counts = [len(encoder.features) for encoder in self.encoders]
        self._first = np.concatenate([[0], np.cumsum(counts)]).astype(int)
        loc, scale = (
            t[:, 0, : self._first[-1]].double().cpu().numpy()
            for t in (self.fitted.scale_x.loc, self.fitted.scale_x.scale)
        )
        self._typical = loc.mean(0)
        self._spread = np.median(scale, axis=0)
        self._edges: dict[int, tuple[float, float]] = _range_of_bins(self.fitted)
        for k, encoder in enumerate(self.encoders):
            first = int(self._first[k])
            if encoder.kind in ("number", "boolean") and encoder.distinct == 2 and first not in self._edges:
                found = _two_values(encoder.fill, loc[:, first], scale[:, first])
                self._edges |= {} if found is None else {first: found}

    @property
    def has_ranges(self) -> bool:
        """Whether the model keeps the range of any column."""
        return bool(_range_of_bins(self.fitted))

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
        kept = self._kept(k)
        if kept is None or kept.constant or self.encoders[k].kind == "date" or np.isnan(column.values).all():
            return None
        return float((np.nanmean(column.values) - kept.mean) / kept.spread)

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
        keep = self.fitted.predict(usual).familiarity
        assert keep is not None
        rated = [Reason(r.column, r.text, r.size, r.outside, float(w)) for (_, r), w in zip(known, keep, strict=True)]
        helpful = [r for r in rated if r.outside or (r.otherwise or 0) > 1.05 * familiarity]
        return sorted(helpful, key=lambda r: -(r.otherwise or 0))[:most]

    # One column -------------------------------------------------------------------------------------------------------

    def _slice(self, k: int) -> slice:
        return slice(self._first[k], self._first[k + 1])

    def _kept(self, k: int) -> _Kept | None:
        """Return what is kept of a column of numbers or of a date; None of one that is no such column."""
        encoder = self.encoders[k]
        if encoder.left_out or encoder.kind == "category" or not encoder.features:
            return None
        if encoder.kind == "date":
            if encoder.span:
                return _Kept(encoder.fill, 1.0, encoder.span[0], encoder.span[1], False)
            if "time" not in encoder.parts:
                return None
        feature = int(self._first[k])
        spread = float(self._spread[feature])
        constant = spread >= IGNORED / 2
        low, high = self._edges.get(feature, (None, None))
        return _Kept(float(self._typical[feature]), 1.0 if constant else spread, low, high, constant)

    def _unusual(self, k: int, column: Column) -> NDArray[np.bool_]:
        encoder, none = self.encoders[k], np.zeros(len(column.values), dtype=bool)
        if encoder.left_out:
            return none
        if encoder.kind == "category":
            missing = np.array([value is None for value in column.values], dtype=bool)
            seen = {None, *encoder.categories}
            odd = np.array([value not in seen for value in column.values], dtype=bool)
            odd &= self._all_categories_kept(encoder)
        else:
            missing = np.isnan(column.values)
            kept = self._kept(k)
            odd = none if kept is None else kept.unusual(np.where(missing, kept.mean, column.values))
        found: NDArray[np.bool_] = odd | (missing & (encoder.missing == 0))
        return found

    @staticmethod
    def _all_categories_kept(encoder: Encoder) -> bool:
        """Return whether a category that is not kept cannot have been in training: rare ones of many are not kept."""
        return encoder.distinct is not None and encoder.distinct == len(encoder.categories)

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
        kept = self._kept(k)
        if kept is None:
            return None
        size = np.inf if kept.constant else abs(value - kept.mean) / kept.spread
        if not odd and (kept.constant or encoder.kind != "number" or size < NOTABLE):
            return None
        return Reason(column.name, self._words(encoder, value, kept, odd), float(size), odd)

    @staticmethod
    def _words(encoder: Encoder, value: float, kept: _Kept, odd: bool) -> str:
        """Return what is unusual about one number."""
        side = "above" if value > kept.mean else "below"
        said = show_value(encoder, value)
        if kept.constant:
            return f"{said}; it was always {show_value(encoder, kept.mean)} in training, and the model ignores it"
        if odd and kept.low is not None and kept.high is not None:
            return f"{said}, {side} all training rows ({_span(encoder, kept.low, kept.high)})"
        if encoder.distinct == 2 and kept.low is not None and kept.high is not None:
            share = (kept.mean - kept.low) / (kept.high - kept.low)
            return f"{said}, which {percent(share if value > kept.mean else 1 - share)} of the training rows had"
        distance = show(abs(value - kept.mean) / kept.spread, 2)
        return f"{said}, {distance} spreads {side} the training mean of {show_value(encoder, kept.mean)}"

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
        kept = self._kept(k)
        known = "no missing values" if kept is None else _in_words(encoder, kept)
        found = ""
        if len(present):
            found = _span(encoder, float(present.min()), float(present.max()))
            found += "" if encoder.kind == "date" else f", mean {show(float(present.mean()), 3)}"
        gone = len(column.values) - len(present)
        missing = f"missing in {gone:,}" if gone else ""
        return known, ", ".join(part for part in (found, missing) if part)


def _in_words(encoder: Encoder, kept: _Kept) -> str:
    """Return what is kept of a column of numbers."""
    if kept.constant:
        return f"always {show_value(encoder, kept.mean)}"
    if kept.low is None or kept.high is None:
        spread = f" ± {show(kept.spread, 3)}" if encoder.kind != "date" else ""
        return f"mean {show_value(encoder, kept.mean)}{spread}"
    mean = "" if encoder.kind == "date" else f", mean {show(kept.mean, 3)}"
    return _span(encoder, kept.low, kept.high) + mean


def _range_of_bins(fitted: Fitted) -> dict[int, tuple[float, float]]:
    """Return the smallest and the largest training value of each feature that a network sees in bins.

    The place in a bin is offset + slope · (x − loc)/scale, −½ at its lower edge and ½ at its upper one.
    """
    embedding = fitted.population._embedding
    if embedding is None or not any(embedding.seen):
        return {}
    member = embedding.seen.index(True)
    slope, offset = (t[member, 0].double().cpu() for t in (embedding.slope, embedding.offset))
    column = embedding.column.cpu()
    loc, scale = (t[member, 0].double().cpu()[column] for t in (fitted.scale_x.loc, fitted.scale_x.scale))
    edges: dict[int, tuple[float, float]] = {}
    used = slope != 0
    for feature in column[used].unique().tolist():
        mine = used & (column == feature)
        low = loc[mine] + scale[mine] * (-0.5 - offset[mine]) / slope[mine]
        high = loc[mine] + scale[mine] * (0.5 - offset[mine]) / slope[mine]
        step = 10 ** np.floor(np.log10(1e-5 * float(scale[mine][0])))  # float32 keeps no more of them
        edges[int(feature)] = _rounded(float(low.min()), step), _rounded(float(high.max()), step)
    return edges


def _two_values(fill: float, loc: Array, scale: Array) -> tuple[float, float] | None:
    """Return the two values of a column that has no others, by its median and each network's mean and spread.

    If a, the median, is one of them, and a share p of the rows has the other one, b, then mean − a = p(b − a) and the
    variance is p(1−p)(b − a)²; hence b = a + (variance + (mean − a)²)/(mean − a). None if networks do not agree on it:
    then the median is neither, as happens where both are equally frequent.
    """
    shift = loc - fill
    varies = (scale < IGNORED / 2) & (shift != 0)
    if varies.sum() < 2:
        return None
    other = fill + (scale[varies] ** 2 + shift[varies] ** 2) / shift[varies]
    if np.ptp(other) > 1e-5 * abs(other.mean() - fill):
        return None
    value = _rounded(float(other.mean()), 10 ** np.floor(np.log10(1e-5 * float(np.median(scale[varies])))))
    return min(fill, value), max(fill, value)


def _rounded(value: float, step: float) -> float:
    return float(np.round(value / step) * step) + 0.0  # not −0


# Numbers in words -----------------------------------------------------------------------------------------------------


def show_value(encoder: Encoder, value: float) -> str:
    """Return a value of a column of numbers as a person writes it."""
    if encoder.kind == "boolean" and value in (0.0, 1.0):
        return "true" if value else "false"
    if encoder.kind == "date":
        if encoder.content == "time":
            return f"{int(value) // 3600:02d}:{int(value) // 60 % 60:02d}"
        return str(np.datetime64(round(value), "s")).replace("T", " ").removesuffix(" 00:00:00")
    return show(value)


def _span(encoder: Encoder, low: float, high: float) -> str:
    first, last = show_value(encoder, low), show_value(encoder, high)
    return first if first == last else f"{first} to {last}"
