"""Turn the columns of a table into the numbers that a network sees, as learned from training rows."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from howsure.errors import InputError
from howsure.files import listed
from howsure.tables.choices import TargetMeans, date_cycles, reason_to_leave_out, target_means
from howsure.tables.columns import Column, check_unique
from howsure.tables.schema import DIGITS, MAX_CATEGORIES, PERIODS, Encoder
from howsure.tables.table import Table, open_table

__all__ = ["ColumnEncoder", "Encoding", "Scaling"]

Array = NDArray[np.float64]

MIN_ROWS_OF_CATEGORY = 5  # for a separate feature, in a column with many categories


@dataclass(frozen=True)
class Encoding:
    """Rule learned from training rows that turns a table into numbers.

    Numbers and booleans stay as they are, with the median of the training rows where they are missing. A column with
    missing values has a feature that flags them. A category has features of zeros and ones, and zeros in all of them if
    it was not seen in training. A column of many categories is encoded by the means of its targets where that helps.
    A date is its seconds since 1970, and its place in the year, the week and the day, where the training rows span
    these and vary in them. Identifiers are left out.
    """

    encoders: tuple[Encoder, ...]
    named: bool

    def __post_init__(self) -> None:
        if not self.encoders:
            raise InputError("inconsistent model file: an encoding has at least one column")
        check_unique(self.names)

    @classmethod
    def fit_transform(cls, table: Table, y: Array | None, seed: int = 0) -> tuple[Self, Array]:
        """Return the encoding that a table and its targets teach, and the features of its rows, (rows, features).

        Pass training rows only. Their features differ from :meth:`transform` where a category is encoded by
        its targets: a row's own target must not be in them, so that they are learned without its fold.

        Args:
            table: the training rows.
            y: their targets, (N,) or (N, T); without them, nothing is learned about targets.
            seed: of the folds.
        """
        if table.rows == 0:
            raise InputError("the table has no rows to learn from")
        targets = None if y is None else y.reshape(table.rows, -1)
        learned = [_learn(column, targets, seed) for column in table.columns]
        if not any(encoder.features for encoder, _ in learned):  # there must be something to learn from
            learned = [(_keep(column), None) for column in table.columns]
        encoding = cls(tuple(encoder for encoder, _ in learned), table.named)
        return encoding, encoding._features_of_training(table, [means for _, means in learned])

    def _features_of_training(self, table: Table, means: list[TargetMeans | None]) -> Array:
        """Return the features of training rows, with the means of the targets that were learned without each row."""
        x, first = self.transform(table), 0
        for encoder, learned in zip(self.encoders, means, strict=True):
            if learned is not None:
                x[:, first : first + learned.out_of_fold.shape[1]] = learned.out_of_fold
            first += len(encoder.features)
        return x

    @property
    def names(self) -> list[str]:
        """The names of the columns of the table."""
        return [encoder.name for encoder in self.encoders]

    @property
    def features(self) -> list[str]:
        """The names of the columns of numbers that come out."""
        return [feature for encoder in self.encoders for feature in encoder.features]

    @property
    def notice(self) -> str:
        """A warning about columns that are left out and cells that cannot be read; empty if there are none."""
        left_out = [encoder for encoder in self.encoders if encoder.left_out]
        sentences = [encoder.unreadable for encoder in self.encoders if encoder.unreadable]
        if left_out:
            named = ", ".join(f"{encoder.name!r} ({encoder.why})" for encoder in left_out)
            sentences.append(f"left out as identifiers, names or free text: {named}. {_how_to_keep(left_out)}")
        return "; ".join(sentences)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas frame with the type of every column, and the reason."""
        rows = [(e.taken_for, len(e.features), e.missing, e.why) for e in self.encoders]
        index = pd.Index(self.names, name="column")
        return pd.DataFrame(rows, columns=["taken for", "features", "missing", "why"], index=index)

    def read(self, x: Any) -> Table:
        """Return the table of an array, a pandas, polars or Arrow table, its columns with their types in training.

        The type of a column is fixed by the training rows, so that a row's numbers never depend on the rows it comes
        with: the text "01" stays text in a batch that has only such codes.
        """
        frame, named = open_table(x)
        order = self.order(list(frame.columns), named)
        columns = tuple(e.read(frame.iloc[:, k]) for e, k in zip(self.encoders, order, strict=True))
        return Table(columns, len(frame), named, frame.index if named else None)

    def warn_of_new_gaps(self, table: Table) -> None:
        """Warn of columns with missing values that no training row lacked: the intervals of such rows do not widen."""
        pairs = [(e, c) for e, c in zip(self.encoders, table.columns, strict=True) if not (e.missing or e.left_out)]
        if gaps := [e.name for e, c in pairs if c.unreadable is None and pd.isna(c.values).any()]:
            text = f"missing in some rows, but in no training row: {listed(gaps)}"
            warnings.warn(f"{text}. Do not trust the intervals of these rows", stacklevel=4)  # at the call of predict

    def codes(self, table: Table) -> Array:
        """Return the numbers of a table that :meth:`read` returned, or that holds training rows, (rows, columns).

        Categories are their codes, dates seconds since 1970, durations seconds; missing values are NaN.
        """
        if not table.rows:
            return np.zeros((0, len(self.encoders)))
        columns = zip(self.encoders, table.columns, strict=True)
        return np.stack([encoder.codes(column) for encoder, column in columns], axis=1)

    def transform(self, table: Table) -> Array:
        """Return the features of a table, (rows, features)."""
        features: Array = ColumnEncoder(self.encoders)(torch.from_numpy(self.codes(table))).numpy()
        return features

    def order(self, names: list[str], named: bool) -> list[int]:
        """Return which column of a table each encoder reads: by name if both have names, else by position."""
        if not (self.named and named):
            if len(names) != len(self.encoders):
                raise InputError(f"the table has {len(names)} columns, but {len(self.encoders)} were there in training")
            return list(range(len(names)))
        position = {name: k for k, name in enumerate(names)}
        known = set(self.names)
        for problem, some in (
            ("lacks", [n for n in self.names if n not in position]),
            ("has, in addition to the training columns,", [n for n in names if n not in known]),
        ):
            if some:
                plural = "s" if len(some) > 1 else ""
                raise InputError(f"the table {problem} the column{plural} {listed(some)}", column=some[0])
        return [position[name] for name in self.names]


