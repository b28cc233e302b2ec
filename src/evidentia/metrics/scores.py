"""How good a prediction is: ``(prediction, y) → float``, smaller is better, the mean over rows and targets."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evidentia.errors import InputError
from evidentia.prediction import Prediction

__all__ = ["crps", "interval_score", "nll", "rmse"]


def mean_of(values: NDArray[np.float64]) -> float:
    """The mean over rows and targets; raise where there are none."""
    if not values.size:
        raise InputError("there are no rows to score")
    return float(np.mean(values))


def rmse(prediction: Prediction, y: ArrayLike) -> float:
    """Root mean squared error of the mean."""
    target = prediction._target(y).numpy()
    return float(np.sqrt(mean_of((prediction.mean - target) ** 2)))


def nll(prediction: Prediction, y: ArrayLike) -> float:
    """Negative log likelihood of the predictive distribution, in nats per target and in the units of y."""
    return -mean_of(prediction.log_prob(y))


def crps(prediction: Prediction, y: ArrayLike) -> float:
    """Continuous ranked probability score, in the units of y."""
    return mean_of(prediction.crps(y))


def interval_score(prediction: Prediction, y: ArrayLike, coverage: float = 0.9) -> float:
    """Width of the central interval plus 2/(1−coverage) times the distance of each y outside it (Winkler 1972)."""
    target = prediction._target(y).numpy()
    ends = prediction.interval(coverage)
    low, high = ends[..., 0], ends[..., 1]
    outside = np.maximum(low - target, 0) + np.maximum(target - high, 0)
    return mean_of(high - low + 2 / (1 - coverage) * outside)
