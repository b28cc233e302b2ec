"""How good a prediction is: ``(prediction, y) → float``, smaller is better, the mean over rows and targets."""

import numpy as np
from torch import Tensor

from howsure.errors import InputError
from howsure.metrics.terms import Mask, Predictive, Targets, at_targets, errors, width_and_distance

__all__ = ["Mask", "Predictive", "Targets", "crps", "interval_score", "mae", "nll", "rmse"]


def rmse(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    """Return the root mean squared error of the mean.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        The error, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import numpy as np, torch, howsure as hs
    >>> rmse(hs.Normal(torch.zeros(3), 1.0), [3.0, 4.0, np.nan], mask=[True, True, False])
    3.5355339059327378
    """
    return float(np.sqrt(mean_of(errors(prediction, y, mask).square())))


def mae(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    """Return the mean absolute error of the mean.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        The error, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> mae(hs.Normal(torch.zeros(2), 1.0), [3.0, -4.0])
    3.5
    """
    return mean_of(errors(prediction, y, mask).abs())


def nll(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    """Return the negative log likelihood of the predictive distribution.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        Nats per target, for y in its units: the score of 1000 y is ln 1000 larger.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> round(nll(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), 4)
    1.1689
    """
    return -mean_of(at_targets("log_prob", prediction, y, mask))


def crps(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    r"""Return the continuous ranked probability score, :math:`\mathbb E|X-y| - \tfrac12\mathbb E|X-X'|`.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        The score, in the units of y. A prediction without any spread scores its absolute error.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> round(crps(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), 4)
    0.4181
    """
    return mean_of(at_targets("crps", prediction, y, mask))


def interval_score(prediction: Predictive, y: Targets, coverage: float = 0.9, *, mask: Mask = None) -> float:
    """Return the width of the central interval plus 2/(1−coverage) times the distance of y from it (Winkler 1972).

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        coverage: the probability that the central interval states; several of them for a curve.
        mask: True where a target counts; without it a missing target is an error.

    Returns:
        The score, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> round(interval_score(hs.Normal(torch.zeros(1), 1.0), [0.0], coverage=0.9), 4)
    3.2897
    """
    width, distance = width_and_distance(prediction, y, coverage, mask)
    return mean_of(width + 2 / (1 - coverage) * distance)


def mean_of(values: Tensor) -> float:
    """Return the mean over rows and targets; raise where there are none."""
    if not values.numel():
        raise InputError("there are no rows to score")
    return float(np.mean(values.cpu().numpy()))
