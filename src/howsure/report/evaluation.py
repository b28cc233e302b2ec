"""The numbers of a report: predictions for test rows beside their targets, scores, groups, and the rows to show."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from howsure.distributions import Normal
from howsure.errors import InputError
from howsure.estimators import Regressor
from howsure.metrics import ause, calibration_curve, calibration_error, coverage, crps, nll, retention_curve
from howsure.prediction import Prediction, real_numbers
from howsure.report.bands import CountBand, binomial_range
from howsure.report.words import clip, show

__all__ = [
    "COVERAGE",
    "TYPICAL_FAMILIARITY",
    "Group",
    "Scores",
    "TargetResult",
    "apart",
    "by_familiarity",
    "by_group",
    "evaluate",
]

Array = NDArray[np.float64]
COVERAGE = 0.9  # of the intervals of a report
MOST_GROUPS = 12  # of one column; the others are taken together
TYPICAL_FAMILIARITY = 0.5  # the leverage of a row is at most twice the median
FEWEST_ROWS = 5  # of a group that is compared with chance
LARGEST = 1e140  # stands for infinity where squares are summed


@dataclass(frozen=True)
class Scores:
    """Scores of one model for the rows of one target; in the units of the target, but for `nll` and shares."""

    rmse: float
    mae: float
    crps: float
    nll: float
    coverage: float
    width: float  # the median of the intervals' widths: a few rows far from the training rows decide the mean
    calibration_error: float


@dataclass(frozen=True)
class TargetResult:
    """What a model says about one target, row by row, and how good that is.

    `rows` are the positions in the table of the rows whose target is known; all other arrays have an entry for each of
    them. `point` is the mean, or the median where a transform of the target leaves no mean.
    """

    name: str
    rows: NDArray[np.int64]
    y: Array
    point: Array
    point_name: str
    spread: Array  # the standard deviation, or half of the 68 % interval where there is none
    lower: Array
    upper: Array
    aleatoric: Array | None
    epistemic: Array | None
    familiarity: Array | None
    pit: Array
    scores: Scores
    constant: Scores
    curve: tuple[Array, Array]
    retention: tuple[Array, Array, Array]  # share kept, error of the kept, error if the largest errors went first
    ause: float
    guaranteed: bool  # whether intervals are conformal

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether the interval of each row holds its target."""
        return (self.lower <= self.y) & (self.y <= self.upper)

    @property
    def width(self) -> Array:
        """Width of the interval of each row."""
        return apart(self.upper, self.lower)

    @property
    def few_values(self) -> bool:
        """Whether many rows share few values of the target, so that a density is a rough model of it."""
        distinct = len(np.unique(self.y))
        return distinct <= 20 and len(self.y) >= 5 * distinct

    @property
    def doubt(self) -> Array:
        """What rows are ordered by: the epistemic standard deviation, or the total one where there is no such part."""
        return self.spread if self.epistemic is None else self.epistemic

    def most_doubtful(self, count: int) -> NDArray[np.int64]:
        """Return the positions of the rows with the largest doubt, the largest first."""
        order = np.argsort(-np.nan_to_num(self.doubt, nan=np.inf), kind="stable")
        return order[:count]

    def sample(self, most: int = 1500, doubtful: int = 100, seed: int = 0) -> NDArray[np.int64]:
        """Return the positions of the rows that charts show: all, or the most doubtful ones and others at random."""
        if len(self.y) <= most:
            return np.arange(len(self.y))
        first = self.most_doubtful(min(doubtful, most // 2))
        rest = np.setdiff1d(np.arange(len(self.y)), first)
        chosen = np.random.default_rng(seed).choice(rest, most - len(first), replace=False)
        return np.sort(np.concatenate([first, chosen]))


@dataclass(frozen=True)
class Group:
    """How well intervals hold in a part of the rows."""

    name: str
    count: int
    rmse: float
    coverage: float
    width: float
    chance: CountBand | None  # counts of rows inside that chance explains if intervals hold what they state

    @property
    def verdict(self) -> str:
        """Return "as stated", "too low" or "too high": the share that intervals hold, beside what chance explains."""
        inside = round(self.coverage * self.count)
        if self.chance is None or self.chance.low <= inside <= self.chance.high:
            return "as stated"
        return "too low" if inside < self.chance.low else "too high"


# Predictions and scores -----------------------------------------------------------------------------------------------


def evaluate(model: Regressor, p: Prediction, y: ArrayLike) -> list[TargetResult]:
    """Return what a model says about each target, and how good that is.

    Args:
        model: a fitted regressor.
        p: its prediction for some rows.
        y: their targets, of the shape of p; NaN where one is unknown. A target without any known row is left out.
    """
    targets = _targets(p, y)
    constant = _constant(model, p)
    names = _names(p, y)
    found = []
    for k in range(targets.shape[1]):
        rows = np.flatnonzero(~np.isnan(targets[:, k]))
        if len(rows):
            key: Any = (rows,) if len(p.shape) == 1 else (rows, k)
            found.append(_of_target(names[k], rows, p[key], constant[key], targets[rows, k]))
    if not found:
        raise InputError("no row has a known target; a report compares predictions with targets")
    return found


def _of_target(name: str, rows: NDArray[np.int64], p: Prediction, constant: Prediction, y: Array) -> TargetResult:
    has_moments = p.transform is None or p.transform.has_moments
    ends = np.asarray(p.interval(COVERAGE), dtype=float)
    point = np.asarray(p.mean if has_moments else p.median, dtype=float)
    spread = np.asarray(p.std, dtype=float) if has_moments else _half_width(p)
    parts: list[Array | None] = [None, None]
    if has_moments:
        parts = [None if v is None else np.asarray(v, dtype=float) for v in (p.aleatoric_std, p.epistemic_std)]
    familiarity = p.familiarity
    levels = np.linspace(0, 1, 101)
    # the ranking needs a point and a spread alone, and a target learned by its logarithm has no mean; far from the
    # training rows both may be infinite
    finite, width = (np.nan_to_num(v, nan=LARGEST, posinf=LARGEST, neginf=-LARGEST) for v in (point, spread))
    ranked = Normal(torch.from_numpy(finite), torch.from_numpy(np.maximum(width, 1e-300)), validate_args=False)
    share, kept = retention_curve(ranked, y)
    oracle = retention_curve(ranked, y, np.abs(finite - y))[1]
    return TargetResult(
        name,
        rows,
        y,
        point,
        "mean" if has_moments else "median",
        spread,
        ends[:, 0],
        ends[:, 1],
        parts[0],
        parts[1],
        None if familiarity is None else np.asarray(familiarity, dtype=float),
        _pit(p, y),
        _scores(p, y, point, ends, has_moments),
        _scores_of_constant(constant, y, has_moments),
        (levels, calibration_curve(p, y, levels)),
        (share, kept, oracle),
        ause(ranked, y),
        p.guarantee is not None,
    )


def _half_width(p: Prediction) -> Array:
    """Return half of the 68 % interval, which is the standard deviation of a normal distribution."""
    ends = np.asarray(p.interval(0.6827), dtype=float)
    return apart(ends[:, 1], ends[:, 0]) / 2


def _scores(p: Prediction, y: Array, point: Array, ends: Array, has_moments: bool) -> Scores:
    error = point - y
    return Scores(
        rmse=float(np.sqrt(np.mean(error**2))),
        mae=float(np.mean(np.abs(error))),
        crps=crps(p, y) if has_moments else np.nan,
        nll=nll(p, y),
        coverage=coverage(p, y, COVERAGE),
        width=float(np.median(apart(ends[:, 1], ends[:, 0]))),
        calibration_error=calibration_error(p, y),
    )


def _scores_of_constant(p: Prediction, y: Array, has_moments: bool) -> Scores:
    ends = np.asarray(p.interval(COVERAGE), dtype=float)
    point = np.asarray(p.mean if has_moments else p.median, dtype=float)
    return _scores(p, y, point, ends, has_moments)


def _constant(model: Regressor, p: Prediction) -> Prediction:
    """Return the same answer for all rows: a normal distribution with mean and deviation of the training targets."""
    scale_y = model.model_.scale_y
    loc, scale = (t.double().cpu().mean(0)[0] for t in (scale_y.loc, scale_y.scale))
    if len(p.shape) == 1:
        loc, scale = loc[0], scale[0]
    answer = Normal(loc.expand(p.shape).clone(), scale.expand(p.shape).clone(), validate_args=False)
    return Prediction(answer, transform=p.transform)


def _pit(p: Prediction, y: Array) -> Array:
    """Return F(y), uniform for a calibrated model; a y with a probability of its own gets a random place in it."""
    at = np.asarray(p.cdf(y), dtype=float)
    below = np.asarray(p._strictly_below(y, at), dtype=float)
    places: Array = below + np.random.default_rng(0).random(len(at)) * (at - below)
    return places


def _targets(p: Prediction, y: ArrayLike) -> Array:
    """Return targets as (rows, targets), NaN where one is unknown."""
    values = np.asarray(real_numbers("y", y), dtype=float)
    if values.ndim == 2 and values.shape[1] == 1 and len(p.shape) == 1:
        values = values[:, 0]
    if values.shape != p.shape:
        raise InputError(f"y has shape {values.shape} but the prediction {p.shape}; they must be equal")
    infinite = np.isinf(values)
    if infinite.any():
        raise InputError(
            f"y has {int(infinite.sum())} infinite values (first in row {int(np.argwhere(infinite)[0][0])})"
        )
    return values.reshape(len(values), -1)


def _names(p: Prediction, y: Any) -> list[str]:
    """Return the name of each target: that which the model learned, or that of y."""
    count = 1 if len(p.shape) == 1 else p.shape[1]
    given = getattr(y, "columns", None)
    own = getattr(y, "name", None)
    for names in (p.names, given, None if own is None else [own]):
        if names is not None and len(names) == count:
            return [clip(str(name), 120) for name in names]
    return ["the target"] if count == 1 else [f"target {k}" for k in range(count)]


def apart(upper: Array, lower: Array) -> Array:
    """Return upper − lower; infinite where both are, as far away under the logarithm of a target."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(upper - lower, nan=np.inf, posinf=np.inf, neginf=-np.inf)


# Groups ---------------------------------------------------------------------------------------------------------------


def by_familiarity(result: TargetResult, threshold: float) -> list[Group]:
    """Return how well intervals hold for rows like and unlike the training rows; nothing without familiarity."""
    w = result.familiarity
    if w is None:
        return []
    typical = max(TYPICAL_FAMILIARITY, threshold)
    parts = [
        (f"familiar ({show(typical, 2)} or more)", w >= typical),
        (f"less familiar ({show(threshold, 2)} to {show(typical, 2)})", (w < typical) & (w >= threshold)),
        (f"unlike the training rows (below {show(threshold, 2)})", w < threshold),
    ]
    return _groups(result, [(name, chosen) for name, chosen in parts if chosen.any()])


def by_group(result: TargetResult, labels: NDArray[Any]) -> list[Group]:
    """Return how well intervals hold in each group of rows; ``labels`` has the group of every row of the result."""
    each = np.asarray(labels, dtype=object)
    names, counts = np.unique(each.astype(str), return_counts=True)
    largest = names[np.argsort(-counts, kind="stable")]
    own = [str(name) for name in largest[:MOST_GROUPS]]
    parts = [(name, each == name) for name in own]
    rest = len(names) - len(own)
    if rest:
        parts.append((f"the other {rest}", ~np.isin(each.astype(str), own)))
    return _groups(result, parts)


def _groups(result: TargetResult, parts: Sequence[tuple[str, NDArray[np.bool_]]]) -> list[Group]:
    inside = result.inside
    found = []
    for name, chosen in parts:
        count = int(chosen.sum())
        error = result.point[chosen] - result.y[chosen]
        found.append(
            Group(
                name,
                count,
                float(np.sqrt(np.mean(error**2))),
                float(np.mean(inside[chosen])),
                float(np.median(result.width[chosen])),
                binomial_range(count, COVERAGE, len(parts)) if count >= FEWEST_ROWS else None,
            )
        )
    return found
