r"""Split conformal calibration: intervals with a guarantee, from rows that the model has not learned from.

The *score* of a row is the distance of its target from the centre of its prediction, in half-widths of the model's
interval of 90%. With the ends l and u of that interval and its centre m,

.. math:: s(x, y) = \max\Bigl(\frac{y-m}{u-m},\; \frac{m-y}{m-l}\Bigr).

From n calibration rows, q(c) is the ⌈(n+1)c⌉-th smallest score, and the calibrated interval of coverage c is
:math:`[m - q(c)(m-l),\; m + q(c)(u-m)]` (Papadopoulos et al. 2002, Lei et al. 2018). If the n rows and a new row are
exchangeable, it holds the new target with probability at least c, and at most c + 1/(n+1) if no two scores are equal.
The guarantee is an average over rows like the calibration rows and for each target alone. It does not hold at a chosen
x, for all targets of a row together, or for rows of another kind.

The centre is the mean of the prediction, moved into the inner half of the interval where a skewed mixture has its mean
outside. With a transform of the target all of this is about the variable before the transform.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from howsure.distributions import Transform
from howsure.errors import InputError
from howsure.prediction import Prediction, checked_coverages, quantities

__all__ = ["ConformalCalibration", "Groups", "OnlineConformal", "min_rows", "quantile_of_scores"]

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Key = tuple[str | float | None, ...]
REFERENCE_COVERAGE = 0.9  # of the intervals whose half-widths are the unit of scores
MIN_FACTOR = 1e-6  # a model that is right to the last digit still needs a positive scale


# Ranks ----------------------------------------------------------------------------------------------------------------


def _decimal(coverage: float) -> Fraction:
    """Return the coverage as the decimal number that it is written as; in floating point (9+1)·0.9 could exceed 9."""
    return Fraction(repr(checked_coverages([coverage])[0]))


def min_rows(coverage: float) -> int:
    """Return the number of rows that a guarantee of this coverage needs: ⌈c/(1−c)⌉.

    >>> min_rows(0.9), min_rows(0.95), min_rows(0.5)
    (9, 19, 1)
    """
    c = _decimal(coverage)
    return max(1, math.ceil(c / (1 - c)))


def quantile_of_scores(scores: ArrayLike, coverage: float) -> Array:
    """Return the ⌈(n+1)·coverage⌉-th smallest of n scores, for each column: (n,) → (), (n, T) → (T,).

    Scores that are NaN are missing.

    Raises:
        InputError: if there are so few scores that only an infinite interval has the guarantee.
    """
    values = np.sort(np.asarray(scores, dtype=float), axis=0)  # NaN comes last
    known, least = (~np.isnan(values)).sum(0), min_rows(coverage)
    if (known < least).any():
        raise InputError(f"a coverage of {coverage:g} needs at least {least} calibration rows, got {known.min()}")
    rank = [math.ceil((count + 1) * _decimal(coverage)) for count in known.flat]
    quantile: Array = np.take_along_axis(values, np.reshape(rank, (1, *known.shape)) - 1, 0)[0]
    return quantile


# Intervals as centre and half-widths ----------------------------------------------------------------------------------


class _Frame(NamedTuple):
    """Centres of intervals and the distances to their lower and upper ends, before the transform of the target."""

    centre: Array
    below: Array
    above: Array

    @classmethod
    def of(cls, prediction: Prediction) -> "_Frame":
        """Return the frame of a prediction's intervals of ``REFERENCE_COVERAGE``."""
        before = quantities.without_transform(prediction)
        ends = quantities.central_ends(before, [REFERENCE_COVERAGE]).cpu().numpy()[..., 0, :].astype(float)
        lower, upper = ends[..., 0], ends[..., 1]
        quarter = 0.25 * (upper - lower)
        centre = np.clip(np.asarray(before.mean, dtype=float), lower + quarter, upper - quarter)
        return cls(centre, centre - lower, upper - centre)

    def scores(self, lowest: Array, highest: Array) -> Array:
        """Return the smallest factor by which each interval must be stretched to hold ``lowest`` and ``highest``."""
        with np.errstate(divide="ignore", invalid="ignore"):
            worst = np.fmax((highest - self.centre) / self.above, (self.centre - lowest) / self.below)
        worst = np.where(self.above > 0, worst, np.where(highest == self.centre, 0.0, np.inf))
        scores: Array = np.where(np.isnan(worst), np.inf, np.maximum(worst, 0.0))
        return scores

    def stretched(self, factor: Array) -> Array:
        """Return the intervals stretched about their centres, with their ends in a new last dimension."""
        return np.stack([self.centre - factor * self.below, self.centre + factor * self.above], axis=-1)


