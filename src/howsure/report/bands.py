"""What chance alone explains: ranges that hold a whole curve or table of a calibrated model with 95% probability.

The ranges are simultaneous: with the stated probability no point of the curve and no row of the table lies outside, so
that a single one outside counts.
"""

import math
from typing import NamedTuple

from howsure.errors import InputError

__all__ = ["CountBand", "binomial_range", "curve_band"]


class CountBand(NamedTuple):
    """Smallest and largest counts that chance explains."""

    low: int
    high: int


def curve_band(rows: int, level: float = 0.95) -> float:
    r"""Return how far the calibration curve of a calibrated model may lie from the diagonal by chance.

    The curve is the empirical distribution function of F(y), whose values are independent and uniform on [0, 1] for a
    calibrated model. By the Dvoretzky-Kiefer-Wolfowitz inequality with Massart's constant (1990),
    P(sup |curve − diagonal| > ε) ≤ 2 exp(−2nε²) for every n, hence

    .. math:: \varepsilon = \sqrt{\ln(2/(1-\text{level})) / (2n)}

    >>> round(curve_band(1000), 4)
    0.0429
    """
    _check(rows, level)
    return math.sqrt(math.log(2 / (1 - level)) / (2 * rows))


def binomial_range(rows: int, probability: float, tests: int = 1, level: float = 0.95) -> CountBand:
    """Return the range of counts that a binomial count leaves with probability at most (1 − level)/tests.

    With several ``tests``, all counts lie in their ranges with at least this probability (Bonferroni).

    >>> binomial_range(100, 0.9)
    CountBand(low=84, high=95)
    """
    from scipy.stats import binom

    _check(rows, level)
    tail = (1 - level) / tests / 2
    return CountBand(int(binom.ppf(tail, rows, probability)), int(binom.isf(tail, rows, probability)))


def _check(rows: int, level: float) -> None:
    if rows < 1:
        raise InputError("there are no rows to compare with chance")
    if not 0 < level < 1:
        raise InputError(f"the level of a band must be between 0 and 1, got {level}", value=level)