def _learn(column: Column, y: Array | None, seed: int) -> tuple[Encoder, TargetMeans | None]:
    """Return the encoding of a column, and the means of the targets if it is encoded by them."""
    reason = reason_to_leave_out(column)
    if reason:
        return _left_out(column, reason), None
    encoder = _keep(column)
    if column.kind != "category" or y is None or encoder.distinct <= MAX_CATEGORIES:
        return encoder, None
    counts = Counter(column.values)
    frequent = tuple(c for c in encoder.categories if column.declared or counts[c] >= MIN_ROWS_OF_CATEGORY)
    features = f"the {len(frequent)} most frequent values have a feature each"
    means = target_means(column.values, y, seed)
    if means is not None:
        why = f"{features}; the mean target of a value explains {100 * means.gain:.0f} % of the variance of other rows"
        each = tuple(map(tuple, means.means.tolist()))
        return replace(encoder, categories=means.categories, means=each, frequent=frequent, why=why), means
    present = len(column.values) - encoder.missing
    if not column.declared and present < 3 * encoder.distinct:
        reason = f"{encoder.distinct} different texts in {present} rows, which do not explain the target"
        return _left_out(column, reason), None
    return replace(encoder, categories=frequent, why=f"{features}; values do not clearly explain the target"), None


def _how_to_keep(left_out: Sequence[Encoder]) -> str:
    """Return the hint how to keep columns that are left out."""
    ways = {
        "text, make it a category with .astype('category'), in the shell with --category": "category",
        "whole numbers, give their column another name": "number",
    }
    kinds = {encoder.kind for encoder in left_out}
    return f"To keep {'; '.join(way for way, kind in ways.items() if kind in kinds)}."


def _left_out(column: Column, reason: str) -> Encoder:
    kept = _keep(column)
    return replace(_counted(column, kept.missing, kept.distinct, reason), left_out=True, flags_missing=False)