def _scores(prediction: Prediction, y: Array) -> Array:
    """Return the score of each target."""
    z = quantities.before_transform(prediction, y)
    # an interval whose lower end is below 0 reaches a target of 0 however far below 0 the variable is
    highest = np.where(y == 0, -np.inf, z) if isinstance(prediction.transform, Transform) else z
    return _Frame.of(prediction).scores(z, highest)


def _in_units_of_y(prediction: Prediction, ends: Array) -> Array:
    """Return ends of intervals after the transform of the target."""
    if prediction.transform is None:
        return ends
    sides = [prediction.transform.forward(torch.from_numpy(ends[..., k].copy())).numpy() for k in (0, 1)]
    return np.stack(sides, axis=-1)


# Groups ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Groups:
    """Groups of rows with equal values in some columns. Each group is calibrated separately.

    Args:
        columns: names of the columns.
        keys: the values of each group in the order of the columns: text, a number, or None where missing.
    """

    columns: tuple[str, ...]
    keys: tuple[tuple[str | float | None, ...], ...]

    def __post_init__(self) -> None:
        if any(len(key) != len(self.columns) for key in self.keys):
            raise InputError("inconsistent conformal calibration: groups that do not fit their columns")

    @classmethod
    def learn(cls, table: Any, columns: Any) -> "Groups":
        """Return the groups of a table that are large enough for ``REFERENCE_COVERAGE``.

        Args:
            table: the calibration rows, such as a :class:`howsure.tables.table.Table`.
            columns: name or position of a column, or a list of these.
        """
        names = _column_names(table, columns)
        counts = Counter(_keys(table, names))
        least = min_rows(REFERENCE_COVERAGE)
        return cls(names, tuple(sorted((key for key, count in counts.items() if count >= least), key=repr)))

    def codes(self, table: Any) -> Codes:
        """Return the position of each row's group in ``keys``; −1 for a row of another group."""
        position = {key: k for k, key in enumerate(self.keys)}
        return np.array([position.get(key, -1) for key in _keys(table, self.columns)], dtype=np.int64)


def _column_names(table: Any, columns: Any) -> tuple[str, ...]:
    several = list(columns) if isinstance(columns, list | tuple) else [columns]
    names = []
    for each in several:
        is_position = isinstance(each, int | np.integer) and not isinstance(each, bool)
        if is_position and 0 <= each < len(table.names):
            names.append(table.names[int(each)])
        elif isinstance(each, str) and each in table.names:
            names.append(each)
        else:
            raise InputError(f"groups: X has no column {each!r}", value=each, hint=f"it has {', '.join(table.names)}")
    if not names or len(set(names)) < len(names):
        raise InputError(f"groups must be a column, or a list of different columns, got {columns!r}")
    return tuple(names)


def _keys(table: Any, names: Sequence[str]) -> list[Key]:
    by_name = {column.name: column.values for column in table.columns}
    return list(zip(*(map(_plain, by_name[name].tolist()) for name in names), strict=True))


