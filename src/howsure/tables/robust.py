"""Robust scaling of features, with a smooth clip far from the training rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError

__all__ = ["RobustScale"]

Array = NDArray[np.float64]
LINEAR_RANGE = 4.0  # robust deviations from the median within which a feature is kept as it is
NORMAL_IQR = 1.349  # interquartile range of a standard normal distribution


@dataclass(frozen=True)
class RobustScale:
    r"""Features in robust deviations from their medians, with logarithmic growth far out.

    .. math:: z = \frac{x - m}{s}, \qquad t(z) = z \text{ for } |z| \le c, \text{ else } \operatorname{sign}(z)
              \bigl(c + \ln(1 + |z| - c)\bigr)

    with the median m, the deviation s (interquartile range / 1.349) of the training rows, and c = 4. The map and its
    slope are continuous. A value a thousand times too large is then a few deviations outside, not a thousand.

    Args:
        median, spread: m and s of each feature, (F,).
    """

    median: Array
    spread: Array

    @classmethod
    def fit(cls, x: Array) -> "RobustScale":
        """Return the scaling of training features (N, F).

        A feature whose interquartile range is 0 has its standard deviation for a spread, and 1 if that is 0.
        """
        low, median, high = np.quantile(x, [0.25, 0.5, 0.75], axis=0, method="nearest")
        spread = (high - low) / NORMAL_IQR
        size = np.maximum(np.abs(x - median).max(0), np.finfo(float).tiny)
        deviation = np.sqrt(np.mean(((x - median) / size) ** 2, axis=0)) * size
        tiny = 1e-9 * np.maximum(np.abs(median), size)  # below, differences are rounding errors
        spread = np.where(spread > tiny, spread, np.where(deviation > tiny, deviation, 1.0))
        return cls(median, spread)

    def __call__(self, x: Array) -> Array:
        """Return features (N, F) scaled and clipped; NaN stays NaN."""
        z = (x - self.median) / self.spread
        size = np.abs(z)
        far = size > LINEAR_RANGE
        if far.any():
            z[far] = np.sign(z[far]) * (LINEAR_RANGE + np.log1p(size[far] - LINEAR_RANGE))
        return z

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a model file."""
        return {"median": self.median.tolist(), "spread": self.spread.tolist()}

    @classmethod
    def from_dict(cls, saved: dict[str, Any], features: int) -> "RobustScale":
        """Return the scaling that :meth:`to_dict` described; raise if the values do not fit."""
        try:
            median, spread = (np.array(saved[name], dtype=float) for name in ("median", "spread"))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"inconsistent model file: {error}") from error
        if median.shape != (features,) or spread.shape != (features,) or not (spread > 0).all():
            raise InputError("inconsistent model file: the robust scaling does not fit the features")
        return cls(median, spread)
