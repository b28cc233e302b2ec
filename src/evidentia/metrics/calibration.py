"""Whether a prediction means what it says: ``(prediction, y) → number or curve``."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evidentia.errors import InputError
from evidentia.metrics.scores import mean_of
from evidentia.prediction import Prediction

__all__ = ["LEVELS", "calibration_curve", "calibration_error", "coverage", "coverage_curve", "pit"]

LEVELS = np.linspace(0.025, 0.975, 39)


def pit(prediction: Prediction, y: ArrayLike) -> NDArray[np.float64]:
    """Probability integral transform F(y) of each target, uniform for a calibrated prediction."""
    return prediction.cdf(y)


def coverage(prediction: Prediction, y: ArrayLike, level: float = 0.9) -> float:
    """Share of targets in the central interval of this level; ideally the level."""
    return float(coverage_curve(prediction, y, np.array([level]))[0])


def coverage_curve(prediction: Prediction, y: ArrayLike, levels: NDArray[np.float64] = LEVELS) -> NDArray[np.float64]:
    """Coverage of the central interval at each level. A y lies in it exactly if |2F(y) − 1| is at most the level."""
    return _shares(np.abs(2 * pit(prediction, y) - 1).ravel(), levels)


def calibration_curve(
    prediction: Prediction, y: ArrayLike, levels: NDArray[np.float64] = LEVELS
) -> NDArray[np.float64]:
    """Share of targets below the predicted quantile at each level (Kuleshov et al. 2018); ideally the level."""
    return _shares(pit(prediction, y).ravel(), levels)


def calibration_error(prediction: Prediction, y: ArrayLike, levels: NDArray[np.float64] = LEVELS) -> float:
    """Root mean squared distance of the calibration curve from the diagonal (Kuleshov et al. 2018, uniform weights)."""
    return float(np.sqrt(np.mean((calibration_curve(prediction, y, levels) - levels) ** 2)))


def _shares(values: NDArray[np.float64], levels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of the values that are at most each level."""
    levels = np.asarray(levels, dtype=float)
    if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
        raise InputError(f"levels lie between 0 and 1, got {levels}")
    return np.array([mean_of(values <= level) for level in levels])
