"""What chance alone explains: bands that hold a whole curve or histogram of a calibrated model, with 95 % probability.

A calibrated model has values F(y) that are independent and uniform on [0, 1]. Bands here are simultaneous: with the
stated probability nothing at all of a calibrated model's picture lies outside, so that a single point outside counts.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError

__all__ = ["CountBand", "binomial_range", "curve_band", "histogram_band"]


class CountBand(NamedTuple):
    """Smallest and largest counts that chance explains."""

    low: int
    high: int


def curve_band(rows: int, level: float = 0.95) -> float:
    r"""Return how far the calibration curve of a calibrated model with so many rows may lie from the diagonal.

    The curve is the empirical distribution function of F(y). By the Dvoretzky-Kiefer-Wolfowitz inequality with
    Massart's constant (1990), P(sup |curve − diagonal| > ε) ≤ 2 exp(−2nε²) for every n, hence

    .. math:: \varepsilon = \sqrt{\ln(2/(1-\text{level})) / (2n)}

    >>> round(curve_band(1000), 4)
    0.0429
    """
    _check(rows, level)
    return math.sqrt(math.log(2 / (1 - level)) / (2 * rows))


def histogram_band(rows: int, bins: int, level: float = 0.95) -> CountBand:
    """Return the range that all bins of a calibrated model's PIT histogram lie in with at least this probability.

    The count of a bin is binomial, with n rows and probability 1/bins. Each bin gets the range outside of which it lies
    with probability at most (1 − level)/bins, half of it on either side, so that by Bonferroni's inequality the
    probability that any bin lies outside is at most 1 − level, although counts depend on each other.

    >>> histogram_band(1000, 10)
    CountBand(low=74, high=128)
    """
    return binomial_range(rows, 1 / bins, bins, level)


def binomial_range(rows: int, probability: float, tests: int = 1, level: float = 0.95) -> CountBand:
    """Return the range of counts that a binomial leaves with probability at most (1 − level)/tests.

    With several ``tests``, all of them lie in their ranges with at least this probability (Bonferroni).

    >>> binomial_range(100, 0.9)
    CountBand(low=84, high=95)
    """
    _check(rows, level)
    tail = (1 - level) / tests / 2
    counts, cdf = _binomial_cdf(rows, probability)
    low = int(counts[int(np.searchsorted(cdf, tail, side="right"))])  # the first count with P(at most it) > tail
    high = int(
        counts[min(int(np.searchsorted(cdf, 1 - tail)), len(counts) - 1)]
    )  # the first with P(more than it) ≤ tail
    return CountBand(low, high)


def _binomial_cdf(rows: int, probability: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the counts that a binomial has, and their distribution function.

    Only counts within 12 standard deviations, and 40, of the mean are there, all but 1e-30 of the probability: with ten
    million rows all counts would be slow.
    """
    mean, std = rows * probability, math.sqrt(rows * probability * (1 - probability))
    reach = 12 * std + 40
    counts = np.arange(max(0, math.floor(mean - reach)), min(rows, math.ceil(mean + reach)) + 1)
    first = int(counts[0])
    start = math.lgamma(rows + 1) - math.lgamma(first + 1) - math.lgamma(rows - first + 1)
    start += first * math.log(probability) + (rows - first) * math.log1p(-probability)
    # P(k+1)/P(k) = (n−k)/(k+1) · p/(1−p)
    steps = np.log((rows - counts[:-1]) / (counts[:-1] + 1)) + math.log(probability) - math.log1p(-probability)
    mass = np.exp(start + np.r_[0.0, np.cumsum(steps)])
    return counts, np.cumsum(mass / mass.sum())  # the sum is 1 but for rounding of the first term


def _check(rows: int, level: float) -> None:
    if rows < 1:
        raise InputError("there are no rows to compare with chance")
    if not 0 < level < 1:
        raise InputError(f"the level of a band lies between 0 and 1, got {level}")
