"""The cubic problem: y = x³ + ε, trained on ±4 (Hernández-Lobato and Adams 2015; the paper's Fig. 3)."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["cubic"]


def cubic(
    n: int = 1000, noise: float = 3.0, half_width: float = 4.0, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x of shape (n, 1), evenly spaced in ± half_width, and y = x³ + ε with ε of standard *deviation* ``noise``.

    The paper writes N(0, 3); its code, and the papers it follows, have a deviation of 3.

    >>> x, y = cubic(5, noise=0.0)
    >>> y
    array([-64.,  -8.,   0.,   8.,  64.])
    """
    x = np.linspace(-half_width, half_width, n)
    return x[:, None], x**3 + noise * np.random.default_rng(seed).standard_normal(n)
