"""The numbers of a report: predictions of test rows next to their true values, scores, and groups of rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure.errors import InputError
from howsure.metrics import calibration_curve, crps, nll
from howsure.prediction import Prediction, real_numbers
from howsure.report.bands import CountBand, binomial_range, curve_band
from howsure.report.words import clip, show

__all__ = ["COVERAGE", "Group", "TargetResult", "by_familiarity", "by_group", "evaluate"]

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
COVERAGE = 0.9  # of the intervals of a report
MAX_GROUPS = 12  # of one column. The others are taken together
TYPICAL_FAMILIARITY = 0.5  # the leverage of a row is at most twice the median
MIN_ROWS_FOR_CHANCE = 5  # of a group whose coverage is compared with chance
MAX_VALUE = 1e140  # instead of infinity where squares are summed


@dataclass(frozen=True)
class TargetResult:
    """Predictions of one target for the rows whose true value is known.

    Args:
        name: of the target.
        rows: positions of these rows in the table.
        y: true values, (N,).
        p: prediction of the rows, (N,).
        threshold: familiarity below which a row is unfamiliar; None if the model has none.
        column: index of the target in predictions of all targets, () if there is one target.
    """

    name: str
    rows: Rows
    y: Array
    p: Prediction
    threshold: float | None
    column: tuple[int, ...] = ()

    @cached_property
    def has_mean(self) -> bool:
        """Whether the prediction has a mean. A target under the transform "log" has only a median."""
        return self.p.transform is None or self.p.transform.has_moments

    @cached_property
    def point(self) -> Array:
        """The predicted mean, or the median where there is no mean."""
        return np.asarray(self.p.mean if self.has_mean else self.p.median, dtype=float)

    @property
    def point_name(self) -> str:
        return "mean" if self.has_mean else "median"

    @cached_property
    def ends(self) -> Array:
        """The ends of the interval of each row, (N, 2)."""
        return np.asarray(self.p.interval(COVERAGE), dtype=float)

    @property
    def lower(self) -> Array:
        return self.ends[:, 0]

    @property
    def upper(self) -> Array:
        return self.ends[:, 1]

    @cached_property
    def width(self) -> Array:
        """Width of the interval of each row; infinite where an end is."""
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(self.upper - self.lower, nan=np.inf, posinf=np.inf)

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """Whether the interval of each row holds the true value."""
        return (self.lower <= self.y) & (self.y <= self.upper)

    @cached_property
    def error(self) -> Array:
        """Predicted minus true value, finite so that it has a square."""
        return np.clip(np.nan_to_num(self.point - self.y, nan=MAX_VALUE), -MAX_VALUE, MAX_VALUE)

    @cached_property
    def parts(self) -> tuple[Array, Array] | None:
        """Aleatoric and epistemic standard deviations; None if the model does not divide its uncertainty."""
        found = (self.p.aleatoric_std, self.p.epistemic_std) if self.has_mean else (None, None)
        if found[0] is None or found[1] is None:
            return None
        return np.asarray(found[0], dtype=float), np.asarray(found[1], dtype=float)

    @cached_property
    def familiarity(self) -> Array | None:
        """Familiarity of each row, None if the model has none."""
        return None if self.p.familiarity is None else np.asarray(self.p.familiarity, dtype=float)

    @cached_property
    def unfamiliar(self) -> NDArray[np.bool_]:
        """Whether each row is below the threshold of familiarity."""
        if self.familiarity is None or self.threshold is None:
            return np.zeros(len(self.y), dtype=bool)
        return ~(self.familiarity >= self.threshold)  # also where it is NaN

    @cached_property
    def widest(self) -> Rows:
        """Positions of the rows, the widest interval first."""
        return np.argsort(-self.width, kind="stable")

    @cached_property
    def rmse(self) -> float:
        return root_mean_square(self.error)

    @cached_property
    def coverage(self) -> float:
        """Share of the true values inside their intervals."""
        return float(self.inside.mean())

    @cached_property
    def chance(self) -> CountBand:
        """Counts of true values inside their intervals that chance explains."""
        return binomial_range(len(self.y), COVERAGE)

    @cached_property
    def nll(self) -> float:
        return nll(self.p, self.y)

    @cached_property
    def crps(self) -> float | None:
        return crps(self.p, self.y) if self.has_mean else None

    @cached_property
    def curve(self) -> tuple[Array, Array]:
        """Probabilities from 0 to 1, and the share of true values below the quantile of each."""
        levels = np.linspace(0, 1, 101)
        return levels, calibration_curve(self.p, self.y, levels)

    @cached_property
    def band(self) -> float:
        """Distance of the curve from the diagonal that chance explains."""
        return curve_band(len(self.y))

    @property
    def few_values(self) -> int:
        """Number of different true values if many rows share few of them, otherwise 0."""
        distinct = len(np.unique(self.y))
        return distinct if distinct <= 20 and len(self.y) >= 5 * distinct else 0

    def kept(self) -> tuple[Array, Array]:
        """Return shares of the rows, and the RMSE of each share with the narrowest intervals."""
        squares = np.cumsum(self.error[self.widest[::-1]] ** 2)
        counts = np.unique(np.ceil(np.linspace(0.05, 1, 20) * len(self.y)).astype(int))[::-1]
        return counts / len(self.y), np.sqrt(squares[counts - 1] / counts)

    def sample(self, most: int, widest: int = 100, seed: int = 0) -> Rows:
        """Return positions of the rows in charts: all, or those with the widest intervals and others at random."""
        if len(self.y) <= most:
            return np.arange(len(self.y))
        first, rest = np.split(self.widest, [min(widest, most // 2)])
        chosen = np.random.default_rng(seed).choice(rest, most - len(first), replace=False)
        return np.sort(np.concatenate([first, chosen]))


def root_mean_square(values: Array) -> float:
    """Return the root of the mean square, without overflow."""
    size = float(np.abs(values).max(initial=0.0))
    return size * float(np.sqrt(np.mean((values / size) ** 2))) if size else 0.0


def evaluate(p: Prediction, y: ArrayLike, threshold: float | None) -> list[TargetResult]:
    """Return the result of each target.

    Args:
        p: prediction for some rows, (rows,) or (rows, targets).
        y: their targets, of the shape of p; NaN where one is unknown. A target without any known row is left out.
        threshold: familiarity below which a row is unfamiliar; None if the model has none.
    """
    targets = _targets(p, y)
    names = _names(p, y)
    found = []
    for k, values in enumerate(targets.T):
        rows = np.flatnonzero(~np.isnan(values))
        if len(rows):
            column = () if len(p.shape) == 1 else (k,)
            found.append(TargetResult(names[k], rows, values[rows], p[(rows, *column)], threshold, column))
    if not found:
        raise InputError("no row has a known target; a report compares predictions with targets")
    return found


def _targets(p: Prediction, y: ArrayLike) -> Array:
    """Return targets as (rows, targets), NaN where one is unknown."""
    values = np.asarray(real_numbers("y", y), dtype=float)
    if values.ndim == 2 and values.shape[1] == 1 and len(p.shape) == 1:
        values = values[:, 0]
    if values.shape != p.shape:
        raise InputError(f"y has shape {values.shape} but the prediction {p.shape}")
    if np.isinf(values).any():
        raise InputError("y has an infinite value", row=int(np.argwhere(np.isinf(values))[0][0]))
    return values.reshape(len(values), -1)


def _names(p: Prediction, y: Any) -> list[str]:
    """Return the name of each target: as the model learned it, or as y has it."""
    count = 1 if len(p.shape) == 1 else p.shape[1]
    own = getattr(y, "name", None)
    for names in (p.names, getattr(y, "columns", None), None if own is None else [own]):
        if names is not None and len(names) == count:
            return [clip(str(name), 120) for name in names]
    return ["the target"] if count == 1 else [f"target {k}" for k in range(count)]


# Groups ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """How well intervals hold in a part of the rows."""

    name: str
    count: int
    rmse: float
    coverage: float
    width: float  # the median
    chance: CountBand | None  # counts inside that chance explains; None of too few rows

    @property
    def verdict(self) -> str:
        """Return "", "too low" or "too high": the coverage next to the range that chance explains."""
        inside = round(self.coverage * self.count)
        if self.chance is None or self.chance.low <= inside <= self.chance.high:
            return ""
        return "too low" if inside < self.chance.low else "too high"


def by_familiarity(result: TargetResult) -> list[Group]:
    """Return how well intervals hold for rows like and unlike the training rows; nothing without a threshold."""
    if result.familiarity is None or result.threshold is None:
        return []
    w, limit = result.familiarity, result.threshold
    typical = max(TYPICAL_FAMILIARITY, limit)
    names = np.select(
        [w >= typical, w >= limit],
        [f"familiar ({show(typical, 2)} or more)", f"less familiar ({show(limit, 2)} to {show(typical, 2)})"],
        f"unfamiliar (below {show(limit, 2)})",
    )
    return by_group(result, names)


def by_group(result: TargetResult, labels: NDArray[Any]) -> list[Group]:
    """Return how well intervals hold in each group, the largest first; ``labels`` has the group of every row."""
    each = np.asarray(labels).astype(str)
    names, counts = np.unique(each, return_counts=True)
    largest = names[np.argsort(-counts, kind="stable")][:MAX_GROUPS]
    parts = [(str(name), each == name) for name in largest]
    if len(names) > len(largest):
        parts.append((f"the other {len(names) - len(largest)}", ~np.isin(each, largest)))
    return [_group(result, name, chosen, len(parts)) for name, chosen in parts]


def _group(result: TargetResult, name: str, chosen: NDArray[np.bool_], groups: int) -> Group:
    count = int(chosen.sum())
    return Group(
        name,
        count,
        root_mean_square(result.error[chosen]),
        float(result.inside[chosen].mean()),
        float(np.median(result.width[chosen])),
        binomial_range(count, COVERAGE, groups) if count >= MIN_ROWS_FOR_CHANCE else None,
    )