def _keep(column: Column) -> Encoder:
    """Return the encoding of a column that is kept, learned without its targets."""
    encoder = _keep_category(column) if column.kind == "category" else _keep_numbers(column)
    if encoder.distinct < 2:
        encoder = replace(encoder, why="it does not vary, and is ignored" if encoder.distinct else "it has no values")
    return encoder if column.unreadable is None else replace(encoder, unreadable=str(column.unreadable))


def _counted(column: Column, missing: int, distinct: int, why: str) -> Encoder:
    return Encoder(
        column.name, column.kind, column.content, flags_missing=missing > 0, missing=missing, distinct=distinct, why=why
    )


def _keep_category(column: Column) -> Encoder:
    counts = Counter(v for v in column.values if v is not None)
    frequent = sorted(counts, key=lambda category: (-counts[category], category))[:MAX_CATEGORIES]
    missing, distinct = len(column.values) - sum(counts.values()), len(counts)
    why = "declared a category" if column.declared else "text"
    if distinct > len(frequent):
        why += f", a feature for each of the {len(frequent)} most frequent values"
    return replace(_counted(column, missing, distinct, why), categories=tuple(sorted(frequent)))


def _keep_numbers(column: Column) -> Encoder:
    """Return the encoding of a column of numbers, booleans or dates."""
    present = column.values[~np.isnan(column.values)]
    distinct = len(np.unique(present))
    encoder = _counted(column, len(column.values) - len(present), distinct, f"{distinct} different values")
    if not len(present):
        return encoder
    low, high = float(present.min()), float(present.max())
    unit = max(abs(low), abs(high), 1e-300)  # keeps sums and squares in range
    mean = min(max(float((present / unit).mean()) * unit, low), high)
    std = float((present / unit).std()) * unit if low < high else 0.0
    encoder = replace(encoder, fill=_median(present), low=low, high=high, mean=mean, std=std)
    if column.kind != "date":
        return encoder
    cycles = date_cycles(present)
    why = " and ".join(["its time", *([f"its place in the {' and the '.join(cycles)}"] if cycles else [])])
    return replace(encoder, cycles=cycles, why=why)


def _median(values: Array) -> float:
    """Return the median, without overflow in the mean of the middle two."""
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]].tolist()
    return float(low if low == high else low / 2 + high / 2)