def _plain(value: Any) -> str | float | None:
    """Return a value as text or number, None if it is missing; −0 becomes 0."""
    if value is None or value != value:  # NaN is not equal to itself
        return None
    return float(value) + 0.0 if isinstance(value, bool | int | float) else str(value)


# Calibration ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ConformalCalibration:
    """Scores of calibration rows, and the groups that are calibrated separately.

    Args:
        scores: (rows, targets); infinite where a prediction is not finite, NaN where a target is missing.
        codes: the group of each calibration row, −1 for none.
        groups: None if all rows are calibrated together.
    """

    scores: Array
    codes: Codes
    groups: Groups | None
    method = "conformal"

    def __post_init__(self) -> None:
        known = 0 if self.groups is None else len(self.groups.keys)
        whole = self.scores.ndim == 2 and not (self.scores < 0).any() and self.codes.shape == self.scores.shape[:1]
        if not whole or ((self.codes < -1) | (self.codes >= known)).any():
            raise InputError("inconsistent conformal calibration: scores at least 0, or groups that do not exist")

    @classmethod
    def learn(
        cls,
        prediction: Prediction,
        y: Array,
        table: Any = None,
        groups: Any = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> "ConformalCalibration":
        """Return the calibration of a model by its prediction of rows that it has not learned from.

        Args:
            prediction: (rows,) or (rows, targets).
            y: targets of the shape of the prediction.
            table: the rows, as the model reads them; needed with ``groups``.
            groups: columns of the table, as :meth:`Groups.learn` takes them.
            mask: True where a target counts, of the shape of the prediction.
        """
        if len(prediction.shape) not in (1, 2):
            raise InputError(
                f"conformal calibration needs the rows of a table, got a prediction of shape {prediction.shape}"
            )
        scores = _scores(prediction, y).reshape(len(y), -1)
        if mask is not None:
            scores = np.where(mask.reshape(len(y), -1), scores, np.nan)
        if groups is None or table is None:
            made = cls(scores, np.full(len(y), -1), None)
        else:
            found = Groups.learn(table, groups)
            made = cls(scores, found.codes(table), found)
        if not np.isfinite(made.factors(REFERENCE_COVERAGE)).all():
            raise InputError("more than a tenth of the predictions of the calibration rows are not finite")
        return made

    def factors(self, coverage: float) -> Array:
        """Return the factor q(c) of each group, and of all rows in the last row: (groups + 1, targets).

        A group with too few rows for this coverage has the factor of all rows.
        """
        whole = quantile_of_scores(self.scores, coverage)
        count = 0 if self.groups is None else len(self.groups.keys)
        table = np.tile(whole, (count + 1, 1))
        for code in range(count):
            own = self.scores[self.codes == code]
            enough = (~np.isnan(own)).sum(0) >= min_rows(coverage)
            table[code, enough] = quantile_of_scores(own[:, enough], coverage)
        return np.maximum(table, MIN_FACTOR)

    def apply(self, prediction: Prediction, table: Any = None) -> Prediction:
        """Return the prediction scaled by the factor of ``REFERENCE_COVERAGE``, with conformal intervals.

        Args:
            prediction: of new rows.
            table: the new rows; needed with groups.
        """
        factors = self.factors(REFERENCE_COVERAGE)
        rows, (groups, targets) = prediction.shape[0], factors.shape
        codes = np.full(rows, -1) if self.groups is None or table is None else self.groups.codes(table)
        places = ((codes % groups)[:, None] * targets + np.arange(targets)).reshape(prediction.shape)
        scaled = prediction.scaled(factors.ravel()[places])
        scaled.guarantee = ConformalIntervals(self, places)
        return scaled


@dataclass(frozen=True)
class ConformalIntervals:
    """Conformal intervals of a prediction that is already scaled by the factors of ``REFERENCE_COVERAGE``.

    Args:
        calibration: the scores.
        places: place of each element of the prediction in the flat table of factors.
    """

    calibration: ConformalCalibration
    places: Codes

    def ends(self, prediction: Prediction, coverages: Sequence[float]) -> Array:
        """Return the ends of several intervals of the prediction, (*shape, coverages, 2)."""
        frame, scale = _Frame.of(prediction), self._factors(REFERENCE_COVERAGE)
        found = [frame.stretched(self._factors(coverage) / scale) for coverage in coverages]
        return np.stack([_in_units_of_y(prediction, ends) for ends in found], axis=-2)

    def at(self, keys: tuple[Any, ...]) -> "ConformalIntervals":
        """Return the intervals of a part of the prediction."""
        return ConformalIntervals(self.calibration, np.asarray(self.places[keys]))

    def joined(self, others: Sequence[Any]) -> "ConformalIntervals":
        """Return the intervals of this prediction and others, row after row."""
        if any(not isinstance(o, ConformalIntervals) or o.calibration is not self.calibration for o in others):
            raise InputError("only predictions with one conformal calibration can be joined")
        return ConformalIntervals(self.calibration, np.concatenate([self.places, *(o.places for o in others)]))

    def _factors(self, coverage: float) -> Array:
        """Return the factor of each element of the prediction."""
        return self.calibration.factors(coverage).ravel()[self.places]


# A stream -------------------------------------------------------------------------------------------------------------


class OnlineConformal:
    r"""Intervals for a stream of rows, whose width follows the targets (Gibbs and Candès 2021).

    The interval of a row is the 90% interval of its prediction, for every c, stretched about its centre by a factor q.
    At first q is 1. For another c the first intervals are too wide or too narrow, until q has adapted. After each
    target, q grows if the interval missed it, and shrinks otherwise,

    .. math:: \ln q \leftarrow \ln q + \eta\,(1[y \text{ missed}] - (1 - c)) .

    After T steps the share of missed targets differs from 1 − c by exactly :math:`|\ln q_T - \ln q_0| / (\eta T)`,
    whatever the targets are. The rows need not be exchangeable.

    Args:
        coverage: c, the probability of the intervals.
        rate: η. A larger rate follows changes faster, and its widths vary more.

    Raises:
        InputError: if the coverage is not between 0 and 1, or the rate is not positive.

    >>> from howsure import Normal
    >>> online, p = OnlineConformal(0.9, rate=0.1), Prediction(Normal(torch.zeros(1), 1.0))
    >>> before = online.interval(p)
    >>> online.update(p, [5.0])
    >>> bool(online.interval(p)[0, 1] > before[0, 1])
    True
    """

    def __init__(self, coverage: float = 0.9, rate: float = 0.05) -> None:
        (self.coverage,) = checked_coverages([coverage])
        if not 0 < rate < math.inf:
            raise InputError(f"rate must be positive, got {rate}", value=rate)
        self.rate, self.factor = float(rate), 1.0

    def interval(self, prediction: Prediction) -> Array:
        """Return the current intervals of rows, (N, 2).

        Args:
            prediction: of the next rows, for one target.

        Raises:
            InputError: if the prediction has several targets.
        """
        self._check(prediction)
        return _in_units_of_y(prediction, _Frame.of(prediction).stretched(np.asarray(self.factor)))

    def update(self, prediction: Prediction, y: ArrayLike) -> None:
        """Learn from the observed targets of rows, in their order.

        Args:
            prediction: of these rows, for one target.
            y: their targets, (N,).

        Raises:
            InputError: if the prediction has several targets, or y does not fit or has missing values.
        """
        self._check(prediction)
        target = prediction.target(y).cpu().double().numpy()
        for score in _scores(prediction, target).tolist():
            self.factor *= math.exp(self.rate * ((score > self.factor) - (1 - self.coverage)))

    def _check(self, prediction: Prediction) -> None:
        if len(prediction.shape) != 1:
            raise InputError(f"OnlineConformal takes predictions of one target, got the shape {prediction.shape}")
