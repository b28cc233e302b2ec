"""Divide the rows of a table into training and test rows: (train, test), both sorted row numbers."""

import numpy as np
from numpy.typing import NDArray

from howsure.errors import InputError

__all__ = ["Indices", "Split", "random"]

Indices = NDArray[np.int64]  # of rows or frames
Split = tuple[Indices, Indices]


def random(n: int, test: float = 0.1, seed: int = 0) -> Split:
    """Return a split of n rows with a share ``test`` of them, taken at random, for testing.

    At least one row is on either side.

    >>> train, test = random(10, test=0.3)
    >>> len(train), len(test)
    (7, 3)
    """
    if n < 2:
        raise InputError(f"cannot split {n} row{'' if n == 1 else 's'}; at least 2 are needed")
    if not 0 < test < 1:
        raise InputError(f"the share of test rows must lie between 0 and 1, got {test}", value=test)
    size = min(n - 1, max(1, round(n * test)))
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[size:]), np.sort(order[:size])
