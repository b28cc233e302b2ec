"""Calibration of any model by rows that it has not learned from."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure.conformal import ConformalCalibration
from howsure.distributions import Support
from howsure.errors import FewLabelsWarning, InputError, InputTypeError
from howsure.metrics.scores import Mask, Predictive, Targets
from howsure.prediction import Prediction, as_prediction, real_numbers

__all__ = ["Calibration", "RecalibratedPrediction", "calibrate"]

Array = NDArray[np.float64]
METHODS = ("scale", "isotonic", "conformal")
MAX_TARGETS = 200_000  # targets that a scale is learned from: it is within 0.2% of the scale from all targets
LABELS_FOR_FULL_TRUST = 20  # with n fewer, the factor is the fitted one to the power of n/20
KNOTS = 1001  # of an isotonic map, which is within 0.1% of the map from all rows
EDGE = 1e-12  # distance of the outermost probabilities of a map from 0 and 1
MIN_LOG = -1e4  # of the probability of a target that is not a possible value
WIDE = math.log(1e4)  # how far from a first guess a scale is looked for at once


def calibrate(
    model: Any,
    *data: Any,
    method: str = "scale",
    groups: Any = None,
    mask: Mask = None,
) -> Any:
    r"""Return a calibrated model, or the calibration of a prediction, by rows that were not learned from.

    ``calibrate(model, X, y, method=…)`` returns a copy of a fitted regressor. It predicts, saves, loads and reports
    like any other. ``calibrate(model, loader, method=…)`` returns a copy of a :class:`~howsure.NetworkModel`.
    ``calibrate(prediction, y, method=…)`` returns a :class:`Calibration`, whose ``apply`` takes predictions of new
    rows.

    ``"scale"``
        One factor for each target by which predictions are stretched about their means, of the highest likelihood:
        the s that maximises the mean of :math:`\ln p(m + (y-m)/s) - \ln s`. Mean, shape and the shares of the
        decomposition stay. Of more than 200,000 targets, 200,000 are drawn. A target with n < 20 labels has the factor
        :math:`s^{n/20}`, and one without labels 1; both cause a warning.
    ``"isotonic"``
        A monotone map of the predicted probabilities (Kuleshov, Fenner and Ermon 2018): the calibrated P(Y ≤ y) is the
        share of these rows whose own P(Y ≤ y) was at most as large. It corrects shapes too, such as skewness, but
        needs a few hundred rows, and gives no density. For predictions only.
    ``"conformal"``
        Intervals that hold a new target with the stated probability, on average over rows exchangeable with these; see
        :mod:`howsure.conformal`. An interval of 90% needs at least 9 rows, one of 95% at least 19.

    None of them can make up for rows of another kind than those to come.

    Args:
        model: a fitted regressor; a :class:`~howsure.NetworkModel`; or a :class:`~howsure.Prediction`, or the
            distribution that a network returned.
        *data: the rows X and their targets y for a regressor; batches of inputs and, last, targets for a network, NaN
            where these are missing; y for a prediction.
        method: "scale", "isotonic" or "conformal".
        groups: a column of X, or a list of columns: rows with equal values there are calibrated separately. For
            models and ``method="conformal"``. The columns of a network are those in its first
            input. A group of fewer
            than 9 rows, and one that is not among these rows, has the factor of all rows.
        mask: for predictions: True where a target counts. Without it a missing target is an error.

    Returns:
        A model, or a :class:`Calibration`. Predictions of shape (rows, targets) and (rows, targets, height, width)
        are calibrated target by target, others as one.

    Raises:
        InputError: if there are too few rows, or a target is missing.

    >>> import torch, howsure as hs
    >>> answer = hs.Normal(torch.zeros(20), 1.0)  # of a network that is too sure by a factor of two
    >>> calibration = calibrate(answer, [2.0, -2.0] * 10)
    >>> calibration.apply(answer).std[:4]
    array([2., 2., 2., 2.], dtype=float32)
    """
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"unknown calibration method {method!r}; known are {', '.join(METHODS)}")
    is_model = hasattr(model, "predict_distribution") or _is_network(model)
    if groups is not None and (method != "conformal" or not is_model):
        raise InputError("groups requires a model and method='conformal'")
    if _is_network(model):
        if len(data) != 1 or mask is not None:
            raise InputTypeError("calibrate of a network takes one loader, whose missing targets are NaN")
        return model.calibrated(data[0], method, groups)
    wanted = ("X", "y") if hasattr(model, "predict_distribution") else ("y",)
    if len(data) != len(wanted):
        first = "a regressor" if len(wanted) == 2 else "a prediction"
        raise InputTypeError(f"calibrate of {first} takes {' and '.join(wanted)}, got {len(data)} arguments")
    if len(wanted) == 2:
        if mask is not None:
            raise InputError("mask requires a prediction; leave out the rows of X and y instead")
        if method == "isotonic":
            raise InputError("isotonic calibration gives no density; apply it to the predictions of the model")
        return model._calibrated(*data, method, groups)
    p = as_prediction(model)
    if not p.shape or 0 in p.shape:
        raise InputError(f"no targets to calibrate with: the prediction has the shape {p.shape}")
    target = np.asarray(p._target(data[0], mask).cpu().numpy(), dtype=float)
    known = np.ones(p.shape, dtype=bool) if mask is None else p.known(mask).cpu().numpy()
    if method == "conformal":
        return ConformalCalibration.learn(p, target, mask=known)
    stated = _stated(p, target) if method == "isotonic" else None
    if not known.any():
        raise InputError("there are no targets to calibrate with")
    found: list[Any] = []
    for t, own in enumerate(_of_targets(p.shape)):
        chosen = np.zeros(p.shape, dtype=bool)
        chosen[own] = known[own]
        count = int(chosen.sum())
        trust = min(1.0, count / LABELS_FOR_FULL_TRUST)
        if stated is None:
            found.append(_scale(p, target, chosen) ** trust if count else 1.0)
        else:
            found.append(_knots(stated[chosen], trust))
        if trust < 1:
            name = t if p.names is None else p.names[t]
            warnings.warn(FewLabelsWarning(name, count, LABELS_FOR_FULL_TRUST), stacklevel=2)
    return Calibration(method, tuple(found))


def _is_network(model: Any) -> bool:
    """Return whether a model is a :class:`~howsure.NetworkModel`; regressors have a parameter of the same name."""
    return callable(getattr(model, "calibrated", None))


@dataclass(frozen=True)
class Calibration:
    """Result of :func:`calibrate`, as plain numbers.

    Args:
        method: "scale" or "isotonic".
        numbers: for each target its factor; or, for "isotonic", pairs (stated, observed) of probabilities, both
            increasing from (0, 0) to (1, 1).
    """

    method: str
    numbers: tuple[Any, ...]

    @property
    def factors(self) -> Array:
        """The factor of each target, (targets,)."""
        if self.method != "scale":
            raise InputError(f'a calibration by "{self.method}" has no factors')
        return np.array(self.numbers)

    def apply(self, prediction: Predictive | Any) -> Any:
        """Return a calibrated prediction: a :class:`~howsure.Prediction`, or a :class:`RecalibratedPrediction`.

        With "scale" it is a complete `Prediction`. With "isotonic" it has only probabilities, quantiles
        and intervals.
        """
        p = as_prediction(prediction)
        parts = _of_targets(p.shape)
        if len(parts) != len(self.numbers):
            raise InputError(
                f"the calibration is of {len(self.numbers)} targets and the prediction of shape {p.shape} has "
                f"{len(parts)}"
            )
        if self.method == "isotonic":
            return RecalibratedPrediction(p, self)
        return p.scaled(self.factors.reshape(1, -1, *(1,) * (len(p.shape) - 2)) if len(parts) > 1 else self.factors[0])

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as plain values, which JSON can hold."""
        if self.method == "scale":
            return {"method": self.method, "numbers": list(self.numbers)}
        return {"method": self.method, "numbers": [[list(pair) for pair in knots] for knots in self.numbers]}

    @classmethod
    def from_dict(cls, saved: Any) -> Any:
        """Return the calibration that :meth:`to_dict` described; raise if it cannot be one."""
        if not isinstance(saved, dict) or set(saved) != {"method", "numbers"} or saved["method"] not in METHODS[:2]:
            raise InputError("inconsistent calibration: expected the fields 'method' and 'numbers'")
        numbers = saved["numbers"]
        if not isinstance(numbers, list) or not numbers:
            raise InputError("a calibration has numbers for at least one target")
        if saved["method"] == "scale":
            if not all(type(n) in (int, float) and 0 < n < math.inf for n in numbers):
                raise InputError(f"the factors of a calibration are finite and greater than 0, got {numbers!r:.80}")
            return cls("scale", tuple(float(n) for n in numbers))
        return cls("isotonic", tuple(_checked_knots(knots) for knots in numbers))


