"""Calibration metrics: ``(prediction, y) → number or curve``."""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsure.metrics.scores import Mask, Predictive, Targets, mean_of
from howsure.metrics.terms import at_targets, calibration_sums, coverage_sums, levels_of

__all__ = ["PROBABILITIES", "calibration_curve", "calibration_error", "coverage", "coverage_curve", "pit"]

PROBABILITIES = np.linspace(0.025, 0.975, 39)
Array = NDArray[np.float64]


def pit(prediction: Predictive, y: Targets, *, mask: Mask = None) -> Array:
    """Return the probability integral transform F(y) of each target.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        Values in [0, 1], of the shape of y, or one after the other for those that count; uniform if the prediction is
        calibrated.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> pit(hs.Normal(torch.zeros(2), 1.0), [0.0, 100.0])
    array([0.5, 1. ])
    """
    return at_targets("cdf", prediction, y, mask).cpu().numpy()


def coverage(prediction: Predictive, y: Targets, coverage: float = 0.9, *, mask: Mask = None) -> float:
    """Return the share of targets in the central interval that should hold ``coverage`` of them.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        coverage: the probability that the central interval states, one number. :func:`coverage_curve` takes several.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        A share in [0, 1]; ideally ``coverage``.

    Raises:
        InputError: if y does not fit the prediction, a target is missing and not masked, or no target counts.

    >>> import torch, howsure as hs
    >>> coverage(hs.Normal(torch.zeros(4), 1.0), [-3.0, -1.0, 0.0, 1.0], coverage=0.9)
    0.75
    """
    return float(coverage_curve(prediction, y, np.array([coverage]), mask=mask)[0])


def coverage_curve(
    prediction: Predictive, y: Targets, coverage: ArrayLike = PROBABILITIES, *, mask: Mask = None
) -> Array:
    """Return the share of targets in each of several central intervals.

    A y lies in the interval exactly if |2F(y) − 1| is at most its coverage. Where zero has a positive probability, as
    under ``target_transform="positive"``, y lies in it if P(Y ≤ y) and P(Y ≥ y) are both at least (1 − coverage)/2.
    Intervals with a guarantee, stretched by one factor per coverage, are used where the prediction has them.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        coverage: the probability that the central interval states; several of them for a curve.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        A share for each coverage; ideally the coverage itself.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> coverage_curve(hs.Normal(torch.zeros(3), 1.0), [-3.0, 0.0, 1.0], [0.5, 0.9])
    array([0.33333333, 0.66666667])
    """
    return _shares(*coverage_sums(prediction, y, levels_of("coverage", coverage), mask))


def calibration_curve(
    prediction: Predictive,
    y: Targets,
    quantiles: ArrayLike = PROBABILITIES,
    *,
    mask: Mask = None,
) -> Array:
    """Return the share of targets at or below each predicted quantile (Kuleshov et al. 2018).

    A target with a positive probability, a zero under ``target_transform="positive"``, counts by the share of that
    probability that lies below the quantile's (Czado et al. 2009).

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        quantiles: the probabilities of the quantiles at which the curve is read.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        A share for each quantile; ideally its probability.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> calibration_curve(hs.Normal(torch.zeros(2), 1.0), [-1.0, 1.0], [0.1, 0.5])
    array([0. , 0.5])
    """
    return _shares(*calibration_sums(prediction, y, levels_of("quantiles", quantiles), mask))


def calibration_error(
    prediction: Predictive,
    y: Targets,
    quantiles: ArrayLike = PROBABILITIES,
    *,
    mask: Mask = None,
) -> float:
    """Return the root mean squared distance of the calibration curve from the diagonal (Kuleshov et al. 2018).

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        quantiles: the probabilities of the quantiles at which the curve is read.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        A distance; 0 is ideal.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> calibration_error(hs.Normal(torch.zeros(2), 1.0), [-1.0, 1.0], [0.5])
    0.0
    """
    curve = calibration_curve(prediction, y, quantiles, mask=mask)
    return float(np.sqrt(np.mean((curve - np.asarray(quantiles, dtype=float)) ** 2)))


def _shares(sums: Tensor, count: int) -> Array:
    """Return the share of all targets that each sum is."""
    if not count:
        mean_of(sums[:0])
    shares: Array = sums.cpu().numpy() / count
    return shares
