"""Divide the rows of a table into training and test rows: (train, test), both sorted row numbers.

A random split measures how well a model interpolates. `gap` and `tail` measure it in a range of a feature that
the training rows leave out.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from howsure.errors import InputError

__all__ = ["Indices", "Split", "gap", "random", "tail"]

Indices = NDArray[np.int64]  # of rows or frames
Split = tuple[Indices, Indices]


def random(n: int, test: float = 0.1, seed: int = 0) -> Split:
    """Return a split of n rows with a share ``test`` of them, taken at random, for testing.

    >>> train, test = random(10, test=0.3)
    >>> len(train), len(test)
    (7, 3)
    """
    return _split(np.random.default_rng(seed).permutation(n)[: _count(n, test)], n)


def gap(feature: ArrayLike, test: float = 1 / 3) -> Split:
    """Return the split whose test rows are the middle share of a feature's sorted values (Foong et al. 2019)."""
    order = np.argsort(np.asarray(feature), kind="stable")
    size = _count(len(order), test)
    start = (len(order) - size) // 2
    return _split(order[start : start + size], len(order))


def tail(feature: ArrayLike, test: float = 1 / 3) -> Split:
    """Return the split whose test rows are both ends of a feature's sorted values, half of the share each."""
    order = np.argsort(np.asarray(feature), kind="stable")
    size = _count(len(order), test)
    low = size // 2
    return _split(np.concatenate([order[:low], order[len(order) - (size - low) :]]), len(order))


def _count(n: int, test: float) -> int:
    """Return how many of n rows a share ``test`` is; at least one row is on either side."""
    if n < 2:
        raise InputError(f"cannot split {n} row{'' if n == 1 else 's'}; at least 2 are needed")
    if not 0 < test < 1:
        raise InputError(f"the share of test rows must lie between 0 and 1, got {test}", value=test)
    return min(n - 1, max(1, round(n * test)))


def _split(test: NDArray[np.intp], n: int) -> Split:
    """Return the split of n rows with these test rows."""
    chosen = np.zeros(n, dtype=bool)
    chosen[test] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
