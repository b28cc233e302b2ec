"""Calibration of any model by rows that it has not learned from."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize_scalar

from howsure.conformal import ConformalCalibration
from howsure.distributions import Support
from howsure.errors import FewLabelsWarning, InputError, InputTypeError
from howsure.metrics.scores import Mask, Predictive, Targets
from howsure.prediction import Prediction, as_prediction, checked_coverages, checked_levels, draw_some, quantities
from howsure.storage import checked_header

__all__ = ["Calibration", "RecalibratedPrediction", "calibrate", "check_method"]

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

    ``calibrate(model, X, y)`` returns a copy of a fitted regressor, and ``calibrate(model, loader)`` one of a
    :class:`~howsure.NetworkModel`. It predicts, saves, loads and reports like any other.
    ``calibrate(prediction, y)`` returns a :class:`Calibration`, whose ``apply`` takes predictions of new rows.

    ``"scale"``
        One factor for each target by which predictions are stretched about their means, of the highest likelihood:
        the s that maximises the mean of :math:`\ln p(m + (y-m)/s) - \ln s`. A target with n < 20 labels has the factor
        :math:`s^{n/20}`, and one without labels 1; both cause a warning.
    ``"isotonic"``
        A monotone map of the predicted probabilities (Kuleshov, Fenner and Ermon 2018), for networks and predictions.
        It corrects shapes too, but needs a few hundred rows, and gives no density.
    ``"conformal"``
        Intervals that hold a new target with the stated probability, on average over rows exchangeable with these; see
        :mod:`howsure.conformal`. An interval of 90% needs at least 9 rows, one of 95% at least 19.

    Args:
        model: a fitted regressor, a :class:`~howsure.NetworkModel`, a :class:`~howsure.Prediction`, or the
            distribution that a network returned.
        *data: the rows X and their targets y for a regressor; batches of inputs and, last, targets for a network, NaN
            where these are missing; y for a prediction.
        method: "scale", "isotonic" or "conformal".
        groups: a column of X, or a list of columns: rows with equal values there are calibrated separately. For models
            and ``method="conformal"``. The columns of a network are in its first input.
        mask: for predictions: True where a target counts. Without it a missing target is an error.

    Raises:
        InputError: if there are too few rows, or a target is missing.

    >>> import torch, howsure as hs
    >>> answer = hs.Normal(torch.zeros(20), 1.0)  # of a network that is too sure by a factor of two
    >>> calibration = calibrate(answer, [2.0, -2.0] * 10)
    >>> calibration.apply(answer).std[:4]
    array([2., 2., 2., 2.], dtype=float32)
    """
    is_network, is_regressor = _is_network(model), hasattr(model, "predict_distribution")
    check_method(method, groups, is_network or is_regressor)
    if mask is not None and (is_network or is_regressor):
        raise InputError("mask requires a prediction; leave out rows instead, or pass missing targets as NaN")
    if isinstance(model, torch.nn.Module) and not is_network:
        raise InputTypeError("calibrate takes a network with evidence", hint="attach it first: hs.attach(net, loader)")
    wanted = ("a loader",) if is_network else ("X", "y") if is_regressor else ("y",)
    if len(data) != len(wanted):
        raise InputTypeError(f"calibrate takes {' and '.join(wanted)} after the first argument, got {len(data)}")
    if is_network:
        return model.calibrated(data[0], method, groups)
    if not is_regressor:
        return _of_prediction(as_prediction(model), data[0], method, mask)
    if method == "isotonic":
        raise InputError("isotonic calibration gives no density; apply it to the predictions of the model")
    return model._calibrated(*data, method, groups)


def check_method(method: Any, groups: Any, is_model: bool = True) -> None:
    """Raise an error for an unknown method, and for groups that cannot be calibrated."""
    if not isinstance(method, str) or method not in METHODS:
        raise InputError(f"unknown calibration method {method!r}; known are {', '.join(METHODS)}")
    if groups is not None and (method != "conformal" or not is_model):
        raise InputError("groups requires a model and method='conformal'")


