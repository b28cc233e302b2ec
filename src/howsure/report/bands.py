"""Ranges that contain a whole curve or table of a calibrated model with 95% probability.

The ranges are simultaneous: with the stated probability no point of the curve and no row of the table lies outside, so
that a single one outside counts.
"""

import math
from typing import NamedTuple

__all__ = ["CountBand", "binomial_range", "curve_band"]

LEVEL = 0.95


class CountBand(NamedTuple):
    """Smallest and largest counts that chance explains."""

    low: int
    high: int


def curve_band(rows: int) -> float:
    r"""Return how far the calibration curve of a calibrated model may lie from the diagonal by chance.

    The curve is the empirical distribution function of F(y), whose values are independent and uniform on [0, 1] for a
    calibrated model. By the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant (1990),
    P(sup |curve − diagonal| > ε) ≤ 2 exp(−2nε²) for every n, hence

    .. math:: \varepsilon = \sqrt{\ln(2/0.05) / (2n)}

    >>> round(curve_band(1000), 4)
    0.0429
    """
    return math.sqrt(math.log(2 / (1 - LEVEL)) / (2 * rows))


def binomial_range(rows: int, probability: float, tests: int = 1) -> CountBand:
    """Return the range of counts that a binomial count leaves with probability at most 5% / ``tests``.

    With several ``tests``, all counts lie in their ranges with a probability of at least 95% (Bonferroni).

    >>> binomial_range(100, 0.9)
    CountBand(low=84, high=95)
    """
    from scipy.stats import binom

    tail = (1 - LEVEL) / tests / 2
    return CountBand(int(binom.ppf(tail, rows, probability)), int(binom.isf(tail, rows, probability)))
