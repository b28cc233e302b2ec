"""Splits of a table that ask what a model knows about a range of a feature that the training rows leave out."""

import numpy as np
from numpy.typing import ArrayLike

from howsure.tables.splits import Split

__all__ = ["gap", "tail"]

TEST_SHARE = 1 / 3


def gap(feature: ArrayLike) -> Split:
    """Return the split whose test rows are the middle third of a feature's sorted values (Foong et al. 2019)."""
    order = np.argsort(np.asarray(feature), kind="stable")
    size = round(len(order) * TEST_SHARE)
    start = (len(order) - size) // 2
    return np.sort(np.delete(order, range(start, start + size))), np.sort(order[start : start + size])


def tail(feature: ArrayLike) -> Split:
    """Return the split whose test rows are both ends of a feature's sorted values, a sixth of the rows each."""
    order = np.argsort(np.asarray(feature), kind="stable")
    size = round(len(order) * TEST_SHARE)
    low, high = size // 2, len(order) - (size - size // 2)
    return np.sort(order[low:high]), np.sort(np.concatenate([order[:low], order[high:]]))