def _of_prediction(p: Prediction, y: Any, method: str, mask: Mask) -> "Calibration | ConformalCalibration":
    """Return the calibration of a prediction by its targets."""
    if not p.shape or 0 in p.shape:
        raise InputError(f"no targets to calibrate with: the prediction has the shape {p.shape}")
    target = p.target(y, mask).cpu().double().numpy()
    known = np.ones(p.shape, dtype=bool) if mask is None else p.known(mask).cpu().numpy()
    if method == "conformal":
        return ConformalCalibration.learn(p, target, mask=known)
    stated = quantities.randomised_pit(p, target)[2] if method == "isotonic" else None
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
            warnings.warn(FewLabelsWarning(name, count, LABELS_FOR_FULL_TRUST), stacklevel=3)
    return Calibration("isotonic" if method == "isotonic" else "scale", tuple(found))


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

    method: Literal["scale", "isotonic"]
    numbers: tuple[float, ...] | tuple[tuple[tuple[float, ...], ...], ...]

    def __post_init__(self) -> None:
        tables = [np.array(each, dtype=float) for each in self.numbers]
        if self.method == "scale":
            good = all(each.ndim == 0 and each > 0 for each in tables)
        else:
            good = all(each.ndim == 2 and each.shape[1] == 2 and (np.diff(each, axis=0) > 0).all() for each in tables)
            good = good and all((each[[0, -1]] == [[0, 0], [1, 1]]).all() for each in tables)
        if not good or not tables:
            raise InputError(
                "a calibration has a factor > 0 for each target, or pairs that increase from (0, 0) to (1, 1)"
            )

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
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Any) -> Self:
        """Return the calibration that :meth:`to_dict` described; raise if it cannot be one."""
        return checked_header(cls, saved)


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
        levels = checked_levels(q)
        many = np.atleast_1d(levels)
        found = np.empty((*self.shape, len(many)))
        for own, knots in zip(_of_targets(self.shape), self.calibration.numbers, strict=True):
            stated, observed = np.array(knots).T
            found[own] = self.prediction[own].quantile(np.interp(many, observed, stated))
        return found[..., 0] if levels.ndim == 0 else found

    def interval(self, coverage: float = 0.9) -> Array:
        """Return the central interval that holds a new y with this probability: its ends in a new last dimension."""
        (share,) = checked_coverages([coverage])
        tail = 0.5 * (1 - share)
        return self.quantile([tail, 1 - tail])

    def coverage(self, y: Targets, coverage: float = 0.9, *, mask: Mask = None) -> float:
        """Return the share of targets in the central interval that should hold ``coverage`` of them."""
        (share,) = checked_coverages([coverage])
        tail = 0.5 * (1 - share)
        p = self.prediction
        target = p.target(y, mask).cpu().double().numpy()
        stated = np.asarray(p.cdf(target), dtype=float)
        inside = (self._map(stated) >= tail) & (self._map(quantities.strictly_below(p, target, stated)) <= 1 - tail)
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


# One scale ------------------------------------------------------------------------------------------------------------


def _scale(p: Prediction, y: Array, chosen: NDArray[np.bool_]) -> float:
    """Return the factor of the highest likelihood for the chosen targets."""
    if p.atom is not None:  # the other values alone have a scale
        chosen = chosen & (y != p.atom)
    rows = np.unravel_index(draw_some(np.flatnonzero(chosen), MAX_TARGETS), chosen.shape)
    some = p[rows]
    z = quantities.before_transform(some, y[rows])
    before = quantities.without_transform(some)
    if p.atom is not None:
        before = Prediction(some.answers, members=0, weights=some.weights)
    mean = np.asarray(before.mean, dtype=float)
    half = np.abs(np.diff(before.interval(0.5), axis=-1)[..., 0]) / 2
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
    """Return where a function is smallest: the best point of a grid about a guess, and then Brent's method.

    The likelihood of a mixture may have several maxima, so a grid comes first.
    """
    for _ in range(8):
        grid = np.linspace(guess - WIDE, guess + WIDE, 33)
        values = [function(float(x)) for x in grid]
        best = int(np.nanargmin(values)) if np.isfinite(values).any() else 0
        if 0 < best < len(grid) - 1:
            bounds = (grid[best - 1], grid[best + 1])
            return float(minimize_scalar(function, bounds=bounds, method="bounded", options={"xatol": 1e-8}).x)
        guess = float(grid[best])
    raise InputError(
        "the likelihood has no maximum at any scale: more than a few targets are exactly the predicted means, or the "
        "prediction is not finite"
    )


# A monotone map -------------------------------------------------------------------------------------------------------


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
