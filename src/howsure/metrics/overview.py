"""Several metrics of one prediction at once."""

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError
from howsure.metrics.calibration import calibration_error
from howsure.metrics.calibration import coverage as share_inside
from howsure.metrics.scores import Mask, Predictive, Targets, crps, mae, mean_of, nll, rmse
from howsure.metrics.terms import width_and_distance
from howsure.prediction import as_prediction

__all__ = ["summary", "summary_of_targets"]


def summary(prediction: Predictive, y: Targets, *, coverage: float = 0.9, mask: Mask = None) -> dict[str, float]:
    """Return the usual metrics of a prediction, by name.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        coverage: the probability that the central interval states; several of them for a curve.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        ``rmse``, ``mae``, ``nll``, ``crps`` and ``calibration_error`` as the functions of these names return them;
        ``coverage``, the share of targets in the central intervals, ideally the argument ``coverage``; and
        ``interval_width``, the mean width of these intervals, in the units of y. NaN where a prediction has no such
        value: a target learned by its logarithm has no mean and so no ``rmse``.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> found = summary(hs.Normal(torch.zeros(4), 1.0), [-3.0, -1.0, 0.0, 1.0])
    >>> {name: round(value, 3) for name, value in found.items()}  # doctest: +NORMALIZE_WHITESPACE
    {'rmse': 1.658, 'mae': 1.25, 'nll': 2.294, 'crps': 0.969, 'coverage': 0.75, 'interval_width': 3.29,
    'calibration_error': 0.159}
    """
    p = as_prediction(prediction)
    moments = p.transform is None or p.transform.has_moments
    found = {
        metric.__name__: metric(p, y, mask=mask) if moments or metric is nll else np.nan
        for metric in (rmse, mae, nll, crps)
    }
    width, _ = width_and_distance(p, y, coverage, mask)
    return found | {
        "coverage": share_inside(p, y, coverage, mask=mask),
        "interval_width": mean_of(width),
        "calibration_error": calibration_error(p, y, mask=mask),
    }


def summary_of_targets(
    prediction: Predictive, y: Targets, *, coverage: float = 0.9, mask: Mask = None
) -> dict[str, NDArray[np.float64]]:
    """Return :func:`summary` of each target of a prediction (N, T): an array (T,) for each metric.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        coverage: the probability that the central interval states.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        The metrics by name, as of :func:`summary`.

    Raises:
        InputError: if y does not fit the prediction, it has no dimension of targets, or a target is missing and not
            masked.

    >>> import torch, howsure as hs
    >>> summary_of_targets(hs.Normal(torch.zeros(2, 3), 1.0), [[1.0, 2.0, 3.0], [-1.0, 2.0, 3.0]])["rmse"]
    array([1., 2., 3.])
    """
    p = as_prediction(prediction)
    if len(p.shape) != 2:
        raise InputError(f"the prediction must have the shape (N, T), got {p.shape}")
    target, known = p.target(y, mask), None if mask is None else p.known(mask)
    each = [
        summary(p[:, t], target[:, t], coverage=coverage, mask=None if known is None else known[:, t])
        for t in range(p.shape[1])
    ]
    return {name: np.array([one[name] for one in each]) for name in each[0]}