class ColumnEncoder(nn.Module):
    """Features (N, F) of the numbers of a table, (N, C) in float64, as :meth:`Encoding.codes` returns them.

    Its buffers follow from the encoders, so that they are not part of a state dict.
    """

    fill: Tensor
    order: Tensor

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        count = len(encoders)
        self.made = nn.ModuleList()
        # where each feature lies in: columns, whether they are missing, and the features of categories and dates
        order: list[int] = []
        end = 2 * count
        for column, encoder in enumerate(encoders):
            size = len(encoder.features) - (encoder.flags_missing and not encoder.left_out)
            if encoder.left_out:
                continue
            if encoder.kind in ("category", "date"):
                if size:
                    kind = _CategoryFeatures if encoder.kind == "category" else _DateFeatures
                    self.made.append(kind(column, encoder))
                order += range(end, end + size)
                end += size
            else:
                order.append(column)
            if encoder.flags_missing:
                order.append(count + column)
        self.plain = order == list(range(count))  # the columns themselves
        _keep_buffers(self, fill=[encoder.fill for encoder in encoders])
        self.register_buffer("order", torch.tensor(order, dtype=torch.int64, device="cpu"), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        missing = x.isnan()
        values = torch.where(missing, self.fill, x)
        if self.plain:
            return values
        parts = [values, missing.to(x.dtype), *(made(x) for made in self.made)]
        return torch.cat(parts, 1).index_select(1, self.order)


class _CategoryFeatures(nn.Module):
    """Features of a category: means of targets, if it is encoded by those, and zeros and ones."""

    codes: Tensor
    means: Tensor

    def __init__(self, column: int, encoder: Encoder) -> None:
        super().__init__()
        self.column, self.count, self.has_means = column, len(encoder.categories), bool(encoder.means)
        place = {category: k for k, category in enumerate(encoder.categories)}
        shown = encoder.frequent if encoder.means else encoder.categories
        _keep_buffers(self, codes=[place[category] for category in shown], means=encoder.means)

    def forward(self, x: Tensor) -> Tensor:
        code = x[:, self.column]
        ones = (code.unsqueeze(1) == self.codes).to(x.dtype)
        if not self.has_means:
            return ones
        known = (code >= 0) & (code < self.count) & (code == code.floor())
        row = torch.where(known, code, torch.where(code.isnan(), float(self.count), self.count + 1.0))
        return torch.cat([self.means.index_select(0, row.to(torch.int64)), ones], 1)


class _DateFeatures(nn.Module):
    """Features of a date: its seconds, and its place in some cycles."""

    def __init__(self, column: int, encoder: Encoder) -> None:
        super().__init__()
        self.column, self.fill, self.cycles = column, encoder.fill, encoder.cycles

    def forward(self, x: Tensor) -> Tensor:
        given = x[:, self.column]
        seconds = torch.where(given.isnan(), self.fill, given)
        parts = [seconds]
        for cycle in self.cycles:
            period = float(PERIODS[cycle])
            angle = (2 * math.pi) * (seconds - period * (seconds / period).floor()) / period
            parts += [(each * 10**DIGITS).round() / 10**DIGITS for each in (angle.sin(), angle.cos())]
        return torch.stack(parts, 1)


def _keep_buffers(module: nn.Module, **values: Any) -> None:
    """Register float64 buffers on the CPU that are not part of a state dict."""
    for name, value in values.items():
        tensor = torch.tensor(value, dtype=torch.float64, device="cpu")
        module.register_buffer(name, tensor, persistent=False)


class Scaling(nn.Module):
    """Scaling of each column to zero mean and unit deviation, for each member of a population: both (M, 1, F).

    A column that does not vary has the scale of its size, at least 1. With ``ignore_constant`` it is ignored, because
    networks have learned nothing about it: its scale is infinite, so that every number becomes 0.
    """

    loc: Tensor
    scale: Tensor

    def __init__(self, loc: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.register_buffer("loc", loc)
        self.register_buffer("scale", scale)

    @property
    def ignored(self) -> Tensor:
        """Which columns each member ignores, (M, 1, F)."""
        return self.scale.isinf()

    @classmethod
    def fit(cls, table: Tensor, rows: Sequence[Tensor], ignore_constant: bool = False) -> Self:
        """Return the scaling by each member's rows of a table (N, F), computed in float64, in the table's dtype."""
        fitted = [_location_and_scale(table[r.to(table.device)].double(), ignore_constant) for r in rows]
        loc = torch.stack([loc for loc, _ in fitted]).unsqueeze(1).to(table.dtype)
        scale = torch.stack([scale for _, scale in fitted]).unsqueeze(1).to(table.dtype)
        # a spread of a few subnormal numbers must not be divided by zero
        return cls(loc, scale.clamp(min=torch.finfo(table.dtype).tiny))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, (M, N, F) or (N, F), scaled for every member, (M, N, F)."""
        return (x - self.loc) / self.scale

    def select(self, members: Sequence[int]) -> "Scaling":
        """Return the scaling of some members."""
        chosen = list(members)
        return Scaling(self.loc[chosen], self.scale[chosen])


def _location_and_scale(part: Tensor, ignore_constant: bool) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each column of (N, F) in float64, both (F,).

    Columns are divided by a power of 2 first, which is exact and keeps squares in range, and shifted, so that a column
    far from zero keeps the digits of its spread. One that varies by a few units in the last place is constant.
    """
    exponent = torch.frexp(part.abs().amax(0)).exponent.double().clamp(-1021, 1024) - 1
    unit = torch.exp2(exponent)
    units = part / unit
    low, high = units.aminmax(dim=0)
    shift = units.mean(0).clamp(low, high)  # rounding may take the mean out of the column
    shifted = units - shift
    rest = shifted.mean(0)
    std = (shifted - rest).square().mean(0).sqrt()
    constant = high - low <= 4 * torch.finfo(torch.float64).eps * units.abs().amax(0)
    loc = torch.where(constant, shift, shift + rest) * unit
    fallback = torch.full_like(loc, torch.inf) if ignore_constant else loc.abs().clamp(min=1.0)
    return loc, torch.where(constant, fallback, std * unit)