def _checked_knots(knots: Any) -> tuple[tuple[float, float], ...]:
    """Return the pairs of an isotonic map, after checking that it increases from (0, 0) to (1, 1)."""
    try:
        table = np.array(knots, dtype=float)
    except (TypeError, ValueError):
        table = np.empty(0)
    good = table.ndim == 2 and table.shape[1:] == (2,) and len(table) >= 2 and bool(np.isfinite(table).all())
    if not good or not (np.diff(table, axis=0) > 0).all() or table[0].any() or (table[-1] != 1).any():
        raise InputError("an isotonic map is a list of pairs that increase from (0, 0) to (1, 1)")
    return tuple((float(a), float(b)) for a, b in table)


@dataclass(frozen=True, repr=False)
class RecalibratedPrediction:
    """Predictions whose probabilities were mapped to observed frequencies: quantiles and intervals, but no density.

    It has no mean, standard deviation, likelihood or decomposition, because they are not calibrated.

    Args:
        prediction: the prediction before calibration.
        calibration: an isotonic one.
    """

    prediction: Prediction
    calibration: Calibration

    @property
    def shape(self) -> tuple[int, ...]:
        return self.prediction.shape

    @property
    def median(self) -> Array:
        """The value that a new y exceeds with probability ½."""
        return self.quantile(0.5)

    def cdf(self, y: ArrayLike) -> Array:
        """Return the calibrated P(Y ≤ y)."""
        return self._map(np.asarray(self.prediction.cdf(y), dtype=float))

    def quantile(self, q: ArrayLike) -> Array:
        """Return one quantile, of the shape of the prediction, or several, along a new last dimension."""
        levels = real_numbers("q", q)
        if levels.ndim > 1 or not levels.size or not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"quantiles are a number between 0 and 1, or a list of them, got {q!r}")
        many = np.atleast_1d(levels)
        found = np.empty((*self.shape, len(many)))
        for own, knots in zip(_of_targets(self.shape), self.calibration.numbers, strict=True):
            stated, observed = np.array(knots).T
            found[own] = self.prediction[own].quantile(np.interp(many, observed, stated))
        return found[..., 0] if levels.ndim == 0 else found

    def interval(self, coverage: float = 0.9) -> Array:
        """Return the central interval that holds a new y with this probability: its ends in a new last dimension."""
        tail = 0.5 * (1 - _coverage(coverage))
        return self.quantile([tail, 1 - tail])

    def coverage(self, y: Targets, coverage: float = 0.9, *, mask: Mask = None) -> float:
        """Return the share of targets in the central interval that should hold ``coverage`` of them."""
        tail = 0.5 * (1 - _coverage(coverage))
        p = self.prediction
        target = np.asarray(p._target(y, mask).cpu().numpy(), dtype=float)
        stated = np.asarray(p.cdf(target), dtype=float)
        inside = (self._map(stated) >= tail) & (self._map(p._strictly_below(target, stated)) <= 1 - tail)
        known = inside if mask is None else inside[p.known(mask).cpu().numpy()]
        if not known.size:
            raise InputError("there are no rows to score")
        return float(known.mean())

    def _map(self, stated: Array) -> Array:
        """Return the observed frequencies of stated probabilities, of the shape of the prediction."""
        found = np.empty(self.shape)
        for own, knots in zip(_of_targets(self.shape), self.calibration.numbers, strict=True):
            found[own] = np.interp(stated[own], *np.array(knots).T)
        return found

    def __repr__(self) -> str:
        return f"RecalibratedPrediction(shape={self.shape})"


