"""How good a prediction is: ``(prediction, y) → float``, smaller is better, the mean over rows and targets.

All scores take ``sample_weight``: non-negative weights of the shape of y, or (N,) or (N, 1) for whole rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsure.distributions.arguments import fit_rows
from howsure.errors import InputError
from howsure.metrics.terms import Mask, Predictive, Targets, at_targets, counted, errors, scored, width_and_distance
from howsure.prediction import as_prediction, real_numbers

__all__ = ["Mask", "Predictive", "Targets", "crps", "interval_score", "mae", "nll", "pinball", "rmse"]


def rmse(
    prediction: Predictive,
    y: Targets,
    *,
    mask: Mask = None,
    sample_weight: Mask = None,
) -> float:
    """Return the root mean squared error of the mean.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.
        sample_weight: weight of each target or row; None: all count the same.

    Returns:
        The error, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import numpy as np, torch, howsure as hs
    >>> rmse(hs.Normal(torch.zeros(3), 1.0), [3.0, 4.0, np.nan], mask=[True, True, False])
    3.5355339059327378
    """
    return float(np.sqrt(average(errors(prediction, y, mask).square(), prediction, mask, sample_weight)))


def mae(
    prediction: Predictive,
    y: Targets,
    *,
    mask: Mask = None,
    sample_weight: Mask = None,
) -> float:
    """Return the mean absolute error of the mean.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.
        sample_weight: weight of each target or row; None: all count the same.

    Returns:
        The error, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> mae(hs.Normal(torch.zeros(2), 1.0), [3.0, -4.0])
    3.5
    """
    return average(errors(prediction, y, mask).abs(), prediction, mask, sample_weight)


def nll(
    prediction: Predictive,
    y: Targets,
    *,
    mask: Mask = None,
    sample_weight: Mask = None,
) -> float:
    """Return the negative log likelihood of the predictive distribution.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.
        sample_weight: weight of each target or row; None: all count the same.

    Returns:
        Nats per target, for y in its units: the score of 1000 y is ln 1000 larger.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> round(nll(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), 4)
    1.1689
    """
    return average(-at_targets("log_prob", prediction, y, mask), prediction, mask, sample_weight)


def crps(
    prediction: Predictive,
    y: Targets,
    *,
    mask: Mask = None,
    sample_weight: Mask = None,
) -> float:
    r"""Return the continuous ranked probability score, :math:`\mathbb E|X-y| - \tfrac12\mathbb E|X-X'|`.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        mask: True where a target counts; without it a missing target is an error.
        sample_weight: weight of each target or row; None: all count the same.

    Returns:
        The score, in the units of y. A prediction without any spread scores its absolute error.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> round(crps(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), 4)
    0.4181
    """
    return average(at_targets("crps", prediction, y, mask), prediction, mask, sample_weight)


def interval_score(
    prediction: Predictive,
    y: Targets,
    coverage: float = 0.9,
    *,
    mask: Mask = None,
    sample_weight: Mask = None,
) -> float:
    """Return the width of the central interval plus 2/(1−coverage) times the distance of y from it (Winkler 1972).

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        coverage: the probability that the central interval states; several of them for a curve.
        mask: True where a target counts; without it a missing target is an error.
        sample_weight: weight of each target or row; None: all count the same.

    Returns:
        The score, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> round(interval_score(hs.Normal(torch.zeros(1), 1.0), [0.0], coverage=0.9), 4)
    3.2897
    """
    width, distance = width_and_distance(prediction, y, coverage, mask)
    return average(width + 2 / (1 - coverage) * distance, prediction, mask, sample_weight)


def pinball(
    prediction: Predictive,
    y: Targets,
    quantile: float = 0.5,
    *,
    mask: Mask = None,
    sample_weight: Mask = None,
) -> float:
    r"""Return the pinball loss of one quantile z, :math:`\max(q(y-z), (q-1)(y-z))`.

    Args:
        prediction: a prediction, or the output distribution of one network.
        y: targets, of the shape of the prediction.
        quantile: its probability q.
        mask: True where a target counts; without it a missing target is an error.
        sample_weight: weight of each target or row; None: all count the same.

    Returns:
        The loss, in the units of y.

    Raises:
        InputError: if y does not fit the prediction, or a target is missing and not masked.

    >>> import torch, howsure as hs
    >>> pinball(hs.Normal(torch.zeros(2), 1.0), [1.0, -1.0])
    0.5
    """
    p = scored(prediction)
    target = p.target(y, mask)
    error = counted(p, target - torch.from_numpy(p.quantile(quantile)).to(target), mask)
    return average(torch.maximum(quantile * error, (quantile - 1) * error), p, mask, sample_weight)


def average(values: Tensor, prediction: Any, mask: Any, sample_weight: Any) -> float:
    """Return the weighted mean of the terms of all targets that count."""
    if sample_weight is None:
        return mean_of(values)
    p = as_prediction(prediction)
    weights = fit_rows(real_numbers("sample_weight", sample_weight), p.shape)
    if weights.shape != p.shape or not (np.isfinite(weights) & (weights >= 0)).all():
        raise InputError(f"sample_weight must be finite, at least 0, and of the shape {p.shape} of the prediction")
    own = counted(p, torch.from_numpy(np.array(weights)), mask).flatten().numpy()
    if not own.sum() > 0:
        raise InputError("there are no rows to score, or all of them have the weight 0")
    return float(np.average(values.cpu().numpy().ravel(), weights=own))


def mean_of(values: Tensor) -> float:
    """Return the mean over rows and targets; raise where there are none."""
    if not values.numel():
        raise InputError("there are no rows to score")
    return float(np.mean(values.cpu().numpy()))
