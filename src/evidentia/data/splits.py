"""Ways to divide the rows of a table into training and test: (train, test), both sorted row numbers.

The random split asks how well a model interpolates. The others ask what it knows where it has not been: a new group,
the future, or a range of a feature that the training rows leave out.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evidentia.errors import InputError

__all__ = ["Split", "by_group", "by_time", "gap", "random", "tail"]

Rows = NDArray[np.int64]
Split = tuple[Rows, Rows]


def random(n: int, test: float = 0.1, seed: int = 0) -> Split:
    """A share ``test`` of n rows at random.

    >>> train, test = random(10, test=0.3)
    >>> len(train), len(test)
    (7, 3)
    """
    return _split(np.random.default_rng(seed).permutation(n)[: _count(n, test)], n)


def by_group(groups: ArrayLike, test: float = 0.1, seed: int = 0) -> Split:
    """Whole groups at random until a share ``test`` of the rows is reached: no group is on both sides."""
    labels = np.asarray(groups)
    names, counts = np.unique(labels, return_counts=True)
    if len(names) < 2:
        raise InputError(f"a split by group needs at least two groups, got {len(names)}")
    order = np.random.default_rng(seed).permutation(len(names))
    # at least one group on either side
    reached = np.cumsum(counts[order]) - counts[order] < _count(len(labels), test)
    reached[-1] = False
    return _split(np.flatnonzero(np.isin(labels, names[order[reached]])), len(labels))


def by_time(times: ArrayLike, test: float = 0.1) -> Split:
    """The latest share ``test`` of the rows. Rows of one moment stay together, so that the future is not known."""
    when = np.asarray(times)
    cut = np.sort(when)[-_count(len(when), test)]
    test_rows = np.flatnonzero(when >= cut)
    if len(test_rows) == len(when):
        raise InputError("a split by time needs at least two moments, and enough rows before the last of them")
    return _split(test_rows, len(when))


def gap(feature: ArrayLike, test: float = 1 / 3) -> Split:
    """The middle share ``test`` of a feature's sorted values left out of training (Foong et al. 2019)."""
    order = np.argsort(np.asarray(feature), kind="stable")
    size = _count(len(order), test)
    start = (len(order) - size) // 2
    return _split(order[start : start + size], len(order))


def tail(feature: ArrayLike, test: float = 1 / 3) -> Split:
    """Both ends of a feature's sorted values, half of the share ``test`` each, left out of training."""
    order = np.argsort(np.asarray(feature), kind="stable")
    size = _count(len(order), test)
    low = size // 2
    return _split(np.concatenate([order[:low], order[len(order) - (size - low) :]]), len(order))


def _count(n: int, test: float) -> int:
    if n < 2:
        raise InputError(f"cannot split {n} row{'' if n == 1 else 's'}; at least 2 are needed")
    if not 0 < test < 1:
        raise InputError(f"the share of test rows must lie between 0 and 1, got {test}")
    return min(n - 1, max(1, round(n * test)))


def _split(test: NDArray[np.intp], n: int) -> Split:
    chosen = np.zeros(n, dtype=bool)
    chosen[test] = True
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
