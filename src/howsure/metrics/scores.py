"""How good a prediction is: ``(prediction, y) → float``, smaller is better, the mean over rows and targets."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from howsure.errors import InputError
from howsure.metrics.terms import Mask, Predictive, Targets, at_targets, errors, width_and_distance

__all__ = ["Mask", "Predictive", "Targets", "crps", "interval_score", "mae", "nll", "rmse"]


# the text of each argument, said once for all metrics
ARGUMENTS = {
    "prediction": "a prediction, or the distribution that one network answered with.",
    "y": "targets, of the shape of the prediction.",
    "coverage": "the probability that the central interval states; several of them for a curve.",
    "quantiles": "the probabilities of the quantiles at which the curve is read.",
    "uncertainty": 'what to rank by: "std", "aleatoric", "epistemic", "entropy", or an array of the shape of y. A part '
    "that the prediction does not have is refused.",
    "error": '"rmse" or "mae", of the mean.',
    "points": "shares 1, 1 − 1/points, …, 1/points, each rounded up to whole rows; fewer where there are fewer rows.",
    "mask": "True where a target counts; without it a missing target is an error.",
}
Metric = TypeVar("Metric", bound=Callable[..., Any])


def documented(metric: Metric) -> Metric:
    """Add the arguments of a metric to its docstring, before what it returns."""
    lines = [f"        {name}: {ARGUMENTS[name]}" for name in inspect.signature(metric).parameters]
    wrapped = [textwrap.fill(line, 120, subsequent_indent=" " * 12) for line in lines]
    before, after = (metric.__doc__ or "").split("    Returns:")
    metric.__doc__ = "\n".join([f"{before}    Args:", *wrapped, "", f"    Returns:{after}"])
    return metric


@documented
def rmse(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    """Return the root mean squared error of the mean.

    Returns:
        The error, in the units of y.

    >>> import numpy as np, torch, howsure as hs
    >>> rmse(hs.Normal(torch.zeros(3), 1.0), [3.0, 4.0, np.nan], mask=[True, True, False])
    3.5355339059327378
    """
    return float(np.sqrt(mean_of(errors(prediction, y, mask).square())))


@documented
def mae(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    """Return the mean absolute error of the mean.

    Returns:
        The error, in the units of y.

    >>> import torch, howsure as hs
    >>> mae(hs.Normal(torch.zeros(2), 1.0), [3.0, -4.0])
    3.5
    """
    return mean_of(errors(prediction, y, mask).abs())


@documented
def nll(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    """Return the negative log likelihood of the predictive distribution.

    Returns:
        Nats per target, for y in its own units: that of 1000 y is ln 1000 larger.

    >>> import torch, howsure as hs
    >>> round(nll(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), 4)
    1.1689
    """
    return -mean_of(at_targets("log_prob", prediction, y, mask))


@documented
def crps(prediction: Predictive, y: Targets, *, mask: Mask = None) -> float:
    r"""Return the continuous ranked probability score, :math:`\mathbb E|X-y| - \tfrac12\mathbb E|X-X'|`.

    Returns:
        The score, in the units of y; that of a prediction without any spread is its absolute error.

    >>> import torch, howsure as hs
    >>> round(crps(hs.Normal(torch.zeros(2), 1.0), [0.0, 1.0]), 4)
    0.4181
    """
    return mean_of(at_targets("crps", prediction, y, mask))


@documented
def interval_score(prediction: Predictive, y: Targets, coverage: float = 0.9, *, mask: Mask = None) -> float:
    """Return the width of the central interval plus 2/(1−coverage) times the distance of y from it (Winkler 1972).

    Returns:
        The score, in the units of y.

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
