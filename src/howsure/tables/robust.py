"""Robust scaling of features, with a smooth clip far from the training rows."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["RobustScale", "unclipped"]

Array = NDArray[np.float64]
LINEAR_RANGE = 6.0  # robust deviations from the median within which a feature is kept as it is
MAX_LOG = 100.0  # of a feature that is unclipped
NORMAL_IQR = 1.349  # interquartile range of a standard normal distribution


class RobustScale(nn.Module):
    r"""Features in robust deviations from their medians, with logarithmic growth far out.

    .. math:: z = \frac{x - m}{s}, \qquad t(z) = z \text{ for } |z| \le c, \text{ else } \operatorname{sign}(z)
              \bigl(c + \ln(1 + |z| - c)\bigr)

    with the median m, the deviation s (interquartile range / 1.349) of the training rows, and c = 6. The map and its
    slope are continuous. A value a thousand times too large is then a few deviations outside, not a thousand.

    Args:
        features: F.
    """

    median: Tensor  # m, (F,)
    spread: Tensor  # s, (F,)

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("median", torch.zeros(features, dtype=torch.float64, device="cpu"))
        self.register_buffer("spread", torch.ones(features, dtype=torch.float64, device="cpu"))

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
        made = cls(x.shape[1])
        made.median.copy_(torch.from_numpy(median))
        made.spread.copy_(torch.from_numpy(spread))
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, F) scaled and clipped; NaN stays NaN."""
        z = (x - self.median) / self.spread
        size = z.abs()
        beyond = LINEAR_RANGE + torch.log1p((size - LINEAR_RANGE).clamp(min=0))
        return torch.where(size > LINEAR_RANGE, torch.where(z > 0, beyond, -beyond), z)


def unclipped(t: Tensor) -> Tensor:
    """Return scaled features as they were before the clip, at most exp(100): the inverse of :math:`t(z)`."""
    beyond = torch.expm1((t.abs() - LINEAR_RANGE).clamp(min=0, max=MAX_LOG))
    return t.clamp(-LINEAR_RANGE, LINEAR_RANGE) + torch.where(t > 0, beyond, -beyond)