def _of_targets(shape: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return an index of each target: of the second dimension of (rows, targets) and (rows, targets, height, width)."""
    if len(shape) not in (2, 4):
        return [(slice(None),) * len(shape)]
    return [(slice(None), t) for t in range(shape[1])]


def _coverage(coverage: float) -> float:
    if isinstance(coverage, bool) or not isinstance(coverage, int | float | np.floating):
        raise InputTypeError(f"coverage must be a number between 0 and 1, got {coverage!r}")
    if not 0 < coverage < 1:
        raise InputError(f"coverage must lie between 0 and 1, got {coverage}")
    return float(coverage)


def _few(chosen: NDArray[np.bool_], most: int) -> tuple[NDArray[np.int64], ...]:
    """Return indices of the chosen targets, or of `count` of them, drawn at random."""
    flat = np.flatnonzero(chosen)
    if len(flat) > most:
        flat = np.sort(np.random.default_rng(0).choice(flat, most, replace=False))
    return np.unravel_index(flat, chosen.shape)


# One scale ------------------------------------------------------------------------------------------------------------


def _scale(p: Prediction, y: Array, chosen: NDArray[np.bool_]) -> float:
    """Return the factor of the highest likelihood for the chosen targets."""
    if p.atom is not None:  # the other values alone have a scale
        chosen = chosen & (y != p.atom)
    rows = _few(chosen, MAX_TARGETS)
    some = p[rows]
    z = some._before_transform(y[rows])
    before = some._without_transform()
    if p.atom is not None:
        before = Prediction(some.answers, members=0, weights=some.weights)
    mean = np.asarray(before.mean, dtype=float)
    half = np.abs(np.diff(before._ends([0.5])[..., 0, :], axis=-1)[..., 0]) / 2
    distance = np.abs(z - mean)
    if not (np.isfinite(distance) & (half > 0)).all():
        raise InputError(
            "some predictions or targets are not finite, or have no density at any scale, as zeros under "
            'the transform "log"; leave them out with mask='
        )
    ratio = distance / half
    guess = float(np.median(ratio)) or float(np.mean(ratio))
    if guess == 0:
        raise InputError("all targets are equal to the predicted means: no scale is the best one")

    def surprise(log_scale: float) -> float:
        s = math.exp(log_scale)
        if isinstance(p.transform, Support):  # the probabilities of cells
            return -float(np.mean(np.asarray(some.scaled(s).log_prob(y[rows]), dtype=float).clip(min=MIN_LOG)))
        return log_scale - float(np.mean(np.asarray(before.log_prob(mean + (z - mean) / s), dtype=float)))

    return math.exp(_smallest(surprise, math.log(guess)))


def _smallest(function: Callable[[float], float], guess: float) -> float:
    """Return where a function is smallest: the best point of a grid about a guess, and then by the golden section.

    The likelihood of a mixture may have several maxima, so a grid comes first.
    """
    for _ in range(8):
        grid = np.linspace(guess - WIDE, guess + WIDE, 33)
        values = [function(float(x)) for x in grid]
        best = int(np.nanargmin(values)) if np.isfinite(values).any() else 0
        if 0 < best < len(grid) - 1:
            return _golden(function, float(grid[best - 1]), float(grid[best + 1]))
        guess = float(grid[best])
    raise InputError(
        "the likelihood has no maximum at any scale: more than a few targets are exactly the predicted means, or the "
        "prediction is not finite"
    )


def _golden(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimum of a function between two points, to 1e-8."""
    share = (math.sqrt(5) - 1) / 2
    inner = [high - share * (high - low), low + share * (high - low)]
    values = [function(x) for x in inner]
    while high - low > 1e-8:
        if values[0] <= values[1]:
            high, inner, values = inner[1], [0.0, inner[0]], [0.0, values[0]]
            inner[0] = high - share * (high - low)
            values[0] = function(inner[0])
        else:
            low, inner, values = inner[0], [inner[1], 0.0], [values[1], 0.0]
            inner[1] = low + share * (high - low)
            values[1] = function(inner[1])
    return 0.5 * (low + high)


# A monotone map -------------------------------------------------------------------------------------------------------


def _stated(p: Prediction, y: Array) -> Array:
    """Return P(Y ≤ y) of every target, or a random value in its step if the target is an atom."""
    at = np.asarray(p.cdf(y), dtype=float)
    below = p._strictly_below(y, at)
    drawn: Array = below + (at - below) * np.random.default_rng(0).random(at.shape)
    return drawn


def _knots(stated: Array, trust: float) -> tuple[tuple[float, float], ...]:
    """Return pairs of probabilities, stated and observed, of targets with these stated ones.

    The observed probabilities count by ``trust``, in [0, 1], and the stated ones by the rest.
    """
    if np.isnan(stated).any():
        raise InputError(f"{int(np.isnan(stated).sum())} predictions are not finite; leave them out with mask=")
    stated = np.sort(np.clip(stated, EDGE, 1 - EDGE))
    observed = np.arange(1, stated.size + 1) / (stated.size + 1)
    unique, first, counts = np.unique(stated, return_index=True, return_counts=True)
    middle = observed[first] + (counts - 1) / (2 * (stated.size + 1))  # equal ones have the mean of their ranks
    if unique.size > KNOTS - 2:
        kept = np.round(np.linspace(0, unique.size - 1, KNOTS - 2)).astype(int)
        unique, middle = unique[kept], middle[kept]
    mapped = trust * middle + (1 - trust) * unique
    return ((0.0, 0.0), *zip(unique.tolist(), mapped.tolist(), strict=True), (1.0, 1.0))
