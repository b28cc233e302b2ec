"""Whether a prediction means what it says: ``(prediction, y) → number or curve``."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evidentia.errors import InputError
from evidentia.metrics.scores import Mask, Predictive, Targets, documented, known_targets, mean_of, values_of
from evidentia.prediction import Prediction, as_prediction

__all__ = ["PROBABILITIES", "calibration_curve", "calibration_error", "coverage", "coverage_curve", "pit"]

PROBABILITIES = np.linspace(0.025, 0.975, 39)
Array = NDArray[np.float64]


@documented
def pit(prediction: Predictive, y: Targets, *, mask: Mask = None) -> Array:
    """Return the probability integral transform F(y) of each target.

    Returns:
        Values in [0, 1], of the shape of y, or one after the other for those that count; uniform if the prediction is
        calibrated.

    >>> import torch, evidentia as ev
    >>> pit(ev.Gaussian(torch.zeros(2), 1.0), [0.0, 100.0])
    array([0.5, 1. ])
    """
    return values_of(Prediction.cdf, prediction, y, mask)


@documented
def coverage(prediction: Predictive, y: Targets, coverage: float = 0.9, *, mask: Mask = None) -> float:
    """Return the share of targets in the central interval that should hold ``coverage`` of them.

    Returns:
        A share in [0, 1]; ideally ``coverage``.

    >>> import torch, evidentia as ev
    >>> coverage(ev.Gaussian(torch.zeros(4), 1.0), [-3.0, -1.0, 0.0, 1.0], coverage=0.9)
    0.75
    """
    return float(coverage_curve(prediction, y, np.array([coverage]), mask=mask)[0])


@documented
def coverage_curve(
    prediction: Predictive, y: Targets, coverage: ArrayLike = PROBABILITIES, *, mask: Mask = None
) -> Array:
    """Return the share of targets in each of several central intervals.

    A y lies in the interval exactly if |2F(y) − 1| is at most its coverage; where zero has a probability of its own, as
    under ``target_transform="positive"``, if P(Y ≤ y) and P(Y ≥ y) are both at least (1 − coverage)/2. Where intervals
    have a guarantee, which stretches each coverage's by a factor of its own, it is those that count.

    Returns:
        A share for each coverage; ideally the coverage itself.

    >>> import torch, evidentia as ev
    >>> coverage_curve(ev.Gaussian(torch.zeros(3), 1.0), [-3.0, 0.0, 1.0], [0.5, 0.9])
    array([0.33333333, 0.66666667])
    """
    p = as_prediction(prediction)
    if p.guarantee is not None:
        return _shares_in_intervals(p, y, coverage, mask)
    below, at = _probabilities(p, y, mask)
    return _shares("coverage", np.maximum(1 - 2 * at, 2 * below - 1), coverage)


@documented
def calibration_curve(
    prediction: Predictive,
    y: Targets,
    quantiles: ArrayLike = PROBABILITIES,
    *,
    mask: Mask = None,
) -> Array:
    """Return the share of targets at or below each predicted quantile (Kuleshov et al. 2018).

    A target with a probability of its own, a zero under ``target_transform="positive"``, counts by the share of that
    probability that lies below the quantile's (Czado et al. 2009).

    Returns:
        A share for each quantile; ideally its probability.

    >>> import torch, evidentia as ev
    >>> calibration_curve(ev.Gaussian(torch.zeros(2), 1.0), [-1.0, 1.0], [0.1, 0.5])
    array([0. , 0.5])
    """
    below, at = _probabilities(prediction, y, mask)
    atom = at > below
    shares = _shares("quantiles", at, quantiles)
    if not atom.any():
        return shares
    levels = np.asarray(quantiles, dtype=float)[:, None]
    inside: Array = np.clip((levels - below[atom]) / (at - below)[atom], 0, 1) - (at[atom] <= levels)
    corrected: Array = shares + inside.sum(1) / at.size
    return corrected


@documented
def calibration_error(
    prediction: Predictive,
    y: Targets,
    quantiles: ArrayLike = PROBABILITIES,
    *,
    mask: Mask = None,
) -> float:
    """Return the root mean squared distance of the calibration curve from the diagonal (Kuleshov et al. 2018).

    Returns:
        A distance; 0 is ideal.

    >>> import torch, evidentia as ev
    >>> calibration_error(ev.Gaussian(torch.zeros(2), 1.0), [-1.0, 1.0], [0.5])
    0.0
    """
    curve = calibration_curve(prediction, y, quantiles, mask=mask)
    return float(np.sqrt(np.mean((curve - np.asarray(quantiles, dtype=float)) ** 2)))


def _shares_in_intervals(p: Prediction, y: Targets, coverage: ArrayLike, mask: Mask) -> Array:
    """Return the share of targets in each of several intervals of the prediction itself."""
    chosen = known_targets(p, mask)
    target = p._target(y, mask).cpu().numpy()[chosen].astype(float)
    shares = []
    for each in np.atleast_1d(np.asarray(coverage, dtype=float)):
        ends = p.interval(float(each))[chosen]
        shares.append(mean_of(((ends[..., 0] <= target) & (target <= ends[..., 1])).astype(float)))
    return np.array(shares)


def _probabilities(prediction: Predictive, y: Targets, mask: Mask) -> tuple[Array, Array]:
    """Return P(Y < y) and P(Y ≤ y) of every target that counts, one after the other."""
    p = as_prediction(prediction)
    at = pit(p, y, mask=mask).ravel()
    target = p._target(y, mask).cpu().numpy()[known_targets(p, mask)].ravel()
    return p._strictly_below(target, at), at


def _shares(name: str, values: Array, limits: ArrayLike) -> Array:
    """Return the share of the values that are at most each limit."""
    levels = np.asarray(limits, dtype=float)
    if levels.ndim != 1 or not levels.size or not ((levels >= 0) & (levels <= 1)).all():
        shown = levels[0] if levels.shape == (1,) else levels
        raise InputError(f"{name} must lie between 0 and 1, one or several, got {shown}")
    if not values.size:
        mean_of(values)
    # NaN, of a prediction that is not finite, sorts last and is at most nothing
    return np.searchsorted(np.sort(values), levels, side="right") / values.size
